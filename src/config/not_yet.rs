//! Keys that are read and checked but whose behaviour does not exist yet.
//!
//! Using one is a start-up error, never silently without effect. A behaviour that arrives takes its line out.

use super::tree::Value;

/// A key by its path without indexes, when a value asks for what is missing, and what to say.
type Entry = (&'static str, fn(&Value) -> bool, &'static str);

/// What is not there yet.
const NOT_YET: &[Entry] = &[("collections", |_| true, "collections are not available yet")];

/// What to say about `value` at this path without indexes, if its behaviour is not there yet.
pub(crate) fn find(pattern: &str, value: &Value) -> Option<&'static str> {
    NOT_YET.iter().find(|(key, asks, _)| *key == pattern && asks(value)).map(|(_, _, message)| *message)
}
