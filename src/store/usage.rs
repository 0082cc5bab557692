//! Reads usage records back: filtered, one by one or summed. Works on a folder that a gateway is writing to, takes no
//! lock, and holds one line and one row per group in memory. Knows no output format.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use super::disk::Folder;
use super::record::{RollupRecord, UsageRecord};
use super::segment::{StoreError, scan};
use crate::ids::TenantId;
use crate::pure::money::Money;
use crate::pure::time::Wall;
use crate::pure::utc::{self, DAY_MS, Day};

/// Which records count.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct UsageFilter {
    /// Only this tenant's.
    pub tenant: Option<TenantId>,
    /// Only those at or after this instant.
    pub since: Option<Wall>,
    /// Only those before this instant.
    pub until: Option<Wall>,
}

impl UsageFilter {
    /// Whether an entry counts. A sum of a day counts where its day begins.
    pub fn admits(&self, entry: &Entry) -> bool {
        let (time, of) = match entry {
            Entry::One(record) => (record.time, &record.tenant),
            Entry::Sum(sum) => (sum.time, &sum.tenant),
        };
        self.tenant.as_ref().is_none_or(|tenant| tenant == of)
            && self.since.is_none_or(|since| time >= since)
            && self.until.is_none_or(|until| time < until)
    }

    /// Whether a segment that began and ended then can hold anything that counts. Its records were written in between;
    /// their own times may be a little later than that if the clock stepped back, and much earlier if they waited for
    /// the shared ledger.
    fn may_be_in(&self, began: Option<Wall>, ended: Option<Wall>) -> bool {
        let slack = |wall: Wall, ms: i64| wall.0.saturating_add(ms);
        let too_old = self.since.zip(ended).is_some_and(|(since, ended)| slack(ended, CLOCK_STEP_MS) < since.0);
        let too_new = self.until.zip(began).is_some_and(|(until, began)| began.0 > slack(until, LATENESS_MS));
        !too_old && !too_new
    }
}

/// Further than this no clock is expected to be put back: an hour.
const CLOCK_STEP_MS: i64 = 3_600_000;

/// Later than this no record is expected to be written: a week without the shared ledger.
const LATENESS_MS: i64 = 7 * DAY_MS;

/// What a report is made of.
#[derive(Debug, Clone, PartialEq)]
pub enum Entry {
    /// A request.
    One(Box<UsageRecord>),
    /// Many requests of a day long ago.
    Sum(Box<RollupRecord>),
}

impl Entry {
    pub(super) fn from_json(json: &[u8]) -> serde_json::Result<Option<Entry>> {
        if let Some(record) = UsageRecord::from_json(json).transpose()? {
            return Ok(Some(Entry::One(Box::new(record))));
        }
        Ok(RollupRecord::from_json(json).transpose()?.map(|sum| Entry::Sum(Box::new(sum))))
    }
}

/// The instant of `--since`: a day, from its first instant, or an RFC 3339 instant. `None`: neither.
pub fn parse_since(text: &str) -> Option<Wall> {
    utc::parse_day(text).or_else(|| utc::parse_stamp(text))
}

/// The instant of `--until`: a day, to its end, as people mean it when they name the last day of a month; or an RFC 3339
/// instant, which is itself not included. `None`: neither.
pub fn parse_until(text: &str) -> Option<Wall> {
    utc::parse_day(text).map(|day| Wall(day.0 + DAY_MS)).or_else(|| utc::parse_stamp(text))
}

/// What records are summed by.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum GroupBy {
    /// By who paid.
    Tenant,
    /// By fingerprint.
    Key,
    /// By the model asked for.
    Model,
    /// By traffic class.
    Class,
    /// By collection.
    Collection,
    /// By the upstream that answered.
    Upstream,
    /// By UTC day.
    Day,
}

impl GroupBy {
    /// Every kind, in the order of messages.
    pub const ALL: [GroupBy; 7] = [
        GroupBy::Tenant,
        GroupBy::Key,
        GroupBy::Model,
        GroupBy::Class,
        GroupBy::Collection,
        GroupBy::Upstream,
        GroupBy::Day,
    ];

    /// The name in arguments and column heads.
    pub const fn as_str(self) -> &'static str {
        match self {
            GroupBy::Tenant => "tenant",
            GroupBy::Key => "key",
            GroupBy::Model => "model",
            GroupBy::Class => "class",
            GroupBy::Collection => "collection",
            GroupBy::Upstream => "upstream",
            GroupBy::Day => "day",
        }
    }

    /// The entry's value; `None` where it has none, such as no upstream on a cache hit.
    pub fn value(self, entry: &Entry) -> Option<String> {
        match entry {
            Entry::One(record) => self.value_of(record),
            Entry::Sum(sum) => match self {
                GroupBy::Tenant => Some(sum.tenant.to_string()),
                GroupBy::Key => sum.key.as_ref().map(|key| key.to_string()),
                GroupBy::Model => Some(sum.model.to_string()),
                GroupBy::Class => Some(sum.class.clone()),
                GroupBy::Collection => sum.collection.clone(),
                GroupBy::Upstream => sum.upstream.as_ref().map(|upstream| upstream.to_string()),
                GroupBy::Day => Some(Day(sum.time).to_string()),
            },
        }
    }

    fn value_of(self, record: &UsageRecord) -> Option<String> {
        match self {
            GroupBy::Tenant => Some(record.tenant.to_string()),
            GroupBy::Key => record.key.as_ref().map(|key| key.to_string()),
            GroupBy::Model => Some(record.model.to_string()),
            GroupBy::Class => Some(record.class.to_string()),
            GroupBy::Collection => record.collection.clone(),
            GroupBy::Upstream => record.upstream.as_ref().map(|upstream| upstream.to_string()),
            GroupBy::Day => Some(Day(record.time).to_string()),
        }
    }
}

/// A name that is no [`GroupBy`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownGroup(pub String);

impl fmt::Display for UnknownGroup {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let known = GroupBy::ALL.map(GroupBy::as_str).join(", ");
        write!(f, "{:?} is nothing to sum by; known are {known}", self.0)
    }
}

impl std::error::Error for UnknownGroup {}

impl FromStr for GroupBy {
    type Err = UnknownGroup;

    fn from_str(text: &str) -> Result<GroupBy, UnknownGroup> {
        let known = GroupBy::ALL.into_iter().find(|group| group.as_str() == text);
        known.ok_or_else(|| UnknownGroup(text.to_owned()))
    }
}

/// Reads `tenant,day`; each name at most once, order as given.
///
/// # Errors
/// [`UnknownGroup`] with the first name that is none.
pub fn parse_groups(text: &str) -> Result<Vec<GroupBy>, UnknownGroup> {
    let mut groups = Vec::new();
    for name in text.split(',').map(str::trim).filter(|name| !name.is_empty()) {
        let group = name.parse()?;
        if !groups.contains(&group) {
            groups.push(group);
        }
    }
    Ok(groups)
}

/// Sums over records, exact to the last digit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// Requests.
    pub requests: u64,
    /// Items asked for.
    pub items: u64,
    /// Items answered from the cache.
    pub cached_items: u64,
    /// Input tokens charged.
    pub tokens: u64,
    /// Output tokens charged.
    pub output_tokens: u64,
    /// Searches charged.
    pub search_units: u64,
    /// Paid.
    pub cost: Money,
}

impl Totals {
    /// With one record more, or `None` if a sum is too large to be kept exactly.
    pub fn with(self, record: &UsageRecord) -> Option<Totals> {
        Some(Totals {
            requests: self.requests.checked_add(1)?,
            items: self.items.checked_add(record.items)?,
            cached_items: self.cached_items.checked_add(record.cached_items)?,
            tokens: self.tokens.checked_add(record.tokens)?,
            output_tokens: self.output_tokens.checked_add(record.output_tokens)?,
            search_units: self.search_units.checked_add(record.search_units)?,
            cost: self.cost.checked_add(record.cost)?,
        })
    }

    /// With one entry more, or `None` if a sum is too large to be kept exactly.
    pub fn with_entry(self, entry: &Entry) -> Option<Totals> {
        match entry {
            Entry::One(record) => self.with(record),
            Entry::Sum(sum) => Some(Totals {
                requests: self.requests.checked_add(sum.requests)?,
                items: self.items.checked_add(sum.items)?,
                cached_items: self.cached_items.checked_add(sum.cached_items)?,
                tokens: self.tokens.checked_add(sum.tokens)?,
                output_tokens: self.output_tokens.checked_add(sum.output_tokens)?,
                search_units: self.search_units.checked_add(sum.search_units)?,
                cost: self.cost.checked_add(sum.cost)?,
            }),
        }
    }
}

/// Why a report could not be made.
#[derive(Debug)]
pub enum UsageError {
    /// The journal cannot be read.
    Store(StoreError),
    /// A sum is too large to be exact.
    Overflow,
    /// The report could not be written out.
    Output(std::io::Error),
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            UsageError::Store(error) => error.fmt(f),
            UsageError::Overflow => f.write_str("a total is too large to be kept exactly; narrow the report"),
            UsageError::Output(error) => write!(f, "the report could not be written: {error}"),
        }
    }
}

impl std::error::Error for UsageError {}

impl From<StoreError> for UsageError {
    fn from(error: StoreError) -> UsageError {
        UsageError::Store(error)
    }
}

impl From<std::io::Error> for UsageError {
    fn from(error: std::io::Error) -> UsageError {
        UsageError::Output(error)
    }
}

/// Calls `visit` with every entry in `folder` that `filter` admits, in the order in which they were written. Segments of
/// other times are not read.
///
/// An unfinished line at the end of a segment is passed over: a gateway is writing it, or was killed while it did.
///
/// # Errors
/// [`StoreError::Missing`] if there is no journal, the other errors of the store, and what `visit` returns.
pub fn for_each(
    folder: &Path,
    filter: &UsageFilter,
    mut visit: impl FnMut(&Entry) -> Result<(), UsageError>,
) -> Result<(), UsageError> {
    walk(folder, filter, |json| {
        Ok(match Entry::from_json(json)? {
            Some(entry) if filter.admits(&entry) => visit(&entry),
            _ => Ok(()),
        })
    })
}

/// Calls `visit` with the JSON of every line of the segments in which anything that `filter` admits may be, in the order in
/// which they were written.
///
/// # Errors
/// As [`for_each`]; an outer error of `visit` says that the line cannot be read.
pub(super) fn walk(
    folder: &Path,
    filter: &UsageFilter,
    mut visit: impl FnMut(&[u8]) -> serde_json::Result<Result<(), UsageError>>,
) -> Result<(), UsageError> {
    let journal = Folder::new(folder);
    let segments = journal.segments().map_err(StoreError::io(folder))?;
    if segments.is_empty() {
        return Err(StoreError::Missing { path: folder.to_owned() }.into());
    }
    for (position, segment) in segments.iter().copied().enumerate() {
        let begins = |segment: u64| -> Result<Option<Wall>, StoreError> {
            let first = journal.first(segment).map_err(StoreError::io(&journal.path(segment)))?;
            Ok(first.map(|first| first.time))
        };
        let ended = segments.get(position + 1).map(|next| begins(*next)).transpose()?.flatten();
        if !filter.may_be_in(begins(segment)?, ended) {
            continue;
        }
        let path = journal.path(segment);
        let reader = journal.read(segment).map_err(StoreError::io(&path))?;
        scan(reader, &path, |json, line| {
            let unreadable = |error: serde_json::Error| StoreError::Unreadable {
                path: path.clone(),
                line,
                reason: error.to_string(),
            };
            visit(json).map_err(unreadable)?
        })?;
    }
    Ok(())
}

/// One row per group in ascending order of its values, and the sum of all rows.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Summary {
    /// Sums by the values of each [`GroupBy`] asked for.
    pub rows: BTreeMap<Vec<Option<String>>, Totals>,
    /// The sum of the rows.
    pub total: Totals,
}

/// Sums the records in `folder` that `filter` admits.
///
/// # Errors
/// As [`for_each`], and [`UsageError::Overflow`].
pub fn summarise(folder: &Path, filter: &UsageFilter, by: &[GroupBy]) -> Result<Summary, UsageError> {
    let mut summary = Summary::default();
    for_each(folder, filter, |entry| {
        let row = summary.rows.entry(by.iter().map(|group| group.value(entry)).collect()).or_default();
        *row = row.with_entry(entry).ok_or(UsageError::Overflow)?;
        summary.total = summary.total.with_entry(entry).ok_or(UsageError::Overflow)?;
        Ok(())
    })?;
    Ok(summary)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::journal::Journal;
    use crate::store::record::Record;
    use crate::store::testing::{TENANT, any_fact, at, usage_line};
    use crate::store::writer::Limits;
    use proptest::prelude::*;

    #[track_caller]
    fn check_bounds(text: &str, since: Option<&str>, until: Option<&str>) {
        let stamp = |wall: Option<Wall>| wall.map(|wall| utc::Stamp(wall).to_string());
        assert_eq!(stamp(parse_since(text)).as_deref(), since, "since {text}");
        assert_eq!(stamp(parse_until(text)).as_deref(), until, "until {text}");
    }

    #[test]
    fn a_day_means_all_of_it_and_an_instant_itself() {
        check_bounds("2026-11-30", Some("2026-11-30T00:00:00.000Z"), Some("2026-12-01T00:00:00.000Z"));
        let instant = Some("2026-11-30T11:00:00.000Z");
        check_bounds("2026-11-30T12:00:00+01:00", instant, instant);
        check_bounds("last week", None, None);
    }

    #[test]
    fn groups_are_read_once_each_and_unknown_ones_named() {
        assert_eq!(parse_groups("day, tenant,day"), Ok(vec![GroupBy::Day, GroupBy::Tenant]));
        assert_eq!(parse_groups(""), Ok(vec![]));
        let error = parse_groups("tenant,colour").expect_err("no colours");
        assert!(error.to_string().contains("colour") && error.to_string().contains("upstream"), "{error}");
    }

    #[test]
    fn a_folder_without_a_journal_is_told_apart_from_one_without_records() {
        let dir = tempfile::tempdir().expect("folder");
        let missing = summarise(dir.path(), &UsageFilter::default(), &[]);
        assert!(matches!(missing, Err(UsageError::Store(StoreError::Missing { .. }))));
        let (_journal, _) = Journal::open(dir.path(), Limits::default(), at(0)).expect("opens");
        assert_eq!(summarise(dir.path(), &UsageFilter::default(), &[]).expect("read"), Summary::default());
    }

    #[test]
    fn a_report_is_made_while_the_gateway_writes() {
        let dir = tempfile::tempdir().expect("folder");
        let (journal, _) = Journal::open(dir.path(), Limits::default(), at(0)).expect("opens");
        journal.append(&usage_line(1, 5)).expect("written");
        let unfinished = std::fs::read(Folder::new(dir.path()).path(1)).expect("read");
        let total = || summarise(dir.path(), &UsageFilter::default(), &[]).expect("read").total.cost.units();
        assert_eq!(total(), 5);
        std::fs::write(Folder::new(dir.path()).path(1), [&unfinished[..], b"0badc0de {\"ki"].concat())
            .expect("written");
        assert_eq!(total(), 5);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(48))]

        #[test]
        fn every_way_of_summing_agrees_with_the_records(
            facts in prop::collection::vec(any_fact(), 0..30),
            by in prop::sample::subsequence(GroupBy::ALL.to_vec(), 0..=7),
            only_acme: bool,
            edges in prop::option::of((0..172_800_000_i64, 0..172_800_000_i64)),
        ) {
            let dir = tempfile::tempdir().expect("folder");
            let limits = Limits { segment_bytes: 2_000, ..Limits::default() };
            let (journal, _) = Journal::open(dir.path(), limits, at(0)).expect("opens");
            let mut facts = facts;
            facts.sort_by_key(Record::time);
            for fact in &facts {
                journal.append(fact).expect("written");
            }
            let filter = UsageFilter {
                tenant: only_acme.then(|| TENANT.into()),
                since: edges.map(|(since, _)| at(since)),
                until: edges.map(|(_, until)| at(until)),
            };
            let mut expected = Summary::default();
            let mut listed = Vec::new();
            for fact in &facts {
                let Record::Usage(record) = fact else { continue };
                let entry = Entry::One(record.clone());
                if filter.admits(&entry) {
                    expected.total = expected.total.with(record).expect("small");
                    let values = by.iter().map(|group| group.value(&entry)).collect();
                    let row: &mut Totals = expected.rows.entry(values).or_default();
                    *row = row.with(record).expect("small");
                    listed.push(entry);
                }
            }
            let mut got = Vec::new();
            for_each(dir.path(), &filter, |record| {
                got.push(record.clone());
                Ok(())
            }).expect("read");
            prop_assert_eq!(got, listed);
            prop_assert_eq!(summarise(dir.path(), &filter, &by).expect("read"), expected);
        }
    }
}
