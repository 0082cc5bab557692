//! The chat of the built-in provider: a fixed sentence about what it was sent, so that a client can be tried without a
//! key. It makes events as a provider would, and they are metered as a provider's are.

use std::collections::VecDeque;

use bytes::Bytes;
use serde_json::{Value, json};

use super::ChatCall;
use super::bounds;
use super::exchange::{Answered, Live, Source};
use crate::dialects::chat::answer;
use crate::dialects::chat::event::Splitter;
use crate::dialects::chat::meter::Meter;
use crate::runtime::ModelRuntime;

const WORDS: [&str; 9] = ["This ", "is ", "the ", "simulated ", "provider; ", "it ", "has ", "no ", "model."];

/// Answers `call`; `asks_usage`: the gateway wants a stream's usage told.
pub(super) fn answer(call: &ChatCall, model: &ModelRuntime, asks_usage: bool) -> Answered {
    let input = bounds::uncorrected(call, model).likely;
    let most = usize::try_from(call.request.max_output.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let words = &WORDS[..most.clamp(1, WORDS.len())];
    let reason = if words.len() < WORDS.len() { "length" } else { "stop" };
    let usage = json!({
        "prompt_tokens": input,
        "completion_tokens": words.len(),
        "total_tokens": input.saturating_add(words.len() as u64),
    });
    let id = format!("chatcmpl-{}", call.context.request_id.as_str());
    let object = |kind: &str, choices: Value| json!({ "id": id, "object": kind, "created": 0, "model": model.plan.name.as_str(), "choices": choices });
    if !call.request.stream {
        let message = json!({ "role": "assistant", "content": words.concat() });
        let choices = json!([{ "index": 0, "message": message, "finish_reason": reason, "logprobs": null }]);
        let mut whole = object("chat.completion", choices);
        whole["usage"] = usage;
        let body = Bytes::from(whole.to_string());
        // It is an answer; if it were none, nothing would be charged but what is estimated.
        let told = answer::read(call.request.api, &body).unwrap_or_else(|_| Meter::new(call.request.api, false).told());
        return Answered::Whole(body, told);
    }
    let chunk = |choices: Value| object("chat.completion.chunk", choices);
    let mut events: VecDeque<Value> = VecDeque::new();
    for (place, word) in words.iter().enumerate() {
        let delta =
            if place == 0 { json!({ "role": "assistant", "content": word }) } else { json!({ "content": word }) };
        events.push_back(chunk(json!([{ "index": 0, "delta": delta, "finish_reason": null }])));
    }
    events.push_back(chunk(json!([{ "index": 0, "delta": {}, "finish_reason": reason }])));
    if asks_usage || call.request.wants_usage {
        let mut last = chunk(json!([]));
        last["usage"] = usage;
        events.push_back(last);
    }
    let texts = events.iter().map(|event| Bytes::from(format!("data: {event}\n\n")));
    let pieces = texts.chain([Bytes::from_static(b"data: [DONE]\n\n")]).collect();
    Answered::Stream(Box::new(Live {
        source: Source::Local(pieces),
        splitter: Splitter::default(),
        meter: Meter::new(call.request.api, asks_usage),
        first: None,
        content_type: "text/event-stream; charset=utf-8".to_owned(),
    }))
}
