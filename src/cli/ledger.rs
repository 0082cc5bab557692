//! `vectorgate ledger`: is the journal sound, copy it while a gateway writes to it, put a copy in its place.
//!
//! What a journal amounts to is told by its own fold: each segment begins with what all before it amount to, so every
//! segment checks the one before.

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;

use crate::config::{self, Environment, Source};
use crate::store::copy::{self, CopyError, Sound};

/// What to do with the ledger.
#[derive(Debug, Subcommand)]
pub enum LedgerCommand {
    /// Read the whole journal and check that it is sound; a gateway may be running.
    Verify {
        /// Another folder than `store.path`, such as a backup.
        #[arg(long, value_name = "FOLDER")]
        folder: Option<PathBuf>,
    },
    /// Copy the journal into a new folder, and verify the copy; a gateway may be running.
    Backup {
        /// Where to; must not exist, or be empty.
        folder: PathBuf,
    },
    /// Verify a backup and put it in the place of the journal; no gateway may be running.
    Restore {
        /// The backup.
        folder: PathBuf,
    },
}

/// Does it with the journal that the configuration names, and says what it found. Exit code 1 when it is not sound.
pub fn run(config: Option<&Path>, command: &LedgerCommand) -> ExitCode {
    let plan = match config::load(&Source::of(config), &Environment::of_process()) {
        Ok(plan) => plan,
        Err(problems) => {
            eprintln!("{problems}");
            return ExitCode::FAILURE;
        }
    };
    let store = &plan.store.path;
    let done = match command {
        LedgerCommand::Verify { folder } => {
            let folder = folder.as_deref().unwrap_or(store);
            copy::verify(folder).map(|sound| (format!("{} is sound", folder.display()), sound))
        }
        LedgerCommand::Backup { folder } => {
            copy::back_up(store, folder).map(|sound| (format!("copied to {}", folder.display()), sound))
        }
        LedgerCommand::Restore { folder } => copy::restore(folder, store).map(|(sound, aside)| {
            let aside = aside.map_or_else(String::new, |aside| format!("; what was there is in {}", aside.display()));
            (format!("restored to {}{aside}", store.display()), sound)
        }),
    };
    match done.and_then(|(what, sound)| tell(&what, &sound, &plan.currency).map_err(CopyError::Output)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn tell(what: &str, sound: &Sound, currency: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{what}: {}", Told { sound, currency })?;
    if sound.unfinished > 0 {
        writeln!(out, "its last {} bytes are an unfinished line, which nobody was told is kept", sound.unfinished)?;
    }
    out.flush()
}

struct Told<'a> {
    sound: &'a Sound,
    currency: &'a str,
}

impl fmt::Display for Told<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Sound { segments, lines, tenants, requests, cost, open_holds, .. } = self.sound;
        write!(
            f,
            "{segments} segments, {lines} records, {tenants} tenants, {requests} requests, {cost} {}, {open_holds} open \
             holds",
            self.currency
        )
    }
}
