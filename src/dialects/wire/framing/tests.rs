use proptest::prelude::*;

use super::*;

/// What a reader makes of an answer after which the connection is closed.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Read {
    /// A status, a body, whether the connection could be used again, and what came behind.
    Whole(u16, String, bool, String),
    Cut,
    Malformed,
}

fn read(pieces: &[&[u8]]) -> Read {
    let (mut buf, mut seen, mut begun, mut body) = (BytesMut::new(), 0, None, Vec::new());
    for piece in pieces {
        buf.extend_from_slice(piece);
        if begun.is_none() && !buf.is_empty() {
            match head(&mut buf, &mut seen) {
                Err(Malformed) => return Read::Malformed,
                Ok(read) => begun = read,
            }
        }
        let Some(head) = &mut begun else { continue };
        loop {
            match head.framing.take(&mut buf) {
                Err(Malformed) => return Read::Malformed,
                Ok(Some(piece)) => body.extend_from_slice(&piece),
                Ok(None) => break,
            }
        }
    }
    match begun {
        Some(head) if head.framing.is_done() || head.framing == Framing::UntilClose => {
            let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
            Read::Whole(head.status, text(&body), head.reusable, text(&buf))
        }
        _ => Read::Cut,
    }
}

/// The same however it is cut.
#[track_caller]
fn check(answer: &str, expected: &Read) {
    let bytes = answer.as_bytes();
    assert_eq!(&read(&[bytes]), expected, "{answer:?}");
    for at in 0..=bytes.len() {
        let (first, second) = bytes.split_at(at);
        assert_eq!(&read(&[first, second]), expected, "{answer:?} cut at {at}");
    }
    let single: Vec<&[u8]> = bytes.chunks(1).collect();
    assert_eq!(&read(&single), expected, "{answer:?} byte by byte");
}

#[track_caller]
fn whole(answer: &str, body: &str, reusable: bool, rest: &str) {
    check(answer, &Read::Whole(200, body.to_owned(), reusable, rest.to_owned()));
}

#[test]
fn a_body_ends_where_the_head_says() {
    whole("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nalpha", "alpha", true, "");
    whole("HTTP/1.1 200\r\ncontent-length:5\r\n\r\nalpha", "alpha", true, "");
    whole("HTTP/1.1 200 OK\nContent-Length: 5\n\nalpha", "alpha", true, "");
    whole("HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n", "", true, "");
    whole("HTTP/1.1 200 OK\r\nContent-Length : 5 \r\n\r\nalpha", "alpha", true, "");
    whole(
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n3\r\nalp\r\n2;x=\"y\"\r\nha\r\n0\r\n\r\n",
        "alpha",
        true,
        "",
    );
    whole(
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n005 \r\nalpha\r\n0\r\nA: b\r\nC: d\r\n\r\n",
        "alpha",
        true,
        "",
    );
    whole("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", "", true, "");
    whole("HTTP/1.1 200 OK\r\n\r\nalpha", "alpha", false, "");
    whole("HTTP/1.1 200 OK\r\nTransfer-Encoding: identity\r\n\r\nalpha", "alpha", false, "");
    whole("HTTP/1.0 200 OK\r\n\r\nalpha", "alpha", false, "");
    whole("HTTP/1.0 200 OK\r\nContent-Length: 5\r\nConnection: keep-alive\r\n\r\nalpha", "alpha", false, "");
}

#[test]
fn a_status_without_a_body_has_none_whatever_its_head_says() {
    for (status, length) in
        [(204, ""), (304, "Content-Length: 5\r\n"), (103, ""), (304, "Transfer-Encoding: chunked\r\n")]
    {
        let answer = format!("HTTP/1.1 {status} No\r\n{length}\r\n");
        check(&answer, &Read::Whole(status, String::new(), true, String::new()));
    }
}

#[test]
fn a_connection_is_used_again_unless_a_side_closes() {
    for (connection, reusable) in [("close", false), ("Keep-Alive", true), ("x-up,  CLOSE", false), ("closed", true)] {
        whole(&format!("HTTP/1.1 200 OK\r\nConnection: {connection}\r\nContent-Length: 1\r\n\r\na"), "a", reusable, "");
    }
}

#[test]
fn what_comes_behind_is_not_the_bodys() {
    whole("HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nalphaHTTP/1.1", "alpha", true, "HTTP/1.1");
    whole("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\nbeta", "", true, "beta");
}

#[test]
fn what_two_readers_could_take_for_two_things_is_refused() {
    let heads = [
        "Content-Length: 5\r\nContent-Length: 5",
        "Content-Length: 5\r\nContent-Length: 6",
        "Content-Length: 5, 5",
        "Content-Length: +5",
        "Content-Length: -1",
        "Content-Length: 0x5",
        "Content-Length: 5 5",
        "Content-Length:",
        "Content-Length: 18446744073709551616",
        "Content-Length: 5\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: chunked\r\nContent-Length: 5",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked",
        "Transfer-Encoding: gzip, chunked",
        "Transfer-Encoding: chunked, identity",
        "Transfer-Encoding: \u{b}chunked",
        "Content-Length: 5\r\n folded: yes",
        "no colon",
        ": no name",
        "na me: x",
    ];
    for head in heads {
        check(&format!("HTTP/1.1 200 OK\r\n{head}\r\n\r\nalpha"), &Read::Malformed);
    }
    check("HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", &Read::Malformed);
    for start in
        ["HTTP/2 200 OK", "HTTP/1.2 200 OK", "HTTP/1.1 20 OK", "HTTP/1.1 099 OK", "\r\nHTTP/1.1 200 OK", "ICY 200 OK"]
    {
        check(&format!("{start}\r\nContent-Length: 0\r\n\r\n"), &Read::Malformed);
    }
    let chunks = [
        "\r\n",
        "g\r\n",
        "-1\r\n",
        " 5\r\nalpha\r\n0\r\n\r\n",
        "5\r\nalphabeta\r\n",
        "5\nalpha\r\n",
        "5\r\nalpha\n",
        "0\r\n\n",
    ];
    for chunks in chunks {
        check(&format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{chunks}"), &Read::Malformed);
    }
    let long = "10000000000000000\r\n";
    check(&format!("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n{long}"), &Read::Malformed);
}

#[test]
fn every_cut_is_noticed() {
    let table = [
        "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nalpha",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nalpha\r\n0\r\nA: b\r\n\r\n",
    ];
    for answer in table {
        for end in 0..answer.len() {
            assert_eq!(read(&[&answer.as_bytes()[..end]]), Read::Cut, "{answer:?} up to {end}");
        }
    }
}

#[test]
fn a_head_has_an_end() {
    let headers = |count: usize| format!("HTTP/1.1 200 OK\r\n{}\r\n", "A: b\r\n".repeat(count));
    assert!(matches!(read(&[headers(MOST_HEADERS).as_bytes()]), Read::Whole(..)));
    assert_eq!(read(&[headers(MOST_HEADERS + 1).as_bytes()]), Read::Malformed);
    let long = format!("HTTP/1.1 200 OK\r\nA: {}", "b".repeat(LONGEST_HEAD));
    assert_eq!(read(&[long.as_bytes()]), Read::Malformed);
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let extension = format!("{chunked}1;{}", "b".repeat(LONGEST_SIZE_LINE));
    assert_eq!(read(&[extension.as_bytes()]), Read::Malformed);
    let trailers = format!("{chunked}0\r\n{}", "A: b\r\n".repeat(LONGEST_HEAD / 6 + 1));
    assert_eq!(read(&[trailers.as_bytes()]), Read::Malformed);
}

/// Answers, and what is left of them when some bytes are others.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let parts = prop::sample::select(vec![
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.0 ",
        "Content-Length: 3\r\n",
        "Transfer-Encoding: chunked\r\n",
        "Connection: close\r\n",
        "\r\n",
        "\n",
        "3\r\nabc\r\n",
        "0\r\n",
        "ffffffffffffffff\r\n",
        ";",
        "abc",
    ]);
    let part = prop_oneof![4 => parts.prop_map(|part| part.as_bytes().to_vec()), 1 => any::<Vec<u8>>()];
    prop::collection::vec(part, 0..12).prop_map(|parts| parts.concat())
}

proptest! {
    #[test]
    fn however_bytes_are_cut_they_say_the_same(bytes in bytes(), start: bool, cuts in prop::collection::vec(0_usize..200, 0..6)) {
        let begun: &[u8] = if start { b"HTTP/1.1 200 OK\r\n" } else { b"" };
        let bytes = [begun, &bytes].concat();
        let mut ends: Vec<usize> = cuts.into_iter().map(|cut| cut.min(bytes.len())).chain([0, bytes.len()]).collect();
        ends.sort_unstable();
        let pieces: Vec<&[u8]> = ends.windows(2).map(|ends| &bytes[ends[0]..ends[1]]).collect();
        prop_assert_eq!(read(&[&bytes]), read(&pieces));
    }
}
