//! The environment as a value, and the overrides in it: `VECTORGATE_<SECTION>__<KEY>`.
//!
//! # Names of overrides
//! - `VECTORGATE_SERVER__LISTEN` sets `server.listen`; every key of every section works so.
//! - An entry of a list is named by its position from 0, or by its id (or name) in upper case with everything but
//!   letters and digits as `_`: `VECTORGATE_UPSTREAMS__0__TPM`, `VECTORGATE_UPSTREAMS__OPENAI_EU_1__TPM`. The
//!   position right after the last entry adds one.
//! - Tables go on in the same way: `…__OPENAI_EU_1__BREAKER__COOLDOWN_S`, `…__0__SERVES__0__MODEL`,
//!   `VECTORGATE_SERVER__ADMIN_TOKEN__FILE`.
//! - Text is taken as it is. A list of texts is separated by commas, or written in TOML. Other lists and tables are
//!   written in TOML. A secret given whole is the secret itself.
//!
//! Variables that start with `VECTORGATE_` but have no double underscore are not overrides, nor is one that a secret
//! reads as `{ env = "…" }`.

use std::collections::BTreeMap;
use std::sync::Arc;

use super::problem::{Path, Report, nearest};
use super::schema::{Key, SECTIONS, Section, Type, id_key, key_named};
use super::tree::{Node, Origin, Table, Value, parse_value};

/// What an override's name starts with.
const PREFIX: &str = "VECTORGATE_";
/// What stands between the parts of an override's name.
const SEPARATOR: &str = "__";

/// Variables and their values. Has no `Debug` form: values may be secrets.
#[derive(Clone, Default)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// The environment of this process; variables that are not Unicode are left out.
    pub fn of_process() -> Environment {
        let unicode = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Environment(std::env::vars_os().filter_map(unicode).collect())
    }

    /// The value of a variable; one that is set to the empty text counts as not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

impl<K: Into<String>, V: Into<String>> FromIterator<(K, V)> for Environment {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(pairs: I) -> Environment {
        Environment(pairs.into_iter().map(|(name, value)| (name.into(), value.into())).collect())
    }
}

/// Lays the overrides over `tree`.
pub(crate) fn apply(tree: &mut Table, environment: &Environment, report: &mut Report) {
    let mut read_by_secrets = Vec::new();
    variables_of_secrets(tree, &mut read_by_secrets);
    let mut overrides: Vec<Override> = environment
        .0
        .iter()
        .filter(|(name, _)| !read_by_secrets.contains(name))
        .filter_map(|(name, value)| {
            let rest = name.strip_prefix(PREFIX)?;
            rest.contains(SEPARATOR).then(|| Override { rest, value, at: Origin::Variable(Arc::from(name.as_str())) })
        })
        .collect();
    // Positions in their order, so that entry 10 is added after entry 9.
    overrides.sort_by_cached_key(|one| {
        let padded = |part: &str| part.parse::<usize>().map_or(part.to_owned(), |number| format!("{number:09}"));
        one.rest.split(SEPARATOR).map(padded).collect::<Vec<_>>()
    });
    for one in &overrides {
        one.apply(tree, report);
    }
}

fn variables_of_secrets(table: &Table, found: &mut Vec<String>) {
    for (key, node) in table.iter() {
        match &node.value {
            Value::Text(name) if key == "env" => found.push(name.clone()),
            Value::Table(inner) => variables_of_secrets(inner, found),
            Value::List(list) => list.iter().for_each(|item| {
                if let Value::Table(inner) = &item.value {
                    variables_of_secrets(inner, found);
                }
            }),
            _ => {}
        }
    }
}

struct Override<'a> {
    /// The name after the prefix.
    rest: &'a str,
    value: &'a str,
    at: Origin,
}

impl Override<'_> {
    fn apply(&self, tree: &mut Table, report: &mut Report) {
        let (head, rest) = self.rest.split_once(SEPARATOR).unwrap_or((self.rest, ""));
        let section_name = head.to_lowercase();
        let Some(section) = SECTIONS.iter().find(|section| section.name == section_name) else {
            let near = nearest(&section_name, SECTIONS.iter().map(|section| section.name));
            let right = near.map(|near| format!("did you mean {PREFIX}{}__…?", near.to_uppercase()));
            let all = || SECTIONS.iter().map(|section| section.name.to_uppercase()).collect::<Vec<_>>().join(", ");
            let right = right.unwrap_or_else(|| format!("an override is {PREFIX}<SECTION>__<KEY>, with {}", all()));
            return report.problem(&self.at, &Path::default(), format!("no section `{section_name}`"), right);
        };
        let path = Path::section(section.name);
        let empty = empty_section(section);
        tree.set_if_absent(section.name, &Node { value: empty, at: self.at.clone() });
        match (section.id_key, tree.get_mut(section.name).map(|node| &mut node.value)) {
            (None, Some(Value::Table(table))) => self.set(table, section.keys, rest, &path, report),
            (Some(_), Some(Value::List(list))) => self.enter(list, section.keys, rest, &path, report),
            // A section of the wrong kind is reported with the file.
            _ => {}
        }
    }

    /// Goes into the entry of `list` that the name goes on with.
    fn enter(&self, list: &mut Vec<Node>, keys: &'static [Key], rest: &str, path: &Path, report: &mut Report) {
        let id_key = id_key(keys);
        let matches: Vec<(usize, &str)> = list
            .iter()
            .enumerate()
            .filter_map(|(index, node)| {
                let after = |name: &str| rest.strip_prefix(name)?.strip_prefix(SEPARATOR);
                let id = || match &node.value {
                    Value::Table(table) => variable_name(table.get(id_key?)?.value.as_text()?).into(),
                    _ => None,
                };
                let by_id = || id().and_then(|id: String| after(&id));
                after(&index.to_string()).or_else(by_id).map(|rest| (index, rest))
            })
            .collect();
        let next = list.len();
        let (index, rest) = match matches.as_slice() {
            [one] => *one,
            [] => match rest.strip_prefix(&next.to_string()).and_then(|rest| rest.strip_prefix(SEPARATOR)) {
                Some(rest) => {
                    list.push(Node { value: Value::Table(Table::default()), at: self.at.clone() });
                    (next, rest)
                }
                None => {
                    let right = format!("name one by its position (0 to {next}; {next} adds one) or by its id");
                    return report.problem(&self.at, path, "the name does not lead to an entry", right);
                }
            },
            several => {
                let right = format!("use the position: {}", several[0].0);
                return report.problem(&self.at, path, "the name leads to several entries", right);
            }
        };
        if let Some(Node { value: Value::Table(table), .. }) = list.get_mut(index) {
            let id = id_key.and_then(|key| table.get(key)).and_then(|id| id.value.as_text()).map(str::to_owned);
            self.set(table, keys, rest, &path.index(index, id.as_deref()), report);
        }
    }

    /// Sets the key of `table` that the name ends with.
    fn set(&self, table: &mut Table, keys: &'static [Key], rest: &str, path: &Path, report: &mut Report) {
        let (head, rest) = rest.split_once(SEPARATOR).unwrap_or((rest, ""));
        let name = head.to_lowercase();
        let Some(key) = key_named(keys, &name) else {
            let right = match nearest(&name, keys.iter().map(|key| key.name)) {
                Some(near) => format!("did you mean `{}`?", near.to_uppercase()),
                None => format!("the keys are {}", keys.iter().map(|key| key.name).collect::<Vec<_>>().join(", ")),
            };
            return report.problem(&self.at, &path.key(&name), "no such key", right);
        };
        let here = path.key(key.name);
        if rest.is_empty() {
            match self.read(key.ty) {
                Ok(value) => table.set(key.name, Node { value, at: self.at.clone() }),
                Err(expected) => report.problem(&self.at, &here, "not a value for this key", expected),
            }
            return;
        }
        match key.ty {
            Type::Table(inner) => {
                table.set_if_absent(key.name, &Node { value: Value::Table(Table::default()), at: self.at.clone() });
                if let Some(Node { value: Value::Table(sub), .. }) = table.get_mut(key.name) {
                    self.set(sub, inner, rest, &here, report);
                }
            }
            Type::Secret | Type::SecretOrText if matches!(rest, "ENV" | "FILE" | "VALUE") => {
                let mut source = Table::default();
                source
                    .set(&rest.to_lowercase(), Node { value: Value::Text(self.value.to_owned()), at: self.at.clone() });
                table.set(key.name, Node { value: Value::Table(source), at: self.at.clone() });
            }
            Type::Tables(inner) => {
                table.set_if_absent(key.name, &Node { value: Value::List(Vec::new()), at: self.at.clone() });
                if let Some(Node { value: Value::List(list), .. }) = table.get_mut(key.name) {
                    self.enter(list, inner, rest, &here, report);
                }
            }
            _ => report.problem(&self.at, &here, "the name goes on after a key that has no parts", "end it here"),
        }
    }

    /// The value for a key of this type.
    fn read(&self, ty: Type) -> Result<Value, &'static str> {
        let text = || Value::Text(self.value.to_owned());
        let toml = || parse_value(self.value, &self.at);
        match ty {
            Type::Text | Type::Name | Type::Choice(_) | Type::Decimal | Type::SecretOrText => Ok(text()),
            Type::Secret => {
                let mut source = Table::default();
                source.set("value", Node { value: text(), at: self.at.clone() });
                Ok(Value::Table(source))
            }
            Type::Int(..) => toml().ok_or("expected a whole number"),
            Type::Number(..) => toml().ok_or("expected a number"),
            Type::Bool => toml().ok_or("expected true or false"),
            Type::Texts => match toml() {
                Some(list @ Value::List(_)) => Ok(list),
                _ => Ok(Value::List(
                    (self.value.split(',').map(str::trim).filter(|part| !part.is_empty()))
                        .map(|part| Node { value: Value::Text(part.to_owned()), at: self.at.clone() })
                        .collect(),
                )),
            },
            Type::Widths | Type::Table(_) | Type::Tables(_) => toml().ok_or("expected a list or table in TOML"),
        }
    }
}

fn empty_section(section: &Section) -> Value {
    if section.id_key.is_some() { Value::List(Vec::new()) } else { Value::Table(Table::default()) }
}

/// An id as it stands in a variable's name.
fn variable_name(id: &str) -> String {
    id.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_uppercase() } else { '_' }).collect()
}
