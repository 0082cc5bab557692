//! Holds a tree against the schema: unknown keys, wrong types, ranges, what is missing; then fills in the defaults.
//!
//! Knows each key on its own. What it refuses is replaced by the default, or taken out, after it was reported, so that
//! the rules that follow still see everything else.

use super::problem::{Path, Report, nearest};
use super::schema::{Key, Otherwise, SECTIONS, Section, Type, id_key, section_named};
use super::tree::{Node, Origin, Table, Value, parse_value};

/// Checks the whole file and fills in its defaults.
pub(crate) fn check(tree: &mut Table, report: &mut Report) {
    tree.retain_mut(|name, node| {
        let known = section_named(name).is_some();
        if !known {
            unknown_section(name, node, report);
        }
        known
    });
    for section in SECTIONS {
        let empty = match section.id_key {
            Some(_) => Value::List(Vec::new()),
            None => Value::Table(Table::default()),
        };
        tree.set_if_absent(section.name, &Node { value: empty, at: Origin::Default });
        if let Some(node) = tree.get_mut(section.name) {
            check_section(section, node, report);
        }
    }
}

fn unknown_section(name: &str, node: &Node, report: &mut Report) {
    let path = Path::section(name);
    let home = SECTIONS.iter().find(|section| section.keys.iter().any(|key| key.name == name));
    let right = match (nearest(name, SECTIONS.iter().map(|section| section.name)), home) {
        (_, Some(section)) if !matches!(node.value, Value::Table(_) | Value::List(_)) => {
            format!("`{name}` belongs under {}", heading(section))
        }
        (Some(near), _) => format!("did you mean `{near}`?"),
        (None, _) => format!("the sections are {}", names(SECTIONS.iter().map(|section| section.name))),
    };
    report.problem(&node.at, &path, "no such section", right);
}

fn heading(section: &Section) -> String {
    match section.id_key {
        Some(_) => format!("[[{}]]", section.name),
        None => format!("[{}]", section.name),
    }
}

fn names<'a>(all: impl Iterator<Item = &'a str>) -> String {
    all.map(|name| if name.is_empty() { "\"\"" } else { name }).collect::<Vec<_>>().join(", ")
}

fn check_section(section: &Section, node: &mut Node, report: &mut Report) {
    let path = Path::section(section.name);
    let at = node.at.clone();
    match (&mut node.value, section.id_key) {
        (Value::Table(table), None) => check_table(section.keys, table, &at, &path, true, report),
        (Value::List(list), Some(_)) => {
            check_list(section.keys, list, &path, report);
        }
        (other, _) => {
            let right = format!("write it as {}", heading(section));
            report.problem(&at, &path, format!("expected tables, found {}", other.kind()), right);
            *other = if section.id_key.is_some() { Value::List(Vec::new()) } else { Value::Table(Table::default()) };
            if let Value::Table(table) = other {
                check_table(section.keys, table, &at, &path, true, report);
            }
        }
    }
}

fn check_list(keys: &'static [Key], list: &mut Vec<Node>, path: &Path, report: &mut Report) {
    let mut index = 0;
    list.retain_mut(|node| {
        let at = node.at.clone();
        let here = match &node.value {
            Value::Table(table) => {
                let id = id_key(keys).and_then(|key| table.get(key)).and_then(|id| id.value.as_text());
                path.index(index, id)
            }
            _ => path.index(index, None),
        };
        index += 1;
        match &mut node.value {
            Value::Table(table) => {
                check_table(keys, table, &at, &here, true, report);
                true
            }
            other => {
                let keys = names(keys.iter().map(|key| key.name));
                report.problem(
                    &at,
                    &here,
                    format!("expected a table, found {}", other.kind()),
                    format!("its keys are {keys}"),
                );
                false
            }
        }
    });
}

fn check_table(
    keys: &'static [Key],
    table: &mut Table,
    table_at: &Origin,
    path: &Path,
    fill: bool,
    report: &mut Report,
) {
    // What was refused is not missing as well.
    let mut refused = Vec::new();
    table.retain_mut(|name, node| {
        let at = placed(&node.at, table_at);
        let here = path.key(name);
        let Some(key) = keys.iter().find(|key| key.name == name) else {
            report.problem(&at, &here, "no such key", unknown_key_hint(name, keys));
            return false;
        };
        let keep = check_value(key, node, &at, &here, report);
        if !keep {
            refused.push(key.name);
        }
        keep
    });
    if fill {
        for key in keys.iter().filter(|key| table.get(key.name).is_none()).collect::<Vec<_>>() {
            match key.default {
                Otherwise::Is(text) => set_default(key, text, table),
                Otherwise::Required if !refused.contains(&key.name) => {
                    let right = format!("expected {}", expected(key.ty));
                    report.problem(table_at, &path.key(key.name), "missing", right);
                }
                Otherwise::Required | Otherwise::Absent => {}
            }
        }
    }
}

/// The place to name for a value: its own, or its table's when it was not written there.
fn placed(at: &Origin, table_at: &Origin) -> Origin {
    match at {
        Origin::Catalogue | Origin::Default => table_at.clone(),
        written => written.clone(),
    }
}

fn unknown_key_hint(name: &str, keys: &'static [Key]) -> String {
    if let Some(near) = nearest(name, keys.iter().map(|key| key.name)) {
        return format!("did you mean `{near}`?");
    }
    match SECTIONS.iter().find(|section| section.keys.iter().any(|key| key.name == name)) {
        Some(section) => format!("`{name}` belongs under {}", heading(section)),
        None => format!("the keys here are {}", names(keys.iter().map(|key| key.name))),
    }
}

fn set_default(key: &Key, text: &str, table: &mut Table) {
    let value = match (parse_value(text, &Origin::Default), key.ty) {
        (Some(Value::Int(number)), Type::Number(..)) => Value::Float(number as f64),
        (Some(value), _) => value,
        // A test reads every default; one that is not TOML would leave the key absent.
        (None, _) => return,
    };
    table.set(key.name, Node { value, at: Origin::Default });
}

/// What a key takes, for messages.
fn expected(ty: Type) -> String {
    match ty {
        Type::Text => "text in quotes".to_owned(),
        Type::Name => "a name in quotes: 1 to 200 visible ASCII characters without spaces".to_owned(),
        Type::Choice(choices) => format!("one of {}", names(choices.iter().copied())),
        Type::Int(min, max) => format!("a whole number from {min} to {max}"),
        Type::Number(min, max) => format!("a number from {min} to {max}"),
        Type::Decimal => "a plain decimal in quotes, not negative, such as \"0.02\"".to_owned(),
        Type::Bool => "true or false".to_owned(),
        Type::Secret => "{ env = \"NAME\" }, { file = \"PATH\" } or { value = \"…\" }".to_owned(),
        Type::SecretOrText => "text, { env = \"NAME\" }, { file = \"PATH\" } or { value = \"…\" }".to_owned(),
        Type::Texts => "a list of texts: [\"…\", \"…\"]".to_owned(),
        Type::Widths => "a list of widths such as [512, 1536], or { min = 1, max = 1536 }".to_owned(),
        Type::Table(keys) => format!("a table of {}", names(keys.iter().map(|key| key.name))),
        Type::Tables(keys) => format!("a list of tables of {}", names(keys.iter().map(|key| key.name))),
    }
}

/// Whether the value may stay; reports it if not, and brings numbers and decimals into one form.
fn check_value(key: &Key, node: &mut Node, at: &Origin, path: &Path, report: &mut Report) -> bool {
    let mut refuse = |found: String| {
        report.problem(at, path, found, format!("expected {}", expected(key.ty)));
        false
    };
    match (key.ty, &mut node.value) {
        (Type::Text, Value::Text(_)) | (Type::Bool, Value::Bool(_)) | (Type::SecretOrText, Value::Text(_)) => true,
        (Type::Name, Value::Text(text)) => {
            let sane = (1..=200).contains(&text.len()) && text.bytes().all(|byte| byte.is_ascii_graphic());
            sane || refuse("not a usable name".to_owned())
        }
        (Type::Choice(choices), Value::Text(text)) => {
            if choices.contains(&text.as_str()) {
                return true;
            }
            let near = nearest(text, choices.iter().copied()).map(|near| format!(" (did you mean \"{near}\"?)"));
            refuse(format!("\"{text}\" is not known{}", near.unwrap_or_default()))
        }
        (Type::Int(min, max), Value::Int(number)) => {
            (min..=max).contains(number) || refuse(format!("{number} is out of range"))
        }
        (Type::Number(min, max), Value::Int(number)) => {
            let number = *number as f64;
            node.value = Value::Float(number);
            (min..=max).contains(&number) || refuse(format!("{number} is out of range"))
        }
        (Type::Number(min, max), Value::Float(number)) => {
            (min..=max).contains(number) || refuse(format!("{number} is out of range"))
        }
        (Type::Decimal, Value::Int(number)) if *number >= 0 => {
            node.value = Value::Text(number.to_string());
            true
        }
        (Type::Decimal, Value::Int(number)) => refuse(format!("{number} is negative")),
        (Type::Decimal, Value::Text(text)) => {
            if text.starts_with('-') {
                return refuse(format!("\"{text}\" is negative"));
            }
            let plain = text.parse::<crate::pure::money::Money>();
            plain.map(|_| ()).map_or_else(|error| refuse(format!("\"{text}\": {error}")), |()| true)
        }
        (Type::Decimal, Value::Float(_)) => refuse("a bare number with a fraction is not exact".to_owned()),
        (Type::Secret | Type::SecretOrText, Value::Table(table)) => secret_shape(table).map_or_else(refuse, |()| true),
        (Type::Secret, Value::Text(_)) => refuse("a secret is not written as plain text".to_owned()),
        (Type::Texts, Value::List(list)) => match list.iter().position(|item| !matches!(item.value, Value::Text(_))) {
            None => true,
            Some(index) => refuse(format!("entry {index} is not text")),
        },
        (Type::Widths, value @ (Value::List(_) | Value::Table(_))) => {
            widths_shape(value).map_or_else(refuse, |()| true)
        }
        (Type::Table(keys), Value::Table(table)) => {
            check_table(keys, table, at, path, false, report);
            true
        }
        (Type::Tables(keys), Value::List(list)) => {
            check_list(keys, list, path, report);
            true
        }
        (_, other) => refuse(format!("found {}", other.kind())),
    }
}

/// A secret names exactly one source.
fn secret_shape(table: &Table) -> Result<(), String> {
    let entries: Vec<_> = table.iter().collect();
    match entries.as_slice() {
        [("env" | "file" | "value", node)] if node.value.as_text().is_some_and(|text| !text.is_empty()) => Ok(()),
        [("env" | "file" | "value", _)] => Err("the source of a secret is not text, or empty".to_owned()),
        [(name, _)] => Err(format!("a secret has no source `{name}`")),
        [] => Err("a secret without a source".to_owned()),
        _ => Err("a secret has exactly one source".to_owned()),
    }
}

/// Widths are whole numbers from 1 to 65,536.
fn widths_shape(value: &Value) -> Result<(), String> {
    let is_width = |node: &Node| matches!(node.value, Value::Int(1..=65_536));
    match value {
        Value::List(list) if list.iter().all(is_width) => Ok(()),
        Value::Table(table) => {
            let both = table.get("min").is_some_and(is_width) && table.get("max").is_some_and(is_width);
            if both && table.iter().count() == 2 {
                Ok(())
            } else {
                Err("a range of widths has `min` and `max`".to_owned())
            }
        }
        _ => Err("a width is a whole number from 1 to 65536".to_owned()),
    }
}
