//! Every integration test in one binary: real processes, real sockets, scripted providers.
#![expect(clippy::disallowed_methods, reason = "tests watch real processes, against a real clock")]

mod admin;
mod bodies;
mod cases;
mod chat;
mod dialects;
mod fuzz;
mod hostile;
mod journey;
mod load;
mod migration;
mod money;
mod observe;
mod packaging;
mod redis;
mod sdk;
mod support;
mod traffic;
