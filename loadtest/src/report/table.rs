//! Results in a terminal.

use std::fmt::Write as _;

use super::{RunResult, VariantResult};

/// Rows with columns of equal width, the first `texts` columns to the left.
fn aligned(rows: &[Vec<String>], texts: usize) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |column: usize| {
        rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::from("  ");
        for (column, (cell, width)) in row.iter().zip(&widths).enumerate() {
            // Writing to a string cannot fail.
            let _ = if column < texts { write!(line, "{cell:<width$}  ") } else { write!(line, "{cell:>width$}  ") };
        }
        out.push_str(line.trim_end());
        out.push('\n');
    }
    out
}

/// A number as a person wants to read it.
pub(super) fn number(value: f64) -> String {
    if !value.is_finite() {
        return "–".to_owned();
    }
    let size = value.abs();
    if size >= 1000.0 || (value.fract() == 0.0 && size < 1e15) {
        return format!("{value:.0}");
    }
    let text = match size {
        100.0.. => format!("{value:.1}"),
        10.0.. => format!("{value:.2}"),
        0.001.. => format!("{value:.4}"),
        _ => format!("{value:.9}"),
    };
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

fn texts<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

/// Everything about a run.
pub fn table(result: &RunResult) -> String {
    let mut out = String::new();
    let _ = writeln!(out, "\n{}: {}", result.scenario, result.proves);
    for variant in &result.variants {
        out.push_str(&variant_table(variant, result.variants.len() > 1));
    }
    if !result.shown.is_empty() {
        let head = std::iter::once("figure".to_owned()).chain(
            result
                .variants
                .iter()
                .map(|variant| if variant.name.is_empty() { "value" } else { &variant.title }.to_owned()),
        );
        let mut rows = vec![head.collect::<Vec<_>>()];
        for (what, values) in &result.shown {
            let values = values.iter().map(|value| value.map_or_else(|| "–".to_owned(), number));
            rows.push(std::iter::once(what.clone()).chain(values).collect());
        }
        let _ = write!(out, "\n{}", aligned(&rows, 1));
    }
    if !result.verdicts.is_empty() {
        out.push('\n');
    }
    for verdict in &result.verdicts {
        let word = match verdict.holds {
            Some(true) => "holds   ",
            Some(false) => "FAILS   ",
            None => "skipped ",
        };
        let _ = writeln!(out, "  {word} {}  ({})", verdict.that, verdict.seen);
        if verdict.holds == Some(false) {
            let _ = writeln!(out, "           {}", verdict.why);
        }
    }
    out
}

fn variant_table(variant: &VariantResult, named: bool) -> String {
    let mut out = String::new();
    if named {
        let _ = writeln!(out, "\n{}", variant.title);
    }
    if let Some(why) = &variant.skipped {
        let _ = writeln!(out, "  left out: {why}");
        return out;
    }
    let head =
        ["traffic", "phase", "class", "tenant", "sent", "good/s", "p50 ms", "p95 ms", "p99 ms", "max ms", "not good"];
    let mut rows = vec![texts(head)];
    for row in &variant.rows {
        let [p50, p95, p99, _, max] = row.good_ms;
        let others: Vec<String> = row.others.iter().map(|(what, count)| format!("{count}×{what}")).collect();
        let ms = |value: f64| if row.good == 0 { "–".to_owned() } else { format!("{value:.1}") };
        rows.push(vec![
            row.traffic.clone(),
            row.phase.clone(),
            row.class.clone(),
            row.tenant.clone(),
            row.requests.to_string(),
            format!("{:.1}", row.per_s),
            ms(p50),
            ms(p95),
            ms(p99),
            ms(max),
            if others.is_empty() { "0".to_owned() } else { others.join(" ") },
        ]);
    }
    let _ = write!(out, "\n{}", aligned(&rows, 4));
    if !variant.providers.is_empty() {
        let mut rows = vec![texts(["provider saw", "phase", "calls", "items", "tokens", "not 200"])];
        for row in &variant.providers {
            let others = row.by_status.iter().filter(|(status, _)| **status != 200);
            let others: Vec<String> = others
                .map(
                    |(status, count)| {
                        if *status == 0 { format!("{count}×no answer") } else { format!("{count}×{status}") }
                    },
                )
                .collect();
            let others = if others.is_empty() { "0".to_owned() } else { others.join(" ") };
            let counts = [row.calls, row.items, row.tokens].map(|count| count.to_string());
            rows.push([row.provider.clone(), row.phase.clone()].into_iter().chain(counts).chain([others]).collect());
        }
        let _ = write!(out, "\n{}", aligned(&rows, 2));
    }
    if let Some(search) = &variant.search {
        let k = search.k;
        let head = format!("recall@{k}");
        let mut rows = vec![texts(["searches answered", "number", &head, "right one found", "p50 ms", "p95 ms"])];
        for (path, answers, recall, found, p50, p95) in &search.paths {
            let percent = |share: f64| format!("{:.1} %", share * 100.0);
            let ms = |value: f64| format!("{value:.1}");
            rows.push(vec![path.clone(), answers.to_string(), percent(*recall), percent(*found), ms(*p50), ms(*p95)]);
        }
        let mut last = texts(["not at all"]);
        last.push(search.unanswered.to_string());
        rows.push(last);
        let _ = write!(out, "\n{}", aligned(&rows, 1));
    }
    if let Some(audit) = &variant.audit {
        let _ = writeln!(
            out,
            "\n  books: {} records for {} answers; clients were told {}, booked {}; differences: {} missing, {} twice, \
             {} other, {} strange, {} miscounted",
            audit.records,
            audit.answered,
            audit.told,
            audit.booked,
            audit.missing,
            audit.twice,
            audit.other,
            audit.strange,
            audit.miscounted
        );
        for group in &audit.groups {
            let calls = group.booked_calls.map_or_else(|| "not counted".to_owned(), |calls| calls.to_string());
            let _ = writeln!(
                out,
                "  providers {}: {} calls (gateway: {calls}), {} tokens (books: {}), money {} (books: {})",
                group.providers.join(", "),
                group.calls,
                group.tokens,
                group.booked_tokens,
                group.money,
                group.booked_money
            );
        }
        for example in &audit.examples {
            let _ = writeln!(out, "    {example}");
        }
    }
    for note in &variant.notes {
        let _ = writeln!(out, "  note: {note}");
    }
    out
}

/// Several runs side by side: the rows that they have in common, and where they differ.
pub fn compared(results: &[RunResult]) -> String {
    let mut head = texts(["traffic", "phase", "measure"]);
    for (place, result) in results.iter().enumerate() {
        head.push(format!("{}: {}", letter(place), result.scenario));
    }
    head.push("change".to_owned());
    let mut rows = vec![head];
    let Some((first, others)) = results.split_first() else { return String::new() };
    let same = |result: &RunResult, variant: &VariantResult, row: &super::Row| {
        let variant = result.variants.iter().find(|other| other.name == variant.name)?;
        let is_it = |other: &&super::Row| {
            (&other.traffic, &other.phase, &other.tenant) == (&row.traffic, &row.phase, &row.tenant)
        };
        variant.rows.iter().find(is_it).cloned()
    };
    for variant in &first.variants {
        for row in &variant.rows {
            let all: Vec<Option<super::Row>> = std::iter::once(Some(row.clone()))
                .chain(others.iter().map(|result| same(result, variant, row)))
                .collect();
            for (measure, of) in MEASURES {
                let values: Vec<Option<f64>> = all.iter().map(|row| row.as_ref().map(of)).collect();
                let name = if variant.name.is_empty() {
                    row.traffic.clone()
                } else {
                    format!("{} {}", variant.name, row.traffic)
                };
                let mut line = vec![name, row.phase.clone(), (*measure).to_owned()];
                line.extend(values.iter().map(|value| value.map_or_else(|| "–".to_owned(), number)));
                line.push(change(values.first().copied().flatten(), values.last().copied().flatten()));
                rows.push(line);
            }
        }
    }
    aligned(&rows, 3)
}

/// A measure of a row: its name and how it is read.
pub(super) type Measure = (&'static str, fn(&super::Row) -> f64);

/// What is compared between runs.
pub(super) const MEASURES: &[Measure] = &[
    ("p50 ms", |row| row.good_ms[0]),
    ("p95 ms", |row| row.good_ms[1]),
    ("p99 ms", |row| row.good_ms[2]),
    ("good/s", |row| row.per_s),
    ("good %", |row| row.good as f64 / (row.requests.max(1)) as f64 * 100.0),
];

/// The letter of a run in a comparison.
pub(super) fn letter(place: usize) -> char {
    char::from(b'A' + u8::try_from(place % 26).unwrap_or(0))
}

/// How much the last differs from the first.
pub(super) fn change(first: Option<f64>, last: Option<f64>) -> String {
    match (first, last) {
        (Some(first), Some(last)) if first != 0.0 => format!("{:+.1} %", (last / first - 1.0) * 100.0),
        (Some(first), Some(last)) if first == last => "0".to_owned(),
        _ => "–".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{Row, Verdict};

    fn result(p95: f64) -> RunResult {
        let row = Row {
            traffic: "queries".to_owned(),
            phase: "steady".to_owned(),
            requests: 10,
            good: 9,
            per_s: 4.5,
            others: [("503".to_owned(), 1)].into(),
            good_ms: [1.0, p95, 3.0, 4.0, 5.0],
            ..Row::default()
        };
        let variant = VariantResult { rows: vec![row], ..VariantResult::default() };
        let verdict = |that: &str, holds| Verdict { that: that.to_owned(), holds, ..Verdict::default() };
        RunResult {
            scenario: "steady".to_owned(),
            variants: vec![variant],
            verdicts: vec![verdict("a", Some(true)), verdict("b", None)],
            ..RunResult::default()
        }
    }

    #[test]
    fn a_run_is_told_in_full() {
        let text = table(&result(2.0));
        assert!(text.contains("queries") && text.contains("1×503") && text.contains("skipped  b"), "{text}");
        assert!(result(2.0).passed());
        let mut failed = result(2.0);
        failed.verdicts[0].holds = Some(false);
        assert!(!failed.passed() && table(&failed).contains("FAILS    a"));
    }

    #[test]
    fn runs_are_compared_row_by_row() {
        let text = compared(&[result(2.0), result(3.0)]);
        let line = text.lines().find(|line| line.contains("p95")).expect("a line");
        assert!(line.contains("2") && line.contains("3") && line.contains("+50.0 %"), "{line}");
    }

    #[test]
    fn numbers_are_short() {
        assert_eq!(
            [0.0, 0.005, 1.234, 123.46, 4567.8, f64::NAN].map(number),
            ["0", "0.005", "1.234", "123.5", "4568", "–"]
        );
    }
}
