//! The scripted provider: a real HTTP/1.1 server that answers as embedding, rerank and chat providers do, and
//! misbehaves on order.
//!
//! Owns sockets, time and the log; what is answered is decided by a [`Script`]. It knows nothing of gateways. It lives
//! on a thread and a runtime of its own, so that a test on any runtime, or on none, can use it.

mod canned;
mod control;
pub mod delay;
mod dialect;
mod http1;
pub mod limits;
mod listen;
mod live;
mod log;
mod make;
pub mod quota;
mod quota_headers;
pub mod rules;
pub mod script;
mod serve;
pub mod signature;
pub mod usage;
mod wire;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::sync::{Notify, oneshot};
use tokio_util::sync::CancellationToken;

pub use delay::{Delay, Pace};
pub use dialect::Dialect;
pub use limits::{Limits, Refusals};
pub use log::{Call, Stats};
pub use quota::{Notation, Quota, RetryAfter, Window};
pub use rules::{Defect, Effect, Fault, Rule, When};
pub use script::{Chat, Cut, Digits, EncodingRule, Framing, Honour, Labels, Record, Script, StreamUsage, TeiInfo};
pub use signature::{Item, rerank_score, shorten, signature, signature_of, signature_tokens};
pub use usage::{TokenRule, UsageShape};

use live::Live;
use log::CallLog;
use serve::Shared;

/// Where and how a provider runs.
#[derive(Clone, Debug)]
pub struct Options {
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// Threads that serve; at least 1.
    pub threads: usize,
    /// File to which every finished call is written as a JSON line.
    pub log_file: Option<PathBuf>,
}

impl Default for Options {
    fn default() -> Self {
        Self { listen: SocketAddr::from(([127, 0, 0, 1], 0)), threads: 1, log_file: None }
    }
}

/// A running provider. Dropping it ends it.
pub struct Provider {
    addr: SocketAddr,
    shared: Arc<Shared>,
    ending: CancellationToken,
    ended: oneshot::Receiver<()>,
}

impl std::fmt::Debug for Provider {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Provider").field("addr", &self.addr).finish_non_exhaustive()
    }
}

impl Provider {
    /// Starts a provider on a free loopback port.
    ///
    /// # Panics
    /// If the system has no free port or thread left; a test cannot go on then.
    pub fn start(script: Script) -> Self {
        match Self::start_with(script, &Options::default()) {
            Ok(provider) => provider,
            Err(error) => panic!("cannot start a provider on loopback: {error}"),
        }
    }

    /// Starts a provider where and how `options` say.
    ///
    /// # Errors
    /// The address cannot be had, the log file cannot be created, or no thread can be started.
    pub fn start_with(script: Script, options: &Options) -> io::Result<Self> {
        let log = CallLog::new(options.log_file.as_deref())?;
        let shared = Arc::new(Shared {
            live: parking_lot::RwLock::new(Arc::new(Live::new(script))),
            log,
            started: crate::clock::now(),
            script_changed: Notify::new(),
        });
        let ending = CancellationToken::new();
        let (bound, addr) = std::sync::mpsc::channel();
        let (over, ended) = oneshot::channel();
        let (listen, threads) = (options.listen, options.threads);
        let (thread_shared, thread_ending) = (Arc::clone(&shared), ending.clone());
        thread::Builder::new().name("provider".to_owned()).spawn(move || {
            let runtime = match threads {
                0 | 1 => tokio::runtime::Builder::new_current_thread().enable_all().build(),
                // The accepting thread only accepts.
                many => tokio::runtime::Builder::new_multi_thread().worker_threads(many).enable_all().build(),
            };
            match runtime {
                Ok(runtime) => runtime.block_on(listen::listen(listen, thread_shared, thread_ending, bound)),
                // Whoever starts the provider may already have given up.
                Err(error) => drop(bound.send(Err(error))),
            }
            // The runtime is gone by now, and with it every connection.
            let _ = over.send(());
        })?;
        let gone = || io::Error::other("the provider's thread ended before it listened");
        let addr = addr.recv().map_err(|_| gone())??;
        Ok(Self { addr, shared, ending, ended })
    }

    /// `http://127.0.0.1:PORT`, without a path.
    pub fn base_url(&self) -> String {
        format!("http://{}", self.addr)
    }

    /// Where it listens.
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// Every call so far (the newest `keep_calls`), in the order in which they were complete. A call is here before
    /// its answer leaves; `fully_written` and `finished_ns` follow when the answer has left, see
    /// [`Self::wait_finished`].
    pub fn calls(&self) -> Vec<Call> {
        self.shared.log.calls()
    }

    /// Calls so far.
    pub fn call_count(&self) -> u64 {
        self.stats().calls
    }

    /// Sums over all calls so far.
    pub fn stats(&self) -> Stats {
        self.shared.log.stats()
    }

    /// Tokens billed so far: those of every call that was worked off, delivered or not.
    pub fn tokens_billed(&self) -> u64 {
        self.stats().tokens_billed
    }

    /// Forgets all calls and sums. The script and the counters of its rules go on.
    pub fn clear(&self) {
        self.shared.log.clear();
    }

    /// Puts another script in force: rules, quota and phases begin anew. Calls in work finish under the old one.
    pub fn set_script(&self, script: Script) {
        control::set_script(&self.shared, script);
    }

    /// Waits until `calls` calls have been seen; false if `patience` ran out. Blocks the thread.
    pub fn wait_calls(&self, calls: u64, patience: Duration) -> bool {
        self.shared.log.wait(patience, |stats| stats.calls >= calls)
    }

    /// Waits until `calls` calls have been answered or given up; false if `patience` ran out. Blocks the thread.
    pub fn wait_finished(&self, calls: u64, patience: Duration) -> bool {
        self.shared.log.wait(patience, |stats| stats.finished >= calls)
    }

    /// As [`Self::wait_calls`], for tests whose client runs on the same thread; waits for ever.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn until_calls(&self, calls: u64) {
        self.shared.log.until(|stats| stats.calls >= calls).await;
    }

    /// As [`Self::wait_finished`], for tests whose client runs on the same thread; waits for ever.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn until_finished(&self, calls: u64) {
        self.shared.log.until(|stats| stats.finished >= calls).await;
    }

    /// Ends the provider and waits until its sockets are closed.
    ///
    /// # Cancel safety
    /// Dropping the future still ends the provider, unwaited.
    pub async fn stop(mut self) {
        self.ending.cancel();
        // An error means that the thread is gone already.
        let _ = (&mut self.ended).await;
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.ending.cancel();
    }
}
