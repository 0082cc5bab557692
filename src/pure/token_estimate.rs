//! How many tokens a text will cost, guessed without a tokenizer, and how the guess learns from what providers report.
//!
//! Owns the arithmetic from character counts to an [`Estimate`]. Refuses to know any vocabulary: exact counting is
//! `tokens.rs`, which is asked where a bound must be tight.
//!
//! Why a class sum and not bytes or characters by four: measured over English, Dutch, Chinese and source code it stays
//! within a quarter of the truth everywhere, while dividing characters by four is three times too low for Chinese. What
//! its weights cannot know of a language, a [`Sample`] of the texts tells whoever has their vocabulary: a [`Density`].

use std::fmt;
use std::ops::Range;

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

/// Parts of a request's texts, together at most 2 KiB: enough to see how dense their language is in tokens.
///
/// Each text gives its beginning, at most a quarter of what is still wanted so that a long one does not speak for all,
/// and of each further kibibyte a little. Has no `Debug` of what it holds: that is the client's.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct Sample {
    text: Vec<u8>,
    /// Bytes of the present text that have passed.
    seen: usize,
    /// The part of the present text that is taken next, in bytes of it; empty: nothing more.
    part: Range<usize>,
}

impl Sample {
    const MAX: usize = 2_048;
    /// Shorter parts say little.
    const LEAST: usize = 64;
    /// Another part is taken each time so much has passed.
    const STRIDE: usize = 1_024;

    /// Another text begins.
    pub fn begin(&mut self) {
        self.seen = 0;
        self.part = self.wanted().map_or(0..0, |left| 0..(left / 4).max(Self::LEAST));
    }

    /// More of the present text, always whole characters.
    #[inline]
    pub fn add(&mut self, utf8: &[u8]) {
        if !self.part.is_empty() {
            self.take(utf8);
        }
    }

    fn take(&mut self, utf8: &[u8]) {
        let (before, after) = (self.seen, self.seen + utf8.len());
        self.seen = after;
        // Parts begin and end where the character ends that they would cut.
        let place = |at: usize| {
            let at = at.clamp(before, after) - before;
            let continues = |byte: &&u8| **byte & 0xC0 == 0x80;
            at + utf8[at..].iter().take_while(continues).count()
        };
        while !self.part.is_empty() && self.part.start < after {
            self.text.extend_from_slice(&utf8[place(self.part.start)..place(self.part.end)]);
            if self.part.end > after {
                return;
            }
            let next = (self.part.end / Self::STRIDE + 1) * Self::STRIDE;
            self.part = self.wanted().map_or(0..0, |_| next..next + Self::LEAST);
        }
    }

    /// How much is still wanted; `None`: nothing.
    fn wanted(&self) -> Option<usize> {
        Self::MAX.checked_sub(self.text.len()).filter(|left| *left >= Self::LEAST)
    }

    /// What was taken.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.text).unwrap_or_default()
    }
}

impl fmt::Debug for Sample {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sample").field("bytes", &self.text.len()).finish_non_exhaustive()
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

    /// The estimate for a text of that density, within the same bounds.
    pub fn dense(self, density: Density) -> Estimate {
        let likely = u128::from(self.likely) * u128::from(density.exact);
        let likely = u64::try_from(likely.div_ceil(u128::from(density.guessed))).unwrap_or(u64::MAX);
        Estimate { likely: likely.clamp(self.lower, self.upper), ..self }
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

/// How many tokens a request's texts have for each that the class sum makes of them.
///
/// Of the same length, Dutch has half as many tokens again as English in cl100k: a sample that is counted knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Density {
    exact: u64,
    /// At least 1.
    guessed: u64,
}

impl Default for Density {
    /// As the class sum has it.
    fn default() -> Self {
        Density { exact: 1, guessed: 1 }
    }
}

impl Density {
    /// That of a sample with so many tokens by its tokenizer; an empty one says nothing.
    pub fn of(sample: &Sample, exact: u64) -> Density {
        match ClassCounts::of(sample.text()).class_sum() {
            0 => Density::default(),
            guessed => Density { exact, guessed },
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

    #[test]
    fn a_sample_takes_from_every_text_and_from_all_of_a_long_one() {
        let mut sample = Sample::default();
        let mut taken = Vec::new();
        for _ in 0..8 {
            let before = sample.text().len();
            sample.begin();
            sample.add("a".repeat(900).as_bytes());
            taken.push(sample.text().len() - before);
        }
        assert_eq!(taken, [512, 384, 288, 216, 162, 121, 91, 68]);
        assert!(!format!("{sample:?}").contains("aa"), "{sample:?}");

        let mut sample = Sample::default();
        sample.begin();
        for chapter in 'a'..='z' {
            sample.add(chapter.to_string().repeat(Sample::STRIDE).as_bytes());
        }
        let parts: String = ('b'..='y').map(|chapter| chapter.to_string().repeat(Sample::LEAST)).collect();
        assert_eq!(sample.text(), "a".repeat(512) + &parts);
    }

    #[test]
    fn a_short_text_is_its_own_sample_so_that_its_estimate_is_exact() {
        let text = "wederzijdse instellingen";
        let mut sample = Sample::default();
        sample.begin();
        sample.add(text.as_bytes());
        assert_eq!(sample.text(), text);
        let guessed = Estimate::of(ClassCounts::of(text), Tokenizer::Cl100k);
        assert_eq!(guessed.likely, 6);
        for exact in [1, 5, 9, 20] {
            assert_eq!(guessed.dense(Density::of(&sample, exact)), Estimate { likely: exact, ..guessed });
        }
        assert_eq!(guessed.dense(Density::of(&sample, 1_000)).likely, guessed.upper);
        assert_eq!(guessed.dense(Density::of(&Sample::default(), 9)), guessed);
        assert_eq!(Estimate::exact(7).dense(Density::of(&sample, 20)), Estimate::exact(7), "token lists are counted");
    }

    proptest! {
        #[test]
        fn a_sample_is_the_same_however_a_text_is_cut(
            texts in prop::collection::vec(("(?s).{0,1200}", 0_usize..3_000), 0..6),
        ) {
            let (mut whole, mut cut) = (Sample::default(), Sample::default());
            for (text, at) in &texts {
                whole.begin();
                whole.add(text.as_bytes());
                cut.begin();
                let (left, right) = text.split_at(text.floor_char_boundary(*at));
                cut.add(left.as_bytes());
                cut.add(right.as_bytes());
            }
            prop_assert_eq!(whole.text(), cut.text());
            prop_assert!(whole.text.len() <= Sample::MAX + 4);
            prop_assert!(whole.text.is_empty() || !whole.text().is_empty(), "valid UTF-8");
        }

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
