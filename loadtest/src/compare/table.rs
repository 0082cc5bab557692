//! The table of a comparison.

use std::fmt::Write;

use super::{Measured, Sample};

/// A table with one line a peer. The first peer is the one that latencies are compared with.
pub fn table(measured: &[Measured]) -> String {
    let mut out = String::new();
    let base = measured.first().map(|peer| peer.median).unwrap_or_default();
    let heads = ["peer", "req/s", "p50 ms", "p95 ms", "p99 ms", "+p50", "+p95", "+p99", "CPU s/1000", "MiB", "not ok"];
    let mut lines = vec![heads.map(str::to_owned)];
    lines.extend(measured.iter().enumerate().map(|(place, peer)| line(peer, place, &base)));
    let widths: Vec<usize> = (0..heads.len())
        .map(|column| {
            lines.iter().filter_map(|line| line.get(column)).map(|cell| cell.chars().count()).max().unwrap_or(0)
        })
        .collect();
    for cells in &lines {
        for (place, (cell, width)) in cells.iter().zip(&widths).enumerate() {
            // Writing to a string cannot fail.
            let _ = if place == 0 { write!(out, "{cell:<width$}") } else { write!(out, "  {cell:>width$}") };
        }
        out.push('\n');
    }
    for peer in measured {
        for complaint in &peer.complaints {
            let _ = writeln!(out, "{}: {complaint}", peer.name);
        }
    }
    out
}

fn line(peer: &Measured, place: usize, base: &Sample) -> [String; 11] {
    let sample = &peer.median;
    let added = |own: f64, base: f64| if place == 0 { "-".to_owned() } else { format!("{:+.2}", own - base) };
    [
        peer.name.clone(),
        format!("{:.1}", sample.per_s),
        format!("{:.2}", sample.p50_ms),
        format!("{:.2}", sample.p95_ms),
        format!("{:.2}", sample.p99_ms),
        added(sample.p50_ms, base.p50_ms),
        added(sample.p95_ms, base.p95_ms),
        added(sample.p99_ms, base.p99_ms),
        sample.cpu_s_per_1000.map_or_else(|| "-".to_owned(), |cpu| format!("{cpu:.3}")),
        sample.resident_bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{:.0}", bytes as f64 / 1_048_576.0)),
        sample.not_ok.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_are_compared_with_the_first() {
        let peer = |name: &str, p50_ms, cpu| Measured {
            name: name.to_owned(),
            median: Sample {
                per_s: 200.0,
                p50_ms,
                p95_ms: 30.0,
                p99_ms: 40.0,
                cpu_s_per_1000: cpu,
                ..Sample::default()
            },
            rounds: Vec::new(),
            complaints: vec![format!("{name} complains")],
        };
        let text = table(&[peer("direct", 20.0, None), peer("gateway", 20.25, Some(0.125))]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].contains(" - ") && !lines[1].contains('+'));
        assert!(lines[2].contains("+0.25") && lines[2].contains("0.125"), "{text}");
        assert_eq!(lines[0].chars().count(), lines[2].chars().count());
        assert_eq!(lines[4], "gateway: gateway complains");
    }
}
