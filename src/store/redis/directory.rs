//! Tenants, keys and revocations of the admin side, in force on every replica before a change is answered.
//!
//! **Exact without a step for each request.** A replica lets requests in by what it knows, as long as it knows that this is
//! fresh: it has asked for news less than [`FRESH`] ago. Each time that it asks it tells which version it has in force, and
//! its word holds for [`WORD`] by the server's clock, which is longer. Whoever makes a change waits until every replica with
//! a standing word has the change in force. So after the answer each replica either knows of it or has not asked for so long
//! that it will ask before it lets anybody in.
//!
//! **While the server is gone** nobody can make a change of this kind, so what a replica knows is what there is. A replica
//! that alone is cut off goes on by what it knows; the answer to the change names it as silent.
//!
//! Owns the entries' form there and when a replica is fresh. Knows neither what a tenant's settings mean nor how a change
//! is put in force: that is the gateway's, to which it hands entries.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use deadpool_redis::redis::Script;
use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc, oneshot, watch};

use crate::clock;
use crate::ids::{KeyFingerprint, TenantId};
use crate::pure::time::{Mono, Wall};
use crate::store::journal::Journal;
use crate::store::record::TenantChange;
use crate::telemetry::labels::StoreName;

use super::link::{Lane, Link, StoreDown};

const SCRIPT: &str = include_str!("directory.lua");

/// The script's keys, under one hash tag.
const KEYS: [&str; 5] = ["entries", "order", "state", "replicas", "heard"];

/// News are asked for this often.
const POLL_EVERY: Duration = Duration::from_millis(50);

/// For so long after it asked a replica lets requests in without asking again.
const FRESH: Duration = Duration::from_millis(2_000);

/// For so long a replica's word holds; the difference to [`FRESH`] bears what two clocks may differ in that time.
const WORD: Duration = Duration::from_millis(3_000);

/// Whoever makes a change looks this often whether all have it.
const HEARD_EVERY: Duration = Duration::from_millis(10);

/// A replica that needs longer to put a change in force is a fault, not a matter of waiting.
const HEARD_WITHIN: Duration = Duration::from_secs(10);

/// Whoever must wait for news looks this often whether the server is gone.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Whoever waits for the keeper's step waits this much longer than it, to know how it ended.
const GRACE: Duration = Duration::from_millis(25);

/// Entries in one step.
const STEP: usize = 200;

/// One change as all replicas know it.
#[derive(Debug, Clone, PartialEq)]
pub struct Entry {
    /// Whose.
    pub tenant: TenantId,
    /// What.
    pub change: TenantChange,
    /// When, by the server's clock.
    pub at: Wall,
}

/// Entries for the gateway to put in force.
pub struct Handover {
    /// In the order in which they were made.
    pub entries: Vec<Entry>,
    /// Whether they are in force; dropped: they are not.
    pub done: oneshot::Sender<bool>,
}

/// Who has a change in force.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Heard {
    /// Replicas that do.
    pub confirmed: Vec<String>,
    /// Replicas that have not been heard of since; they ask before they let anybody in.
    pub silent: Vec<String>,
}

/// How far what is in force may be relied on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It is what all replicas know.
    Fresh,
    /// The server does not answer: it is what this replica knows, and there is no more to know.
    Alone,
    /// The server answers, and what it said is still being put in force.
    Behind,
}

/// What became of a change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Made {
    /// It is there, as of this version and time.
    Made {
        /// Names the state after it.
        version: u64,
        /// When.
        at: Wall,
    },
    /// There was such an entry already.
    Exists,
}

/// This replica's part.
pub struct SharedDirectory {
    link: Arc<Link>,
    script: Script,
    journal: Arc<Journal>,
    replica: String,
    /// Nanoseconds of the process's clock until which what is in force is fresh.
    fresh_until: AtomicU64,
    refreshed: watch::Sender<()>,
    wake: Notify,
    to_gateway: mpsc::UnboundedSender<Handover>,
    handovers: Mutex<Option<mpsc::UnboundedReceiver<Handover>>>,
}

/// What this process knows of the server's state.
#[derive(Default)]
struct Known {
    epoch: String,
    version: u64,
    arrivals: u64,
}

impl SharedDirectory {
    /// Over `link`, as the replica of this name; `journal` keeps what it knows over restarts.
    pub fn new(link: Arc<Link>, journal: Arc<Journal>, replica: String) -> SharedDirectory {
        let (to_gateway, handovers) = mpsc::unbounded_channel();
        SharedDirectory {
            link,
            script: Script::new(SCRIPT),
            journal,
            replica,
            fresh_until: AtomicU64::new(0),
            refreshed: watch::Sender::new(()),
            wake: Notify::new(),
            to_gateway,
            handovers: Mutex::new(Some(handovers)),
        }
    }

    /// What is to be put in force from now on; `None` for everybody but the first who asks.
    pub fn handovers(&self) -> Option<mpsc::UnboundedReceiver<Handover>> {
        self.handovers.lock().take()
    }

    /// Whether a request that began at `started` may be let in by what is in force.
    pub fn is_fresh(&self, started: Mono) -> bool {
        started.0 < self.fresh_until.load(Ordering::Acquire)
    }

    /// Waits until what is in force is fresh at `time`, or the server is gone, for a step's time at most or for `most`.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn catch_up(&self, time: Mono, most: Option<Duration>) -> Standing {
        let mut refreshed = self.refreshed.subscribe();
        self.wake.notify_one();
        let caught_up = async {
            while !self.is_fresh(time) && !self.link.is_gone() {
                tokio::select! {
                    _ = refreshed.changed() => {}
                    () = tokio::time::sleep(LOOK_EVERY) => {}
                }
            }
        };
        let in_time = tokio::time::timeout(most.unwrap_or(self.link.limit() + GRACE), caught_up).await.is_ok();
        match (in_time && self.is_fresh(time), self.link.is_answering()) {
            (true, _) => Standing::Fresh,
            (false, false) => Standing::Alone,
            (false, true) => Standing::Behind,
        }
    }

    /// Makes a change. It is in force once [`SharedDirectory::heard`] says so.
    ///
    /// # Errors
    /// The server does not answer; then it is made or not.
    pub async fn change(&self, tenant: &TenantId, change: &TenantChange) -> Result<Made, StoreDown> {
        let how = if matches!(change, TenantChange::Created(_)) { "first" } else { "always" };
        let (name, value) = written(tenant, change);
        for _ in 0..2 {
            let words = self.run(&["change", how, &name, &value]).await?;
            match words.first().map(String::as_str) {
                Some("ok") => {
                    self.wake.notify_one();
                    let number = |at: usize| words.get(at).and_then(|word| word.parse().ok());
                    let (version, at) = number(1).zip(number(2)).ok_or(StoreDown::Broken)?;
                    let at = Wall(i64::try_from(at).map_err(|_| StoreDown::Broken)?);
                    return Ok(Made::Made { version, at });
                }
                Some("exists") => return Ok(Made::Exists),
                // It lost what it knew, or never knew anything: the change must not be the first it hears.
                Some("empty") => self.offer().await?,
                _ => break,
            }
        }
        Err(StoreDown::Broken)
    }

    /// Waits until every replica that lets requests in has `version` in force.
    ///
    /// # Errors
    /// The server does not answer, or a replica is there and does not come to it.
    ///
    /// # Cancel safety
    /// Safe; the change goes its way.
    pub async fn heard(&self, version: u64) -> Result<Heard, StoreDown> {
        let mut awaited = BTreeSet::new();
        let until = clock::mono().plus(HEARD_WITHIN);
        let version = version.to_string();
        while clock::mono() < until {
            self.wake.notify_one();
            let words = self.run(&["heard", &version]).await?;
            let [status, yes, no] = &words[..] else { return Err(StoreDown::Broken) };
            if status != "ok" {
                return Err(StoreDown::Broken);
            }
            let names = |list: &str| list.split(' ').filter(|name| !name.is_empty()).map(str::to_owned).collect();
            let (confirmed, missing): (Vec<String>, Vec<String>) = (names(yes), names(no));
            if missing.is_empty() && confirmed.contains(&self.replica) {
                awaited.retain(|name| !confirmed.contains(name));
                return Ok(Heard { confirmed, silent: awaited.into_iter().collect() });
            }
            awaited.extend(missing);
            tokio::time::sleep(HEARD_EVERY).await;
        }
        Err(StoreDown::Silent)
    }

    /// Asks for news and has them put in force. Runs until it is dropped.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn keep(&self) {
        let mut known = Known::default();
        loop {
            if self.link.is_up() {
                // A step that fails is seen by the link; the next pass begins anew.
                let _unfinished = self.pass(&mut known).await;
            }
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(POLL_EVERY) => {}
            }
        }
    }

    /// Takes this replica's word back: it serves nobody any more.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn leave(&self) {
        // Where it fails the word ends by itself.
        let _untold = self.run(&["leave", &self.replica]).await;
    }

    async fn pass(&self, known: &mut Known) -> Result<(), StoreDown> {
        let arrivals = self.link.arrivals();
        loop {
            let asked = clock::mono();
            let word = WORD.as_millis().to_string();
            let (version, most) = (known.version.to_string(), STEP.to_string());
            let words = self.run(&["poll", &self.replica, &known.epoch, &version, &word, &most]).await?;
            match words.first().map(String::as_str) {
                Some("empty") => {
                    self.offer().await?;
                    known.arrivals = arrivals;
                    continue;
                }
                Some("anew") => {
                    let epoch = words.get(1).cloned().unwrap_or_default();
                    *known = Known { epoch, version: 0, arrivals: known.arrivals };
                    continue;
                }
                Some("ok") => {}
                _ => return Err(StoreDown::Broken),
            }
            let reached = words.get(1).and_then(|word| word.parse().ok()).ok_or(StoreDown::Broken)?;
            let complete = words.get(2).is_some_and(|word| word == "1");
            let entries: Vec<Entry> = words.get(3..).unwrap_or_default().chunks_exact(3).filter_map(read).collect();
            let news = !entries.is_empty();
            if news && !self.hand_over(entries).await {
                return Ok(());
            }
            known.version = reached;
            if complete {
                self.fresh_until.store(asked.plus(FRESH).0, Ordering::Release);
                self.refreshed.send_replace(());
            }
            if complete && !news && arrivals != known.arrivals {
                // It has come back: it may have lost something, and this replica may have changed something alone.
                self.offer().await?;
                known.arrivals = arrivals;
                continue;
            }
            if complete && !news {
                return Ok(());
            }
        }
    }

    async fn hand_over(&self, entries: Vec<Entry>) -> bool {
        let (done, is_done) = oneshot::channel();
        self.to_gateway.send(Handover { entries, done }).is_ok() && is_done.await.unwrap_or(false)
    }

    /// Tells the server what this replica's journal knows; it takes what it lacks, and what is later.
    async fn offer(&self) -> Result<(), StoreDown> {
        let known: Vec<Entry> = self.journal.with_book(|book| {
            let mut known = Vec::new();
            for (tenant, page) in book.tenants.with_details() {
                let mut add = |change, at| known.push(Entry { tenant: tenant.clone(), change, at });
                if let Some(settings) = &page.created {
                    // When does not matter: the first stays.
                    add(TenantChange::Created(settings.clone()), Wall(0));
                }
                for (fingerprint, key) in &page.keys {
                    let (fingerprint, sha256) = (fingerprint.clone(), key.sha256.clone());
                    add(TenantChange::KeyAdded { fingerprint, sha256 }, key.created);
                }
                for (fingerprint, revoked) in &page.revoked {
                    add(TenantChange::KeyRevoked { fingerprint: fingerprint.clone() }, revoked.at);
                }
            }
            known
        });
        let epoch = format!("{:016x}", rand::random::<u64>());
        let nothing = [].as_slice();
        let parts = known.chunks(STEP).chain(known.is_empty().then_some(nothing));
        for part in parts {
            let mut words = vec!["offer".to_owned(), epoch.clone(), part.len().to_string()];
            for entry in part {
                let (name, value) = written(&entry.tenant, &entry.change);
                words.extend([name, entry.at.0.max(0).to_string(), value]);
            }
            self.run(&words).await?;
        }
        Ok(())
    }

    async fn run<T: AsRef<str>>(&self, words: &[T]) -> Result<Vec<String>, StoreDown> {
        let words: Vec<&str> = words.iter().map(AsRef::as_ref).collect();
        let keys = KEYS.map(|part| format!("vectorgate:{{directory}}:{part}"));
        self.link
            .step(Lane::Small, StoreName::RedisLedger, async |mut connection| {
                self.script.prepare_invoke().key(&keys[..]).arg(&words).invoke_async(&mut connection).await
            })
            .await
    }
}

/// An entry's name and value.
fn written(tenant: &TenantId, change: &TenantChange) -> (String, String) {
    let key = |fingerprint: &KeyFingerprint| format!("k {fingerprint} {tenant}");
    match change {
        TenantChange::Created(settings) => (format!("t {tenant}"), settings.to_string()),
        TenantChange::KeyAdded { fingerprint, sha256 } => (key(fingerprint), sha256.clone()),
        TenantChange::KeyRevoked { fingerprint } => (key(fingerprint), "-".to_owned()),
    }
}

/// The reverse of [`written`], from name, time and value.
fn read(words: &[String]) -> Option<Entry> {
    let [name, at, value] = words else { return None };
    let at = Wall(at.parse().ok()?);
    let (kind, rest) = name.split_once(' ')?;
    let (tenant, change) = match kind {
        "t" => (rest, TenantChange::Created(serde_json::from_str(value).ok()?)),
        "k" => {
            let (fingerprint, tenant) = rest.split_once(' ')?;
            let fingerprint = KeyFingerprint::from(fingerprint);
            let change = match value.as_str() {
                "-" => TenantChange::KeyRevoked { fingerprint },
                sha256 => TenantChange::KeyAdded { fingerprint, sha256: sha256.to_owned() },
            };
            (tenant, change)
        }
        _ => return None,
    };
    Some(Entry { tenant: TenantId::from(tenant), change, at })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(tenant: &str, change: TenantChange) {
        let entry = Entry { tenant: TenantId::from(tenant), change, at: Wall(17) };
        let (name, value) = written(&entry.tenant, &entry.change);
        assert_eq!(read(&[name, "17".to_owned(), value]), Some(entry));
    }

    #[test]
    fn entries_read_back_as_written() {
        let fingerprint = KeyFingerprint::from("0011223344556677");
        for tenant in ["acme", "a b {c}", "t k -"] {
            check(tenant, TenantChange::Created(serde_json::json!({ "id": tenant, "budget": "1.50" })));
            check(tenant, TenantChange::KeyAdded { fingerprint: fingerprint.clone(), sha256: "ab".repeat(32) });
            check(tenant, TenantChange::KeyRevoked { fingerprint: fingerprint.clone() });
        }
        assert_eq!(read(&["x y".to_owned(), "1".to_owned(), String::new()]), None);
    }
}
