//! What is left of a run: a table in the terminal, `result.json`, histograms, and one HTML file.
//!
//! Owns the shape of a result and everything that is drawn from it. It measures nothing: whatever it shows is in the
//! result, so that a report can be made again, and two runs compared, without running anything.

mod chart;
mod hgrm;
mod html;
mod page;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::run::books::Audit;

pub use hgrm::{curve, hgrm};
pub use html::html;
pub use table::{compared, table};

/// A whole run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct RunResult {
    /// The scenario's name.
    pub scenario: String,
    /// What it proves.
    pub proves: String,
    /// When it began, in milliseconds since 1970.
    pub started_unix_ms: u64,
    /// Start of everything drawn at random.
    pub seed: u64,
    /// What the command line changed.
    pub changed: Vec<String>,
    /// Where requests went, unless to servers of its own.
    pub target: Option<String>,
    /// Each way in which it was run.
    pub variants: Vec<VariantResult>,
    /// Lines of the table of figures: what each says, and its value by variant.
    pub shown: Vec<(String, Vec<Option<f64>>)>,
    /// What became of the expectations.
    pub verdicts: Vec<Verdict>,
}

impl RunResult {
    /// Whether every expectation that could be checked holds.
    pub fn passed(&self) -> bool {
        self.verdicts.iter().all(|verdict| verdict.holds != Some(false))
    }
}

/// An expectation at the end.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Verdict {
    /// The comparison.
    pub that: String,
    /// Why it must hold.
    pub why: String,
    /// Whether it does; absent: it could not be checked.
    pub holds: Option<bool>,
    /// The two sides, or why it could not be checked.
    pub seen: String,
}

/// One way in which a scenario was run.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct VariantResult {
    /// Its name in figures; empty where there is only one.
    pub name: String,
    /// What it is, in words.
    pub title: String,
    /// Why it was left out, if it was.
    pub skipped: Option<String>,
    /// The phases in time.
    pub phases: Vec<Mark>,
    /// What happened on the way: faults of providers, actions, changes of upstreams.
    pub marks: Vec<Mark>,
    /// What was measured, by traffic, phase, class and tenant.
    pub rows: Vec<Row>,
    /// Latency and failures over time, by traffic.
    pub series: Vec<Series>,
    /// Percentile curves, by traffic and phase.
    pub curves: Vec<Curve>,
    /// What the providers saw, by phase.
    pub providers: Vec<ProviderRow>,
    /// The books against everybody else's count.
    pub audit: Option<Audit>,
    /// How searches went.
    pub search: Option<SearchResult>,
    /// Whether the generator kept its rate, and other things to know.
    pub notes: Vec<String>,
    /// Every figure that expectations may name.
    pub figures: BTreeMap<String, f64>,
}

/// Something between two times, in seconds since the start.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Mark {
    /// What.
    pub name: String,
    /// From when.
    pub from_s: f64,
    /// Until when; the same for a moment.
    pub to_s: f64,
}

/// Latencies under one label.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Row {
    /// The traffic.
    pub traffic: String,
    /// The phase.
    pub phase: String,
    /// The class asked for.
    pub class: String,
    /// The tenant.
    pub tenant: String,
    /// Requests that ended.
    pub requests: u64,
    /// Good answers per second.
    pub per_s: f64,
    /// 2xx answers.
    pub good: u64,
    /// Other answers by status, and failures by cause.
    pub others: BTreeMap<String, u64>,
    /// Percentiles of good answers in milliseconds: 50, 95, 99, 99.9, 100.
    pub good_ms: [f64; 5],
    /// The same of everything else.
    pub bad_ms: [f64; 5],
}

/// One traffic over time.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Series {
    /// The traffic.
    pub traffic: String,
    /// Seconds that a point stands for.
    pub step_s: f64,
    /// Points in order; the first begins with the run.
    pub points: Vec<Point>,
}

/// One stretch of time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Good answers per second.
    pub good: f64,
    /// Others per second.
    pub bad: f64,
    /// Percentiles of good answers in milliseconds: 50, 95, 99; absent where there is none.
    pub ms: Option<[f32; 3]>,
}

/// A percentile curve.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Curve {
    /// The traffic.
    pub traffic: String,
    /// The phase.
    pub phase: String,
    /// Shares with the latency in milliseconds that each does not exceed, rising.
    pub points: Vec<(f64, f64)>,
}

/// What a provider saw in one phase.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct ProviderRow {
    /// The provider.
    pub provider: String,
    /// The phase.
    pub phase: String,
    /// Calls.
    pub calls: u64,
    /// Items.
    pub items: u64,
    /// Tokens billed.
    pub tokens: u64,
    /// Calls by status; 0: none was given.
    pub by_status: BTreeMap<u16, u64>,
}

/// How searches went.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct SearchResult {
    /// Documents in an answer.
    pub k: usize,
    /// By path: name, searches, mean recall, share with the right document, median and p95 in milliseconds.
    pub paths: Vec<(String, u64, f64, f64, f64, f64)>,
    /// Searches without an answer.
    pub unanswered: u64,
}

/// Writes everything into a folder, which is made where it is missing.
///
/// # Errors
/// A file cannot be written.
pub fn write(folder: &Path, result: &RunResult, histograms: &[(String, String)]) -> Result<PathBuf, String> {
    let explain = |error: std::io::Error| format!("{}: {error}", folder.display());
    fs::create_dir_all(folder).map_err(explain)?;
    let json = serde_json::to_vec_pretty(result).map_err(|error| error.to_string())?;
    fs::write(folder.join("result.json"), json).map_err(explain)?;
    for (name, text) in histograms {
        fs::write(folder.join(name), text).map_err(explain)?;
    }
    let page = folder.join("report.html");
    fs::write(&page, html(&[result])).map_err(explain)?;
    Ok(page)
}

/// Reads the result in a folder.
///
/// # Errors
/// There is none, or it is not one of ours.
pub fn read(folder: &Path) -> Result<RunResult, String> {
    let file = if folder.is_dir() { folder.join("result.json") } else { folder.to_owned() };
    let text = fs::read(&file).map_err(|error| format!("{}: {error}", file.display()))?;
    serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", file.display()))
}
