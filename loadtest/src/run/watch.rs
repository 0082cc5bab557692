//! What is looked at while the load runs: providers' counts, gateways' processor time, the state of upstreams.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;

use super::http;
use super::stack::Stack;
use crate::clock;
use crate::engine::cpu;
use crate::provider::Stats;
use crate::scenario::Span;

/// Between two looks.
const EVERY: Duration = Duration::from_secs(1);

/// Counters at one moment.
#[derive(Clone, Debug, Default)]
pub struct Moment {
    /// What each provider has seen since then.
    pub providers: BTreeMap<String, Stats>,
    /// Processor time of all gateways, in seconds; absent where one could not be read.
    pub cpu_s: Option<f64>,
}

/// Something that happened to an upstream.
#[derive(Clone, Debug, PartialEq)]
pub struct Change {
    /// Seconds since the start of the run.
    pub at_s: f64,
    /// Which upstream.
    pub upstream: String,
    /// Its state from now on, in a word.
    pub state: String,
}

/// What has been seen so far.
#[derive(Clone, Debug, Default)]
pub struct Seen {
    /// Counters at each edge of a phase, in order.
    pub edges: Vec<Moment>,
    /// Changes of upstreams' states.
    pub changes: Vec<Change>,
    /// The present state of each.
    pub states: BTreeMap<String, String>,
    /// Largest memory of the gateways together, in bytes.
    pub peak_bytes: u64,
}

/// Looks until the last phase is over. The counters at its end are taken by whoever waits for the last answers.
///
/// # Cancel safety
/// Dropping the future ends the looking.
pub async fn watch(stack: Arc<Stack>, spans: Arc<[Span]>, start: Instant, seen: Arc<Mutex<Seen>>) {
    let mut edges: Vec<f64> = spans.iter().map(|span| span.from_s).collect();
    edges.reverse();
    let end_s = spans.last().map_or(0.0, |span| span.to_s);
    loop {
        let at_s = clock::now().saturating_duration_since(start).as_secs_f64();
        while edges.last().is_some_and(|edge| *edge <= at_s + 0.001) {
            edges.pop();
            seen.lock().edges.push(moment(&stack));
        }
        if at_s >= end_s {
            return;
        }
        look(&stack, at_s, &seen).await;
        let now = clock::now().saturating_duration_since(start).as_secs_f64();
        let next = edges.last().copied().unwrap_or(end_s).min(now + EVERY.as_secs_f64());
        let pause = Duration::try_from_secs_f64(next - now).unwrap_or_default();
        tokio::time::sleep(pause.max(Duration::from_millis(1))).await;
    }
}

/// The counters now.
pub fn moment(stack: &Stack) -> Moment {
    let usage = stack.gateways.iter().map(|gateway| {
        // A gateway that is just being restarted has no processor time worth telling.
        gateway.try_lock().and_then(|gateway| cpu::usage(gateway.pid()).ok()).map(|usage| usage.cpu_s)
    });
    Moment { providers: stack.stats(), cpu_s: usage.sum() }
}

async fn look(stack: &Stack, at_s: f64, seen: &Mutex<Seen>) {
    let mut bytes = 0;
    for (number, gateway) in stack.gateways.iter().enumerate() {
        let Some((pid, admin)) = gateway.try_lock().map(|gateway| (gateway.pid(), gateway.admin)) else { continue };
        bytes += cpu::usage(pid).map_or(0, |usage| usage.resident_bytes);
        // Replicas share what there is to see; one is enough.
        if number > 0 {
            continue;
        }
        let Ok(answer) = http::call(admin, "GET", "/admin/upstreams", &[], None).await else { continue };
        let listed = answer.json();
        let mut seen = seen.lock();
        for upstream in listed["upstreams"].as_array().into_iter().flatten() {
            let id = upstream["id"].as_str().unwrap_or_default().to_owned();
            let state = state(&upstream["state"]);
            if seen.states.get(&id) != Some(&state) {
                if seen.states.contains_key(&id) || state != "closed" {
                    seen.changes.push(Change { at_s, upstream: id.clone(), state: state.clone() });
                }
                seen.states.insert(id, state);
            }
        }
    }
    let mut seen = seen.lock();
    seen.peak_bytes = seen.peak_bytes.max(bytes);
}

/// An upstream's state in a word.
fn state(state: &serde_json::Value) -> String {
    if state["quarantined"] == true {
        return "quarantined".to_owned();
    }
    if !state["parked"].is_null() && state["parked"] != false {
        return "key set aside".to_owned();
    }
    if state["draining"] == true {
        return "draining".to_owned();
    }
    if state["unverified"] == true {
        return "being checked".to_owned();
    }
    state["breaker"].as_str().unwrap_or("unknown").replace('_', "-")
}
