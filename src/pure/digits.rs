//! Numbers as text, written by hand: every answer, record and log line carries a dozen of them, and the formatting
//! machinery was most of the time of writing one.

use std::time::Duration;

/// Room for any of them.
const ROOM: usize = 32;

/// A number's text.
#[derive(Debug, Clone, Copy)]
pub struct Digits {
    text: [u8; ROOM],
    start: usize,
}

impl Digits {
    /// The text.
    pub fn as_str(&self) -> &str {
        // Only ASCII was written.
        std::str::from_utf8(&self.text[self.start..]).unwrap_or_default()
    }

    /// Nothing yet, to be written from `end` to the left.
    const fn before(end: usize) -> Digits {
        Digits { text: [0; ROOM], start: end }
    }

    fn push_front(&mut self, byte: u8) {
        self.start -= 1;
        self.text[self.start] = byte;
    }

    fn push_decimal(&mut self, number: u64) {
        let mut left = number;
        loop {
            self.push_front(b'0' + (left % 10) as u8);
            left /= 10;
            if left == 0 {
                return;
            }
        }
    }
}

/// `number` in decimal.
pub fn decimal(number: u64) -> Digits {
    let mut digits = Digits::before(ROOM);
    digits.push_decimal(number);
    digits
}

/// Milliseconds with three decimals; a span of more than half a million years is written as that long.
pub fn millis(span: Duration) -> Digits {
    let micros = u64::try_from(span.as_micros()).unwrap_or(u64::MAX);
    let mut digits = Digits::before(ROOM);
    for place in [1, 10, 100] {
        digits.push_front(b'0' + (micros / place % 10) as u8);
    }
    digits.push_front(b'.');
    digits.push_decimal(micros / 1_000);
    digits
}

/// `number` as 32 hexadecimal digits.
pub fn hex(number: u128) -> Digits {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let mut digits = Digits::before(0);
    for (place, byte) in digits.text.as_chunks_mut::<2>().0.iter_mut().zip(number.to_be_bytes()) {
        *place = [HEX[usize::from(byte >> 4)], HEX[usize::from(byte & 0xf)]];
    }
    digits
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn they_read_as_the_library_writes_them(number: u64, wide: u128, micros in prop_oneof![0_u64..3_000_000, any::<u64>()]) {
            let (decimal, hex, millis) = (decimal(number), hex(wide), millis(Duration::from_micros(micros)));
            prop_assert_eq!(decimal.as_str(), number.to_string());
            prop_assert_eq!(hex.as_str(), format!("{wide:032x}"));
            let expected = format!("{}.{:03}", micros / 1_000, micros % 1_000);
            prop_assert_eq!(millis.as_str(), expected);
        }
    }

    #[test]
    fn the_smallest_and_the_largest_have_room() {
        assert_eq!(decimal(0).as_str(), "0");
        assert_eq!(decimal(u64::MAX).as_str(), u64::MAX.to_string());
        assert_eq!(millis(Duration::from_nanos(999)).as_str(), "0.000");
        assert_eq!(millis(Duration::MAX).as_str(), "18446744073709551.615");
        assert_eq!(hex(0).as_str(), "0".repeat(32));
    }
}
