//! The dashboard with names that are markup: they are shown, and nothing of them is done.

use std::path::PathBuf;
use std::process::Command;

use loadtest::provider::{Effect, Provider, Script, When};
use serde_json::json;

use crate::support::gateway::KEY;
use crate::support::{Gateway, embedding_config};

/// What a page that takes it for markup runs at once; names have no spaces.
const MARKUP: &str = "<img/src=x/onerror=window.hurt=1>";

/// A tenant's name has no slashes either.
const TENANT: &str = "<b>tenant&lt;";

fn toml(text: &str) -> String {
    json!(text).to_string()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_are_markup_are_only_ever_shown() {
    let script = Script::new().space("A").width(8).rule(When::body("poison"), Effect::status(500));
    let provider = Provider::start(script);
    let url = format!("{}/v1", provider.base_url());
    let model = format!("model{MARKUP}");
    let config = embedding_config(&[("one", "openai", &url)], "dimensions = 8", "", "[breaker]\nmin_requests = 1\n")
        .replace("\"emb-a\"", &toml(&model))
        .replace("id = \"one\"", &format!("id = {}", toml(&format!("upstream{MARKUP}"))))
        .replace("id = \"t1\"", &format!("id = {}", toml(TENANT)));
    let gateway = Gateway::start(&config);
    // A text, a success, a failure that opens the breaker, and a deed: so that every table and the timeline have them.
    for text in ["fine", "poison"] {
        let headers = [("x-collection", MARKUP)];
        gateway.post("/v1/embeddings", KEY, &headers, json!({ "model": model, "input": text }).to_string()).await;
    }
    gateway.admin_post("/admin/tenants", json!({ "id": format!("made{TENANT}") })).await;

    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder").to_owned();
    let library = target.join("node/node_modules/playwright-core");
    assert!(library.exists(), "the browser's driver is not installed: run tests/run (or tests/observe/install)");
    let admin = gateway.admin.clone();
    let watching = tokio::task::spawn_blocking(move || {
        Command::new("node")
            .arg(PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/hostile/pages.mjs"))
            .args([admin.as_str(), MARKUP, TENANT])
            .arg(&library)
            .output()
            .expect("node is not installed: run tests/run")
    });
    let output = watching.await.expect("the browser was watched");
    let (said, problems) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.trim() == "shown", "{said} {problems}");
}
