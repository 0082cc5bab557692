use super::*;
use crate::config::{self, Environment, Source};
use crate::telemetry::otlp::LostSpans;
use queue::Limits;

const CLIENT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

const UPSTREAM: &str = r#"
    [[models]]
    name = "m"
    kind = "embedding"
    dimensions = 8
    price_usd_per_million_tokens = "0"
    [[upstreams]]
    id = "u"
    provider = "simulated"
    serves = [{ model = "m", as = "m" }]
"#;

fn recorder(sampler: &str) -> Recorder {
    let (sampler, _) = Sampler::from_env(|name| (name == "OTEL_TRACES_SAMPLER").then(|| sampler.to_owned()));
    let limits = Limits { waiting: 100, batch: 10 };
    Recorder { sampler, queue: Arc::new(Queue::new(limits, LostSpans::default())) }
}

fn incoming<'a>(traceparent: Option<&'a str>, fresh: u128) -> Incoming<'a> {
    Incoming { traceparent, tracestate: Some("vendor=1"), fresh, began: clock::mono() }
}

/// What the upstream of a call made in `trace` is told.
fn told(trace: &Arc<RequestTrace>) -> TraceParent {
    let source = Source::Text { name: "test".to_owned(), text: UPSTREAM.to_owned() };
    let plan = config::load(&source, &Environment::from_iter(Vec::<(String, String)>::new())).expect("valid");
    trace.upstream_call("embeddings", &plan.upstreams[0], &Arc::from("remote"), 3).context()
}

#[test]
fn without_a_receiver_the_clients_trace_goes_through_as_it_came() {
    let trace = Arc::new(RequestTrace::begin(None, incoming(Some(CLIENT), 5), || panic!("no span, no name")));
    assert_eq!(trace.id().to_string(), "0af7651916cd43dd8448eb211c80319c");
    assert_eq!((told(&trace).to_string().as_str(), trace.state()), (CLIENT, Some("vendor=1")));
    assert_eq!(trace.exemplar(), Some(trace.id()));
}

#[test]
fn a_request_without_a_trace_gets_one() {
    let trace = Arc::new(RequestTrace::begin(None, incoming(Some("nonsense"), 0xabc), String::new));
    assert_eq!((trace.id(), trace.state(), trace.exemplar()), (TraceId(0xabc), None, None));
    let told = told(&trace);
    assert_eq!((told.trace, told.flags), (trace.id(), 0));
    assert!(told.span != 0);
    assert_eq!(RequestTrace::begin(None, incoming(None, 0), String::new).id(), TraceId(1));
}

#[test]
fn of_a_request_that_is_not_recorded_nothing_is_made() {
    let recorder = recorder("always_off");
    let trace = RequestTrace::begin(Some(&recorder), incoming(Some(CLIENT), 5), || panic!("no span, no name"));
    let trace = Arc::new(trace);
    assert_eq!((trace.id().to_string().as_str(), trace.exemplar()), ("0af7651916cd43dd8448eb211c80319c", None));
    let told = told(&trace);
    assert_eq!((told.trace, told.flags), (trace.id(), 0));
    assert_ne!(told.span, 0xb7ad_6b71_6920_3331, "the client's span is not the parent of what it does not know");
    drop(trace.stage("cache"));
    assert_eq!(Arc::strong_count(&trace), 1);
    drop(trace);
    assert!(recorder.queue.take(0).is_empty());
}

#[test]
fn of_a_recorded_request_all_is_noted_once_it_is_over() {
    let recorder = recorder("parentbased_always_off");
    let route = || "/v1/embeddings".to_owned();
    let trace = Arc::new(RequestTrace::begin(Some(&recorder), incoming(Some(CLIENT), 5), route));
    assert_eq!(trace.exemplar(), Some(trace.id()));
    let stage = trace.stage("reserve");
    let first = told(&trace);
    drop(stage);
    let second = told(&trace);
    assert!(first.span != second.span && first.flags == 1 && first.trace == trace.id());
    drop(trace);
    let [notes] = recorder.queue.take(4).try_into().expect("one request of four spans");
    let calls: Vec<u64> = notes.calls.iter().map(|call| call.span).collect();
    assert_eq!(calls, [first.span, second.span]);
    let [stage] = notes.stages.as_slice() else { panic!("{notes:?}") };
    assert!(notes.began <= stage.began && stage.began <= stage.ended && stage.ended <= notes.ended);
    assert_eq!(
        (stage.name, notes.route.as_str(), notes.parent),
        ("reserve", "/v1/embeddings", Some(0xb7ad_6b71_6920_3331))
    );
    assert!(notes.span != first.span && notes.state.as_deref() == Some("vendor=1") && notes.end.is_none());
}

#[test]
fn what_finds_no_room_is_dropped_and_counted() {
    let lost = LostSpans::default();
    let queue = Arc::new(Queue::new(Limits { waiting: 5, batch: 2 }, lost.clone()));
    let recorder = Recorder { sampler: Sampler::default(), queue: Arc::clone(&queue) };
    let request = || {
        let trace = Arc::new(RequestTrace::begin(Some(&recorder), incoming(Some(CLIENT), 5), String::new));
        drop(trace.stage("cache"));
    };
    (0..4).for_each(|_| request());
    assert_eq!(lost.count(), 4);
    assert!(queue.take(5).is_empty(), "four wait");
    assert_eq!(queue.take(4).len(), 2);
    request();
    assert_eq!(lost.count(), 4);
    queue.close();
    request();
    assert_eq!((queue.take(0).len(), lost.count()), (1, 6));
}
