//! What one HTTP worker thread has of its own: its connections to upstreams and its buffers of small facts.

use std::borrow::Cow;
use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::{Arc, Weak};
use std::time::Duration;

use actix_web::http::header::{HeaderName, HeaderValue};
use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use crate::actors::router::ServedBatch;
use crate::cache::Value;
use crate::clock;
use crate::config::plan::{Provider, Upstream};
use crate::crowd::{Breath, Crowd};
use crate::dialects::cut::UsageRead;
use crate::dialects::rerank::{Document, RerankAnswer, RerankRequest, search_units};
use crate::dialects::upstream::{
    EmbedAnswer, Expect, decode_embed, decode_error, decode_rerank, encode_embed, encode_rerank,
};
use crate::dialects::wire::{Answer, Places, Wire, WireError};
use crate::dialects::{BadAnswer, EmbedRequest, Input, ProviderError, Unsupported, WireRequest, client, simulated};
use crate::edge::headers::names;
use crate::gateway::Gateway;
use crate::journey::classify::{Call, EmbedTask};
use crate::journey::rerank::RerankTask;
use crate::pure::rate_headers::RateHeaders;
use crate::pure::service_levels::Fact;
use crate::pure::time::Mono;
use crate::runtime::Route;
use crate::scribe::Scribe;
use crate::store::record::Record;
use crate::telemetry::labels::CallStatus;
use crate::telemetry::requests::RequestEnd;
use crate::telemetry::traces::{RequestTrace, TraceParent};
use crate::tokens;
use crate::vector::{Vector, VectorError};

/// Width of simulated vectors where the configuration states none.
const SIMULATED_WIDTH: u32 = 384;

/// A worker tells the router of ended requests when it has this many, or on its tick.
const SERVED_BATCH: usize = 256;

/// How often small facts are passed on.
pub const FLUSH_EVERY: Duration = Duration::from_millis(50);

/// How often connections are looked over: often enough for what is counted in seconds, and a walk over all upstreams.
const TIDY_EVERY: Duration = Duration::from_secs(1);

/// A way to an upstream, and the configuration that it was made for. Not held: each worker has such a list, and if they
/// held on to it none could tell that nobody else does.
type KnownWire = (Weak<Upstream>, Rc<Wire>);

/// One HTTP worker's own state.
pub struct Worker {
    /// The gateway.
    pub gateway: Arc<Gateway>,
    /// Who is being served on this thread.
    pub crowd: Rc<Crowd>,
    /// Cancelled when a shutdown ends its patience with what is under way.
    pub cut: CancellationToken,
    /// Writes what the requests of this thread put into the journal.
    pub scribe: Scribe,
    /// By the address of the configuration, which is no other's as long as the entry is there.
    wires: RefCell<HashMap<*const Upstream, KnownWire>>,
    places: Places,
    served: RefCell<ServedBatch>,
}

/// What came of one call.
pub struct Exchange {
    /// The reply, if there was a usable one.
    pub reply: Result<Reply, CallError>,
    /// What its headers say of the upstream's quota.
    pub rate: RateHeaders,
}

/// A usable reply.
pub enum Reply {
    /// What was asked for.
    Answer(Answered),
    /// The provider said no.
    Error(ProviderError),
}

/// A good answer: a vector for each input, or a score for each document, in the order in which they were sent.
pub struct Answered {
    /// The vectors or the scores.
    pub values: Vec<Value>,
    /// Tokens, where the provider counts them.
    pub usage: UsageRead,
    /// Searches, where the provider bills by them.
    pub searches: Option<u64>,
}

impl From<EmbedAnswer> for Answered {
    fn from(answer: EmbedAnswer) -> Answered {
        let values = answer.vectors.into_iter().map(Value::Vector).collect();
        Answered { values, usage: answer.usage, searches: None }
    }
}

impl From<RerankAnswer> for Answered {
    fn from(mut answer: RerankAnswer) -> Answered {
        // It has exactly one score for each document, best first.
        answer.results.sort_unstable_by_key(|scored| scored.index);
        let values = answer.results.into_iter().map(|scored| Value::Score(scored.score)).collect();
        Answered { values, usage: answer.usage, searches: answer.searches }
    }
}

/// Why there was no usable answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// Nothing whole came over the wire.
    Wire(WireError),
    /// What came cannot be trusted.
    Bad(BadAnswer),
    /// Nothing was sent: the gateway could not read back what it had put on disk.
    NotSent,
}

impl CallError {
    /// Says what happened, for a client: no address, no text.
    pub fn describe(&self) -> String {
        match self {
            CallError::Wire(error) => error.describe().to_owned(),
            CallError::Bad(bad) => format!("gave an answer that cannot be used: {}", bad.reason),
            CallError::NotSent => "was not called".to_owned(),
        }
    }
}

impl Exchange {
    /// How it counts in `vectorgate_upstream_requests_total`.
    pub fn status(&self) -> CallStatus {
        match &self.reply {
            Ok(Reply::Answer(_)) => CallStatus::Http(200),
            Ok(Reply::Error(error)) => CallStatus::Http(error.status),
            Err(CallError::Wire(WireError::Timeout)) => CallStatus::Timeout,
            Err(CallError::Wire(WireError::Connect(_))) => CallStatus::Connect,
            Err(_) => CallStatus::Broken,
        }
    }

    /// Tokens that the provider says it billed.
    pub fn billed(&self) -> Option<u64> {
        match &self.reply {
            Ok(Reply::Answer(answer)) => answer.usage.billed(),
            _ => None,
        }
    }

    /// A call that was given up because it took too long.
    pub fn timed_out() -> Exchange {
        Exchange { reply: Err(CallError::Wire(WireError::Timeout)), rate: RateHeaders::default() }
    }

    fn local(answer: Result<Answered, BadAnswer>) -> Exchange {
        Exchange { reply: answer.map(Reply::Answer).map_err(CallError::Bad), rate: RateHeaders::default() }
    }
}

impl Worker {
    /// The state of one worker; its tick runs on the calling thread's runtime as long as the worker lives.
    pub fn new(gateway: Arc<Gateway>) -> Rc<Worker> {
        let cut = gateway.lifecycle.cut_off();
        let scribe = Scribe::new(Arc::clone(&gateway.journal));
        let worker = Rc::new(Worker {
            gateway,
            cut,
            crowd: Rc::default(),
            scribe,
            wires: RefCell::default(),
            places: Places::default(),
            served: RefCell::default(),
        });
        let weak = Rc::downgrade(&worker);
        actix_web::rt::spawn(async move {
            let mut tidied = clock::mono();
            loop {
                tokio::time::sleep(FLUSH_EVERY).await;
                let Some(worker) = weak.upgrade() else { break };
                worker.flush_facts();
                let now = clock::mono();
                if now.since(tidied) >= TIDY_EVERY {
                    tidied = now;
                    worker.tidy_wires(now);
                }
            }
        });
        worker
    }

    /// Tells of a request that comes to its end now; how long it took to its answer's head, `head_after` its first byte
    /// if that has left before.
    pub fn tell(&self, end: &RequestEnd, head_after: Option<Duration>) -> Duration {
        let latency = head_after.unwrap_or_else(|| clock::mono().since(end.started));
        self.served(self.gateway.telemetry.request_ended(end, latency));
        latency
    }

    /// Passes on that a request ended, in batches: a cache hit makes no thread hop of its own.
    fn served(&self, fact: Fact) {
        let full = {
            let mut served = self.served.borrow_mut();
            served.ended.push(fact);
            served.ended.len() >= SERVED_BATCH
        };
        if full {
            self.flush_facts();
        }
    }

    /// A request made its first call without asking the router.
    pub fn request_begun(&self) {
        self.served.borrow_mut().begun += 1;
    }

    /// Passes on what the router is yet to be told.
    pub fn flush_facts(&self) {
        let served = std::mem::take(&mut *self.served.borrow_mut());
        if served.begun > 0 || !served.ended.is_empty() {
            self.gateway.router.do_send(served);
        }
    }

    /// Records that cost nothing are written within [`FLUSH_EVERY`].
    pub fn later(&self, records: Vec<Record>) {
        self.gateway.backlog.push(records);
    }

    /// This worker's client for `plan`. A reload that changed the upstream gets a new one; the old one stays as long as
    /// requests that began before it are under way, so that the two never take turns in one place.
    pub fn wire(&self, plan: &Arc<Upstream>) -> Rc<Wire> {
        let mut wires = self.wires.borrow_mut();
        let known = wires.entry(Arc::as_ptr(plan)).or_insert_with(|| {
            let wire = Wire::new(plan, &self.places);
            (Arc::downgrade(plan), Rc::new(wire))
        });
        Rc::clone(&known.1)
    }

    /// Closes the connections to upstreams that no configuration and no request knows any more, and others that are idle.
    fn tidy_wires(&self, now: Mono) {
        self.wires.borrow_mut().retain(|_, (known, _)| known.strong_count() > 0);
        self.places.tidy(now);
    }

    /// One call for the vectors of `inputs`, which are let go once they stand in the request.
    pub async fn embed(
        &self,
        call: &Call,
        task: &EmbedTask,
        (route, trace): (&Route, TraceParent),
        inputs: Vec<Input>,
    ) -> Exchange {
        let inputs = match Input::load(inputs).await {
            Ok(inputs) => inputs,
            Err(error) => {
                tracing::warn!(%error, "a spooled request body could not be read (server.spool_dir)");
                return Exchange { reply: Err(CallError::NotSent), rate: RateHeaders::default() };
            }
        };
        let plan = &route.upstream.plan;
        let expect = Expect { count: inputs.len(), width: None, dtype: task.options.dtype };
        if plan.provider == Provider::Simulated {
            let answer = simulate(call, task, &inputs).map(Answered::from);
            return Exchange::local(answer.map_err(|error| BadAnswer { reason: error.to_string() }));
        }
        let request = EmbedRequest {
            remote_model: &route.remote_name,
            inputs: &inputs,
            single: task.single,
            width: task.asked_width,
            encoding: task.form.preferred(),
            options: &task.options,
            original: Some(&task.original).filter(|_| client::shares_body(call.context.dialect, plan.provider)),
        };
        let decode = |headers: &Headers<'_>, body: &Bytes| {
            decode_embed(plan.provider, headers, body, &expect).map(Answered::from)
        };
        let encoded = encode_embed(plan.provider, &request);
        drop(inputs);
        self.exchange(call, (plan, trace), encoded, &decode).await
    }

    /// One call for the scores of `documents`. Every score is asked for, however few the client wants: the answer is cut
    /// after it is complete, so that what was paid for is kept.
    pub async fn rerank(
        &self,
        call: &Call,
        task: &RerankTask,
        (route, trace): (&Route, TraceParent),
        documents: &[Document],
    ) -> Exchange {
        let plan = &route.upstream.plan;
        if plan.provider == Provider::Simulated {
            return Exchange::local(Ok(simulate_rerank(call, task, documents)));
        }
        let request = RerankRequest {
            remote_model: &route.remote_name,
            query: &task.query,
            documents,
            top_n: None,
            options: &task.options,
            native: client::shares_body(call.context.dialect, plan.provider),
        };
        let decode = |headers: &Headers<'_>, body: &Bytes| {
            decode_rerank(plan.provider, headers, body, &request).map(Answered::from)
        };
        self.exchange(call, (plan, trace), encode_rerank(plan.provider, &request), &decode).await
    }

    async fn exchange(
        &self,
        call: &Call,
        (plan, trace): (&Arc<Upstream>, TraceParent),
        request: Result<WireRequest, Unsupported>,
        decode: &Decode<'_>,
    ) -> Exchange {
        let request = match request {
            Ok(request) => request,
            Err(unsupported) => return Exchange::local(Err(BadAnswer { reason: unsupported.message })),
        };
        match self.wire(plan).call(request, &trace_headers(&call.context.trace, trace), Breath::new(&self.crowd)).await
        {
            Ok(answer) => read(plan.provider, &answer, decode),
            Err(error) => Exchange { reply: Err(CallError::Wire(error)), rate: RateHeaders::default() },
        }
    }
}

/// The trace as the upstream shall see it: under the span of the call that is being made.
pub fn trace_headers(trace: &RequestTrace, call: TraceParent) -> Vec<(HeaderName, HeaderValue)> {
    let named = [(names::TRACE_PARENT, Some(call.to_string())), (names::TRACE_STATE, trace.state().map(str::to_owned))];
    let header = |(name, value): (HeaderName, Option<String>)| Some((name, HeaderValue::try_from(value?).ok()?));
    named.into_iter().filter_map(header).collect()
}

/// Gives the value of a header by its lower-case name.
type Headers<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// Reads an answer with a good status.
type Decode<'a> = dyn Fn(&Headers<'_>, &Bytes) -> Result<Answered, BadAnswer> + 'a;

fn read(provider: Provider, answer: &Answer, decode: &Decode<'_>) -> Exchange {
    let status = answer.status;
    let pairs = answer.headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
    let rate = RateHeaders::read(pairs, clock::wall());
    let headers = |name: &str| answer.header(name).map(str::to_owned);
    let reply = if (200..300).contains(&status) {
        decode(&headers, &answer.body).map(Reply::Answer).map_err(CallError::Bad)
    } else {
        Ok(Reply::Error(decode_error(provider, status, &headers, &answer.body)))
    };
    Exchange { reply, rate }
}

fn simulate(call: &Call, task: &EmbedTask, inputs: &[Input]) -> Result<EmbedAnswer, VectorError> {
    let width = task.asked_width.or(call.model.plan.dimensions).unwrap_or(SIMULATED_WIDTH);
    let mut counted = 0;
    let vectors = inputs
        .iter()
        .map(|input| {
            let text = plain(input.raw());
            counted += count(call, &text);
            Vector::from_floats(&simulated::embed(&text, width))
        })
        .collect::<Result<Vec<Vector>, VectorError>>()?;
    Ok(EmbedAnswer { vectors, usage: counted_usage(counted), model: None })
}

fn simulate_rerank(call: &Call, task: &RerankTask, documents: &[Document]) -> Answered {
    let query = plain(&task.query);
    let mut counted = count(call, &query).saturating_mul(documents.len() as u64);
    let values = documents
        .iter()
        .map(|document| {
            let text = plain(document.raw());
            counted = counted.saturating_add(count(call, &text));
            Value::Score(simulated::relevance(&query, &text))
        })
        .collect();
    Answered { values, usage: counted_usage(counted), searches: Some(search_units(documents.len())) }
}

/// The text of a JSON string; of anything else, its JSON.
fn plain(raw: &[u8]) -> Cow<'_, str> {
    serde_json::from_slice(raw).unwrap_or_else(|_| String::from_utf8_lossy(raw))
}

fn count(call: &Call, text: &str) -> u64 {
    tokens::count_exact(call.model.plan.tokenizer, text).unwrap_or(text.len() as u64).max(1)
}

fn counted_usage(counted: u64) -> UsageRead {
    UsageRead { prompt: Some(counted), total: Some(counted), odd: false }
}
