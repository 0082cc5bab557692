//! Reads back what was done on the admin side. Works on a folder that a gateway is writing to and takes no lock.

use std::path::Path;

use super::disk::Folder;
use super::record::AdminRecord;
use super::segment::{StoreError, scan};
use crate::pure::time::Wall;

/// Which deeds are wanted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AuditFilter {
    /// Only those at or after this instant.
    pub since: Option<Wall>,
    /// Only those before this instant.
    pub until: Option<Wall>,
    /// At most so many, the newest.
    pub limit: usize,
}

/// The newest deeds in `folder`, newest first. Reads back as many segments as it needs.
///
/// # Errors
/// Those of the store.
pub fn latest(folder: &Path, filter: &AuditFilter) -> Result<Vec<AdminRecord>, StoreError> {
    let journal = Folder::new(folder);
    let mut segments = journal.segments().map_err(StoreError::io(folder))?;
    let mut found = Vec::new();
    while let Some(segment) = segments.pop() {
        let mut here = in_segment(&journal, segment, filter)?;
        here.reverse();
        found.extend(here);
        if found.len() >= filter.limit {
            found.truncate(filter.limit);
            break;
        }
    }
    Ok(found)
}

fn in_segment(journal: &Folder, segment: u64, filter: &AuditFilter) -> Result<Vec<AdminRecord>, StoreError> {
    let path = journal.path(segment);
    let reader = journal.read(segment).map_err(StoreError::io(&path))?;
    let mut found = Vec::new();
    scan(reader, &path, |json, line| {
        let unreadable =
            |error: serde_json::Error| StoreError::Unreadable { path: path.clone(), line, reason: error.to_string() };
        if let Some(record) = AdminRecord::from_json(json).transpose().map_err(unreadable)?
            && filter.since.is_none_or(|since| record.time >= since)
            && filter.until.is_none_or(|until| record.time < until)
        {
            found.push(record);
        }
        Ok::<(), StoreError>(())
    })?;
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::journal::Journal;
    use crate::store::record::Record;
    use crate::store::testing::{at, usage_line};
    use crate::store::writer::Limits;

    fn deed(ms: i64) -> AdminRecord {
        AdminRecord {
            time: at(ms),
            who: "token".to_owned(),
            action: "drain".to_owned(),
            subject: format!("u{ms}"),
            before: serde_json::Value::Null,
            after: serde_json::Value::Null,
        }
    }

    #[test]
    fn the_newest_come_first_over_segments() {
        let dir = tempfile::tempdir().expect("folder");
        let limits = Limits { segment_bytes: 1_500, ..Limits::default() };
        let (journal, _) = Journal::open(dir.path(), limits, at(0)).expect("opens");
        for n in 1..=20 {
            journal.append(&Record::Admin(deed(n))).expect("written");
            journal.append(&usage_line(n as u64, 1)).expect("written");
        }
        assert!(Folder::new(dir.path()).segments().expect("listed").len() > 3);
        let times = |since, until, limit| {
            let filter = AuditFilter { since, until, limit };
            let deeds = latest(dir.path(), &filter).expect("read");
            deeds.iter().map(|deed| deed.time.0 - at(0).0).collect::<Vec<_>>()
        };
        assert_eq!(times(None, None, 3), [20, 19, 18]);
        assert_eq!(times(Some(at(5)), Some(at(8)), 100), [7, 6, 5]);
        assert_eq!(times(None, None, 100).len(), 20);
    }
}
