//! Tenants and keys of the admin side: made or revoked on one replica, in force on all of them.

use futures_util::future::join_all;

use super::*;

/// The configuration of [`super::config`] with a cache in each process, so that answers can be full hits.
fn cached(provider: &Provider, redis: &RedisServer, extra: &str) -> String {
    let text = config(provider, &redis.url(), "budget = \"1000\"", "redis_timeout_ms = 2000", extra);
    text.replace("backend = \"off\"", "backend = \"memory\"")
}

async fn embed(gateway: &Gateway, key: &str) -> (u16, String) {
    let body = json!({ "model": "emb-a", "input": "hello" }).to_string();
    let answer = gateway.post("/v1/embeddings", key, &[], body).await;
    (answer.status, answer.header("x-cache").to_owned())
}

async fn new_key(gateway: &Gateway, tenant: &str) -> (String, String) {
    let made = gateway.admin_post(&format!("/admin/tenants/{tenant}/keys"), json!({})).await.expect(201);
    let text = |member: &str| made[member].as_str().expect("text").to_owned();
    (text("key"), text("fingerprint"))
}

async fn revoke(gateway: &Gateway, tenant: &str, fingerprint: &str) -> crate::support::gateway::Answer {
    gateway.admin("DELETE", &format!("/admin/tenants/{tenant}/keys/{fingerprint}"), "", None).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_one_replica_changes_holds_on_all_at_the_next_request() {
    let (redis, provider) = (RedisServer::start(), provider(0.0));
    let config = cached(&provider, &redis, "");
    let gateways = gateways(3, &config);
    let made = gateways[0].admin_post("/admin/tenants", json!({ "id": "acme", "budget": "5" })).await.expect(201);
    assert_eq!(made["source"], "admin");
    assert!(made["replicas"]["confirmed"].as_array().is_some_and(|all| !all.is_empty()), "{made}");
    for gateway in &gateways {
        assert_eq!(gateway.tenant("acme").await["remaining"], "5");
    }
    let mut revoked = Vec::new();
    for round in 0..12 {
        let (maker, ender) = (&gateways[round % 3], &gateways[(round + 1) % 3]);
        let (key, fingerprint) = new_key(maker, "acme").await;
        for gateway in &gateways {
            assert_eq!(embed(gateway, &key).await.0, 200, "round {round}");
            assert_eq!(embed(gateway, &key).await, (200, "HIT".to_owned()), "round {round}");
        }
        let ended = revoke(ender, "acme", &fingerprint).await.expect(200);
        assert_eq!(ended["replicas"]["silent"], json!([]), "{ended}");
        assert_eq!(ended["replicas"]["confirmed"].as_array().map(Vec::len), Some(3), "{ended}");
        let answers = join_all(gateways.iter().map(|gateway| embed(gateway, &key))).await;
        assert!(answers.iter().all(|(status, _)| *status == 401), "round {round}: {answers:?}");
        revoked.push((key, fingerprint));
    }
    let (key, _) = new_key(&gateways[1], "acme").await;
    // A replica that knows nothing at all, and one that was killed.
    let mut later = vec![Gateway::start(&config)];
    let mut killed = Arc::try_unwrap(gateways.into_iter().next().expect("three")).ok().expect("nobody else has it");
    killed.crash_and_restart();
    later.push(killed);
    for gateway in &later {
        assert_eq!(embed(gateway, &key).await.0, 200);
        for (key, fingerprint) in &revoked {
            assert_eq!(embed(gateway, key).await.0, 401, "{fingerprint}");
        }
        let tenant = gateway.tenant("acme").await;
        assert_eq!(tenant["source"], "admin", "{tenant}");
        assert_eq!(tenant["keys"].as_array().map(Vec::len), Some(1), "{tenant}");
    }
    let said = later[1].command(&["check"]);
    assert!(said.contains("acme"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_all_replicas_do_at_once_is_done_once() {
    let (redis, provider) = (RedisServer::start(), provider(0.0));
    let gateways = gateways(3, &cached(&provider, &redis, ""));
    for round in 0..5 {
        let id = format!("acme-{round}");
        let made = gateways.iter().map(|one| one.admin_post("/admin/tenants", json!({ "id": id, "budget": "5" })));
        let mut statuses: Vec<u16> = join_all(made).await.into_iter().map(|answer| answer.status).collect();
        statuses.sort_unstable();
        assert_eq!(statuses, [201, 409, 409]);
        let body = json!({ "amount": "2.5", "idempotency_key": "invoice 17" });
        let path = format!("/admin/tenants/{id}/credit");
        let credits = join_all(gateways.iter().map(|one| one.admin_post(&path, body.clone()))).await;
        let applied = credits.iter().filter(|answer| answer.json()["credit"]["repeated"] == json!(false)).count();
        assert_eq!(applied, 1);
        for gateway in &gateways {
            assert_eq!(gateway.tenant(&id).await["remaining"], "7.5");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credit_given_on_one_replica_can_be_spent_at_once_on_another() {
    let (redis, provider) = (RedisServer::start(), provider(0.0));
    let text = config(&provider, &redis.url(), "budget = \"0.001\"", "redis_timeout_ms = 2000", "");
    let gateways = gateways(2, &text);
    assert_eq!(ask(&gateways[0]).await, 200);
    for round in 0..10 {
        assert_eq!([ask(&gateways[0]).await, ask(&gateways[1]).await], [402, 402]);
        let body = json!({ "amount": "0.001", "idempotency_key": format!("round {round}") });
        gateways[round % 2].admin_post("/admin/tenants/t1/credit", body).await.expect(200);
        assert_eq!(ask(&gateways[(round + 1) % 2]).await, 200, "round {round}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_replica_that_slept_through_a_revocation_lets_nobody_in_by_that_key() {
    let (redis, provider) = (RedisServer::start(), provider(0.0));
    let gateways = gateways(2, &cached(&provider, &redis, ""));
    for _ in 0..3 {
        let (key, fingerprint) = new_key(&gateways[0], "t1").await;
        for gateway in &gateways {
            assert_eq!(embed(gateway, &key).await.0, 200);
            assert_eq!(embed(gateway, &key).await, (200, "HIT".to_owned()));
        }
        gateways[1].freeze();
        let ended = revoke(&gateways[0], "t1", &fingerprint).await.expect(200);
        assert_eq!(ended["replicas"]["silent"].as_array().map(Vec::len), Some(1), "{ended}");
        gateways[1].wake();
        assert_eq!(embed(&gateways[1], &key).await.0, 401);
        assert_eq!(embed(&gateways[0], &key).await.0, 401);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_the_server_a_revocation_holds_here_and_comes_to_the_others_later() {
    let (mut redis, provider) = (RedisServer::start(), provider(0.0));
    let gateways = gateways(2, &cached(&provider, &redis, ""));
    let (key, fingerprint) = new_key(&gateways[0], "t1").await;
    for gateway in &gateways {
        assert_eq!(embed(gateway, &key).await.0, 200);
    }
    redis.stop();
    for gateway in &gateways {
        let ready = async || gateway.admin_get("/readyz").await.text;
        until("without", ready, |text| text.contains("without redis")).await;
    }
    let made = gateways[0].admin_post("/admin/tenants", json!({ "id": "acme" })).await;
    assert_eq!((made.status, made.error_code()), (503, "store_unavailable".to_owned()));
    let shown = gateways[0].tenant("t1").await;
    assert!(shown["stale"] == true && amount(&shown["spent"]) > Money::ZERO, "what was known last: {shown}");
    let ended = revoke(&gateways[0], "t1", &fingerprint).await;
    assert_eq!(ended.status, 503, "{}", ended.text);
    assert!(ended.text.contains("on this replica only"), "{}", ended.text);
    assert_eq!(embed(&gateways[0], &key).await.0, 401);
    redis.restart_empty();
    until("the other replica", async || embed(&gateways[1], &key).await.0, |status| *status == 401).await;
    let again = revoke(&gateways[0], "t1", &fingerprint).await.expect(200);
    assert_eq!(again["replicas"]["confirmed"].as_array().map(Vec::len), Some(2), "{again}");
    assert_eq!(gateways[1].admin_get("/admin/tenants/acme").await.status, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_file_wins_where_both_name_a_tenant() {
    let (redis, provider) = (RedisServer::start(), provider(0.0));
    let config = cached(&provider, &redis, "");
    let first = Gateway::start(&config);
    first.admin_post("/admin/tenants", json!({ "id": "acme", "budget": "5" })).await.expect(201);
    let (key, _) = new_key(&first, "acme").await;
    let named = format!("{config}\n[[tenants]]\nid = \"acme\"\nkey_sha256 = []\nbudget = \"9\"\n");
    let second = Gateway::start(&named);
    let tenant = second.tenant("acme").await;
    assert_eq!((&tenant["source"], &tenant["budget"]), (&json!("file"), &json!("9")), "{tenant}");
    assert_eq!(first.tenant("acme").await["source"], "admin");
    // Keys belong to the tenant, whoever's settings hold.
    assert_eq!(embed(&second, &key).await.0, 200);
    let said = second.command(&["check"]);
    assert!(said.contains("the file's settings hold"), "{said}");
}
