//! Golden table of embedding requests: canonical request in, exact wire text out.

use bytes::Bytes;

use super::encode_embed;
use super::splice::tests::original;
use crate::config::plan::Provider;
use crate::dialects::{Dtype, EmbedOptions, EmbedRequest, Encoding, Input, InputType, OriginalBody, Truncate};

fn texts(texts: &[&str]) -> Vec<Input> {
    texts.iter().map(|text| Input::Text(Bytes::from(format!("\"{text}\"")))).collect()
}

/// A request that says nothing but the model and one text; the tests change what they are about.
fn request<'a>(inputs: &'a [Input], options: &'a EmbedOptions) -> EmbedRequest<'a> {
    EmbedRequest {
        remote_model: "m",
        inputs,
        single: false,
        width: None,
        encoding: Encoding::Float,
        options,
        original: None,
    }
}

#[track_caller]
fn check(provider: Provider, request: &EmbedRequest<'_>, path: &str, body: &str) {
    let made = encode_embed(provider, request).expect("supported");
    assert_eq!(made.path, path);
    assert_eq!(std::str::from_utf8(&made.body).expect("UTF-8"), body);
    assert_eq!(
        encode_embed(provider, request).expect("supported"),
        made,
        "twice the same request, twice the same bytes"
    );
}

#[track_caller]
fn refused(provider: Provider, request: &EmbedRequest<'_>, field: &str) {
    let refusal = encode_embed(provider, request).expect_err("refused");
    assert_eq!(refusal.field, field, "{}", refusal.message);
    assert!(refusal.message.contains(field), "{}", refusal.message);
}

/// Every option that some provider has a word for.
fn rich() -> EmbedOptions {
    EmbedOptions { truncate: Some(Truncate::End), input_type: Some(InputType::Query), ..EmbedOptions::default() }
}

const EVERY: [Provider; 8] = [
    Provider::OpenAi,
    Provider::Azure,
    Provider::Vllm,
    Provider::Cohere,
    Provider::Voyage,
    Provider::Jina,
    Provider::Tei,
    Provider::Ollama,
];

#[test]
fn openai_from_another_dialect() {
    let (inputs, options) = (texts(&["a", "b"]), EmbedOptions::default());
    let mut call = request(&inputs, &options);
    check(Provider::OpenAi, &call, "/embeddings", r#"{"model":"m","input":["a","b"],"encoding_format":"float"}"#);
    call.encoding = Encoding::Base64;
    call.width = Some(256);
    let body = r#"{"model":"m","input":["a","b"],"encoding_format":"base64","dimensions":256}"#;
    check(Provider::OpenAi, &call, "/embeddings", body);
    call.remote_model = "my deploy/ü";
    let body = r#"{"model":"my deploy/ü","input":["a","b"],"encoding_format":"base64","dimensions":256}"#;
    let path = "/openai/deployments/my%20deploy%2F%C3%BC/embeddings?api-version=2024-10-21";
    check(Provider::Azure, &call, path, body);
    let options = EmbedOptions { truncate: Some(Truncate::Start), ..EmbedOptions::default() };
    let body =
        r#"{"model":"m","input":["a"],"encoding_format":"float","truncate_prompt_tokens":-1,"truncation_side":"left"}"#;
    check(Provider::Vllm, &request(&inputs[..1], &options), "/embeddings", body);
    let body = r#"{"model":"m","input":["a"],"encoding_format":"float"}"#;
    check(Provider::OpenAi, &request(&inputs[..1], &options), "/embeddings", body);
}

#[test]
fn token_lists_go_where_they_mean_something() {
    let one = [Input::Tokens(Bytes::from_static(b"[1, 2]"))];
    let options = EmbedOptions { input_type: Some(InputType::Query), ..EmbedOptions::default() };
    let plain = EmbedOptions::default();
    let body = r#"{"model":"m","input":[[1, 2]],"encoding_format":"float"}"#;
    check(Provider::OpenAi, &request(&one, &plain), "/embeddings", body);
    let single = EmbedRequest { single: true, ..request(&one, &plain) };
    check(Provider::OpenAi, &single, "/embeddings", r#"{"model":"m","input":[1, 2],"encoding_format":"float"}"#);
    for provider in [Provider::Cohere, Provider::Voyage, Provider::Jina, Provider::Tei, Provider::Ollama] {
        let refusal = encode_embed(provider, &request(&one, &options)).expect_err("token ids");
        assert!(refusal.input_kind && refusal.message.contains("check_embedding_ctx_length=False"), "{refusal:?}");
    }
}

#[test]
fn tei() {
    let inputs = texts(&["a", "\\u0041"]);
    let plain = EmbedOptions::default();
    check(Provider::Tei, &request(&inputs, &plain), "/embed", r#"{"inputs":["a","\u0041"],"truncate":false}"#);
    let options = EmbedOptions { normalize: Some(false), ..rich() };
    let call = EmbedRequest { width: Some(64), encoding: Encoding::Base64, ..request(&inputs[..1], &options) };
    let body = r#"{"inputs":["a"],"truncate":true,"truncation_direction":"right","normalize":false,"prompt_name":"query","dimensions":64}"#;
    check(Provider::Tei, &call, "/embed", body);
    let options = EmbedOptions { prompt_name: Some("sts".into()), truncate: Some(Truncate::Cut), ..rich() };
    let body = r#"{"inputs":["a"],"truncate":true,"prompt_name":"sts"}"#;
    check(Provider::Tei, &request(&inputs[..1], &options), "/embed", body);
}

#[test]
fn ollama() {
    let inputs = texts(&["a"]);
    let plain = EmbedOptions::default();
    let body = r#"{"model":"m","input":["a"],"truncate":false}"#;
    check(Provider::Ollama, &request(&inputs, &plain), "/api/embed", body);
    let options = EmbedOptions { truncate: Some(Truncate::Cut), ..EmbedOptions::default() };
    let call = EmbedRequest { width: Some(64), ..request(&inputs, &options) };
    check(Provider::Ollama, &call, "/api/embed", r#"{"model":"m","input":["a"],"truncate":true,"dimensions":64}"#);
    let body = r#"{"model":"x","input":"a","options":{"num_ctx":10},"keep_alive":"5m"}"#;
    let from = original(body);
    let options = EmbedOptions {
        extra: vec![("options".to_owned(), Bytes::from_static(b"{\"num_ctx\":10}"))],
        ..EmbedOptions::default()
    };
    let call = EmbedRequest { original: Some(&from), ..request(&inputs, &options) };
    let body = r#"{"model":"m","input":["a"],"truncate":false,"options":{"num_ctx":10},"keep_alive":"5m"}"#;
    check(Provider::Ollama, &call, "/api/embed", body);
}

#[test]
fn cohere() {
    let inputs = texts(&["a"]);
    let options = rich();
    let call = EmbedRequest { width: Some(512), ..request(&inputs, &options) };
    let body = r#"{"model":"m","texts":["a"],"input_type":"search_query","embedding_types":["float"],"output_dimension":512,"truncate":"END"}"#;
    check(Provider::Cohere, &call, "/v2/embed", body);
    let options = EmbedOptions {
        input_type: Some(InputType::Other("clustering".into())),
        dtype: Dtype::Ubinary,
        ..EmbedOptions::default()
    };
    let body =
        r#"{"model":"m","texts":["a"],"input_type":"clustering","embedding_types":["ubinary"],"truncate":"NONE"}"#;
    check(Provider::Cohere, &request(&inputs, &options), "/v2/embed", body);
    let options = EmbedOptions { task: Some("retrieval.passage".into()), ..EmbedOptions::default() };
    let body =
        r#"{"model":"m","texts":["a"],"input_type":"search_document","embedding_types":["float"],"truncate":"NONE"}"#;
    check(Provider::Cohere, &request(&inputs, &options), "/v2/embed", body);
    refused(Provider::Cohere, &request(&inputs, &EmbedOptions::default()), "input_type");
}

#[test]
fn voyage() {
    let inputs = texts(&["a"]);
    let plain = EmbedOptions::default();
    let body = r#"{"model":"m","input":["a"],"truncation":false}"#;
    check(Provider::Voyage, &request(&inputs, &plain), "/embeddings", body);
    let options = rich();
    let call = EmbedRequest { width: Some(512), encoding: Encoding::Base64, ..request(&inputs, &options) };
    let body = r#"{"model":"m","input":["a"],"input_type":"query","truncation":true,"output_dimension":512,"encoding_format":"base64"}"#;
    check(Provider::Voyage, &call, "/embeddings", body);
    let options = EmbedOptions { dtype: Dtype::Int8, ..EmbedOptions::default() };
    let call = EmbedRequest { encoding: Encoding::Base64, ..request(&inputs, &options) };
    let body = r#"{"model":"m","input":["a"],"truncation":false,"output_dtype":"int8"}"#;
    check(Provider::Voyage, &call, "/embeddings", body);
}

#[test]
fn jina() {
    let inputs = texts(&["a"]);
    let plain = EmbedOptions::default();
    let body = r#"{"model":"m","input":["a"],"embedding_type":"float","normalized":true,"truncate":false}"#;
    check(Provider::Jina, &request(&inputs, &plain), "/embeddings", body);
    let options = EmbedOptions { late_chunking: true, normalize: Some(false), ..rich() };
    let call = EmbedRequest { width: Some(64), encoding: Encoding::Base64, ..request(&inputs, &options) };
    let body = r#"{"model":"m","input":["a"],"embedding_type":"base64","task":"retrieval.query","dimensions":64,"normalized":false,"late_chunking":true,"truncate":true}"#;
    check(Provider::Jina, &call, "/embeddings", body);
    let options = EmbedOptions { task: Some("text-matching".into()), ..EmbedOptions::default() };
    let body = r#"{"model":"m","input":["a"],"embedding_type":"float","task":"text-matching","normalized":true,"truncate":false}"#;
    check(Provider::Jina, &request(&inputs, &options), "/embeddings", body);
}

/// What changes the vectors and has no word at the upstream is refused by name, at every provider.
#[test]
fn nothing_that_matters_is_dropped() {
    let inputs = texts(&["a"]);
    let base = EmbedOptions { input_type: Some(InputType::Document), ..EmbedOptions::default() };
    let extra = vec![("seed".to_owned(), Bytes::from_static(b"1"))];
    let cases: [(&str, EmbedOptions, &[Provider]); 7] = [
        ("input_type", base.clone(), &[Provider::Cohere, Provider::Voyage, Provider::Jina, Provider::Tei]),
        (
            "task",
            EmbedOptions { task: Some("retrieval.query".into()), ..EmbedOptions::default() },
            &[Provider::Cohere, Provider::Voyage, Provider::Jina, Provider::Tei],
        ),
        ("prompt_name", EmbedOptions { prompt_name: Some("p".into()), ..EmbedOptions::default() }, &[Provider::Tei]),
        (
            "normalize",
            EmbedOptions { normalize: Some(false), ..EmbedOptions::default() },
            &[Provider::Jina, Provider::Tei],
        ),
        (
            "output_dtype",
            EmbedOptions { dtype: Dtype::Binary, ..EmbedOptions::default() },
            &[Provider::Cohere, Provider::Voyage, Provider::Jina],
        ),
        ("late_chunking", EmbedOptions { late_chunking: true, ..EmbedOptions::default() }, &[Provider::Jina]),
        ("seed", EmbedOptions { extra, ..EmbedOptions::default() }, &[]),
    ];
    for (field, mut options, known) in cases {
        for provider in EVERY {
            // Cohere wants an input type in any case; its own refusal is not what is looked for here.
            if provider == Provider::Cohere && !matches!(field, "input_type" | "task") {
                options.input_type = base.input_type.clone();
            } else if field != "input_type" {
                options.input_type = None;
            }
            match known.contains(&provider) {
                true => assert!(encode_embed(provider, &request(&inputs, &options)).is_ok(), "{field} {provider:?}"),
                false => refused(provider, &request(&inputs, &options), field),
            }
        }
    }
}

/// One part of a client's own body, sent on by an upstream of its dialect.
#[track_caller]
fn passed_on(body: &str, inputs: &[Input], change: impl FnOnce(&mut EmbedRequest<'_>), expected: &str) {
    let from = original(body);
    let options = EmbedOptions::default();
    let mut call = EmbedRequest { original: Some(&from), ..request(inputs, &options) };
    change(&mut call);
    check(Provider::OpenAi, &call, "/embeddings", expected);
}

#[test]
fn a_clients_own_body_keeps_every_byte_it_can() {
    let two = texts(&["a", "b"]);
    let body = r#"{ "x_trace":{"b":1,"a":[18446744073709551615,1e4]}, "seed": 9007199254740993, "model":"client", "input": [ "a" , "b" ], "p": 1.10, "user":null, "dimensions": null }"#;
    let expected = r#"{ "x_trace":{"b":1,"a":[18446744073709551615,1e4]}, "seed": 9007199254740993, "model":"m", "input": [ "a" , "b" ], "p": 1.10 }"#;
    passed_on(body, &two, |_| {}, expected);
    let part = r#"{ "x_trace":{"b":1,"a":[18446744073709551615,1e4]}, "seed": 9007199254740993, "model":"m", "input": ["b"], "p": 1.10,"encoding_format":"base64","dimensions":64 }"#;
    passed_on(
        body,
        &two[1..],
        |call| {
            call.encoding = Encoding::Base64;
            call.width = Some(64);
        },
        part,
    );
    let body = r#"{"input":"a","model":"m","encoding_format":"base64","dimensions":512}"#;
    let one = &two[..1];
    let float = r#"{"input":"a","model":"m","encoding_format":"float"}"#;
    passed_on(body, one, |call| call.single = true, float);
    let narrow = r#"{"input":"a","model":"m","encoding_format":"float","dimensions":64}"#;
    passed_on(
        body,
        one,
        |call| {
            call.single = true;
            call.width = Some(64);
        },
        narrow,
    );
}

#[test]
fn an_unchanged_body_is_the_clients_own() {
    let from: OriginalBody = original(r#"{"model":"m" , "input":["a", [1,2]]}"#);
    let options = EmbedOptions::default();
    let at = |text: &str| {
        let start = std::str::from_utf8(&from.body).expect("UTF-8").find(text).expect("there");
        from.body.slice(start..start + text.len())
    };
    let inputs = [Input::Text(at("\"a\"")), Input::Tokens(at("[1,2]"))];
    let call = EmbedRequest { original: Some(&from), ..request(&inputs, &options) };
    let made = encode_embed(Provider::OpenAi, &call).expect("supported");
    assert_eq!(made.body.as_ptr(), from.body.as_ptr());
    // The same list, but not all of it.
    let call = EmbedRequest { original: Some(&from), ..request(&inputs[..1], &options) };
    let made = encode_embed(Provider::OpenAi, &call).expect("supported");
    assert_eq!(&made.body[..], br#"{"model":"m" , "input":["a"]}"#);
}
