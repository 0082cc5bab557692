use proptest::prelude::*;

use super::*;

fn documents(texts: &[&str]) -> Vec<Document> {
    texts.iter().map(|text| Document::Text(Bytes::from(format!("\"{text}\"")))).collect()
}

fn request<'a>(query: &'a Bytes, documents: &'a [Document], options: &'a RerankOptions) -> RerankRequest<'a> {
    RerankRequest { remote_model: "m", query, documents, top_n: None, options, native: false }
}

#[track_caller]
fn check(provider: Provider, request: &RerankRequest<'_>, path: &str, body: &str) {
    let made = encode_rerank(provider, request).expect("supported");
    assert_eq!(made.path, path);
    assert_eq!(std::str::from_utf8(&made.body).expect("UTF-8"), body);
}

#[track_caller]
fn refused(provider: Provider, request: &RerankRequest<'_>, field: &str) {
    let refusal = encode_rerank(provider, request).expect_err("refused");
    assert_eq!(refusal.field, field, "{}", refusal.message);
}

#[test]
fn each_provider_sees_only_its_own_words() {
    let (query, documents, plain) = (Bytes::from_static(b"\"q\""), documents(&["a", "b"]), RerankOptions::default());
    let mut call = request(&query, &documents, &plain);
    call.top_n = Some(2);
    let cohere = r#"{"model":"m","query":"q","documents":["a","b"],"top_n":2}"#;
    check(Provider::Cohere, &call, "/v2/rerank", cohere);
    let voyage = r#"{"model":"m","query":"q","documents":["a","b"],"top_k":2,"truncation":true}"#;
    check(Provider::Voyage, &call, "/rerank", voyage);
    let jina = r#"{"model":"m","query":"q","documents":["a","b"],"top_n":2,"return_documents":false}"#;
    check(Provider::Jina, &call, "/rerank", jina);
    check(Provider::OpenAi, &call, "/rerank", jina);
    let vllm = r#"{"model":"m","query":"q","documents":["a","b"],"top_n":2,"truncate_prompt_tokens":-1}"#;
    check(Provider::Vllm, &call, "/rerank", vllm);
    check(Provider::Tei, &call, "/rerank", r#"{"query":"q","texts":["a","b"],"truncate":true}"#);
    call.top_n = None;
    check(Provider::Cohere, &call, "/v2/rerank", r#"{"model":"m","query":"q","documents":["a","b"]}"#);
    refused(Provider::Ollama, &call, "model");
}

#[test]
fn options_are_mapped_or_refused() {
    let (query, texts) = (Bytes::from_static(b"\"q\""), documents(&["a"]));
    let options = RerankOptions { truncate: Some(Truncate::Start), raw_scores: true, ..RerankOptions::default() };
    let call = request(&query, &texts, &options);
    let tei = r#"{"query":"q","texts":["a"],"truncate":true,"truncation_direction":"left","raw_scores":true}"#;
    check(Provider::Tei, &call, "/rerank", tei);
    refused(Provider::Cohere, &call, "raw_scores");

    let options = RerankOptions { truncate: Some(Truncate::Never), ..RerankOptions::default() };
    let call = request(&query, &texts, &options);
    check(Provider::Tei, &call, "/rerank", r#"{"query":"q","texts":["a"],"truncate":false}"#);
    let voyage = r#"{"model":"m","query":"q","documents":["a"],"truncation":false}"#;
    check(Provider::Voyage, &call, "/rerank", voyage);

    let options = RerankOptions { max_tokens_per_doc: Some(9), ..RerankOptions::default() };
    let call = request(&query, &texts, &options);
    let cohere = r#"{"model":"m","query":"q","documents":["a"],"max_tokens_per_doc":9}"#;
    check(Provider::Cohere, &call, "/v2/rerank", cohere);
    refused(Provider::Voyage, &call, "max_tokens_per_doc");

    let objects = [Document::Object(Bytes::from_static(b"{\"title\":\"t\",\"n\":1.10}"))];
    let options =
        RerankOptions { rank_fields: vec!["title".into()], max_chunks_per_doc: Some(3), ..RerankOptions::default() };
    let call = request(&query, &objects, &options);
    let cohere = r#"{"model":"m","query":"q","documents":[{"title":"t","n":1.10}],"max_chunks_per_doc":3,"rank_fields":["title"]}"#;
    check(Provider::Cohere, &call, "/v1/rerank", cohere);
    refused(Provider::Tei, &call, "max_chunks_per_doc");
    let plain = RerankOptions::default();
    refused(Provider::Tei, &request(&query, &objects, &plain), "documents");

    let options =
        RerankOptions { extra: vec![("x".to_owned(), Bytes::from_static(b"1e9"))], ..RerankOptions::default() };
    let mut call = request(&query, &texts, &options);
    refused(Provider::Jina, &call, "x");
    call.native = true;
    let jina = r#"{"model":"m","query":"q","documents":["a"],"return_documents":false,"x":1e9}"#;
    check(Provider::Jina, &call, "/rerank", jina);
}

fn decode(provider: Provider, body: &str, sent: usize, top_n: Option<usize>) -> Result<RerankAnswer, String> {
    let (query, documents, options) =
        (Bytes::from_static(b"\"q\""), documents(&vec!["a"; sent]), RerankOptions::default());
    let mut call = request(&query, &documents, &options);
    call.top_n = top_n;
    let header = |name: &str| (name == "x-compute-tokens").then(|| "11".to_owned());
    decode_rerank(provider, &header, &Bytes::copy_from_slice(body.as_bytes()), &call).map_err(|bad| bad.reason)
}

#[test]
fn answers_of_every_provider() {
    let pairs = |answer: &RerankAnswer| answer.results.iter().map(|one| (one.index, one.score)).collect::<Vec<_>>();
    let cohere = r#"{"id":"r1","results":[{"index":2,"relevance_score":0.98},{"index":0,"relevance_score":0.11}],"meta":{"api_version":{"version":"2"},"billed_units":{"search_units":1.0}}}"#;
    let answer = decode(Provider::Cohere, cohere, 3, Some(2)).expect("good");
    assert_eq!(pairs(&answer), [(2, 0.98), (0, 0.11)]);
    assert_eq!((answer.searches, answer.usage.billed()), (Some(1), None));
    let voyage = r#"{"object":"list","model":"v","data":[{"index":1,"relevance_score":0.91,"document":"second"},{"index":0,"relevance_score":0.12,"document":null}],"usage":{"total_tokens":42}}"#;
    let answer = decode(Provider::Voyage, voyage, 2, None).expect("good");
    assert_eq!(pairs(&answer), [(1, 0.91), (0, 0.12)]);
    assert_eq!((answer.searches, answer.usage.billed(), answer.model.as_deref()), (None, Some(42), Some("v")));
    let jina = r#"{"model":"j","usage":{"total_tokens":40},"results":[{"index":0,"relevance_score":-0.5,"document":{"text":"x"}}]}"#;
    assert_eq!(decode(Provider::Jina, jina, 1, None).expect("good").usage.billed(), Some(40));
    let vllm = r#"{"id":"x","model":"j","usage":{"prompt_tokens":3,"total_tokens":3},"results":[{"index":0,"document":{"text":"x"},"relevance_score":1}]}"#;
    assert_eq!(decode(Provider::Vllm, vllm, 1, None).expect("good").usage.billed(), Some(3));
    let tei = r#"[{"index":0,"score":0.1},{"index":1,"score":0.9,"text":"b"}]"#;
    let answer = decode(Provider::Tei, tei, 2, None).expect("good");
    assert_eq!((pairs(&answer), answer.usage.billed()), (vec![(1, 0.9), (0, 0.1)], Some(11)));
}

#[test]
fn faulty_answers_are_refused() {
    let refused = |body: &str, sent: usize, top_n: Option<usize>, reason: &str| {
        let why = decode(Provider::Cohere, body, sent, top_n).expect_err(body);
        assert!(why.contains(reason), "{why}");
    };
    let results = |items: &str| format!(r#"{{"results":[{items}]}}"#);
    let one = r#"{"index":0,"relevance_score":0.5}"#;
    refused(&results(one), 2, None, "1 results instead of 2");
    refused(&results(&format!("{one},{one}")), 2, None, "two results with index 0");
    refused(&results(r#"{"index":5,"relevance_score":0.5}"#), 2, Some(1), "index 5");
    refused(&results(r#"{"index":0,"relevance_score":1e999}"#), 1, None, "no list");
    refused(&results(r#"{"index":0}"#), 1, None, "no list");
    refused(r#"{"error":"x"}"#, 1, None, "no list");
    refused("", 1, None, "no list");
}

proptest! {
    #[test]
    fn any_answer_is_survived(body in r#"[\[\]{}",:0-9a-z_ ]{0,60}"#, sent in 1usize..4) {
        let _ = decode(Provider::Tei, &body, sent, None);
        let _ = decode(Provider::Cohere, &body, sent, None);
    }
}
