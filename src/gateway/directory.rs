//! Tenants and keys of the admin side where replicas share them: puts in force here what was changed anywhere, and
//! answers a change only once all replicas have it. How replicas agree is [`crate::store::redis::directory`]'s.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::task::spawn_blocking;

use super::{Change, Gateway};
use crate::clock;
use crate::config::plan::{Tenant, TenantSource};
use crate::config::{self, Environment, GivenTenant, Source};
use crate::ids::TenantId;
use crate::pure::time::{Mono, Wall};
use crate::runtime::TenantRuntime;
use crate::store::book::Book;
use crate::store::record::{Record, TenantChange, TenantRecord};
use crate::store::redis::directory::{Entry, Handover, Heard, Made, SharedDirectory, Standing};
use crate::telemetry::labels::LabelPlan;

/// A start waits no longer than this for what the other replicas know.
const START_WITHIN: Duration = Duration::from_secs(10);

/// Puts in force what is handed over, as long as the gateway lives.
pub(super) async fn listen(gateway: Weak<Gateway>, mut handovers: mpsc::UnboundedReceiver<Handover>) {
    while let Some(handover) = handovers.recv().await {
        let Some(gateway) = gateway.upgrade() else { return };
        let done = gateway.take_over(handover.entries).await;
        // The process is stopping if nobody listens.
        let _nobody = handover.done.send(done);
    }
}

/// Whether the journal does not say what `entry` says.
fn is_news(book: &Book, entry: &Entry) -> bool {
    let Some(page) = book.tenants.get(&entry.tenant) else { return true };
    match &entry.change {
        TenantChange::Created(settings) => page.created.as_ref() != Some(settings),
        TenantChange::KeyAdded { fingerprint, .. } => {
            !page.keys.contains_key(fingerprint)
                && page.revoked.get(fingerprint).is_none_or(|revoked| revoked.at < entry.at)
        }
        TenantChange::KeyRevoked { fingerprint } => !page.revoked.contains_key(fingerprint),
    }
}

impl Gateway {
    /// What replicas share of tenants and keys, where they do.
    pub(super) fn directory(&self) -> Option<&Arc<SharedDirectory>> {
        self.redis.as_ref()?.directory.as_ref()
    }

    /// Whether a request that began at `started` may be let in by the keys and tenants in force.
    pub fn is_fresh(&self, started: Mono) -> bool {
        self.directory().is_none_or(|directory| directory.is_fresh(started))
    }

    /// Waits until it may, for a step's time at most; whether it may.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn catch_up(&self, started: Mono) -> bool {
        match self.directory().filter(|directory| !directory.is_fresh(started)) {
            Some(directory) => directory.catch_up(started, None).await != Standing::Behind,
            None => true,
        }
    }

    /// Before anybody is let in: puts in force what the other replicas know. A start must not hang on it, so it ends after
    /// a while in any case; from then on requests wait, each for itself.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn catch_up_at_start(&self) {
        if let Some(directory) = self.directory()
            && directory.catch_up(clock::mono(), Some(START_WITHIN)).await == Standing::Behind
        {
            tracing::warn!("tenants and keys of the admin side are still being put in force");
        }
    }

    /// The same for the admin side, which looks at things as they are now.
    pub(super) async fn catch_up_now(&self) -> Result<(), Change> {
        if self.catch_up(clock::mono()).await { Ok(()) } else { Err(Change::NotShared) }
    }

    /// Makes a change on all replicas; when, and who has it in force. `None`: there was such an entry already.
    pub(super) async fn change_everywhere(
        &self,
        directory: &SharedDirectory,
        tenant: &TenantId,
        change: &TenantChange,
    ) -> Result<Option<(Wall, Heard)>, Change> {
        let made = directory.change(tenant, change).await.map_err(|_down| Change::NotShared)?;
        let Made::Made { version, at } = made else { return Ok(None) };
        let heard = directory.heard(version).await.map_err(|_down| Change::NotHeard)?;
        Ok(Some((at, heard)))
    }

    /// Puts entries in force; whether they are.
    async fn take_over(&self, entries: Vec<Entry>) -> bool {
        let text = self.changing.lock().await;
        let news: Vec<Entry> =
            self.journal.with_book(|book| entries.into_iter().filter(|entry| is_news(book, entry)).collect());
        if news.is_empty() {
            return true;
        }
        let record = |entry: &Entry| {
            let (time, tenant, change) = (entry.at, entry.tenant.clone(), entry.change.clone());
            Record::TenantChange(TenantRecord { time, tenant, change })
        };
        let records: Vec<Record> = news.iter().map(record).collect();
        if self.accept(&records).is_err() || self.confirmed().await.is_err() {
            // Asked for again, as everything of which the server is not told that it is in force.
            return false;
        }
        let given: Vec<GivenTenant> = news
            .into_iter()
            .filter_map(|entry| match entry.change {
                TenantChange::Created(settings) => Some(GivenTenant { id: entry.tenant, settings }),
                TenantChange::KeyAdded { .. } | TenantChange::KeyRevoked { .. } => None,
            })
            .collect();
        let made = if given.is_empty() { Vec::new() } else { self.check_given(&text, given).await };
        let before = self.running.load_full();
        let mut tenants: HashMap<TenantId, Arc<TenantRuntime>> = before.tenants.clone();
        for plan in &made {
            // One that the file names is the file's.
            if tenants.get(&plan.id).is_none_or(|known| known.plan.source == TenantSource::Admin) {
                tenants.insert(plan.id.clone(), self.parts.new_tenant(plan));
            }
        }
        if !made.is_empty() {
            self.relabel(&tenants);
        }
        self.running.store(Arc::new(self.parts.with_tenants(&before, tenants)));
        true
    }

    /// Tenants by the rules of the configuration in force; those that it does not allow are left out and listed.
    async fn check_given(&self, text: &Source, given: Vec<GivenTenant>) -> Vec<Arc<Tenant>> {
        let text = text.clone();
        let checking = spawn_blocking(move || config::load_without_misfits(&text, &Environment::of_process(), given));
        match checking.await {
            Ok(Ok((plan, misfits))) => {
                for problem in &misfits {
                    tracing::error!(%problem, "a tenant made on another replica is left out");
                }
                self.status.lock().left_out.extend(misfits);
                plan.tenants.into_iter().filter(|tenant| tenant.source == TenantSource::Admin).collect()
            }
            Ok(Err(problems)) => {
                for problem in &problems.0 {
                    tracing::error!(%problem, "tenants made on another replica are left out");
                }
                self.status.lock().left_out.extend(problems.0);
                Vec::new()
            }
            Err(panic) => {
                tracing::error!(%panic, "tenants made on another replica could not be checked");
                Vec::new()
            }
        }
    }

    /// Gives metrics the names of `tenants`.
    pub(super) fn relabel(&self, tenants: &HashMap<TenantId, Arc<TenantRuntime>>) {
        let mut labels = LabelPlan::from_plan(&self.running.load().plan);
        labels.tenants = tenants.keys().cloned().collect();
        labels.tenants.sort_unstable();
        self.telemetry.metrics.relabel(&labels);
    }
}
