//! Who else is being served on a worker's thread, and how a request that moves much data makes room for them.
//!
//! A worker is one thread that looks at its sockets only when every task that can run has run. A body that arrives
//! faster than it is read keeps its task runnable, and yielding does not help: the task is simply polled again. Parking
//! on a timer does: the thread then looks at its sockets and serves who waits there.

use std::cell::Cell;
use std::rc::Rc;
use std::time::Duration;

use crate::clock;
use crate::pure::time::Mono;

/// Bytes that are moved at a stretch while others are about: some 0.3 ms of scanning and hashing.
const STRETCH: usize = 384 * 1024;

/// How long a request parks. A timer has millisecond ticks, so this is the shortest pause there is.
const PAUSE: Duration = Duration::from_millis(1);

/// Others count as being about this long after the last of them came, even if they are all answered: the next one is
/// about to come.
const RECENT: Duration = Duration::from_millis(20);

/// The requests on one worker's thread.
#[derive(Debug)]
pub struct Crowd {
    present: Cell<usize>,
    entered: Cell<u64>,
    last_entry: Cell<Mono>,
}

impl Default for Crowd {
    fn default() -> Crowd {
        Crowd { present: Cell::new(0), entered: Cell::new(0), last_entry: Cell::new(Mono::ZERO) }
    }
}

/// One of them; leaves when dropped.
#[derive(Debug)]
pub struct Present(Rc<Crowd>);

impl Crowd {
    /// A request comes.
    pub fn enter(self: &Rc<Crowd>) -> Present {
        self.present.set(self.present.get() + 1);
        self.entered.set(self.entered.get().wrapping_add(1));
        self.last_entry.set(clock::mono());
        Present(Rc::clone(self))
    }
}

impl Present {
    /// The crowd it is in.
    pub fn crowd(&self) -> Rc<Crowd> {
        Rc::clone(&self.0)
    }
}

impl Drop for Present {
    fn drop(&mut self) {
        self.0.present.set(self.0.present.get().saturating_sub(1));
    }
}

/// Counts what one request moves, and says when it should pause.
#[derive(Debug)]
pub struct Breath {
    crowd: Rc<Crowd>,
    entered: u64,
    moved: usize,
}

impl Breath {
    /// A request of `crowd` begins to move data.
    pub fn new(crowd: &Rc<Crowd>) -> Breath {
        Breath { crowd: Rc::clone(crowd), entered: crowd.entered.get(), moved: 0 }
    }

    /// `bytes` more were moved; pauses if it is time to and others are about.
    ///
    /// # Cancel safety
    /// Safe.
    pub async fn moved(&mut self, bytes: usize) {
        if self.is_due(bytes) {
            pause().await;
        }
    }

    /// `bytes` more were moved: is it time for a [`pause`]?
    pub fn is_due(&mut self, bytes: usize) -> bool {
        self.moved += bytes;
        if self.moved < STRETCH {
            return false;
        }
        self.moved = 0;
        let crowd = &self.crowd;
        let came = crowd.entered.get() != self.entered && clock::mono().since(crowd.last_entry.get()) < RECENT;
        came || crowd.present.get() > 1
    }
}

/// Lets the others have the thread.
pub fn pause() -> tokio::time::Sleep {
    tokio::time::sleep(PAUSE)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_large_amounts_beside_others_are_worth_a_pause() {
        let crowd = Rc::new(Crowd::default());
        let own = crowd.enter();
        let mut breath = Breath::new(&crowd);
        assert!(!breath.is_due(STRETCH), "alone");
        let other = crowd.enter();
        assert!(!breath.is_due(STRETCH - 1), "too little");
        assert!(breath.is_due(1));
        assert!(!breath.is_due(1), "the count begins anew");
        drop(other);
        drop(own);
        assert_eq!(crowd.present.get(), 0);
    }
}
