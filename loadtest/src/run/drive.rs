//! The load itself: every traffic at once, while others look on and act.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rust_decimal::Decimal;
use serde_json::json;
use tokio::task::JoinSet;

use super::books::Claim;
use super::client::{Clients, Surroundings};
use super::figures::{Outcome, recent};
use super::observed::{Observed, quantile};
use super::progress::{View, bar};
use super::request::vectors_of;
use super::search::SearchApp;
use super::stack::{Stack, key_of};
use super::watch::{Moment, Seen, moment, watch};
use super::{Options, actions, http};
use crate::engine::{ClosedLoop, OpenLoop, Progress, Report, Source, Target, closed_loop, open_loop};
use crate::report::Mark;
use crate::scenario::text::mixed;
use crate::scenario::{Arrive, Scenario, Span, Traffic, Via};
use crate::{clock, timer};

/// Seconds that the percentiles of the view cover.
const RECENT_S: usize = 5;
/// How long a bulk job's last answers are waited for before it is called off.
const GRACE: Duration = Duration::from_secs(2);
/// Longest wait for the last holds and calls to end.
const PATIENCE: Duration = Duration::from_secs(30);
/// Providers whose counts have not changed for so long have nothing under way.
const STANDING_STILL: Duration = Duration::from_secs(3);
/// Full cache hits may come onto the books this much later than their answer leaves, and some more on a busy machine.
const LATE_RECORDS: Duration = Duration::from_millis(500);

/// What the load left behind.
pub(super) struct Driven {
    pub spans: Arc<[Span]>,
    pub outcomes: Vec<Outcome>,
    pub seen: Seen,
    pub end: Moment,
    pub marks: Vec<Mark>,
    pub search: Option<Arc<SearchApp>>,
    /// Requests outside the traffics.
    pub claims: Vec<Claim>,
    /// Metrics of every gateway at the end.
    pub metrics: Vec<String>,
    /// Tenants as the first gateway's admin side tells them.
    pub tenants: serde_json::Value,
    pub notes: Vec<String>,
}

struct Loop {
    traffic: Traffic,
    progress: Arc<Progress>,
    observed: Arc<Observed>,
}

/// Drives one variant from its first document to its last answer.
pub(super) async fn drive(
    scenario: &Scenario,
    title: &str,
    stack: Option<Arc<Stack>>,
    options: &Options,
) -> Result<Driven, String> {
    let spans: Arc<[Span]> = scenario.spans().into();
    let mut claims = Vec::new();
    let search = match (&scenario.search, &stack) {
        (Some(search), Some(stack)) => {
            let spec = scenario.providers.values().next();
            let script = spec.map(|spec| &spec.script).ok_or("a search needs a provider")?;
            let app = SearchApp::new(scenario.seed, search.documents, search.k, &script.space, script.width);
            let traffic = scenario.traffic.iter().find(|traffic| traffic.name == search.traffic);
            claims = embed_documents(&app, stack, traffic.ok_or("a search needs a traffic")?).await?;
            Some(Arc::new(app))
        }
        _ => None,
    };
    let first = scenario.providers.values().next();
    let around = Surroundings {
        targets: 1,
        seed: scenario.seed,
        spans: Arc::clone(&spans),
        key: options.key.clone(),
        model: options.model.clone(),
        space: first.map_or_else(|| "A".to_owned(), |spec| spec.script.space.clone()),
        verify: options.target.is_none(),
    };
    let mut running = JoinSet::new();
    let mut loops = Vec::new();
    if let Some(stack) = &stack {
        stack.begin(scenario);
    }
    let start = clock::now();
    for (place, traffic) in scenario.traffic.iter().enumerate() {
        let targets = targets(traffic, stack.as_deref(), options)?;
        let own = Loop { traffic: traffic.clone(), progress: Arc::default(), observed: Arc::default() };
        own.observed.begin(start);
        let search = search.clone().filter(|_| scenario.search.as_ref().is_some_and(|s| s.traffic == traffic.name));
        let around = Surroundings { targets: targets.len(), ..around.clone() };
        let sending = send(
            traffic.clone(),
            (targets, around, search),
            (Arc::clone(&own.progress), Arc::clone(&own.observed)),
            start,
        );
        running.spawn(async move { sending.await.map(|sent| (place, sent)) });
        loops.push(own);
    }
    let (seen, marks) = (Arc::new(Mutex::new(Seen::default())), Arc::new(Mutex::new(Vec::new())));
    let mut helpers = JoinSet::new();
    if let Some(stack) = &stack {
        let watching = watch(Arc::clone(stack), Arc::clone(&spans), start, Arc::clone(&seen));
        helpers.spawn(async move {
            watching.await;
            Ok(())
        });
        for action in scenario.actions.iter().cloned() {
            helpers.spawn(actions::act(action, Arc::clone(&spans), Arc::clone(stack), start, Arc::clone(&marks)));
        }
    }
    let mut reports: BTreeMap<usize, (Report, u64)> = BTreeMap::new();
    let mut view = View::default();
    let mut tick = tokio::time::interval(view.every());
    tick.tick().await;
    while !running.is_empty() || !helpers.is_empty() {
        tokio::select! {
            Some(ended) = running.join_next() => {
                let (place, report) = ended.map_err(|error| error.to_string())??;
                reports.insert(place, report);
            }
            Some(ended) = helpers.join_next() => ended.map_err(|error| error.to_string())??,
            _ = tick.tick() => if !options.quiet {
                view.show(&picture(title, &spans, start, &loops, &seen.lock()));
            },
        }
    }
    let mut notes = Vec::new();
    let (mut metrics, mut tenants) = (Vec::new(), serde_json::Value::Null);
    let mut end = Moment::default();
    if let Some(stack) = &stack {
        if !settled(stack).await {
            notes.push(format!("holds or calls were still open {} s after the last answer", PATIENCE.as_secs()));
        }
        for (place, (_, admin)) in stack.addresses().into_iter().enumerate() {
            let text = http::call(admin, "GET", "/metrics", &[], None).await?;
            metrics.push(String::from_utf8_lossy(&text.body).into_owned());
            if place == 0 {
                tenants = http::call(admin, "GET", "/admin/tenants", &[], None).await?.json();
            }
        }
        end = moment(stack);
    }
    let outcomes = loops.into_iter().enumerate().map(|(place, own)| {
        let (report, sent) = reports.remove(&place).unwrap_or_default();
        Outcome { traffic: own.traffic, report, sent, log: own.observed.take() }
    });
    let outcomes: Vec<Outcome> = outcomes.collect();
    for outcome in &outcomes {
        if let Some(complaint) = outcome.report.complaint() {
            notes.push(format!("{}: {complaint}", outcome.traffic.name));
        }
        let waited = outcome.report.waited_for_connection;
        if waited > 0 {
            notes.push(format!(
                "{}: {waited} requests found every connection busy and waited for one",
                outcome.traffic.name
            ));
        }
    }
    let (seen, marks) = (seen.lock().clone(), marks.lock().clone());
    Ok(Driven { spans, outcomes, seen, end, marks, search, claims, metrics, tenants, notes })
}

/// The servers that a traffic's requests go to in turn.
fn targets(traffic: &Traffic, stack: Option<&Stack>, options: &Options) -> Result<Vec<Target>, String> {
    if let Some(url) = &options.target {
        // Paths of dialects begin after the host: a base URL as an OpenAI client is given it ends too late.
        return Ok(vec![Target::parse(url.trim_end_matches('/').trim_end_matches("/v1"))?]);
    }
    let stack = stack.ok_or("there are no servers")?;
    let addresses: Vec<SocketAddr> = match &traffic.via {
        Via::Gateway => stack.addresses().into_iter().map(|(clients, _)| clients).collect(),
        Via::Nginx => stack.nginx.iter().map(|nginx| nginx.address).collect(),
        Via::Provider(name) => stack.providers.get(name).map(|provider| provider.addr()).into_iter().collect(),
    };
    addresses.into_iter().map(|address| Target::parse(&format!("http://{address}"))).collect()
}

/// Sends one traffic from its first request to its last answer; also tells how many were sent.
async fn send(
    traffic: Traffic,
    (targets, around, search): (Vec<Target>, Surroundings, Option<Arc<SearchApp>>),
    (progress, observed): (Arc<Progress>, Arc<Observed>),
    start: Instant,
) -> Result<(Report, u64), String> {
    let timeout = Duration::try_from_secs_f64(traffic.timeout_s).unwrap_or(Duration::from_secs(60));
    let spans = Arc::clone(&around.spans);
    // Each traffic has arrivals of its own, or all of them would come at the same instants.
    let seed = mixed((around.seed, &traffic.name));
    if let Some(schedule) = traffic.schedule(&spans) {
        let clients = Arc::new(Clients::new(&traffic, around, search, observed, (Duration::ZERO, 0))?);
        let run = OpenLoop { schedule, seed, connections: traffic.connections, timeout };
        let source: Arc<dyn Source> = Arc::clone(&clients) as Arc<dyn Source>;
        return Ok((open_loop(&run, targets, source, progress).await, clients.next_number()));
    }
    let Arrive::Clients(count) = traffic.arrivals else { return Ok((Report::default(), 0)) };
    let mut total = Report::default();
    let mut first = 0;
    for (from_s, to_s) in traffic.stretches(&spans) {
        let from = Duration::try_from_secs_f64(from_s).unwrap_or_default();
        timer::sleep_until(start + from).await;
        let duration = Duration::try_from_secs_f64(to_s - from_s).unwrap_or_default();
        let clients = Clients::new(&traffic, around.clone(), search.clone(), Arc::clone(&observed), (from, first))?;
        let clients = Arc::new(clients);
        let mut parts = JoinSet::new();
        for (place, target) in targets.iter().enumerate() {
            // So many for each server that all of them together are as many as asked for.
            let share = count / targets.len() + usize::from(place < count % targets.len());
            let run = ClosedLoop { connections: share, duration, timeout, grace: GRACE };
            let source: Arc<dyn Source> = Arc::clone(&clients) as Arc<dyn Source>;
            let (target, progress) = (target.clone(), Arc::clone(&progress));
            parts.spawn(async move { closed_loop(&run, target, source, progress).await });
        }
        while let Some(part) = parts.join_next().await {
            let part = part.map_err(|error| error.to_string())?;
            total.due += part.due;
            total.lateness.merge(&part.lateness);
            total.elapsed = total.elapsed.max(part.elapsed);
            for (label, row) in part.rows {
                total.rows.entry(label).or_default().merge(&row);
            }
        }
        first = clients.next_number();
    }
    Ok((total, first))
}

/// Fills the search application's index of vectors through the gateway, twenty documents a request.
async fn embed_documents(app: &SearchApp, stack: &Stack, traffic: &Traffic) -> Result<Vec<Claim>, String> {
    let (address, _) = stack.addresses().into_iter().next().ok_or("a search needs a gateway")?;
    let key = format!("Bearer {}", key_of(&traffic.tenant));
    let (mut vectors, mut claims) = (Vec::new(), Vec::new());
    for (number, documents) in app.documents().chunks(20).enumerate() {
        let id = format!("documents-{number}");
        let headers = [("authorization", key.as_str()), ("x-request-id", &id), ("x-traffic-class", "batch-ingestion")];
        let body = json!({"model": traffic.model, "input": documents}).to_string();
        let answer = http::call(address, "POST", "/v1/embeddings", &headers, Some(body)).await?;
        if answer.status != 200 {
            let text = String::from_utf8_lossy(&answer.body).into_owned();
            return Err(format!("the documents could not be embedded: {} {text}", answer.status));
        }
        let cost = Decimal::from_str_exact(answer.header("x-gateway-cost-eur")).ok();
        claims.push(Claim { id, status: answer.status, cost });
        vectors.extend(vectors_of(&answer.json()));
    }
    app.index(vectors);
    Ok(claims)
}

/// Waits until no money is held, no call is under way, and the last records are written. False: patience ran out.
async fn settled(stack: &Stack) -> bool {
    let until = clock::now() + PATIENCE;
    let mut last = stack.stats();
    let mut changed = clock::now();
    while clock::now() < until {
        let stats = stack.stats();
        if stats != last {
            (last, changed) = (stats, clock::now());
        }
        // Calls of a provider that was gone for a while never finish, so standing still is as good as having finished.
        let finished = last.values().all(|stats| stats.finished >= stats.calls);
        let still = clock::now().duration_since(changed) > STANDING_STILL;
        if (finished || still) && holds_nothing(stack).await {
            tokio::time::sleep(LATE_RECORDS).await;
            return true;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    false
}

async fn holds_nothing(stack: &Stack) -> bool {
    for (_, admin) in stack.addresses() {
        let Ok(answer) = http::call(admin, "GET", "/admin/tenants", &[], None).await else { return false };
        let tenants = answer.json();
        let listed = tenants["tenants"].as_array();
        if !listed.is_some_and(|all| all.iter().all(|tenant| tenant["open_holds"].as_u64().unwrap_or(0) == 0)) {
            return false;
        }
    }
    true
}

/// The lines of the view.
fn picture(title: &str, spans: &[Span], start: Instant, loops: &[Loop], seen: &Seen) -> Vec<String> {
    let at_s = clock::now().saturating_duration_since(start).as_secs_f64();
    let length = spans.last().map_or(1.0, |span| span.to_s);
    let phase = spans.iter().find(|span| at_s < span.to_s).map_or("last answers", |span| span.name.as_str());
    let mut lines =
        vec![format!("{title}  {} {:>3.0}/{length:.0} s  {phase}", bar(at_s / length, 24), at_s.min(length))];
    for own in loops {
        let second = at_s as usize;
        let (mut ms, bad) = recent((second.saturating_sub(RECENT_S)..second).map(|at| own.observed.second(at)));
        let seconds = second.clamp(1, RECENT_S) as f64;
        let mut at = |share| quantile(&mut ms, share).map_or_else(|| "–".to_owned(), |ms| format!("{ms:.1}"));
        let (p50, p95, p99) = (at(0.5), at(0.95), at(0.99));
        lines.push(format!(
            "  {:<12} {:>7.1}/s  p50 {p50:>7}  p95 {p95:>7}  p99 {p99:>7} ms  {:>5} not good now, {} of {} in all",
            own.traffic.name,
            ms.len() as f64 / seconds,
            bad,
            own.progress.failed(),
            own.progress.done(),
        ));
    }
    let upstreams: Vec<String> = seen.states.iter().map(|(id, state)| format!("{id} {state}")).collect();
    if !upstreams.is_empty() {
        lines.push(format!("  upstreams: {}", upstreams.join(", ")));
    }
    lines
}
