//! The engine against the scripted provider: what is due is sent, what is slow is seen, what fails is counted.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::HeaderMap;
use loadtest::engine::{
    Arrivals, ClosedLoop, Failure, Label, OpenLoop, Phase, Progress, Report, Schedule, Shot, Source, Target,
    closed_loop, open_loop,
};
use loadtest::provider::{Effect, Fault, Provider, Script, When};

struct Queries;

impl Source for Queries {
    fn shot(&self, number: u64, _: Duration, phase: &str) -> Shot {
        Shot {
            label: Label { phase: phase.to_owned(), class: "query".to_owned(), tenant: format!("t{}", number % 2) },
            target: 0,
            path: "/embeddings".to_owned(),
            headers: HeaderMap::new(),
            body: Some(Bytes::from(format!(r#"{{"input":"query {number}"}}"#))),
        }
    }
}

fn target(provider: &Provider) -> Target {
    Target::parse(&format!("{}/v1", provider.base_url())).expect("a URL")
}

async fn fire(run: OpenLoop, provider: &Provider) -> (Report, Arc<Progress>) {
    let progress = Arc::new(Progress::default());
    let report = open_loop(&run, vec![target(provider)], Arc::new(Queries), Arc::clone(&progress)).await;
    (report, progress)
}

fn steady(per_s: f64, ms: u64) -> Schedule {
    Schedule::steady(Arrivals::Constant { per_s }, Duration::from_millis(ms))
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_due_is_sent_and_counted_under_its_label() {
    let provider = Provider::start(Script::new());
    let phase = |name: &str| Phase {
        name: name.to_owned(),
        arrivals: Arrivals::Poisson { per_s: 500.0 },
        duration: Duration::from_millis(200),
    };
    let schedule = Schedule::new(vec![phase("one"), phase("two")]);
    let due = schedule.arrivals(1).count() as u64;
    let (report, progress) = fire(OpenLoop::new(schedule), &provider).await;
    assert_eq!((report.due, progress.sent(), progress.done(), progress.failed()), (due, due, due, 0));
    assert_eq!(report.total().by_status[&200], due);
    assert_eq!(provider.call_count(), due);
    assert_eq!(report.rows.len(), 4, "two phases, two tenants");
}

#[tokio::test(flavor = "multi_thread")]
async fn waiting_for_a_connection_counts_as_latency() {
    let provider = Provider::start(Script::new().delay_ms(20.0));
    let run = OpenLoop { connections: 1, ..OpenLoop::new(steady(1000.0, 20)) };
    let (report, _) = fire(run, &provider).await;
    let total = report.total();
    assert_eq!(total.good.len(), 20);
    // The last of 20 requests waits for 19 others of 20 ms each, less the 20 ms over which they were due.
    assert!(total.good.max() >= Duration::from_millis(375), "{:?}", total.good.max());
    assert!(report.waited_for_connection >= 18);
    let connections: std::collections::BTreeSet<u64> = provider.calls().iter().map(|call| call.connection).collect();
    assert_eq!(connections.len(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn failures_are_counted_by_cause() {
    let script = Script::new()
        .rule(When::body("query 0"), Effect::fault(Fault::ResetAfterBody))
        .rule(When::body("query 1"), Effect::fault(Fault::Truncate { after_bytes: 5 }))
        .rule(When::body("query 2"), Effect::status(503))
        .rule(When::body("query 3"), Effect::fault(Fault::NeverAnswer));
    let provider = Provider::start(script);
    let run = OpenLoop { timeout: Duration::from_millis(300), ..OpenLoop::new(steady(100.0, 50)) };
    let (report, progress) = fire(run, &provider).await;
    let total = report.total();
    let failed = |failure| total.failures.get(&failure).copied().unwrap_or(0);
    assert_eq!(
        (failed(Failure::NoAnswer), failed(Failure::CutAnswer), failed(Failure::TimedOut)),
        (1, 1, 1),
        "{total:?}"
    );
    assert_eq!((total.by_status[&503], total.by_status[&200], total.bad.len()), (1, 1, 4));
    assert_eq!(progress.failed(), 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_kept_connection_that_was_closed_is_replaced() {
    let provider = Provider::start(Script::new().always(Effect::fault(Fault::CloseAfterAnswer)));
    let (report, _) = fire(OpenLoop { connections: 1, ..OpenLoop::new(steady(200.0, 50)) }, &provider).await;
    assert_eq!(report.total().good.len() + report.total().bad.len(), 10);
    assert!(provider.stats().connections > 1, "a new connection was opened");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_closed_loop_keeps_every_client_busy() {
    let provider = Provider::start(Script::new().canned());
    let run = ClosedLoop {
        connections: 4,
        duration: Duration::from_millis(200),
        timeout: Duration::from_secs(10),
        grace: Duration::from_secs(10),
    };
    let progress = Arc::new(Progress::default());
    let report = closed_loop(&run, target(&provider), Arc::new(Queries), Arc::clone(&progress)).await;
    let total = report.total();
    assert!(total.good.len() > 8 && total.bad.is_empty(), "{total:?}");
    assert_eq!(total.good.len(), provider.call_count());
    assert_eq!(provider.stats().connections, 4);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_open_loop_tells_of_a_stall_that_a_closed_one_leaves_out() {
    let stall = || Script::new().delay_ms(5.0).rule(When::phase(0.5, 1.0), Effect::delay_ms(1000.0));
    let (open, closed) = (Provider::start(stall()), Provider::start(stall()));
    let run = ClosedLoop {
        connections: 1,
        duration: Duration::from_secs(2),
        timeout: Duration::from_secs(10),
        grace: Duration::from_secs(10),
    };
    let asking = closed_loop(&run, target(&closed), Arc::new(Queries), Arc::default());
    let ((open, _), closed) = tokio::join!(fire(OpenLoop::new(steady(100.0, 2000)), &open), asking);
    // Half of all requests were due in that second. The one client of the closed loop asked twice at most.
    assert!(open.total().good.quantile_ms(0.6) > 900.0, "{:?}", open.total().good.quantile(0.6));
    assert!(closed.total().good.quantile_ms(0.6) < 500.0, "{:?}", closed.total().good.quantile(0.6));
}
