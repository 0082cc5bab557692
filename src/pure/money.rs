//! Exact money. An amount is a whole number of 10⁻¹⁸ units of the configured currency; nothing is ever rounded.
//!
//! 10⁻¹⁸ because a price per million tokens with twelve decimals still yields a whole number per token, and an `i128`
//! of such units reaches 1.7 × 10²⁰ of the currency.

use std::fmt;
use std::str::FromStr;

use rust_decimal::Decimal;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Decimal places that an amount can carry.
pub const SCALE: u32 = 18;

/// An exact amount in the configured currency, in units of 10⁻¹⁸.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Money(i128);

/// Why a text is not an amount that can be kept exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MoneyError {
    /// Not a plain decimal number such as `150.00`.
    NotADecimal,
    /// More digits than can be kept exactly.
    TooPrecise,
}

impl fmt::Display for MoneyError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MoneyError::NotADecimal => "expected a plain decimal number such as \"150.00\"",
            MoneyError::TooPrecise => "has more decimals than can be kept exactly",
        })
    }
}

impl std::error::Error for MoneyError {}

/// Parses `text` and returns its digits as a whole number of 10⁻ˢᶜᵃˡᵉ units.
fn parse_scaled(text: &str, scale: u32) -> Result<i128, MoneyError> {
    let plain = text.bytes().all(|b| b.is_ascii_digit() || matches!(b, b'.' | b'-'));
    if !plain {
        return Err(MoneyError::NotADecimal);
    }
    let decimal = Decimal::from_str_exact(text).map_err(|_| MoneyError::NotADecimal)?.normalize();
    let missing = scale.checked_sub(decimal.scale()).ok_or(MoneyError::TooPrecise)?;
    decimal.mantissa().checked_mul(10_i128.pow(missing)).ok_or(MoneyError::TooPrecise)
}

impl Money {
    /// Nothing.
    pub const ZERO: Money = Money(0);

    /// The amount of `units` × 10⁻¹⁸.
    pub const fn from_units(units: i128) -> Money {
        Money(units)
    }

    /// The amount in units of 10⁻¹⁸.
    pub const fn units(self) -> i128 {
        self.0
    }

    /// Sum, or `None` beyond ±1.7 × 10²⁰.
    pub const fn checked_add(self, other: Money) -> Option<Money> {
        match self.0.checked_add(other.0) {
            Some(units) => Some(Money(units)),
            None => None,
        }
    }

    /// Difference, or `None` beyond ±1.7 × 10²⁰.
    pub const fn checked_sub(self, other: Money) -> Option<Money> {
        match self.0.checked_sub(other.0) {
            Some(units) => Some(Money(units)),
            None => None,
        }
    }

    /// `self` × `count`, or `None` beyond ±1.7 × 10²⁰.
    pub const fn checked_mul(self, count: u64) -> Option<Money> {
        match self.0.checked_mul(count as i128) {
            Some(units) => Some(Money(units)),
            None => None,
        }
    }

    /// Whether the amount is below zero.
    pub const fn is_negative(self) -> bool {
        self.0 < 0
    }

    /// The amount as a binary float, for metrics and charts only: never for a decision or a record.
    pub fn to_f64_lossy(self) -> f64 {
        self.0 as f64 / 1e18
    }
}

impl FromStr for Money {
    type Err = MoneyError;

    fn from_str(text: &str) -> Result<Money, MoneyError> {
        parse_scaled(text, SCALE).map(Money)
    }
}

/// Room for the longest amount: a sign, 21 digits, a point and 18 decimals.
const TEXT_LEN: usize = 41;

/// The 10⁻¹⁸ units of one unit of the currency.
const UNIT: u64 = 10_u64.pow(SCALE);

impl Money {
    /// Hands the amount's text to `take`: as [`fmt::Display`] writes it, for less.
    pub fn with_text<T>(self, take: impl FnOnce(&str) -> T) -> T {
        take(self.text(&mut [0; TEXT_LEN]))
    }

    /// Writes the amount's text into `buffer` and returns it. By hand, because every record carries several amounts and
    /// the formatting machinery was most of the time of writing one.
    fn text(self, buffer: &mut [u8; TEXT_LEN]) -> &str {
        let magnitude = self.0.unsigned_abs();
        let (whole, fraction) = match u64::try_from(magnitude) {
            Ok(small) => (u128::from(small / UNIT), small % UNIT),
            // A remainder is below UNIT, so it fits.
            Err(_) => (magnitude / u128::from(UNIT), (magnitude % u128::from(UNIT)) as u64),
        };
        let mut end = TEXT_LEN;
        let mut start = TEXT_LEN;
        if fraction > 0 {
            let mut left = fraction;
            for place in buffer[TEXT_LEN - SCALE as usize..].iter_mut().rev() {
                *place = b'0' + (left % 10) as u8;
                left /= 10;
            }
            while buffer[end - 1] == b'0' {
                end -= 1;
            }
            start = TEXT_LEN - SCALE as usize - 1;
            buffer[start] = b'.';
        }
        let mut left = whole;
        loop {
            start -= 1;
            buffer[start] = b'0' + (left % 10) as u8;
            left /= 10;
            if left == 0 {
                break;
            }
        }
        if self.0 < 0 {
            start -= 1;
            buffer[start] = b'-';
        }
        // Only ASCII was written.
        std::str::from_utf8(&buffer[start..end]).unwrap_or_default()
    }
}

impl fmt::Display for Money {
    /// A plain decimal without exponent and without trailing zeros: `0.0000004`, `142.85`, `0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.text(&mut [0; TEXT_LEN]))
    }
}

impl fmt::Debug for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Money {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.text(&mut [0; TEXT_LEN]))
    }
}

impl<'de> Deserialize<'de> for Money {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Money, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

/// What one unit of work (a token, a search) costs, exactly.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UnitPrice(pub Money);

impl UnitPrice {
    /// The price of one unit from a list price in USD per `per` units (a power of ten: 1,000,000 tokens or 1,000
    /// searches) and the currency's worth of one USD.
    ///
    /// # Errors
    /// [`MoneyError::NotADecimal`] for anything but non-negative plain decimals, [`MoneyError::TooPrecise`] when the
    /// product has more than 18 decimals per unit.
    pub fn from_usd(price: &str, per_usd: &str, per: u32) -> Result<UnitPrice, MoneyError> {
        // 12 decimals each are kept, so the product has 24 and is divided down to 18 without a remainder, or refused.
        let product = parse_scaled(price, 12)?.checked_mul(parse_scaled(per_usd, 12)?).ok_or(MoneyError::TooPrecise)?;
        if product < 0 {
            return Err(MoneyError::NotADecimal);
        }
        let divisor = 1_000_000_i128 * i128::from(per);
        if product % divisor != 0 {
            return Err(MoneyError::TooPrecise);
        }
        Ok(UnitPrice(Money(product / divisor)))
    }

    /// The cost of `count` units; saturates at the largest amount, which no balance can cover.
    pub fn times(self, count: u64) -> Money {
        self.0.checked_mul(count).unwrap_or(Money(i128::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[track_caller]
    fn check_text(text: &str, expected: Result<&str, MoneyError>) {
        let got = text.parse::<Money>().map(|money| money.to_string());
        assert_eq!(got, expected.map(str::to_owned), "{text}");
    }

    #[test]
    fn amounts_read_back_as_written() {
        check_text("150.00", Ok("150"));
        check_text("0.0000004", Ok("0.0000004"));
        check_text("-1.5", Ok("-1.5"));
        check_text("0.000000000000000001", Ok("0.000000000000000001"));
        check_text("0.0000000000000000001", Err(MoneyError::TooPrecise));
        check_text("1e3", Err(MoneyError::NotADecimal));
        check_text("", Err(MoneyError::NotADecimal));
        check_text("12,5", Err(MoneyError::NotADecimal));
    }

    #[test]
    fn the_largest_amounts_are_written_whole() {
        assert_eq!(Money(i128::MAX).to_string(), "170141183460469231731.687303715884105727");
        assert_eq!(Money(i128::MIN).to_string(), "-170141183460469231731.687303715884105728");
        assert_eq!(Money(i128::from(u64::MAX)).to_string(), "18.446744073709551615");
        assert_eq!(Money(i128::from(u64::MAX) + 1).to_string(), "18.446744073709551616");
    }

    proptest! {
        #[test]
        fn an_amount_is_written_as_decimal_arithmetic_writes_it(units in -(1_i128 << 96) + 1..1 << 96, shift in 0..96_u32) {
            let units = units >> shift;
            let decimal = Decimal::from_i128_with_scale(units, SCALE).normalize();
            prop_assert_eq!(Money(units).to_string(), decimal.to_string());
            prop_assert_eq!(serde_json::to_string(&Money(units)).expect("json"), format!("\"{decimal}\""));
        }
    }

    #[test]
    fn a_token_price_is_exact() {
        let price = UnitPrice::from_usd("0.02", "0.92", 1_000_000).expect("exact");
        assert_eq!(price.times(1).to_string(), "0.0000000184");
        assert_eq!(price.times(1_000_000).to_string(), "0.0184");
        assert_eq!(UnitPrice::from_usd("2.00", "0.92", 1_000).expect("exact").times(1).to_string(), "0.00184");
    }

    #[test]
    fn a_price_that_cannot_be_kept_exactly_is_refused() {
        assert_eq!(UnitPrice::from_usd("0.0000001", "0.9234567", 1_000_000), Err(MoneyError::TooPrecise));
        assert_eq!(UnitPrice::from_usd("-1", "0.92", 1_000_000), Err(MoneyError::NotADecimal));
    }
}
