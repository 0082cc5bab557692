//! Configuration: a TOML text and the environment in, a [`plan::Plan`] or all problems out.
//!
//! One pass through five steps, each in its own file: the text becomes a `tree` that knows its lines; `builtin`
//! entries stand in where no model and no upstream is named; the `environment` overrides keys; models inherit from the
//! `catalogue`; `shape` holds every key against the `schema`; `rules` resolve secrets, check what keys mean together
//! and build the plan. Each step reports what it refuses and goes on.

mod builtin;
pub(crate) mod catalogue;
mod describe;
mod environment;
mod fields;
pub mod limits;
mod machine;
pub mod plan;
mod problem;
mod rules;
mod schema;
pub mod secret;
mod shape;
#[cfg(test)]
mod tests;
mod tree;

use std::borrow::Cow;
use std::path::{Path, PathBuf};

use sha2::{Digest, Sha256};

pub use environment::Environment;
pub use problem::{Problem, Problems};

use crate::ids::TenantId;
use plan::{Plan, TenantSource};
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

    /// This source with its text read: what is loaded from it later is what was in the file now.
    ///
    /// # Errors
    /// When the file cannot be read.
    pub fn read(&self) -> Result<Source, Problems> {
        Ok(Source::Text { name: self.name(), text: self.text()?.into_owned() })
    }

    fn text(&self) -> Result<Cow<'_, str>, Problems> {
        match self {
            Source::Text { text, .. } => Ok(Cow::Borrowed(text)),
            Source::File(path) => std::fs::read_to_string(path).map(Cow::Owned).map_err(|error| {
                let right = "name a readable file in UTF-8 with --config";
                let what = format!("cannot be read: {error}");
                Report::new(&self.name()).only(&Origin::Default, &problem::Path::default(), what, right)
            }),
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

/// A tenant that was made on the admin side.
#[derive(Debug, Clone, PartialEq)]
pub struct GivenTenant {
    /// Its id.
    pub id: TenantId,
    /// Its settings, in the form of a `[[tenants]]` entry.
    pub settings: serde_json::Value,
}

/// What a configuration is completed with besides the environment.
#[derive(Default)]
pub struct Joined<'a> {
    /// Tenants made on the admin side; one that the file names too is left to the file.
    pub tenants: &'a [GivenTenant],
    /// The plan that runs, whose bound keys may not differ.
    pub running: Option<&'a Plan>,
}

/// Reads, completes and checks a configuration. Reads the file of `source` and the files of secrets; nothing else is
/// opened or called.
///
/// # Errors
/// Everything that is wrong, at once. A text that is not TOML has that one problem.
pub fn load(source: &Source, environment: &Environment) -> Result<Plan, Problems> {
    load_with(&source.read()?, environment, &Joined::default())
}

/// As [`load`], joined with what a running gateway knows.
///
/// # Errors
/// As [`load`].
pub fn load_with(source: &Source, environment: &Environment, joined: &Joined<'_>) -> Result<Plan, Problems> {
    let (mut plan, report) = assemble(source, environment, joined)?;
    plan.warnings = report.finish()?;
    Ok(plan)
}

/// As [`load_with`], for a start: tenants made on the admin side that the configuration no longer allows are left out,
/// and what is wrong with them comes back beside the plan. Their money stays where it is.
///
/// # Errors
/// As [`load`]: what is wrong with the configuration itself.
pub fn load_without_misfits(
    source: &Source,
    environment: &Environment,
    mut tenants: Vec<GivenTenant>,
) -> Result<(Plan, Vec<Problem>), Problems> {
    let mut misfits: Vec<Problem> = Vec::new();
    loop {
        let (mut plan, report) = assemble(source, environment, &Joined { tenants: &tenants, running: None })?;
        let of_given = |problem: &&Problem| problem.given;
        let found: Vec<Problem> = report.problems().iter().filter(of_given).cloned().collect();
        if found.is_empty() || found.len() < report.problems().len() {
            plan.warnings = report.finish()?;
            return Ok((plan, misfits));
        }
        let before = tenants.len();
        tenants.retain(|tenant| found.iter().all(|problem| problem.entry != tenant.id.as_str()));
        if tenants.len() == before {
            // Nobody to leave out: then nobody's fault is small enough to pass over.
            return Err(Problems(found));
        }
        misfits.extend(found);
    }
}

/// Checks one tenant for the admin side by the rules of `source`, whatever else may be wrong with that by now.
///
/// # Errors
/// Everything that is wrong with the tenant.
pub fn check_tenant(
    source: &Source,
    environment: &Environment,
    tenant: &GivenTenant,
) -> Result<std::sync::Arc<plan::Tenant>, Problems> {
    let joined = Joined { tenants: std::slice::from_ref(tenant), running: None };
    let (plan, report) = assemble(source, environment, &joined)?;
    let wrong: Vec<Problem> = report.problems().iter().filter(|problem| problem.given).cloned().collect();
    let made = plan.tenants.into_iter().find(|one| one.id == tenant.id && one.source == TenantSource::Admin);
    match made {
        Some(made) if wrong.is_empty() => Ok(made),
        _ => Err(Problems(wrong)),
    }
}

fn assemble(source: &Source, environment: &Environment, joined: &Joined<'_>) -> Result<(Plan, Report), Problems> {
    let text = source.text()?;
    let mut report = Report::new(&source.name());
    let top = problem::Path::default();
    let mut tree = tree::parse(&text)
        .map_err(|error| report.only(&Origin::Line(error.line), &top, format!("not TOML: {}", error.message), ""))?;
    builtin::add(&mut tree, environment);
    environment::apply(&mut tree, environment, &mut report);
    inherit(&mut tree);
    join(&mut tree, joined.tenants);
    shape::check(&mut tree, &mut report);
    let version = hex::encode(&Sha256::digest(text.as_bytes())[..6]);
    let plan = rules::build(&tree, environment, version, &mut report);
    rules::check_memory(&plan, machine::memory_bytes(), &mut report);
    if let Some(running) = joined.running {
        rules::check_fixed(&tree, running, &plan, &mut report);
    }
    Ok((plan, report))
}

/// Adds the tenants that were made on the admin side and that the file does not name.
fn join(tree: &mut Table, tenants: &[GivenTenant]) {
    if tenants.is_empty() {
        return;
    }
    tree.set_if_absent("tenants", &tree::Node { value: Value::List(Vec::new()), at: Origin::Default });
    let Some(Value::List(list)) = tree.get_mut("tenants").map(|node| &mut node.value) else { return };
    let id_of = |node: &tree::Node| match &node.value {
        Value::Table(table) => table.get("id").and_then(|id| id.value.as_text()).map(str::to_owned),
        _ => None,
    };
    let named: std::collections::HashSet<String> = list.iter().filter_map(id_of).collect();
    let new = tenants.iter().filter(|tenant| !named.contains(tenant.id.as_str()));
    list.extend(new.filter_map(|tenant| tree::from_json(&tenant.settings)));
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
