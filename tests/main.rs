//! Every integration test in one binary: real processes, real sockets, scripted providers.

mod cases;
mod dialects;
mod journey;
mod money;
mod sdk;
mod support;
mod traffic;
