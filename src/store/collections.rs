//! What the journal keeps of collections: which there are, the stages set at run time, and what each model did for them.
//!
//! Only collections that the configuration has named are counted, so that no client can grow the book with a header.
//! Folds facts; never decides which model answers.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::record::{UsageRecord, epoch_ms};
use super::usage::{Entry, Totals, UsageError, UsageFilter, walk};
use crate::ids::ModelName;
use crate::pure::class::TrafficClass;
use crate::pure::ledger::plus;
use crate::pure::migration::Position;
use crate::pure::money::Money;
use crate::pure::time::Wall;
use crate::pure::utc;

/// Something happened to a collection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CollectionRecord {
    /// When.
    #[serde(with = "utc::stamp")]
    pub time: Wall,
    /// Which.
    pub collection: String,
    /// What.
    pub change: CollectionChange,
}

/// What happened to a collection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CollectionChange {
    /// The configuration says this of it, and said something else before, or nothing.
    Configured(Configured),
    /// What was used for it before it was first configured here.
    Before(UsedBy),
    /// Its stage was set at run time.
    Staged(Staged),
}

/// What the configuration says of a collection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Configured {
    /// The old model.
    pub from: ModelName,
    /// The new model.
    pub to: ModelName,
    /// Where the move begins.
    pub position: Position,
}

/// A stage that was set at run time. It belongs to one move: another pair of models begins anew.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Staged {
    /// The old model.
    pub from: ModelName,
    /// The new model.
    pub to: ModelName,
    /// Where the move stands.
    pub position: Position,
    /// When it was set.
    #[serde(rename = "at_ms", with = "epoch_ms")]
    pub at: Wall,
    /// By which right.
    pub by: String,
    /// Counts the changes of this move over all replicas, from 1: the larger one is the later one.
    pub revision: u64,
}

/// What was used, by model and class.
pub type UsedBy = BTreeMap<ModelName, BTreeMap<TrafficClass, Used>>;

/// What one model did for one class of a collection's requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Used {
    /// Requests that were answered.
    pub requests: u64,
    /// Inputs in them.
    pub items: u64,
    /// Inputs of them that the cache had.
    pub cached_items: u64,
    /// Tokens charged.
    pub tokens: u64,
    /// Paid.
    pub cost: Money,
}

impl Used {
    /// The sum of both.
    #[must_use]
    pub fn and(self, other: Used) -> Used {
        Used {
            requests: self.requests.saturating_add(other.requests),
            items: self.items.saturating_add(other.items),
            cached_items: self.cached_items.saturating_add(other.cached_items),
            tokens: self.tokens.saturating_add(other.tokens),
            cost: plus(self.cost, other.cost),
        }
    }

    /// One request: what failed may have cost something, and brought nothing.
    fn of(usage: &UsageRecord) -> Used {
        let answered = usage.status == 200;
        let if_answered = |count: u64| if answered { count } else { 0 };
        Used {
            requests: if_answered(1),
            items: if_answered(usage.items),
            cached_items: if_answered(usage.cached_items),
            tokens: usage.tokens,
            cost: usage.cost.max(Money::ZERO),
        }
    }

    fn of_sum(totals: Totals) -> Used {
        let Totals { requests, items, cached_items, tokens, cost, .. } = totals;
        Used { requests, items, cached_items, tokens, cost }
    }
}

/// What is known of one collection.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct CollectionPage {
    /// When the configuration began to say what it says now.
    #[serde(rename = "since_ms", with = "epoch_ms")]
    pub since: Wall,
    /// What it says.
    pub configured: Configured,
    /// Whether what was used before it was first configured is counted.
    pub complete: bool,
    /// The last stage of each move that was set at run time.
    pub staged: Vec<Staged>,
    /// What each model did.
    pub used: UsedBy,
}

impl CollectionPage {
    /// The stage that was set at run time for the move between these models, if one was.
    pub fn staged(&self, from: &ModelName, to: &ModelName) -> Option<&Staged> {
        self.staged.iter().find(|staged| staged.from == *from && staged.to == *to)
    }

    fn stage(&mut self, staged: &Staged) {
        match self.staged.iter_mut().find(|one| one.from == staged.from && one.to == staged.to) {
            // Replicas hear of changes in any order.
            Some(known) if known.revision >= staged.revision => {}
            Some(known) => known.clone_from(staged),
            None => self.staged.push(staged.clone()),
        }
    }
}

/// All collections by name.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Collections(pub BTreeMap<String, CollectionPage>);

impl Collections {
    /// Adds one fact. What belongs to a collection that was never configured is left out.
    pub fn apply(&mut self, record: &CollectionRecord) {
        let page = self.0.get_mut(&record.collection);
        match (&record.change, page) {
            (CollectionChange::Configured(configured), None) => {
                let page = CollectionPage {
                    since: record.time,
                    configured: configured.clone(),
                    complete: false,
                    staged: Vec::new(),
                    used: UsedBy::new(),
                };
                self.0.insert(record.collection.clone(), page);
            }
            (CollectionChange::Configured(configured), Some(page)) => {
                page.since = record.time;
                page.configured = configured.clone();
            }
            (CollectionChange::Before(used), Some(page)) if !page.complete => {
                page.complete = true;
                for (model, classes) in used {
                    for (class, used) in classes {
                        add(&mut page.used, model, *class, *used);
                    }
                }
            }
            (CollectionChange::Staged(staged), Some(page)) => page.stage(staged),
            (CollectionChange::Before(_), _) | (CollectionChange::Staged(_), None) => {}
        }
    }

    /// Counts a request, if its collection is configured by now.
    pub fn count(&mut self, usage: &UsageRecord) {
        if let Some(page) = usage.collection.as_ref().and_then(|name| self.0.get_mut(name)) {
            add(&mut page.used, &usage.model, usage.class, Used::of(usage));
        }
    }
}

fn add(all: &mut UsedBy, model: &ModelName, class: TrafficClass, more: Used) {
    // Cloning the name only for a first use: this runs for each request.
    if !all.contains_key(model) {
        all.insert(model.clone(), BTreeMap::new());
    }
    if let Some(classes) = all.get_mut(model) {
        let used = classes.entry(class).or_default();
        *used = used.and(more);
    }
}

/// What each of these collections used before it was first configured: all that stands in the journal before the line that
/// says so. What stands after it is counted as it is written, whatever its time: records of other replicas may come late.
///
/// # Errors
/// Those of the store.
pub fn used_before(folder: &Path, names: &[String]) -> Result<BTreeMap<String, UsedBy>, UsageError> {
    let mut all: BTreeMap<String, UsedBy> = names.iter().map(|name| (name.clone(), UsedBy::new())).collect();
    let mut done: BTreeMap<String, UsedBy> = BTreeMap::new();
    walk(folder, &UsageFilter::default(), |json| {
        if let Some(record) = CollectionRecord::from_json(json).transpose()? {
            let first = matches!(record.change, CollectionChange::Configured(_));
            done.extend(first.then(|| all.remove_entry(&record.collection)).flatten());
        } else if !all.is_empty()
            && let Some(entry) = Entry::from_json(json)?
        {
            add_entry(&mut all, &entry);
        }
        Ok(Ok(()))
    })?;
    Ok(done)
}

/// Adds one entry of a report to what a collection has used.
fn add_entry(all: &mut BTreeMap<String, UsedBy>, entry: &Entry) {
    let (collection, model, class, used) = match entry {
        Entry::One(record) => (&record.collection, &record.model, Some(record.class), Used::of(record)),
        Entry::Sum(sum) => {
            let totals = Totals::default().with_entry(entry).map_or_else(Used::default, Used::of_sum);
            (&sum.collection, &sum.model, TrafficClass::parse(&sum.class), totals)
        }
    };
    if let (Some(used_by), Some(class)) = (collection.as_ref().and_then(|name| all.get_mut(name)), class) {
        add(used_by, model, class, used);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pure::migration::Stage;
    use crate::store::journal::Journal;
    use crate::store::record::Record;
    use crate::store::testing::{at, usage, usage_line};
    use crate::store::writer::Limits;

    fn configured(ms: i64, to: &str) -> CollectionRecord {
        let position = Position::new(Stage::Old, 0.0);
        let change = CollectionChange::Configured(Configured { from: "m".into(), to: to.into(), position });
        CollectionRecord { time: at(ms), collection: "handbook".to_owned(), change }
    }

    fn staged(to: &str, stage: Stage, revision: u64) -> CollectionRecord {
        let position = Position::new(stage, 0.5);
        let (from, to, by) = ("m".into(), to.into(), "token".to_owned());
        let change = CollectionChange::Staged(Staged { from, to, position, at: at(5), by, revision });
        CollectionRecord { time: at(5), collection: "handbook".to_owned(), change }
    }

    fn stage_of(records: &[CollectionRecord], to: &str) -> Option<Stage> {
        let mut all = Collections::default();
        records.iter().for_each(|record| all.apply(record));
        all.0["handbook"].staged(&"m".into(), &to.into()).map(|staged| staged.position.stage)
    }

    #[test]
    fn a_stage_belongs_to_its_move_and_the_later_revision_holds() {
        let first = configured(1, "n");
        assert_eq!(stage_of(std::slice::from_ref(&first), "n"), None);
        let two = [first.clone(), staged("n", Stage::New, 2), staged("n", Stage::Canary, 1)];
        assert_eq!(stage_of(&two, "n"), Some(Stage::New));
        let next = [first, staged("n", Stage::New, 2), configured(9, "o"), staged("o", Stage::Backfill, 1)];
        assert_eq!(stage_of(&next, "o"), Some(Stage::Backfill));
        assert_eq!(stage_of(&next, "n"), Some(Stage::New), "a replica whose file is older still needs it");
    }

    #[test]
    fn only_configured_collections_are_counted_and_from_then_on() {
        let mut all = Collections::default();
        let mut record = usage(10, 3);
        all.count(&record);
        assert!(all.0.is_empty());
        all.apply(&configured(10, "n"));
        all.count(&record);
        record.status = 502;
        all.count(&record);
        let used = all.0["handbook"].used[&record.model][&record.class];
        assert_eq!((used.requests, used.items, used.tokens, used.cost.units()), (1, 1, 6, 6));
    }

    #[test]
    fn every_record_counts_once_whether_it_came_before_or_late() {
        let dir = tempfile::tempdir().expect("folder");
        let limits = Limits { segment_bytes: 2_000, ..Limits::default() };
        let (journal, _) = Journal::open(dir.path(), limits, at(0)).expect("opens");
        let names = ["handbook".to_owned()];
        let append = |records: Vec<Record>| journal.append_all(&records).expect("written");
        append((1..20).map(|id| usage_line(id, 3)).collect());
        let mut other = usage(20, 4);
        other.collection = Some("other".to_owned());
        append(vec![Record::Usage(Box::new(other)), Record::Collection(Box::new(configured(30, "n")))]);
        // One of another replica, which is older than the configuration and comes after it.
        append(vec![usage_line(5, 3), Record::Collection(Box::new(configured(40, "o")))]);
        let before = used_before(dir.path(), &names).expect("read").remove("handbook").expect("there");
        let record = CollectionRecord {
            time: at(50),
            collection: "handbook".to_owned(),
            change: CollectionChange::Before(before),
        };
        // Told twice, as after a crash in between.
        append(vec![Record::Collection(Box::new(record.clone())), Record::Collection(Box::new(record))]);
        let page = journal.with_book(|book| book.collections.0["handbook"].clone());
        assert!(page.complete);
        let used = page.used[&ModelName::from("m")][&TrafficClass::InteractiveSearch];
        assert_eq!((used.requests, used.cost.units()), (20, 60));
        assert!(used_before(dir.path(), &["other".to_owned()]).expect("read").is_empty(), "it is not configured");
    }
}
