use std::rc::Rc;
use std::time::Duration;

use tokio::io::{AsyncWriteExt as _, duplex};

use super::*;

const PATIENCE: Patience = Patience::Each(Duration::from_secs(20));

/// What a reader makes of `answer` that comes in pieces of `size`, after which the connection is closed.
async fn read(answer: &[u8], size: usize) -> Result<(u16, Vec<u8>), WireError> {
    let (mut near, mut far) = duplex(size);
    let sending = async move {
        for piece in answer.chunks(size) {
            // Who refuses the beginning does not read the rest.
            let _ = far.write_all(piece).await;
        }
    };
    let reading = async move {
        let mut buf = BytesMut::new();
        let Head { status, mut framing, .. } = head(&mut near, &mut buf).await?;
        if let Framing::Length(length) = framing {
            let mut breath = Breath::new(&Rc::default());
            let body = exactly(&mut near, &mut buf, length, PATIENCE, &mut breath).await?;
            assert_eq!(body.len() as u64, length);
            return Ok((status, body.to_vec()));
        }
        let mut body = Vec::new();
        while let Some(piece) = piece(&mut near, &mut buf, &mut framing).await? {
            body.extend_from_slice(&piece);
        }
        Ok((status, body))
    };
    futures_util::join!(sending, reading).1
}

#[track_caller]
fn check(answer: &str, expected: Result<(u16, &str), WireError>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("a runtime");
    for size in [1, 7, 64, 8192] {
        let told = runtime.block_on(read(answer.as_bytes(), size));
        let expected = expected.clone().map(|(status, body)| (status, body.as_bytes().to_vec()));
        assert_eq!(told, expected, "{answer:?} in pieces of {size}");
    }
}

#[test]
fn answers_are_read_to_their_end() {
    check("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nalpha", Ok((200, "alpha")));
    check("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nalphabeta", Ok((200, "alpha")));
    check("HTTP/1.1 500 No\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nalpha\r\n0\r\n\r\n", Ok((500, "alpha")));
    check("HTTP/1.1 200 OK\r\n\r\nalpha", Ok((200, "alpha")));
    let interim = "HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\nHTTP/1.1 100 Continue\r\n\r\n";
    check(&format!("{interim}HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\na"), Ok((200, "a")));
    let large = "x".repeat(100_000);
    check(&format!("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{large}"), Ok((200, &large)));
}

#[test]
fn what_goes_wrong_has_a_name() {
    check("", Err(UNANSWERED));
    check("HTTP/1.1 200 OK\r\nContent-", Err(UNANSWERED));
    check("HTTP/1.1 100 Continue\r\n\r\n", Err(UNANSWERED));
    check("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nalph", Err(CUT));
    check("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nalpha\r\n", Err(CUT));
    check("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx", Err(CUT));
    check("HTTP/1.1 101 Switching Protocols\r\n\r\n", Err(WireError::NotHttp("answered with an interim status")));
    check(&"HTTP/1.1 100 Continue\r\n\r\n".repeat(MOST_INTERIM + 1), Err(NOT_HTTP));
    check("\0\u{1} this is not HTTP", Err(NOT_HTTP));
    check("HTTP/1.1 200 OK\r\nContent-Length: 5\r\nContent-Length: 4\r\n\r\nalpha", Err(NOT_HTTP));
    check("HTTP/1.1 200 OK\r\nContent-Length: 536870913\r\n\r\n", Err(TOO_MUCH));
}

#[tokio::test]
async fn a_far_end_that_answers_and_reads_no_more_is_heard() {
    let (mut near, mut far) = duplex(16);
    far.write_all(b"HTTP/1.1 401 No\r").await.expect("there is room");
    let mut buf = BytesMut::new();
    let body = Bytes::from(vec![b'x'; 1 << 20]);
    assert_eq!(send(&mut near, Bytes::from_static(b"POST"), body.clone(), &mut buf).await, Sent::Partly);
    assert_eq!(&buf[..], b"HTTP/1.1 401 No\r");

    // An interim answer asks for the rest.
    let (mut near, mut far) = duplex(64);
    far.write_all(b"HTTP/1.1 103 Early Hints\r\n\r\n").await.expect("there is room");
    buf.clear();
    let mut got = vec![0; 4 + body.len()];
    let sending = send(&mut near, Bytes::from_static(b"POST"), body.clone(), &mut buf);
    let (sent, read) = futures_util::join!(sending, far.read_exact(&mut got));
    assert_eq!((sent, read.ok()), (Sent::Whole, Some(got.len())));

    let (mut near, far) = duplex(16);
    drop(far);
    assert_eq!(send(&mut near, Bytes::from_static(b"POST"), body.clone(), &mut buf).await, Sent::Nothing);

    let (mut near, mut far) = duplex(16);
    let mut heard = Vec::new();
    let sending = async move { send(&mut near, Bytes::from_static(b"POST "), body, &mut BytesMut::new()).await };
    let (sent, _) = futures_util::join!(sending, far.read_to_end(&mut heard));
    assert_eq!((sent, heard.len()), (Sent::Whole, 5 + (1 << 20)));
    assert!(heard.starts_with(b"POST xx"));
}
