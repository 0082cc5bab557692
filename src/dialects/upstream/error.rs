//! Error answers of every provider, in every body shape seen, as one [`ProviderError`].
//!
//! Says what an error means, never what to do about it. Knows no client dialect.

mod hints;

use std::time::Duration;

use serde_json::Value;

use super::scrub;
use super::scrub::cut_between_words;
use crate::config::plan::Provider;
use crate::dialects::{Fault, ProviderError};

/// Longest text that is passed on, characters.
const MAX_MESSAGE: usize = 500;

/// A body larger than this is not looked into for members.
const MAX_BODY: usize = 1 << 20;

/// A limit that is only lifted after this long is no throttle but a budget.
const BUDGET_WAIT: Duration = Duration::from_secs(3600);

/// What the body says, whatever its shape.
#[derive(Debug, Default)]
struct Said {
    message: Option<String>,
    code: Option<String>,
    kind: Option<String>,
    param: Option<String>,
    /// Whether the body was the provider's own JSON and not a framework's or a proxy's text.
    structured: bool,
}

/// An answer with a bad `status` in canonical form. `headers` gives the value of a header by its lower-case name.
///
/// Understands an `error` object or text, `detail` as text or list, a top-level `message`, plain text, HTML and
/// nothing at all.
pub fn decode_error(
    provider: Provider,
    status: u16,
    headers: &dyn Fn(&str) -> Option<String>,
    body: &[u8],
) -> ProviderError {
    let said = read_body(body, headers("content-type").as_deref());
    let text = said.message.as_deref().unwrap_or_default();
    let wait_hint = hints::wait(text);
    let fault = classify(provider, status, &said, wait_hint, headers);
    let limit_hint = if fault == Fault::TooLarge { hints::limit(text) } else { None };
    let too_long = fault == Fault::Request && hints::one_too_long(&text.to_ascii_lowercase(), said.code.as_deref());
    let message = match &said.message {
        Some(message) => clean(message),
        None => format!("the upstream answered {status} without a text"),
    };
    ProviderError {
        status,
        fault,
        code: said.code.map(|code| clean(&code)),
        kind: said.kind.map(|kind| clean(&kind)),
        message,
        param: said.param.map(|param| clean(&param)),
        limit_hint,
        too_long,
        wait_hint,
    }
}

/// Whether a refusal that names no kind of limit ("limit is 10") is about the number of inputs: it names exactly one
/// number, as a limit, and the call carried more inputs than that. A guess, so it is only made where the words alone say
/// nothing; if it is wrong, smaller calls meet the same refusal and their client hears of it.
pub fn names_fewer_items(error: &ProviderError, items: usize) -> bool {
    const LIMITS: [&str; 8] = ["limit", "max", "at most", "exceed", "more than", "larger", "greater", "up to"];
    let text = error.message.to_ascii_lowercase();
    let mut numbers = text.split(|c: char| !c.is_ascii_alphanumeric()).filter_map(|word| word.parse::<usize>().ok());
    let only = numbers.next().filter(|_| numbers.next().is_none());
    let about_one =
        ["token", "byte", "character", "length", "dimension", "index"].iter().any(|word| text.contains(word));
    error.fault == Fault::Request
        && matches!(error.status, 400 | 422)
        && !about_one
        && LIMITS.iter().any(|word| text.contains(word))
        && only.is_some_and(|only| (1..items).contains(&only))
}

/// One line, keys scrubbed, at most [`MAX_MESSAGE`] characters.
fn clean(text: &str) -> String {
    // Cut roughly first: scrubbing a megabyte for the sake of 500 characters helps nobody. A key that straddles the
    // final cut is already gone by then.
    let rough = cut_between_words(text, MAX_MESSAGE * 4);
    let line = rough.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let scrubbed = scrub(&line.collect::<Vec<_>>().join(" "));
    match scrubbed.char_indices().nth(MAX_MESSAGE) {
        None => scrubbed,
        Some((end, _)) => scrubbed[..end].to_owned(),
    }
}

fn read_body(body: &[u8], content_type: Option<&str>) -> Said {
    if body.len() <= MAX_BODY
        && let Ok(value) = serde_json::from_slice::<Value>(body)
        && let Some(said) = read_json(&value)
    {
        return said;
    }
    let text = String::from_utf8_lossy(body.get(..MAX_BODY.min(body.len())).unwrap_or_default());
    let text = text.trim();
    let html = content_type.is_some_and(|kind| kind.to_ascii_lowercase().contains("html")) || text.starts_with('<');
    let message = match (html, text.is_empty()) {
        (_, true) => None,
        (true, _) => Some(html_title(text).unwrap_or_else(|| "the upstream answered with an HTML page".to_owned())),
        (false, _) => Some(text.to_owned()),
    };
    Said { message, ..Said::default() }
}

/// The title of a page, which for proxies is the whole message ("502 Bad Gateway").
fn html_title(page: &str) -> Option<String> {
    let lower = page.to_ascii_lowercase();
    let from = lower.find("<title>")? + "<title>".len();
    let to = from + lower.get(from..)?.find("</title>")?;
    let title = page.get(from..to)?.trim();
    (!title.is_empty()).then(|| title.to_owned())
}

fn read_json(value: &Value) -> Option<Said> {
    let top = match value {
        Value::String(text) => {
            return Some(Said { message: Some(text.clone()), structured: true, ..Said::default() });
        }
        Value::Object(top) => top,
        _ => return None,
    };
    let mut said = Said { structured: true, ..Said::default() };
    // Inner members win over outer ones, since `{"type":"error","error":{…}}` says nothing by its outer type.
    let inner = top.get("error").or_else(|| top.get("detail")).filter(|inner| inner.is_object());
    for object in [inner, Some(value)].into_iter().flatten() {
        let member = |names: &[&str]| names.iter().find_map(|name| object.get(name).and_then(scalar));
        said.message = said.message.or_else(|| {
            ["message", "error", "detail", "msg", "error_description"].iter().find_map(|name| words(object.get(name)?))
        });
        said.code = said.code.or_else(|| member(&["code", "statusCode"]));
        said.kind = said.kind.or_else(|| member(&["type", "error_type"]));
        said.param = said.param.or_else(|| member(&["param"]));
    }
    Some(said)
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.is_empty() => Some(text.clone()),
        Value::Number(number) => Some(number.to_string()),
        _ => None,
    }
}

/// The words of a text, or of a list of texts or of `{loc, msg}` entries. Objects have none of their own here.
fn words(value: &Value) -> Option<String> {
    match value {
        Value::String(text) if !text.trim().is_empty() => Some(text.clone()),
        Value::Array(entries) => {
            let lines: Vec<String> = entries.iter().take(8).filter_map(entry_words).collect();
            (!lines.is_empty()).then(|| lines.join("; "))
        }
        _ => None,
    }
}

fn entry_words(entry: &Value) -> Option<String> {
    if let Value::String(text) = entry {
        return Some(text.clone());
    }
    let text = ["msg", "message", "detail"].iter().find_map(|name| entry.get(name).and_then(Value::as_str))?;
    let place: Vec<String> =
        entry.get("loc").and_then(Value::as_array).into_iter().flatten().filter_map(scalar).collect();
    Some(if place.is_empty() { text.to_owned() } else { format!("{}: {text}", place.join(".")) })
}

fn classify(
    provider: Provider,
    status: u16,
    said: &Said,
    wait: Option<Duration>,
    headers: &dyn Fn(&str) -> Option<String>,
) -> Fault {
    let text = said.message.as_deref().unwrap_or_default().to_ascii_lowercase();
    let names = |word: &str| {
        [&said.code, &said.kind].into_iter().flatten().any(|name| name.to_ascii_lowercase().contains(word))
    };
    match status {
        402 => Fault::Quota,
        401 | 403 if names("insufficient_balance") || out_of_credit(&text) => Fault::Quota,
        401 | 403 => Fault::Auth,
        429 if names("insufficient_quota") || names("insufficient_balance") || out_of_credit(&text) => Fault::Quota,
        429 if provider == Provider::Cohere && (text.contains("trial") || text.contains("month")) => Fault::Quota,
        429 if headers("x-ratelimit-limit-req-minute").as_deref().map(str::trim) == Some("0") => Fault::Quota,
        429 => {
            let header = headers("retry-after").and_then(|value| value.trim().parse::<u64>().ok());
            let longest = wait.max(header.map(Duration::from_secs));
            if longest >= Some(BUDGET_WAIT) { Fault::Quota } else { Fault::RateLimited }
        }
        // TEI's own 413 (before 1.9) and 422 are validation and speak JSON; its framework's are plain text, and of those
        // only 413 is about size.
        413 if provider == Provider::Tei && said.structured => request_or_too_large(&text, said),
        413 => Fault::TooLarge,
        400 | 422 => request_or_too_large(&text, said),
        // 408, 409 (a busy resource at Jina), 424 (inference failed at TEI) and 499 (the provider thinks that we hung up)
        // say nothing about the request.
        408 | 409 | 424 | 425 | 499 => Fault::Server,
        // Not in the provider's own form: a proxy's page, or another host than was meant.
        404 | 405 if !said.structured => Fault::Server,
        404..=498 => Fault::Request,
        _ => Fault::Server,
    }
}

fn out_of_credit(text: &str) -> bool {
    ["exceeded your current quota", "insufficient balance", "insufficient credit", "billing details", "out of credit"]
        .iter()
        .any(|words| text.contains(words))
}

fn request_or_too_large(text: &str, said: &Said) -> Fault {
    // Mistral's 3210 is "too many tokens in this batch".
    let by_code = matches!(said.code.as_deref(), Some("max_tokens_per_request" | "request_too_large" | "3210"));
    if by_code || hints::batch_too_large(text) { Fault::TooLarge } else { Fault::Request }
}

#[cfg(test)]
mod tests;
