//! A YAML file as plain values: texts, lists, and members in their order. Numbers stay decimal, so that a price is read as
//! it was written.

use rust_decimal::Decimal;
use saphyr::{LoadableYamlNode as _, Scalar, Yaml};

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Node {
    Null,
    Bool(bool),
    Number(Decimal),
    Text(String),
    List(Vec<Node>),
    Map(Vec<(String, Node)>),
}

/// The first document of `text`; an empty file is an empty map.
///
/// # Errors
/// It is not YAML, with the place.
pub(super) fn read(text: &str) -> Result<Node, String> {
    let documents = Yaml::load_from_str(text).map_err(|error| error.to_string())?;
    Ok(documents.first().map_or(Node::Map(Vec::new()), node))
}

fn node(yaml: &Yaml<'_>) -> Node {
    match yaml {
        Yaml::Value(scalar) => self::scalar(scalar),
        Yaml::Sequence(list) => Node::List(list.iter().map(node).collect()),
        Yaml::Mapping(map) => {
            let mut members: Vec<(String, Node)> = Vec::new();
            for (key, value) in map {
                let value = node(value);
                match (text(key).as_str(), value) {
                    // A merge key: what the map says itself wins.
                    ("<<", Node::Map(merged)) => members.extend(merged),
                    (key, value) => {
                        members.retain(|(known, _)| known != key);
                        members.push((key.to_owned(), value));
                    }
                }
            }
            Node::Map(members)
        }
        Yaml::Tagged(_, inner) => node(inner),
        Yaml::Representation(raw, ..) => Node::Text(raw.clone().into_owned()),
        Yaml::Alias(_) | Yaml::BadValue => Node::Null,
    }
}

fn scalar(scalar: &Scalar<'_>) -> Node {
    match scalar {
        Scalar::Null => Node::Null,
        Scalar::Boolean(flag) => Node::Bool(*flag),
        Scalar::Integer(number) => Node::Number(Decimal::from(*number)),
        // The shortest digits that read as the same number are those that were written.
        Scalar::FloatingPoint(number) => {
            let digits = number.0.to_string();
            Decimal::from_str_exact(&digits).map_or(Node::Text(digits), Node::Number)
        }
        Scalar::String(text) => Node::Text(text.clone().into_owned()),
    }
}

fn text(key: &Yaml<'_>) -> String {
    match node(key) {
        Node::Text(text) => text,
        Node::Number(number) => number.to_string(),
        Node::Bool(flag) => flag.to_string(),
        _ => String::new(),
    }
}

impl Node {
    /// A member of a map, if it is one and has it, and it is not null.
    pub(super) fn get(&self, key: &str) -> Option<&Node> {
        let (_, value) = self.members().iter().find(|(known, _)| known == key)?;
        (*value != Node::Null).then_some(value)
    }

    /// All members; none of anything but a map.
    pub(super) fn members(&self) -> &[(String, Node)] {
        match self {
            Node::Map(members) => members,
            _ => &[],
        }
    }

    /// All elements; none of anything but a list.
    pub(super) fn elements(&self) -> &[Node] {
        match self {
            Node::List(list) => list,
            _ => &[],
        }
    }

    /// A text; a number counts as its digits.
    pub(super) fn text(&self) -> Option<String> {
        match self {
            Node::Text(text) => Some(text.clone()),
            Node::Number(number) => Some(number.normalize().to_string()),
            _ => None,
        }
    }

    /// A number; also one in quotes or with an exponent, which older YAML reads as a text.
    pub(super) fn number(&self) -> Option<Decimal> {
        match self {
            Node::Number(number) => Some(*number),
            Node::Text(text) => {
                Decimal::from_str_exact(text.trim()).or_else(|_| Decimal::from_scientific(text.trim())).ok()
            }
            _ => None,
        }
    }

    /// A whole number from 0 up.
    pub(super) fn count(&self) -> Option<u64> {
        self.number().filter(Decimal::is_integer).and_then(|number| u64::try_from(number).ok())
    }
}
