//! One request's place in a distributed trace: W3C trace context in and out, and the spans of its journey.
//!
//! A trace id exists whether or not the trace is recorded, so that logs and error bodies can always name one. Whether it is
//! recorded is decided before anything is made for it ([`sampling`]). While a recorded request is under way nothing but
//! plain values is noted ([`notes`]); of those another thread makes spans once the request is over, since a span kept
//! open on the way costs ten times as much. Names of attributes are spelled there (`otlp/describe.rs`).

use std::fmt;
use std::mem;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::clock;
use crate::config::plan::Upstream;
use crate::error::ApiError;
use crate::pure::digits;
use crate::pure::time::Mono;

use super::labels::{CallStatus, TraceId};
use super::requests::RequestEnd;

pub mod notes;
mod parent;
pub mod queue;
pub mod sampling;

use notes::{CallNote, EndNote, Notes, StageNote};
pub use parent::TraceParent;
use queue::Queue;
use sampling::Sampler;

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(digits::hex(self.0).as_str())
    }
}

/// Longest `tracestate` that is passed on; longer ones are dropped whole, as the recommendation allows.
const MAX_TRACESTATE: usize = 512;

/// Stages and calls of a usual journey.
const USUAL_STAGES: usize = 8;

/// Which requests are recorded, and where what is noted of them goes.
#[derive(Debug)]
pub struct Recorder {
    /// Chooses them.
    pub sampler: Sampler,
    /// Where they wait.
    pub queue: Arc<Queue>,
}

/// What comes with a request.
#[derive(Debug, Clone, Copy, Default)]
pub struct Incoming<'a> {
    /// Its `traceparent` header.
    pub traceparent: Option<&'a str>,
    /// Its `tracestate` header.
    pub tracestate: Option<&'a str>,
    /// A random number for the id of a trace that nobody else names; zero is made one.
    pub fresh: u128,
    /// When its first byte was seen.
    pub began: Mono,
}

/// A request's trace.
#[derive(Debug)]
pub struct RequestTrace {
    id: TraceId,
    flags: u8,
    /// The client's own span where nobody receives spans: calls carry it on as it came, so that its trace has no hole
    /// where this process is.
    passed: Option<u64>,
    state: Option<String>,
    recording: Option<Box<Recording>>,
}

#[derive(Debug)]
struct Recording {
    queue: Arc<Queue>,
    notes: Mutex<Notes>,
}

impl RequestTrace {
    /// Begins under the client's `traceparent`, or as the root of a new trace. `recorder` is there where somebody receives
    /// spans; `route`, the pattern of the route that was entered by a POST, is asked for only if the request is recorded.
    pub fn begin(recorder: Option<&Recorder>, incoming: Incoming<'_>, route: impl FnOnce() -> String) -> RequestTrace {
        let parent = incoming.traceparent.and_then(TraceParent::parse);
        let state = incoming.tracestate.filter(|text| parent.is_some() && text.len() <= MAX_TRACESTATE);
        let state = state.map(str::to_owned);
        let id = parent.map_or(TraceId(incoming.fresh.max(1)), |parent| parent.trace);
        let Some(recorder) = recorder else {
            let (flags, passed) = (parent.map_or(0, |parent| parent.flags), parent.map(|parent| parent.span));
            return RequestTrace { id, flags, passed, state, recording: None };
        };
        if !recorder.sampler.takes(parent, id, incoming.began) {
            return RequestTrace { id, flags: 0, passed: None, state, recording: None };
        }
        let notes = Notes {
            trace: id,
            span: fresh_span(),
            parent: parent.map(|parent| parent.span),
            state: None,
            route: route(),
            origin: clock::origin(),
            began: incoming.began,
            ended: incoming.began,
            stages: Vec::with_capacity(USUAL_STAGES),
            calls: Vec::with_capacity(1),
            end: None,
        };
        let recording = Recording { queue: Arc::clone(&recorder.queue), notes: Mutex::new(notes) };
        RequestTrace { id, flags: 1, passed: None, state, recording: Some(Box::new(recording)) }
    }

    /// The trace's id, for logs and error bodies.
    pub const fn id(&self) -> TraceId {
        self.id
    }

    /// The trace's id if its spans are kept somewhere: what an exemplar should point to.
    pub const fn exemplar(&self) -> Option<TraceId> {
        if self.flags & 1 == 1 { Some(self.id) } else { None }
    }

    /// A stage of the journey: it lasts until it is dropped.
    pub fn stage(self: &Arc<RequestTrace>, name: &'static str) -> Stage {
        let trace = self.recording.is_some().then(|| (Arc::clone(self), clock::mono()));
        Stage { name, trace }
    }

    /// One call to an upstream, beginning now: `operation` is `embeddings`, `rerank` or `chat`, `model` the model's name
    /// there, `items` how many inputs the call carries. It lasts until it is said how it ended, or it is dropped.
    pub fn upstream_call(
        self: &Arc<RequestTrace>,
        operation: &'static str,
        upstream: &Upstream,
        model: &Arc<str>,
        items: usize,
    ) -> CallTrace {
        let span = self.passed.unwrap_or_else(fresh_span);
        let noted = self.recording.is_some().then(|| {
            let began = clock::mono();
            let note = CallNote {
                span,
                began,
                ended: began,
                operation,
                provider: upstream.provider,
                upstream: upstream.id.clone(),
                model: Arc::clone(model),
                items,
                status: None,
                tokens: None,
            };
            (Arc::clone(self), Box::new(note))
        });
        CallTrace { context: TraceParent { trace: self.id, span, flags: self.flags }, noted }
    }

    /// The client's `tracestate`, for the calls made for it.
    pub fn state(&self) -> Option<&str> {
        self.state.as_deref()
    }

    /// Notes what is known at the end; the request's span ends when the trace is dropped.
    pub fn ended(&self, end: &RequestEnd) {
        self.note(|notes| {
            notes.end = Some(EndNote {
                request_id: end.request_id.clone(),
                operation: end.operation,
                class: end.class,
                status: end.error.as_ref().map_or(200, ApiError::status),
                error: end.error.as_ref().map(|error| error.code.row().name),
                journey: end.journey.clone(),
            });
        });
    }

    fn note(&self, write: impl FnOnce(&mut Notes)) {
        if let Some(recording) = &self.recording {
            write(&mut recording.notes.lock());
        }
    }
}

impl Drop for RequestTrace {
    fn drop(&mut self) {
        if let Some(recording) = self.recording.take() {
            let Recording { queue, notes } = *recording;
            let mut notes = notes.into_inner();
            notes.ended = clock::mono();
            notes.state = self.state.take();
            queue.push(notes);
        }
    }
}

/// A stage under way.
#[derive(Debug)]
#[must_use = "a stage lasts until it is dropped"]
pub struct Stage {
    name: &'static str,
    /// The trace and when the stage began, if it is recorded.
    trace: Option<(Arc<RequestTrace>, Mono)>,
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Some((trace, began)) = self.trace.take() {
            let note = StageNote { name: self.name, began, ended: clock::mono() };
            trace.note(|notes| notes.stages.push(note));
        }
    }
}

/// A call to an upstream that is under way.
#[derive(Debug)]
pub struct CallTrace {
    context: TraceParent,
    noted: Option<(Arc<RequestTrace>, Box<CallNote>)>,
}

impl CallTrace {
    /// What the upstream is told.
    pub const fn context(&self) -> TraceParent {
        self.context
    }

    /// Notes how it ended; `tokens` as the provider billed them. What is said later does not count.
    pub fn ended(&mut self, status: CallStatus, tokens: Option<u64>) {
        if let Some((_, note)) = &mut self.noted {
            (note.status, note.tokens) = (Some(status), tokens);
        }
        self.finish();
    }

    fn finish(&mut self) {
        if let Some((trace, mut note)) = mem::take(&mut self.noted) {
            note.ended = clock::mono();
            trace.note(|notes| notes.calls.push(*note));
        }
    }
}

impl Drop for CallTrace {
    fn drop(&mut self) {
        self.finish();
    }
}

fn fresh_span() -> u64 {
    rand::random::<u64>().max(1)
}

#[cfg(test)]
mod tests;
