//! What a person sees while a run goes on: a block that is drawn again and again on a terminal, plain lines elsewhere.

use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

/// Draws on standard error.
#[derive(Debug)]
pub struct View {
    terminal: bool,
    drawn: usize,
}

impl Default for View {
    fn default() -> Self {
        Self { terminal: std::io::stderr().is_terminal(), drawn: 0 }
    }
}

impl View {
    /// How often it wants to be drawn.
    pub fn every(&self) -> Duration {
        if self.terminal { Duration::from_millis(500) } else { Duration::from_secs(5) }
    }

    /// Shows these lines in the place of the last ones; elsewhere than on a terminal, the first few in one line.
    pub fn show(&mut self, lines: &[String]) {
        let mut out = std::io::stderr().lock();
        let text = if self.terminal {
            let back = if self.drawn > 0 { format!("\x1b[{}A", self.drawn) } else { String::new() };
            // Each line is cut to what fits beside it and cleared to its end.
            let lines: Vec<String> = lines.iter().map(|line| format!("\x1b[2K{}\n", cut(line, 118))).collect();
            format!("{back}{}", lines.concat())
        } else {
            let line = lines.iter().map(|line| line.trim()).collect::<Vec<_>>().join("; ");
            format!("{line}\n")
        };
        self.drawn = lines.len();
        // Nobody to show it to is no reason to stop.
        let _ = out.write_all(text.as_bytes()).and_then(|()| out.flush());
    }
}

fn cut(line: &str, width: usize) -> String {
    line.chars().take(width).collect()
}

/// A bar of `width` characters for a share of 0 to 1.
pub fn bar(share: f64, width: usize) -> String {
    let full = (share.clamp(0.0, 1.0) * width as f64).round() as usize;
    format!("{}{}", "█".repeat(full), "░".repeat(width - full))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_fills_from_nothing_to_its_width() {
        assert_eq!([bar(-1.0, 4), bar(0.5, 4), bar(2.0, 4)], ["░░░░", "██░░", "████"]);
        assert_eq!(cut("äbc", 2), "äb");
    }
}
