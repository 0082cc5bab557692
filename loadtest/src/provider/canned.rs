//! The fast path for benchmarks: answers that are prepared once and sent many times.
//!
//! Owns a cheap count of a body's inputs and a small store of finished answers. It parses nothing else.

use std::collections::HashMap;

use bytes::Bytes;
use memchr::{memchr2, memmem};
use parking_lot::Mutex;

use super::dialect::vectors;
use super::script::{Digits, Script};
use super::signature::signature;

/// Prepared answers kept at most; each may be tens of megabytes.
const KEPT: usize = 16;

/// Prepared answers of one script.
#[derive(Debug)]
pub(super) struct Canned {
    list: Vec<u8>,
    base64: Vec<u8>,
    tokens_per_item: u64,
    answers: Mutex<HashMap<(usize, bool), Bytes>>,
}

impl Canned {
    pub fn new(script: &Script) -> Self {
        let vector = signature(&script.space, "canned", script.width);
        let mut list = Vec::new();
        vectors::list(&vector, Digits::F32, &mut list);
        let base64 = format!("\"{}\"", vectors::base64(&vector)).into_bytes();
        Self { list, base64, tokens_per_item: script.canned_tokens_per_item, answers: Mutex::default() }
    }

    /// Inputs of a body, tokens billed for them, and the body of the answer.
    pub fn answer(&self, body: &[u8]) -> (usize, u64, Bytes) {
        let count = count_inputs(body);
        let base64 = wants_base64(body);
        let tokens = self.tokens_per_item.saturating_mul(count as u64);
        let mut answers = self.answers.lock();
        if let Some(answer) = answers.get(&(count, base64)) {
            return (count, tokens, answer.clone());
        }
        let answer = self.render(count, base64, tokens);
        if answers.len() >= KEPT {
            answers.clear();
        }
        answers.insert((count, base64), answer.clone());
        (count, tokens, answer)
    }

    fn render(&self, count: usize, base64: bool, tokens: u64) -> Bytes {
        let vector = if base64 { &self.base64 } else { &self.list };
        let mut out = Vec::with_capacity((vector.len() + 64) * count + 256);
        out.extend_from_slice(br#"{"object":"list","data":["#);
        for place in 0..count {
            if place > 0 {
                out.push(b',');
            }
            out.extend_from_slice(format!(r#"{{"object":"embedding","index":{place},"embedding":"#).as_bytes());
            out.extend_from_slice(vector);
            out.push(b'}');
        }
        let usage = format!(r#"{{"prompt_tokens":{tokens},"total_tokens":{tokens}}}"#);
        out.extend_from_slice(format!(r#"],"model":"text-embedding-3-small","usage":{usage}}}"#).as_bytes());
        out.into()
    }
}

/// The bytes after the colon of the member `name`, white space skipped. `last`: its last occurrence.
fn member<'a>(body: &'a [u8], name: &[u8], last: bool) -> Option<&'a [u8]> {
    // A quoted name inside a text has its quotes escaped, so the bare form is a name or a text of exactly this word.
    let at = if last { memmem::rfind(body, name) } else { memmem::find(body, name) }?;
    let rest = body.get(at + name.len()..)?.trim_ascii_start().strip_prefix(b":")?;
    Some(rest.trim_ascii_start())
}

fn wants_base64(body: &[u8]) -> bool {
    member(body, b"\"encoding_format\"", true).is_some_and(|value| value.starts_with(b"\"base64\""))
}

/// Inputs of an embeddings body, at several gigabytes a second. A body without any counts as one.
fn count_inputs(body: &[u8]) -> usize {
    let Some(input) = member(body, b"\"input\"", false) else { return 1 };
    let Some(list) = input.strip_prefix(b"[") else { return 1 };
    let mut rest = list.trim_ascii_start();
    match rest.first() {
        Some(b'"') => {
            let mut count = 0;
            while let Some(after) = rest.strip_prefix(b"\"").and_then(skip_text) {
                count += 1;
                rest = after.trim_ascii_start();
                match rest.strip_prefix(b",") {
                    Some(next) => rest = next.trim_ascii_start(),
                    None => break,
                }
            }
            count.max(1)
        }
        Some(b'[') => {
            let mut count = 0;
            while let Some(after) = rest.strip_prefix(b"[") {
                count += 1;
                let Some(end) = memchr::memchr(b']', after) else { break };
                rest = after.get(end + 1..).unwrap_or_default().trim_ascii_start();
                match rest.strip_prefix(b",") {
                    Some(next) => rest = next.trim_ascii_start(),
                    None => break,
                }
            }
            count.max(1)
        }
        _ => 1,
    }
}

/// What follows the closing quote of a text whose opening quote has been passed.
fn skip_text(mut rest: &[u8]) -> Option<&[u8]> {
    loop {
        let at = memchr2(b'"', b'\\', rest)?;
        if rest.get(at) == Some(&b'"') {
            return rest.get(at + 1..);
        }
        rest = rest.get(at + 2..)?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    #[track_caller]
    fn check(body: &str, expected: usize) {
        assert_eq!(count_inputs(body.as_bytes()), expected, "{body}");
    }

    #[test]
    fn inputs_are_counted_without_parsing() {
        check(r#"{"model":"m","input":"one"}"#, 1);
        check(r#"{"input" : [ "a" , "b\"],[" , "c\\" ], "model":"m"}"#, 3);
        check(r#"{"input":[1,2,3]}"#, 1);
        check(r#"{"input":[[1,2],[3] , [4]]}"#, 3);
        check(r#"{"input":[]}"#, 1);
        check(r#"{"input":["unfinished"#, 1);
        check("", 1);
    }

    #[test]
    fn the_format_is_found_behind_any_text() {
        let body = json!({"input": ["\"encoding_format\":\"base64\""], "encoding_format": "float"}).to_string();
        assert!(!wants_base64(body.as_bytes()));
        assert!(wants_base64(br#"{"input":"a","encoding_format": "base64"}"#));
    }

    #[test]
    fn a_prepared_answer_is_a_good_answer() {
        let canned = Canned::new(&Script::default());
        let (count, tokens, body) = canned.answer(br#"{"input":["a","b"]}"#);
        assert_eq!((count, tokens), (2, 16));
        let value: Value = serde_json::from_slice(&body).expect("JSON");
        assert_eq!(value["data"][1]["index"], 1);
        assert_eq!(value["data"][1]["embedding"].as_array().map(Vec::len), Some(8));
        assert_eq!(value["usage"]["total_tokens"], 16);
        let (_, _, again) = canned.answer(br#"{"input":["c","d"]}"#);
        assert_eq!(body, again);
    }

    proptest! {
        #[test]
        fn any_list_of_texts_is_counted_right(texts in proptest::collection::vec(any::<String>(), 1..20)) {
            let body = json!({"model": "m", "input": texts, "user": "u"}).to_string();
            prop_assert_eq!(count_inputs(body.as_bytes()), texts.len());
        }
    }
}
