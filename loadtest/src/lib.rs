//! Load tools for Vectorgate.
//!
//! Owns the generating and the receiving end of a load test: a scripted [`provider`] that answers as hosted and
//! self-hosted embedding servers do, faults included. It knows nothing about the gateway between the two.

pub mod clock;
pub mod provider;
pub mod timer;
