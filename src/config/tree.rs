//! A configuration text as a tree of values that each remember where they came from.
//!
//! Knows TOML and places; refuses to know which keys exist or what they mean. Nothing here has a `Debug` form: a tree
//! may hold secrets.

use std::sync::Arc;

use toml_edit::{Item, Value as TomlValue};

/// Where a value was written.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Origin {
    /// In the configuration text, at this line (from 1).
    Line(usize),
    /// In the environment variable of this name.
    Variable(Arc<str>),
    /// In the built-in catalogue of models.
    Catalogue,
    /// In a call of the admin side.
    Given,
    /// Nowhere: a default.
    Default,
}

/// A value and its place.
#[derive(Clone)]
pub(crate) struct Node {
    /// What was written.
    pub value: Value,
    /// Where.
    pub at: Origin,
}

/// A value as written.
#[derive(Clone)]
pub(crate) enum Value {
    /// Text.
    Text(String),
    /// A whole number.
    Int(i64),
    /// A number with a fraction.
    Float(f64),
    /// True or false.
    Bool(bool),
    /// A date or time, which no key takes.
    Date,
    /// A list; `[[name]]` tables too.
    List(Vec<Node>),
    /// A table, inline or not.
    Table(Table),
}

impl Value {
    /// What kind of value it is, for messages: never the value itself, which may be a secret.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Value::Text(_) => "text",
            Value::Int(_) => "a whole number",
            Value::Float(_) => "a number with a fraction",
            Value::Bool(_) => "true/false",
            Value::Date => "a date",
            Value::List(_) => "a list",
            Value::Table(_) => "a table",
        }
    }

    /// The text, if it is one.
    pub(crate) fn as_text(&self) -> Option<&str> {
        match self {
            Value::Text(text) => Some(text),
            _ => None,
        }
    }
}

/// The entries of a table in the order of the file.
#[derive(Clone, Default)]
pub(crate) struct Table(Vec<(String, Node)>);

impl Table {
    /// A table without entries.
    pub(crate) const EMPTY: Table = Table(Vec::new());

    /// The value of `key`.
    pub(crate) fn get(&self, key: &str) -> Option<&Node> {
        self.0.iter().find(|(name, _)| name == key).map(|(_, node)| node)
    }

    /// The value of `key`, to change it.
    pub(crate) fn get_mut(&mut self, key: &str) -> Option<&mut Node> {
        self.0.iter_mut().find(|(name, _)| name == key).map(|(_, node)| node)
    }

    /// Sets `key`, in its old place if it had one.
    pub(crate) fn set(&mut self, key: &str, node: Node) {
        match self.get_mut(key) {
            Some(old) => *old = node,
            None => self.0.push((key.to_owned(), node)),
        }
    }

    /// Sets `key` unless it is set.
    pub(crate) fn set_if_absent(&mut self, key: &str, node: &Node) {
        if self.get(key).is_none() {
            self.0.push((key.to_owned(), node.clone()));
        }
    }

    /// Keeps the entries that `keep` accepts; it may change them.
    pub(crate) fn retain_mut(&mut self, mut keep: impl FnMut(&str, &mut Node) -> bool) {
        self.0.retain_mut(|(name, node)| keep(name, node));
    }

    /// All entries.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&str, &Node)> {
        self.0.iter().map(|(name, node)| (name.as_str(), node))
    }

    /// The tables in the list named `key`; empty if there is none.
    pub(crate) fn tables(&self, key: &str) -> impl Iterator<Item = (&Table, &Origin)> {
        let list = match self.get(key).map(|node| &node.value) {
            Some(Value::List(list)) => list.as_slice(),
            _ => &[],
        };
        list.iter().filter_map(|node| match &node.value {
            Value::Table(table) => Some((table, &node.at)),
            _ => None,
        })
    }
}

/// Why a text is not TOML.
pub(crate) struct SyntaxError {
    /// Line, from 1.
    pub line: usize,
    /// What the parser says, without the text itself.
    pub message: String,
}

/// Reads a text; every value's origin is its line.
pub(crate) fn parse(text: &str) -> Result<Table, SyntaxError> {
    let lines = LineIndex::new(text);
    let document = toml_edit::Document::parse(text).map_err(|error| SyntaxError {
        line: error.span().map_or(1, |span| lines.line(span.start)),
        message: error.message().lines().collect::<Vec<_>>().join(", "),
    })?;
    Ok(convert_table(document.as_table(), &|span| Origin::Line(span.map_or(1, |span| lines.line(span.start)))))
}

/// Reads one value, as on the right side of `key = …`; its origin is `at`.
pub(crate) fn parse_value(text: &str, at: &Origin) -> Option<Value> {
    let value: TomlValue = text.parse().ok()?;
    Some(convert_value(&value, &|_| at.clone()).value)
}

/// Reads a text whose values all have the origin `at`.
pub(crate) fn parse_as(text: &str, at: &Origin) -> Result<Table, SyntaxError> {
    let mut table = parse(text)?;
    table.retain_mut(|_, node| {
        place(node, at);
        true
    });
    Ok(table)
}

/// Takes over a JSON value whose parts all have the origin [`Origin::Given`]; `None` for null, which stands for nothing.
pub(crate) fn from_json(json: &serde_json::Value) -> Option<Node> {
    let value = match json {
        serde_json::Value::Null => return None,
        serde_json::Value::Bool(flag) => Value::Bool(*flag),
        serde_json::Value::Number(number) => match number.as_i64() {
            Some(whole) => Value::Int(whole),
            None => Value::Float(number.as_f64().unwrap_or(f64::NAN)),
        },
        serde_json::Value::String(text) => Value::Text(text.clone()),
        serde_json::Value::Array(list) => Value::List(list.iter().filter_map(from_json).collect()),
        serde_json::Value::Object(entries) => Value::Table(Table(
            entries.iter().filter_map(|(name, item)| Some((name.clone(), from_json(item)?))).collect(),
        )),
    };
    Some(Node { value, at: Origin::Given })
}

fn place(node: &mut Node, at: &Origin) {
    node.at = at.clone();
    match &mut node.value {
        Value::List(list) => list.iter_mut().for_each(|item| place(item, at)),
        Value::Table(table) => table.0.iter_mut().for_each(|(_, item)| place(item, at)),
        _ => {}
    }
}

type Locate<'a> = dyn Fn(Option<std::ops::Range<usize>>) -> Origin + 'a;

fn convert_table(table: &toml_edit::Table, locate: &Locate) -> Table {
    let entries = table.iter().filter_map(|(name, item)| {
        let key_span = table.key(name).and_then(|key| key.span());
        convert_item(item, key_span, locate).map(|node| (name.to_owned(), node))
    });
    Table(entries.collect())
}

fn convert_item(item: &Item, key_span: Option<std::ops::Range<usize>>, locate: &Locate) -> Option<Node> {
    match item {
        Item::None => None,
        Item::Value(value) => {
            let mut node = convert_value(value, locate);
            if key_span.is_some() {
                node.at = locate(key_span);
            }
            Some(node)
        }
        Item::Table(table) => {
            Some(Node { value: Value::Table(convert_table(table, locate)), at: locate(table.span().or(key_span)) })
        }
        Item::ArrayOfTables(tables) => {
            let list = tables
                .iter()
                .map(|table| Node { value: Value::Table(convert_table(table, locate)), at: locate(table.span()) });
            Some(Node { value: Value::List(list.collect()), at: locate(tables.span().or(key_span)) })
        }
    }
}

fn convert_value(value: &TomlValue, locate: &Locate) -> Node {
    let converted = match value {
        TomlValue::String(text) => Value::Text(text.value().clone()),
        TomlValue::Integer(number) => Value::Int(*number.value()),
        TomlValue::Float(number) => Value::Float(*number.value()),
        TomlValue::Boolean(flag) => Value::Bool(*flag.value()),
        TomlValue::Datetime(_) => Value::Date,
        TomlValue::Array(array) => Value::List(array.iter().map(|item| convert_value(item, locate)).collect()),
        TomlValue::InlineTable(table) => Value::Table(Table(
            table.iter().map(|(name, item)| (name.to_owned(), convert_value(item, locate))).collect(),
        )),
    };
    Node { value: converted, at: locate(value.span()) }
}

/// Finds the line of a byte.
struct LineIndex(Vec<usize>);

impl LineIndex {
    fn new(text: &str) -> LineIndex {
        LineIndex(text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n').map(|(at, _)| at).collect())
    }

    fn line(&self, byte: usize) -> usize {
        self.0.partition_point(|newline| *newline < byte) + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, path: &[&str], line: usize) {
        let Ok(mut table) = parse(text) else { panic!("does not parse") };
        let mut at = None;
        for step in path {
            let node = match step.parse::<usize>() {
                Ok(_) => panic!("paths are of names"),
                Err(_) => table.get(step).expect("present").clone(),
            };
            at = Some(node.at);
            table = match node.value {
                Value::Table(inner) => inner,
                Value::List(list) => match list.into_iter().last().map(|node| node.value) {
                    Some(Value::Table(inner)) => inner,
                    _ => Table::default(),
                },
                _ => Table::default(),
            };
        }
        assert_eq!(at, Some(Origin::Line(line)));
    }

    #[test]
    fn values_know_their_line() {
        let text = "[server]\nlisten = \"a\"\n\n[[upstreams]]\nid = \"x\"\n[[upstreams]]\nid = \"y\"\nserves = [\n  { model = \"m\" },\n]\n";
        check(text, &["server"], 1);
        check(text, &["server", "listen"], 2);
        check(text, &["upstreams", "id"], 7);
        check(text, &["upstreams", "serves", "model"], 9);
    }

    #[test]
    fn a_syntax_error_names_its_line() {
        let error = parse("[server]\nlisten = \n").err().expect("not TOML");
        assert_eq!(error.line, 2);
    }
}
