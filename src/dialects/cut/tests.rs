use proptest::prelude::*;

use super::*;

fn numbers(text: &str) -> Embedding {
    Embedding::Numbers(Bytes::copy_from_slice(text.as_bytes()))
}

fn base64(text: &str) -> Embedding {
    Embedding::Base64(Bytes::copy_from_slice(text.as_bytes()))
}

/// Which reading an answer is expected to get.
#[derive(Debug, PartialEq)]
enum By {
    Walk,
    Slow,
}

#[track_caller]
fn check(by: By, layout: Layout, answer: &str, expected: &[(Option<u64>, Embedding)]) {
    let answer = Bytes::copy_from_slice(answer.as_bytes());
    let walked = walk::cut(&answer, layout);
    assert_eq!(if walked.is_ok() { By::Walk } else { By::Slow }, by);
    let slow = slow::cut(&answer, layout).expect("valid");
    if let Ok(walked) = walked {
        assert!(walked == slow, "{walked:?} against {slow:?}");
    }
    let found: Vec<_> = slow.items.into_iter().map(|item| (item.index, item.embedding)).collect();
    assert_eq!(found, expected);
}

#[test]
fn vectors_are_cut_out_of_every_layout() {
    let two = [(Some(0), numbers("[1, 2]")), (Some(1), numbers("[3,4]"))];
    check(
        By::Walk,
        Layout::Data,
        r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":[1, 2]},{"embedding":[3,4],"index":1}],
            "model":"m","usage":{"prompt_tokens":5,"total_tokens":5}}"#,
        &two,
    );
    check(
        By::Walk,
        Layout::Data,
        "{\n \"usage\" : { \"a\" : [ \"]}\\\"\" ] } ,\n \"data\" : [\n { \"embedding\" : \"AACAPw==\" } ] }\n",
        &[(None, base64("AACAPw=="))],
    );
    check(By::Walk, Layout::Data, r#"{"data":[]}"#, &[]);
    check(By::Walk, Layout::Data, r#"{"data":[{"embedding":[1],"index":null}]}"#, &[(None, numbers("[1]"))]);
    check(By::Slow, Layout::Data, r#"{"data":[{"embedding":"\u0041A\/A"}]}"#, &[(None, base64("AA/A"))]);
    check(By::Slow, Layout::Data, r#"{"d\u0061ta":[{"embedding":[1]}]}"#, &[(None, numbers("[1]"))]);
    check(By::Slow, Layout::Data, r#"{"data":[{"embedding":[[1],[2]]}]}"#, &[(None, numbers("[[1],[2]]"))]);
    let rows = [(None, numbers("[1,2]")), (None, numbers("[ ]"))];
    check(By::Walk, Layout::Rows, " [[1,2] , [ ]] ", &rows);
    check(By::Walk, Layout::Embeddings, r#"{"model":"m","embeddings":[[1,2],[ ]],"prompt_eval_count":8}"#, &rows);
    check(
        By::Walk,
        Layout::Embeddings,
        r#"{"embeddings":{"int8":[[1]],"float":[[1,2],[ ]]},"texts":["]"],"meta":{}}"#,
        &rows,
    );
    check(By::Walk, Layout::Embeddings, r#"{"embeddings":{"base64":["AA"]}}"#, &[(None, base64("AA"))]);
    check(By::Walk, Layout::Embeddings, r#"{"embedding":[0.5]}"#, &[(None, numbers("[0.5]"))]);
}

#[test]
fn other_members_are_kept_raw() {
    let answer = Bytes::from_static(br#"{"model": "m-1" ,"data":[],"usage":{"total_tokens":7},"id":null}"#);
    let cut = cut(&answer, Layout::Data).expect("valid");
    assert_eq!(cut.member("model").map(|raw| &raw[..]), Some(&b"\"m-1\""[..]));
    assert_eq!(cut.member("usage").map(|raw| read_usage(raw).billed()), Some(Some(7)));
    assert_eq!(cut.member("id").map(|raw| &raw[..]), Some(&b"null"[..]));
    assert_eq!(cut.member("data"), None);
}

#[test]
fn faulty_answers_are_told_apart() {
    for (layout, answer, expected) in [
        (Layout::Data, "", CutError::NotJson),
        (Layout::Data, "<html>", CutError::NotJson),
        (Layout::Data, r#"{"data":[{"embedding":[1,2"#, CutError::NotJson),
        (Layout::Data, r#"{"data":[{"embedding":[1,2]}]"#, CutError::NotJson),
        (Layout::Data, r#"{"data":[]} x"#, CutError::NotJson),
        (Layout::Data, r#"{"error":{"message":"no"}}"#, CutError::NoVectors),
        (Layout::Data, r#"{"data":null}"#, CutError::NoVectors),
        (Layout::Data, r#"{"data":"a"}"#, CutError::NoVectors),
        (Layout::Data, r#"{"data":[],"data":[]}"#, CutError::Repeated),
        (Layout::Data, r#"{"data":[{"embedding":[1],"embedding":[2]}]}"#, CutError::Repeated),
        (Layout::Data, r#"{"data":[{"index":0}]}"#, CutError::NoVector { item: 0 }),
        (Layout::Data, r#"{"data":[{"embedding":[1]},{"embedding":null}]}"#, CutError::NoVector { item: 1 }),
        (Layout::Data, r#"{"data":[{"embedding":[1],"index":-1}]}"#, CutError::BadIndex { item: 0 }),
        (Layout::Data, r#"{"data":[{"embedding":[1],"index":"0"}]}"#, CutError::BadIndex { item: 0 }),
        (Layout::Data, "[[1]]", CutError::NoVectors),
        (Layout::Rows, r#"{"error":"x"}"#, CutError::NoVectors),
        (Layout::Rows, "[1,2]", CutError::NoVector { item: 0 }),
        (Layout::Embeddings, r#"{"embeddings":{"int8":[[1]]}}"#, CutError::NoVectors),
        (Layout::Embeddings, r#"{"embeddings":[[1]],"embedding":[1]}"#, CutError::Repeated),
        (Layout::Embeddings, r#"{"error":"x"}"#, CutError::NoVectors),
    ] {
        let found = cut(&Bytes::copy_from_slice(answer.as_bytes()), layout);
        assert_eq!(found.err(), Some(expected), "{answer}");
    }
}

#[test]
fn items_are_paired_by_index() {
    let check = |indexes: &[Option<u64>], inputs, expected: Result<&[u64], PairError>| {
        let item =
            |(place, index): (usize, &Option<u64>)| CutItem { index: *index, embedding: numbers(&place.to_string()) };
        let found = pair(indexes.iter().enumerate().map(item).collect(), inputs);
        let expected =
            expected.map(|places| places.iter().map(|place| numbers(&place.to_string())).collect::<Vec<_>>());
        assert_eq!(found, expected, "{indexes:?}");
    };
    check(&[Some(2), Some(0), Some(1)], 3, Ok(&[1, 2, 0]));
    check(&[Some(0), Some(1)], 2, Ok(&[0, 1]));
    check(&[None, None, None], 3, Ok(&[0, 1, 2]));
    check(&[], 0, Ok(&[]));
    check(&[Some(0), Some(0), Some(1)], 3, Err(PairError::Duplicate { index: 0 }));
    check(&[Some(1), Some(2), Some(3)], 3, Err(PairError::OutOfRange { index: 3 }));
    check(&[Some(u64::MAX)], 1, Err(PairError::OutOfRange { index: u64::MAX }));
    check(&[Some(0), None], 2, Err(PairError::PartlyLabelled));
    check(&[Some(0)], 2, Err(PairError::Number { expected: 2, found: 1 }));
    check(&[None, None], 1, Err(PairError::Number { expected: 1, found: 2 }));
    check(&[], 1, Err(PairError::Number { expected: 1, found: 0 }));
}

#[test]
fn usage_is_read_with_a_grain_of_salt() {
    let check = |raw: &str, prompt, total, odd| {
        assert_eq!(read_usage(raw.as_bytes()), UsageRead { prompt, total, odd }, "{raw}");
    };
    check(r#"{"prompt_tokens":5,"total_tokens":7}"#, Some(5), Some(7), false);
    check(r#"{"total_tokens":7}"#, None, Some(7), false);
    check(r#"{"input_tokens":3}"#, Some(3), None, false);
    check(r#"{"prompt_tokens":2.0,"total_tokens":2e0,"prompt_tokens_details":null}"#, Some(2), Some(2), false);
    check("{}", None, None, false);
    check("null", None, None, false);
    check(r#"{"prompt_tokens":null,"total_tokens":0}"#, None, Some(0), false);
    check(r#"{"prompt_tokens":-5,"total_tokens":7}"#, None, Some(7), true);
    check(r#"{"prompt_tokens":9,"total_tokens":7}"#, Some(9), Some(9), true);
    check(r#"{"prompt_tokens":5,"total_tokens":1e18}"#, Some(5), None, true);
    check(r#"{"prompt_tokens":5,"total_tokens":1000000000000000000}"#, Some(5), None, true);
    check(r#"{"prompt_tokens":5,"total_tokens":99999999999999999999}"#, Some(5), None, true);
    check(r#"{"prompt_tokens":"5","total_tokens":7.5}"#, None, None, true);
    check(r#"{"prompt_tokens":1e400}"#, None, None, true);
    check(r#"{"total_tokens":1,"total_tokens":2}"#, None, None, true);
    check("7", None, None, true);
    check("{", None, None, true);
    let cached = r#"{"prompt_tokens":56322,"total_tokens":56322,"prompt_tokens_details":{"cached_tokens":72960}}"#;
    check(cached, Some(56322), Some(56322), true);
}

const ANSWERS: [(Layout, &str); 5] = [
    (
        Layout::Data,
        r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":[0.1,-2e-3]},{"index":1,"embedding":[1]}],"model":"m","usage":{"prompt_tokens":5,"x":[{}]}}"#,
    ),
    (Layout::Data, r#"{ "data" : [ { "embedding" : "AACAPw==", "index" : 0 } ] , "usage" : null , "a\"b" : "\\" }"#),
    (Layout::Rows, "[[1,2],[3.5,4]]"),
    (
        Layout::Embeddings,
        r#"{"embeddings":{"float":[[1],[2]],"int8":[[1],[2]]},"meta":{"billed_units":{"input_tokens":2.0}}}"#,
    ),
    (Layout::Embeddings, r#"{"model":"m","embeddings":[[0.01,0.02]],"prompt_eval_count":8}"#),
];

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4_000))]
    /// Damage must never panic, and where both readings accept an answer they must agree on it.
    #[test]
    fn readings_agree_on_damaged_answers(
        which in 0..ANSWERS.len(),
        damage in proptest::collection::vec(
            (any::<prop::sample::Index>(), prop::sample::select(b"\"\\{}[],:0e.-n \xC3u".to_vec()), 0..4),
            0..4,
        ),
    ) {
        let (layout, answer) = ANSWERS[which];
        let mut bytes = answer.as_bytes().to_vec();
        for (place, byte, how) in damage {
            let place = place.index(bytes.len().max(1));
            match how {
                _ if bytes.is_empty() => bytes.push(byte),
                0 => bytes[place] = byte,
                1 => bytes.insert(place, byte),
                2 => { bytes.remove(place); }
                _ => bytes.truncate(place),
            }
        }
        let answer = Bytes::from(bytes);
        let slow = slow::cut(&answer, layout);
        if let (Ok(walked), Ok(slow)) = (walk::cut(&answer, layout), &slow) {
            prop_assert!(walked == *slow, "{:?} against {:?}", walked, slow);
        }
        // The whole way to vectors must be as strict as the thorough reading.
        if let Ok(cut) = cut(&answer, layout) {
            for item in cut.items {
                if let Ok(vector) = item.embedding.vector(None) {
                    prop_assert!(vector.width() > 0);
                }
            }
        } else {
            prop_assert!(slow.is_err());
        }
    }
}
