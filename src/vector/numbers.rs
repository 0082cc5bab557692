//! JSON arrays of numbers as text: checked without being parsed, and parsed where the values are needed.
//!
//! Checking must be much cheaper than parsing, since it is done for every vector that passes through: digits are
//! skipped eight at a time, and only numbers that could be too big for `f32` are parsed.

use super::VectorError;

/// Numbers with at most this many digits before the point and no positive exponent are below 10³⁸, hence finite.
const SAFE_DIGITS: usize = 38;

/// Checks a whole JSON array and counts its elements.
pub(super) fn check(array: &[u8]) -> Result<usize, VectorError> {
    match lanes(array) {
        Some(count) => Ok(count),
        None => check_in_order(array),
    }
}

/// A long array is checked at so many places at once: what a single walk spends its time on is waiting for where the next
/// number begins.
const LANES: usize = 4;

/// Shorter ones are not worth it.
const LONG: usize = 1024;

/// Checks a long array from several places at once; `None`: it is short, or somebody slower must look.
fn lanes(array: &[u8]) -> Option<usize> {
    if array.len() < LONG || array.first() != Some(&b'[') || array.last() != Some(&b']') {
        return None;
    }
    let last = array.len() - 1;
    let mut at = [blank(array, 1); LANES];
    let mut ends = [last; LANES];
    for lane in 1..LANES {
        let middle = array.len() / LANES * lane;
        let comma = middle + memchr::memchr(b',', array.get(middle..)?)?;
        ends[lane - 1] = comma;
        at[lane] = blank(array, comma + 1);
    }
    let mut count = 0;
    while at.iter().zip(ends).all(|(at, end)| at + 3 * WINDOW < end) {
        let next = at.map(|at| quick(array, at));
        count += LANES;
        for (at, next) in at.iter_mut().zip(next) {
            *at = if next > 0 { next } else { slow(array, *at)? };
        }
    }
    for (mut at, end) in at.into_iter().zip(ends) {
        // The end of each lane is behind its last number: a comma, or the bracket.
        loop {
            count += 1;
            at = blank(array, number(array, at, 0).ok()?);
            if at == end {
                break;
            }
            at = blank(array, (array.get(at) == Some(&b',')).then_some(at + 1)?);
        }
    }
    Some(count)
}

/// Bytes that [`quick`] looks at: enough for the shortest text of nearly any `f32` in a unit vector, its comma included.
const WINDOW: usize = 16;

/// The place of the next number, if one of the usual form begins at `at` and another follows it: perhaps a minus, one
/// digit, a point, digits, a comma, perhaps blanks. 0: it is of another form, or of none.
#[inline]
fn quick(array: &[u8], at: usize) -> usize {
    let Some(&[a, b]) = array.get(at..).and_then(|rest| rest.as_chunks::<8>().0.first_chunk::<2>()) else {
        return 0;
    };
    let sign = usize::from(a[0] == b'-');
    let digits = (bits(a) | bits(b) << 8) >> sign;
    let fraction = (!(digits >> 2)).trailing_zeros() as usize;
    let end = at + sign + 2 + fraction;
    let usual = digits & 0b11 == 0b01 && a[sign + 1] == b'.' && fraction > 0 && array.get(end) == Some(&b',');
    let next = end + 1;
    // Most have no blanks, and a loop that is not entered costs more than this question.
    match array.get(next) {
        _ if !usual => 0,
        Some(b' ' | b'\n' | b'\r' | b'\t') => blank(array, next),
        _ => next,
    }
}

/// The digits of eight bytes, as bits: the first byte is the lowest.
#[inline]
fn bits(word: [u8; 8]) -> u32 {
    let odd = odd(word) >> 7;
    u32::from(!(odd.wrapping_mul(0x0102_0408_1020_4080) >> 56) as u8)
}

/// The place of the next number behind any number and its comma.
fn slow(array: &[u8], at: usize) -> Option<usize> {
    let end = blank(array, number(array, at, 0).ok()?);
    (array.get(end) == Some(&b',')).then(|| blank(array, end + 1))
}

/// Checks number after number, and says what is wrong with which.
fn check_in_order(array: &[u8]) -> Result<usize, VectorError> {
    if array.first() != Some(&b'[') {
        return Err(VectorError::NotAnArray);
    }
    let mut at = blank(array, 1);
    let mut count = 0;
    if array.get(at) == Some(&b']') {
        return if at + 1 == array.len() { Ok(0) } else { Err(VectorError::NotAnArray) };
    }
    loop {
        at = number(array, at, count)?;
        count += 1;
        at = blank(array, at);
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

    proptest! {
        /// However it is looked at, an array is sound or not, whatever was done to it.
        #[test]
        fn lanes_agree_with_the_walk_in_order(
            values in prop::collection::vec(-2.0_f64..2.0, 150..400),
            separator in prop::sample::select(vec![",", ", ", ",\n  "]),
            rare in prop::sample::select(vec!["1e-5", "0.25", "12.5", "-0", "1E+3", "3", "0.1234567890123456789012345"]),
            places in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..3),
        ) {
            let mut texts: Vec<String> = values.iter().map(|value| format!("{value:.9}")).collect();
            for text in texts.iter_mut().step_by(37) {
                *text = rare.to_owned();
            }
            let mut array = format!("[{}]", texts.join(separator)).into_bytes();
            for (place, byte) in &places {
                let at = place.index(array.len());
                array[at] = b"0123456789.-+eE, []\"x"[usize::from(*byte) % 21];
            }
            let in_order = check_in_order(&array);
            prop_assert_eq!(check(&array), in_order);
            if places.is_empty() {
                prop_assert_eq!(lanes(&array), Some(values.len()));
            }
        }
    }
}
