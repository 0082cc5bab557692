use proptest::prelude::*;
use serde_json::Value;
use serde_json::value::RawValue;

use super::*;
use crate::config::plan::Tokenizer;
use crate::pure::cache_key::{text_digest, tokens_digest};
use crate::pure::token_estimate::{ClassCounts, Estimate};

const EMBED: &[&str] = &["input"];
const RERANK: &[&str] = &["query", "documents"];

fn scan_pieces<'a>(
    fields: &'static [&'static str],
    limits: ScanLimits,
    pieces: impl IntoIterator<Item = &'a [u8]>,
) -> Result<Scan, ScanError> {
    let mut scanner = Scanner::new(fields, limits);
    for piece in pieces {
        // The verdict must come from `finish` too: a caller may look there only.
        if let Err(error) = scanner.feed(piece) {
            assert_eq!(scanner.feed(b"{}"), Err(error.clone()));
            assert_eq!(scanner.finish(), Err(error.clone()));
            return Err(error);
        }
    }
    scanner.finish()
}

/// Scans whole and byte by byte: both must come to the same result.
#[track_caller]
fn scan(fields: &'static [&'static str], limits: ScanLimits, body: &[u8]) -> Result<Scan, ScanError> {
    let whole = scan_pieces(fields, limits, [body]);
    assert_eq!(scan_pieces(fields, limits, body.chunks(1)), whole, "cut into single bytes");
    assert_eq!(scan_pieces(fields, limits, body.chunks(3)), whole, "cut into threes");
    whole
}

fn embed(body: &str) -> Result<Scan, ScanError> {
    scan(EMBED, ScanLimits::default(), body.as_bytes())
}

#[track_caller]
fn check_texts(body: &str, shape: Shape, expected: &[&str]) {
    let scan = embed(body).expect("valid");
    let items = scan.items("input").expect("inputs");
    assert_eq!(items.shape, shape);
    let digests: Vec<_> = items.items.iter().map(|item| item.digest).collect();
    assert_eq!(digests, expected.iter().map(|text| text_digest(text)).collect::<Vec<_>>());
    for (item, text) in items.items.iter().zip(expected) {
        assert_eq!((item.kind, item.counts, item.tokens), (ItemKind::Text, ClassCounts::of(text), 0));
        let raw = &body[item.range.clone()];
        assert_eq!(serde_json::from_str::<String>(raw).expect("a JSON string"), *text);
    }
}

#[track_caller]
fn check_tokens(input: &str, shape: Shape, expected: &[&[u32]]) {
    let body = format!("{{\"input\":{input}}}");
    let scan = embed(&body).expect("valid");
    let items = scan.items("input").expect("inputs");
    assert_eq!(items.shape, shape);
    assert_eq!(items.items.len(), expected.len());
    for (item, tokens) in items.items.iter().zip(expected) {
        assert_eq!(item.digest, tokens_digest(tokens));
        assert_eq!((item.kind, item.tokens as usize, item.text_bytes()), (ItemKind::Tokens, tokens.len(), 0));
        assert_eq!(serde_json::from_str::<Vec<u32>>(&body[item.range.clone()]).expect("a list"), *tokens);
        assert_eq!(item.estimate(Tokenizer::Unknown), Estimate::exact(tokens.len() as u64));
    }
}

#[track_caller]
fn check_input_error(input: &str, item: Option<usize>, message: &str) {
    let error = embed(&format!("{{\"model\":\"m\",\"input\":{input}}}")).expect_err("refused");
    assert_eq!(error, ScanError::input("input", item, message.to_owned()));
}

#[track_caller]
fn check_json_error(body: &[u8], message: &str) {
    let error = scan(EMBED, ScanLimits::default(), body).expect_err("refused");
    assert_eq!((error.code, error.message.as_str()), (ScanErrorCode::InvalidJson, message));
}

#[test]
fn texts_are_digested_as_what_they_stand_for() {
    check_texts(r#"{"input":"alpha"}"#, Shape::Text, &["alpha"]);
    check_texts(r#" { "model" : "m" , "input" : [ "a" , "b" ] } "#, Shape::Texts, &["a", "b"]);
    check_texts(
        r#"{"input":["\u0041\/\b\f\n\r\t\"\\","naïve 中 😀"]}"#,
        Shape::Texts,
        &["A/\u{8}\u{c}\n\r\t\"\\", "naïve 中 😀"],
    );
    check_texts(r#"{"input":["\ud83d\ude00","\u4e2d\uFFFD\u0000"]}"#, Shape::Texts, &["😀", "中\u{FFFD}\0"]);
    check_texts(r#"{"\u0069nput":"key in escapes"}"#, Shape::Text, &["key in escapes"]);
    check_texts(&format!("{{\"input\":\"{}\"}}", "é".repeat(1_000)), Shape::Text, &["é".repeat(1_000).as_str()]);
}

#[test]
fn token_lists_are_inputs_of_their_own_kind() {
    check_tokens("[101,202,303]", Shape::Tokens, &[&[101, 202, 303]]);
    check_tokens("[[101],[202,303]]", Shape::TokenLists, &[&[101], &[202, 303]]);
    check_tokens(" [ 0 , 4294967295 ] ", Shape::Tokens, &[&[0, u32::MAX]]);
    check_tokens("[[1]]", Shape::TokenLists, &[&[1]]);
}

#[test]
fn inputs_that_make_no_sense_are_named() {
    for (input, item, message) in [
        ("[]", None, "input is an empty list"),
        ("[[]]", Some(0), "input[0] is an empty list"),
        ("[[1],[]]", Some(1), "input[1] is an empty list"),
        (r#""""#, Some(0), "input is an empty string"),
        (r#"["a","b","c",""]"#, Some(3), "input[3] is an empty string"),
        (r#"["a",[1]]"#, Some(1), "input mixes texts and token lists at input[1]"),
        (r#"[[1],"a"]"#, Some(1), "input mixes texts and token lists at input[1]"),
        (r#"["a",1]"#, Some(1), "input mixes texts and token ids at input[1]"),
        (r#"[1,2,"a"]"#, Some(2), "input mixes texts and token ids at input[2]"),
        ("[1,[2]]", Some(1), "input mixes token ids and token lists at input[1]"),
        ("[1.5]", Some(0), "input[0] is not a whole number"),
        ("[1,2.0]", Some(0), "input[1] is not a whole number"),
        ("[1e3]", Some(0), "input[0] is not a whole number"),
        ("[[1,2,0.5]]", Some(0), "input[0][2] is not a whole number"),
        (r#"[[1],[2,"a"]]"#, Some(1), "input[1][1] is not a whole number"),
        ("[[null]]", Some(0), "input[0][0] is not a whole number"),
        ("[[[1]]]", Some(0), "input[0][0] is not a whole number"),
        ("[-1]", Some(0), "input[0] is negative"),
        ("[18446744073709551616]", Some(0), "input[0] is larger than 4294967295"),
        ("[4294967296]", Some(0), "input[0] is larger than 4294967295"),
        ("[null]", Some(0), "input[0] is null; expected a text or token ids"),
        (r#"["a",true]"#, Some(1), "input[1] is true; expected a text or token ids"),
        (r#"[{"text":"a"}]"#, Some(0), "input[0] is an object; expected a text or token ids"),
        ("7", None, "input is a number; expected a text, a list of texts or token ids"),
        ("{}", None, "input is an object; expected a text, a list of texts or token ids"),
        ("false", None, "input is false; expected a text, a list of texts or token ids"),
        (r#"["a","\ud800"]"#, Some(1), "input[1] holds half of a surrogate pair (an escape \\uD800 to \\uDFFF alone)"),
        (r#""\udc00\ud800""#, Some(0), "input holds half of a surrogate pair (an escape \\uD800 to \\uDFFF alone)"),
    ] {
        check_input_error(input, item, message);
    }
    check_input_error(r#""a","input":"b""#, None, "input is given twice");
    let twice = embed(r#"{"model":"a","model":"b"}"#).expect_err("refused");
    assert_eq!(twice, ScanError::input("model", None, "model is given twice".to_owned()));
}

#[test]
fn what_is_not_json_is_refused_where_it_goes_wrong() {
    for (body, message) in [
        (&b""[..], "the body is not valid JSON: expected an object, found nothing at byte 0"),
        (b"  ", "the body is not valid JSON: expected an object, found nothing at byte 2"),
        (b"[1]", "the body is not valid JSON: expected an object, found something else at byte 0"),
        (b"{", "the body is not valid JSON: it ends too early, at byte 1"),
        (b"{\"a\":1", "the body is not valid JSON: it ends too early, at byte 6"),
        (b"{\"a\":1,}", "the body is not valid JSON: expected a key in double quotes at byte 7"),
        (b"{\"a\" 1}", "the body is not valid JSON: expected ':' at byte 5"),
        (b"{\"a\":[1,]}", "the body is not valid JSON: expected a value at byte 8"),
        (b"{\"a\":[1}", "the body is not valid JSON: expected ',' or ']' at byte 7"),
        (b"{\"a\":01}", "the body is not valid JSON: a malformed number at byte 6"),
        (b"{\"a\":nul}", "the body is not valid JSON: expected true, false or null at byte 8"),
        (b"{\"a\":\"\x01\"}", "the body is not valid JSON: an unescaped control character at byte 6"),
        (b"{\"a\":\"\\x\"}", "the body is not valid JSON: an unknown escape at byte 7"),
        (b"{\"a\":\"\xC3\"}", "the body is not valid JSON: bytes that are not UTF-8 at byte 7"),
        (b"{\"a\":1} x", "the body is not valid JSON: something follows the object at byte 8"),
        (b"{\"\\ud800\":1}", "the body is not valid JSON: half of a surrogate pair at byte 8"),
    ] {
        check_json_error(body, message);
    }
}

#[test]
fn limits_hold() {
    let limits = ScanLimits { max_items: 2, max_depth: 3, max_members: 3, max_key_bytes: 5, ..ScanLimits::default() };
    let check = |body: &str, message: Option<&str>| {
        let error = scan(EMBED, limits, body.as_bytes()).err().map(|error| error.message);
        assert_eq!(error.as_deref(), message, "{body}");
    };
    check(r#"{"input":["a","b"]}"#, None);
    check(r#"{"input":["a","b","c"]}"#, Some("input has more than 2 items"));
    check(r#"{"input":[1,2,3,4]}"#, None);
    check(r#"{"input":[[1],[2],[3]]}"#, Some("input has more than 2 items"));
    check(r#"{"a":[[1]]}"#, None);
    let deep = "the body is not valid JSON: nested deeper than 3 levels at byte 7";
    check(r#"{"a":[[[1]]]}"#, Some(deep));
    check(r#"{"a":1,"b":2,"c":3}"#, None);
    check(r#"{"a":1,"b":2,"c":3,"d":4}"#, Some("the body is not valid JSON: more than 3 members at byte 19"));
    check(r#"{"abcdef":1}"#, Some("the body is not valid JSON: a key longer than 5 bytes at byte 1"));
}

#[test]
fn members_lie_where_the_scan_says() {
    let body = r#"{ "model":"m", "user" : {"a":[1e400,"]}"]}, "input":null,"seed":9007199254740993 ,"user":-0.5E+7}"#;
    let scan = embed(body).expect("valid");
    assert_eq!(scan.len, body.len());
    assert_eq!(scan.raw(body.as_bytes(), "model"), Some(&b"\"m\""[..]));
    assert_eq!(scan.raw(body.as_bytes(), "seed"), Some(&b"9007199254740993"[..]));
    assert_eq!(scan.raw(body.as_bytes(), "user"), Some(&b"-0.5E+7"[..]), "the last one");
    assert_eq!(scan.raw(body.as_bytes(), "absent"), None);
    assert_eq!(scan.items("input"), None, "null is as good as absent");
    let second = &scan.members[1];
    assert_eq!(&body[second.key_range.clone()], "\"user\"");
    assert_eq!(&body[second.value.clone()], r#"{"a":[1e400,"]}"]}"#);
}

#[test]
fn rerank_bodies_have_two_fields_and_may_hold_objects_and_empty_texts() {
    let limits = ScanLimits { allow_empty_texts: true, allow_objects: true, ..ScanLimits::default() };
    let body = r#"{"query":"q","documents":["", {"text":"d","n":[{}]} ,"x"],"top_n":2}"#;
    let scan = scan(RERANK, limits, body.as_bytes()).expect("valid");
    assert_eq!(scan.items("query").map(|items| items.shape), Some(Shape::Text));
    let documents = scan.items("documents").expect("documents");
    assert_eq!(documents.shape, Shape::Objects);
    let kinds: Vec<_> = documents.items.iter().map(|item| item.kind).collect();
    assert_eq!(kinds, [ItemKind::Text, ItemKind::Object, ItemKind::Text]);
    assert_eq!(&body[documents.items[1].range.clone()], r#"{"text":"d","n":[{}]}"#);
    assert_eq!(documents.items[2].digest, text_digest("x"));
    assert_ne!(documents.items[1].digest, text_digest(r#"{"text":"d","n":[{}]}"#), "an object is not its text");
    assert_eq!(documents.items[1].text_bytes(), 21);
}

/// JSON of every kind, as text with odd but legal spelling.
fn json(depth: u32) -> BoxedStrategy<String> {
    let leaf =
        prop_oneof!["-?(0|[1-9][0-9]{0,12})(\\.[0-9]{1,4})?([eE][+-]?[0-9]{1,2})?", "(true|false|null)", string(),];
    leaf.prop_recursive(depth, 24, 5, |inner| {
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..5).prop_map(|list| format!("[ {}]", list.join(" ,\n"))),
            proptest::collection::vec((string(), inner), 0..4).prop_map(|members| {
                let members: Vec<_> = members.into_iter().map(|(key, value)| format!("{key} :{value}")).collect();
                format!("{{{} }}", members.join(","))
            }),
        ]
    })
    .boxed()
}

fn string() -> BoxedStrategy<String> {
    let part = prop_oneof![
        4 => "[ -!#-\\[\\]-~]{0,12}",
        1 => "[a-z]{30,90}",
        2 => "[^\"\\\\\u{0}-\u{1F}]{0,4}",
        1 => "\\\\[\"\\\\/bfnrt]",
        1 => "\\\\u[0-9a-cA-C][0-9a-fA-F]{3}",
        1 => "\\\\ud83[c-f]\\\\udc[0-9a-f]{2}",
        1 => "\\\\u[dD][89a-fA-F][0-9a-f]{2}",
    ];
    proptest::collection::vec(part, 0..4).prop_map(|parts| format!("\"{}\"", parts.concat())).boxed()
}

fn body() -> impl Strategy<Value = String> {
    let input = prop_oneof![
        string(),
        proptest::collection::vec(string(), 1..4).prop_map(|texts| format!("[{}]", texts.join(", "))),
        json(2),
    ];
    (input, json(3), string()).prop_map(|(input, other, key)| format!("{{\"x\":{other},{key}:1 ,\"input\":{input}}}"))
}

/// What serde_json makes of the same bytes: the members in order, or nothing.
fn reference(body: &[u8]) -> Option<Vec<(String, String)>> {
    struct Members(Vec<(String, String)>);
    impl<'de> serde::Deserialize<'de> for Members {
        fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Visitor;
            impl<'de> serde::de::Visitor<'de> for Visitor {
                type Value = Members;
                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("an object")
                }
                fn visit_map<A: serde::de::MapAccess<'de>>(self, mut map: A) -> Result<Members, A::Error> {
                    let mut members = Vec::new();
                    while let Some((key, value)) = map.next_entry::<String, Box<RawValue>>()? {
                        members.push((key, value.get().to_owned()));
                    }
                    Ok(Members(members))
                }
            }
            deserializer.deserialize_map(Visitor)
        }
    }
    serde_json::from_slice::<Members>(body).ok().map(|members| members.0)
}

fn expected_texts(input: &str) -> Option<Vec<String>> {
    let texts = match serde_json::from_str::<Value>(input).ok()? {
        Value::String(text) => vec![text],
        Value::Array(list) => list
            .into_iter()
            .map(|item| if let Value::String(text) = item { Some(text) } else { None })
            .collect::<Option<Vec<_>>>()?,
        _ => return None,
    };
    (!texts.is_empty()).then_some(texts)
}

fn compare(body: &[u8], cuts: &[usize]) -> Result<(), TestCaseError> {
    let limits = ScanLimits { allow_empty_texts: true, ..ScanLimits::default() };
    let mut pieces = Vec::new();
    let mut rest = body;
    for &cut in cuts {
        let (piece, tail) = rest.split_at(cut.min(rest.len()));
        pieces.push(piece);
        rest = tail;
    }
    pieces.push(rest);
    let found = scan_pieces(EMBED, limits, pieces);
    let Some(reference) = reference(body) else {
        prop_assert!(found.is_err(), "accepted what serde_json refuses");
        return Ok(());
    };
    match found {
        Err(error) if error.code == ScanErrorCode::InvalidJson => {
            prop_assert!(false, "refused what serde_json accepts: {}", error);
        }
        Err(error) => {
            let twice = reference.iter().filter(|(key, _)| key == "input" || key == "model").count() > 1;
            let input = reference.iter().find(|(key, _)| key == "input").map(|(_, value)| value.as_str());
            prop_assert!(twice || input.and_then(expected_texts).is_none(), "refused texts: {}", error);
        }
        Ok(scan) => {
            let members: Vec<_> = scan
                .members
                .iter()
                .map(|member| (member.key.clone(), String::from_utf8_lossy(&body[member.value.clone()]).into_owned()))
                .collect();
            prop_assert_eq!(&members, &reference);
            let Some(items) = scan.items("input") else { return Ok(()) };
            if matches!(items.shape, Shape::Text | Shape::Texts) {
                let raw = scan.raw(body, "input").map(String::from_utf8_lossy).unwrap_or_default();
                let texts = expected_texts(&raw).unwrap_or_default();
                let digests: Vec<_> = items.items.iter().map(|item| item.digest).collect();
                prop_assert_eq!(digests, texts.iter().map(|text| text_digest(text)).collect::<Vec<_>>());
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]
    #[test]
    fn agrees_with_serde_json_on_valid_bodies(body in body(), cuts in proptest::collection::vec(0_usize..40, 0..12)) {
        compare(body.as_bytes(), &cuts)?;
    }

    #[test]
    fn agrees_with_serde_json_on_damaged_bodies(
        body in body(),
        place in any::<prop::sample::Index>(),
        byte in prop_oneof![any::<u8>(), prop::sample::select(b"\"\\{}[],:0e.-\xC3\xF0\x80u".to_vec())],
        how in 0..4,
        cuts in proptest::collection::vec(0_usize..40, 0..12),
    ) {
        let mut bytes = body.into_bytes();
        let place = place.index(bytes.len());
        match how {
            0 => bytes[place] = byte,
            1 => bytes.insert(place, byte),
            2 => { bytes.remove(place); }
            _ => bytes.truncate(place),
        }
        compare(&bytes, &cuts)?;
    }
}
