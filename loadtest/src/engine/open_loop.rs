//! The open loop: requests leave when they are due, however many are still unanswered.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::task::JoinSet;

use super::arrivals::Schedule;
use super::client::{Failure, Pool, Target};
use super::report::{Report, is_good};
use super::{Progress, Source};
use crate::{clock, timer};

/// An open-loop run.
#[derive(Clone, Debug)]
pub struct OpenLoop {
    /// When requests are due.
    pub schedule: Schedule,
    /// Seed of random arrivals.
    pub seed: u64,
    /// Connections to each target at most. A request that finds none free waits, and the wait counts.
    pub connections: usize,
    /// Time allowed for one request, from when it is sent.
    pub timeout: Duration,
}

impl OpenLoop {
    /// A run of this schedule over at most 256 connections with 60 s for each request.
    pub fn new(schedule: Schedule) -> Self {
        Self { schedule, seed: 1, connections: 256, timeout: Duration::from_secs(60) }
    }
}

struct Run {
    pools: Vec<Pool>,
    source: Arc<dyn Source>,
    progress: Arc<Progress>,
    report: Mutex<Report>,
    waited: AtomicU64,
    timeout: Duration,
}

/// Runs the schedule and waits for every answer.
///
/// # Cancel safety
/// Dropping the future ends the run; requests on their way are given up.
pub async fn open_loop(
    run: &OpenLoop,
    targets: Vec<Target>,
    source: Arc<dyn Source>,
    progress: Arc<Progress>,
) -> Report {
    let pools: Vec<Pool> = targets.into_iter().map(|target| Pool::new(target, run.connections)).collect();
    for pool in &pools {
        // Enough that the first requests do not measure the opening of connections.
        pool.warm(run.connections.min(16)).await;
    }
    let shared = Arc::new(Run {
        pools,
        source,
        progress,
        report: Mutex::default(),
        waited: AtomicU64::new(0),
        timeout: run.timeout,
    });
    let mut tasks = JoinSet::new();
    let start = clock::now();
    let mut due_count = 0;
    for (offset, phase) in run.schedule.arrivals(run.seed) {
        let due = start + offset;
        // Made ahead of time: making it must not delay it.
        let shot = shared.source.shot(due_count, offset, phase);
        due_count += 1;
        timer::sleep_until(due).await;
        tasks.spawn(Arc::clone(&shared).send(shot, due));
        // Finished tasks are collected on the way, so that a long run does not keep them all.
        while tasks.try_join_next().is_some() {}
    }
    while tasks.join_next().await.is_some() {}
    let mut report = std::mem::take(&mut *shared.report.lock());
    report.due = due_count;
    report.waited_for_connection = shared.waited.load(Ordering::Relaxed);
    report.elapsed = clock::now().duration_since(start);
    report
}

impl Run {
    async fn send(self: Arc<Self>, shot: super::Shot, due: Instant) {
        let lateness = clock::now().saturating_duration_since(due);
        self.progress.note_sent();
        let outcome = match self.pools.get(shot.target) {
            Some(pool) => {
                if pool.is_full() {
                    self.waited.fetch_add(1, Ordering::Relaxed);
                }
                pool.call(&shot, self.source.wants_bodies(), self.timeout).await
            }
            None => Err(Failure::Connect),
        };
        let latency = clock::now().saturating_duration_since(due);
        self.progress.note_done(is_good(&outcome));
        self.source.seen(&shot, &outcome, latency);
        let mut report = self.report.lock();
        report.lateness.record(lateness);
        report.record(&shot.label, &outcome, latency);
    }
}
