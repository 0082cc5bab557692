//! Vectorgate: the gateway for retrieval traffic.
//!
//! Read in the order in which data meets the modules. A request enters at [`edge`], which knows HTTP and nothing of
//! providers; [`dialects`] turns the client's words into a canonical call; [`journey`] takes it from admission to its
//! settled answer, asking the [`actors`] for leave (money, a permit) and the [`cache`] for what is known; the upstream
//! is called by the worker that holds the request; [`store`] keeps what it cost. Every decision on the way is made in
//! [`pure`], where nothing can read a clock.
//!
//! Dependencies point one way: `edge → journey → {actors, cache, dialects, store} → pure`.

pub mod cli;
pub mod config;
pub mod gateway;
pub mod lifecycle;
pub mod manager;
pub mod runtime;
pub mod sentinel;
pub mod server;
pub mod worker;

pub mod edge;
pub mod journey;

pub mod actors;
pub mod cache;
pub mod dashboard;
pub mod dialects;
pub mod store;

pub mod pure;

pub mod backlog;
pub mod clock;
pub mod crowd;
pub mod error;
pub mod ids;
pub mod room;
pub mod scribe;
pub mod spool;
pub mod telemetry;
pub mod tls;
pub mod tokens;
pub mod vector;
