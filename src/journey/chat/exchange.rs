//! One call of a chat upstream, up to the moment at which it is known whether it answers: a whole answer, the first event
//! of a stream, or a failure that another upstream may cure.

use std::collections::VecDeque;
use std::rc::Rc;

use bytes::Bytes;

use super::ChatCall;
use super::simulated;
use crate::clock;
use crate::config::plan::Provider;
use crate::crowd::Breath;
use crate::dialects::chat::answer;
use crate::dialects::chat::event::{self, LONGEST_EVENT, Splitter};
use crate::dialects::chat::meter::{Fate, Meter, Told};
use crate::dialects::upstream::decode_error;
use crate::dialects::wire::{Opened, WireError};
use crate::dialects::{BadAnswer, ProviderError};
use crate::pure::rate_headers::RateHeaders;
use crate::runtime::{ModelRuntime, Route};
use crate::telemetry::labels::CallStatus;
use crate::telemetry::traces::TraceParent;
use crate::worker::{CallError, Worker, trace_headers};

/// What the error of a stream is called that fails with its first event: the head said 200.
const FAILED_AT_ONCE: u16 = 500;

/// What came of a call.
pub(super) struct Exchange {
    /// The answer, or why there is none.
    pub result: Result<Answered, NoAnswer>,
    /// What its headers say of the upstream's quota.
    pub rate: RateHeaders,
}

/// An answer.
pub(super) enum Answered {
    /// All of it.
    Whole(Bytes, Told),
    /// Its beginning.
    Stream(Box<Live>),
}

/// No answer.
pub(super) enum NoAnswer {
    /// The provider said no.
    Error(ProviderError),
    /// Nothing usable came.
    Call(CallError),
}

/// A stream that has begun.
pub(super) struct Live {
    /// Where it comes from.
    pub source: Source,
    /// What has come of it.
    pub splitter: Splitter,
    /// Reads its events.
    pub meter: Meter,
    /// The first event, not read yet.
    pub first: Option<Bytes>,
    /// The provider's own content type.
    pub content_type: String,
}

/// Where pieces of a stream come from.
pub(super) enum Source {
    /// A provider.
    Wire(Opened),
    /// The provider in this process.
    Local(VecDeque<Bytes>),
}

impl Source {
    /// The next piece; `None` at the end.
    ///
    /// # Errors
    /// Those of the wire.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn next(&mut self) -> Result<Option<Bytes>, WireError> {
        match self {
            Source::Wire(opened) => opened.next().await,
            Source::Local(pieces) => Ok(pieces.pop_front()),
        }
    }

    /// Nothing more is wanted of it, and it ended well.
    pub async fn finish(self) {
        match self {
            Source::Wire(opened) => opened.finish().await,
            Source::Local(_) => {}
        }
    }
}

impl Exchange {
    /// How it counts in `vectorgate_upstream_requests_total`.
    pub fn status(&self) -> CallStatus {
        match &self.result {
            Ok(_) => CallStatus::Http(200),
            Err(NoAnswer::Error(error)) => CallStatus::Http(error.status),
            Err(NoAnswer::Call(CallError::Wire(WireError::Timeout))) => CallStatus::Timeout,
            Err(NoAnswer::Call(CallError::Wire(WireError::Connect(_)))) => CallStatus::Connect,
            Err(NoAnswer::Call(_)) => CallStatus::Broken,
        }
    }

    fn wire(error: WireError) -> Exchange {
        Exchange { result: Err(NoAnswer::Call(CallError::Wire(error))), rate: RateHeaders::default() }
    }
}

/// Calls the upstream of `route`, which is told of `trace`.
///
/// # Cancel safety
/// Dropping the future closes the connection.
pub(super) async fn exchange(
    worker: &Rc<Worker>,
    call: &ChatCall,
    model: &ModelRuntime,
    (route, trace): (&Route, TraceParent),
) -> Exchange {
    let plan = &route.upstream.plan;
    let hides_usage = call.request.adds_usage(plan);
    if plan.provider == Provider::Simulated {
        let answered = simulated::answer(call, model, hides_usage);
        return Exchange { result: Ok(answered), rate: RateHeaders::default() };
    }
    let request = call.request.encode(plan, &route.remote_name);
    let opened = match worker.wire(plan).open(request, &trace_headers(&call.context.trace, trace)).await {
        Ok(opened) => opened,
        Err(error) => return Exchange::wire(error),
    };
    let pairs = opened.headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
    let rate = RateHeaders::read(pairs, clock::wall());
    let good = (200..300).contains(&opened.status);
    let result = match opened.header("content-type").filter(|kind| good && is_stream(kind)).map(str::to_owned) {
        Some(content_type) => begin(call, plan.provider, opened, hides_usage, content_type).await,
        None => whole(worker, call, plan.provider, opened).await,
    };
    Exchange { result, rate }
}

fn is_stream(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default();
    essence.trim().eq_ignore_ascii_case("text/event-stream")
}

async fn whole(worker: &Rc<Worker>, call: &ChatCall, provider: Provider, opened: Opened) -> Result<Answered, NoAnswer> {
    let breath = Breath::new(&worker.crowd);
    let answer = opened.whole(breath).await.map_err(|error| NoAnswer::Call(CallError::Wire(error)))?;
    if !(200..300).contains(&answer.status) {
        let headers = |name: &str| answer.header(name).map(str::to_owned);
        return Err(NoAnswer::Error(decode_error(provider, answer.status, &headers, &answer.body)));
    }
    match answer::read(call.request.api, &answer.body) {
        Ok(told) => Ok(Answered::Whole(answer.body, told)),
        Err(bad) => Err(NoAnswer::Call(CallError::Bad(bad))),
    }
}

/// Reads a stream up to its first event: until then another upstream can still take over.
async fn begin(
    call: &ChatCall,
    provider: Provider,
    opened: Opened,
    hides_usage: bool,
    content_type: String,
) -> Result<Answered, NoAnswer> {
    let api = call.request.api;
    let mut source = Source::Wire(opened);
    let mut splitter = Splitter::default();
    let first = loop {
        let broken = |error: WireError| NoAnswer::Call(CallError::Wire(error));
        match splitter.take() {
            Ok(Some(event)) => break event,
            Ok(None) => {}
            Err(_) => return Err(NoAnswer::Call(CallError::Bad(too_long()))),
        }
        match source.next().await.map_err(broken)? {
            Some(piece) => splitter.push(&piece),
            None => return Err(broken(WireError::Broken("closed the connection before its answer"))),
        }
    };
    let said = event::read(&first);
    if Meter::new(api, false).read(&said) == Fate::Failed {
        return Err(NoAnswer::Error(decode_error(provider, FAILED_AT_ONCE, &|_| None, &said.data)));
    }
    let meter = Meter::new(api, hides_usage);
    Ok(Answered::Stream(Box::new(Live { source, splitter, meter, first: Some(first), content_type })))
}

/// An event that does not end.
pub(super) fn too_long() -> BadAnswer {
    BadAnswer { reason: format!("an event of its stream is longer than {LONGEST_EVENT} bytes") }
}
