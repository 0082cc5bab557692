//! What a stream of chat events says of itself as it passes: what was counted, what was said, whether it is complete.
//!
//! Owns which event is the last one, which tells a failure, and which is only there because the gateway asked for it.
//! Refuses to change an event.

use std::borrow::Cow;

use serde::Deserialize;
use serde_json::value::RawValue;

use super::ChatApi;
use super::event::Event;
use super::tokens::{ChatUsage, add_texts, read_usage};
use crate::config::plan::Tokenizer;
use crate::pure::token_estimate::{ClassCounts, Estimate};

/// What becomes of an event.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It goes on to the client.
    Pass,
    /// Only the gateway asked for it.
    Hide,
    /// It goes on, and the answer is complete with it.
    Last,
    /// It goes on, and says that the provider has failed.
    Failed,
}

/// Reads the events of one stream.
#[derive(Debug)]
pub struct Meter {
    api: ChatApi,
    hides_usage: bool,
    usage: ChatUsage,
    /// The output was counted after the last text.
    counted_last: bool,
    said: ClassCounts,
    /// Events with text: a model makes at least a token for each.
    pieces: u64,
}

/// An event of OpenAI's chat completions and completions. Here as below, `null` is the same as absence.
#[derive(Deserialize)]
struct Chunk<'a> {
    #[serde(borrow, default)]
    choices: Option<Vec<Choice<'a>>>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    error: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Choice<'a> {
    #[serde(borrow)]
    delta: Option<&'a RawValue>,
    #[serde(borrow)]
    text: Option<&'a RawValue>,
    #[serde(borrow)]
    finish_reason: Option<&'a RawValue>,
}

impl Choice<'_> {
    /// Whether it carries nothing.
    fn is_empty(&self) -> bool {
        let nothing = |raw: Option<&RawValue>, empty: &str| raw.is_none_or(|raw| raw.get() == empty);
        nothing(self.delta, "{}") && nothing(self.text, "\"\"") && self.finish_reason.is_none()
    }
}

/// An event that names its type, as those of OpenAI's responses and of Anthropic do.
#[derive(Deserialize)]
struct Typed<'a> {
    #[serde(borrow, rename = "type")]
    kind: Cow<'a, str>,
    #[serde(borrow)]
    delta: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
    #[serde(borrow)]
    response: Option<Inner<'a>>,
    #[serde(borrow)]
    message: Option<&'a RawValue>,
}

#[derive(Deserialize)]
struct Inner<'a> {
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

impl Meter {
    /// A meter for a stream of `api`; `hides_usage`: the event that only tells usage is not for the client.
    pub fn new(api: ChatApi, hides_usage: bool) -> Meter {
        Meter {
            api,
            hides_usage,
            usage: ChatUsage::default(),
            counted_last: false,
            said: ClassCounts::default(),
            pieces: 0,
        }
    }

    /// Reads the next event.
    pub fn read(&mut self, event: &Event<'_>) -> Fate {
        if event.data.is_empty() {
            return Fate::Pass;
        }
        match self.api {
            ChatApi::Chat | ChatApi::Completions => self.chunk(&event.data),
            ChatApi::Responses => self.response(&event.data),
            ChatApi::Messages => self.message(event),
        }
    }

    fn chunk(&mut self, data: &[u8]) -> Fate {
        if data.trim_ascii() == b"[DONE]" {
            return Fate::Last;
        }
        let Ok(chunk) = serde_json::from_slice::<Chunk<'_>>(data) else { return Fate::Pass };
        if chunk.error.is_some() {
            return Fate::Failed;
        }
        let choices = chunk.choices.unwrap_or_default();
        for text in choices.iter().flat_map(|choice| [choice.delta, choice.text]).flatten() {
            self.hear(text);
        }
        let Some(usage) = chunk.usage else { return Fate::Pass };
        self.count(usage);
        if self.hides_usage && choices.iter().all(Choice::is_empty) { Fate::Hide } else { Fate::Pass }
    }

    fn response(&mut self, data: &[u8]) -> Fate {
        let Ok(event) = serde_json::from_slice::<Typed<'_>>(data) else { return Fate::Pass };
        if event.kind.ends_with(".delta")
            && let Some(delta) = event.delta
        {
            self.hear(delta);
        }
        if let Some(usage) = event.response.and_then(|response| response.usage) {
            self.count(usage);
        }
        match event.kind.as_ref() {
            "response.completed" | "response.incomplete" => Fate::Last,
            "response.failed" | "error" => Fate::Failed,
            _ => Fate::Pass,
        }
    }

    fn message(&mut self, event: &Event<'_>) -> Fate {
        let Ok(said) = serde_json::from_slice::<Typed<'_>>(&event.data) else { return Fate::Pass };
        match said.kind.as_ref() {
            "message_start" => {
                let message = said.message.and_then(|message| serde_json::from_str::<Inner<'_>>(message.get()).ok());
                if let Some(usage) = message.and_then(|message| message.usage) {
                    self.count(usage);
                    // A beginning: it counts the input, and of the output a token or two.
                    self.counted_last = false;
                }
                Fate::Pass
            }
            "content_block_delta" => {
                if let Some(delta) = said.delta {
                    self.hear(delta);
                }
                Fate::Pass
            }
            "message_delta" => {
                if let Some(usage) = said.usage {
                    self.count(usage);
                }
                Fate::Pass
            }
            "message_stop" => Fate::Last,
            "error" => Fate::Failed,
            _ => Fate::Pass,
        }
    }

    /// The model said something.
    fn hear(&mut self, text: &RawValue) {
        let before = self.said;
        add_texts(text.get(), &mut self.said);
        if self.said != before {
            self.pieces += 1;
            self.counted_last = false;
        }
    }

    /// The provider counted: its latest word holds, where it has one.
    fn count(&mut self, usage: &RawValue) {
        let told = read_usage(usage.get());
        self.usage = ChatUsage {
            input: told.input.or(self.usage.input),
            output: told.output.or(self.usage.output),
            odd: told.odd || self.usage.odd,
        };
        self.counted_last |= told.output.is_some();
    }

    /// What was said so far, and whether the provider's own count is of all of it.
    pub fn told(&self) -> Told {
        Told { usage: self.usage, complete: self.counted_last, said: self.said, pieces: self.pieces }
    }
}

/// What an answer says of its tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Told {
    /// The provider's own count.
    pub usage: ChatUsage,
    /// Whether that is of the whole output, and not of its beginning.
    pub complete: bool,
    /// What was said.
    pub said: ClassCounts,
    /// In how many pieces.
    pub pieces: u64,
}

impl Told {
    /// Output tokens, and whether they are the provider's own count: otherwise they are what it reported so far or what
    /// the text will have cost, whichever is more.
    pub fn output(&self, tokenizer: Tokenizer) -> (u64, bool) {
        match self.usage.output {
            Some(output) if self.complete => (output, true),
            reported => {
                let by_text =
                    if self.said == ClassCounts::default() { 0 } else { Estimate::of(self.said, tokenizer).likely };
                (reported.unwrap_or(0).max(by_text).max(self.pieces), false)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::event;
    use super::*;

    /// The fates of `events`, and what the meter knows after them.
    fn run(api: ChatApi, hides: bool, events: &[&str]) -> (Vec<Fate>, Told) {
        let mut meter = Meter::new(api, hides);
        let fates =
            events.iter().map(|event| meter.read(&event::read(format!("data: {event}\n\n").as_bytes()))).collect();
        (fates, meter.told())
    }

    const HI: &str = r#"{"choices":[{"index":0,"delta":{"content":"hi there"},"finish_reason":null}],"usage":null}"#;
    const STOP: &str = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}"#;
    const USAGE: &str = r#"{"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":5,"total_tokens":8}}"#;

    #[test]
    fn the_usage_event_is_hidden_from_who_did_not_ask() {
        use Fate::{Hide, Last, Pass};
        let (fates, told) = run(ChatApi::Chat, true, &[HI, STOP, USAGE, "[DONE]"]);
        assert_eq!(fates, [Pass, Pass, Hide, Last]);
        assert_eq!((told.usage.input, told.output(Tokenizer::Unknown)), (Some(3), (5, true)));
        let (fates, _) = run(ChatApi::Chat, false, &[HI, STOP, USAGE, "[DONE]"]);
        assert_eq!(fates, [Pass, Pass, Pass, Last]);
        // An empty choice besides is no reason to show it, a word or an end is.
        let empty = r#"{"choices":[{"index":0,"delta":{},"finish_reason":null}],"usage":{"prompt_tokens":3}}"#;
        let last = r#"{"choices":[{"index":0,"delta":{},"finish_reason":"stop"}],"usage":{"prompt_tokens":3}}"#;
        let word = r#"{"choices":[{"index":0,"text":"a"}],"usage":{"prompt_tokens":3}}"#;
        let (fates, _) = run(ChatApi::Chat, true, &[empty, last, word, ": x"]);
        assert_eq!(fates, [Hide, Pass, Pass, Pass]);
        let filter = r#"{"choices":[],"prompt_filter_results":[]}"#;
        assert_eq!(run(ChatApi::Chat, true, &[filter]).0, [Pass]);
    }

    #[test]
    fn an_early_count_is_not_the_last_word() {
        let (_, told) = run(ChatApi::Chat, true, &[USAGE, HI, HI, HI, HI, HI, HI, STOP]);
        assert_eq!(told.output(Tokenizer::Unknown), (12, false), "48 characters are some 12 tokens");
        let (_, told) = run(ChatApi::Chat, true, &[HI]);
        assert_eq!((told.usage.input, told.output(Tokenizer::Unknown)), (None, (2, false)));
        let every = r#"{"choices":[{"delta":{"content":"a"}}],"usage":{"prompt_tokens":3,"completion_tokens":1}}"#;
        let (_, told) = run(ChatApi::Chat, true, &[every, every, STOP, "[DONE]"]);
        assert_eq!(told.output(Tokenizer::Unknown), (1, true));
    }

    #[test]
    fn failures_are_told_from_words() {
        let error = r#"{"error":{"message":"overloaded"}}"#;
        assert_eq!(run(ChatApi::Chat, true, &[error, r#"{"error":null,"choices":[]}"#]).0, [Fate::Failed, Fate::Pass]);
        assert_eq!(run(ChatApi::Messages, true, &[r#"{"type":"error","error":{}}"#]).0, [Fate::Failed]);
        let failed = r#"{"type":"response.failed","response":{"usage":null,"error":{"code":"x"}}}"#;
        assert_eq!(run(ChatApi::Responses, true, &[failed]).0, [Fate::Failed]);
        assert_eq!(run(ChatApi::Chat, true, &["not json", "{}", "[1]"]).0, [Fate::Pass; 3]);
    }

    #[test]
    fn anthropic_counts_at_both_ends() {
        let start = r#"{"type":"message_start","message":{"usage":{"input_tokens":3,"cache_read_input_tokens":4,"output_tokens":1}}}"#;
        let delta = r#"{"type":"content_block_delta","index":0,"delta":{"type":"text_delta","text":"hello you"}}"#;
        let end = r#"{"type":"message_delta","delta":{"stop_reason":"end_turn"},"usage":{"output_tokens":9}}"#;
        let (fates, told) = run(ChatApi::Messages, true, &[start, delta, end, r#"{"type":"message_stop"}"#]);
        assert_eq!(fates, [Fate::Pass, Fate::Pass, Fate::Pass, Fate::Last]);
        assert_eq!((told.usage.input, told.output(Tokenizer::Unknown)), (Some(7), (9, true)));
        let (_, told) = run(ChatApi::Messages, true, &[start, delta]);
        assert_eq!((told.usage.input, told.output(Tokenizer::Unknown)), (Some(7), (3, false)));
        let (_, told) = run(ChatApi::Messages, true, &[start]);
        assert_eq!(told.output(Tokenizer::Unknown), (1, false));
    }

    #[test]
    fn responses_count_in_their_last_event() {
        let delta = r#"{"type":"response.output_text.delta","delta":"hello","item_id":"long-name-of-an-item"}"#;
        let done = r#"{"type":"response.output_text.done","text":"hello"}"#;
        let last = r#"{"type":"response.completed","response":{"usage":{"input_tokens":3,"output_tokens":5,"total_tokens":8}}}"#;
        let (fates, told) = run(ChatApi::Responses, true, &[delta, done, last]);
        assert_eq!(fates, [Fate::Pass, Fate::Pass, Fate::Last]);
        assert_eq!((told.usage.input, told.output(Tokenizer::Unknown)), (Some(3), (5, true)));
        let (_, told) = run(ChatApi::Responses, true, &[delta, done]);
        assert_eq!(told.output(Tokenizer::Unknown), (2, false));
    }
}
