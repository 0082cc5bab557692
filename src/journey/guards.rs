//! A hold as a value: dropping it unresolved gives the money back. The second net under [`super::settle`].

use std::sync::Arc;

use crate::actors::ledger::{HoldResolved, Lent, PlaceHold};
use crate::clock;
use crate::ids::{HoldId, TenantId};
use crate::pure::money::Money;
use crate::runtime::TenantRuntime;
use crate::store::journal::Journal;
use crate::store::record::{Record, ReleaseReason, ReleaseRecord};

/// Money held for a call. Resolve it with [`Hold::resolve`]; a hold that is dropped is released, in the journal too.
pub struct Hold {
    tenant: Arc<TenantRuntime>,
    /// Names it.
    pub id: HoldId,
    /// What is held; nothing where it is only a share of the tenant's own limits.
    pub amount: Money,
    noted: Option<(Arc<Journal>, TenantId)>,
    open: bool,
}

impl Hold {
    /// Takes charge of a hold that the ledger has granted or is about to grant.
    pub fn new(tenant: Arc<TenantRuntime>, id: HoldId) -> Hold {
        Hold { tenant, id, amount: Money::ZERO, noted: None, open: true }
    }

    /// A hold out of what the ledger has lent; `None` where the ledger must be asked.
    pub fn of_loan(tenant: &Arc<TenantRuntime>, ask: &PlaceHold) -> Option<Hold> {
        if !tenant.board.hold(&ask.core(clock::mono()), ask.tokens, clock::wall()) {
            return None;
        }
        let mut hold = Hold::new(Arc::clone(tenant), ask.id);
        hold.amount = ask.upper;
        Some(hold)
    }

    /// The journal is told of the hold, so it must be told of its end: by whoever resolves it, or when it is dropped.
    pub fn note_in(&mut self, journal: Arc<Journal>, tenant: TenantId) {
        self.noted = Some((journal, tenant));
    }

    /// Whether the journal knows of it.
    pub fn is_noted(&self) -> bool {
        self.noted.is_some()
    }

    /// Ends the hold: `charge` is taken, the rest is freed; `tokens` is what counts against the tenant's own limit. The
    /// record of it is the caller's.
    pub fn resolve(mut self, charge: Option<Money>, tokens: Option<u64>) {
        self.open = false;
        self.end(charge, tokens);
    }

    /// Settles a hold that is within what the ledger has lent, and costs no more than it holds; `None` where the ledger
    /// must do it.
    pub fn settle_lent(&mut self, charge: Money, tokens: Option<u64>) -> Option<Lent> {
        let lent = self.tenant.board.settle(self.id, charge, tokens, (clock::mono(), clock::wall()))?;
        self.open = false;
        Some(lent)
    }

    fn end(&self, charge: Option<Money>, tokens: Option<u64>) {
        let board = &self.tenant.board;
        let now = clock::mono();
        let within = match charge {
            Some(charge) => board.settle(self.id, charge, tokens, (now, clock::wall())).is_some(),
            None => board.release(self.id, now),
        };
        if !within {
            self.tenant.ledger.do_send(HoldResolved { id: self.id, charge, tokens });
        }
    }

    /// The ledger has confirmed the settlement: nothing is left to report.
    pub fn settled(mut self) {
        self.open = false;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if !self.open {
            return;
        }
        self.end(None, None);
        if let Some((journal, tenant)) = self.noted.take() {
            let (time, reason) = (clock::wall(), ReleaseReason::Unused);
            let release = ReleaseRecord { time, hold: self.id, tenant, reason };
            // What the disk refuses is kept and retried by the journal, which also tells that it is unwell.
            if let Err(error) = journal.append(&Record::Release(release)) {
                tracing::error!(hold = self.id.0, %error, "the release of a hold could not be written yet");
            }
        }
    }
}
