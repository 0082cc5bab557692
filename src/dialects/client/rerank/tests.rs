use super::*;
use crate::dialects::Truncate;
use crate::dialects::client::scan_error;
use crate::edge::scan::Scanner;

fn scan(body: &str) -> Result<(Scan, Bytes), ApiError> {
    let body = Bytes::copy_from_slice(body.as_bytes());
    let mut scanner = Scanner::new(RERANK_ITEM_FIELDS, rerank_scan_limits());
    scanner.feed(&body).map_err(scan_error)?;
    Ok((scanner.finish().map_err(scan_error)?, body))
}

fn parse(dialect: ClientDialect, body: &str) -> Result<ParsedRerank, ApiError> {
    let (scan, body) = scan(body)?;
    parse_rerank(dialect, &scan, &body)
}

#[track_caller]
fn check(
    dialect: ClientDialect,
    body: &str,
    documents: &[&str],
    top_n: Option<usize>,
    back: bool,
    options: RerankOptions,
) {
    let parsed = parse(dialect, body).expect("a good request");
    assert_eq!(&parsed.query[..], b"\"q\"");
    let raw: Vec<&[u8]> = parsed.documents.iter().map(|document| document.raw().as_ref()).collect();
    assert_eq!(raw, documents.iter().map(|text| text.as_bytes()).collect::<Vec<_>>());
    assert_eq!((parsed.top_n, parsed.return_documents, parsed.options), (top_n, back, options));
}

#[track_caller]
fn refused(dialect: ClientDialect, body: &str, param: &str) {
    let error = parse(dialect, body).expect_err(body);
    assert_eq!(error.status(), 400);
    assert_eq!(error.param.as_deref(), Some(param), "{}", error.message);
    assert!(error.message.contains(param), "{}", error.message);
}

#[test]
fn each_dialect_has_its_own_words() {
    let plain = RerankOptions::default;
    let two = ["\"a\"", "\"\""];
    let body = |member: &str| format!(r#"{{"model":"m","query":"q","documents":["a",""]{member}}}"#);
    for dialect in [ClientDialect::CohereV1, ClientDialect::CohereV2] {
        check(dialect, &body(""), &two, None, false, plain());
        check(dialect, &body(r#","top_n":2,"return_documents":true"#), &two, Some(2), true, plain());
        check(dialect, &body(r#","top_n":9,"return_documents":null,"priority":1"#), &two, Some(9), false, plain());
    }
    let options = RerankOptions {
        max_chunks_per_doc: Some(3),
        rank_fields: vec!["title".into()],
        extra: vec![("x".to_owned(), Bytes::from_static(b"1"))],
        ..plain()
    };
    check(
        ClientDialect::CohereV1,
        r#"{"model":"m","query":"q","documents":[{"title":"t","n":1.10},{"text":"b"}],"max_chunks_per_doc":3,"rank_fields":["title"],"x":1}"#,
        &["{\"title\":\"t\",\"n\":1.10}", "\"b\""],
        None,
        false,
        options,
    );
    let empty = r#"{"model":"m","query":"q","documents":["a",{"text":""}]}"#;
    check(ClientDialect::CohereV1, empty, &two, None, false, plain());
    check(ClientDialect::CohereV1, &body(r#","rank_fields":["text"]"#), &two, None, false, plain());
    let options = RerankOptions { truncate: Some(Truncate::Never), ..plain() };
    check(ClientDialect::Voyage, &body(r#","top_k":1,"truncation":false"#), &two, Some(1), false, options);
    check(ClientDialect::Voyage, &body(r#","top_k":null,"return_documents":true"#), &two, None, true, plain());
    check(ClientDialect::Jina, &body(r#","top_n":1"#), &two, Some(1), true, plain());
    check(ClientDialect::Jina, &body(r#","return_documents":false"#), &two, None, false, plain());
    let options = RerankOptions { truncate: Some(Truncate::End), raw_scores: true, ..plain() };
    check(
        ClientDialect::Tei,
        r#"{"query":"q","texts":["a",""],"truncate":true,"truncation_direction":"right","raw_scores":true,"return_text":true,"top_n":1}"#,
        &two,
        None,
        true,
        options,
    );
}

#[test]
fn refusals_name_the_field() {
    let d = ClientDialect::CohereV2;
    let body = |member: &str| format!(r#"{{"model":"m","query":"q","documents":["a"]{member}}}"#);
    refused(d, &body(r#","top_n":0"#), "top_n");
    refused(d, &body(r#","top_n":-1"#), "top_n");
    refused(d, &body(r#","top_n":"2""#), "top_n");
    refused(d, &body(r#","relevant_spans":{}"#), "relevant_spans");
    refused(d, &body(r#","rank_fields":"text""#), "rank_fields");
    refused(d, r#"{"model":"m","documents":["a"]}"#, "query");
    refused(d, r#"{"model":"m","query":"","documents":["a"]}"#, "query");
    refused(d, r#"{"model":"m","query":["q"],"documents":["a"]}"#, "query");
    refused(d, r#"{"model":"m","query":"q"}"#, "documents");
    refused(d, r#"{"model":"m","query":"q","documents":[]}"#, "documents");
    refused(d, r#"{"model":"m","query":"q","documents":"a"}"#, "documents");
    refused(d, r#"{"model":"m","query":"q","documents":[[1]]}"#, "documents");
    refused(d, r#"{"query":"q","documents":["a"]}"#, "model");
    refused(ClientDialect::Voyage, &body(r#","top_k":0"#), "top_k");
    refused(ClientDialect::Tei, r#"{"query":"q","texts":[{"a":1}]}"#, "texts");
}

#[test]
fn shared_paths_are_told_apart_by_fields() {
    let of = |body: &str, route| rerank_dialect(&scan(body).expect("JSON").0, route);
    let (cohere, tei) = (ClientDialect::CohereV1, ClientDialect::Tei);
    assert_eq!(of(r#"{"query":"q","texts":["a"]}"#, cohere), ClientDialect::Tei);
    assert_eq!(of(r#"{"query":"q","documents":["a"]}"#, tei), ClientDialect::CohereV1);
    assert_eq!(of(r#"{"query":"q","documents":["a"],"top_n":1}"#, cohere), ClientDialect::CohereV1);
    assert_eq!(of(r#"{"query":"q","documents":["a"],"top_k":null}"#, cohere), ClientDialect::Voyage);
    assert_eq!(of(r#"{"query":"q","documents":["a"],"truncation":true}"#, tei), ClientDialect::Voyage);
    assert_eq!(of(r#"{"query":"q","documents":["a"]}"#, ClientDialect::Jina), ClientDialect::Jina);
}

#[track_caller]
fn rendered(dialect: ClientDialect, back: bool, expected: &str) {
    let documents = [
        Document::Text(Bytes::from_static(b"\"a\"")),
        Document::Text(Bytes::from_static(b"\"b\\n\"")),
        Document::Object(Bytes::from_static(b"{\"t\":1.10}")),
    ];
    let results =
        [Scored { index: 1, score: 0.98 }, Scored { index: 0, score: -1e-9 }, Scored { index: 2, score: -3.0 }];
    let answer = RenderRerank {
        model: "m",
        id: "i",
        results: if back && dialect != ClientDialect::Voyage { &results } else { &results[..2] },
        documents: &documents,
        return_documents: back,
        tokens: 7,
        searches: 1,
        estimated: false,
    };
    let body = render_rerank(dialect, &answer);
    assert_eq!(std::str::from_utf8(&body).expect("UTF-8"), expected);
    serde_json::from_slice::<serde_json::Value>(&body).expect("valid JSON");
}

#[test]
fn each_dialect_has_its_own_answer() {
    let bare = r#"[{"index":1,"relevance_score":0.98},{"index":0,"relevance_score":-1e-9}]"#;
    let full = r#"[{"index":1,"relevance_score":0.98,"document":{"text":"b\n"}},{"index":0,"relevance_score":-1e-9,"document":{"text":"a"}},{"index":2,"relevance_score":-3.0,"document":{"t":1.10}}]"#;
    for (dialect, version) in [(ClientDialect::CohereV1, 1), (ClientDialect::CohereV2, 2)] {
        let meta = format!(r#""meta":{{"api_version":{{"version":"{version}"}},"billed_units":{{"search_units":1}}}}"#);
        rendered(dialect, false, &format!(r#"{{"id":"i","results":{bare},{meta}}}"#));
        rendered(dialect, true, &format!(r#"{{"id":"i","results":{full},{meta}}}"#));
    }
    let usage = r#""usage":{"total_tokens":7}"#;
    rendered(ClientDialect::Jina, false, &format!(r#"{{"model":"m","results":{bare},{usage}}}"#));
    rendered(ClientDialect::Jina, true, &format!(r#"{{"model":"m","results":{full},{usage}}}"#));
    rendered(ClientDialect::Voyage, false, &format!(r#"{{"object":"list","data":{bare},"model":"m",{usage}}}"#));
    let texts =
        r#"[{"index":1,"relevance_score":0.98,"document":"b\n"},{"index":0,"relevance_score":-1e-9,"document":"a"}]"#;
    rendered(ClientDialect::Voyage, true, &format!(r#"{{"object":"list","data":{texts},"model":"m",{usage}}}"#));
    rendered(ClientDialect::Tei, false, r#"[{"index":1,"score":0.98},{"index":0,"score":-1e-9}]"#);
}
