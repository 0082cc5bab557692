//! A chat answer that came whole: whether it is one, and what was counted. And how a stream that is under way tells its
//! client of an error.

use bytes::Bytes;
use serde::Deserialize;
use serde_json::value::RawValue;

use super::ChatApi;
use super::meter::Told;
use super::tokens::{ChatUsage, add_texts, read_usage};
use crate::dialects::client::{ErrorIds, render_error};
use crate::dialects::json::ObjectWriter;
use crate::dialects::{BadAnswer, ClientDialect};
use crate::error::ApiError;
use crate::pure::token_estimate::ClassCounts;

/// The members of any provider's answer that matter.
#[derive(Deserialize)]
struct Whole<'a> {
    #[serde(borrow)]
    choices: Option<&'a RawValue>,
    #[serde(borrow)]
    output: Option<&'a RawValue>,
    #[serde(borrow)]
    content: Option<&'a RawValue>,
    #[serde(borrow)]
    usage: Option<&'a RawValue>,
}

/// Reads an answer with a good status.
///
/// # Errors
/// It is no answer of `api`: not JSON, or without what was said.
pub fn read(api: ChatApi, body: &[u8]) -> Result<Told, BadAnswer> {
    let bad = |reason: &str| BadAnswer { reason: reason.to_owned() };
    let Ok(whole) = serde_json::from_slice::<Whole<'_>>(body) else { return Err(bad("it is not a JSON object")) };
    let (said, name) = match api {
        ChatApi::Chat | ChatApi::Completions => (whole.choices, "choices"),
        ChatApi::Responses => (whole.output, "output"),
        ChatApi::Messages => (whole.content, "content"),
    };
    let said = said.ok_or_else(|| bad(&format!("it has no `{name}`")))?;
    let usage = whole.usage.map_or_else(ChatUsage::default, |usage| read_usage(usage.get()));
    let mut texts = ClassCounts::default();
    if usage.output.is_none() {
        add_texts(said.get(), &mut texts);
    }
    Ok(Told { usage, complete: usage.output.is_some(), said: texts, pieces: 1 })
}

/// An event that tells the client of a stream that it ends here, and why: in the form from which its SDK makes an
/// exception.
pub fn error_event(api: ChatApi, dialect: ClientDialect, error: &ApiError, ids: ErrorIds<'_>) -> Bytes {
    let (_, body) = render_error(dialect, error, ids);
    let mut event = Vec::with_capacity(body.len() + 192);
    match api {
        ChatApi::Chat | ChatApi::Completions => event.extend_from_slice(b"data: "),
        ChatApi::Messages => event.extend_from_slice(b"event: error\ndata: "),
        ChatApi::Responses => {
            event.extend_from_slice(b"event: error\ndata: ");
            event.extend_from_slice(&responses_error(error, &body));
            event.extend_from_slice(b"\n\n");
            return Bytes::from(event);
        }
    }
    event.extend_from_slice(&body);
    event.extend_from_slice(b"\n\n");
    Bytes::from(event)
}

/// The provider's own form, with the `error` member besides on which the SDK raises.
fn responses_error(error: &ApiError, body: &[u8]) -> Vec<u8> {
    #[derive(Deserialize)]
    struct Rendered<'a> {
        #[serde(borrow)]
        error: &'a RawValue,
    }
    let mut object = ObjectWriter::with_capacity(body.len() + 128);
    object.string("type", "error");
    object.string("code", error.shown_code());
    object.string("message", &error.message);
    object.raw("param", b"null");
    if let Ok(rendered) = serde_json::from_slice::<Rendered<'_>>(body) {
        object.raw("error", rendered.error.get().as_bytes());
    }
    object.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::plan::Tokenizer;
    use crate::error::Code;

    #[track_caller]
    fn check(api: ChatApi, body: &str, input: Option<u64>, output: (u64, bool)) {
        let told = read(api, body.as_bytes()).expect("an answer");
        assert_eq!((told.usage.input, told.output(Tokenizer::Unknown)), (input, output), "{body}");
    }

    #[test]
    fn whole_answers_tell_their_usage() {
        let chat = r#"{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":3,"completion_tokens":5}}"#;
        check(ChatApi::Chat, chat, Some(3), (5, true));
        check(ChatApi::Responses, r#"{"output":[],"usage":{"input_tokens":3,"output_tokens":5}}"#, Some(3), (5, true));
        check(ChatApi::Messages, r#"{"content":[],"usage":{"input_tokens":3,"output_tokens":5}}"#, Some(3), (5, true));
        let silent = r#"{"choices":[{"message":{"role":"assistant","content":"hello over there"}}]}"#;
        check(ChatApi::Chat, silent, None, (4, false));
        check(ChatApi::Completions, r#"{"choices":[{"text":"hello over there"}],"usage":null}"#, None, (4, false));
    }

    #[test]
    fn what_says_nothing_is_no_answer() {
        for body in ["<html>", "[]", "{}", r#"{"error":{"message":"the model is loading"}}"#, ""] {
            read(ChatApi::Chat, body.as_bytes()).expect_err(body);
        }
    }

    #[test]
    fn an_error_event_is_whole_and_in_the_routes_own_form() {
        let error = ApiError::new(Code::UpstreamError, "the upstream closed the \"connection\"");
        let text = |api, dialect| {
            let event = error_event(api, dialect, &error, ErrorIds::default());
            String::from_utf8(event.to_vec()).expect("text")
        };
        let chat = text(ChatApi::Chat, ClientDialect::OpenAi);
        assert!(chat.starts_with("data: {\"error\":{\"message\":") && chat.ends_with("}\n\n"), "{chat}");
        let messages = text(ChatApi::Messages, ClientDialect::Anthropic);
        assert!(messages.starts_with("event: error\ndata: {\"type\":\"error\",\"error\":{"), "{messages}");
        let responses = text(ChatApi::Responses, ClientDialect::OpenAi);
        let data = responses.strip_prefix("event: error\ndata: ").expect("named").trim_end();
        let value: serde_json::Value = serde_json::from_str(data).expect("JSON");
        assert_eq!((&value["type"], &value["code"]), (&"error".into(), &"upstream_error".into()));
        assert_eq!(value["error"]["code"], "upstream_error");
    }
}
