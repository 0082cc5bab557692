//! How keys depend on each other, and the plan that comes out.
//!
//! Knows every rule of a configuration; refuses to know TOML, overrides and single keys' types. Each part builds its
//! piece of the plan even when something in it was refused, so that one pass reports everything; the plan is thrown
//! away when the report holds a problem.

mod cross;
mod fixed;
mod models;
mod sections;
mod tenants;
mod upstreams;

pub(crate) use cross::check_memory;
pub(crate) use fixed::check as check_fixed;

use super::catalogue;
use super::environment::Environment;
use super::fields::Fields;
use super::plan::{Plan, Provider, Retirement};
use super::problem::{Path, Report};
use super::schema::section_named;
use super::tree::{Origin, Table, Value};
use crate::pure::utc;

/// Applies every rule to a tree that the schema has accepted, and builds the plan. `version` is passed through.
pub(crate) fn build(tree: &Table, environment: &Environment, version: String, report: &mut Report) -> Plan {
    let server = sections::server(&section(tree, "server"), environment, report);
    let money = sections::money(&section(tree, "money"), report);
    let store = sections::store(&section(tree, "store"), environment, report);
    let cache = sections::cache(&section(tree, "cache"));
    let quota = sections::quota(&section(tree, "quota"), report);
    sections::check_redis(tree, &store, report);
    let breaker = sections::breaker(&section(tree, "breaker"));
    let retry = sections::retry(&section(tree, "retry"), report);
    let slo = sections::slo(&section(tree, "slo"), report);

    let models = models::build(&entries(tree, "models"), &money, &slo, report);
    let upstreams = upstreams::build(&entries(tree, "upstreams"), &models, &money, &breaker, environment, report);
    let collections = tenants::collections(&entries(tree, "collections"), &models, report);
    let tenant_fields = entries(tree, "tenants");
    let tenants = tenants::build(&tenant_fields, &models, &collections, report);

    let retirements = retirements(&models, &upstreams);
    let mut plan = Plan {
        server,
        currency: money.currency,
        store,
        cache,
        quota,
        retry,
        slo,
        models: models.iter().map(|entry| entry.model.clone()).collect(),
        upstreams: upstreams.iter().map(|entry| entry.upstream.clone()).collect(),
        tenants,
        collections,
        retirements,
        warnings: Vec::new(),
        demo_key: None,
        version,
    };
    cross::check(&plan, &models, &upstreams, &tenant_fields, &section(tree, "server"), report);
    plan.demo_key = cross::demo_key(&plan);
    plan
}

/// What providers will stop serving, the first to go first.
fn retirements(models: &[models::ModelEntry], upstreams: &[upstreams::UpstreamEntry]) -> Vec<Retirement> {
    let everywhere = models.iter().filter_map(|entry| {
        let model = &entry.model;
        Some(Retirement { model: model.name.clone(), upstream: None, on: model.retires? })
    });
    let azure = upstreams.iter().map(|entry| &entry.upstream).filter(|one| one.provider == Provider::Azure);
    let there = azure.flat_map(|upstream| {
        upstream.serves.iter().filter_map(|serves| {
            let on = utc::parse_day(catalogue::retires_on_azure(serves.model.as_str())?)?;
            Some(Retirement { model: serves.model.clone(), upstream: Some(upstream.id.clone()), on })
        })
    });
    let mut all: Vec<Retirement> = everywhere.chain(there).collect();
    all.sort_by_key(|one| one.on);
    all
}

/// The section of that name; the schema's pass has made sure that it is there.
fn section<'a>(tree: &'a Table, name: &'static str) -> Fields<'a> {
    static EMPTY: Table = Table::EMPTY;
    let keys = section_named(name).map(|section| section.keys).unwrap_or_default();
    let path = Path::section(name);
    match tree.get(name) {
        Some(node) => {
            let table = if let Value::Table(table) = &node.value { table } else { &EMPTY };
            Fields { table, keys, path, at: node.at.clone() }
        }
        None => Fields { table: &EMPTY, keys, path, at: Origin::Default },
    }
}

/// The entries of the list of that name.
fn entries<'a>(tree: &'a Table, name: &'static str) -> Vec<Fields<'a>> {
    let section = section_named(name);
    let keys = section.map(|section| section.keys).unwrap_or_default();
    let id_key = section.and_then(|section| section.id_key).unwrap_or_default();
    (tree.tables(name).enumerate())
        .map(|(index, (table, at))| {
            let id = table.get(id_key).and_then(|id| id.value.as_text());
            Fields { table, keys, path: Path::section(name).index(index, id), at: at.clone() }
        })
        .collect()
}
