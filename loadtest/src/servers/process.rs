//! A child process that listens: started, waited for, ended. Only ever what was started here is ended.

use std::fs;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use crate::clock;

/// How long a server may take to answer for the first time.
const START_PATIENCE: Duration = Duration::from_secs(20);
/// How long a server may take to end when told to.
pub const END_PATIENCE: Duration = Duration::from_secs(15);

/// A running server. Dropping ends it.
#[derive(Debug)]
pub struct Server {
    name: String,
    child: Child,
    /// Where it answers.
    pub address: SocketAddr,
    log: PathBuf,
}

impl Server {
    /// Starts a server and waits until it answers at `address`. What it prints goes to `NAME.log` in `folder`, after what
    /// is there already.
    ///
    /// # Errors
    /// It cannot be started, ended, or did not answer; with its last words.
    pub fn start(
        name: &str,
        mut command: Command,
        address: SocketAddr,
        folder: &Path,
        ready: fn(SocketAddr) -> bool,
    ) -> Result<Self, String> {
        let explain = |error: io::Error| format!("{name}: {error}");
        let log = folder.join(format!("{name}.log"));
        let output = fs::OpenOptions::new().create(true).append(true).open(&log).map_err(explain)?;
        let errors = output.try_clone().map_err(explain)?;
        let child = command.stdin(Stdio::null()).stdout(output).stderr(errors).spawn().map_err(explain)?;
        let mut server = Self { name: name.to_owned(), child, address, log };
        let deadline = clock::now() + START_PATIENCE;
        while !ready(address) {
            if server.has_ended() || clock::now() > deadline {
                return Err(format!("{name} did not come up at {address}: {}", server.last_words()));
            }
            thread::sleep(Duration::from_millis(10));
        }
        Ok(server)
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Whether it has ended by itself.
    pub fn has_ended(&mut self) -> bool {
        !matches!(self.child.try_wait(), Ok(None))
    }

    /// The last lines that it printed.
    pub fn last_words(&self) -> String {
        last_lines(&fs::read_to_string(&self.log).unwrap_or_default(), 5)
    }

    /// Kills it as `kill -9` does.
    pub fn kill(&mut self) {
        // Killing what has ended already is no failure.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends a signal by its name, such as `TERM`.
    pub fn signal(&self, name: &str) {
        // A process that has ended needs no signal.
        let _ = Command::new("kill").args([format!("-{name}"), self.child.id().to_string()]).status();
    }

    /// Asks it to end and waits; kills it once `patience` is over.
    ///
    /// # Errors
    /// It did not end by itself, or not with success.
    pub fn stop(&mut self, patience: Duration) -> Result<(), String> {
        self.signal("TERM");
        match ended_by(&mut self.child, clock::now() + patience) {
            Some(status) if status.success() => Ok(()),
            Some(status) => Err(format!("{} ended with {status}: {}", self.name, self.last_words())),
            None => {
                self.kill();
                Err(format!("{} did not end within {} s of SIGTERM", self.name, patience.as_secs()))
            }
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if !self.has_ended() {
            // Asked first, so that nginx takes its workers along. How it ends is nobody's concern any more.
            let _ = self.stop(END_PATIENCE);
        }
    }
}

fn ended_by(child: &mut Child, deadline: Instant) -> Option<ExitStatus> {
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if clock::now() < deadline => thread::sleep(Duration::from_millis(20)),
            Ok(None) | Err(_) => return None,
        }
    }
}

fn last_lines(text: &str, count: usize) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines.get(lines.len().saturating_sub(count)..).unwrap_or_default().join(" / ")
}

/// A port that is free now. Somebody else may take it before it is used; then the server says so and the run ends.
///
/// # Errors
/// The system has no free port.
pub fn free_port() -> io::Result<SocketAddr> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?.local_addr()
}

/// Whether an HTTP server answers anything at all.
pub fn answers_http(address: SocketAddr) -> bool {
    speaks(address, b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n", b"HTTP/")
}

/// Whether what is sent is answered with what is expected.
pub(super) fn speaks(address: SocketAddr, say: &[u8], hear: &[u8]) -> bool {
    let asked = TcpStream::connect_timeout(&address, Duration::from_secs(1)).and_then(|mut stream| {
        stream.set_read_timeout(Some(Duration::from_secs(2)))?;
        stream.write_all(say)?;
        let mut start = vec![0; hear.len()];
        stream.read_exact(&mut start)?;
        Ok(start)
    });
    asked.is_ok_and(|start| start == hear)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_does_not_come_up_is_told_on_with_its_last_words() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new("sh");
        command.args(["-c", "echo no such key >&2"]);
        let address = free_port().expect("a port");
        let error = Server::start("server", command, address, folder.path(), answers_http).expect_err("it ended");
        assert!(error.contains("no such key"), "{error}");
    }

    #[test]
    fn a_server_that_ends_badly_is_told_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut command = Command::new("sh");
        command.args(["-c", "trap 'exit 3' TERM; while :; do sleep 0.01; done"]);
        let address = free_port().expect("a port");
        let mut server = Server::start("server", command, address, folder.path(), |_| true).expect("started");
        // The shell needs a moment to set its trap; before that, SIGTERM simply ends it. Neither is a success.
        assert!(server.stop(END_PATIENCE).is_err());
        assert!(server.has_ended());
    }
}
