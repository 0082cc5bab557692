//! The upstream actor: grants permits to call one upstream, and learns from every call.
//!
//! A thin shell around [`UpstreamState`], which holds every rule (breaker, buckets, queue, concurrency). The worker
//! that gets a permit makes the call itself. After each event the actor publishes a [`Board`] that the router and the
//! workers read without asking, and lends a part of what is left to the workers; each event begins by taking it back.

mod bell;
mod board;
mod orders;
mod permit;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use actix::prelude::*;
use tokio::sync::oneshot;

pub use bell::Bell;
pub use board::{Board, Shown, changes};
use board::{Sizes, Stands};
pub use orders::{Command, Order};
pub use permit::{CallAnswered, CallFinished, CallsEnded, Permit, Report, TooLarge, Work};

use crate::clock;
use crate::config::plan::{Quota, Upstream};
use crate::ids::{AttemptId, UpstreamId, WaiterId};
use crate::pure::adaptive_batch::{Chunk, Learned, Limits, next_batch};
use crate::pure::admission::{
    Ask, Decision, Effect, Grant, OutcomeKind, Policy, QuotaAsk, QuotaGrant, Refusal, UpstreamSnapshot, UpstreamState,
    Why,
};
use crate::pure::breaker::{Phase, Transition};
use crate::pure::call_stats::CallStats;
use crate::pure::class::TrafficClass;
use crate::pure::quota_lease::{EXCHANGE_EVERY, EXCHANGE_SOONEST};
use crate::pure::select::PeakEwma;
use crate::pure::sparse_window::SparseWindow;
use crate::pure::tenant_limits::Allowances;
use crate::pure::time::Mono;
use crate::sentinel::Watch;
use crate::store::redis::link::StoreDown;
use crate::store::redis::quota::SharedQuota;
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

/// A waiter left the queue. A fact.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct WaiterLeft(
    /// Who.
    pub WaiterId,
);

/// A request could have gone to this upstream if it were not down. A fact.
#[derive(Debug, Clone, Copy, Message)]
#[rtype(result = "()")]
pub struct Missed;

/// A reload changed the limits.
#[derive(Message)]
#[rtype(result = "()")]
pub struct PolicyChanged {
    /// The new limits.
    pub policy: Policy,
    /// `quota.batch_size`.
    pub batch_size: usize,
    /// Checks vectors before the first use after an outage; `None` where there is nothing to compare with.
    pub watch: Option<Watch>,
}

/// The configuration no longer has this upstream. Requests that began before still reach it; once none is left, its
/// actor ends.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Retired;

/// Looks at the state.
#[derive(Debug, Message)]
#[rtype(result = "Option<UpstreamSnapshot>")]
pub struct Observe;

/// The core asked to be looked at again; sent to itself.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct WakeTick;

/// Sets this upstream's gauges; sent to itself.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct GaugeTick;

/// Panics inside the handler: drills that the supervision holds.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Drill;

/// So many failures in a row are an outage: at the shares of failures that a breaker tolerates they hardly ever happen
/// by chance.
const OUTAGE: u32 = 3;

/// A failure that no success has followed for this long may be the beginning of an outage. Restarting a model takes longer.
const DOUBTFUL: Duration = Duration::from_millis(100);

/// The same where nobody can stand in: above the pause between two requests at which the breaker, with its default
/// window and volume, still sees an outage by itself.
const FORGOTTEN: Duration = Duration::from_millis(1_500);

/// Span of the latencies whose p95 tells when a hedge is due.
const RECENT: Duration = Duration::from_secs(60);

/// Steps in which that span moves on.
const RECENT_SLOTS: usize = 6;

/// Fewest latencies that make a percentile.
const FEWEST: u64 = 20;

/// While nothing is exchanged, other replicas' breakers are asked for this often.
const OPINION_EVERY: Duration = Duration::from_secs(1);

/// How often gauges are set, by a share of all upstreams each time: those of a thousand at once would hold up the thread that gives
/// out permits, and each by itself would wake it a thousand times.
const GAUGES_EVERY: Duration = Duration::from_secs(1);
const GAUGE_SHARES: u64 = 20;

/// Upstreams so far, which tells each its share.
static STARTED: AtomicU64 = AtomicU64::new(0);

/// An upstream with its actor.
pub struct UpstreamHandle {
    /// What the configuration says.
    pub plan: Arc<Upstream>,
    /// Its actor; a reload that changes the upstream makes another handle of the same actor.
    pub actor: Addr<UpstreamActor>,
    /// What the actor last published.
    pub board: Arc<Board>,
}

/// An upstream's part in shared limits.
struct Exchange {
    quota: Arc<SharedQuota>,
    under_way: bool,
    last: Mono,
    /// Whether the last one was answered.
    works: bool,
    /// Replicas that the last answer counted.
    replicas: u64,
}

impl Exchange {
    fn new(quota: Arc<SharedQuota>) -> Exchange {
        Exchange { quota, under_way: false, last: Mono::ZERO, works: true, replicas: 1 }
    }
}

/// Somebody who waits for a permit.
struct Waiting {
    attempt: AttemptId,
    since: Mono,
    reply: oneshot::Sender<Result<Permit, Refusal>>,
}

/// Owns one upstream's state.
pub struct UpstreamActor {
    id: UpstreamId,
    state: UpstreamState,
    waiting: HashMap<WaiterId, Waiting>,
    wake: Option<(Mono, SpawnHandle)>,
    latency: PeakEwma,
    calls: CallStats,
    /// Latencies of interactive calls.
    recent: SparseWindow,
    /// Calls in a row that failed by the upstream's fault.
    failed_in_a_row: u32,
    /// When the first and the last of them ended; `None` after a call that began later and succeeded.
    failing: Option<(Mono, Mono)>,
    learned: Learned,
    /// The same of rerank calls.
    learned_ranking: Learned,
    last_chunk: Option<Chunk>,
    batch_size: usize,
    /// Checks vectors before the first use after an outage; `None` where there is nothing to compare with.
    watch: Option<Watch>,
    retired: bool,
    /// Which of the shares its gauges are set with.
    share: u64,
    /// Shares limits and opinions with other replicas; `None`: they are this process's own.
    shared: Option<Exchange>,
    board: Arc<Board>,
    telemetry: Arc<Telemetry>,
}

impl UpstreamActor {
    /// Starts a supervised actor for `plan` on `arbiter`.
    pub fn spawn(
        plan: Arc<Upstream>,
        quota: &Quota,
        arbiter: &ArbiterHandle,
        watch: Option<Watch>,
        shared: Option<Arc<SharedQuota>>,
        (bell, telemetry): (Arc<Bell>, Arc<Telemetry>),
    ) -> Arc<UpstreamHandle> {
        let board = Arc::new(Board::new(bell));
        let mut actor = UpstreamActor {
            id: plan.id.clone(),
            state: UpstreamState::new(Policy::of(&plan, quota)),
            waiting: HashMap::new(),
            wake: None,
            latency: PeakEwma::default(),
            calls: CallStats::default(),
            recent: SparseWindow::new(RECENT, RECENT_SLOTS),
            failed_in_a_row: 0,
            failing: None,
            learned: Learned::default(),
            learned_ranking: Learned::default(),
            last_chunk: None,
            batch_size: quota.batch_size,
            watch,
            retired: false,
            share: STARTED.fetch_add(1, Ordering::Relaxed) % GAUGE_SHARES,
            shared: shared.map(Exchange::new),
            board: Arc::clone(&board),
            telemetry,
        };
        actor.state.set_compared(actor.watch.is_some());
        if actor.shared.is_some() {
            actor.state.share();
        }
        // Published before the first message, so that the first ask already finds it usable.
        actor.publish(clock::mono());
        let actor = Supervisor::start_in_arbiter(arbiter, move |_| actor);
        Arc::new(UpstreamHandle { plan, actor, board })
    }

    fn permit(&self, attempt: AttemptId, dwell: Duration, context: &Context<Self>) -> Permit {
        Permit::new(context.address(), &self.board, attempt, dwell)
    }

    /// After every event: hand out what the core grants, tell what happened, publish, and set the next wake.
    fn settle(&mut self, now: Mono, context: &mut Context<Self>) {
        let polled = self.state.poll(now);
        for (waiter, verdict) in polled.answers {
            let Some(Waiting { attempt, since, reply }) = self.waiting.remove(&waiter) else {
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
            if let Effect::Dwell { waited, .. } = &effect {
                self.calls.waited(*waited, now);
            }
            if let (Effect::Breaker(Transition { to: Phase::HalfOpen, .. }), Some(watch)) = (&effect, &self.watch) {
                watch.recheck(&self.id);
            }
        }
        self.publish(now);
        self.wake_at(polled.wake, now, context);
        self.exchange(now, context);
        if self.failing.is_none() && !self.retired {
            self.state.lend(&mut self.board.loan(), now);
        }
    }

    /// Takes back what is lent and learns from the calls that ended within it.
    fn gather(&mut self, now: Mono) {
        let ended = self.state.gather(&mut self.board.loan(), now);
        for (attempt, report) in ended {
            self.finished(attempt, report, now);
        }
    }

    /// Exchanges units with the other replicas if it is time, or if somebody waits for some.
    fn exchange(&mut self, now: Mono, context: &mut Context<Self>) {
        let Some(shared) = &mut self.shared else { return };
        let pause = if self.state.is_short() { EXCHANGE_SOONEST } else { EXCHANGE_EVERY };
        if shared.under_way || now.since(shared.last) < pause {
            return;
        }
        let ask = self.state.quota_ask(now);
        // Without anything to exchange the others' opinion is asked for, now and then.
        if ask == QuotaAsk::default() && now.since(shared.last) < OPINION_EVERY {
            return;
        }
        (shared.under_way, shared.last) = (true, now);
        let (quota, id) = (Arc::clone(&shared.quota), self.id.clone());
        let exchanged = async move { quota.exchange(&id, ask).await };
        context.spawn(exchanged.into_actor(self).map(|result, this, context| {
            this.on(context, |this, now| this.exchanged(result, now));
        }));
    }

    fn exchanged(&mut self, result: Result<QuotaGrant, StoreDown>, now: Mono) {
        let Some(shared) = &mut self.shared else { return };
        shared.under_way = false;
        match result {
            Ok(grant) => {
                shared.replicas = grant.replicas;
                if !std::mem::replace(&mut shared.works, true) {
                    self.state.share();
                }
                self.state.quota_granted(&grant, now);
            }
            Err(_down) if std::mem::replace(&mut shared.works, false) => self.state.share_alone(shared.replicas),
            Err(_down) => {}
        }
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

    /// One event: the core under guard, then what follows from it.
    fn on<R>(&mut self, context: &mut Context<Self>, event: impl FnOnce(&mut Self, Mono) -> R) -> Option<R> {
        let now = clock::mono();
        let event = || {
            self.gather(now);
            event(self, now)
        };
        let result = guarded::<Self, _>(context, ActorKind::Upstream, event).ok();
        if result.is_some() {
            self.settle(now, context);
        }
        result
    }

    /// Nothing happened here, but calls on loan may have ended.
    fn look(&mut self, context: &mut Context<Self>) {
        self.on(context, |_, _| ());
    }

    fn finished(&mut self, attempt: AttemptId, report: Report, now: Mono) {
        if report.outcome.kind.error_name().is_some() {
            self.calls.failed(now);
        }
        match report.outcome.kind {
            // It was counted when its answer began.
            OutcomeKind::Success { .. } if self.state.is_answered(attempt) => {}
            OutcomeKind::Success { latency } => self.succeeded(attempt, latency, now),
            OutcomeKind::Outrun { after } => self.latency.record(after, now),
            // Nobody listens: whatever will, has just been started.
            OutcomeKind::Connect => self.stumbled(OUTAGE, now),
            OutcomeKind::ServerError | OutcomeKind::Timeout | OutcomeKind::Transport => self.stumbled(1, now),
            _ => {}
        }
        if let Some(too_large) = report.too_large {
            let learned = match too_large.of {
                Work::Embedding => &mut self.learned,
                Work::Ranking => &mut self.learned_ranking,
            };
            learned.refused(too_large.sent, too_large.kind, too_large.hint);
        }
        self.last_chunk = report.chunk.or(self.last_chunk);
        self.state.finished(attempt, report.outcome, now);
    }

    /// A call was answered, `latency` after it was sent.
    fn succeeded(&mut self, attempt: AttemptId, latency: Duration, now: Mono) {
        if self.failing.is_some_and(|(first, _)| Mono(now.0.saturating_sub(nanos(latency))) >= first) {
            self.failing = None;
        }
        self.failed_in_a_row = 0;
        self.latency.record(latency, now);
        self.calls.answered(latency, now);
        if self.state.is_interactive(attempt) == Some(true) {
            self.recent.record(latency, now);
        }
    }

    /// A call failed by the upstream's fault.
    fn stumbled(&mut self, weight: u32, now: Mono) {
        self.latency.failed(self.state.policy().breaker.slow, now);
        self.failed_in_a_row = self.failed_in_a_row.saturating_add(weight);
        self.failing = Some((self.failing.map_or(now, |(first, _)| first), now));
        self.doubt(now);
    }

    /// After an outage it may be another model: its vectors are looked at before it is used again. An outage is a refused
    /// connection, some failures in a row, or one failure that no success has followed for a while. As long as no other
    /// upstream can stand in and traffic goes on, failures alone are for the breaker to judge.
    fn doubt(&mut self, now: Mono) {
        let (Some(watch), Some((first, last))) = (&self.watch, self.failing) else { return };
        let stand_in = watch.has_stand_in(&self.id);
        let long = if stand_in { now.since(first) >= DOUBTFUL } else { now.since(last) >= FORGOTTEN };
        if !self.state.flows() || !(long || stand_in && self.failed_in_a_row >= OUTAGE) {
            return;
        }
        self.failed_in_a_row = 0;
        self.failing = None;
        self.state.unverified(true);
        watch.lost(&self.id);
    }

    fn command(&mut self, command: Command, now: Mono) {
        match command {
            Command::Drain => self.state.drain(),
            Command::Resume => {
                self.state.resume();
                self.state.unpark();
            }
            Command::Unpark => self.state.unpark(),
            Command::Open => self.state.force_open(),
            Command::Close => self.state.force_close(),
            Command::AwaitCheck => self.state.unverified(true),
            Command::Verified => {
                self.state.unverified(false);
                self.state.quarantine(false);
                self.latency.forgive();
                self.failed_in_a_row = 0;
                self.failing = None;
            }
            Command::CheckFailed => self.state.check_failed(now),
            Command::Quarantine => self.state.quarantine(true),
            Command::ShutDown => self.state.shutdown(),
        }
    }

    /// Gauges are set once a second: nobody reads them more often.
    fn watch(&mut self, context: &mut Context<Self>) {
        context.run_later(until_share(self.share, clock::mono()), |_, context| {
            context.address().do_send(GaugeTick);
            context.run_interval(GAUGES_EVERY, |_, context| context.address().do_send(GaugeTick));
        });
        if let Some(shared) = &mut self.shared {
            // An exchange that a restart has cut off never reports back.
            shared.under_way = false;
            context.run_interval(EXCHANGE_EVERY, |this, context| this.exchange(clock::mono(), context));
        }
    }

    fn publish(&mut self, now: Mono) {
        let batch = Limits {
            max_items: Some(next_batch(self.state.provider_remaining_tokens(now), self.last_chunk, self.batch_size)),
            max_tokens: self.state.batch_call_tokens(now),
            max_bytes: None,
        };
        let sizes = Sizes { learned: self.learned.limits(), ranking: self.learned_ranking.limits(), batch };
        let (usable, probing, down) = (self.state.usable(now), self.state.is_probing(), self.state.is_down());
        self.board.stand(Stands { usable, probing, down }, sizes);
        *self.board.allowances.lock() = [TrafficClass::InteractiveSearch, TrafficClass::BatchIngestion].map(|class| {
            let (tokens, requests) = self.state.allowances(class, now);
            Some(Allowances { tokens, requests })
        });
        self.board.pulse.asked.store(self.state.asked_in_flight(), Ordering::Relaxed);
        self.board.pulse.latency_ns.store(self.latency.nanos(now), Ordering::Relaxed);
    }
}

/// How long it is from `now` until the next turn of a share.
fn until_share(share: u64, now: Mono) -> Duration {
    let every = nanos(GAUGES_EVERY);
    let turn = every / GAUGE_SHARES * share;
    Duration::from_nanos((turn + every - now.0 % every) % every)
}

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn restarting() -> Refusal {
    Refusal { why: Why::Restarting, retry_at: None }
}

impl Actor for UpstreamActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        self.watch(context);
    }
}

impl Supervised for UpstreamActor {
    /// Counters, breaker, buckets and queue are kept; the core checks itself. `started` runs again and sets the timers.
    fn restarting(&mut self, context: &mut Self::Context) {
        self.state.heal();
        self.wake = None;
        self.telemetry.actor_restarted(ActorKind::Upstream, self.id.as_str());
        context.address().do_send(WakeTick);
    }
}

impl Handler<TryPermit> for UpstreamActor {
    type Result = MessageResult<TryPermit>;

    fn handle(&mut self, TryPermit(ask): TryPermit, context: &mut Self::Context) -> Self::Result {
        let attempt = ask.attempt;
        let decision = self.on(context, |this, now| {
            this.doubt(now);
            this.state.ask(Ask { may_queue: false, ..ask }, now)
        });
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
            this.waiting.insert(waiter, Waiting { attempt, since: now, reply });
            this.doubt(now);
            this.state.ask(Ask { may_queue: true, ..ask }, now)
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
        self.on(context, |this, now| this.finished(fact.attempt, fact.report, now));
    }
}

impl Handler<CallsEnded> for UpstreamActor {
    type Result = ();

    fn handle(&mut self, _: CallsEnded, context: &mut Self::Context) {
        self.look(context);
    }
}

impl Handler<CallAnswered> for UpstreamActor {
    type Result = ();

    fn handle(&mut self, fact: CallAnswered, context: &mut Self::Context) {
        self.on(context, |this, now| {
            this.state.adopt(&mut this.board.loan(), fact.attempt);
            // A call that ended on a loan meanwhile is known to have done so, and counted.
            let under_way = this.state.is_interactive(fact.attempt).is_some();
            if under_way && !this.state.is_answered(fact.attempt) {
                this.succeeded(fact.attempt, fact.latency, now);
            }
            this.state.answered(fact.attempt, fact.latency, fact.longest, now);
        });
    }
}

impl Handler<WaiterLeft> for UpstreamActor {
    type Result = ();

    fn handle(&mut self, WaiterLeft(waiter): WaiterLeft, context: &mut Self::Context) {
        if self.waiting.remove(&waiter).is_some() {
            self.on(context, |this, _| this.state.abandon(waiter));
        }
    }
}

impl Handler<Missed> for UpstreamActor {
    type Result = ();

    fn handle(&mut self, _: Missed, context: &mut Self::Context) {
        self.on(context, |this, now| this.state.missed(now));
    }
}

impl Handler<Order> for UpstreamActor {
    type Result = ();

    fn handle(&mut self, Order(command): Order, context: &mut Self::Context) {
        self.on(context, |this, now| this.command(command, now));
    }
}

impl Handler<PolicyChanged> for UpstreamActor {
    type Result = ();

    fn handle(&mut self, fact: PolicyChanged, context: &mut Self::Context) {
        self.on(context, |this, _| {
            this.batch_size = fact.batch_size;
            this.watch = fact.watch;
            this.state.set_compared(this.watch.is_some());
            this.learned = Learned::default();
            this.learned_ranking = Learned::default();
            this.state.reconfigure(fact.policy);
        });
    }
}

impl Handler<Retired> for UpstreamActor {
    type Result = ();

    fn handle(&mut self, _: Retired, context: &mut Self::Context) {
        self.on(context, |this, _| this.retired = true);
    }
}

impl Handler<Observe> for UpstreamActor {
    type Result = MessageResult<Observe>;

    fn handle(&mut self, _: Observe, context: &mut Self::Context) -> Self::Result {
        MessageResult(self.on(context, |this, now| this.state.snapshot(now)))
    }
}

impl Handler<WakeTick> for UpstreamActor {
    type Result = ();

    fn handle(&mut self, _: WakeTick, context: &mut Self::Context) {
        self.wake = None;
        self.on(context, |_, _| ());
    }
}

impl Handler<GaugeTick> for UpstreamActor {
    type Result = ();

    fn handle(&mut self, _: GaugeTick, context: &mut Self::Context) {
        if self.retired {
            // Whoever could still ask holds the board, and whoever has a permit is counted. The bell may have its address for a
            // moment longer, and an actor that ends while somebody has it is started again.
            self.look(context);
            if Arc::strong_count(&self.board) == 1 && self.state.in_flight() == 0 && !context.connected() {
                tracing::info!(upstream = %self.id, "the last call of an upstream that was taken out has ended");
                context.stop();
            }
            return;
        }
        let shown = self.on(context, |this, now| {
            this.doubt(now);
            this.recent.advance(now);
            let known = this.state.flows() && this.recent.count() >= FEWEST;
            let p95 =
                if known { this.recent.quantiles([0.95]).map(|[p95]| p95).unwrap_or_default() } else { Duration::ZERO };
            this.board.pulse.p95_ns.store(nanos(p95), Ordering::Relaxed);
            Shown { at: now, state: this.state.snapshot(now), calls: this.calls.view(now) }
        });
        if let Some(shown) = shown {
            self.telemetry.upstream_gauges(&self.id, &shown.state);
            self.board.shown.store(Some(Arc::new(shown)));
        }
    }
}

impl Handler<Drill> for UpstreamActor {
    type Result = ();

    fn handle(&mut self, _: Drill, context: &mut Self::Context) {
        let _restarting = guarded::<Self, ()>(context, ActorKind::Upstream, || panic!("drill"));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gauges_have_their_turn_within_a_second_and_by_shares() {
        let after = |share, ms| until_share(share, Mono::from_millis(ms)).as_millis();
        assert_eq!([after(0, 5_000), after(1, 5_000), after(19, 5_000)], [0, 50, 950]);
        assert_eq!([after(0, 5_001), after(1, 5_060), after(19, 5_949)], [999, 990, 1]);
    }
}
