//! What LiteLLM's `config.yaml` means here. Carries over models, upstreams with their keys by reference, limits, prices,
//! timeouts, retries, chat fallbacks and the master key's hash; says of everything else why it stays behind.

mod deployment;

use std::collections::HashMap;

use sha2::{Digest as _, Sha256};
use toml_edit::{Array, Value};

use super::draft::{Draft, Keys, put};
use super::yaml::{self, Node};

use deployment::Deployment;

/// Gives the value of an environment variable that is set and not empty.
pub(super) type Variables<'a> = dyn Fn(&str) -> Option<String> + 'a;

/// Translates the text of a configuration.
///
/// # Errors
/// It is not YAML, or has no `model_list`.
pub(super) fn translate(text: &str, variables: &Variables<'_>) -> Result<Draft, String> {
    let root = yaml::read(text)?;
    let Some(list) = root.get("model_list") else {
        return Err("there is no `model_list`: this is no LiteLLM configuration".to_owned());
    };
    let mut import = Import { draft: Draft::default(), kinds: HashMap::new(), bases: HashMap::new(), variables };
    // LiteLLM's prices and budgets are in USD.
    import.draft.set("money", "currency", "USD");
    import.draft.set("money", "per_usd", "1");
    for (at, node) in list.elements().iter().enumerate() {
        import.deployment(at, node);
    }
    for (section, node) in root.members() {
        match section.as_str() {
            "model_list" => {}
            "litellm_settings" => import.litellm_settings(node),
            "router_settings" => import.router_settings(node),
            "general_settings" => import.general_settings(node),
            "environment_variables" => {
                let names: Vec<&str> = node.members().iter().map(|(name, _)| name.as_str()).collect();
                import.draft.note(format!(
                    "environment_variables: set {} where the gateway is started; its file sets none",
                    names.join(", ")
                ));
            }
            other => import.draft.note(format!("{other}: there is no counterpart of this section")),
        }
    }
    import.budget(root.get("litellm_settings").unwrap_or(&Node::Null));
    if import.draft.tenants.is_empty() {
        import.draft.note(
            "keys: add a [[tenants]] entry for each team, with keys of `vectorgate key new`; virtual keys are in LiteLLM's \
             database and not in its file",
        );
    }
    Ok(import.draft)
}

struct Import<'a> {
    draft: Draft,
    variables: &'a Variables<'a>,
    /// What each model makes.
    kinds: HashMap<String, &'static str>,
    /// For each model that makes vectors or scores, the model behind it, where that is known.
    bases: HashMap<String, Option<String>>,
}

impl Import<'_> {
    fn deployment(&mut self, at: usize, node: &Node) {
        let earlier = node.get("model_name").and_then(Node::text).and_then(|name| self.kinds.get(&name).copied());
        match Deployment::read(at, node, earlier, self.variables, &mut self.draft) {
            Ok(deployment) => {
                self.kinds.insert(deployment.name.clone(), deployment.kind);
                if self.same_space(&deployment) {
                    deployment.add_to(&mut self.draft);
                }
            }
            Err(why) => self.draft.note(why),
        }
    }

    /// LiteLLM spreads the calls for one name over all its deployments. Vectors and scores of two models must not be
    /// mixed, so only those of the first deployment's model are taken.
    fn same_space(&mut self, deployment: &Deployment) -> bool {
        if deployment.kind == "chat" {
            return true;
        }
        let place = &deployment.place;
        match (self.bases.get(&deployment.name), &deployment.base) {
            (None, base) => {
                self.bases.insert(deployment.name.clone(), base.clone());
                true
            }
            (Some(Some(first)), Some(base)) if first == base => true,
            (Some(Some(first)), Some(base)) => {
                self.draft.note(format!(
                    "{place}: left out, since \"{}\" is served by {first} already and {base} makes other vectors or scores; \
                     if they are the same weights, add it to `serves` by hand and run `vectorgate probe`",
                    deployment.name
                ));
                false
            }
            (Some(first), base) => {
                let known = first.as_ref().or(base.as_ref()).map_or("the same model", |known| known);
                let note = format!(
                    "{place}: taken for {known}, as the other deployments of this name; no base_model says so, so run \
                     `vectorgate probe`"
                );
                self.draft.note(note);
                true
            }
        }
    }

    fn litellm_settings(&mut self, node: &Node) {
        for (key, value) in node.members() {
            match key.as_str() {
                "fallbacks" => self.fallbacks("litellm_settings.fallbacks", value),
                "default_fallbacks" => self.default_fallbacks(value),
                "num_retries" => self.retries(value),
                "request_timeout" => self.timeout(value),
                "cache" if *value == Node::Bool(false) => self.draft.note(
                    "litellm_settings.cache: vectors are cached here unless [cache] backend = \"off\"; a hit costs nothing",
                ),
                "cache" => {}
                "cache_params" => self.cache(value),
                "max_budget" | "budget_duration" => {}
                "drop_params" | "modify_params" => self.draft.note(format!(
                    "litellm_settings.{key}: a field that an upstream has no word for is refused with a 400 that names it, \
                     never dropped or changed in silence"
                )),
                "context_window_fallbacks" | "content_policy_fallbacks" => self.draft.note(format!(
                    "litellm_settings.{key}: fallbacks are for failing models only; an error about the request goes back to \
                     the client"
                )),
                "callbacks" | "success_callback" | "failure_callback" | "service_callbacks" => {
                    self.draft.note(format!(
                        "litellm_settings.{key}: use /metrics (Prometheus), OTEL_EXPORTER_OTLP_ENDPOINT (traces) and \
                         `vectorgate usage` instead"
                    ));
                }
                "set_verbose" | "json_logs" => self.draft.note(format!(
                    "litellm_settings.{key}: logs are set by VECTORGATE_LOG and VECTORGATE_LOG_FORMAT"
                )),
                other => self.draft.note(format!("litellm_settings.{other}: there is no counterpart")),
            }
        }
    }

    fn router_settings(&mut self, node: &Node) {
        for (key, value) in node.members() {
            match key.as_str() {
                "fallbacks" => self.fallbacks("router_settings.fallbacks", value),
                "default_fallbacks" => self.default_fallbacks(value),
                "num_retries" => self.retries(value),
                "timeout" => self.timeout(value),
                "cooldown_time" => match value.number() {
                    Some(seconds) => self.draft.set("breaker", "cooldown_s", number(seconds)),
                    None => self.draft.note("router_settings.cooldown_time: not a number"),
                },
                "model_group_alias" => self.aliases(value),
                "routing_strategy" | "routing_strategy_args" => self.draft.note(format!(
                    "router_settings.{key}: of upstreams in one tier the less loaded and faster is taken; set `tier` to prefer \
                     one"
                )),
                "allowed_fails" | "allowed_fails_policy" => self.draft.note(format!(
                    "router_settings.{key}: the breaker opens by the share of failures, see [breaker] failure_ratio and \
                     min_requests"
                )),
                "redis_host" | "redis_port" | "redis_password" | "redis_url" => self.redis("router_settings"),
                "context_window_fallbacks" | "content_policy_fallbacks" => self.draft.note(format!(
                    "router_settings.{key}: fallbacks are for failing models only; an error about the request goes back to \
                     the client"
                )),
                other => self.draft.note(format!("router_settings.{other}: there is no counterpart")),
            }
        }
    }

    fn general_settings(&mut self, node: &Node) {
        for (key, value) in node.members() {
            match key.as_str() {
                "master_key" => self.master_key(value),
                "database_url" | "database_connection_pool_limit" | "store_model_in_db" => self.draft.note(
                    "general_settings.database_url: virtual keys, teams, budgets and models that are in LiteLLM's database \
                     are not read; make [[tenants]] for them, with keys of `vectorgate key new`",
                ),
                "max_request_size_mb" => match value.count() {
                    Some(megabytes) => self.draft.set("server", "max_body_bytes", whole(megabytes.saturating_mul(1 << 20))),
                    None => self.draft.note("general_settings.max_request_size_mb: not a whole number"),
                },
                "max_parallel_requests" | "global_max_parallel_requests" => self.draft.note(format!(
                    "general_settings.{key}: set max_concurrency of each upstream, or rpm of each tenant"
                )),
                "alerting" | "alerting_threshold" | "alert_types" => self
                    .draft
                    .note(format!("general_settings.{key}: config/prometheus has alert rules for Prometheus' own alerting")),
                other => self.draft.note(format!("general_settings.{other}: there is no counterpart")),
            }
        }
    }

    /// Clients that used the master key go on with it; only its hash is written.
    fn master_key(&mut self, value: &Node) {
        let text = value.text().unwrap_or_default();
        let secret = match text.strip_prefix("os.environ/") {
            Some(name) => (self.variables)(name),
            None => Some(text.clone()),
        };
        let Some(secret) = secret.filter(|secret| !secret.is_empty()) else {
            self.draft.note(format!(
                "general_settings.master_key: {text} is not set here, so its hash is not known; set it and import again, or \
                 make a key with `vectorgate key new`"
            ));
            return;
        };
        let hash = hex::encode(Sha256::digest(secret.as_bytes()));
        let mut tenant = vec![("id".to_owned(), Value::from("master"))];
        put(&mut tenant, "key_sha256", [hash].into_iter().collect::<Array>());
        self.draft.tenants.push(tenant);
        self.draft.note(
            "general_settings.master_key: opens the client routes as tenant \"master\"; the admin side has a token of its \
             own, VECTORGATE_ADMIN_TOKEN",
        );
    }

    /// The budget of the whole proxy is that of its one key.
    fn budget(&mut self, settings: &Node) {
        let Some(budget) = settings.get("max_budget").and_then(Node::number) else { return };
        let period = match settings.get("budget_duration").and_then(Node::text).as_deref() {
            None => None,
            Some("1d" | "24h") => Some("day"),
            Some("30d" | "1mo") => Some("month"),
            Some(other) => {
                self.draft.note(format!(
                    "litellm_settings.budget_duration = {other}: budgets are refilled each day or each month, at its start in \
                     UTC"
                ));
                None
            }
        };
        let Some(tenant) = self.draft.tenants.first_mut() else {
            return self.draft.note("litellm_settings.max_budget: set `budget` of each tenant");
        };
        put(tenant, "budget", budget.normalize().to_string());
        if let Some(period) = period {
            put(tenant, "budget_period", period);
        }
        self.price_the_rest();
    }

    /// On a budget everything has a price; what LiteLLM knows none of costs nothing there.
    fn price_the_rest(&mut self) {
        let priced = |keys: &Keys| keys.iter().any(|(key, _)| key.contains("price_usd"));
        let mut free = Vec::new();
        for (name, keys) in &mut self.draft.models {
            let facts = crate::config::catalogue::facts(name).unwrap_or_default();
            let served = self.draft.upstreams.iter().flat_map(|upstream| &upstream.serves);
            let mut served = served.filter(|serve| serve.model == *name);
            if priced(keys) || priced(&facts) || served.all(|serve| priced(&serve.prices)) {
                continue;
            }
            free.push(name.clone());
            match self.kinds.get(name) {
                Some(&"rerank") => put(keys, "price_usd_per_thousand_searches", "0"),
                Some(&"chat") => {
                    put(keys, "price_usd_per_million_tokens", "0");
                    put(keys, "output_price_usd_per_million_tokens", "0");
                }
                _ => put(keys, "price_usd_per_million_tokens", "0"),
            }
        }
        if !free.is_empty() {
            self.draft.note(format!(
                "prices: none is known of {}, so calls cost nothing, as they did; set what they cost",
                free.join(", ")
            ));
        }
    }

    fn retries(&mut self, value: &Node) {
        match value.count() {
            Some(retries) => self.draft.set("retry", "max_attempts", whole(retries.saturating_add(1))),
            None => self.draft.note("num_retries: not a whole number"),
        }
    }

    /// A limit for all calls goes to the upstreams that have none of their own.
    fn timeout(&mut self, value: &Node) {
        let Some(seconds) = value.number() else {
            return self.draft.note("timeout: not a number of seconds");
        };
        for upstream in &mut self.draft.upstreams {
            if !upstream.keys.iter().any(|(key, _)| key == "timeout_s") {
                put(&mut upstream.keys, "timeout_s", number(seconds));
            }
        }
    }

    fn cache(&mut self, value: &Node) {
        if let Some(seconds) = value.get("ttl").and_then(Node::number) {
            self.draft.set("cache", "ttl_s", number(seconds));
        }
        match value.get("type").and_then(Node::text).as_deref() {
            None | Some("local") => {}
            Some("redis") => self.redis("litellm_settings.cache_params"),
            Some(other) => self.draft.note(format!(
                "litellm_settings.cache_params.type = {other}: texts are matched exactly and kept in memory or Redis only"
            )),
        }
    }

    fn redis(&mut self, place: &str) {
        self.draft.note(format!(
            "{place}: Redis is set by [store] redis_url, and used by [cache] backend = \"tiered\", [quota] shared = \"redis\" \
             and [store] ledger = \"redis\""
        ));
    }

    fn fallbacks(&mut self, place: &str, value: &Node) {
        let pairs = value.elements().iter().flat_map(Node::members);
        for (name, others) in pairs {
            let others: Vec<String> = others.elements().iter().filter_map(Node::text).collect();
            self.fallback(place, name, &others);
        }
    }

    fn fallback(&mut self, place: &str, name: &str, others: &[String]) {
        if self.bases.contains_key(name) {
            self.draft.note(format!(
                "{place}: \"{name}\" → {}: another model's vectors lie in another space (and scores of two rerankers cannot \
                 be compared), so the answer would be wrong without an error; a mirror of the same weights goes into `serves`",
                others.join(", ")
            ));
            return;
        }
        let known: Vec<&str> = others
            .iter()
            .map(String::as_str)
            .filter(|other| !self.bases.contains_key(*other) && self.draft.models.iter().any(|(name, _)| name == other))
            .collect();
        if known.len() < others.len() {
            self.draft.note(format!("{place}: \"{name}\": not every fallback is a chat model of this file"));
        }
        let known: Array = known.into_iter().collect();
        match self.draft.model(name) {
            Some(keys) if !known.is_empty() => put(keys, "fallbacks", known),
            Some(_) => {}
            None => self.draft.note(format!("{place}: there is no model \"{name}\"")),
        }
    }

    fn default_fallbacks(&mut self, value: &Node) {
        let others: Vec<String> = value.elements().iter().filter_map(Node::text).collect();
        let chat = self.draft.models.iter().filter(|(name, keys)| {
            !self.bases.contains_key(name) && !others.contains(name) && !keys.iter().any(|(key, _)| key == "fallbacks")
        });
        let chat: Vec<String> = chat.map(|(name, _)| name.clone()).collect();
        for name in chat {
            self.fallback("default_fallbacks", &name, &others);
        }
    }

    /// Another name for a model: a model of the same space at the same upstreams.
    fn aliases(&mut self, value: &Node) {
        for (alias, target) in value.members() {
            let target = target.text().or_else(|| target.get("model")?.text()).unwrap_or_default();
            let Some(mut keys) = self.draft.model(&target).cloned() else {
                self.draft.note(format!("router_settings.model_group_alias: there is no model \"{target}\""));
                continue;
            };
            if self.draft.model(alias).is_some() {
                self.draft.note(format!("router_settings.model_group_alias: \"{alias}\" is a model already"));
                continue;
            }
            for (key, value) in crate::config::catalogue::facts(&target).unwrap_or_default() {
                if !keys.iter().any(|(known, _)| *known == key) {
                    put(&mut keys, &key, value);
                }
            }
            if let Some(base) = self.bases.get(&target).cloned() {
                let embeds = !keys.iter().any(|(key, value)| key == "kind" && value.as_str() != Some("embedding"));
                if embeds && !keys.iter().any(|(key, _)| key == "space") {
                    put(&mut keys, "space", target.as_str());
                }
                self.bases.insert(alias.clone(), base);
            }
            self.draft.models.push((alias.clone(), keys));
            for upstream in &mut self.draft.upstreams {
                let twin = upstream.serves.iter().find(|serve| serve.model == target).cloned();
                upstream.serves.extend(twin.map(|twin| super::draft::Serve { model: alias.clone(), ..twin }));
            }
        }
    }
}

/// A number as TOML: whole where it is.
fn number(value: rust_decimal::Decimal) -> Value {
    match i64::try_from(value) {
        Ok(whole) if value.is_integer() => Value::from(whole),
        _ => Value::from(f64::try_from(value).unwrap_or_default()),
    }
}

fn whole(value: u64) -> Value {
    Value::from(i64::try_from(value).unwrap_or(i64::MAX))
}
