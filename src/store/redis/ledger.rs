//! Balances that replicas share: holds and settlements of this replica, each one round trip.
//!
//! A request asks here directly instead of the tenant's actor, because an actor must never await between reading and writing its
//! state. What cannot reach the server is owed to it ([`super::outbox`]) and kept in the journal meanwhile.
//!
//! **While the server is gone** nobody with a budget gets a hold; calls under way end as they would, their charges follow;
//! tenants without a budget go on. Nothing is charged twice and nothing is forgotten: see [`super::upkeep`].

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use deadpool_redis::redis::Script;
use parking_lot::{Mutex, RwLock};
use tokio::sync::Notify;

use crate::actors::ledger::Board;
use crate::clock;
use crate::ids::{HoldId, TenantId};
use crate::pure::ledger::{AccountSnapshot, CreditOutcome, Terms, minus, plus};
use crate::pure::money::Money;
use crate::store::journal::Journal;
use crate::store::record::PendingRecord;
use crate::telemetry::Telemetry;
use crate::telemetry::labels::StoreName;

use super::account::SharedAccount;
use super::link::{Lane, Link, StoreDown};
use super::outbox::Outbox;
use super::script::{Frame, Reply, Verb, account_script};

/// How this replica takes part in the ledger.
#[derive(Debug, Clone)]
pub struct Part {
    /// Names this replica in records; the same over restarts.
    pub replica: String,
    /// How long a hold outlives the last sign of its replica.
    pub lease: Duration,
    /// Most records that may wait for the server.
    pub most_owed: usize,
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
    pub(super) script: Script,
    pub(super) accounts: RwLock<HashMap<TenantId, Arc<SharedAccount>>>,
    pub(super) next_hold: AtomicU64,
    pub(super) outbox: Mutex<Outbox>,
    /// Records in the outbox, and how many there may be.
    owed: AtomicUsize,
    most_owed: usize,
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

impl SharedLedger {
    /// A ledger over `link`, with what an earlier process of this replica had left in the journal.
    pub fn new(link: Arc<Link>, journal: Arc<Journal>, telemetry: Arc<Telemetry>, part: Part) -> Arc<SharedLedger> {
        let (last, left) = journal.with_book(|book| {
            let pending: Vec<PendingRecord> =
                book.tenants.under_way().flat_map(|page| page.pending.values().cloned()).collect();
            (book.last_number, pending)
        });
        // Above every number of an earlier process, even those whose records only the server has seen.
        let by_clock = u64::try_from(clock::wall().0).unwrap_or(0).saturating_mul(1000);
        Arc::new(SharedLedger {
            link,
            journal,
            telemetry,
            replica: part.replica,
            lease: part.lease,
            script: account_script(),
            accounts: RwLock::default(),
            next_hold: AtomicU64::new(first_hold(rand::random())),
            owed: AtomicUsize::new(left.len()),
            most_owed: part.most_owed,
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
        let account = Arc::new(SharedAccount::new(tenant.clone(), terms, Arc::clone(board)));
        // Until the server has been asked: what this replica's journal says, and never less hope than there is.
        let spent = self.journal.with_book(|book| book.tenants.get(tenant).map(|page| page.standing()));
        let standing = spent.unwrap_or_default();
        let left = terms.budget.map(|budget| minus(plus(budget, standing.credits), standing.spent));
        let resets_at = terms.period.next_start(standing.period_start);
        let known = AccountSnapshot {
            budget: terms.budget,
            remaining: left,
            held: Money::ZERO,
            spent: standing.spent,
            period: terms.period,
            period_start: resets_at.map(|_| standing.period_start),
            resets_at,
            credits: standing.credits,
            open_holds: 0,
            written_off: standing.written_off,
        };
        account.board.show(known, false, resets_at);
        accounts.insert(tenant.clone(), Arc::clone(&account));
        account
    }

    /// Whether nothing of the account is under way here: no hold, no record that the server is yet to get or to give back. It
    /// stays so as long as no request has the tenant.
    pub fn is_idle(&self, account: &SharedAccount) -> bool {
        let tenant = account.tenant();
        let released = || self.releases.lock().iter().all(|(other, _)| other.tenant() != tenant);
        account.open.lock().is_empty() && !self.outbox.lock().has(tenant) && released()
    }

    /// Forgets the account of a tenant that left; its records of other replicas are read when it is back.
    pub fn forget_account(&self, tenant: &TenantId) {
        self.accounts.write().remove(tenant);
    }

    /// Looks at the account; leases that are over end.
    pub(super) async fn look(&self, account: &SharedAccount) -> Result<Reply, StoreDown> {
        self.ask(account, |frame| Verb::new("look", account.tenant(), frame)).await
    }

    /// The balance as admin page and tests read it.
    ///
    /// # Errors
    /// The server is gone.
    pub async fn observe(&self, account: &SharedAccount) -> Result<AccountSnapshot, StoreDown> {
        let reply = self.look(account).await?;
        Ok(account.snapshot(&reply))
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
            .ask(account, |frame| Verb::new("credit", account.tenant(), frame).with(idempotency_key).with_money(amount))
            .await?;
        self.has_news(account.tenant());
        match reply.status() {
            "applied" => Ok(CreditOutcome::Applied),
            "repeated" => Ok(CreditOutcome::Repeated),
            "conflict" => Ok(CreditOutcome::Conflict),
            _ => Err(StoreDown::Silent),
        }
    }

    /// Runs a verb on an account, opening the account first where the server does not have it.
    pub(super) async fn ask(&self, account: &SharedAccount, verb: impl Fn(Frame) -> Verb) -> Result<Reply, StoreDown> {
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
            let page = book.tenants.get(account.tenant());
            let standing = page.as_ref().map(|page| page.standing()).unwrap_or_default();
            let parts = page.as_ref().map(|page| page.parts.clone()).unwrap_or_default();
            (standing, parts, page.is_some_and(|page| page.cursor.is_some()))
        });
        let shared = parts.values().fold(Money::ZERO, |sum, part| sum.checked_add(*part).unwrap_or(sum));
        let mut parts: BTreeMap<String, Money> = parts;
        // What was charged before the ledger was shared is this replica's.
        let own = parts.entry(self.replica.clone()).or_default();
        *own = own.checked_add(minus(standing.spent, shared)).unwrap_or(*own);
        let mut verb = Verb::new("open", account.tenant(), account.frame(0))
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

    pub(super) fn has_news(&self, tenant: &TenantId) {
        self.news.lock().insert(tenant.clone());
    }

    /// Whether as many records as may be owed to the server are: then nothing is served that would add one.
    pub fn is_full(&self) -> bool {
        self.owed.load(Ordering::Relaxed) >= self.most_owed
    }

    /// Takes note of how many records are owed, while the outbox is held; tells when there is no room any more, and when
    /// there is again.
    pub(super) fn count_owed(&self, outbox: &Outbox) {
        let (now, before) = (outbox.len(), self.is_full());
        self.owed.store(now, Ordering::Relaxed);
        self.telemetry.metrics.store_owed_records(now as u64);
        match (before, now >= self.most_owed) {
            (false, true) => {
                let cause = format!("{now} usage records wait for it, as many as may: requests are refused");
                self.telemetry.events.store_failed(StoreName::RedisLedger, &cause);
            }
            (true, false) => tracing::info!(records = now, "there is room for usage records again"),
            (true, true) | (false, false) => {}
        }
    }
}

/// Hold ids of a process begin at a random place, so that those of two replicas hardly ever meet; they stay below 2⁵³,
/// which every reader of JSON can hold.
fn first_hold(random: u32) -> u64 {
    (u64::from(random) & 0x3f_ffff) << 31
}
