//! The `vectorgate` command: reads the configuration, starts telemetry, runs, drains on SIGTERM; nothing else.

use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    vectorgate::cli::main()
}
