//! What replicas share through Redis: connections that never make a request wait long, and the ledger.
//!
//! - [`health`]: when the server counts as gone
//! - [`link`]: connections, a time limit for every step, and their upkeep
//! - [`quota`]: limits per minute
//! - [`directory`]: tenants and keys made on the admin side
//! - [`stages`]: how far collections have moved
//! - [`script`]: the one script behind every change of a balance, and what it answers
//! - [`ledger`]: accounts at the server, [`hold`] and [`settle`] what requests do to them
//! - [`upkeep`]: what runs beside requests: records out to the stream and back into the journal, leases, recovery
//!
//! Invariant: nothing here decides about money; the rules are in `account.lua`, the shared form of `pure::ledger`.

pub mod account;
pub mod directory;
pub mod health;
pub mod hold;
pub mod ledger;
pub mod link;
pub mod quota;
pub mod script;
pub mod settle;
pub mod stages;
pub mod upkeep;

mod outbox;

use std::io;
use std::path::Path;
use std::sync::Arc;

use parking_lot::Mutex;

use crate::cache::Cache;
use crate::config::plan::{LedgerStore, Plan};
use crate::store::journal::Journal;
use crate::store::segment::StoreError;
use crate::telemetry::Telemetry;

use directory::SharedDirectory;
use ledger::{Part, SharedLedger};
use link::Link;
use quota::SharedQuota;
use upkeep::Upkeep;

/// File in the store's folder that keeps this replica's name over restarts.
const REPLICA_FILE: &str = "replica";

/// The process's part in what replicas share.
pub struct Redis {
    /// The connections.
    pub link: Arc<Link>,
    /// Balances, where they are shared.
    pub ledger: Option<Arc<SharedLedger>>,
    /// Tenants and keys of the admin side, where balances are shared.
    pub directory: Option<Arc<SharedDirectory>>,
    /// Limits, where they are shared.
    pub quota: Option<Arc<SharedQuota>>,
    upkeep: Mutex<Option<Upkeep>>,
}

impl Redis {
    /// Prepares what the configuration shares; nothing is connected before [`Redis::start`]. `None`: it names no server.
    ///
    /// # Errors
    /// The URL cannot be used, or the replica's name can be neither read nor kept.
    pub fn prepare(
        plan: &Plan,
        journal: &Arc<Journal>,
        telemetry: &Arc<Telemetry>,
    ) -> Result<Option<Redis>, StoreError> {
        let Some(url) = &plan.store.redis_url else { return Ok(None) };
        let (tls, limit) = (&plan.store.redis_tls, plan.store.redis_timeout);
        let link = Link::new(url.expose(), tls, limit, Arc::clone(telemetry)).map_err(|error| {
            let what = error.detail().unwrap_or("neither the URL nor its certificates can be used").to_owned();
            StoreError::Io { path: "store.redis_url".into(), source: io::Error::other(what) }
        })?;
        let link = Arc::new(link);
        let (ledger, directory) = match plan.store.ledger {
            LedgerStore::Embedded => (None, None),
            LedgerStore::Redis => {
                let replica = replica_name(&plan.store.path)?;
                let directory = SharedDirectory::new(Arc::clone(&link), Arc::clone(journal), replica.clone());
                let (journal, telemetry) = (Arc::clone(journal), Arc::clone(telemetry));
                let part = Part { replica, lease: plan.store.redis_lease, most_owed: plan.store.redis_owed_records };
                let ledger = SharedLedger::new(Arc::clone(&link), journal, telemetry, part);
                (Some(ledger), Some(Arc::new(directory)))
            }
        };
        let quota = plan.quota.shared.then(|| Arc::new(SharedQuota::new(Arc::clone(&link))));
        Ok(Some(Redis { link, ledger, directory, quota, upkeep: Mutex::default() }))
    }

    /// Connects, and keeps doing what must be done beside requests.
    ///
    /// # Errors
    /// When no thread can be made.
    pub fn start(&self, cache: &Arc<Cache>) -> Result<(), StoreError> {
        let shared = self.ledger.clone().zip(self.directory.clone());
        let upkeep = Upkeep::start(Arc::clone(&self.link), shared, Arc::clone(cache))
            .map_err(|source| StoreError::Io { path: "redis".into(), source })?;
        *self.upkeep.lock() = Some(upkeep);
        Ok(())
    }

    /// Sends what can be sent, keeps the rest in the journal, and disconnects. Blocks for a few steps' time.
    pub fn stop(&self) {
        if let Some(upkeep) = self.upkeep.lock().take() {
            upkeep.stop();
        }
    }
}

/// This replica's name: made once, then read. A folder that is lost takes the name with it, and another name is made.
fn replica_name(folder: &Path) -> Result<String, StoreError> {
    let path = folder.join(REPLICA_FILE);
    let failed = |source| StoreError::Io { path: path.clone(), source };
    match std::fs::read_to_string(&path) {
        Ok(name) if !name.trim().is_empty() => Ok(name.trim().to_owned()),
        Ok(_) => make_name(&path).map_err(failed),
        Err(error) if error.kind() == io::ErrorKind::NotFound => make_name(&path).map_err(failed),
        Err(error) => Err(failed(error)),
    }
}

fn make_name(path: &Path) -> io::Result<String> {
    let name = format!("{:016x}", rand::random::<u64>());
    std::fs::write(path, format!("{name}\n"))?;
    Ok(name)
}
