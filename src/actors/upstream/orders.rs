//! What an upstream's actor is told to do, by operators and by the gateway itself. Refuses to know what follows from it.

use actix::prelude::*;

/// An operator's or the gateway's own order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Command {
    /// Take no new calls; those under way finish.
    Drain,
    /// Take calls again, also with a key that was set aside.
    Resume,
    /// Open the breaker until it is closed by order.
    Open,
    /// Close the breaker.
    Close,
    /// Use it only once its vectors have been looked at.
    AwaitCheck,
    /// Its vectors are those of its space.
    Verified,
    /// Its vectors were asked for and did not come.
    CheckFailed,
    /// Its vectors are others: take it out.
    Quarantine,
    /// Try the key again: a reload brought another.
    Unpark,
    /// Let accepted work finish and turn away batch work that only waits: the process ends.
    ShutDown,
}

/// Tells an upstream what to do.
#[derive(Debug, Message)]
#[rtype(result = "()")]
pub struct Order(
    /// The order.
    pub Command,
);
