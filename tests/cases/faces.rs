//! One client of several dialects: a request in OpenAI's words is put into a route's own, and the answer back, so that one
//! test holds for every route. What a route has no word for, it cannot be asked.

use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use crate::support::Gateway;
use crate::support::gateway::{Answer, KEY};

/// A client's dialect, by one route.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Face {
    OpenAi,
    Cohere,
    Voyage,
    Tei,
}

impl Face {
    pub const ALL: [Face; 4] = [Face::OpenAi, Face::Cohere, Face::Voyage, Face::Tei];

    /// Those whose clients can ask for base64.
    pub const BASE64: [Face; 3] = [Face::OpenAi, Face::Cohere, Face::Voyage];

    /// The route's path for a model.
    pub fn path(self, model: &str) -> String {
        match self {
            Face::OpenAi => "/v1/embeddings".to_owned(),
            Face::Cohere => "/cohere/v2/embed".to_owned(),
            Face::Voyage => "/voyage/v1/embeddings".to_owned(),
            Face::Tei => format!("/tei/{model}/embed"),
        }
    }

    /// Its word for the inputs.
    pub fn field(self) -> &'static str {
        match self {
            Face::OpenAi | Face::Voyage => "input",
            Face::Cohere => "texts",
            Face::Tei => "inputs",
        }
    }

    /// `asked`, in OpenAI's words, as its client says it.
    #[track_caller]
    pub fn body(self, asked: &Value) -> Value {
        if self == Face::OpenAi {
            return asked.clone();
        }
        let mut body = Map::new();
        for (name, value) in asked.as_object().expect("an object") {
            let (name, value) = match (self, name.as_str()) {
                // A list is all that Cohere's route takes.
                (Face::Cohere, "input") if value.is_string() => ("texts", json!([value])),
                (_, "input") => (self.field(), value.clone()),
                (Face::Tei, "model") => continue,
                (Face::Cohere, "encoding_format") => ("embedding_types", json!([value])),
                // The default, and without a word of its own.
                (Face::Voyage | Face::Tei, "encoding_format") if value == "float" => continue,
                (Face::Tei, "encoding_format") => panic!("TEI's own routes have no base64"),
                (Face::Cohere | Face::Voyage, "dimensions") => ("output_dimension", value.clone()),
                (Face::Cohere, "truncate") => ("truncate", json!(if value == true { "END" } else { "NONE" })),
                (Face::Voyage, "truncate") => ("truncation", value.clone()),
                (_, name) => (name, value.clone()),
            };
            body.insert(name.to_owned(), value);
        }
        Value::Object(body)
    }

    /// Sends what `asked` says in OpenAI's words; the answer in OpenAI's shape, each number with the digits that came.
    pub async fn ask(self, gateway: &Gateway, key: &str, headers: &[(&str, &str)], asked: Value) -> Answer {
        let model = asked["model"].as_str().expect("a model");
        let answer = gateway.post(&self.path(model), key, headers, self.body(&asked).to_string()).await;
        if self == Face::OpenAi { answer } else { self.translated(answer) }
    }

    /// [`Gateway::embed_with`] by this route.
    pub async fn embed_with(self, gateway: &Gateway, asked: Value) -> Answer {
        self.ask(gateway, KEY, &[], asked).await
    }

    /// [`Gateway::embed`] by this route.
    pub async fn embed(self, gateway: &Gateway, input: Value) -> Answer {
        self.embed_with(gateway, json!({ "model": "emb-a", "input": input })).await
    }

    fn translated(self, answer: Answer) -> Answer {
        let text = if answer.status == 200 { self.vectors(&answer) } else { self.error(&answer) };
        Answer { text, ..answer }
    }

    fn error(self, answer: &Answer) -> String {
        let body = answer.json();
        let message = match self {
            Face::OpenAi => &body["error"]["message"],
            Face::Cohere => &body["message"],
            Face::Voyage => &body["detail"],
            Face::Tei => &body["error"],
        };
        assert!(message.is_string(), "{self:?}: {}", answer.text);
        json!({ "error": { "message": message, "code": body["code"] } }).to_string()
    }

    fn vectors(self, answer: &Answer) -> String {
        #[derive(serde::Deserialize)]
        struct Item<'a> {
            index: usize,
            #[serde(borrow)]
            embedding: &'a RawValue,
        }
        #[derive(serde::Deserialize)]
        struct List<'a> {
            #[serde(borrow)]
            data: Vec<Item<'a>>,
        }
        #[derive(serde::Deserialize)]
        struct ByType<'a> {
            #[serde(borrow, alias = "base64")]
            float: Vec<&'a RawValue>,
        }
        #[derive(serde::Deserialize)]
        struct Embedded<'a> {
            #[serde(borrow)]
            embeddings: ByType<'a>,
        }
        let wrong = |error: serde_json::Error| -> ! { panic!("{self:?}: {error}: {}", answer.text) };
        let text = answer.text.as_str();
        let (vectors, tokens): (Vec<&RawValue>, Value) = match self {
            Face::Cohere => {
                let read: Embedded<'_> = serde_json::from_str(text).unwrap_or_else(|error| wrong(error));
                (read.embeddings.float, answer.json()["meta"]["billed_units"]["input_tokens"].clone())
            }
            Face::Tei => {
                let read = serde_json::from_str(text).unwrap_or_else(|error| wrong(error));
                (read, json!(answer.header("x-compute-tokens").parse::<u64>().expect("a count")))
            }
            Face::OpenAi | Face::Voyage => {
                let read: List<'_> = serde_json::from_str(text).unwrap_or_else(|error| wrong(error));
                assert!(read.data.iter().enumerate().all(|(place, item)| item.index == place), "{text}");
                (read.data.iter().map(|item| item.embedding).collect(), answer.json()["usage"]["total_tokens"].clone())
            }
        };
        let items = vectors.iter().enumerate().map(|(place, vector)| {
            format!("{{\"object\":\"embedding\",\"index\":{place},\"embedding\":{}}}", vector.get())
        });
        let items: Vec<String> = items.collect();
        format!(
            "{{\"object\":\"list\",\"data\":[{}],\"usage\":{{\"prompt_tokens\":{tokens},\"total_tokens\":{tokens}}}}}",
            items.join(",")
        )
    }
}
