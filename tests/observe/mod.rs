//! What on-call and machines see of the running gateway: percentiles, traces, logs, the dashboard, Prometheus.

pub mod browser;
mod doors;
mod levels;
mod logs;
mod metrics_out;
mod openapi;
mod outcomes;
mod prometheus;
mod receiver;
mod record;
mod schemathesis;
mod traces;

use std::time::{Duration, Instant};

use serde_json::Value;

use crate::support::Gateway;

/// Longest wait for something that happens within a second or two.
const PATIENCE: Duration = Duration::from_secs(30);

/// Looks again until `look` finds something.
#[track_caller]
fn until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(Instant::now() < deadline, "in vain waited for: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// What the dashboard shows, once `enough` says so.
async fn shown(gateway: &Gateway, what: &str, enough: impl Fn(&Value) -> bool) -> Value {
    let deadline = Instant::now() + PATIENCE;
    loop {
        let view = gateway.admin_get("/dashboard/snapshot").await.expect(200);
        if enough(&view) {
            return view;
        }
        assert!(Instant::now() < deadline, "in vain waited for: {what}; last: {view}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// One class of a dashboard's view.
fn class<'a>(view: &'a Value, name: &str) -> &'a Value {
    let classes = view["classes"].as_array().expect("classes");
    classes.iter().find(|class| class["class"] == name).expect("the class")
}
