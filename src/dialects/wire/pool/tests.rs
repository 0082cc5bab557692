//! Who shares connections, and how long they are kept.

use super::*;
use crate::config::{Environment, Source, load};
use crate::dialects::wire::Wire;

/// A way to an upstream with these keys, over `places`.
fn wire(places: &Places, keys: &str) -> Wire {
    let text = format!("[[upstreams]]\nid = \"u\"\nprovider = \"openai\"\n{keys}\n");
    let plan = load(&Source::Text { name: "t".to_owned(), text }, &Environment::default()).expect("valid");
    Wire::new(&plan.upstreams[0], places)
}

/// Whether upstreams with these keys share connections.
#[track_caller]
fn check(one: &str, other: &str, expected: bool) {
    let places = Places::default();
    let pools = [one, other].map(|keys| wire(&places, keys).pool.expect("an address"));
    assert_eq!(Rc::ptr_eq(&pools[0], &pools[1]), expected, "{one} / {other}");
    assert_eq!(places.0.borrow().len(), if expected { 1 } else { 2 });
}

#[test]
fn upstreams_at_one_place_share_connections_and_others_do_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let authority = |name: &str| {
        let made = rcgen::generate_simple_self_signed(vec![name.to_owned()]).expect("a certificate");
        let file = folder.path().join(name);
        std::fs::write(&file, made.cert.pem()).expect("written");
        format!("base_url = \"https://h\"\nca = \"{}\"", file.display())
    };
    let plain = "base_url = \"http://h:80/v1\"";
    check(plain, "base_url = \"http://h/v1\"", true);
    check(plain, "base_url = \"http://h/v2\"\napi_key = { value = \"another\" }\nmax_concurrency = 1", true);
    check(plain, "base_url = \"http://h/v1\"\ntimeout_s = 7", true);
    check(plain, "base_url = \"http://other/v1\"", false);
    check(plain, "base_url = \"http://h:81/v1\"", false);
    check(plain, "base_url = \"https://h:80/v1\"", false);
    check(plain, "base_url = \"http://h/v1\"\nconnect_timeout_ms = 7", false);
    let (own, another) = (authority("own"), authority("another"));
    check(&own, &own, true);
    check(&own, &another, false);
    check(&own, "base_url = \"https://h\"", false);
}

#[test]
fn a_place_is_kept_as_long_as_anybody_may_call_it() {
    let places = Places::default();
    let (one, other) = (wire(&places, "base_url = \"http://h/v1\""), wire(&places, "base_url = \"http://h/v1\""));
    let known = |places: &Places| places.0.borrow().len();
    drop(one);
    places.tidy(Mono::ZERO);
    assert_eq!(known(&places), 1);
    drop(other);
    places.tidy(Mono::ZERO);
    assert_eq!(known(&places), 0);
}

#[tokio::test]
async fn turns_are_each_upstreams_own() {
    let places = Places::default();
    let [one, other] = ["base_url = \"http://h/v1\"\nmax_concurrency = 1"; 2].map(|keys| wire(&places, keys));
    let _turn = one.turns.next().await.expect("free");
    assert!(futures_util::future::poll_immediate(std::pin::pin!(one.turns.next())).await.is_none());
    assert!(futures_util::future::poll_immediate(std::pin::pin!(other.turns.next())).await.is_some());
}
