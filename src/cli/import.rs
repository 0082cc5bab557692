//! `vectorgate import`: another gateway's configuration turned into this one's, with a word about everything that did not
//! come along.
//!
//! Knows files and the terminal; what means what is in [`litellm`].

mod draft;
mod litellm;
mod yaml;

#[cfg(test)]
mod tests;

use std::path::Path;
use std::process::ExitCode;

/// Reads LiteLLM's `config.yaml` at `path` and prints our configuration to stdout. What could not be carried over, and
/// why, is in it as comments and goes to stderr, too. Exit code 0, or 1 when the file cannot be read.
pub fn litellm(path: &Path) -> ExitCode {
    let shown = path.display();
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) => {
            eprintln!("{shown}: {error}");
            return ExitCode::FAILURE;
        }
    };
    let variable = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
    match litellm::translate(&text, &variable) {
        Ok(draft) => {
            print!("{}", draft.to_toml());
            for note in draft.notes() {
                eprintln!("{note}");
            }
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{shown}: {error}");
            ExitCode::FAILURE
        }
    }
}
