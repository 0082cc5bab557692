//! Steering a running provider over HTTP, under `/__control/`: for scenarios and for scripts outside the process.

use std::sync::Arc;

use serde_json::json;

use super::live::Live;
use super::script::Script;
use super::serve::Shared;
use super::wire::Answer;

/// Where the control routes begin. Their calls are not logged.
pub(super) const PREFIX: &str = "/__control/";

/// Puts a script in force.
pub(super) fn set_script(shared: &Shared, script: Script) {
    *shared.live.write() = Arc::new(Live::new(script));
    shared.script_changed.notify_one();
}

/// Answers a control call.
pub(super) fn answer(shared: &Shared, method: &str, target: &str, body: &[u8]) -> Answer {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let number = |name: &str| {
        query.split('&').find_map(|pair| pair.strip_prefix(name)?.strip_prefix('=')).and_then(|text| text.parse().ok())
    };
    match (method, path.strip_prefix(PREFIX).unwrap_or_default()) {
        ("GET", "calls") => {
            let limit = number("limit").and_then(|limit: u64| usize::try_from(limit).ok()).unwrap_or(usize::MAX);
            let calls = shared.log.calls_since(number("since").unwrap_or(0), limit);
            Answer::json(200, json!(calls).to_string())
        }
        ("GET", "stats") => Answer::json(200, json!(shared.log.stats()).to_string()),
        ("GET", "script") => Answer::json(200, json!(shared.live().script).to_string()),
        ("POST", "script") => match Script::from_json(body) {
            Ok(script) => {
                set_script(shared, script);
                Answer::json(200, json!({"ok": true}).to_string())
            }
            Err(why) => Answer::json(400, json!({"error": why}).to_string()),
        },
        ("POST", "reset") => {
            shared.log.clear();
            // The counters of rules and quota begin anew with the same script.
            let script = shared.live().script.clone();
            set_script(shared, script);
            Answer::json(200, json!({"ok": true}).to_string())
        }
        _ => {
            let routes = "GET calls?since=&limit=, GET stats, GET script, POST script, POST reset";
            Answer::json(404, json!({"error": format!("control routes: {routes}")}).to_string())
        }
    }
}
