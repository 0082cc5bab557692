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

/// What each peer takes more of CPU for a request than the first, a line a peer: the median over the rounds, in each of
/// which both had the same minute of the machine, and how far the rounds lie apart.
pub fn added(measured: &[Measured]) -> String {
    let mut out = String::new();
    let Some((base, others)) = measured.split_first() else { return out };
    for peer in others {
        let pairs = base.rounds.iter().zip(&peer.rounds);
        let mut shares: Vec<f64> =
            pairs.filter_map(|(base, own)| Some(100.0 * (own.cpu_s_per_1000? / base.cpu_s_per_1000? - 1.0))).collect();
        shares.sort_by(f64::total_cmp);
        if let (Some(least), Some(middle), Some(most)) = (shares.first(), shares.get(shares.len() / 2), shares.last()) {
            // Writing to a string cannot fail.
            let _ = writeln!(
                out,
                "{} takes {middle:+.1} % of CPU a request against {} ({least:+.1} to {most:+.1})",
                peer.name, base.name
            );
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

    #[test]
    fn more_processor_time_is_told_round_by_round() {
        let peer = |name: &str, rounds: &[f64]| {
            let sample = |cpu: &f64| Sample { cpu_s_per_1000: Some(*cpu), ..Sample::default() };
            let rounds = rounds.iter().map(sample).collect();
            Measured { name: name.to_owned(), median: Sample::default(), rounds, complaints: Vec::new() }
        };
        let text = added(&[peer("silent", &[1.0, 2.0, 1.0]), peer("log", &[1.02, 2.06, 0.99]), peer("idle", &[])]);
        assert_eq!(text, "log takes +2.0 % of CPU a request against silent (-1.0 to +3.0)\n");
        assert_eq!(added(&[]), "");
    }
}
