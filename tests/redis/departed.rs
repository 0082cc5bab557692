//! A tenant that leaves one replica or all of them and comes back.

use super::*;
use crate::support::gateway::without_t1;

async fn forgotten(gateway: &Gateway) {
    let balances = async || gateway.metric("vectorgate_balances").await;
    until("the balance is forgotten", balances, |balances| *balances == 1.0).await;
}

async fn check(gateway: &Gateway, spent: &str) {
    let account = async || gateway.tenant("t1").await;
    let account = until("what was spent", account, |account| account["spent"] == spent).await;
    assert_eq!((&account["held"], &account["open_holds"]), (&json!("0"), &json!(0)), "{account}");
    assert!(!gateway.log().contains("shared balances were lost"), "{}", gateway.log());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenant_that_left_a_replica_finds_what_others_charged() {
    let (redis, provider) = (RedisServer::start(), provider(200.0));
    let config = config(&provider, &redis.url(), "budget = \"0.020\"", "redis_timeout_ms = 2000", "");
    let away = without_t1(&config);
    let (mut one, two) = (Gateway::start(&config), Gateway::start(&config));
    assert_eq!((ask(&one).await, ask(&two).await), (200, 200));

    // It leaves with a call under way, which is charged all the same; the other replica goes on.
    let calls = provider.call_count();
    let (under_way, ()) = tokio::join!(ask(&one), async {
        provider.until_calls(calls + 1).await;
        one.reload(&away).await;
    });
    assert_eq!(under_way, 200);
    assert_eq!(ask(&one).await, 401);
    assert_eq!(ask(&two).await, 200);
    forgotten(&one).await;
    assert_eq!(ask(&two).await, 200);
    one.reload(&config).await;
    assert_eq!(ask(&one).await, 200);
    for gateway in [&one, &two] {
        check(gateway, "0.006").await;
    }

    // It leaves both, one of which crashes meanwhile.
    for gateway in [&one, &two] {
        gateway.reload(&away).await;
        forgotten(gateway).await;
    }
    one.crash_and_restart();
    for gateway in [&one, &two] {
        gateway.reload(&config).await;
        check(gateway, "0.006").await;
    }
    let asks = (0..20).map(|number| ask(if number % 2 == 0 { &one } else { &two }));
    let answered = futures_util::future::join_all(asks).await.into_iter().filter(|status| *status == 200).count();
    assert_eq!(answered, 14, "all that was left, and no more");
    for gateway in [&one, &two] {
        check(gateway, "0.02").await;
        assert_eq!(paid_records(gateway, 20).await.len(), 20, "each record once, those of both replicas");
    }
}
