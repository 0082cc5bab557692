//! The image is built from what its context holds and from nothing else. No container engine is needed to see that the
//! build has all it reads: the steps of the Dockerfile up to each `cargo build` are taken in a folder of their own.

use std::path::{Path, PathBuf};
use std::process::Command;

const DOCKERFILE: &str = include_str!("../../Dockerfile");
const CONTEXT: &str = include_str!("../../.dockerignore");

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// What of the repository is sent to the builder: each file and folder that is let through by name.
fn context() -> Vec<&'static str> {
    let lines: Vec<&str> = CONTEXT.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).collect();
    assert_eq!(lines.first(), Some(&"*"), "everything is kept out but what is named");
    lines[1..].iter().map(|line| line.strip_prefix('!').expect("only names that are let through")).collect()
}

#[track_caller]
fn shell(folder: &Path, command: &str) {
    let output = Command::new("sh").args(["-ec", command]).current_dir(folder).output().expect("a shell");
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Copies as `cp` does, with the folders that lead there.
#[track_caller]
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to.parent().expect("a folder")).expect("made");
    let (from, to) = (from.to_str().expect("a path"), to.to_str().expect("a path"));
    shell(repository(), &format!("cp -rT '{from}' '{to}'"));
}

/// The instructions of the first stage, each on one line.
fn instructions() -> Vec<String> {
    let lines: Vec<&str> = DOCKERFILE.lines().filter(|line| !line.starts_with('#')).collect();
    let joined = lines.join("\n").replace("\\\n", " ");
    let build = joined.split("\nFROM scratch").next().expect("a first stage").to_owned();
    build.lines().map(str::to_owned).filter(|line| !line.is_empty()).collect()
}

#[test]
fn each_build_of_the_image_finds_every_file_that_its_manifests_name() {
    let (sent, image) = (tempfile::tempdir().expect("a folder"), tempfile::tempdir().expect("a folder"));
    for name in context() {
        copy(&repository().join(name), &sent.path().join(name));
    }
    let mut builds = 0;
    for line in instructions() {
        if let Some(files) = line.strip_prefix("COPY ") {
            let words: Vec<&str> = files.split_whitespace().collect();
            let (to, from) = words.split_last().expect("a destination");
            for name in from {
                let whole = !to.ends_with('/') && *to != ".";
                let to = if whole { image.path().join(to) } else { image.path().join(to).join(base(name)) };
                copy(&sent.path().join(name), &to);
            }
        }
        let Some(run) = line.strip_prefix("RUN ").filter(|run| run.contains("cargo build")) else { continue };
        for step in run.split("&&").map(str::trim) {
            match step.starts_with("cargo build") {
                // Reads the manifests as a build does, and the list of versions, and compiles nothing.
                true => shell(image.path(), "cargo fetch --locked --offline --quiet"),
                false if step.contains("target/") => {}
                false => shell(image.path(), step),
            }
            builds += usize::from(step.starts_with("cargo build"));
        }
    }
    assert_eq!(builds, 2, "dependencies, and then the program");
    for file in included() {
        assert!(image.path().join(&file).is_file(), "{} is read by the build but not in the image", file.display());
    }
}

fn base(name: &str) -> &str {
    name.rsplit('/').next().unwrap_or(name)
}

/// Files that the program's sources include, from the repository's top; those of its unit tests are left out.
fn included() -> Vec<PathBuf> {
    let mut folders = vec![repository().join("src")];
    let mut found = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder").map(|entry| entry.expect("an entry").path()) {
            if entry.is_dir() && !entry.ends_with("tests") {
                folders.push(entry);
            } else if entry.extension().is_some_and(|extension| extension == "rs") {
                let text = std::fs::read_to_string(&entry).expect("a source");
                let program = text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
                for part in program.split("include_str!(\"").skip(1) {
                    let name = part.split('"').next().expect("a name");
                    let file = folder.join(name).canonicalize().unwrap_or_else(|error| panic!("{name}: {error}"));
                    let top = repository().canonicalize().expect("a folder");
                    found.push(file.strip_prefix(top).expect("below the top").to_owned());
                }
            }
        }
    }
    assert!(found.len() > 20, "only {found:?}");
    found
}
