//! What is told of a panic: where it was, at once, and the way there from another thread.
//!
//! The standard report finds the names of a backtrace's frames on the thread that panicked. That takes up to a second,
//! in which an actor's thread answers nobody, so that one fault would refuse a second's requests. The panic's message is
//! not repeated here: what the standard library says of a text quotes it.

use std::backtrace::{Backtrace, BacktraceStatus};
use std::panic::{self, Location};
use std::thread;

/// Replaces the standard report for the whole process.
pub fn install() {
    panic::set_hook(Box::new(|info| {
        let at = info.location().map(Location::to_string).unwrap_or_default();
        let name = thread::current().name().unwrap_or("?").to_owned();
        tracing::error!(at, thread = name, "panicked");
        // Frames are only collected here, as far as RUST_BACKTRACE asks for them; their names are found by `to_string`.
        let frames = Backtrace::capture();
        if frames.status() == BacktraceStatus::Captured {
            let tell = move || tracing::error!(at, backtrace = frames.to_string(), "the way to the panic");
            if let Err(error) = thread::Builder::new().name("backtrace".to_owned()).spawn(tell) {
                tracing::error!(%error, "no thread for a backtrace");
            }
        }
    }));
}
