//! Overrides from the environment.

use super::*;

fn upper(id: &str) -> Vec<(String, String)> {
    vec![(format!("VECTORGATE_UPSTREAMS__{id}__TPM"), "7".to_owned())]
}

#[test]
fn every_kind_of_key_can_be_overridden() {
    let plan = plan(
        VALID,
        &[
            ("VECTORGATE_SERVER__LISTEN", "127.0.0.1:9"),
            ("VECTORGATE_SERVER__WORKERS", "3"),
            ("VECTORGATE_SERVER__ADMIN_TOKEN", "{braces are part of it"),
            ("VECTORGATE_MONEY__PER_USD", "0.5"),
            ("VECTORGATE_QUOTA__INTERACTIVE_RESERVE", "0.25"),
            ("VECTORGATE_BREAKER__SLOW_MS", "1500"),
            ("VECTORGATE_UPSTREAMS__0__TPM", "1_000"),
            ("VECTORGATE_UPSTREAMS__A__RPM", "60"),
            ("VECTORGATE_UPSTREAMS__A__BREAKER__COOLDOWN_S", "0.5"),
            ("VECTORGATE_UPSTREAMS__A__SERVES__0__AS", "remote"),
            ("VECTORGATE_UPSTREAMS__A__API_KEY__ENV", "THE_KEY"),
            ("THE_KEY", "sk-3"),
            ("VECTORGATE_MODELS__M__MATRYOSHKA", "[4, 8]"),
            ("VECTORGATE_TENANTS__T__MODELS", "m, m"),
            ("VECTORGATE_TENANTS__1__ID", "added"),
            ("VECTORGATE_TENANTS__ADDED__BUDGET", "3.5"),
        ],
    );
    assert_eq!(plan.server.listen.to_string(), "127.0.0.1:9");
    assert_eq!(plan.server.workers, 3);
    assert_eq!(plan.server.admin_token.as_ref().map(|token| token.expose()), Some("{braces are part of it"));
    assert_eq!(plan.models[0].prices.input.map(|price| price.times(1_000_000).to_string()), Some("0.5".to_owned()));
    assert_eq!(plan.quota.interactive_reserve, 0.25);
    let upstream = &plan.upstreams[0];
    assert_eq!((upstream.tpm, upstream.rpm), (Some(1000), Some(60)));
    assert_eq!((upstream.breaker.cooldown.as_millis(), upstream.breaker.slow.as_millis()), (500, 1500));
    assert_eq!(upstream.serves[0].remote_name, "remote");
    assert_eq!(upstream.api_key.as_ref().map(|key| key.expose()), Some("sk-3"));
    assert!(plan.models[0].matryoshka.allows(4));
    assert_eq!(plan.tenants[0].models.as_ref().map(Vec::len), Some(2));
    assert_eq!(plan.tenants[1].id.as_str(), "added");
    assert_eq!(plan.tenants[1].budget.map(|budget| budget.to_string()), Some("3.5".to_owned()));
}

#[test]
fn ids_are_matched_in_upper_case_with_underscores() {
    for (id, name) in [("eu-1", "EU_1"), ("a.b/c:d", "A_B_C_D"), ("a--b", "A__B"), ("0x", "0X")] {
        let variables = upper(name);
        let environment: Vec<(&str, &str)> = variables.iter().map(|(name, value)| (&**name, &**value)).collect();
        let plan = plan(&valid_but("id = \"a\"", &format!("id = \"{id}\"")), &environment);
        assert_eq!(plan.upstreams[0].tpm, Some(7), "{id}");
    }
}

#[test]
fn entries_beyond_ten_are_added_in_order() {
    let names: Vec<String> = (1..12).map(|index| format!("VECTORGATE_TENANTS__{index}__ID")).collect();
    let environment: Vec<(&str, &str)> = names.iter().map(|name| (&**name, &name[20..])).collect();
    let plan = plan(VALID, &environment);
    assert_eq!(plan.tenants.len(), 12);
    assert_eq!(plan.tenants[11].id.as_str(), "11__ID");
}

#[test]
fn an_override_that_leads_nowhere_is_a_problem() {
    check_with(
        VALID,
        &[
            ("VECTORGATE_SERVER__LISTN", "x"),
            ("VECTORGATE_SEVER__LISTEN", "x"),
            ("VECTORGATE_UPSTREAMS__B__TPM", "1"),
            ("VECTORGATE_UPSTREAMS__5__TPM", "1"),
            ("VECTORGATE_UPSTREAMS__A__TMP", "1"),
            ("VECTORGATE_UPSTREAMS__A__TPM__X", "1"),
            ("VECTORGATE_SERVER__WORKERS", "many"),
            ("VECTORGATE_SERVER__DRAIN_S", "-1"),
        ],
        &[
            "environment variable VECTORGATE_SERVER__LISTN: server.listn: no such key; did you mean `LISTEN`?",
            "environment variable VECTORGATE_SERVER__WORKERS: server.workers: not a value for this key; expected a whole \
             number",
            "environment variable VECTORGATE_SEVER__LISTEN: no section `sever`; did you mean VECTORGATE_SERVER__…?",
            "environment variable VECTORGATE_UPSTREAMS__5__TPM: upstreams: the name does not lead to an entry; name one \
             by its position (0 to 1; 1 adds one) or by its id",
            "environment variable VECTORGATE_UPSTREAMS__A__TMP: upstreams[0].tmp (a): no such key; did you mean `TPM`?",
            "environment variable VECTORGATE_UPSTREAMS__A__TPM__X: upstreams[0].tpm (a): the name goes on after a key \
             that has no parts; end it here",
            "environment variable VECTORGATE_UPSTREAMS__B__TPM: upstreams: the name does not lead to an entry; name one \
             by its position (0 to 1; 1 adds one) or by its id",
            "environment variable VECTORGATE_SERVER__DRAIN_S: server.drain_s: -1 is out of range; expected a number from \
             0 to 86400",
        ],
    );
}

#[test]
fn variables_that_are_no_overrides_are_left_alone() {
    let text = valid_but("provider = \"tei\"", "provider = \"tei\"\napi_key = { env = \"VECTORGATE_MY__KEY\" }");
    check_with(&text, &[("VECTORGATE_MY__KEY", "k"), ("VECTORGATE_TEI_URL", "x"), ("OTHER__KEY", "x")], &[]);
}

#[test]
fn one_name_for_two_ids_asks_for_the_position() {
    let text = valid_and("[[tenants]]\nid = \"a-b\"\n[[tenants]]\nid = \"a_b\"\n");
    check_with(
        &text,
        &[("VECTORGATE_TENANTS__A_B__TPM", "1")],
        &["environment variable VECTORGATE_TENANTS__A_B__TPM: tenants: the name leads to several entries; use the \
           position: 1"],
    );
}
