//! Money held over all replicas: asking for it, waiting for it, giving it back.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::clock;
use crate::ids::{HoldId, RequestId};
use crate::pure::money::Money;

use super::account::SharedAccount;
use super::ledger::SharedLedger;
use super::link::StoreDown;
use super::script::{Frame, Verb};

/// An ask that must wait for settlements looks again this often: those of other replicas are not told to it.
const LOOK_AGAIN: Duration = Duration::from_millis(15);

/// However often others settle, nobody waits longer than this, or than its own patience if that is longer.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// What a call asks for.
#[derive(Debug, Clone)]
pub struct SharedAsk {
    /// The most that it can cost.
    pub upper: Money,
    /// What it will probably cost.
    pub likely: Money,
    /// The least that it can cost.
    pub lower: Money,
    /// How long it can wait without any settlement.
    pub patience: Duration,
    /// For which request.
    pub request: RequestId,
}

/// Why nothing was held.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SharedRefusal {
    /// The balance does not cover it.
    Exhausted,
    /// The server is gone.
    Unavailable,
}

/// Money held for a call over all replicas. Dropped unsettled, it is given back.
pub struct SharedHold {
    ledger: Arc<SharedLedger>,
    account: Arc<SharedAccount>,
    pub(super) id: HoldId,
    pub(super) asked: Money,
    /// What is held.
    pub amount: Money,
    pub(super) open: bool,
}

impl SharedHold {
    /// The server has said no, so there is nothing to give back.
    fn refused(&mut self) -> SharedRefusal {
        self.open = false;
        self.ledger.forget(&self.account, self.id);
        SharedRefusal::Exhausted
    }
}

impl Drop for SharedHold {
    fn drop(&mut self) {
        if self.open {
            self.ledger.forget(&self.account, self.id);
            self.ledger.release_later(&self.account, self.id);
        }
    }
}

/// What one ask for a hold brought.
enum Placed {
    Held(Money),
    /// What was spent and held then: if it changes, calls do settle.
    Wait(Money, Money),
}

impl SharedLedger {
    /// Holds money for a call; waits for settlements as long as the ask has patience.
    ///
    /// # Errors
    /// [`SharedRefusal`].
    ///
    /// # Cancel safety
    /// A hold whose ask was dropped is given back.
    pub async fn place(
        self: &Arc<Self>,
        account: &Arc<SharedAccount>,
        ask: &SharedAsk,
    ) -> Result<SharedHold, SharedRefusal> {
        let id = HoldId(self.next_hold.fetch_add(1, Ordering::Relaxed));
        let (ledger, own) = (Arc::clone(self), Arc::clone(account));
        let mut hold = SharedHold { ledger, account: own, id, asked: Money::ZERO, amount: Money::ZERO, open: true };
        account.open.lock().insert(id);
        hold.asked = ask.upper;
        if let Placed::Held(amount) = self.try_or_refuse(account, &mut hold, ask).await? {
            hold.amount = amount;
            return Ok(hold);
        }
        if ask.patience.is_zero() {
            return Err(hold.refused());
        }
        let since = clock::mono();
        let _turn = account.turn.lock().await;
        let (mut progress, mut seen) = (since, None);
        loop {
            match self.try_or_refuse(account, &mut hold, ask).await? {
                Placed::Held(amount) => {
                    hold.amount = amount;
                    return Ok(hold);
                }
                Placed::Wait(spent, held) => {
                    let now = clock::mono();
                    if seen.replace((spent, held)) != Some((spent, held)) {
                        progress = now;
                    }
                    let until = progress.plus(ask.patience).min(since.plus(ask.patience.max(LONGEST_WAIT)));
                    if now >= until {
                        return Err(hold.refused());
                    }
                }
            }
            tokio::select! {
                () = account.freed.notified() => {}
                () = tokio::time::sleep(LOOK_AGAIN) => {}
            }
        }
    }

    /// One try; where the server does not answer, the hold may be there all the same and is given back.
    async fn try_or_refuse(
        &self,
        account: &SharedAccount,
        hold: &mut SharedHold,
        ask: &SharedAsk,
    ) -> Result<Placed, SharedRefusal> {
        let likely = account.probable(ask);
        let reply = self
            .ask(account, |frame| {
                Verb::new("place", account.tenant(), frame)
                    .with(hold.id.0.to_string())
                    .with_money(ask.upper)
                    .with_money(likely)
                    .with_money(ask.lower)
                    .with(self.lease.as_millis().to_string())
                    .with(self.replica.clone())
                    .with(ask.request.as_str())
            })
            .await
            .map_err(|_| SharedRefusal::Unavailable)?;
        match reply.status() {
            "held" => Ok(Placed::Held(reply.own_money(0))),
            "wait" => Ok(Placed::Wait(reply.spent(), reply.held())),
            _ => Err(hold.refused()),
        }
    }

    /// Frees a hold without a charge. Nothing happens if it is not open.
    pub(super) async fn release(&self, account: &SharedAccount, hold: HoldId) -> Result<(), StoreDown> {
        self.ask(account, |frame| {
            Verb::new("settle", account.tenant(), Frame { deadline: 0, ..frame })
                .with(hold.0.to_string())
                .with("-")
                .with(self.replica.clone())
                .with("0")
                .with("0")
                .with("")
        })
        .await?;
        account.freed.notify_one();
        Ok(())
    }

    /// Renews the leases of this process's open holds of one tenant.
    pub(super) async fn renew(&self, account: &SharedAccount) -> Result<(), StoreDown> {
        let open = account.open_holds();
        if open.is_empty() {
            return Ok(());
        }
        self.ask(account, |frame| {
            let verb = Verb::new("renew", account.tenant(), Frame { deadline: 0, ..frame });
            let verb = verb.with(self.lease.as_millis().to_string());
            open.iter().fold(verb, |verb, hold| verb.with(hold.0.to_string()))
        })
        .await
        .map(drop)
    }

    pub(super) fn forget(&self, account: &SharedAccount, hold: HoldId) {
        account.open.lock().remove(&hold);
    }

    fn release_later(&self, account: &Arc<SharedAccount>, hold: HoldId) {
        self.releases.lock().push((Arc::clone(account), hold));
        self.wake.notify_one();
    }
}
