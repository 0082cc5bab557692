//! Requests that the document of routes allows, and such that it forbids, by the hundred: no answer may be a 5xx, or one
//! that the document does not describe. `tests/observe/schemathesis` says what is asked and checked.

use std::path::Path;
use std::process::Command;

use crate::support::Gateway;
use crate::support::gateway::KEY;

/// A gateway with the built-in provider and its three models, for one tenant.
fn simulated() -> Gateway {
    use sha2::Digest as _;
    let hash = hex::encode(sha2::Sha256::digest(KEY.as_bytes()));
    Gateway::start(&format!(
        "[server]\nlisten = \"127.0.0.1:0\"\nadmin_listen = \"127.0.0.1:0\"\nworkers = 2\n\
         [[tenants]]\nid = \"t1\"\nkey_sha256 = [\"{hash}\"]\n"
    ))
}

#[track_caller]
fn check(side: &str, url: &str, key: &str) {
    let target = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().expect("the target folder");
    let installed = std::fs::read_to_string(target.join("observe-venv/requirements.txt")).unwrap_or_default();
    assert_eq!(installed, include_str!("requirements.txt"), "not installed: run tests/run (or tests/observe/install)");
    let output = Command::new(Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/observe/schemathesis"))
        .args([side, url, key])
        .env("CARGO_TARGET_DIR", target)
        .output()
        .expect("the script starts");
    let told = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{told}");
}

#[tokio::test(flavor = "multi_thread")]
async fn the_client_listener_answers_only_what_is_documented() {
    let gateway = simulated();
    check("client", &gateway.url, KEY);
    let page = gateway.admin_get("/metrics").await.text;
    let served: f64 = page
        .lines()
        .filter(|line| line.starts_with("vectorgate_request_duration_seconds_count") && line.contains("\"success\""))
        .filter_map(|line| line.rsplit_once(' ')?.1.parse::<f64>().ok())
        .sum();
    assert!(served > 50.0, "only {served} of the requests got as far as an answer");
}

#[test]
fn the_admin_listener_answers_only_what_is_documented() {
    let gateway = simulated();
    check("admin", &gateway.admin, "");
}
