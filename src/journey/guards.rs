//! A hold as a value: dropping it unresolved gives the money back. The second net under [`super::settle`].

use std::sync::Arc;

use actix::Addr;

use crate::actors::ledger::{HoldResolved, LedgerActor};
use crate::clock;
use crate::ids::{HoldId, TenantId};
use crate::pure::money::Money;
use crate::store::journal::Journal;
use crate::store::record::{Record, ReleaseReason, ReleaseRecord};

/// Money held for a call. Resolve it with [`Hold::resolve`]; a hold that is dropped is released, in the journal too.
pub struct Hold {
    ledger: Addr<LedgerActor>,
    /// Names it.
    pub id: HoldId,
    /// What is held; nothing where it is only a share of the tenant's own limits.
    pub amount: Money,
    noted: Option<(Arc<Journal>, TenantId)>,
    open: bool,
}

impl Hold {
    /// Takes charge of a hold that the ledger has granted or is about to grant.
    pub fn new(ledger: Addr<LedgerActor>, id: HoldId) -> Hold {
        Hold { ledger, id, amount: Money::ZERO, noted: None, open: true }
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
        self.ledger.do_send(HoldResolved { id: self.id, charge, tokens });
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
        self.ledger.do_send(HoldResolved { id: self.id, charge: None, tokens: None });
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
