//! From what was measured to rows, series and figures with names. Pure.

use std::collections::BTreeMap;

use super::observed::{Counts, Log, Slice, quantile};
use super::watch::Moment;
use crate::engine::report::Times;
use crate::engine::{Report, Row as Measured};
use crate::provider::Stats;
use crate::report::{Curve, Point, ProviderRow, Row, Series};
use crate::scenario::expect::Figures;
use crate::scenario::{Arrive, Span, Traffic};

/// Points of a series at most.
const POINTS: usize = 240;

/// Everything that one traffic brought.
pub struct Outcome {
    /// What it was.
    pub traffic: Traffic,
    /// What the engine measured.
    pub report: Report,
    /// Requests sent, those given up at the end too.
    pub sent: u64,
    /// What its clients noted.
    pub log: Log,
}

/// A name as a part of a figure's name.
pub fn plain(name: &str) -> String {
    name.chars().map(|c| if c.is_ascii_alphanumeric() || c == '_' { c } else { '_' }).collect()
}

/// How long each phase lasts, repetitions together.
pub fn lengths(spans: &[Span]) -> BTreeMap<&str, f64> {
    let mut lengths = BTreeMap::new();
    for span in spans {
        *lengths.entry(span.name.as_str()).or_insert(0.0) += span.to_s - span.from_s;
    }
    lengths
}

fn percentiles(times: &Times) -> [f64; 5] {
    [0.5, 0.95, 0.99, 0.999, 1.0].map(|share| times.quantile_ms(share))
}

/// Rows in the order of the phases.
pub fn rows(outcome: &Outcome, spans: &[Span]) -> Vec<Row> {
    let lengths = lengths(spans);
    let order = |phase: &str| spans.iter().position(|span| span.name == phase).unwrap_or(usize::MAX);
    let mut rows: Vec<Row> = outcome
        .report
        .rows
        .iter()
        .map(|(label, measured)| {
            let seconds = lengths.get(label.phase.as_str()).copied().unwrap_or(1.0).max(1e-9);
            let statuses = measured.by_status.iter().filter(|(status, _)| !(200..300).contains(*status));
            let others = statuses
                .map(|(status, count)| (status.to_string(), *count))
                .chain(measured.failures.iter().map(|(failure, count)| (failure.name().to_owned(), *count)));
            Row {
                traffic: outcome.traffic.name.clone(),
                phase: label.phase.clone(),
                class: label.class.clone(),
                tenant: label.tenant.clone(),
                requests: measured.good.len() + measured.bad.len(),
                per_s: measured.good.len() as f64 / seconds,
                good: measured.good.len(),
                others: others.collect(),
                good_ms: percentiles(&measured.good),
                bad_ms: percentiles(&measured.bad),
            }
        })
        .collect();
    rows.sort_by_key(|row| order(&row.phase));
    rows
}

/// Curves by phase, and the histograms behind them by file name.
pub fn curves(outcome: &Outcome, spans: &[Span], variant: &str) -> (Vec<Curve>, Vec<(String, String)>) {
    let (mut curves, mut files) = (Vec::new(), Vec::new());
    for phase in lengths(spans).into_keys() {
        let good = outcome.report.matching(|label| label.phase == phase).good;
        if good.is_empty() {
            continue;
        }
        let (traffic, phase) = (outcome.traffic.name.clone(), phase.to_owned());
        let start = if variant.is_empty() { String::new() } else { format!("{variant}-") };
        files.push((format!("{start}{traffic}-{}.hgrm", plain(&phase)), crate::report::hgrm(&good)));
        curves.push(Curve { points: crate::report::curve(&good), traffic, phase });
    }
    (curves, files)
}

/// One traffic over time.
pub fn series(outcome: &Outcome, length_s: f64) -> Series {
    let slices = &outcome.log.slices;
    let step = slices.len().div_ceil(POINTS).max(1);
    let points = slices.chunks(step).enumerate().map(|(place, slices)| {
        let mut ms: Vec<f32> = slices.iter().flat_map(|slice| &slice.good_ms).copied().collect();
        let bad: u64 = slices.iter().map(|slice| slice.bad).sum();
        // The last stretch may be cut short by the end of the run.
        let from_s = (place * step) as f64;
        let seconds = (length_s - from_s).clamp(1e-3, step as f64);
        let at = |ms: &mut Vec<f32>, share| quantile(ms, share);
        let three = match (at(&mut ms, 0.5), at(&mut ms, 0.95), at(&mut ms, 0.99)) {
            (Some(p50), Some(p95), Some(p99)) => Some([p50, p95, p99]),
            _ => None,
        };
        let seconds = if seconds < 0.2 * step as f64 { step as f64 } else { seconds };
        Point { good: ms.len() as f64 / seconds, bad: bad as f64 / seconds, ms: three }
    });
    Series { traffic: outcome.traffic.name.clone(), step_s: step as f64, points: points.collect() }
}

/// Figures of one traffic, of its phases, and of all of them together.
pub fn of_traffic(figures: &mut Figures, outcome: &Outcome, spans: &[Span]) {
    let lengths = lengths(spans);
    let total_s: f64 =
        spans.iter().filter(|span| outcome.traffic.is_active(&span.name)).map(|s| s.to_s - s.from_s).sum();
    let name = &outcome.traffic.name;
    let mut all = Counts::default();
    for (phase, seconds) in &lengths {
        let counts = outcome.log.phases.get(*phase).cloned().unwrap_or_default();
        let measured = outcome.report.matching(|label| label.phase == *phase);
        put(figures, &format!("{name}.{}", plain(phase)), &measured, &counts, *seconds);
        all.merge(&counts);
    }
    put(figures, name, &outcome.report.total(), &all, total_s);
    if let Some(knee) = knee(outcome, spans) {
        figures.insert(format!("{name}.knee_per_s"), knee);
    }
}

/// Figures of all traffics together.
pub fn of_all(figures: &mut Figures, outcomes: &[Outcome], length_s: f64) {
    let (mut measured, mut counts) = (Measured::default(), Counts::default());
    for outcome in outcomes {
        measured.merge(&outcome.report.total());
        outcome.log.phases.values().for_each(|phase| counts.merge(phase));
    }
    put(figures, "all", &measured, &counts, length_s);
    let mut lateness = Times::default();
    let (mut due, mut waited) = (0, 0);
    for outcome in outcomes {
        lateness.merge(&outcome.report.lateness);
        due += outcome.report.due;
        waited += outcome.report.waited_for_connection;
    }
    figures.insert("generator.late_p99_ms".to_owned(), lateness.quantile_ms(0.99));
    figures.insert("generator.due".to_owned(), due as f64);
    figures.insert("generator.waited_for_connection".to_owned(), waited as f64);
}

fn put(figures: &mut Figures, prefix: &str, measured: &Measured, counts: &Counts, seconds: f64) {
    let (good, bad) = (measured.good.len() as f64, measured.bad.len() as f64);
    let mut add = |name: &str, value: f64| figures.insert(format!("{prefix}.{name}"), value);
    add("sent", good + bad);
    add("good", good);
    add("bad", bad);
    add("per_s", good / seconds.max(1e-9));
    add("mb_received", measured.bytes as f64 / 1e6);
    if good + bad > 0.0 {
        add("good_share", good / (good + bad));
    }
    if good > 0.0 {
        for (name, value) in ["p50_ms", "p95_ms", "p99_ms", "p999_ms", "max_ms"].iter().zip(percentiles(&measured.good))
        {
            add(name, value);
        }
    }
    if bad > 0.0 {
        for (name, value) in ["bad_p50_ms", "bad_p95_ms", "bad_p99_ms", "bad_p999_ms", "bad_max_ms"]
            .iter()
            .zip(percentiles(&measured.bad))
        {
            add(name, value);
        }
        add("lexical_share", counts.lexical as f64 / bad);
    }
    for (status, count) in &measured.by_status {
        add(&format!("status_{status}"), *count as f64);
    }
    add("failed", measured.failures.values().sum::<u64>() as f64);
    for (failure, count) in &measured.failures {
        add(&format!("failed_{}", plain(failure.name())), *count as f64);
    }
    for (name, count) in [
        ("items", counts.items),
        ("cached_items", counts.cached),
        ("lexical", counts.lexical),
        ("without_wait", counts.without_wait),
        ("verified", counts.verified),
        ("wrong", counts.wrong),
        ("attempts", counts.attempts),
    ] {
        add(name, count as f64);
    }
    if counts.items > 0 {
        add("hit_share", counts.cached as f64 / counts.items as f64);
    }
    add("cost", decimal(&counts.cost.to_string()));
    for (kind, map) in [("code", &counts.codes), ("upstream", &counts.upstreams), ("space", &counts.spaces)] {
        for (name, count) in map {
            add(&format!("{kind}_{}", plain(name)), *count as f64);
        }
    }
}

/// A decimal as a number for figures; exact comparisons are made elsewhere.
pub fn decimal(text: &str) -> f64 {
    text.parse().unwrap_or(f64::NAN)
}

/// The rate at which a ramp's latency left the ground: that of the last second before p95 was three times what it was
/// at the start (and 20 ms more), or requests failed, two seconds running. Absent for other arrivals.
fn knee(outcome: &Outcome, spans: &[Span]) -> Option<f64> {
    let Arrive::Ramp([from, to]) = outcome.traffic.arrivals else { return None };
    let active: Vec<&Span> = spans.iter().filter(|span| outcome.traffic.is_active(&span.name)).collect();
    let (first, last) = (active.first()?.from_s, active.last()?.to_s);
    let seconds = outcome.log.slices.iter().enumerate().filter(|(at, _)| (*at as f64) >= first && (*at as f64) < last);
    let p95s: Vec<(f64, Option<f32>, bool)> = seconds
        .map(|(at, slice)| {
            let mut ms = slice.good_ms.clone();
            let failing = slice.bad as f64 > 0.01 * (ms.len() as f64 + slice.bad as f64);
            (at as f64 - first, quantile(&mut ms, 0.95), failing)
        })
        .collect();
    let mut calm: Vec<f32> = p95s.iter().take((p95s.len() / 5).max(1)).filter_map(|(_, p95, _)| *p95).collect();
    let ground = quantile(&mut calm, 0.5)?;
    let high = |(_, p95, failing): &(f64, Option<f32>, bool)| {
        *failing || p95.is_some_and(|p95| p95 > ground * 3.0 && p95 > ground + 20.0)
    };
    let broken = p95s.windows(2).position(|two| two.iter().all(high)).unwrap_or(p95s.len());
    Some(from + (to - from) * broken as f64 / (last - first).max(1e-9))
}

/// What each provider saw by phase, and its figures. `edges` are the counters at the start of each span, `end` those when
/// the last answer had come.
pub fn of_providers(figures: &mut Figures, edges: &[Moment], end: &Moment, spans: &[Span]) -> Vec<ProviderRow> {
    let mut rows: BTreeMap<(String, String), ProviderRow> = BTreeMap::new();
    let mut cpu: BTreeMap<&str, f64> = BTreeMap::new();
    for (place, span) in spans.iter().enumerate() {
        let (Some(before), after) = (edges.get(place), edges.get(place + 1).unwrap_or(end)) else { continue };
        if let (Some(before), Some(after)) = (before.cpu_s, after.cpu_s) {
            *cpu.entry(&span.name).or_default() += (after - before).max(0.0);
        }
        for (name, after) in &after.providers {
            let before = before.providers.get(name).cloned().unwrap_or_default();
            let row = rows.entry((name.clone(), span.name.clone())).or_default();
            row.provider.clone_from(name);
            row.phase.clone_from(&span.name);
            row.calls += after.calls.saturating_sub(before.calls);
            row.items += after.items.saturating_sub(before.items);
            row.tokens += after.tokens_billed.saturating_sub(before.tokens_billed);
            for (status, count) in &after.by_status {
                let known = before.by_status.get(status).copied().unwrap_or(0);
                if *count > known {
                    *row.by_status.entry(*status).or_default() += count - known;
                }
            }
        }
    }
    let lengths = lengths(spans);
    for row in rows.values() {
        let prefix = format!("provider.{}.{}", plain(&row.provider), plain(&row.phase));
        put_provider(figures, &prefix, row);
        let seconds = lengths.get(row.phase.as_str()).copied().unwrap_or(1.0).max(1e-9);
        figures.insert(format!("{prefix}.per_s"), row.calls as f64 / seconds);
    }
    for (name, stats) in &end.providers {
        put_provider(figures, &format!("provider.{}", plain(name)), &whole(name, stats));
        figures.insert(format!("provider.{}.most_at_once", plain(name)), stats.most_at_once as f64);
    }
    for (phase, seconds) in cpu {
        figures.insert(format!("gateway.{}.cpu_s", plain(phase)), seconds);
    }
    let order = |phase: &str| spans.iter().position(|span| span.name == phase);
    let mut rows: Vec<ProviderRow> = rows.into_values().collect();
    rows.sort_by_key(|row| (row.provider.clone(), order(&row.phase)));
    rows
}

fn whole(name: &str, stats: &Stats) -> ProviderRow {
    ProviderRow {
        provider: name.to_owned(),
        phase: String::new(),
        calls: stats.calls,
        items: stats.items,
        tokens: stats.tokens_billed,
        by_status: stats.by_status.clone(),
    }
}

fn put_provider(figures: &mut Figures, prefix: &str, row: &ProviderRow) {
    let mut add = |name: &str, value: u64| figures.insert(format!("{prefix}.{name}"), value as f64);
    add("calls", row.calls);
    add("items", row.items);
    add("tokens", row.tokens);
    for (status, count) in &row.by_status {
        add(&format!("status_{status}"), *count);
    }
}

/// Names that stand for "none of that kind" where they are missing, if what they belong to is there.
pub fn fill_zeros<'a>(figures: &mut Figures, names: impl Iterator<Item = &'a str>) {
    for name in names {
        let Some((owner, last)) = name.rsplit_once('.') else { continue };
        let counted = ["status_", "code_", "failed_", "upstream_", "space_", "lexical_share"];
        let known = figures.contains_key(&format!("{owner}.sent")) || figures.contains_key(&format!("{owner}.calls"));
        if known && counted.iter().any(|kind| last.starts_with(kind)) {
            figures.entry(name.to_owned()).or_insert(0.0);
        }
    }
}

/// The slice that a view shows: what came in the last few seconds.
pub fn recent(slices: impl Iterator<Item = Slice>) -> (Vec<f32>, u64) {
    slices.fold((Vec::new(), 0), |(mut ms, bad), slice| {
        ms.extend(slice.good_ms);
        (ms, bad + slice.bad)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(name: &str, from_s: f64, to_s: f64) -> Span {
        Span { name: name.to_owned(), from_s, to_s }
    }

    fn moment(calls: u64, refused: u64) -> Moment {
        let stats = Stats { calls, by_status: [(429, refused)].into(), ..Stats::default() };
        Moment { providers: [("p-1".to_owned(), stats)].into(), cpu_s: Some(calls as f64) }
    }

    #[test]
    fn counters_are_told_apart_by_phase_and_summed_over_repetitions() {
        let spans = [span("a", 0.0, 1.0), span("b", 1.0, 2.0), span("a", 2.0, 3.0)];
        let edges = [moment(5, 0), moment(15, 1), moment(17, 1)];
        let mut figures = Figures::new();
        let rows = of_providers(&mut figures, &edges, &moment(20, 4), &spans);
        assert_eq!(rows.iter().map(|row| (row.phase.as_str(), row.calls)).collect::<Vec<_>>(), [("a", 13), ("b", 2)]);
        assert_eq!(figures["provider.p_1.a.status_429"], 4.0);
        assert_eq!((figures["provider.p_1.calls"], figures["gateway.a.cpu_s"]), (20.0, 13.0));
    }

    fn outcome(arrivals: &str, slices: Vec<Slice>) -> Outcome {
        let traffic = toml::from_str(&format!("name = \"t\"\narrivals = {arrivals}")).expect("a traffic");
        Outcome { traffic, report: Report::default(), sent: 0, log: Log { slices, ..Log::default() } }
    }

    #[test]
    fn a_ramp_shows_its_knee() {
        let slices = (0..20).map(|at| Slice { good_ms: vec![if at < 15 { 10.0 } else { 90.0 }; 50], bad: 0 });
        let outcome = outcome("{ ramp = [0, 200] }", slices.collect());
        assert_eq!(knee(&outcome, &[span("up", 0.0, 20.0)]), Some(150.0));
    }

    #[test]
    fn long_runs_are_drawn_with_fewer_points() {
        let slices = vec![Slice { good_ms: vec![1.0, 3.0], bad: 1 }; 1000];
        let series = series(&outcome("{ constant = 3 }", slices), 1000.0);
        assert_eq!((series.step_s, series.points.len()), (5.0, 200));
        assert_eq!(series.points[0], Point { good: 2.0, bad: 1.0, ms: Some([1.0, 3.0, 3.0]) });
    }

    #[test]
    fn what_never_happened_is_zero_and_what_does_not_exist_is_missing() {
        let mut figures = Figures::from([("queries.sent".to_owned(), 1.0)]);
        fill_zeros(&mut figures, ["queries.status_429", "queries.p95_ms", "nobody.status_429"].into_iter());
        assert_eq!(figures.keys().collect::<Vec<_>>(), ["queries.sent", "queries.status_429"]);
    }
}
