//! The clients of one traffic: what each request is, and what is noted of its answer.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use hyper::HeaderMap;
use hyper::header::{AUTHORIZATION, CONTENT_TYPE, HeaderValue};
use rand::SeedableRng;
use rand::rngs::SmallRng;

use super::observed::{Looked, Observed};
use super::request::{Question, body, mistake, path};
use super::search::SearchApp;
use super::stack::key_of;
use crate::engine::{Failure, Label, Reply, Shot, Source};
use crate::scenario::text::mixed;
use crate::scenario::{Span, Traffic};

/// Header that carries a request's number through every log.
const REQUEST_ID: &str = "x-request-id";
/// Longest wait of a patient client before it asks again.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// What clients need to know of their surroundings.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// Servers that requests go to in turn.
    pub targets: usize,
    /// Start of everything drawn at random.
    pub seed: u64,
    /// The phases.
    pub spans: Arc<[Span]>,
    /// The key sent; absent: the tenant's own.
    pub key: Option<String>,
    /// The model asked for; absent: the traffic's.
    pub model: Option<String>,
    /// The space whose vectors are right.
    pub space: String,
    /// Answers are compared with what the scripted provider must have made.
    pub verify: bool,
}

/// The clients of one traffic.
pub struct Clients {
    traffic: Traffic,
    around: Surroundings,
    headers: HeaderMap,
    path: String,
    salt: u64,
    next: AtomicU64,
    seen: AtomicU64,
    search: Option<Arc<SearchApp>>,
    observed: Arc<Observed>,
    /// Where the loop began, in the run's time.
    from: Duration,
}

impl Clients {
    /// Clients whose loop begins `from` after the start of the run. Requests are numbered by `first` and up.
    ///
    /// # Errors
    /// A name of the scenario cannot stand in a header.
    pub fn new(
        traffic: &Traffic,
        around: Surroundings,
        search: Option<Arc<SearchApp>>,
        observed: Arc<Observed>,
        (from, first): (Duration, u64),
    ) -> Result<Self, String> {
        let text = |name: &str, value: &str| {
            HeaderValue::from_str(value).map_err(|_| format!("{name}: {value:?} cannot stand in a header"))
        };
        let mut headers = HeaderMap::new();
        let key = around.key.clone().unwrap_or_else(|| key_of(&traffic.tenant));
        let mut key = text("key", &format!("Bearer {key}"))?;
        key.set_sensitive(true);
        headers.insert(AUTHORIZATION, key);
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        for (name, value) in [("x-traffic-class", &traffic.class), ("x-collection", &traffic.collection)] {
            if !value.is_empty() {
                headers.insert(name, text(name, value)?);
            }
        }
        let model = around.model.as_ref().unwrap_or(&traffic.model);
        let path = path(traffic.dialect, traffic.route(), model);
        let owner = if traffic.texts_of.is_empty() { &traffic.name } else { &traffic.texts_of };
        let salt = mixed((around.seed, owner));
        Ok(Self {
            traffic: traffic.clone(),
            around,
            headers,
            path,
            salt,
            next: AtomicU64::new(first),
            seen: AtomicU64::new(0),
            search,
            observed,
            from,
        })
    }

    /// The number that the next request would have.
    pub fn next_number(&self) -> u64 {
        self.next.load(Ordering::Relaxed)
    }

    /// The phase at a time since the start of the run; after the end, the last.
    fn phase(&self, at: Duration) -> &str {
        let at_s = at.as_secs_f64();
        let spans = &self.around.spans;
        let span = spans.iter().find(|span| at_s < span.to_s).or(spans.last());
        span.map_or("", |span| span.name.as_str())
    }

    fn question(&self, number: u64) -> Question {
        let mut rng = SmallRng::seed_from_u64(mixed((self.around.seed, &self.traffic.name, number)));
        let traffic = &self.traffic;
        let texts = match &self.search {
            Some(search) => vec![search.query(number).text],
            None => {
                let count = traffic.inputs.draw(&mut rng);
                let choose = |place| traffic.texts.render(self.salt, traffic.texts.choose(&mut rng, number, place));
                (0..count).map(choose).collect()
            }
        };
        let mut rng = SmallRng::seed_from_u64(mixed((self.around.seed, &traffic.name, number, "documents")));
        let documents = traffic.documents.map_or(0, |documents| documents.draw(&mut rng));
        let texts_of = &traffic.document_texts;
        let documents = (0..documents)
            .map(|place| texts_of.render(self.salt.wrapping_add(1), texts_of.choose(&mut rng, number, place)))
            .collect();
        let model = self.around.model.as_ref().unwrap_or(&traffic.model).clone();
        Question { model, texts, documents, encoding: traffic.encoding.clone() }
    }

    fn look(&self, shot: &Shot, number: u64, outcome: &Result<Reply, Failure>, latency: Duration) -> Looked {
        if let Some(search) = &self.search {
            search.answer(number, outcome, latency);
        }
        let Ok(reply) = outcome else { return Looked::default() };
        if !(200..300).contains(&reply.status) {
            let error: serde_json::Value = serde_json::from_slice(&reply.body).unwrap_or_default();
            let code = error["error"]["code"].as_str().or(error["code"].as_str());
            return Looked { verified: None, code: Some(code.unwrap_or("without a code").to_owned()) };
        }
        let every = self.traffic.verify_every;
        let due = self.around.verify && every > 0 && self.seen.fetch_add(1, Ordering::Relaxed).is_multiple_of(every);
        let space = self.traffic.space.as_ref().unwrap_or(&self.around.space);
        let asked = shot.body.as_deref().unwrap_or_default();
        let verified = due.then(|| mistake(self.traffic.route(), space, asked, &reply.body));
        Looked { verified, code: None }
    }
}

impl Source for Clients {
    fn shot(&self, _: u64, at: Duration, _: &str) -> Shot {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut headers = self.headers.clone();
        if let Ok(id) = HeaderValue::from_str(&format!("{}-{number}", self.traffic.name)) {
            headers.insert(REQUEST_ID, id);
        }
        let label = Label {
            phase: self.phase(self.from + at).to_owned(),
            class: if self.traffic.class.is_empty() { "by payload" } else { &self.traffic.class }.to_owned(),
            tenant: self.traffic.tenant.clone(),
        };
        let target = usize::try_from(number % self.around.targets.max(1) as u64).unwrap_or(0);
        let body = body(self.traffic.dialect, self.traffic.route(), &self.question(number));
        Shot { label, target, path: self.path.clone(), headers, body: Some(body) }
    }

    fn wants_bodies(&self) -> bool {
        true
    }

    fn seen(&self, shot: &Shot, outcome: &Result<Reply, Failure>, latency: Duration) {
        let id = shot.headers.get(REQUEST_ID).and_then(|id| id.to_str().ok()).unwrap_or_default();
        let number = id.rsplit('-').next().and_then(|number| number.parse().ok()).unwrap_or(u64::MAX);
        let looked = self.look(shot, number, outcome, latency);
        self.observed.note((number, &shot.label.phase), outcome, latency, looked);
    }

    fn pause(&self, outcome: &Result<Reply, Failure>) -> Duration {
        let Ok(reply) = outcome else { return Duration::ZERO };
        if !self.traffic.patient || !matches!(reply.status, 429 | 503) {
            return Duration::ZERO;
        }
        let number = |name: &str| reply.headers.get(name)?.to_str().ok()?.parse::<f64>().ok();
        let seconds = number("retry-after-ms").map(|ms| ms / 1e3).or_else(|| number("retry-after")).unwrap_or(0.1);
        Duration::try_from_secs_f64(seconds).unwrap_or_default().min(LONGEST_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn clients(more: &str) -> Clients {
        let text = format!("name = \"t\"\narrivals = {{ constant = 1 }}\n{more}");
        let traffic: Traffic = toml::from_str(&text).expect("a traffic");
        let span = |name: &str, from_s, to_s| Span { name: name.to_owned(), from_s, to_s };
        let around = Surroundings {
            targets: 3,
            seed: 5,
            spans: vec![span("a", 0.0, 1.0), span("b", 1.0, 2.0)].into(),
            key: None,
            model: None,
            space: "A".to_owned(),
            verify: true,
        };
        Clients::new(&traffic, around, None, Arc::default(), (Duration::ZERO, 0)).expect("clients")
    }

    #[test]
    fn requests_carry_their_number_and_go_to_the_targets_in_turn() {
        let clients = clients("class = \"batch-ingestion\"\ninputs = [2, 4]");
        let shots: Vec<Shot> = (0..4).map(|_| clients.shot(0, Duration::from_millis(1200), "")).collect();
        assert_eq!(shots.iter().map(|shot| shot.target).collect::<Vec<_>>(), [0, 1, 2, 0]);
        let ids: Vec<_> = shots.iter().map(|shot| shot.headers[REQUEST_ID].to_str().expect("text")).collect();
        assert_eq!(ids, ["t-0", "t-1", "t-2", "t-3"]);
        assert_eq!((shots[0].label.phase.as_str(), shots[0].label.class.as_str()), ("b", "batch-ingestion"));
        assert_ne!(shots[0].body, shots[1].body);
        assert_eq!(shots[0].body, clients_again(&clients), "the same number asks the same");
    }

    fn clients_again(clients: &Clients) -> Option<bytes::Bytes> {
        Some(body(clients.traffic.dialect, clients.traffic.route(), &clients.question(0)))
    }

    #[test]
    fn a_patient_client_waits_as_long_as_it_is_told_but_not_for_ever() {
        let reply = |status, name: &'static str, value: &'static str| {
            let mut headers = HeaderMap::new();
            headers.insert(name, HeaderValue::from_static(value));
            Ok(Reply { status, headers, body: bytes::Bytes::new(), body_bytes: 0 })
        };
        let patient = clients("");
        assert_eq!(patient.pause(&reply(429, "retry-after-ms", "250")), Duration::from_millis(250));
        assert_eq!(patient.pause(&reply(503, "retry-after", "60")), LONGEST_PAUSE);
        assert_eq!(patient.pause(&reply(200, "retry-after", "60")), Duration::ZERO);
        assert_eq!(clients("patient = false").pause(&reply(429, "retry-after", "1")), Duration::ZERO);
    }
}
