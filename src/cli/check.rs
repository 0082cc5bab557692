//! `vectorgate check`: everything that is wrong with a configuration, or what it resolves to.
//!
//! Knows where the answer goes; refuses to know any rule.

use std::path::Path;
use std::process::ExitCode;

use crate::clock;
use crate::config::plan::Plan;
use crate::config::{self, Environment, Source};
use crate::pure::utc::Stamp;
use crate::store::book::Book;
use crate::store::copy;

/// Checks the configuration at `path` (by default the one that `serve` takes) against the environment of this process.
/// Prints the resolved plan to stdout, or all problems to stderr. Exit code 0 or 1.
pub fn run(path: Option<&Path>) -> ExitCode {
    let source = Source::of(path);
    match config::load(&source, &Environment::of_process()) {
        Ok(plan) => {
            print!("{}: valid\n{}{}", source.name(), plan.describe(clock::wall()), made_while_running(&plan));
            ExitCode::SUCCESS
        }
        Err(problems) => {
            let count = problems.0.len();
            eprintln!("{problems}\n{count} problem{} in {}", if count == 1 { "" } else { "s" }, source.name());
            ExitCode::FAILURE
        }
    }
}

/// What was done on the admin side, as the journal of this configuration knows it: it holds over the file.
fn made_while_running(plan: &Plan) -> String {
    match copy::book(&plan.store.path) {
        Ok(book) => {
            let book = book.unwrap_or_default();
            tenants(plan, &book) + &stages(plan, &book)
        }
        Err(error) => format!("\nthe ledger could not be read for what was done on the admin side: {error}\n"),
    }
}

/// Stages that were set there for moves that the file names.
fn stages(plan: &Plan, book: &Book) -> String {
    let staged = plan.collections.iter().filter_map(|one| {
        let staged = book.collections.0.get(&one.name)?.staged(&one.from, &one.to)?;
        Some(format!("  {}  {} since {}\n", one.name, staged.position, Stamp(staged.at)))
    });
    let lines: String = staged.collect();
    if lines.is_empty() { lines } else { format!("\nstages set on the admin side, which hold\n{lines}") }
}

/// The tenants that were made there, and whose settings hold.
fn tenants(plan: &Plan, book: &Book) -> String {
    let mut lines = String::new();
    for (id, page) in book.tenants.with_details() {
        if page.created.is_none() && page.keys.is_empty() && page.revoked.is_empty() {
            continue;
        }
        let named = plan.tenants.iter().any(|tenant| tenant.id == id);
        let settings = match (&page.created, named) {
            (Some(_), false) => "its settings are the admin side's",
            (Some(_), true) => "the file names it too: the file's settings hold",
            (None, true) => "its settings are the file's",
            (None, false) => "the file no longer names it",
        };
        let (added, revoked) = (page.keys.len(), page.revoked.len());
        lines.push_str(&format!("  {id}  {settings}; keys added {added}, revoked {revoked}\n"));
    }
    if lines.is_empty() { lines } else { format!("\nmade on the admin side\n{lines}") }
}
