//! Chat answers, whole and streamed, of OpenAI and Anthropic. Simple: the text is made of numbered words.

use bytes::Bytes;
use serde_json::{Value, json};
use std::time::Duration;

use super::request::ChatJob;
use super::{Op, Route};
use crate::provider::script::{Chat, Cut, StreamUsage};
use crate::provider::usage::{self, Tokens, UsageShape};
use crate::provider::wire::{Answer, Body};

/// Answers a chat call.
pub(in crate::provider) fn chat(route: Route, job: &ChatJob, tokens: Tokens, chat: &Chat, shape: UsageShape) -> Answer {
    let pieces: Vec<String> = (0..chat.pieces).map(|place| format!("word{place} ")).collect();
    if !job.stream {
        return Answer::json(200, whole(route, job, &pieces.concat(), tokens, shape).to_string());
    }
    let mut events = match route.op {
        Op::Messages => anthropic_events(job, &pieces, tokens),
        Op::Responses => responses_events(job, &pieces, tokens, chat),
        _ => openai_events(route, job, &pieces, tokens, chat, shape),
    };
    let mut cut = None;
    if let Some(count) = chat.error_after_events {
        events.truncate(count);
        events.push(match route.op {
            Op::Messages => named(
                "error",
                &json!({"type": "error", "error": {"type": "overloaded_error", "message": "overloaded"}}),
            ),
            Op::Responses => named("error", &json!({"type": "error", "code": "server_error", "message": "overloaded"})),
            _ => {
                data(&json!({"error": {"message": "overloaded", "type": "server_error", "param": null, "code": null}}))
            }
        });
    } else if let Some(count) = chat.cut_after_events {
        let half = events.get(count).map(|event| event.slice(..event.len() / 2));
        events.truncate(count);
        events.extend(half.filter(|_| chat.cut == Cut::MidEvent));
        cut = Some(chat.cut);
    }
    let gap = Duration::try_from_secs_f64(chat.gap_ms / 1e3).unwrap_or_default();
    Answer {
        status: 200,
        content_type: Some("text/event-stream; charset=utf-8".to_owned()),
        headers: vec![("cache-control".to_owned(), "no-cache".to_owned())],
        body: Body::Events { events, gap, cut },
    }
}

fn whole(route: Route, job: &ChatJob, text: &str, tokens: Tokens, shape: UsageShape) -> Value {
    let mut answer = match route.op {
        Op::Messages => {
            return json!({"id": "msg_1", "type": "message", "role": "assistant", "model": job.model,
                "content": [{"type": "text", "text": text}], "stop_reason": "end_turn", "stop_sequence": null,
                "usage": {"input_tokens": tokens.input, "output_tokens": tokens.output}});
        }
        Op::Responses => {
            return json!({"id": "resp_1", "object": "response", "status": "completed", "model": job.model,
                "output": [{"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": text}]}],
                "usage": {"input_tokens": tokens.input, "output_tokens": tokens.output, "total_tokens": tokens.total()}});
        }
        Op::Completions => {
            json!({"id": "cmpl-1", "object": "text_completion", "created": 1_796_056_200, "model": job.model,
            "choices": [{"index": 0, "text": text, "finish_reason": "stop", "logprobs": null}]})
        }
        _ => json!({"id": "chatcmpl-1", "object": "chat.completion", "created": 1_796_056_200, "model": job.model,
            "choices": [{"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop",
                "logprobs": null}]}),
    };
    if let (Some(usage), Some(answer)) = (usage::openai(shape, tokens, true), answer.as_object_mut()) {
        answer.insert("usage".to_owned(), usage);
    }
    answer
}

fn data(value: &Value) -> Bytes {
    Bytes::from(format!("data: {value}\n\n"))
}

fn named(name: &str, value: &Value) -> Bytes {
    Bytes::from(format!("event: {name}\ndata: {value}\n\n"))
}

fn openai_events(
    route: Route,
    job: &ChatJob,
    pieces: &[String],
    tokens: Tokens,
    chat: &Chat,
    shape: UsageShape,
) -> Vec<Bytes> {
    let usage = usage::openai(shape, tokens, true);
    let own_event = match chat.stream_usage {
        StreamUsage::WhenAsked | StreamUsage::BesideEmptyChoice => job.include_usage,
        StreamUsage::Always => true,
        _ => false,
    };
    let event = |choices: Value, told: Option<&Value>| {
        let (id, object) = match route.op {
            Op::Completions => ("cmpl-1", "text_completion"),
            _ => ("chatcmpl-1", "chat.completion.chunk"),
        };
        let mut chunk =
            json!({"id": id, "object": object, "created": 1_796_056_200, "model": job.model, "choices": choices});
        if let Some(chunk) = chunk.as_object_mut() {
            match told {
                Some(usage) => chunk.insert("usage".to_owned(), usage.clone()),
                None if own_event => chunk.insert("usage".to_owned(), Value::Null),
                None => None,
            };
        }
        data(&chunk)
    };
    let mut events = Vec::new();
    for (place, piece) in pieces.iter().enumerate() {
        let last = place + 1 == pieces.len();
        let told = match chat.stream_usage {
            StreamUsage::InEveryPiece => usage.as_ref(),
            StreamUsage::InFirstPiece if place == 0 => usage.as_ref(),
            StreamUsage::InLastPiece if last => usage.as_ref(),
            _ => None,
        };
        let choice = match route.op {
            Op::Completions => json!([{"index": 0, "text": piece, "finish_reason": null}]),
            _ if place == 0 => {
                json!([{"index": 0, "delta": {"role": "assistant", "content": piece}, "finish_reason": null}])
            }
            _ => json!([{"index": 0, "delta": {"content": piece}, "finish_reason": null}]),
        };
        events.push(event(choice, told));
    }
    let stop = match route.op {
        Op::Completions => json!([{"index": 0, "text": "", "finish_reason": "stop"}]),
        _ => json!([{"index": 0, "delta": {}, "finish_reason": "stop"}]),
    };
    events.push(event(stop, None));
    if own_event && let Some(usage) = &usage {
        let beside = match chat.stream_usage {
            StreamUsage::BesideEmptyChoice => json!([{"index": 0, "delta": {}, "finish_reason": null}]),
            _ => json!([]),
        };
        events.push(event(beside, Some(usage)));
    }
    events.push(Bytes::from_static(b"data: [DONE]\n\n"));
    events
}

fn responses_events(job: &ChatJob, pieces: &[String], tokens: Tokens, chat: &Chat) -> Vec<Bytes> {
    let response = |status: &str, usage: Value| {
        json!({"id": "resp_1", "object": "response", "created_at": 1_796_056_200, "status": status, "model": job.model,
            "output": [], "parallel_tool_calls": true, "tool_choice": "auto", "tools": [], "usage": usage})
    };
    let mut number = 0;
    let mut event = |kind: &str, mut value: Value| {
        value["type"] = json!(kind);
        value["sequence_number"] = json!(number);
        number += 1;
        named(kind, &value)
    };
    let usage = match chat.stream_usage {
        StreamUsage::Never => Value::Null,
        _ => json!({"input_tokens": tokens.input, "output_tokens": tokens.output, "total_tokens": tokens.total(),
            "input_tokens_details": {"cached_tokens": 0}, "output_tokens_details": {"reasoning_tokens": 0}}),
    };
    let mut events = vec![event("response.created", json!({"response": response("in_progress", Value::Null)}))];
    for piece in pieces {
        let delta = json!({"item_id": "msg_1", "output_index": 0, "content_index": 0, "delta": piece, "logprobs": []});
        events.push(event("response.output_text.delta", delta));
    }
    events.push(event("response.completed", json!({"response": response("completed", usage)})));
    events
}

fn anthropic_events(job: &ChatJob, pieces: &[String], tokens: Tokens) -> Vec<Bytes> {
    let mut events = vec![
        named(
            "message_start",
            &json!({"type": "message_start", "message": {"id": "msg_1", "type": "message",
            "role": "assistant", "model": job.model, "content": [], "stop_reason": null, "stop_sequence": null,
            "usage": {"input_tokens": tokens.input, "output_tokens": 1}}}),
        ),
        named(
            "content_block_start",
            &json!({"type": "content_block_start", "index": 0,
            "content_block": {"type": "text", "text": ""}}),
        ),
        named("ping", &json!({"type": "ping"})),
    ];
    events.extend(pieces.iter().map(|piece| {
        named(
            "content_block_delta",
            &json!({"type": "content_block_delta", "index": 0,
            "delta": {"type": "text_delta", "text": piece}}),
        )
    }));
    events.push(named("content_block_stop", &json!({"type": "content_block_stop", "index": 0})));
    events.push(named(
        "message_delta",
        &json!({"type": "message_delta",
        "delta": {"stop_reason": "end_turn", "stop_sequence": null}, "usage": {"output_tokens": tokens.output}}),
    ));
    events.push(named("message_stop", &json!({"type": "message_stop"})));
    events
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::provider::dialect::route;

    fn stream(target: &str, include_usage: bool, shape: &Chat) -> (String, Option<Cut>) {
        let job = ChatJob { model: Some("m".to_owned()), stream: true, include_usage, prompt: String::new() };
        let tokens = Tokens { input: 3, output: 2 };
        let answer = chat(route("POST", target, None), &job, tokens, shape, UsageShape::Exact);
        let Body::Events { events, cut, .. } = answer.body else { panic!("a stream") };
        (String::from_utf8_lossy(&events.concat()).into_owned(), cut)
    }

    #[test]
    fn openai_tells_usage_in_an_event_of_its_own_only_if_asked() {
        let shape = Chat { pieces: 2, ..Chat::default() };
        let (asked, cut) = stream("/v1/chat/completions", true, &shape);
        assert!(cut.is_none() && asked.ends_with("data: [DONE]\n\n"));
        assert!(asked.contains(r#""choices":[],"created""#) && asked.contains(r#""total_tokens":5"#));
        let (not_asked, _) = stream("/v1/chat/completions", false, &shape);
        assert!(!not_asked.contains("usage"));
        let always = Chat { stream_usage: StreamUsage::InLastPiece, ..shape };
        assert_eq!(stream("/v1/chat/completions", false, &always).0.matches("total_tokens").count(), 1);
    }

    #[test]
    fn a_stream_can_be_cut_or_end_in_an_error() {
        let shape = Chat { cut_after_events: Some(3), ..Chat::default() };
        let (text, cut) = stream("/v1/chat/completions", false, &shape);
        assert_eq!((text.matches("data: ").count(), cut, text.contains("[DONE]")), (3, Some(Cut::Close), false));
        let half = Chat { cut: Cut::MidEvent, ..shape };
        let (text, _) = stream("/v1/chat/completions", false, &half);
        assert_eq!((text.matches("data: ").count(), text.matches("\n\n").count()), (4, 3));
        let error = Chat { error_after_events: Some(1), ..Chat::default() };
        let (text, cut) = stream("/v1/messages", false, &error);
        assert!(cut.is_none() && text.contains("event: error") && !text.contains("message_stop"));
    }

    #[test]
    fn responses_tell_usage_in_their_last_event() {
        let (text, _) = stream("/v1/responses", false, &Chat { pieces: 2, ..Chat::default() });
        assert_eq!(text.matches("event: response.output_text.delta").count(), 2);
        assert!(text.contains("event: response.completed") && text.contains(r#""total_tokens":5"#));
    }

    #[test]
    fn anthropic_events_carry_their_names() {
        let (text, _) = stream("/v1/messages", false, &Chat { pieces: 2, ..Chat::default() });
        assert_eq!(text.matches("event: content_block_delta").count(), 2);
        assert!(text.starts_with("event: message_start") && text.contains(r#""usage":{"output_tokens":2}"#));
    }
}
