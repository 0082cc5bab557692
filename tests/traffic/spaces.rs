//! Not one vector of another model leaves the gateway, whatever its mirror's name and width.

use std::process::Command;
use std::time::Duration;

use loadtest::provider::{Effect, Fault, Provider, Script};

use super::{Config, client_calls, healthy, load, statuses, until_checked, until_closed, until_upstream};
use crate::support::gateway::binary;

fn of_space(space: &str) -> Provider {
    Provider::start(Script::new().space(space))
}

fn mirrored(one: &Provider, two: &Provider, extra: &str) -> Config {
    Config::new().with(extra).upstream("one", &one.base_url(), "").upstream("two", &two.base_url(), "")
}

/// The same with the mirror preferred, so that it is called, and missed, whatever a busy machine makes of its latency.
fn preferred(one: &Provider, two: &Provider, extra: &str) -> Config {
    Config::new().with(extra).upstream("one", &one.base_url(), "tier = 1").upstream("two", &two.base_url(), "")
}

#[tokio::test]
async fn a_mirror_of_another_model_is_taken_out_at_start() {
    let (one, two) = (of_space("A"), of_space("B"));
    let gateway = mirrored(&one, &two, "").start();
    let answers = load(&gateway, "from the start", 100, Duration::from_millis(3)).await;
    assert_eq!(statuses(&answers), [(200, 100)].into());
    until_upstream(&gateway, "two", "quarantined", |state| state["quarantined"] == true).await;
    assert_eq!(client_calls(&two).len(), 0, "no text of a client is sent there");
    assert_eq!(statuses(&load(&gateway, "later", 100, Duration::from_millis(3)).await), [(200, 100)].into());
    assert_eq!(client_calls(&two).len(), 0);
    let series = r#"vectorgate_upstream_quarantined{upstream="two"}"#;
    let until = std::time::Instant::now() + super::SOON;
    while gateway.metric(series).await != 1.0 {
        assert!(std::time::Instant::now() < until, "the metric says so");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(gateway.metric(r#"vectorgate_upstream_quarantined{upstream="one"}"#).await, 0.0);
}

#[tokio::test]
async fn an_upstream_that_is_down_at_start_keeps_the_others_out_no_longer_than_their_own_check_takes() {
    let one = Provider::start(Script::new().always(Effect::fault(Fault::Refuse)));
    // It answers after the other has failed and is to be asked again.
    let two = Provider::start(Script::new().space("A").delay_ms(100.0));
    let mut quickest = Duration::MAX;
    for _ in 0..3 {
        let gateway = mirrored(&one, &two, "").start();
        let began = std::time::Instant::now();
        until_upstream(&gateway, "two", "looked at", |state| state["unverified"] == false).await;
        quickest = quickest.min(began.elapsed());
        let answers = load(&gateway, "at once", 20, Duration::from_millis(5)).await;
        assert_eq!(statuses(&answers), [(200, 20)].into());
    }
    assert!(quickest < Duration::from_millis(700), "it took {quickest:?} at best");
}

/// Goes down by `fault`, comes back as another model.
async fn comes_back_as_another(fault: Effect, extra: &str) {
    let (one, two) = (of_space("A"), of_space("A"));
    let gateway = preferred(&one, &two, extra).start();
    until_checked(&gateway, &[("one", &one), ("two", &two)]).await;
    let answers = load(&gateway, "well", 100, Duration::from_millis(3)).await;
    assert_eq!(statuses(&answers), [(200, 100)].into());
    assert!(!client_calls(&two).is_empty(), "it is used");
    let swap = async {
        two.set_script(Script::new().always(fault));
        tokio::time::sleep(Duration::from_secs(2)).await;
        // On a busy machine it may not have been called yet, and what nobody saw going down nobody can suspect.
        until_upstream(&gateway, "two", "missed", |state| state["unverified"] == true).await;
        two.set_script(Script::new().space("B"));
        two.clear();
    };
    // Every vector that leaves is compared with the one of its text in space A.
    let (answers, ()) = tokio::join!(load(&gateway, "during", 600, Duration::from_millis(5)), swap);
    assert_eq!(statuses(&answers), [(200, 600)].into());
    let began = std::time::Instant::now();
    while super::upstream(&gateway, "two").await["quarantined"] != true {
        let answers = load(&gateway, &format!("after {:?}", began.elapsed()), 50, Duration::from_millis(5)).await;
        assert_eq!(statuses(&answers), [(200, 50)].into());
        assert!(began.elapsed() < super::SOON, "it is found out");
    }
    assert_eq!(client_calls(&two).len(), 0, "no text of a client is sent to the other model");
}

#[tokio::test]
async fn a_mirror_that_comes_back_as_another_model_is_found_out() {
    comes_back_as_another(Effect::fault(Fault::Refuse), "").await;
    comes_back_as_another(Effect::status(503), "").await;
    comes_back_as_another(Effect::fault(Fault::ResetAfterBody), "[breaker]\nmin_requests = 3\ncooldown_s = 1\n").await;
}

#[tokio::test]
async fn a_mirror_that_is_put_right_comes_back() {
    let (one, two) = (of_space("A"), of_space("A"));
    let brief = "[breaker]\ncooldown_s = 1\nprobe_interval_s = 0.1\n";
    let gateway = preferred(&one, &two, brief).start();
    until_checked(&gateway, &[("one", &one), ("two", &two)]).await;
    two.set_script(Script::new().always(Effect::fault(Fault::Refuse)));
    drop(load(&gateway, "lost", 100, Duration::from_millis(3)).await);
    until_upstream(&gateway, "two", "out", |state| state["unverified"] == true).await;
    two.set_script(Script::new());
    until_upstream(&gateway, "two", "looked at", |state| state["unverified"] == false).await;
    until_closed(&gateway, "two").await;
    two.clear();
    drop(load(&gateway, "back", 100, Duration::from_millis(3)).await);
    assert!(!client_calls(&two).is_empty());
}

/// The exit code of `vectorgate probe` or `check`, and all it printed.
fn run(command: &str, config: &Config) -> (Option<i32>, String) {
    let folder = tempfile::tempdir().expect("a folder");
    std::fs::write(folder.path().join("gateway.toml"), config.text()).expect("written");
    let output = Command::new(binary())
        .args([command, "--config", "gateway.toml"])
        .current_dir(folder.path())
        .output()
        .expect("the command runs");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn probe_tells_same_from_different() {
    let (a, also_a, b) = (of_space("A"), of_space("A"), of_space("B"));
    let (code, text) = run("probe", &mirrored(&a, &also_a, ""));
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("same vectors"), "{text}");
    let (code, text) = run("probe", &mirrored(&a, &b, ""));
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("DIFFERENT") && text.contains("two"), "{text}");
    let narrow = Provider::start(Script::new().width(4));
    assert_eq!(run("probe", &mirrored(&a, &narrow, "")).0, Some(1), "another width");
    let slightly = Provider::start(Script { noise: 0.01, ..Script::new() });
    assert_eq!(run("probe", &mirrored(&a, &slightly, "")).0, Some(0), "as different as two builds of one model");
    let dead = Provider::start(Script::new().always(Effect::fault(Fault::ResetOnAccept)));
    assert_eq!(run("probe", &mirrored(&a, &dead, "")).0, Some(1), "no answer");
}

#[test]
fn a_configuration_with_an_incompatible_fallback_does_not_start() {
    let provider = healthy();
    let config = Config::new().upstream("one", &provider.base_url(), "");
    assert_eq!(run("check", &config).0, Some(0), "{}", run("check", &config).1);
    let other = "[[models]]\nname = \"emb-b\"\nspace = \"B\"\nprice_usd_per_million_tokens = \"0\"\n\
                 fallbacks = [\"emb-a\"]\n";
    for command in ["check", "serve"] {
        let (code, text) = run(command, &Config::new().with(other).upstream("one", &provider.base_url(), ""));
        assert_eq!(code, Some(1), "{text}");
        assert!(text.contains("fallbacks") && text.contains("space"), "{text}");
    }
    assert_eq!(provider.call_count(), 0);
}
