//! What the requests of one thread have to put into the journal, written together.
//!
//! Each record must be with the operating system before its request goes on, and a write costs as much for ten records as
//! for one. So the first request that has something to write lets the others that can run go first, and then writes for
//! all of them. Owns who writes when; refuses to know what records mean. One a thread: nothing here is locked.

use std::cell::{OnceCell, RefCell};
use std::io;
use std::rc::Rc;
use std::sync::Arc;

use tokio::sync::Notify;

use crate::store::journal::Journal;
use crate::store::record::Record;

/// Writes for the requests of one thread.
pub struct Scribe {
    journal: Arc<Journal>,
    turn: RefCell<Rc<Turn>>,
}

/// What is written together, and how that ended.
#[derive(Default)]
struct Turn {
    records: RefCell<Vec<Record>>,
    end: OnceCell<Result<(), (io::ErrorKind, String)>>,
    done: Notify,
}

impl Turn {
    fn result(&self) -> io::Result<()> {
        match self.end.get() {
            Some(Ok(())) => Ok(()),
            Some(Err((kind, message))) => Err(io::Error::new(*kind, message.clone())),
            None => Err(io::ErrorKind::Interrupted.into()),
        }
    }
}

impl Scribe {
    /// Nothing to write yet.
    pub fn new(journal: Arc<Journal>) -> Scribe {
        Scribe { journal, turn: RefCell::default() }
    }

    /// Hands records to the operating system, together with those of other requests of this thread.
    ///
    /// # Errors
    /// As [`Journal::append_all`], for all that were written together.
    ///
    /// # Cancel safety
    /// The records are accepted when the future is first polled and written also if it is dropped then.
    pub async fn write(&self, records: Vec<Record>) -> io::Result<()> {
        if records.is_empty() {
            return Ok(());
        }
        let turn = Rc::clone(&self.turn.borrow());
        let first = {
            let mut waiting = turn.records.borrow_mut();
            let first = waiting.is_empty();
            waiting.extend(records);
            first
        };
        if first {
            let leading = Leading { scribe: self, turn: Rc::clone(&turn) };
            tokio::task::yield_now().await;
            drop(leading);
        } else {
            let done = turn.done.notified();
            if turn.end.get().is_none() {
                done.await;
            }
        }
        turn.result()
    }
}

/// The duty to write a turn, which nobody else has; done when it is dropped.
struct Leading<'a> {
    scribe: &'a Scribe,
    turn: Rc<Turn>,
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        // Whoever comes from now on begins the next turn.
        self.scribe.turn.take();
        let records = self.turn.records.take();
        let written = self.scribe.journal.append_all(&records);
        let end = written.map_err(|error| (error.kind(), error.to_string()));
        if self.turn.end.set(end).is_ok() {
            self.turn.done.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use futures_util::future::join_all;

    use super::*;
    use crate::store::testing::{MemoryDisk, at, usage_line};
    use crate::store::writer::Limits;

    fn scribe(disk: &MemoryDisk) -> Scribe {
        let (journal, _) = Journal::on(Arc::new(disk.clone()), Limits::default(), at(0)).expect("opens");
        Scribe::new(Arc::new(journal))
    }

    /// Records in the file: the first line is a snapshot.
    fn written(disk: &MemoryDisk) -> usize {
        disk.bytes(1).iter().filter(|byte| **byte == b'\n').count() - 1
    }

    #[actix_web::test]
    async fn whoever_is_told_finds_its_records_written_and_the_next_turn_begins_anew() {
        let disk = MemoryDisk::default();
        let scribe = scribe(&disk);
        for turn in 0..3 {
            let writes = (0..5).map(|n| scribe.write(vec![usage_line(turn * 10 + n, 1)]));
            assert!(join_all(writes).await.iter().all(Result::is_ok));
            assert_eq!(written(&disk) as u64, (turn + 1) * 5);
        }
        scribe.write(Vec::new()).await.expect("nothing to write");
    }

    #[actix_web::test]
    async fn a_request_that_is_dropped_meanwhile_leaves_nobody_waiting() {
        let disk = MemoryDisk::default();
        let scribe = scribe(&disk);
        let mut first = Box::pin(scribe.write(vec![usage_line(1, 1)]));
        assert!(futures_util::poll!(first.as_mut()).is_pending());
        let second = scribe.write(vec![usage_line(2, 1)]);
        let mut second = Box::pin(second);
        assert!(futures_util::poll!(second.as_mut()).is_pending());
        drop(first);
        second.await.expect("written by whoever was dropped");
        assert_eq!(written(&disk), 2);
    }

    #[actix_web::test]
    async fn a_disk_that_refuses_is_told_to_all() {
        let disk = MemoryDisk::default();
        let scribe = scribe(&disk);
        disk.set_room(Some(10));
        let writes = (0..3).map(|n| scribe.write(vec![usage_line(n, 1)]));
        assert!(join_all(writes).await.iter().all(Result::is_err));
        disk.set_room(None);
        scribe.write(vec![usage_line(9, 1)]).await.expect("room again");
        assert_eq!(written(&disk), 4, "what was accepted is written later");
    }
}
