//! What is known of models by name: the built-in catalogue that a `[[models]]` entry inherits from.
//!
//! Knows published facts; refuses to know what is configured. The facts are data, in `catalogue.toml`.

use std::sync::LazyLock;

use super::problem::nearest_above;
use super::tree::{Origin, Table, Value, parse_as};

/// Keys of the catalogue that say where a fact comes from, and are not inherited.
const ABOUT: &[&str] = &["provider", "price_date", "note", "retires_on_azure"];

static CATALOGUE: LazyLock<Table> = LazyLock::new(|| {
    // The text is part of the program and a test reads it; an empty catalogue would only make names unknown.
    parse_as(include_str!("catalogue.toml"), &Origin::Catalogue).unwrap_or_default()
});

/// All entries.
fn entries() -> impl Iterator<Item = (&'static str, &'static Table)> {
    CATALOGUE.tables("models").filter_map(|(table, _)| Some((table.get("name")?.value.as_text()?, table)))
}

/// Gives `model`, a `[[models]]` entry, what the catalogue knows of its name and the entry does not say.
pub(crate) fn inherit(model: &mut Table) {
    let Some(name) = model.get("name").and_then(|name| name.value.as_text()).map(str::to_owned) else { return };
    let Some((_, known)) = entries().find(|(known, _)| *known == name) else { return };
    // A width of one's own makes the catalogue's list of narrower ones doubtful.
    let own_width = model.get("dimensions").is_some();
    for (key, node) in known.iter() {
        let doubtful = own_width && key == "matryoshka";
        if !doubtful && !ABOUT.contains(&key) {
            model.set_if_absent(key, node);
        }
    }
}

/// Whether the catalogue has that name.
pub(crate) fn knows(name: &str) -> bool {
    entries().any(|(known, _)| known == name)
}

/// What the catalogue knows of a model, as the keys of a `[[models]]` entry but for its name; `None` if it is not known.
pub(crate) fn facts(name: &str) -> Option<Vec<(String, toml_edit::Value)>> {
    let (_, table) = entries().find(|(known, _)| *known == name)?;
    let inherited = table.iter().filter(|(key, _)| *key != "name" && !ABOUT.contains(key));
    Some(inherited.filter_map(|(key, node)| Some((key.to_owned(), to_toml(&node.value)?))).collect())
}

fn to_toml(value: &Value) -> Option<toml_edit::Value> {
    Some(match value {
        Value::Text(text) => text.as_str().into(),
        Value::Bool(flag) => (*flag).into(),
        Value::Int(number) => (*number).into(),
        Value::Float(number) => (*number).into(),
        Value::Date => return None,
        Value::List(list) => {
            let list = list.iter().map(|node| to_toml(&node.value)).collect::<Option<toml_edit::Array>>()?;
            list.into()
        }
        Value::Table(table) => {
            let members = table.iter().map(|(key, node)| Some((key.to_owned(), to_toml(&node.value)?)));
            let members = members.collect::<Option<Vec<(String, toml_edit::Value)>>>()?;
            toml_edit::Value::InlineTable(members.into_iter().collect())
        }
    })
}

/// The known name nearest to `name`, if one is very near: a model of one's own may well have a similar name.
pub(crate) fn suggest(name: &str) -> Option<&'static str> {
    nearest_above(0.8, name, entries().map(|(known, _)| known))
}

/// When Azure retires the model, which may be long before its maker does.
pub(crate) fn retires_on_azure(name: &str) -> Option<&'static str> {
    entries().find(|(known, _)| *known == name)?.1.get("retires_on_azure")?.value.as_text()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::super::problem::Report;
    use super::super::tree::Node;
    use super::super::{schema, shape};
    use super::*;

    #[test]
    fn every_entry_is_a_valid_model() {
        let mut models = Vec::new();
        for (name, table) in entries() {
            for key in ABOUT {
                assert!(table.get(key).is_none_or(|node| node.value.as_text().is_some()), "{name}.{key}");
            }
            assert_eq!(table.get("price_date").is_some(), has_price(table), "{name} has a price, or a date, alone");
            let mut model = table.clone();
            model.retain_mut(|key, _| !ABOUT.contains(&key));
            // Kinds that are not served yet are no mistake of the catalogue.
            model.retain_mut(|key, _| key != "kind");
            models.push(Node { value: Value::Table(model), at: Origin::Default });
        }
        let mut tree = Table::default();
        tree.set("models", Node { value: Value::List(models), at: Origin::Default });
        let mut report = Report::new("catalogue.toml");
        shape::check(&mut tree, &mut report);
        assert_eq!(report.finish(), Ok(Vec::new()));
    }

    #[test]
    fn every_entry_can_be_configured_by_its_name_alone() {
        use crate::config::{Environment, Source, load};
        let text: String = entries().map(|(name, _)| format!("[[models]]\nname = \"{name}\"\n")).collect();
        let source = Source::Text { name: "all.toml".to_owned(), text };
        if let Err(problems) = load(&source, &Environment::default()) {
            panic!("{problems}");
        }
    }

    fn has_price(table: &Table) -> bool {
        table.iter().any(|(key, _)| key.contains("price_usd"))
    }

    #[test]
    fn names_are_unique_and_widths_are_stated_for_embeddings_only() {
        let mut seen = HashSet::new();
        for (name, table) in entries() {
            assert!(seen.insert(name), "{name} twice");
            let kind = table.get("kind").and_then(|kind| kind.value.as_text());
            assert_eq!(table.get("dimensions").is_some(), kind == Some("embedding"), "{name}");
            assert_eq!(table.get("pairwise").is_some(), kind == Some("rerank"), "{name}");
        }
        assert!(seen.len() > 80, "{} models", seen.len());
        assert!(schema::section_named("models").is_some());
    }

    #[test]
    fn a_name_without_its_owner_is_not_known_but_suggested() {
        assert_eq!(suggest("bge-m3"), Some("BAAI/bge-m3"));
        assert_eq!(suggest("text-embedding-3-smal"), Some("text-embedding-3-small"));
        assert_eq!(suggest("our-own-model"), None);
    }
}
