//! Servers side by side under the same load: what does the hop through each of them cost?
//!
//! Owns interleaved rounds, medians and the table. Peers are given; [`own_peers`] can start them.

pub mod own_peers;
mod table;

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use serde::Serialize;
use serde_json::json;
use tokio::runtime::Builder;
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use crate::engine::{
    Arrivals, ClosedLoop, Label, OpenLoop, Progress, Report, Schedule, Shot, Source, Target, closed_loop, cpu,
    open_loop,
};

pub use table::{added, table};

/// A server to be measured.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its name in the table.
    pub name: String,
    /// Where it is, with the path an OpenAI client is given, usually ending in `/v1`.
    pub target: Target,
    /// Its process, if its CPU time is to be measured.
    pub pid: Option<u32>,
}

/// The load each peer gets.
#[derive(Clone, Debug)]
pub struct Workload {
    /// `Some`: requests per second, evenly. `None`: as many as `connections` clients get answered.
    pub rate_per_s: Option<f64>,
    /// Length of a measurement.
    pub duration: Duration,
    /// Measurements of each peer.
    pub rounds: usize,
    /// Connections at most; at saturation, exactly.
    pub connections: usize,
    /// The key sent as `Authorization: Bearer`.
    pub key: String,
    /// The model asked for.
    pub model: String,
    /// Texts in a request.
    pub inputs: usize,
    /// Characters in a text.
    pub characters: usize,
    /// `encoding_format`; `None`: not sent.
    pub encoding: Option<String>,
    /// Different requests sent; 0: every one differs. A small number measures caches.
    pub different: u64,
    /// Requests of 24 MB that are sent beside all others, per second; they are not measured, only answered.
    pub monsters_per_s: f64,
    /// Further headers, such as the traffic class.
    pub headers: HeaderMap,
}

/// One measurement of one peer, or the medians of several.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Sample {
    /// Good answers per second.
    pub per_s: f64,
    /// Latency that half of the good answers kept, in milliseconds.
    pub p50_ms: f64,
    /// Latency that 95 % kept.
    pub p95_ms: f64,
    /// Latency that 99 % kept.
    pub p99_ms: f64,
    /// CPU seconds of the peer per 1000 good answers; absent without a process.
    pub cpu_s_per_1000: Option<f64>,
    /// Memory of the peer at the end, in bytes.
    pub resident_bytes: Option<u64>,
    /// Requests without a 2xx answer.
    pub not_ok: u64,
}

/// What was measured of one peer.
#[derive(Clone, Debug, Serialize)]
pub struct Measured {
    /// The peer's name.
    pub name: String,
    /// Medians over all rounds; `not_ok` is the sum.
    pub median: Sample,
    /// Every round.
    pub rounds: Vec<Sample>,
    /// Why rounds are not to be trusted, where the generator says so.
    pub complaints: Vec<String>,
}

/// Requests of a workload. Texts differ between peers and rounds, so that no cache of one run serves the next.
struct Queries {
    workload: Workload,
    headers: HeaderMap,
    salt: String,
}

impl Queries {
    fn new(workload: &Workload, salt: String) -> Result<Self, String> {
        let mut headers = workload.headers.clone();
        let key = HeaderValue::from_str(&format!("Bearer {}", workload.key));
        let mut key = key.map_err(|_| "the key cannot stand in a header".to_owned())?;
        key.set_sensitive(true);
        headers.insert(AUTHORIZATION, key);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        Ok(Self { workload: workload.clone(), headers, salt })
    }

    fn body(&self, number: u64) -> Bytes {
        let workload = &self.workload;
        let number = if workload.different == 0 { number } else { number % workload.different };
        let text = |place: usize| {
            let mut text = format!("{} request {number} text {place} ", self.salt);
            while text.len() < workload.characters {
                text.push_str("what the handbook says about it ");
            }
            text.truncate(workload.characters.max(24));
            text
        };
        let input = if workload.inputs == 1 { json!(text(0)) } else { (0..workload.inputs).map(text).collect() };
        let mut body = json!({"model": workload.model, "input": input});
        if let (Some(encoding), Some(body)) = (&workload.encoding, body.as_object_mut()) {
            body.insert("encoding_format".to_owned(), json!(encoding));
        }
        Bytes::from(body.to_string())
    }
}

impl Source for Queries {
    fn shot(&self, number: u64, _: Duration, _: &str) -> Shot {
        Shot {
            label: Label::default(),
            target: 0,
            path: "/embeddings".to_owned(),
            headers: self.headers.clone(),
            body: Some(self.body(number)),
        }
    }
}

/// Texts of a monster, as many as an OpenAI request may have.
const MONSTER_TEXTS: usize = 2_048;
/// Bytes of each: 24 MB in all.
const MONSTER_TEXT_BYTES: usize = 12_000;

/// Requests as large as they come, no text twice. Written beforehand: whoever writes 24 MB lets all others wait.
struct Monsters {
    queries: Queries,
    bodies: Vec<Bytes>,
}

impl Monsters {
    fn new(queries: Queries, count: u64) -> Self {
        let filler = "what the handbook says about it ".repeat(MONSTER_TEXT_BYTES / 32);
        let body = |number| {
            let text = |place| format!("\"{} monster {number} text {place} {filler}\"", queries.salt);
            let texts: Vec<String> = (0..MONSTER_TEXTS).map(text).collect();
            format!("{{\"model\":\"{}\",\"input\":[{}]}}", queries.workload.model, texts.join(",")).into()
        };
        let bodies = (0..count).map(body).collect();
        Self { queries, bodies }
    }
}

impl Source for Monsters {
    fn shot(&self, number: u64, at: Duration, phase: &str) -> Shot {
        let shot = self.queries.shot(number, at, phase);
        let mut headers = shot.headers;
        headers.insert("x-traffic-class", HeaderValue::from_static("batch-ingestion"));
        let body = usize::try_from(number).ok().and_then(|number| self.bodies.get(number % self.bodies.len())).cloned();
        Shot { headers, body, ..shot }
    }
}

/// Measures every peer once a round, the first one moving by one place each round, so that what else happens on the
/// machine meets all of them alike. `told` hears of every measurement.
///
/// # Errors
/// A peer's process has ended, or the workload cannot be sent.
///
/// # Cancel safety
/// Dropping the future ends the measurement; peers are left as they are.
pub async fn compare(
    peers: &[Peer],
    workload: &Workload,
    mut told: impl FnMut(&str, usize, &Sample),
) -> Result<Vec<Measured>, String> {
    let mut samples: Vec<Vec<Sample>> = vec![Vec::new(); peers.len()];
    let mut complaints: Vec<Vec<String>> = vec![Vec::new(); peers.len()];
    for round in 0..workload.rounds {
        for turn in 0..peers.len() {
            let place = (turn + round) % peers.len();
            let Some(peer) = peers.get(place) else { continue };
            let warm_up = Duration::from_millis(300).min(workload.duration);
            let warm = Queries::new(workload, format!("{place}w{round}"))?;
            measure(peer, workload, warm_up, warm).await?;
            let queries = Queries::new(workload, format!("{place}r{round}"))?;
            let (sample, complaint) = measure(peer, workload, workload.duration, queries).await?;
            told(&peer.name, round, &sample);
            samples.get_mut(place).into_iter().for_each(|samples| samples.push(sample));
            complaints.get_mut(place).into_iter().for_each(|complaints| complaints.extend(complaint.clone()));
        }
    }
    let measured = peers.iter().zip(samples).zip(complaints);
    Ok(measured
        .map(|((peer, rounds), complaints)| Measured {
            name: peer.name.clone(),
            median: median(&rounds),
            rounds,
            complaints,
        })
        .collect())
}

async fn measure(
    peer: &Peer,
    workload: &Workload,
    duration: Duration,
    queries: Queries,
) -> Result<(Sample, Option<String>), String> {
    let usage = |pid| cpu::usage(pid).map_err(|error| format!("{}: {error}", peer.name));
    let before = peer.pid.map(usage).transpose()?;
    let timeout = Duration::from_secs(60);
    let steadily = |per_s, connections, source: Arc<dyn Source>| {
        let schedule = Schedule::steady(Arrivals::Constant { per_s }, duration);
        let run = OpenLoop { schedule, seed: 1, connections, timeout };
        let target = peer.target.clone();
        async move { open_loop(&run, vec![target], source, Arc::new(Progress::default())).await }
    };
    let count = (workload.monsters_per_s * duration.as_secs_f64()).ceil();
    let monsters = Monsters::new(Queries::new(workload, queries.salt.clone())?, count as u64);
    let beside = async {
        if monsters.bodies.is_empty() {
            return Ok::<u64, String>(0);
        }
        let report = apart(steadily(workload.monsters_per_s, workload.connections, Arc::new(monsters))).await?;
        Ok(report.total().bad.len())
    };
    let measured = async {
        match workload.rate_per_s {
            Some(per_s) => steadily(per_s, workload.connections, Arc::new(queries)).await,
            None => {
                let run = ClosedLoop { connections: workload.connections, duration, timeout, grace: timeout };
                closed_loop(&run, peer.target.clone(), Arc::new(queries), Arc::new(Progress::default())).await
            }
        }
    };
    let (report, monsters_not_ok) = tokio::join!(measured, beside);
    let monsters_not_ok = monsters_not_ok?;
    let after = peer.pid.map(usage).transpose()?;
    let mut sample = sample(&report);
    sample.not_ok += monsters_not_ok;
    if let (Some(before), Some(after)) = (before, after) {
        let answers = report.total().good.len().max(1) as f64;
        sample.cpu_s_per_1000 = Some((after.cpu_s - before.cpu_s).max(0.0) / answers * 1e3);
        sample.resident_bytes = Some(after.resident_bytes);
    }
    Ok((sample, report.complaint()))
}

/// Runs it on a thread with a runtime of its own: whoever writes 24 MB keeps the threads on which the measured requests
/// wait their turn, and their wait would be taken for the server's.
///
/// # Errors
/// There is no thread or no runtime to be had.
///
/// # Cancel safety
/// Dropping the future ends the work.
async fn apart(work: impl Future<Output = Report> + Send + 'static) -> Result<Report, String> {
    let (done, report) = oneshot::channel();
    let given_up = CancellationToken::new();
    let watched = given_up.clone();
    let runtime = Builder::new_current_thread().enable_all().build().map_err(|error| format!("a runtime: {error}"))?;
    std::thread::Builder::new()
        .name("monsters".to_owned())
        .spawn(move || {
            if let Some(report) = runtime.block_on(watched.run_until_cancelled(work)) {
                // Nobody waits any more where the measurement was dropped.
                let _ = done.send(report);
            }
        })
        .map_err(|error| format!("a thread for the large requests: {error}"))?;
    let _guard = given_up.drop_guard();
    report.await.map_err(|_| "the thread of the large requests has ended".to_owned())
}

fn sample(report: &Report) -> Sample {
    let total = report.total();
    Sample {
        per_s: total.good.len() as f64 / report.elapsed.as_secs_f64().max(1e-9),
        p50_ms: total.good.quantile_ms(0.5),
        p95_ms: total.good.quantile_ms(0.95),
        p99_ms: total.good.quantile_ms(0.99),
        cpu_s_per_1000: None,
        resident_bytes: None,
        not_ok: total.bad.len(),
    }
}

fn median(rounds: &[Sample]) -> Sample {
    let of = |value: fn(&Sample) -> f64| middle(rounds.iter().map(value).collect()).unwrap_or_default();
    Sample {
        per_s: of(|sample| sample.per_s),
        p50_ms: of(|sample| sample.p50_ms),
        p95_ms: of(|sample| sample.p95_ms),
        p99_ms: of(|sample| sample.p99_ms),
        cpu_s_per_1000: middle(rounds.iter().filter_map(|sample| sample.cpu_s_per_1000).collect()),
        resident_bytes: rounds.iter().filter_map(|sample| sample.resident_bytes).max(),
        not_ok: rounds.iter().map(|sample| sample.not_ok).sum(),
    }
}

/// The median, of an even number the mean of the two in the middle.
fn middle(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let half = values.len() / 2;
    let upper = *values.get(half)?;
    let lower = if values.len().is_multiple_of(2) { *values.get(half - 1)? } else { upper };
    Some((lower + upper) / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn workload() -> Workload {
        Workload {
            rate_per_s: Some(200.0),
            duration: Duration::from_millis(100),
            rounds: 2,
            connections: 8,
            key: "k".to_owned(),
            model: "m".to_owned(),
            inputs: 2,
            characters: 64,
            encoding: Some("base64".to_owned()),
            different: 0,
            monsters_per_s: 0.0,
            headers: HeaderMap::new(),
        }
    }

    #[test]
    fn the_middle_of_some_values() {
        assert_eq!(middle(vec![]), None);
        assert_eq!(middle(vec![3.0]), Some(3.0));
        assert_eq!(middle(vec![9.0, 1.0, 2.0]), Some(2.0));
        assert_eq!(middle(vec![4.0, 1.0, 2.0, 9.0]), Some(3.0));
    }

    #[test]
    fn requests_differ_unless_they_are_to_repeat() {
        let queries = Queries::new(&workload(), "s".to_owned()).expect("sendable");
        assert_ne!(queries.body(0), queries.body(1));
        let value: serde_json::Value = serde_json::from_slice(&queries.body(0)).expect("JSON");
        assert_eq!(value["input"].as_array().map(Vec::len), Some(2));
        assert_eq!(value["input"][0].as_str().map(str::len), Some(64));
        let repeating = Workload { different: 4, inputs: 1, ..workload() };
        let queries = Queries::new(&repeating, "s".to_owned()).expect("sendable");
        assert_eq!(queries.body(1), queries.body(5));
    }

    #[test]
    fn monsters_are_large_and_no_text_of_theirs_is_sent_twice() {
        let monsters = Monsters::new(Queries::new(&workload(), "s".to_owned()).expect("sendable"), 2);
        let mut seen = std::collections::HashSet::new();
        for number in 0..2 {
            let shot = monsters.shot(number, Duration::ZERO, "");
            assert_eq!(shot.headers["x-traffic-class"], "batch-ingestion");
            let body = shot.body.expect("a body");
            assert!(body.len() > 24_000_000, "{} bytes", body.len());
            let body: serde_json::Value = serde_json::from_slice(&body).expect("JSON");
            let texts = body["input"].as_array().expect("texts").iter().map(|text| text.as_str().expect("a text"));
            seen.extend(texts.map(|text| text[..32].to_owned()));
        }
        assert_eq!(seen.len(), 2 * MONSTER_TEXTS);
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn every_peer_is_measured_in_every_round() {
        use crate::provider::{Provider, Script};
        let providers = [
            Provider::start(Script::new()),
            Provider::start(Script::new().next(3, crate::provider::Effect::status(500))),
        ];
        let peers: Vec<Peer> = providers
            .iter()
            .enumerate()
            .map(|(place, provider)| Peer {
                name: format!("peer {place}"),
                target: Target::parse(&format!("{}/v1", provider.base_url())).expect("a URL"),
                pid: (place == 0).then(std::process::id),
            })
            .collect();
        let mut told = Vec::new();
        let measured = compare(&peers, &workload(), |name, round, _| told.push((name.to_owned(), round))).await;
        let measured = measured.expect("measured");
        let expected = [("peer 0", 0), ("peer 1", 0), ("peer 1", 1), ("peer 0", 1)];
        assert_eq!(told, expected.map(|(name, round)| (name.to_owned(), round)));
        assert!(measured.iter().all(|peer| peer.rounds.len() == 2 && peer.median.per_s > 0.0));
        assert!(measured[0].median.cpu_s_per_1000.is_some() && measured[1].median.cpu_s_per_1000.is_none());
        assert_eq!(measured[0].median.not_ok, 0, "the three errors fell into the warm-up of the other");
        let call = &providers[0].calls()[0];
        assert_eq!((call.header("authorization"), call.items), (Some("Bearer k"), 2));
    }
}
