//! A hold as a value: dropping it unresolved gives the money back. The second net under [`super::settle`].

use actix::Addr;

use crate::actors::ledger::{HoldResolved, LedgerActor};
use crate::ids::HoldId;
use crate::pure::money::Money;

/// Money held for a call. Resolve it with [`Hold::resolve`]; a hold that is dropped is released.
pub struct Hold {
    ledger: Addr<LedgerActor>,
    /// Names it.
    pub id: HoldId,
    /// What is held.
    pub upper: Money,
    /// Whether money is held, and not only a share of the tenant's own limits.
    pub journaled: bool,
    open: bool,
}

impl Hold {
    /// Takes charge of a hold that the ledger has granted or is about to grant.
    pub fn new(ledger: Addr<LedgerActor>, id: HoldId, upper: Money, journaled: bool) -> Hold {
        Hold { ledger, id, upper, journaled, open: true }
    }

    /// Ends the hold: `charge` is taken, the rest is freed; `tokens` is what counts against the tenant's own limit.
    pub fn resolve(mut self, charge: Option<Money>, tokens: Option<u64>) {
        self.open = false;
        self.ledger.do_send(HoldResolved { id: self.id, charge, tokens });
    }
}

impl Hold {
    /// The ledger has confirmed the settlement: nothing is left to report.
    pub fn settled(mut self) {
        self.open = false;
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.open {
            self.ledger.do_send(HoldResolved { id: self.id, charge: None, tokens: None });
        }
    }
}
