//! What a provider does: the one value that describes it, built in Rust or read from JSON or TOML.
//!
//! Owns the shape of a script and nothing of its execution.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::delay::{Delay, Pace};
use super::dialect::Dialect;
use super::limits::{Limits, Refusals};
use super::quota::Quota;
use super::rules::{Effect, Rule, When};
use super::usage::{TokenRule, UsageShape};

/// Everything a scripted provider is and does. Every member has a default; the default provider answers every call
/// at once with 8 numbers per text.
///
/// The request members that change a vector, and so enter its signature, are `input_type`, `prompt_name` and `task`, in
/// that order. `dimensions` shortens the vector instead, and `truncate` shortens the text.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Script {
    /// Which provider answers at the paths that several share, such as `/v1/embeddings`; a path prefix
    /// (`/voyage`, `/jina`, `/tei`, `/cohere`, `/ollama`, `/vllm`, `/mistral`, `/azure`, `/anthropic`) overrides it.
    pub dialect: Option<Dialect>,
    /// Numbers in a vector.
    pub width: usize,
    /// The vector space: two providers with one space give equal vectors.
    pub space: String,
    /// Spaces of single models, by the name a request asks for.
    pub spaces: BTreeMap<String, String>,
    /// Models that exist; empty: every name does.
    pub models: Vec<String>,
    /// The key a call must carry; absent: every call is welcome.
    pub api_key: Option<String>,
    /// Start of everything that is drawn at random.
    pub seed: u64,
    /// What becomes of `dimensions` (or its name in the dialect).
    pub dimensions: Honour,
    /// In which encoding vectors leave, whatever was asked for.
    pub encoding: EncodingRule,
    /// Digits of a number in a list.
    pub digits: Digits,
    /// Refuse members that the dialect does not know.
    pub strict: bool,
    /// Order and labels of the items of an answer.
    pub labels: Labels,
    /// How far every vector is turned aside, see [`super::signature::disturb`].
    pub noise: f32,
    /// How tokens are counted.
    pub tokens: TokenRule,
    /// How usage is told.
    pub usage: UsageShape,
    /// Wait before a good answer.
    pub delay: Delay,
    /// Further wait for each item of a call, in milliseconds.
    pub delay_per_item_ms: f64,
    /// How the bytes of a good answer are spread over time.
    pub pace: Pace,
    /// How the end of an answer is marked.
    pub framing: Framing,
    /// Headers added to every answer.
    pub response_headers: Vec<(String, String)>,
    /// Trailers of chunked answers.
    pub trailers: Vec<(String, String)>,
    /// Largest call that is served.
    pub limits: Limits,
    /// Where `limits.max_items` is absent, the real provider's own holds: 2048 for OpenAI, 96 for Cohere, 1000 for
    /// Voyage, `tei.max_client_batch_size` for TEI.
    pub real_limits: bool,
    /// Tokens and requests per minute.
    pub quota: Option<Quota>,
    /// Texts in work at once, as TEI counts them: a call that finds too few free places is refused. 0: no limit.
    pub max_concurrent_texts: usize,
    /// Calls served on one connection before it is closed without a word. 0: no limit.
    pub max_calls_per_connection: u64,
    /// A call whose client leaves during the delay is dropped and not billed.
    pub drop_abandoned: bool,
    /// Shape of chat answers.
    pub chat: Chat,
    /// What `/info` tells.
    pub tei: TeiInfo,
    /// Fast path for benchmarks: OpenAI embeddings get one prepared vector for every item. Only delay, quota and
    /// rules count there; keys, limits and models do not.
    pub canned: bool,
    /// Tokens billed per item on the fast path.
    pub canned_tokens_per_item: u64,
    /// How much of each call is remembered.
    pub record: Record,
    /// Calls remembered at most; the oldest are forgotten first.
    pub keep_calls: usize,
    /// Calls whose body contains one of these are answered without a wait and stay out of the log: a gateway's own
    /// checks, which are no client's calls.
    pub apart: Vec<String>,
    /// Exceptions to all of the above; the first that fits a call applies.
    pub rules: Vec<Rule>,
}

impl Default for Script {
    fn default() -> Self {
        Self {
            dialect: None,
            width: 8,
            space: "A".to_owned(),
            spaces: BTreeMap::new(),
            models: Vec::new(),
            api_key: None,
            seed: 1,
            dimensions: Honour::Honour,
            encoding: EncodingRule::AsAsked,
            digits: Digits::F32,
            strict: false,
            labels: Labels::Sorted,
            noise: 0.0,
            tokens: TokenRule::Words,
            usage: UsageShape::Exact,
            delay: Delay::None,
            delay_per_item_ms: 0.0,
            pace: Pace::default(),
            framing: Framing::Length,
            response_headers: Vec::new(),
            trailers: Vec::new(),
            limits: Limits::default(),
            real_limits: true,
            quota: None,
            max_concurrent_texts: 0,
            max_calls_per_connection: 0,
            drop_abandoned: false,
            chat: Chat::default(),
            tei: TeiInfo::default(),
            canned: false,
            canned_tokens_per_item: 8,
            record: Record::All,
            keep_calls: 100_000,
            apart: Vec::new(),
            rules: Vec::new(),
        }
    }
}

/// What becomes of a member of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Honour {
    /// It is obeyed.
    Honour,
    /// It is read over.
    Ignore,
    /// The call is refused.
    Refuse,
}

/// In which encoding vectors leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum EncodingRule {
    /// As the request asks.
    AsAsked,
    /// Always lists of numbers.
    Float,
    /// Always base64.
    Base64,
}

/// Digits of a number in a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Digits {
    /// The fewest that give the same f32 back.
    F32,
    /// Those of the number widened to f64, as several providers print them.
    F64,
}

/// Order and labels of the items of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Labels {
    /// 0, 1, 2, …
    Sorted,
    /// Last first, every label right for its vector.
    Reversed,
    /// These labels in this order, each beside the vector of the text it names; a label that names none, and every
    /// place beyond the list, gets the vector of its position.
    Given(Vec<i64>),
    /// No labels; in the order of the request.
    Omitted,
}

/// How the end of an answer is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Framing {
    /// By `content-length`.
    Length,
    /// By chunks of this many bytes.
    Chunked(usize),
    /// By closing the connection.
    Close,
}

/// How much of each call is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Record {
    /// Everything.
    All,
    /// Everything but bodies.
    Heads,
    /// Only sums.
    Counts,
}

/// Shape of chat answers.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Chat {
    /// Pieces of text in an answer; each counts one output token.
    pub pieces: usize,
    /// Wait between two events of a stream, in milliseconds.
    pub gap_ms: f64,
    /// Where a stream tells its usage.
    pub stream_usage: StreamUsage,
    /// The stream ends after this many events, without its end marker.
    pub cut_after_events: Option<usize>,
    /// How a stream ends that is cut.
    pub cut: Cut,
    /// After this many events the stream carries an error event and ends.
    pub error_after_events: Option<usize>,
}

impl Default for Chat {
    fn default() -> Self {
        Self {
            pieces: 5,
            gap_ms: 0.0,
            stream_usage: StreamUsage::WhenAsked,
            cut_after_events: None,
            cut: Cut::Close,
            error_after_events: None,
        }
    }
}

/// How a stream ends before its end marker.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cut {
    /// The connection is closed without the last chunk.
    Close,
    /// The body ends in order: nothing but the marker is missing.
    Clean,
    /// The connection is closed in the middle of the event after.
    MidEvent,
    /// The connection is reset.
    Reset,
    /// Nothing more comes until the client leaves.
    Silence,
}

/// Where a chat stream tells its usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StreamUsage {
    /// In an event of its own if the request asked for it.
    WhenAsked,
    /// In an event of its own always.
    Always,
    /// In an event of its own if the request asked for it, beside a choice without text.
    BesideEmptyChoice,
    /// Inside the first event with text, and nowhere else: a beginning that is not the whole.
    InFirstPiece,
    /// Inside the last event with text.
    InLastPiece,
    /// In every event.
    InEveryPiece,
    /// Nowhere.
    Never,
}

/// What TEI's `/info` tells.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct TeiInfo {
    /// `model_id`.
    pub model_id: String,
    /// `version`; below 1.9 validation errors are 413 instead of 422.
    pub version: String,
    /// `max_client_batch_size`; told, and enforced with `real_limits`.
    pub max_client_batch_size: usize,
    /// `max_input_length`.
    pub max_input_length: usize,
    /// `auto_truncate`.
    pub auto_truncate: bool,
    /// The model ranks instead of embedding.
    pub reranker: bool,
}

impl Default for TeiInfo {
    fn default() -> Self {
        Self {
            model_id: "BAAI/bge-m3".to_owned(),
            version: "1.9.3".to_owned(),
            max_client_batch_size: 32,
            max_input_length: 8192,
            auto_truncate: true,
            reranker: false,
        }
    }
}

impl Script {
    /// The default provider.
    pub fn new() -> Self {
        Self::default()
    }

    /// Sets the vector space.
    pub fn space(mut self, space: &str) -> Self {
        self.space = space.to_owned();
        self
    }

    /// Gives one model a space of its own.
    pub fn space_of(mut self, model: &str, space: &str) -> Self {
        self.spaces.insert(model.to_owned(), space.to_owned());
        self
    }

    /// Sets the width of vectors.
    pub fn width(mut self, width: usize) -> Self {
        self.width = width;
        self
    }

    /// Says who answers at shared paths.
    pub fn dialect(mut self, dialect: Dialect) -> Self {
        self.dialect = Some(dialect);
        self
    }

    /// Asks every call for this key.
    pub fn api_key(mut self, key: &str) -> Self {
        self.api_key = Some(key.to_owned());
        self
    }

    /// Waits `ms` milliseconds before every good answer.
    pub fn delay_ms(mut self, ms: f64) -> Self {
        self.delay = Delay::FixedMs(ms);
        self
    }

    /// Sets how tokens are counted.
    pub fn tokens(mut self, rule: TokenRule) -> Self {
        self.tokens = rule;
        self
    }

    /// Sets how usage is told.
    pub fn usage(mut self, shape: UsageShape) -> Self {
        self.usage = shape;
        self
    }

    /// Limits what one call may hold, and says in whose words more is refused.
    pub fn limits(mut self, limits: Limits) -> Self {
        self.limits = limits;
        self
    }

    /// Refuses calls of more than `items` items, in these words.
    pub fn max_items(mut self, items: usize, words: Refusals) -> Self {
        self.limits.max_items = Some(items);
        self.limits.words = words;
        self
    }

    /// Sets a quota.
    pub fn quota(mut self, quota: Quota) -> Self {
        self.quota = Some(quota);
        self
    }

    /// Adds an exception for every call that fits.
    pub fn rule(mut self, when: When, then: Effect) -> Self {
        self.rules.push(Rule { when, then, sequence: Vec::new() });
        self
    }

    /// Adds an exception for every call.
    pub fn always(self, then: Effect) -> Self {
        self.rule(When::default(), then)
    }

    /// Adds an exception for the next `calls` calls.
    pub fn next(self, calls: u64, then: Effect) -> Self {
        self.rule(When::default().times(calls), then)
    }

    /// Adds exceptions for the next calls, one each, in this order.
    pub fn sequence(mut self, effects: impl IntoIterator<Item = Effect>) -> Self {
        self.rules.push(Rule {
            when: When::default(),
            then: Effect::default(),
            sequence: effects.into_iter().collect(),
        });
        self
    }

    /// Switches the prepared answers for benchmarks on; calls are then only counted.
    pub fn canned(mut self) -> Self {
        self.canned = true;
        self.record = Record::Counts;
        self
    }

    /// The space a request for `model` gets its vectors from.
    pub fn space_for(&self, model: Option<&str>) -> &str {
        model.and_then(|model| self.spaces.get(model)).unwrap_or(&self.space)
    }

    /// Reads a script from JSON.
    ///
    /// # Errors
    /// The reader's message, with its place, where a member is unknown or has the wrong type.
    pub fn from_json(text: &[u8]) -> Result<Self, String> {
        serde_json::from_slice(text).map_err(|error| error.to_string())
    }

    /// Reads a script from TOML.
    ///
    /// # Errors
    /// The reader's message, with its place, where a member is unknown or has the wrong type.
    pub fn from_toml(text: &str) -> Result<Self, String> {
        toml::from_str(text).map_err(|error| error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::rules::Fault;

    #[test]
    fn json_and_toml_say_the_same() {
        let json = br#"{"width": 4, "delay": {"uniform_ms": [1, 3]}, "quota": {"tpm": 600},
            "rules": [{"when": {"at_s": 10, "for_s": 30}, "then": {"status": 503}},
                      {"when": {"body": "poison"}, "then": {"fault": "reset_after_body"}},
                      {"then": {"fault": {"truncate": {"after_bytes": 3}}}}]}"#;
        let toml = r#"
            width = 4
            delay = { uniform_ms = [1.0, 3.0] }
            quota = { tpm = 600 }
            [[rules]]
            when = { at_s = 10.0, for_s = 30.0 }
            then = { status = 503 }
            [[rules]]
            when = { body = "poison" }
            then = { fault = "reset_after_body" }
            [[rules]]
            then = { fault = { truncate = { after_bytes = 3 } } }
        "#;
        let from_json = Script::from_json(json).expect("valid JSON script");
        let from_toml = Script::from_toml(toml).expect("valid TOML script");
        assert_eq!(format!("{from_json:?}"), format!("{from_toml:?}"));
        assert_eq!(from_json.rules[2].then.fault, Some(Fault::Truncate { after_bytes: 3 }));
    }

    #[test]
    fn a_script_survives_being_written_and_read() {
        let script = Script::new().space("B").max_items(32, Refusals::Plain413).next(2, Effect::status(500));
        let text = serde_json::to_vec(&script).expect("writable");
        assert_eq!(format!("{:?}", Script::from_json(&text).expect("readable")), format!("{script:?}"));
    }

    #[test]
    fn an_unknown_member_is_refused() {
        assert!(Script::from_json(br#"{"widht": 4}"#).expect_err("refused").contains("widht"));
    }
}
