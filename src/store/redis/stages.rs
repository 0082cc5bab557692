//! Stages of collections that replicas share. Owns the key and how a stage is written there; when it is read and what
//! then happens is the gateway's.

use std::sync::Arc;

use deadpool_redis::redis::{Script, cmd};

use crate::store::collections::Staged;
use crate::telemetry::labels::StoreName;

use super::link::{Lane, Link, StoreDown};

const SCRIPT: &str = include_str!("stages.lua");

/// One hash of all moves: there are few, and all of them are read together.
const KEY: &str = "vectorgate:collections";

/// The process's part in shared stages.
pub struct SharedStages {
    link: Arc<Link>,
    script: Script,
}

impl SharedStages {
    /// Over `link`.
    pub fn new(link: Arc<Link>) -> SharedStages {
        SharedStages { link, script: Script::new(SCRIPT) }
    }

    /// Whether the server counts as there.
    pub fn is_there(&self) -> bool {
        self.link.is_up()
    }

    /// Makes a stage the latest of its move; its revision. `staged.revision` is the largest that is known here.
    ///
    /// # Errors
    /// The server did not answer; unless it counts as gone, the stage may have been set.
    pub async fn set(&self, collection: &str, staged: &Staged) -> Result<u64, StoreDown> {
        self.tell(collection, staged, "set").await
    }

    /// Gives the server a stage that it may have lost; nothing happens if it knows that one or a later one.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn offer(&self, collection: &str, staged: &Staged) -> Result<u64, StoreDown> {
        self.tell(collection, staged, "offer").await
    }

    async fn tell(&self, collection: &str, staged: &Staged, verb: &str) -> Result<u64, StoreDown> {
        let body = serde_json::to_string(staged).map_err(|_| StoreDown::Broken)?;
        let (field, revision) = (field(collection, staged)?, staged.revision.to_string());
        let answer: String = self
            .link
            .step(Lane::Small, StoreName::RedisLedger, async |mut connection| {
                let mut call = self.script.prepare_invoke();
                call.key(KEY).arg(&field).arg(&revision).arg(&body).arg(verb);
                call.invoke_async(&mut connection).await
            })
            .await?;
        answer.parse().map_err(|_| StoreDown::Broken)
    }

    /// Every stage that was set, with its collection. What cannot be read is left out.
    ///
    /// # Errors
    /// The server did not answer.
    pub async fn all(&self) -> Result<Vec<(String, Staged)>, StoreDown> {
        let held: Vec<(String, String)> = self
            .link
            .step(Lane::Small, StoreName::RedisLedger, async |mut connection| {
                cmd("HGETALL").arg(KEY).query_async(&mut connection).await
            })
            .await?;
        Ok(held.iter().filter_map(|(field, value)| read(field, value)).collect())
    }
}

/// Names a move: the collection and its two models, as JSON, so that no name can run into the next.
fn field(collection: &str, staged: &Staged) -> Result<String, StoreDown> {
    let parts = [collection, staged.from.as_str(), staged.to.as_str()];
    serde_json::to_string(&parts).map_err(|_| StoreDown::Broken)
}

fn read(field: &str, value: &str) -> Option<(String, Staged)> {
    let [collection, from, to]: [String; 3] = serde_json::from_str(field).ok()?;
    let (revision, body) = value.split_once(' ')?;
    let mut staged: Staged = serde_json::from_str(body).ok()?;
    staged.revision = revision.parse().ok()?;
    let own = staged.from.as_str() == from && staged.to.as_str() == to;
    own.then_some((collection, staged))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pure::migration::{Position, Stage};
    use crate::pure::time::Wall;

    #[test]
    fn a_stage_reads_back_with_the_revision_beside_it() {
        let position = Position::new(Stage::Canary, 0.05);
        let (from, to, by) = ("a\"b".into(), "c".into(), "token".to_owned());
        let staged = Staged { from, to, position, at: Wall(7), by, revision: 1 };
        let body = serde_json::to_string(&staged).expect("json");
        let field = field("hand,book", &staged).expect("json");
        let expected = Staged { revision: 9, ..staged };
        assert_eq!(read(&field, &format!("9 {body}")), Some(("hand,book".to_owned(), expected)));
        assert_eq!(read("[\"hand,book\",\"x\",\"c\"]", &format!("9 {body}")), None, "of another move");
        assert_eq!(read(&field, &body), None);
    }
}
