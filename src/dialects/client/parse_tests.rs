//! Golden table of embedding requests: body in, canonical request or refusal out.

use bytes::Bytes;

use super::{AnswerForm, ParsedEmbed, item_fields, parse_embed, scan_error, scan_limits};
use crate::dialects::{ClientDialect, Dtype, EmbedOptions, Encoding, Input, InputType, Truncate};
use crate::edge::scan::Scanner;
use crate::error::{ApiError, Code};

fn parse(dialect: ClientDialect, body: &str) -> Result<ParsedEmbed, ApiError> {
    let body = Bytes::copy_from_slice(body.as_bytes());
    let mut scanner = Scanner::new(item_fields(dialect), scan_limits(dialect));
    scanner.feed(&body).map_err(scan_error)?;
    let scan = scanner.finish().map_err(scan_error)?;
    parse_embed(dialect, &scan, &body)
}

struct Expected<'a> {
    model: Option<&'a str>,
    inputs: &'a [&'a str],
    dimensions: Option<u32>,
    form: AnswerForm,
    options: EmbedOptions,
}

/// What a request says that says nothing but the model and one text.
fn plain<'a>() -> Expected<'a> {
    Expected {
        model: Some("m"),
        inputs: &["\"a\""],
        dimensions: None,
        form: form(Encoding::Float, Dtype::Float),
        options: EmbedOptions::default(),
    }
}

fn form(encoding: Encoding, dtype: Dtype) -> AnswerForm {
    AnswerForm { encodings: vec![encoding], dtype, by_type: false }
}

fn by_type(encodings: &[Encoding], dtype: Dtype) -> AnswerForm {
    AnswerForm { encodings: encodings.to_vec(), dtype, by_type: true }
}

#[track_caller]
fn check(dialect: ClientDialect, body: &str, expected: Expected<'_>) {
    let parsed = parse(dialect, body).expect("a good request");
    assert_eq!(parsed.model.as_deref(), expected.model);
    let inputs: Vec<&[u8]> = parsed.inputs.iter().map(|input| input.raw().as_ref()).collect();
    let wanted: Vec<&[u8]> = expected.inputs.iter().map(|input| input.as_bytes()).collect();
    assert_eq!(inputs, wanted);
    assert_eq!(parsed.dimensions, expected.dimensions);
    assert_eq!(parsed.form, expected.form);
    assert_eq!(parsed.options, expected.options);
    assert_eq!(parsed.original.body, body);
}

#[track_caller]
fn refused(dialect: ClientDialect, body: &str, code: Code, param: &str) {
    let error = parse(dialect, body).expect_err(body);
    assert_eq!(error.code, code, "{}", error.message);
    assert_eq!(error.param.as_deref(), Some(param), "{}", error.message);
    assert!(error.message.contains(param), "{}", error.message);
}

#[test]
fn openai() {
    let d = ClientDialect::OpenAi;
    check(d, r#"{"model":"m","input":"a"}"#, plain());
    check(d, r#"{"input":["a"],"model":"m","dimensions":null,"user":null,"encoding_format":null}"#, plain());
    let parsed = parse(d, r#"{"model":"m","input":"a"}"#).expect("good");
    assert!(parsed.single && !parse(d, r#"{"model":"m","input":["a"]}"#).expect("good").single);
    check(
        d,
        r#"{"model":"m","input":[[1,2],[3]],"encoding_format":"base64","dimensions":256,"user":"u"}"#,
        Expected {
            inputs: &["[1,2]", "[3]"],
            dimensions: Some(256),
            form: form(Encoding::Base64, Dtype::Float),
            ..plain()
        },
    );
    let flat = parse(d, r#"{"model":"m","input":[1,2]}"#).expect("good");
    assert!(flat.single && flat.inputs == [Input::Tokens(Bytes::from_static(b"[1,2]"))]);
    let extra = vec![
        ("seed".to_owned(), Bytes::from_static(b"9007199254740993")),
        ("x".to_owned(), Bytes::from_static(b"{\"b\":1, \"a\":[1.10]}")),
    ];
    check(
        d,
        r#"{"seed":9007199254740993,"model":"m","input":"a","x":{"b":1, "a":[1.10]},"y":null}"#,
        Expected { options: EmbedOptions { extra, ..EmbedOptions::default() }, ..plain() },
    );
    let options = EmbedOptions {
        input_type: Some(InputType::Query),
        task: Some("t".into()),
        prompt_name: Some("p".into()),
        truncate: Some(Truncate::End),
        normalize: Some(false),
        dtype: Dtype::Int8,
        late_chunking: true,
        extra: Vec::new(),
    };
    check(
        d,
        r#"{"model":"m","input":"a","input_type":"search_query","task":"t","prompt_name":"p","truncate":"END","normalize":false,"output_dtype":"int8","late_chunking":true}"#,
        Expected { form: form(Encoding::Float, Dtype::Int8), options, ..plain() },
    );
    check(ClientDialect::Azure, r#"{"input":"a"}"#, Expected { model: None, ..plain() });
    let unread = r#"{"input":"a","input_type":"query","x":1}"#;
    check(ClientDialect::TeiOpenAi, unread, Expected { model: None, ..plain() });
}

#[test]
fn openai_refusals_name_the_field() {
    let d = ClientDialect::OpenAi;
    refused(d, r#"{"input":"a"}"#, Code::InvalidInput, "model");
    refused(d, r#"{"input":"a","model":""}"#, Code::InvalidInput, "model");
    refused(d, r#"{"input":"a","model":7}"#, Code::InvalidInput, "model");
    refused(d, r#"{"model":"m"}"#, Code::InvalidInput, "input");
    refused(d, r#"{"model":"m","input":null}"#, Code::InvalidInput, "input");
    refused(d, r#"{"model":"m","input":[]}"#, Code::InvalidInput, "input");
    refused(d, r#"{"model":"m","input":["a",[1]]}"#, Code::InvalidInput, "input");
    refused(d, r#"{"model":"m","input":[{"text":"a"}]}"#, Code::InvalidInput, "input");
    let with = |member: &str| format!(r#"{{"model":"m","input":"a",{member}}}"#);
    refused(d, &with(r#""encoding_format":"hex""#), Code::UnknownParameterValue, "encoding_format");
    refused(d, &with(r#""encoding_format":1"#), Code::InvalidInput, "encoding_format");
    refused(d, &with(r#""dimensions":"256""#), Code::InvalidInput, "dimensions");
    refused(d, &with(r#""dimensions":25.6"#), Code::InvalidInput, "dimensions");
    refused(d, &with(r#""dimensions":-1"#), Code::InvalidInput, "dimensions");
    refused(d, &with(r#""dimensions":0"#), Code::UnsupportedDimensions, "dimensions");
    refused(d, &with(r#""dimensions":99999999999"#), Code::UnsupportedDimensions, "dimensions");
    refused(d, &with(r#""dimensions":1,"dimensions":2"#), Code::InvalidInput, "dimensions");
    refused(d, &with(r#""truncate":"MIDDLE""#), Code::UnknownParameterValue, "truncate");
    refused(d, &with(r#""truncate":3"#), Code::InvalidInput, "truncate");
    refused(d, &with(r#""output_dtype":"int4""#), Code::UnknownParameterValue, "output_dtype");
    let json = parse(d, r#"{"model":"m","input":"a",}"#).expect_err("not JSON");
    assert_eq!(json.code, Code::InvalidJson);
}

#[test]
fn cohere() {
    let (one, two) = (ClientDialect::CohereV1, ClientDialect::CohereV2);
    let floats = by_type(&[Encoding::Float], Dtype::Float);
    check(one, r#"{"model":"m","texts":["a"]}"#, plain());
    check(two, r#"{"model":"m","texts":["a"]}"#, Expected { form: floats.clone(), ..plain() });
    check(one, r#"{"model":"m","texts":["a"],"embedding_types":["float"]}"#, Expected { form: floats, ..plain() });
    let options = EmbedOptions {
        input_type: Some(InputType::Document),
        truncate: Some(Truncate::Start),
        dtype: Dtype::Ubinary,
        extra: vec![("max_tokens".to_owned(), Bytes::from_static(b"9"))],
        ..EmbedOptions::default()
    };
    check(
        two,
        r#"{"model":"m","texts":["a"],"input_type":"search_document","embedding_types":["ubinary"],"output_dimension":512,"truncate":"START","priority":3,"max_tokens":9,"images":null}"#,
        Expected { dimensions: Some(512), form: by_type(&[Encoding::Float], Dtype::Ubinary), options, ..plain() },
    );
    check(
        two,
        r#"{"model":"m","texts":["a"],"embedding_types":["base64","float"]}"#,
        Expected { form: by_type(&[Encoding::Base64, Encoding::Float], Dtype::Float), ..plain() },
    );
    let with = |member: &str| format!(r#"{{"model":"m","texts":["a"],{member}}}"#);
    refused(two, &with(r#""embedding_types":["float","int8"]"#), Code::InvalidInput, "embedding_types");
    refused(two, &with(r#""embedding_types":[]"#), Code::InvalidInput, "embedding_types");
    refused(two, &with(r#""embedding_types":"float""#), Code::InvalidInput, "embedding_types");
    refused(two, &with(r#""embedding_types":["hex"]"#), Code::UnknownParameterValue, "embedding_types");
    refused(two, &with(r#""images":["data:"]"#), Code::InvalidInput, "images");
    refused(two, &with(r#""input_type":"poem""#), Code::UnknownParameterValue, "input_type");
    refused(two, r#"{"model":"m","texts":[[1]]}"#, Code::UnsupportedInputType, "texts");
    refused(two, r#"{"model":"m"}"#, Code::InvalidInput, "texts");
}

#[test]
fn voyage() {
    let d = ClientDialect::Voyage;
    check(
        d,
        r#"{"input":["a"],"model":"m","input_type":null,"truncation":true,"output_dtype":null,"output_dimension":null,"encoding_format":"base64"}"#,
        Expected {
            form: form(Encoding::Base64, Dtype::Float),
            options: EmbedOptions { truncate: Some(Truncate::Cut), ..EmbedOptions::default() },
            ..plain()
        },
    );
    let options = EmbedOptions { input_type: Some(InputType::Query), dtype: Dtype::Binary, ..EmbedOptions::default() };
    check(
        d,
        r#"{"input":"a","model":"m","input_type":"query","output_dtype":"binary","output_dimension":256}"#,
        Expected { dimensions: Some(256), form: form(Encoding::Float, Dtype::Binary), options, ..plain() },
    );
    refused(d, r#"{"input":"a","model":"m","input_type":"poem"}"#, Code::UnknownParameterValue, "input_type");
    refused(d, r#"{"input":[1],"model":"m"}"#, Code::UnsupportedInputType, "input");
}

#[test]
fn jina() {
    let d = ClientDialect::Jina;
    let options = EmbedOptions {
        task: Some("retrieval.query".into()),
        truncate: Some(Truncate::Cut),
        normalize: Some(true),
        late_chunking: true,
        ..EmbedOptions::default()
    };
    check(
        d,
        r#"{"model":"m","input":["b",{"text":"a"}],"task":"retrieval.query","normalized":true,"late_chunking":true,"truncate":true,"embedding_type":"base64","dimensions":64}"#,
        Expected {
            inputs: &["\"b\"", "\"a\""],
            dimensions: Some(64),
            form: form(Encoding::Base64, Dtype::Float),
            options,
            ..plain()
        },
    );
    check(
        d,
        r#"{"model":"m","input":"a","embedding_type":["ubinary"]}"#,
        Expected {
            form: form(Encoding::Float, Dtype::Ubinary),
            options: EmbedOptions { dtype: Dtype::Ubinary, ..EmbedOptions::default() },
            ..plain()
        },
    );
    refused(d, r#"{"model":"m","input":[{"image":"x"}]}"#, Code::InvalidInput, "input");
    refused(d, r#"{"model":"m","input":[{"text":""}]}"#, Code::InvalidInput, "input");
    refused(d, r#"{"model":"m","input":[{"text":"\ud800"}]}"#, Code::InvalidInput, "input");
    refused(
        d,
        r#"{"model":"m","input":"a","embedding_type":["float","binary"]}"#,
        Code::InvalidInput,
        "embedding_type",
    );
    refused(d, r#"{"model":"m","input":"a","encoding_format":"hex"}"#, Code::UnknownParameterValue, "encoding_format");
    refused(d, r#"{"model":"m","input":"a","return_multivector":true}"#, Code::InvalidInput, "return_multivector");
}

#[test]
fn tei_and_ollama() {
    let options = EmbedOptions {
        prompt_name: Some("query".into()),
        truncate: Some(Truncate::Start),
        normalize: Some(false),
        ..EmbedOptions::default()
    };
    check(
        ClientDialect::Tei,
        r#"{"inputs":"a","truncate":true,"truncation_direction":"Left","prompt_name":"query","normalize":false,"dimensions":64,"other":1}"#,
        Expected { model: None, dimensions: Some(64), options, ..plain() },
    );
    let cut = EmbedOptions { truncate: Some(Truncate::Never), ..EmbedOptions::default() };
    check(
        ClientDialect::Tei,
        r#"{"inputs":["a"],"truncate":false}"#,
        Expected { model: None, options: cut, ..plain() },
    );
    refused(
        ClientDialect::Tei,
        r#"{"inputs":"a","truncation_direction":"up"}"#,
        Code::UnknownParameterValue,
        "truncation_direction",
    );

    let nulls = r#"{"model":"m","input":["a"],"options":{"num_ctx":null},"keep_alive":"5m","x":1}"#;
    check(ClientDialect::Ollama, nulls, plain());
    let options = EmbedOptions {
        truncate: Some(Truncate::Cut),
        extra: vec![("options".to_owned(), Bytes::from_static(b"{\"num_ctx\":9}"))],
        ..EmbedOptions::default()
    };
    check(
        ClientDialect::Ollama,
        r#"{"model":"m","input":"a","truncate":true,"dimensions":64,"options":{"num_ctx":9}}"#,
        Expected { dimensions: Some(64), options, ..plain() },
    );
    check(ClientDialect::OllamaLegacy, r#"{"model":"m","prompt":"a"}"#, plain());
    refused(ClientDialect::OllamaLegacy, r#"{"model":"m","prompt":["a"]}"#, Code::InvalidInput, "prompt");
    refused(ClientDialect::Ollama, r#"{"model":"m","input":"a","options":3}"#, Code::InvalidInput, "options");
}
