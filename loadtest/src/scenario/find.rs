//! Where scenarios lie, and what each says that it proves.

use std::fs;
use std::path::{Path, PathBuf};

/// A scenario's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    /// Its name: that of the file.
    pub name: String,
    /// The first sentence of the comment that it begins with.
    pub proves: String,
    /// Its whole text.
    pub text: String,
}

/// The folder of the bundled scenarios.
pub fn bundled() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("scenarios")
}

/// Every scenario of a folder, by name.
///
/// # Errors
/// The folder or a file in it cannot be read.
pub fn list(folder: &Path) -> Result<Vec<Listed>, String> {
    let explain = |error: std::io::Error| format!("{}: {error}", folder.display());
    let mut all = Vec::new();
    for entry in fs::read_dir(folder).map_err(explain)? {
        let path = entry.map_err(explain)?.path();
        if path.extension().is_some_and(|extension| extension == "toml") {
            all.push(read(&path)?);
        }
    }
    all.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(all)
}

/// One scenario's file.
///
/// # Errors
/// It cannot be read.
pub fn read(path: &Path) -> Result<Listed, String> {
    let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
    let name = path.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
    Ok(Listed { name, proves: proves(&text), text })
}

/// The scenario of this name in a folder, or the file itself where the name is a path.
///
/// # Errors
/// There is none, with the names that there are.
pub fn find(folder: &Path, name: &str) -> Result<Listed, String> {
    if name.ends_with(".toml") {
        return read(Path::new(name));
    }
    let path = folder.join(format!("{name}.toml"));
    if path.is_file() {
        return read(&path);
    }
    let names: Vec<String> = list(folder)?.into_iter().map(|listed| listed.name).collect();
    Err(format!("there is no scenario {name:?}; there are {}", names.join(", ")))
}

/// The first sentence of the comment at the top.
fn proves(text: &str) -> String {
    let lines = text.lines().map_while(|line| line.strip_prefix('#')).map(str::trim);
    let comment = lines.take_while(|line| !line.is_empty()).collect::<Vec<_>>().join(" ");
    match comment.find(". ") {
        Some(end) => comment.get(..=end).unwrap_or_default().to_owned(),
        None => comment,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::Scenario;

    #[test]
    fn the_first_sentence_says_what_is_proven() {
        assert_eq!(proves("# Queries stay\n# fast. And more.\n\n# other\n[x]"), "Queries stay fast.");
        assert_eq!(proves("# One line\n"), "One line");
        assert_eq!(proves("seed = 1\n# late"), "");
    }

    #[test]
    fn every_bundled_scenario_is_whole_and_says_what_it_proves() {
        let all = list(&bundled()).expect("the folder");
        for listed in &all {
            let read = toml::from_str::<Scenario>(&listed.text).map_err(|error| error.to_string());
            let scenario = read.unwrap_or_else(|error| panic!("{}: {error}", listed.name));
            scenario.check().unwrap_or_else(|error| panic!("{}: {error}", listed.name));
            assert!(listed.proves.ends_with('.') && listed.proves.len() > 30, "{}: {:?}", listed.name, listed.proves);
            assert!(!scenario.expect.is_empty(), "{} expects nothing", listed.name);
        }
        let names: Vec<&str> = all.iter().map(|listed| listed.name.as_str()).collect();
        for promised in [
            "budget-exhaustion",
            "chaos",
            "crash",
            "helpdesk-cache",
            "interactive-steady",
            "migration",
            "monster-batch",
            "noisy-neighbour",
            "overhead",
            "provider-outage",
            "rate-limit-storm",
            "region-failover",
            "replicas",
            "rerank-mix",
        ] {
            assert!(names.contains(&promised), "{promised} is missing");
        }
    }
}
