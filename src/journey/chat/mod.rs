//! A chat request's life: admitted, held and settled like every other, but passed through. Its body goes on as it came,
//! its answer comes back as it comes, and nothing is cached.
//!
//! `call → open (hold, permit, call, fall back) → forward → close`. What is different from vectors: another *model* may
//! answer where the configuration says so, but only as long as nothing of an answer has reached the client; a client that
//! leaves ends the call at once; and a stream's books are closed before its last event leaves, so that whoever has the
//! whole answer has it paid.
//!
//! **Invariant:** every path out of [`serve`] passes [`settle::close`] exactly once.

mod bounds;
mod exchange;
mod forward;
mod open;
mod simulated;

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::config::plan::ModelKind;
use crate::dialects::chat::ChatApi;
use crate::dialects::chat::request::ChatRequest;
use crate::edge::body::BodyShare;
use crate::error::{ApiError, Code};
use crate::ids::{ModelName, UpstreamId};
use crate::lifecycle;
use crate::pure::class::{self, TrafficClass};
use crate::pure::money::Money;
use crate::pure::token_estimate::ClassCounts;
use crate::runtime::{Fleet, ModelRuntime, Route};
use crate::telemetry::CacheResult;
use crate::worker::Worker;

use super::admit;
use super::classify::{Context, classified, model};
use super::settle::{self, Closed, Subject, Tally, Untold};

/// Longest stream. A hold and a permit must end some day; no model speaks for so long.
pub const LONGEST_STREAM: Duration = Duration::from_secs(3600);

/// A model that may answer, and its upstreams that speak the request's API.
struct Candidate {
    model: Arc<ModelRuntime>,
    routes: Arc<Fleet>,
}

/// A chat request that is acceptable.
pub struct ChatCall {
    /// What the edge knows.
    pub context: Context,
    /// Its class.
    pub class: TrafficClass,
    /// What the client sent.
    pub request: ChatRequest,
    /// The model asked for.
    asked: Arc<ModelRuntime>,
    /// It and then its fallbacks, as far as they have upstreams that speak the API; never none.
    candidates: Vec<Candidate>,
    /// Characters of the body.
    counts: ClassCounts,
    /// Keeps the body's share of the memory budget.
    _share: BodyShare,
}

/// What the client gets, as soon as it is known.
pub enum Reply {
    /// A whole answer, or why there is none.
    Whole(Box<Whole>),
    /// The answer's head; its events follow.
    Stream(Box<Head>),
}

/// What answer headers say of a call.
#[derive(Default)]
pub struct Facts {
    /// Who answered.
    pub upstream: Option<UpstreamId>,
    /// Which model answered.
    pub model: Option<ModelName>,
    /// Upstream calls made.
    pub attempts: u32,
    /// Time in queues.
    pub dwell: Duration,
    /// Time at upstreams.
    pub upstream_time: Duration,
}

/// A journey's end.
pub struct Whole {
    /// What is still to be told of it.
    pub end: Untold,
    /// The call.
    pub call: ChatCall,
    /// The provider's answer, or why there is none.
    pub result: Result<Bytes, ApiError>,
    /// Facts for headers.
    pub facts: Facts,
    /// What it cost.
    pub cost: Money,
    /// What the tenant has left.
    pub remaining: Option<Money>,
}

/// A stream's beginning.
pub struct Head {
    /// The call.
    pub call: Arc<ChatCall>,
    /// The provider's own content type.
    pub content_type: String,
    /// Facts for headers.
    pub facts: Facts,
    /// From the request's first byte to now.
    pub after: Duration,
    /// Whole events, one or several a piece.
    pub events: mpsc::Receiver<Bytes>,
}

/// Makes a [`ChatCall`].
///
/// # Errors
/// The model is unknown, not allowed, of another kind, or spoken of in another API; the class is unknown.
pub fn call(context: Context, request: ChatRequest, share: BodyShare) -> Result<ChatCall, ApiError> {
    let asked = model(&context, request.model.as_deref(), ModelKind::Chat)?;
    let classified = classified(&context, class::Route::Chat, 1, request.service_tier.as_deref())?;
    let fallbacks = asked.plan.fallbacks.iter().filter(|name| context.tenant.plan.may_use(name));
    let fallbacks: Vec<Arc<ModelRuntime>> =
        fallbacks.filter_map(|name| context.running.models.get(name).cloned()).collect();
    let candidates = std::iter::once(&asked).chain(&fallbacks);
    let candidates: Vec<Candidate> = candidates.filter_map(|model| candidate(model, request.api)).collect();
    if candidates.is_empty() {
        return Err(nobody_speaks(&asked, request.api));
    }
    let mut counts = ClassCounts::default();
    counts.add(&request.original.body);
    Ok(ChatCall { context, class: classified.class, request, asked, candidates, counts, _share: share })
}

/// The model with those of its upstreams that speak `api`; `None` without any.
fn candidate(model: &Arc<ModelRuntime>, api: ChatApi) -> Option<Candidate> {
    let speaks = |route: &&Route| api.is_spoken_by(route.upstream.plan.provider);
    let routes = match model.routes.providers().iter().all(|provider| api.is_spoken_by(*provider)) {
        true => Arc::clone(&model.routes),
        false => Arc::new(model.routes.iter().filter(speaks).cloned().collect()),
    };
    (!routes.is_empty()).then(|| Candidate { model: Arc::clone(model), routes })
}

fn nobody_speaks(asked: &ModelRuntime, api: ChatApi) -> ApiError {
    let Some(route) = asked.routes.first() else {
        return ApiError::new(Code::NoCompatibleUpstream, "no upstream serves this model");
    };
    let message = format!(
        "the model {:?} is not spoken to by /v1/{}: use {} (requests are not translated from one provider's API to \
         another's)",
        asked.plan.name.as_str(),
        api.operation(),
        ChatApi::route_of(route.upstream.plan.provider)
    );
    ApiError::new(Code::InvalidInput, message).param("model")
}

impl ChatCall {
    /// Ways to the model that is asked first.
    pub fn routes(&self) -> Option<&Fleet> {
        self.candidates.first().map(|first| &*first.routes)
    }

    fn subject(&self) -> Subject<'_> {
        Subject {
            context: &self.context,
            class: self.class,
            model: &self.asked.plan,
            has_space: false,
            operation: "chat",
            items: 1,
        }
    }
}

/// Takes one call from admission to its settled end; `told` gets what the client shall get.
///
/// # Cancel safety
/// Must not be dropped: run it as a task. `gone` is cancelled when the client leaves before its answer's head.
pub async fn serve(worker: Rc<Worker>, call: ChatCall, gone: CancellationToken, told: oneshot::Sender<Reply>) {
    let mut tally = Tally::default();
    tally.cache = Some(CacheResult::Bypass);
    let opened = tokio::select! {
        biased;
        opened = opened(&worker, &call, &gone, &mut tally) => opened,
        () = worker.cut.cancelled() => Err(lifecycle::cut_error()),
    };
    tally.book_under_way();
    let (result, model) = match opened {
        Ok((model, open::Answer::Stream(stream))) => {
            return forward::run(&worker, call, &model, *stream, tally, told).await;
        }
        Ok((model, open::Answer::Whole(body))) => (Ok(body), Some(model.plan.name.clone())),
        Err(error) => (Err(error), None),
    };
    let closed = settle::close(&worker, call.subject(), &mut tally, result.as_ref().err()).await;
    let Closed { end, cost, remaining, withheld } = closed;
    let result = withheld.map_or(result, Err);
    let facts = facts(&tally, model);
    let whole = Whole { end, call, result, facts, cost, remaining };
    // Nobody is there to take it: then dropping it tells that the client had left.
    drop(told.send(Reply::Whole(Box::new(whole))));
}

fn facts(tally: &Tally, model: Option<ModelName>) -> Facts {
    Facts {
        upstream: tally.spent.last().map(|part| part.upstream.clone()),
        model,
        attempts: tally.attempts,
        dwell: tally.dwell(),
        upstream_time: tally.upstream_time(),
    }
}

async fn opened(
    worker: &Rc<Worker>,
    call: &ChatCall,
    gone: &CancellationToken,
    tally: &mut Tally,
) -> Result<(Arc<ModelRuntime>, open::Answer), ApiError> {
    {
        let _stage = call.context.trace.stage("admit");
        let prices = || call.routes().into_iter().flat_map(Fleet::prices);
        let costs = || prices().any(|prices| bounds::cost(prices, 1, 1) > Money::ZERO);
        admit::check_funds(&call.context, costs).await?;
    }
    open::open(worker, call, gone, tally).await
}
