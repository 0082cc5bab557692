//! What bodies hold, and the headers around them.
//!
//! Members of client bodies are listed for people and generators; what is refused and why is decided where bodies are
//! parsed, so no list here is closed.

use serde_json::{Map, Value, json};

use crate::config::plan::{BudgetPeriod, Stage};
use crate::dialects::ClientDialect::{
    self, Anthropic, Azure, CohereV1, CohereV2, Jina, Ollama, OllamaLegacy, OpenAi, Tei, TeiOpenAi, Voyage,
};
use crate::dialects::chat::ChatApi;
use crate::edge::routes::Op;
use crate::pure::class::TrafficClass;

/// A member: its name, what it holds.
type Member = (&'static str, Holds);

#[derive(Clone, Copy)]
enum Holds {
    Text,
    Texts,
    /// One text or several.
    TextOrTexts,
    /// Texts or token ids, one or several.
    Inputs,
    /// Texts or objects.
    Documents,
    Bool,
    Number,
    Whole,
    /// A boolean, or a word that says which end is cut.
    Truncation,
    Object,
    Words(&'static [&'static str]),
}

impl Holds {
    fn schema(self) -> Value {
        let list = |items: Value| json!({ "type": "array", "items": items, "minItems": 1 });
        let text = || json!({ "type": "string" });
        let ids = || list(json!({ "type": "integer", "minimum": 0 }));
        match self {
            Holds::Text => text(),
            Holds::Texts => list(text()),
            Holds::TextOrTexts => json!({ "anyOf": [text(), list(text())] }),
            Holds::Inputs => json!({ "anyOf": [text(), list(text()), ids(), list(ids())] }),
            Holds::Documents => list(json!({ "anyOf": [text(), { "type": "object" }] })),
            Holds::Bool => json!({ "type": "boolean" }),
            Holds::Number => json!({ "type": "number" }),
            Holds::Whole => json!({ "type": "integer", "minimum": 1 }),
            Holds::Truncation => json!({ "anyOf": [{ "type": "boolean" }, { "enum": ["NONE", "START", "END"] }] }),
            Holds::Object => json!({ "type": "object" }),
            Holds::Words(words) => json!({ "type": "string", "enum": words }),
        }
    }
}

fn object(required: &[&str], members: &[Member]) -> Value {
    let properties: Map<String, Value> =
        members.iter().map(|(name, holds)| ((*name).to_owned(), holds.schema())).collect();
    json!({ "type": "object", "required": required, "properties": properties })
}

const FORMATS: Holds = Holds::Words(&["float", "base64"]);
const DTYPES: Holds = Holds::Words(&["float", "int8", "uint8", "binary", "ubinary"]);

/// A body of texts to embed.
pub(super) fn embed(dialect: ClientDialect) -> Value {
    use Holds::{Bool, Inputs, Object, Text, TextOrTexts, Texts, Truncation, Whole};

    const OPENAI: &[Member] = &[
        ("model", Text),
        ("input", Inputs),
        ("encoding_format", FORMATS),
        ("dimensions", Whole),
        ("user", Text),
        ("input_type", Text),
        ("task", Text),
        ("truncate", Truncation),
        ("service_tier", Text),
    ];
    match dialect {
        OpenAi | Anthropic => object(&["model", "input"], OPENAI),
        Azure => object(&["input"], OPENAI),
        TeiOpenAi => object(
            &["input"],
            &[("model", Text), ("input", Inputs), ("encoding_format", FORMATS), ("dimensions", Whole)],
        ),
        CohereV1 | CohereV2 => object(
            &["model", "texts"],
            &[
                ("model", Text),
                ("texts", Texts),
                ("input_type", Text),
                ("embedding_types", Texts),
                ("output_dimension", Whole),
                ("truncate", Holds::Words(&["NONE", "START", "END"])),
            ],
        ),
        Voyage => object(
            &["model", "input"],
            &[
                ("model", Text),
                ("input", TextOrTexts),
                ("input_type", Holds::Words(&["query", "document"])),
                ("truncation", Bool),
                ("output_dimension", Whole),
                ("output_dtype", DTYPES),
                ("encoding_format", FORMATS),
            ],
        ),
        Jina => object(
            &["model", "input"],
            &[
                ("model", Text),
                ("input", Inputs),
                ("task", Text),
                ("dimensions", Whole),
                ("normalized", Bool),
                ("embedding_type", Holds::Words(&["float", "base64", "binary", "ubinary"])),
                ("late_chunking", Bool),
                ("truncate", Bool),
            ],
        ),
        Tei => object(
            &["inputs"],
            &[
                ("inputs", Inputs),
                ("normalize", Bool),
                ("truncate", Bool),
                ("truncation_direction", Holds::Words(&["left", "right"])),
                ("prompt_name", Text),
                ("dimensions", Whole),
            ],
        ),
        Ollama => object(
            &["model", "input"],
            &[
                ("model", Text),
                ("input", TextOrTexts),
                ("truncate", Bool),
                ("dimensions", Whole),
                ("options", Object),
                ("keep_alive", Text),
            ],
        ),
        OllamaLegacy => object(&["model", "prompt"], &[("model", Text), ("prompt", Text), ("options", Object)]),
    }
}

/// A body of documents to score.
pub(super) fn rerank(dialect: ClientDialect) -> Value {
    use Holds::{Bool, Documents, Text, Texts, Whole};

    match dialect {
        Voyage => object(
            &["model", "query", "documents"],
            &[
                ("model", Text),
                ("query", Text),
                ("documents", Documents),
                ("top_k", Whole),
                ("return_documents", Bool),
                ("truncation", Bool),
            ],
        ),
        Tei => object(
            &["query", "texts"],
            &[
                ("query", Text),
                ("texts", Texts),
                ("raw_scores", Bool),
                ("return_text", Bool),
                ("truncate", Bool),
                ("truncation_direction", Holds::Words(&["left", "right"])),
            ],
        ),
        _ => object(
            &["model", "query", "documents"],
            &[
                ("model", Text),
                ("query", Text),
                ("documents", Documents),
                ("top_n", Whole),
                ("return_documents", Bool),
                ("max_tokens_per_doc", Whole),
            ],
        ),
    }
}

/// A body that compares one sentence with others.
pub(super) fn similarity() -> Value {
    let inputs =
        object(&["source_sentence", "sentences"], &[("source_sentence", Holds::Text), ("sentences", Holds::Texts)]);
    json!({
        "type": "object",
        "required": ["inputs"],
        "properties": { "inputs": inputs, "parameters": { "type": "object" } },
    })
}

/// A chat request, as far as the gateway reads it; every other member goes on to the provider as it is.
pub(super) fn chat(api: ChatApi) -> Value {
    use Holds::{Bool, Object, Text, Whole};

    const ALWAYS: &[Member] = &[("model", Text), ("stream", Bool), ("service_tier", Text)];
    let (own, spoken): (&[Member], &str) = match api {
        ChatApi::Chat => (
            &[("stream_options", Object), ("max_tokens", Whole), ("max_completion_tokens", Whole), ("n", Whole)],
            "messages",
        ),
        ChatApi::Completions => {
            (&[("stream_options", Object), ("max_tokens", Whole), ("n", Whole), ("best_of", Whole)], "prompt")
        }
        ChatApi::Responses => (&[("max_output_tokens", Whole)], "input"),
        ChatApi::Messages => (&[("max_tokens", Whole)], "messages"),
    };
    let mut schema = object(&["model"], &[ALWAYS, own].concat());
    schema["properties"][spoken] = json!({});
    schema
}

/// An answer, as far as generators need it; the whole is in the provider's own documentation.
pub(super) fn answer(op: Op, dialect: ClientDialect) -> Value {
    let list = json!({ "type": "array" });
    let of = |members: &[&str]| {
        let properties: Map<String, Value> = members.iter().map(|name| ((*name).to_owned(), json!({}))).collect();
        json!({ "type": "object", "required": members, "properties": properties })
    };
    match (op, dialect) {
        (Op::Root | Op::Similarity, _) | (_, Tei) => list,
        (Op::Embed, OpenAi | Azure | TeiOpenAi | Voyage | Jina | Anthropic) => {
            of(&["object", "data", "model", "usage"])
        }
        (Op::Embed, CohereV1 | CohereV2) => of(&["id", "embeddings", "texts", "meta"]),
        (Op::Embed, Ollama) => of(&["model", "embeddings"]),
        (Op::Embed, OllamaLegacy) => of(&["embedding"]),
        (Op::Rerank { shared: true }, _) => json!({ "anyOf": [list, { "type": "object" }] }),
        (Op::Rerank { .. }, Voyage) => of(&["object", "data", "model", "usage"]),
        (Op::Rerank { .. }, _) => of(&["results"]),
    }
}

/// Which of the shared schemas an error has.
pub(super) fn error_of(dialect: ClientDialect) -> &'static str {
    match dialect {
        OpenAi => "OpenAiError",
        Azure => "AzureError",
        CohereV1 | CohereV2 => "CohereError",
        Voyage | Jina => "DetailError",
        Tei => "TeiError",
        TeiOpenAi => "MessageError",
        Ollama | OllamaLegacy => "PlainError",
        Anthropic => "AnthropicError",
    }
}

/// A reference to a shared schema.
pub(super) fn reference(name: &str) -> Value {
    json!({ "$ref": format!("#/components/schemas/{name}") })
}

/// The shared schemas.
pub(super) fn shared() -> Value {
    use Holds::{Bool, Number, Object, Text, Texts, Whole};

    let inner = || object(&["message", "code"], &[("message", Text), ("type", Text), ("code", Text)]);
    let amount = || json!({ "type": "string", "pattern": "^-?[0-9]+(\\.[0-9]+)?$", "description": "Exact decimal" });
    let or_none = |schema: Value| json!({ "anyOf": [schema, { "type": "null" }] });
    let periods = [BudgetPeriod::None, BudgetPeriod::Day, BudgetPeriod::Month];
    let mut key = object(&["fingerprint"], &[("fingerprint", Text)]);
    key["properties"]["created"] =
        json!({ "type": ["string", "null"], "format": "date-time", "description": "Not known of keys in the file" });
    let tenant = json!({
        "type": "object",
        "required": ["id", "budget", "remaining", "held", "spent", "period", "keys"],
        "properties": {
            "id": { "type": "string" },
            "budget": or_none(amount()),
            "remaining": or_none(amount()),
            "held": amount(),
            "spent": amount(),
            "credits": amount(),
            "period": { "enum": periods.map(|period| serde_json::to_value(period).unwrap_or_default()) },
            "keys": { "type": "array", "items": key },
            "source": { "enum": ["file", "admin"] },
            "stale": { "type": "boolean", "description": "the shared ledger does not answer: this is what it said last" },
            "replicas": reference("Replicas"),
        },
    });
    let new_tenant = object(
        &["id"],
        &[
            ("id", Text),
            ("key_sha256", Texts),
            ("budget", Text),
            ("budget_period", Holds::Words(&["none", "day", "month"])),
            ("tpm", Number),
            ("rpm", Number),
            ("max_concurrency", Whole),
            ("weight", Whole),
            ("class", Text),
            ("models", Texts),
            ("serve_cached_when_exhausted", Bool),
        ],
    );
    json!({
        "Object": { "type": "object" },
        "OpenAiError": {
            "type": "object",
            "required": ["error"],
            "properties": { "error": inner(), "request_id": { "type": "string" }, "trace_id": { "type": "string" } },
        },
        "AzureError": { "type": "object", "required": ["error"], "properties": { "error": inner() } },
        "CohereError": object(&["message"], &[("id", Text), ("message", Text), ("code", Text)]),
        "DetailError": object(&["detail"], &[("detail", Text), ("code", Text)]),
        "TeiError": object(&["error", "error_type"], &[("error", Text), ("error_type", Text), ("code", Text)]),
        "MessageError": object(&["message"], &[("message", Text), ("code", Number), ("type", Text)]),
        "PlainError": object(&["error"], &[("error", Text), ("code", Text)]),
        "AnthropicError": {
            "type": "object",
            "required": ["type", "error"],
            "properties": { "type": { "const": "error" }, "error": inner(), "request_id": { "type": "string" } },
        },
        "Model": object(
            &["id", "object"],
            &[("id", Text), ("object", Text), ("kind", Text), ("space", Text), ("dimensions", Whole), ("price", Object)],
        ),
        "ModelList": {
            "type": "object",
            "required": ["object", "data"],
            "properties": { "object": { "const": "list" }, "data": { "type": "array", "items": reference("Model") } },
        },
        "Tenant": tenant,
        "TenantList": {
            "type": "object",
            "required": ["tenants"],
            "properties": { "tenants": { "type": "array", "items": reference("Tenant") } },
        },
        "NewTenant": new_tenant,
        "Credit": {
            "type": "object",
            "required": ["amount", "idempotency_key"],
            "additionalProperties": false,
            "properties": { "amount": amount(), "idempotency_key": { "type": "string", "minLength": 1 } },
        },
        "Stage": {
            "type": "object",
            "required": ["stage"],
            "additionalProperties": false,
            "properties": {
                "stage": { "enum": Stage::ALL.map(Stage::as_str) },
                "canary": {
                    "type": "number",
                    "minimum": 0,
                    "maximum": 1,
                    "description": "Share of queries to the new model: required in stage `canary`, and only there",
                },
            },
        },
        "Collection": collection(amount()),
        "CollectionList": {
            "type": "object",
            "required": ["collections"],
            "properties": { "collections": { "type": "array", "items": reference("Collection") } },
        },
        "NewKey": object(
            &["tenant", "key", "fingerprint"],
            &[("tenant", Text), ("key", Text), ("fingerprint", Text), ("created", Text), ("replicas", Object)],
        ),
        // On which replicas a change is in force, where they share tenants.
        "Replicas": object(&["confirmed", "silent"], &[("confirmed", Texts), ("silent", Texts)]),
    })
}

/// A collection as the admin side tells of it.
fn collection(amount: Value) -> Value {
    let whole = || json!({ "type": "integer", "minimum": 0 });
    let share = || json!({ "type": ["number", "null"], "minimum": 0, "maximum": 1 });
    let amount_or_none = json!({ "anyOf": [amount.clone(), { "type": "null" }] });
    let counts = json!({
        "requests": whole(), "items": whole(), "cached_items": whole(), "tokens": whole(), "cost": amount,
        "share": share(),
    });
    let side = || {
        json!({
            "type": "object",
            "required": ["model", "requests", "items", "tokens", "cost", "share", "by_class"],
            "properties": {
                "model": { "type": "string" },
                "requests": whole(), "items": whole(), "cached_items": whole(), "tokens": whole(),
                "cost": { "type": "string" },
                "share": share(),
                "by_class": {
                    "type": "object",
                    "additionalProperties": { "type": "object", "properties": counts },
                },
            },
        })
    };
    json!({
        "type": "object",
        "required": ["name", "from", "to", "stage", "canary", "since", "set_by", "progress", "reembedding"],
        "properties": {
            "name": { "type": "string" },
            "from": { "type": "string" },
            "to": { "type": "string" },
            "spaces": object(&[], &[("from", Holds::Text), ("to", Holds::Text)]),
            "stage": { "enum": Stage::ALL.map(Stage::as_str) },
            "canary": { "type": "number", "minimum": 0, "maximum": 1 },
            "since": { "type": "string", "format": "date-time" },
            "set_by": { "type": "string", "description": "`configuration`, or by which right it was set" },
            "revision": whole(),
            "configured": object(&[], &[("stage", Holds::Text), ("canary", Holds::Number)]),
            "known": { "type": "boolean", "description": "False until stages that replicas share were read" },
            "counted_before": { "type": "boolean", "description": "Whether use before it was configured is counted" },
            "progress": { "type": "object", "properties": { "from": side(), "to": side() } },
            "reembedding": {
                "type": "object",
                "properties": {
                    "tokens": whole(), "tokens_done": whole(), "tokens_left": whole(),
                    "price_per_million_tokens": amount_or_none,
                    "currency": { "type": "string" },
                    "cost": amount_or_none, "cost_left": amount_or_none,
                    "how": { "type": "string" },
                },
            },
        },
    })
}

/// Headers that a client may send.
pub(super) fn request_headers() -> Value {
    let header = |name: &str, text: &str, schema: Value| json!({ "name": name, "in": "header", "description": text, "schema": schema });
    let text = || json!({ "type": "string" });
    let classes = [TrafficClass::InteractiveSearch, TrafficClass::BatchIngestion, TrafficClass::Rerank];
    let classes: Vec<&str> = classes.into_iter().map(TrafficClass::as_str).collect();
    json!([
        header("X-Traffic-Class", "What the request is for", json!({ "enum": classes })),
        header(
            "X-Collection",
            "The collection it belongs to; a configured one's stage decides which model answers",
            json!({ "type": "string", "maxLength": 128 })
        ),
        header("X-Request-Id", "Kept if it is 1 to 128 letters, digits and -_.:", text()),
        header("traceparent", "W3C trace context, passed on to the upstream", text()),
        header("Cache-Control", "`no-cache`: look nothing up; `no-store`: keep nothing", text()),
    ])
}

/// Headers of an answer, by name.
const ANSWER_HEADERS: [(&str, &str); 14] = [
    ("X-Request-Id", "The request's id, also in the log"),
    ("X-Trace-Id", "The trace's id, also in the log"),
    ("X-Gateway-Latency-MS", "From the request's first byte to the answer's head"),
    ("Server-Timing", "The same by part: gateway, queue, upstream"),
    ("X-Gateway-Cost-EUR", "Exact decimal; the currency is `money.currency`"),
    ("X-Tenant-Remaining-Budget-EUR", "After this request and all open holds; absent without a budget"),
    ("X-Cache", "HIT, MISS, PARTIAL or BYPASS"),
    ("X-Cache-Hits", "Such as 17/20"),
    ("X-Gateway-Upstream", "Who answered; absent on a full hit"),
    ("X-Gateway-Attempts", "Upstream calls made"),
    ("X-Traffic-Class", "The class applied"),
    ("X-Embedding-Space", "The vector space"),
    ("X-Embedding-Model", "The model"),
    ("x-ratelimit-remaining-requests", "With its siblings in OpenAI's notation"),
];

/// Headers of refusals that pass.
const WAIT_HEADERS: [(&str, &str); 4] = [
    ("Retry-After", "Seconds"),
    ("retry-after-ms", "The same, exact"),
    ("x-should-retry", "`false` where a retry within an SDK's patience cannot help"),
    ("X-Retrieval-Fallback", "`lexical-only`: search without vectors instead of waiting"),
];

/// Headers of chat answers alone.
const CHAT_HEADERS: [(&str, &str); 1] = [("X-Gateway-Model", "The model that answered: a fallback's name if one did")];

/// The shared headers.
pub(super) fn headers() -> Value {
    let all = ANSWER_HEADERS.iter().chain(&WAIT_HEADERS).chain(&CHAT_HEADERS);
    let described =
        all.map(|(name, text)| ((*name).to_owned(), json!({ "description": text, "schema": { "type": "string" } })));
    Value::Object(described.collect())
}

fn references(names: &[(&str, &str)]) -> Value {
    let refer = |name: &str| (name.to_owned(), json!({ "$ref": format!("#/components/headers/{name}") }));
    Value::Object(names.iter().map(|(name, _)| refer(name)).collect())
}

/// Headers of a good answer.
pub(super) fn answer_headers() -> Value {
    references(&ANSWER_HEADERS)
}

/// Headers of a chat answer, whole or streamed.
pub(super) fn chat_headers() -> Value {
    let kept = |name: &str| !matches!(name, "X-Cache-Hits" | "X-Embedding-Space" | "X-Embedding-Model");
    let mut all: Vec<(&str, &str)> = ANSWER_HEADERS.into_iter().filter(|(name, _)| kept(name)).collect();
    all.extend(CHAT_HEADERS);
    references(&all)
}

/// Headers of an answer that says when to try again.
pub(super) fn waits() -> Value {
    references(&WAIT_HEADERS)
}
