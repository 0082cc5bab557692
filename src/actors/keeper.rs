//! Supervision that is true: a panic inside a handler becomes a supervised restart.
//!
//! actix's own supervisor restarts an actor that stops itself; a panic unwinds through the supervisor's task and closes
//! the address for good. So every handler body runs inside [`guarded`]: the panic is caught, the caller gets an error,
//! and the actor stops itself cleanly. Its address stays valid, its queued messages are kept, and `restarting()` puts
//! its state in order before the next one is handled.

use std::any::Any;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};

use actix::{Actor, ActorContext};

/// Which actor something happened to; the label of `vectorgate_actor_restarts_total`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ActorKind {
    /// Owns one upstream.
    Upstream,
    /// Owns one tenant's balance.
    Ledger,
    /// Chooses upstreams.
    Router,
}

impl ActorKind {
    /// The label's value.
    pub const fn as_str(self) -> &'static str {
        match self {
            ActorKind::Upstream => "upstream",
            ActorKind::Ledger => "ledger",
            ActorKind::Router => "router",
        }
    }
}

/// A handler's body panicked; the actor is being restarted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Panicked;

impl fmt::Display for Panicked {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the actor is restarting after a fault")
    }
}

/// Runs a handler's body; a panic stops the actor, which its supervisor answers with a restart.
///
/// # Errors
/// [`Panicked`] when the body panicked. What the body had changed by then stays changed: `restarting()` of each actor
/// puts its own state in order.
pub fn guarded<A, R>(context: &mut A::Context, kind: ActorKind, body: impl FnOnce() -> R) -> Result<R, Panicked>
where
    A: Actor,
    A::Context: ActorContext,
{
    catch_unwind(AssertUnwindSafe(body)).map_err(|panic| {
        tracing::error!(actor = kind.as_str(), cause = reason(panic.as_ref()), "actor panicked, restarting it");
        context.stop();
        Panicked
    })
}

fn reason(panic: &(dyn Any + Send)) -> &str {
    panic.downcast_ref::<&str>().copied().or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("?")
}
