//! What outlives the process: balances and usage records, in an append-only journal.
//!
//! - [`record`]: the facts that are kept, one a line
//! - [`book`]: what a sequence of facts amounts to
//! - [`pages`]: how the pages of all tenants lie in memory
//! - [`collections`]: what is kept of collections that move between models
//! - [`segment`]: lines with checksums, and where a damaged file stops being trusted
//! - [`disk`]: the folder
//! - [`writer`]: appends, keeps what the disk refused, starts new segments, recovers
//! - [`journal`]: the writer for many threads, and syncing to the device
//! - [`audit`]: reading back what was done on the admin side
//! - [`redis`]: the ledger that replicas share
//! - [`copy`]: checking, backing up and restoring the whole
//! - [`retention`]: old records as sums
//! - [`usage`]: reading records back, filtered and summed
//!
//! Invariant: no rule about money is made here; accounts decide, the store remembers.

pub mod audit;
pub mod book;
pub mod collections;
pub mod copy;
pub mod disk;
pub mod journal;
mod line;
pub mod pages;
pub mod record;
pub mod redis;
pub mod retention;
pub mod segment;
pub mod usage;
pub mod writer;

#[cfg(test)]
mod simulation;
#[cfg(test)]
pub(crate) mod testing;
