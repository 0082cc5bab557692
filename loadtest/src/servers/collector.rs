//! A receiver of telemetry that takes everything and keeps nothing: what sending it costs the sender is all that counts.

use std::io::{self, Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Takes whatever is posted, from now until the process ends.
///
/// # Errors
/// No port to be had.
pub fn start() -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::Builder::new().name("collector".to_owned()).spawn(move || {
        for stream in listener.incoming().flatten() {
            // A sender that breaks off is no concern of others.
            thread::spawn(move || drop(serve(stream)));
        }
    })?;
    Ok(address)
}

fn serve(mut stream: TcpStream) -> io::Result<()> {
    let mut seen = Vec::new();
    let mut chunk = vec![0_u8; 64 << 10];
    loop {
        let head_end = seen.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4);
        if let Some(end) = head_end {
            let head = String::from_utf8_lossy(seen.get(..end).unwrap_or_default()).to_ascii_lowercase();
            let length = head.lines().find_map(|line| line.strip_prefix("content-length:")?.trim().parse().ok());
            let length: usize = length.ok_or_else(|| io::Error::other("a body without a length"))?;
            // Of the body only the length is looked at.
            let mut missing = (end + length).saturating_sub(seen.len());
            seen.drain(..seen.len().min(end + length));
            while missing > 0 {
                let most = missing.min(chunk.len());
                let read = stream.read(chunk.get_mut(..most).unwrap_or_default())?;
                if read == 0 {
                    return Ok(());
                }
                missing -= read;
            }
            stream
                .write_all(b"HTTP/1.1 200 OK\r\ncontent-type: application/x-protobuf\r\ncontent-length: 0\r\n\r\n")?;
            continue;
        }
        match stream.read(&mut chunk)? {
            0 => return Ok(()),
            read => seen.extend_from_slice(chunk.get(..read).unwrap_or_default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_post_after_the_other_is_taken() {
        let mut stream = TcpStream::connect(start().expect("a port")).expect("a collector");
        for length in [0, 3, 200_000] {
            let head = format!("POST /v1/traces HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n");
            stream.write_all(head.as_bytes()).expect("writable");
            stream.write_all(&vec![b'x'; length]).expect("writable");
            let mut answer = [0_u8; 15];
            stream.read_exact(&mut answer).expect("an answer");
            assert_eq!(&answer, b"HTTP/1.1 200 OK");
            let mut rest = Vec::new();
            while !rest.ends_with(b"\r\n\r\n") {
                let mut byte = [0_u8];
                stream.read_exact(&mut byte).expect("the rest of the head");
                rest.push(byte[0]);
            }
        }
    }
}
