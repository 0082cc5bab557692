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

impl fmt::Display for Money {
    /// A plain decimal without exponent and without trailing zeros: `0.0000004`, `142.85`, `0`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let unit = 10_u128.pow(SCALE);
        let magnitude = self.0.unsigned_abs();
        let (whole, fraction) = (magnitude / unit, magnitude % unit);
        let sign = if self.0 < 0 { "-" } else { "" };
        if fraction == 0 {
            return write!(f, "{sign}{whole}");
        }
        let digits = format!("{fraction:018}");
        write!(f, "{sign}{whole}.{}", digits.trim_end_matches('0'))
    }
}

impl fmt::Debug for Money {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Serialize for Money {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
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
