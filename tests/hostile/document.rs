//! `SECURITY.md` names the tests that hold its lines: each of them is there.

use std::path::{Path, PathBuf};

/// Every Rust file below `folder`.
fn sources(folder: &Path, found: &mut Vec<(PathBuf, String)>) {
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("readable").path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|kind| kind == "rs") {
            let text = std::fs::read_to_string(&path).expect("text");
            found.push((path, text));
        }
    }
}

/// The names in backquotes that have the form of a test's: modules and a function, `…` for more than one.
fn named(document: &str) -> Vec<&str> {
    let quoted = document.split('`').skip(1).step_by(2);
    let word = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_lowercase() || "_0123456789…".contains(c));
    quoted.filter(|name| name.contains("::") && name.split("::").all(word)).collect()
}

#[test]
fn every_test_that_it_names_is_there() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    sources(&root.join("src"), &mut files);
    sources(&root.join("tests"), &mut files);
    let document = std::fs::read_to_string(root.join("SECURITY.md")).expect("text");
    let names = named(&document);
    assert!(names.len() > 30, "{names:?}");
    for name in names {
        let (modules, function) = name.rsplit_once("::").expect("modules");
        let module = modules.rsplit("::").next().expect("a module");
        let beginning = format!("fn {}", function.trim_end_matches('…'));
        let end = if function.ends_with('…') { "" } else { "(" };
        // A module is a file or a folder of its name.
        let inside = |path: &Path| path.with_extension("").components().any(|part| part.as_os_str() == module);
        let holds = |text: &str| {
            let mut lines = text.lines().map(str::trim);
            let mut tested = false;
            lines.any(|line| {
                let is_test = line.trim_start_matches("async ").starts_with(&format!("{beginning}{end}"));
                let found = tested && is_test;
                tested = line.starts_with("#[") && (tested || line.contains("test")) || (tested && line.starts_with("///"));
                found
            }) || text.contains("proptest! {") && text.contains(&format!("{beginning}{end}"))
        };
        assert!(files.iter().any(|(path, text)| inside(path) && holds(text)), "{name} is no test");
    }
}
