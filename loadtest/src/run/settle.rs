//! After the load: servers ended, books read and compared, everything put into a result.

use std::collections::{BTreeMap, BTreeSet};

use super::books::{Audit, Claim, audit, calls_by_status};
use super::drive::Driven;
use super::figures::{self, curves, decimal, lengths, plain, rows, series};
use super::observed::quantile;
use super::search::{Path, SearchApp};
use super::stack::Stack;
use super::watch::Seen;
use crate::report::{Mark, SearchResult, VariantResult};
use crate::scenario::expect::Figures;
use crate::scenario::{Books, Scenario, Span, Via};

/// Ends the gateways and makes the result.
pub(super) fn settle(
    scenario: &Scenario,
    variant: &str,
    driven: Driven,
    stack: Option<&Stack>,
) -> Result<(VariantResult, Vec<(String, String)>), String> {
    let mut figures = Figures::new();
    let length_s = driven.spans.last().map_or(0.0, |span| span.to_s);
    let mut result = VariantResult { notes: driven.notes.clone(), ..VariantResult::default() };
    let mut histograms = Vec::new();
    for outcome in &driven.outcomes {
        figures::of_traffic(&mut figures, outcome, &driven.spans);
        result.rows.extend(rows(outcome, &driven.spans));
        result.series.push(series(outcome, length_s));
        let (own, files) = curves(outcome, &driven.spans, variant);
        result.curves.extend(own);
        histograms.extend(files);
        let examples = outcome.log.examples.iter();
        result.notes.extend(examples.map(|example| format!("{}, {example}", outcome.traffic.name)));
    }
    figures::of_all(&mut figures, &driven.outcomes, length_s);
    result.phases = driven.spans.iter().map(mark).collect();
    result.marks = marks(scenario, &driven);
    if let Some(search) = &driven.search {
        result.search = Some(of_search(&mut figures, search, scenario.search.as_ref().map_or(0, |search| search.k)));
    }
    if let Some(stack) = stack {
        result.providers = figures::of_providers(&mut figures, &driven.seen.edges, &driven.end, &driven.spans);
        of_gateways(&mut figures, scenario, &driven);
        let ended = end_gateways(stack);
        if let Some(why) = ended.iter().find_map(|ended| ended.as_ref().err()) {
            result.notes.push(why.clone());
        }
        let through = scenario.traffic.iter().any(|traffic| traffic.via == Via::Gateway);
        if through && !stack.gateways.is_empty() {
            figures.insert("gateway.clean_exit".to_owned(), f64::from(u8::from(ended.iter().all(Result::is_ok))));
            if scenario.books != Books::None {
                let audit = of_books(&mut figures, scenario, &driven, stack)?;
                result.audit = Some(audit);
            }
        }
    }
    result.figures = figures;
    Ok((result, histograms))
}

fn mark(span: &Span) -> Mark {
    Mark { name: span.name.clone(), from_s: span.from_s, to_s: span.to_s }
}

/// Faults, actions and changes of upstreams, in time.
fn marks(scenario: &Scenario, driven: &Driven) -> Vec<Mark> {
    let mut marks = driven.marks.clone();
    for (provider, spec) in &scenario.providers {
        for span in driven.spans.iter() {
            let concerned =
                spec.faults.iter().filter(|fault| fault.phase.as_ref().is_none_or(|phase| *phase == span.name));
            let names: Vec<&str> = concerned.map(|fault| fault.name.as_str()).collect();
            if !names.is_empty() {
                let name = format!("{provider}: {}", names.join(", "));
                marks.push(Mark { name, from_s: span.from_s, to_s: span.to_s });
            }
        }
    }
    for change in &driven.seen.changes {
        let name = format!("{} {}", change.upstream, change.state);
        marks.push(Mark { name, from_s: change.at_s, to_s: change.at_s });
    }
    marks.sort_by(|one, other| one.from_s.total_cmp(&other.from_s));
    marks
}

fn of_search(figures: &mut Figures, app: &SearchApp, k: usize) -> SearchResult {
    let tally = app.tally();
    let mut line = |name: &str, figure: &str, path: &Path| {
        let answers = path.answers.max(1) as f64;
        let mut took = path.took_ms.clone();
        let mut at = |share| quantile(&mut took, share).map_or(0.0, f64::from);
        let (p50, p95) = (at(0.5), at(0.95));
        let (recall, found) = (path.recall / answers, path.found as f64 / answers);
        figures.insert(format!("search.{figure}"), path.answers as f64);
        if path.answers > 0 {
            for (what, value) in [("recall", recall), ("found", found), ("p50_ms", p50), ("p95_ms", p95)] {
                figures.insert(format!("search.{figure}.{what}"), value);
            }
        }
        (name.to_owned(), path.answers, recall, found, p50, p95)
    };
    let paths =
        vec![line("by vectors", "by_vectors", &tally.by_vectors), line("by words", "by_words", &tally.by_words)];
    figures.insert("search.unanswered".to_owned(), tally.unanswered as f64);
    SearchResult { k, paths, unanswered: tally.unanswered }
}

fn of_gateways(figures: &mut Figures, scenario: &Scenario, driven: &Driven) {
    let Seen { edges, peak_bytes, changes, .. } = &driven.seen;
    figures.insert("gateway.peak_mb".to_owned(), *peak_bytes as f64 / 1e6);
    for (what, state) in [("opened", "open"), ("quarantined", "quarantined")] {
        let count = changes.iter().filter(|change| change.state == state).count();
        figures.insert(format!("gateway.upstreams_{what}"), count as f64);
    }
    if let (Some(Some(before)), Some(after)) = (edges.first().map(|edge| edge.cpu_s), driven.end.cpu_s) {
        figures.insert("gateway.cpu_s".to_owned(), (after - before).max(0.0));
    }
    for phase in lengths(&driven.spans).into_keys() {
        let through = driven.outcomes.iter().filter(|outcome| outcome.traffic.via == Via::Gateway);
        let sent: u64 = through.map(|outcome| outcome.report.matching(|label| label.phase == phase).good.len()).sum();
        let name = format!("gateway.{}.cpu", plain(phase));
        if let (Some(cpu_s), true) = (figures.get(&format!("{name}_s")).copied(), sent > 0) {
            figures.insert(format!("{name}_ms_per_request"), cpu_s * 1e3 / sent as f64);
        }
    }
    for tenant in driven.tenants["tenants"].as_array().into_iter().flatten() {
        let name = plain(tenant["id"].as_str().unwrap_or_default());
        for key in ["budget", "remaining", "held", "spent"] {
            if let Some(amount) = tenant[key].as_str() {
                figures.insert(format!("tenant.{name}.{key}"), decimal(amount));
            }
        }
        if let Some(holds) = tenant["open_holds"].as_u64() {
            figures.insert(format!("tenant.{name}.open_holds"), holds as f64);
        }
    }
    figures.insert("gateways".to_owned(), scenario.gateways as f64);
}

fn end_gateways(stack: &Stack) -> Vec<Result<(), String>> {
    stack.gateways.iter().map(|gateway| gateway.lock().stop()).collect()
}

fn of_books(figures: &mut Figures, scenario: &Scenario, driven: &Driven, stack: &Stack) -> Result<Audit, String> {
    let mut claims: Vec<Claim> = driven.claims.clone();
    for outcome in driven.outcomes.iter().filter(|outcome| outcome.traffic.via == Via::Gateway) {
        let id = |number: u64| format!("{}-{number}", outcome.traffic.name);
        let answers = outcome.log.answers.iter();
        claims.extend(answers.clone().map(|answered| Claim {
            id: id(answered.number),
            status: answered.status,
            cost: answered.cost,
        }));
        let ended: BTreeSet<u64> = answers.map(|answered| answered.number).collect();
        let given_up = (0..outcome.sent).filter(|number| !ended.contains(number));
        claims.extend(given_up.map(|number| Claim { id: id(number), status: 0, cost: None }));
    }
    // With a shared ledger every replica's books hold the records of all.
    let books = match stack.gateways.first() {
        Some(gateway) => gateway.lock().usage()?,
        None => String::new(),
    };
    let places: BTreeMap<String, String> =
        stack.providers.iter().map(|(name, provider)| (provider.addr().to_string(), name.clone())).collect();
    let mut calls: BTreeMap<String, u64> = BTreeMap::new();
    for metrics in &driven.metrics {
        for ((upstream, status), count) in calls_by_status(metrics) {
            *figures.entry(format!("upstream.{}.status_{}", plain(&upstream), plain(&status))).or_default() +=
                count as f64;
            if status.starts_with('2') {
                *calls.entry(upstream).or_default() += count;
            }
        }
    }
    // A gateway that was killed has forgotten what it counted.
    let calls = Some(&calls).filter(|_| !scenario.actions.iter().any(|action| action.crash.is_some()));
    let audit = audit(&books, &claims, &driven.end.providers, &stack.config, &places, calls)?;
    let difference = decimal(&audit.money_difference().to_string());
    for (name, value) in [
        ("records", audit.records as f64),
        ("answered", audit.answered as f64),
        ("missing", audit.missing as f64),
        ("twice", audit.twice as f64),
        ("client_differences", audit.client_differences() as f64),
        ("token_difference", audit.token_difference() as f64),
        ("calls_difference", audit.call_difference() as f64),
        ("money_difference", difference),
        ("booked", decimal(&audit.booked)),
        ("told", decimal(&audit.told)),
        ("tokens", audit.groups.iter().map(|group| group.booked_tokens).sum::<u64>() as f64),
        ("provider_tokens", audit.groups.iter().map(|group| group.tokens).sum::<u64>() as f64),
        ("provider_calls", audit.groups.iter().map(|group| group.calls).sum::<u64>() as f64),
    ] {
        figures.insert(format!("books.{name}"), value);
    }
    Ok(audit)
}
