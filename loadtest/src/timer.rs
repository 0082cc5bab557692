//! Sleeping with a resolution well below a millisecond.
//!
//! Owns one thread that waits on a condition variable and wakes whoever is due. tokio's own timer moves in steps of
//! 1 ms, which at an upstream delay of 20 ms hides everything a proxy adds; a kernel wait is late by some 60 µs and,
//! unlike spinning, costs no CPU that the measured process needs.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::OnceLock;
use std::thread;
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};
use tokio::sync::oneshot;

use crate::clock;

struct Sleeper {
    due: Instant,
    wake: oneshot::Sender<()>,
}

impl PartialEq for Sleeper {
    fn eq(&self, other: &Self) -> bool {
        self.due == other.due
    }
}

impl Eq for Sleeper {}

impl PartialOrd for Sleeper {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Sleeper {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.due.cmp(&other.due)
    }
}

#[derive(Default)]
struct Timer {
    sleepers: Mutex<BinaryHeap<Reverse<Sleeper>>>,
    earlier: Condvar,
}

impl Timer {
    fn run(&self) {
        let mut sleepers = self.sleepers.lock();
        loop {
            let now = clock::now();
            while sleepers.peek().is_some_and(|Reverse(first)| first.due <= now) {
                if let Some(Reverse(first)) = sleepers.pop() {
                    // A sleeper that was dropped meanwhile wants no waking.
                    let _ = first.wake.send(());
                }
            }
            match sleepers.peek().map(|Reverse(first)| first.due) {
                Some(due) => {
                    self.earlier.wait_until(&mut sleepers, due);
                }
                None => self.earlier.wait(&mut sleepers),
            }
        }
    }

    fn add(&self, due: Instant) -> oneshot::Receiver<()> {
        let (wake, woken) = oneshot::channel();
        let mut sleepers = self.sleepers.lock();
        let first = sleepers.peek().is_none_or(|Reverse(first)| due < first.due);
        sleepers.push(Reverse(Sleeper { due, wake }));
        drop(sleepers);
        if first {
            self.earlier.notify_one();
        }
        woken
    }
}

fn timer() -> Option<&'static Timer> {
    static TIMER: OnceLock<Timer> = OnceLock::new();
    static THREAD: OnceLock<bool> = OnceLock::new();
    let timer = TIMER.get_or_init(Timer::default);
    let running =
        THREAD.get_or_init(|| thread::Builder::new().name("fine-timer".to_owned()).spawn(move || timer.run()).is_ok());
    running.then_some(timer)
}

/// Waits until `due`; returns at once if that has passed. Must run inside a tokio runtime.
///
/// # Cancel safety
/// Dropping the future forgets the wake-up.
pub async fn sleep_until(due: Instant) {
    if due <= clock::now() {
        return;
    }
    let rung = match timer() {
        Some(timer) => timer.add(due).await.is_ok(),
        None => false,
    };
    if !rung {
        tokio::time::sleep_until(due.into()).await;
    }
}

/// Waits for `duration`; see [`sleep_until`].
///
/// # Cancel safety
/// Dropping the future forgets the wake-up.
pub async fn sleep(duration: Duration) {
    if !duration.is_zero() {
        sleep_until(clock::now() + duration).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn sleepers_wake_in_the_order_of_their_due_times() {
        let start = clock::now();
        let (sender, mut order) = tokio::sync::mpsc::unbounded_channel();
        for offset_ms in [9_u64, 3, 6] {
            let sender = sender.clone();
            tokio::spawn(async move {
                sleep_until(start + Duration::from_millis(offset_ms)).await;
                sender.send((offset_ms, clock::now() >= start + Duration::from_millis(offset_ms))).expect("open");
            });
        }
        drop(sender);
        let mut seen = Vec::new();
        while let Some(entry) = order.recv().await {
            seen.push(entry);
        }
        assert_eq!(seen, [(3, true), (6, true), (9, true)]);
    }
}
