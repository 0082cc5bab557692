//! The upstream actor: grants permits to call one upstream, and learns from every call.
//!
//! A thin shell around [`UpstreamState`], which holds every rule (breaker, buckets, queue, concurrency). The worker
//! that gets a permit makes the call itself. After each event the actor publishes a [`Board`] that the router and the
//! workers read without asking.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use actix::prelude::*;
use tokio::sync::oneshot;

use crate::clock;
use crate::config::plan::{Quota, Upstream};
use crate::ids::{AttemptId, UpstreamId, WaiterId};
use crate::pure::admission::{
    Ask, Command, Decision, Effect, Grant, Policy, Refusal, Report, UpstreamSnapshot, UpstreamState, Why,
};
use crate::pure::time::Mono;
use crate::telemetry::Telemetry;

use super::keeper::{ActorKind, guarded};

/// Asks for a permit that is granted or refused at once.
#[derive(Debug, Message)]
#[rtype(result = "Result<Permit, Refusal>")]
pub struct TryPermit(
    /// What is asked for.
    pub Ask,
);

/// Asks for a permit and waits in the upstream's queue for it, as long as the ask's deadline allows.
#[derive(Debug, Message)]
#[rtype(result = "Result<Permit, Refusal>")]
pub struct WaitPermit(
    /// What is asked for.
    pub Ask,
);

/// A call ended. A fact, idempotent by attempt.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct CallFinished {
    /// The call.
    pub attempt: AttemptId,
    /// How it ended.
    pub report: Report,
}

/// A waiter left the queue. A fact.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct WaiterLeft(
    /// Who.
    pub WaiterId,
);

/// An operator's or the gateway's own order.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Order(
    /// The order.
    pub Command,
);

/// A reload changed the limits.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct PolicyChanged(
    /// The new limits.
    pub Policy,
);

/// Looks at the state.
#[derive(Debug, Message)]
#[rtype(result = "Option<UpstreamSnapshot>")]
pub struct Observe;

/// The core asked to be looked at again; sent to itself.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct WakeTick;

/// Panics inside the handler: drills that the supervision holds.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Drill;

/// An upstream with its actor.
pub struct UpstreamHandle {
    /// What the configuration says.
    pub plan: Arc<Upstream>,
    /// Its actor.
    pub actor: Addr<UpstreamActor>,
    /// What the actor last published.
    pub board: Arc<Board>,
}

/// What the actor publishes after each event.
#[derive(Debug, Default)]
pub struct Board {
    usable: AtomicBool,
    in_flight: AtomicUsize,
    latency_ns: AtomicU64,
    batch_items: AtomicUsize,
}

impl Board {
    /// Whether calls are let through at all: breaker not open, not parked, not draining, not quarantined.
    pub fn usable(&self) -> bool {
        self.usable.load(Ordering::Relaxed)
    }

    /// Calls under way.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed)
    }

    /// Smoothed peak latency, nanoseconds; 0 before the first answer.
    pub fn latency_ns(&self) -> u64 {
        self.latency_ns.load(Ordering::Relaxed)
    }

    /// Most inputs that the next batch call should carry.
    pub fn batch_items(&self) -> usize {
        self.batch_items.load(Ordering::Relaxed).max(1)
    }
}

/// Leave to make one call. Reporting how it ended is what gives the slot and the unused tokens back; a permit that is
/// dropped without a report counts as a call whose client left.
#[derive(Debug)]
pub struct Permit {
    actor: Addr<UpstreamActor>,
    attempt: AttemptId,
    /// Time spent in the queue.
    pub dwell: Duration,
    reported: bool,
}

impl Permit {
    /// Reports how the call ended.
    pub fn report(mut self, report: Report) {
        self.reported = true;
        self.actor.do_send(CallFinished { attempt: self.attempt, report });
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if !self.reported {
            self.actor.do_send(CallFinished { attempt: self.attempt, report: Report::abandoned() });
        }
    }
}

/// Owns one upstream's state.
pub struct UpstreamActor {
    id: UpstreamId,
    state: UpstreamState,
    waiting: HashMap<WaiterId, (AttemptId, Mono, oneshot::Sender<Result<Permit, Refusal>>)>,
    wake: Option<(Mono, SpawnHandle)>,
    board: Arc<Board>,
    telemetry: Arc<Telemetry>,
}

impl UpstreamActor {
    /// Starts a supervised actor for `plan` on `arbiter`.
    pub fn spawn(
        plan: Arc<Upstream>,
        quota: &Quota,
        arbiter: &ArbiterHandle,
        telemetry: Arc<Telemetry>,
    ) -> Arc<UpstreamHandle> {
        let board = Arc::new(Board::default());
        let policy = Policy::new(&plan, quota);
        let (id, published) = (plan.id.clone(), Arc::clone(&board));
        let state = UpstreamState::new(policy, clock::mono());
        publish(&board, &state, clock::mono());
        let actor = Supervisor::start_in_arbiter(arbiter, move |_| UpstreamActor {
            id,
            state,
            waiting: HashMap::new(),
            wake: None,
            board: published,
            telemetry,
        });
        Arc::new(UpstreamHandle { plan, actor, board })
    }

    fn permit(&self, attempt: AttemptId, dwell: Duration, context: &Context<Self>) -> Permit {
        Permit { actor: context.address(), attempt, dwell, reported: false }
    }

    /// After every event: hand out what the core grants, tell what happened, publish, and set the next wake.
    fn settle(&mut self, effects: Vec<Effect>, now: Mono, context: &mut Context<Self>) {
        for effect in effects {
            self.telemetry.upstream_effect(&self.id, &effect);
        }
        let polled = self.state.poll(now);
        for (waiter, verdict) in polled.served {
            let Some((attempt, since, reply)) = self.waiting.remove(&waiter) else {
                // Nobody is there to use it: the permit's own drop gives it back.
                if let Ok(grant) = verdict {
                    drop(self.permit(grant.attempt, Duration::ZERO, context));
                }
                continue;
            };
            let answer = verdict.map(|_: Grant| self.permit(attempt, now.since(since), context));
            // A reply that nobody receives is dropped, and a permit in it reports itself.
            let _nobody_waits = reply.send(answer);
        }
        for effect in polled.effects {
            self.telemetry.upstream_effect(&self.id, &effect);
        }
        publish(&self.board, &self.state, now);
        self.wake_at(polled.next_wake, now, context);
    }

    fn wake_at(&mut self, next: Option<Mono>, now: Mono, context: &mut Context<Self>) {
        let Some(next) = next else { return };
        if let Some((set, handle)) = self.wake {
            if set <= next && set > now {
                return;
            }
            context.cancel_future(handle);
        }
        let handle = context.run_later(next.since(now), |_, context| context.address().do_send(WakeTick));
        self.wake = Some((next, handle));
    }

    fn on<R>(&mut self, context: &mut Context<Self>, event: impl FnOnce(&mut Self, Mono) -> (Vec<Effect>, R)) -> Option<R> {
        // Two borrows of one context: the guard needs it only after a panic, the body before.
        let now = clock::mono();
        let mut result = None;
        let outcome = guarded::<Self, _>(context, ActorKind::Upstream, || event(self, now));
        if let Ok((effects, value)) = outcome {
            result = Some(value);
            self.settle(effects, now, context);
        }
        result
    }
}

fn publish(board: &Board, state: &UpstreamState, now: Mono) {
    let view = state.view(now);
    board.usable.store(view.usable, Ordering::Relaxed);
    board.in_flight.store(view.in_flight, Ordering::Relaxed);
    board.latency_ns.store(view.latency_ns, Ordering::Relaxed);
    board.batch_items.store(view.batch_items, Ordering::Relaxed);
}

fn restarting() -> Refusal {
    Refusal { why: Why::Restarting, retry_at: None }
}

impl Actor for UpstreamActor {
    type Context = Context<Self>;
}

impl Supervised for UpstreamActor {
    /// Counters, breaker, buckets and queue are kept; the core checks itself, and timers are set anew.
    fn restarting(&mut self, context: &mut Self::Context) {
        self.state.heal(clock::mono());
        self.wake = None;
        self.telemetry.actor_restarted(ActorKind::Upstream, self.id.as_str());
        context.address().do_send(WakeTick);
    }
}

impl Handler<TryPermit> for UpstreamActor {
    type Result = MessageResult<TryPermit>;

    fn handle(&mut self, TryPermit(ask): TryPermit, context: &mut Self::Context) -> Self::Result {
        let attempt = ask.attempt;
        let decision = self.on(context, |this, now| (Vec::new(), this.state.ask(Ask { may_queue: false, ..ask }, now)));
        MessageResult(match decision {
            Some(Decision::Grant(_)) => Ok(self.permit(attempt, Duration::ZERO, context)),
            Some(Decision::Refuse(refusal)) => Err(refusal),
            Some(Decision::Queued) | None => Err(restarting()),
        })
    }
}

impl Handler<WaitPermit> for UpstreamActor {
    type Result = ResponseFuture<Result<Permit, Refusal>>;

    fn handle(&mut self, WaitPermit(ask): WaitPermit, context: &mut Self::Context) -> Self::Result {
        let (attempt, waiter) = (ask.attempt, ask.waiter);
        let (reply, answer) = oneshot::channel();
        let decision = self.on(context, |this, now| {
            // Known before the core is asked: its very next poll may serve this waiter.
            this.waiting.insert(waiter, (attempt, now, reply));
            (Vec::new(), this.state.ask(Ask { may_queue: true, ..ask }, now))
        });
        let at_once = match decision {
            Some(Decision::Queued) => None,
            Some(Decision::Grant(_)) => Some(Ok(self.permit(attempt, Duration::ZERO, context))),
            Some(Decision::Refuse(refusal)) => Some(Err(refusal)),
            None => Some(Err(restarting())),
        };
        if let Some(verdict) = at_once {
            self.waiting.remove(&waiter);
            return Box::pin(std::future::ready(verdict));
        }
        Box::pin(async move { answer.await.unwrap_or_else(|_| Err(restarting())) })
    }
}

impl Handler<CallFinished> for UpstreamActor {
    type Result = ();

    fn handle(&mut self, fact: CallFinished, context: &mut Self::Context) {
        self.on(context, |this, now| (this.state.finished(fact.attempt, fact.report, now), ()));
    }
}

impl Handler<WaiterLeft> for UpstreamActor {
    type Result = ();

    fn handle(&mut self, WaiterLeft(waiter): WaiterLeft, context: &mut Self::Context) {
        if self.waiting.remove(&waiter).is_some() {
            self.on(context, |this, now| (this.state.abandon(waiter, now), ()));
        }
    }
}

impl Handler<Order> for UpstreamActor {
    type Result = ();

    fn handle(&mut self, Order(command): Order, context: &mut Self::Context) {
        self.on(context, |this, now| (this.state.command(command, now), ()));
    }
}

impl Handler<PolicyChanged> for UpstreamActor {
    type Result = ();

    fn handle(&mut self, PolicyChanged(policy): PolicyChanged, context: &mut Self::Context) {
        self.on(context, |this, now| {
            this.state.reconfigure(policy, now);
            (Vec::new(), ())
        });
    }
}

impl Handler<Observe> for UpstreamActor {
    type Result = MessageResult<Observe>;

    fn handle(&mut self, _: Observe, context: &mut Self::Context) -> Self::Result {
        MessageResult(self.on(context, |this, now| (Vec::new(), this.state.snapshot(now))))
    }
}

impl Handler<WakeTick> for UpstreamActor {
    type Result = ();

    fn handle(&mut self, _: WakeTick, context: &mut Self::Context) {
        self.wake = None;
        self.on(context, |_, _| (Vec::new(), ()));
    }
}

impl Handler<Drill> for UpstreamActor {
    type Result = ();

    fn handle(&mut self, _: Drill, context: &mut Self::Context) {
        let _restarting = guarded::<Self, ()>(context, ActorKind::Upstream, || panic!("drill"));
    }
}
