//! `vectorgate health`: whether the gateway of this configuration is ready, for places where no other program can ask
//! (a container that holds nothing else).

use std::io::{self, Read as _, Write as _};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpStream};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use crate::config::{self, Environment, Source};

/// Longest wait for the connection, and for each piece of the answer.
const PATIENCE: Duration = Duration::from_secs(3);

/// An answer is a line or two; more is not read.
const LONGEST: u64 = 4096;

/// Asks `/readyz` on the admin listener and prints what it says. Exit code 1 unless it is ready.
pub fn run(config: Option<&Path>, address: Option<SocketAddr>) -> ExitCode {
    let address = match address {
        Some(address) => address,
        None => match config::load(&Source::of(config), &Environment::of_process()) {
            Ok(plan) => plan.server.admin_listen,
            Err(problems) => {
                eprintln!("{problems}");
                return ExitCode::FAILURE;
            }
        },
    };
    match ask(reachable(address)) {
        Ok((ready, text)) => {
            println!("{}", text.trim());
            if ready { ExitCode::SUCCESS } else { ExitCode::FAILURE }
        }
        Err(error) => {
            eprintln!("no answer from {address}: {error}");
            ExitCode::FAILURE
        }
    }
}

/// A listener on every address of the machine is asked by the loopback one.
fn reachable(mut address: SocketAddr) -> SocketAddr {
    if address.ip().is_unspecified() {
        let loopback = match address {
            SocketAddr::V4(_) => IpAddr::V4(Ipv4Addr::LOCALHOST),
            SocketAddr::V6(_) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        };
        address.set_ip(loopback);
    }
    address
}

fn ask(address: SocketAddr) -> io::Result<(bool, String)> {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    write!(stream, "GET /readyz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(LONGEST).read_to_end(&mut answer)?;
    Ok(judge(&String::from_utf8_lossy(&answer)))
}

/// Whether an answer says ready, and its words.
fn judge(answer: &str) -> (bool, String) {
    let (head, body) = answer.split_once("\r\n\r\n").unwrap_or((answer, ""));
    let ready = head.split(' ').nth(1) == Some("200");
    (ready, body.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_200_is_ready() {
        assert_eq!(judge("HTTP/1.1 200 OK\r\na: b\r\n\r\nready\n"), (true, "ready\n".to_owned()));
        assert!(!judge("HTTP/1.1 503 Service Unavailable\r\n\r\nnot ready: draining\n").0);
        assert!(!judge("").0);
        assert!(!judge("200").0);
    }

    #[test]
    fn a_listener_on_every_address_is_asked_by_loopback() {
        for (listen, asked) in
            [("0.0.0.0:81", "127.0.0.1:81"), ("[::]:81", "[::1]:81"), ("192.0.2.7:81", "192.0.2.7:81")]
        {
            let parse = |text: &str| text.parse::<SocketAddr>().expect("an address");
            assert_eq!(reachable(parse(listen)), parse(asked));
        }
    }
}
