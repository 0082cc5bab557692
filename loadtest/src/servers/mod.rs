//! Servers that a load test starts itself: the gateway, nginx as a plain proxy, Redis. All on loopback and free ports,
//! with files in a folder of their own; all end with whoever started them.

pub mod collector;
pub mod gateway;
pub mod nginx;
pub mod process;
pub mod redis;

use std::path::PathBuf;

/// A program on the search path, or where system daemons usually are.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::env::split_paths(&path).chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")]);
    folders.map(|folder| folder.join(name)).find(|program| program.is_file())
}
