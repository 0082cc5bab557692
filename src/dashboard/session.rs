//! Sessions of people who look at the dashboard: who is logged in, until when, and the token that proves that a request
//! came from the page. Owns no cookie text and no route; knows HTTP's words only where a rule is about them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::pure::time::Mono;

/// How long a session lasts without a new log-in.
pub const LIFETIME: Duration = Duration::from_secs(12 * 3_600);

/// Most sessions at once; the oldest goes when one more is made.
const MOST_SESSIONS: usize = 256;

/// Most failed log-ins per minute before all log-ins wait: a token has no business being guessed.
const MOST_FAILURES: u32 = 20;

const MINUTE: Duration = Duration::from_secs(60);

/// Who stands behind a request, by the name of the token or by `loopback`; for the audit trail.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Who(pub Arc<str>);

/// A session that has just been made.
#[derive(Debug)]
pub struct NewSession {
    /// Goes into the cookie; 64 hex digits.
    pub cookie: String,
    /// Goes to the page; 64 hex digits.
    pub csrf: String,
}

/// A session as a request finds it.
#[derive(Debug, Clone)]
pub struct Session {
    /// Whose it is.
    pub who: Who,
    /// What state-changing requests must send in a header.
    pub csrf: String,
}

struct Kept {
    session: Session,
    since: Mono,
}

/// All sessions, in memory: a restart logs everybody out. Only digests of cookies are kept.
#[derive(Default)]
pub struct Sessions {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    by_digest: HashMap<[u8; 32], Kept>,
    failures: u32,
    failures_since: Mono,
}

impl std::fmt::Debug for Sessions {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Sessions").field("count", &self.inner.lock().by_digest.len()).finish()
    }
}

fn digest(cookie: &str) -> [u8; 32] {
    Sha256::digest(cookie.as_bytes()).into()
}

impl Sessions {
    /// Makes a session for `who` out of 64 random bytes.
    pub fn begin(&self, who: Who, random: [u8; 64], now: Mono) -> NewSession {
        let (cookie, csrf) = (hex::encode(&random[..32]), hex::encode(&random[32..]));
        let mut inner = self.inner.lock();
        inner.by_digest.retain(|_, kept| now.since(kept.since) < LIFETIME);
        if inner.by_digest.len() >= MOST_SESSIONS
            && let Some(oldest) = inner.by_digest.iter().min_by_key(|(_, kept)| kept.since).map(|(key, _)| *key)
        {
            inner.by_digest.remove(&oldest);
        }
        let session = Session { who, csrf: csrf.clone() };
        inner.by_digest.insert(digest(&cookie), Kept { session, since: now });
        NewSession { cookie, csrf }
    }

    /// The session of a cookie, unless it is unknown or over.
    pub fn find(&self, cookie: &str, now: Mono) -> Option<Session> {
        let inner = self.inner.lock();
        let kept = inner.by_digest.get(&digest(cookie))?;
        (now.since(kept.since) < LIFETIME).then(|| kept.session.clone())
    }

    /// Ends a session.
    pub fn end(&self, cookie: &str) {
        self.inner.lock().by_digest.remove(&digest(cookie));
    }

    /// Whether a log-in may be tried now, or how long to wait.
    ///
    /// # Errors
    /// The wait, when too many have failed within a minute.
    pub fn may_try(&self, now: Mono) -> Result<(), Duration> {
        let inner = self.inner.lock();
        let passed = now.since(inner.failures_since);
        if inner.failures >= MOST_FAILURES && passed < MINUTE { Err(MINUTE - passed) } else { Ok(()) }
    }

    /// A log-in failed.
    pub fn failed(&self, now: Mono) {
        let mut inner = self.inner.lock();
        if inner.failures == 0 || now.since(inner.failures_since) >= MINUTE {
            inner.failures = 0;
            inner.failures_since = now;
        }
        inner.failures += 1;
    }
}

impl Session {
    /// Whether `token` is this session's token against forged requests; takes the same time whatever is wrong with it.
    pub fn csrf_matches(&self, token: &str) -> bool {
        self.csrf.as_bytes().ct_eq(token.as_bytes()).into()
    }
}

/// Whether `host` (a `Host` header) names this machine itself. A page elsewhere can point its own name at 127.0.0.1,
/// but it cannot make the browser send ours.
pub fn is_loopback_host(host: &str) -> bool {
    let name = match host.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => host.rsplit_once(':').map_or(host, |(name, _)| name),
    };
    name.eq_ignore_ascii_case("localhost")
        || name.parse::<std::net::IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// Whether a browser says that the request comes from a page of this same origin, or no browser is involved.
/// `origin` and `fetch_site` are the headers `Origin` and `Sec-Fetch-Site`, `host` is `Host`.
pub fn is_same_origin(origin: Option<&str>, fetch_site: Option<&str>, host: Option<&str>) -> bool {
    let by_site = fetch_site.is_none_or(|site| matches!(site, "same-origin" | "none"));
    let by_origin = origin.is_none_or(|origin| {
        let authority = origin.split_once("://").map(|(_, authority)| authority);
        authority.is_some() && authority == host
    });
    by_site && by_origin
}

#[cfg(test)]
mod tests {
    use super::*;

    fn who(name: &str) -> Who {
        Who(Arc::from(name))
    }

    fn at(seconds: u64) -> Mono {
        Mono::from_millis(seconds * 1_000)
    }

    #[test]
    fn a_session_lasts_its_time_and_no_longer() {
        let sessions = Sessions::default();
        let new = sessions.begin(who("admin"), std::array::from_fn(|at| at as u8), at(0));
        assert_eq!((new.cookie.len(), new.csrf.len()), (64, 64));
        let found = sessions.find(&new.cookie, at(LIFETIME.as_secs() - 1)).expect("still there");
        assert_eq!(found.who, who("admin"));
        assert!(found.csrf_matches(&new.csrf));
        assert!(!found.csrf_matches("") && !found.csrf_matches(&new.csrf[1..]));
        assert!(sessions.find(&new.cookie, at(LIFETIME.as_secs())).is_none());
        assert!(sessions.find(&new.csrf, at(1)).is_none());
        sessions.end(&new.cookie);
        assert!(sessions.find(&new.cookie, at(1)).is_none());
    }

    #[test]
    fn the_oldest_session_makes_room() {
        let sessions = Sessions::default();
        let random = |number: u64| {
            let mut bytes = [0_u8; 64];
            bytes[..8].copy_from_slice(&number.to_le_bytes());
            bytes
        };
        let cookies: Vec<String> =
            (0..=MOST_SESSIONS as u64).map(|n| sessions.begin(who("a"), random(n), at(n)).cookie).collect();
        assert!(sessions.find(&cookies[0], at(300)).is_none());
        assert!(sessions.find(&cookies[1], at(300)).is_some());
        assert!(sessions.find(&cookies[MOST_SESSIONS], at(300)).is_some());
    }

    #[test]
    fn guessing_is_slowed_down() {
        let sessions = Sessions::default();
        for _ in 0..MOST_FAILURES {
            assert!(sessions.may_try(at(1)).is_ok());
            sessions.failed(at(1));
        }
        assert_eq!(sessions.may_try(at(31)), Err(Duration::from_secs(30)));
        assert!(sessions.may_try(at(61)).is_ok());
        sessions.failed(at(61));
        assert!(sessions.may_try(at(62)).is_ok());
    }

    #[track_caller]
    fn check_host(host: &str, expected: bool) {
        assert_eq!(is_loopback_host(host), expected, "{host}");
    }

    #[test]
    fn only_names_of_this_machine_are_loopback() {
        check_host("localhost:8081", true);
        check_host("LOCALHOST", true);
        check_host("127.0.0.1:8081", true);
        check_host("[::1]:8081", true);
        check_host("attacker.example:8081", false);
        check_host("127.0.0.1.attacker.example", false);
        check_host("10.0.0.7:8081", false);
        check_host("", false);
    }

    #[track_caller]
    fn check_origin(origin: Option<&str>, site: Option<&str>, expected: bool) {
        assert_eq!(is_same_origin(origin, site, Some("gw:8081")), expected, "{origin:?} {site:?}");
    }

    #[test]
    fn requests_of_other_sites_are_told_apart() {
        check_origin(None, None, true);
        check_origin(Some("http://gw:8081"), Some("same-origin"), true);
        check_origin(Some("http://gw:8081"), None, true);
        check_origin(None, Some("none"), true);
        check_origin(Some("http://gw:9999"), None, false);
        check_origin(Some("null"), None, false);
        check_origin(Some("http://gw:8081"), Some("cross-site"), false);
        check_origin(Some("http://gw:8081"), Some("same-site"), false);
    }
}
