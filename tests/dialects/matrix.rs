//! Every client dialect with every provider's dialect, through real sockets: an answer is right, or a 400 names the field
//! that stands in its way. The table is in the README.

use loadtest::provider::{Item, Provider, Script, shorten, signature_of};
use serde_json::{Value, json};

use super::{base_url, gateway, post};
use crate::support::gateway::Answer;

const PROVIDERS: [&str; 8] = ["openai", "azure", "vllm", "cohere", "voyage", "jina", "tei", "ollama"];
const CLIENTS: [(&str, &str); 11] = [
    ("OpenAI", "/v1/embeddings"),
    ("OpenAI (prefixed)", "/openai/v1/embeddings"),
    ("Azure", "/openai/deployments/{}/embeddings"),
    ("Cohere v1", "/v1/embed"),
    ("Cohere v2", "/v2/embed"),
    ("Voyage", "/voyage/v1/embeddings"),
    ("Jina", "/jina/v1/embeddings"),
    ("TEI", "/tei/{}/embed"),
    ("TEI (OpenAI-like)", "/tei/{}/v1/embeddings"),
    ("Ollama", "/api/embed"),
    ("Ollama (older)", "/ollama/api/embeddings"),
];
const WISHES: [&str; 6] = ["one text", "list", "token ids", "base64", "width", "query"];

/// What is asked for, by each dialect's own words. `None`: the dialect has no word for it.
fn body(client: &str, wish: &str, model: &str) -> Option<Value> {
    let openai = matches!(client, "OpenAI" | "OpenAI (prefixed)" | "Azure");
    let like = openai || client == "TEI (OpenAI-like)";
    let cohere = client.starts_with("Cohere");
    let field = match client {
        _ if cohere => "texts",
        "TEI" => "inputs",
        "Ollama (older)" => "prompt",
        _ => "input",
    };
    // Each wish has texts of its own, so that no cache answers for a neighbour.
    let (a, b) = (format!("{client}, {wish}: first"), format!("{client}, {wish}: second"));
    let input = match wish {
        "one text" if cohere => return None,
        "one text" => json!(a),
        "token ids" if like => json!([[1, 2, 3], [4]]),
        "token ids" => return None,
        _ if client == "Ollama (older)" => return None,
        _ => json!([a, b]),
    };
    let mut body = json!({"model": model, field: input});
    let (name, value) = match (wish, client) {
        ("base64", "TEI" | "Ollama") | ("query", "TEI (OpenAI-like)" | "Ollama") => return None,
        ("base64", "Cohere v1" | "Cohere v2") => ("embedding_types", json!(["base64"])),
        ("base64", "Jina") => ("embedding_type", json!("base64")),
        ("base64", _) => ("encoding_format", json!("base64")),
        ("width", "Cohere v1" | "Cohere v2" | "Voyage") => ("output_dimension", json!(4)),
        ("width", _) => ("dimensions", json!(4)),
        ("query", "Cohere v1" | "Cohere v2") => ("input_type", json!("search_query")),
        ("query", "Jina") => ("task", json!("retrieval.query")),
        ("query", "TEI") => ("prompt_name", json!("query")),
        ("query", _) => ("input_type", json!("query")),
        _ => return Some(body),
    };
    body[name] = value;
    Some(body)
}

/// The vectors of an answer, in whichever shape and encoding it came.
#[track_caller]
fn vectors(client: &str, answer: &Value) -> Vec<Vec<f32>> {
    let list = match client {
        "TEI" => answer,
        "Ollama" => &answer["embeddings"],
        "Ollama (older)" => return vec![vector(&answer["embedding"])],
        "Cohere v1" | "Cohere v2" => match &answer["embeddings"] {
            Value::Object(by_type) => by_type.values().next().expect("a type"),
            flat => flat,
        },
        _ => {
            let data = answer["data"].as_array().unwrap_or_else(|| panic!("no data: {answer}"));
            for (place, item) in data.iter().enumerate() {
                assert_eq!(item["index"], place);
            }
            return data.iter().map(|item| vector(&item["embedding"])).collect();
        }
    };
    list.as_array().unwrap_or_else(|| panic!("no vectors: {answer}")).iter().map(vector).collect()
}

#[track_caller]
fn vector(value: &Value) -> Vec<f32> {
    match value {
        Value::String(text) => {
            let bytes = base64_simd::STANDARD.decode_to_vec(text).expect("base64");
            bytes.chunks_exact(4).map(|four| f32::from_le_bytes(four.try_into().expect("four"))).collect()
        }
        other => {
            let numbers = other.as_array().unwrap_or_else(|| panic!("no vector: {other}"));
            numbers.iter().map(|number| number.as_f64().expect("a number") as f32).collect()
        }
    }
}

/// The member by which a provider is told that a text is a query, as the scripted one writes it down.
fn query_option(provider: &str) -> &'static str {
    match provider {
        "cohere" => "input_type=search_query",
        "azure" | "openai" | "vllm" => "",
        "voyage" => "input_type=query",
        "jina" => "task=retrieval.query",
        "tei" => "prompt_name=query",
        other => panic!("{other} has no such word"),
    }
}

/// `ok` for the right vectors, or the field that a 400 names.
fn judge(client: &str, provider: &str, wish: &str, body: &Value, answer: &Answer) -> String {
    let note = format!("{client} to {provider}, {wish}: {}", answer.text);
    if answer.status != 200 {
        assert_eq!(answer.status, 400, "{note}");
        let told = answer.json();
        let message = ["/error/message", "/message", "/detail", "/error"].iter();
        let message = message.filter_map(|at| told.pointer(at)?.as_str()).next().unwrap_or_else(|| panic!("{note}"));
        let fields = ["input_type", "task", "prompt_name", "input"];
        let named = fields.iter().find(|field| {
            message.contains(&format!("`{field}`"))
                || message.contains(&format!("'{field}'"))
                || message.starts_with(&format!("{field}["))
        });
        return (*named.unwrap_or_else(|| panic!("no field is named: {note}"))).to_owned();
    }
    let (_, input) = body
        .as_object()
        .expect("an object")
        .iter()
        .find(|(_, value)| {
            value.is_array() && value[0].as_str().is_none_or(|word| word != "base64")
                || value.as_str().is_some_and(|text| text.contains(": first"))
        })
        .expect("an input");
    let items: Vec<Item> = match input {
        Value::Array(list) => list.iter().map(|one| serde_json::from_value(one.clone()).expect("an item")).collect(),
        one => vec![serde_json::from_value(one.clone()).expect("an item")],
    };
    let option = if wish == "query" { query_option(provider) } else { "" };
    let expected: Vec<Vec<f32>> = items
        .iter()
        .map(|item| {
            let whole = signature_of("A", option, item, 8);
            if wish == "width" { shorten(&whole, 4) } else { whole }
        })
        .collect();
    assert_eq!(vectors(client, &answer.json()), expected, "{note}");
    if wish == "base64" {
        assert!(!answer.text.contains("[["), "{note}");
    }
    "ok".to_owned()
}

#[tokio::test]
async fn every_client_dialect_with_every_provider() {
    let server = Provider::start(Script { strict: true, ..Script::new().space("A").width(8) });
    let mut tables = String::new();
    for provider in PROVIDERS {
        let url = base_url(&server, provider);
        tables.push_str(&format!(
            "[[models]]\nname = \"m-{provider}\"\ndimensions = 8\nmatryoshka = [4]\n\
             [[upstreams]]\nid = \"{provider}\"\nprovider = \"{provider}\"\nbase_url = \"{url}\"\n\
             serves = [{{ model = \"m-{provider}\" }}]\n"
        ));
    }
    let gateway = gateway(&tables, "");
    let mut table = format!("| asked for | client | {} |\n|---|---|{}\n", PROVIDERS.join(" | "), "---|".repeat(8));
    for wish in WISHES {
        // Clients that fare alike share a row.
        let mut rows: Vec<(Vec<&str>, String)> = Vec::new();
        for (client, path) in CLIENTS {
            let mut cells = Vec::new();
            for provider in PROVIDERS {
                let model = format!("m-{provider}");
                let Some(body) = body(client, wish, &model) else { continue };
                let answer = post(&gateway, &path.replace("{}", &model), &body).await;
                cells.push(judge(client, provider, wish, &body, &answer));
            }
            let cells = cells.join(" | ");
            match rows.iter_mut().find(|(_, known)| *known == cells) {
                _ if cells.is_empty() => {}
                Some((clients, _)) => clients.push(client),
                None => rows.push((vec![client], cells)),
            }
        }
        for (clients, cells) in rows {
            table.push_str(&format!("| {wish} | {} | {cells} |\n", clients.join(", ")));
        }
    }
    assert!(include_str!("../../README.md").contains(&table), "the README has another table than this:\n{table}");
}

#[tokio::test]
async fn what_a_text_is_for_is_taken_as_read_where_it_changes_nothing() {
    let server = Provider::start(Script { strict: true, ..Script::new().space("A").width(8) });
    let served = PROVIDERS.iter().filter(|provider| **provider != "cohere");
    let tables: String = served
        .clone()
        .map(|provider| {
            let url = base_url(&server, provider);
            format!(
                "[[models]]\nname = \"m-{provider}\"\ndimensions = 8\nsymmetric = true\n[[upstreams]]\n\
                 id = \"{provider}\"\nprovider = \"{provider}\"\nbase_url = \"{url}\"\n\
                 serves = [{{ model = \"m-{provider}\" }}]\n"
            )
        })
        .collect();
    let gateway = gateway(&tables, "");
    for (client, path) in CLIENTS {
        for provider in served.clone() {
            let model = format!("m-{provider}");
            let Some(asked) = body(client, "query", &model) else { continue };
            let own = path.contains("openai") || path == "/v1/embeddings";
            // A body of the provider's own dialect goes on as it is, and TEI's clients name a prompt by its own name.
            if client == "TEI" || own && matches!(*provider, "openai" | "azure" | "vllm") {
                continue;
            }
            let path = path.replace("{}", &model);
            let answer = post(&gateway, &path, &asked).await;
            let texts = ["first", "second"].map(|nth| format!("{client}, query: {nth}"));
            let expected = texts.map(|text| signature_of("A", "", &Item::Text(text), 8));
            assert_eq!(vectors(client, &answer.expect(200)), expected, "{client} to {provider}");
            let mut plain = asked.clone();
            for word in ["input_type", "task"] {
                plain.as_object_mut().expect("an object").remove(word);
            }
            let again = post(&gateway, &path, &plain).await;
            assert_eq!((again.status, again.header("x-cache")), (200, "HIT"), "{client} to {provider}: one vector");
        }
    }
}
