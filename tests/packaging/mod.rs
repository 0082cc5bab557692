//! What a system around the gateway relies on: the service manager is told, containers and shells find what they need,
//! and the files that ship for them fit the program.

mod commands;
mod service_manager;
