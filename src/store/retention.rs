//! Old records as sums: a segment whose records are older than they need to be kept one by one is rewritten as one record
//! a day and group. Reports over whole days say the same before and after, to the last digit.
//!
//! A segment is replaced by renaming its finished and synced successor over it, so that there is one of the two at every
//! instant, and a reader that has the old one open reads it to its end. The newest segment, to which the gateway writes
//! and from which it starts, is never touched.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use super::disk::Folder;
use super::record::{Record, RolledUpRecord, RollupRecord, UsageRecord};
use super::segment::{StoreError, encode_line, scan};
use super::usage::Totals;
use crate::pure::time::Wall;
use crate::pure::utc::{self, DAY_MS};

/// What a pass did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Pass {
    /// Segments that were rewritten.
    pub segments: u64,
    /// Records in them.
    pub records: u64,
    /// Sums that stand for them.
    pub sums: u64,
}

/// Rewrites every segment in `folder` all of whose records were written before the day of `now` less `days` days.
///
/// # Errors
/// Those of the store. Segments that were rewritten by then stay so; the others are as they were.
pub fn roll_up(folder: &Path, days: u32, now: Wall) -> Result<Pass, StoreError> {
    let cutoff = Wall(utc::start_of_day(now).0.saturating_sub(i64::from(days).saturating_mul(DAY_MS)));
    let journal = Folder::new(folder);
    let segments = journal.segments().map_err(StoreError::io(folder))?;
    let mut pass = Pass::default();
    for pair in segments.windows(2) {
        let &[segment, next] = pair else { continue };
        let begins = |segment| journal.first(segment).map_err(StoreError::io(&journal.path(segment)));
        // What the next one begins with is when this one ended.
        if begins(next)?.is_none_or(|next| next.time >= cutoff) {
            break;
        }
        if begins(segment)?.is_some_and(|first| !first.rolled_up) {
            roll_up_segment(&journal, folder, segment, &mut pass)?;
        }
    }
    Ok(pass)
}

fn roll_up_segment(journal: &Folder, folder: &Path, segment: u64, pass: &mut Pass) -> Result<(), StoreError> {
    let path = journal.path(segment);
    let Some((lines, done)) = rolled_up(journal, segment)? else {
        tracing::warn!(segment = %path.display(), "a sum would be too large to be exact, its records are kept");
        return Ok(());
    };
    let unfinished = path.with_extension("rolling");
    let replace = || -> io::Result<()> {
        let mut file = File::create(&unfinished)?;
        file.write_all(&lines)?;
        file.sync_all()?;
        fs::rename(&unfinished, &path)?;
        File::open(folder)?.sync_all()
    };
    replace().map_err(StoreError::io(&path))?;
    pass.segments += 1;
    pass.records += done.records;
    pass.sums += done.sums;
    Ok(())
}

/// The lines of a segment's successor; `None` if a sum cannot be exact.
fn rolled_up(journal: &Folder, segment: u64) -> Result<Option<(Vec<u8>, Pass)>, StoreError> {
    let path = journal.path(segment);
    let reader = journal.read(segment).map_err(StoreError::io(&path))?;
    let mut sums: BTreeMap<Group, Totals> = BTreeMap::new();
    let mut kept: Vec<Record> = Vec::new();
    let mut begins = None;
    let mut done = Pass { segments: 1, ..Pass::default() };
    let mut exact = true;
    scan(reader, &path, |json, line| {
        let record = Record::from_json(json).map_err(|error| StoreError::Unreadable {
            path: path.clone(),
            line,
            reason: error.to_string(),
        })?;
        begins.get_or_insert(record.time());
        match record {
            Record::Usage(usage) => {
                done.records += 1;
                let sum = sums.entry(Group::of(&usage)).or_default();
                match sum.with(&usage) {
                    Some(more) => *sum = more,
                    None => exact = false,
                }
            }
            // All that these said is in the snapshots of later segments.
            Record::Snapshot(_) | Record::Hold(_) | Record::Release(_) | Record::Cursor(_) | Record::Pending(_) => {}
            other => kept.push(other),
        }
        Ok::<(), StoreError>(())
    })?;
    if !exact {
        return Ok(None);
    }
    done.sums = sums.len() as u64;
    let head = Record::RolledUp(RolledUpRecord { time: begins.unwrap_or_default(), records: done.records });
    let sums = sums.into_iter().map(|(group, totals)| Record::Rollup(Box::new(group.rollup(totals))));
    let mut lines = Vec::new();
    for record in std::iter::once(head).chain(sums).chain(kept) {
        encode_line(&mut lines, &record).map_err(StoreError::io(&path))?;
    }
    Ok(Some((lines, done)))
}

/// What stays told apart.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
struct Group {
    day: Wall,
    tenant: crate::ids::TenantId,
    key: Option<crate::ids::KeyFingerprint>,
    model: crate::ids::ModelName,
    class: &'static str,
    collection: Option<String>,
    upstream: Option<crate::ids::UpstreamId>,
}

impl Group {
    fn of(record: &UsageRecord) -> Group {
        Group {
            day: utc::start_of_day(record.time),
            tenant: record.tenant.clone(),
            key: record.key.clone(),
            model: record.model.clone(),
            class: record.class.as_str(),
            collection: record.collection.clone(),
            upstream: record.upstream.clone(),
        }
    }

    fn rollup(self, totals: Totals) -> RollupRecord {
        RollupRecord {
            time: self.day,
            tenant: self.tenant,
            key: self.key,
            class: self.class.to_owned(),
            collection: self.collection,
            model: self.model,
            upstream: self.upstream,
            requests: totals.requests,
            items: totals.items,
            cached_items: totals.cached_items,
            tokens: totals.tokens,
            output_tokens: totals.output_tokens,
            search_units: totals.search_units,
            cost: totals.cost,
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::audit::{AuditFilter, latest};
    use crate::store::journal::Journal;
    use crate::store::testing::{any_fact, at, usage_line};
    use crate::store::usage::{GroupBy, Summary, UsageFilter, summarise};
    use crate::store::writer::Limits;

    /// Writes facts, a day's after the other's as a gateway does.
    fn write(folder: &Path, facts: &[Record]) {
        let mut facts = facts.to_vec();
        facts.sort_by_key(Record::time);
        let limits = Limits { segment_bytes: 3_000, ..Limits::default() };
        let (journal, _) = Journal::open(folder, limits, at(0)).expect("opens");
        for fact in facts {
            journal.append(&fact).expect("written");
        }
    }

    fn days_later(days: i64) -> Wall {
        at(days * DAY_MS)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn reports_over_whole_days_stay_the_same_to_the_last_digit(
            facts in prop::collection::vec(any_fact(), 0..60),
            by in prop::sample::subsequence(GroupBy::ALL.to_vec(), 0..=7),
            only: bool,
            since in prop::option::of(0..3_i64),
            passes in prop::collection::vec(0..4_i64, 1..4),
        ) {
            let dir = tempfile::tempdir().expect("folder");
            write(dir.path(), &facts);
            let filter = UsageFilter {
                tenant: only.then(|| "acme".into()),
                since: since.map(days_later),
                until: since.map(|day| days_later(day + 1)),
            };
            let report = || -> Summary { summarise(dir.path(), &filter, &by).expect("read") };
            let deeds = || latest(dir.path(), &AuditFilter { since: None, until: None, limit: 1_000 }).expect("read");
            let (before, deeds_before) = (report(), deeds());
            let book = Journal::open(dir.path(), Limits::default(), at(0)).expect("opens").1.book;
            for day in passes {
                roll_up(dir.path(), 1, days_later(day)).expect("rolled up");
                prop_assert_eq!(&report(), &before);
                prop_assert_eq!(&deeds(), &deeds_before);
            }
            let after = Journal::open(dir.path(), Limits::default(), at(0)).expect("opens").1.book;
            prop_assert_eq!(after, book);
        }
    }

    #[test]
    fn what_is_old_enough_is_rolled_up_once_and_what_is_not_stays() {
        let dir = tempfile::tempdir().expect("folder");
        let facts: Vec<Record> = (0..90).map(|n| usage_line(n * 2 * 24 * 1000 * 60, 1)).collect();
        write(dir.path(), &facts);
        let size = || -> u64 {
            let files = fs::read_dir(dir.path()).expect("listed").map(|file| file.expect("a file"));
            files.map(|file| file.metadata().expect("known").len()).sum()
        };
        assert_eq!(roll_up(dir.path(), 3, days_later(2)).expect("nothing"), Pass::default());
        let before = size();
        let pass = roll_up(dir.path(), 0, days_later(2)).expect("rolled up");
        assert!(pass.segments > 3 && pass.records > pass.sums, "{pass:?}");
        assert!(size() < before / 2, "{} of {before}", size());
        // A pass that died before its rename has changed nothing, and its remains are in nobody's way.
        fs::write(dir.path().join("00000001.rolling"), "half a li").expect("written");
        assert_eq!(roll_up(dir.path(), 0, days_later(2)).expect("again"), Pass::default());
        let total = summarise(dir.path(), &UsageFilter::default(), &[]).expect("read").total;
        assert_eq!((total.requests, total.cost.units()), (90, 90));
    }
}
