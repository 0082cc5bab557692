//! JSON arrays of numbers as text: checked without being parsed, and parsed where the values are needed.
//!
//! Checking must be much cheaper than parsing, since it is done for every vector that passes through: numbers of the
//! usual form are judged sixty-four bytes at a time ([`blocks`]), each other one alone, and only numbers that could be
//! too big for `f32` are parsed.

mod blocks;

use super::VectorError;

/// Numbers with at most this many digits before the point and no positive exponent are below 10³⁸, hence finite.
const SAFE_DIGITS: usize = 38;

/// After a quick look that found nothing usual, so many numbers are taken in order: a list of whole numbers has none.
const IN_ORDER: usize = 8;

/// Checks a whole JSON array and counts its elements.
pub(super) fn check(array: &[u8]) -> Result<usize, VectorError> {
    walk(array, blocks::usual)
}

/// Checks number after number, and says what is wrong with which. `quick` says how much of a list that goes on with a
/// number is beyond doubt; what it leaves is looked at in order.
fn walk(array: &[u8], quick: impl Fn(&[u8]) -> blocks::Usual) -> Result<usize, VectorError> {
    if array.first() != Some(&b'[') {
        return Err(VectorError::NotAnArray);
    }
    let mut at = blank(array, 1);
    let mut count = 0;
    if array.get(at) == Some(&b']') {
        return if at + 1 == array.len() { Ok(0) } else { Err(VectorError::NotAnArray) };
    }
    let mut without = 0;
    loop {
        if without == 0 {
            let usual = quick(array.get(at..).unwrap_or_default());
            count += usual.commas;
            at = blank(array, at + usual.last);
            without = if usual.commas == 0 { IN_ORDER } else { 0 };
        } else {
            without -= 1;
        }
        at = blank(array, number(array, at, count)?);
        count += 1;
        match array.get(at) {
            Some(b',') => at = blank(array, at + 1),
            Some(b']') if at + 1 == array.len() => return Ok(count),
            _ => return Err(VectorError::NotAnArray),
        }
    }
}

/// Hands out the elements of a checked array.
pub(super) fn each(array: &[u8], mut take: impl FnMut(f32)) {
    let mut rest = array;
    while let Some(start) = rest.iter().position(|byte| matches!(byte, b'-' | b'0'..=b'9')) {
        rest = &rest[start..];
        let Ok((value, length)) = fast_float2::parse_partial::<f32, _>(rest) else { return };
        take(value);
        rest = rest.get(length..).unwrap_or_default();
    }
}

/// Checks the number that begins at `at`; the place behind it.
fn number(array: &[u8], at: usize, element: usize) -> Result<usize, VectorError> {
    let not_a_number = VectorError::NotANumber { element };
    let first = if array.get(at) == Some(&b'-') { at + 1 } else { at };
    // Nearly all elements of nearly all vectors begin like this.
    let mut end = match array.get(first..) {
        Some([b'0'..=b'9', b'.', ..]) => first + 1,
        _ => digits(array, first),
    };
    let whole = end - first;
    if whole == 0 || (whole > 1 && array.get(first) == Some(&b'0')) {
        return Err(not_a_number);
    }
    if array.get(end) == Some(&b'.') {
        let point = end + 1;
        end = digits(array, point);
        if end == point {
            return Err(not_a_number);
        }
    }
    let mut small = whole <= SAFE_DIGITS;
    if matches!(array.get(end), Some(b'e' | b'E')) {
        let sign = array.get(end + 1);
        small &= sign == Some(&b'-');
        let power = if matches!(sign, Some(b'-' | b'+')) { end + 2 } else { end + 1 };
        end = digits(array, power);
        if end == power {
            return Err(not_a_number);
        }
    }
    if small || finite(&array[at..end]) { Ok(end) } else { Err(VectorError::NotFinite { element }) }
}

fn finite(number: &[u8]) -> bool {
    fast_float2::parse::<f32, _>(number).is_ok_and(f32::is_finite)
}

/// The place behind the white space at `at`.
fn blank(array: &[u8], mut at: usize) -> usize {
    while matches!(array.get(at), Some(b' ' | b'\n' | b'\r' | b'\t')) {
        at += 1;
    }
    at
}

/// The place behind the digits at `at`. Looks at 24 bytes at once, without waiting for the first eight to be judged:
/// that is enough for a number of 17 digits, and what this walk spends its time on is waiting.
fn digits(array: &[u8], mut at: usize) -> usize {
    while let Some(&[a, b, c]) = array.get(at..).and_then(|rest| rest.as_chunks::<8>().0.first_chunk::<3>()) {
        let (first, second, third) = (odd(a), odd(b), odd(c));
        if first != 0 {
            return at + first.trailing_zeros() as usize / 8;
        }
        if second != 0 {
            return at + 8 + second.trailing_zeros() as usize / 8;
        }
        if third != 0 {
            return at + 16 + third.trailing_zeros() as usize / 8;
        }
        at += 24;
    }
    while array.get(at).is_some_and(u8::is_ascii_digit) {
        at += 1;
    }
    at
}

/// Eight bytes, the top bit set in each that is not a digit.
#[inline]
fn odd(word: [u8; 8]) -> u64 {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    // A digit becomes 0 to 9; everything from 10 on carries into its byte's top bit when 0x76 is added.
    let low = u64::from_le_bytes(word) ^ (ONES * 0x30);
    (((low & (ONES * 0x7F)) + ONES * 0x76) | low) & (ONES * 0x80)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn in_order(array: &[u8]) -> Result<usize, VectorError> {
        walk(array, |_| blocks::Usual::default())
    }

    proptest! {
        /// However it is looked at, an array is sound or not, and wrong in the same place, whatever was done to it.
        #[test]
        fn the_quick_look_agrees_with_the_walk_in_order(
            values in prop::collection::vec(-2.0_f64..2.0, 1..400),
            separator in prop::sample::select(vec![",", ", ", ",\n  "]),
            rare in prop::sample::select(vec![
                "1e-5", "0.25", "12.5", "-0", "1E+3", "3", "0.1234567890123456789012345", "1e39", "00.5", "0.5 ", ".5", "1.",
            ]),
            every in 1_usize..60,
            places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        ) {
            let mut texts: Vec<String> = values.iter().map(|value| format!("{value:.9}")).collect();
            for text in texts.iter_mut().step_by(every) {
                *text = rare.to_owned();
            }
            let mut array = format!("[{}]", texts.join(separator)).into_bytes();
            for (place, byte) in &places {
                let at = place.index(array.len());
                array[at] = b"0123456789.-+eE, []\"x"[usize::from(*byte) % 21];
            }
            prop_assert_eq!(check(&array), in_order(&array));
        }

        /// Short strings of the characters that matter, at each place of a block.
        #[test]
        fn no_order_of_characters_is_judged_otherwise(
            before in 0_usize..70,
            middle in prop::collection::vec(prop::sample::select(b"0123.,- \n]e".to_vec()), 0..12),
            after in 0_usize..70,
        ) {
            let mut array = b"[0.".to_vec();
            array.extend(std::iter::repeat_n(b'1', before));
            array.extend(middle);
            array.extend(b"0,0.");
            array.extend(std::iter::repeat_n(b'2', after));
            array.push(b']');
            prop_assert_eq!(check(&array), in_order(&array));
        }
    }
}
