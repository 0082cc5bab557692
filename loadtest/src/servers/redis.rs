//! A Redis server that keeps nothing on disk.

use std::path::Path;
use std::process::Command;

use super::find_program;
use super::process::{Server, free_port, speaks};

/// Starts one; `None`: it is not installed.
///
/// # Errors
/// It did not come up.
pub fn start(folder: &Path) -> Result<Option<Server>, String> {
    let Some(program) = find_program("redis-server") else { return Ok(None) };
    let address = free_port().map_err(|error| format!("redis: {error}"))?;
    let mut command = Command::new(program);
    command
        .args(["--port", &address.port().to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
        .arg("--dir")
        .arg(folder);
    Server::start("redis", command, address, folder, |address| speaks(address, b"PING\r\n", b"+PONG\r\n")).map(Some)
}
