//! Log lines on their way to standard error: gathered in memory and written by a thread of their own, so that no request
//! waits for a terminal, a pipe or a disk. Owns how long a line may wait and what happens when nobody reads. Refuses to
//! know what lines say.
//!
//! A line waits for [`GATHER`] at most, a warning or an error not at all. Where the reader is too slow, lines beyond
//! [`MOST`] are dropped; how many is logged as soon as there is room.

use std::io::{self, Write};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use tracing::{Level, Metadata};
use tracing_subscriber::fmt::MakeWriter;

/// Lines are gathered for this long.
const GATHER: Duration = Duration::from_millis(10);

/// Bytes that may wait.
const MOST: usize = 8 << 20;

#[derive(Debug, Default)]
struct State {
    waiting: Vec<u8>,
    urgent: bool,
    stopping: bool,
    /// Lines dropped and not told of yet.
    lost: u64,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

/// Where lines go; cheap to clone.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    shared: Arc<Shared>,
}

/// Writes what waits until it is dropped, and then the rest.
#[derive(Debug)]
pub struct LineWriter {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Lines {
    /// Adds a line, its end included; `urgent` ones are written at once.
    pub fn push(&self, line: &[u8], urgent: bool) {
        let mut state = self.shared.state.lock();
        if state.waiting.len() + line.len() > MOST {
            state.lost += 1;
            return;
        }
        let first = state.waiting.is_empty();
        state.waiting.extend_from_slice(line);
        if first || (urgent && !state.urgent) {
            state.urgent |= urgent;
            self.shared.wake.notify_one();
        }
    }

    /// Starts the thread that writes to `out`.
    ///
    /// # Errors
    /// When no thread can be made; nothing is written then.
    pub fn write_to(&self, out: impl Write + Send + 'static) -> io::Result<LineWriter> {
        let shared = Arc::clone(&self.shared);
        let run = move || shared.run(out);
        let thread = std::thread::Builder::new().name("log".to_owned()).spawn(run)?;
        Ok(LineWriter { shared: Arc::clone(&self.shared), thread: Some(thread) })
    }
}

impl Shared {
    fn run(&self, mut out: impl Write) {
        let mut lines = Vec::new();
        loop {
            let (stopping, lost) = {
                let mut state = self.state.lock();
                while state.waiting.is_empty() && !state.stopping {
                    self.wake.wait(&mut state);
                }
                if !state.urgent && !state.stopping {
                    self.wake.wait_for(&mut state, GATHER);
                }
                state.urgent = false;
                std::mem::swap(&mut lines, &mut state.waiting);
                (state.stopping, std::mem::take(&mut state.lost))
            };
            // Where standard error is closed there is nobody to tell.
            let _ = out.write_all(&lines).and_then(|()| out.flush());
            lines.clear();
            if lost > 0 {
                tracing::warn!(lines = lost, "log lines were dropped: standard error is read too slowly");
            }
            if stopping && self.state.lock().waiting.is_empty() {
                return;
            }
        }
    }
}

impl Drop for LineWriter {
    fn drop(&mut self) {
        self.shared.state.lock().stopping = true;
        self.shared.wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // A panic of that thread was told when it happened.
            let _ = thread.join();
        }
    }
}

/// One event's line.
#[derive(Debug)]
pub struct Line<'a> {
    lines: &'a Lines,
    urgent: bool,
}

impl Write for Line<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.lines.push(bytes, self.urgent);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'a> MakeWriter<'a> for Lines {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line { lines: self, urgent: true }
    }

    fn make_writer_for(&'a self, metadata: &Metadata<'_>) -> Line<'a> {
        Line { lines: self, urgent: *metadata.level() <= Level::WARN }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            self.0.lock().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn everything_is_written_in_order_before_the_end() {
        let (lines, sink) = (Lines::default(), Sink::default());
        let writer = lines.write_to(sink.clone()).expect("a thread");
        let expected: String = (0..1_000).map(|number| format!("line {number}\n")).collect();
        for line in expected.split_inclusive('\n') {
            lines.push(line.as_bytes(), line.ends_with("7\n"));
        }
        drop(writer);
        assert_eq!(String::from_utf8(sink.0.lock().clone()).expect("text"), expected);
    }

    #[test]
    fn what_finds_no_room_is_counted() {
        let lines = Lines::default();
        lines.push(&vec![b'x'; MOST], false);
        lines.push(b"y", true);
        lines.push(b"", false);
        let state = lines.shared.state.lock();
        assert_eq!((state.waiting.len(), state.lost), (MOST, 1));
    }
}
