//! Histograms as text, in the form that HdrHistogram's own plotters read.

use std::fmt::Write as _;

use crate::engine::report::Times;

/// A percentile distribution in milliseconds.
pub fn hgrm(times: &Times) -> String {
    let mut out = String::from("       Value     Percentile TotalCount 1/(1-Percentile)\n\n");
    let Some(histogram) = times.histogram() else { return out };
    // Writing to a string cannot fail.
    for value in histogram.iter_quantiles(5) {
        let ms = value.value_iterated_to() as f64 / 1e6;
        let share = value.quantile_iterated_to();
        let count = histogram.count_between(0, value.value_iterated_to());
        let _ = if share < 1.0 {
            writeln!(out, "{ms:12.3} {share:2.12} {count:10} {:14.2}", 1.0 / (1.0 - share))
        } else {
            writeln!(out, "{ms:12.3} {share:2.12} {count:10}")
        };
    }
    let (mean, deviation) = (histogram.mean() / 1e6, histogram.stdev() / 1e6);
    let (most, count) = (times.max().as_secs_f64() * 1e3, histogram.len());
    let (buckets, distinct) = (histogram.buckets(), histogram.distinct_values());
    let _ = writeln!(out, "#[Mean    = {mean:12.3}, StdDeviation   = {deviation:12.3}]");
    let _ = writeln!(out, "#[Max     = {most:12.3}, Total count    = {count:12}]");
    let _ = writeln!(out, "#[Buckets = {buckets:12}, SubBuckets     = {distinct:12}]");
    out
}

/// The curve of a histogram: shares, and the latency in milliseconds that each does not exceed.
pub fn curve(times: &Times) -> Vec<(f64, f64)> {
    let Some(histogram) = times.histogram().filter(|histogram| !histogram.is_empty()) else { return Vec::new() };
    let mut points: Vec<(f64, f64)> = histogram
        .iter_quantiles(4)
        .map(|value| (value.quantile_iterated_to().min(1.0), value.value_iterated_to() as f64 / 1e6))
        .collect();
    points.dedup_by(|later, earlier| later.0 <= earlier.0);
    points
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn a_distribution_is_written_from_its_least_to_its_most() {
        let mut times = Times::default();
        (1..=1000).for_each(|ms| times.record(Duration::from_millis(ms)));
        let text = hgrm(&times);
        let rows: Vec<Vec<f64>> = text
            .lines()
            .filter(|line| !line.starts_with('#') && !line.contains("Percentile") && !line.is_empty())
            .map(|line| line.split_whitespace().map(|cell| cell.parse().expect("a number")).collect())
            .collect();
        assert!(rows.len() > 20 && rows.is_sorted_by(|one, other| one[0] <= other[0] && one[1] <= other[1]));
        let last = rows.last().expect("rows");
        assert!((last[0] - 1000.0).abs() < 1.0 && last[1] == 1.0 && last[2] == 1000.0, "{last:?}");
        assert!(text.contains("Total count    =         1000"));
        let curve = curve(&times);
        assert!(curve.iter().any(|(share, ms)| (share - 0.5).abs() < 1e-9 && (ms - 500.0).abs() < 1.0), "{curve:?}");
        assert!(super::curve(&Times::default()).is_empty());
    }
}
