//! Which cached vector answers which input: digests of inputs, and keys over everything that changes a vector.
//!
//! Every field of a key is written with its length (or has a fixed one) and its presence, so that no two different
//! requests ever feed the same bytes to the hash. Refuses to know what a cache is, and which parameters of a dialect
//! change a vector: the caller lists those.

use std::fmt;
use std::hash::{Hash, Hasher};

use sha2::{Digest, Sha256};

use crate::config::plan::Normalization;

/// SHA-256 of one input. Of a text: of its UTF-8 bytes and nothing else.
pub type ItemDigest = [u8; 32];

/// Opens the hashed form of a token list. `0xFF` never occurs in UTF-8, so no text has the digest of a token list.
pub const TOKENS_TAG: &[u8] = b"\xFFtokens";

/// Opens the hashed form of an input that is a JSON object; its raw bytes follow.
pub const OBJECT_TAG: &[u8] = b"\xFFobject";

/// Changes whenever the meaning of a key does, so that a shared cache outlives an update of the gateway.
const VERSION: u8 = 1;

/// The digest of a text as it is.
pub fn text_digest(text: &str) -> ItemDigest {
    Sha256::digest(text.as_bytes()).into()
}

/// The digest of a list of token ids.
pub fn tokens_digest(tokens: &[u32]) -> ItemDigest {
    let mut hasher = Sha256::new();
    hasher.update(TOKENS_TAG);
    for token in tokens {
        hasher.update(token.to_le_bytes());
    }
    hasher.finalize().into()
}

/// The digest of a text after folding. With [`Normalization::Exact`] the same as [`text_digest`].
pub fn normalized_digest(text: &str, normalization: Normalization) -> ItemDigest {
    match normalization {
        Normalization::Exact => text_digest(text),
        Normalization::Trim => text_digest(text.trim()),
        Normalization::Lowercase => text_digest(&text.trim().to_lowercase()),
    }
}

/// Names one cached value.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct CacheKey(pub [u8; 32]);

impl Hash for CacheKey {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let [a, b, c, d, e, f, g, h, ..] = self.0;
        state.write_u64(u64::from_le_bytes([a, b, c, d, e, f, g, h]));
    }
}

impl fmt::Debug for CacheKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [a, b, c, d, ..] = self.0;
        write!(f, "CacheKey({a:02x}{b:02x}{c:02x}{d:02x}…)")
    }
}

/// Everything of a request that changes a vector, apart from the input itself.
///
/// The encoding asked for is left out on purpose: a vector is kept once and rendered for each client.
#[derive(Debug, Clone, Copy)]
pub struct KeyParts<'a> {
    /// The tenant, where nobody may learn from a hit what others asked; `None`: shared.
    pub tenant: Option<&'a str>,
    /// The vector space (embeddings) or the model (rerank).
    pub space: &'a str,
    /// Width of the kept vector; `None` where it is not known before the first answer, or there is none (rerank).
    pub width: Option<u32>,
    /// Other parameters that change the vector, as (name, value in the client's own spelling); in any order.
    pub parameters: &'a [(&'a str, &'a str)],
    /// How the inputs were folded before they were hashed.
    pub normalization: Normalization,
}

/// The part of a key that all inputs of a request share; computed once.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyBase([u8; 32]);

impl KeyBase {
    /// Hashes the shared parts.
    pub fn new(parts: &KeyParts<'_>) -> KeyBase {
        let mut hasher = Sha256::new();
        hasher.update([VERSION]);
        match parts.tenant {
            None => hasher.update([0]),
            Some(tenant) => {
                hasher.update([1]);
                field(&mut hasher, tenant);
            }
        }
        field(&mut hasher, parts.space);
        match parts.width {
            None => hasher.update([0]),
            Some(width) => {
                hasher.update([1]);
                hasher.update(width.to_le_bytes());
            }
        }
        let mut parameters = parts.parameters.to_vec();
        parameters.sort_unstable();
        hasher.update((parameters.len() as u64).to_le_bytes());
        for (name, value) in parameters {
            field(&mut hasher, name);
            field(&mut hasher, value);
        }
        hasher.update([match parts.normalization {
            Normalization::Exact => 0,
            Normalization::Trim => 1,
            Normalization::Lowercase => 2,
        }]);
        KeyBase(hasher.finalize().into())
    }

    /// The key of one input's vector.
    pub fn key(&self, item: &ItemDigest) -> CacheKey {
        self.finish(b'V', &[item])
    }

    /// The key of one document's score for one query.
    pub fn pair_key(&self, query: &ItemDigest, document: &ItemDigest) -> CacheKey {
        self.finish(b'P', &[query, document])
    }

    fn finish(&self, kind: u8, digests: &[&ItemDigest]) -> CacheKey {
        let mut hasher = Sha256::new();
        hasher.update([kind]);
        hasher.update(self.0);
        for digest in digests {
            hasher.update(digest);
        }
        CacheKey(hasher.finalize().into())
    }
}

fn field(hasher: &mut Sha256, text: &str) {
    hasher.update((text.len() as u64).to_le_bytes());
    hasher.update(text.as_bytes());
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    const PLAIN: KeyParts<'_> =
        KeyParts { tenant: Some("t"), space: "m", width: None, parameters: &[], normalization: Normalization::Exact };

    #[track_caller]
    fn check_all_differ(keys: &[CacheKey]) {
        let distinct: HashSet<_> = keys.iter().collect();
        assert_eq!(distinct.len(), keys.len(), "two of these share a key: {keys:?}");
    }

    #[test]
    fn every_field_changes_the_key() {
        let item = text_digest("alpha");
        let variants = [
            PLAIN,
            KeyParts { tenant: None, ..PLAIN },
            KeyParts { tenant: Some(""), ..PLAIN },
            KeyParts { tenant: Some("tm"), space: "", ..PLAIN },
            KeyParts { tenant: Some(""), space: "tm", ..PLAIN },
            KeyParts { width: Some(4), ..PLAIN },
            KeyParts { width: Some(8), ..PLAIN },
            KeyParts { space: "m1", width: Some(2), ..PLAIN },
            KeyParts { space: "m", width: Some(12), ..PLAIN },
            KeyParts { parameters: &[("truncate", "true")], ..PLAIN },
            KeyParts { parameters: &[("truncate", "false")], ..PLAIN },
            KeyParts { parameters: &[("a", "b"), ("c", "d")], ..PLAIN },
            KeyParts { parameters: &[("a", "bc"), ("", "d")], ..PLAIN },
            KeyParts { parameters: &[("ab", "cd")], ..PLAIN },
            KeyParts { normalization: Normalization::Trim, ..PLAIN },
            KeyParts { normalization: Normalization::Lowercase, ..PLAIN },
        ];
        check_all_differ(&variants.map(|parts| KeyBase::new(&parts).key(&item)));
    }

    #[test]
    fn order_of_parameters_does_not_matter() {
        let one = KeyBase::new(&KeyParts { parameters: &[("a", "1"), ("b", "2")], ..PLAIN });
        let other = KeyBase::new(&KeyParts { parameters: &[("b", "2"), ("a", "1")], ..PLAIN });
        assert_eq!(one, other);
    }

    #[test]
    fn inputs_that_look_alike_when_joined_have_their_own_keys() {
        let base = KeyBase::new(&PLAIN);
        let texts = ["a-b", "c", "a", "b-c", "a-b-c", "a\0b", "b", "[101,202,303]", "\u{FF}tokens", "[1,23]", ""];
        let lists: [&[u32]; 7] = [&[1, 23], &[12, 3], &[1], &[23], &[101, 202, 303], &[], &[0]];
        let mut keys: Vec<_> = texts.iter().map(|text| base.key(&text_digest(text))).collect();
        keys.extend(lists.iter().map(|list| base.key(&tokens_digest(list))));
        check_all_differ(&keys);
    }

    #[test]
    fn pairs_are_not_joined_texts() {
        let base = KeyBase::new(&PLAIN);
        let pair = |query, document| base.pair_key(&text_digest(query), &text_digest(document));
        check_all_differ(&[
            pair("ab", "c"),
            pair("a", "bc"),
            pair("c", "ab"),
            pair("abc", ""),
            pair("", "abc"),
            base.key(&text_digest("abc")),
        ]);
    }

    #[test]
    fn folding_joins_only_what_it_says() {
        let lower = |text| normalized_digest(text, Normalization::Lowercase);
        let trim = |text| normalized_digest(text, Normalization::Trim);
        assert_eq!(lower("  Grüße AUS Köln\n"), text_digest("grüße aus köln"));
        assert_eq!(trim("  Grüße "), text_digest("Grüße"));
        assert_ne!(trim("Grüße"), trim("grüße"));
        assert_ne!(lower("a  b"), lower("a b"));
        assert_eq!(normalized_digest(" A ", Normalization::Exact), text_digest(" A "));
    }
}
