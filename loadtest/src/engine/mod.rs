//! The load engine: sends requests when they are due, not when the last one is answered.
//!
//! Owns arrivals, connections and measurement. A slow server does not slow it down, and a request that had to wait
//! counts from when it should have been sent, so that no stall is hidden. What is sent is decided by a [`Source`]; what
//! is expected of the answers is none of its business.

pub mod arrivals;
pub mod client;
mod closed_loop;
pub mod cpu;
mod open_loop;
pub mod report;

use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use hyper::HeaderMap;

pub use arrivals::{Arrivals, Phase, Schedule};
pub use client::{Failure, Reply, Target};
pub use closed_loop::{ClosedLoop, closed_loop};
pub use open_loop::{OpenLoop, open_loop};
pub use report::{Label, Report, Row};

/// A request to be sent.
#[derive(Clone, Debug)]
pub struct Shot {
    /// Under what it is measured.
    pub label: Label,
    /// Which of the targets gets it.
    pub target: usize,
    /// Path and query, appended to the target's own path.
    pub path: String,
    /// Headers; `host` and `content-length` are added.
    pub headers: HeaderMap,
    /// Body of a POST; `None`: a GET.
    pub body: Option<Bytes>,
}

/// Where requests come from, and who sees the answers.
pub trait Source: Send + Sync + 'static {
    /// The request of this number (from 0), due `at` after the start in the phase of this name.
    fn shot(&self, number: u64, at: Duration, phase: &str) -> Shot;

    /// Whether bodies of answers are kept for [`Self::seen`].
    fn wants_bodies(&self) -> bool {
        false
    }

    /// An answer, or why there is none, after `latency` since the request was due.
    fn seen(&self, shot: &Shot, outcome: &Result<Reply, Failure>, latency: Duration) {
        let _ = (shot, outcome, latency);
    }

    /// How long a client of a closed loop waits before its next request, after this outcome.
    fn pause(&self, outcome: &Result<Reply, Failure>) -> Duration {
        let _ = outcome;
        Duration::ZERO
    }
}

/// What is going on while a run lasts; read from any thread.
#[derive(Debug, Default)]
pub struct Progress {
    sent: AtomicU64,
    done: AtomicU64,
    failed: AtomicU64,
}

impl Progress {
    /// Requests sent so far.
    pub fn sent(&self) -> u64 {
        self.sent.load(Relaxed)
    }

    /// Requests answered or given up so far.
    pub fn done(&self) -> u64 {
        self.done.load(Relaxed)
    }

    /// Of those, the ones without a 2xx answer.
    pub fn failed(&self) -> u64 {
        self.failed.load(Relaxed)
    }

    fn note_sent(&self) {
        self.sent.fetch_add(1, Relaxed);
    }

    fn note_done(&self, good: bool) {
        self.done.fetch_add(1, Relaxed);
        self.failed.fetch_add(u64::from(!good), Relaxed);
    }
}
