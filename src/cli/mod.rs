//! The command line: which command, which file. The work is done elsewhere.

pub mod check;
pub mod health;
pub mod import;
pub mod key;
pub mod ledger;
pub mod pages;
pub mod probe;
pub mod serve;
pub mod usage;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use clap_complete::Shell;

/// The gateway for retrieval traffic: embeddings, rerank, and the chat that goes with them.
#[derive(Debug, Parser)]
#[command(name = "vectorgate", version, about)]
pub struct Cli {
    /// Configuration file; without one, the built-in default.
    #[arg(long, global = true, value_name = "FILE")]
    config: Option<PathBuf>,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the gateway (the default).
    Serve,
    /// Report all problems of a configuration, or print what it resolves to.
    Check,
    /// Ask the gateway of this configuration whether it is ready.
    Health {
        /// Its admin listener, if it is another one than the configuration says.
        #[arg(long, value_name = "ADDRESS:PORT")]
        address: Option<SocketAddr>,
    },
    /// Call each upstream of a shared vector space once and compare their vectors.
    Probe,
    /// Keys of tenants.
    Key {
        #[command(subcommand)]
        command: KeyCommand,
    },
    /// Turn another gateway's configuration into one of this gateway.
    Import {
        #[command(subcommand)]
        command: ImportCommand,
    },
    /// Report what was used and what it cost.
    Usage(usage::Arguments),
    /// Verify, back up and restore the journal of balances and records.
    Ledger {
        #[command(subcommand)]
        command: ledger::LedgerCommand,
    },
    /// Print the completions for a shell.
    Completions {
        /// Which one.
        shell: Shell,
    },
    /// Print the manual page.
    Man {
        /// Write a page for each command into this folder instead.
        #[arg(long, value_name = "FOLDER")]
        folder: Option<PathBuf>,
    },
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Make a new key: prints the secret once, and the line for the configuration.
    New {
        /// Whose key it is.
        #[arg(long)]
        tenant: String,
    },
}

#[derive(Debug, Subcommand)]
enum ImportCommand {
    /// LiteLLM's config.yaml: prints our configuration, and what could not be carried over.
    Litellm {
        /// The file.
        file: PathBuf,
    },
}

/// Runs the command that the process was started with.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    let config = cli.config.as_deref();
    match cli.command.unwrap_or(Command::Serve) {
        Command::Serve => serve::run(config),
        Command::Check => check::run(config),
        Command::Health { address } => health::run(config, address),
        Command::Probe => probe::run(config),
        Command::Key { command: KeyCommand::New { tenant } } => key::new(&tenant),
        Command::Import { command: ImportCommand::Litellm { file } } => import::litellm(&file),
        Command::Usage(args) => usage::report(config, &args),
        Command::Ledger { command } => ledger::run(config, &command),
        Command::Completions { shell } => pages::completions(shell),
        Command::Man { folder } => pages::man(folder.as_deref()),
    }
}
