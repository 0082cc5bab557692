//! One owner for each piece of changing state. Actors decide and never carry: no body passes a mailbox.
//!
//! All of them live on one control arbiter, a thread of their own, so that a question from a worker costs one thread
//! hop however many actors have a say in it, and so that no request's work ever delays a decision.
//!
//! **Invariant:** no `await` between reading and writing an actor's state; no actor does HTTP or waits for a disk.

pub mod keeper;
pub mod ledger;
pub mod router;
pub mod upstream;
