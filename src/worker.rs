//! What one HTTP worker thread has of its own: its connections to upstreams and its buffers of small facts.

use std::cell::RefCell;
use std::collections::HashMap;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use awc::http::header::{HeaderName, HeaderValue};

use crate::actors::router::{Served, ServedBatch};
use crate::clock;
use crate::config::plan::{Provider, Upstream};
use crate::crowd::{Breath, Crowd};
use crate::dialects::cut::UsageRead;
use crate::dialects::upstream::{EmbedAnswer, Expect, decode_embed, decode_error, encode_embed};
use crate::dialects::wire::{Answer, Wire, WireError};
use crate::dialects::{
    BadAnswer, Dtype, EmbedOptions, EmbedRequest, Input, ProviderError, Unsupported, client, simulated,
};
use crate::gateway::Gateway;
use crate::ids::UpstreamId;
use crate::journey::classify::Call;
use crate::pure::rate_headers::RateHeaders;
use crate::runtime::Route;
use crate::store::record::Record;
use crate::telemetry::labels::CallStatus;
use crate::tokens;
use crate::vector::{Vector, VectorError};

/// Width of simulated vectors where the configuration states none.
const SIMULATED_WIDTH: u32 = 384;

/// A worker tells the router of ended requests when it has this many, or on its tick.
const SERVED_BATCH: usize = 256;

/// How often small facts are passed on.
pub const FLUSH_EVERY: Duration = Duration::from_millis(50);

/// One HTTP worker's own state.
pub struct Worker {
    /// The gateway.
    pub gateway: Arc<Gateway>,
    /// Who is being served on this thread.
    pub crowd: Rc<Crowd>,
    wires: RefCell<HashMap<UpstreamId, (Arc<Upstream>, Rc<Wire>)>>,
    served: RefCell<Vec<Served>>,
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
    /// Vectors.
    Answer(EmbedAnswer),
    /// The provider said no.
    Error(ProviderError),
}

/// Why there was no usable answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallError {
    /// Nothing whole came over the wire.
    Wire(WireError),
    /// What came cannot be trusted.
    Bad(BadAnswer),
}

impl CallError {
    /// Whether time ran out.
    pub fn is_timeout(&self) -> bool {
        matches!(self, CallError::Wire(WireError::Timeout))
    }

    /// Says what happened, for a client: no address, no text.
    pub fn describe(&self) -> String {
        match self {
            CallError::Wire(error) => error.describe().to_owned(),
            CallError::Bad(bad) => format!("gave an answer that cannot be used: {}", bad.reason),
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

    fn local(reply: Result<Reply, CallError>) -> Exchange {
        Exchange { reply, rate: RateHeaders::default() }
    }
}

impl Worker {
    /// The state of one worker; its tick runs on the calling thread's runtime as long as the worker lives.
    pub fn new(gateway: Arc<Gateway>) -> Rc<Worker> {
        let worker = Rc::new(Worker {
            gateway,
            crowd: Rc::default(),
            wires: RefCell::new(HashMap::new()),
            served: RefCell::new(Vec::new()),
        });
        let weak = Rc::downgrade(&worker);
        actix_web::rt::spawn(async move {
            loop {
                tokio::time::sleep(FLUSH_EVERY).await;
                let Some(worker) = weak.upgrade() else { break };
                worker.flush_served();
            }
        });
        worker
    }

    /// Passes on that a request ended, in batches: a cache hit makes no thread hop of its own.
    pub fn served(&self, served: Served) {
        let full = {
            let mut buffer = self.served.borrow_mut();
            buffer.push(served);
            buffer.len() >= SERVED_BATCH
        };
        if full {
            self.flush_served();
        }
    }

    fn flush_served(&self) {
        let batch = std::mem::take(&mut *self.served.borrow_mut());
        if !batch.is_empty() {
            self.gateway.router.do_send(ServedBatch(batch));
        }
    }

    /// Records that cost nothing are written within [`FLUSH_EVERY`].
    pub fn later(&self, records: Vec<Record>) {
        self.gateway.backlog.push(records);
    }

    /// This worker's client for `plan`; a reload that changed the upstream gets a new one.
    fn wire(&self, plan: &Arc<Upstream>) -> Rc<Wire> {
        let mut wires = self.wires.borrow_mut();
        if let Some((known, wire)) = wires.get(&plan.id)
            && Arc::ptr_eq(known, plan)
        {
            return Rc::clone(wire);
        }
        let wire = Rc::new(Wire::new(plan));
        wires.insert(plan.id.clone(), (Arc::clone(plan), Rc::clone(&wire)));
        wire
    }

    /// One call for the vectors of `inputs`, which are let go once they stand in the request.
    pub async fn embed(&self, call: &Call, route: &Route, inputs: Vec<Input>, expect: &Expect) -> Exchange {
        let plan = &route.upstream.plan;
        if plan.provider == Provider::Simulated {
            let answer = simulate(call, &inputs).map(Reply::Answer);
            return Exchange::local(answer.map_err(|error| CallError::Bad(BadAnswer { reason: error.to_string() })));
        }
        let request = EmbedRequest {
            remote_model: &route.remote_name,
            inputs: &inputs,
            single: call.single,
            width: call.asked_width,
            encoding: call.form.preferred(),
            options: &call.options,
            original: Some(&call.original).filter(|_| client::shares_body(call.context.dialect, plan.provider)),
        };
        let wire_request = match encode_embed(plan.provider, &request) {
            Ok(wire_request) => wire_request,
            Err(unsupported) => {
                return Exchange::local(Err(CallError::Bad(BadAnswer { reason: unsupported.message })));
            }
        };
        drop(inputs);
        let extra: Vec<(HeaderName, HeaderValue)> = call
            .context
            .trace
            .iter()
            .filter_map(|(name, value)| Some((HeaderName::from_static(name), HeaderValue::from_str(value).ok()?)))
            .collect();
        match self.wire(plan).call(wire_request, &extra, Breath::new(&self.crowd)).await {
            Ok(answer) => read(plan.provider, answer, expect),
            Err(error) => Exchange::local(Err(CallError::Wire(error))),
        }
    }
}

fn read(provider: Provider, answer: Answer, expect: &Expect) -> Exchange {
    let status = answer.status;
    let pairs = answer.headers.iter().filter_map(|(name, value)| Some((name.as_str(), value.to_str().ok()?)));
    let rate = RateHeaders::read(pairs, clock::wall());
    let headers = |name: &str| answer.header(name).map(str::to_owned);
    let reply = if (200..300).contains(&status) {
        decode_embed(provider, &headers, &answer.body, expect).map(Reply::Answer).map_err(CallError::Bad)
    } else {
        Ok(Reply::Error(decode_error(provider, status, &headers, &answer.body)))
    };
    Exchange { reply, rate }
}

/// Whether the simulated provider has words for these options: it knows texts and widths, nothing else.
///
/// # Errors
/// Names the field it has no word for.
pub fn simulated_takes(inputs: &[Input], options: &EmbedOptions) -> Result<(), Unsupported> {
    let refuse = |field: &str, message: &str, input_kind| {
        Err(Unsupported { field: field.to_owned(), message: message.to_owned(), input_kind })
    };
    if inputs.iter().any(Input::is_tokens) {
        let message = "the simulated provider takes texts only, not token ids (with LangChain: \
                       check_embedding_ctx_length=False)";
        return refuse("input", message, true);
    }
    if options.dtype != Dtype::Float {
        return refuse("output_dtype", "the simulated provider makes float vectors only", false);
    }
    Ok(())
}

fn simulate(call: &Call, inputs: &[Input]) -> Result<EmbedAnswer, VectorError> {
    let width = call.asked_width.or(call.model.plan.dimensions).unwrap_or(SIMULATED_WIDTH);
    let mut counted = 0;
    let vectors = inputs
        .iter()
        .map(|input| {
            let text: std::borrow::Cow<'_, str> = serde_json::from_slice(input.raw()).unwrap_or_default();
            counted += tokens::count_exact(call.model.plan.tokenizer, &text).unwrap_or(text.len() as u64).max(1);
            Vector::from_floats(&simulated::embed(&text, width))
        })
        .collect::<Result<Vec<Vector>, VectorError>>()?;
    Ok(EmbedAnswer {
        vectors,
        usage: UsageRead { prompt: Some(counted), total: Some(counted), odd: false },
        model: None,
    })
}
