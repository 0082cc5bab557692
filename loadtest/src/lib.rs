//! Load tools for Vectorgate.
//!
//! Owns both ends of a load test: a scripted [`provider`] that answers as hosted and self-hosted embedding servers do,
//! faults included, and an open-loop [`engine`] that sends. [`compare`] puts servers side by side. None of them knows
//! what is inside the gateway between the two ends.

pub mod clock;
pub mod compare;
pub mod engine;
pub mod provider;
pub mod timer;
