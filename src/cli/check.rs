//! `vectorgate check`: everything that is wrong with a configuration, or what it resolves to.
//!
//! Knows where the answer goes; refuses to know any rule.

use std::path::Path;
use std::process::ExitCode;

use crate::clock;
use crate::config::{self, Environment, Source};

/// Checks the configuration at `path` (by default the one that `serve` takes) against the environment of this process.
/// Prints the resolved plan to stdout, or all problems to stderr. Exit code 0 or 1.
pub fn run(path: Option<&Path>) -> ExitCode {
    let source = Source::of(path);
    match config::load(&source, &Environment::of_process()) {
        Ok(plan) => {
            print!("{}: valid\n{}", source.name(), plan.describe(clock::wall()));
            ExitCode::SUCCESS
        }
        Err(problems) => {
            let count = problems.0.len();
            eprintln!("{problems}\n{count} problem{} in {}", if count == 1 { "" } else { "s" }, source.name());
            ExitCode::FAILURE
        }
    }
}
