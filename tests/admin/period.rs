//! Budgets that refill: a restart on the far side of an edge refills once, and only once.

use loadtest::provider::{Provider, Script, TokenRule};
use serde_json::json;

use super::config_at;
use crate::support::Gateway;

use vectorgate::clock;
use vectorgate::ids::TenantId;
use vectorgate::pure::money::Money;
use vectorgate::pure::time::Wall;
use vectorgate::pure::utc::{DAY_MS, Stamp, start_of_day};
use vectorgate::store::journal::Journal;
use vectorgate::store::record::{CreditRecord, PeriodRecord, Record};
use vectorgate::store::writer::Limits;

/// A budget that is refilled no more goes on from where its last period stood, over a restart too.
#[tokio::test]
async fn what_is_spent_after_periods_ended_is_kept() {
    let provider = Provider::start(Script::new().space("A").width(8).tokens(TokenRule::PerItem(1)));
    // Too small to be lent.
    let config = config_at(&provider.base_url())
        .replace("dimensions = 8", "dimensions = 8\ntokenizer = \"cl100k\"")
        .replace("budget = \"1.00\"", "budget = \"0.000009\"\nbudget_period = \"day\"");
    let mut gateway = Gateway::start(&config);
    gateway.embed(json!("one")).await.expect(200);
    gateway.configure(&config.replace("budget_period = \"day\"", ""));
    gateway.admin_post("/admin/reload", json!({})).await.expect(200);
    gateway.embed(json!("two")).await.expect(200);
    assert_eq!(gateway.tenant("t1").await["spent"], "0.000002");
    gateway.crash_and_restart();
    let tenant = gateway.tenant("t1").await;
    assert_eq!((&tenant["spent"], &tenant["remaining"]), (&json!("0.000002"), &json!("0.000007")), "{tenant}");
}

#[tokio::test]
async fn rg_849f_a_restart_across_the_edge_neither_loses_nor_repeats_the_reset() {
    let mut script = Script::new().space("A").width(8);
    script.tokens = TokenRule::Bytes;
    let provider = Provider::start(script);
    let config = config_at(&provider.base_url())
        .replace("dimensions = 8", "dimensions = 8\ntokenizer = \"bytes\"")
        .replace("budget = \"1.00\"", "budget = \"0.000003\"\nbudget_period = \"day\"");
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("gateway.toml"), &config).expect("written");
    let today = start_of_day(clock::wall());
    let yesterday = Wall(today.0 - DAY_MS);
    // Yesterday's period, with a credit of which nothing was used.
    {
        let (journal, _) = Journal::open(&folder.path().join("data"), Limits::default(), yesterday).expect("opens");
        let tenant = TenantId::from("t1");
        let start = PeriodRecord { time: yesterday, tenant: tenant.clone(), start: yesterday, budget_before: None };
        journal.append(&Record::PeriodStart(start)).expect("written");
        let amount: Money = "0.000001".parse().expect("money");
        let credit = CreditRecord { time: yesterday, tenant, amount, idempotency_key: "k".to_owned() };
        journal.append(&Record::Credit(credit)).expect("written");
    }
    let mut gateway = Gateway::start_in(folder);
    let tenant = gateway.tenant("t1").await;
    assert_eq!(tenant["period"], "day");
    assert_eq!(tenant["period_start"], Stamp(today).to_string(), "the day that was missed is not made up for");
    assert_eq!(tenant["resets_at"], Stamp(Wall(today.0 + DAY_MS)).to_string());
    assert_eq!((&tenant["remaining"], &tenant["credits"]), (&json!("0.000004"), &json!("0.000001")), "{tenant}");
    gateway.embed(json!("abc")).await.expect(200);
    gateway.embed(json!("d")).await.expect(200);
    let refused = gateway.embed(json!("e")).await;
    assert_eq!(refused.status, 402);
    assert!(refused.text.contains(&Stamp(Wall(today.0 + DAY_MS)).to_string()), "{}", refused.text);

    gateway.crash_and_restart();
    let tenant = gateway.tenant("t1").await;
    assert_eq!((&tenant["spent"], &tenant["remaining"]), (&json!("0.000004"), &json!("0")), "not refilled twice");
    assert_eq!(gateway.embed(json!("e")).await.status, 402);
}
