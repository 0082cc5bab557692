//! Stages by the admin side: kept, told, refused; what they cost, and which file holds.

use super::*;

#[tokio::test]
async fn a_stage_is_kept_over_a_crash_and_holds_over_the_file() {
    let providers = Providers::start();
    let mut gateway = Gateway::start(&providers.config("", "", ""));
    let view = look(&gateway).await;
    assert_eq!(
        (&view["stage"], &view["set_by"], &view["revision"]),
        (&json!("old"), &json!("configuration"), &json!(0))
    );
    let configured_since = view["since"].clone();
    assert_eq!(side(&gateway, Kind::Query, "before").await, Side::From);

    let view = put(&gateway, json!({ "stage": "canary", "canary": 1 })).await.expect(200);
    assert_eq!(
        (&view["stage"], &view["canary"], &view["revision"]),
        (&json!("canary"), &json!(1.0), &json!(1)),
        "{view}"
    );
    assert_ne!(view["since"], configured_since);
    assert_eq!(view["configured"], json!({ "stage": "old", "canary": 0.0 }));
    let again = put(&gateway, json!({ "stage": "canary", "canary": 1 })).await.expect(200);
    assert_eq!((&again["since"], &again["revision"]), (&view["since"], &json!(1)), "the same again changes nothing");
    let counted = until(&gateway, "the query is counted", |view| view["progress"]["from"]["requests"] == 1).await;

    gateway.crash_and_restart();
    let restarted = look(&gateway).await;
    for member in ["stage", "canary", "since", "set_by", "revision", "progress"] {
        assert_eq!(restarted[member], counted[member], "{member}: {restarted}");
    }
    assert_eq!(side(&gateway, Kind::Query, "after").await, Side::To);

    // A file that says something else is told so, and holds nothing.
    gateway.configure(&providers.config("stage = \"backfill\"", "", ""));
    let status = gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    let warnings = status["reloads"]["last"]["warnings"].to_string();
    assert!(warnings.contains("backfill") && warnings.contains("canary 1"), "{status}");
    let view = look(&gateway).await;
    assert_eq!((&view["stage"], &view["configured"]["stage"]), (&json!("canary"), &json!("backfill")), "{view}");
    assert_eq!(side(&gateway, Kind::Query, "still").await, Side::To);

    // Another pair of models is another move, and begins where the file says.
    let back =
        providers.config("", "", "").replace("from = \"emb-a\"\nto = \"emb-b\"", "from = \"emb-b\"\nto = \"emb-a\"");
    gateway.configure(&back);
    gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    let view = look(&gateway).await;
    assert_eq!(
        (&view["stage"], &view["from"], &view["revision"]),
        (&json!("old"), &json!("emb-b"), &json!(0)),
        "{view}"
    );
    assert_eq!(side(&gateway, Kind::Query, "another").await, Side::To);
    // The log is written behind the traffic, so it is looked at where nothing was killed.
    put(&gateway, json!({ "stage": "backfill" })).await.expect(200);
    until(&gateway, "the log tells of it", |_| gateway.log().contains("collection stage changed")).await;
}

#[tokio::test]
async fn the_file_decides_until_somebody_sets_a_stage() {
    let providers = Providers::start();
    let mut gateway = Gateway::start(&providers.config("", "", ""));
    gateway.configure(&providers.config("stage = \"new\"", "", ""));
    gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    assert_eq!(side(&gateway, Kind::Query, "by the file").await, Side::To);
    let since = look(&gateway).await["since"].clone();
    gateway.crash_and_restart();
    let view = look(&gateway).await;
    assert_eq!((&view["stage"], &view["since"], &view["set_by"]), (&json!("new"), &since, &json!("configuration")));
}

#[tokio::test]
async fn a_wrong_order_is_refused_and_changes_nothing() {
    let providers = Providers::start();
    let gateway = Gateway::start(&providers.config("", "", ""));
    for body in [
        json!({}),
        json!({ "stage": "half" }),
        json!({ "stage": "canary" }),
        json!({ "stage": "canary", "canary": 5 }),
        json!({ "stage": "canary", "canary": "0.5" }),
        json!({ "stage": "old", "canary": 0.5 }),
        json!({ "stage": "new", "share": 1 }),
        json!([]),
    ] {
        let answer = put(&gateway, body.clone()).await;
        assert_eq!(answer.status, 400, "{body}: {}", answer.text);
    }
    let unknown = gateway.admin("PUT", "/admin/collections/wiki", "", Some(json!({ "stage": "new" }))).await;
    assert_eq!(unknown.status, 404, "{}", unknown.text);
    assert_eq!(gateway.admin_get("/admin/collections/wiki").await.status, 404);
    assert_eq!(gateway.admin("POST", "/admin/collections/handbook", "", Some(json!({}))).await.status, 405);
    assert_eq!(look(&gateway).await["revision"], 0);

    let token = "admin_token = { value = \"the-admin-token\" }";
    let closed = Gateway::start(&providers.config("", "", "").replace("workers = 2", &format!("workers = 2\n{token}")));
    assert_eq!(put(&closed, json!({ "stage": "new" })).await.status, 401);
    let path = "/admin/collections/handbook";
    let allowed = closed.admin("PUT", path, "the-admin-token", Some(json!({ "stage": "new" }))).await;
    assert_eq!(allowed.expect(200)["set_by"], "token");
}

#[tokio::test]
async fn the_cost_of_what_is_left_counts_what_came_before_the_collection_was_configured() {
    let providers = Providers::start();
    let gateway = Gateway::start(&providers.config_without("", ""));
    for n in 0..5 {
        let headers = [("x-collection", "handbook")];
        let answer = ask_as(&gateway, Kind::Documents, "emb-a", &headers, &format!("document {n}")).await;
        answer.expect(200);
    }
    ask_as(&gateway, Kind::Query, "emb-a", &[("x-collection", "handbook")], "a query").await.expect(200);
    assert_eq!(gateway.admin_get("/admin/collections").await.expect(200), json!({ "collections": [] }));

    gateway.configure(&providers.config("stage = \"backfill\"", "", ""));
    gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    let view = until(&gateway, "what came before is counted", |view| view["counted_before"] == true).await;
    let left = &view["reembedding"];
    // Five tokens at 0.002 each.
    assert_eq!((&left["tokens"], &left["tokens_left"]), (&json!(5), &json!(5)), "{view}");
    assert_eq!((&left["cost"], &left["cost_left"]), (&json!("0.01"), &json!("0.01")), "{view}");
    assert_eq!((&left["price_per_million_tokens"], &left["currency"]), (&json!("2000"), &json!("EUR")), "{view}");

    for n in 0..2 {
        assert_eq!(side(&gateway, Kind::Documents, &format!("document {n}")).await, Side::To);
    }
    assert_eq!(side(&gateway, Kind::Query, "another query").await, Side::From);
    let view = until(&gateway, "all is counted", |view| view["progress"]["from"]["requests"] == 7).await;
    let left = &view["reembedding"];
    assert_eq!(
        (&left["tokens_done"], &left["tokens_left"], &left["cost_left"]),
        (&json!(2), &json!(3), &json!("0.006"))
    );
    let progress = &view["progress"];
    assert_eq!(progress["from"]["by_class"]["batch-ingestion"]["items"], 5, "{view}");
    assert_eq!(progress["from"]["by_class"]["interactive-search"]["share"], 1.0, "{view}");
    assert_eq!(progress["to"]["by_class"]["batch-ingestion"]["cost"], "0.004", "{view}");
    assert_eq!(progress["to"]["share"], 2.0 / 9.0, "{view}");
    let report = gateway.command(&["usage", "--by", "collection,model,class", "--format", "csv"]);
    assert!(report.contains("handbook,emb-a,batch-ingestion"), "{report}");
}

#[tokio::test]
async fn metrics_know_configured_collections_only() {
    let providers = Providers::start();
    let gateway = Gateway::start(&providers.config("", "", ""));
    let series = |name: &str| format!("vectorgate_collection_{name}{{collection=\"handbook\"}}");
    assert_eq!(gateway.metric(&series("stage")).await, 0.0);
    put(&gateway, json!({ "stage": "canary", "canary": 0.25 })).await.expect(200);
    assert_eq!(gateway.metric(&series("stage")).await, 2.0);
    assert_eq!(gateway.metric(&series("canary_ratio")).await, 0.25);
    assert_eq!(side(&gateway, Kind::Documents, "a document").await, Side::To);
    ask_as(&gateway, Kind::Query, "emb-a", &[("x-collection", "wiki")], "a query").await.expect(200);
    let labels = "{collection=\"handbook\",model=\"emb-b\",class=\"batch-ingestion\"}";
    assert_eq!(gateway.metric(&format!("vectorgate_collection_items_total{labels}")).await, 1.0);
    assert_eq!(gateway.metric(&format!("vectorgate_collection_tokens_total{labels}")).await, 1.0);
    let page = gateway.admin_get("/metrics").await.text;
    assert!(!page.contains("wiki"), "{page}");
}

#[test]
fn check_shows_collections_and_refuses_what_cannot_move() {
    let providers = Providers::start();
    let check = |config: &str| {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("gateway.toml"), config).expect("written");
        let output = std::process::Command::new(crate::support::gateway::binary())
            .args(["check", "--config", "gateway.toml"])
            .current_dir(folder.path())
            .output()
            .expect("the command runs");
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        (output.status.success(), text)
    };
    let (ok, text) = check(&providers.config("stage = \"canary\"\ncanary = 0.25", "", ""));
    assert!(ok && text.contains("canary 0.25"), "{text}");
    let good = providers.config("", "", "");
    for (what, config, part) in [
        ("share outside of canary", providers.config("canary = 0.5", "", ""), "means nothing in stage \"old\""),
        ("share above 1", providers.config("stage = \"canary\"\ncanary = 5", "", ""), "from 0 to 1"),
        ("unknown stage", providers.config("stage = \"half\"", "", ""), "half"),
        ("unknown model", good.replace("to = \"emb-b\"", "to = \"emb-x\""), "emb-x"),
        ("itself", good.replace("to = \"emb-b\"", "to = \"emb-a\""), "where it comes from"),
        ("a model's name", good.replace("name = \"handbook\"", "name = \"emb-a\""), "is a model's name"),
        ("one space", good.replace("space = \"B\"", "space = \"A\"").replace("= 12", "= 8"), "same space"),
    ] {
        let (ok, text) = check(&config);
        assert!(!ok && text.contains(part), "{what}: {text}");
    }
    let retires = good.replace("space = \"B\"", "space = \"B\"\nretires = \"2020-01-31\"");
    let (ok, text) = check(&retires);
    assert!(ok && text.contains("2020-01-31") && text.contains("retirements") && text.contains("days left"), "{text}");
    assert!(!check(&retires.replace("2020-01-31", "soon")).0);
}

#[tokio::test]
async fn a_retirement_is_in_the_log_and_on_the_status_page() {
    let providers = Providers::start();
    let config = providers.config("", "", "").replace("space = \"B\"", "space = \"B\"\nretires = \"2020-01-31\"");
    let gateway = Gateway::start(&config);
    let status = gateway.admin_get("/admin/status").await.expect(200);
    let retirement = &status["retirements"][0];
    assert_eq!((&retirement["model"], &retirement["on"]), (&json!("emb-b"), &json!("2020-01-31")), "{status}");
    assert!(retirement["days_left"].as_i64().is_some_and(|days| days < -2_000), "{status}");
    assert!(gateway.log().contains("a model will be retired"), "{}", gateway.log());
}
