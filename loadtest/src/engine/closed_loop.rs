//! The closed loop: so many clients, each of which sends its next request when the last is answered. Tells what a
//! server can do at most, and nothing about latency.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use super::client::{Failure, Pool, Target};
use super::report::{Report, is_good};
use super::{Progress, Source};
use crate::clock;

/// A closed-loop run.
#[derive(Clone, Debug)]
pub struct ClosedLoop {
    /// Clients, each with a connection of its own.
    pub connections: usize,
    /// How long new requests are sent.
    pub duration: Duration,
    /// Time allowed for one request.
    pub timeout: Duration,
    /// How long after that the last answers are waited for. Requests without one are given up and measured nowhere: the
    /// job was called off, which says nothing about the server.
    pub grace: Duration,
}

/// Runs the clients and waits for their last answers. Requests are numbered over all clients; latency is from the
/// sending of each request.
///
/// # Cancel safety
/// Dropping the future ends the run; requests on their way are given up.
pub async fn closed_loop(run: &ClosedLoop, target: Target, source: Arc<dyn Source>, progress: Arc<Progress>) -> Report {
    let number = Arc::new(AtomicU64::new(0));
    let mut clients = JoinSet::new();
    let start = clock::now();
    for _ in 0..run.connections {
        let (run, target, source, progress, number) =
            (run.clone(), target.clone(), Arc::clone(&source), Arc::clone(&progress), Arc::clone(&number));
        clients.spawn(async move {
            let pool = Pool::new(target, 1);
            let mut report = Report::default();
            while clock::now().duration_since(start) < run.duration {
                let sent = clock::now();
                let shot =
                    source.shot(number.fetch_add(1, Ordering::Relaxed), sent.duration_since(start), "saturation");
                progress.note_sent();
                let call = pool.call(&shot, source.wants_bodies(), run.timeout);
                let end = start + run.duration + run.grace;
                let Ok(outcome) = tokio::time::timeout_at(end.into(), call).await else { break };
                let latency = clock::now().duration_since(sent);
                progress.note_done(is_good(&outcome));
                source.seen(&shot, &outcome, latency);
                report.due += 1;
                report.lateness.record(Duration::ZERO);
                report.record(&shot.label, &outcome, latency);
                // A server that is not there answers fast; hammering it would only heat the processor.
                let gone = matches!(outcome, Err(Failure::Connect));
                let least = if gone { Duration::from_millis(10) } else { Duration::ZERO };
                let left = run.duration.saturating_sub(clock::now().duration_since(start));
                let pause = source.pause(&outcome).max(least).min(left);
                if !pause.is_zero() {
                    tokio::time::sleep(pause).await;
                }
            }
            report
        });
    }
    let mut total = Report::default();
    while let Some(client) = clients.join_next().await {
        // A client that panicked in its source has measured nothing.
        let Ok(report) = client else { continue };
        total.due += report.due;
        total.lateness.merge(&report.lateness);
        for (label, row) in report.rows {
            total.rows.entry(label).or_default().merge(&row);
        }
    }
    total.elapsed = clock::now().duration_since(start);
    total
}
