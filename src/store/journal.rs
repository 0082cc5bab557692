//! The journal for a whole process: any thread appends, a thread of its own syncs to the device for those who wait for
//! that. Owns locking and waiting; what is written and when a segment ends is the writer's.
//!
//! **What is durable when.** [`Journal::append`] returns once the operating system has the record: it survives the death
//! of the process at any moment, not that of the machine. [`Journal::append_durable`] returns once the device has it.
//! Everybody who waits while a sync runs shares the next one, so a sync's time bounds the wait, not the throughput.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;

use parking_lot::{Condvar, Mutex};
use tokio::sync::watch;

use super::book::Book;
use super::disk::{Disk, LockedFolder};
use super::record::Record;
use super::segment::StoreError;
use super::writer::{Limits, Recovery, Unsynced, Writer};
use crate::ids::{HoldId, TenantId};
use crate::pure::time::Wall;

/// How far the device has the journal.
#[derive(Debug, Clone, Copy, Default)]
struct Synced {
    records: u64,
    /// A sync failed once. The system may have dropped what it could not write and say "done" the next time, so nothing
    /// after that can be promised by this process.
    failed: Option<io::ErrorKind>,
}

struct State {
    writer: Writer,
    sync_wanted: bool,
    closing: bool,
}

struct Shared {
    disk: Arc<dyn Disk>,
    state: Mutex<State>,
    wake: Condvar,
    synced: watch::Sender<Synced>,
    next_hold: AtomicU64,
    drained: AtomicBool,
}

/// The process's one journal. Dropping it writes and syncs what is left and frees the folder.
pub struct Journal {
    shared: Arc<Shared>,
    syncer: Option<JoinHandle<()>>,
}

impl Journal {
    /// Opens the journal in `folder`, making it if need be, and recovers from whatever ended the last process. Blocks
    /// while it reads the newest segment.
    ///
    /// # Errors
    /// [`StoreError::Locked`] if another process writes there, [`StoreError::Damaged`] or [`StoreError::Unreadable`] if
    /// the newest segment cannot be trusted, [`StoreError::Io`].
    pub fn open(folder: &Path, limits: Limits, now: Wall) -> Result<(Journal, Recovery), StoreError> {
        Journal::on(Arc::new(LockedFolder::open(folder)?), limits, now)
    }

    /// Opens the journal on a disk of the caller's.
    ///
    /// # Errors
    /// As [`Journal::open`].
    pub fn on(disk: Arc<dyn Disk>, limits: Limits, now: Wall) -> Result<(Journal, Recovery), StoreError> {
        let (writer, recovery) = Writer::open(Arc::clone(&disk), limits, now)?;
        let shared = Arc::new(Shared {
            disk,
            next_hold: AtomicU64::new(recovery.book.last_hold.saturating_add(1)),
            state: Mutex::new(State { writer, sync_wanted: false, closing: false }),
            wake: Condvar::new(),
            synced: watch::Sender::new(Synced::default()),
            drained: AtomicBool::new(true),
        });
        let for_thread = Arc::clone(&shared);
        let syncer = std::thread::Builder::new()
            .name("journal-sync".to_owned())
            .spawn(move || for_thread.sync_until_closed())
            .map_err(StoreError::io(Path::new("journal-sync")))?;
        Ok((Journal { shared, syncer: Some(syncer) }, recovery))
    }

    /// A hold id that no record of this journal has.
    pub fn next_hold_id(&self) -> HoldId {
        HoldId(self.shared.next_hold.fetch_add(1, Ordering::Relaxed))
    }

    /// Hands a record to the operating system: one system call, no sync. Callable from any thread.
    ///
    /// # Errors
    /// [`io::ErrorKind::OutOfMemory`]: the disk has refused for so long that the record **was not accepted**. Any other:
    /// it is accepted, kept in memory and written before anything later, as long as the process lives.
    pub fn append(&self, record: &Record) -> io::Result<()> {
        self.append_all(std::slice::from_ref(record))
    }

    /// Hands records to the operating system in one system call; all of them are accepted or none.
    ///
    /// # Errors
    /// As [`Journal::append`].
    pub fn append_all(&self, records: &[Record]) -> io::Result<()> {
        self.shared.append(records, false).map(drop)
    }

    /// Appends a record and waits until the device has it.
    ///
    /// # Errors
    /// As [`Journal::append`]; also when a sync fails, now or earlier: from then on the process can promise nothing and
    /// should be restarted.
    ///
    /// # Cancel safety
    /// The record is accepted when the future is first polled; dropping it later only ends the wait.
    pub async fn append_durable(&self, record: &Record) -> io::Result<()> {
        self.append_all_durable(std::slice::from_ref(record)).await
    }

    /// Appends records, all or none, and waits until the device has them.
    ///
    /// # Errors
    /// As [`Journal::append_durable`].
    ///
    /// # Cancel safety
    /// As [`Journal::append_durable`].
    pub async fn append_all_durable(&self, records: &[Record]) -> io::Result<()> {
        let mut synced = self.shared.synced.subscribe();
        let wanted = self.shared.append(records, true)?;
        let state = synced.wait_for(|synced| synced.records >= wanted || synced.failed.is_some()).await;
        // The sender lives in `self.shared`, so the wait itself cannot fail while `self` is borrowed.
        let state = state.map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        match state.failed {
            Some(kind) if state.records < wanted => Err(io::Error::new(kind, "the journal could not be synced")),
            _ => Ok(()),
        }
    }

    /// Tries again to write what the disk refused; for a tick while nothing else is appended.
    ///
    /// # Errors
    /// Those of the disk; everything is still kept.
    pub fn retry(&self) -> io::Result<()> {
        let mut state = self.shared.state.lock();
        let result = state.writer.drain();
        self.shared.drained.store(state.writer.is_drained(), Ordering::Relaxed);
        result
    }

    /// Whether the disk has taken everything so far and no sync has failed.
    pub fn healthy(&self) -> bool {
        self.shared.drained.load(Ordering::Relaxed) && self.shared.synced.borrow().failed.is_none()
    }

    /// Keeps what is known of these tenants in as little memory as it takes, until there is something to note of them.
    pub fn rest<'a>(&self, tenants: impl IntoIterator<Item = &'a TenantId>) {
        let mut state = self.shared.state.lock();
        tenants.into_iter().for_each(|tenant| state.writer.rest(tenant));
    }

    /// Reads the current book. Appends wait meanwhile, so copy and go.
    pub fn with_book<T>(&self, read: impl FnOnce(&Book) -> T) -> T {
        read(self.shared.state.lock().writer.book())
    }
}

impl Drop for Journal {
    fn drop(&mut self) {
        {
            let mut state = self.shared.state.lock();
            // What the disk refuses even now is lost with the process; whoever appended it was told that it is not kept.
            let _ = state.writer.drain();
            state.closing = true;
        }
        self.shared.wake.notify_one();
        if let Some(syncer) = self.syncer.take() {
            let _ = syncer.join();
        }
    }
}

impl Shared {
    fn append(&self, records: &[Record], sync: bool) -> io::Result<u64> {
        let mut state = self.state.lock();
        let result = state.writer.append_all(records);
        self.drained.store(state.writer.is_drained(), Ordering::Relaxed);
        let count = result?;
        // A finished segment is synced even if nobody waits, so that a power cut costs the newest one at most.
        if sync || state.writer.has_retired() {
            state.sync_wanted = true;
            self.wake.notify_one();
        }
        Ok(count)
    }

    fn sync_until_closed(&self) {
        loop {
            let mut state = self.state.lock();
            while !state.sync_wanted && !state.closing {
                self.wake.wait(&mut state);
            }
            state.sync_wanted = false;
            let closing = state.closing;
            let unsynced = state.writer.take_unsynced();
            drop(state);
            let result = self.sync(&unsynced);
            self.synced.send_modify(|synced| match result {
                Ok(()) if synced.failed.is_none() => synced.records = unsynced.written,
                Ok(()) => {}
                Err(error) => synced.failed = Some(error.kind()),
            });
            if closing {
                return;
            }
        }
    }

    fn sync(&self, unsynced: &Unsynced) -> io::Result<()> {
        for file in &unsynced.files {
            file.sync()?;
        }
        if unsynced.folder { self.disk.sync_folder() } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;
    use std::time::Duration;

    use super::*;
    use crate::store::testing::{MemoryDisk, TENANT, at, hold, usage_line};

    fn on(disk: &MemoryDisk) -> (Journal, Recovery) {
        Journal::on(Arc::new(disk.clone()), Limits::default(), at(0)).expect("opens")
    }

    fn spent(book: &Book) -> i128 {
        book.tenants.get(&TENANT.into()).map_or(0, |page| page.spent.units())
    }

    #[test]
    fn four_threads_lose_and_double_nothing() {
        let dir = tempfile::tempdir().expect("folder");
        let limits = Limits { segment_bytes: 20_000, ..Limits::default() };
        let (journal, _) = Journal::open(dir.path(), limits, at(0)).expect("opens");
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..250 {
                        let id = journal.next_hold_id();
                        journal.append(&hold(id.0, 3)).expect("written");
                        journal.append(&usage_line(id.0, 3)).expect("written");
                    }
                });
            }
        });
        let before = journal.with_book(Book::clone);
        drop(journal);
        let (_, recovery) = Journal::open(dir.path(), limits, at(0)).expect("opens again");
        assert_eq!((recovery.torn, recovery.released.len(), spent(&recovery.book)), (None, 0, 3_000));
        assert_eq!(recovery.book, before);
        assert_eq!(recovery.book.last_hold, 1_000);
    }

    #[test]
    fn hold_ids_are_unique_over_restarts() {
        let disk = MemoryDisk::default();
        let mut seen = HashSet::new();
        for _ in 0..3 {
            let (journal, _) = on(&disk);
            for _ in 0..10 {
                let id = journal.next_hold_id();
                assert!(seen.insert(id), "{id:?} twice");
                journal.append(&hold(id.0, 1)).expect("written");
            }
        }
    }

    #[test]
    fn the_folder_is_ours_until_the_journal_is_dropped() {
        let dir = tempfile::tempdir().expect("folder");
        let (journal, _) = Journal::open(dir.path(), Limits::default(), at(0)).expect("opens");
        let second = Journal::open(dir.path(), Limits::default(), at(0));
        assert!(matches!(second.err(), Some(StoreError::Locked { .. })));
        drop(journal);
        Journal::open(dir.path(), Limits::default(), at(0)).expect("free again");
    }

    #[tokio::test]
    async fn durable_means_synced_and_those_who_wait_share() {
        let disk = MemoryDisk::default();
        let (journal, _) = on(&disk);
        journal.append(&usage_line(1, 1)).expect("written");
        assert_eq!(disk.syncs(), 0, "nobody waits for the device");
        journal.append_durable(&usage_line(2, 1)).await.expect("synced");
        assert!(disk.syncs() >= 1);
        let records: Vec<Record> = (3..103).map(|id| usage_line(id, 1)).collect();
        let all = futures_util::future::join_all(records.iter().map(|record| journal.append_durable(record)));
        assert!(all.await.iter().all(Result::is_ok));
        assert!(disk.syncs() <= 101, "{}", disk.syncs());
        assert_eq!(spent(&on(&disk.after_reboot()).1.book), 102);
    }

    #[tokio::test]
    async fn after_a_failed_sync_nothing_is_promised_any_more() {
        let disk = MemoryDisk::default();
        let (journal, _) = on(&disk);
        disk.set_no_sync(true);
        journal.append_durable(&usage_line(1, 1)).await.expect_err("not on the device");
        assert!(!journal.healthy());
        disk.set_no_sync(false);
        let record = usage_line(2, 1);
        let waited = tokio::time::timeout(Duration::from_secs(5), journal.append_durable(&record));
        waited.await.expect("answers").expect_err("a later success proves nothing");
        assert!(!journal.healthy());
    }

    #[test]
    fn a_full_disk_is_told_and_recovers_by_itself() {
        let disk = MemoryDisk::default();
        let (journal, _) = on(&disk);
        assert!(journal.healthy());
        disk.set_room(Some(10));
        journal.append(&usage_line(1, 5)).expect_err("full");
        assert!(!journal.healthy());
        journal.retry().expect_err("still full");
        disk.set_room(None);
        journal.retry().expect("room again");
        assert!(journal.healthy());
        assert_eq!(spent(&on(&disk.after_reboot()).1.book), 5);
    }
}
