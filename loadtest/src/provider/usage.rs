//! Tokens: how they are counted, and how an answer tells them.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::signature::Item;

/// How the tokens of a text are counted. A token list counts its length, except under `PerItem`. Never below 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TokenRule {
    /// Words between white space.
    Words,
    /// One for each byte.
    Bytes,
    /// One for each started group of this many bytes.
    BytesPerToken(u64),
    /// The same for every item.
    PerItem(u64),
}

impl TokenRule {
    /// Tokens of one text.
    pub fn text(self, text: &str) -> u64 {
        let counted = match self {
            Self::Words => text.split_whitespace().count() as u64,
            Self::Bytes => text.len() as u64,
            Self::BytesPerToken(bytes) => (text.len() as u64).div_ceil(bytes.max(1)),
            Self::PerItem(tokens) => return tokens,
        };
        counted.max(1)
    }

    /// Tokens of one item.
    pub fn item(self, item: &Item) -> u64 {
        match (self, item) {
            (Self::PerItem(tokens), _) => tokens,
            (_, Item::Text(text)) => self.text(text),
            (_, Item::Tokens(tokens)) => (tokens.len() as u64).max(1),
        }
    }

    /// Tokens of a rerank call: the query once for each document, and every document.
    pub fn rerank(self, query: &str, documents: &[String]) -> u64 {
        let query = self.text(query).saturating_mul(documents.len() as u64);
        documents.iter().fold(query, |sum, document| sum.saturating_add(self.text(document)))
    }
}

/// How an answer tells the tokens it was billed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum UsageShape {
    /// As the dialect does.
    Exact,
    /// No member at all, and no header where the dialect uses one.
    Absent,
    /// `null`.
    Null,
    /// An empty object.
    Empty,
    /// Only `total_tokens`.
    TotalOnly,
    /// Only `prompt_tokens`.
    PromptOnly,
    /// A negative count.
    Negative,
    /// 10^18.
    Huge,
    /// The count as a string.
    Text,
    /// The count as a fraction.
    Fraction,
    /// `total_tokens` below `prompt_tokens`.
    TotalTooSmall,
    /// More cached tokens than there were tokens.
    CachedTooMany,
}

/// Input and output tokens of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Tokens {
    pub input: u64,
    pub output: u64,
}

impl Tokens {
    pub fn input(input: u64) -> Self {
        Self { input, output: 0 }
    }

    pub fn total(self) -> u64 {
        self.input.saturating_add(self.output)
    }
}

/// The `usage` member in the OpenAI form; `None`: there is none.
pub(super) fn openai(shape: UsageShape, tokens: Tokens, with_output: bool) -> Option<Value> {
    let (input, total) = (tokens.input, tokens.total());
    let mut usage = match shape {
        UsageShape::Absent => return None,
        UsageShape::Null => return Some(Value::Null),
        UsageShape::Empty => return Some(Value::Object(Map::new())),
        UsageShape::TotalOnly => return Some(json!({"total_tokens": total})),
        UsageShape::PromptOnly => return Some(json!({"prompt_tokens": input})),
        UsageShape::Exact => json!({"prompt_tokens": input, "total_tokens": total}),
        UsageShape::Negative => json!({"prompt_tokens": -5, "total_tokens": -5}),
        UsageShape::Huge => json!({"prompt_tokens": 1_000_000_000_000_000_000_u64,
            "total_tokens": 1_000_000_000_000_000_000_u64}),
        UsageShape::Text => json!({"prompt_tokens": input.to_string(), "total_tokens": total.to_string()}),
        UsageShape::Fraction => {
            json!({"prompt_tokens": input as f64 + 0.5, "total_tokens": total as f64 + 0.5})
        }
        UsageShape::TotalTooSmall => json!({"prompt_tokens": input, "total_tokens": 0}),
        UsageShape::CachedTooMany => json!({"prompt_tokens": input, "total_tokens": total,
            "prompt_tokens_details": {"cached_tokens": input.saturating_mul(2)}}),
    };
    if with_output && let Some(usage) = usage.as_object_mut() {
        usage.insert("completion_tokens".to_owned(), json!(tokens.output));
    }
    Some(usage)
}

/// One number under `name`, for dialects that tell nothing else; `None`: there is no member.
pub(super) fn single(shape: UsageShape, tokens: u64, name: &str) -> Option<Value> {
    let number = match shape {
        UsageShape::Absent => return None,
        UsageShape::Null => return Some(Value::Null),
        UsageShape::Empty | UsageShape::PromptOnly => return Some(Value::Object(Map::new())),
        UsageShape::Negative => json!(-5),
        UsageShape::Huge => json!(1_000_000_000_000_000_000_u64),
        UsageShape::Text => json!(tokens.to_string()),
        UsageShape::Fraction => json!(tokens as f64 + 0.5),
        UsageShape::TotalTooSmall => json!(0),
        UsageShape::Exact | UsageShape::TotalOnly | UsageShape::CachedTooMany => json!(tokens),
    };
    let mut object = Map::new();
    object.insert(name.to_owned(), number);
    Some(Value::Object(object))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(rule: TokenRule, text: &str, expected: u64) {
        assert_eq!(rule.text(text), expected);
    }

    #[test]
    fn tokens_are_counted_by_rule_and_never_below_one() {
        check(TokenRule::Words, "a few  words", 3);
        check(TokenRule::Words, "", 1);
        check(TokenRule::Bytes, "añb", 4);
        check(TokenRule::BytesPerToken(4), "12345", 2);
        check(TokenRule::BytesPerToken(0), "123", 3);
        check(TokenRule::PerItem(7), "anything at all", 7);
        assert_eq!(TokenRule::Bytes.item(&Item::Tokens(vec![1, 2, 3])), 3);
        assert_eq!(TokenRule::Words.rerank("two words", &["one".to_owned(), "a b c".to_owned()]), 8);
    }

    #[test]
    fn usage_takes_every_shape() {
        let tokens = Tokens { input: 7, output: 2 };
        let told = |shape| openai(shape, tokens, false).map(|usage| usage.to_string());
        assert_eq!(told(UsageShape::Exact).as_deref(), Some(r#"{"prompt_tokens":7,"total_tokens":9}"#));
        assert_eq!(told(UsageShape::Absent), None);
        assert_eq!(told(UsageShape::Null).as_deref(), Some("null"));
        assert_eq!(told(UsageShape::TotalOnly).as_deref(), Some(r#"{"total_tokens":9}"#));
        let chat = openai(UsageShape::Exact, tokens, true).expect("told");
        assert_eq!(chat["completion_tokens"], 2);
        assert_eq!(single(UsageShape::Exact, 7, "input_tokens").expect("told")["input_tokens"], 7);
    }
}
