//! The ledger actor: owns one tenant's balance.
//!
//! A thin shell around [`Account`]: reads the clock, asks the core, keeps those waiting who may still be served, and
//! publishes the balance on the tenant's [`Board`] so that workers can show it without a hop. The journal is written by
//! the workers (a disk must never hold up a decision); only the rare start of a period is written here.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::clock;
use crate::ids::{HoldId, TenantId};
use crate::pure::ledger::{Account, AccountSnapshot, CreditOutcome, HoldAsk, Place, Settled, Terms};
use crate::pure::money::Money;
use crate::pure::tenant_limits::{Allowances, Exceeded, TenantLimits};
use crate::pure::time::{Mono, Wall};
use crate::store::journal::Journal;
use crate::store::record::{CreditRecord, PeriodRecord, Record};
use crate::telemetry::Telemetry;

use super::keeper::{ActorKind, guarded};

/// Asks for money to be held; may wait until settlements free enough.
#[derive(Debug, Message)]
#[rtype(result = "Result<(), HoldRefusal>")]
pub struct PlaceHold {
    /// Names the hold.
    pub id: HoldId,
    /// The most that the call can cost.
    pub upper: Money,
    /// The least that it can cost.
    pub lower: Money,
    /// When the hold lapses if nobody resolves it.
    pub expires_at: Mono,
    /// How long the asker can wait for open holds to settle.
    pub patience: Duration,
    /// Tokens that the call is expected to take of the tenant's own limit.
    pub tokens: u64,
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

/// Holds past their time lapse and waiters past their patience are refused; sent to itself.
#[derive(Debug, Message)]
#[rtype(result = "()")]
struct ExpireTick;

/// Panics inside the handler: drills that the supervision holds.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Drill;

/// A tenant's balance as workers see it: written by the actor after each change, read without a hop.
#[derive(Debug, Default)]
pub struct Board(Mutex<BoardState>);

#[derive(Debug, Default, Clone, Copy)]
struct BoardState {
    remaining: Option<Money>,
    resets_at: Option<Wall>,
    limits: Option<Allowances>,
}

impl Board {
    /// What is left of the tenant's own limits; `None` if it has none.
    pub fn limits(&self) -> Option<Allowances> {
        self.0.lock().limits
    }

    /// What new holds may take; `None` for an unlimited tenant.
    pub fn remaining(&self) -> Option<Money> {
        self.0.lock().remaining
    }

    /// When the budget is refilled next.
    pub fn resets_at(&self) -> Option<Wall> {
        self.0.lock().resets_at
    }

    /// Publishes an account's balance, and what is left of its limits if it has any.
    pub fn publish(&self, account: &Account, limits: Option<Allowances>) {
        *self.0.lock() = BoardState { remaining: account.remaining(), resets_at: account.resets_at(), limits };
    }
}

/// The limits of a tenant that has some.
pub fn limits_of(tpm: Option<u64>, rpm: Option<u64>) -> Option<TenantLimits> {
    (tpm.is_some() || rpm.is_some()).then(|| TenantLimits::new(tpm, rpm))
}

struct Waiting {
    ask: PlaceHold,
    until: Mono,
    reply: oneshot::Sender<Result<(), HoldRefusal>>,
}

/// Owns one tenant's balance.
pub struct LedgerActor {
    tenant: TenantId,
    account: Account,
    limits: Option<TenantLimits>,
    waiting: VecDeque<Waiting>,
    board: Arc<Board>,
    journal: Arc<Journal>,
    telemetry: Arc<Telemetry>,
}

impl LedgerActor {
    /// An actor that owns `account` and publishes it on `board`.
    pub fn new(
        tenant: TenantId,
        account: Account,
        limits: Option<TenantLimits>,
        board: Arc<Board>,
        journal: Arc<Journal>,
        telemetry: Arc<Telemetry>,
    ) -> LedgerActor {
        LedgerActor { tenant, account, limits, waiting: VecDeque::new(), board, journal, telemetry }
    }

    /// Starts a new period when one is due. The record goes to the journal at once: it is written once a day or month.
    fn roll(&mut self) {
        let Some(started) = self.account.roll_period(clock::wall()) else { return };
        let record = Record::PeriodStart(PeriodRecord {
            time: clock::wall(),
            tenant: self.tenant.clone(),
            start: started.start,
            budget_before: started.budget_before,
        });
        if let Err(error) = self.journal.append(&record) {
            self.telemetry.store_failed("period_start", &error);
        }
    }

    fn try_place(&mut self, ask: &PlaceHold, now: Mono) -> Place {
        self.account.place(HoldAsk {
            id: ask.id,
            amount_upper: ask.upper,
            amount_lower: ask.lower,
            now,
            expires_at: ask.expires_at,
        })
    }

    /// Serves those who wait, oldest first, as far as the balance goes.
    fn serve_waiting(&mut self, now: Mono) {
        while let Some(front) = self.waiting.pop_front() {
            if front.reply.is_closed() {
                continue;
            }
            let verdict = match self.try_place(&front.ask, now) {
                Place::Held => self.within_limits(&front.ask, now),
                Place::Wait if now < front.until => {
                    self.waiting.push_front(front);
                    break;
                }
                Place::Wait | Place::Refused => Err(HoldRefusal::Exhausted),
            };
            let id = front.ask.id;
            if front.reply.send(verdict).is_err() && verdict.is_ok() {
                // The asker left between the check and the answer; its hold must not stay.
                self.account.release(id);
                self.return_tokens(id, None);
            }
        }
    }

    /// Takes the call out of the tenant's own limits; if they are used up, the hold that was placed is given back, so
    /// that a refusal leaves everything as it was.
    fn within_limits(&mut self, ask: &PlaceHold, now: Mono) -> Result<(), HoldRefusal> {
        let Some(limits) = &mut self.limits else { return Ok(()) };
        limits.take(ask.id, ask.tokens, now).map_err(|exceeded| {
            self.account.release(ask.id);
            HoldRefusal::RateLimited(exceeded)
        })
    }

    fn return_tokens(&mut self, id: HoldId, billed: Option<u64>) {
        if let Some(limits) = &mut self.limits {
            limits.settle(id, billed, clock::mono());
        }
    }

    fn resolve(&mut self, id: HoldId, charge: Option<Money>) {
        match charge {
            Some(charge) => {
                if let Some(settled) = self.account.settle(id, charge) {
                    self.report(&settled);
                }
            }
            None => {
                self.account.release(id);
            }
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

    fn report(&self, settled: &Settled) {
        if settled.shortfall > Money::ZERO {
            self.telemetry.shortfall(&self.tenant, settled.shortfall);
        }
    }

    fn finish(&mut self, now: Mono) {
        self.serve_waiting(now);
        let limits = self.limits.as_mut().map(|limits| limits.allowances(now));
        self.board.publish(&self.account, limits);
        self.telemetry.metrics.tenant_budget_remaining(&self.tenant, self.account.remaining());
    }
}

impl Actor for LedgerActor {
    type Context = Context<Self>;

    fn started(&mut self, context: &mut Self::Context) {
        self.roll();
        self.finish(clock::mono());
        context.run_interval(Duration::from_secs(1), |_, context| context.address().do_send(ExpireTick));
    }
}

impl Supervised for LedgerActor {
    fn restarting(&mut self, _: &mut Self::Context) {
        self.telemetry.actor_restarted(ActorKind::Ledger, self.tenant.as_str());
    }
}

impl Handler<PlaceHold> for LedgerActor {
    type Result = ResponseFuture<Result<(), HoldRefusal>>;

    fn handle(&mut self, ask: PlaceHold, context: &mut Self::Context) -> Self::Result {
        let now = clock::mono();
        let patience = ask.patience;
        let placed = guarded::<Self, _>(context, ActorKind::Ledger, || {
            self.roll();
            // Those who came first are served first, or a stream of small asks would starve a large one.
            let verdict =
                if self.waiting.is_empty() || patience.is_zero() { self.try_place(&ask, now) } else { Place::Wait };
            let answer = match verdict {
                Place::Held => Ok(self.within_limits(&ask, now)),
                Place::Wait if !patience.is_zero() => {
                    let (reply, answer) = oneshot::channel();
                    self.waiting.push_back(Waiting { ask, until: now.plus(patience), reply });
                    Err(answer)
                }
                Place::Wait | Place::Refused => Ok(Err(HoldRefusal::Exhausted)),
            };
            self.finish(now);
            answer
        });
        match placed {
            Ok(Ok(verdict)) => Box::pin(std::future::ready(verdict)),
            Ok(Err(answer)) => {
                context.run_later(patience, |_, context| context.address().do_send(ExpireTick));
                Box::pin(async move { answer.await.unwrap_or(Err(HoldRefusal::Unavailable)) })
            }
            Err(_panicked) => Box::pin(std::future::ready(Err(HoldRefusal::Unavailable))),
        }
    }
}

impl Handler<HoldResolved> for LedgerActor {
    type Result = ();

    fn handle(&mut self, fact: HoldResolved, context: &mut Self::Context) {
        let _restarting = guarded::<Self, _>(context, ActorKind::Ledger, || {
            self.roll();
            self.resolve(fact.id, fact.charge);
            self.return_tokens(fact.id, fact.tokens);
            self.finish(clock::mono());
        });
    }
}

impl Handler<SettleHold> for LedgerActor {
    type Result = MessageResult<SettleHold>;

    fn handle(&mut self, ask: SettleHold, context: &mut Self::Context) -> Self::Result {
        let settled = guarded::<Self, _>(context, ActorKind::Ledger, || {
            self.roll();
            let settled = self.account.settle(ask.id, ask.charge);
            self.return_tokens(ask.id, ask.tokens);
            if let Some(settled) = &settled {
                self.report(settled);
            }
            self.finish(clock::mono());
            settled
        });
        MessageResult(settled.ok().flatten())
    }
}

impl Handler<Metered> for LedgerActor {
    type Result = ();

    fn handle(&mut self, fact: Metered, context: &mut Self::Context) {
        let _restarting = guarded::<Self, _>(context, ActorKind::Ledger, || {
            self.roll();
            let now = clock::mono();
            let ask = HoldAsk {
                id: fact.id,
                amount_upper: fact.charge,
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
            self.account.set_terms(fact.terms);
            let (tpm, rpm) = fact.limits;
            match &mut self.limits {
                Some(limits) => limits.reconfigure(tpm, rpm),
                None => self.limits = limits_of(tpm, rpm),
            }
            self.roll();
            self.finish(clock::mono());
        });
    }
}

impl Handler<Observe> for LedgerActor {
    type Result = MessageResult<Observe>;

    fn handle(&mut self, _: Observe, context: &mut Self::Context) -> Self::Result {
        MessageResult(
            guarded::<Self, _>(context, ActorKind::Ledger, || {
                self.roll();
                self.account.snapshot()
            })
            .ok(),
        )
    }
}

impl Handler<ExpireTick> for LedgerActor {
    type Result = ();

    fn handle(&mut self, _: ExpireTick, context: &mut Self::Context) {
        let _restarting = guarded::<Self, _>(context, ActorKind::Ledger, || {
            self.roll();
            let now = clock::mono();
            let lapsed = self.account.expire(now);
            if !lapsed.is_empty() {
                tracing::warn!(tenant = %self.tenant, holds = lapsed.len(), "holds lapsed without a settlement");
            }
            self.finish(now);
        });
    }
}

impl Handler<Drill> for LedgerActor {
    type Result = ();

    fn handle(&mut self, _: Drill, context: &mut Self::Context) {
        let _restarting = guarded::<Self, ()>(context, ActorKind::Ledger, || panic!("drill"));
    }
}
