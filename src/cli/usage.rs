//! `vectorgate usage`: the cost report as table, CSV or JSON lines. Owns how a report looks; what is in it is the store's.

use std::fmt;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::str::FromStr;

use crate::config::{self, Environment, Source};
use crate::pure::utc::Stamp;
use crate::store::record::{RollupRecord, UsageRecord};
use crate::store::usage::{self, Entry, GroupBy, Totals, UnknownGroup, UsageError, UsageFilter};

/// How a report is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Format {
    /// For people.
    #[default]
    Table,
    /// RFC 4180, with a head.
    Csv,
    /// One JSON object a line.
    Jsonl,
}

impl FromStr for Format {
    type Err = ArgumentError;

    fn from_str(text: &str) -> Result<Format, ArgumentError> {
        match text {
            "table" => Ok(Format::Table),
            "csv" => Ok(Format::Csv),
            "jsonl" => Ok(Format::Jsonl),
            _ => Err(ArgumentError::Format(text.to_owned())),
        }
    }
}

/// An argument of a report that means nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ArgumentError {
    /// Not a format.
    Format(String),
    /// Neither a day nor an instant.
    Time(String),
    /// Nothing to sum by.
    Group(UnknownGroup),
}

impl fmt::Display for ArgumentError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ArgumentError::Format(text) => write!(f, "{text:?} is no format; known are table, csv, jsonl"),
            ArgumentError::Time(text) => {
                write!(f, "{text:?} is neither a day such as 2026-11-30 nor an instant such as 2026-11-30T16:30:00Z")
            }
            ArgumentError::Group(unknown) => unknown.fmt(f),
        }
    }
}

impl std::error::Error for ArgumentError {}

/// What to report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageArgs {
    /// The journal's folder, `[store] path`.
    pub store: PathBuf,
    /// `[money] currency`, for the head of the cost column.
    pub currency: String,
    /// Which records count.
    pub filter: UsageFilter,
    /// What to sum by; empty: list the records.
    pub by: Vec<GroupBy>,
    /// How it is written.
    pub format: Format,
}

/// The texts of a command line or a query string, before they are understood.
#[derive(Debug, Clone, Copy, Default)]
pub struct UsageTexts<'a> {
    /// A tenant's id.
    pub tenant: Option<&'a str>,
    /// The first day or instant.
    pub since: Option<&'a str>,
    /// The last day, or the instant after the last.
    pub until: Option<&'a str>,
    /// Names of groups, separated by commas.
    pub by: Option<&'a str>,
    /// A format's name.
    pub format: Option<&'a str>,
}

impl UsageArgs {
    /// Understands the texts.
    ///
    /// # Errors
    /// [`ArgumentError`] for the first that means nothing.
    pub fn parse(store: PathBuf, currency: &str, texts: UsageTexts<'_>) -> Result<UsageArgs, ArgumentError> {
        let bound = |text: Option<&str>, parse: fn(&str) -> Option<_>| match text {
            Some(text) => parse(text).map(Some).ok_or_else(|| ArgumentError::Time(text.to_owned())),
            None => Ok(None),
        };
        Ok(UsageArgs {
            store,
            currency: currency.to_owned(),
            filter: UsageFilter {
                tenant: texts.tenant.map(Into::into),
                since: bound(texts.since, usage::parse_since)?,
                until: bound(texts.until, usage::parse_until)?,
            },
            by: usage::parse_groups(texts.by.unwrap_or_default()).map_err(ArgumentError::Group)?,
            format: texts.format.map_or(Ok(Format::default()), str::parse)?,
        })
    }
}

/// `vectorgate usage`.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Only this tenant's requests.
    #[arg(long)]
    tenant: Option<String>,
    /// From this day (2026-11-30) or instant (RFC 3339) on.
    #[arg(long)]
    since: Option<String>,
    /// Up to and including this day, or before this instant.
    #[arg(long)]
    until: Option<String>,
    /// Sum by any of tenant, key, model, class, collection, upstream, day; separated by commas.
    #[arg(long)]
    by: Option<String>,
    /// table, csv or jsonl.
    #[arg(long)]
    format: Option<String>,
}

/// Reports from the journal that the configuration names. Exit code 1 when that is not possible.
pub fn report(config: Option<&Path>, arguments: &Arguments) -> ExitCode {
    let plan = match config::load(&Source::of(config), &Environment::of_process()) {
        Ok(plan) => plan,
        Err(problems) => {
            eprintln!("{problems}");
            return ExitCode::FAILURE;
        }
    };
    let texts = UsageTexts {
        tenant: arguments.tenant.as_deref(),
        since: arguments.since.as_deref(),
        until: arguments.until.as_deref(),
        by: arguments.by.as_deref(),
        format: arguments.format.as_deref(),
    };
    let outcome = UsageArgs::parse(plan.store.path.clone(), &plan.currency, texts).map_err(|error| error.to_string());
    match outcome.and_then(|args| run(&args, &mut io::stdout().lock()).map_err(|error| error.to_string())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Writes the report. A reader that stops reading, such as `head`, ends it without an error.
///
/// # Errors
/// [`UsageError`] when the journal cannot be read, a total cannot be exact, or `out` fails.
pub fn run(args: &UsageArgs, out: &mut dyn Write) -> Result<(), UsageError> {
    let mut out = io::BufWriter::with_capacity(1 << 16, out);
    let written = if args.by.is_empty() { list(args, &mut out) } else { sum(args, &mut out) };
    match written.and_then(|()| out.flush().map_err(UsageError::Output)) {
        Err(UsageError::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        result => result,
    }
}

fn list(args: &UsageArgs, out: &mut dyn Write) -> Result<(), UsageError> {
    let each = |visit: &mut dyn FnMut(&Entry) -> io::Result<()>| {
        usage::for_each(&args.store, &args.filter, |record| visit(record).map_err(UsageError::Output))
    };
    match args.format {
        Format::Jsonl => each(&mut |entry| {
            match entry {
                Entry::One(record) => serde_json::to_writer(&mut *out, record)?,
                Entry::Sum(sum) => serde_json::to_writer(&mut *out, sum)?,
            }
            out.write_all(b"\n")
        }),
        Format::Csv => {
            csv_row(out, RECORD_COLUMNS.map(|(name, _)| name).iter().copied())?;
            each(&mut |entry| csv_row(out, entry_cells(entry).iter().map(String::as_str)))
        }
        Format::Table => {
            let head = RECORD_COLUMNS.map(|(name, _)| name.to_owned());
            let widths = RECORD_COLUMNS.map(|(_, width)| width);
            table_row(out, &head, &widths, RECORD_TEXT_COLUMNS)?;
            let mut total = Totals::default();
            usage::for_each(&args.store, &args.filter, |entry| {
                total = total.with_entry(entry).ok_or(UsageError::Overflow)?;
                Ok(table_row(out, &entry_cells(entry), &widths, RECORD_TEXT_COLUMNS)?)
            })?;
            writeln!(
                out,
                "total: {} requests, {} items ({} cached), {} tokens, {} {}",
                total.requests, total.items, total.cached_items, total.tokens, total.cost, args.currency
            )?;
            Ok(())
        }
    }
}

fn sum(args: &UsageArgs, out: &mut dyn Write) -> Result<(), UsageError> {
    let summary = usage::summarise(&args.store, &args.filter, &args.by)?;
    match args.format {
        Format::Jsonl => {
            for (values, totals) in &summary.rows {
                writeln!(out, "{}", json_row(&args.by, values, totals))?;
            }
        }
        Format::Csv => {
            let names = args.by.iter().map(|group| group.as_str()).chain(TOTAL_COLUMNS);
            csv_row(out, names)?;
            for (values, totals) in &summary.rows {
                let cells = group_cells(values).into_iter().chain(total_cells(totals)).collect::<Vec<_>>();
                csv_row(out, cells.iter().map(String::as_str))?;
            }
        }
        Format::Table => {
            let cost = format!("cost ({})", args.currency);
            let names = args.by.iter().map(|group| group.as_str()).chain(TOTAL_COLUMNS);
            let mut rows =
                vec![names.map(|name| if name == "cost" { cost.clone() } else { name.to_owned() }).collect()];
            for (values, totals) in &summary.rows {
                rows.push(group_cells(values).into_iter().chain(total_cells(totals)).collect::<Vec<_>>());
            }
            let mut last = vec![String::new(); args.by.len()];
            last.iter_mut().take(1).for_each(|cell| "total".clone_into(cell));
            rows.push(last.into_iter().chain(total_cells(&summary.total)).collect());
            let width = |column: usize| rows.iter().map(|row| shown(&row[column]).chars().count()).max().unwrap_or(0);
            let widths: Vec<usize> = (0..args.by.len() + TOTAL_COLUMNS.len()).map(width).collect();
            for row in &rows {
                table_row(out, row, &widths, args.by.len())?;
            }
        }
    }
    Ok(())
}

const TOTAL_COLUMNS: [&str; 7] =
    ["requests", "items", "cached_items", "tokens", "output_tokens", "search_units", "cost"];

fn total_cells(totals: &Totals) -> [String; 7] {
    [
        totals.requests.to_string(),
        totals.items.to_string(),
        totals.cached_items.to_string(),
        totals.tokens.to_string(),
        totals.output_tokens.to_string(),
        totals.search_units.to_string(),
        totals.cost.to_string(),
    ]
}

fn group_cells(values: &[Option<String>]) -> Vec<String> {
    values.iter().map(|value| value.clone().unwrap_or_default()).collect()
}

fn json_row(by: &[GroupBy], values: &[Option<String>], totals: &Totals) -> serde_json::Value {
    let mut row = serde_json::Map::new();
    for (group, value) in by.iter().zip(values) {
        row.insert(group.as_str().to_owned(), value.as_deref().into());
    }
    let counts =
        [totals.requests, totals.items, totals.cached_items, totals.tokens, totals.output_tokens, totals.search_units];
    for (name, count) in TOTAL_COLUMNS.into_iter().zip(counts) {
        row.insert(name.to_owned(), count.into());
    }
    row.insert("cost".to_owned(), totals.cost.to_string().into());
    row.into()
}

/// Columns of a list, and how wide a table of unknown length makes them.
const RECORD_COLUMNS: [(&str, usize); 18] = [
    ("time", 24),
    ("request_id", 26),
    ("tenant", 12),
    ("key", 16),
    ("class", 18),
    ("collection", 12),
    ("model", 24),
    ("space", 24),
    ("upstream", 14),
    ("items", 6),
    ("cached_items", 12),
    ("tokens", 8),
    ("estimated", 9),
    ("unit_price", 20),
    ("cost", 20),
    ("status", 6),
    ("latency_ms", 10),
    ("dwell_ms", 10),
];

/// Columns of a list that are texts and stand on the left; figures stand on the right.
const RECORD_TEXT_COLUMNS: usize = 9;

fn entry_cells(entry: &Entry) -> [String; 18] {
    match entry {
        Entry::One(record) => record_cells(record),
        Entry::Sum(sum) => sum_cells(sum),
    }
}

/// A sum of old records has no request's id, price or times; how many it stands for is told in the id's place.
fn sum_cells(sum: &RollupRecord) -> [String; 18] {
    let optional = |name: Option<&str>| name.unwrap_or_default().to_owned();
    [
        Stamp(sum.time).to_string(),
        format!("({} requests)", sum.requests),
        sum.tenant.to_string(),
        optional(sum.key.as_ref().map(|key| key.as_str())),
        sum.class.clone(),
        optional(sum.collection.as_deref()),
        sum.model.to_string(),
        String::new(),
        optional(sum.upstream.as_ref().map(|upstream| upstream.as_str())),
        sum.items.to_string(),
        sum.cached_items.to_string(),
        sum.tokens.to_string(),
        String::new(),
        String::new(),
        sum.cost.to_string(),
        String::new(),
        String::new(),
        String::new(),
    ]
}

fn record_cells(record: &UsageRecord) -> [String; 18] {
    let optional = |name: Option<&str>| name.unwrap_or_default().to_owned();
    [
        Stamp(record.time).to_string(),
        record.request_id.to_string(),
        record.tenant.to_string(),
        optional(record.key.as_ref().map(|key| key.as_str())),
        record.class.to_string(),
        optional(record.collection.as_deref()),
        record.model.to_string(),
        optional(record.space.as_ref().map(|space| space.as_str())),
        optional(record.upstream.as_ref().map(|upstream| upstream.as_str())),
        record.items.to_string(),
        record.cached_items.to_string(),
        record.tokens.to_string(),
        record.estimated.to_string(),
        record.unit_price.to_string(),
        record.cost.to_string(),
        record.status.to_string(),
        millis(record.latency),
        millis(record.dwell),
    ]
}

fn millis(span: std::time::Duration) -> String {
    format!("{}.{:03}", span.as_millis(), span.subsec_micros() % 1_000)
}

fn csv_row<'a>(out: &mut dyn Write, cells: impl Iterator<Item = &'a str>) -> io::Result<()> {
    for (index, cell) in cells.enumerate() {
        if index > 0 {
            out.write_all(b",")?;
        }
        if cell.contains(['"', ',', '\n', '\r']) {
            write!(out, "\"{}\"", cell.replace('"', "\"\""))?;
        } else {
            out.write_all(cell.as_bytes())?;
        }
    }
    out.write_all(b"\r\n")
}

/// A cell as a terminal may show it: names come from clients, and a terminal obeys what it is sent.
fn shown(cell: &str) -> String {
    if cell.chars().any(char::is_control) { cell.escape_debug().to_string() } else { cell.to_owned() }
}

fn table_row(out: &mut dyn Write, cells: &[String], widths: &[usize], texts: usize) -> io::Result<()> {
    let mut line = String::new();
    for (index, (cell, width)) in cells.iter().zip(widths).enumerate() {
        let (cell, width) = (shown(cell), *width);
        let gap = if index == 0 { "" } else { "  " };
        line += gap;
        line += &if index < texts { format!("{cell:<width$}") } else { format!("{cell:>width$}") };
    }
    writeln!(out, "{}", line.trim_end())
}

#[cfg(test)]
#[path = "usage_tests.rs"]
mod tests;
