//! From a call to its answer: key, limits, places, quota, then the dialect. No sockets, no waiting.

use super::dialect::answer::{Shape, embed};
use super::dialect::chat::chat;
use super::dialect::info::look;
use super::dialect::refusal::{self, Kind, Refusal};
use super::dialect::request::{EmbedJob, Job};
use super::dialect::rerank::rerank;
use super::dialect::{self, Op, Route};
use super::limits::{Limits, cut};
use super::live::{Live, Places};
use super::quota::Axis;
use super::quota_headers;
use super::rules::Effect;
use super::script::Chat;
use super::signature::Item;
use super::usage::Tokens;
use super::wire::Answer;
use crate::clock;

/// An answer, what it costs, and the places its call occupies until it is sent.
pub(super) struct Made<'a> {
    pub answer: Answer,
    pub tokens: u64,
    /// The answer is a good one: it takes the script's delay and pace.
    pub good: bool,
    pub places: Option<Places<'a>>,
}

impl Made<'_> {
    fn refused(answer: Answer) -> Self {
        Self { answer, tokens: 0, good: false, places: None }
    }
}

/// The answer a script forces on a call, if it does.
pub(super) fn forced(route: Route, effect: &Effect, live: &Live) -> Option<Made<'static>> {
    let mut answer = match (&effect.body, effect.status) {
        (Some(body), status) => {
            let content_type = effect.content_type.as_deref().unwrap_or("application/json");
            let content_type = (!body.is_empty() || effect.content_type.is_some()).then_some(content_type);
            Answer::new(status.unwrap_or(200), content_type, body.clone())
        }
        (None, Some(status)) if status != 200 => {
            let refusal = Refusal::new(Kind::Forced(status), &format!("scripted error {status}"));
            refusal::answer(route, &refusal, &live.script)
        }
        _ => return None,
    };
    answer.headers.extend(live.script.response_headers.iter().chain(&effect.headers).cloned());
    Some(Made { answer, tokens: effect.bill.unwrap_or(0), good: false, places: None })
}

/// The answer to a call by the script.
pub(super) fn make<'a>(
    route: Route,
    key: Option<&str>,
    body: &[u8],
    job: Result<Job, Refusal>,
    effect: &Effect,
    live: &'a Live,
) -> Made<'a> {
    let mut made = decide(route, key, body, job, effect, live);
    made.answer.headers.extend(live.script.response_headers.iter().chain(&effect.headers).cloned());
    made
}

fn decide<'a>(
    route: Route,
    key: Option<&str>,
    body: &[u8],
    job: Result<Job, Refusal>,
    effect: &Effect,
    live: &'a Live,
) -> Made<'a> {
    let script = &live.script;
    let refuse = |refusal: &Refusal| Made::refused(refusal::answer(route, refusal, script));
    if let Some(expected) = &script.api_key
        && route.op != Op::Health
        && key != Some(expected.as_str())
    {
        return refuse(&Refusal::new(Kind::NoKey, "incorrect API key provided"));
    }
    if let Some(excess) = script.limits.excess(0, body.len(), 0) {
        return Made::refused(refusal::too_much(route, excess, script));
    }
    let mut job = match job {
        Ok(Job::Look) => {
            return Made { answer: look(route, script), tokens: 0, good: true, places: None };
        }
        Ok(job) => job,
        Err(refusal) => return refuse(&refusal),
    };
    if let Job::Embed(embed) = &mut job
        && let Err(refusal) = shorten_items(embed, live)
    {
        return refuse(&refusal);
    }
    let chat_shape = effect.chat.as_ref().unwrap_or(&script.chat);
    let tokens = count(&job, live, chat_shape);
    let own = script.real_limits.then(|| dialect::max_items(route, script.tei.max_client_batch_size)).flatten();
    let limits = Limits { max_items: script.limits.max_items.or(own), ..script.limits.clone() };
    if let Some(excess) = limits.excess(job.items(), 0, tokens.input) {
        return Made::refused(refusal::too_much(route, excess, script));
    }
    let Some(places) = live.occupy(job.items()) else {
        return refuse(&Refusal::new(Kind::Overloaded, "model is overloaded"));
    };
    let headers = match quota(route, tokens.total(), live) {
        Ok(headers) => headers,
        Err(made) => return *made,
    };
    let model = job.model().map(str::to_owned);
    let shape = Shape {
        space: effect.space.as_deref().unwrap_or_else(|| script.space_for(model.as_deref())),
        noise: effect.noise.unwrap_or(script.noise),
        usage: effect.usage.unwrap_or(script.usage),
        labels: effect.labels.as_ref().unwrap_or(&script.labels),
        defect: effect.defect.as_ref(),
    };
    let mut answer = match &job {
        Job::Embed(job) => embed(route, job, tokens.total(), script, shape),
        Job::Rerank(job) => {
            let texts = memchr::memmem::find(body, b"\"texts\"").is_some();
            rerank(route, texts, job, tokens.total(), shape)
        }
        Job::Chat(job) => chat(route, job, tokens, chat_shape, shape.usage),
        Job::Look => look(route, script),
    };
    answer.headers.extend(headers);
    Made { answer, tokens: tokens.total(), good: true, places: Some(places) }
}

/// Takes a call's tokens from the quota: the headers that tell what is left, or the refusal.
pub(super) fn quota(route: Route, tokens: u64, live: &Live) -> Result<Vec<(String, String)>, Box<Made<'static>>> {
    let Some(quota) = &live.script.quota else { return Ok(Vec::new()) };
    let (levels, exhausted) = live.take_quota(tokens);
    if exhausted.is_none() && quota.headers_only_on_429 {
        return Ok(Vec::new());
    }
    let headers = quota_headers::headers(quota.headers, quota.retry_after, levels, exhausted, clock::unix_ms());
    let Some(exhausted) = exhausted else { return Ok(headers) };
    let (kind, unit) = match exhausted.axis {
        Axis::Requests => (Kind::RequestLimit, "requests"),
        Axis::Tokens => (Kind::TokenLimit, "tokens"),
    };
    let wait_ms = exhausted.wait_ns.min(60_000_000_000).div_ceil(1_000_000);
    let requested = exhausted.requested;
    let message =
        format!("limit of {unit} per minute reached, requested {requested}. Please try again in {wait_ms}ms.");
    let mut answer = refusal::answer(route, &Refusal::new(kind, &message), &live.script);
    answer.headers.extend(headers);
    Err(Box::new(Made::refused(answer)))
}

/// Cuts texts that are too long where the call allows it.
fn shorten_items(job: &mut EmbedJob, live: &Live) -> Result<(), Refusal> {
    let limits = &live.script.limits;
    for (place, item) in job.items.iter_mut().enumerate() {
        if let (Some(limit), Item::Text(text)) = (limits.max_item_bytes, &mut *item)
            && text.len() > limit
        {
            if !job.truncate {
                let message = format!("input length exceeds context: input[{place}] is longer than {limit}");
                return Err(Refusal::new(Kind::TooLong, &message).param("input"));
            }
            *text = cut(text, limit).to_owned();
        }
        let tokens = live.script.tokens.item(item);
        if let Some(limit) = limits.max_item_tokens.filter(|limit| tokens > *limit) {
            let message = format!("input[{place}] has {tokens} tokens, the maximum context length is {limit}");
            return Err(Refusal::new(Kind::TooLong, &message).param("input"));
        }
    }
    Ok(())
}

fn count(job: &Job, live: &Live, chat: &Chat) -> Tokens {
    let rule = live.script.tokens;
    match job {
        Job::Embed(job) => {
            Tokens::input(job.items.iter().fold(0, |sum: u64, item| sum.saturating_add(rule.item(item))))
        }
        Job::Rerank(job) => Tokens::input(rule.rerank(&job.query, &job.documents)),
        Job::Chat(job) => Tokens { input: rule.text(&job.prompt), output: chat.pieces as u64 },
        Job::Look => Tokens::default(),
    }
}
