//! What is noted of a recorded request while it is under way: plain values, of which spans are made later and elsewhere
//! (see [`crate::telemetry::otlp`]). Holds ids, names and numbers only: no key, no text of a request.

use std::sync::Arc;

use crate::config::plan::Provider;
use crate::ids::{RequestId, UpstreamId};
use crate::pure::class::TrafficClass;
use crate::pure::time::Mono;
use crate::telemetry::labels::{CallStatus, TraceId};
use crate::telemetry::requests::JourneyEnd;

/// A request, all of it.
#[derive(Debug)]
pub struct Notes {
    /// Its trace.
    pub trace: TraceId,
    /// The id of its span, never zero.
    pub span: u64,
    /// The client's own span.
    pub parent: Option<u64>,
    /// The client's `tracestate`.
    pub state: Option<String>,
    /// The pattern of the route that was entered by a POST.
    pub route: String,
    /// The process's first instant ([`Mono::ZERO`]) by the wall clock, in nanoseconds since 1970.
    pub origin: u64,
    /// When it began.
    pub began: Mono,
    /// When it was over.
    pub ended: Mono,
    /// Stages of its journey that are over.
    pub stages: Vec<StageNote>,
    /// Calls to upstreams that are over.
    pub calls: Vec<CallNote>,
    /// What was known at its end, if it came to one.
    pub end: Option<EndNote>,
}

impl Notes {
    /// How many spans will be made of it.
    pub fn spans(&self) -> usize {
        1 + self.stages.len() + self.calls.len()
    }
}

/// A stage of the journey.
#[derive(Debug)]
pub struct StageNote {
    /// Its name.
    pub name: &'static str,
    /// When it began.
    pub began: Mono,
    /// When it was over.
    pub ended: Mono,
}

/// A call to an upstream.
#[derive(Debug)]
pub struct CallNote {
    /// The id of its span, which the upstream was told; never zero.
    pub span: u64,
    /// When it began.
    pub began: Mono,
    /// When it was over.
    pub ended: Mono,
    /// `embeddings`, `rerank` or `chat`.
    pub operation: &'static str,
    /// The upstream's dialect.
    pub provider: Provider,
    /// Who was called.
    pub upstream: UpstreamId,
    /// The model's name there.
    pub model: Arc<str>,
    /// Inputs that it carried.
    pub items: usize,
    /// How it ended; `None`: nobody waited for its end.
    pub status: Option<CallStatus>,
    /// Input tokens as the provider billed them.
    pub tokens: Option<u64>,
}

/// A request's end.
#[derive(Debug)]
pub struct EndNote {
    /// Its id.
    pub request_id: RequestId,
    /// `embeddings`, `rerank` or `chat`.
    pub operation: &'static str,
    /// Its class.
    pub class: TrafficClass,
    /// The answer's status.
    pub status: u16,
    /// The error's code.
    pub error: Option<&'static str>,
    /// What it cost whom, if it got as far as a journey.
    pub journey: Option<JourneyEnd>,
}
