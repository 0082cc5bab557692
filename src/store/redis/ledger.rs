//! Balances that replicas share: holds and settlements of this replica, each one round trip.
//!
//! A request asks here directly instead of the tenant's actor, because an actor must never await between reading and writing its
//! state. What cannot reach the server is owed to it ([`super::outbox`]) and kept in the journal meanwhile.
//!
//! **While the server is gone** nobody with a budget gets a hold; calls under way end as they would, their charges follow;
//! tenants without a budget go on. Nothing is charged twice and nothing is forgotten: see [`super::upkeep`].

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use deadpool_redis::redis::Script;
use parking_lot::{Mutex, RwLock};
use tokio::sync::{Mutex as TurnMutex, Notify};

use crate::actors::ledger::Board;
use crate::clock;
use crate::ids::{HoldId, RequestId, TenantId};
use crate::pure::ledger::{AccountSnapshot, CreditOutcome, Terms};
use crate::pure::money::Money;
use crate::store::journal::Journal;
use crate::store::record::{PendingRecord, Record, UsageRecord};
use crate::telemetry::Telemetry;
use crate::telemetry::labels::StoreName;

use super::link::{Lane, Link, StoreDown};
use super::outbox::{Outbox, Owed};
use super::script::{Frame, Reply, Verb, account_script};

/// An ask that must wait for settlements looks again this often: those of other replicas are not told to it.
const LOOK_AGAIN: Duration = Duration::from_millis(15);

/// However often others settle, nobody waits longer than this, or than its own patience if that is longer.
const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// Settlements by which the cost of a last call is guessed.
const SETTLEMENTS_KEPT: usize = 16;

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

/// One tenant's account as this replica sees it.
pub struct SharedAccount {
    tenant: TenantId,
    terms: Mutex<Terms>,
    board: Arc<Board>,
    /// Whether anybody has open holds, as far as is known.
    busy: AtomicBool,
    /// The server's mark of this account's data; another one means that they were lost meanwhile.
    epoch: ArcSwap<String>,
    /// One waiter at a time asks again; the others stand behind it in order.
    turn: TurnMutex<()>,
    freed: Notify,
    /// One reader of the stream at a time, or two would read the same entries.
    reader: TurnMutex<()>,
    /// Open holds of this process.
    open: Mutex<HashSet<HoldId>>,
    /// This process's newest settlements: what was asked to be held, and what it cost.
    settlements: Mutex<VecDeque<(Money, Money)>>,
}

impl SharedAccount {
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

    fn frame(&self, deadline: i64) -> Frame {
        let terms = *self.terms.lock();
        let period = terms.period.start_of(clock::wall()).unwrap_or_default();
        Frame { budget: terms.budget, period, deadline }
    }

    fn remember(&self, asked: Money, cost: Money) {
        let mut settlements = self.settlements.lock();
        settlements.push_back((asked, cost));
        while settlements.len() > SETTLEMENTS_KEPT {
            settlements.pop_front();
        }
    }

    /// What a call will probably cost, for the last call's rule: the estimate, or, if that is less, the largest share that
    /// any of the last settlements took of what it had asked for.
    fn probable(&self, ask: &SharedAsk) -> Money {
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
    fn learn(&self, reply: &Reply, telemetry: &Telemetry) {
        let terms = *self.terms.lock();
        let remaining = terms.budget.and(reply.remaining());
        self.busy.store(reply.held() > Money::ZERO, Ordering::Relaxed);
        self.board.show(remaining, !reply.hope(), terms.period.next_start(reply.period()));
        telemetry.metrics.tenant_budget_remaining(&self.tenant, remaining);
    }
}

/// The process's share of a ledger in Redis.
pub struct SharedLedger {
    pub(super) link: Arc<Link>,
    pub(super) journal: Arc<Journal>,
    pub(super) telemetry: Arc<Telemetry>,
    /// Names this replica in records; the same over restarts.
    pub(super) replica: String,
    /// How long a hold outlives the last sign of its replica.
    pub(super) lease: Duration,
    script: Script,
    pub(super) accounts: RwLock<HashMap<TenantId, Arc<SharedAccount>>>,
    next_hold: AtomicU64,
    pub(super) outbox: Mutex<Outbox>,
    /// Holds that ended without a charge and could not be told at once.
    pub(super) releases: Mutex<Vec<(Arc<SharedAccount>, HoldId)>>,
    /// Tenants with news in their streams.
    pub(super) news: Mutex<HashSet<TenantId>>,
    /// Balances that the server had lost, since this was last told.
    pub(super) lost: Mutex<Lost>,
    pub(super) wake: Notify,
    pub(super) stopping: AtomicBool,
}

/// Balances that the server had lost and got back from this replica's journal.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(super) struct Lost {
    pub(super) accounts: u64,
    pub(super) restored: Money,
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

/// Money held for a call over all replicas. Dropped unsettled, it is given back.
pub struct SharedHold {
    ledger: Arc<SharedLedger>,
    account: Arc<SharedAccount>,
    id: HoldId,
    asked: Money,
    /// What is held.
    pub amount: Money,
    open: bool,
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

impl SharedLedger {
    /// A ledger over `link`, with what an earlier process of this replica had left in the journal.
    pub fn new(
        link: Arc<Link>,
        journal: Arc<Journal>,
        telemetry: Arc<Telemetry>,
        replica: String,
        lease: Duration,
    ) -> Arc<SharedLedger> {
        let (last, left) = journal.with_book(|book| {
            let pending: Vec<PendingRecord> =
                book.tenants.values().flat_map(|page| page.pending.values().cloned()).collect();
            (book.last_number, pending)
        });
        // Above every number of an earlier process, even those whose records only the server has seen.
        let by_clock = u64::try_from(clock::wall().0).unwrap_or(0).saturating_mul(1000);
        Arc::new(SharedLedger {
            link,
            journal,
            telemetry,
            replica,
            lease,
            script: account_script(),
            accounts: RwLock::default(),
            next_hold: AtomicU64::new(first_hold(rand::random())),
            outbox: Mutex::new(Outbox::new(last.max(by_clock), left)),
            releases: Mutex::default(),
            news: Mutex::default(),
            lost: Mutex::default(),
            wake: Notify::new(),
            stopping: AtomicBool::new(false),
        })
    }

    /// The tenant's account, made at the first ask; `board` shows its balance from then on.
    pub fn account(&self, tenant: &TenantId, terms: Terms, board: &Arc<Board>) -> Arc<SharedAccount> {
        let mut accounts = self.accounts.write();
        if let Some(known) = accounts.get(tenant) {
            *known.terms.lock() = terms;
            return Arc::clone(known);
        }
        let account = Arc::new(SharedAccount {
            tenant: tenant.clone(),
            terms: Mutex::new(terms),
            board: Arc::clone(board),
            busy: AtomicBool::new(false),
            epoch: ArcSwap::default(),
            turn: TurnMutex::default(),
            freed: Notify::new(),
            reader: TurnMutex::default(),
            open: Mutex::default(),
            settlements: Mutex::default(),
        });
        // Until the server has been asked: what this replica's journal says, and never less hope than there is.
        let spent = self.journal.with_book(|book| book.tenants.get(tenant).map(|page| page.standing()));
        let standing = spent.unwrap_or_default();
        let left = terms.budget.map(|budget| {
            let granted = crate::pure::ledger::plus(budget, standing.credits);
            crate::pure::ledger::minus(granted, standing.spent)
        });
        account.board.show(left, false, terms.period.next_start(standing.period_start));
        accounts.insert(tenant.clone(), Arc::clone(&account));
        account
    }

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
                Verb::new("place", &account.tenant, frame)
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
                self.outbox.lock().not_settled(&account.tenant, hold);
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
                    let verb = Verb::new("settle", &account.tenant, frame)
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
                        self.telemetry.shortfall(&account.tenant, settled.shortfall);
                    }
                    self.has_news(&account.tenant);
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
                let mut verb = Verb::new("meter", &account.tenant, Frame { deadline: 0, ..frame })
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
        self.has_news(&account.tenant);
        Ok(())
    }

    /// Frees a hold without a charge. Nothing happens if it is not open.
    pub(super) async fn release(&self, account: &SharedAccount, hold: HoldId) -> Result<(), StoreDown> {
        self.ask(account, |frame| {
            Verb::new("settle", &account.tenant, Frame { deadline: 0, ..frame })
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
            let verb = Verb::new("renew", &account.tenant, Frame { deadline: 0, ..frame });
            let verb = verb.with(self.lease.as_millis().to_string());
            open.iter().fold(verb, |verb, hold| verb.with(hold.0.to_string()))
        })
        .await
        .map(drop)
    }

    /// Looks at the account; leases that are over end.
    pub(super) async fn look(&self, account: &SharedAccount) -> Result<Reply, StoreDown> {
        self.ask(account, |frame| Verb::new("look", &account.tenant, frame)).await
    }

    /// The balance as admin page and tests read it.
    ///
    /// # Errors
    /// The server is gone.
    pub async fn observe(&self, account: &SharedAccount) -> Result<AccountSnapshot, StoreDown> {
        let reply = self.look(account).await?;
        let terms = *account.terms.lock();
        let period_start = terms.period.start_of(clock::wall()).map(|_| reply.period());
        Ok(AccountSnapshot {
            budget: terms.budget,
            remaining: reply.remaining(),
            held: reply.held(),
            spent: reply.spent(),
            period: terms.period,
            period_start,
            resets_at: terms.period.next_start(reply.period()),
            credits: reply.own_money(0),
            open_holds: reply.own(2).parse().unwrap_or(0),
            written_off: reply.own_money(1),
        })
    }

    /// Adds money on top of the budget, once per `idempotency_key` over all replicas.
    ///
    /// # Errors
    /// The server is gone; nothing is known then, and the same key may be sent again.
    pub async fn credit(
        &self,
        account: &SharedAccount,
        amount: Money,
        idempotency_key: &str,
    ) -> Result<CreditOutcome, StoreDown> {
        if amount <= Money::ZERO {
            return Ok(CreditOutcome::Refused);
        }
        let reply = self
            .ask(account, |frame| Verb::new("credit", &account.tenant, frame).with(idempotency_key).with_money(amount))
            .await?;
        self.has_news(&account.tenant);
        match reply.status() {
            "applied" => Ok(CreditOutcome::Applied),
            "repeated" => Ok(CreditOutcome::Repeated),
            "conflict" => Ok(CreditOutcome::Conflict),
            _ => Err(StoreDown::Silent),
        }
    }

    /// Runs a verb on an account, opening the account first where the server does not have it.
    async fn ask(&self, account: &SharedAccount, verb: impl Fn(Frame) -> Verb) -> Result<Reply, StoreDown> {
        for _ in 0..2 {
            let call = verb(account.frame(self.link.deadline()));
            let reply = self
                .link
                .step(Lane::Small, StoreName::RedisLedger, |connection| call.run(&self.script, connection))
                .await?;
            match reply.status() {
                "empty" => {
                    self.open(account).await?;
                }
                "late" => return Err(StoreDown::Silent),
                _ => {
                    account.learn(&reply, &self.telemetry);
                    if *account.epoch.load_full() != reply.epoch() {
                        // Somebody else has opened it anew: what this replica knows must go in too.
                        self.open(account).await?;
                    }
                    return Ok(reply);
                }
            }
        }
        Err(StoreDown::Broken)
    }

    /// Opens an account at the server, or adds what this replica's journal knows and the server has lost.
    pub(super) async fn open(&self, account: &SharedAccount) -> Result<(), StoreDown> {
        let (standing, parts, was_shared) = self.journal.with_book(|book| {
            let page = book.tenants.get(&account.tenant);
            let standing = page.map(|page| page.standing()).unwrap_or_default();
            let parts = page.map(|page| page.parts.clone()).unwrap_or_default();
            (standing, parts, page.is_some_and(|page| page.cursor.is_some()))
        });
        let shared = parts.values().fold(Money::ZERO, |sum, part| sum.checked_add(*part).unwrap_or(sum));
        let mut parts: BTreeMap<String, Money> = parts;
        // What was charged before the ledger was shared is this replica's.
        let own = parts.entry(self.replica.clone()).or_default();
        *own = own.checked_add(crate::pure::ledger::minus(standing.spent, shared)).unwrap_or(*own);
        let mut verb = Verb::new("open", &account.tenant, account.frame(0))
            .with(format!("{:016x}", rand::random::<u64>()))
            .with(standing.period_start.0.to_string())
            .with_money(standing.credits)
            .with_money(standing.written_off)
            .with(parts.len().to_string());
        for (replica, part) in &parts {
            verb = verb.with(replica.clone()).with_money(*part);
        }
        verb = verb.with(standing.credit_keys.len().to_string());
        for (key, amount) in &standing.credit_keys {
            verb = verb.with(key.clone()).with_money(*amount);
        }
        let run = |connection| verb.run(&self.script, connection);
        let reply = self.link.step(Lane::Small, StoreName::RedisLedger, run).await?;
        if reply.status() != "ok" {
            return Err(StoreDown::Broken);
        }
        let (known, raised) = (account.epoch.load_full(), reply.own_money(1));
        account.epoch.store(Arc::new(reply.epoch().to_owned()));
        account.learn(&reply, &self.telemetry);
        let created = reply.own(0) == "1";
        let anew = !known.is_empty() && *known != reply.epoch();
        // A server that never had the account has lost nothing.
        if was_shared && (created || anew || raised > Money::ZERO) {
            let mut lost = self.lost.lock();
            lost.accounts += 1;
            lost.restored = lost.restored.checked_add(raised).unwrap_or(lost.restored);
            self.wake.notify_one();
        }
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
        drop(outbox);
        if now {
            self.wake.notify_one();
        }
        Ok(())
    }

    fn forget(&self, account: &SharedAccount, hold: HoldId) {
        account.open.lock().remove(&hold);
    }

    fn release_later(&self, account: &Arc<SharedAccount>, hold: HoldId) {
        self.releases.lock().push((Arc::clone(account), hold));
        self.wake.notify_one();
    }

    fn has_news(&self, tenant: &TenantId) {
        self.news.lock().insert(tenant.clone());
    }

    /// Whether the ledger answers.
    pub fn is_up(&self) -> bool {
        self.link.is_up()
    }

    /// Records that the server does not have yet.
    pub fn owed(&self) -> usize {
        self.outbox.lock().len()
    }
}

/// What one ask for a hold brought.
enum Placed {
    Held(Money),
    /// What was spent and held then: if it changes, calls do settle.
    Wait(Money, Money),
}

/// Hold ids of a process begin at a random place, so that those of two replicas hardly ever meet; they stay below 2⁵³,
/// which every reader of JSON can hold.
fn first_hold(random: u32) -> u64 {
    (u64::from(random) & 0x3f_ffff) << 31
}
