//! Vectorgate: the gateway for retrieval traffic.

pub mod actors;
pub mod cache;
pub mod cli;
pub mod clock;
pub mod config;
pub mod dashboard;
pub mod dialects;
pub mod edge;
pub mod error;
pub mod ids;
pub mod journey;
pub mod pure;
pub mod store;
pub mod telemetry;
