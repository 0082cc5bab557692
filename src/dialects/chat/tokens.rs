//! Tokens of a chat answer: those that its provider counts, and the text from which they are estimated where it does not.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

use crate::dialects::cut::{Count, read_count};
use crate::pure::token_estimate::ClassCounts;

/// What a provider says it counted. `None`: it does not say.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ChatUsage {
    /// Input tokens, those from the provider's own cache included.
    pub input: Option<u64>,
    /// Output tokens, those of hidden reasoning included.
    pub output: Option<u64>,
    /// Something in it cannot be true; it is left out, and the rest believed.
    pub odd: bool,
}

/// The members of a `usage` object that matter, of all providers together.
#[derive(Deserialize)]
struct Members<'a> {
    #[serde(borrow)]
    prompt_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    completion_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    total_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    input_tokens: Option<&'a RawValue>,
    #[serde(borrow)]
    output_tokens: Option<&'a RawValue>,
    /// Anthropic: not part of `input_tokens`.
    #[serde(borrow)]
    cache_creation_input_tokens: Option<&'a RawValue>,
    /// Anthropic: not part of `input_tokens`.
    #[serde(borrow)]
    cache_read_input_tokens: Option<&'a RawValue>,
}

/// Reads the raw JSON of a `usage` member of any chat API.
pub fn read_usage(raw: &str) -> ChatUsage {
    if raw == "null" {
        return ChatUsage::default();
    }
    let Ok(members) = serde_json::from_str::<Members<'_>>(raw) else {
        return ChatUsage { odd: true, ..ChatUsage::default() };
    };
    let mut odd = false;
    let mut count = |raw: Option<&RawValue>| match raw.map_or(Count::Absent, |raw| read_count(raw.get().as_bytes())) {
        Count::Number(number) => Some(number),
        Count::Absent => None,
        Count::Odd => {
            odd = true;
            None
        }
    };
    let (prompt, completion, total) =
        (count(members.prompt_tokens), count(members.completion_tokens), count(members.total_tokens));
    let (own, made) = (count(members.input_tokens), count(members.output_tokens));
    let (written, read) = (count(members.cache_creation_input_tokens), count(members.cache_read_input_tokens));
    let input = prompt.or(own).map(|own| own.saturating_add(written.unwrap_or(0)).saturating_add(read.unwrap_or(0)));
    let output = completion.or(made).or_else(|| total?.checked_sub(input?));
    let sum_is_less = total.zip(input).is_some_and(|(total, input)| total < input);
    ChatUsage { input, output, odd: odd || sum_is_less }
}

/// Counts the characters of every text in a raw JSON value that stands for what a model said: all strings but those that
/// name things.
pub fn add_texts(raw: &str, counts: &mut ClassCounts) {
    let mut deserializer = serde_json::Deserializer::from_str(raw);
    // What is not JSON has said nothing that can be counted.
    if let Ok(Texts(found)) = Texts::deserialize(&mut deserializer) {
        *counts = counts.plus(found);
    }
}

/// Members whose texts a model did not make.
const NAMES: [&str; 9] =
    ["role", "id", "type", "object", "obfuscation", "signature", "finish_reason", "call_id", "status"];

struct Texts(ClassCounts);

impl Texts {
    const NONE: Texts = Texts(ClassCounts { ascii: 0, two: 0, three: 0, four: 0 });
}

impl<'de> Deserialize<'de> for Texts {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Texts, D::Error> {
        deserializer.deserialize_any(TextVisitor)
    }
}

struct TextVisitor;

impl<'de> Visitor<'de> for TextVisitor {
    type Value = Texts;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("any value")
    }

    fn visit_str<E>(self, text: &str) -> Result<Texts, E> {
        Ok(Texts(ClassCounts::of(text)))
    }

    fn visit_unit<E>(self) -> Result<Texts, E> {
        Ok(Texts::NONE)
    }

    fn visit_bool<E>(self, _: bool) -> Result<Texts, E> {
        Ok(Texts::NONE)
    }

    fn visit_i64<E>(self, _: i64) -> Result<Texts, E> {
        Ok(Texts::NONE)
    }

    fn visit_u64<E>(self, _: u64) -> Result<Texts, E> {
        Ok(Texts::NONE)
    }

    fn visit_f64<E>(self, _: f64) -> Result<Texts, E> {
        Ok(Texts::NONE)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Texts, A::Error> {
        let mut counts = ClassCounts::default();
        while let Some(Texts(next)) = list.next_element()? {
            counts = counts.plus(next);
        }
        Ok(Texts(counts))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Texts, A::Error> {
        let mut counts = ClassCounts::default();
        while let Some(name) = members.next_key::<std::borrow::Cow<'_, str>>()? {
            if NAMES.contains(&name.as_ref()) {
                members.next_value::<IgnoredAny>()?;
            } else {
                counts = counts.plus(members.next_value::<Texts>()?.0);
            }
        }
        Ok(Texts(counts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(raw: &str, input: Option<u64>, output: Option<u64>, odd: bool) {
        assert_eq!(read_usage(raw), ChatUsage { input, output, odd }, "{raw}");
    }

    #[test]
    fn every_providers_counts_are_read() {
        check(r#"{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8}"#, Some(3), Some(5), false);
        check(r#"{"prompt_tokens":3,"total_tokens":8}"#, Some(3), Some(5), false);
        check(
            r#"{"input_tokens":3,"output_tokens":5,"output_tokens_details":{"reasoning_tokens":4}}"#,
            Some(3),
            Some(5),
            false,
        );
        let cached =
            r#"{"input_tokens":3,"cache_creation_input_tokens":10,"cache_read_input_tokens":100,"output_tokens":1}"#;
        check(cached, Some(113), Some(1), false);
        check(r#"{"output_tokens":7}"#, None, Some(7), false);
        check(r#"{"input_tokens":2,"cache_read_input_tokens":null}"#, Some(2), None, false);
        check("null", None, None, false);
        check("{}", None, None, false);
    }

    #[test]
    fn what_cannot_be_true_is_left_out() {
        check(r#"{"prompt_tokens":-5,"completion_tokens":5}"#, None, Some(5), true);
        check(r#"{"prompt_tokens":"3","completion_tokens":5}"#, None, Some(5), true);
        check(r#"{"prompt_tokens":9,"total_tokens":3}"#, Some(9), None, true);
        check(r#"{"prompt_tokens":1000000000000000000}"#, None, None, true);
        check("[1]", None, None, true);
    }

    #[test]
    fn texts_are_counted_and_names_are_not() {
        let counted = |raw: &str| {
            let mut counts = ClassCounts::default();
            add_texts(raw, &mut counts);
            counts.bytes()
        };
        assert_eq!(counted(r#"{"role":"assistant","content":"añb"}"#), 4);
        assert_eq!(
            counted(
                r#"{"tool_calls":[{"index":0,"id":"x","type":"function","function":{"name":"go","arguments":"{\"a\""}}]}"#
            ),
            6
        );
        assert_eq!(counted(r#"{"type":"text_delta","text":"hello"}"#), 5);
        assert_eq!(counted(r#"{"a":1,"b":1e400,"c":[true,null]}"#), 0);
        assert_eq!(counted("\"bare\""), 4);
        assert_eq!(counted("{broken"), 0);
    }
}
