//! Configuration.
pub mod plan;
pub mod secret;
