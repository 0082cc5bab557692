//! Exact token counts where the vocabulary is public. Owns the loaded tokenizers; refuses to estimate
//! (`pure/token_estimate.rs`) and to decide when exactness is worth its 15 to 30 µs a kilobyte.

use bpe_openai::{cl100k_base, o200k_base};

use crate::config::plan::Tokenizer;

/// Tokens of `text`, exactly; `None` where the tokenizer is not known here. Not raised to 1 for an empty text.
///
/// The first call for a vocabulary loads it (20 ms); see [`preload`]. Text that looks like a special token is
/// counted as the ordinary text it is.
pub fn count_exact(tokenizer: Tokenizer, text: &str) -> Option<u64> {
    let count = match tokenizer {
        Tokenizer::Cl100k => cl100k_base().count(text),
        Tokenizer::O200k => o200k_base().count(text),
        Tokenizer::Bytes => text.len(),
        Tokenizer::Unknown => return None,
    };
    u64::try_from(count).ok()
}

/// Loads the vocabulary now, so that no request waits for it.
pub fn preload(tokenizer: Tokenizer) {
    count_exact(tokenizer, "");
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::pure::token_estimate::{ClassCounts, Estimate};

    #[track_caller]
    fn check(tokenizer: Tokenizer, text: &str, expected: Option<u64>) {
        assert_eq!(count_exact(tokenizer, text), expected, "{text:?}");
    }

    #[test]
    fn counts_like_the_published_vocabularies() {
        check(Tokenizer::Cl100k, "", Some(0));
        check(Tokenizer::Cl100k, "hello world", Some(2));
        check(Tokenizer::O200k, "hello world", Some(2));
        check(Tokenizer::Cl100k, "tiktoken is great!", Some(6));
        check(Tokenizer::Bytes, "né", Some(3));
        check(Tokenizer::Unknown, "hello", None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]
        #[test]
        fn exact_counts_lie_within_the_estimate(text in "(?s)(.{0,200}| {0,300}|[a-z]{0,300})") {
            for tokenizer in [Tokenizer::Cl100k, Tokenizer::O200k] {
                let estimate = Estimate::of(ClassCounts::of(&text), tokenizer);
                let exact = count_exact(tokenizer, &text).expect("known tokenizer").max(1);
                prop_assert!(estimate.lower <= exact && exact <= estimate.upper, "{exact} in {estimate:?}");
            }
        }
    }
}
