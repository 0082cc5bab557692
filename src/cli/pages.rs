//! What a shell and `man` know of the command line: made from the commands themselves, so that neither falls behind.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::ExitCode;

use clap::CommandFactory as _;
use clap_complete::Shell;
use clap_mangen::Man;

use super::Cli;

/// Prints the completions for `shell`.
pub fn completions(shell: Shell) -> ExitCode {
    let mut command = Cli::command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    ended(io::stdout().write_all(&script))
}

/// Prints the page of the whole command, or writes one page for it and one for each of its commands into `folder`.
pub fn man(folder: Option<&Path>) -> ExitCode {
    let command = Cli::command();
    ended(match folder {
        Some(folder) => clap_mangen::generate_to(command, folder),
        None => Man::new(command).render(&mut io::stdout()),
    })
}

fn ended(result: io::Result<()>) -> ExitCode {
    match result {
        // Whoever reads may have seen enough.
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}
