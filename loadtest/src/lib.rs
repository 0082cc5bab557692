//! Load tools for Vectorgate.
//!
//! Owns both ends of a load test: a scripted [`provider`] that answers as hosted and self-hosted embedding servers do,
//! faults included, and an open-loop [`engine`] that sends. A [`scenario`] says what is sent, what goes wrong and what must
//! hold; [`run`] runs it between [`servers`] of its own; [`report`] shows what came of it. [`compare`] puts servers side by
//! side. None of them knows what is inside the gateway between the two ends.

pub mod clock;
pub mod compare;
pub mod engine;
pub mod provider;
pub mod report;
pub mod run;
pub mod scenario;
pub mod servers;
pub mod timer;
