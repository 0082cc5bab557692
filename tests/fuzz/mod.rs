//! Arbitrary bytes for everything that reads what others wrote: a seeded mutator over small corpora, some thousand inputs
//! a target on every run. `fuzz/` runs the same targets for longer, led by what they reach; what it finds comes into
//! the corpus, and stays.

mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;

use targets::{TARGETS, Target};

/// Inputs made for each target, unless `VECTORGATE_FUZZ_RUNS` says how many; `VECTORGATE_FUZZ_SEED` makes others.
const RUNS: u64 = 20_000;

fn asked(variable: &str) -> Option<u64> {
    std::env::var(variable).ok().and_then(|text| text.parse().ok())
}

/// Longest input made.
const LONGEST: usize = 4096;

/// Pieces that mean something to one or the other target.
const WORDS: [&str; 40] = [
    "{",
    "}",
    "[",
    "]",
    "\"",
    "\\",
    ":",
    ",",
    "null",
    "true",
    "1e999",
    "-0",
    "0.1",
    "18446744073709551616",
    "\\ud800",
    "\\u0000",
    "\"model\":",
    "\"input\":",
    "\"texts\":[",
    "\"inputs\":",
    "\"documents\":[",
    "\"query\":",
    "\"embedding\":",
    "\"index\":",
    "\"usage\":{\"prompt_tokens\":",
    "\"error\":{\"message\":",
    "\"data\":[",
    "\"embeddings\":",
    "NaN",
    "\u{ff}",
    "\u{1f600}",
    "\n",
    "\r\n",
    " = ",
    "[[models]]\n",
    "[[upstreams]]\n",
    "1m30s",
    "; w=60",
    "T00:00:00Z",
    "\u{0}",
];

/// Numbers by which the next one is not to be guessed, and which are the same each time.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Less than `bound`; 0 for a bound of 0.
    fn below(&mut self, bound: usize) -> usize {
        usize::try_from(self.next() % (bound.max(1) as u64)).expect("below a bound")
    }
}

/// One input out of another: some small changes.
fn mutate(dice: &mut Dice, from: &[u8], others: &[Vec<u8>]) -> Vec<u8> {
    let mut made = from.to_vec();
    for _ in 0..=dice.below(6) {
        let at = dice.below(made.len() + 1);
        let until = (at + dice.below(32)).min(made.len());
        match dice.below(8) {
            0 if at < made.len() => made[at] ^= 1 << dice.below(8),
            1 if at < made.len() => made[at] = u8::try_from(dice.below(256)).expect("a byte"),
            2 => drop(made.drain(at..until)),
            3 => {
                let again = made[at..until].to_vec();
                drop(made.splice(at..at, again));
            }
            4 => made.truncate(at),
            5 if !others.is_empty() => {
                let other = &others[dice.below(others.len())];
                let begin = dice.below(other.len() + 1);
                let end = (begin + dice.below(64)).min(other.len());
                drop(made.splice(at..until, other[begin..end].iter().copied()));
            }
            6 => drop(made.splice(at..at, std::iter::repeat_n(b"[{\"1 "[dice.below(5)], dice.below(200)))),
            _ => drop(made.splice(at..at, WORDS[dice.below(WORDS.len())].bytes())),
        }
    }
    made.truncate(LONGEST);
    made
}

/// The small inputs that a target begins with.
#[track_caller]
fn corpus(name: &str) -> Vec<Vec<u8>> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/fuzz/corpus").join(name);
    let entries = std::fs::read_dir(&folder).unwrap_or_else(|error| panic!("{}: {error}", folder.display()));
    let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("readable").path()).collect();
    files.sort();
    let inputs: Vec<Vec<u8>> = files.iter().map(|file| std::fs::read(file).expect("readable")).collect();
    assert!(!inputs.is_empty(), "{name} has nothing to begin with");
    inputs
}

#[track_caller]
fn run(target: Target, name: &str, what: &str, input: &[u8]) {
    let ended = catch_unwind(AssertUnwindSafe(|| target(input)));
    assert!(ended.is_ok(), "{name}, {what}: {:?} (in hex {})", String::from_utf8_lossy(input), hex::encode(input));
}

#[track_caller]
fn check(name: &str) {
    let (_, target) = TARGETS.into_iter().find(|(known, _)| *known == name).expect("a target");
    let inputs = corpus(name);
    for (number, input) in inputs.iter().enumerate() {
        run(target, name, &format!("corpus {number}"), input);
    }
    let mut dice = Dice(asked("VECTORGATE_FUZZ_SEED").unwrap_or(0x7665_6374_6f72));
    for number in 0..asked("VECTORGATE_FUZZ_RUNS").unwrap_or(RUNS) {
        let from = &inputs[dice.below(inputs.len())];
        let made = mutate(&mut dice, from, &inputs);
        run(target, name, &format!("run {number}"), &made);
    }
}

#[test]
fn the_body_scanner() {
    check("body_scanner");
}

#[test]
fn requests_of_every_client_dialect() {
    check("client_requests");
}

#[test]
fn answers_of_every_provider() {
    check("provider_answers");
}

#[test]
fn waits_and_limits_in_headers() {
    check("header_durations");
}

#[test]
fn configurations() {
    check("configuration");
}

#[test]
fn entries_of_the_shared_cache() {
    check("cache_entries");
}

#[test]
fn codings_of_bodies() {
    check("body_codings");
}

#[test]
fn chat_requests() {
    check("chat_requests");
}

#[test]
fn chat_streams() {
    check("chat_streams");
}

#[test]
fn numbers_of_vectors() {
    check("vectors");
}

#[test]
fn heads_of_requests() {
    check("request_heads");
}

#[test]
fn heads_of_upstreams() {
    check("upstream_heads");
}

#[test]
fn lines_of_the_ledger() {
    check("ledger_lines");
}

/// Those above are all there are.
#[test]
fn every_target_is_run_and_has_one_for_longer_runs() {
    let manifest = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    let own = std::fs::read_to_string(manifest.join("tests/fuzz/mod.rs")).expect("readable");
    let longer = std::fs::read_to_string(manifest.join("fuzz/Cargo.toml")).expect("readable");
    for (name, _) in TARGETS {
        assert!(own.contains(&format!("check(\"{name}\")")), "{name} is not run");
        assert!(longer.contains(&format!("name = \"{name}\"")), "{name} has no target in fuzz/");
        assert!(manifest.join(format!("fuzz/fuzz_targets/{name}.rs")).exists(), "{name}");
    }
}
