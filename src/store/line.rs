//! The JSON of a record as it stands in the journal. The two records of a request that costs something are written by
//! hand, since there are two a request; everything else is serde's, and the two must read as if it were.
//!
//! Measured: with serde_json, which looks through every key for what must be escaped, the two took a twentieth of all
//! that a request runs through.

use std::time::Duration;

use super::record::{HoldRecord, Outcome, Record, UsageRecord};
use crate::ids::HoldId;
use crate::pure::digits;
use crate::pure::money::Money;
use crate::pure::time::Wall;
use crate::pure::utc::Stamp;

/// Appends the JSON of `record`.
///
/// # Errors
/// When it cannot be written as JSON; what was appended is to be thrown away.
pub(super) fn write(out: &mut Vec<u8>, record: &Record) -> serde_json::Result<()> {
    match record {
        Record::Hold(hold) => Line(out).hold(hold),
        Record::Usage(usage) if usage.shared.is_none() => Line(out).usage(usage),
        other => serde_json::to_writer(out, other),
    }
}

/// A line being written. Keys come as they stand in it: with the comma before and the colon behind.
struct Line<'a>(&'a mut Vec<u8>);

impl Line<'_> {
    fn hold(mut self, record: &HoldRecord) -> serde_json::Result<()> {
        let HoldRecord { time, hold, tenant, request_id, amount } = record;
        self.time(r#"{"kind":"hold","time":"#, *time);
        self.number(r#","hold":"#, hold.0);
        self.text(r#","tenant":"#, tenant.as_str())?;
        self.text(r#","request_id":"#, request_id.as_str())?;
        self.money(r#","amount":"#, *amount);
        self.0.push(b'}');
        Ok(())
    }

    fn usage(mut self, record: &UsageRecord) -> serde_json::Result<()> {
        self.time(r#"{"kind":"usage","time":"#, record.time);
        self.text(r#","request_id":"#, record.request_id.as_str())?;
        self.text(r#","tenant":"#, record.tenant.as_str())?;
        self.text_or_null(r#","key":"#, record.key.as_ref().map(|key| key.as_str()))?;
        self.text(r#","class":"#, record.class.as_str())?;
        self.text_or_null(r#","collection":"#, record.collection.as_deref())?;
        self.text(r#","model":"#, record.model.as_str())?;
        self.text_or_null(r#","space":"#, record.space.as_ref().map(|space| space.as_str()))?;
        self.text_or_null(r#","upstream":"#, record.upstream.as_ref().map(|upstream| upstream.as_str()))?;
        self.number(r#","items":"#, record.items);
        self.number(r#","cached_items":"#, record.cached_items);
        self.number(r#","tokens":"#, record.tokens);
        self.number_unless_zero(r#","output_tokens":"#, record.output_tokens);
        self.number_unless_zero(r#","search_units":"#, record.search_units);
        self.raw(r#","estimated":"#, if record.estimated { "true" } else { "false" });
        self.money(r#","unit_price":"#, record.unit_price);
        self.money_unless_zero(r#","output_unit_price":"#, record.output_unit_price);
        self.money(r#","cost":"#, record.cost);
        self.money_unless_zero(r#","shortfall":"#, record.shortfall);
        self.number(r#","status":"#, record.status.into());
        self.raw(r#","outcome":"#, outcome(record.outcome));
        self.millis(r#","latency_ms":"#, record.latency);
        self.millis(r#","dwell_ms":"#, record.dwell);
        if let Some(HoldId(hold)) = record.hold {
            self.number(r#","hold":"#, hold);
        }
        if record.period_start != Wall(0) {
            self.raw(r#","period_start_ms":"#, &record.period_start.0.to_string());
        }
        self.0.push(b'}');
        Ok(())
    }

    fn raw(&mut self, key: &str, value: &str) {
        self.0.extend_from_slice(key.as_bytes());
        self.0.extend_from_slice(value.as_bytes());
    }

    fn text(&mut self, key: &str, value: &str) -> serde_json::Result<()> {
        let plain = value.bytes().all(|byte| byte >= b' ' && byte != b'"' && byte != b'\\');
        if !plain {
            self.raw(key, "");
            return serde_json::to_writer(&mut *self.0, value);
        }
        self.quoted(key, value);
        Ok(())
    }

    fn text_or_null(&mut self, key: &str, value: Option<&str>) -> serde_json::Result<()> {
        match value {
            Some(value) => self.text(key, value)?,
            None => self.raw(key, "null"),
        }
        Ok(())
    }

    /// Text in which nothing needs an escape.
    fn quoted(&mut self, key: &str, value: &str) {
        self.raw(key, "\"");
        self.raw(value, "\"");
    }

    fn time(&mut self, key: &str, time: Wall) {
        self.quoted(key, Stamp(time).text().as_str());
    }

    fn number(&mut self, key: &str, number: u64) {
        self.raw(key, digits::decimal(number).as_str());
    }

    fn number_unless_zero(&mut self, key: &str, number: u64) {
        if number != 0 {
            self.number(key, number);
        }
    }

    fn money(&mut self, key: &str, amount: Money) {
        amount.with_text(|text| self.quoted(key, text));
    }

    fn money_unless_zero(&mut self, key: &str, amount: Money) {
        if amount != Money::ZERO {
            self.money(key, amount);
        }
    }

    /// As many decimals as it has of three, but at least one.
    fn millis(&mut self, key: &str, span: Duration) {
        let micros = u32::try_from(span.as_micros()).map_or_else(|_| span.as_micros() as f64, f64::from);
        self.raw(key, zmij::Buffer::new().format_finite(micros / 1000.0));
    }
}

fn outcome(outcome: Outcome) -> &'static str {
    match outcome {
        Outcome::Answered => "\"answered\"",
        Outcome::Cached => "\"cached\"",
        Outcome::Refused => "\"refused\"",
        Outcome::Failed => "\"failed\"",
        Outcome::Abandoned => "\"abandoned\"",
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::store::testing::{any_record, usage};

    #[track_caller]
    fn check(record: &Record) {
        let mut line = Vec::new();
        write(&mut line, record).expect("written");
        assert_eq!(String::from_utf8_lossy(&line), serde_json::to_string(record).expect("json"));
    }

    proptest! {
        #[test]
        fn a_line_is_what_serde_would_write(record in any_record()) {
            check(&record);
        }

        #[test]
        fn names_and_numbers_of_any_kind_are_written_alike(
            text in any::<String>(),
            numbers: (u64, u64, u64),
            amounts: (i128, i128),
            micros in prop_oneof![0_u64..2_000_000, any::<u64>()],
            start: i64,
        ) {
            let mut record = usage(7, 1);
            record.tenant = text.as_str().into();
            record.collection = Some(text);
            (record.tokens, record.output_tokens, record.search_units) = numbers;
            (record.cost, record.shortfall) = (Money::from_units(amounts.0), Money::from_units(amounts.1));
            (record.latency, record.dwell) = (Duration::from_micros(micros), Duration::from_nanos(micros));
            record.period_start = Wall(start);
            record.key = None;
            check(&Record::Usage(Box::new(record)));
        }
    }
}
