//! What one rerank call costs under each pricing model, compared with a calculation by hand to the last digit.

use loadtest::provider::{Provider, Script, UsageShape};
use serde_json::json;

use super::{gateway, one_model, post};

/// One USD is worth 0.92 in the default currency.
const KIND: &str = "kind = \"rerank\"\npairwise = true\ntokenizer = \"bytes\"";

struct Bill<'a> {
    provider: &'a str,
    price: &'a str,
    usage: UsageShape,
    documents: usize,
    cost: &'a str,
    searches: u64,
    tokens: u64,
    estimated: bool,
}

async fn check(bill: Bill<'_>) {
    let server = Provider::start(Script::new().space("A").usage(bill.usage));
    let tables = one_model(&server, bill.provider, "ranker", &format!("{KIND}\n{}", bill.price));
    let gateway = gateway(&tables, "budget = \"1\"");
    // The query: two words, seven bytes. Each document: three words, eight bytes.
    let documents: Vec<String> = (10..10 + bill.documents).map(|n| format!("d {n:04} x")).collect();
    let answer =
        post(&gateway, "/v2/rerank", &json!({"model": "ranker", "query": "one two", "documents": documents})).await;
    let note = format!("{} {}", bill.provider, answer.expect(200));
    assert_eq!(answer.header("x-gateway-cost-eur"), bill.cost, "{note}");
    let records = gateway.usage();
    assert_eq!(records.len(), 1);
    let record = &records[0];
    assert_eq!(record["cost"], bill.cost);
    assert_eq!(record["search_units"].as_u64().unwrap_or(0), bill.searches, "{record}");
    assert_eq!(record["tokens"], bill.tokens, "{record}");
    assert_eq!(record["estimated"], bill.estimated, "{record}");
    assert_eq!(record["class"], "rerank");
    assert_eq!(record["items"], bill.documents);
    // The rest of the budget, exactly; nothing is held any more.
    let left = rust_decimal::Decimal::ONE - bill.cost.parse::<rust_decimal::Decimal>().expect("decimal");
    let tenant = gateway.tenant("t1").await;
    let remaining: rust_decimal::Decimal = tenant["remaining"].as_str().expect("text").parse().expect("decimal");
    assert_eq!((remaining, &tenant["held"]), (left, &json!("0")));
    assert_eq!(answer.header("x-tenant-remaining-budget-eur"), left.normalize().to_string());
}

#[tokio::test]
async fn a_search_is_a_query_with_up_to_a_hundred_documents() {
    let price = "price_usd_per_thousand_searches = \"2.00\"";
    // 2.00 / 1000 * 0.92 = 0.00184 a search. Tokens are nobody's count here: 250 * (7 + 8) bytes.
    let bill = |documents, usage, searches, cost, estimated| Bill {
        provider: "cohere",
        price,
        usage,
        documents,
        cost,
        searches,
        tokens: documents as u64 * 15,
        estimated,
    };
    check(bill(1, UsageShape::Exact, 1, "0.00184", false)).await;
    check(bill(100, UsageShape::Exact, 1, "0.00184", false)).await;
    check(bill(101, UsageShape::Exact, 2, "0.00368", false)).await;
    check(bill(250, UsageShape::Exact, 3, "0.00552", false)).await;
    check(bill(250, UsageShape::Absent, 3, "0.00552", true)).await;
}

#[tokio::test]
async fn tokens_are_billed_as_the_provider_counts_them() {
    let price = "price_usd_per_million_tokens = \"0.05\"";
    // The provider counts words, the query's two once with each document: 4 * (2 + 3) = 20 tokens at
    // 0.05 / 1000000 * 0.92 = 0.000000046.
    for provider in ["voyage", "jina", "vllm", "tei"] {
        let bill = Bill {
            provider,
            price,
            usage: UsageShape::Exact,
            documents: 4,
            cost: "0.00000092",
            searches: 0,
            tokens: 20,
            estimated: false,
        };
        check(bill).await;
    }
}

#[tokio::test]
async fn without_a_count_tokens_are_query_times_documents_and_documents() {
    // In bytes: 4 * 7 + 4 * 8 = 60 tokens at 0.000000046.
    for provider in ["voyage", "jina", "tei"] {
        let bill = Bill {
            provider,
            price: "price_usd_per_million_tokens = \"0.05\"",
            usage: UsageShape::Absent,
            documents: 4,
            cost: "0.00000276",
            searches: 0,
            tokens: 60,
            estimated: true,
        };
        check(bill).await;
    }
}

#[tokio::test]
async fn a_budget_ends_where_the_last_whole_search_ends() {
    let server = Provider::start(Script::new().space("A"));
    let keys = format!("{KIND}\nprice_usd_per_thousand_searches = \"2.00\"");
    // Two searches and a half.
    let gateway = gateway(&one_model(&server, "cohere", "ranker", &keys), "budget = \"0.0046\"");
    let ask = |n: u32| {
        let gateway = &gateway;
        async move {
            post(gateway, "/v2/rerank", &json!({"model": "ranker", "query": n.to_string(), "documents": ["a"]})).await
        }
    };
    let answers = futures_util::future::join_all((0..20).map(ask)).await;
    let paid = answers.iter().filter(|answer| answer.status == 200).count();
    let refused = answers.iter().filter(|answer| answer.status == 402).count();
    assert_eq!((paid, refused), (2, 18));
    assert_eq!(server.call_count(), 2, "nothing was called for the others");
    assert_eq!(gateway.tenant("t1").await["remaining"], "0.00092");
    let message = answers.iter().find(|answer| answer.status == 402).expect("refused").json();
    assert_eq!(message["code"], "budget_exhausted");
}

#[tokio::test]
async fn only_missing_pairs_are_billed() {
    let server = Provider::start(Script::new().space("A"));
    let keys = format!("{KIND}\nprice_usd_per_million_tokens = \"0.05\"");
    let gateway = gateway(&one_model(&server, "voyage", "ranker", &keys), "budget = \"1\"");
    let ask = |documents: serde_json::Value| {
        let gateway = &gateway;
        async move {
            let body = json!({"model": "ranker", "query": "one two", "documents": documents});
            let answer = post(gateway, "/voyage/v1/rerank", &body).await;
            let tokens = answer.expect(200)["usage"]["total_tokens"].as_u64().expect("a number");
            (answer.header("x-gateway-cost-eur").to_owned(), tokens)
        }
    };
    assert_eq!(ask(json!(["a b", "c"])).await, ("0.000000322".to_owned(), 7), "2 * 2 + 2 + 1 tokens at 0.000000046");
    // The answer states all tokens, the bill only the new pair's.
    let (cost, tokens) = ask(json!(["a b", "d e f", "c"])).await;
    assert_eq!((cost.as_str(), tokens), ("0.00000023", 12));
}
