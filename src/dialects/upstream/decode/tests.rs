use proptest::prelude::*;

use super::*;

/// The vectors as JSON, the tokens to charge, and the model.
type Seen = (Vec<String>, Option<u64>, Option<String>);

fn decode(provider: Provider, body: &str, count: usize, width: Option<u32>, dtype: Dtype) -> Result<Seen, String> {
    let header = |name: &str| (name == "x-compute-tokens").then(|| "11".to_owned());
    let body = Bytes::copy_from_slice(body.as_bytes());
    let answer = decode_embed(provider, &header, &body, &Expect { count, width, dtype }).map_err(|bad| bad.reason)?;
    let text = |vector: &Vector| {
        let mut out = Vec::new();
        vector.write_float(&mut out);
        String::from_utf8(out).expect("UTF-8")
    };
    Ok((answer.vectors.iter().map(text).collect(), answer.usage.billed(), answer.model))
}

#[track_caller]
fn check(provider: Provider, body: &str, count: usize, vectors: &[&str], tokens: Option<u64>, model: Option<&str>) {
    let seen = decode(provider, body, count, Some(2), Dtype::Float).expect("a good answer");
    let vectors: Vec<String> = vectors.iter().map(|text| (*text).to_owned()).collect();
    assert_eq!(seen, (vectors, tokens, model.map(str::to_owned)), "{body}");
}

#[track_caller]
fn refused(provider: Provider, body: &str, count: usize, reason: &str) {
    let why = decode(provider, body, count, Some(2), Dtype::Float).expect_err(body);
    assert!(why.contains(reason), "{why}");
}

#[test]
fn every_provider_puts_vectors_and_usage_elsewhere() {
    let openai = r#"{"object":"list","model":"m","data":[{"object":"embedding","index":0,"embedding":[0.012,-0.034]}],"usage":{"prompt_tokens":5,"total_tokens":5}}"#;
    for provider in [Provider::OpenAi, Provider::Azure, Provider::Vllm, Provider::Voyage, Provider::Jina] {
        check(provider, openai, 1, &["[0.012,-0.034]"], Some(5), Some("m"));
    }
    let voyage =
        r#"{"object":"list","model":"v","data":[{"index":0,"embedding":"AACAPwAAAEA="}],"usage":{"total_tokens":7}}"#;
    check(Provider::Voyage, voyage, 1, &["[1.0,2.0]"], Some(7), Some("v"));
    check(Provider::Tei, "[[1,2],[3, 4]]", 2, &["[1,2]", "[3, 4]"], Some(11), None);
    let ollama = r#"{"model":"n","embeddings":[[1,2]],"total_duration":14143917,"prompt_eval_count":8}"#;
    check(Provider::Ollama, ollama, 1, &["[1,2]"], Some(8), Some("n"));
    check(Provider::Ollama, r#"{"model":"n","embeddings":[[1,2]]}"#, 1, &["[1,2]"], None, Some("n"));
    let flat = r#"{"id":"e","texts":["]"],"embeddings":[[1,2]],"meta":{"billed_units":{"input_tokens":2.0}}}"#;
    check(Provider::Cohere, flat, 1, &["[1,2]"], Some(2), None);
    let typed = r#"{"embeddings":{"float":[[1,2]],"int8":[[1,-4]]},"meta":{"tokens":{"input_tokens":3}}}"#;
    check(Provider::Cohere, typed, 1, &["[1,2]"], Some(3), None);
    check(Provider::Cohere, r#"{"embeddings":{"float":[[1,2]]}}"#, 1, &["[1,2]"], None, None);
}

#[test]
fn other_element_types_stay_numbers() {
    let typed = r#"{"embeddings":{"float":[[1,2]],"int8":[[1,-4]]},"meta":{"billed_units":{"input_tokens":3}}}"#;
    let seen = decode(Provider::Cohere, typed, 1, Some(2), Dtype::Int8).expect("a good answer");
    assert_eq!(seen, (vec!["[1,-4]".to_owned()], Some(3), None));
    let packed = r#"{"data":[{"index":0,"embedding":[255,0]}]}"#;
    let seen = decode(Provider::Voyage, packed, 1, Some(16), Dtype::Ubinary).expect("a good answer");
    assert_eq!(seen.0, ["[255,0]"]);
    let text = r#"{"data":[{"index":0,"embedding":"AACAPwAAAEA="}]}"#;
    assert!(decode(Provider::Voyage, text, 1, Some(2), Dtype::Int8).is_err());
    assert!(decode(Provider::Cohere, r#"{"embeddings":{"float":[[1,2]]}}"#, 1, Some(2), Dtype::Int8).is_err());
}

#[test]
fn items_are_paired_by_index_or_refused() {
    let answer = |labels: [Option<u64>; 3]| {
        let items: Vec<String> = labels
            .iter()
            .enumerate()
            .map(|(nth, label)| {
                let value = label.unwrap_or(nth as u64);
                let label = label.map_or(String::new(), |label| format!("\"index\":{label},"));
                format!("{{{label}\"embedding\":[{value},0]}}")
            })
            .collect();
        format!("{{\"data\":[{}]}}", items.join(","))
    };
    let right = ["[0,0]", "[1,0]", "[2,0]"];
    check(Provider::OpenAi, &answer([Some(2), Some(0), Some(1)]), 3, &right, None, None);
    check(Provider::OpenAi, &answer([None, None, None]), 3, &right, None, None);
    refused(Provider::OpenAi, &answer([Some(0), Some(0), Some(1)]), 3, "two items with index 0");
    refused(Provider::OpenAi, &answer([Some(1), Some(2), Some(3)]), 3, "index 3");
    refused(Provider::OpenAi, &answer([Some(0), None, Some(1)]), 3, "only some items");
}

#[test]
fn a_good_status_proves_nothing() {
    refused(Provider::OpenAi, r#"{"error":{"message":"no"}}"#, 1, "is an error");
    refused(Provider::OpenAi, r#"{"data":[{"embedding":[1,2]}],"error":"late"}"#, 1, "is an error");
    check(Provider::OpenAi, r#"{"data":[{"embedding":[1,2]}],"error":null}"#, 1, &["[1,2]"], None, None);
    refused(Provider::Tei, r#"{"error":"x","error_type":"Backend"}"#, 1, "is an error");
    refused(Provider::OpenAi, r#"{"data":[]}"#, 1, "0 items for 1 inputs");
    refused(Provider::OpenAi, r#"{"data":[{"embedding":[1,2]},{"embedding":[1,2]}]}"#, 1, "2 items");
    refused(Provider::OpenAi, r#"{"data":[{"embedding":[1,2,3]}]}"#, 1, "3 elements instead of 2");
    refused(Provider::OpenAi, r#"{"data":[{"embedding":[1,1e99]}]}"#, 1, "finite");
    refused(Provider::OpenAi, r#"{"data":[{"embedding":[1,null]}]}"#, 1, "vector 0");
    refused(Provider::OpenAi, r#"{"data":[{"embedding":"AACA"}]}"#, 1, "vector 0");
    refused(Provider::OpenAi, r#"{"data":[{"embedding":[1,2]}"#, 1, "not complete JSON");
    refused(Provider::OpenAi, "<html>", 1, "not complete JSON");
    refused(Provider::OpenAi, "", 1, "not complete JSON");
}

#[test]
fn vectors_do_not_keep_a_much_larger_answer_alive() {
    let answer = |count: usize, padding: usize| {
        let items = vec!["{\"embedding\":[1,2]}"; count].join(",");
        Bytes::from(format!("{{\"data\":[{items}],\"pad\":\"{}\"}}", "x".repeat(padding)))
    };
    let shares = |body: &Bytes, count: usize| {
        let expect = Expect { count, width: None, dtype: Dtype::Float };
        let decoded = decode_embed(Provider::OpenAi, &|_| None, body, &expect).expect("a good answer");
        assert_eq!(decoded.vectors.len(), count);
        !body.is_unique()
    };
    assert!(shares(&answer(1, 0), 1));
    assert!(!shares(&answer(1, 10_000), 1));
    assert!(shares(&answer(3, 0), 3));
    assert!(!shares(&answer(3, 10_000), 3));
}

proptest! {
    #[test]
    fn any_answer_is_survived(body in r#"[\[\]{}",:0-9a-z ]{0,60}"#, count in 0usize..4) {
        for provider in [Provider::OpenAi, Provider::Cohere, Provider::Tei, Provider::Ollama] {
            let _ = decode(provider, &body, count, None, Dtype::Int8);
        }
    }
}
