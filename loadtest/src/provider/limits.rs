//! The largest call a provider serves, and in whose words it refuses more.

use serde::{Deserialize, Serialize};

/// Limits of one call; what is absent is unlimited.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Limits {
    /// Items.
    pub max_items: Option<usize>,
    /// Bytes of the body.
    pub max_bytes: Option<usize>,
    /// Tokens of all items together.
    pub max_tokens: Option<u64>,
    /// Bytes of one text. A longer one is refused, or cut if the request asks for truncation.
    pub max_item_bytes: Option<usize>,
    /// Tokens of one item; a longer one is refused.
    pub max_item_tokens: Option<u64>,
    /// The words of a refusal for items, bytes and tokens of a call.
    pub words: Refusals,
}

/// In whose words a call that is too large is refused.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Refusals {
    /// Those of the dialect.
    #[default]
    Native,
    /// 400 in the dialect's shape; the text names the limit and nothing else.
    Number400,
    /// 413 with plain text.
    Plain413,
    /// 413 with a JSON body.
    Json413,
    /// 422 with a list of what is wrong under `detail`.
    List422,
    /// 413 with no body.
    Empty413,
}

/// What was too large, by how much.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Excess {
    pub unit: Unit,
    pub given: u64,
    pub limit: u64,
}

/// What a limit counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unit {
    Items,
    Bytes,
    Tokens,
}

impl Unit {
    pub fn name(self) -> &'static str {
        match self {
            Self::Items => "items",
            Self::Bytes => "bytes",
            Self::Tokens => "tokens",
        }
    }
}

impl Limits {
    /// The first limit of a whole call that it exceeds.
    pub(super) fn excess(&self, items: usize, bytes: usize, tokens: u64) -> Option<Excess> {
        let checks = [
            (Unit::Bytes, bytes as u64, self.max_bytes.map(|limit| limit as u64)),
            (Unit::Items, items as u64, self.max_items.map(|limit| limit as u64)),
            (Unit::Tokens, tokens, self.max_tokens),
        ];
        checks.into_iter().find_map(|(unit, given, limit)| {
            limit.filter(|limit| given > *limit).map(|limit| Excess { unit, given, limit })
        })
    }
}

/// The longest prefix of `text` of at most `bytes` bytes that ends between two characters.
pub(super) fn cut(text: &str, bytes: usize) -> &str {
    let end = (0..=bytes.min(text.len())).rev().find(|end| text.is_char_boundary(*end)).unwrap_or(0);
    text.get(..end).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(items: usize, bytes: usize, tokens: u64, expected: Option<Unit>) {
        let limits = Limits { max_items: Some(32), max_bytes: Some(1000), max_tokens: Some(500), ..Limits::default() };
        assert_eq!(limits.excess(items, bytes, tokens).map(|excess| excess.unit), expected);
    }

    #[test]
    fn limits_are_inclusive() {
        check(32, 1000, 500, None);
        check(33, 1000, 500, Some(Unit::Items));
        check(32, 1001, 500, Some(Unit::Bytes));
        check(32, 1000, 501, Some(Unit::Tokens));
        assert_eq!(Limits::default().excess(usize::MAX, usize::MAX, u64::MAX), None);
    }

    #[test]
    fn a_cut_never_splits_a_character() {
        assert_eq!(cut("añb", 2), "a");
        assert_eq!(cut("añb", 3), "añ");
        assert_eq!(cut("añb", 30), "añb");
    }
}
