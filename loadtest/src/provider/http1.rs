//! Reading HTTP/1.1 requests off a raw socket.
//!
//! Owns framing (length and chunked bodies, `Expect`), and hands up the raw head and body. It answers nothing; what is
//! malformed is an error that says so.

use std::io;

use bytes::{Buf, Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

const MAX_HEAD_BYTES: usize = 128 * 1024;
const MAX_HEADERS: usize = 128;
const MAX_BODY_BYTES: u64 = 4 << 30;
const MAX_CHUNK_LINE_BYTES: usize = 1024;

/// A request's head.
#[derive(Debug)]
pub(super) struct Head {
    pub method: String,
    pub target: String,
    pub keep_alive: bool,
    pub body: BodyLength,
    pub expects_continue: bool,
    raw: Bytes,
}

/// How long a request's body is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum BodyLength {
    Known(u64),
    Chunked,
}

/// Why no request could be read.
#[derive(Debug)]
pub(super) enum ReadError {
    /// The peer closed or broke the connection.
    Gone,
    /// What came is not a request that can be served.
    Malformed(&'static str),
}

impl From<io::Error> for ReadError {
    fn from(_: io::Error) -> Self {
        Self::Gone
    }
}

impl Head {
    /// Every header in the order and spelling in which it came; bytes above 127 read as Latin-1.
    pub fn headers(&self) -> Vec<(String, String)> {
        let mut slots = [httparse::EMPTY_HEADER; MAX_HEADERS];
        let mut request = httparse::Request::new(&mut slots);
        if request.parse(&self.raw).is_err() {
            return Vec::new();
        }
        let latin1 = |value: &[u8]| value.iter().map(|byte| char::from(*byte)).collect();
        request.headers.iter().map(|header| (header.name.to_owned(), latin1(header.value))).collect()
    }
}

/// Reads the next head. `buffer` keeps what came beyond it.
///
/// # Errors
/// `Gone` where the connection ends, `Malformed` where the bytes are no head.
///
/// # Cancel safety
/// What was read stays in `buffer`, so a dropped call can be repeated.
pub(super) async fn read_head(stream: &mut TcpStream, buffer: &mut BytesMut) -> Result<Head, ReadError> {
    loop {
        if !buffer.is_empty()
            && let Some(head) = parse_head(buffer)?
        {
            return Ok(head);
        }
        if buffer.len() > MAX_HEAD_BYTES {
            return Err(ReadError::Malformed("the head is too long"));
        }
        buffer.reserve(4096);
        if stream.read_buf(buffer).await? == 0 {
            return Err(ReadError::Gone);
        }
    }
}

fn parse_head(buffer: &mut BytesMut) -> Result<Option<Head>, ReadError> {
    let mut slots = [httparse::EMPTY_HEADER; MAX_HEADERS];
    let mut request = httparse::Request::new(&mut slots);
    let length = match request.parse(buffer) {
        Ok(httparse::Status::Complete(length)) => length,
        Ok(httparse::Status::Partial) => return Ok(None),
        Err(_) => return Err(ReadError::Malformed("not an HTTP/1.1 request")),
    };
    let mut body = BodyLength::Known(0);
    let mut keep_alive = request.version == Some(1);
    let mut expects_continue = false;
    for header in request.headers.iter() {
        let value = header.value.trim_ascii();
        if header.name.eq_ignore_ascii_case("content-length") {
            let number = std::str::from_utf8(value).ok().and_then(|text| text.parse().ok());
            let number = number.filter(|number| *number <= MAX_BODY_BYTES);
            let number = number.ok_or(ReadError::Malformed("content-length is not a usable number"))?;
            if body != BodyLength::Chunked {
                body = BodyLength::Known(number);
            }
        } else if header.name.eq_ignore_ascii_case("transfer-encoding") {
            if !value.eq_ignore_ascii_case(b"chunked") {
                return Err(ReadError::Malformed("unknown transfer-encoding"));
            }
            body = BodyLength::Chunked;
        } else if header.name.eq_ignore_ascii_case("connection") {
            let has = |token: &[u8]| {
                value.split(|byte| *byte == b',').any(|part| part.trim_ascii().eq_ignore_ascii_case(token))
            };
            if has(b"close") {
                keep_alive = false;
            } else if has(b"keep-alive") {
                keep_alive = true;
            }
        } else if header.name.eq_ignore_ascii_case("expect") {
            expects_continue = value.eq_ignore_ascii_case(b"100-continue");
        }
    }
    let method = request.method.unwrap_or_default().to_owned();
    let target = request.path.unwrap_or_default().to_owned();
    let raw = buffer.split_to(length).freeze();
    Ok(Some(Head { method, target, keep_alive, body, expects_continue, raw }))
}

/// Reads the body of `head` into `body`, asking for it with `100 Continue` where the client waits for that.
///
/// # Errors
/// `Gone` where the connection ends early, `Malformed` where chunks are. `body` then holds what came.
///
/// # Cancel safety
/// Not safe: a dropped call loses its place in a chunked body.
pub(super) async fn read_body(
    stream: &mut TcpStream,
    buffer: &mut BytesMut,
    head: &Head,
    body: &mut BytesMut,
) -> Result<(), ReadError> {
    if head.expects_continue && buffer.is_empty() {
        stream.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
    }
    match head.body {
        BodyLength::Known(length) => {
            let length = usize::try_from(length).map_err(|_| ReadError::Malformed("the body is too long"))?;
            take(stream, buffer, body, length).await
        }
        BodyLength::Chunked => loop {
            let size = chunk_size(&line(stream, buffer).await?)?;
            if size == 0 {
                while !line(stream, buffer).await?.is_empty() {}
                return Ok(());
            }
            take(stream, buffer, body, size).await?;
            if !line(stream, buffer).await?.is_empty() {
                return Err(ReadError::Malformed("a chunk is longer than it says"));
            }
        },
    }
}

/// Moves exactly `length` bytes into `body`.
async fn take(
    stream: &mut TcpStream,
    buffer: &mut BytesMut,
    body: &mut BytesMut,
    length: usize,
) -> Result<(), ReadError> {
    let end = body.len() + length;
    if body.is_empty() && buffer.len() >= length {
        *body = buffer.split_to(length);
        return Ok(());
    }
    let ready = buffer.len().min(length);
    body.reserve(length);
    body.extend_from_slice(&buffer.split_to(ready));
    while body.len() < end {
        let missing = end - body.len();
        if (&mut *stream).take(missing as u64).read_buf(body).await? == 0 {
            return Err(ReadError::Gone);
        }
    }
    Ok(())
}

/// The next line without its end.
async fn line(stream: &mut TcpStream, buffer: &mut BytesMut) -> Result<Bytes, ReadError> {
    loop {
        if let Some(end) = memchr::memchr(b'\n', buffer) {
            let mut line = buffer.split_to(end).freeze();
            buffer.advance(1);
            if line.last() == Some(&b'\r') {
                line.truncate(line.len() - 1);
            }
            return Ok(line);
        }
        if buffer.len() > MAX_CHUNK_LINE_BYTES {
            return Err(ReadError::Malformed("a chunk's first line is too long"));
        }
        if stream.read_buf(buffer).await? == 0 {
            return Err(ReadError::Gone);
        }
    }
}

fn chunk_size(line: &[u8]) -> Result<usize, ReadError> {
    let digits = line.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
    let size = std::str::from_utf8(digits).ok().and_then(|text| u32::from_str_radix(text, 16).ok());
    size.map(|size| size as usize).ok_or(ReadError::Malformed("a chunk's size is not a number"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    async fn read(bytes: &'static [u8]) -> Result<(Head, Bytes), String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let address = listener.local_addr().expect("bound");
        let sender = tokio::spawn(async move {
            let mut client = TcpStream::connect(address).await.expect("connects");
            // One byte at a time: no reading step may depend on how the bytes were cut.
            for byte in bytes {
                if client.write_all(&[*byte]).await.is_err() {
                    return;
                }
                tokio::task::yield_now().await;
            }
        });
        let (mut stream, _) = listener.accept().await.expect("accepts");
        let mut buffer = BytesMut::new();
        let head = read_head(&mut stream, &mut buffer).await.map_err(|error| format!("{error:?}"))?;
        let mut body = BytesMut::new();
        read_body(&mut stream, &mut buffer, &head, &mut body).await.map_err(|error| format!("{error:?}"))?;
        sender.await.expect("sender");
        Ok((head, body.freeze()))
    }

    #[track_caller]
    fn check(bytes: &'static [u8], expected: Result<(&str, bool, &[u8]), &str>) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("runtime");
        let seen = runtime.block_on(read(bytes));
        let seen = seen.as_ref().map(|(head, body)| (head.target.as_str(), head.keep_alive, body.as_ref()));
        match (seen, expected) {
            (Ok(seen), Ok(expected)) => assert_eq!(seen, expected),
            (Err(seen), Err(expected)) => assert!(seen.contains(expected), "{seen} has {expected}"),
            (seen, expected) => panic!("{seen:?} is not {expected:?}"),
        }
    }

    #[test]
    fn bodies_are_read_by_length_and_by_chunks() {
        check(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n", Ok(("/health", true, b"")));
        check(b"POST /a HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", Ok(("/a", true, b"abc")));
        check(b"POST /a HTTP/1.1\r\nConnection: close\r\nContent-Length: 0\r\n\r\n", Ok(("/a", false, b"")));
        check(b"POST /a HTTP/1.0\r\nContent-Length: 1\r\n\r\nx", Ok(("/a", false, b"x")));
        check(
            b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n2\r\nde\r\n0\r\nT: 1\r\n\r\n",
            Ok(("/a", true, b"abcde")),
        );
    }

    #[test]
    fn what_is_no_request_is_said_to_be_none() {
        check(b"\x16\x03\x01 hello\r\n\r\n", Err("not an HTTP/1.1 request"));
        check(b"POST /a HTTP/1.1\r\nContent-Length: -1\r\n\r\n", Err("content-length"));
        check(b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", Err("size is not a number"));
        check(b"POST /a HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n", Err("longer than it says"));
        check(b"POST /a HTTP/1.1\r\nContent-Length: 9\r\n\r\nabc", Err("Gone"));
    }

    #[test]
    fn headers_keep_their_order_and_spelling() {
        let mut buffer = BytesMut::from(&b"GET / HTTP/1.1\r\nX-B: 1\r\nx-a:  2 \r\nX-B: \xe9\r\n\r\nrest"[..]);
        let head = parse_head(&mut buffer).expect("a head").expect("complete");
        let expected = [("X-B", "1"), ("x-a", "2"), ("X-B", "é")];
        assert_eq!(head.headers(), expected.map(|(name, value)| (name.to_owned(), value.to_owned())));
        assert_eq!(&buffer[..], b"rest");
    }
}
