//! What a system around the gateway relies on: the service manager is told, containers and shells find what they need,
//! and the files that ship for them fit the program.

mod cluster;
mod commands;
mod image;
mod service_manager;
