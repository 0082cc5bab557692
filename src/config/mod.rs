//! Configuration: a TOML text and the environment in, a [`plan::Plan`] or all problems out.
//!
//! One pass through five steps, each in its own file: the text becomes a `tree` that knows its lines; `builtin`
//! entries stand in where no model and no upstream is named; the `environment` overrides keys; models inherit from the
//! `catalogue`; `shape` holds every key against the `schema`; `rules` resolve secrets, check what keys mean together
//! and build the plan. Each step reports what it refuses and goes on.

mod builtin;
mod catalogue;
mod describe;
mod environment;
mod fields;
pub mod limits;
mod machine;
mod not_yet;
pub mod plan;
mod problem;
mod rules;
mod schema;
pub mod secret;
mod shape;
#[cfg(test)]
mod tests;
mod tree;

use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

pub use environment::Environment;
pub use problem::{Problem, Problems};

use plan::Plan;
use problem::Report;
use tree::{Origin, Table, Value};

/// The default configuration: every key, commented, at its default.
pub const DEFAULT_TEXT: &str = include_str!("../../config/gateway.toml");

/// Where the default configuration lies in a checkout; what is served when no file is named.
const DEFAULT_PATH: &str = "config/gateway.toml";

/// Where a configuration comes from. Its `Debug` form is its name: a text may hold secrets.
#[derive(Clone, PartialEq, Eq)]
pub enum Source {
    /// A file, read at each load.
    File(PathBuf),
    /// A text, and what to call it in problems.
    Text {
        /// Its name.
        name: String,
        /// The text.
        text: String,
    },
}

impl Source {
    /// The file that was asked for; else `config/gateway.toml` if there is one below the current directory, else the
    /// same text as built in.
    pub fn of(path: Option<&Path>) -> Source {
        match path {
            Some(path) => Source::File(path.to_owned()),
            None if Path::new(DEFAULT_PATH).exists() => Source::File(PathBuf::from(DEFAULT_PATH)),
            None => Source::Text { name: "built-in configuration".to_owned(), text: DEFAULT_TEXT.to_owned() },
        }
    }

    /// What problems call it.
    pub fn name(&self) -> String {
        match self {
            Source::File(path) => path.display().to_string(),
            Source::Text { name, .. } => name.clone(),
        }
    }
}

impl std::fmt::Debug for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.name())
    }
}

/// Reads, completes and checks a configuration. Reads the file of `source` and the files of secrets; nothing else is
/// opened or called.
///
/// # Errors
/// Everything that is wrong, at once. A text that is not TOML has that one problem.
pub fn load(source: &Source, environment: &Environment) -> Result<Plan, Problems> {
    let mut report = Report::new(&source.name());
    let top = problem::Path::default();
    let text = match source {
        Source::Text { text, .. } => text.clone(),
        Source::File(path) => std::fs::read_to_string(path).map_err(|error| {
            let right = "name a readable file in UTF-8 with --config";
            report.only(&Origin::Default, &top, format!("cannot be read: {error}"), right)
        })?,
    };
    let mut tree = tree::parse(&text)
        .map_err(|error| report.only(&Origin::Line(error.line), &top, format!("not TOML: {}", error.message), ""))?;
    builtin::add(&mut tree, environment);
    environment::apply(&mut tree, environment, &mut report);
    inherit(&mut tree);
    shape::check(&mut tree, &mut report);
    let version = hex::encode(&Sha256::digest(&text)[..6]);
    let mut plan = rules::build(&tree, environment, version, &mut report);
    rules::check_memory(&plan, machine::memory_bytes(), &mut report);
    plan.warnings = report.finish()?;
    Ok(plan)
}

/// Lets every model entry inherit from the catalogue.
fn inherit(tree: &mut Table) {
    if let Some(Value::List(models)) = tree.get_mut("models").map(|node| &mut node.value) {
        for model in models {
            if let Value::Table(model) = &mut model.value {
                catalogue::inherit(model);
            }
        }
    }
}
