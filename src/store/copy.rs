//! The whole journal at once: checking it, copying it while a gateway writes to it, and putting a copy in its place.
//!
//! A journal is sound when every line is, and when each segment begins with exactly what the one before amounts to.

use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

use super::book::Book;
use super::disk::{Folder, LockedFolder};
use super::record::Record;
use super::segment::{StoreError, scan};
use crate::pure::money::Money;

/// What a sound journal holds.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Sound {
    /// Segments.
    pub segments: u64,
    /// Records in them.
    pub lines: u64,
    /// Tenants ever seen.
    pub tenants: u64,
    /// Requests since the journal began.
    pub requests: u64,
    /// Charged since the journal began.
    pub cost: Money,
    /// Holds without an ending.
    pub open_holds: u64,
    /// Bytes of an unfinished line at the very end.
    pub unfinished: u64,
}

/// Why it could not be done.
#[derive(Debug)]
pub enum CopyError {
    /// The journal cannot be read, or a line is damaged.
    Store(StoreError),
    /// A segment does not begin with what the one before amounts to.
    Broken {
        /// The later one.
        path: PathBuf,
        /// What differs.
        what: String,
    },
    /// The folder to write to is taken.
    Taken(PathBuf),
    /// The outcome could not be told.
    Output(io::Error),
}

impl fmt::Display for CopyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            CopyError::Store(error) => error.fmt(f),
            CopyError::Broken { path, what } => {
                write!(f, "{}: does not begin with what came before: {what}", path.display())
            }
            CopyError::Taken(path) => write!(f, "{}: is not empty; name a new folder", path.display()),
            CopyError::Output(error) => write!(f, "the outcome could not be written: {error}"),
        }
    }
}

impl std::error::Error for CopyError {}

impl From<StoreError> for CopyError {
    fn from(error: StoreError) -> CopyError {
        CopyError::Store(error)
    }
}

/// Reads the journal in `folder` from its start and checks every line and every transition. Takes no lock.
///
/// # Errors
/// What is wrong with it, or that there is none.
pub fn verify(folder: &Path) -> Result<Sound, CopyError> {
    let journal = Folder::new(folder);
    let segments = journal.segments().map_err(StoreError::io(folder))?;
    if segments.is_empty() {
        return Err(StoreError::Missing { path: folder.to_owned() }.into());
    }
    let mut sound = Sound::default();
    let mut before: Option<Book> = None;
    for segment in segments {
        before = check(&journal, segment, before.take(), &mut sound)?;
    }
    let book = before.unwrap_or_default();
    sound.tenants = book.tenants.len() as u64;
    sound.open_holds = book.open_holds().count() as u64;
    for (_, page) in book.tenants.iter() {
        sound.requests += page.lifetime_requests;
        sound.cost = crate::pure::ledger::plus(sound.cost, page.lifetime_cost);
    }
    Ok(sound)
}

/// What the journal in `folder` amounts to; `None` where there is none. Reads its last segment only, and takes no lock.
///
/// # Errors
/// What is wrong with that segment.
pub fn book(folder: &Path) -> Result<Option<Book>, CopyError> {
    let journal = Folder::new(folder);
    let Ok(segments) = journal.segments() else { return Ok(None) };
    match segments.last() {
        Some(last) => check(&journal, *last, None, &mut Sound::default()),
        None => Ok(None),
    }
}

/// One segment after `before`, and what all up to its end amounts to; `None`: that is not known, as after a segment of
/// sums.
fn check(journal: &Folder, segment: u64, before: Option<Book>, sound: &mut Sound) -> Result<Option<Book>, CopyError> {
    let path = journal.path(segment);
    let reader = journal.read(segment).map_err(StoreError::io(&path))?;
    let mut book = Book::default();
    let mut summed = false;
    let end = scan(reader, &path, |json, line| {
        let record = Record::from_json(json).map_err(|error| {
            CopyError::Store(StoreError::Unreadable { path: path.clone(), line, reason: error.to_string() })
        })?;
        match (&record, line) {
            (Record::Snapshot(snapshot), 1) => {
                if let Some(before) = before.as_ref().filter(|before| **before != snapshot.book) {
                    return Err(CopyError::Broken { path: path.clone(), what: difference(before, &snapshot.book) });
                }
            }
            (Record::RolledUp(_), 1) => summed = true,
            (_, 1) => {
                let reason = "a segment must begin with a snapshot".to_owned();
                return Err(StoreError::Unreadable { path: path.clone(), line, reason }.into());
            }
            _ => {}
        }
        if !summed {
            book.apply(&record);
        }
        Ok(())
    })?;
    sound.segments += 1;
    sound.lines += end.lines;
    // Where an unfinished line was followed by a new segment, a crash came between: nobody was told of that line.
    sound.unfinished = end.torn.map_or(0, |torn| torn.bytes);
    Ok((!summed).then_some(book))
}

fn difference(before: &Book, after: &Book) -> String {
    let ids = before.tenants.iter().chain(after.tenants.iter()).map(|(id, _)| id);
    let differs = ids.into_iter().find(|id| before.tenants.get(id) != after.tenants.get(id));
    match differs {
        Some(id) => {
            let cost = |book: &Book| book.tenants.get(&id).map(|page| page.lifetime_cost).unwrap_or_default();
            format!("tenant {id:?}, charged {} before and {} here", cost(before), cost(after))
        }
        None => format!("the last hold is {} before and {} here", before.last_hold, after.last_hold),
    }
}

/// Copies the journal of `from` into `to`, which must be empty or not exist, syncs the copy and verifies it. A gateway may
/// write to `from` meanwhile: the copy then ends with a line that was whole.
///
/// # Errors
/// As [`verify`], and what keeps the copy from being written.
pub fn back_up(from: &Path, to: &Path) -> Result<Sound, CopyError> {
    let taken = fs::read_dir(to).is_ok_and(|mut entries| entries.next().is_some());
    if taken {
        return Err(CopyError::Taken(to.to_owned()));
    }
    copy(from, to)?;
    verify(to)
}

fn copy(from: &Path, to: &Path) -> Result<(), CopyError> {
    let journal = Folder::new(from);
    let segments = journal.segments().map_err(StoreError::io(from))?;
    if segments.is_empty() {
        return Err(StoreError::Missing { path: from.to_owned() }.into());
    }
    fs::create_dir_all(to).map_err(StoreError::io(to))?;
    let copied = Folder::new(to);
    for segment in segments {
        // Lengths first: what is written after this look belongs to the next backup.
        let path = journal.path(segment);
        let source = File::open(&path).map_err(StoreError::io(&path))?;
        let end = scan(io::BufReader::new(&source), &path, |_, _| Ok::<(), StoreError>(()))?;
        let target = copied.path(segment);
        let write = || -> io::Result<()> {
            let mut file = OpenOptions::new().write(true).create_new(true).open(&target)?;
            io::copy(&mut File::open(&path)?.take(end.good_bytes), &mut file)?;
            file.sync_all()
        };
        write().map_err(StoreError::io(&target))?;
    }
    File::open(to).and_then(|folder| folder.sync_all()).map_err(StoreError::io(to))?;
    Ok(())
}

/// Verifies the backup in `from` and puts it in the place of the journal in `to`. What is there is kept in a folder beside
/// its segments, whose path is returned. No gateway may run on `to`.
///
/// # Errors
/// As [`verify`] for the backup, [`StoreError::Locked`], and what keeps files from being moved.
pub fn restore(from: &Path, to: &Path) -> Result<(Sound, Option<PathBuf>), CopyError> {
    let sound = verify(from)?;
    let lock = LockedFolder::open(to)?;
    let aside = set_aside(to)?;
    copy(from, to)?;
    let restored = verify(to)?;
    drop(lock);
    let expected = Sound { unfinished: 0, ..sound };
    if restored == expected {
        return Ok((restored, aside));
    }
    Err(CopyError::Broken { path: to.to_owned(), what: "the copy differs from the backup".to_owned() })
}

/// Moves the journal's files into a folder of their own; `None`: there were none.
fn set_aside(folder: &Path) -> Result<Option<PathBuf>, StoreError> {
    let journal = Folder::new(folder);
    let segments = journal.segments().map_err(StoreError::io(folder))?;
    if segments.is_empty() {
        return Ok(None);
    }
    let free = (1..=u32::MAX).map(|n| folder.join(format!("replaced-{n}"))).find(|path| !path.exists());
    let aside = free.unwrap_or_else(|| folder.join("replaced"));
    fs::create_dir(&aside).map_err(StoreError::io(&aside))?;
    let moved = Folder::new(&aside);
    for segment in segments {
        fs::rename(journal.path(segment), moved.path(segment)).map_err(StoreError::io(&journal.path(segment)))?;
    }
    Ok(Some(aside))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::journal::Journal;
    use crate::store::retention::roll_up;
    use crate::store::testing::{at, hold, usage_line};
    use crate::store::writer::Limits;

    fn written(folder: &Path) -> Journal {
        let limits = Limits { segment_bytes: 3_000, ..Limits::default() };
        let (journal, _) = Journal::open(folder, limits, at(0)).expect("opens");
        for n in 1..=30 {
            journal.append(&hold(n, 5)).expect("written");
            journal.append(&usage_line(n, 3)).expect("written");
        }
        journal
    }

    #[test]
    fn a_journal_that_is_written_to_is_copied_whole() {
        let (dir, copy) = (tempfile::tempdir().expect("folder"), tempfile::tempdir().expect("folder"));
        let journal = written(dir.path());
        let sound = back_up(dir.path(), copy.path()).expect("copied");
        assert_eq!((sound.requests, sound.cost.units(), sound.open_holds), (30, 90, 0));
        assert!(sound.segments > 2, "{sound:?}");
        assert!(matches!(back_up(dir.path(), copy.path()), Err(CopyError::Taken(_))));
        journal.append(&usage_line(31, 3)).expect("written");
        assert_eq!(verify(dir.path()).expect("sound").requests, 31);
        assert!(matches!(restore(copy.path(), dir.path()), Err(CopyError::Store(StoreError::Locked { .. }))));
        drop(journal);
        let (restored, aside) = restore(copy.path(), dir.path()).expect("restored");
        assert_eq!(restored, sound);
        assert_eq!(verify(&aside.expect("was there")).expect("kept").requests, 31);
    }

    #[test]
    fn damage_and_gaps_are_found() {
        let dir = tempfile::tempdir().expect("folder");
        drop(written(dir.path()));
        let folder = Folder::new(dir.path());
        let segments = folder.segments().expect("listed");
        let path = folder.path(segments[1]);
        let good = fs::read(&path).expect("read");
        let mut bad = good.clone();
        let middle = bad.len() / 2;
        bad[middle] ^= 1;
        fs::write(&path, &bad).expect("written");
        assert!(matches!(verify(dir.path()), Err(CopyError::Store(StoreError::Damaged { .. }))));
        fs::write(&path, &good).expect("written");
        verify(dir.path()).expect("sound again");
        fs::remove_file(&path).expect("removed");
        let error = verify(dir.path()).expect_err("a gap");
        assert!(matches!(error, CopyError::Broken { .. }), "{error}");
    }

    #[test]
    fn sums_in_the_place_of_records_are_no_gap() {
        let dir = tempfile::tempdir().expect("folder");
        drop(written(dir.path()));
        let before = verify(dir.path()).expect("sound");
        roll_up(dir.path(), 0, at(3 * crate::pure::utc::DAY_MS)).expect("rolled up");
        let after = verify(dir.path()).expect("sound");
        assert_eq!((before.requests, before.cost), (after.requests, after.cost));
        assert!(after.lines < before.lines);
    }
}
