//! One tenant's account in the shared ledger, as this replica sees it: what the server said last, and what is open here.
//!
//! Owns no connection and asks nothing: [`super::ledger`] does.

use std::collections::{HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{Mutex as TurnMutex, Notify};

use crate::actors::ledger::Board;
use crate::clock;
use crate::ids::{HoldId, TenantId};
use crate::pure::ledger::{AccountSnapshot, Terms};
use crate::pure::money::Money;
use crate::pure::time::Mono;
use crate::telemetry::Telemetry;

use super::hold::SharedAsk;
use super::script::{Frame, Reply};

/// Settlements by which the cost of a last call is guessed.
const SETTLEMENTS_KEPT: usize = 16;

/// One tenant's account as this replica sees it.
pub struct SharedAccount {
    tenant: TenantId,
    pub(super) terms: Mutex<Terms>,
    pub(super) board: Arc<Board>,
    /// Whether anybody has open holds, as far as is known.
    busy: AtomicBool,
    /// The server's mark of this account's data; another one means that they were lost meanwhile.
    pub(super) epoch: ArcSwap<String>,
    /// One waiter at a time asks again; the others stand behind it in order.
    pub(super) turn: TurnMutex<()>,
    pub(super) freed: Notify,
    /// One reader of the stream at a time, or two would read the same entries.
    reader: TurnMutex<()>,
    /// Open holds of this process.
    pub(super) open: Mutex<HashSet<HoldId>>,
    /// This process's newest settlements: what was asked to be held, and what it cost.
    settlements: Mutex<VecDeque<(Money, Money)>>,
    /// When the server was last asked how it stands, nanoseconds of the process's clock.
    looked: AtomicU64,
}

impl SharedAccount {
    /// An account of which the server has said nothing yet.
    pub(super) fn new(tenant: TenantId, terms: Terms, board: Arc<Board>) -> SharedAccount {
        SharedAccount {
            tenant,
            terms: Mutex::new(terms),
            board,
            busy: AtomicBool::new(false),
            epoch: ArcSwap::default(),
            turn: TurnMutex::default(),
            freed: Notify::new(),
            reader: TurnMutex::default(),
            open: Mutex::default(),
            settlements: Mutex::default(),
            looked: AtomicU64::new(0),
        }
    }

    /// Whether nobody has looked for `span`; whoever asks looks now.
    pub(super) fn is_look_due(&self, span: Duration) -> bool {
        let now = clock::mono();
        let due = now.since(Mono(self.looked.load(Ordering::Relaxed))) >= span;
        if due {
            self.looked.store(now.0, Ordering::Relaxed);
        }
        due
    }

    pub(super) fn tenant(&self) -> &TenantId {
        &self.tenant
    }

    pub(super) async fn reading(&self) -> tokio::sync::MutexGuard<'_, ()> {
        self.reader.lock().await
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    pub(super) fn open_holds(&self) -> Vec<HoldId> {
        self.open.lock().iter().copied().collect()
    }

    pub(super) fn frame(&self, deadline: i64) -> Frame {
        let terms = *self.terms.lock();
        let period = terms.period.start_of(clock::wall()).unwrap_or_default();
        Frame { budget: terms.budget, period, deadline }
    }

    pub(super) fn remember(&self, asked: Money, cost: Money) {
        let mut settlements = self.settlements.lock();
        settlements.push_back((asked, cost));
        while settlements.len() > SETTLEMENTS_KEPT {
            settlements.pop_front();
        }
    }

    /// What a call will probably cost, for the last call's rule: the estimate, or, if that is less, the largest share that
    /// any of the last settlements took of what it had asked for.
    pub(super) fn probable(&self, ask: &SharedAsk) -> Money {
        let share = |(asked, cost): &(Money, Money)| {
            let product = ask.upper.units().checked_mul(cost.units())?;
            let rounded_up = product.checked_add(asked.units() - 1)?;
            rounded_up.checked_div(asked.units()).map(Money::from_units)
        };
        let settlements = self.settlements.lock();
        let most = settlements.iter().map(share).try_fold(Money::ZERO, |most, one| one.map(|one| most.max(one)));
        match most {
            Some(most) if !settlements.is_empty() => most.min(ask.likely),
            _ => ask.likely,
        }
    }

    /// Takes over what an answer says of the account.
    pub(super) fn learn(&self, reply: &Reply, telemetry: &Telemetry) {
        let account = self.snapshot(reply);
        self.busy.store(account.held > Money::ZERO, Ordering::Relaxed);
        let resets_at = self.terms.lock().period.next_start(reply.period());
        self.board.show(account, !reply.hope(), resets_at);
        telemetry.metrics.tenant_budget_remaining(&self.tenant, account.remaining);
    }

    /// The account as an answer tells it.
    pub(super) fn snapshot(&self, reply: &Reply) -> AccountSnapshot {
        let terms = *self.terms.lock();
        let has_periods = terms.period.start_of(clock::wall()).is_some();
        AccountSnapshot {
            budget: terms.budget,
            remaining: terms.budget.and(reply.remaining()),
            held: reply.held(),
            spent: reply.spent(),
            period: terms.period,
            period_start: has_periods.then(|| reply.period()),
            resets_at: terms.period.next_start(reply.period()),
            credits: reply.credits(),
            open_holds: reply.open_holds(),
            written_off: reply.written_off(),
        }
    }
}
