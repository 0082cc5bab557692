//! Lines of a segment: `crc32 in hex, space, JSON, newline`, and how far a damaged file can be trusted. Knows nothing of
//! folders or of what records mean.
//!
//! Only the end of a file can be damaged by a crash, so damage with a sound line after it is something else: a bad disk
//! or an editor. That is reported and never repaired here, because what was lost may be money.

use std::fmt;
use std::io::{self, BufRead};
use std::path::{Path, PathBuf};

use super::line;
use super::record::Record;

/// Hex digits of the checksum and the space after it.
const PREFIX_LEN: usize = 9;

/// The space before the JSON of a line, and how that begins.
const KIND_MARK: &[u8] = b" {\"kind\":\"";

/// Why a journal cannot be used.
#[derive(Debug)]
pub enum StoreError {
    /// The system refused.
    Io {
        /// Where.
        path: PathBuf,
        /// What it said.
        source: io::Error,
    },
    /// Another process writes to this folder.
    Locked {
        /// The folder.
        path: PathBuf,
    },
    /// A line's checksum is wrong although sound lines follow.
    Damaged {
        /// The segment.
        path: PathBuf,
        /// Its line, from 1.
        line: u64,
    },
    /// A line is sound but says something that this version does not understand.
    Unreadable {
        /// The segment.
        path: PathBuf,
        /// Its line, from 1.
        line: u64,
        /// Why.
        reason: String,
    },
    /// The folder holds no journal.
    Missing {
        /// The folder.
        path: PathBuf,
    },
}

impl fmt::Display for StoreError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            StoreError::Io { path, source } => write!(f, "{}: {source}", path.display()),
            StoreError::Locked { path } => {
                write!(f, "{}: another gateway is using this folder; give each its own [store] path", path.display())
            }
            StoreError::Damaged { path, line } => {
                write!(f, "{}: line {line} is damaged, and sound lines follow it", path.display())
            }
            StoreError::Unreadable { path, line, reason } => write!(f, "{}: line {line}: {reason}", path.display()),
            StoreError::Missing { path } => write!(f, "{}: there is no journal in this folder", path.display()),
        }
    }
}

impl std::error::Error for StoreError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            StoreError::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

impl StoreError {
    /// For `map_err`: an error of the system at `path`.
    pub(super) fn io(path: &Path) -> impl FnOnce(io::Error) -> StoreError {
        let path = path.to_owned();
        move |source| StoreError::Io { path, source }
    }
}

/// The end of a segment that a crash left unfinished.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Torn {
    /// The segment.
    pub path: PathBuf,
    /// Its first line that is not sound, from 1.
    pub line: u64,
    /// Bytes from there to the end of the file.
    pub bytes: u64,
}

/// Appends one record's line to `buffer`.
///
/// # Errors
/// When the record cannot be written as JSON; `buffer` is as before.
pub fn encode_line(buffer: &mut Vec<u8>, record: &Record) -> io::Result<()> {
    let start = buffer.len();
    buffer.extend_from_slice(&[b' '; PREFIX_LEN]);
    if let Err(error) = line::write(buffer, record) {
        buffer.truncate(start);
        return Err(error.into());
    }
    let (prefix, json) = buffer[start..].split_at_mut(PREFIX_LEN);
    prefix[..PREFIX_LEN - 1].copy_from_slice(&checksum_hex(json));
    buffer.push(b'\n');
    Ok(())
}

fn checksum_hex(json: &[u8]) -> [u8; PREFIX_LEN - 1] {
    let checksum = crc32fast::hash(json);
    std::array::from_fn(|digit| b"0123456789abcdef"[(checksum >> (28 - 4 * digit)) as usize & 0xf])
}

/// The JSON of a line without its newline, if the checksum is right.
fn decode_line(line: &[u8]) -> Option<&[u8]> {
    let (prefix, json) = line.split_at_checked(PREFIX_LEN)?;
    let (digits, space) = prefix.split_at_checked(PREFIX_LEN - 1)?;
    (space == b" " && digits == checksum_hex(json)).then_some(json)
}

/// Whether a sound line lies inside a bad one, because the newline before it was damaged. It reaches to the end of the bad
/// one, so it is where the last record begins, however many lines have run together: hashing from each of them to the end
/// would take for ever.
fn hides_a_sound_line(bad: &[u8]) -> bool {
    let text = bad.strip_suffix(b"\n").unwrap_or(bad);
    memchr::memmem::rfind(text, KIND_MARK).is_some_and(|at| {
        let start = (at + 1).saturating_sub(PREFIX_LEN);
        // At 0 it is the line itself, sound but for its newline: unfinished.
        start > 0 && text.get(start..).is_some_and(|line| decode_line(line).is_some())
    })
}

/// How reading a segment ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Scanned {
    /// Bytes up to the end of the last sound line.
    pub good_bytes: u64,
    /// Sound lines.
    pub lines: u64,
    /// What follows them, if anything does.
    pub torn: Option<Torn>,
}

/// Calls `visit` with the JSON of every sound line and its number, in order, holding one line in memory at a time.
///
/// # Errors
/// [`StoreError::Damaged`] for a bad line that a sound one follows, [`StoreError::Io`], and what `visit` returns.
pub fn scan<E: From<StoreError>>(
    mut reader: impl BufRead,
    path: &Path,
    mut visit: impl FnMut(&[u8], u64) -> Result<(), E>,
) -> Result<Scanned, E> {
    let mut scanned = Scanned { good_bytes: 0, lines: 0, torn: None };
    let mut line = Vec::with_capacity(1024);
    loop {
        line.clear();
        let read = reader.read_until(b'\n', &mut line).map_err(StoreError::io(path))?;
        if read == 0 {
            return Ok(scanned);
        }
        // A sound text without its newline was never finished, so nobody was told that it is kept.
        let sound = line.strip_suffix(b"\n").and_then(decode_line);
        match (sound, &mut scanned.torn) {
            (None, torn) if hides_a_sound_line(&line) => {
                let line = torn.as_ref().map_or(scanned.lines + 1, |torn| torn.line);
                return Err(StoreError::Damaged { path: path.to_owned(), line }.into());
            }
            (Some(json), None) => {
                scanned.lines += 1;
                scanned.good_bytes += read as u64;
                visit(json, scanned.lines)?;
            }
            (Some(_), Some(torn)) => {
                return Err(StoreError::Damaged { path: path.to_owned(), line: torn.line }.into());
            }
            (None, Some(torn)) => torn.bytes += read as u64,
            (None, None) => {
                scanned.torn = Some(Torn { path: path.to_owned(), line: scanned.lines + 1, bytes: read as u64 });
            }
        }
        // The end as of now. A gateway may be finishing this very line, and reading on would take its rest for damage.
        if !line.ends_with(b"\n") {
            return Ok(scanned);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::testing::{hold, usage};

    fn lines(records: &[Record]) -> Vec<Vec<u8>> {
        let encode = |record| {
            let mut line = Vec::new();
            encode_line(&mut line, record).expect("encodes");
            line
        };
        records.iter().map(encode).collect()
    }

    fn three() -> Vec<Vec<u8>> {
        lines(&[hold(1, 5), Record::Usage(Box::new(usage(1, 5))), hold(2, 5)])
    }

    /// Sound lines, their bytes, and line and bytes of what is torn.
    type Seen = (u64, u64, Option<(u64, u64)>);

    fn scan_bytes(bytes: &[u8]) -> Result<Seen, String> {
        scan(bytes, Path::new("s"), |_, _| Ok::<(), StoreError>(()))
            .map(|end| (end.lines, end.good_bytes, end.torn.map(|torn| (torn.line, torn.bytes))))
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_line_is_checksum_space_json_newline() {
        let line = String::from_utf8(lines(&[hold(1, 5)]).concat()).expect("text");
        let (checksum, json) = line.split_once(' ').expect("space");
        assert_eq!(checksum, format!("{:08x}", crc32fast::hash(json.trim_end().as_bytes())));
        assert!(json.starts_with(r#"{"kind":"hold","#) && json.ends_with("}\n"), "{json}");
    }

    #[test]
    fn a_tail_cut_at_any_byte_costs_only_the_unfinished_line() {
        let lines = three();
        let (whole, kept) = (lines.concat(), lines[0].len() + lines[1].len());
        assert_eq!(scan_bytes(&whole), Ok((3, whole.len() as u64, None)));
        assert_eq!(scan_bytes(&whole[..kept]), Ok((2, kept as u64, None)));
        for cut in kept + 1..whole.len() {
            let torn = Some((3, (cut - kept) as u64));
            assert_eq!(scan_bytes(&whole[..cut]), Ok((2, kept as u64, torn)), "cut at {cut}");
        }
    }

    #[test]
    fn damage_anywhere_is_found_and_told_from_an_unfinished_end() {
        let lines = three();
        let (whole, first, second) = (lines.concat(), lines[0].len(), lines[1].len());
        for at in 0..whole.len() {
            let mut bytes = whole.clone();
            bytes[at] ^= 0x40;
            let got = scan_bytes(&bytes);
            if at < first + second {
                let line = if at < first { 1 } else { 2 };
                assert_eq!(got, Err(format!("s: line {line} is damaged, and sound lines follow it")), "byte {at}");
            } else {
                let torn = Some((3, (whole.len() - first - second) as u64));
                assert_eq!(got, Ok((2, (first + second) as u64, torn)), "byte {at}");
            }
        }
    }

    #[test]
    fn lines_that_ran_together_are_looked_at_once() {
        let line = three().swap_remove(0);
        let together: Vec<u8> = line.repeat(20_000).iter().map(|byte| if *byte == b'\n' { b' ' } else { *byte }).collect();
        let bytes = [&together[..], b"\n"].concat();
        let torn = Some((1, bytes.len() as u64));
        assert_eq!(scan_bytes(&bytes), Ok((0, 0, torn)), "the last one has a blank where its newline was");
        let bytes = [&together[..], &line].concat();
        assert_eq!(scan_bytes(&bytes), Err("s: line 1 is damaged, and sound lines follow it".to_owned()));
    }

    /// A file that ends, and has grown when it is read again.
    struct Growing(std::collections::VecDeque<Vec<u8>>);

    impl io::Read for Growing {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let part = self.0.pop_front().unwrap_or_default();
            buffer[..part.len()].copy_from_slice(&part);
            Ok(part.len())
        }
    }

    #[test]
    fn a_line_that_is_finished_while_it_is_read_is_not_taken_for_damage() {
        let lines = three();
        let (start, rest) = lines[1].split_at(50);
        let parts = [[&lines[0][..], start].concat(), Vec::new(), [rest, &lines[2]].concat()];
        let reader = io::BufReader::new(Growing(parts.into()));
        let end = scan(reader, Path::new("s"), |_, _| Ok::<(), StoreError>(())).expect("no damage");
        assert_eq!((end.lines, end.torn.map(|torn| torn.bytes)), (1, Some(50)));
    }

    #[test]
    fn garbage_over_several_lines_at_the_end_is_one_torn_tail() {
        let mut bytes = three().concat();
        let good = bytes.len() as u64;
        bytes.extend_from_slice(b"\0\0\0\n\0\0\nxyz");
        assert_eq!(scan_bytes(&bytes), Ok((3, good, Some((4, 10)))));
        assert_eq!(scan_bytes(b""), Ok((0, 0, None)));
    }
}
