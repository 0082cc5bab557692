//! Single keys: unknown, of the wrong type, out of range, missing; secrets; what is not there yet.

use super::*;

#[test]
fn a_small_configuration_is_valid() {
    check(VALID, &[]);
}

#[test]
fn a_text_that_is_not_toml_says_where() {
    check("[server]\nlisten = \n", &["t.toml:2: not TOML: string values must be quoted, expected literal string"]);
}

#[test]
fn unknown_keys_are_refused_with_the_nearest_known_name() {
    check(
        &valid_and("tmp = 5\nbase_url = \"x\"\ncolour = 1\n[sever]\nlisten = 1\n[retry]\nbreaker = {}\n"),
        &[
            "t.toml:13: tenants[0].tmp (t): no such key; did you mean `tpm`?",
            "t.toml:14: tenants[0].base_url (t): no such key; `base_url` belongs under [[upstreams]]",
            "t.toml:15: tenants[0].colour (t): no such key; the keys here are id, key_sha256, budget, budget_period, \
             tpm, rpm, max_concurrency, weight, class, models, serve_cached_when_exhausted",
            "t.toml:16: sever: no such section; did you mean `server`?",
            "t.toml:19: retry.breaker: no such key; `breaker` belongs under [[upstreams]]",
        ],
    );
    check("listen = \"x\"\n", &["t.toml:1: listen: no such section; `listen` belongs under [server]"]);
}

#[test]
fn all_problems_come_at_once_by_line() {
    check(
        "[server]\nworkers = \"four\"\nlisten = \"8080\"\n[cache]\nscope = \"tenants\"\nttl_s = 0\n[money]\nper_usd = 0.92\n",
        &[
            "t.toml:2: server.workers: found text; expected a whole number from 0 to 1024",
            "t.toml:3: server.listen: \"8080\" is not an address; expected address and port, such as \
             \"127.0.0.1:8080\" or \"[::]:8080\"",
            "t.toml:5: cache.scope: \"tenants\" is not known (did you mean \"tenant\"?); expected one of tenant, shared",
            "t.toml:6: cache.ttl_s: 0 is out of range; expected a number from 1 to 315360000",
            "t.toml:8: money.per_usd: a bare number with a fraction is not exact; expected a plain decimal in quotes, \
             not negative, such as \"0.02\"",
        ],
    );
}

#[test]
fn what_must_be_there_is_missed() {
    check(
        "[[models]]\nkind = \"embedding\"\n[[upstreams]]\nid = \"a\"\n",
        &[
            "t.toml:1: models[0].name: missing; expected a name in quotes: 1 to 200 visible ASCII characters without \
             spaces",
            "t.toml:3: upstreams[0].provider (a): missing; expected one of openai, azure, cohere, voyage, jina, tei, \
             ollama, vllm, anthropic, simulated",
        ],
    );
}

#[test]
fn what_is_wrong_is_not_missing_as_well() {
    check(
        &valid_but("provider = \"tei\"", "provider = \"openia\""),
        &["t.toml:7: upstreams[0].provider (a): \"openia\" is not known (did you mean \"openai\"?); expected one of \
           openai, azure, cohere, voyage, jina, tei, ollama, vllm, anthropic, simulated"],
    );
    check(
        &valid_but("id = \"t\"", "id = \"with space\""),
        &[
            "t.toml:11: tenants[0].id (with space): not a usable name; expected a name in quotes: 1 to 200 visible ASCII \
           characters without spaces",
        ],
    );
}

#[test]
fn tables_and_lists_are_not_confused() {
    check(
        "[models]\nname = \"m\"\n[[server]]\nlisten = \"x\"\n",
        &[
            "t.toml:1: models: expected tables, found a table; write it as [[models]]",
            "t.toml:3: server: expected tables, found a list; write it as [server]",
        ],
    );
    check(
        &valid_but("serves = [{ model = \"m\" }]", "serves = [\"m\"]\nbreaker = { cool = 1 }"),
        &[
            "t.toml:9: upstreams[0].serves[0] (a): expected a table, found text; its keys are model, as, \
             price_usd_per_million_tokens, output_price_usd_per_million_tokens, price_usd_per_thousand_searches",
            "t.toml:10: upstreams[0].breaker.cool (a): no such key; the keys here are window_s, failure_ratio, \
             min_requests, slow_ms, cooldown_s, probe_ratio, probe_interval_s, probe_successes",
        ],
    );
}

#[test]
fn secrets_come_from_one_readable_source() {
    let with = |secret: &str| valid_but("provider = \"tei\"", &format!("provider = \"tei\"\napi_key = {secret}"));
    let place = "t.toml:8: upstreams[0].api_key (a): ";
    let expected = "expected { env = \"NAME\" }, { file = \"PATH\" } or { value = \"…\" }";
    check(&with("\"sk-very-secret\""), &[&format!("{place}a secret is not written as plain text; {expected}")]);
    check(&with("{ vault = \"x\" }"), &[&format!("{place}a secret has no source `vault`; {expected}")]);
    check(&with("{ env = \"A\", value = \"b\" }"), &[&format!("{place}a secret has exactly one source; {expected}")]);
    check(
        &with("{ env = \"NOT_SET\" }"),
        &[&format!("{place}the environment variable NOT_SET is not set; set NOT_SET, or use {{ file = \"PATH\" }}")],
    );
    check(
        &with("{ env = \"A_LONG_NAME_OF_A_VARIABLE_2\" }"),
        &[&format!(
            "{place}the environment variable A_LONG_NAME_OF_A_VARIABLE_2 is not set; set A_LONG_NAME_OF_A_VARIABLE_2, \
             or use {{ file = \"PATH\" }}"
        )],
    );
    check_with(&with("{ env = \"SET\" }"), &[("SET", "sk-1")], &[]);
    check_with(
        &with("{ env = \"SET\" }"),
        &[("SET", "sk 1")],
        &[&format!(
            "{place}the secret holds spaces or characters that no header can carry; check that it was copied whole and \
             alone"
        )],
    );
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("key");
    std::fs::write(&file, "sk-file\n").expect("written");
    let plan = plan(&with(&format!("{{ file = {:?} }}", file.display().to_string())), &[]);
    assert_eq!(plan.upstreams[0].api_key.as_ref().map(|key| key.expose()), Some("sk-file"));
    assert!(!plan.describe(Wall(0)).contains("sk-file") && !format!("{plan:?}").contains("sk-file"));
    std::fs::write(&file, "\n").expect("written");
    let problems = load_text(&with(&format!("{{ file = {:?} }}", file.display().to_string())), &[]);
    assert!(problems.expect_err("empty").to_string().contains("is empty; write the secret into it"));
}

#[test]
fn a_secret_in_the_place_of_its_sources_name_is_not_repeated() {
    // As OpenAI, Azure, Cohere and Jina make their keys.
    for secret in [
        "sk-proj-0aZ81bY72cX63dW54eV4",
        "0123456789abcdef0123456789abcdef",
        "aB3cD4eF5gH6iJ7kL8mN9oP0qR1sT2uV3wX4yZ5a",
        "jina_0a1b2c3d4e5fAbCdEfGhIj",
    ] {
        for source in ["env", "file"] {
            let api_key = format!("provider = \"tei\"\napi_key = {{ {source} = \"{secret}\" }}");
            let problems =
                load_text(&valid_but("provider = \"tei\"", &api_key), &[]).expect_err("nothing of this name");
            let shown = problems.to_string();
            assert!(shown.starts_with("t.toml:8: upstreams[0].api_key (a): ") && !shown.contains(secret), "{shown}");
            assert!(shown.contains("expected its name (a secret itself is { value = \"…\" })"), "{shown}");
        }
    }
}

#[test]
fn the_admin_tokens_own_variable_may_be_unset_but_no_other() {
    check(&valid_and("[server]\nadmin_token = { env = \"VECTORGATE_ADMIN_TOKEN\" }\n"), &[]);
    check(
        &valid_and("[server]\nadmin_token = { env = \"OTHER\" }\n"),
        &["t.toml:14: server.admin_token: the environment variable OTHER is not set; set OTHER, or use \
           { file = \"PATH\" }"],
    );
    let open = valid_and("[server]\nadmin_listen = \"0.0.0.0:8081\"\n");
    check(
        &open,
        &["t.toml:14: server.admin_listen: 0.0.0.0:8081 can be reached from other machines, but there is no \
           server.admin_token; set VECTORGATE_ADMIN_TOKEN or server.admin_token, or listen on 127.0.0.1"],
    );
    check_with(&open, &[("VECTORGATE_ADMIN_TOKEN", "x")], &[]);
}

#[test]
fn a_collection_moves_between_embedding_models_only() {
    check(
        &valid_and(
            "budget = \"1\"\nbudget_period = \"day\"\n[store]\nledger = \"redis\"\nredis_url = \"redis://r:6379\"\n[cache]\n\
             backend = \"tiered\"\n[quota]\nhedge = true\nshared = \"redis\"\n[[collections]]\nname = \"c\"\nfrom = \"m\"\nto = \"gpt\"\n[[models]]\nname = \"gpt\"\n\
             kind = \"chat\"\nprice_usd_per_million_tokens = \"1\"\noutput_price_usd_per_million_tokens = \"1\"\n\
             [[upstreams]]\nid = \"v\"\nprovider = \"anthropic\"\nbase_url = \"http://v:8000\"\nserves = [{ model = \"gpt\" }]\n",
        ),
        &["t.toml:26: collections[0].to (c): \"gpt\" makes no vectors; name an embedding model"],
    );
}
