//! The router actor: one question from a worker, one answer, however many actors have a say in it.
//!
//! Asks the tenant's ledger for the hold and the vector-compatible upstreams for a permit by hops on its own thread, in
//! the order that [`select`](crate::pure::select) gives, and owns the two things that only make sense over all upstreams: the retry budget
//! and the service levels. It never leaves the candidates that an ask carries, and
//! those are all of one vector space.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use arc_swap::{ArcSwap, ArcSwapOption};

use crate::clock;
use crate::config::plan::Retry;
use crate::ids::{UpstreamId, WaiterId};
use crate::pure::admission::{Ask, Refusal, Why};
use crate::pure::money::Money;
use crate::pure::retry::RetryBudget;
use crate::pure::service_levels::{Fact, Histories, Promises, ServiceLevels, Snapshot};
use crate::pure::time::Mono;
use crate::runtime::{Fleet, Route};
use crate::telemetry::Telemetry;

use super::keeper::{ActorKind, guarded};
use super::ledger::{HoldRefusal, LedgerActor, PlaceHold};
use super::upstream::{Missed, Permit, TryPermit, WaitPermit};

/// Asks for a permit at one of `routes`, and for `hold` first.
#[derive(Message)]
#[rtype(result = "Result<Reserved, Unreserved>")]
pub struct Reserve {
    /// The hold to place before a permit is asked for, and who owns the balance.
    pub hold: Option<(Addr<LedgerActor>, PlaceHold)>,
    /// Ways to get the vectors; all of one space.
    pub routes: Arc<Fleet>,
    /// Upstreams that failed this very work already: tried last.
    pub avoid: Vec<UpstreamId>,
    /// Whether this repeats work that failed, and so must fit into the retry budget.
    pub retry: bool,
    /// What is asked of the upstream.
    pub ask: Ask,
    /// Two random numbers in 0..1 for the choice among equals.
    pub rolls: [f64; 2],
}

/// Leave to call one upstream.
pub struct Reserved {
    /// Which of the ask's routes.
    pub route: usize,
    /// The permit.
    pub permit: Permit,
    /// What is held for the work; nothing without an ask for a hold.
    pub held: Money,
}

/// Why there is none.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unreserved {
    /// No money could be held.
    Hold(HoldRefusal),
    /// No upstream of the space took it: the most telling reason, and the earliest time any of them could.
    Refused(Refusal),
    /// Retries have used up their share.
    RetryBudget,
    /// The router or an upstream's actor is restarting.
    Unavailable,
}

/// What one worker has served since it last told. A fact.
#[derive(Debug, Default, Message)]
#[rtype(result = "()")]
pub struct ServedBatch {
    /// Requests that ended.
    pub ended: Vec<Fact>,
    /// First calls that were made without asking here.
    pub begun: u64,
}

/// A retry worked, so its upstreams are not all down; or it was allowed and found no room. A fact.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct RetryEarned;

/// A reload changed the rules.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct RulesChanged {
    /// Retry rules.
    pub retry: Retry,
    /// Objectives.
    pub promises: Promises,
}

/// Publishes percentiles; sent to itself once a second.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct PublishTick;

/// What the router publishes: levels once a second, histories as they grow.
#[derive(Debug, Default)]
pub struct LevelBoard {
    levels: ArcSwapOption<Snapshot>,
    histories: ArcSwap<Histories>,
}

impl LevelBoard {
    /// The service levels, at most a second old; `None` in the first second.
    pub fn levels(&self) -> Option<Arc<Snapshot>> {
        self.levels.load_full()
    }

    /// The percentiles of the last hours.
    pub fn histories(&self) -> Arc<Histories> {
        self.histories.load_full()
    }
}

/// Owns the retry budget and the service levels.
pub struct Router {
    retries: RetryBudget,
    levels: ServiceLevels,
    board: Arc<LevelBoard>,
    telemetry: Arc<Telemetry>,
}

impl Router {
    /// Starts a supervised router on `arbiter` that publishes on `board`.
    pub fn spawn(
        retry: &Retry,
        promises: &Promises,
        arbiter: &ArbiterHandle,
        board: Arc<LevelBoard>,
        telemetry: Arc<Telemetry>,
    ) -> Addr<Router> {
        let retries = RetryBudget::new(retry.budget_ratio);
        let levels = ServiceLevels::new(promises);
        Supervisor::start_in_arbiter(arbiter, move |_| Router { retries, levels, board, telemetry })
    }

    fn permitted(&mut self, retry: bool, now: Mono) -> bool {
        if retry {
            return self.retries.try_spend(now);
        }
        self.retries.request(now);
        true
    }
}

impl Actor for Router {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        context.run_interval(Duration::from_secs(1), |_, context| context.address().do_send(PublishTick));
    }
}

impl Supervised for Router {
    fn restarting(&mut self, _: &mut Self::Context) {
        self.telemetry.actor_restarted(ActorKind::Router, "router");
    }
}

impl Handler<Reserve> for Router {
    type Result = ResponseFuture<Result<Reserved, Unreserved>>;

    fn handle(&mut self, ask: Reserve, context: &mut Self::Context) -> Self::Result {
        let permitted = guarded::<Self, _>(context, ActorKind::Router, || self.permitted(ask.retry, clock::mono()));
        match permitted {
            Ok(true) if ask.retry => {
                let own = context.address();
                Box::pin(async move {
                    let reserved = reserve(ask).await;
                    if reserved.is_err() {
                        own.do_send(RetryEarned);
                    }
                    reserved
                })
            }
            Ok(true) => Box::pin(reserve(ask)),
            Ok(false) => Box::pin(std::future::ready(Err(Unreserved::RetryBudget))),
            Err(_panicked) => Box::pin(std::future::ready(Err(Unreserved::Unavailable))),
        }
    }
}

/// Holds money, then walks the candidates: first those that can take it at once, then the queue of the best.
async fn reserve(mut ask: Reserve) -> Result<Reserved, Unreserved> {
    let held = match ask.hold.take() {
        Some((ledger, hold)) => {
            let asked = clock::mono();
            let placed = ledger.send(hold).await.unwrap_or(Err(HoldRefusal::Unavailable));
            // The wait for money is not the upstream's: whoever got it could wait nowhere otherwise.
            ask.ask.waits_until = ask.ask.waits_until.plus(clock::mono().since(asked));
            placed.map_err(Unreserved::Hold)?
        }
        None => Money::ZERO,
    };
    if !ask.retry && ask.routes.any_down() {
        for route in ask.routes.iter().filter(|route| route.upstream.board.down()) {
            route.upstream.actor.do_send(Missed);
        }
    }
    let mut refusals = Vec::new();
    // The others are put in order only if the first one refuses, and of very many another one as well.
    let first = ask.routes.best(&ask.avoid, ask.rolls, clock::mono());
    let second = ask.routes.beyond(&ask.avoid, ask.rolls).filter(|second| Some(*second) != first);
    let others = std::iter::once_with(|| ask.routes.order(&ask.avoid, ask.rolls)).flatten();
    let others = others.filter(|route| Some(*route) != first && Some(*route) != second);
    for route in first.into_iter().chain(second).chain(others) {
        match ask.routes[route].upstream.actor.send(TryPermit(ask.ask.clone())).await {
            Ok(Ok(permit)) => return Ok(Reserved { route, permit, held }),
            Ok(Err(refusal)) => refusals.push((route, refusal)),
            Err(_mailbox) => refusals.push((route, Refusal { why: Why::Restarting, retry_at: None })),
        }
    }
    if ask.ask.may_queue {
        // The queue to wait in is that of the first upstream which refused only for want of capacity.
        let waitable = refusals.iter().find(|(_, refusal)| refusal.why.may_pass()).map(|(route, _)| *route);
        if let Some(route) = waitable {
            return match ask.routes[route].upstream.actor.send(WaitPermit(ask.ask.clone())).await {
                Ok(Ok(permit)) => Ok(Reserved { route, permit, held }),
                Ok(Err(refusal)) => Err(Unreserved::Refused(refusal)),
                Err(_mailbox) => Err(Unreserved::Unavailable),
            };
        }
    }
    Err(Unreserved::Refused(most_telling(refusals)))
}

/// One reason for many refusals: capacity before outage, since it passes sooner; and the earliest retry of all.
fn most_telling(refusals: Vec<(usize, Refusal)>) -> Refusal {
    let earliest = refusals.iter().filter_map(|(_, refusal)| refusal.retry_at).min();
    let why =
        refusals.into_iter().map(|(_, refusal)| refusal.why).min_by_key(|why| !why.may_pass()).unwrap_or(Why::Draining);
    Refusal { why, retry_at: earliest }
}

impl Handler<ServedBatch> for Router {
    type Result = ();

    fn handle(&mut self, served: ServedBatch, context: &mut Self::Context) {
        let _restarting = guarded::<Self, _>(context, ActorKind::Router, || {
            let now = clock::mono();
            for fact in &served.ended {
                self.levels.record(fact, now);
            }
            for _ in 0..served.begun {
                self.retries.request(now);
            }
        });
    }
}

impl Handler<RetryEarned> for Router {
    type Result = ();

    fn handle(&mut self, _: RetryEarned, context: &mut Self::Context) {
        let _restarting = guarded::<Self, _>(context, ActorKind::Router, || self.retries.succeeded(clock::mono()));
    }
}

impl Handler<RulesChanged> for Router {
    type Result = ();

    fn handle(&mut self, rules: RulesChanged, context: &mut Self::Context) {
        let _restarting = guarded::<Self, _>(context, ActorKind::Router, || {
            self.retries.set_ratio(rules.retry.budget_ratio);
            self.levels.reconfigure(&rules.promises);
        });
    }
}

impl Handler<PublishTick> for Router {
    type Result = ();

    fn handle(&mut self, _: PublishTick, context: &mut Self::Context) {
        let _restarting = guarded::<Self, _>(context, ActorKind::Router, || {
            let now = clock::mono();
            let levels = self.levels.snapshot(now);
            self.telemetry.service_levels(&levels);
            self.board.levels.store(Some(Arc::new(levels)));
            if let Some(histories) = self.levels.advance(now) {
                self.board.histories.store(Arc::new(histories.clone()));
            }
        });
    }
}

/// The waiter of an ask, so that a worker whose client left can take it out of every queue.
pub fn leave_queues(routes: &[Route], waiter: WaiterId) {
    for route in routes {
        route.upstream.actor.do_send(super::upstream::WaiterLeft(waiter));
    }
}
