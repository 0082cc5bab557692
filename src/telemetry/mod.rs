//! What the outside can see of the process: metrics, logs, traces and the timeline of events.
//!
//! Owns every name that appears on `/metrics`, every label value and the set-up of logging and trace export. Decides
//! nothing about traffic: other modules tell it what happened through typed methods and never spell a metric's name.

mod collections;
mod departed;
pub mod events;
pub mod exposition;
pub mod hub;
pub mod labels;
pub mod lines;
pub mod logs;
pub mod metrics;
mod models;
pub mod names;
pub mod otlp;
pub mod panics;
pub mod requests;
pub mod tenants;
pub mod timeline;
pub mod traces;
pub mod upstreams;

pub use departed::TOTALS_STAY;
pub use hub::Telemetry;
pub use labels::CacheResult;
