//! Reading typed values out of a table that the schema has accepted.
//!
//! Knows types and places; refuses to know rules. A value that was refused earlier reads as its default, or as absent.

use std::time::Duration;

use super::environment::Environment;
use super::problem::{Path, Report};
use super::schema::{Key, key_named};
use super::secret::Secret;
use super::tree::{Node, Origin, Table, Value};

/// A table with its path and its place.
#[derive(Clone)]
pub(crate) struct Fields<'a> {
    /// The entries.
    pub table: &'a Table,
    /// The keys that exist; asking for another is a mistake in this program.
    pub keys: &'static [Key],
    /// Where the table is in the tree.
    pub path: Path,
    /// Where the table is written.
    pub at: Origin,
}

impl<'a> Fields<'a> {
    fn node(&self, key: &str) -> Option<&'a Node> {
        debug_assert!(key_named(self.keys, key).is_some(), "the schema has no key {key}");
        self.table.get(key)
    }

    /// Whether the key has a value: written, inherited or by default.
    pub(crate) fn has(&self, key: &str) -> bool {
        self.node(key).is_some()
    }

    /// Whether the key is written in the file or the environment.
    pub(crate) fn is_written(&self, key: &str) -> bool {
        self.node(key).is_some_and(|node| matches!(node.at, Origin::Line(_) | Origin::Variable(_)))
    }

    /// The place to name for a key.
    pub(crate) fn at(&self, key: &str) -> Origin {
        match self.node(key).map(|node| &node.at) {
            None | Some(Origin::Catalogue | Origin::Default) => self.at.clone(),
            Some(written) => written.clone(),
        }
    }

    /// Reports that the key's value is wrong.
    pub(crate) fn problem(&self, report: &mut Report, key: &str, what: impl Into<String>, right: impl Into<String>) {
        report.problem(&self.at(key), &self.path.key(key), what, right);
    }

    /// Warns about the key's value.
    pub(crate) fn warning(&self, report: &mut Report, key: &str, text: impl std::fmt::Display) {
        report.warning(&self.path.key(key), text);
    }

    /// A text, if the key has one.
    pub(crate) fn opt_text(&self, key: &str) -> Option<&'a str> {
        self.node(key).and_then(|node| node.value.as_text())
    }

    /// A text; empty if absent.
    pub(crate) fn text(&self, key: &str) -> &'a str {
        self.opt_text(key).unwrap_or_default()
    }

    /// A whole number, if the key has one.
    pub(crate) fn opt_int(&self, key: &str) -> Option<u64> {
        match self.node(key).map(|node| &node.value) {
            Some(Value::Int(number)) => u64::try_from(*number).ok(),
            _ => None,
        }
    }

    /// A whole number that fits `T`; 0 if absent.
    pub(crate) fn int<T: TryFrom<u64> + Default>(&self, key: &str) -> T {
        self.opt_int(key).and_then(|number| T::try_from(number).ok()).unwrap_or_default()
    }

    /// A whole number for which 0 means that none is set.
    pub(crate) fn int_unless_zero<T: TryFrom<u64>>(&self, key: &str) -> Option<T> {
        self.opt_int(key).filter(|number| *number > 0).and_then(|number| T::try_from(number).ok())
    }

    /// A number, if the key has one.
    pub(crate) fn opt_number(&self, key: &str) -> Option<f64> {
        match self.node(key).map(|node| &node.value) {
            Some(Value::Float(number)) => Some(*number),
            _ => None,
        }
    }

    /// A number; 0 if absent.
    pub(crate) fn number(&self, key: &str) -> f64 {
        self.opt_number(key).unwrap_or_default()
    }

    /// A time in seconds.
    pub(crate) fn seconds(&self, key: &str) -> Duration {
        Duration::try_from_secs_f64(self.number(key)).unwrap_or_default()
    }

    /// A time in milliseconds.
    pub(crate) fn millis(&self, key: &str) -> Duration {
        Duration::try_from_secs_f64(self.number(key) / 1000.0).unwrap_or_default()
    }

    /// A yes or no; no if absent.
    pub(crate) fn flag(&self, key: &str) -> bool {
        matches!(self.node(key).map(|node| &node.value), Some(Value::Bool(true)))
    }

    /// A list of texts with their places; empty if absent.
    pub(crate) fn texts(&self, key: &str) -> Vec<(&'a str, Origin)> {
        match self.node(key).map(|node| &node.value) {
            Some(Value::List(list)) => list
                .iter()
                .filter_map(|item| Some((item.value.as_text()?, item.at.clone())))
                .map(|(text, at)| match at {
                    Origin::Catalogue | Origin::Default => (text, self.at(key)),
                    written => (text, written),
                })
                .collect(),
            _ => Vec::new(),
        }
    }

    /// The table at `key`, with its own keys.
    pub(crate) fn table(&self, key: &str, keys: &'static [Key]) -> Option<Fields<'a>> {
        match self.node(key).map(|node| &node.value) {
            Some(Value::Table(table)) => Some(Fields { table, keys, path: self.path.key(key), at: self.at(key) }),
            _ => None,
        }
    }

    /// The tables in the list at `key`, with their own keys.
    pub(crate) fn tables(&self, key: &str, keys: &'static [Key]) -> Vec<Fields<'a>> {
        let path = self.path.key(key);
        (self.table.tables(key).enumerate())
            .map(|(index, (table, at))| Fields { table, keys, path: path.index(index, None), at: at.clone() })
            .collect()
    }

    /// The raw value of a key.
    pub(crate) fn value(&self, key: &str) -> Option<&'a Value> {
        self.node(key).map(|node| &node.value)
    }

    /// Reads a secret. A variable or file that cannot be read is a problem of this key; the variable that the key
    /// names by default may be unset, which means that there is no secret.
    pub(crate) fn secret(&self, key: &str, environment: &Environment, report: &mut Report) -> Option<Secret> {
        let table = match self.value(key)? {
            Value::Text(text) if text.is_empty() => return None,
            Value::Text(text) => return Some(Secret::new(text.clone())),
            Value::Table(table) => table,
            _ => return None,
        };
        let (source, node) = table.iter().next()?;
        let name = node.value.as_text()?;
        match source {
            "env" => match environment.get(name).map(str::trim).filter(|text| !text.is_empty()) {
                Some(text) => Some(Secret::new(text.to_owned())),
                None if self.is_the_default_variable(key, name) => None,
                None if may_be_a_secret(name) => {
                    self.problem(report, key, "there is no environment variable of this name", MISPLACED);
                    None
                }
                None => {
                    let right = format!("set {name}, or use {{ file = \"PATH\" }}");
                    self.problem(report, key, format!("the environment variable {name} is not set"), right);
                    None
                }
            },
            "file" => match std::fs::read_to_string(name) {
                Ok(text) if text.trim().is_empty() => {
                    self.problem(report, key, format!("the file {name} is empty"), "write the secret into it");
                    None
                }
                Ok(text) => Some(Secret::new(text.trim().to_owned())),
                Err(error) if !name.contains(['/', '.']) && may_be_a_secret(name) => {
                    self.problem(report, key, format!("the file of this name cannot be read: {error}"), MISPLACED);
                    None
                }
                Err(error) => {
                    let right = "the path is relative to the current directory";
                    self.problem(report, key, format!("the file {name} cannot be read: {error}"), right);
                    None
                }
            },
            _ => Some(Secret::new(name.to_owned())),
        }
    }

    fn is_the_default_variable(&self, key: &str, variable: &str) -> bool {
        let default = key_named(self.keys, key).map(|key| key.default);
        matches!(default, Some(super::schema::Otherwise::Is(text)) if text.contains(&format!("\"{variable}\"")))
    }
}

/// What helps whoever wrote a secret where its source is to be named.
const MISPLACED: &str = "expected its name (a secret itself is { value = \"…\" }), which is not repeated here because it looks \
                         like a secret";

/// Whether what stands where a secret's source is to be named looks like the secret itself, which no message may repeat:
/// long, and with a hyphen, with letters of both cases or with digits but no underscore, as providers make their keys.
fn may_be_a_secret(name: &str) -> bool {
    let has = |is_one: fn(&u8) -> bool| name.bytes().any(|byte| is_one(&byte));
    let foreign = has(|byte| !byte.is_ascii_alphanumeric() && *byte != b'_');
    let mixed = has(u8::is_ascii_lowercase) && has(u8::is_ascii_uppercase);
    let unbroken = !name.contains('_') && has(u8::is_ascii_digit);
    name.len() >= 20 && (foreign || mixed || unbroken)
}
