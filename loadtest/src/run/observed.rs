//! The clients' own log of one traffic: what was answered, when, at what cost, and whether it was right.

use std::collections::BTreeMap;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use rust_decimal::Decimal;

use crate::clock;
use crate::engine::{Failure, Reply};

/// Wrong answers of which the details are kept.
const EXAMPLES: usize = 5;

/// What a client was told about one request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Answered {
    /// The request's number in its traffic.
    pub number: u64,
    /// Status; 0: there was no answer.
    pub status: u16,
    /// What the answer said that it cost.
    pub cost: Option<Decimal>,
}

/// Sums over the answers of one phase.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Counts {
    /// Answers and failures.
    pub ended: u64,
    /// 2xx answers.
    pub good: u64,
    /// Items of 2xx answers, as the gateway counts them.
    pub items: u64,
    /// Of those, the ones from the cache.
    pub cached: u64,
    /// Answers that told the client to search by words.
    pub lexical: u64,
    /// Refusals to come back later that do not say when.
    pub without_wait: u64,
    /// Answers that were compared with what is right.
    pub verified: u64,
    /// Of those, the ones that were wrong.
    pub wrong: u64,
    /// Upstream calls made for them, as the gateway says.
    pub attempts: u64,
    /// What they cost.
    pub cost: Decimal,
    /// Codes of error answers.
    pub codes: BTreeMap<String, u64>,
    /// Answers by the upstream that the gateway names.
    pub upstreams: BTreeMap<String, u64>,
    /// Answers by the space that the gateway names.
    pub spaces: BTreeMap<String, u64>,
}

impl Counts {
    /// Adds all of another's.
    pub fn merge(&mut self, other: &Self) {
        self.ended += other.ended;
        self.good += other.good;
        self.items += other.items;
        self.cached += other.cached;
        self.lexical += other.lexical;
        self.without_wait += other.without_wait;
        self.verified += other.verified;
        self.wrong += other.wrong;
        self.attempts += other.attempts;
        self.cost += other.cost;
        for (mine, theirs) in [
            (&mut self.codes, &other.codes),
            (&mut self.upstreams, &other.upstreams),
            (&mut self.spaces, &other.spaces),
        ] {
            for (name, count) in theirs {
                *mine.entry(name.clone()).or_default() += count;
            }
        }
    }
}

/// The answers to requests that were due in one second.
#[derive(Clone, Debug, Default)]
pub struct Slice {
    /// Latencies of good answers, in milliseconds.
    pub good_ms: Vec<f32>,
    /// Other answers and failures.
    pub bad: u64,
}

#[derive(Default)]
struct Inner {
    answers: Vec<Answered>,
    slices: Vec<Slice>,
    phases: BTreeMap<String, Counts>,
    examples: Vec<String>,
}

/// The log of one traffic.
#[derive(Default)]
pub struct Observed {
    start: OnceLock<Instant>,
    inner: Mutex<Inner>,
}

/// The log when everything is over.
#[derive(Clone, Debug, Default)]
pub struct Log {
    /// One entry a request, in the order of the answers.
    pub answers: Vec<Answered>,
    /// One slice a second.
    pub slices: Vec<Slice>,
    /// Sums by phase.
    pub phases: BTreeMap<String, Counts>,
    /// Details of a few wrong answers.
    pub examples: Vec<String>,
}

/// What a look at an answer's body found.
#[derive(Clone, Debug, Default)]
pub struct Looked {
    /// The answer was compared; what is wrong with it, if something is.
    pub verified: Option<Option<String>>,
    /// Code of an error.
    pub code: Option<String>,
}

impl Observed {
    /// Says when the run began. Only the first word counts.
    pub fn begin(&self, start: Instant) {
        // Every loop of a traffic says the same.
        let _ = self.start.set(start);
    }

    /// Notes how a request ended.
    pub fn note(
        &self,
        (number, phase): (u64, &str),
        outcome: &Result<Reply, Failure>,
        latency: Duration,
        looked: Looked,
    ) {
        let start = *self.start.get_or_init(clock::now);
        let due = clock::now().saturating_duration_since(start).saturating_sub(latency);
        let second = usize::try_from(due.as_secs()).unwrap_or(0).min(1 << 20);
        let status = outcome.as_ref().map_or(0, |reply| reply.status);
        let good = (200..300).contains(&status);
        let header = |name: &str| {
            outcome.as_ref().ok().and_then(|reply| reply.headers.get(name)).and_then(|value| value.to_str().ok())
        };
        let cost = header("x-gateway-cost-eur").and_then(|cost| Decimal::from_str_exact(cost).ok());
        let mut inner = self.inner.lock();
        inner.answers.push(Answered { number, status, cost });
        if inner.slices.len() <= second {
            inner.slices.resize_with(second + 1, Slice::default);
        }
        if let Some(slice) = inner.slices.get_mut(second) {
            if good { slice.good_ms.push(latency.as_secs_f32() * 1e3) } else { slice.bad += 1 }
        }
        if let Some(Some(mistake)) = &looked.verified
            && inner.examples.len() < EXAMPLES
        {
            inner.examples.push(format!("request {number}: {mistake}"));
        }
        if !inner.phases.contains_key(phase) {
            inner.phases.insert(phase.to_owned(), Counts::default());
        }
        let Some(counts) = inner.phases.get_mut(phase) else { return };
        counts.ended += 1;
        counts.good += u64::from(good);
        counts.cost += cost.unwrap_or_default();
        counts.verified += u64::from(looked.verified.is_some());
        counts.wrong += u64::from(matches!(looked.verified, Some(Some(_))));
        counts.lexical += u64::from(header("x-retrieval-fallback") == Some("lexical-only"));
        counts.attempts += header("x-gateway-attempts").and_then(|text| text.parse::<u64>().ok()).unwrap_or(0);
        let waits = header("retry-after").is_some() || header("retry-after-ms").is_some();
        counts.without_wait += u64::from(matches!(status, 429 | 503) && !waits);
        if let Some((hits, items)) = header("x-cache-hits").and_then(|text| text.split_once('/')) {
            counts.cached += hits.parse::<u64>().unwrap_or(0);
            counts.items += items.parse::<u64>().unwrap_or(0);
        }
        for (name, map) in [("x-gateway-upstream", &mut counts.upstreams), ("x-embedding-space", &mut counts.spaces)] {
            if let Some(name) = header(name) {
                *map.entry(name.to_owned()).or_default() += 1;
            }
        }
        if let Some(code) = looked.code {
            *counts.codes.entry(code).or_default() += 1;
        }
    }

    /// What was noted in one second so far: latencies of good answers, and others.
    pub fn second(&self, second: usize) -> Slice {
        self.inner.lock().slices.get(second).cloned().unwrap_or_default()
    }

    /// Everything noted.
    pub fn take(&self) -> Log {
        let inner = std::mem::take(&mut *self.inner.lock());
        Log { answers: inner.answers, slices: inner.slices, phases: inner.phases, examples: inner.examples }
    }
}

/// The value that this share of some values does not exceed; `None` where there are none. Sorts them.
pub fn quantile(values: &mut [f32], share: f64) -> Option<f32> {
    values.sort_by(f32::total_cmp);
    // As HdrHistogram does: the smallest value that at least this share of all values does not exceed.
    let place = (share * values.len() as f64).ceil() as usize;
    values.get(place.max(1) - 1).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn reply(status: u16, headers: &[(&'static str, &'static str)]) -> Result<Reply, Failure> {
        let mut map = hyper::HeaderMap::new();
        for (name, value) in headers {
            map.insert(*name, hyper::header::HeaderValue::from_static(value));
        }
        Ok(Reply { status, headers: map, body: bytes::Bytes::new(), body_bytes: 0 })
    }

    #[test]
    fn answers_are_summed_by_phase_and_second() {
        let observed = Observed::default();
        let now = clock::now();
        observed.begin(now);
        let hit = reply(200, &[("x-cache-hits", "3/4"), ("x-gateway-cost-eur", "0.25"), ("x-gateway-attempts", "1")]);
        observed.note((7, "calm"), &hit, Duration::ZERO, Looked { verified: Some(None), code: None });
        let refusal = reply(503, &[("x-retrieval-fallback", "lexical-only")]);
        let looked = Looked { verified: None, code: Some("upstream_circuit_open".to_owned()) };
        observed.note((8, "storm"), &refusal, Duration::ZERO, looked);
        observed.note((9, "storm"), &Err(Failure::NoAnswer), Duration::ZERO, Looked::default());
        let log = observed.take();
        let calm = &log.phases["calm"];
        assert_eq!((calm.good, calm.cached, calm.items, calm.verified, calm.wrong), (1, 3, 4, 1, 0));
        assert_eq!(calm.cost, Decimal::new(25, 2));
        let storm = &log.phases["storm"];
        assert_eq!((storm.ended, storm.lexical, storm.without_wait), (2, 1, 1));
        assert_eq!(storm.codes["upstream_circuit_open"], 1);
        assert_eq!(log.answers.iter().map(|answer| answer.status).collect::<Vec<_>>(), [200, 503, 0]);
        let in_all: (usize, u64) =
            log.slices.iter().fold((0, 0), |(good, bad), s| (good + s.good_ms.len(), bad + s.bad));
        assert_eq!(in_all, (1, 2));
    }

    #[test]
    fn quantiles_of_few_values() {
        assert_eq!(quantile(&mut [], 0.5), None);
        assert_eq!(quantile(&mut [3.0, 1.0, 2.0], 0.5), Some(2.0));
        assert_eq!(quantile(&mut [3.0, 1.0, 2.0], 1.0), Some(3.0));
        assert_eq!(quantile(&mut [3.0, 1.0], 0.0), Some(1.0));
    }
}
