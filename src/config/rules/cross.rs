//! Rules between the parts: prices under budgets, the demo key on open listeners, and what only looks wrong.

use super::models::ModelEntry;
use super::upstreams::UpstreamEntry;
use crate::config::builtin::{DEMO_KEY, DEMO_KEY_SHA256};
use crate::config::fields::Fields;
use crate::config::plan::{CacheBackend, Case, Model, ModelKind, Normalization, Plan, Prices, Provider, TenantSource};
use crate::config::problem::{Path, Report};
use crate::config::secret::Secret;

pub(super) fn check(
    plan: &Plan,
    models: &[ModelEntry],
    upstreams: &[UpstreamEntry],
    tenants: &[Fields],
    server: &Fields,
    report: &mut Report,
) {
    for entry in models {
        check_price(entry, upstreams, plan, tenants, report);
        check_served(entry, plan, report);
        check_symmetric(entry, plan, report);
    }
    check_case(plan, report);
    check_split_spaces(plan, upstreams, report);
    check_demo_key(plan, tenants, server, report);
    if plan.tenants.is_empty() {
        report.warning(&Path::section("tenants"), "there is none: nobody can call until one is added");
    }
}

/// Whether `prices` says what a call of that kind costs.
fn is_priced(kind: ModelKind, prices: &Prices) -> bool {
    match kind {
        ModelKind::Embedding => prices.input.is_some(),
        ModelKind::Rerank => prices.input.is_some() || prices.search.is_some(),
        ModelKind::Chat => prices.input.is_some() && prices.output.is_some(),
    }
}

/// A budget means nothing for a model whose calls cost an unknown amount.
fn check_price(entry: &ModelEntry, upstreams: &[UpstreamEntry], plan: &Plan, tenants: &[Fields], report: &mut Report) {
    let ModelEntry { model, fields } = entry;
    let bound = |from: TenantSource| {
        let tenants = plan.tenants.iter().zip(tenants);
        tenants.filter(move |(tenant, _)| {
            tenant.source == from && tenant.budget.is_some() && plan.reaches(tenant, &model.name)
        })
    };
    if bound(TenantSource::File).chain(bound(TenantSource::Admin)).next().is_none() {
        return;
    }
    let (key, also) = match model.kind {
        ModelKind::Embedding => ("price_usd_per_million_tokens", ""),
        ModelKind::Rerank => ("price_usd_per_thousand_searches", " or price_usd_per_million_tokens"),
        ModelKind::Chat => ("price_usd_per_million_tokens", " and output_price_usd_per_million_tokens"),
    };
    let right = format!("set {key}{also}; write \"0\" if it really costs nothing");
    let unpriced: Vec<&str> = (upstreams.iter())
        .filter(|one| {
            let mut served = one.upstream.serves.iter().filter(|serves| serves.model == model.name);
            served.any(|serves| !is_priced(model.kind, &serves.prices))
        })
        .map(|one| one.upstream.id.as_str())
        .collect();
    let served = upstreams.iter().any(|one| one.upstream.serves.iter().any(|serves| serves.model == model.name));
    if unpriced.is_empty() && (served || is_priced(model.kind, &model.prices)) {
        return;
    }
    let where_to = if unpriced.is_empty() { String::new() } else { format!(" at {}", unpriced.join(", ")) };
    if let Some((tenant, _)) = bound(TenantSource::File).next() {
        let what = format!("no price{where_to}, but the tenant \"{}\" may use it on a budget", tenant.id);
        fields.problem(report, key, what, right);
    }
    // Whoever makes a tenant on the admin side can change the tenant, not the model.
    for (_, given) in bound(TenantSource::Admin) {
        let what = format!("the model \"{}\" has no price{where_to}, so a budget means nothing for it", model.name);
        given.problem(report, "models", what, "list the models that the tenant may use, all of them with a price");
    }
}

fn answers(plan: &Plan, model: &Model, other: &str) -> bool {
    let same_space = |one: &&std::sync::Arc<Model>| one.name.as_str() == other && one.space == model.space;
    model.name.as_str() == other
        || (model.kind == ModelKind::Embedding && plan.models.iter().any(|one| same_space(&one)))
}

fn check_served(entry: &ModelEntry, plan: &Plan, report: &mut Report) {
    let mut serves = plan.upstreams.iter().flat_map(|upstream| &upstream.serves);
    if !serves.any(|serves| answers(plan, &entry.model, serves.model.as_str())) {
        entry.fields.warning(report, "name", "no upstream serves it, so every request for it fails");
    }
}

/// Cohere's models are none of those that make one vector of a text, and must be told what it is for.
fn check_symmetric(entry: &ModelEntry, plan: &Plan, report: &mut Report) {
    let ModelEntry { model, fields } = entry;
    let mut cohere = plan.upstreams.iter().filter(|upstream| upstream.provider == Provider::Cohere);
    if model.symmetric && cohere.any(|upstream| upstream.serves.iter().any(|serves| serves.model == model.name)) {
        let what = "Cohere's models make another vector of a query than of a document";
        fields.problem(report, "symmetric", what, "remove it");
    }
}

/// Folding queries lets texts share an entry whose vectors differ.
fn check_case(plan: &Plan, report: &mut Report) {
    let cased = plan.models.iter().filter(|model| model.kind == ModelKind::Embedding && model.case == Case::Kept);
    let names: Vec<&str> = cased.map(|model| model.name.as_str()).collect();
    if plan.cache.normalize_queries == Normalization::Lowercase
        && plan.cache.backend != CacheBackend::Off
        && !names.is_empty()
    {
        let text = format!(
            "\"lowercase\" lets queries that differ by case share a cached vector, although case matters to {}; \"trim\" \
             keeps them apart",
            names.join(", ")
        );
        report.warning(&Path::section("cache").key("normalize_queries"), text);
    }
}

/// Two models that one name at one provider stands behind are likely one space by mistake called two.
fn check_split_spaces(plan: &Plan, upstreams: &[UpstreamEntry], report: &mut Report) {
    let space_of = |name: &crate::ids::ModelName| {
        let model = plan.models.iter().find(|model| model.name == *name)?;
        (model.kind == ModelKind::Embedding).then_some(&model.space)
    };
    let served =
        || (upstreams.iter()).flat_map(|entry| entry.upstream.serves.iter().map(move |serves| (entry, serves)));
    for (index, (entry, serves)) in served().enumerate() {
        let twin = served().take(index).find(|(other, others)| {
            other.upstream.provider == entry.upstream.provider
                && others.remote_name == serves.remote_name
                && space_of(&others.model) != space_of(&serves.model)
        });
        if let (Some((other, others)), Some(space)) = (twin, space_of(&serves.model)) {
            let text = format!(
                "\"{}\" is served in the space \"{space}\" here and as \"{}\" by {}; upstreams of two spaces never \
                 answer for each other",
                serves.remote_name, others.model, other.upstream.id
            );
            entry.fields.warning(report, "serves", text);
        }
    }
}

/// Warns when what may lie in memory, cache and bodies together, leaves too little of `memory` bytes for the rest.
pub(crate) fn check_memory(plan: &Plan, memory: Option<u64>, report: &mut Report) {
    let cached = match plan.cache.backend {
        CacheBackend::Memory | CacheBackend::Tiered => plan.cache.max_bytes,
        CacheBackend::Redis | CacheBackend::Off => 0,
    };
    let wanted = cached.saturating_add(plan.server.max_buffered_bytes);
    if let Some(memory) = memory.filter(|memory| wanted > memory / 5 * 4) {
        let text = format!("with server.max_buffered_bytes {wanted} bytes, more than 80 % of this machine's {memory}");
        report.warning(&Path::section("cache").key("max_bytes"), text);
    }
}

fn is_demo_key(sha256: &[u8; 32]) -> bool {
    hex::encode(sha256) == DEMO_KEY_SHA256
}

/// The demo key is public: it must not open anything to other machines.
fn check_demo_key(plan: &Plan, tenants: &[Fields], server: &Fields, report: &mut Report) {
    if plan.server.listen.ip().is_loopback() {
        return;
    }
    let holders = plan.tenants.iter().zip(tenants);
    for (holder, fields) in holders.filter(|(tenant, _)| tenant.keys.iter().any(|key| is_demo_key(&key.sha256))) {
        if holder.source == TenantSource::Admin {
            let right = "have the gateway make one";
            fields.problem(report, "key_sha256", "is the public demo key, and other machines can reach us", right);
            continue;
        }
        let what = format!(
            "{} can be reached from other machines, but the tenant \"{}\" has the public demo key",
            plan.server.listen, holder.id
        );
        let right = "configure [[tenants]] with keys of `vectorgate key new`, or listen on 127.0.0.1";
        server.problem(report, "listen", what, right);
    }
}

/// The demo tenant's secret, if there is such a tenant.
pub(super) fn demo_key(plan: &Plan) -> Option<Secret> {
    let mut keys = plan.tenants.iter().flat_map(|tenant| &tenant.keys);
    keys.any(|key| is_demo_key(&key.sha256)).then(|| Secret::new(DEMO_KEY.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Environment, Source, load};

    #[track_caller]
    fn check(memory: Option<u64>, expected: &[&str]) {
        let text = "[cache]\nmax_bytes = 700\n[server]\nmax_buffered_bytes = 200\n".to_owned();
        let source = Source::Text { name: "t".to_owned(), text };
        let plan = load(&source, &Environment::default()).expect("valid");
        let mut report = Report::new("t");
        check_memory(&plan, memory, &mut report);
        assert_eq!(report.finish().expect("no problem"), expected);
    }

    #[test]
    fn a_cache_larger_than_the_machine_is_a_warning() {
        check(Some(2000), &[]);
        check(None, &[]);
        let text = "cache.max_bytes: with server.max_buffered_bytes 900 bytes, more than 80 % of this machine's 1000";
        check(Some(1000), &[text]);
    }
}
