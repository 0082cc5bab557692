//! Every client dialect with every provider: a request either comes out right, or is refused by the name of a field.
//!
//! The table below is the one that users read; a change of it is a change of what the product promises.

use bytes::Bytes;

use super::client::{RenderEmbed, item_fields, parse_embed, render_embed, scan_error, scan_limits, shares_body};
use super::upstream::{Expect, decode_embed, encode_embed};
use super::{ClientDialect, EmbedRequest};
use crate::config::plan::Provider;
use crate::edge::scan::Scanner;

const CLIENTS: [ClientDialect; 9] = [
    ClientDialect::OpenAi,
    ClientDialect::Azure,
    ClientDialect::CohereV1,
    ClientDialect::CohereV2,
    ClientDialect::Voyage,
    ClientDialect::Jina,
    ClientDialect::Tei,
    ClientDialect::TeiOpenAi,
    ClientDialect::Ollama,
];

const PROVIDERS: [Provider; 8] = [
    Provider::OpenAi,
    Provider::Azure,
    Provider::Vllm,
    Provider::Cohere,
    Provider::Voyage,
    Provider::Jina,
    Provider::Tei,
    Provider::Ollama,
];

/// What is asked for, by each dialect's own words. `None`: the dialect has no word for it.
fn body(dialect: ClientDialect, wish: &str) -> Option<String> {
    use ClientDialect::{Azure, CohereV1, CohereV2, Jina, Ollama, OpenAi, Tei, TeiOpenAi, Voyage};
    let list = r#"["a","b"]"#;
    let field = item_fields(dialect).first()?;
    let extra = match (wish, dialect) {
        ("string", CohereV1 | CohereV2) => return None,
        ("string" | "list", _) => "",
        ("tokens", OpenAi | Azure | TeiOpenAi) => "",
        ("tokens", _) => return None,
        ("base64", OpenAi | Azure | TeiOpenAi | Voyage) => r#","encoding_format":"base64""#,
        ("base64", CohereV1 | CohereV2) => r#","embedding_types":["base64"]"#,
        ("base64", Jina) => r#","embedding_type":"base64""#,
        ("width", CohereV1 | CohereV2 | Voyage) => r#","output_dimension":2"#,
        ("width", _) => r#","dimensions":2"#,
        ("query", OpenAi | Azure | Voyage) => r#","input_type":"query""#,
        ("query", CohereV1 | CohereV2) => r#","input_type":"search_query""#,
        ("query", Jina) => r#","task":"retrieval.query""#,
        ("query", Tei) => r#","prompt_name":"query""#,
        ("base64", Tei | Ollama) | ("query", TeiOpenAi | Ollama) => return None,
        _ => panic!("{wish} for {dialect:?}"),
    };
    let inputs = match wish {
        "string" => r#""a""#,
        "tokens" => "[[1],[2]]",
        _ => list,
    };
    Some(format!(r#"{{"model":"m","{field}":{inputs}{extra}}}"#))
}

/// The two vectors `[1,2]` and `[3,4]`, or the first of them, as `provider` answers.
fn answer(provider: Provider, count: usize) -> Bytes {
    let rows = ["[1,2]", "[3,4]"];
    let rows = rows.get(..count).expect("at most two").join(",");
    Bytes::from(match provider {
        Provider::Cohere => format!(r#"{{"embeddings":{{"float":[{rows}]}}}}"#),
        Provider::Ollama => format!(r#"{{"embeddings":[{rows}]}}"#),
        Provider::Tei => format!("[{rows}]"),
        _ => {
            let items: Vec<String> =
                rows.split("],").map(|row| format!(r#"{{"embedding":{}]}}"#, row.trim_end_matches(']'))).collect();
            format!(r#"{{"data":[{}]}}"#, items.join(","))
        }
    })
}

/// `ok`, the name of the refused field, or `-` where the dialect cannot ask for it.
fn cell(dialect: ClientDialect, provider: Provider, wish: &str) -> String {
    let Some(body) = body(dialect, wish) else { return "-".to_owned() };
    let body = Bytes::from(body);
    let mut scanner = Scanner::new(item_fields(dialect), scan_limits(dialect));
    scanner.feed(&body).expect("JSON");
    let scan = scanner.finish().map_err(scan_error).expect("a good body");
    let parsed = parse_embed(dialect, &scan, &body).expect("a good request");
    let request = EmbedRequest {
        remote_model: "remote",
        inputs: &parsed.inputs,
        single: parsed.single,
        width: parsed.dimensions,
        encoding: parsed.form.preferred(),
        options: &parsed.options,
        original: shares_body(dialect, provider).then_some(&parsed.original),
    };
    let wire = match encode_embed(provider, &request) {
        Ok(wire) => wire,
        Err(refusal) => {
            assert!(refusal.message.contains(&refusal.field), "{refusal:?}");
            return refusal.field;
        }
    };
    let sent: serde_json::Value = serde_json::from_slice(&wire.body).expect("valid JSON");
    for (key, value) in sent.as_object().expect("an object") {
        assert!(!value.is_null(), "{key} is null for {provider:?}");
    }
    let expect = Expect { count: parsed.inputs.len(), width: Some(2), dtype: parsed.options.dtype };
    let decoded = decode_embed(provider, &|_| None, &answer(provider, expect.count), &expect).expect("a good answer");
    let render = RenderEmbed {
        model: "m",
        id: "i",
        vectors: decoded.vectors,
        inputs: &parsed.inputs,
        form: &parsed.form,
        tokens: 2,
        estimated: false,
    };
    let rendered = render_embed(dialect, render).into_bytes();
    let text = std::str::from_utf8(&rendered).expect("UTF-8");
    let wanted = if wish == "base64" { ["\"AACAPwAAAEA=\"", "\"AABAQAAAgEA=\""] } else { ["[1,2]", "[3,4]"] };
    for vector in wanted.iter().take(expect.count) {
        assert_eq!(text.matches(vector).count(), 1, "{dialect:?} {provider:?} {wish}: {text}");
    }
    "ok".to_owned()
}

#[test]
fn every_client_with_every_provider() {
    let mut table = String::new();
    for wish in ["string", "list", "tokens", "base64", "width", "query"] {
        for dialect in CLIENTS {
            let cells: Vec<String> = PROVIDERS.iter().map(|provider| cell(dialect, *provider, wish)).collect();
            table.push_str(&format!("{wish:6} {:9} {}\n", format!("{dialect:?}"), cells.join(" ")));
        }
    }
    assert_eq!(table, EXPECTED, "\n{table}");
}

/// Columns: openai, azure, vllm, cohere, voyage, jina, tei, ollama.
const EXPECTED: &str = "\
string OpenAi    ok ok ok input_type ok ok ok ok
string Azure     ok ok ok input_type ok ok ok ok
string CohereV1  - - - - - - - -
string CohereV2  - - - - - - - -
string Voyage    ok ok ok input_type ok ok ok ok
string Jina      ok ok ok input_type ok ok ok ok
string Tei       ok ok ok input_type ok ok ok ok
string TeiOpenAi ok ok ok input_type ok ok ok ok
string Ollama    ok ok ok input_type ok ok ok ok
list   OpenAi    ok ok ok input_type ok ok ok ok
list   Azure     ok ok ok input_type ok ok ok ok
list   CohereV1  ok ok ok input_type ok ok ok ok
list   CohereV2  ok ok ok input_type ok ok ok ok
list   Voyage    ok ok ok input_type ok ok ok ok
list   Jina      ok ok ok input_type ok ok ok ok
list   Tei       ok ok ok input_type ok ok ok ok
list   TeiOpenAi ok ok ok input_type ok ok ok ok
list   Ollama    ok ok ok input_type ok ok ok ok
tokens OpenAi    ok ok ok input input input input input
tokens Azure     ok ok ok input input input input input
tokens CohereV1  - - - - - - - -
tokens CohereV2  - - - - - - - -
tokens Voyage    - - - - - - - -
tokens Jina      - - - - - - - -
tokens Tei       - - - - - - - -
tokens TeiOpenAi ok ok ok input input input input input
tokens Ollama    - - - - - - - -
base64 OpenAi    ok ok ok input_type ok ok ok ok
base64 Azure     ok ok ok input_type ok ok ok ok
base64 CohereV1  ok ok ok input_type ok ok ok ok
base64 CohereV2  ok ok ok input_type ok ok ok ok
base64 Voyage    ok ok ok input_type ok ok ok ok
base64 Jina      ok ok ok input_type ok ok ok ok
base64 Tei       - - - - - - - -
base64 TeiOpenAi ok ok ok input_type ok ok ok ok
base64 Ollama    - - - - - - - -
width  OpenAi    ok ok ok input_type ok ok ok ok
width  Azure     ok ok ok input_type ok ok ok ok
width  CohereV1  ok ok ok input_type ok ok ok ok
width  CohereV2  ok ok ok input_type ok ok ok ok
width  Voyage    ok ok ok input_type ok ok ok ok
width  Jina      ok ok ok input_type ok ok ok ok
width  Tei       ok ok ok input_type ok ok ok ok
width  TeiOpenAi ok ok ok input_type ok ok ok ok
width  Ollama    ok ok ok input_type ok ok ok ok
query  OpenAi    ok ok ok ok ok ok ok input_type
query  Azure     ok ok ok ok ok ok ok input_type
query  CohereV1  input_type input_type input_type ok ok ok ok input_type
query  CohereV2  input_type input_type input_type ok ok ok ok input_type
query  Voyage    input_type input_type input_type ok ok ok ok input_type
query  Jina      task task task ok ok ok ok task
query  Tei       prompt_name prompt_name prompt_name prompt_name prompt_name prompt_name ok prompt_name
query  TeiOpenAi - - - - - - - -
query  Ollama    - - - - - - - -
";
