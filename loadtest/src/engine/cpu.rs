//! CPU time and memory of a process and its children, read from `/proc`.

use std::collections::BTreeMap;
use std::fs;
use std::io;

/// Linux reports CPU times in hundredths of a second on every platform.
const TICKS_PER_SECOND: f64 = 100.0;
const PAGE_BYTES: u64 = 4096;

/// What a process and all its children use.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Usage {
    /// CPU seconds in user and kernel mode since each was started.
    pub cpu_s: f64,
    /// Memory held now; pages that processes share are counted in each.
    pub resident_bytes: u64,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Stat {
    parent: u32,
    usage: Usage,
}

/// Usage of a process and everything it has started that still runs: a server's workers are its children.
///
/// # Errors
/// There is no such process.
pub fn usage(pid: u32) -> io::Result<Usage> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir("/proc")?.flatten() {
        let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
        // A process that ended between the listing and the reading is not there any more.
        let Ok(text) = fs::read_to_string(entry.path().join("stat")) else { continue };
        if let Some(stat) = parse(&text) {
            all.insert(pid, stat);
        }
    }
    if !all.contains_key(&pid) {
        return Err(io::Error::new(io::ErrorKind::NotFound, format!("no process {pid}")));
    }
    Ok(sum(pid, &all))
}

fn sum(pid: u32, all: &BTreeMap<u32, Stat>) -> Usage {
    let mut total = all.get(&pid).map_or_else(Usage::default, |stat| stat.usage);
    for (child, _) in all.iter().filter(|(child, stat)| stat.parent == pid && **child != pid) {
        let below = sum(*child, all);
        total.cpu_s += below.cpu_s;
        total.resident_bytes += below.resident_bytes;
    }
    total
}

fn parse(text: &str) -> Option<Stat> {
    // The name stands in brackets and may hold anything, brackets too.
    let (_, rest) = text.rsplit_once(')')?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |place: usize| fields.get(place).and_then(|text| text.parse::<u64>().ok());
    let ticks = number(11)? + number(12)?;
    let usage = Usage { cpu_s: ticks as f64 / TICKS_PER_SECOND, resident_bytes: number(21)? * PAGE_BYTES };
    Some(Stat { parent: u32::try_from(number(1)?).ok()?, usage })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stat_line_is_read_whatever_the_name() {
        let line =
            "42 (a) b (c) S 7 42 42 0 -1 4194304 100 0 0 0 250 50 0 0 20 0 3 0 100 1000000 12 18446744073709551615";
        let stat = parse(line).expect("a stat line");
        assert_eq!(stat, Stat { parent: 7, usage: Usage { cpu_s: 3.0, resident_bytes: 12 * PAGE_BYTES } });
        assert_eq!(parse("nonsense"), None);
    }

    #[test]
    fn children_count_for_their_parents() {
        let stat = |parent, cpu_s| Stat { parent, usage: Usage { cpu_s, resident_bytes: 1 } };
        let all = BTreeMap::from([(1, stat(0, 1.0)), (2, stat(1, 2.0)), (3, stat(2, 4.0)), (4, stat(0, 8.0))]);
        assert_eq!(sum(1, &all), Usage { cpu_s: 7.0, resident_bytes: 3 });
    }

    #[test]
    fn this_process_can_be_read() {
        assert!(usage(std::process::id()).expect("it runs").resident_bytes > 0);
        assert!(usage(u32::MAX).is_err());
    }
}
