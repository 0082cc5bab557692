//! The dashboard's routes: page, log-in, live feed, history. Also the one rule by which the whole admin side lets a
//! request in ([`Dashboard::authorize`]), so that page and scripts are judged alike.
//!
//! Three ways in: the admin token as a bearer, a session's cookie, or, where no token is configured, a request from
//! this very machine. A cookie is sent by the browser whoever asks for it, so a session must prove with a second token
//! that its own page is asking whenever something is to change; and every way refuses what another site's page sends.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use actix_web::http::header::{self, HeaderName};
use actix_web::http::{Method, StatusCode};
use actix_web::web::{self, Bytes, Data, Json, JsonConfig, Query, ServiceConfig};
use actix_web::{HttpRequest, HttpResponse, HttpResponseBuilder};
use futures_util::stream;
use parking_lot::Mutex;
use rand::RngExt as _;
use serde::Deserialize;
use serde_json::json;

use crate::clock;
use crate::pure::time::Mono;

use super::assets::{ASSETS, Asset, POLICY};
use super::feed::{Feed, ModelView, TenantView};
use super::session::{LIFETIME, Session, Sessions, Who, is_loopback_host, is_same_origin};

/// Name of the session's cookie.
const COOKIE: &str = "vectorgate_session";

/// Header that carries a session's token against forged requests.
pub const CSRF_HEADER: &str = "x-csrf-token";

/// Live feeds at once; beyond, 503.
const MOST_VIEWERS: usize = 64;

/// Pace of the live feed.
const TICK: Duration = Duration::from_secs(1);

/// Tenants and models change slowly and there may be very many: they come with every fifth tick.
const LONG_LISTS_EVERY: u64 = 5;

/// Who may use the admin side.
pub trait AdminAuth: Send + Sync {
    /// The name of `token` if it is the right one; compares in constant time.
    fn check(&self, token: &str) -> Option<Arc<str>>;

    /// Whether a token is configured. Without one, only this machine itself is let in.
    fn token_configured(&self) -> bool;
}

/// Why a request is not let in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Denied {
    /// Nobody is logged in, or the token is wrong: 401.
    Unknown,
    /// It may come from another site's page: 403.
    Forged,
}

impl Denied {
    /// The status to answer with.
    pub const fn status(self) -> u16 {
        match self {
            Denied::Unknown => 401,
            Denied::Forged => 403,
        }
    }
}

/// One rendering of the feed, shared by all who look.
struct Rendered {
    at: Mono,
    main: Bytes,
    tenants: Vec<TenantView>,
    models: Vec<ModelView>,
    long_lists: OnceLock<Bytes>,
}

/// The dashboard: one for the process.
pub struct Dashboard {
    feed: Arc<dyn Feed>,
    auth: Arc<dyn AdminAuth>,
    sessions: Sessions,
    viewers: AtomicUsize,
    closing: AtomicBool,
    latest: Mutex<Option<Arc<Rendered>>>,
}

impl std::fmt::Debug for Dashboard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Dashboard").field("sessions", &self.sessions).field("viewers", &self.viewers).finish()
    }
}

impl Dashboard {
    /// A dashboard that shows `feed` to those whom `auth` lets in.
    pub fn new(feed: Arc<dyn Feed>, auth: Arc<dyn AdminAuth>) -> Dashboard {
        Dashboard {
            feed,
            auth,
            sessions: Sessions::default(),
            viewers: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            latest: Mutex::new(None),
        }
    }

    /// Ends all live feeds within a second, so that they do not hold up a shutdown.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
    }

    /// Who sends `request`, if it may use the admin side.
    ///
    /// # Errors
    /// [`Denied::Unknown`] without a right token, session or loopback connection; [`Denied::Forged`] for a change that
    /// may come from another site's page.
    pub fn authorize(&self, request: &HttpRequest) -> Result<Who, Denied> {
        // Where no token is configured, one that a scraper sends all the same says nothing.
        if let Some(bearer) = bearer(request).filter(|_| self.auth.token_configured()) {
            return self.auth.check(bearer).map(Who).ok_or(Denied::Unknown);
        }
        let changes = !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS);
        if changes && !from_own_page(request) {
            return Err(Denied::Forged);
        }
        if let Some(session) = self.session(request) {
            let proven = text(request, HeaderName::from_static(CSRF_HEADER)).is_some_and(|t| session.csrf_matches(t));
            return if changes && !proven { Err(Denied::Forged) } else { Ok(session.who) };
        }
        if self.open_to(request) { Ok(Who(Arc::from("loopback"))) } else { Err(Denied::Unknown) }
    }

    /// Whether no token is configured and the request is from this machine, by its connection and by the name it used.
    fn open_to(&self, request: &HttpRequest) -> bool {
        let near = request.peer_addr().is_some_and(|peer| peer.ip().to_canonical().is_loopback());
        !self.auth.token_configured() && near && text(request, header::HOST).is_some_and(is_loopback_host)
    }

    fn session(&self, request: &HttpRequest) -> Option<Session> {
        self.sessions.find(cookie(request)?, clock::mono())
    }

    /// The feed's rendering, made anew if the last is older than most of a tick.
    fn render(&self) -> Arc<Rendered> {
        let now = clock::mono();
        let mut latest = self.latest.lock();
        if let Some(rendered) = latest.as_ref().filter(|rendered| now.since(rendered.at) < TICK * 9 / 10) {
            return Arc::clone(rendered);
        }
        let mut snapshot = self.feed.snapshot();
        let (tenants, models) = (std::mem::take(&mut snapshot.tenants), std::mem::take(&mut snapshot.models));
        let main = event("snapshot", &snapshot);
        let rendered = Arc::new(Rendered { at: now, main, tenants, models, long_lists: OnceLock::new() });
        *latest = Some(Arc::clone(&rendered));
        rendered
    }
}

impl Rendered {
    fn long_lists(&self) -> &Bytes {
        self.long_lists.get_or_init(|| {
            let mut both = event("models", &self.models).to_vec();
            both.extend_from_slice(&event("tenants", &self.tenants));
            both.into()
        })
    }
}

/// One server-sent event. JSON has no raw line feeds, so it always fits one `data` line.
fn event(name: &str, data: &impl serde::Serialize) -> Bytes {
    let data = serde_json::to_string(data).unwrap_or_else(|_| "null".to_owned());
    Bytes::from(format!("event: {name}\ndata: {data}\n\n"))
}

fn text(request: &HttpRequest, name: HeaderName) -> Option<&str> {
    request.headers().get(name).and_then(|value| value.to_str().ok())
}

fn bearer(request: &HttpRequest) -> Option<&str> {
    let (scheme, token) = text(request, header::AUTHORIZATION)?.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| token.trim())
}

fn cookie(request: &HttpRequest) -> Option<&str> {
    request
        .headers()
        .get_all(header::COOKIE)
        .filter_map(|value| value.to_str().ok())
        .flat_map(|line| line.split(';'))
        .find_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}

fn from_own_page(request: &HttpRequest) -> bool {
    let site = text(request, HeaderName::from_static("sec-fetch-site"));
    is_same_origin(text(request, header::ORIGIN), site, text(request, header::HOST))
}

/// Adds the dashboard's routes. `dashboard` is shared by all workers.
pub fn configure(config: &mut ServiceConfig, dashboard: Data<Dashboard>) {
    config.app_data(dashboard);
    for asset in ASSETS {
        let path = if asset.name.is_empty() { "/dashboard".to_owned() } else { format!("/dashboard/{}", asset.name) };
        let etag: Arc<str> = Arc::from(asset.etag());
        config.route(
            &path,
            web::get().to(move |request: HttpRequest| {
                let etag = Arc::clone(&etag);
                async move { serve_asset(&request, asset, &etag) }
            }),
        );
    }
    let small = JsonConfig::default().limit(4_096).error_handler(|error, _| {
        let answer = problem(StatusCode::BAD_REQUEST, "expected a JSON object with a token");
        actix_web::error::InternalError::from_response(error, answer).into()
    });
    config
        .service(web::resource("/dashboard/login").app_data(small).route(web::post().to(login)))
        .route("/dashboard/logout", web::post().to(logout))
        .route("/dashboard/session", web::get().to(session))
        .route("/dashboard/snapshot", web::get().to(snapshot))
        .route("/dashboard/events", web::get().to(events))
        .route("/dashboard/history", web::get().to(history));
}

/// An answer with the headers that every one of ours carries.
fn answer(status: StatusCode) -> HttpResponseBuilder {
    let mut answer = HttpResponse::build(status);
    answer
        .insert_header((header::CONTENT_SECURITY_POLICY, POLICY))
        .insert_header((header::X_CONTENT_TYPE_OPTIONS, "nosniff"))
        .insert_header((header::REFERRER_POLICY, "no-referrer"))
        .insert_header(("cross-origin-opener-policy", "same-origin"))
        .insert_header(("cross-origin-resource-policy", "same-origin"));
    answer
}

fn uncached(status: StatusCode) -> HttpResponseBuilder {
    let mut answer = answer(status);
    answer.insert_header((header::CACHE_CONTROL, "no-store"));
    answer
}

fn problem(status: StatusCode, message: &str) -> HttpResponse {
    uncached(status).json(json!({ "error": { "message": message } }))
}

fn refused(denied: Denied) -> HttpResponse {
    match denied {
        Denied::Unknown => problem(StatusCode::UNAUTHORIZED, "log in with the admin token"),
        Denied::Forged => problem(StatusCode::FORBIDDEN, "the request does not come from the dashboard's own page"),
    }
}

fn serve_asset(request: &HttpRequest, asset: &Asset, etag: &str) -> HttpResponse {
    let known = text(request, header::IF_NONE_MATCH).is_some_and(|list| {
        list.split(',').any(|tag| tag.trim().trim_start_matches("W/") == etag || tag.trim() == "*")
    });
    let mut answer = answer(if known { StatusCode::NOT_MODIFIED } else { StatusCode::OK });
    answer.insert_header((header::ETAG, etag)).insert_header((header::CACHE_CONTROL, "no-cache"));
    if known { answer.finish() } else { answer.content_type(asset.media_type).body(asset.body) }
}

#[derive(Deserialize)]
struct LogIn {
    token: String,
}

async fn login(request: HttpRequest, dashboard: Data<Dashboard>, body: Json<LogIn>) -> HttpResponse {
    if !from_own_page(&request) {
        return refused(Denied::Forged);
    }
    let now = clock::mono();
    if let Err(wait) = dashboard.sessions.may_try(now) {
        return uncached(StatusCode::TOO_MANY_REQUESTS)
            .insert_header((header::RETRY_AFTER, wait.as_secs() + 1))
            .json(json!({ "error": { "message": "too many failed log-ins; wait a minute" } }));
    }
    let Some(who) = dashboard.auth.check(&body.token) else {
        dashboard.sessions.failed(now);
        return problem(StatusCode::UNAUTHORIZED, "that is not the admin token");
    };
    let mut random = [0_u8; 64];
    rand::rng().fill(&mut random);
    let new = dashboard.sessions.begin(Who(Arc::clone(&who)), random, now);
    uncached(StatusCode::OK)
        .insert_header((header::SET_COOKIE, set_cookie(&request, &new.cookie, LIFETIME.as_secs())))
        .json(json!({ "authenticated": true, "who": &*who, "csrf": new.csrf }))
}

fn set_cookie(request: &HttpRequest, value: &str, max_age: u64) -> String {
    let behind_tls = text(request, HeaderName::from_static("x-forwarded-proto")).is_some_and(|proto| proto == "https");
    let secure = if request.app_config().secure() || behind_tls { "; Secure" } else { "" };
    format!("{COOKIE}={value}; Path=/; Max-Age={max_age}; HttpOnly; SameSite=Strict{secure}")
}

async fn logout(request: HttpRequest, dashboard: Data<Dashboard>) -> HttpResponse {
    match dashboard.authorize(&request) {
        Ok(_) => {
            if let Some(cookie) = cookie(&request) {
                dashboard.sessions.end(cookie);
            }
            uncached(StatusCode::OK)
                .insert_header((header::SET_COOKIE, set_cookie(&request, "", 0)))
                .json(json!({ "authenticated": false }))
        }
        Err(denied) => refused(denied),
    }
}

async fn session(request: HttpRequest, dashboard: Data<Dashboard>) -> HttpResponse {
    let body = match dashboard.authorize(&request) {
        Ok(who) => {
            let csrf = dashboard.session(&request).map(|session| session.csrf).unwrap_or_default();
            let by_login = !csrf.is_empty();
            json!({ "authenticated": true, "who": &*who.0, "csrf": csrf, "can_log_out": by_login })
        }
        Err(_) => json!({ "authenticated": false, "token_configured": dashboard.auth.token_configured() }),
    };
    uncached(StatusCode::OK).json(body)
}

async fn snapshot(request: HttpRequest, dashboard: Data<Dashboard>) -> HttpResponse {
    match dashboard.authorize(&request) {
        Ok(_) => uncached(StatusCode::OK).json(dashboard.feed.snapshot()),
        Err(denied) => refused(denied),
    }
}

#[derive(Deserialize)]
struct Since {
    #[serde(default)]
    since: i64,
}

async fn history(request: HttpRequest, dashboard: Data<Dashboard>, query: Query<Since>) -> HttpResponse {
    match dashboard.authorize(&request) {
        Ok(_) => uncached(StatusCode::OK).json(dashboard.feed.history().after(query.since)),
        Err(denied) => refused(denied),
    }
}

/// One viewer's place; given back when its stream is dropped, however that comes about.
struct Seat(Data<Dashboard>);

impl Drop for Seat {
    fn drop(&mut self) {
        self.0.viewers.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Cancel safety: dropping the answer ends the feed and gives its place back.
async fn events(request: HttpRequest, dashboard: Data<Dashboard>) -> HttpResponse {
    if let Err(denied) = dashboard.authorize(&request) {
        return refused(denied);
    }
    let seat = Seat(dashboard.clone());
    if dashboard.viewers.fetch_add(1, Ordering::Relaxed) >= MOST_VIEWERS {
        return problem(StatusCode::SERVICE_UNAVAILABLE, "too many dashboards are open");
    }
    let session = dashboard.session(&request).and(cookie(&request)).map(str::to_owned);
    let feed = stream::unfold((seat, session, 0_u64), |(seat, session, tick)| async move {
        let over = |seat: &Seat| {
            let ended = |cookie: &String| seat.0.sessions.find(cookie, clock::mono()).is_none();
            seat.0.closing.load(Ordering::Relaxed) || session.as_ref().is_some_and(ended)
        };
        if tick > 0 && !over(&seat) {
            actix_web::rt::time::sleep(TICK).await;
        }
        if over(&seat) {
            return None;
        }
        let rendered = seat.0.render();
        let mut chunk = rendered.main.to_vec();
        if tick.is_multiple_of(LONG_LISTS_EVERY) {
            chunk.extend_from_slice(rendered.long_lists());
        }
        Some((Ok::<_, actix_web::Error>(Bytes::from(chunk)), (seat, session, tick + 1)))
    });
    uncached(StatusCode::OK)
        .content_type("text/event-stream")
        .insert_header(("x-accel-buffering", "no"))
        .streaming(feed)
}

#[cfg(test)]
mod tests;
