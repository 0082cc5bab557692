//! Every integration test in one binary: real processes, real sockets, scripted providers.

mod admin;
mod journey;
mod support;
