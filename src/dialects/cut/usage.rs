//! Counts that providers report, taken with a grain of salt: a bill never falls because a number was odd.

use super::slow::Members;

/// No honest call reports more tokens than this: the largest body allowed has fewer bytes by far.
const MOST: u64 = 1_000_000_000;

/// One count as a provider wrote it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Count {
    /// Not stated, or `null`.
    Absent,
    /// A whole number from 0 to 10⁹; `2.0` is one.
    Number(u64),
    /// Stated, but nothing that can be counted with.
    Odd,
}

impl Count {
    /// The number, if it is one.
    pub fn number(self) -> Option<u64> {
        match self {
            Count::Number(number) => Some(number),
            Count::Absent | Count::Odd => None,
        }
    }
}

/// Reads the raw JSON of one count.
pub fn read_count(raw: &[u8]) -> Count {
    let Ok(text) = std::str::from_utf8(raw) else { return Count::Odd };
    if text == "null" {
        return Count::Absent;
    }
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return match text.parse() {
            Ok(number) if number <= MOST => Count::Number(number),
            _ => Count::Odd,
        };
    }
    // Some servers write counts as floats. Within the bound every whole f64 is exact.
    match serde_json::from_str::<f64>(text) {
        Ok(number) if number.fract() == 0.0 && (0.0..=MOST as f64).contains(&number) => Count::Number(number as u64),
        _ => Count::Odd,
    }
}

/// What a `usage` object says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UsageRead {
    /// Tokens of the input.
    pub prompt: Option<u64>,
    /// All tokens; never fewer than `prompt`.
    pub total: Option<u64>,
    /// Something in it cannot be true; to be counted, and the rest to be believed.
    pub odd: bool,
}

impl UsageRead {
    /// The tokens to charge for: all of them, or those of the input where only they are stated. `None`: estimate.
    pub fn billed(&self) -> Option<u64> {
        self.total.or(self.prompt)
    }
}

/// Reads the raw JSON of a `usage` member.
pub fn read_usage(raw: &[u8]) -> UsageRead {
    const ODD: UsageRead = UsageRead { prompt: None, total: None, odd: true };
    if raw == b"null" {
        return UsageRead::default();
    }
    let Ok(members) = serde_json::from_slice::<Members<'_>>(raw) else { return ODD };
    let count = |key| match members.once(key) {
        Ok(Some(raw)) => read_count(raw.get().as_bytes()),
        Ok(None) => Count::Absent,
        Err(_) => Count::Odd,
    };
    let prompt = match count("prompt_tokens") {
        Count::Absent => count("input_tokens"),
        stated => stated,
    };
    let total = count("total_tokens");
    let mut read = UsageRead {
        prompt: prompt.number(),
        total: total.number(),
        odd: prompt == Count::Odd || total == Count::Odd || cached(&members) > prompt.number(),
    };
    if read.total.is_some() && read.total < read.prompt {
        read.total = read.prompt;
        read.odd = true;
    }
    read
}

/// Tokens said to have come from the provider's own cache; they are part of the input's.
fn cached(members: &Members<'_>) -> Option<u64> {
    let details = members.once("prompt_tokens_details").ok()??;
    let details: Members<'_> = serde_json::from_str(details.get()).ok()?;
    read_count(details.once("cached_tokens").ok()??.get().as_bytes()).number()
}
