//! What is sent: how often, as whom, through what, in whose dialect.

use std::collections::BTreeMap;

use serde::Deserialize;

use super::amount::Amount;
use super::text::Texts;
use super::{Scenario, Span};
use crate::engine::{Arrivals, Phase, Schedule};

/// One kind of request.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Traffic {
    /// Its name in figures: letters, digits and `_`.
    pub name: String,
    /// How requests arrive.
    pub arrivals: Arrive,
    /// Phases in which they do; empty: all.
    #[serde(default)]
    pub phases: Vec<String>,
    /// Factors of the rate in single phases.
    #[serde(default)]
    pub rates: BTreeMap<String, f64>,
    /// Through what it goes.
    #[serde(default)]
    pub via: Via,
    /// Whose wire format it speaks.
    #[serde(default)]
    pub dialect: Dialect,
    /// Whose key it carries.
    #[serde(default = "demo")]
    pub tenant: String,
    /// `X-Traffic-Class`; empty: not sent, and the gateway decides.
    #[serde(default)]
    pub class: String,
    /// `X-Collection`; empty: not sent.
    #[serde(default)]
    pub collection: String,
    /// The model asked for.
    #[serde(default = "model")]
    pub model: String,
    /// Texts in a request.
    #[serde(default = "single")]
    pub inputs: Amount,
    /// Documents of a rerank request; absent: it embeds.
    #[serde(default)]
    pub documents: Option<Amount>,
    /// Words of those documents.
    #[serde(default)]
    pub document_texts: Texts,
    /// The texts.
    #[serde(default)]
    pub texts: Texts,
    /// Texts are shared with every traffic of this name; empty: its own.
    #[serde(default)]
    pub texts_of: String,
    /// `encoding_format`; empty: not sent.
    #[serde(default)]
    pub encoding: String,
    /// Of so many answers one is compared with what the provider must have made; 0: none.
    #[serde(default = "every")]
    pub verify_every: u64,
    /// The space whose vectors are right; absent: that of the first provider.
    #[serde(default)]
    pub space: Option<String>,
    /// Longest wait for an answer, in seconds.
    #[serde(default = "minute")]
    pub timeout_s: f64,
    /// Connections at most.
    #[serde(default = "connections")]
    pub connections: usize,
    /// Clients of a closed loop wait as long as a 429 or 503 asks them to, up to a second.
    #[serde(default = "yes")]
    pub patient: bool,
}

fn demo() -> String {
    "demo".to_owned()
}

fn model() -> String {
    "text-embedding-3-small".to_owned()
}

fn single() -> Amount {
    Amount::Fixed(1)
}

fn every() -> u64 {
    1
}

fn minute() -> f64 {
    60.0
}

fn connections() -> usize {
    128
}

fn yes() -> bool {
    true
}

/// How requests arrive.
#[derive(Clone, Copy, Debug, PartialEq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Arrive {
    /// Evenly, so many a second.
    Constant(f64),
    /// At random and independently, so many a second on average.
    Poisson(f64),
    /// Evenly, from one rate to another over all the phases in which it is active.
    Ramp([f64; 2]),
    /// Many at once.
    Bursts {
        /// Requests in a burst.
        size: f64,
        /// Seconds from one to the next.
        every_s: f64,
    },
    /// A closed loop: so many clients, each of which sends its next request when the last is answered. A bulk job.
    Clients(usize),
}

/// Through what requests go.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Via {
    /// The gateway.
    #[default]
    Gateway,
    /// nginx as a plain proxy.
    Nginx,
    /// Straight to the provider of this name.
    Provider(String),
}

/// Whose wire format a client speaks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Dialect {
    /// OpenAI.
    #[default]
    Openai,
    /// Cohere, version 2.
    Cohere,
    /// Voyage.
    Voyage,
    /// Jina.
    Jina,
    /// Text Embeddings Inference.
    Tei,
    /// Ollama.
    Ollama,
}

/// Which call of a dialect.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// Vectors of texts.
    Embed,
    /// Scores of documents.
    Rerank,
}

impl Traffic {
    /// Which call it makes.
    pub fn route(&self) -> Route {
        if self.documents.is_some() { Route::Rerank } else { Route::Embed }
    }

    /// Whether it sends in a phase.
    pub fn is_active(&self, phase: &str) -> bool {
        self.phases.is_empty() || self.phases.iter().any(|name| name == phase)
    }

    /// Requests per second on average where it is active, its phases' factors aside; 0 for a closed loop.
    pub fn rate(&self) -> f64 {
        match self.arrivals {
            Arrive::Constant(rate) | Arrive::Poisson(rate) => rate,
            Arrive::Ramp([from, to]) => (from + to) / 2.0,
            Arrive::Bursts { size, every_s } => size / every_s.max(1e-9),
            Arrive::Clients(_) => 0.0,
        }
    }

    /// Sends so many times as often. A closed loop sends as often as it is answered.
    pub fn scale(&mut self, factor: f64) {
        match &mut self.arrivals {
            Arrive::Constant(rate) | Arrive::Poisson(rate) => *rate *= factor,
            Arrive::Ramp(rates) => rates.iter_mut().for_each(|rate| *rate *= factor),
            Arrive::Bursts { size, .. } => *size = (*size * factor).round().max(1.0),
            Arrive::Clients(_) => {}
        }
    }

    /// When requests of an open loop are due over these spans; `None` for a closed loop.
    pub fn schedule(&self, spans: &[Span]) -> Option<Schedule> {
        let active: f64 =
            spans.iter().filter(|span| self.is_active(&span.name)).map(|span| span.to_s - span.from_s).sum();
        let mut before = 0.0;
        let mut phases = Vec::with_capacity(spans.len());
        for span in spans {
            let length = span.to_s - span.from_s;
            let factor = self.rates.get(&span.name).copied().unwrap_or(1.0);
            let arrivals = match self.arrivals {
                Arrive::Clients(_) => return None,
                _ if !self.is_active(&span.name) => Arrivals::Constant { per_s: 0.0 },
                Arrive::Constant(rate) => Arrivals::Constant { per_s: rate * factor },
                Arrive::Poisson(rate) => Arrivals::Poisson { per_s: rate * factor },
                Arrive::Bursts { size, every_s } => Arrivals::Bursts { size: size * factor, every_s },
                Arrive::Ramp([from, to]) => {
                    let rate = |at: f64| (from + (to - from) * at / active.max(1e-9)) * factor;
                    let ramp = Arrivals::Ramp { from_per_s: rate(before), to_per_s: rate(before + length) };
                    before += length;
                    ramp
                }
            };
            let duration = std::time::Duration::try_from_secs_f64(length).unwrap_or_default();
            phases.push(Phase { name: span.name.clone(), arrivals, duration });
        }
        Some(Schedule::new(phases))
    }

    /// The stretches of time in which a closed loop runs, adjoining phases put together, in seconds from the start.
    pub fn stretches(&self, spans: &[Span]) -> Vec<(f64, f64)> {
        let mut stretches: Vec<(f64, f64)> = Vec::new();
        for span in spans.iter().filter(|span| self.is_active(&span.name)) {
            match stretches.last_mut() {
                Some((_, to)) if (*to - span.from_s).abs() < 1e-9 => *to = span.to_s,
                _ => stretches.push((span.from_s, span.to_s)),
            }
        }
        stretches
    }

    pub(super) fn check(&self, scenario: &Scenario) -> Result<(), String> {
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if self.name.is_empty() || !self.name.chars().all(plain) {
            return Err("its name may have letters, digits and _ only".to_owned());
        }
        let known = |phase: &String| scenario.phases.iter().any(|known| known.name == *phase);
        if let Some(missing) = self.phases.iter().chain(self.rates.keys()).find(|phase| !known(phase)) {
            return Err(format!("there is no phase {missing:?}"));
        }
        match &self.via {
            Via::Provider(name) if !scenario.providers.contains_key(name) => {
                return Err(format!("via: there is no provider {name:?}"));
            }
            Via::Nginx if scenario.nginx.is_none() => return Err("via: the scenario has no `nginx`".to_owned()),
            _ => {}
        }
        if self.route() == Route::Rerank && self.dialect == Dialect::Ollama {
            return Err("Ollama has no rerank call".to_owned());
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traffic(arrivals: &str, more: &str) -> Traffic {
        toml::from_str(&format!("name = \"t\"\narrivals = {arrivals}\n{more}")).expect("a traffic")
    }

    fn spans() -> Vec<Span> {
        [("a", 0.0, 2.0), ("b", 2.0, 4.0), ("c", 4.0, 6.0)]
            .map(|(name, from_s, to_s)| Span { name: name.to_owned(), from_s, to_s })
            .to_vec()
    }

    #[track_caller]
    fn check(arrivals: &str, more: &str, expected: [usize; 3]) {
        let schedule = traffic(arrivals, more).schedule(&spans()).expect("an open loop");
        let mut seen = [0; 3];
        for (_, phase) in schedule.arrivals(1) {
            seen[["a", "b", "c"].iter().position(|name| *name == phase).expect("a phase")] += 1;
        }
        assert_eq!(seen, expected);
    }

    #[test]
    fn requests_come_in_their_phases_at_their_rates() {
        check("{ constant = 5 }", "", [10, 10, 10]);
        check("{ constant = 5 }", "phases = [\"b\"]", [0, 10, 0]);
        check("{ constant = 5 }", "rates = { b = 3.0, c = 0.0 }", [10, 30, 0]);
        check("{ bursts = { size = 4, every_s = 1 } }", "", [8, 8, 8]);
        // One ramp over all phases: 0 to 30 a second in 6 s is 90 requests.
        check("{ ramp = [0, 30] }", "", [10, 30, 50]);
    }

    #[test]
    fn a_closed_loop_runs_through_adjoining_phases() {
        assert!(traffic("{ clients = 3 }", "").schedule(&spans()).is_none());
        assert_eq!(traffic("{ clients = 3 }", "").stretches(&spans()), [(0.0, 6.0)]);
        assert_eq!(traffic("{ clients = 3 }", "phases = [\"a\", \"c\"]").stretches(&spans()), [(0.0, 2.0), (4.0, 6.0)]);
    }
}
