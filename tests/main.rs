//! Every integration test in one binary: real processes, real sockets, scripted providers.

mod bodies;
mod journey;
mod support;
