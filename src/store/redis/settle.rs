//! Ends of requests in the shared ledger: charges that end holds, and records that are owed to the server until it has
//! them.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use crate::ids::HoldId;
use crate::pure::money::Money;
use crate::store::record::{PendingRecord, Record, UsageRecord};

use super::account::SharedAccount;
use super::hold::SharedHold;
use super::ledger::SharedLedger;
use super::link::StoreDown;
use super::outbox::Owed;
use super::script::{Frame, Verb};

/// What a settlement did.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SharedSettled {
    /// What the tenant paid.
    pub charged: Money,
    /// What no balance covered.
    pub shortfall: Money,
    /// What is left after it and all open holds; `None` without a budget or where it is not known now.
    pub remaining: Option<Money>,
}

/// What ends a request's holds.
pub(super) struct Bill<'a> {
    /// The hold that the record names.
    pub(super) hold: HoldId,
    /// Further holds of the same request, which end with it.
    pub(super) others: &'a [SharedHold],
    pub(super) charge: Money,
    pub(super) usage: &'a UsageRecord,
    /// The record's number if it was owed, else 0.
    pub(super) number: u64,
    /// Whether it is charged even if the server knows nothing of the hold.
    pub(super) force: bool,
}

impl SharedLedger {
    /// Ends a request's holds with its record: charges `charge` to them together and frees the rest. Without a hold the
    /// record is numbered and follows. Fills in what was really charged.
    ///
    /// # Errors
    /// When the journal cannot keep what the server does not have.
    ///
    /// # Cancel safety
    /// Must not be dropped: it runs inside the journey's own task.
    pub async fn settle(
        &self,
        account: &Arc<SharedAccount>,
        holds: Vec<SharedHold>,
        charge: Money,
        usage: &mut UsageRecord,
    ) -> io::Result<SharedSettled> {
        let mut holds = holds.into_iter();
        let first = holds.next();
        let others: Vec<SharedHold> = holds.collect();
        let plain = SharedSettled { charged: charge, shortfall: Money::ZERO, remaining: account.board.remaining() };
        let (hold, force) = match first {
            Some(mut hold) => {
                hold.open = false;
                if charge > Money::ZERO && hold.asked > Money::ZERO {
                    account.remember(hold.asked, charge);
                }
                (hold.id, false)
            }
            None if charge == Money::ZERO => {
                self.owe(usage, charge, None, false)?;
                return Ok(plain);
            }
            None if account.terms.lock().budget.is_none() => {
                self.owe(usage, charge, None, true)?;
                return Ok(plain);
            }
            // Nothing was held, and yet there is a bill: it is charged like one whose hold has lapsed.
            None => (HoldId(self.next_hold.fetch_add(1, Ordering::Relaxed)), true),
        };
        // Known before it is sent: the stream may be faster than the answer.
        let boxed = Box::new(usage.clone());
        let owed = Owed { number: 0, hold: Some(hold), usage: boxed, charge, journaled: false, not_before: 0 };
        self.outbox.lock().settled(hold, owed);
        let settled = self.settle_now(account, Bill { hold, others: &others, charge, usage, number: 0, force }).await;
        self.forget(account, hold);
        if settled.is_ok() {
            for mut other in others {
                other.open = false;
                self.forget(account, other.id);
            }
        }
        account.freed.notify_one();
        match settled {
            Ok(settled) => {
                usage.cost = settled.charged;
                usage.shortfall = settled.shortfall;
                Ok(settled)
            }
            Err(_down) => {
                self.outbox.lock().not_settled(account.tenant(), hold);
                self.owe(usage, charge, Some(hold), true)?;
                Ok(plain)
            }
        }
    }

    /// One try to end holds with a record.
    pub(super) async fn settle_now(&self, account: &SharedAccount, bill: Bill<'_>) -> Result<SharedSettled, StoreDown> {
        let json = serde_json::to_string(bill.usage).map_err(|_| StoreDown::Broken)?;
        let mut force = bill.force;
        loop {
            let reply = self
                .ask(account, |frame| {
                    let verb = Verb::new("settle", account.tenant(), frame)
                        .with(bill.hold.0.to_string())
                        .with_money(bill.charge)
                        .with(self.replica.clone())
                        .with(bill.number.to_string())
                        .with(if force { "1" } else { "0" })
                        .with(json.clone());
                    bill.others.iter().fold(verb, |verb, other| verb.with(other.id.0.to_string()))
                })
                .await?;
            match reply.status() {
                "settled" => {
                    let settled = SharedSettled {
                        charged: reply.own_money(0),
                        shortfall: reply.own_money(1),
                        remaining: reply.remaining(),
                    };
                    if settled.shortfall > Money::ZERO {
                        self.telemetry.shortfall(account.tenant(), settled.shortfall);
                    }
                    self.has_news(account.tenant());
                    return Ok(settled);
                }
                // The server has lost the hold, or never knew it; the bill stands all the same.
                "unknown" if !force => force = true,
                "known" => {
                    let charged = bill.usage.cost;
                    return Ok(SharedSettled { charged, shortfall: Money::ZERO, remaining: reply.remaining() });
                }
                _ => return Err(StoreDown::Silent),
            }
        }
    }

    /// Sends numbered records of one tenant.
    pub(super) async fn meter(&self, account: &SharedAccount, batch: &[Owed]) -> Result<(), StoreDown> {
        let mut lines = Vec::with_capacity(batch.len());
        for owed in batch {
            lines.push(serde_json::to_string(&owed.usage).map_err(|_| StoreDown::Broken)?);
        }
        let reply = self
            .ask(account, |frame| {
                let mut verb = Verb::new("meter", account.tenant(), Frame { deadline: 0, ..frame })
                    .with(self.replica.clone())
                    .with(batch.len().to_string());
                for (owed, line) in batch.iter().zip(&lines) {
                    verb = verb.with(owed.number.to_string()).with_money(owed.charge).with(line.clone());
                }
                verb
            })
            .await?;
        if reply.status() != "ok" {
            return Err(StoreDown::Silent);
        }
        self.has_news(account.tenant());
        Ok(())
    }

    /// Sets a record aside for the server. `now`: the journal must have it before this returns.
    fn owe(&self, usage: &UsageRecord, charge: Money, hold: Option<HoldId>, now: bool) -> io::Result<()> {
        // The number, the journal and the outbox in one go: numbers must leave in order.
        let mut outbox = self.outbox.lock();
        let number = outbox.number();
        let usage = Box::new(usage.clone());
        if now {
            let pending = PendingRecord { time: usage.time, number, hold, usage: usage.clone() };
            self.journal.append(&Record::Pending(pending))?;
        }
        let not_before = if hold.is_some() { self.link.deadline() } else { 0 };
        outbox.push(Owed { number, hold, usage, charge, journaled: now, not_before });
        self.count_owed(&outbox);
        drop(outbox);
        if now {
            self.wake.notify_one();
        }
        Ok(())
    }
}
