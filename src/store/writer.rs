//! The journal for one thread: recovers at start, folds and appends records, keeps what the disk refused, starts new
//! segments. Knows no threads, no clock and no rule about money.
//!
//! Invariants:
//! - **W1** The book is the fold of every record accepted, written or not.
//! - **W2** The file holds exactly the lines of the records written: what the disk took of a refused write is cut off.
//! - **W3** Records reach the file in the order of acceptance, each once.
//! - **W4** A segment's first line is a snapshot of all that came before, so nothing before it is needed to start.

use std::io;
use std::path::Path;
use std::sync::Arc;

use super::book::Book;
use super::disk::{Disk, SegmentFile};
use super::record::{HoldRecord, Record, ReleaseReason, ReleaseRecord, SnapshotRecord};
use super::segment::{StoreError, Torn, encode_line, scan};
use crate::ids::TenantId;
use crate::pure::time::Wall;
use crate::pure::utc;

/// After a segment could not be started, this many more bytes go to the old one before the next attempt.
const ROTATION_RETRY_BYTES: u64 = 1 << 20;

/// Sizes that bound the journal.
#[derive(Debug, Clone, Copy)]
pub struct Limits {
    /// A segment that has this many bytes is followed by a new one.
    pub segment_bytes: u64,
    /// The most that is kept in memory while the disk refuses; beyond it records are refused.
    pub backlog_bytes: usize,
}

impl Default for Limits {
    /// 64 MiB each: some 150,000 usage records.
    fn default() -> Limits {
        Limits { segment_bytes: 64 << 20, backlog_bytes: 64 << 20 }
    }
}

/// What was found at start.
#[derive(Debug, Clone)]
pub struct Recovery {
    /// Holds of calls whose result nobody saw; they are released now.
    pub released: Vec<HoldRecord>,
    /// What a crash left unfinished; it is cut off now, or set aside if it was a whole segment.
    pub torn: Option<Torn>,
    /// Where every tenant stands.
    pub book: Book,
}

/// Files whose bytes may not be on the device yet, and how far syncing them reaches.
pub(super) struct Unsynced {
    pub(super) files: Vec<Arc<dyn SegmentFile>>,
    /// Whether a segment was made since the folder was last synced.
    pub(super) folder: bool,
    /// Records written so far; all of them are on the device once the files are.
    pub(super) written: u64,
}

/// The journal for one thread.
pub(super) struct Writer {
    disk: Arc<dyn Disk>,
    limits: Limits,
    file: Arc<dyn SegmentFile>,
    segment: u64,
    /// Length of the file by W2.
    len: u64,
    /// Day of the segment's first record.
    day: i64,
    /// Length at which the segment is full.
    full_at: u64,
    /// Length before which no new segment is attempted, because the last attempt failed.
    retry_at: u64,
    book: Book,
    /// Lines accepted and not yet written; empty between calls unless the disk refused.
    backlog: Vec<u8>,
    accepted: u64,
    written: u64,
    /// Whether a refused write may have left bytes beyond `len`.
    overhang: bool,
    retired: Vec<Arc<dyn SegmentFile>>,
    folder_dirty: bool,
}

impl Writer {
    /// Reads the newest segment, cuts off an unfinished end, releases the holds that were open, and stands ready.
    ///
    /// # Errors
    /// [`StoreError::Damaged`] and [`StoreError::Unreadable`] when the newest segment cannot be trusted,
    /// [`StoreError::Io`].
    pub(super) fn open(disk: Arc<dyn Disk>, limits: Limits, now: Wall) -> Result<(Writer, Recovery), StoreError> {
        let mut torn = None;
        let mut segments = disk.segments().map_err(StoreError::io(Path::new("journal")))?;
        let mut writer = loop {
            let Some(segment) = segments.pop() else {
                break Writer::start(disk, limits, now)?;
            };
            let path = disk.path(segment);
            let (book, first, end) = replay(&*disk, segment)?;
            torn = torn.or(end.torn);
            // Not even a first line: the machine stopped while the segment was being started. All is in the one before.
            let Some(first) = first else {
                disk.set_aside(segment).map_err(StoreError::io(&path))?;
                continue;
            };
            let file = disk.reopen(segment, end.good_bytes).map_err(StoreError::io(&path))?;
            break Writer::at(disk, limits, file, segment, end.good_bytes, first, book);
        };
        let released: Vec<HoldRecord> = writer.book.open_holds().cloned().collect();
        let releases: Vec<Record> = released.iter().map(|hold| release(hold, now)).collect();
        writer.append_all(&releases).map_err(StoreError::io(&writer.disk.path(writer.segment)))?;
        let book = writer.book.clone();
        Ok((writer, Recovery { released, torn, book }))
    }

    fn start(disk: Arc<dyn Disk>, limits: Limits, now: Wall) -> Result<Writer, StoreError> {
        let book = Book::default();
        let path = disk.path(1);
        let line = snapshot_line(&book, now).map_err(StoreError::io(&path))?;
        let file = disk.create(1, &line).map_err(StoreError::io(&path))?;
        Ok(Writer::at(disk, limits, file, 1, line.len() as u64, now, book))
    }

    fn at(
        disk: Arc<dyn Disk>,
        limits: Limits,
        file: Arc<dyn SegmentFile>,
        segment: u64,
        len: u64,
        first: Wall,
        book: Book,
    ) -> Writer {
        Writer {
            disk,
            limits,
            file,
            segment,
            len,
            day: utc::day_number(first),
            full_at: limits.segment_bytes,
            retry_at: 0,
            book,
            backlog: Vec::with_capacity(4096),
            accepted: 0,
            written: 0,
            overhang: false,
            retired: Vec::new(),
            // A segment found at start may be younger than the last sync of the folder.
            folder_dirty: true,
        }
    }

    /// Accepts records and writes them, with all that waits before them, in one system call. Returns their count so far.
    ///
    /// # Errors
    /// [`io::ErrorKind::OutOfMemory`]: the backlog is full and **none of the records was accepted**. Any other: they are
    /// accepted and kept in memory, and written before anything that comes later.
    pub(super) fn append_all(&mut self, records: &[Record]) -> io::Result<u64> {
        if self.backlog.is_empty() {
            if let Some(last) = records.last() {
                self.rotate_if_due(last.time());
            }
        } else if self.backlog.len() >= self.limits.backlog_bytes {
            self.drain().map_err(|error| io::Error::new(io::ErrorKind::OutOfMemory, error.to_string()))?;
        }
        let before = self.backlog.len();
        for record in records {
            if let Err(error) = encode_line(&mut self.backlog, record) {
                self.backlog.truncate(before);
                return Err(io::Error::new(io::ErrorKind::OutOfMemory, error));
            }
        }
        for record in records {
            self.book.apply(record);
        }
        self.accepted += records.len() as u64;
        self.drain()?;
        Ok(self.accepted)
    }

    /// Writes what the disk refused earlier.
    ///
    /// # Errors
    /// Those of the disk; everything is still kept.
    pub(super) fn drain(&mut self) -> io::Result<()> {
        if self.overhang {
            self.file.truncate(self.len)?;
            self.overhang = false;
        }
        if self.backlog.is_empty() {
            return Ok(());
        }
        if let Err(error) = self.file.append(&self.backlog) {
            self.overhang = self.file.truncate(self.len).is_err();
            return Err(error);
        }
        self.len += self.backlog.len() as u64;
        self.backlog.clear();
        self.written = self.accepted;
        Ok(())
    }

    /// Whether everything accepted is written.
    pub(super) fn is_drained(&self) -> bool {
        self.backlog.is_empty()
    }

    pub(super) fn book(&self) -> &Book {
        &self.book
    }

    /// Packs the tenant's page; what the book says stays.
    pub(super) fn rest(&mut self, tenant: &TenantId) {
        self.book.tenants.rest(tenant);
    }

    /// Takes note of what must be synced; the caller syncs without keeping others from writing.
    pub(super) fn take_unsynced(&mut self) -> Unsynced {
        let mut files = std::mem::take(&mut self.retired);
        files.push(Arc::clone(&self.file));
        Unsynced { files, folder: std::mem::take(&mut self.folder_dirty), written: self.written }
    }

    /// Whether a finished segment waits to be synced.
    pub(super) fn has_retired(&self) -> bool {
        !self.retired.is_empty()
    }

    /// Starts a new segment when this one is full or its day is over. A disk that refuses costs nothing: the old segment
    /// goes on and the attempt is repeated later.
    fn rotate_if_due(&mut self, now: Wall) {
        let due = self.len >= self.full_at || utc::day_number(now) > self.day;
        if !due || self.len < self.retry_at {
            return;
        }
        let created = snapshot_line(&self.book, now)
            .and_then(|line| Ok((self.disk.create(self.segment + 1, &line)?, line.len() as u64)));
        match created {
            Ok((file, len)) => {
                self.retired.push(std::mem::replace(&mut self.file, file));
                self.folder_dirty = true;
                self.segment += 1;
                self.len = len;
                self.day = utc::day_number(now);
                // A book larger than a segment would otherwise start a segment for every record.
                self.full_at = self.limits.segment_bytes.max(len.saturating_mul(2));
                self.retry_at = 0;
            }
            Err(_) => self.retry_at = self.len.saturating_add(ROTATION_RETRY_BYTES),
        }
    }
}

fn release(hold: &HoldRecord, now: Wall) -> Record {
    let (tenant, reason) = (hold.tenant.clone(), ReleaseReason::Crash);
    Record::Release(ReleaseRecord { time: now, hold: hold.hold, tenant, reason })
}

fn snapshot_line(book: &Book, now: Wall) -> io::Result<Vec<u8>> {
    let mut line = Vec::new();
    encode_line(&mut line, &Record::Snapshot(SnapshotRecord { time: now, book: book.clone() }))?;
    Ok(line)
}

/// The book after a segment, the time of its first line (`None`: it has no sound line), and how it ends.
fn replay(disk: &dyn Disk, segment: u64) -> Result<(Book, Option<Wall>, super::segment::Scanned), StoreError> {
    let path = disk.path(segment);
    let reader = disk.read(segment).map_err(StoreError::io(&path))?;
    let (mut book, mut first) = (Book::default(), None);
    let unreadable = |line, reason: String| StoreError::Unreadable { path: path.clone(), line, reason };
    let end = scan(reader, &path, |json, line| {
        let record = Record::from_json(json).map_err(|error| unreadable(line, error.to_string()))?;
        if first.is_none() && !matches!(record, Record::Snapshot(_)) {
            return Err(unreadable(line, "a segment must begin with a snapshot".to_owned()));
        }
        first.get_or_insert(record.time());
        book.apply(&record);
        Ok(())
    })?;
    Ok((book, first, end))
}

#[cfg(test)]
#[path = "writer_tests.rs"]
mod tests;
