//! Rules between keys, and warnings.

use super::*;

#[test]
fn names_are_unique() {
    check(
        &valid_and(
            "[[tenants]]\nid = \"t\"\nkey_sha256 = [\"AAaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\"]\n\
             [[models]]\nname = \"m\"\n[[upstreams]]\nid = \"a\"\nprovider = \"simulated\"\n\
             serves = [{ model = \"m\" }, { model = \"m\", as = \"n\" }]\n",
        ),
        &[
            "t.toml:14: tenants[1].id (t): the tenant \"t\" is there twice; give it another id",
            "t.toml:15: tenants[1].key_sha256 (t): the key aaaaaaaaaaaaaaaa belongs to \"t\" already; a key names one \
             tenant",
            "t.toml:17: models[1].name (m): the model \"m\" is there twice; remove one, or rename it",
            "t.toml:19: upstreams[1].id (a): the upstream \"a\" is there twice; give it another id",
            "t.toml:21: upstreams[1].serves[1].model (a): \"m\" is served twice here; remove one",
        ],
    );
}

#[test]
fn references_lead_somewhere() {
    check(
        &valid_but(
            "[[tenants]]",
            "[[upstreams]]\nid = \"b\"\nprovider = \"simulated\"\nserves = [{ model = \"mm\" }, { model = \"other\" }]\n[[tenants]]\nmodels = [\"n\"]",
        ),
        &[
            "t.toml:13: upstreams[1].serves[0].model (b): no model is called \"mm\"; add [[models]] name = \"mm\"",
            "t.toml:13: upstreams[1].serves[1].model (b): no model is called \"other\"; add [[models]] name = \"other\"",
            "t.toml:15: tenants[0].models (t): no model is called \"n\"; add [[models]] name = \"n\"",
        ],
    );
}

#[test]
fn an_embedding_model_has_no_fallbacks() {
    check(
        &valid_but("dimensions = 8", "dimensions = 8\nfallbacks = [\"other\"]"),
        &[
            "t.toml:4: models[0].fallbacks (m): an embedding model has no fallbacks: another model's vectors lie in \
             another space; remove it; a mirror of the same weights is another upstream, or a model with the same \
             `space`",
            "t.toml:4: models[0].fallbacks (m): no model is called \"other\"; add [[models]] name = \"other\"",
        ],
    );
}

#[test]
fn a_cohere_model_tells_queries_from_documents() {
    let with = |provider: &str| {
        let text = valid_but("dimensions = 8", "dimensions = 8\nsymmetric = true");
        format!(
            "{text}[[upstreams]]\nid = \"c\"\nprovider = \"{provider}\"\nbase_url = \"https://one.test\"\n\
             api_key = {{ value = \"k\" }}\nserves = [{{ model = \"m\" }}]\n"
        )
    };
    check(
        &with("cohere"),
        &["t.toml:4: models[0].symmetric (m): Cohere's models make another vector of a query than of a document; \
           remove it"],
    );
    check(&with("tei"), &[]);
}

#[test]
fn widths_must_be_possible() {
    let with = |keys: &str| valid_but("dimensions = 8", keys);
    let place = |line: usize, key: &str| format!("t.toml:{line}: models[0].{key} (m): ");
    check(
        &with("dimensions = 8\nmatryoshka = [4, 16]"),
        &[&(place(4, "matryoshka") + "16 is wider than the model's 8 dimensions; a vector can only be cut: at most 8")],
    );
    check(&with("dimensions = 8\nmatryoshka = [4, 8, 16]"), &[]);
    check(
        &with("dimensions = 8\nmatryoshka = { min = 6, max = 2 }"),
        &[&(place(4, "matryoshka") + "min 6 is more than max 2; swap them")],
    );
    check(
        &with("matryoshka = { min = 6 }"),
        &[&(place(3, "matryoshka")
            + "a range of widths has `min` and `max`; expected a list of widths such as [512, 1536], or { min = 1, max = \
               1536 }")],
    );
    check(
        &with("dimensions = 8\nenforce_dimensions = 4"),
        &[&(place(4, "enforce_dimensions")
            + "vectors of this model cannot have 4 dimensions; this model has 8 dimensions and cannot be cut")],
    );
    check(
        &with("dimensions = 8\nmatryoshka = [2, 4]\nenforce_dimensions = 3"),
        &[&(place(5, "enforce_dimensions")
            + "vectors of this model cannot have 3 dimensions; it can be cut to [2, 4]")],
    );
    check(
        &with("enforce_dimensions = 3"),
        &[&(place(3, "enforce_dimensions")
            + "vectors of this model cannot have 3 dimensions; state `dimensions` and `matryoshka` of this model")],
    );
    check(&with("dimensions = 8\nmatryoshka = [2, 4]\nenforce_dimensions = 4"), &[]);
    check(&with("dimensions = 8\nenforce_dimensions = 8"), &[]);
}

#[test]
fn models_of_one_space_have_one_width() {
    let second = |keys: &str| valid_and(&format!("[[models]]\nname = \"n\"\nspace = \"m\"\n{keys}"));
    check(
        &second("dimensions = 16\n"),
        &[
            "t.toml:15: models[1].space (n): 16 dimensions, but \"m\" of the same space \"m\" has 8; give them spaces of \
           their own, or the same `enforce_dimensions`",
        ],
    );
    check(&second("dimensions = 16\nmatryoshka = [8]\n"), &[]);
    check(&second("dimensions = 8\n"), &[]);
    check(&second(""), &[]);
}

#[test]
fn an_upstream_serves_only_what_its_provider_can() {
    check(
        &valid_and(
            "[[models]]\nname = \"r\"\nkind = \"rerank\"\n[[upstreams]]\nid = \"o\"\nprovider = \"openai\"\nserves = [{ model = \"r\" }]\n",
        ),
        &["t.toml:19: upstreams[1].serves[0].model (o): openai serves no rerank models such as \"r\"; serve it from \
             another provider, or correct its `kind`"],
    );
}

#[test]
fn prices_are_exact_and_not_negative() {
    let with = |price: &str| {
        valid_but("price_usd_per_million_tokens = \"1\"", &format!("price_usd_per_million_tokens = {price}"))
    };
    let place = "t.toml:4: models[0].price_usd_per_million_tokens (m): ";
    let decimal = "expected a plain decimal in quotes, not negative, such as \"0.02\"";
    check(&with("\"-1\""), &[&format!("{place}\"-1\" is negative; {decimal}")]);
    check(&with("-1"), &[&format!("{place}-1 is negative; {decimal}")]);
    check(&with("0.02"), &[&format!("{place}a bare number with a fraction is not exact; {decimal}")]);
    check(
        &with("\"cheap\""),
        &[&format!("{place}\"cheap\": expected a plain decimal number such as \"150.00\"; {decimal}")],
    );
    check(
        &with("\"0.00000000001\""),
        &[&format!(
            "{place}\"0.00000000001\" times money.per_usd \"0.92\" cannot be kept exactly for one unit; use fewer decimals \
             in one of them"
        )],
    );
    check(&with("0"), &[]);
    check(
        &valid_and("[money]\nper_usd = \"0\"\ncurrency = \"euro\"\n"),
        &[
            "t.toml:14: money.per_usd: is zero, which makes everything free; expected what one USD is worth",
            "t.toml:15: money.currency: \"euro\" is not a currency; expected three capital letters, such as \"EUR\"",
        ],
    );
}

#[test]
fn a_budget_needs_prices_and_only_for_what_it_may_pay() {
    let unpriced = valid_but("price_usd_per_million_tokens = \"1\"", "case = \"unknown\"");
    check(&unpriced, &[]);
    let problem = "t.toml:1: models[0].price_usd_per_million_tokens (m): no price at a, but the tenant \"t\" may use it on \
                   a budget; set price_usd_per_million_tokens; write \"0\" if it really costs nothing";
    check(&format!("{unpriced}budget = \"5\"\n"), &[problem]);
    check(
        &format!(
            "{unpriced}budget = \"5\"\nmodels = [\"n\"]\n[[models]]\nname = \"n\"\nprice_usd_per_million_tokens = \"0\"\n"
        ),
        &[],
    );
    let at_the_upstream =
        unpriced.replace("{ model = \"m\" }", "{ model = \"m\", price_usd_per_million_tokens = \"0\" }");
    check(&format!("{at_the_upstream}budget = \"5\"\n"), &[]);
}

#[test]
fn addresses_and_urls() {
    check(
        &valid_and("[server]\nlisten = \"localhost:80\"\nadmin_listen = \"127.0.0.1:80\"\ntls_cert = \"\"\n"),
        &["t.toml:15: server.admin_listen: 127.0.0.1:80 is server.listen too; give it another port"],
    );
    let with = |url: &str| valid_but("http://127.0.0.1:1", url);
    let place = "t.toml:8: upstreams[0].base_url (a): ";
    let expected = "expected http:// or https:// with a host and no user, query or fragment";
    check(&with("ftp://h/"), &[&format!("{place}the scheme \"ftp\" cannot be called; {expected}")]);
    let not_there = valid_but("provider = \"tei\"", "provider = \"tei\"\nca = \"no such file\"");
    let problems = load_text(&not_there, &[]).expect_err("a problem").to_string();
    assert!(
        problems.starts_with("t.toml:8: upstreams[0].ca (a): the file no such file cannot be read: "),
        "{problems}"
    );
    check(&with("tei:8080"), &[&format!("{place}is not an absolute URL; {expected}")]);
    check(&with("http://user:secret@h"), &[&format!("{place}holds more than scheme, host and path; {expected}")]);
    check(&with("http://h?x=1"), &[&format!("{place}holds more than scheme, host and path; {expected}")]);
    check(
        &with(""),
        &[&format!("{place}missing; tei has no address of its own; expected http://host:port or https://host")],
    );
    assert_eq!(plan(&with("http://h:1/x//"), &[]).upstreams[0].base_url, "http://h:1/x");
    check(
        &valid_and("[server]\ntls_cert = \"a\"\n"),
        &["t.toml:14: server.tls_cert: set without server.tls_key; set both for HTTPS, or neither"],
    );
}

#[test]
fn keys_of_tenants_are_hashes() {
    let text = VALID.replace("\"aaaaaaaa", "\"vg-");
    check(
        &text,
        &["t.toml:12: tenants[0].key_sha256 (t): an entry is not a SHA-256 in hex (64 digits); `vectorgate key new` \
           prints the line to put here"],
    );
}

#[test]
fn shares_and_pairs_of_keys_agree() {
    check(
        &valid_and(
            "[quota]\ninteractive_reserve = 0.9\nbatch_floor = 0.2\n[retry]\nbase_ms = 10\ncap_ms = 5\n[slo]\ninteractive_p99_ms = 60\n[store]\nledger = \"redis\"\n",
        ),
        &[
            "t.toml:14: quota.interactive_reserve: with quota.batch_floor 0.2 more than the whole is promised (1.1); let \
             the two sum up to at most 1",
            "t.toml:18: retry.cap_ms: less than retry.base_ms; expected at least retry.base_ms",
            "t.toml:20: slo.interactive_p99_ms: less than slo.interactive_p95_ms; expected at least \
             slo.interactive_p95_ms",
            "t.toml:22: store.ledger: \"redis\" needs store.redis_url; set it to redis://host:6379",
        ],
    );
}

#[test]
fn a_models_own_lines_are_of_its_kind_and_in_order() {
    let model = |name: &str, rest: &str| format!("[[models]]\nname = \"{name}\"\n{rest}\n");
    let text = valid_and("")
        + &model("a", "slo = { interactive_p95_ms = 200 }")
        + &model("b", "slo = { interactive_p95_ms = 200, interactive_p99_ms = 150 }")
        + &model("c", "kind = \"rerank\"\nslo = { interactive_p95_ms = 20 }")
        + &model("d", "slo = { interactive_p95 = 20 }")
        + &model("e", "slo = { interactive_p99_ms = 0 }");
    check(
        &text,
        &[
            "t.toml:15: models[1].slo.interactive_p95_ms (a): more than [slo]'s interactive_p99_ms, 120 ms; expected \
             interactive_p95_ms to be at most interactive_p99_ms",
            "t.toml:18: models[2].slo.interactive_p99_ms (b): less than its own interactive_p95_ms, 200 ms; expected \
             interactive_p95_ms to be at most interactive_p99_ms",
            "t.toml:22: models[3].slo.interactive_p95_ms (c): of no use to a model of kind \"rerank\"; its objectives are \
             rerank_p95_ms and rerank_p99_ms",
            "t.toml:25: models[4].slo.interactive_p95 (d): no such key; did you mean `interactive_p95_ms`?",
            "t.toml:28: models[5].slo.interactive_p99_ms (e): 0 is out of range; expected a number from 1 to 600000",
        ],
    );
}

#[test]
fn a_models_own_lines_win_and_the_others_are_the_classes() {
    let text =
        valid_and("[slo]\ninteractive_p99_ms = 300\n[[models]]\nname = \"a\"\nslo = { interactive_p95_ms = 200 }\n");
    let plan = plan(&text, &[("VECTORGATE_MODELS__0__SLO__INTERACTIVE_P99_MS", "250")]);
    let lines = |at: usize| {
        let slo = &plan.models[at].slo;
        (slo.interactive_p95.as_millis(), slo.interactive_p99.as_millis())
    };
    assert_eq!((lines(0), lines(1)), ((70, 250), (200, 300)));
    let described = plan.describe(crate::pure::time::Wall(0));
    assert!(described.contains("objectives of their own"), "{described}");
    assert!(described.contains("200 ms"), "{described}");
}

#[test]
fn a_budget_needs_prices_of_both_models_of_a_collection() {
    let text = valid_and(
        "budget = \"1\"\nmodels = [\"c\"]\n[[models]]\nname = \"n\"\n[[collections]]\nname = \"c\"\nfrom = \"m\"\nto = \"n\"\n",
    );
    check(
        &text,
        &[
            "t.toml:15: models[1].price_usd_per_million_tokens (n): no price, but the tenant \"t\" may use it on a budget; \
           set price_usd_per_million_tokens; write \"0\" if it really costs nothing",
        ],
    );
}

#[test]
fn what_only_looks_wrong_is_a_warning() {
    check_warnings(VALID, &[]);
    check_warnings(
        &valid_and(
            "[money]\ncurrency = \"USD\"\n[[models]]\nname = \"bge-m3\"\ncase = \"kept\"\nretires = \"2027-01-01\"\n[[models]]\n\
             name = \"n\"\n[[upstreams]]\nid = \"o\"\nprovider = \"openai\"\n\
             base_url = \"http://far.example.com\"\napi_key = { value = \"k\" }\nserves = [{ model = \"bge-m3\", as = \"x\" }]\n\
             [[upstreams]]\nid = \"p\"\nprovider = \"openai\"\nserves = [{ model = \"m\", as = \"x\" }]\n\
             [[tenants]]\nid = \"u\"\n",
        ),
        &[
            "money.per_usd: one USD is counted as 0.92 USD: set it to \"1\"",
            "models[1].retires (bge-m3): the provider retires it on 2027-01-01",
            "models[1].name (bge-m3): \"bge-m3\" is not in the catalogue, so nothing is known of it; did you mean \
             \"BAAI/bge-m3\"?",
            "upstreams[1].base_url (o): a base URL of openai usually ends with /v1, this one does not",
            "upstreams[1].base_url (o): the key travels without encryption",
            "upstreams[2].api_key (p): missing; api.openai.com will refuse every call",
            "tenants[1].key_sha256 (u): no key: nobody can use this tenant until one is added",
            "models[2].name (n): no upstream serves it, so every request for it fails",
            "cache.normalize_queries: \"lowercase\" lets queries that differ by case share a cached vector, although case \
             matters to bge-m3; \"trim\" keeps them apart",
            "upstreams[2].serves (p): \"x\" is served in the space \"m\" here and as \"bge-m3\" by o; upstreams of two \
             spaces never answer for each other",
        ],
    );
}
