//! What is wrong with a configuration, and the collector that lets one pass find everything.
//!
//! Knows how a problem reads; refuses to know any rule.

use std::fmt;

use serde::Serialize;

use super::tree::Origin;

/// One thing that is wrong, with what would be right.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// The file, or the name of the text.
    pub file: String,
    /// Line in it, from 1, where the value or its table is written there.
    pub line: Option<usize>,
    /// The environment variable that set the value, where one did.
    pub variable: Option<String>,
    /// The key, as in `upstreams[1].tpm`; empty for the file as a whole.
    pub key: String,
    /// The id or name of the entry that the key is in; empty outside lists.
    pub entry: String,
    /// What is wrong. Never holds a secret.
    pub what: String,
    /// What would be right.
    pub right: String,
    /// Whether the value stands in no file: it was given to the admin side.
    pub given: bool,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.variable, self.line) {
            _ if self.given => f.write_str("given to the admin side")?,
            (Some(variable), _) => write!(f, "environment variable {variable}")?,
            (None, Some(line)) => write!(f, "{}:{line}", self.file)?,
            (None, None) => f.write_str(&self.file)?,
        }
        if !self.key.is_empty() {
            write!(f, ": {}", self.key)?;
        }
        if !self.entry.is_empty() {
            write!(f, " ({})", self.entry)?;
        }
        write!(f, ": {}", self.what)?;
        if !self.right.is_empty() {
            write!(f, "; {}", self.right)?;
        }
        Ok(())
    }
}

/// Everything that is wrong with a configuration, in the order of the file; never empty.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problems(pub Vec<Problem>);

impl fmt::Display for Problems {
    /// One problem a line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, problem) in self.0.iter().enumerate() {
            if index > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{problem}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problems {}

/// A key's path and the id of the entry it lies in.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Path {
    key: String,
    entry: String,
}

impl Path {
    /// The path of a section or a list at the top.
    pub(crate) fn section(name: &str) -> Path {
        Path { key: name.to_owned(), entry: String::new() }
    }

    /// The path of `key` in this table.
    pub(crate) fn key(&self, key: &str) -> Path {
        let key = if self.key.is_empty() { key.to_owned() } else { format!("{}.{key}", self.key) };
        Path { key, entry: self.entry.clone() }
    }

    /// The path of this list's entry at `index`; `id` names it where it has one and the list is not inside another
    /// entry, whose id says more.
    pub(crate) fn index(&self, index: usize, id: Option<&str>) -> Path {
        let entry = if self.entry.is_empty() { id.unwrap_or_default().to_owned() } else { self.entry.clone() };
        Path { key: format!("{}[{index}]", self.key), entry }
    }
}

/// Collects problems and warnings during one load.
pub(crate) struct Report {
    file: String,
    problems: Vec<Problem>,
    warnings: Vec<String>,
}

impl Report {
    /// An empty report about the file of this name.
    pub(crate) fn new(file: &str) -> Report {
        Report { file: file.to_owned(), problems: Vec::new(), warnings: Vec::new() }
    }

    /// The one problem that leaves nothing else to check.
    pub(crate) fn only(&self, at: &Origin, path: &Path, what: String, right: &str) -> Problems {
        let mut alone = Report::new(&self.file);
        alone.problem(at, path, what, right);
        Problems(alone.problems)
    }

    /// Notes that the value of `path`, written at `at`, is wrong.
    pub(crate) fn problem(&mut self, at: &Origin, path: &Path, what: impl Into<String>, right: impl Into<String>) {
        let (line, variable) = match at {
            Origin::Line(line) => (Some(*line), None),
            Origin::Variable(name) => (None, Some(name.to_string())),
            Origin::Catalogue | Origin::Default | Origin::Given => (None, None),
        };
        let problem = Problem {
            file: self.file.clone(),
            line,
            variable,
            key: path.key.clone(),
            entry: path.entry.clone(),
            what: what.into(),
            right: right.into(),
            given: *at == Origin::Given,
        };
        if !self.problems.contains(&problem) {
            self.problems.push(problem);
        }
    }

    /// Notes what is valid but deserves a look.
    pub(crate) fn warning(&mut self, path: &Path, text: impl fmt::Display) {
        let warning = match (path.key.is_empty(), path.entry.is_empty()) {
            (true, _) => text.to_string(),
            (false, true) => format!("{}: {text}", path.key),
            (false, false) => format!("{} ({}): {text}", path.key, path.entry),
        };
        if !self.warnings.contains(&warning) {
            self.warnings.push(warning);
        }
    }

    /// The problems so far.
    pub(crate) fn problems(&self) -> &[Problem] {
        &self.problems
    }

    /// The warnings if nothing was wrong, else the problems by line, those without a line last.
    pub(crate) fn finish(mut self) -> Result<Vec<String>, Problems> {
        if self.problems.is_empty() {
            return Ok(self.warnings);
        }
        self.problems.sort_by_key(|problem| problem.line.unwrap_or(usize::MAX));
        Err(Problems(self.problems))
    }
}

/// The name of `known` nearest to `name`, if it is near enough to be what was meant by a name that is surely wrong.
pub(crate) fn nearest<'a>(name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    nearest_above(0.6, name, known)
}

/// The name of `known` nearest to `name`, if their likeness, 0 to 1, is at least `least`.
pub(crate) fn nearest_above<'a>(least: f64, name: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = name.to_lowercase();
    let score = |candidate: &str| {
        let candidate = candidate.to_lowercase();
        // `bge-m3` for `BAAI/bge-m3`: the owner is what people leave out.
        let without_owner = candidate.rsplit('/').next().unwrap_or_default();
        strsim::normalized_damerau_levenshtein(&lower, &candidate)
            .max(strsim::normalized_damerau_levenshtein(&lower, without_owner))
    };
    known
        .into_iter()
        .filter(|candidate| *candidate != name)
        .map(|candidate| (score(candidate), candidate))
        .filter(|(score, _)| *score >= least)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_names_are_found_and_far_ones_are_not() {
        assert_eq!(nearest("tmp", ["tpm", "rpm", "tier"]), Some("tpm"));
        assert_eq!(nearest("bge-m3", ["BAAI/bge-m3", "embed-v4.0"]), Some("BAAI/bge-m3"));
        assert_eq!(nearest("colour", ["tpm", "rpm", "tier"]), None);
    }

    #[test]
    fn a_path_names_each_place() {
        let path = Path::section("upstreams").index(12, Some("a")).key("serves").index(0, None).key("model");
        assert_eq!(path.key, "upstreams[12].serves[0].model");
    }

    #[test]
    fn problems_come_in_the_order_of_the_file() {
        let mut report = Report::new("a.toml");
        report.problem(&Origin::Default, &Path::default(), "third", "");
        report.problem(&Origin::Line(9), &Path::section("b"), "second", "write x");
        report.problem(&Origin::Line(2), &Path::section("a").index(0, Some("id")).key("k"), "first", "");
        let text = report.finish().expect_err("three problems").to_string();
        assert_eq!(text, "a.toml:2: a[0].k (id): first\na.toml:9: b: second; write x\na.toml: third");
    }
}
