//! Writing answers, whole, in pieces over time, or broken in a chosen way.

use std::io::{self, IoSlice};
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

use super::delay::Pace;
use super::rules::Fault;
use super::script::{Cut, Framing};
use crate::timer;

/// An answer before it is put on the wire.
#[derive(Clone, Debug)]
pub(super) struct Answer {
    pub status: u16,
    pub content_type: Option<String>,
    pub headers: Vec<(String, String)>,
    pub body: Body,
}

/// The body of an answer.
#[derive(Clone, Debug)]
pub(super) enum Body {
    Whole(Bytes),
    /// Events of a stream with a wait between two of them; always chunked. `cut`: how it ends, if not in order.
    Events {
        events: Vec<Bytes>,
        gap: Duration,
        cut: Option<Cut>,
    },
}

impl Answer {
    pub fn json(status: u16, body: impl Into<Bytes>) -> Self {
        Self::new(status, Some("application/json"), body)
    }

    pub fn new(status: u16, content_type: Option<&str>, body: impl Into<Bytes>) -> Self {
        let content_type = content_type.map(str::to_owned);
        Self { status, content_type, headers: Vec::new(), body: Body::Whole(body.into()) }
    }
}

/// How an answer is to be sent.
#[derive(Clone, Debug)]
pub(super) struct Delivery<'a> {
    pub pace: &'a Pace,
    pub framing: Framing,
    pub trailers: &'a [(String, String)],
    pub fault: Option<&'a Fault>,
    pub keep_alive: bool,
}

/// What became of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    KeepAlive,
    Close,
    Reset,
    /// Nothing more is sent; the connection ends when the client ends it.
    AwaitClient,
}

/// Writes the head of an answer. `length`: the `content-length`, or `None` for a chunked body.
pub(super) fn write_head(out: &mut BytesMut, answer: &Answer, length: Option<u64>, chunked: bool, keep_alive: bool) {
    out.extend_from_slice(b"HTTP/1.1 ");
    out.extend_from_slice(answer.status.to_string().as_bytes());
    out.extend_from_slice(b" ");
    out.extend_from_slice(reason(answer.status).as_bytes());
    out.extend_from_slice(b"\r\n");
    if let Some(content_type) = &answer.content_type {
        header(out, "content-type", content_type);
    }
    for (name, value) in &answer.headers {
        header(out, name, value);
    }
    if let Some(length) = length {
        header(out, "content-length", &length.to_string());
    }
    if chunked {
        header(out, "transfer-encoding", "chunked");
    }
    if !keep_alive {
        header(out, "connection", "close");
    }
    out.extend_from_slice(b"\r\n");
}

fn header(out: &mut BytesMut, name: &str, value: &str) {
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Sends an answer. `Ok` holds what becomes of the connection and whether every byte was handed to the system.
///
/// # Errors
/// Those of the socket: the client has left.
///
/// # Cancel safety
/// Not safe: a dropped call leaves half an answer on the wire.
pub(super) async fn send(
    stream: &mut TcpStream,
    answer: &Answer,
    delivery: &Delivery<'_>,
) -> io::Result<(After, bool)> {
    match delivery.fault {
        Some(Fault::Garbage) => {
            stream.write_all(b"\x00\x01\x02 this is not HTTP \xff\xfe\r\n\r\n").await?;
            return Ok((After::Close, false));
        }
        Some(Fault::HalfClose) => {
            stream.shutdown().await?;
            return Ok((After::AwaitClient, false));
        }
        Some(Fault::EndlessHeader) => return endless_header(stream).await,
        _ => {}
    }
    let plan = Plan::new(answer, delivery);
    if delivery.pace == &Pace::default() && plan.parts.len() <= 1 && plan.cut.is_none() {
        let body = plan.parts.first().map_or(&[][..], |(bytes, _)| bytes);
        write_both(stream, &plan.head, body).await?;
        return Ok((plan.after, plan.whole));
    }
    timer::sleep(delivery.pace.first_byte()).await;
    stream.write_all(&plan.head).await?;
    let mut left = plan.cut.unwrap_or(usize::MAX);
    for (bytes, pause) in &plan.parts {
        timer::sleep(*pause).await;
        let part = bytes.get(..left.min(bytes.len())).unwrap_or_default();
        stream.write_all(part).await?;
        left -= part.len();
        if left == 0 {
            break;
        }
    }
    if plan.after == After::Reset {
        // A reset throws away what the peer has not yet fetched; it is to see the part before the reset.
        timer::sleep(Duration::from_millis(5)).await;
    }
    Ok((plan.after, plan.whole))
}

/// Writes two buffers with as few system calls as possible.
pub(super) async fn write_both(stream: &mut TcpStream, head: &[u8], body: &[u8]) -> io::Result<()> {
    let mut sent = 0;
    while sent < head.len() {
        let parts = [IoSlice::new(head.get(sent..).unwrap_or_default()), IoSlice::new(body)];
        let written = stream.write_vectored(&parts).await?;
        if written == 0 {
            return Err(io::ErrorKind::WriteZero.into());
        }
        sent += written;
    }
    stream.write_all(body.get(sent - head.len()..).unwrap_or_default()).await
}

async fn endless_header(stream: &mut TcpStream) -> io::Result<(After, bool)> {
    stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n").await?;
    let line = [&b"x-padding: "[..], &[b'a'; 1000], b"\r\n"].concat();
    loop {
        stream.write_all(&line).await?;
        timer::sleep(Duration::from_millis(1)).await;
    }
}

/// What goes on the wire, in order.
struct Plan {
    head: BytesMut,
    parts: Vec<(Bytes, Duration)>,
    /// Bytes of the body after which nothing more is sent.
    cut: Option<usize>,
    after: After,
    whole: bool,
}

impl Plan {
    fn new(answer: &Answer, delivery: &Delivery<'_>) -> Self {
        let (cut, fault_after) = match delivery.fault {
            Some(Fault::Truncate { after_bytes }) => (Some(*after_bytes), Some(After::Close)),
            Some(Fault::ResetMidAnswer { after_bytes }) => (Some(*after_bytes), Some(After::Reset)),
            Some(Fault::WrongLength { .. } | Fault::CloseAfterAnswer) => (None, Some(After::Close)),
            _ => (None, None),
        };
        let events = matches!(answer.body, Body::Events { .. });
        let framing = if events && !matches!(delivery.framing, Framing::Close) {
            Framing::Chunked(usize::MAX)
        } else {
            delivery.framing
        };
        let keep_alive = delivery.keep_alive && framing != Framing::Close;
        let mut parts = Vec::new();
        let mut length = None;
        let mut clean = true;
        let mut streams_into = None;
        match &answer.body {
            Body::Whole(body) => {
                let off_by = if let Some(Fault::WrongLength { by }) = delivery.fault { *by } else { 0 };
                if framing == Framing::Length {
                    length = Some((body.len() as u64).saturating_add_signed(off_by));
                }
                paced(&mut parts, body, delivery.pace, framing);
            }
            Body::Events { events, gap, cut } => {
                for (place, event) in events.iter().enumerate() {
                    let pause = if place == 0 { Duration::ZERO } else { *gap };
                    let mut pieces = Vec::new();
                    paced(&mut pieces, event, delivery.pace, framing);
                    parts.extend(
                        pieces
                            .into_iter()
                            .enumerate()
                            .map(|(piece, (bytes, wait))| (bytes, if piece == 0 { wait + pause } else { wait })),
                    );
                }
                clean = matches!(cut, None | Some(Cut::Clean));
                streams_into = match cut {
                    Some(Cut::Reset) => Some(After::Reset),
                    Some(Cut::Silence) => Some(After::AwaitClient),
                    _ => None,
                };
            }
        }
        if matches!(framing, Framing::Chunked(_)) && clean {
            parts.push((last_chunk(delivery.trailers), Duration::ZERO));
        }
        let mut head = BytesMut::with_capacity(512);
        write_head(&mut head, answer, length, matches!(framing, Framing::Chunked(_)), keep_alive);
        let ending = streams_into.unwrap_or(if keep_alive && clean { After::KeepAlive } else { After::Close });
        let whole = clean && !matches!(fault_after, Some(After::Reset)) && cut.is_none();
        Self { head, parts, cut, after: fault_after.unwrap_or(ending), whole }
    }
}

fn paced(parts: &mut Vec<(Bytes, Duration)>, body: &Bytes, pace: &Pace, framing: Framing) {
    let mut start = 0;
    for (end, pause) in pace.pieces(body.len()) {
        let piece = body.slice(start..end);
        start = end;
        let Framing::Chunked(size) = framing else {
            parts.push((piece, pause));
            continue;
        };
        let mut wait = pause;
        for chunk in piece.chunks(size.max(1)) {
            let mut framed = BytesMut::with_capacity(chunk.len() + 16);
            framed.extend_from_slice(format!("{:x}\r\n", chunk.len()).as_bytes());
            framed.extend_from_slice(chunk);
            framed.extend_from_slice(b"\r\n");
            parts.push((framed.freeze(), std::mem::take(&mut wait)));
        }
    }
}

fn last_chunk(trailers: &[(String, String)]) -> Bytes {
    let mut out = BytesMut::from(&b"0\r\n"[..]);
    for (name, value) in trailers {
        header(&mut out, name, value);
    }
    out.extend_from_slice(b"\r\n");
    out.freeze()
}

fn reason(status: u16) -> &'static str {
    match status {
        200 => "OK",
        400 => "Bad Request",
        401 => "Unauthorized",
        402 => "Payment Required",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        413 => "Payload Too Large",
        415 => "Unsupported Media Type",
        422 => "Unprocessable Entity",
        424 => "Failed Dependency",
        429 => "Too Many Requests",
        500 => "Internal Server Error",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "Other",
    }
}
