//! Records that may follow in a batch: those of answers that cost nothing.

use std::sync::Arc;
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};

use crate::store::journal::Journal;
use crate::store::record::Record;
use crate::telemetry::Telemetry;
use crate::worker::FLUSH_EVERY;

/// Keeps records for at most [`FLUSH_EVERY`], then writes them in one piece from a thread of its own.
pub struct Backlog {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    state: Mutex<State>,
    stop: Condvar,
    journal: Arc<Journal>,
    telemetry: Arc<Telemetry>,
}

#[derive(Default)]
struct State {
    records: Vec<Record>,
    stopping: bool,
}

impl Backlog {
    /// Starts the thread.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn start(journal: Arc<Journal>, telemetry: Arc<Telemetry>) -> std::io::Result<Backlog> {
        let shared = Arc::new(Shared { state: Mutex::default(), stop: Condvar::new(), journal, telemetry });
        let own = Arc::clone(&shared);
        let thread = std::thread::Builder::new().name("backlog".to_owned()).spawn(move || own.run())?;
        Ok(Backlog { shared, thread: Mutex::new(Some(thread)) })
    }

    /// Adds records.
    pub fn push(&self, records: Vec<Record>) {
        self.shared.state.lock().records.extend(records);
    }

    /// Writes what is left and ends the thread. Records pushed afterwards are lost.
    pub fn stop(&self) {
        self.shared.state.lock().stopping = true;
        self.shared.stop.notify_all();
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the backlog thread had panicked");
        }
    }
}

impl Shared {
    fn run(&self) {
        loop {
            let (records, stopping) = {
                let mut state = self.state.lock();
                if !state.stopping {
                    self.stop.wait_for(&mut state, FLUSH_EVERY);
                }
                (std::mem::take(&mut state.records), state.stopping)
            };
            if !records.is_empty()
                && let Err(error) = self.journal.append_all(&records)
            {
                self.telemetry.store_failed("usage", &error);
            }
            if stopping {
                return;
            }
        }
    }
}
