//! Backing up the ledger of a running gateway, losing it, and getting it back; and old records as sums.

use serde_json::json;

use super::{config_at, provider};
use crate::support::Gateway;

#[tokio::test]
async fn a_damaged_ledger_is_found_and_restored_with_equal_totals() {
    let provider = provider();
    let mut gateway = Gateway::start(&config_at(&provider.base_url()));
    for n in 0..30 {
        gateway.embed(json!(format!("text number {n}"))).await.expect(200);
    }
    let credit = json!({ "amount": "2", "idempotency_key": "k" });
    gateway.admin_post("/admin/tenants/t1/credit", credit).await.expect(200);
    let told = gateway.command(&["ledger", "backup", "saved"]);
    assert!(told.contains("30 requests, 0.00009 EUR, 0 open holds"), "{told}");
    let report = gateway.command(&["usage", "--by", "tenant,model", "--format", "csv"]);
    let balance = gateway.tenant("t1").await;
    gateway.terminate();
    gateway.wait();

    let journal = gateway.folder().join("data").join("00000001.jsonl");
    let mut bytes = std::fs::read(&journal).expect("read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 0x20;
    std::fs::write(&journal, bytes).expect("written");
    let verify = gateway.try_command(&["ledger", "verify"]);
    assert!(!verify.status.success(), "damage is found");
    assert!(String::from_utf8_lossy(&verify.stderr).contains("is damaged"), "and named");
    assert!(gateway.command(&["ledger", "verify", "--folder", "saved"]).contains("30 requests"));
    let told = gateway.command(&["ledger", "restore", "saved"]);
    assert!(told.contains("restored") && told.contains("replaced-1"), "{told}");

    gateway.restart();
    assert_eq!(gateway.command(&["usage", "--by", "tenant,model", "--format", "csv"]), report);
    assert_eq!(gateway.tenant("t1").await, balance);
    gateway.embed(json!("it goes on")).await.expect(200);
    let refused = gateway.try_command(&["ledger", "restore", "saved"]);
    assert!(String::from_utf8_lossy(&refused.stderr).contains("another gateway"), "not under a running gateway");
}
