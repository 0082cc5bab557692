//! What the provider saw: every call, in the order in which calls were complete, and sums over all of them.
//!
//! Owns memory and the optional log file. A call is entered before it is answered, so whoever holds an answer finds its
//! call here.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::Path;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};
use tokio::sync::Notify;

use super::script::Record;
use crate::clock;

/// One call.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Number of the call, from 0; survives [`super::Provider::clear`].
    pub seq: u64,
    /// Number of its connection, from 0.
    pub connection: u64,
    /// When its head had arrived, in nanoseconds since the provider started.
    pub arrived_ns: u64,
    /// The same on the wall clock, in milliseconds since 1970.
    pub arrived_unix_ms: u64,
    /// When its answer was handed to the system or given up, in nanoseconds since the provider started; 0: not yet.
    pub finished_ns: u64,
    /// Method as sent.
    pub method: String,
    /// Path and query as sent.
    pub path: String,
    /// Headers in the order and spelling in which they came; bytes above 127 read as Latin-1.
    pub headers: Vec<(String, String)>,
    /// Body as received, chunks joined.
    pub body: Bytes,
    /// The body arrived in full.
    pub body_complete: bool,
    /// Texts or documents in it.
    pub items: usize,
    /// Tokens billed; set before the answer leaves.
    pub tokens_billed: u64,
    /// Status answered; 0: none was.
    pub status: u16,
    /// Every byte of the answer was handed to the system.
    pub fully_written: bool,
    /// The client closed its connection before the answer began.
    pub client_left: bool,
}

impl Call {
    /// The first header of this name, in any spelling.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.as_str())
    }

    /// The body as JSON; `null` if it is none.
    pub fn json(&self) -> serde_json::Value {
        serde_json::from_slice(&self.body).unwrap_or_default()
    }
}

impl Serialize for Call {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut line = serializer.serialize_struct("Call", 15)?;
        line.serialize_field("seq", &self.seq)?;
        line.serialize_field("connection", &self.connection)?;
        line.serialize_field("arrived_ns", &self.arrived_ns)?;
        line.serialize_field("arrived_unix_ms", &self.arrived_unix_ms)?;
        line.serialize_field("finished_ns", &self.finished_ns)?;
        line.serialize_field("method", &self.method)?;
        line.serialize_field("path", &self.path)?;
        line.serialize_field("headers", &self.headers)?;
        match std::str::from_utf8(&self.body) {
            Ok(text) => line.serialize_field("body", text)?,
            Err(_) => line.serialize_field("body_base64", &base64_simd::STANDARD.encode_to_string(&self.body))?,
        }
        line.serialize_field("body_complete", &self.body_complete)?;
        line.serialize_field("items", &self.items)?;
        line.serialize_field("tokens_billed", &self.tokens_billed)?;
        line.serialize_field("status", &self.status)?;
        line.serialize_field("fully_written", &self.fully_written)?;
        line.serialize_field("client_left", &self.client_left)?;
        line.end()
    }
}

/// Sums over all calls since the start or the last clearing.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Stats {
    /// Calls whose head was read.
    pub calls: u64,
    /// Calls that were answered or given up.
    pub finished: u64,
    /// Items of all calls.
    pub items: u64,
    /// Tokens billed.
    pub tokens_billed: u64,
    /// Calls whose good answer was handed over whole to a client that was still there.
    pub delivered: u64,
    /// Tokens billed for those: what a client can know of.
    pub tokens_delivered: u64,
    /// Calls that the script sets apart. They are in none of the other sums.
    pub apart: u64,
    /// Calls by the status answered; 0: none was.
    pub by_status: BTreeMap<u16, u64>,
    /// Connections accepted.
    pub connections: u64,
    /// Connections open now.
    pub open_connections: u64,
    /// Most calls in work at once.
    pub most_at_once: u64,
}

#[derive(Default)]
struct Inner {
    calls: VecDeque<Call>,
    /// Calls entered under an earlier clearing are not counted when they finish.
    first_seq: u64,
    next_seq: u64,
    stats: Stats,
}

/// How a call ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct End {
    /// Status answered; 0: none was.
    pub status: u16,
    /// Tokens billed.
    pub tokens: u64,
    /// Every byte of the answer was handed to the system.
    pub fully_written: bool,
    /// The client closed its connection before the answer began.
    pub client_left: bool,
}

/// The log.
pub(super) struct CallLog {
    inner: Mutex<Inner>,
    changed: Condvar,
    changed_async: Notify,
    file: Option<mpsc::Sender<Call>>,
}

impl CallLog {
    /// A log that also writes each finished call as a JSON line to a file, if one is named.
    ///
    /// # Errors
    /// Those of creating the file or its writer's thread.
    pub fn new(file: Option<&Path>) -> io::Result<Self> {
        let file = file.map(open).transpose()?;
        Ok(Self { inner: Mutex::default(), changed: Condvar::new(), changed_async: Notify::new(), file })
    }

    /// Enters a call and gives it its number.
    pub fn begin(&self, mut call: Call, record: Record, keep: usize) -> u64 {
        let mut inner = self.inner.lock();
        let seq = inner.next_seq;
        inner.next_seq += 1;
        inner.stats.calls += 1;
        inner.stats.items += call.items as u64;
        let at_once = inner.stats.calls - inner.stats.finished.min(inner.stats.calls);
        inner.stats.most_at_once = inner.stats.most_at_once.max(at_once);
        if record != Record::Counts {
            call.seq = seq;
            if record == Record::Heads {
                call.body = Bytes::new();
            }
            if inner.calls.len() >= keep {
                inner.calls.pop_front();
            }
            inner.calls.push_back(call);
        }
        drop(inner);
        self.tell();
        seq
    }

    /// Notes a call that the script sets apart.
    pub fn apart(&self) {
        self.inner.lock().stats.apart += 1;
    }

    /// Notes what a call will be answered with.
    pub fn answering(&self, seq: u64, status: u16, tokens: u64) {
        let mut inner = self.inner.lock();
        if seq < inner.first_seq {
            return;
        }
        inner.stats.tokens_billed += tokens;
        if let Some(call) = find(&mut inner.calls, seq) {
            call.status = status;
            call.tokens_billed = tokens;
        }
    }

    /// Notes that a call is over.
    pub fn finish(&self, seq: u64, end: &End, at_ns: u64) {
        let End { status, tokens, fully_written, client_left } = *end;
        let mut inner = self.inner.lock();
        if seq < inner.first_seq {
            return;
        }
        inner.stats.finished += 1;
        if fully_written && !client_left && (200..300).contains(&status) {
            inner.stats.delivered += 1;
            inner.stats.tokens_delivered += tokens;
        }
        *inner.stats.by_status.entry(status).or_default() += 1;
        let call = find(&mut inner.calls, seq).map(|call| {
            call.fully_written = fully_written;
            call.client_left = client_left;
            call.finished_ns = at_ns;
            call.clone()
        });
        drop(inner);
        self.tell();
        if let (Some(file), Some(call)) = (&self.file, call) {
            // The writer ends only with the process or on a full disk; the calls themselves go on.
            let _ = file.send(call);
        }
    }

    fn tell(&self) {
        self.changed.notify_all();
        self.changed_async.notify_waiters();
    }

    /// Waits until the sums satisfy `enough`, on any runtime.
    ///
    /// # Cancel safety
    /// Dropping the future changes nothing.
    pub async fn until(&self, enough: impl Fn(&Stats) -> bool) {
        loop {
            let changed = self.changed_async.notified();
            tokio::pin!(changed);
            // Listening begins before looking, so that no change falls between the two.
            changed.as_mut().enable();
            if enough(&self.inner.lock().stats) {
                return;
            }
            changed.await;
        }
    }

    pub fn connection_opened(&self) -> u64 {
        let mut inner = self.inner.lock();
        inner.stats.open_connections += 1;
        inner.stats.connections += 1;
        inner.stats.connections - 1
    }

    pub fn connection_closed(&self) {
        let mut inner = self.inner.lock();
        inner.stats.open_connections = inner.stats.open_connections.saturating_sub(1);
    }

    pub fn calls(&self) -> Vec<Call> {
        self.inner.lock().calls.iter().cloned().collect()
    }

    /// At most `limit` calls from number `since` on.
    pub fn calls_since(&self, since: u64, limit: usize) -> Vec<Call> {
        self.inner.lock().calls.iter().filter(|call| call.seq >= since).take(limit).cloned().collect()
    }

    pub fn stats(&self) -> Stats {
        self.inner.lock().stats.clone()
    }

    /// Forgets all calls and sums; open connections stay counted.
    pub fn clear(&self) {
        let mut inner = self.inner.lock();
        inner.calls.clear();
        inner.first_seq = inner.next_seq;
        inner.stats = Stats {
            connections: inner.stats.connections,
            open_connections: inner.stats.open_connections,
            ..Stats::default()
        };
    }

    /// Waits until the sums satisfy `enough`; false if `patience` ran out first.
    pub fn wait(&self, patience: Duration, enough: impl Fn(&Stats) -> bool) -> bool {
        let deadline: Instant = clock::now() + patience;
        let mut inner = self.inner.lock();
        while !enough(&inner.stats) {
            if self.changed.wait_until(&mut inner, deadline).timed_out() {
                return enough(&inner.stats);
            }
        }
        true
    }
}

/// The call of this number. They are in order and without holes unless some were forgotten at the front.
fn find(calls: &mut VecDeque<Call>, seq: u64) -> Option<&mut Call> {
    let first = calls.front()?.seq;
    let place = usize::try_from(seq.checked_sub(first)?).ok()?;
    if calls.get(place).is_some_and(|call| call.seq == seq) {
        return calls.get_mut(place);
    }
    calls.iter_mut().find(|call| call.seq == seq)
}

fn open(path: &Path) -> io::Result<mpsc::Sender<Call>> {
    let mut file = BufWriter::new(File::create(path)?);
    let (sender, calls) = mpsc::channel::<Call>();
    thread::Builder::new().name("call-log".to_owned()).spawn(move || {
        while let Ok(call) = calls.recv() {
            let mut next = Some(call);
            while let Some(call) = next {
                let written = serde_json::to_writer(&mut file, &call).map_err(io::Error::from);
                if written.and_then(|()| file.write_all(b"\n")).is_err() {
                    return;
                }
                next = calls.try_recv().ok();
            }
            // Whoever reads the file while the provider runs finds whole lines.
            if file.flush().is_err() {
                return;
            }
        }
    })?;
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn enter(log: &CallLog, record: Record, keep: usize) -> u64 {
        let call = Call { items: 2, body: Bytes::from_static(b"text"), ..Call::default() };
        log.begin(call, record, keep)
    }

    const WHOLE: End = End { status: 200, tokens: 7, fully_written: true, client_left: false };

    #[test]
    fn a_call_is_entered_billed_and_finished() {
        let log = CallLog::new(None).expect("no file");
        let seq = enter(&log, Record::All, 10);
        log.answering(seq, 200, 7);
        assert_eq!(log.stats().tokens_billed, 7);
        assert!(!log.calls()[0].fully_written);
        log.finish(seq, &WHOLE, 5);
        assert_eq!((log.stats().delivered, log.stats().tokens_delivered), (1, 7));
        let call = &log.calls()[0];
        assert_eq!((call.status, call.tokens_billed, call.fully_written, call.finished_ns), (200, 7, true, 5));
        assert_eq!(log.stats().by_status[&200], 1);
    }

    #[test]
    fn a_cleared_call_is_not_counted_when_it_finishes() {
        let log = CallLog::new(None).expect("no file");
        let old = enter(&log, Record::All, 10);
        log.clear();
        log.answering(old, 200, 7);
        log.finish(old, &WHOLE, 5);
        assert_eq!(log.stats(), Stats::default());
        assert_eq!(enter(&log, Record::All, 10), 1, "numbers go on");
    }

    #[test]
    fn memory_is_bounded_and_may_hold_less() {
        let log = CallLog::new(None).expect("no file");
        for _ in 0..3 {
            enter(&log, Record::All, 2);
        }
        assert_eq!(log.calls().iter().map(|call| call.seq).collect::<Vec<_>>(), [1, 2]);
        log.clear();
        enter(&log, Record::Heads, 2);
        assert!(log.calls()[0].body.is_empty());
        enter(&log, Record::Counts, 2);
        assert_eq!((log.calls().len(), log.stats().calls, log.stats().items), (1, 2, 4));
    }

    #[test]
    fn a_line_is_json_whatever_the_body_holds() {
        let call = Call { body: Bytes::from_static(b"\xff\xfe"), ..Call::default() };
        let line = serde_json::to_value(&call).expect("JSON");
        assert_eq!(line["body_base64"], "//4=");
        let call = Call { body: Bytes::from_static("añ\n".as_bytes()), ..Call::default() };
        assert_eq!(serde_json::to_value(&call).expect("JSON")["body"], "añ\n");
    }
}
