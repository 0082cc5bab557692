//! Delivery of the spans of recorded requests: a thread of its own makes them of what was noted and sends them. Owns when
//! and to whom; knows nothing of what they mean.
//!
//! One delivery is under way at a time, and none is tried twice: while a receiver is slow or dead, requests wait in a
//! bounded [`Queue`] and are dropped beyond.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use opentelemetry_proto::tonic::collector::trace::v1::ExportTraceServiceResponse;
use prost::Message as _;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio::time::{sleep, timeout};

use crate::telemetry::traces::Recorder;
use crate::telemetry::traces::notes::Notes;
use crate::telemetry::traces::queue::Queue;
use crate::telemetry::traces::sampling::Sampler;

use super::delivery::{Delivery, Failing, Packed};
use super::describe::describe;
use super::pen::{Pen, export};
use super::settings::{self, Settings, Signal};
use super::{LostSpans, OtlpError};

/// Longest wait for the last deliveries, at the process's end.
const LAST: Duration = Duration::from_secs(5);

/// What the export of spans needs from the environment.
#[derive(Debug)]
pub struct SpanExport {
    courier: Courier,
    sampler: Sampler,
    /// What of the variables could not be used and was left aside.
    pub complaint: Option<String>,
}

impl SpanExport {
    /// Reads the variables through `get`; `None`: no receiver is named, or the export is switched off. Undeliverable spans
    /// are counted in `lost`.
    ///
    /// # Errors
    /// A variable that cannot be used, or no TLS to be had.
    pub fn from_env(
        get: impl Fn(&str) -> Option<String> + Copy,
        lost: LostSpans,
    ) -> Result<Option<SpanExport>, OtlpError> {
        let Some(settings) = Settings::from_env(Signal::Traces, get)? else { return Ok(None) };
        let queue = Arc::new(Queue::new(settings::limits(get)?, lost.clone()));
        let (sampler, complaint) = Sampler::from_env(get);
        let courier = Courier {
            interval: settings.interval,
            delivery: Delivery::new(settings)?,
            queue,
            pen: Pen::default(),
            resource: super::resource().encode_to_vec(),
            scope: super::scope().encode_to_vec(),
            lost,
            failing: Failing::default(),
            taken: VecDeque::new(),
            body: None,
        };
        Ok(Some(SpanExport { courier, sampler, complaint }))
    }

    /// Where a layer of `tracing` must bring the spans.
    pub fn pen(&self) -> Pen {
        self.courier.pen.clone()
    }

    /// Begins to deliver what the recorder is told of. The process's subscriber must bring spans to [`SpanExport::pen`].
    ///
    /// # Errors
    /// No thread to be had.
    pub fn start(self) -> Result<(Recorder, SpanCourier), OtlpError> {
        let fail = |error: &dyn std::fmt::Display| OtlpError(error.to_string());
        let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| fail(&error))?;
        let (stop, stopped) = oneshot::channel();
        let queue = Arc::clone(&self.courier.queue);
        let thread = std::thread::Builder::new()
            .name("otlp-traces".to_owned())
            .spawn(move || runtime.block_on(self.courier.run(stopped)))
            .map_err(|error| fail(&error))?;
        Ok((Recorder { sampler: self.sampler, queue }, SpanCourier { stop: Some(stop), thread: Some(thread) }))
    }
}

/// The thread at work; dropping it delivers what waits, for a few seconds at most, and ends it.
#[derive(Debug)]
#[must_use = "dropping it ends the export of traces"]
pub struct SpanCourier {
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Drop for SpanCourier {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::warn!("the export of traces ended by a fault");
        }
    }
}

/// What the thread has at hand.
#[derive(Debug)]
struct Courier {
    delivery: Delivery,
    interval: Duration,
    queue: Arc<Queue>,
    pen: Pen,
    /// Encoded.
    resource: Vec<u8>,
    /// Encoded.
    scope: Vec<u8>,
    lost: LostSpans,
    failing: Failing,
    /// Taken from the queue, and not written yet.
    taken: VecDeque<Notes>,
    /// Written, and not delivered yet; how many spans.
    body: Option<(Packed, usize)>,
}

impl Courier {
    /// Delivers until `stopped` resolves, and then what waits. Not cancel-safe: what waits is lost.
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        loop {
            let least = tokio::select! {
                biased;
                _ = &mut stopped => break,
                () = self.queue.enough() => self.queue.limits().batch,
                () = sleep(self.interval) => 0,
            };
            tokio::select! {
                biased;
                _ = &mut stopped => break,
                () = self.deliver(least) => {}
            }
        }
        self.queue.close();
        if timeout(LAST, self.deliver(0)).await.is_err() {
            let written = self.body.take().map_or(0, |(_, spans)| spans);
            let taken: usize = self.taken.iter().map(Notes::spans).sum();
            self.note(written + taken, Err("the receiver does not answer".to_owned()));
        }
    }

    /// Delivers what waits if that is at least `least` spans. Safe to cancel: what was taken is kept, and what was under
    /// way is delivered again.
    async fn deliver(&mut self, least: usize) {
        self.taken.extend(self.queue.take(least));
        loop {
            if self.body.is_none() {
                self.body = self.batch();
            }
            let Some((packed, spans)) = &self.body else { return };
            let (spans, result) = (*spans, self.delivery.send(packed).await);
            self.body = None;
            self.note(spans, result);
        }
    }

    /// Writes a delivery's worth of what was taken.
    fn batch(&mut self) -> Option<(Packed, usize)> {
        let mut promised = 0;
        while promised < self.queue.limits().batch
            && let Some(notes) = self.taken.pop_front()
        {
            promised += notes.spans();
            describe(&notes, &self.pen, rand::random);
        }
        let (spans, count) = self.pen.take();
        // Where another subscriber was installed before, nothing comes back.
        self.lost.add(promised - count.min(promised));
        (count > 0).then(|| (self.delivery.pack(export(&self.resource, &self.scope, &spans)), count))
    }

    /// Counts what was lost of `spans`, and tells of a beginning and an end of it.
    fn note(&mut self, spans: usize, result: Result<Vec<u8>, String>) {
        let refused = |answer: Vec<u8>| {
            let answer = ExportTraceServiceResponse::decode(answer.as_slice()).unwrap_or_default();
            answer.partial_success.map_or(0, |partly| partly.rejected_spans.max(0))
        };
        let (lost, reason) = match result.map(refused) {
            Ok(0) => (0, None),
            Ok(some) => {
                (usize::try_from(some).unwrap_or(spans).min(spans), Some(format!("the receiver refused {some}")))
            }
            Err(reason) => (spans, Some(reason)),
        };
        self.lost.add(lost);
        let news = self.failing.news(reason.is_some());
        match reason {
            Some(reason) if news => tracing::warn!(reason, "spans could not be delivered by OTLP and are lost"),
            None if news => tracing::info!("spans are delivered by OTLP again"),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests;
