//! Recorded requests on their way to the thread that makes spans of them. Bounded by spans: what finds no room is dropped
//! and counted, so that a receiver that is slow or dead costs requests neither time nor memory.

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::telemetry::otlp::LostSpans;

use super::notes::Notes;

/// How much may wait, and how much is worth a delivery.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limits {
    /// Spans that may wait.
    pub waiting: usize,
    /// Spans of one delivery, or a few more, as traces are not cut.
    pub batch: usize,
}

/// Requests whose spans are not made yet.
#[derive(Debug)]
pub struct Queue {
    waiting: Mutex<Waiting>,
    /// Enough for a delivery waits.
    enough: Notify,
    limits: Limits,
    lost: LostSpans,
}

#[derive(Debug, Default)]
struct Waiting {
    requests: Vec<Notes>,
    spans: usize,
    closed: bool,
}

impl Queue {
    /// An empty one; what it drops is counted in `lost`.
    pub fn new(limits: Limits, lost: LostSpans) -> Queue {
        Queue { waiting: Mutex::default(), enough: Notify::new(), limits, lost }
    }

    /// Adds a request that is over. Wakes nobody until there is enough for a delivery.
    pub fn push(&self, notes: Notes) {
        let spans = notes.spans();
        let enough = {
            let mut waiting = self.waiting.lock();
            if waiting.closed || waiting.spans + spans > self.limits.waiting {
                self.lost.add(spans);
                return;
            }
            let before = waiting.spans;
            waiting.spans += spans;
            waiting.requests.push(notes);
            before < self.limits.batch && waiting.spans >= self.limits.batch
        };
        if enough {
            self.enough.notify_one();
        }
    }

    /// Everything that waits, if that is at least `spans`.
    pub fn take(&self, spans: usize) -> Vec<Notes> {
        let mut waiting = self.waiting.lock();
        if waiting.spans < spans {
            return Vec::new();
        }
        waiting.spans = 0;
        std::mem::take(&mut waiting.requests)
    }

    /// Waits until there is enough for a delivery. Safe to cancel.
    pub async fn enough(&self) {
        self.enough.notified().await;
    }

    /// From now on everything is dropped.
    pub fn close(&self) {
        self.waiting.lock().closed = true;
    }

    /// How much may wait.
    pub const fn limits(&self) -> Limits {
        self.limits
    }
}
