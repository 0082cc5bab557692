//! The load tool against a real gateway: a good one passes, a broken one is noticed, and a report is written either way.

use std::path::Path;

use loadtest::report;
use loadtest::run::{Finished, Options, run};
use loadtest::scenario::{Listed, Overrides};

use crate::support::gateway::binary;

/// Questions that repeat, and a few batches, for three seconds.
const SCENARIO: &str = r#"
    [[phases]]
    name = "cold"
    s = 1
    [[phases]]
    name = "warm"
    s = 2

    [providers.eu]
    width = 16
    delay = { fixed_ms = 5 }

    [[gateway.models]]
    name = "text-embedding-3-small"
    dimensions = 16
    space = "A"
    price_usd_per_million_tokens = "0.123456789"

    [[gateway.upstreams]]
    id = "eu"
    provider = "openai"
    base_url = "http://{eu}/v1"
    serves = [{ model = "text-embedding-3-small" }]

    [[gateway.tenants]]
    id = "desk"
    budget = "10"

    [[traffic]]
    name = "questions"
    tenant = "desk"
    class = "interactive-search"
    arrivals = { poisson = 40 }
    texts = { pool = 20, zipf = 1.0 }

    [[traffic]]
    name = "batches"
    tenant = "desk"
    class = "batch-ingestion"
    phases = ["warm"]
    arrivals = { clients = 2 }
    inputs = [2, 30]

    [[expect]]
    that = "all.good_share == 1"
    why = "nothing is wrong"
    [[expect]]
    that = "questions.warm.hit_share >= 0.5"
    why = "questions repeat"
"#;

fn run_with(set: &[&str]) -> Finished {
    let listed = Listed { name: "desk".to_owned(), proves: "It runs.".to_owned(), text: SCENARIO.to_owned() };
    let set = set.iter().map(|text| (*text).to_owned()).collect();
    let overrides = Overrides { set, ..Overrides::default() };
    let options = Options { overrides, gateway: Some(binary()), quiet: true, ..Options::default() };
    run(&listed, &options).expect("it runs to its end")
}

fn failing(finished: &Finished) -> Vec<&str> {
    let failed = finished.result.verdicts.iter().filter(|verdict| verdict.holds != Some(true));
    failed.map(|verdict| verdict.that.as_str()).collect()
}

fn figure(finished: &Finished, name: &str) -> f64 {
    *finished.result.variants[0].figures.get(name).unwrap_or_else(|| panic!("no figure {name}"))
}

#[test]
fn a_good_gateway_passes_and_its_run_can_be_read_again() {
    let finished = run_with(&[]);
    assert_eq!(failing(&finished), Vec::<&str>::new());
    assert!(figure(&finished, "books.records") > 50.0 && figure(&finished, "books.tokens") > 0.0);
    assert_eq!(figure(&finished, "all.verified"), figure(&finished, "all.good"));
    let folder = tempfile::tempdir().expect("a folder");
    let page = report::write(folder.path(), &finished.result, &finished.histograms).expect("written");
    let text = std::fs::read_to_string(page).expect("a page");
    assert!(text.contains("<svg") && !text.contains("http"), "a page asks nobody for anything");
    let again = report::read(folder.path()).expect("readable");
    assert_eq!(report::table(&again), report::table(&finished.result));
    let files = std::fs::read_dir(folder.path()).expect("a folder").filter_map(|entry| entry.ok());
    let histograms = files.filter(|file| Path::new(&file.file_name()).extension().is_some_and(|end| end == "hgrm"));
    assert_eq!(histograms.count(), 3, "questions in two phases, batches in one");
}

#[test]
fn a_broken_gateway_fails_the_expectation_that_guards_it() {
    let finished = run_with(&["gateway.cache.backend=off"]);
    assert_eq!(failing(&finished), ["questions.warm.hit_share >= 0.5"]);
}

#[test]
fn a_provider_that_fails_is_seen_by_clients_and_agreed_on_by_the_books() {
    let finished = run_with(&["providers.eu.faults=[{ name = 'down', phase = 'warm', then = { status = 500 } }]"]);
    assert!(failing(&finished).contains(&"all.good_share == 1"));
    assert!(!failing(&finished).iter().any(|that| that.starts_with("books.")), "{:?}", failing(&finished));
    assert!(figure(&finished, "provider.eu.warm.status_500") > 0.0);
}
