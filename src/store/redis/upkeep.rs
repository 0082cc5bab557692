//! What runs beside requests, on a thread of its own: the connections, records out to the server and back into the journal,
//! leases, and recovery.
//!
//! **Once each.** A record counts in this replica's journal when it comes out of the tenant's stream, never before; the
//! stream's id goes into the same line. So after any crash the journal itself says how far the stream was read, and
//! nothing is read twice. What the server may not have is sent again only after its stream was read to the end.
//!
//! **Lost balances.** When the server comes back, each account is opened again with what this replica's journal knows:
//! for each replica the sum of its charges in this period. The server takes the larger of each, so it does not matter
//! which replica is first, nor how often. Records that had not come back are sent again.

use std::collections::HashSet;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::Duration;

use deadpool_redis::redis::cmd;
use futures_util::StreamExt as _;
use parking_lot::Mutex;

use crate::cache::Cache;
use crate::clock;
use crate::ids::{HoldId, TenantId};
use crate::pure::time::{Mono, Wall};
use crate::store::record::{
    CreditRecord, CursorRecord, PeriodRecord, Record, ReleaseReason, ReleaseRecord, SharedEntry, UsageRecord,
};
use crate::telemetry::labels::StoreName;

use super::account::SharedAccount;
use super::directory::SharedDirectory;
use super::ledger::SharedLedger;
use super::link::{Lane, Link, StoreDown};
use super::script::{money, records_key};
use super::settle::Bill;

/// Records leave and come back this often; sooner when one is owed.
const PASS_EVERY: Duration = Duration::from_millis(40);

/// Numbered records in one step.
const BATCH: usize = 128;

/// Entries read in one step.
const READ: usize = 500;

/// Accounts worked on at once where all of them are.
const AT_ONCE: usize = 32;

/// Busy accounts are looked at this often, so that leases of dead replicas end without anybody asking.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Every stream is read this often whether or not anybody announced news.
const READ_ALL_EVERY: Duration = Duration::from_secs(60);

/// Tenants with news, by the time of the last; one key for all, since it is only a hint.
const NEWS_KEY: &str = "vectorgate:news";

/// News are looked for that much before the last look: announcements of others may have been on their way.
const NEWS_OVERLAP_MS: i64 = 3_000;

/// The thread.
pub struct Upkeep {
    ledger: Option<Arc<SharedLedger>>,
    stop: tokio::sync::watch::Sender<bool>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Upkeep {
    /// Starts it for the connections, for ledger and directory where they are shared, and for entries of the cache that
    /// are.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn start(
        link: Arc<Link>,
        shared: Option<(Arc<SharedLedger>, Arc<SharedDirectory>)>,
        cache: Arc<Cache>,
    ) -> io::Result<Upkeep> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let (stop, mut stopped) = tokio::sync::watch::channel(false);
        let (ledger, directory) = shared.unzip();
        let own = ledger.clone();
        let thread = std::thread::Builder::new().name("redis".to_owned()).spawn(move || {
            runtime.block_on(async {
                let work = async {
                    match own {
                        Some(ledger) => run(&ledger).await,
                        // Without a ledger only the connections are kept; an error means that the gateway is gone.
                        None => drop(stopped.wait_for(|stop| *stop).await),
                    }
                };
                let entries = async {
                    match cache.remote() {
                        Some(remote) => remote.keep(|filter| cache.clear(filter)).await,
                        None => std::future::pending().await,
                    }
                };
                let tenants = async {
                    match &directory {
                        Some(directory) => directory.keep().await,
                        None => std::future::pending().await,
                    }
                };
                tokio::select! {
                    () = link.keep() => {}
                    () = work => {}
                    () = entries => {}
                    () = tenants => {}
                }
                if let Some(directory) = &directory {
                    directory.leave().await;
                }
            });
        })?;
        Ok(Upkeep { ledger, stop, thread: Mutex::new(Some(thread)) })
    }

    /// Sends what can be sent, keeps the rest in the journal, and ends the thread.
    pub fn stop(&self) {
        self.stop.send_replace(true);
        if let Some(ledger) = &self.ledger {
            ledger.stopping.store(true, Ordering::Release);
            ledger.wake.notify_one();
        }
        if let Some(thread) = self.thread.lock().take()
            && thread.join().is_err()
        {
            tracing::error!("the redis thread had panicked");
        }
    }
}

/// When things were last done.
struct Times {
    arrivals: u64,
    renewed: Mono,
    looked: Mono,
    read_all: Mono,
    news_from: i64,
}

async fn run(ledger: &SharedLedger) {
    let start = clock::mono();
    let mut times = Times { arrivals: 0, renewed: start, looked: start, read_all: start, news_from: 0 };
    loop {
        let stopping = ledger.stopping.load(Ordering::Acquire);
        if ledger.link.is_up() {
            // A step that fails is seen by the link; the next pass goes on where this one ended.
            let _unfinished = pass(ledger, &mut times).await;
        }
        if !ledger.link.is_up() || stopping {
            keep_owed(ledger);
        }
        ledger.count_owed(&ledger.outbox.lock());
        if stopping {
            return;
        }
        tokio::select! {
            () = ledger.wake.notified() => {}
            () = tokio::time::sleep(PASS_EVERY) => {}
        }
    }
}

async fn pass(ledger: &SharedLedger, times: &mut Times) -> Result<(), StoreDown> {
    let arrivals = ledger.link.arrivals();
    if arrivals != times.arrivals {
        recover(ledger).await?;
        times.arrivals = arrivals;
    }
    let lost = std::mem::take(&mut *ledger.lost.lock());
    if lost.accounts > 0 {
        let cause = format!(
            "shared balances were lost: {} accounts, {} restored from the records in this replica's journal",
            lost.accounts, lost.restored
        );
        ledger.telemetry.events.store_failed(StoreName::RedisLedger, &cause);
        recover(ledger).await?;
    }
    release(ledger).await?;
    send(ledger).await?;
    read_news(ledger, times).await?;
    let now = clock::mono();
    if now.since(times.renewed) >= ledger.lease / 3 {
        times.renewed = now;
        for account in accounts(ledger) {
            ledger.renew(&account).await?;
        }
    }
    if now.since(times.looked) >= LOOK_EVERY {
        times.looked = now;
        for account in accounts(ledger).into_iter().filter(|account| account.is_busy()) {
            if account.is_look_due(LOOK_EVERY) {
                ledger.look(&account).await?;
            }
            ledger.news.lock().insert(account.tenant().clone());
        }
    }
    Ok(())
}

fn accounts(ledger: &SharedLedger) -> Vec<Arc<SharedAccount>> {
    ledger.accounts.read().values().cloned().collect()
}

fn account(ledger: &SharedLedger, tenant: &TenantId) -> Option<Arc<SharedAccount>> {
    ledger.accounts.read().get(tenant).cloned()
}

/// The server is back, or there for the first time: it gets what it lost, and this replica what it missed.
async fn recover(ledger: &SharedLedger) -> Result<(), StoreDown> {
    let all = accounts(ledger);
    let opened = futures_util::stream::iter(&all).map(|account| ledger.open(account)).buffer_unordered(AT_ONCE);
    opened.fold(Ok(()), async |so_far: Result<(), StoreDown>, one| so_far.and(one)).await?;
    let read = futures_util::stream::iter(&all).map(|account| read(ledger, account)).buffer_unordered(AT_ONCE);
    read.fold(Ok(()), async |so_far: Result<(), StoreDown>, one| so_far.and(one)).await?;
    let mut outbox = ledger.outbox.lock();
    let again: usize = all.iter().map(|account| outbox.send_again(account.tenant())).sum();
    if again > 0 {
        tracing::info!(records = again, "records that had not come back are sent again");
    }
    Ok(())
}

async fn release(ledger: &SharedLedger) -> Result<(), StoreDown> {
    loop {
        let Some((account, hold)) = ledger.releases.lock().last().cloned() else { return Ok(()) };
        ledger.release(&account, hold).await?;
        ledger.releases.lock().retain(|(_, other)| *other != hold);
    }
}

async fn send(ledger: &SharedLedger) -> Result<(), StoreDown> {
    let tenants = ledger.outbox.lock().tenants();
    for tenant in tenants {
        // A tenant that left the configuration is settled when it is back.
        let Some(account) = account(ledger, &tenant) else { continue };
        loop {
            let batch = ledger.outbox.lock().next(&tenant, BATCH);
            let Some(first) = batch.first() else { break };
            match first.hold {
                Some(_) if first.not_before > ledger.link.server_now() => break,
                Some(hold) => {
                    // What had no answer may have been done; if it was, it is in the stream by now.
                    read(ledger, &account).await?;
                    if ledger.outbox.lock().next(&tenant, 1).first().map(|owed| owed.number) != Some(first.number) {
                        continue;
                    }
                    let (charge, usage, number) = (first.charge, &first.usage, first.number);
                    let bill = Bill { hold, others: &[], charge, usage, number, force: true };
                    ledger.settle_now(&account, bill).await?;
                }
                None => ledger.meter(&account, &batch).await?,
            }
            ledger.outbox.lock().sent(&tenant, batch.iter().map(|owed| owed.number));
        }
    }
    Ok(())
}

/// The journal keeps what the server cannot have now.
fn keep_owed(ledger: &SharedLedger) {
    let pending = ledger.outbox.lock().unjournaled();
    if pending.is_empty() {
        return;
    }
    let records: Vec<Record> = pending.into_iter().map(Record::Pending).collect();
    if let Err(error) = ledger.journal.append_all(&records) {
        ledger.telemetry.store_failed("pending", &error);
    }
}

/// Tells the others of this replica's news and reads theirs.
async fn read_news(ledger: &SharedLedger, times: &mut Times) -> Result<(), StoreDown> {
    let own: HashSet<TenantId> = std::mem::take(&mut *ledger.news.lock());
    let now = ledger.link.server_now();
    let from = times.news_from.max(now - READ_ALL_EVERY.as_millis() as i64 * 2) - NEWS_OVERLAP_MS;
    let names: Vec<String> = own.iter().map(|tenant| tenant.as_str().to_owned()).collect();
    let told: Vec<String> = ledger
        .link
        .step(Lane::Small, StoreName::RedisLedger, async |mut connection| {
            if !names.is_empty() {
                let mut add = cmd("ZADD");
                add.arg(NEWS_KEY);
                for name in &names {
                    add.arg(now).arg(name);
                }
                add.query_async::<()>(&mut connection).await?;
            }
            cmd("ZRANGEBYSCORE").arg(NEWS_KEY).arg(from).arg("+inf").query_async(&mut connection).await
        })
        .await?;
    let fresh = clock::mono();
    let mut tenants: HashSet<TenantId> = told.into_iter().map(TenantId::from).collect();
    tenants.extend(own);
    if fresh.since(times.read_all) >= READ_ALL_EVERY {
        times.read_all = fresh;
        tenants.extend(accounts(ledger).iter().map(|account| account.tenant().clone()));
    }
    times.news_from = now;
    for tenant in tenants {
        let Some(account) = account(ledger, &tenant) else { continue };
        read(ledger, &account).await?;
        // Others may hold money there, of which no record tells.
        if account.is_look_due(LOOK_EVERY) {
            ledger.look(&account).await?;
        }
    }
    Ok(())
}

/// Reads a tenant's stream to its end, into the journal.
async fn read(ledger: &SharedLedger, account: &SharedAccount) -> Result<(), StoreDown> {
    let tenant = account.tenant();
    let _alone = account.reading().await;
    let mut foreign = false;
    loop {
        let cursor = ledger.journal.with_book(|book| book.tenants.get(tenant).and_then(|page| page.cursor.clone()));
        let from = cursor.map_or_else(|| "-".to_owned(), |cursor| format!("({cursor}"));
        let key = records_key(tenant);
        let entries: Vec<(String, Vec<String>)> = ledger
            .link
            .step(Lane::Small, StoreName::RedisLedger, async |mut connection| {
                cmd("XRANGE").arg(&key).arg(&from).arg("+").arg("COUNT").arg(READ).query_async(&mut connection).await
            })
            .await?;
        let Some((last, _)) = entries.last() else { break };
        let mut records = Vec::with_capacity(entries.len() + 1);
        for (id, fields) in &entries {
            let entry = Entry { id, fields };
            foreign |= entry.field("o") != ledger.replica;
            match entry.record(tenant) {
                Some(record) => records.push(record),
                None => tracing::error!(%tenant, entry = %id, "a shared record cannot be read and is left out"),
            }
            entry.tell(ledger, tenant);
        }
        records.push(Record::Cursor(CursorRecord { time: clock::wall(), tenant: tenant.clone(), entry: last.clone() }));
        if let Err(error) = ledger.journal.append_all(&records) {
            ledger.telemetry.store_failed("shared records", &error);
            if error.kind() == io::ErrorKind::OutOfMemory {
                // Not accepted: they are read again when the disk has room.
                return Ok(());
            }
        }
        let mut outbox = ledger.outbox.lock();
        for (id, fields) in &entries {
            let entry = Entry { id, fields };
            if entry.field("o") == ledger.replica && entry.field("k") == "usage" {
                outbox.came_back(tenant, entry.field("n").parse().unwrap_or(0), entry.hold());
            }
        }
        if entries.len() < READ {
            break;
        }
    }
    if foreign {
        ledger.look(account).await?;
    }
    Ok(())
}

/// One entry of a tenant's stream: see `account.lua`.
struct Entry<'a> {
    id: &'a str,
    fields: &'a [String],
}

impl Entry<'_> {
    fn field(&self, name: &str) -> &str {
        self.fields.chunks_exact(2).find(|pair| pair[0] == name).map_or("", |pair| pair[1].as_str())
    }

    fn wall(&self, name: &str) -> Wall {
        Wall(self.field(name).parse().unwrap_or(0))
    }

    fn hold(&self) -> Option<HoldId> {
        self.field("h").parse().ok().map(HoldId)
    }

    fn record(&self, tenant: &TenantId) -> Option<Record> {
        let (time, tenant) = (self.wall("t"), tenant.clone());
        Some(match self.field("k") {
            "usage" => {
                let mut usage: UsageRecord = serde_json::from_str(self.field("r")).ok()?;
                usage.cost = money(self.field("c"));
                usage.shortfall = money(self.field("s"));
                usage.period_start = self.wall("p");
                usage.hold = self.hold();
                usage.tenant = tenant;
                usage.shared = Some(SharedEntry {
                    replica: self.field("o").to_owned(),
                    number: self.field("n").parse().unwrap_or(0),
                    entry: self.id.to_owned(),
                });
                Record::Usage(Box::new(usage))
            }
            "credit" => {
                let idempotency_key = self.field("i").to_owned();
                Record::Credit(CreditRecord { time, tenant, amount: money(self.field("a")), idempotency_key })
            }
            "period" => {
                let budget = self.field("b");
                let budget_before = (budget != "-").then(|| money(budget));
                Record::PeriodStart(PeriodRecord { time, tenant, start: self.wall("p"), budget_before })
            }
            "release" => {
                Record::Release(ReleaseRecord { time, hold: self.hold()?, tenant, reason: ReleaseReason::Expired })
            }
            _ => return None,
        })
    }

    /// A hold that nobody ended is listed wherever somebody may look.
    fn tell(&self, ledger: &SharedLedger, tenant: &TenantId) {
        if self.field("k") != "release" {
            return;
        }
        let amount = money(self.field("a"));
        tracing::warn!(%tenant, hold = self.field("h"), replica = self.field("o"), request_id = self.field("q"),
            %amount, "the lease of a hold ended: its replica is gone, what its call cost is not known");
        ledger.telemetry.events.holds_recovered(tenant, 1, amount);
    }
}
