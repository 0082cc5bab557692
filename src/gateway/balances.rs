//! Every balance that has an actor, from its tenant's first sight until nobody can spend it any more. Owns that there is
//! never more than one actor of a balance; refuses to know what is spent.
//!
//! A balance outlives its tenant's stay in the configuration: two actors of one balance, one for requests that began before
//! and one for a tenant that came back, would spend it twice. It is forgotten once no value of the tenant is left, nothing of
//! it is under way, and the journal says the same of it as its actor does ([`Leave`]). A tenant that comes back later finds
//! its balance as after a restart: out of the journal.

use std::collections::HashMap;
use std::sync::Arc;

use actix::prelude::*;
use parking_lot::Mutex;

use crate::actors::ledger::{Board, Leave, LedgerActor, LoanLapsed};
use crate::config::plan::Tenant;
use crate::ids::TenantId;
use crate::lifecycle::AtOnce;
use crate::pure::ledger::{Account, Standing, Terms};
use crate::pure::time::Mono;
use crate::runtime::Shared;
use crate::store::journal::Journal;
use crate::store::redis::ledger::SharedLedger;
use crate::telemetry::Telemetry;

/// A tenant's balance, whatever becomes of its settings.
#[derive(Clone)]
pub(super) struct Balance {
    pub(super) board: Arc<Board>,
    pub(super) actor: Addr<LedgerActor>,
    pub(super) shared: Option<Shared>,
    /// Each value of the tenant has it, so that it tells whether any is left.
    pub(super) at_once: Arc<AtOnce>,
}

impl Balance {
    /// Whether no configuration and no request has the tenant. Then only a change of the configuration gives it out again.
    fn is_out_of_reach(&self) -> bool {
        Arc::strong_count(&self.at_once) == 1
    }
}

/// All of them.
pub(super) struct Balances {
    control: ArbiterHandle,
    journal: Arc<Journal>,
    telemetry: Arc<Telemetry>,
    /// The ledger that replicas share, where there is one.
    shared: Option<Arc<SharedLedger>>,
    all: Mutex<HashMap<TenantId, Balance>>,
}

impl Balances {
    pub(super) fn new(
        control: ArbiterHandle,
        journal: Arc<Journal>,
        telemetry: Arc<Telemetry>,
        shared: Option<Arc<SharedLedger>>,
    ) -> Balances {
        Balances { control, journal, telemetry, shared, all: Mutex::default() }
    }

    /// The tenant's balance, and whether its actor is new.
    pub(super) fn of(&self, plan: &Tenant) -> (Balance, bool) {
        let mut all = self.all.lock();
        if let Some(balance) = all.get(&plan.id) {
            return (balance.clone(), false);
        }
        let (account, board) = match &self.shared {
            None => {
                let known = self.journal.with_book(|book| book.tenants.get(&plan.id).map(|page| page.standing()));
                (Account::restore(terms(plan), known.unwrap_or_default()), Arc::new(Board::default()))
            }
            // The board keeps the tenant's limits; its money is elsewhere.
            Some(_) => (Account::restore(Terms::default(), Standing::default()), Arc::new(Board::of_shared_ledger())),
        };
        let shared = self.shared.as_ref().map(|ledger| Shared {
            ledger: Arc::clone(ledger),
            account: ledger.account(&plan.id, terms(plan), &board),
        });
        board.limit(plan.tpm, plan.rpm);
        board.publish(&account);
        let (id, shown) = (plan.id.clone(), Arc::clone(&board));
        let (journal, telemetry) = (Arc::clone(&self.journal), Arc::clone(&self.telemetry));
        let actor = Supervisor::start_in_arbiter(&self.control, move |_| {
            LedgerActor::new(id, account, shown, journal, telemetry)
        });
        let balance = Balance { board, actor, shared, at_once: Arc::default() };
        all.insert(plan.id.clone(), balance.clone());
        self.telemetry.metrics.balances(all.len());
        (balance, true)
    }

    /// Tells the owners of balances whose loan has a hold past its time. A hold is resolved or dropped long before, so there
    /// is hardly ever one.
    pub(super) fn look_at_loans(&self, now: Mono) {
        for balance in self.all.lock().values().filter(|balance| balance.board.has_lapsed(now)) {
            balance.actor.do_send(LoanLapsed);
        }
    }

    /// Tenants that nobody can reach.
    pub(super) fn departed(&self) -> Vec<TenantId> {
        let all = self.all.lock();
        all.iter().filter(|(_, balance)| balance.is_out_of_reach()).map(|(id, _)| id.clone()).collect()
    }

    /// Forgets what can be forgotten of `departed`; the rest is asked again another time. To be called with the right to
    /// change the configuration: then none of them can come back in between.
    ///
    /// # Cancel safety
    /// Must not be dropped: a balance that has agreed to be forgotten grants nothing any more.
    pub(super) async fn forget(&self, departed: &[TenantId]) {
        let mut forgotten = Vec::with_capacity(departed.len());
        for id in departed {
            let alone = self.all.lock().get(id).filter(|balance| balance.is_out_of_reach()).cloned();
            let Some(balance) = alone else { continue };
            let is_idle = |shared: &Shared| shared.ledger.is_idle(&shared.account);
            if balance.shared.as_ref().is_none_or(is_idle) && balance.actor.send(Leave).await == Ok(true) {
                if let Some(shared) = &balance.shared {
                    shared.ledger.forget_account(id);
                }
                self.all.lock().remove(id);
                self.telemetry.metrics.tenant_budget_remaining(id, None);
                forgotten.push(id);
            }
        }
        self.journal.rest(forgotten);
        let mut all = self.all.lock();
        self.telemetry.metrics.balances(all.len());
        if all.capacity() > 1024 && all.capacity() / 4 > all.len() {
            all.shrink_to_fit();
        }
    }
}

/// What the configuration says of the tenant's money.
pub(super) fn terms(plan: &Tenant) -> Terms {
    Terms { budget: plan.budget, period: plan.budget_period }
}
