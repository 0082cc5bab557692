//! The ledger actor: owns one tenant's balance.
//!
//! A thin shell around [`Account`]: reads the clock, asks the core, keeps those waiting who may still be served, and
//! publishes the balance on the tenant's [`Board`] so that workers can show it without a hop. The journal is written by
//! the workers (a disk must never hold up a decision); only what is rare is written here: a period's start, and holds that
//! lapsed.
//!
//! **Loans.** While the balance covers many calls, a part of it is lent to the workers by way of the board: holds and
//! settlements within it ask nobody. Every event here first books what was charged to the loan, and nobody is refused or
//! made to wait before the loan was called in. An idle tenant keeps its loan, so that it asks nobody when it comes again, and
//! sets no timer for it: [`LoanLapsed`] comes from whoever looks over all boards.
//!
//! **Who waits, and for how long.** An ask that open holds may still make room for waits. Less patient asks (queries)
//! go before more patient ones (bulk), and among equals the first comes first. Each settlement renews everybody's
//! patience up to a limit, because as long as calls settle a refusal would deny money that is there; when
//! nothing has settled for that long, the answer is no.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use tokio::sync::oneshot;

use crate::clock;
use crate::ids::{HoldId, TenantId};
use crate::pure::ledger::{Account, AccountSnapshot, CreditOutcome, HoldAsk, Place, Settled, Terms, minus};
use crate::pure::money::Money;
use crate::pure::tenant_limits::Exceeded;
use crate::pure::time::{Mono, Wall};
use crate::store::journal::Journal;
use crate::store::record::{CreditRecord, PeriodRecord, Record, ReleaseReason, ReleaseRecord};
use crate::telemetry::Telemetry;

use super::keeper::{ActorKind, guarded};
pub use board::{Board, Lent};
use line::{Line, Verdict};

mod board;
mod line;

#[cfg(test)]
mod tests;

/// Holds that nobody resolved are looked for this often, and only while any are open.
const EXPIRE_EVERY: Duration = Duration::from_secs(1);

/// The start of a period is looked for at least this often, in case the wall clock was set.
const LOOK_AT_PERIOD_EVERY: Duration = Duration::from_secs(3600);

/// Endings of holds that were told before the ask for them arrived; older ones are forgotten.
const FORSAKEN_KEPT: usize = 1024;

/// Asks for money to be held; may wait until settlements free enough. Answers what is held, which is less than `upper`
/// for a tenant's last call.
#[derive(Debug, Message)]
#[rtype(result = "Result<Money, HoldRefusal>")]
pub struct PlaceHold {
    /// Names the hold.
    pub id: HoldId,
    /// The most that the call can cost.
    pub upper: Money,
    /// What it will probably cost.
    pub likely: Money,
    /// The least that it can cost.
    pub lower: Money,
    /// When the hold lapses if nobody resolves it.
    pub expires_at: Mono,
    /// How long the asker can wait without any open hold settling.
    pub patience: Duration,
    /// Tokens that the call is expected to take of the tenant's own limit.
    pub tokens: u64,
}

impl PlaceHold {
    /// The same in the words of the core.
    pub fn core(&self, now: Mono) -> HoldAsk {
        HoldAsk {
            id: self.id,
            amount_upper: self.upper,
            amount_likely: self.likely,
            amount_lower: self.lower,
            now,
            expires_at: self.expires_at,
        }
    }
}

/// Why no money was held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HoldRefusal {
    /// The balance does not cover it.
    Exhausted,
    /// The tenant's own limit is used up.
    RateLimited(Exceeded),
    /// The actor is restarting.
    Unavailable,
}

/// A hold ended. A fact: it cannot be refused, and a second one of the same hold changes nothing.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct HoldResolved {
    /// The hold.
    pub id: HoldId,
    /// What is charged; `None`: nothing, all of it is freed.
    pub charge: Option<Money>,
    /// Tokens billed; `None`: no call was answered.
    pub tokens: Option<u64>,
}

/// Ends a hold and tells what was taken; for charges above the hold, and for tenants with budget periods.
#[derive(Debug, Message)]
#[rtype(result = "Option<Settled>")]
pub struct SettleHold {
    /// The hold.
    pub id: HoldId,
    /// What is to be charged.
    pub charge: Money,
    /// Tokens billed; `None`: no call was answered.
    pub tokens: Option<u64>,
}

/// Money spent without a hold: an unlimited tenant's call.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Metered {
    /// Names the spending, so that it counts once.
    pub id: HoldId,
    /// What it cost.
    pub charge: Money,
}

/// Adds money; it is in the journal before the answer.
#[derive(Debug, Message)]
#[rtype(result = "Result<CreditOutcome, NotKept>")]
pub struct Credit {
    /// How much.
    pub amount: Money,
    /// The same key again changes nothing.
    pub idempotency_key: String,
}

/// The journal could not take it, or the actor is restarting; nothing changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotKept;

/// What a reload says of the tenant's money. A fact.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct TermsChanged {
    /// The new terms.
    pub terms: Terms,
    /// Tokens and requests a minute; `None`: no limit.
    pub limits: (Option<u64>, Option<u64>),
}

/// Looks at the balance.
#[derive(Debug, Message)]
#[rtype(result = "Option<AccountSnapshot>")]
pub struct Observe;

/// Holds past their time lapse, waiters past their patience are refused, and a due period starts; sent to itself, only
/// while there is any of these to come.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct ExpireTick;

/// A hold of the loan is past its time. A fact; no timer is set for holds that workers placed without asking.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct LoanLapsed;

/// Its tenant has left the configuration, and nobody who could spend the balance is left. Answers whether it may be forgotten:
/// all of it is on the journal, from which it comes back whole when the tenant does. From a yes on the actor grants nothing.
#[derive(Debug, Message)]
#[rtype(result = "bool")]
pub struct Leave;

/// Panics inside the handler: drills that the supervision holds.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Drill;

/// Owns one tenant's balance.
pub struct LedgerActor {
    tenant: TenantId,
    account: Account,
    line: Line,
    /// Holds that were given up before they were asked for.
    forsaken: BTreeSet<HoldId>,
    tick: Option<(Mono, SpawnHandle)>,
    /// Whether the balance was given up: the journal's word on it is the only one from then on.
    left: bool,
    /// Where the time of day comes from.
    wall: fn() -> Wall,
    board: Arc<Board>,
    journal: Arc<Journal>,
    telemetry: Arc<Telemetry>,
}

impl LedgerActor {
    /// An actor that owns `account` and publishes it on `board`.
    pub fn new(
        tenant: TenantId,
        account: Account,
        board: Arc<Board>,
        journal: Arc<Journal>,
        telemetry: Arc<Telemetry>,
    ) -> LedgerActor {
        LedgerActor {
            tenant,
            account,
            line: Line::default(),
            forsaken: BTreeSet::new(),
            tick: None,
            left: false,
            wall: clock::wall,
            board,
            journal,
            telemetry,
        }
    }

    /// The same actor with another clock for the time of day, on which periods depend.
    pub fn with_wall(self, wall: fn() -> Wall) -> LedgerActor {
        LedgerActor { wall, ..self }
    }

    /// Starts a new period when one is due. The record goes to the journal at once: it is written once a day or month.
    fn roll(&mut self) {
        let now = (self.wall)();
        if self.account.resets_at().is_some_and(|at| at <= now) {
            // What was lent belongs to the period that ends.
            self.board.call_in(&mut self.account);
        }
        let Some(started) = self.account.roll_period(now) else { return };
        let record = Record::PeriodStart(PeriodRecord {
            time: now,
            tenant: self.tenant.clone(),
            start: started.start,
            budget_before: started.budget_before,
        });
        if let Err(error) = self.journal.append(&record) {
            self.telemetry.store_failed("period_start", &error);
        }
    }

    /// Places a hold. What is lent is called in before it is missing, and so are the holds in it: the rule of the last call
    /// asks whether any other is under way.
    fn try_place(&mut self, ask: &PlaceHold, now: Mono) -> Place {
        if self.account.remaining().is_some_and(|left| left < ask.upper) {
            self.board.call_in(&mut self.account);
        }
        self.account.place(ask.core(now))
    }

    /// Decides an ask at once, or lets it wait; then the answer comes over the channel.
    fn place_or_wait(&mut self, ask: PlaceHold, now: Mono) -> Result<Verdict, oneshot::Receiver<Verdict>> {
        if self.left || self.forsaken.remove(&ask.id) {
            return Ok(Err(HoldRefusal::Unavailable));
        }
        // Those who came first are served first, or a stream of small asks would starve a large one.
        let verdict = if self.line.ahead_of(ask.patience) == 0 {
            self.try_place(&ask, now)
        } else if self.is_hopeless(&ask) {
            Place::Refused
        } else {
            Place::Wait
        };
        match verdict {
            Place::Held => Ok(self.within_limits(&ask, now)),
            Place::Wait if !ask.patience.is_zero() => Err(self.line.join(ask, now)),
            Place::Wait | Place::Refused => Ok(Err(HoldRefusal::Exhausted)),
        }
    }

    fn is_hopeless(&mut self, ask: &PlaceHold) -> bool {
        self.board.call_in(&mut self.account);
        self.account.is_hopeless(ask.upper, ask.lower)
    }

    /// Serves those who wait, in their order, as far as the balance goes.
    fn serve_waiting(&mut self, now: Mono) {
        while let Some(next) = self.line.pop() {
            let verdict = match self.try_place(&next.ask, now) {
                Place::Held => self.within_limits(&next.ask, now),
                Place::Wait => {
                    self.line.put_back(next);
                    break;
                }
                Place::Refused => Err(HoldRefusal::Exhausted),
            };
            let id = next.ask.id;
            if !next.answer(verdict) && verdict.is_ok() {
                // Nobody is there to use the hold, so it must not stay.
                self.account.release(id);
                self.return_tokens(id, None);
            }
        }
    }

    /// Takes the call out of the tenant's own limits; if they are used up, the hold that was placed is given back, so
    /// that a refusal leaves everything as it was.
    fn within_limits(&mut self, ask: &PlaceHold, now: Mono) -> Result<Money, HoldRefusal> {
        if let Err(exceeded) = self.board.take(ask.id, ask.tokens, now) {
            self.account.release(ask.id);
            return Err(HoldRefusal::RateLimited(exceeded));
        }
        Ok(self.account.held_by(ask.id).unwrap_or_default())
    }

    /// What every event about a hold begins with: the account is brought up to now, and has the hold if a loan had it.
    fn begin(&mut self, id: HoldId) {
        self.board.book(&mut self.account);
        self.roll();
        self.board.adopt(&mut self.account, id);
    }

    fn return_tokens(&mut self, id: HoldId, billed: Option<u64>) {
        self.board.return_tokens(id, billed, clock::mono());
    }

    fn resolve(&mut self, id: HoldId, charge: Option<Money>) {
        match charge {
            Some(charge) => {
                self.settle(id, charge);
            }
            None => self.release(id),
        }
    }

    fn settle(&mut self, id: HoldId, charge: Money) -> Option<Settled> {
        let held = self.account.held_by(id).unwrap_or_default();
        if self.account.remaining().is_some_and(|left| minus(charge, held) > left) {
            // What is lent is there to cover it, too.
            self.board.call_in(&mut self.account);
        }
        let settled = self.account.settle(id, charge)?;
        self.line.progressed(clock::mono());
        if settled.shortfall > Money::ZERO {
            self.telemetry.shortfall(&self.tenant, settled.shortfall);
        }
        Some(settled)
    }

    /// Ends a hold without a charge, be it placed, waited for, or yet to be asked for: whoever asked has left, and what
    /// it asked by way of the router may come later than this.
    fn release(&mut self, id: HoldId) {
        if self.account.release(id).is_some() {
            self.line.progressed(clock::mono());
            return;
        }
        if let Some(waiting) = self.line.leave(id) {
            // It has left, so this is for a router that still listens on its behalf.
            waiting.answer(Err(HoldRefusal::Unavailable));
            return;
        }
        self.forsaken.insert(id);
        while self.forsaken.len() > FORSAKEN_KEPT {
            self.forsaken.pop_first();
        }
    }

    /// Ends the holds whose time is over, in the journal too.
    fn expire(&mut self, now: Mono) {
        if self.board.has_lapsed(now) {
            self.board.call_in(&mut self.account);
        }
        let lapsed = self.account.expire(now);
        if lapsed.is_empty() {
            return;
        }
        tracing::warn!(tenant = %self.tenant, holds = lapsed.len(), "holds lapsed without a settlement");
        let (time, reason) = (clock::wall(), ReleaseReason::Expired);
        let release = |hold| Record::Release(ReleaseRecord { time, hold, tenant: self.tenant.clone(), reason });
        let records: Vec<Record> = lapsed.into_iter().map(release).collect();
        if let Err(error) = self.journal.append_all(&records) {
            self.telemetry.store_failed("release", &error);
        }
    }

    /// Adds money and notes it. Credits are rare, so the account is copied to have nothing to take back when the journal
    /// refuses.
    fn credit(&mut self, ask: Credit) -> Result<CreditOutcome, NotKept> {
        let mut credited = self.account.clone();
        let outcome = credited.credit(ask.amount, &ask.idempotency_key);
        if outcome == CreditOutcome::Applied {
            let record = Record::Credit(CreditRecord {
                time: clock::wall(),
                tenant: self.tenant.clone(),
                amount: ask.amount,
                idempotency_key: ask.idempotency_key,
            });
            if let Err(error) = self.journal.append(&record) {
                self.telemetry.store_failed("credit", &error);
                // Any other refusal of the disk leaves the record accepted, to be written later.
                if error.kind() == std::io::ErrorKind::OutOfMemory {
                    return Err(NotKept);
                }
            }
            self.account = credited;
        }
        Ok(outcome)
    }

    /// Does what the clock alone asks for: a new period, holds past their time.
    fn look_over(&mut self, now: Mono) {
        self.board.book(&mut self.account);
        self.roll();
        self.expire(now);
        self.finish(now);
    }

    /// Gives the balance up if nothing of it is under way and the journal says the same of it, to the last digit. What the
    /// journal does not have yet, or never took, is remembered here alone.
    fn leave(&mut self, now: Mono) -> bool {
        self.board.call_in(&mut self.account);
        self.roll();
        self.expire(now);
        let idle = self.line.is_empty() && !self.account.has_open_holds() && self.board.is_unlimited(now);
        let is_kept = || {
            self.journal.with_book(|book| {
                let standing = book.tenants.get(&self.tenant).map(|page| page.standing());
                standing.unwrap_or_default() == *self.account.standing()
            })
        };
        // Of what replicas share nothing is here.
        self.left = idle && (self.board.is_of_shared_ledger() || is_kept());
        if !self.left {
            self.finish(now);
        }
        self.left
    }

    fn finish(&mut self, now: Mono) {
        if self.left {
            return;
        }
        self.serve_waiting(now);
        // Those who wait come before any other.
        if self.line.is_empty() {
            self.board.lend(&mut self.account);
        }
        self.board.publish(&self.account);
        self.telemetry.metrics.tenant_budget_remaining(&self.tenant, self.board.remaining());
    }

    /// Makes sure that a tick comes in time for whatever the clock alone will change; none comes if nothing will.
    fn arm(&mut self, now: Mono, context: &mut Context<Self>) {
        let expiry = self.account.has_open_holds().then(|| now.plus(EXPIRE_EVERY));
        // The first has the least patience, and that of nobody here ended before the last tick.
        let patience = self.line.least_patience().map(|patience| now.plus(patience));
        let period = self.account.resets_at().map(|at| {
            let left = u64::try_from(at.0.saturating_sub((self.wall)().0)).unwrap_or_default();
            now.plus(Duration::from_millis(left.max(1)).min(LOOK_AT_PERIOD_EVERY))
        });
        if let Some(next) = [expiry, patience, period].into_iter().flatten().min() {
            self.tick_at(next, now, context);
        }
    }

    fn tick_at(&mut self, next: Mono, now: Mono, context: &mut Context<Self>) {
        if self.left {
            return;
        }
        if let Some((set, handle)) = self.tick {
            if set <= next {
                return;
            }
            context.cancel_future(handle);
        }
        let handle = context.run_later(next.since(now), |_, context| context.address().do_send(ExpireTick));
        self.tick = Some((next, handle));
    }
}

impl Actor for LedgerActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        let now = clock::mono();
        self.roll();
        self.finish(now);
        self.arm(now, context);
    }
}

impl Supervised for LedgerActor {
    /// Balance, holds and those who wait are kept; timers are set anew by `started`.
    fn restarting(&mut self, _: &mut Self::Context) {
        self.tick = None;
        self.telemetry.actor_restarted(ActorKind::Ledger, self.tenant.as_str());
    }
}

impl Handler<PlaceHold> for LedgerActor {
    type Result = ResponseFuture<Result<Money, HoldRefusal>>;

    fn handle(&mut self, ask: PlaceHold, context: &mut Self::Context) -> Self::Result {
        let now = clock::mono();
        let placed = guarded::<Self, _>(context, ActorKind::Ledger, || {
            self.begin(ask.id);
            let answer = self.place_or_wait(ask, now);
            self.finish(now);
            answer
        });
        self.arm(now, context);
        match placed {
            Ok(Ok(verdict)) => Box::pin(std::future::ready(verdict)),
            Ok(Err(answer)) => Box::pin(async move { answer.await.unwrap_or(Err(HoldRefusal::Unavailable)) }),
            Err(_panicked) => Box::pin(std::future::ready(Err(HoldRefusal::Unavailable))),
        }
    }
}

impl Handler<HoldResolved> for LedgerActor {
    type Result = ();

    fn handle(&mut self, fact: HoldResolved, context: &mut Self::Context) {
        let now = clock::mono();
        let _restarting = guarded::<Self, _>(context, ActorKind::Ledger, || {
            self.begin(fact.id);
            self.resolve(fact.id, fact.charge);
            self.return_tokens(fact.id, fact.tokens);
            self.finish(now);
        });
        self.arm(now, context);
    }
}

impl Handler<SettleHold> for LedgerActor {
    type Result = MessageResult<SettleHold>;

    fn handle(&mut self, ask: SettleHold, context: &mut Self::Context) -> Self::Result {
        let now = clock::mono();
        let settled = guarded::<Self, _>(context, ActorKind::Ledger, || {
            self.begin(ask.id);
            let settled = self.settle(ask.id, ask.charge);
            self.return_tokens(ask.id, ask.tokens);
            self.finish(now);
            settled
        });
        self.arm(now, context);
        MessageResult(settled.ok().flatten())
    }
}

impl Handler<Metered> for LedgerActor {
    type Result = ();

    fn handle(&mut self, fact: Metered, context: &mut Self::Context) {
        let _restarting = guarded::<Self, _>(context, ActorKind::Ledger, || {
            self.begin(fact.id);
            let now = clock::mono();
            let ask = HoldAsk {
                id: fact.id,
                amount_upper: fact.charge,
                amount_likely: fact.charge,
                amount_lower: fact.charge,
                now,
                expires_at: now.plus(Duration::from_secs(1)),
            };
            if self.account.place(ask) == Place::Held {
                self.resolve(fact.id, Some(fact.charge));
            }
            self.finish(now);
        });
    }
}

impl Handler<Credit> for LedgerActor {
    type Result = MessageResult<Credit>;

    fn handle(&mut self, ask: Credit, context: &mut Self::Context) -> Self::Result {
        let outcome = guarded::<Self, _>(context, ActorKind::Ledger, || {
            self.board.book(&mut self.account);
            self.roll();
            let outcome = self.credit(ask);
            self.finish(clock::mono());
            outcome
        });
        MessageResult(outcome.unwrap_or(Err(NotKept)))
    }
}

impl Handler<TermsChanged> for LedgerActor {
    type Result = ();

    fn handle(&mut self, fact: TermsChanged, context: &mut Self::Context) {
        let _restarting = guarded::<Self, _>(context, ActorKind::Ledger, || {
            self.board.call_in(&mut self.account);
            self.account.set_terms(fact.terms);
            let now = clock::mono();
            let (tpm, rpm) = fact.limits;
            self.board.limit(tpm, rpm);
            self.roll();
            self.finish(now);
        });
        self.arm(clock::mono(), context);
    }
}

impl Handler<Observe> for LedgerActor {
    type Result = MessageResult<Observe>;

    fn handle(&mut self, _: Observe, context: &mut Self::Context) -> Self::Result {
        MessageResult(
            guarded::<Self, _>(context, ActorKind::Ledger, || {
                self.board.book(&mut self.account);
                self.roll();
                self.finish(clock::mono());
                self.board.account().unwrap_or_else(|| self.account.snapshot())
            })
            .ok(),
        )
    }
}

impl Handler<ExpireTick> for LedgerActor {
    type Result = ();

    fn handle(&mut self, _: ExpireTick, context: &mut Self::Context) {
        self.tick = None;
        let now = clock::mono();
        let _restarting = guarded::<Self, _>(context, ActorKind::Ledger, || {
            // What has just become free is for those who wait, before any of them is refused.
            self.look_over(now);
            for waiting in self.line.impatient(now) {
                waiting.answer(Err(HoldRefusal::Exhausted));
            }
        });
        if let Some(next) = self.line.next_end() {
            self.tick_at(next, now, context);
        }
        self.arm(now, context);
    }
}

impl Handler<LoanLapsed> for LedgerActor {
    type Result = ();

    fn handle(&mut self, _: LoanLapsed, context: &mut Self::Context) {
        let now = clock::mono();
        let _restarting = guarded::<Self, _>(context, ActorKind::Ledger, || self.look_over(now));
        self.arm(now, context);
    }
}

impl Handler<Leave> for LedgerActor {
    type Result = bool;

    /// Once the last address is dropped and no timer is set, the actor ends.
    fn handle(&mut self, _: Leave, context: &mut Self::Context) -> Self::Result {
        let now = clock::mono();
        let left = guarded::<Self, _>(context, ActorKind::Ledger, || self.leave(now)).unwrap_or(false);
        if left && let Some((_, tick)) = self.tick.take() {
            context.cancel_future(tick);
        }
        self.arm(now, context);
        left
    }
}

impl Handler<Drill> for LedgerActor {
    type Result = ();

    fn handle(&mut self, _: Drill, context: &mut Self::Context) {
        let _restarting = guarded::<Self, ()>(context, ActorKind::Ledger, || panic!("drill"));
    }
}
