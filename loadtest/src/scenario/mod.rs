//! Scenarios: what is run, as files that a load tester edits.
//!
//! Owns the shape of a scenario, how it is found, and how the command line changes it. It starts nothing and sends
//! nothing. A file's first lines are a comment whose first sentence says what the scenario proves.

pub mod amount;
pub mod expect;
pub mod find;
mod overrides;
pub mod text;
pub mod traffic;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;

use crate::provider::{Effect, Rule, Script, When};

pub use find::{Listed, list, read};
pub use overrides::{Overrides, apply};
pub use traffic::{Arrive, Dialect, Route, Traffic, Via};

/// A scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scenario {
    /// Start of everything that is drawn at random.
    #[serde(default = "one")]
    pub seed: u64,
    /// Its parts, one after the other.
    pub phases: Vec<Phase>,
    /// How often the list of phases is gone through; figures of phases with one name are put together.
    #[serde(default = "once")]
    pub repeat: usize,
    /// Scripted providers by name.
    #[serde(default)]
    pub providers: BTreeMap<String, ProviderSpec>,
    /// The gateway's configuration. `{NAME}` in a text becomes the address (host and port) of the provider of that name,
    /// `{redis}` that of the Redis server. Addresses, folders and keys of tenants are filled in.
    #[serde(default)]
    pub gateway: toml::Table,
    /// Gateways with this configuration; requests go to them in turn.
    #[serde(default = "once")]
    pub gateways: usize,
    /// nginx as a plain proxy in front of the provider of this name, where it is installed.
    #[serde(default)]
    pub nginx: Option<String>,
    /// A Redis server is started.
    #[serde(default)]
    pub redis: bool,
    /// What is sent.
    pub traffic: Vec<Traffic>,
    /// What is done to the gateway on the way.
    #[serde(default)]
    pub actions: Vec<Action>,
    /// A search application that sends one of the traffics.
    #[serde(default)]
    pub search: Option<Search>,
    /// Ways to run it, one after the other; none: one, as it is.
    #[serde(default)]
    pub variants: Vec<Variant>,
    /// How the books must agree.
    #[serde(default)]
    pub books: Books,
    /// What must hold at the end.
    #[serde(default)]
    pub expect: Vec<Expect>,
    /// What makes it fail: the check of the checker.
    #[serde(default)]
    pub sabotage: Option<Sabotage>,
    /// Figures that the terminal shows in a table, a line each, by variant.
    #[serde(default)]
    pub show: Vec<Show>,
}

fn one() -> u64 {
    1
}

fn once() -> usize {
    1
}

/// A part of a run.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Its name in figures and reports.
    pub name: String,
    /// Its length in seconds.
    pub s: f64,
}

/// A scripted provider: a script's own keys, and `faults`.
#[derive(Clone, Debug, Deserialize)]
#[serde(try_from = "toml::Table")]
pub struct ProviderSpec {
    /// What it does when nothing is wrong.
    pub script: Script,
    /// What goes wrong, and when.
    pub faults: Vec<Fault>,
}

impl TryFrom<toml::Table> for ProviderSpec {
    type Error = String;

    fn try_from(mut table: toml::Table) -> Result<Self, String> {
        let faults = table.remove("faults").unwrap_or_else(|| toml::Value::Array(Vec::new()));
        let faults = faults.try_into::<Vec<Fault>>().map_err(|error| format!("faults: {error}"))?;
        let script = toml::Value::Table(table).try_into::<Script>().map_err(|error| error.to_string())?;
        Ok(Self { script, faults })
    }
}

/// Something that goes wrong at a provider during a phase.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Fault {
    /// The phase; absent: all the time.
    #[serde(default)]
    pub phase: Option<String>,
    /// What reports call it.
    pub name: String,
    /// Which calls it concerns.
    #[serde(default)]
    pub when: When,
    /// What happens to them.
    pub then: Effect,
}

/// Something done to the gateway. What is absent is not done.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct Action {
    /// The phase in which it is done.
    pub phase: String,
    /// What reports call it.
    pub name: String,
    /// How long after the phase's start, as a share of its length.
    pub at: f64,
    /// Again after so many seconds, until the phase is over.
    pub every_s: Option<f64>,
    /// The gateway of this number (from 0) is killed as `kill -9` does, and started again.
    pub crash: Option<usize>,
    /// A call on the admin side of every gateway, `METHOD /path`.
    pub admin: Option<String>,
    /// Its body, which is sent as JSON.
    pub body: Option<toml::Table>,
}

/// A search application: documents are embedded through the gateway into an index of vectors before the first phase,
/// and every query of `traffic` is answered from that, or by words where the gateway says so.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Search {
    /// The traffic whose requests are its queries.
    pub traffic: String,
    /// Documents.
    pub documents: usize,
    /// Documents in an answer.
    pub k: usize,
}

/// A way to run a scenario.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Variant {
    /// Its name in figures.
    pub name: String,
    /// What it is, in words.
    pub title: String,
    /// What is different: keys of the scenario by their path.
    #[serde(default)]
    pub set: toml::Table,
}

/// How the gateway's books, the clients' own log and the providers' log must agree at the end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Books {
    /// All three, to the last call and digit.
    #[default]
    Exact,
    /// What a client was answered is on the books once, with its cost; providers may have billed calls whose answer
    /// nobody lived to see.
    Clients,
    /// Nothing is compared.
    None,
}

/// Something that must hold.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Expect {
    /// The comparison, such as `queries.storm.p95_ms <= 50`.
    pub that: String,
    /// Why it must.
    pub why: String,
}

/// A change of the gateway that this scenario must notice.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Sabotage {
    /// What is taken away, in words.
    pub what: String,
    /// How: keys of the scenario, as `--set` takes them.
    pub set: Vec<String>,
}

/// A line of the table of figures.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Show {
    /// What it says.
    pub what: String,
    /// A figure or a sum of figures.
    pub figure: String,
}

/// A phase with its place in time.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// The phase's name.
    pub name: String,
    /// Seconds from the start of the run to its start.
    pub from_s: f64,
    /// The same for its end.
    pub to_s: f64,
}

impl Scenario {
    /// The phases in order, repetitions written out.
    pub fn spans(&self) -> Vec<Span> {
        let mut from_s = 0.0;
        let all = (0..self.repeat).flat_map(|_| &self.phases);
        all.map(|phase| {
            let span = Span { name: phase.name.clone(), from_s, to_s: from_s + phase.s };
            from_s = span.to_s;
            span
        })
        .collect()
    }

    /// How long one variant lasts.
    pub fn length(&self) -> Duration {
        let seconds = self.spans().last().map_or(0.0, |span| span.to_s);
        Duration::try_from_secs_f64(seconds).unwrap_or_default()
    }

    /// What is wrong with it that its shape does not show.
    ///
    /// # Errors
    /// The first problem in words.
    pub fn check(&self) -> Result<(), String> {
        let known = |phase: &str| self.phases.iter().any(|known| known.name == phase);
        if self.phases.is_empty() || self.phases.iter().any(|phase| !(phase.s > 0.0 && phase.s < 1e6)) {
            return Err("phases: there must be some, each with a length in seconds".to_owned());
        }
        for (name, provider) in &self.providers {
            for fault in &provider.faults {
                if fault.phase.as_deref().is_some_and(|phase| !known(phase)) {
                    return Err(format!("providers.{name}.faults: {:?} names no phase", fault.name));
                }
            }
        }
        if let Some(action) = self.actions.iter().find(|action| !known(&action.phase)) {
            return Err(format!("actions: {:?} names no phase", action.name));
        }
        if let Some(missing) = self.nginx.as_ref().filter(|name| !self.providers.contains_key(*name)) {
            return Err(format!("nginx: there is no provider {missing:?}"));
        }
        for traffic in &self.traffic {
            traffic.check(self).map_err(|why| format!("traffic {:?}: {why}", traffic.name))?;
        }
        if let Some(search) = &self.search
            && !self.traffic.iter().any(|traffic| traffic.name == search.traffic)
        {
            return Err(format!("search: there is no traffic {:?}", search.traffic));
        }
        for expect in &self.expect {
            expect::parse(&expect.that).map_err(|why| format!("expect {:?}: {why}", expect.that))?;
        }
        for show in &self.show {
            expect::parse_sum(&show.figure).map_err(|why| format!("show {:?}: {why}", show.figure))?;
        }
        Ok(())
    }

    /// The script of a provider with its faults at their times.
    pub fn script(&self, provider: &ProviderSpec) -> Script {
        let mut script = provider.script.clone();
        let spans = self.spans();
        for fault in &provider.faults {
            match &fault.phase {
                None => script.rules.push(rule(fault, fault.when.clone())),
                Some(phase) => {
                    for span in spans.iter().filter(|span| span.name == *phase) {
                        let (at_s, for_s) = (Some(span.from_s), Some(span.to_s - span.from_s));
                        script.rules.push(rule(fault, When { at_s, for_s, ..fault.when.clone() }));
                    }
                }
            }
        }
        script
    }
}

fn rule(fault: &Fault, when: When) -> Rule {
    Rule { when, then: fault.then.clone(), sequence: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scenario(more: &str) -> Result<Scenario, String> {
        let text = format!(
            "[[phases]]\nname = \"calm\"\ns = 2\n[[phases]]\nname = \"storm\"\ns = 3\n\
             [[traffic]]\nname = \"queries\"\narrivals = {{ constant = 5 }}\n{more}"
        );
        let scenario: Scenario = toml::from_str(&text).map_err(|error| error.to_string())?;
        scenario.check().map(|()| scenario)
    }

    #[test]
    fn faults_happen_in_every_repetition_of_their_phase() {
        let mut scenario = scenario(
            "[providers.p]\nwidth = 4\n[[providers.p.faults]]\nphase = \"storm\"\nname = \"down\"\n\
             then = { status = 503 }",
        )
        .expect("a scenario");
        scenario.repeat = 2;
        let script = scenario.script(&scenario.providers["p"]);
        let times: Vec<_> = script.rules.iter().map(|rule| (rule.when.at_s, rule.when.for_s)).collect();
        assert_eq!((script.width, times), (4, vec![(Some(2.0), Some(3.0)), (Some(7.0), Some(3.0))]));
        assert_eq!(scenario.length(), Duration::from_secs(10));
    }

    #[track_caller]
    fn refused(more: &str, why: &str) {
        let error = scenario(more).expect_err("refused");
        assert!(error.contains(why), "{error}");
    }

    #[test]
    fn what_means_nothing_is_refused() {
        refused("misspelt = 1", "misspelt");
        refused("[providers.p]\nwidht = 4", "widht");
        refused("[[actions]]\nphase = \"nowhen\"", "names no phase");
        refused("[[expect]]\nthat = \"queries.p95_ms less 5\"\nwhy = \"\"", "less");
        refused("[search]\ntraffic = \"none\"\ndocuments = 1\nk = 1", "no traffic");
    }
}
