//! What was done by the admin side: each deed becomes a record of the journal and a line of the timeline.

use std::io;
use std::sync::Arc;

use serde_json::Value;

use super::{Change, Gateway};
use crate::clock;
use crate::config::plan::Durability;
use crate::store::record::{AdminRecord, Record};

/// By which right somebody acts: `token`, `loopback`, `signal`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct By(pub Arc<str>);

impl By {
    /// A signal to the process.
    pub fn signal() -> By {
        By(Arc::from("signal"))
    }
}

/// One thing that was done. Never holds a secret.
#[derive(Debug, Clone, PartialEq)]
pub struct Deed {
    /// What, such as `credit`.
    pub action: &'static str,
    /// To what.
    pub subject: String,
    /// How it was; null where nothing was.
    pub before: Value,
    /// How it is; null where nothing is.
    pub after: Value,
}

impl Gateway {
    /// Notes a deed that has no other record. A journal that refuses it is reported, and keeps nobody from acting.
    pub fn note(&self, by: &By, deed: Deed) {
        if self.accept(&[record(by, deed)]).is_err() {
            tracing::error!(by = &*by.0, "a deed of the admin side is not in the journal");
        }
    }

    /// Has the journal take records, and the timeline what was done; awaits nothing.
    ///
    /// # Errors
    /// [`Change::NotKept`]: none of them was accepted.
    pub(super) fn accept(&self, records: &[Record]) -> Result<(), Change> {
        if let Err(error) = self.journal.append_all(records) {
            self.telemetry.store_failed("admin", &error);
            // Any other refusal of the disk leaves them accepted, to be written later.
            if error.kind() == io::ErrorKind::OutOfMemory {
                return Err(Change::NotKept);
            }
        }
        for record in records {
            if let Record::Admin(deed) = record {
                self.telemetry.events.admin_action(&deed.who, &deed.action, &deed.subject);
            }
        }
        Ok(())
    }

    /// Waits until what was accepted so far is kept as `store.durability` promises.
    ///
    /// # Errors
    /// [`Change::Doubtful`].
    pub(super) async fn confirmed(&self) -> Result<(), Change> {
        if self.running.load().plan.store.durability == Durability::Process {
            return Ok(());
        }
        self.journal.append_all_durable(&[]).await.map_err(|error| {
            self.telemetry.store_failed("admin", &error);
            Change::Doubtful
        })
    }
}

/// A deed as the journal keeps it.
pub(super) fn record(by: &By, deed: Deed) -> Record {
    Record::Admin(AdminRecord {
        time: clock::wall(),
        who: by.0.to_string(),
        action: deed.action.to_owned(),
        subject: deed.subject,
        before: deed.before,
        after: deed.after,
    })
}
