//! The gateway as a child process: found or built, started with a configuration of its own, and asked for its books.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::process::{Server, answers_http};

/// The gateway's program: `given`, or the one beside this program, built first where Cargo runs us.
///
/// With `cargo run -p loadtest` only the load tools are built, and the gateway beside them may be missing or older than
/// the sources; asking Cargo costs a moment where nothing has changed.
///
/// # Errors
/// It is not there and cannot be built.
pub fn program(given: Option<&Path>) -> Result<PathBuf, String> {
    if let Some(given) = given {
        let whole = given.canonicalize().map_err(|error| format!("{}: {error}", given.display()))?;
        return Ok(whole);
    }
    let own = std::env::current_exe().map_err(|error| format!("this program's place: {error}"))?;
    let folder = own.parent().unwrap_or(Path::new("."));
    // Test programs lie one folder deeper.
    let folder = if folder.ends_with("deps") { folder.parent().unwrap_or(folder) } else { folder };
    let program = folder.join("vectorgate");
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap_or(Path::new("."));
    if let Some(cargo) = std::env::var_os("CARGO").filter(|_| workspace.join("Cargo.toml").is_file()) {
        eprintln!("building the gateway, if its sources have changed …");
        let mut command = Command::new(cargo);
        command.args(["build", "--package", "vectorgate", "--bin", "vectorgate"]).current_dir(workspace);
        if folder.ends_with("release") {
            command.arg("--release");
        }
        let status = command.status().map_err(|error| format!("cargo: {error}"))?;
        if !status.success() {
            return Err("the gateway could not be built".to_owned());
        }
    }
    if program.is_file() {
        return Ok(program);
    }
    let why = "build it with `cargo build --release`, or name it with --gateway";
    Err(format!("{} is not there; {why}", program.display()))
}

/// One gateway of a run: its files, its addresses, and its process while it runs.
#[derive(Debug)]
pub struct Gateway {
    name: String,
    program: PathBuf,
    folder: PathBuf,
    /// Where clients connect.
    pub clients: SocketAddr,
    /// Where administrators connect.
    pub admin: SocketAddr,
    environment: Vec<(String, String)>,
    server: Server,
}

impl Gateway {
    /// Writes the configuration into `folder` and starts a gateway with it. `config` must name these two addresses.
    ///
    /// # Errors
    /// It did not come up; with its last words.
    pub fn start(
        name: &str,
        program: &Path,
        folder: &Path,
        config: &str,
        addresses: (SocketAddr, SocketAddr),
    ) -> Result<Self, String> {
        Self::start_with(name, program, folder, config, addresses, &[])
    }

    /// The same, with variables in its environment.
    ///
    /// # Errors
    /// As [`Gateway::start`].
    pub fn start_with(
        name: &str,
        program: &Path,
        folder: &Path,
        config: &str,
        (clients, admin): (SocketAddr, SocketAddr),
        environment: &[(&str, &str)],
    ) -> Result<Self, String> {
        let home = folder.join(name);
        let explain = |error: std::io::Error| format!("{name}: {error}");
        fs::create_dir_all(&home).map_err(explain)?;
        fs::write(home.join("gateway.toml"), config).map_err(explain)?;
        let environment: Vec<(String, String)> =
            environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
        let server = launch(name, program, &home, clients, &environment)?;
        let (name, program) = (name.to_owned(), program.to_owned());
        Ok(Self { name, program, folder: home, clients, admin, environment, server })
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.server.pid()
    }

    /// Kills it as `kill -9` does and starts another one in its place, with its files and at its addresses.
    ///
    /// # Errors
    /// The new one did not come up.
    pub fn crash(&mut self) -> Result<(), String> {
        self.server.kill();
        self.server = launch(&self.name, &self.program, &self.folder, self.clients, &self.environment)?;
        Ok(())
    }

    /// Asks it to end and waits.
    ///
    /// # Errors
    /// It had ended before, did not end in time, or not with success.
    pub fn stop(&mut self) -> Result<(), String> {
        if self.server.has_ended() {
            return Err(format!("{} had ended by itself: {}", self.name, self.server.last_words()));
        }
        self.server.stop(super::process::END_PATIENCE)
    }

    /// The usage records in its books, a JSON object a line, by its own command line.
    ///
    /// # Errors
    /// The command's own words.
    pub fn usage(&self) -> Result<String, String> {
        let mut command = command(&self.program, &self.folder);
        command.args(["usage", "--format", "jsonl", "--config", "gateway.toml"]);
        let output = command.output().map_err(|error| format!("vectorgate usage: {error}"))?;
        if !output.status.success() {
            return Err(format!("vectorgate usage: {}", String::from_utf8_lossy(&output.stderr)));
        }
        String::from_utf8(output.stdout).map_err(|error| format!("vectorgate usage: {error}"))
    }
}

fn launch(
    name: &str,
    program: &Path,
    folder: &Path,
    clients: SocketAddr,
    environment: &[(String, String)],
) -> Result<Server, String> {
    let mut command = command(program, folder);
    command.envs(environment.iter().map(|(name, value)| (name, value)));
    command.args(["serve", "--config", "gateway.toml"]);
    Server::start(name, command, clients, folder, answers_http)
}

/// Settings and keys of whoever runs a load test must not change what is tested.
fn command(program: &Path, folder: &Path) -> Command {
    let mut command = Command::new(program);
    command.current_dir(folder);
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(|name| {
            name.starts_with("VECTORGATE_") || name.starts_with("OPENAI_") || name.starts_with("OTEL_")
        }) {
            command.env_remove(name);
        }
    }
    command.env("VECTORGATE_LOG", "warn");
    command
}
