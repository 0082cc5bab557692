//! `[[tenants]]` and `[[collections]]`.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use super::models::{ModelEntry, find, unknown_model_hint};
use crate::config::fields::Fields;
use crate::config::plan::{BudgetPeriod, Collection, KeyHash, ModelKind, Position, Stage, Tenant, TenantSource};
use crate::config::problem::Report;
use crate::config::tree::Origin;
use crate::ids::{KeyFingerprint, ModelName, TenantId};
use crate::pure::class::TrafficClass;

pub(super) fn build(
    entries: &[Fields],
    models: &[ModelEntry],
    collections: &[Arc<Collection>],
    report: &mut Report,
) -> Vec<Arc<Tenant>> {
    let mut tenants: Vec<Arc<Tenant>> = Vec::with_capacity(entries.len());
    let mut ids: HashSet<&str> = HashSet::with_capacity(entries.len());
    let mut owners: HashMap<[u8; 32], TenantId> = HashMap::new();
    for fields in entries {
        let id = fields.text("id");
        if !ids.insert(id) && !id.is_empty() {
            fields.problem(report, "id", format!("the tenant \"{id}\" is there twice"), "give it another id");
        }
        if id.contains(['/', '?', '#', '%']) {
            let right = "it stands in paths of the admin side: avoid / ? # %";
            fields.problem(report, "id", format!("\"{id}\" is not usable as a tenant's id"), right);
        }
        let keys = keys(fields, &mut owners, report);
        let budget = fields.opt_text("budget").and_then(|text| text.parse().ok());
        let budget_period = match fields.text("budget_period") {
            "day" => BudgetPeriod::Day,
            "month" => BudgetPeriod::Month,
            _ => BudgetPeriod::None,
        };
        if budget_period != BudgetPeriod::None && budget.is_none() {
            fields.problem(report, "budget_period", "there is no budget to refill", "set `budget`, or remove it");
        }
        tenants.push(Arc::new(Tenant {
            id: TenantId::from(id),
            keys,
            budget,
            budget_period,
            tpm: fields.int_unless_zero("tpm"),
            rpm: fields.int_unless_zero("rpm"),
            max_concurrency: fields.int_unless_zero("max_concurrency"),
            weight: fields.int("weight"),
            class: TrafficClass::parse(fields.text("class")),
            models: allowed_models(fields, models, collections, report),
            serve_cached_when_exhausted: fields.flag("serve_cached_when_exhausted"),
            source: if fields.at == Origin::Given { TenantSource::Admin } else { TenantSource::File },
        }));
    }
    tenants
}

fn keys(fields: &Fields, owners: &mut HashMap<[u8; 32], TenantId>, report: &mut Report) -> Vec<KeyHash> {
    let mut keys: Vec<KeyHash> = Vec::new();
    let path = fields.path.key("key_sha256");
    let listed = fields.texts("key_sha256");
    // A tenant made on the admin side gets its keys there.
    if listed.is_empty() && fields.at != Origin::Given {
        fields.warning(report, "key_sha256", "no key: nobody can use this tenant until one is added");
    }
    for (text, at) in listed {
        let mut sha256 = [0; 32];
        if hex::decode_to_slice(text, &mut sha256).is_err() {
            // The text is not repeated: it may be the key itself.
            let what = "an entry is not a SHA-256 in hex (64 digits)";
            report.problem(&at, &path, what, "`vectorgate key new` prints the line to put here");
            continue;
        }
        let fingerprint = hex::encode(&sha256[..8]);
        if keys.iter().any(|key| key.sha256 == sha256) {
            report.problem(&at, &path, format!("the key {fingerprint} is there twice"), "remove one");
        } else if let Some(owner) = owners.get(&sha256) {
            let what = format!("the key {fingerprint} belongs to \"{owner}\" already");
            report.problem(&at, &path, what, "a key names one tenant");
        } else {
            owners.insert(sha256, TenantId::from(fields.text("id")));
        }
        keys.push(KeyHash { sha256, fingerprint: KeyFingerprint::from(fingerprint) });
    }
    keys
}

/// `None`: all.
fn allowed_models(
    fields: &Fields,
    models: &[ModelEntry],
    collections: &[Arc<Collection>],
    report: &mut Report,
) -> Option<Vec<ModelName>> {
    let listed = fields.texts("models");
    if listed.is_empty() {
        fields.warning(report, "models", "no model: this tenant can use nothing");
    }
    if listed.iter().any(|(name, _)| *name == "*") {
        return None;
    }
    let may = |name: &str| listed.iter().any(|(listed, _)| *listed == name);
    for collection in collections.iter().filter(|one| may(one.from.as_str()) != may(one.to.as_str())) {
        if !may(&collection.name) {
            let text = format!(
                "one model of the collection \"{0}\" and not the other, so its requests are refused to this tenant; add \
                 \"{0}\"",
                collection.name
            );
            fields.warning(report, "models", text);
        }
    }
    for (name, at) in &listed {
        let known = find(models, name).is_some() || collections.iter().any(|collection| collection.name == *name);
        if !known {
            let what = format!("no model is called \"{name}\"");
            report.problem(at, &fields.path.key("models"), what, unknown_model_hint(models, name));
        }
    }
    Some(listed.into_iter().map(|(name, _)| ModelName::from(name)).collect())
}

pub(super) fn collections(entries: &[Fields], models: &[ModelEntry], report: &mut Report) -> Vec<Arc<Collection>> {
    let mut collections: Vec<Arc<Collection>> = Vec::new();
    for fields in entries {
        let name = fields.text("name");
        if !name.is_empty() && collections.iter().any(|other| other.name == name) {
            fields.problem(report, "name", format!("the collection \"{name}\" is there twice"), "rename one");
        }
        if find(models, name).is_some() {
            let right = "clients ask for a collection by its name, so no model may have it";
            fields.problem(report, "name", format!("\"{name}\" is a model's name"), right);
        }
        if name.contains(['/', '?', '#', '%']) || name.len() > LONGEST_COLLECTION {
            let right =
                "it stands in paths of the admin side and in X-Collection: at most 128 characters, without / ? # %";
            fields.problem(report, "name", format!("\"{name}\" is not usable as a collection's name"), right);
        }
        let (from, to) = (model_of(fields, "from", models, report), model_of(fields, "to", models, report));
        if let (Some(from), Some(to)) = (from, to) {
            check_pair(fields, from, to, report);
        }
        collections.push(Arc::new(Collection {
            name: name.to_owned(),
            from: ModelName::from(fields.text("from")),
            to: ModelName::from(fields.text("to")),
            position: position(fields, report),
        }));
    }
    collections
}

/// Longest name of a collection: what `X-Collection` takes.
const LONGEST_COLLECTION: usize = 128;

/// The embedding model that `key` names.
fn model_of<'a, 'b>(
    fields: &Fields,
    key: &str,
    models: &'b [ModelEntry<'a>],
    report: &mut Report,
) -> Option<&'b ModelEntry<'a>> {
    let name = fields.opt_text(key)?;
    let Some(found) = find(models, name) else {
        fields.problem(report, key, format!("no model is called \"{name}\""), unknown_model_hint(models, name));
        return None;
    };
    if found.model.kind != ModelKind::Embedding {
        fields.problem(report, key, format!("\"{name}\" makes no vectors"), "name an embedding model");
        return None;
    }
    Some(found)
}

fn check_pair(fields: &Fields, from: &ModelEntry, to: &ModelEntry, report: &mut Report) {
    let name = &to.model.name;
    if from.model.name == *name {
        fields.problem(report, "to", format!("\"{name}\" is where it comes from"), "name another model than `from`");
    } else if from.model.space == to.model.space {
        let space = &to.model.space;
        let right = "a move within one space needs no collection: list both at the upstreams";
        fields.problem(report, "to", format!("\"{name}\" is of the same space \"{space}\" as `from`"), right);
    }
}

fn position(fields: &Fields, report: &mut Report) -> Position {
    let stage = Stage::parse(fields.text("stage")).unwrap_or(Stage::Old);
    let canary = fields.number("canary");
    if canary > 0.0 && stage != Stage::Canary {
        let right = "set stage = \"canary\", or remove it";
        fields.problem(report, "canary", format!("means nothing in stage \"{}\"", stage.as_str()), right);
    }
    if canary == 0.0 && stage == Stage::Canary {
        fields.warning(report, "canary", "0: no query goes to the new model");
    }
    Position::new(stage, canary)
}
