//! Results as one HTML file that needs nothing else: a run, or several runs side by side.

use std::fmt::Write as _;

use super::chart::{Band, Chart, Line, Scale, escaped, seconds};
use super::page::page;
use super::table::{MEASURES, change, letter, number};
use super::{Mark, RunResult, Series, VariantResult};

/// Curves in one chart at most: more cannot be told apart.
const CURVES: usize = 8;

/// A page about one run, or a comparison of several.
pub fn html(results: &[&RunResult]) -> String {
    match results {
        [one] => page(&one.scenario, &run(one)),
        many => {
            let names: Vec<&str> = many.iter().map(|result| result.scenario.as_str()).collect();
            page(&format!("Runs compared: {}", names.join(", ")), &comparison(many))
        }
    }
}

/// A table: heads, the first `texts` of which are texts; cells are HTML.
fn grid(heads: &[&str], texts: usize, rows: &[Vec<String>]) -> String {
    let class = |column: usize| if column < texts { " class=\"t\"" } else { "" };
    let mut out = String::from("<div class=\"scroll\"><table><thead><tr>");
    // Writing to a string cannot fail.
    for (column, head) in heads.iter().enumerate() {
        let _ = write!(out, "<th{}>{}</th>", class(column), escaped(head));
    }
    out.push_str("</tr></thead><tbody>");
    for row in rows {
        out.push_str("<tr>");
        for (column, cell) in row.iter().enumerate() {
            let _ = write!(out, "<td{}>{cell}</td>", class(column));
        }
        out.push_str("</tr>");
    }
    out.push_str("</tbody></table></div>");
    out
}

fn run(result: &RunResult) -> String {
    let mut out = String::new();
    let (class, word) = if result.passed() { ("yes", "passed") } else { ("no", "failed") };
    let started = utc(result.started_unix_ms);
    let _ = write!(
        out,
        "<h1>{}</h1><p>{}</p><p><span class=\"verdict {class}\">{word}</span> <span class=\"muted\">{started} UTC, seed {}{}{}</span></p>",
        escaped(&result.scenario),
        escaped(&result.proves),
        result.seed,
        if result.changed.is_empty() {
            String::new()
        } else {
            format!(", with {}", escaped(&result.changed.join(", ")))
        },
        result.target.as_ref().map_or_else(String::new, |target| format!(", against {}", escaped(target))),
    );
    out.push_str(&verdicts(result));
    if !result.shown.is_empty() {
        let heads: Vec<&str> = std::iter::once("figure")
            .chain(
                result
                    .variants
                    .iter()
                    .map(|variant| if variant.name.is_empty() { "value" } else { variant.title.as_str() }),
            )
            .collect();
        let rows = result.shown.iter().map(|(what, values)| {
            let values = values.iter().map(|value| value.map_or_else(|| "–".to_owned(), number));
            std::iter::once(escaped(what)).chain(values).collect()
        });
        let _ = write!(
            out,
            "<h2>Figures</h2><section class=\"card\">{}</section>",
            grid(&heads, 1, &rows.collect::<Vec<_>>())
        );
    }
    for variant in &result.variants {
        out.push_str(&of_variant(variant, result.variants.len() > 1));
    }
    out
}

fn verdicts(result: &RunResult) -> String {
    let rows: Vec<Vec<String>> = result
        .verdicts
        .iter()
        .map(|verdict| {
            let (class, word) = match verdict.holds {
                Some(true) => ("yes", "✓ holds"),
                Some(false) => ("no", "✗ fails"),
                None => ("muted", "– not checked"),
            };
            vec![
                format!("<b class=\"{class}\">{word}</b>"),
                format!("<code class=\"wrap\">{}</code>", escaped(&verdict.that)),
                escaped(&verdict.seen),
                format!("<span class=\"muted wrap\">{}</span>", escaped(&verdict.why)),
            ]
        })
        .collect();
    format!(
        "<h2>Expectations</h2><section class=\"card\">{}</section>",
        grid(&["", "expected", "seen", "because"], 4, &rows)
    )
}

fn of_variant(variant: &VariantResult, named: bool) -> String {
    let mut out = String::new();
    let _ = write!(out, "<h2>{}</h2>", if named { escaped(&variant.title) } else { "Measured".to_owned() });
    if let Some(why) = &variant.skipped {
        let _ = write!(out, "<p class=\"muted\">Left out: {}</p>", escaped(why));
        return out;
    }
    for note in &variant.notes {
        let _ = write!(out, "<p class=\"muted\">{}</p>", escaped(note));
    }
    let _ = write!(out, "<section class=\"card\">{}</section>", rows(variant));
    let curves: Vec<Line> =
        variant.curves.iter().take(CURVES).enumerate().map(|(color, curve)| line_of(curve, color, false, "")).collect();
    out.push_str(&percentiles("Percentiles of good answers", curves));
    for series in &variant.series {
        out.push_str(&over_time(variant, series));
    }
    out.push_str(&providers(variant));
    out.push_str(&search(variant));
    out.push_str(&books(variant));
    let figures: Vec<Vec<String>> = variant
        .figures
        .iter()
        .map(|(name, value)| vec![format!("<code>{}</code>", escaped(name)), number(*value)])
        .collect();
    let _ = write!(
        out,
        "<details><summary>All {} figures</summary>{}</details>",
        figures.len(),
        grid(&["figure", "value"], 1, &figures)
    );
    out
}

fn rows(variant: &VariantResult) -> String {
    let rows: Vec<Vec<String>> = variant
        .rows
        .iter()
        .map(|row| {
            let others: Vec<String> =
                row.others.iter().map(|(what, count)| format!("{count}×{}", escaped(what))).collect();
            let ms = |value: f64| if row.good == 0 { "–".to_owned() } else { format!("{value:.1}") };
            let mut cells = [&row.traffic, &row.phase, &row.class, &row.tenant].map(|text| escaped(text)).to_vec();
            cells.extend([row.requests.to_string(), format!("{:.1}", row.per_s)]);
            cells.extend(row.good_ms.map(ms));
            let worst = if row.others.is_empty() { "–".to_owned() } else { format!("{:.1}", row.bad_ms[1]) };
            cells.extend([if others.is_empty() { "0".to_owned() } else { others.join(" ") }, worst]);
            cells
        })
        .collect();
    let heads = [
        "traffic",
        "phase",
        "class",
        "tenant",
        "sent",
        "good/s",
        "p50 ms",
        "p95",
        "p99",
        "p99.9",
        "max",
        "not good",
        "their p95 ms",
    ];
    grid(&heads, 4, &rows)
}

fn line_of(curve: &super::Curve, color: usize, dashed: bool, prefix: &str) -> Line {
    let points = curve.points.iter().map(|(share, ms)| Some((nines(*share), *ms))).collect();
    Line { name: format!("{prefix}{}, {}", curve.traffic, curve.phase), color, dashed, points }
}

/// A share as its number of nines, the axis on which tails are seen.
fn nines(share: f64) -> f64 {
    -(1.0 - share).max(1e-5).log10()
}

fn percentiles(title: &str, lines: Vec<Line>) -> String {
    if lines.iter().all(|line| line.points.is_empty()) {
        return String::new();
    }
    let most =
        lines.iter().flat_map(|line| &line.points).flatten().map(|(x, _)| *x).filter(|x| *x < 4.99).fold(2.0, f64::max);
    let ticks = [(0.0, "0"), (0.5, "50"), (0.9, "90"), (0.99, "99"), (0.999, "99.9"), (0.9999, "99.99")];
    let x_ticks = ticks.iter().map(|(share, name)| (nines(*share), format!("{name} %"))).filter(|(x, _)| *x <= most);
    let y = Scale::of_ms(lines.iter().flat_map(|line| &line.points).flatten().map(|(_, y)| *y));
    let lines = lines.into_iter().map(|line| Line {
        points: line.points.into_iter().map(|point| point.map(|(x, y)| (x.min(most), y))).collect(),
        ..line
    });
    Chart {
        title: title.to_owned(),
        height: 320.0,
        x: Scale::Linear(0.0, most),
        x_ticks: x_ticks.collect(),
        x_name: "share of answers that were at least this fast".to_owned(),
        y,
        y_name: "ms".to_owned(),
        lines: lines.collect(),
        bars: Vec::new(),
        bands: Vec::new(),
        marks: Vec::new(),
    }
    .svg()
}

fn bands(marks: &[Mark]) -> Vec<Band> {
    marks.iter().map(|mark| Band { name: mark.name.clone(), from: mark.from_s, to: mark.to_s }).collect()
}

fn over_time(variant: &VariantResult, series: &Series) -> String {
    let length = variant.phases.last().map_or(1.0, |phase| phase.to_s);
    let step = series.step_s;
    let middle = |place: usize| (place as f64 + 0.5) * step;
    let lines = [("p50", 0), ("p95", 1), ("p99", 2)].map(|(name, place)| Line {
        name: name.to_owned(),
        color: place,
        dashed: false,
        points: series
            .points
            .iter()
            .enumerate()
            .map(|(at, point)| point.ms.and_then(|ms| ms.get(place).copied()).map(|ms| (middle(at), f64::from(ms))))
            .collect(),
    });
    let bars = series.points.iter().enumerate().filter(|(_, point)| point.bad > 0.0).map(|(at, point)| {
        let share = point.bad / (point.bad + point.good).max(1e-9);
        (
            at as f64 * step,
            step,
            share,
            format!("{:.0} s: {:.1}/s without a good answer, {:.1}/s with", at as f64 * step, point.bad, point.good),
        )
    });
    let y = Scale::of_ms(lines.iter().flat_map(|line| &line.points).flatten().map(|(_, y)| *y));
    let rate: f64 =
        series.points.iter().map(|point| point.good + point.bad).sum::<f64>() / series.points.len().max(1) as f64;
    Chart {
        title: format!("{} over time (by the time at which requests were due, {rate:.1}/s on average)", series.traffic),
        height: 300.0,
        x: Scale::Linear(0.0, length),
        x_ticks: seconds(length),
        x_name: "s".to_owned(),
        y,
        y_name: "ms".to_owned(),
        lines: lines.to_vec(),
        bars: bars.collect(),
        bands: bands(&variant.phases),
        marks: bands(&variant.marks),
    }
    .svg()
}

fn providers(variant: &VariantResult) -> String {
    if variant.providers.is_empty() {
        return String::new();
    }
    let rows: Vec<Vec<String>> = variant
        .providers
        .iter()
        .map(|row| {
            let statuses: Vec<String> = row
                .by_status
                .iter()
                .map(
                    |(status, count)| {
                        if *status == 0 { format!("{count}×no answer") } else { format!("{count}×{status}") }
                    },
                )
                .collect();
            vec![
                escaped(&row.provider),
                escaped(&row.phase),
                row.calls.to_string(),
                row.items.to_string(),
                row.tokens.to_string(),
                statuses.join(" "),
            ]
        })
        .collect();
    let heads = ["provider", "phase", "calls", "items", "tokens billed", "answers"];
    format!("<h3>What the providers saw</h3><section class=\"card\">{}</section>", grid(&heads, 2, &rows))
}

fn search(variant: &VariantResult) -> String {
    let Some(search) = &variant.search else { return String::new() };
    let mut rows: Vec<Vec<String>> = search
        .paths
        .iter()
        .map(|(path, answers, recall, found, p50, p95)| {
            let percent = |share: &f64| format!("{:.1} %", share * 100.0);
            vec![
                escaped(path),
                answers.to_string(),
                percent(recall),
                percent(found),
                format!("{p50:.1}"),
                format!("{p95:.1}"),
            ]
        })
        .collect();
    rows.push(vec!["not at all".to_owned(), search.unanswered.to_string()]);
    let recall = format!("recall@{}", search.k);
    let heads = ["searches answered", "number", recall.as_str(), "with the right document", "p50 ms", "p95 ms"];
    format!(
        "<h3>Searches</h3><section class=\"card\"><p class=\"muted\">Recall is the share of the documents of the answer by \
         vectors, without any outage, that the answer held.</p>{}</section>",
        grid(&heads, 1, &rows)
    )
}

fn books(variant: &VariantResult) -> String {
    let Some(audit) = &variant.audit else { return String::new() };
    let mut rows: Vec<Vec<String>> = audit
        .groups
        .iter()
        .flat_map(|group| {
            let who = escaped(&group.providers.join(", "));
            let line = |what: &str, theirs: String, ours: Option<String>| {
                let same = ours.as_ref().map(|ours| *ours == theirs);
                let (class, word) = match same {
                    Some(true) => ("yes", "✓"),
                    Some(false) => ("no", "✗"),
                    None => ("muted", "–"),
                };
                vec![
                    who.clone(),
                    what.to_owned(),
                    theirs,
                    ours.unwrap_or_else(|| "–".to_owned()),
                    format!("<b class=\"{class}\">{word}</b>"),
                ]
            };
            vec![
                line("good calls", group.calls.to_string(), group.booked_calls.map(|calls| calls.to_string())),
                line("tokens", group.tokens.to_string(), Some(group.booked_tokens.to_string())),
                line("money", group.money.clone(), Some(group.booked_money.clone())),
            ]
        })
        .collect();
    let clients = if audit.client_differences() == 0 { ("yes", "✓") } else { ("no", "✗") };
    rows.push(vec![
        "clients".to_owned(),
        "money told in answers".to_owned(),
        audit.told.clone(),
        audit.booked.clone(),
        format!("<b class=\"{}\">{}</b>", clients.0, clients.1),
    ]);
    let mut out = format!(
        "<h3>Books</h3><section class=\"card\">{}<p class=\"muted\">{} records for {} answers to {} requests. Differences: {} \
         missing, {} twice, {} with another cost or status, {} that nobody sent, {} miscounted.</p>",
        grid(&["whose count", "of what", "theirs", "on the books", ""], 2, &rows),
        audit.records,
        audit.answered,
        audit.requests,
        audit.missing,
        audit.twice,
        audit.other,
        audit.strange,
        audit.miscounted,
    );
    if !audit.examples.is_empty() {
        out.push_str("<ul class=\"plain\">");
        for example in &audit.examples {
            let _ = write!(out, "<li>{}</li>", escaped(example));
        }
        out.push_str("</ul>");
    }
    out.push_str("</section>");
    out
}

fn comparison(results: &[&RunResult]) -> String {
    let mut out = String::from("<h1>Runs compared</h1>");
    let rows: Vec<Vec<String>> = results
        .iter()
        .enumerate()
        .map(|(place, result)| {
            let (class, word) = if result.passed() { ("yes", "passed") } else { ("no", "failed") };
            let changed =
                if result.changed.is_empty() { "–".to_owned() } else { escaped(&result.changed.join(", ")) };
            vec![
                letter(place).to_string(),
                escaped(&result.scenario),
                utc(result.started_unix_ms),
                changed,
                format!("<b class=\"{class}\">{word}</b>"),
            ]
        })
        .collect();
    let _ = write!(
        out,
        "<section class=\"card\">{}</section>",
        grid(&["", "scenario", "begun (UTC)", "with", ""], 5, &rows)
    );
    let Some((first, others)) = results.split_first() else { return out };
    for variant in &first.variants {
        let mut lines = Vec::new();
        for (place, result) in results.iter().enumerate() {
            let Some(own) = result.variants.iter().find(|other| other.name == variant.name) else { continue };
            let prefix = format!("{}: ", letter(place));
            let curves = own.curves.iter().take(CURVES).enumerate();
            lines.extend(curves.map(|(color, curve)| line_of(curve, color, place > 0, &prefix)));
        }
        let title = if variant.name.is_empty() { "Percentiles" } else { &variant.title };
        out.push_str(&percentiles(title, lines));
        let mut rows = Vec::new();
        for row in &variant.rows {
            let all: Vec<Option<&super::Row>> = std::iter::once(Some(row))
                .chain(others.iter().map(|result| {
                    let own = result.variants.iter().find(|other| other.name == variant.name)?;
                    own.rows.iter().find(|other| {
                        (&other.traffic, &other.phase, &other.tenant) == (&row.traffic, &row.phase, &row.tenant)
                    })
                }))
                .collect();
            for (measure, of) in MEASURES {
                let values: Vec<Option<f64>> = all.iter().map(|row| row.map(of)).collect();
                let mut cells = vec![escaped(&row.traffic), escaped(&row.phase), (*measure).to_owned()];
                cells.extend(values.iter().map(|value| value.map_or_else(|| "–".to_owned(), number)));
                cells.push(change(values.first().copied().flatten(), values.last().copied().flatten()));
                rows.push(cells);
            }
        }
        let letters: Vec<String> = (0..results.len()).map(|place| letter(place).to_string()).collect();
        let mut heads = vec!["traffic", "phase", "measure"];
        heads.extend(letters.iter().map(String::as_str));
        heads.push("change");
        let _ = write!(out, "<section class=\"card\">{}</section>", grid(&heads, 3, &rows));
    }
    out
}

/// A moment as year, month, day and time, by Howard Hinnant's `civil_from_days`.
fn utc(unix_ms: u64) -> String {
    let seconds = unix_ms / 1000;
    let (days, of_day) = (seconds / 86_400 + 719_468, seconds % 86_400);
    let era = days / 146_097;
    let of_era = days % 146_097;
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02}:{:02}", of_day / 3600, of_day % 3600 / 60, of_day % 60)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Curve, Point, Row, Verdict};

    fn result() -> RunResult {
        let curve =
            Curve { traffic: "q".to_owned(), phase: "a".to_owned(), points: vec![(0.0, 1.0), (0.5, 2.0), (1.0, 9.0)] };
        let point = |bad| Point { good: 5.0, bad, ms: Some([1.0, 2.0, 3.0]) };
        let series =
            Series { traffic: "q".to_owned(), step_s: 1.0, points: vec![point(0.0), point(2.0), Point::default()] };
        let phase = Mark { name: "a".to_owned(), from_s: 0.0, to_s: 3.0 };
        let variant = VariantResult {
            rows: vec![Row { traffic: "q<script>".to_owned(), good: 1, requests: 1, ..Row::default() }],
            curves: vec![curve],
            series: vec![series],
            phases: vec![phase.clone()],
            marks: vec![Mark { name: "p: down".to_owned(), ..phase }],
            audit: Some(crate::run::books::Audit::default()),
            ..VariantResult::default()
        };
        let verdict = Verdict { that: "q.p95_ms <= 3".to_owned(), holds: Some(true), ..Verdict::default() };
        RunResult {
            scenario: "steady".to_owned(),
            variants: vec![variant],
            verdicts: vec![verdict],
            ..RunResult::default()
        }
    }

    #[test]
    fn a_page_is_whole_and_asks_nobody_for_anything() {
        for text in [html(&[&result()]), html(&[&result(), &result()])] {
            assert!(text.starts_with("<!doctype html>") && text.ends_with("</html>\n"));
            assert!(
                !text.contains("http:")
                    && !text.contains("https:")
                    && !text.contains("src=")
                    && !text.contains("@import")
            );
            assert!(!text.contains("q<script>") && text.contains("q&lt;script&gt;"));
            assert!(text.contains("<svg") && !text.contains("NaN"), "a chart");
        }
        assert!(html(&[&result()]).contains("q.p95_ms &lt;= 3"));
    }

    #[test]
    fn moments_are_dates() {
        assert_eq!(utc(0), "1970-01-01 00:00:00");
        assert_eq!(utc(951_827_696_000), "2000-02-29 12:34:56");
        assert_eq!(utc(1_796_083_199_000), "2026-11-30 23:59:59");
    }
}
