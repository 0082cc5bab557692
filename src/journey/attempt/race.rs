//! One call for a part, or two: a call that stays silent too long is given up for another upstream of the space, and
//! where hedging is on, a slow one is raced by a second call. Owns when that happens; refuses to judge answers.
//!
//! A call that lost the race is dropped and reported: its tokens stay taken, since its provider may have done the work,
//! but it is not charged to the tenant, who gets and pays one answer.

use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt as _;
use futures_util::future::LocalBoxFuture;
use futures_util::stream::FuturesUnordered;

use crate::actors::router::{Reserve, Reserved};
use crate::actors::upstream::{Permit, Report};
use crate::clock;
use crate::ids::UpstreamId;
use crate::journey::reserve::Tries;
use crate::pure::admission::{Ask, Outcome, OutcomeKind};
use crate::pure::retry::patience_with_alternative;
use crate::pure::time::Mono;
use crate::runtime::Fleet;
use crate::telemetry::labels::CallStatus;
use crate::telemetry::traces::CallTrace;
use crate::worker::{Exchange, Reply};

use super::{Parts, Seen};

/// How often a silent call looks whether another upstream could take over by now.
const LOOK: Duration = Duration::from_millis(100);

/// A call that is decided: the part's answer, or its last failure.
pub(super) struct Decided {
    /// Its route among the part's routes.
    pub route: usize,
    /// Its permit, not yet reported.
    pub permit: Permit,
    /// What came of it.
    pub exchange: Exchange,
    /// How long it took.
    pub latency: Duration,
}

/// A call under way.
struct Leg {
    route: usize,
    permit: Permit,
    started: Mono,
    trace: CallTrace,
}

/// Calls under way: which leg, and what came of it.
type Calls<'a> = FuturesUnordered<LocalBoxFuture<'a, (usize, Exchange)>>;

impl Parts<'_> {
    /// Makes the call that `reserved` permits and stays with it until it is decided. Upstreams whose calls failed on the
    /// way are added to `avoid`.
    ///
    /// # Cancel safety
    /// Dropping the future drops the calls and gives their permits back as never sent.
    pub(super) async fn decide(
        &self,
        reserved: Reserved,
        range: &Range<usize>,
        avoid: &mut Vec<UpstreamId>,
        seen: &mut Seen,
    ) -> Decided {
        let started = clock::mono();
        let mut hedge_at = self.hedge_after(reserved.route).map(|after| started.plus(after));
        let patience = self.patience_elsewhere(reserved.route, started);
        let mut look_at = patience.map(|patience| started.plus(patience));
        if hedge_at.is_none() && look_at.is_none() {
            return self.alone(reserved, range, seen).await;
        }
        let mut calls: Calls<'_> = FuturesUnordered::new();
        let mut legs: Vec<Option<Leg>> = Vec::with_capacity(2);
        self.begin(reserved, range, &mut legs, &calls, seen);
        loop {
            let wake = [hedge_at, look_at].into_iter().flatten().min();
            let ended = tokio::select! {
                ended = calls.next() => ended,
                () = until(wake) => None,
            };
            let now = clock::mono();
            if let Some((index, exchange)) = ended {
                let Some(mut leg) = legs.get_mut(index).and_then(Option::take) else { continue };
                let latency = self.saw(&mut leg, exchange.status(), exchange.billed(), seen, now);
                let good = matches!(exchange.reply, Ok(Reply::Answer(_)));
                if good || calls.is_empty() {
                    self.outrun(&mut legs, seen, now);
                    return Decided { route: leg.route, permit: leg.permit, exchange, latency };
                }
                // The other one may still answer.
                avoid.push(self.routes[leg.route].upstream.plan.id.clone());
                leg.permit.report(self.report(&exchange, range, latency));
                continue;
            }
            if hedge_at.is_some_and(|at| at <= now) {
                hedge_at = None;
                if let Some(second) = self.hedge(range, &legs, avoid).await {
                    self.begin(second, range, &mut legs, &calls, seen);
                }
            }
            if look_at.is_some_and(|at| at <= now) {
                look_at = Some(now.plus(LOOK));
                let silent = legs.iter().position(Option::is_some).filter(|_| calls.len() == 1);
                let Some(leg) = silent.and_then(|index| legs.get_mut(index)) else { continue };
                let replaceable = leg.as_ref().is_some_and(|leg| self.elsewhere(leg.route, avoid));
                if let Some(mut leg) = leg.take_if(|_| replaceable) {
                    let exchange = Exchange::timed_out();
                    let latency = self.saw(&mut leg, exchange.status(), None, seen, now);
                    return Decided { route: leg.route, permit: leg.permit, exchange, latency };
                }
            }
        }
    }

    fn begin<'a>(
        &'a self,
        reserved: Reserved,
        range: &'a Range<usize>,
        legs: &mut Vec<Option<Leg>>,
        calls: &Calls<'a>,
        seen: &mut Seen,
    ) {
        let leg = self.leg(reserved, range.len(), seen);
        let (index, call, context) = (legs.len(), &self.routes[leg.route], leg.trace.context());
        legs.push(Some(leg));
        calls.push(Box::pin(async move { (index, self.exchange(call, range, context).await) }));
    }

    /// Makes a call that nothing can race or replace.
    async fn alone(&self, reserved: Reserved, range: &Range<usize>, seen: &mut Seen) -> Decided {
        let mut leg = self.leg(reserved, range.len(), seen);
        let call = self.exchange(&self.routes[leg.route], range, leg.trace.context());
        // Boxed, or the whole of it would be moved with the part that waits for it.
        let exchange = Box::pin(call).await;
        let latency = self.saw(&mut leg, exchange.status(), exchange.billed(), seen, clock::mono());
        Decided { route: leg.route, permit: leg.permit, exchange, latency }
    }

    /// The leg of a call that is about to be made.
    fn leg(&self, reserved: Reserved, items: usize, seen: &mut Seen) -> Leg {
        let Reserved { route, permit, .. } = reserved;
        seen.attempts += 1;
        seen.dwell += permit.dwell;
        let call = &self.routes[route];
        let (trace, plan) = (&self.call.context.trace, &call.upstream.plan);
        let trace = trace.upstream_call(self.call.operation(), plan, &call.remote_name, items);
        Leg { route, permit, started: clock::mono(), trace }
    }

    /// Counts a call that ended, by `tokens` if it was billed; how long it took.
    fn saw(&self, leg: &mut Leg, status: CallStatus, tokens: Option<u64>, seen: &mut Seen, now: Mono) -> Duration {
        seen.calls.push((leg.started, now));
        let latency = now.since(leg.started);
        let upstream = &self.routes[leg.route].upstream.plan.id;
        let exemplar = self.call.context.trace.exemplar();
        self.worker.gateway.telemetry.metrics.upstream_call(upstream, status, latency, exemplar);
        leg.trace.ended(status, tokens);
        latency
    }

    /// Reports the calls that another one has made needless.
    fn outrun(&self, legs: &mut [Option<Leg>], seen: &mut Seen, now: Mono) {
        for mut leg in legs.iter_mut().filter_map(Option::take) {
            let after = self.saw(&mut leg, CallStatus::Outrun, None, seen, now);
            leg.permit.report(Report::plain(Outcome::bare(OutcomeKind::Outrun { after })));
        }
    }

    /// Whether another upstream than that of `route` could be tried now.
    pub(super) fn elsewhere(&self, route: usize, avoid: &[UpstreamId]) -> bool {
        let mut others = self.routes.iter().enumerate().filter(|(index, _)| *index != route);
        others.any(|(_, other)| other.upstream.board.usable() && !avoid.contains(&other.upstream.plan.id))
    }

    /// How long a call may be silent before another upstream is preferred; `None`: as long as its own limit allows.
    fn patience_elsewhere(&self, route: usize, now: Mono) -> Option<Duration> {
        if self.routes.len() < 2 {
            return None;
        }
        let left = self.call.context.deadline.map(|deadline| deadline.since(now));
        let slow = self.routes[route].upstream.plan.breaker.slow;
        patience_with_alternative(self.call.class.is_interactive(), slow, left)
    }

    /// When a second call is due; `None`: never.
    fn hedge_after(&self, route: usize) -> Option<Duration> {
        let on = self.call.context.running.plan.quota.hedge && self.call.class.is_interactive();
        if on && self.routes.len() > 1 { self.routes[route].upstream.board.p95() } else { None }
    }

    /// Leave for a second call at another upstream, if one has room at once and the retry budget allows it.
    async fn hedge(&self, range: &Range<usize>, legs: &[Option<Leg>], avoid: &[UpstreamId]) -> Option<Reserved> {
        let busy = |index: usize| legs.iter().flatten().any(|leg| leg.route == index);
        let others: Vec<usize> = (0..self.routes.len())
            .filter(|index| !busy(*index))
            .filter(|index| self.routes[*index].upstream.board.usable())
            .filter(|index| !avoid.contains(&self.routes[*index].upstream.plan.id))
            .collect();
        let routes: Fleet = others.iter().map(|index| self.routes[*index].clone()).collect();
        if routes.is_empty() {
            return None;
        }
        let ask = Reserve {
            hold: None,
            routes: Arc::new(routes),
            avoid: Vec::new(),
            retry: true,
            ask: Ask { may_queue: false, ..self.asker().ask(self.demand(range), Tries::More) },
            rolls: [rand::random(), rand::random()],
        };
        self.worker.flush_facts();
        let reserved = self.worker.gateway.router.send(ask).await.ok()?.ok()?;
        let route = *others.get(reserved.route)?;
        self.worker.gateway.telemetry.metrics.hedged(&self.routes[route].upstream.plan.id);
        Some(Reserved { route, ..reserved })
    }
}

/// Sleeps until `at`; for ever without one.
async fn until(at: Option<Mono>) {
    match at {
        Some(at) => tokio::time::sleep(at.since(clock::mono())).await,
        None => std::future::pending().await,
    }
}
