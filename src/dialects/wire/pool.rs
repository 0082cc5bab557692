//! A worker's connections to one place: which is used next, and when one is closed. Owns no request, and not whose it is: upstreams
//! that differ in nothing but what requests say (a key, a path) share them, so that what a connection costs does not depend
//! on how many upstreams there are. How many calls each may make at once is its [`Turns`].
//!
//! The connection that was used last is used next. It is the least likely to have been closed by its far end, and after
//! a burst those that are not needed any more grow old and go, where taking turns would keep all of them alive.

use std::cell::{Cell, RefCell};
use std::collections::{HashMap, VecDeque};
use std::rc::{Rc, Weak};
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, OwnedSemaphorePermit, Semaphore};
use tokio::time::timeout;

use super::connect::{Io, Origin, Place};
use super::http2::{Lines, Stream};
use super::{BROKEN, KEEP_ALIVE, LIFETIME, WireError};
use crate::clock;
use crate::pure::time::Mono;

/// The places that a worker has connections to, or is about to. A place is kept by who may call it: once that is nobody, its
/// connections are closed.
#[derive(Default)]
pub struct Places(RefCell<HashMap<Place, Weak<Pool>>>);

/// Calls that one upstream may make at once from here; each waits for its turn, first come, first served.
pub(super) struct Turns(Arc<Semaphore>);

/// The connections to one place.
pub(super) struct Pool {
    origin: Origin,
    /// Nobody's at the moment; the last used is the last.
    idle: RefCell<VecDeque<Idle>>,
    lines: Lines,
    /// Whether one connection is enough for many calls. Held while one is made to a host of which that is not known, or
    /// known: calls that come together shall not make one each.
    speaks: Cell<Speaks>,
    connecting: Mutex<()>,
}

/// What the far end chose when it was connected to last.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Speaks {
    /// It has not been asked yet.
    Unknown,
    Http1,
    Http2,
}

struct Idle {
    io: Io,
    created: Mono,
    used: Mono,
}

/// A way to make one call.
pub(super) enum Way {
    /// A connection of its own.
    Http1(Lease),
    /// A stream of a connection.
    Http2(Stream),
}

/// A connection of HTTP/1.1 that one call has for itself. Dropped, it is closed.
pub(super) struct Lease {
    pool: Rc<Pool>,
    io: Io,
    created: Mono,
    is_new: bool,
    _turn: OwnedSemaphorePermit,
}

impl Places {
    /// The connections to `place`.
    ///
    /// # Errors
    /// It cannot be called.
    pub(super) fn pool(&self, place: Place) -> Result<Rc<Pool>, WireError> {
        let mut pools = self.0.borrow_mut();
        if let Some(pool) = pools.get(&place).and_then(Weak::upgrade) {
            return Ok(pool);
        }
        let pool = Pool::new(Origin::new(place.clone())?);
        pools.insert(place, Rc::downgrade(&pool));
        Ok(pool)
    }

    /// Closes connections that have not been used for long, renews what is old, and forgets places that nobody calls any
    /// more; to be called now and then.
    pub fn tidy(&self, now: Mono) {
        self.0.borrow_mut().retain(|_, pool| {
            let pool = pool.upgrade();
            if let Some(pool) = &pool {
                pool.tidy(now);
            }
            pool.is_some()
        });
    }
}

impl Turns {
    /// So many turns at once, one at least.
    pub fn new(at_once: usize) -> Turns {
        Turns(Arc::new(Semaphore::new(at_once.clamp(1, Semaphore::MAX_PERMITS))))
    }

    /// The next one.
    ///
    /// # Cancel safety
    /// Safe: the next call is let in.
    async fn next(&self) -> Result<OwnedSemaphorePermit, WireError> {
        match Arc::clone(&self.0).try_acquire_owned() {
            Ok(turn) => Ok(turn),
            Err(_taken) => Arc::clone(&self.0).acquire_owned().await.map_err(|_closed| BROKEN),
        }
    }
}

impl Pool {
    /// No connection yet.
    fn new(origin: Origin) -> Rc<Pool> {
        let speaks = if origin.is_secure() { Speaks::Unknown } else { Speaks::Http1 };
        Rc::new(Pool {
            origin,
            idle: RefCell::default(),
            lines: Lines::default(),
            speaks: Cell::new(speaks),
            connecting: Mutex::new(()),
        })
    }

    /// A way for the next call, as soon as it has its turn.
    ///
    /// # Errors
    /// [`WireError::Connect`].
    ///
    /// # Cancel safety
    /// Safe: the next call is let in.
    pub async fn way(self: &Rc<Pool>, turns: &Turns) -> Result<Way, WireError> {
        let turn = turns.next().await?;
        let now = clock::mono();
        if let Some(Idle { io, created, .. }) = self.take_idle(now) {
            return Ok(Way::Http1(Lease { pool: Rc::clone(self), io, created, is_new: false, _turn: turn }));
        }
        // Rare, and large: it shall not be part of every call's future.
        Box::pin(self.new_way(turn)).await
    }

    fn take_idle(&self, now: Mono) -> Option<Idle> {
        let mut idle = self.idle.borrow_mut();
        while let Some(mut last) = idle.pop_back() {
            if !last.is_old(now) && last.io.is_quiet() {
                return Some(last);
            }
            last.io.close();
        }
        None
    }

    async fn new_way(self: &Rc<Pool>, turn: OwnedSemaphorePermit) -> Result<Way, WireError> {
        if self.speaks.get() == Speaks::Http1 {
            return self.connect(turn).await;
        }
        let free = |turn| match self.lines.free(clock::mono()) {
            Some(line) => Ok(Way::Http2(line.stream(turn))),
            None => Err(turn),
        };
        let turn = match free(turn) {
            Ok(way) => return Ok(way),
            Err(turn) => turn,
        };
        // Whoever waits for another's attempt waits no longer than for its own.
        let patience = self.origin.patience();
        let Ok(alone) = timeout(patience, self.connecting.lock()).await else {
            return Err(WireError::Connect("did not accept the connection in time"));
        };
        let turn = match free(turn) {
            Ok(way) => return Ok(way),
            Err(turn) => turn,
        };
        if self.speaks.get() == Speaks::Http1 {
            drop(alone);
        }
        self.connect(turn).await
    }

    async fn connect(self: &Rc<Pool>, turn: OwnedSemaphorePermit) -> Result<Way, WireError> {
        let (io, two) = self.origin.connect().await?;
        let created = clock::mono();
        self.speaks.set(if two { Speaks::Http2 } else { Speaks::Http1 });
        if two {
            let line = self.lines.open(io, created).await?;
            return Ok(Way::Http2(line.stream(turn)));
        }
        Ok(Way::Http1(Lease { pool: Rc::clone(self), io, created, is_new: true, _turn: turn }))
    }

    fn tidy(&self, now: Mono) {
        let mut idle = self.idle.borrow_mut();
        while idle.front().is_some_and(|first| first.is_old(now)) {
            idle.pop_front().into_iter().for_each(|first| first.io.close());
        }
        drop(idle);
        self.lines.tidy(now);
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        for idle in self.idle.get_mut().drain(..) {
            idle.io.close();
        }
    }
}

impl Idle {
    fn is_old(&self, now: Mono) -> bool {
        is_old(self.created, self.used, now)
    }
}

/// Whether a connection is to be replaced.
pub(super) fn is_old(created: Mono, used: Mono, now: Mono) -> bool {
    let longer = |since: Mono, most: Duration| now.since(since) > most;
    longer(used, KEEP_ALIVE) || longer(created, LIFETIME)
}

impl Lease {
    /// The connection.
    pub fn io(&mut self) -> &mut Io {
        &mut self.io
    }

    /// Whether nothing has been sent over it before.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Its answer is complete and it can carry another one.
    pub fn give_back(self) {
        let Lease { pool, io, created, .. } = self;
        pool.idle.borrow_mut().push_back(Idle { io, created, used: clock::mono() });
    }
}

#[cfg(test)]
mod tests;
