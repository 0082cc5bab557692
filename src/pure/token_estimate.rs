//! How many tokens a text will cost, guessed without a tokenizer, and how the guess learns from what providers report.
//!
//! Owns the arithmetic from character counts to an [`Estimate`]. Refuses to know any vocabulary: exact counting is
//! `tokens.rs`, which is asked where a bound must be tight.
//!
//! Why a class sum and not bytes or characters by four: measured over English, Dutch, Chinese and source code it stays
//! within a quarter of the truth everywhere, while dividing characters by four is three times too low for Chinese.

use crate::config::plan::Tokenizer;

/// Characters of a text by the length of their UTF-8 form. All counts saturate at `u32::MAX`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ClassCounts {
    /// One byte.
    pub ascii: u32,
    /// Two bytes: accented Latin, Greek, Cyrillic, Arabic, Hebrew.
    pub two: u32,
    /// Three bytes: most of the Chinese, Japanese, Korean and Indic scripts.
    pub three: u32,
    /// Four bytes: emoji, rare ideographs.
    pub four: u32,
}

/// Bytes counted in one go: an eight-bit lane may not overflow.
const LANE: usize = 255;

impl ClassCounts {
    /// The counts of a whole text.
    pub fn of(text: &str) -> ClassCounts {
        let mut counts = ClassCounts::default();
        counts.add(text.as_bytes());
        counts
    }

    /// Adds a piece of UTF-8. Pieces may be cut inside a character: only its first byte is looked at.
    pub fn add(&mut self, piece: &[u8]) {
        if piece.is_ascii() {
            self.add_ascii(piece.len());
            return;
        }
        let (mut ascii, mut two, mut three, mut four) = (0_usize, 0_usize, 0_usize, 0_usize);
        for lane in piece.chunks(LANE) {
            let (mut low, mut from_c0, mut from_e0, mut from_f0) = (0_u8, 0_u8, 0_u8, 0_u8);
            for &byte in lane {
                low += u8::from(byte < 0x80);
                from_c0 += u8::from(byte >= 0xC0);
                from_e0 += u8::from(byte >= 0xE0);
                from_f0 += u8::from(byte >= 0xF0);
            }
            ascii += usize::from(low);
            two += usize::from(from_c0 - from_e0);
            three += usize::from(from_e0 - from_f0);
            four += usize::from(from_f0);
        }
        self.ascii = self.ascii.saturating_add(clamp(ascii));
        self.two = self.two.saturating_add(clamp(two));
        self.three = self.three.saturating_add(clamp(three));
        self.four = self.four.saturating_add(clamp(four));
    }

    /// Adds that many ASCII characters.
    pub fn add_ascii(&mut self, count: usize) {
        self.ascii = self.ascii.saturating_add(clamp(count));
    }

    /// The counts of two texts together.
    pub fn plus(self, other: ClassCounts) -> ClassCounts {
        ClassCounts {
            ascii: self.ascii.saturating_add(other.ascii),
            two: self.two.saturating_add(other.two),
            three: self.three.saturating_add(other.three),
            four: self.four.saturating_add(other.four),
        }
    }

    /// Length of the text in UTF-8 bytes.
    pub fn bytes(self) -> u64 {
        u64::from(self.ascii) + 2 * u64::from(self.two) + 3 * u64::from(self.three) + 4 * u64::from(self.four)
    }

    /// The class sum, rounded up: a quarter of a token for an ASCII character, then 0.6, 1.1 and 2.
    fn class_sum(self) -> u64 {
        let hundredths = 25 * u64::from(self.ascii)
            + 60 * u64::from(self.two)
            + 110 * u64::from(self.three)
            + 200 * u64::from(self.four);
        hundredths.div_ceil(100)
    }
}

fn clamp(count: usize) -> u32 {
    u32::try_from(count).unwrap_or(u32::MAX)
}

/// Tokens of one input: `lower` ≤ `likely` ≤ `upper`, all at least 1, since every provider bills at least one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Estimate {
    /// What to expect; holds while a balance is comfortable, batches and buckets use this.
    pub likely: u64,
    /// What it cannot exceed; holds near a limit use this.
    pub upper: u64,
    /// What it cannot fall below.
    pub lower: u64,
}

/// Markers that servers of BERT-like models add around a text and count.
const MARKERS: u64 = 2;

/// Longest token of cl100k and o200k in bytes (a run of spaces).
const LONGEST_TOKEN: u64 = 128;

impl Estimate {
    /// An exact count: of a token list, or by a tokenizer.
    pub fn exact(tokens: u64) -> Estimate {
        let tokens = tokens.max(1);
        Estimate { likely: tokens, upper: tokens, lower: tokens }
    }

    /// The estimate for a text with these counts.
    ///
    /// The upper bound is the number of bytes: byte-level and word-piece tokenizers spend at least a byte on a token.
    pub fn of(counts: ClassCounts, tokenizer: Tokenizer) -> Estimate {
        let bytes = counts.bytes();
        match tokenizer {
            Tokenizer::Bytes => Estimate::exact(bytes),
            Tokenizer::Cl100k | Tokenizer::O200k => Estimate {
                likely: counts.class_sum().max(1),
                upper: bytes.max(1),
                lower: bytes.div_ceil(LONGEST_TOKEN).max(1),
            },
            Tokenizer::Unknown => {
                Estimate { likely: counts.class_sum().max(1), upper: (bytes + MARKERS).max(1), lower: 1 }
            }
        }
    }

    /// Both inputs together, saturating.
    pub fn plus(self, other: Estimate) -> Estimate {
        Estimate {
            likely: self.likely.saturating_add(other.likely),
            upper: self.upper.saturating_add(other.upper),
            lower: self.lower.saturating_add(other.lower),
        }
    }
}

/// A factor in thousandths.
const ONE: u64 = 1_000;

/// What real usage of one model teaches about the class sum: how much too low it has lately been, at worst.
///
/// Rises at once to the worst ratio seen and comes down slowly, because a hold that was too small costs money and one
/// that was too big costs a moment. Never below 1 and never above 8: beyond that the provider's number is odd, not
/// the text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Correction {
    thousandths: u64,
}

impl Default for Correction {
    fn default() -> Self {
        Correction { thousandths: ONE }
    }
}

impl Correction {
    /// Largest factor, in thousandths.
    const MAX: u64 = 8 * ONE;
    /// Smaller estimates teach nothing: rounding and markers decide their ratio.
    const SMALLEST: u64 = 32;
    /// One observation takes back this part of what the factor is too high.
    const RELEASE: u64 = 256;

    /// Learns from a call: the sum of the `likely` of its inputs, uncorrected, and the tokens the provider billed.
    pub fn observe(&mut self, likely: u64, actual: u64) {
        if likely < Self::SMALLEST {
            return;
        }
        let seen = u128::from(actual) * u128::from(ONE) / u128::from(likely);
        let seen = u64::try_from(seen).unwrap_or(u64::MAX).clamp(ONE, Self::MAX);
        if seen >= self.thousandths {
            self.thousandths = seen;
        } else {
            self.thousandths -= (self.thousandths - seen).div_ceil(Self::RELEASE);
        }
    }

    /// The estimate with `likely` corrected, never beyond its `upper`.
    pub fn apply(self, estimate: Estimate) -> Estimate {
        let scaled = u128::from(estimate.likely) * u128::from(self.thousandths);
        let likely = u64::try_from(scaled.div_ceil(u128::from(ONE))).unwrap_or(u64::MAX);
        Estimate { likely: likely.min(estimate.upper).max(estimate.likely), ..estimate }
    }

    /// The factor in thousandths, 1000 to 8000; for status pages.
    pub fn factor_thousandths(self) -> u64 {
        self.thousandths
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[track_caller]
    fn check(text: &str, tokenizer: Tokenizer, likely: u64, upper: u64, lower: u64) {
        assert_eq!(Estimate::of(ClassCounts::of(text), tokenizer), Estimate { likely, upper, lower }, "{text:?}");
    }

    #[test]
    fn estimates_by_class_of_character() {
        check("", Tokenizer::Cl100k, 1, 1, 1);
        check("", Tokenizer::Bytes, 1, 1, 1);
        check("", Tokenizer::Unknown, 1, 2, 1);
        check("a", Tokenizer::Cl100k, 1, 1, 1);
        check(&"a".repeat(400), Tokenizer::Cl100k, 100, 400, 4);
        check(&"é".repeat(100), Tokenizer::O200k, 60, 200, 2);
        check(&"中".repeat(100), Tokenizer::O200k, 110, 300, 3);
        check(&"😀".repeat(100), Tokenizer::Unknown, 200, 402, 1);
        check("naïve", Tokenizer::Bytes, 6, 6, 6);
    }

    #[test]
    fn correction_rises_at_once_and_falls_slowly_within_bounds() {
        let mut correction = Correction::default();
        correction.observe(10, 1_000);
        assert_eq!(correction.factor_thousandths(), 1_000, "small samples teach nothing");
        correction.observe(100, 250);
        assert_eq!(correction.factor_thousandths(), 2_500);
        correction.observe(100, 100);
        assert_eq!(correction.factor_thousandths(), 2_494);
        for _ in 0..10_000 {
            correction.observe(100, 0);
        }
        assert_eq!(correction.factor_thousandths(), 1_000);
        correction.observe(100, u64::MAX);
        assert_eq!(correction.factor_thousandths(), 8_000);
    }

    #[test]
    fn correction_never_passes_the_upper_bound() {
        let mut correction = Correction::default();
        correction.observe(100, 800);
        let base = Estimate { likely: 100, upper: 300, lower: 3 };
        assert_eq!(correction.apply(base), Estimate { likely: 300, ..base });
        assert_eq!(Correction::default().apply(base), base);
        assert_eq!(correction.apply(Estimate::exact(7)), Estimate::exact(7));
    }

    proptest! {
        #[test]
        fn counts_agree_with_the_text_however_it_is_cut(text in "(?s).{0,700}", cut in 0_usize..2_000) {
            let whole = ClassCounts::of(&text);
            prop_assert_eq!(whole.bytes(), text.len() as u64);
            prop_assert_eq!(whole.three as usize, text.chars().filter(|c| c.len_utf8() == 3).count());
            let (left, right) = text.as_bytes().split_at(cut.min(text.len()));
            let mut pieces = ClassCounts::default();
            pieces.add(left);
            pieces.add(right);
            prop_assert_eq!(pieces, whole);
        }

        #[test]
        fn bounds_are_in_order(text in "(?s).{0,300}") {
            for tokenizer in [Tokenizer::Bytes, Tokenizer::Cl100k, Tokenizer::O200k, Tokenizer::Unknown] {
                let estimate = Estimate::of(ClassCounts::of(&text), tokenizer);
                prop_assert!(1 <= estimate.lower && estimate.lower <= estimate.likely);
                prop_assert!(estimate.likely <= estimate.upper);
            }
        }
    }
}
