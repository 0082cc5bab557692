//! The thorough reading of an answer that the quick walk found unusual, and of small objects: serde_json, without ever
//! turning a number into a float.

use std::fmt;

use bytes::Bytes;
use serde::de::{Deserialize, Deserializer, MapAccess, Visitor};
use serde_json::value::RawValue;

use super::{Answer, CutError, CutItem, Embedding, Layout, parse_index};

/// The members of an object in order, repeated keys included.
pub(super) struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'a> Members<'a> {
    /// The member of that name, if it is there once and is not `null`.
    pub(super) fn once(&self, key: &str) -> Result<Option<&'a RawValue>, CutError> {
        let mut found = self.0.iter().filter(|(name, _)| name == key).map(|(_, raw)| *raw);
        let first = found.next();
        if found.next().is_some() {
            return Err(CutError::Repeated);
        }
        Ok(first.filter(|raw| raw.get() != "null"))
    }
}

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct InOrder;

        impl<'de> Visitor<'de> for InOrder {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }

        deserializer.deserialize_map(InOrder)
    }
}

/// Cuts any answer that is JSON.
pub(super) fn cut(answer: &Bytes, layout: Layout) -> Result<Answer, CutError> {
    let raw: &RawValue = serde_json::from_slice(answer).map_err(|_| CutError::NotJson)?;
    if layout == Layout::Rows {
        return Ok(Answer { items: rows(answer, raw)?, members: Vec::new() });
    }
    let members: Members<'_> = serde_json::from_str(raw.get()).map_err(|_| CutError::NoVectors)?;
    let (items, taken) = match layout {
        Layout::Data => (items(answer, members.once("data")?.ok_or(CutError::NoVectors)?)?, "data"),
        Layout::Embeddings | Layout::Rows => match (members.once("embeddings")?, members.once("embedding")?) {
            (Some(_), Some(_)) => return Err(CutError::Repeated),
            (Some(list), None) if list.get().starts_with('{') => (by_type(answer, list)?, "embeddings"),
            (Some(list), None) => (rows(answer, list)?, "embeddings"),
            (None, Some(one)) => (vec![row(answer, one, 0)?], "embedding"),
            (None, None) => return Err(CutError::NoVectors),
        },
    };
    let rest = members.0.into_iter().filter(|(key, raw)| key != taken || raw.get() == "null");
    let members = rest.map(|(key, raw)| (key, slice(answer, raw))).collect();
    Ok(Answer { items, members })
}

fn slice(answer: &Bytes, raw: &RawValue) -> Bytes {
    answer.slice_ref(raw.get().as_bytes())
}

fn items(answer: &Bytes, list: &RawValue) -> Result<Vec<CutItem>, CutError> {
    let list: Vec<&RawValue> = serde_json::from_str(list.get()).map_err(|_| CutError::NoVectors)?;
    let item = |(item, raw): (usize, &RawValue)| {
        let no_vector = CutError::NoVector { item };
        let members: Members<'_> = serde_json::from_str(raw.get()).map_err(|_| no_vector)?;
        let found = row(answer, members.once("embedding")?.ok_or(no_vector)?, item)?;
        let index = match members.once("index")? {
            Some(raw) => parse_index(raw.get().as_bytes()).map_err(|()| CutError::BadIndex { item })?,
            None => None,
        };
        Ok(CutItem { index, ..found })
    };
    list.into_iter().enumerate().map(item).collect()
}

fn by_type(answer: &Bytes, types: &RawValue) -> Result<Vec<CutItem>, CutError> {
    let types: Members<'_> = serde_json::from_str(types.get()).map_err(|_| CutError::NoVectors)?;
    let (floats, base64) = (types.once("float")?, types.once("base64")?);
    rows(answer, floats.or(base64).ok_or(CutError::NoVectors)?)
}

fn rows(answer: &Bytes, list: &RawValue) -> Result<Vec<CutItem>, CutError> {
    let list: Vec<&RawValue> = serde_json::from_str(list.get()).map_err(|_| CutError::NoVectors)?;
    list.into_iter().enumerate().map(|(item, raw)| row(answer, raw, item)).collect()
}

fn row(answer: &Bytes, raw: &RawValue, item: usize) -> Result<CutItem, CutError> {
    let embedding = match raw.get().as_bytes().first() {
        Some(b'[') => Embedding::Numbers(slice(answer, raw)),
        Some(b'"') => {
            let text: String = serde_json::from_str(raw.get()).map_err(|_| CutError::NoVector { item })?;
            Embedding::Base64(Bytes::from(text))
        }
        _ => return Err(CutError::NoVector { item }),
    };
    Ok(CutItem { index: None, embedding })
}
