//! Every integration test in one binary: real processes, real sockets, scripted providers.

mod admin;
mod cases;
mod dialects;
mod journey;
mod money;
mod sdk;
mod support;
