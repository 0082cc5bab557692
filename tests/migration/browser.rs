//! The dashboard in a real browser: a stage is changed there, behind a dialog.

use super::*;
use crate::observe::browser::{Driver, TOKEN};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_stage_is_changed_on_the_dashboard() {
    let providers = Providers::start();
    let config = providers
        .config("", "", "")
        .replace("workers = 2", &format!("workers = 2\nadmin_token = {{ value = \"{TOKEN}\" }}"))
        .replace("space = \"B\"", "space = \"B\"\nretires = \"2020-01-31\"");
    let gateway = Gateway::start(&config);
    for n in 0..3 {
        assert_eq!(side(&gateway, Kind::Documents, &format!("document {n}")).await, Side::From);
    }
    let mut driver = Driver::start("tests/migration/browser.mjs", &gateway.admin);
    let watched = tokio::task::spawn_blocking(move || driver.hear("done"));
    watched.await.expect("the browser saw all of it");
    let view = gateway.admin("GET", "/admin/collections/handbook", TOKEN, None).await.expect(200);
    assert_eq!((&view["stage"], &view["canary"]), (&json!("canary"), &json!(0.25)), "{view}");
}
