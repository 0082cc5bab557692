//! Stages of collections while the gateway runs: set by the admin side, kept in the journal, shared with other replicas.
//!
//! **Who wins.** A stage that was set here or on another replica holds over the file, after restarts and reloads too, for
//! as long as the collection moves between the same two models. What the file says is where a move begins.

use std::sync::{Arc, Weak};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::task::spawn_blocking;

use super::audit::record;
use super::{By, Change, Deed, Gateway};
use crate::clock;
use crate::config::plan::Position;
use crate::runtime::Running;
use crate::runtime::collections::CollectionRuntime;
use crate::store::collections::{CollectionChange, CollectionPage, CollectionRecord, Staged, used_before};
use crate::store::record::Record;
use crate::store::redis::link::StoreDown;
use crate::store::redis::stages::SharedStages;

/// Stages that other replicas set are looked for this often.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Before they have been read once, this often.
const LOOK_FIRST: Duration = Duration::from_millis(50);

impl Gateway {
    /// The collection of that name.
    ///
    /// # Errors
    /// [`Change::Unknown`].
    pub fn collection(&self, name: &str) -> Result<Arc<CollectionRuntime>, Change> {
        let unknown = || Change::Unknown(format!("there is no collection {name:?}"));
        self.running.load().collections.get(name).cloned().ok_or_else(unknown)
    }

    /// Whether stages that other replicas set are about to be read. Without its server a replica does not wait for them.
    pub fn awaits_stages(&self) -> bool {
        let shared = self.stages.as_ref().is_some_and(SharedStages::is_there);
        shared && !self.parts.heard().yet() && !self.running.load().collections.is_empty()
    }

    /// What the journal knows of a collection.
    pub fn collection_page(&self, name: &str) -> Option<CollectionPage> {
        self.journal.with_book(|book| book.collections.0.get(name).cloned())
    }

    /// Puts a collection's move at `position`, in force for the next request here, and on other replicas a moment later.
    /// Requests that began before end under the stage that they began with. The same again changes nothing.
    ///
    /// # Errors
    /// [`Change::Unknown`]; [`Change::NotKept`] or [`Change::Unheard`] where the store does not answer.
    ///
    /// # Cancel safety
    /// Once the journal has it, it is in force too. A caller that leaves while replicas are told leaves the stage unset
    /// or set everywhere.
    pub async fn set_stage(&self, by: &By, name: &str, position: Position) -> Result<Arc<CollectionRuntime>, Change> {
        let _changing = self.changing.lock().await;
        let before = self.collection(name)?;
        if before.revision > 0 && before.position == position {
            return Ok(before);
        }
        let mut staged = Staged {
            from: before.plan.from.clone(),
            to: before.plan.to.clone(),
            position,
            at: clock::wall(),
            by: by.0.to_string(),
            revision: before.revision,
        };
        staged.revision = match &self.stages {
            None => before.revision + 1,
            Some(shared) => shared.set(name, &staged).await.map_err(|down| match down {
                StoreDown::Gone => Change::NotKept,
                StoreDown::Silent | StoreDown::Broken => Change::Unheard,
            })?,
        };
        let deed = Deed {
            action: "set_stage",
            subject: name.to_owned(),
            before: shown(before.position),
            after: shown(position),
        };
        // What the shared store has will be in force here too, once the disk has room.
        let refused = |change| if self.stages.is_some() { Change::Unheard } else { change };
        self.accept(&[staged_record(name, staged), record(by, deed)]).map_err(refused)?;
        self.renew_stages();
        self.confirmed().await?;
        self.collection(name)
    }

    /// Puts the journal's word on stages in force, and tells of those that changed.
    fn renew_stages(&self) {
        let before = self.running.load_full();
        let after = Arc::new(self.parts.with_stages(&before));
        self.running.store(Arc::clone(&after));
        self.tell_stages(&before, &after);
    }

    /// Tells of the stages that differ, and shows all of them.
    pub(super) fn tell_stages(&self, before: &Running, after: &Running) {
        for (name, collection) in after.collections.iter() {
            let earlier = before.collections.get(name).filter(|one| one.plan.to == collection.plan.to);
            if let Some(earlier) = earlier.filter(|one| one.position != collection.position) {
                let (from, to) = (earlier.position.to_string(), collection.position.to_string());
                self.telemetry.events.stage_changed(name, &from, &to);
            }
            self.telemetry.metrics.collection_stage(name, collection.position);
        }
    }

    /// Takes over what other replicas set, and gives the server what it lost.
    async fn exchange_stages(&self, shared: &SharedStages) -> Result<(), StoreDown> {
        let theirs = shared.all().await?;
        let known = |name: &str, of: &Staged| {
            self.journal.with_book(|book| {
                let page = book.collections.0.get(name)?;
                page.staged(&of.from, &of.to).map(|staged| staged.revision)
            })
        };
        let is_ours = |name: &str| self.journal.with_book(|book| book.collections.0.contains_key(name));
        let news: Vec<Record> = theirs
            .iter()
            .filter(|(name, staged)| is_ours(name) && known(name, staged).unwrap_or(0) < staged.revision)
            .map(|(name, staged)| staged_record(name, staged.clone()))
            .collect();
        if !news.is_empty() {
            let _changing = self.changing.lock().await;
            // A disk that is full keeps a replica at the stage before; it is tried again with the next look.
            if self.accept(&news).is_ok() {
                self.renew_stages();
            }
        }
        let lost = self.journal.with_book(|book| {
            let all = book.collections.0.iter().flat_map(|(name, page)| page.staged.iter().map(move |one| (name, one)));
            let there = |name: &str, own: &Staged| {
                theirs.iter().any(|(other, staged)| {
                    other == name && staged.from == own.from && staged.to == own.to && staged.revision >= own.revision
                })
            };
            all.filter(|(name, own)| !there(name, own))
                .map(|(name, own)| (name.clone(), own.clone()))
                .collect::<Vec<_>>()
        });
        for (name, staged) in lost {
            shared.offer(&name, &staged).await?;
        }
        self.parts.heard().now();
        Ok(())
    }
}

fn staged_record(name: &str, staged: Staged) -> Record {
    let change = CollectionChange::Staged(staged);
    Record::Collection(Box::new(CollectionRecord { time: clock::wall(), collection: name.to_owned(), change }))
}

/// A position as the admin side writes it.
pub fn shown(position: Position) -> Value {
    json!({ "stage": position.stage, "canary": position.canary })
}

/// Keeps the stages of this replica and those of the others together, as long as the gateway lives.
pub(super) async fn share(gateway: Weak<Gateway>) {
    while let Some(gateway) = gateway.upgrade() {
        let Some(shared) = &gateway.stages else { return };
        // A step that fails is seen by the link; the next look goes on where this one ended.
        let failed = shared.is_there() && gateway.exchange_stages(shared).await.is_err();
        let pause = if failed || gateway.parts.heard().yet() { LOOK_EVERY } else { LOOK_FIRST };
        drop(gateway);
        tokio::time::sleep(pause).await;
    }
}

/// Counts what collections used before they were configured, out of all records, once each; as long as the gateway lives.
pub(super) async fn look_back(gateway: Weak<Gateway>) {
    // What cannot be counted is tried again at the next start.
    let mut tried: Vec<String> = Vec::new();
    while let Some(gateway) = gateway.upgrade() {
        let todo: Vec<String> = gateway.journal.with_book(|book| {
            let open = book.collections.0.iter().filter(|(name, page)| !page.complete && !tried.contains(name));
            open.map(|(name, _)| name.clone()).collect()
        });
        if !todo.is_empty() {
            tried.extend(todo.iter().cloned());
            count_before(&gateway, todo).await;
        }
        drop(gateway);
        tokio::time::sleep(LOOK_EVERY).await;
    }
}

async fn count_before(gateway: &Gateway, names: Vec<String>) {
    let folder = gateway.running.load().plan.store.path.clone();
    match spawn_blocking(move || used_before(&folder, &names)).await {
        Ok(Ok(all)) => {
            let record = |(collection, used)| {
                let change = CollectionChange::Before(used);
                Record::Collection(Box::new(CollectionRecord { time: clock::wall(), collection, change }))
            };
            let records: Vec<Record> = all.into_iter().map(record).collect();
            if let Err(error) = gateway.journal.append_all(&records) {
                gateway.telemetry.store_failed("collections", &error);
            }
        }
        Ok(Err(error)) => tracing::warn!(%error, "what collections used before cannot be counted"),
        Err(panic) => tracing::warn!(%panic, "what collections used before cannot be counted"),
    }
}
