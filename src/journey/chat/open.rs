//! Getting an answer to begin: money, a permit, a call; after a failure another upstream of the model, and after those the
//! next model. Owns who is asked in which order and when that ends. Once an answer has begun nothing here is called again.

use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio_util::sync::CancellationToken;

use super::exchange::{Answered, Exchange, Live, NoAnswer, exchange};
use super::{Candidate, ChatCall, LONGEST_STREAM, bounds};
use crate::actors::router::{Reserved, RetryEarned};
use crate::actors::upstream::{Permit, Report};
use crate::clock;
use crate::dialects::chat::meter::{Meter, Told};
use crate::dialects::wire::WireError;
use crate::error::{ApiError, Code};
use crate::ids::UpstreamId;
use crate::journey::admit::{CostBounds, HOLD_GRACE};
use crate::journey::attempt::failure::{Failure, kind_of};
use crate::journey::plan::client_gone;
use crate::journey::reserve::{Asker, Demand, Funds, Tries};
use crate::journey::settle::{Spent, Tally};
use crate::pure::admission::{Outcome, OutcomeKind};
use crate::pure::ledger::minus;
use crate::pure::money::Money;
use crate::pure::rate_headers::{RateHeaders, wait_after_429};
use crate::pure::retry::Backoff;
use crate::pure::time::Mono;
use crate::runtime::{ModelRuntime, Route};
use crate::telemetry::labels::CallStatus;
use crate::telemetry::traces::CallTrace;
use crate::worker::{CallError, Worker};

/// An answer, or its beginning.
pub(super) enum Answer {
    /// All of it, as the provider wrote it.
    Whole(Bytes),
    /// A stream whose first event is here.
    Stream(Box<Stream>),
}

/// A stream with everything that ends with it.
pub(super) struct Stream {
    /// What comes.
    pub live: Live,
    /// Its permit, not yet reported.
    pub permit: Permit,
    /// From whom.
    pub route: Route,
    /// The call in the trace.
    pub trace: CallTrace,
    /// What the head said of the upstream's quota.
    pub rate: RateHeaders,
    /// From sending to the first event.
    pub latency: Duration,
}

/// Why a model does not answer.
struct Refused {
    error: ApiError,
    /// Whether another model may.
    elsewhere: bool,
}

/// What is held so far.
#[derive(Default)]
struct Held {
    placed: bool,
    upper: Money,
}

struct Opening<'a> {
    worker: &'a Rc<Worker>,
    call: &'a ChatCall,
    gone: &'a CancellationToken,
    asker: Asker<'a>,
}

/// Asks the call's models in their order until one begins to answer.
///
/// # Errors
/// What the first of them said, or what no other model could cure.
///
/// # Cancel safety
/// Dropping the future closes the connection of a call under way, which `tally.under_way` knows.
pub(super) async fn open(
    worker: &Rc<Worker>,
    call: &ChatCall,
    gone: &CancellationToken,
    tally: &mut Tally,
) -> Result<(Arc<ModelRuntime>, Answer), ApiError> {
    let asker = Asker { worker, context: &call.context, class: call.class, gone };
    let opening = Opening { worker, call, gone, asker };
    let mut held = Held::default();
    let mut first: Option<ApiError> = None;
    for (place, candidate) in call.candidates.iter().enumerate() {
        let is_last = place + 1 == call.candidates.len();
        match opening.ask(candidate, is_last, &mut held, tally).await {
            Ok(answer) => {
                if tally.attempts > 1 {
                    worker.gateway.router.do_send(RetryEarned);
                }
                return Ok((Arc::clone(&candidate.model), answer));
            }
            Err(refused) if gone.is_cancelled() => return Err(refused.error),
            Err(refused) => {
                let elsewhere = refused.elsewhere;
                // The model that was asked for tells more than what stood in for it.
                first.get_or_insert(refused.error);
                if !elsewhere {
                    break;
                }
            }
        }
    }
    Err(first.unwrap_or_else(|| ApiError::new(Code::NoCompatibleUpstream, "no upstream serves this model")))
}

impl Opening<'_> {
    /// One model, over all its upstreams.
    async fn ask(
        &self,
        candidate: &Candidate,
        is_last: bool,
        held: &mut Held,
        tally: &mut Tally,
    ) -> Result<Answer, Refused> {
        let mut avoid: Vec<UpstreamId> = Vec::new();
        let mut last: Option<Box<Failure>> = None;
        let mut attempts = 0;
        loop {
            let tries = if tally.attempts > 0 { Tries::Again } else { Tries::First };
            let reserved = match self.reserve(candidate, (&avoid, tries), held, tally).await {
                Ok(reserved) => reserved,
                // What the upstream itself said tells more than that there was no second chance.
                Err(error) => {
                    return Err(match last {
                        Some(failure) => Refused { error: failure.error, elsewhere: true },
                        None => Refused { elsewhere: is_capacity(error.code), error },
                    });
                }
            };
            attempts += 1;
            let index = reserved.route;
            let failure = match self.call(candidate, reserved, tally).await? {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let Some(wait) = self.again(candidate, &failure, attempts, index, is_last, &avoid) else {
                return Err(Refused { elsewhere: failure.elsewhere, error: failure.error });
            };
            avoid.push(candidate.routes[index].upstream.plan.id.clone());
            last = Some(failure);
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                () = self.gone.cancelled() => return Err(Refused { error: client_gone(), elsewhere: false }),
            }
        }
    }

    /// Holds what a call of this model may cost beyond what is held already, and asks for a permit.
    async fn reserve(
        &self,
        candidate: &Candidate,
        (avoid, tries): (&[UpstreamId], Tries),
        held: &mut Held,
        tally: &mut Tally,
    ) -> Result<Reserved, ApiError> {
        let Candidate { model, routes } = candidate;
        let demand = Demand { tokens: bounds::tokens(self.call, model), items: 1 };
        let bounds = match self.call.context.tenant.board.remaining() {
            Some(_) => bounds::bounds(self.call, model, routes),
            None => CostBounds::NOTHING,
        };
        if held.placed && bounds.upper <= held.upper {
            return self.asker.reserve(routes, demand, None, avoid, tries).await;
        }
        let more = CostBounds {
            upper: minus(bounds.upper, held.upper),
            likely: minus(bounds.likely, held.upper),
            lower: if held.placed { Money::ZERO } else { bounds.lower },
        };
        let funds = Funds { bounds: more, tokens: demand.tokens, lapses: self.lapses() };
        let reserved = self.asker.hold_and_reserve(routes, demand, funds, (avoid, tries), tally).await;
        // A hold of one's own goes back with the refusal; one in the shared ledger stays for the next try.
        if reserved.is_ok() || !tally.shared_holds.is_empty() {
            *held = Held { placed: true, upper: held.upper.max(bounds.upper) };
        }
        reserved
    }

    /// When a hold placed now lapses: after the longest journey that this request may have.
    fn lapses(&self) -> Mono {
        let plan = &self.call.context.running.plan;
        let timeouts = self.call.candidates.iter().map(|candidate| candidate.routes.longest_timeout());
        let longest = timeouts.max().unwrap_or_default();
        let calls =
            plan.retry.max_attempts.saturating_mul(u32::try_from(self.call.candidates.len()).unwrap_or(u32::MAX));
        let stream = if self.call.request.stream { LONGEST_STREAM } else { Duration::ZERO };
        let waits = plan.quota.batch_max_dwell.saturating_add(longest.saturating_mul(calls));
        clock::mono().plus(waits.saturating_add(stream).saturating_add(HOLD_GRACE))
    }

    /// One call. The outer error ends the request.
    async fn call(
        &self,
        candidate: &Candidate,
        reserved: Reserved,
        tally: &mut Tally,
    ) -> Result<Result<Answer, Box<Failure>>, Refused> {
        let Reserved { route, permit, .. } = reserved;
        let route = &candidate.routes[route];
        let plan = &route.upstream.plan;
        let bytes = self.call.request.original.body.len() as u64;
        let seat = self.worker.gateway.requests.enter(bytes, self.asker.patience()).await;
        let seat = seat.map_err(|error| Refused { error, elsewhere: false })?;
        let trace = &self.call.context.trace;
        let mut called = trace.upstream_call("chat", plan, &route.remote_name, 1);
        let started = clock::mono();
        let sent = tally.under_way.begin(self.unseen(candidate, route));
        let calling = exchange(self.worker, self.call, &candidate.model, (route, called.context()));
        let exchange = tokio::select! {
            biased;
            exchange = calling => Some(exchange),
            () = self.gone.cancelled() => None,
        };
        drop(seat);
        let now = clock::mono();
        let latency = now.since(started);
        let metrics = &self.worker.gateway.telemetry.metrics;
        let Some(exchange) = exchange else {
            // It stays under way: the provider has had the request, and will bill its input.
            tally.saw(0, permit.dwell, &[(started, now)]);
            metrics.upstream_call(&plan.id, CallStatus::Cancelled, latency, trace.exemplar());
            called.ended(CallStatus::Cancelled, None);
            permit.report(Report::plain(Outcome::bare(OutcomeKind::ClientGone)));
            return Err(Refused { error: client_gone(), elsewhere: false });
        };
        tally.under_way.end(sent);
        tally.saw(1, permit.dwell, &[(started, now)]);
        let status = exchange.status();
        let Exchange { result, rate } = exchange;
        let failure = match result {
            Ok(Answered::Stream(live)) => {
                permit.answered(latency, LONGEST_STREAM);
                let stream = Stream { live: *live, permit, route: route.clone(), trace: called, rate, latency };
                return Ok(Ok(Answer::Stream(Box::new(stream))));
            }
            Ok(Answered::Whole(body, told)) => {
                let spent = bounds::spent(self.call, &candidate.model, route, &told);
                let counted = spent.tokens.saturating_add(spent.output_tokens);
                // The time that an answer takes to be made says nothing about the upstream's health.
                let latency = latency.min(plan.breaker.slow);
                let kind = OutcomeKind::Success { latency };
                let actual_tokens = Some(counted).filter(|_| !spent.estimated);
                permit.report(Report::plain(Outcome { kind, actual_tokens, headers: rate }));
                called.ended(status, actual_tokens.map(|_| spent.tokens));
                self.note(&told, route);
                tally.spent.push(spent);
                Ok(Answer::Whole(body))
            }
            Err(no) => {
                called.ended(status, None);
                permit.report(Report::plain(Outcome { kind: kind(&no), actual_tokens: None, headers: rate.clone() }));
                Err(failure(no, &rate))
            }
        };
        metrics.upstream_call(&plan.id, status, latency, trace.exemplar());
        Ok(failure)
    }

    /// What a call costs whose answer nobody sees.
    fn unseen(&self, candidate: &Candidate, route: &Route) -> Spent {
        let nothing = Meter::new(self.call.request.api, false).told();
        bounds::spent(self.call, &candidate.model, route, &nothing)
    }

    fn note(&self, told: &Told, route: &Route) {
        if told.usage.odd {
            self.worker.gateway.telemetry.usage_odd(&route.upstream.plan.id);
        }
    }

    /// Whether and after which wait the same model is asked again.
    fn again(
        &self,
        candidate: &Candidate,
        failure: &Failure,
        attempts: u32,
        route: usize,
        is_last: bool,
        avoid: &[UpstreamId],
    ) -> Option<Duration> {
        let rules = &self.call.context.running.plan.retry;
        if !failure.elsewhere || attempts >= rules.max_attempts || self.gone.is_cancelled() {
            return None;
        }
        let now = clock::mono();
        if self.call.context.deadline.is_some_and(|deadline| deadline <= now) {
            return None;
        }
        let mut others = candidate.routes.iter().enumerate().filter(|(index, _)| *index != route);
        if others.any(|(_, other)| other.upstream.board.usable() && !avoid.contains(&other.upstream.plan.id)) {
            return Some(Duration::ZERO);
        }
        // Another model answers sooner than the same upstream after a pause; and nobody waits for the same silence twice.
        if !is_last || failure.error.code == Code::UpstreamTimeout {
            return None;
        }
        let backoff = Backoff { max_attempts: rules.max_attempts, base: rules.base, cap: rules.cap };
        let deadline = self.asker.deadline(now);
        let at = backoff.next_try(attempts, failure.retry_after, rand::random(), now, deadline)?;
        Some(at.since(now))
    }
}

/// Whether there was no upstream to ask, while another model may have one.
const fn is_capacity(code: Code) -> bool {
    matches!(
        code,
        Code::UpstreamRateLimited
            | Code::UpstreamCircuitOpen
            | Code::UpstreamAuth
            | Code::UpstreamError
            | Code::NoCompatibleUpstream
            | Code::QueueFull
            | Code::QueueTimeout
    )
}

fn kind(no: &NoAnswer) -> OutcomeKind {
    match no {
        NoAnswer::Error(error) => kind_of(error),
        NoAnswer::Call(CallError::Wire(WireError::Timeout)) => OutcomeKind::Timeout,
        NoAnswer::Call(CallError::Wire(WireError::Connect(_))) => OutcomeKind::Connect,
        NoAnswer::Call(CallError::NotSent) => OutcomeKind::NotSent,
        NoAnswer::Call(_) => OutcomeKind::Transport,
    }
}

fn failure(no: NoAnswer, rate: &RateHeaders) -> Box<Failure> {
    Box::new(match no {
        NoAnswer::Error(mut error) => {
            error.wait_hint = wait_after_429(rate, error.wait_hint);
            Failure::provider(error, &[], None, None)
        }
        NoAnswer::Call(error) => Failure::wire(&error),
    })
}
