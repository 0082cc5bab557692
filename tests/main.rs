//! Every integration test in one binary: real processes, real sockets, scripted providers.

mod cases;
mod journey;
mod support;
mod traffic;
