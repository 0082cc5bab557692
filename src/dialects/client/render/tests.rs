use super::*;

fn text(text: &'static str) -> Vector {
    Vector::from_text(Bytes::from_static(text.as_bytes()), None).expect("a vector")
}

fn form(encodings: &[Encoding], dtype: Dtype, by_type: bool) -> AnswerForm {
    AnswerForm { encodings: encodings.to_vec(), dtype, by_type }
}

#[track_caller]
fn check(dialect: ClientDialect, form: &AnswerForm, vectors: &[Vector], expected: &str) {
    let inputs = [Input::Text(Bytes::from_static(b"\"a\"")), Input::Text(Bytes::from_static(b"\"b\""))];
    let answer = RenderEmbed {
        model: "m/1",
        id: "i",
        vectors: vectors.to_vec(),
        inputs: &inputs[..vectors.len()],
        form,
        tokens: 5,
        estimated: false,
    };
    let body = render_embed(dialect, answer).into_bytes();
    assert_eq!(std::str::from_utf8(&body).expect("UTF-8"), expected);
    serde_json::from_slice::<serde_json::Value>(&body).expect("valid JSON");
}

#[test]
fn each_dialect_has_its_own_answer() {
    let float = form(&[Encoding::Float], Dtype::Float, false);
    let two = [text("[1, -0.0]"), Vector::from_floats(&[1.0, 2.0]).expect("a vector")];
    let data = r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":[1, -0.0]},{"object":"embedding","index":1,"embedding":[1.0,2.0]}],"model":"m/1","usage":"#;
    let openai = format!(r#"{data}{{"prompt_tokens":5,"total_tokens":5}}}}"#);
    for dialect in [ClientDialect::OpenAi, ClientDialect::Azure, ClientDialect::TeiOpenAi, ClientDialect::Jina] {
        check(dialect, &float, &two, &openai);
    }
    check(ClientDialect::Voyage, &float, &two, &format!(r#"{data}{{"total_tokens":5}}}}"#));
    check(ClientDialect::Tei, &float, &two, "[[1, -0.0],[1.0,2.0]]");
    let ollama = r#"{"model":"m/1","embeddings":[[1, -0.0],[1.0,2.0]],"prompt_eval_count":5}"#;
    check(ClientDialect::Ollama, &float, &two, ollama);
    check(ClientDialect::OllamaLegacy, &float, &two[..1], r#"{"embedding":[1, -0.0]}"#);
    let meta = r#""meta":{"api_version":{"version":"1"},"billed_units":{"input_tokens":5}}}"#;
    let flat = format!(
        r#"{{"id":"i","response_type":"embeddings_floats","texts":["a","b"],"embeddings":[[1, -0.0],[1.0,2.0]],{meta}"#
    );
    check(ClientDialect::CohereV1, &float, &two, &flat);
}

#[test]
fn base64_and_lists_by_type() {
    let base64 = form(&[Encoding::Base64], Dtype::Float, false);
    let one = [text("[1,2]")];
    let openai = r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":"AACAPwAAAEA="}],"model":"m/1","usage":{"prompt_tokens":5,"total_tokens":5}}"#;
    check(ClientDialect::OpenAi, &base64, &one, openai);
    let head = r#"{"id":"i","response_type":"embeddings_by_type","texts":["a"],"embeddings":"#;
    let meta = r#""meta":{"api_version":{"version":"2"},"billed_units":{"input_tokens":5}}}"#;
    let both = form(&[Encoding::Float, Encoding::Base64], Dtype::Float, true);
    let expected = format!(r#"{head}{{"float":[[1,2]],"base64":["AACAPwAAAEA="]}},{meta}"#);
    check(ClientDialect::CohereV2, &both, &one, &expected);
    let int8 = form(&[Encoding::Float], Dtype::Int8, true);
    check(ClientDialect::CohereV2, &int8, &one, &format!(r#"{head}{{"int8":[[1,2]]}},{meta}"#));
}

#[test]
fn small_elements_are_one_byte_each_in_base64() {
    let head = r#"{"object":"list","data":[{"object":"embedding","index":0,"embedding":"#;
    let tail = r#"}],"model":"m/1","usage":{"total_tokens":5}}"#;
    let int8 = form(&[Encoding::Base64], Dtype::Int8, false);
    check(ClientDialect::Voyage, &int8, &[text("[-128,1,127]")], &format!(r#"{head}"gAF/"{tail}"#));
    let ubinary = form(&[Encoding::Base64], Dtype::Ubinary, false);
    check(ClientDialect::Voyage, &ubinary, &[text("[255,0,128]")], &format!(r#"{head}"/wCA"{tail}"#));
}

#[test]
fn an_estimate_is_called_one() {
    let float = form(&[Encoding::Float], Dtype::Float, false);
    let render = |dialect| {
        let vectors = vec![text("[1]")];
        let answer =
            RenderEmbed { model: "m", id: "i", vectors, inputs: &[], form: &float, tokens: 5, estimated: true };
        String::from_utf8(render_embed(dialect, answer).into_bytes().to_vec()).expect("UTF-8")
    };
    assert!(render(ClientDialect::OpenAi).contains(r#""total_tokens":5,"estimated":true"#));
    assert!(render(ClientDialect::CohereV1).contains(r#""warnings":["input_tokens is an estimate"]"#));
}

#[test]
fn a_large_answer_comes_in_pieces_that_make_the_whole() {
    let vector = Vector::from_floats(&vec![0.123_456_78; 1536]).expect("a vector");
    let long = Input::Text(Bytes::from(format!("\"{}\"", "x".repeat(3 * PIECE))));
    let both = form(&[Encoding::Float, Encoding::Base64], Dtype::Float, true);
    let answer = || RenderEmbed {
        model: "m",
        id: "i",
        vectors: vec![vector.clone(); 40],
        inputs: std::slice::from_ref(&long),
        form: &both,
        tokens: 1,
        estimated: false,
    };
    let pieces: Vec<Bytes> = render_embed(ClientDialect::CohereV2, answer()).collect();
    assert!(pieces.len() > 5, "{} pieces", pieces.len());
    let whole = render_embed(ClientDialect::CohereV2, answer()).into_bytes();
    assert_eq!(pieces.concat(), &whole[..]);
    let value: serde_json::Value = serde_json::from_slice(&whole).expect("valid JSON");
    for list in ["float", "base64"] {
        assert_eq!(value["embeddings"][list].as_array().expect("a list").len(), 40);
    }
}
