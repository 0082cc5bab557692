//! JSON's number grammar, a byte at a time. Refuses to know values.

/// How far into a number the reader is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Number {
    Minus,
    Zero,
    Whole,
    Point,
    Fraction,
    Exponent,
    Sign,
    Power,
}

/// What a byte does to a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Step {
    /// It belongs to the number.
    On(Number),
    /// The number ended before it.
    End,
    /// The number is cut short by it.
    Broken,
}

impl Number {
    /// The state after a number's first byte, if it may begin one.
    pub(super) fn first(byte: u8) -> Option<Number> {
        match byte {
            b'-' => Some(Number::Minus),
            b'0' => Some(Number::Zero),
            b'1'..=b'9' => Some(Number::Whole),
            _ => None,
        }
    }

    /// What the next byte does.
    pub(super) fn step(self, byte: u8) -> Step {
        match (self, byte) {
            (Number::Minus, b'0') => Step::On(Number::Zero),
            (Number::Minus, b'1'..=b'9') | (Number::Whole, b'0'..=b'9') => Step::On(Number::Whole),
            (Number::Zero | Number::Whole, b'.') => Step::On(Number::Point),
            (Number::Point | Number::Fraction, b'0'..=b'9') => Step::On(Number::Fraction),
            (Number::Zero | Number::Whole | Number::Fraction, b'e' | b'E') => Step::On(Number::Exponent),
            (Number::Exponent, b'+' | b'-') => Step::On(Number::Sign),
            (Number::Exponent | Number::Sign | Number::Power, b'0'..=b'9') => Step::On(Number::Power),
            (Number::Zero, b'0'..=b'9') => Step::Broken,
            (Number::Zero | Number::Whole | Number::Fraction | Number::Power, _) => Step::End,
            (Number::Minus | Number::Point | Number::Exponent | Number::Sign, _) => Step::Broken,
        }
    }
}
