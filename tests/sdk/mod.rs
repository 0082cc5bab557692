//! Official SDKs against the gateway, unchanged but for base URL and key: the newest of each and the major before it.
//!
//! `tests/run` installs them, and an embedding server with a real model (see `tests/sdk/install`); without them these tests
//! fail and say so.

mod answers;
mod chat;
mod exceptions;
mod openai;
pub mod run;
