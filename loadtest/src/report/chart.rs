//! Charts as inline SVG. Pure: numbers in, text out. Colours are the page's, by class, so that light and dark both fit.

use std::fmt::Write as _;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 64.0;
const RIGHT: f64 = 16.0;
const TOP: f64 = 30.0;
const BOTTOM: f64 = 34.0;

/// Text as it may stand in a page.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}

/// How values become places.
#[derive(Clone, Copy, Debug)]
pub(super) enum Scale {
    /// Evenly between two values.
    Linear(f64, f64),
    /// By their logarithm between two values above 0.
    Log(f64, f64),
}

impl Scale {
    /// A scale for latencies in milliseconds: from 0, or by the logarithm where they differ by more than a hundredfold.
    pub fn of_ms(values: impl Iterator<Item = f64>) -> Self {
        let (mut low, mut high) = (f64::INFINITY, 0.0_f64);
        for value in values.filter(|value| value.is_finite() && *value > 0.0) {
            low = low.min(value);
            high = high.max(value);
        }
        let high = if high > 0.0 { high } else { 1.0 };
        if high / low > 100.0 {
            Self::Log(10f64.powf(low.log10().floor()), high * 1.15)
        } else {
            Self::Linear(0.0, high * 1.12)
        }
    }

    fn share(self, value: f64) -> f64 {
        match self {
            Self::Linear(low, high) => (value - low) / (high - low).max(1e-12),
            Self::Log(low, high) => (value.max(low) / low).ln() / (high / low).ln().max(1e-12),
        }
    }

    fn ticks(self) -> Vec<f64> {
        match self {
            Self::Linear(low, high) => {
                let rough = (high - low) / 5.0;
                let power = 10f64.powf(rough.log10().floor());
                let step = [1.0, 2.0, 5.0, 10.0].iter().map(|factor| factor * power).find(|step| *step >= rough);
                let step = step.unwrap_or(power * 10.0);
                let first = (low / step).ceil();
                (0..20).map(|place| (first + f64::from(place)) * step).take_while(|tick| *tick <= high).collect()
            }
            Self::Log(low, high) => {
                let decades = (-3..7).map(|power| 10f64.powi(power));
                let ticks = decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|factor| factor * decade));
                ticks.filter(|tick| *tick >= low * 0.999 && *tick <= high).collect()
            }
        }
    }
}

/// A line, drawn in the colour of its number.
#[derive(Clone, Debug, Default)]
pub(super) struct Line {
    pub name: String,
    pub color: usize,
    pub dashed: bool,
    /// Places; `None` breaks the line.
    pub points: Vec<Option<(f64, f64)>>,
}

/// A stretch of the x axis with a name.
#[derive(Clone, Debug, Default)]
pub(super) struct Band {
    pub name: String,
    pub from: f64,
    pub to: f64,
}

/// A chart.
pub(super) struct Chart {
    pub title: String,
    pub height: f64,
    pub x: Scale,
    /// Where the x axis is labelled, and how.
    pub x_ticks: Vec<(f64, String)>,
    pub x_name: String,
    pub y: Scale,
    pub y_name: String,
    pub lines: Vec<Line>,
    /// Bars from the ground, such as failures: place, width, height as a share of the chart, and what they say.
    pub bars: Vec<(f64, f64, f64, String)>,
    pub bands: Vec<Band>,
    pub marks: Vec<Band>,
}

impl Chart {
    fn x_at(&self, value: f64) -> f64 {
        LEFT + self.x.share(value).clamp(0.0, 1.0) * (WIDTH - LEFT - RIGHT)
    }

    fn y_at(&self, value: f64) -> f64 {
        let strip = self.strip();
        TOP + strip + (1.0 - self.y.share(value).clamp(0.0, 1.0)) * (self.height - TOP - BOTTOM - strip)
    }

    /// Height taken by marks above the lines.
    fn strip(&self) -> f64 {
        self.rows().iter().max().map_or(0.0, |most| (*most as f64 + 1.0) * 15.0 + 4.0)
    }

    /// The row of each mark, so that none covers another's name.
    fn rows(&self) -> Vec<usize> {
        let mut ends: Vec<f64> = Vec::new();
        let rows = self.marks.iter().map(|mark| {
            let from = self.x_at(mark.from);
            let until = (from + 14.0 + mark.name.chars().count() as f64 * 6.4).max(self.x_at(mark.to) + 4.0);
            let free = ends.iter().position(|end| *end <= from);
            let row = free.unwrap_or(ends.len().min(7));
            if row < ends.len() {
                ends.iter_mut().skip(row).take(1).for_each(|end| *end = until)
            } else {
                ends.push(until)
            }
            row
        });
        rows.collect()
    }

    /// The chart as an SVG element with a caption.
    pub fn svg(&self) -> String {
        let mut out = String::new();
        let (height, base) = (self.height, self.height - BOTTOM);
        // Writing to a string cannot fail.
        let _ = write!(
            out,
            "<figure><figcaption>{}</figcaption><svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"{}\">",
            escaped(&self.title),
            escaped(&self.title)
        );
        for (place, band) in self.bands.iter().enumerate() {
            let (from, to) = (self.x_at(band.from), self.x_at(band.to));
            let shade = if place % 2 == 0 { "even" } else { "odd" };
            let name =
                if to - from > band.name.chars().count() as f64 * 6.0 { escaped(&band.name) } else { String::new() };
            let _ = write!(
                out,
                "<g><title>{}</title><rect class=\"band {shade}\" x=\"{from:.1}\" y=\"{TOP}\" width=\"{:.1}\" \
                 height=\"{:.1}\"/><text class=\"phase\" x=\"{:.1}\" y=\"{:.1}\">{name}</text></g>",
                escaped(&band.name),
                (to - from).max(0.0),
                base - TOP,
                from + 5.0,
                TOP - 8.0
            );
        }
        self.axes(&mut out, base);
        for (at, width, share, what) in &self.bars {
            let (from, to) = (self.x_at(*at), self.x_at(at + width));
            let tall = (share.clamp(0.0, 1.0) * (base - TOP - self.strip())).max(2.0);
            let _ = write!(
                out,
                "<rect class=\"bad\" x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{tall:.1}\"><title>{}</title></rect>",
                base - tall,
                (to - from - 0.5).max(0.8),
                escaped(what)
            );
        }
        for (mark, row) in self.marks.iter().zip(self.rows()) {
            let (from, to) = (self.x_at(mark.from), self.x_at(mark.to));
            let y = TOP + 4.0 + row as f64 * 15.0;
            let _ = write!(
                out,
                "<g><title>{name} ({:.1} to {:.1} s)</title><line class=\"mark\" x1=\"{from:.1}\" x2=\"{from:.1}\" y1=\"{y}\" \
                 y2=\"{base}\"/><rect class=\"mark\" x=\"{from:.1}\" y=\"{y}\" width=\"{:.1}\" height=\"12\"/>\
                 <text class=\"mark\" x=\"{:.1}\" y=\"{:.1}\">{name}</text></g>",
                mark.from,
                mark.to,
                (to - from).max(2.5),
                from + 5.0,
                y + 10.0,
                name = escaped(&mark.name),
            );
        }
        for line in &self.lines {
            let mut path = String::new();
            let mut pen_down = false;
            for point in &line.points {
                match point {
                    Some((x, y)) => {
                        let word = if pen_down { 'L' } else { 'M' };
                        let _ = write!(path, "{word}{:.1} {:.1}", self.x_at(*x), self.y_at(*y));
                        pen_down = true;
                    }
                    None => pen_down = false,
                }
            }
            let dash = if line.dashed { " dashed" } else { "" };
            let (color, name) = (line.color % 8, escaped(&line.name));
            let _ = write!(out, "<path class=\"line c{color}{dash}\" d=\"{path}\"><title>{name}</title></path>");
        }
        out.push_str("</svg><ul class=\"legend\">");
        for line in &self.lines {
            let dash = if line.dashed { " dashed" } else { "" };
            let _ = write!(out, "<li><i class=\"c{}{dash}\"></i>{}</li>", line.color % 8, escaped(&line.name));
        }
        if !self.bars.is_empty() {
            out.push_str("<li><i class=\"bad\"></i>requests without a good answer</li>");
        }
        out.push_str("</ul></figure>");
        out
    }

    fn axes(&self, out: &mut String, base: f64) {
        for tick in self.y.ticks() {
            let y = self.y_at(tick);
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{LEFT}\" x2=\"{:.1}\" y1=\"{y:.1}\" y2=\"{y:.1}\"/>\
                 <text class=\"axis\" text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
                WIDTH - RIGHT,
                LEFT - 7.0,
                y + 4.0,
                super::table::number(tick)
            );
        }
        for (value, name) in &self.x_ticks {
            let x = self.x_at(*value);
            let _ = write!(
                out,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{base:.1}\" y2=\"{:.1}\"/>\
                 <text class=\"axis\" text-anchor=\"middle\" x=\"{x:.1}\" y=\"{:.1}\">{}</text>",
                base + 4.0,
                base + 17.0,
                escaped(name)
            );
        }
        let _ = write!(
            out,
            "<text class=\"axis\" x=\"4\" y=\"{:.1}\">{}</text><text class=\"axis\" text-anchor=\"end\" x=\"{:.1}\" y=\"{:.1}\">{}</text>",
            TOP - 8.0,
            escaped(&self.y_name),
            WIDTH - RIGHT,
            base + 31.0,
            escaped(&self.x_name)
        );
    }
}

/// Labels for seconds from 0 to `length`.
pub(super) fn seconds(length: f64) -> Vec<(f64, String)> {
    Scale::Linear(0.0, length.max(1.0)).ticks().into_iter().map(|tick| (tick, super::table::number(tick))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_follow_the_scale() {
        assert_eq!(Scale::Linear(0.0, 10.0).share(5.0), 0.5);
        assert!((Scale::Log(1.0, 100.0).share(10.0) - 0.5).abs() < 1e-9);
        assert_eq!(Scale::Linear(0.0, 10.0).ticks(), [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]);
        assert_eq!(Scale::Log(1.0, 30.0).ticks(), [1.0, 2.0, 5.0, 10.0, 20.0]);
        assert!(matches!(Scale::of_ms([1.0, 500.0].into_iter()), Scale::Log(..)));
        assert!(matches!(Scale::of_ms([10.0, 50.0].into_iter()), Scale::Linear(..)));
        assert!(matches!(Scale::of_ms(std::iter::empty()), Scale::Linear(..)));
    }

    #[test]
    fn a_chart_is_one_element_that_names_everything_and_asks_for_nothing() {
        let chart = Chart {
            title: "Latency <of> it".to_owned(),
            height: 240.0,
            x: Scale::Linear(0.0, 10.0),
            x_ticks: seconds(10.0),
            x_name: "s".to_owned(),
            y: Scale::Linear(0.0, 5.0),
            y_name: "ms".to_owned(),
            lines: vec![Line {
                name: "p50".to_owned(),
                points: vec![Some((0.0, 1.0)), None, Some((2.0, 2.0)), Some((3.0, 9.0))],
                ..Line::default()
            }],
            bars: vec![(1.0, 1.0, 0.5, "3 bad".to_owned())],
            bands: vec![Band { name: "calm".to_owned(), from: 0.0, to: 10.0 }],
            marks: vec![Band { name: "down".to_owned(), from: 4.0, to: 5.0 }],
        };
        let svg = chart.svg();
        assert!(
            svg.contains("Latency &lt;of&gt; it")
                && svg.contains("calm")
                && svg.contains("down")
                && svg.contains("p50")
        );
        assert!(!svg.contains("http") && !svg.contains("NaN") && !svg.contains("inf"));
        assert_eq!(svg.matches("<svg").count(), svg.matches("</svg>").count());
        assert_eq!(svg.matches("<path").count(), 1);
    }
}
