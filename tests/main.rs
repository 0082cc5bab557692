//! Every integration test in one binary: real processes, real sockets, scripted providers.

mod cases;
mod dialects;
mod journey;
mod money;
mod observe;
mod redis;
mod sdk;
mod support;
