//! Configurations and what is said about them.

mod keys;
mod overrides;
mod secrecy;
mod shipped;
mod together;

use super::plan::Plan;
use super::{Environment, Problems, Source, load};
use crate::pure::time::Wall;

/// A small configuration without a fault; tests add to it. Its tables end with a tenant.
const VALID: &str = r#"[[models]]
name = "m"
dimensions = 8
price_usd_per_million_tokens = "1"
[[upstreams]]
id = "a"
provider = "tei"
base_url = "http://127.0.0.1:1"
serves = [{ model = "m" }]
[[tenants]]
id = "t"
key_sha256 = ["aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"]
"#;

fn load_text(text: &str, environment: &[(&str, &str)]) -> Result<Plan, Problems> {
    let source = Source::Text { name: "t.toml".to_owned(), text: text.to_owned() };
    load(&source, &environment.iter().copied().collect())
}

/// Holds the problems of a text, one a line, against what is expected.
#[track_caller]
fn check_with(text: &str, environment: &[(&str, &str)], expected: &[&str]) {
    let got = load_text(text, environment).map(|_| ()).map_err(|problems| problems.to_string());
    let expected = if expected.is_empty() { Ok(()) } else { Err(expected.join("\n")) };
    if got != expected {
        let show = |result: Result<(), String>| result.err().unwrap_or_else(|| "valid".to_owned());
        panic!("--- got\n{}\n--- expected\n{}", show(got), show(expected));
    }
}

#[track_caller]
fn check(text: &str, expected: &[&str]) {
    check_with(text, &[], expected);
}

/// Holds the warnings of a valid text against what is expected.
#[track_caller]
fn check_warnings(text: &str, expected: &[&str]) {
    let plan = load_text(text, &[]).unwrap_or_else(|problems| panic!("{problems}"));
    assert_eq!(plan.warnings, expected);
}

/// The one plan of a valid text.
#[track_caller]
fn plan(text: &str, environment: &[(&str, &str)]) -> Plan {
    load_text(text, environment).unwrap_or_else(|problems| panic!("{problems}"))
}

/// [`VALID`] with `more` behind it.
fn valid_and(more: &str) -> String {
    format!("{VALID}{more}")
}

/// [`VALID`] with one line replaced.
#[track_caller]
fn valid_but(line: &str, instead: &str) -> String {
    assert!(VALID.contains(line), "{line}");
    VALID.replace(line, instead)
}

/// An environment without anything in it.
fn empty() -> Environment {
    Environment::default()
}
