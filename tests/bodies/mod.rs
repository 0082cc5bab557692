//! Size: compressed bodies, large bodies and answers, many at once, and clients that are slow on purpose.

mod coded;
mod large;
mod slow_clients;

use std::fmt::Write as _;

use crate::support::Gateway;

/// A memory figure of a gateway process by its name in `/proc/PID/status`, bytes.
#[track_caller]
fn memory(gateway: &Gateway, name: &str) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{}/status", gateway.pid())).expect("our own child");
    let line = status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let kilobytes = line.and_then(|line| line.split_whitespace().next()).expect("the figure");
    kilobytes.parse::<u64>().expect("a number") * 1024
}

/// The most memory the process has ever had, bytes.
#[track_caller]
fn peak(gateway: &Gateway) -> u64 {
    memory(gateway, "VmHWM")
}

/// A body with `count` texts of `length` characters, each different.
fn body(count: usize, length: usize) -> String {
    let mut body = String::with_capacity(count * (length + 3) + 64);
    body.push_str("{\"input\":[");
    for number in 0..count {
        let comma = if number == 0 { "" } else { "," };
        write!(body, "{comma}\"{}\"", text(number, length)).expect("memory");
    }
    body.push_str("],\"model\":\"emb-a\"}");
    body
}

/// The text at `number` of such a body.
fn text(number: usize, length: usize) -> String {
    let mut text = format!("document {number} ");
    while text.len() < length {
        text.push_str("what the handbook says about it and why ");
    }
    text.truncate(length);
    text
}
