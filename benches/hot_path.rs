//! What one request spends its time on, piece by piece: `cargo bench`. Figures are for comparing two states of the code on
//! one machine; `loadtest compare` says what a whole request costs.

use bytes::Bytes;
use divan::counter::BytesCount;
use divan::{Bencher, black_box};
use vectorgate::config::plan::{Normalization, Tokenizer};
use vectorgate::edge::scan::{ScanLimits, Scanner};
use vectorgate::ids::{AttemptId, HoldId};
use vectorgate::pure::admission::CallLoan;
use vectorgate::pure::budget_period::BudgetPeriod;
use vectorgate::pure::cache_key::{KeyBase, KeyParts, text_digest};
use vectorgate::pure::ledger::{Account, HoldAsk, Loan, Standing, Terms};
use vectorgate::pure::money::Money;
use vectorgate::pure::time::{Mono, Wall};
use vectorgate::tokens::count_exact;
use vectorgate::vector::Vector;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    divan::main();
}

/// A body of `inputs` texts of `bytes` bytes each.
fn body(inputs: usize, bytes: usize) -> Vec<u8> {
    let text = "what the handbook says about mutual TLS, ".repeat(bytes / 41 + 1);
    let texts: Vec<String> = (0..inputs).map(|number| format!("\"{number:06} {}\"", &text[..bytes - 7])).collect();
    format!("{{\"model\":\"m\",\"input\":[{}]}}", texts.join(",")).into_bytes()
}

/// A vector as providers write it.
fn array(width: usize) -> String {
    let numbers: Vec<String> = (0..width).map(|n| format!("{:.9}", ((n * 7_919) as f64).sin() / 40.0)).collect();
    format!("[{}]", numbers.join(", "))
}

/// Scanning and hashing a body as it arrives, in pieces of a socket's size.
#[divan::bench(args = [(1, 60), (100, 500), (2_048, 12_000)])]
fn scan(bencher: Bencher<'_, '_>, (inputs, bytes): (usize, usize)) {
    let body = body(inputs, bytes);
    bencher.counter(BytesCount::of_slice(&body)).bench_local(|| {
        let mut scanner = Scanner::new(&["input"], ScanLimits::default());
        for piece in body.chunks(128 << 10) {
            scanner.feed(piece).expect("valid");
        }
        scanner.finish().expect("valid")
    });
}

/// Exact token counts, where a balance is near its limit.
#[divan::bench(args = [60, 2_000])]
fn count_tokens(bencher: Bencher<'_, '_>, bytes: usize) {
    let text = "what the handbook says about mutual TLS, ".repeat(bytes / 41 + 1);
    let text = &text[..bytes];
    bencher.counter(BytesCount::new(bytes)).bench_local(|| count_exact(Tokenizer::Cl100k, black_box(text)));
}

/// The key of one input.
#[divan::bench]
fn cache_key() -> impl Sized {
    let base = KeyBase::new(&KeyParts {
        tenant: Some(black_box("acme")),
        space: "text-embedding-3-small",
        width: Some(1_536),
        parameters: &[("=input_type", "query")],
        normalization: Normalization::Exact,
    });
    base.key(&text_digest(black_box("How do I configure mutual TLS?")))
}

/// Checking a vector that came as number text.
#[divan::bench]
fn check_vector(bencher: Bencher<'_, '_>) {
    let array = Bytes::from(array(1_536));
    bencher.counter(BytesCount::of_slice(&array)).bench_local(|| Vector::from_text(array.clone(), Some(1_536)));
}

/// Writing a vector that came as floats as number text, and the other way round.
#[divan::bench(args = ["floats as text", "text as base64"])]
fn render_vector(bencher: Bencher<'_, '_>, which: &str) {
    let text = Vector::from_text(Bytes::from(array(1_536)), None).expect("valid");
    let floats = Vector::from_floats(&text.floats()).expect("finite");
    let mut out = Vec::with_capacity(64 << 10);
    bencher.bench_local(|| {
        out.clear();
        match which {
            "floats as text" => floats.write_float(&mut out),
            _ => text.write_base64(&mut out),
        }
        out.len()
    });
}

fn ask(id: u64) -> HoldAsk {
    let money = |units| Money::from_units(units);
    HoldAsk {
        id: HoldId(id),
        amount_upper: money(1_000),
        amount_likely: money(500),
        amount_lower: money(10),
        now: Mono::ZERO,
        expires_at: Mono(u64::MAX),
    }
}

fn account() -> Account {
    let terms = Terms { budget: Some(Money::from_units(1 << 60)), period: BudgetPeriod::None };
    Account::restore(terms, Standing::default())
}

/// A hold and its settlement, by the account itself.
#[divan::bench]
fn hold_and_settle(bencher: Bencher<'_, '_>) {
    let (mut account, mut id) = (account(), 0);
    bencher.bench_local(|| {
        id += 1;
        account.place(ask(id));
        account.settle(HoldId(id), Money::from_units(400))
    });
}

/// The same out of a loan.
#[divan::bench]
fn hold_and_settle_on_loan(bencher: Bencher<'_, '_>) {
    let (mut account, mut loan, mut id) = (account(), Loan::default(), 0);
    account.place(ask(id));
    account.settle(HoldId(id), Money::from_units(400));
    account.lend(&mut loan);
    bencher.bench_local(|| {
        id += 1;
        loan.hold(&ask(id), Wall(0)) && loan.settle(HoldId(id), Money::from_units(400), Wall(0))
    });
}

/// A look at a loan of an upstream that has nothing to lend.
#[divan::bench]
fn ask_a_closed_loan(bencher: Bencher<'_, '_>) {
    let mut loan: CallLoan<()> = CallLoan::default();
    bencher.bench_local(|| loan.begin(AttemptId(1), 10, 1, black_box(Mono(5))));
}
