//! One connection: reads calls, asks the script, answers or misbehaves.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, Interest};
use tokio::net::TcpStream;

use super::control;
use super::dialect::request::{Job, read};
use super::dialect::{Dialect, Op, Route, route};
use super::http1::{Head, ReadError, read_body, read_head};
use super::live::Live;
use super::log::{Call, CallLog, End};
use super::make::{Made, forced, make, quota};
use super::rules::{Effect, Facts, Fault, Moment};
use super::script::{Framing, Record};
use super::wire::{After, Answer, Delivery, send, write_both, write_head};
use crate::{clock, timer};

/// What all connections share.
pub(super) struct Shared {
    pub live: parking_lot::RwLock<Arc<Live>>,
    pub log: CallLog,
    pub started: Instant,
    /// Wakes the listener when the script changes.
    pub script_changed: tokio::sync::Notify,
}

impl Shared {
    pub fn live(&self) -> Arc<Live> {
        Arc::clone(&self.live.read())
    }

    fn now_ns(&self) -> u64 {
        u64::try_from(clock::now().duration_since(self.started).as_nanos()).unwrap_or(u64::MAX)
    }
}

struct Connection {
    stream: TcpStream,
    buffer: BytesMut,
    number: u64,
    calls: u64,
}

/// Counts a connection for as long as it is served, however that ends.
struct Open<'a>(&'a CallLog);

impl Drop for Open<'_> {
    fn drop(&mut self) {
        self.0.connection_closed();
    }
}

/// Serves a connection until it ends.
///
/// # Cancel safety
/// Dropping the future closes the connection; a call in work stays in the log as not finished.
pub(super) async fn connection(shared: Arc<Shared>, stream: TcpStream) {
    let number = shared.log.connection_opened();
    let _open = Open(&shared.log);
    // Only costs latency where it fails, which it does on a connection that is already gone.
    let _ = stream.set_nodelay(true);
    let accepted = shared.live().choose(Moment::Accept, Facts::default());
    let mut connection = Connection { stream, buffer: BytesMut::with_capacity(8192), number, calls: 0 };
    let after = match accepted.and_then(|effect| effect.fault) {
        Some(Fault::ResetOnAccept) => After::Reset,
        Some(_) => After::Close,
        None => loop {
            match exchange(&shared, &mut connection).await {
                Ok(After::KeepAlive) => {}
                Ok(after) => break after,
                Err(_) => break After::Close,
            }
        },
    };
    match after {
        After::Reset => {
            // On a connection that is already gone there is nothing left to reset.
            let _ = connection.stream.set_zero_linger();
        }
        After::AwaitClient => await_client(&mut connection.stream).await,
        After::KeepAlive | After::Close => close_gently(&mut connection.stream).await,
    }
}

/// Reads until the client closes.
async fn await_client(stream: &mut TcpStream) {
    let mut sink = BytesMut::with_capacity(65536);
    while matches!(stream.read_buf(&mut sink).await, Ok(1..)) {
        sink.clear();
    }
}

/// Closes so that the peer reads what was sent. Closing with unread bytes in the buffer would reset the connection
/// and take the answer with it, so a client that still sends is heard out for a moment.
async fn close_gently(stream: &mut TcpStream) {
    use tokio::io::AsyncWriteExt;
    if stream.shutdown().await.is_ok() {
        // Patience for a client that neither reads nor closes is all this bounds.
        let _ = tokio::time::timeout(Duration::from_millis(200), await_client(stream)).await;
    }
}

async fn exchange(shared: &Arc<Shared>, connection: &mut Connection) -> io::Result<After> {
    let head = match read_head(&mut connection.stream, &mut connection.buffer).await {
        Ok(head) => head,
        Err(ReadError::Gone) => return Ok(After::Close),
        Err(ReadError::Malformed(why)) => return malformed(connection, why).await,
    };
    connection.calls += 1;
    let mut call = Call {
        connection: connection.number,
        arrived_ns: shared.now_ns(),
        arrived_unix_ms: clock::unix_ms(),
        method: head.method.clone(),
        path: head.target.clone(),
        ..Call::default()
    };
    let live = shared.live();
    if live.script.record != Record::Counts {
        call.headers = head.headers();
    }
    let is_control = head.target.starts_with(control::PREFIX);
    let at_head = Facts { target: &head.target, body: &[] };
    if !is_control && let Some(effect) = live.choose(Moment::Head, at_head) {
        return Ok(give_up_at_head(shared, connection, call, &effect, &live).await);
    }
    let mut body = BytesMut::new();
    let received = read_body(&mut connection.stream, &mut connection.buffer, &head, &mut body).await;
    call.body = body.freeze();
    match received {
        Ok(()) => call.body_complete = true,
        Err(error) => {
            let seq = shared.log.begin(call, live.script.record, live.script.keep_calls);
            shared.log.finish(seq, &End { client_left: true, ..End::default() }, shared.now_ns());
            return match error {
                ReadError::Gone => Ok(After::Close),
                ReadError::Malformed(why) => malformed(connection, why).await,
            };
        }
    }
    if is_control {
        let answer = control::answer(shared, &head.method, &head.target, &call.body);
        return plain(connection, &answer, head.keep_alive).await;
    }
    let last = live.script.max_calls_per_connection;
    let worn_out = last > 0 && connection.calls >= last;
    let after = serve(shared, &live, connection, &head, call).await?;
    Ok(if worn_out && after == After::KeepAlive { After::Close } else { after })
}

/// A fault that strikes before the body is read.
async fn give_up_at_head(
    shared: &Shared,
    connection: &mut Connection,
    call: Call,
    effect: &Effect,
    live: &Live,
) -> After {
    let seq = shared.log.begin(call, live.script.record, live.script.keep_calls);
    let after = match effect.fault {
        Some(Fault::ResetAfterHead) => After::Reset,
        Some(Fault::NeverRead) => {
            wait_for_departure(&connection.stream).await;
            After::Close
        }
        _ => After::Close,
    };
    shared.log.finish(seq, &End::default(), shared.now_ns());
    after
}

/// Waits until the client closes, without reading what it sends.
async fn wait_for_departure(stream: &TcpStream) {
    // Unread bytes keep the socket readable, so the end of the stream is asked for at intervals.
    while stream.ready(Interest::READABLE).await.is_ok_and(|ready| !ready.is_read_closed()) {
        timer::sleep(Duration::from_millis(20)).await;
    }
}

async fn malformed(connection: &mut Connection, why: &str) -> io::Result<After> {
    let answer = Answer::new(400, Some("text/plain"), why.to_owned());
    plain(connection, &answer, false).await
}

async fn plain(connection: &mut Connection, answer: &Answer, keep_alive: bool) -> io::Result<After> {
    let pace = super::delay::Pace::default();
    let delivery = Delivery { pace: &pace, framing: Framing::Length, trailers: &[], fault: None, keep_alive };
    Ok(send(&mut connection.stream, answer, &delivery).await?.0)
}

async fn serve(
    shared: &Shared,
    live: &Live,
    connection: &mut Connection,
    head: &Head,
    mut call: Call,
) -> io::Result<After> {
    let script = &live.script;
    let route = route(&head.method, &head.target, script.dialect);
    let effect = live.choose(Moment::Body, Facts { target: &head.target, body: &call.body });
    if let (Some(canned), None) = (&live.canned, &effect)
        && route == (Route { dialect: Dialect::Openai, op: Op::Embed })
    {
        let (items, tokens, body) = canned.answer(&call.body);
        call.items = items;
        let seq = shared.log.begin(call, script.record, script.keep_calls);
        return canned_answer(shared, live, connection, head, Numbered { seq, items }, tokens, body).await;
    }
    let key = script.api_key.as_ref().and_then(|_| key(&call, head));
    let body = call.body.clone();
    let job = read(route, &body, script);
    if script.apart.iter().any(|part| memchr::memmem::find(&body, part.as_bytes()).is_some()) {
        shared.log.apart();
        let effect = effect.unwrap_or_default();
        if effect.fault.is_some() {
            return Ok(After::Close);
        }
        let made =
            forced(route, &effect, live).unwrap_or_else(|| make(route, key.as_deref(), &body, job, &effect, live));
        return plain(connection, &made.answer, head.keep_alive).await;
    }
    call.items = job.as_ref().map_or(0, Job::items);
    let items = call.items;
    let seq = shared.log.begin(call, script.record, script.keep_calls);
    let effect = effect.unwrap_or_default();
    let early = match effect.fault {
        Some(Fault::CloseAfterBody) => Some(After::Close),
        Some(Fault::ResetAfterBody) => Some(After::Reset),
        Some(Fault::NeverAnswer) => Some(After::AwaitClient),
        _ => None,
    };
    if let Some(after) = early {
        if after == After::AwaitClient {
            await_client(&mut connection.stream).await;
        }
        let end = End { client_left: after == After::AwaitClient, ..End::default() };
        shared.log.finish(seq, &end, shared.now_ns());
        return Ok(if after == After::AwaitClient { After::Close } else { after });
    }
    let made = forced(route, &effect, live).unwrap_or_else(|| make(route, key.as_deref(), &body, job, &effect, live));
    deliver(shared, live, connection, head, Numbered { seq, items }, made, &effect).await
}

/// A call that is in the log.
#[derive(Clone, Copy)]
struct Numbered {
    seq: u64,
    items: usize,
}

async fn deliver(
    shared: &Shared,
    live: &Live,
    connection: &mut Connection,
    head: &Head,
    call: Numbered,
    made: Made<'_>,
    effect: &Effect,
) -> io::Result<After> {
    let script = &live.script;
    let delay = match effect.delay {
        Some(delay) => live.draw(delay, 0),
        None if made.good => live.draw(script.delay, call.items),
        None => Duration::ZERO,
    };
    let client_left = wait(connection, delay).await;
    if client_left && script.drop_abandoned {
        shared.log.finish(call.seq, &End { client_left: true, ..End::default() }, shared.now_ns());
        return Ok(After::Close);
    }
    let status = made.answer.status;
    shared.log.answering(call.seq, status, made.tokens);
    let default_pace = super::delay::Pace::default();
    let pace = match &effect.pace {
        Some(pace) => pace,
        None if made.good => &script.pace,
        None => &default_pace,
    };
    let delivery = Delivery {
        pace,
        framing: effect.framing.unwrap_or(script.framing),
        trailers: &script.trailers,
        fault: effect.fault.as_ref(),
        keep_alive: head.keep_alive,
    };
    let sent = send(&mut connection.stream, &made.answer, &delivery).await;
    drop(made.places);
    let fully_written = sent.as_ref().is_ok_and(|(_, whole)| *whole);
    let end = End { status, tokens: made.tokens, fully_written, client_left };
    shared.log.finish(call.seq, &end, shared.now_ns());
    sent.map(|(after, _)| after)
}

async fn canned_answer(
    shared: &Shared,
    live: &Live,
    connection: &mut Connection,
    head: &Head,
    call: Numbered,
    tokens: u64,
    body: Bytes,
) -> io::Result<After> {
    let route = Route { dialect: Dialect::Openai, op: Op::Embed };
    let headers = match quota(route, tokens, live) {
        Ok(headers) => headers,
        Err(made) => {
            return deliver(shared, live, connection, head, call, *made, &Effect::default()).await;
        }
    };
    let client_left = wait(connection, live.draw(live.script.delay, call.items)).await;
    shared.log.answering(call.seq, 200, tokens);
    let length = body.len() as u64;
    let mut answer = Answer::json(200, Bytes::new());
    answer.headers.extend(live.script.response_headers.iter().cloned().chain(headers));
    let mut start = BytesMut::with_capacity(256);
    write_head(&mut start, &answer, Some(length), false, head.keep_alive);
    let sent = write_both(&mut connection.stream, &start, &body).await;
    let end = End { status: 200, tokens, fully_written: sent.is_ok(), client_left };
    shared.log.finish(call.seq, &end, shared.now_ns());
    sent.map(|()| if head.keep_alive { After::KeepAlive } else { After::Close })
}

/// Waits, and notices if the client leaves meanwhile. What it sends is kept for the next call.
async fn wait(connection: &mut Connection, delay: Duration) -> bool {
    if delay.is_zero() {
        return false;
    }
    let pause = timer::sleep(delay);
    tokio::pin!(pause);
    let Connection { stream, buffer, .. } = connection;
    let mut left = false;
    while !left && buffer.len() < 65536 {
        buffer.reserve(4096);
        tokio::select! {
            () = &mut pause => return false,
            read = stream.read_buf(buffer) => left = !matches!(read, Ok(1..)),
        }
    }
    pause.await;
    left
}

/// The key a call carries, wherever clients of any dialect put it.
fn key(call: &Call, head: &Head) -> Option<String> {
    let headers = if call.headers.is_empty() { head.headers() } else { call.headers.clone() };
    let find = |name: &str| headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value);
    find("x-api-key")
        .or_else(|| find("api-key"))
        .map(String::as_str)
        .or_else(|| find("authorization").and_then(|value| value.strip_prefix("Bearer ")))
        .map(str::to_owned)
}
