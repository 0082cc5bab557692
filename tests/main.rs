//! Every integration test in one binary: real processes, real sockets, scripted providers.
#![expect(clippy::disallowed_methods, reason = "tests watch real processes, against a real clock")]

mod admin;
mod bodies;
mod cases;
mod dialects;
mod journey;
mod load;
mod money;
mod observe;
mod redis;
mod sdk;
mod support;
mod traffic;
