//! A real Redis server of a test's own: on a free port, in a temporary folder, ended when dropped.

use std::io::{Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Longest wait for the server to start.
const PATIENCE: Duration = Duration::from_secs(30);

/// A running server that keeps nothing on disk.
pub struct RedisServer {
    child: Child,
    port: u16,
    folder: TempDir,
    options: Vec<String>,
}

impl RedisServer {
    /// Starts a server.
    ///
    /// # Panics
    /// If there is no `redis-server`: `tests/run` installs it.
    #[track_caller]
    pub fn start() -> RedisServer {
        Self::launch(tempfile::tempdir().expect("a temporary folder"), Vec::new())
    }

    /// Starts a server that speaks TLS, too: at `rediss://127.0.0.1:` and the port that is returned. Its certificate is
    /// signed by `ca.pem` of its folder, and so must be the client's, as `client.pem` is and `other.pem` is not.
    #[track_caller]
    pub fn start_with_tls() -> (RedisServer, u16) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let write = |file: String, text: &str| std::fs::write(folder.path().join(file), text).expect("written");
        let mut params = rcgen::CertificateParams::new(Vec::new()).expect("parameters");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        params.distinguished_name.push(rcgen::DnType::CommonName, "a test's own");
        let key = rcgen::KeyPair::generate().expect("a key");
        write("ca.pem".to_owned(), &params.self_signed(&key).expect("a certificate").pem());
        let issuer = rcgen::Issuer::new(params, key);
        for name in ["server", "client"] {
            let params = rcgen::CertificateParams::new(vec!["127.0.0.1".to_owned()]).expect("parameters");
            let key = rcgen::KeyPair::generate().expect("a key");
            write(format!("{name}.pem"), &params.signed_by(&key, &issuer).expect("a certificate").pem());
            write(format!("{name}.key"), &key.serialize_pem());
        }
        // Of somebody else.
        let other = rcgen::generate_simple_self_signed(vec!["127.0.0.1".to_owned()]).expect("a certificate");
        write("other.pem".to_owned(), &other.cert.pem());
        let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
        let file = |name: &str| folder.path().join(name).to_str().expect("a path").to_owned();
        let options = [
            ("--tls-port", port.to_string()),
            ("--tls-cert-file", file("server.pem")),
            ("--tls-key-file", file("server.key")),
            ("--tls-ca-cert-file", file("ca.pem")),
        ];
        let options = options.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect();
        (Self::launch(folder, options), port)
    }

    /// A file of its folder.
    pub fn file(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().expect("a path").to_owned()
    }

    #[track_caller]
    fn launch(folder: TempDir, options: Vec<String>) -> RedisServer {
        // A port that was free a moment ago may be taken by the time the server asks for it.
        for _ in 0..20 {
            let port = TcpListener::bind("127.0.0.1:0").and_then(|socket| socket.local_addr()).expect("a port").port();
            if let Some(child) = spawn(&folder, port, &options) {
                return RedisServer { child, port, folder, options };
            }
        }
        panic!("no redis-server could be started");
    }

    /// `redis://…`
    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    /// Where it listens.
    pub fn port(&self) -> u16 {
        self.port
    }

    /// Stops it without closing anything: it answers nobody until [`RedisServer::wake`].
    pub fn freeze(&self) {
        self.signal("-STOP");
    }

    /// Lets it go on.
    pub fn wake(&self) {
        self.signal("-CONT");
    }

    /// Kills it and starts an empty one at the same port.
    #[track_caller]
    pub fn restart_empty(&mut self) {
        self.stop();
        let until = Instant::now() + PATIENCE;
        loop {
            if let Some(child) = spawn(&self.folder, self.port, &self.options) {
                self.child = child;
                return;
            }
            assert!(Instant::now() < until, "the server does not start again");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Kills it.
    pub fn stop(&mut self) {
        self.child.kill().expect("our own child");
        self.child.wait().expect("our own child");
    }

    fn signal(&self, signal: &str) {
        let sent = Command::new("kill").args([signal, &self.child.id().to_string()]).status();
        assert!(sent.expect("kill runs").success());
    }
}

impl Drop for RedisServer {
    fn drop(&mut self) {
        if let Err(error) = self.child.kill().and_then(|()| self.child.wait().map(drop)) {
            eprintln!("the redis server could not be ended: {error}");
        }
    }
}

/// A server that answers, or `None` if it ended instead.
fn spawn(folder: &TempDir, port: u16, options: &[String]) -> Option<Child> {
    let mut child = Command::new("redis-server")
        .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .args(["--dir", folder.path().to_str().expect("a path")])
        .args(options)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap_or_else(|error| panic!("redis-server does not run ({error}); tests/run installs it"));
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if child.try_wait().expect("our own child").is_some() {
            return None;
        }
        if ping(port) {
            return Some(child);
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    child.kill().expect("our own child");
    child.wait().expect("our own child");
    None
}

fn ping(port: u16) -> bool {
    let Ok(mut stream) = TcpStream::connect(("127.0.0.1", port)) else { return false };
    let mut answer = [0; 7];
    stream.write_all(b"PING\r\n").is_ok() && stream.read_exact(&mut answer).is_ok() && answer == *b"+PONG\r\n"
}
