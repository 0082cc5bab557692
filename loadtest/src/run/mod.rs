//! Running a scenario: servers up, load on, servers down, books compared, expectations checked.
//!
//! Owns the order of things. What is run is the scenario's, how it looks is the report's.

pub mod actions;
pub mod books;
mod client;
mod drive;
mod figures;
mod http;
mod observed;
mod progress;
pub mod request;
pub mod search;
mod settle;
mod stack;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use tokio::signal::unix::{SignalKind, signal};

use crate::clock;
use crate::report::{RunResult, VariantResult, Verdict};
use crate::scenario::expect::{self, Figures};
use crate::scenario::{Books, Expect, Listed, Overrides, Scenario, Variant, Via, apply};
use crate::servers::gateway;
use stack::Stack;

/// What to run, and how.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// Changes of the scenario.
    pub overrides: Overrides,
    /// Send everything to this server instead of starting any.
    pub target: Option<String>,
    /// The key sent; absent: the tenants' own.
    pub key: Option<String>,
    /// The model asked for; absent: the scenario's.
    pub model: Option<String>,
    /// The gateway's program; absent: the one beside this program, built first where Cargo runs us.
    pub gateway: Option<PathBuf>,
    /// Nothing is shown on the way.
    pub quiet: bool,
}

/// A finished run.
#[derive(Clone, Debug, Default)]
pub struct Finished {
    /// What came of it.
    pub result: RunResult,
    /// Histograms by file name.
    pub histograms: Vec<(String, String)>,
}

/// Runs a scenario. Blocks until it is over; everything that was started has ended then, whatever happened.
///
/// # Errors
/// It could not be run to its end: what is wrong with the scenario, or did not start, or an interrupt.
pub fn run(listed: &Listed, options: &Options) -> Result<Finished, String> {
    let base = apply(&listed.text, &options.overrides, &toml::Table::new())?;
    let variants = match &base.variants {
        all if all.is_empty() || options.target.is_some() => {
            vec![Variant { name: String::new(), title: listed.name.clone(), set: toml::Table::new() }]
        }
        all => all.clone(),
    };
    let uses_gateway = base.traffic.iter().any(|traffic| traffic.via == Via::Gateway);
    let program = match &options.target {
        None if uses_gateway => Some(gateway::program(options.gateway.as_deref())?),
        _ => None,
    };
    let mut changed = options.overrides.set.clone();
    changed.extend(options.overrides.duration_s.map(|seconds| format!("duration {seconds} s")));
    changed.extend(options.overrides.rate.map(|rate| format!("rate {rate}/s")));
    let result = RunResult {
        scenario: listed.name.clone(),
        proves: listed.proves.clone(),
        started_unix_ms: clock::unix_ms(),
        seed: base.seed,
        changed,
        target: options.target.clone(),
        ..RunResult::default()
    };
    let mut finished = Finished { result, histograms: Vec::new() };
    for variant in &variants {
        let scenario = apply(&listed.text, &options.overrides, &variant.set)?;
        let (outcome, histograms) = run_variant(&scenario, variant, options, program.as_deref())?;
        finished.result.variants.push(outcome);
        finished.histograms.extend(histograms);
    }
    conclude(&mut finished.result, &base, options.target.is_some());
    Ok(finished)
}

type Measured = (VariantResult, Vec<(String, String)>);

fn run_variant(
    scenario: &Scenario,
    variant: &Variant,
    options: &Options,
    program: Option<&Path>,
) -> Result<Measured, String> {
    let mut scenario = scenario.clone();
    let mut notes = Vec::new();
    let stack = match options.target {
        Some(_) => None,
        None => Some(Arc::new(Stack::start(&scenario, program)?)),
    };
    if stack.as_ref().is_some_and(|stack| stack.nginx.is_none()) {
        let before = scenario.traffic.len();
        scenario.traffic.retain(|traffic| traffic.via != Via::Nginx);
        if scenario.traffic.len() < before {
            notes.push("nginx is not installed: what would go through it is left out".to_owned());
        }
    }
    let named = VariantResult { name: variant.name.clone(), title: variant.title.clone(), ..VariantResult::default() };
    if scenario.traffic.is_empty() {
        return Ok((VariantResult { skipped: Some(notes.join("; ")), ..named }, Vec::new()));
    }
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let runtime = runtime.map_err(|error| format!("a runtime: {error}"))?;
    let driven = runtime.block_on(async {
        // Servers of our own are ended on the way out, so being told to end must not end the process at once.
        let mut terminate = signal(SignalKind::terminate()).map_err(|error| error.to_string())?;
        tokio::select! {
            driven = drive::drive(&scenario, &variant.title, stack.clone(), options) => driven,
            _ = tokio::signal::ctrl_c() => Err("interrupted".to_owned()),
            _ = terminate.recv() => Err("terminated".to_owned()),
        }
    });
    // Requests still under way would keep the servers busy; they are given up with the runtime.
    runtime.shutdown_timeout(Duration::from_secs(2));
    let driven = driven?;
    let (mut result, histograms) = settle::settle(&scenario, &variant.name, driven, stack.as_deref())?;
    result.name = named.name;
    result.title = named.title;
    result.notes.splice(0..0, notes);
    Ok((result, histograms))
}

/// Expectations that hold for every scenario.
fn standing(scenario: &Scenario, prefix: &str) -> Vec<Expect> {
    let expect = |that: String, why: &str| Expect { that, why: why.to_owned() };
    let mut all = vec![
        expect(format!("{prefix}all.wrong == 0"), "every vector and score that was looked at is that of its text"),
        expect(format!("{prefix}gateway.clean_exit == 1"), "the gateway ends by itself and with success when told to"),
    ];
    if scenario.books != Books::None {
        let why = "what a client was answered is on the books, once, with its status and its cost";
        all.push(expect(format!("{prefix}books.client_differences == 0"), why));
    }
    if scenario.books == Books::Exact {
        for (figure, why) in [
            ("calls", "the gateway counts as many good calls as the providers"),
            ("token", "the books have every token that the providers billed"),
            ("money", "the books have what those tokens cost, to the last digit"),
        ] {
            all.push(expect(format!("{prefix}books.{figure}_difference == 0"), why));
        }
    }
    all
}

/// Checks expectations and fills the table of figures.
fn conclude(result: &mut RunResult, scenario: &Scenario, elsewhere: bool) {
    let mut expected = scenario.expect.clone();
    for variant in result.variants.iter().filter(|variant| variant.skipped.is_none()) {
        let prefix = if variant.name.is_empty() { String::new() } else { format!("{}.", variant.name) };
        let gateway = variant.figures.contains_key("gateway.clean_exit");
        expected.extend(standing(scenario, &prefix).into_iter().filter(|_| gateway));
    }
    let mut all = Figures::new();
    for variant in &result.variants {
        let prefix = if variant.name.is_empty() { String::new() } else { format!("{}.", variant.name) };
        all.extend(variant.figures.iter().map(|(name, value)| (format!("{prefix}{name}"), *value)));
    }
    let claims: Vec<_> = expected.iter().filter_map(|expect| expect::parse(&expect.that).ok()).collect();
    figures::fill_zeros(&mut all, claims.iter().flat_map(|claim| claim.names()));
    let may_miss = elsewhere || result.variants.iter().any(|variant| variant.skipped.is_some() || is_partial(variant));
    result.verdicts = expected
        .iter()
        .zip(&claims)
        .map(|(expect, claim)| {
            let (holds, seen) = match claim.decide(&all) {
                expect::Outcome::Decided { holds, left, right } => {
                    (Some(holds), format!("{} and {}", short(left), short(right)))
                }
                expect::Outcome::Missing(name) => {
                    (if may_miss { None } else { Some(false) }, format!("there is no {name}"))
                }
            };
            Verdict { that: expect.that.clone(), why: expect.why.clone(), holds, seen }
        })
        .collect();
    let shown = scenario.show.iter().filter_map(|show| {
        let sum = expect::parse_sum(&show.figure).ok()?;
        let values = result.variants.iter().map(|variant| {
            let mut own = variant.figures.clone();
            figures::fill_zeros(&mut own, sum.names());
            sum.value(&own).ok()
        });
        Some((show.what.clone(), values.collect()))
    });
    result.shown = shown.collect();
}

fn is_partial(variant: &VariantResult) -> bool {
    variant.notes.iter().any(|note| note.contains("left out"))
}

fn short(value: f64) -> String {
    let text = format!("{value:.3}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expectations_are_checked_against_the_figures_of_all_variants() {
        let scenario: Scenario = toml::from_str(
            "[[phases]]\nname = \"a\"\ns = 1\n[[traffic]]\nname = \"q\"\narrivals = { constant = 1 }\n\
             [[expect]]\nthat = \"with.q.p95_ms <= without.q.p95_ms\"\nwhy = \"\"\n\
             [[expect]]\nthat = \"with.q.status_429 == 0\"\nwhy = \"\"\n\
             [[expect]]\nthat = \"with.q.nothing == 0\"\nwhy = \"\"\n\
             [[show]]\nwhat = \"p95\"\nfigure = \"q.p95_ms\"",
        )
        .expect("a scenario");
        let variant = |name: &str, p95| VariantResult {
            name: name.to_owned(),
            figures: [("q.p95_ms".to_owned(), p95), ("q.sent".to_owned(), 1.0)].into(),
            ..VariantResult::default()
        };
        let mut result =
            RunResult { variants: vec![variant("with", 2.0), variant("without", 9.0)], ..RunResult::default() };
        conclude(&mut result, &scenario, false);
        let holds: Vec<_> = result.verdicts.iter().map(|verdict| verdict.holds).collect();
        assert_eq!(holds, [Some(true), Some(true), Some(false)]);
        assert_eq!(result.shown, [("p95".to_owned(), vec![Some(2.0), Some(9.0)])]);
        conclude(&mut result, &scenario, true);
        assert_eq!(result.verdicts[2].holds, None, "elsewhere there is less to see");
    }
}
