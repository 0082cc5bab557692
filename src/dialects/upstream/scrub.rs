//! Takes keys out of texts that others wrote before they reach a client or a log.
//!
//! Works by the look of words, so that a key nobody told us about goes too. Rather a word too many than a key.

const GONE: &str = "[redacted]";

/// Prefixes of keys in use. The last part says whether the prefix alone is enough, or, since ordinary words start
/// with it as well, a digit or a mask must follow.
const PREFIXES: [(&str, bool); 11] = [
    ("sk-", true),
    ("sk_", true),
    ("vg-", true),
    ("vg_", true),
    ("hf_", true),
    ("gsk_", true),
    ("jina_", true),
    ("xai-", true),
    ("pa-", false),
    ("al-", false),
    ("key-", false),
];

/// Words that follow "bearer" in sentences about keys and are none, what stands for a key that is gone among them.
const NO_KEYS: [&str; 13] = [
    "redacted",
    "token",
    "tokens",
    "auth",
    "authentication",
    "authorization",
    "key",
    "scheme",
    "header",
    "is",
    "in",
    "not",
    "or",
];

/// The beginning of a longer text, at most `characters` long, cut where no word is: what is left of a cut key may look like
/// none.
pub(super) fn cut_between_words(text: &str, characters: usize) -> &str {
    match text.char_indices().nth(characters) {
        None => text,
        Some((end, _)) => {
            let (begin, rest) = text.split_at(end);
            if rest.starts_with(in_word) { begin.trim_end_matches(in_word) } else { begin }
        }
    }
}

/// `text` without anything that looks like a key: known prefixes, what follows `Bearer`, and long words of letters
/// and digits mixed.
pub fn scrub(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut after_bearer = false;
    let mut rest = text;
    while !rest.is_empty() {
        let gap = rest.find(in_word).unwrap_or(rest.len());
        let (between, from_word) = rest.split_at(gap);
        out.push_str(between);
        let end = from_word.find(|c| !in_word(c)).unwrap_or(from_word.len());
        let (word, after) = from_word.split_at(end);
        let (core, tail) = word.split_at(word.trim_end_matches('.').len());
        let named = after_bearer && !core.is_empty() && !NO_KEYS.iter().any(|word| core.eq_ignore_ascii_case(word));
        out.push_str(if named || looks_like_a_key(core) { GONE } else { core });
        out.push_str(tail);
        after_bearer = core.eq_ignore_ascii_case("bearer");
        rest = after;
    }
    out
}

/// Characters of keys, masks included.
fn in_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.' | '*' | '+' | '…')
}

fn looks_like_a_key(word: &str) -> bool {
    for (prefix, enough) in PREFIXES {
        // In bytes: behind a short prefix there may be a mask that is no ASCII.
        let begins =
            word.as_bytes().get(..prefix.len()).is_some_and(|begin| begin.eq_ignore_ascii_case(prefix.as_bytes()));
        if begins && word.len() >= prefix.len() + 3 {
            let marked = word.bytes().any(|byte| byte.is_ascii_digit() || byte == b'*') || word.len() >= 24;
            if enough || marked {
                return true;
            }
        }
    }
    let digits = word.bytes().filter(u8::is_ascii_digit).count();
    let letters = word.bytes().any(|byte| byte.is_ascii_alphabetic());
    // Names of models and versions are long as well, but have few digits or are cut by dots, slashes and hyphens.
    let unbroken = word.split(['-', '.', '_']).map(str::len).max().unwrap_or(0);
    letters && ((unbroken >= 24 && digits >= 2) || (word.len() >= 32 && digits >= 8))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check(text: &str, expected: &str) {
        assert_eq!(scrub(text), expected);
    }

    #[test]
    fn keys_go_and_words_stay() {
        check("Incorrect API key provided: sk-abc123.", "Incorrect API key provided: [redacted].");
        check("key sk-proj-****wxyz is wrong", "key [redacted] is wrong");
        check("use \"pa-x9_Zabc\" or 'al-12345678'", "use \"[redacted]\" or '[redacted]'");
        check("a pa-system and al-Khwarizmi", "a pa-system and al-Khwarizmi");
        check("Authorization: Bearer abc", "Authorization: Bearer [redacted]");
        check("Bearer token is missing", "Bearer token is missing");
        check("Bearer [redacted] is wrong", "Bearer [redacted] is wrong");
        check("?key=AIzaSyA1234567890abcdefghijklmn&x=1", "?key=[redacted]&x=1");
        check("0123456789abcdef0123456789abcdef", "[redacted]");
        check("vg-live_secret", "[redacted]");
        check("sk-…wxyz and VG_*…z", "[redacted] and [redacted]");
        check("model text-embedding-3-small not found", "model text-embedding-3-small not found");
        check(
            "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2",
            "sentence-transformers/paraphrase-multilingual-MiniLM-L12-v2",
        );
        check("Requested 301000 tokens, max 300000", "Requested 301000 tokens, max 300000");
        check("日本語 sk-日本", "日本語 sk-日本");
        check("", "");
    }

    proptest! {
        #[test]
        fn a_key_never_survives(
            before in "[a-zA-Z .,\"=:]{0,20}",
            key in "sk-[A-Za-z0-9]{8,40}",
            after in "([ .,\"';)][a-zA-Z0-9 .,\"=:]{0,20})?",
        ) {
            let text = format!("{before} {key}{after}");
            prop_assert!(!scrub(&text).contains(&key));
        }

        #[test]
        fn any_text_is_survived(text in any::<String>()) {
            scrub(&text);
        }
    }
}
