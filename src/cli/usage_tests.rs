//! Reports as their readers see them.

use super::*;
use crate::pure::class::TrafficClass;
use crate::pure::money::Money;
use crate::store::journal::Journal;
use crate::store::record::Record;
use crate::store::testing::{at, usage as record};
use crate::store::writer::Limits;

fn journal(records: Vec<UsageRecord>) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("folder");
    let (journal, _) = Journal::open(dir.path(), Limits::default(), at(0)).expect("opens");
    let records: Vec<Record> = records.into_iter().map(|record| Record::Usage(Box::new(record))).collect();
    journal.append_all(&records).expect("written");
    dir
}

fn three() -> Vec<UsageRecord> {
    let mut cached = record(2, 0);
    (cached.upstream, cached.cached_items, cached.collection) = (None, 1, Some("a \"b\", c\u{1b}[2J".to_owned()));
    let mut other = record(3, 7);
    (other.tenant, other.class) = ("zeta".into(), TrafficClass::BatchIngestion);
    other.cost = "0.000000400000000001".parse::<Money>().expect("money");
    vec![record(1, 5), cached, other]
}

fn report(dir: &tempfile::TempDir, texts: UsageTexts<'_>) -> String {
    let args = UsageArgs::parse(dir.path().to_owned(), "EUR", texts).expect("arguments");
    let mut out = Vec::new();
    run(&args, &mut out).expect("report");
    String::from_utf8(out).expect("text")
}

#[test]
fn json_lines_without_groups_are_the_records() {
    let dir = journal(three());
    let text = report(&dir, UsageTexts { format: Some("jsonl"), ..UsageTexts::default() });
    let lines: Vec<UsageRecord> = text.lines().map(|line| serde_json::from_str(line).expect("a record")).collect();
    assert_eq!(lines, three());
    assert!(text.starts_with(r#"{"time":"2026-11-30T00:00:00.001Z","request_id":"r-1","tenant":"acme""#), "{text}");
    let one = report(&dir, UsageTexts { format: Some("jsonl"), tenant: Some("zeta"), ..UsageTexts::default() });
    assert_eq!(one.lines().count(), 1);
}

#[test]
fn a_table_sums_exactly_and_ends_with_the_total() {
    let text = report(&journal(three()), UsageTexts { by: Some("tenant,upstream"), ..UsageTexts::default() });
    let expected = "\
tenant  upstream  requests  items  cached_items  tokens  output_tokens  search_units            cost (EUR)
acme                     1      1             1       0              0             0                     0
acme    u                1      1             0       5              0             0  0.000000000000000005
zeta    u                1      1             0       7              0             0  0.000000400000000001
total                    3      3             1      12              0             0  0.000000400000000006
";
    assert_eq!(text, expected);
}

#[test]
fn csv_and_json_rows_carry_the_same_figures() {
    let dir = journal(three());
    let csv = report(&dir, UsageTexts { by: Some("day,class"), format: Some("csv"), ..UsageTexts::default() });
    let expected = "day,class,requests,items,cached_items,tokens,output_tokens,search_units,cost\r\n\
        2026-11-30,batch-ingestion,1,1,0,7,0,0,0.000000400000000001\r\n\
        2026-11-30,interactive-search,2,2,1,5,0,0,0.000000000000000005\r\n";
    assert_eq!(csv, expected);
    let json = report(&dir, UsageTexts { by: Some("upstream"), format: Some("jsonl"), ..UsageTexts::default() });
    let rows: Vec<serde_json::Value> = json.lines().map(|line| serde_json::from_str(line).expect("a row")).collect();
    assert_eq!(rows.len(), 2);
    assert_eq!((&rows[0]["upstream"], &rows[0]["cost"]), (&serde_json::Value::Null, &"0".into()));
    assert_eq!((&rows[1]["tokens"], &rows[1]["cost"]), (&12.into(), &"0.000000400000000006".into()));
}

#[test]
fn names_from_clients_break_neither_a_spreadsheet_nor_a_terminal() {
    let dir = journal(three());
    let csv = report(&dir, UsageTexts { format: Some("csv"), ..UsageTexts::default() });
    assert!(csv.contains(",\"a \"\"b\"\", c\u{1b}[2J\","), "{csv}");
    let table = report(&dir, UsageTexts::default());
    assert!(!table.contains('\u{1b}') && table.contains(r"\u{1b}[2J"), "{table}");
    assert!(table.ends_with("total: 3 requests, 3 items (1 cached), 12 tokens, 0.000000400000000006 EUR\n"), "{table}");
}

#[track_caller]
fn check_refused(texts: UsageTexts<'_>, named: &str) {
    let error = UsageArgs::parse(PathBuf::from("data"), "EUR", texts).expect_err("means nothing");
    assert!(error.to_string().contains(named), "{error}");
}

#[test]
fn arguments_that_mean_nothing_are_named() {
    check_refused(UsageTexts { format: Some("xml"), ..UsageTexts::default() }, "xml");
    check_refused(UsageTexts { since: Some("soon"), ..UsageTexts::default() }, "soon");
    check_refused(UsageTexts { until: Some("2026-02-30"), ..UsageTexts::default() }, "2026-02-30");
    check_refused(UsageTexts { by: Some("tenant,shoe"), ..UsageTexts::default() }, "shoe");
}

/// Takes nothing, as a pipe does whose reader has gone.
struct Gone;

impl Write for Gone {
    fn write(&mut self, _: &[u8]) -> io::Result<usize> {
        Err(io::Error::from(io::ErrorKind::BrokenPipe))
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_reader_that_stops_is_no_error() {
    let dir = journal(three());
    let args = UsageArgs::parse(dir.path().to_owned(), "EUR", UsageTexts::default()).expect("arguments");
    run(&args, &mut Gone).expect("ends quietly");
}
