//! A client of raw bytes: what no HTTP library would send, and what it would hide of the answer.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::time::Duration;

use serde_json::Value;

/// Longest wait for a byte: beyond it the gateway hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// One connection to a gateway.
pub struct Raw {
    stream: TcpStream,
    /// Bytes that arrived after the last answer.
    rest: Vec<u8>,
}

/// An answer as it came.
#[derive(Debug, Clone)]
pub struct RawAnswer {
    /// Status.
    pub status: u16,
    /// Everything up to the empty line.
    pub head: String,
    /// Body, chunks joined.
    pub body: String,
}

impl Raw {
    /// Connects to `url`, `http://…` without a path.
    #[track_caller]
    pub fn connect(url: &str) -> Raw {
        let address = url.strip_prefix("http://").expect("an http address");
        let stream = TcpStream::connect(address).expect("the gateway accepts");
        stream.set_read_timeout(Some(PATIENCE)).expect("a socket option");
        stream.set_write_timeout(Some(PATIENCE)).expect("a socket option");
        stream.set_nodelay(true).expect("a socket option");
        Raw { stream, rest: Vec::new() }
    }

    /// The connection itself.
    pub fn stream(&self) -> &TcpStream {
        &self.stream
    }

    /// Sends bytes as they are.
    #[track_caller]
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        self.stream.write_all(bytes.as_ref()).expect("the gateway reads");
    }

    /// Sends bytes; false if the gateway has broken the connection by then.
    pub fn try_send(&mut self, bytes: impl AsRef<[u8]>) -> bool {
        self.stream.write_all(bytes.as_ref()).is_ok()
    }

    /// Sends a whole request: `line` is the request line without the version, `headers` whole lines.
    #[track_caller]
    pub fn request(&mut self, line: &str, headers: &[&str], body: &str) {
        let mut text = format!("{line} HTTP/1.1\r\n");
        if !headers.iter().any(|header| header.to_ascii_lowercase().starts_with("host:")) {
            text.push_str("Host: gateway.test\r\n");
        }
        for header in headers {
            text.push_str(header);
            text.push_str("\r\n");
        }
        if !body.is_empty() {
            text.push_str(&format!("Content-Type: application/json\r\nContent-Length: {}\r\n", body.len()));
        }
        text.push_str("\r\n");
        text.push_str(body);
        self.send(text);
    }

    /// Reads one answer. `headless`: it answers a HEAD, so no body follows.
    #[track_caller]
    pub fn answer_to(&mut self, headless: bool) -> RawAnswer {
        let end = loop {
            if let Some(at) = find(&self.rest, b"\r\n\r\n") {
                break at;
            }
            assert!(self.more(), "closed without an answer: {:?}", String::from_utf8_lossy(&self.rest));
        };
        let head = String::from_utf8_lossy(&self.rest[..end]).into_owned();
        self.rest.drain(..end + 4);
        let status = head.split(' ').nth(1).and_then(|word| word.parse().ok()).expect("a status line");
        let mut answer = RawAnswer { status, head, body: String::new() };
        if headless || matches!(status, 100 | 204 | 304) {
            return answer;
        }
        let body = if answer.header("transfer-encoding").eq_ignore_ascii_case("chunked") {
            self.chunks()
        } else if let Ok(length) = answer.header("content-length").parse::<usize>() {
            self.exactly(length)
        } else {
            while self.more() {}
            std::mem::take(&mut self.rest)
        };
        answer.body = String::from_utf8(body).expect("text");
        answer
    }

    /// Reads one answer.
    #[track_caller]
    pub fn answer(&mut self) -> RawAnswer {
        self.answer_to(false)
    }

    /// Reads one answer; `None` if the connection ends first.
    pub fn maybe_answer(&mut self) -> Option<RawAnswer> {
        while find(&self.rest, b"\r\n\r\n").is_none() {
            if !self.more() {
                return None;
            }
        }
        Some(self.answer())
    }

    /// Whether the gateway closes the connection without another byte.
    pub fn is_closed(&mut self) -> bool {
        !self.more() && self.rest.is_empty()
    }

    fn more(&mut self) -> bool {
        let mut piece = [0; 16 * 1024];
        match self.stream.read(&mut piece) {
            Ok(0) => false,
            Ok(count) => {
                self.rest.extend_from_slice(&piece[..count]);
                true
            }
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => false,
            Err(error) => panic!("no byte from the gateway: {error}"),
        }
    }

    #[track_caller]
    fn exactly(&mut self, length: usize) -> Vec<u8> {
        while self.rest.len() < length {
            assert!(self.more(), "closed in the middle of a body");
        }
        self.rest.drain(..length).collect()
    }

    #[track_caller]
    fn chunks(&mut self) -> Vec<u8> {
        let mut body = Vec::new();
        loop {
            let end = loop {
                if let Some(at) = find(&self.rest, b"\r\n") {
                    break at;
                }
                assert!(self.more(), "closed in the middle of a chunk");
            };
            let size = String::from_utf8_lossy(&self.rest[..end]).into_owned();
            let size = usize::from_str_radix(size.split(';').next().unwrap_or_default().trim(), 16).expect("a size");
            self.rest.drain(..end + 2);
            let chunk = self.exactly(size + 2);
            if size == 0 {
                return body;
            }
            body.extend_from_slice(&chunk[..size]);
        }
    }
}

fn find(bytes: &[u8], what: &[u8]) -> Option<usize> {
    bytes.windows(what.len()).position(|window| window == what)
}

impl RawAnswer {
    /// A header's value; empty if it is absent.
    pub fn header(&self, name: &str) -> &str {
        let lines = self.head.lines().filter_map(|line| line.split_once(':'));
        lines.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value.trim()).next().unwrap_or("")
    }

    /// The error's code in the OpenAI shape; empty if there is none.
    pub fn error_code(&self) -> String {
        let body: Value = serde_json::from_str(&self.body).unwrap_or_default();
        body["error"]["code"].as_str().unwrap_or_default().to_owned()
    }
}
