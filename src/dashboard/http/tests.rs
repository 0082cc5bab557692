//! Who is let in, what the answers carry, and what the live feed says.

use actix_web::App;
use actix_web::body::MessageBody;
use actix_web::test::{TestRequest, call_service, init_service, read_body, read_body_json};
use futures_util::future::poll_fn;
use serde_json::Value;

use crate::dashboard::feed::{DashboardSnapshot, History, Serving, SloView, TotalsView};

use super::*;

struct Fixed;

impl Feed for Fixed {
    fn snapshot(&self) -> DashboardSnapshot {
        DashboardSnapshot {
            at_ms: 1,
            version: "0".to_owned(),
            config_version: "abc".to_owned(),
            uptime_s: 1,
            status: Serving::Serving,
            currency: "EUR".to_owned(),
            slo: SloView { window_s: 300, p95_line_ms: 70.0, p99_line_ms: 120.0, objectives: Vec::new() },
            classes: Vec::new(),
            models: Vec::new(),
            totals: TotalsView::default(),
            buffered_bytes: 0,
            upstreams: Vec::new(),
            tenants: vec![TenantView {
                id: "acme".to_owned(),
                budget: None,
                remaining: None,
                held: "0".to_owned(),
                spent: "0".to_owned(),
                remaining_share: None,
                rate: 0.0,
                error_ratio: 0.0,
                cache_hit_ratio: 0.0,
                cost_per_query: 0.0,
            }],
            collections: Vec::new(),
            retirements: Vec::new(),
            events: Vec::new(),
        }
    }

    fn history(&self) -> History {
        History::default()
    }
}

struct Token(Option<&'static str>);

impl AdminAuth for Token {
    fn check(&self, token: &str) -> Option<Arc<str>> {
        (self.0 == Some(token)).then(|| Arc::from("admin"))
    }

    fn token_configured(&self) -> bool {
        self.0.is_some()
    }
}

fn dashboard(token: Option<&'static str>) -> Data<Dashboard> {
    Data::new(Dashboard::new(Arc::new(Fixed), Arc::new(Token(token))))
}

/// A route as the admin side has it: it answers whom [`Dashboard::authorize`] let in.
async fn guarded(request: HttpRequest, dashboard: Data<Dashboard>) -> HttpResponse {
    match dashboard.authorize(&request) {
        Ok(who) => HttpResponse::Ok().body(who.0.to_string()),
        Err(denied) => refused(denied),
    }
}

macro_rules! app {
    ($dashboard:expr) => {
        init_service(
            App::new().configure(|config| configure(config, $dashboard.clone())).route("/guarded", web::to(guarded)),
        )
        .await
    };
}

fn near(request: TestRequest) -> TestRequest {
    request.peer_addr("127.0.0.1:5000".parse().expect("an address")).insert_header((header::HOST, "localhost:8081"))
}

fn far(request: TestRequest) -> TestRequest {
    request.peer_addr("10.1.2.3:5000".parse().expect("an address")).insert_header((header::HOST, "gw:8081"))
}

/// Status, cookie and body of a log-in.
macro_rules! log_in {
    ($app:expr, $token:expr) => {{
        let request = far(TestRequest::post().uri("/dashboard/login")).set_json(json!({ "token": $token }));
        let answer = call_service($app, request.to_request()).await;
        let cookie = answer.headers().get(header::SET_COOKIE).map(|value| value.to_str().expect("text").to_owned());
        let status = answer.status().as_u16();
        let body: Value = read_body_json(answer).await;
        (status, cookie, body)
    }};
}

#[actix_web::test]
async fn the_page_and_its_files_are_for_everyone_and_carry_the_policy() {
    let app = app!(dashboard(Some("secret")));
    for asset in ASSETS {
        let path = format!("/dashboard/{}", asset.name);
        let answer = call_service(&app, far(TestRequest::get().uri(path.trim_end_matches('/'))).to_request()).await;
        assert_eq!(answer.status(), StatusCode::OK, "{path}");
        assert_eq!(answer.headers().get(header::CONTENT_SECURITY_POLICY).expect("a policy"), POLICY);
        assert_eq!(answer.headers().get(header::X_CONTENT_TYPE_OPTIONS).expect("the header"), "nosniff");
        let etag = answer.headers().get(header::ETAG).expect("a validator").clone();
        let again = TestRequest::get().uri(path.trim_end_matches('/')).insert_header((header::IF_NONE_MATCH, etag));
        assert_eq!(call_service(&app, again.to_request()).await.status(), StatusCode::NOT_MODIFIED, "{path}");
    }
}

#[actix_web::test]
async fn nothing_is_shown_without_the_token() {
    let app = app!(dashboard(Some("secret")));
    for path in ["/dashboard/events", "/dashboard/history", "/dashboard/snapshot", "/guarded"] {
        for request in [near(TestRequest::get().uri(path)), far(TestRequest::get().uri(path))] {
            assert_eq!(call_service(&app, request.to_request()).await.status(), StatusCode::UNAUTHORIZED, "{path}");
        }
        let wrong = far(TestRequest::get().uri(path)).insert_header((header::AUTHORIZATION, "Bearer wrong"));
        assert_eq!(call_service(&app, wrong.to_request()).await.status(), StatusCode::UNAUTHORIZED, "{path}");
    }
    let right = far(TestRequest::post().uri("/guarded")).insert_header((header::AUTHORIZATION, "bearer secret"));
    assert_eq!(read_body(call_service(&app, right.to_request()).await).await, "admin");
}

#[actix_web::test]
async fn a_token_that_nobody_asks_for_opens_nothing_and_closes_nothing() {
    let app = app!(dashboard(None));
    let status = |request: TestRequest| {
        let request = request.insert_header((header::AUTHORIZATION, "Bearer of-another-job")).to_request();
        let app = &app;
        async move { call_service(app, request).await.status() }
    };
    assert_eq!(status(near(TestRequest::get().uri("/dashboard/snapshot"))).await, StatusCode::OK);
    assert_eq!(status(far(TestRequest::get().uri("/dashboard/snapshot"))).await, StatusCode::UNAUTHORIZED);
}

#[actix_web::test]
async fn a_log_in_gives_a_cookie_that_scripts_and_other_sites_cannot_use() {
    let app = app!(dashboard(Some("secret")));
    assert_eq!(log_in!(&app, "wrong").0, 401);
    let (status, cookie, body) = log_in!(&app, "secret");
    let cookie = cookie.expect("a cookie");
    assert_eq!(status, 200);
    assert!(cookie.contains("; HttpOnly; SameSite=Strict") && cookie.contains("Path=/;"), "{cookie}");
    assert!(!cookie.contains("secret") && !body.to_string().contains("secret"));
    let pair = cookie.split(';').next().expect("a pair").to_owned();
    let csrf = body["csrf"].as_str().expect("a token").to_owned();

    let with = |request: TestRequest| far(request).insert_header((header::COOKIE, format!("a=b; {pair}")));
    let status = |request: TestRequest| {
        let app = &app;
        async move { call_service(app, request.to_request()).await.status().as_u16() }
    };
    assert_eq!(status(with(TestRequest::get().uri("/guarded"))).await, 200);
    assert_eq!(status(with(TestRequest::post().uri("/guarded"))).await, 403);
    let proven = || with(TestRequest::post().uri("/guarded")).insert_header((CSRF_HEADER, csrf.clone()));
    assert_eq!(status(proven()).await, 200);
    assert_eq!(status(proven().insert_header((header::ORIGIN, "http://evil.example"))).await, 403);
    assert_eq!(status(proven().insert_header(("sec-fetch-site", "cross-site"))).await, 403);
    let mangled = with(TestRequest::post().uri("/guarded")).insert_header((CSRF_HEADER, "00"));
    assert_eq!(status(mangled).await, 403);

    let out = with(TestRequest::post().uri("/dashboard/logout")).insert_header((CSRF_HEADER, csrf.clone()));
    assert_eq!(status(out).await, 200);
    assert_eq!(status(with(TestRequest::get().uri("/guarded"))).await, 401);
}

#[actix_web::test]
async fn without_a_token_only_this_machine_is_let_in() {
    let app = app!(dashboard(None));
    let status = |request: TestRequest| {
        let app = &app;
        async move { call_service(app, request.to_request()).await.status().as_u16() }
    };
    let get = || TestRequest::get().uri("/guarded");
    assert_eq!(status(near(get())).await, 200);
    assert_eq!(status(near(TestRequest::post().uri("/guarded"))).await, 200);
    assert_eq!(status(far(get())).await, 401);
    assert_eq!(status(near(get()).insert_header((header::HOST, "evil.example:8081"))).await, 401);
    let forged = near(TestRequest::post().uri("/guarded")).insert_header((header::ORIGIN, "http://evil.example"));
    assert_eq!(status(forged).await, 403);
    let session = call_service(&app, near(TestRequest::get().uri("/dashboard/session")).to_request()).await;
    let body: Value = read_body_json(session).await;
    assert_eq!((&body["authenticated"], &body["who"]), (&json!(true), &json!("loopback")));
}

#[actix_web::test]
async fn the_feed_speaks_server_sent_events_and_ends_when_closed() {
    let shared = dashboard(None);
    let app = app!(shared);
    let answer = call_service(&app, near(TestRequest::get().uri("/dashboard/events")).to_request()).await;
    assert_eq!(answer.headers().get(header::CONTENT_TYPE).expect("a type"), "text/event-stream");
    assert_eq!(shared.viewers.load(Ordering::Relaxed), 1);
    let mut body = Box::pin(answer.into_body());
    let first = poll_fn(|context| body.as_mut().poll_next(context)).await.expect("a chunk");
    let text = String::from_utf8(first.unwrap_or_default().to_vec()).expect("text");
    let events: Vec<&str> = text.split_terminator("\n\n").collect();
    assert_eq!(events.len(), 3, "{text}");
    assert!(events[0].starts_with("event: snapshot\ndata: {"));
    assert_eq!(events[1], "event: models\ndata: []");
    let tenants = events[2].strip_prefix("event: tenants\ndata: ").expect("tenants");
    assert_eq!(serde_json::from_str::<Value>(tenants).expect("JSON")[0]["id"], "acme");
    shared.close();
    assert!(poll_fn(|context| body.as_mut().poll_next(context)).await.is_none());
    drop(body);
    assert_eq!(shared.viewers.load(Ordering::Relaxed), 0);
}

#[actix_web::test]
async fn places_are_limited_and_given_back() {
    let shared = dashboard(None);
    let app = app!(shared);
    let open = || call_service(&app, near(TestRequest::get().uri("/dashboard/events")).to_request());
    let mut held = Vec::new();
    for _ in 0..MOST_VIEWERS {
        held.push(open().await);
    }
    assert_eq!(open().await.status(), StatusCode::SERVICE_UNAVAILABLE);
    assert_eq!(shared.viewers.load(Ordering::Relaxed), MOST_VIEWERS);
    drop(held);
    assert_eq!(open().await.status(), StatusCode::OK);
}
