//! Serves the dashboard with made-up traffic, for work on the page: `cargo run --example dashboard_preview`.
//!
//! Arguments: the address (default `127.0.0.1:8099`) and `calm` or `outage` (default). The admin token is `preview`;
//! actions are answered and logged on the timeline, and change what is shown where that is easy.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use actix_web::web::{self, Data, Json, Path};
use actix_web::{App, HttpRequest, HttpResponse, HttpServer};
use serde_json::{Value, json};
use vectorgate::clock;
use vectorgate::config::plan::Slo;
use vectorgate::dashboard::feed::{
    BucketView, ClassHistory, ClassView, CollectionView, DashboardSnapshot, Feed, History, LastError, RetirementView,
    Serving, ShareView, SloView, TenantView, TotalsView, UpstreamView,
};
use vectorgate::dashboard::http::{AdminAuth, Dashboard, configure};
use vectorgate::ids::{TenantId, UpstreamId};
use vectorgate::pure::class::TrafficClass;
use vectorgate::pure::service_levels::TargetLevel;
use vectorgate::pure::slo::{Budget, History as Points, Point};
use vectorgate::pure::time::{Mono, Wall};
use vectorgate::telemetry::labels::{ActorName, BreakerLevel, Objective};
use vectorgate::telemetry::timeline::{Event, Timeline};

/// The made-up process pretends to have run for this long.
const AGE_S: u64 = 6 * 3_600 + 900;

#[derive(Default)]
struct Changes {
    breakers: HashMap<String, BreakerLevel>,
    drained: HashMap<String, bool>,
    credit: HashMap<String, f64>,
    stages: HashMap<String, (String, f64)>,
}

struct MadeUp {
    outage: bool,
    timeline: Timeline,
    changes: Mutex<Changes>,
}

struct Preview;

impl AdminAuth for Preview {
    fn check(&self, token: &str) -> Option<Arc<str>> {
        (token == "preview").then(|| Arc::from("admin"))
    }

    fn token_configured(&self) -> bool {
        true
    }
}

/// A number in 0..1 that looks random and depends only on its arguments.
fn noise(a: u64, b: u64) -> f64 {
    let mut x = a.wrapping_mul(0x9E37_79B9_7F4A_7C15) ^ b.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x ^= x >> 31;
    x = x.wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^= x >> 29;
    (x % 1_000_000) as f64 / 1_000_000.0
}

fn now() -> Mono {
    clock::mono().plus(Duration::from_secs(AGE_S))
}

impl MadeUp {
    /// How bad it is at a moment, 0 to 1: an old bump, and an outage that began twelve minutes before the start.
    fn trouble(&self, at_s: u64) -> f64 {
        let bump = if (9_000..9_900).contains(&at_s) { 0.35 } else { 0.0 };
        if self.outage && at_s + 720 > AGE_S { 1.0 } else { bump }
    }

    fn point(&self, at_s: u64, class: TrafficClass) -> Point {
        let (seed, trouble) = (class as u64 + 7, self.trouble(at_s));
        let wave = 1.0 + 0.3 * (at_s as f64 / 1_900.0).sin();
        let (base, load) = match class {
            TrafficClass::InteractiveSearch => (9.0, 2_400.0),
            TrafficClass::BatchIngestion => (180.0, 350.0),
            TrafficClass::Rerank => (31.0, 600.0),
            TrafficClass::Chat => (900.0, 14.0),
        };
        let jitter = |n: u64| 0.85 + 0.3 * noise(at_s / 10, seed * 10 + n);
        let ms = |value: f64| Duration::from_secs_f64(value / 1_000.0);
        let count = (load * wave * jitter(4)) as u64;
        let failing = 0.0005 + trouble * 0.07 * jitter(5);
        Point {
            at: Mono::from_millis(at_s * 1_000),
            p50: ms(base * jitter(1) * (1.0 + trouble)),
            p95: ms(base * 4.6 * jitter(2) * (1.0 + 2.4 * trouble)),
            p99: ms(base * 9.0 * jitter(3) * (1.0 + 3.0 * trouble)),
            count,
            errors: (count as f64 * failing) as u64,
        }
    }

    fn points(&self, class: TrafficClass) -> Points {
        let mut points = Points::default();
        for step in 1..=now().0 / 10_000_000_000 {
            points.push(self.point(step * 10, class));
        }
        points
    }

    fn class(&self, class: TrafficClass) -> ClassView {
        let point = self.point(now().0 / 1_000_000_000, class);
        let ms = |span: Duration| Some(span.as_secs_f64() * 1_000.0);
        ClassView {
            class,
            count: point.count * 30,
            rate: point.count as f64 / 10.0,
            errors: point.errors * 30,
            limited: 3,
            p50_ms: ms(point.p50),
            p95_ms: ms(point.p95),
            p99_ms: ms(point.p99),
            upstream_p95_ms: ms(point.p95.mul_f64(0.93)),
            queue_p95_ms: (class == TrafficClass::BatchIngestion).then_some(4_200.0),
            overhead_p95_ms: Some(0.21),
        }
    }

    fn budget(&self, objective: Objective) -> Budget {
        let mut budget = Budget::new(objective.allowed_bad());
        for step in 1..=now().0 / 10_000_000_000 {
            let point = self.point(step * 10, TrafficClass::InteractiveSearch);
            let slow = if self.trouble(step * 10) > 0.5 { 0.4 } else { 0.004 };
            let bad = (point.count as f64 * slow) as u64;
            let count = |requests: u64| u32::try_from(requests).unwrap_or(u32::MAX);
            budget.record(point.at, count(point.count - bad), count(bad));
        }
        budget
    }

    fn upstream(&self, at: usize, wall: Wall) -> UpstreamView {
        let providers = ["openai", "azure", "cohere", "tei", "voyage"];
        let regions = ["eu", "us", "eu-north", "", "apac"];
        let provider = providers[at % 5];
        let id =
            format!("{provider}-{}-{}", if regions[at % 5].is_empty() { "local" } else { regions[at % 5] }, at / 5 + 1);
        let hit = self.outage && at < 2;
        let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let breaker = changes.breakers.get(&id).copied().unwrap_or(match (hit, at) {
            (true, 0) => BreakerLevel::Open,
            (true, 1) => BreakerLevel::HalfOpen,
            _ => BreakerLevel::Closed,
        });
        let wobble = noise(now().0 / 1_000_000_000, at as u64);
        let idle = at % 7 == 6;
        UpstreamView {
            provider: provider.to_owned(),
            region: regions[at % 5].to_owned(),
            tier: (at / 5 % 3) as u32,
            models: vec![if at % 5 < 2 { "text-embedding-3-small".to_owned() } else { format!("model-{}", at % 5) }],
            breaker,
            drained: changes.drained.get(&id).copied().unwrap_or(at == 8),
            quarantined: self.outage && at == 13,
            key_parked: self.outage && at == 17,
            tokens: (provider != "tei").then_some(BucketView { available: 1_000_000.0 * wobble, limit: 1_000_000.0 }),
            requests: (provider != "tei").then_some(BucketView { available: 2_400.0 + 600.0 * wobble, limit: 3_000.0 }),
            in_flight: if idle || breaker == BreakerLevel::Open { 0 } else { (wobble * 30.0) as u64 },
            max_concurrency: 64,
            queued: if at % 4 == 1 { (wobble * 900.0) as u64 } else { 0 },
            dwell_p95_ms: (at % 4 == 1).then_some(4_200.0 * wobble),
            p95_ms: (!idle).then_some(38.0 + 20.0 * wobble + if hit { 700.0 } else { 0.0 }),
            rate: if idle || breaker == BreakerLevel::Open { 0.0 } else { 20.0 * wobble },
            failure_ratio: if hit { 0.31 } else { 0.0 },
            last_error: (hit || at % 9 == 4).then(|| LastError {
                at_ms: wall.0 - if hit { 8_000 } else { 5_400_000 },
                status: if hit { "503".to_owned() } else { "timeout".to_owned() },
                message: "The server is currently overloaded with other requests; please retry".to_owned(),
            }),
            id,
        }
    }

    fn tenant(&self, at: usize) -> TenantView {
        let names = ["acme", "helpdesk", "handbook-search", "legal", "intranet", "shop"];
        let id = if at < names.len() { names[at].to_owned() } else { format!("department-{at:03}") };
        let credit =
            self.changes.lock().unwrap_or_else(PoisonError::into_inner).credit.get(&id).copied().unwrap_or(0.0);
        let limited = at % 5 != 3;
        let budget = 100.0 + (at % 13) as f64 * 25.0 + credit;
        let spent =
            if at == 3 || at % 97 == 5 { 100.0 + (at % 13) as f64 * 25.0 } else { budget * noise(at as u64, 3) * 0.97 };
        let amount = |value: f64| format!("{value:.7}").trim_end_matches('0').trim_end_matches('.').to_owned();
        TenantView {
            budget: limited.then(|| amount(budget)),
            remaining: limited.then(|| amount(budget - spent)),
            held: if at.is_multiple_of(3) { "0.0000412".to_owned() } else { "0".to_owned() },
            spent: amount(spent),
            remaining_share: limited.then(|| (budget - spent) / budget),
            rate: if at < 60 { 90.0 * noise(at as u64, 9) } else { 0.0 },
            error_ratio: if self.outage && at < 3 { 0.08 - at as f64 * 0.02 } else { 0.0 },
            cache_hit_ratio: noise(at as u64, 11),
            cost_per_query: 0.0000184 * (1.0 + noise(at as u64, 12)),
            id,
        }
    }

    fn collections(&self) -> Vec<CollectionView> {
        let changes = self.changes.lock().unwrap_or_else(PoisonError::into_inner);
        let made = [("handbook", "canary", 0.05, 41_000, 1_900_000), ("tickets", "backfill", 0.0, 310_000, 120_400)];
        made.into_iter()
            .map(|(name, stage, canary, old, new)| {
                let (stage, canary) = changes.stages.get(name).cloned().unwrap_or((stage.to_owned(), canary));
                let share = |items: u64| ShareView {
                    items,
                    tokens: items * 212,
                    cost: format!("{:.6}", items as f64 * 2.1e-5),
                };
                CollectionView {
                    name: name.to_owned(),
                    from: "text-embedding-3-small".to_owned(),
                    to: "text-embedding-3-large".to_owned(),
                    stage,
                    canary,
                    since_ms: clock::wall().0 - 3_720_000,
                    old: share(old),
                    new: share(new),
                    cost_left: Some("12.403".to_owned()),
                }
            })
            .collect()
    }

    fn tell_story(&self) {
        let wall = clock::wall();
        let push = |ago_s: i64, event: Event| {
            self.timeline.push(Wall(wall.0 - ago_s * 1_000), event);
        };
        let upstream = |id: &str| UpstreamId::from(id);
        push(21_000, Event::Lifecycle { what: "started, listening on 127.0.0.1:8080".to_owned() });
        push(
            13_500,
            Event::BreakerOpened { upstream: upstream("openai-eu-1"), reason: "9 of 60 calls failed".to_owned() },
        );
        push(13_200, Event::BreakerHalfOpened { upstream: upstream("openai-eu-1") });
        push(13_180, Event::BreakerClosed { upstream: upstream("openai-eu-1") });
        push(6_200, Event::ReloadRefused { problems: 2 });
        push(6_050, Event::ReloadApplied { version: "4f1c09aa12be".to_owned() });
        push(
            5_000,
            Event::AdminAction {
                actor: "admin".to_owned(),
                action: "drain".to_owned(),
                subject: "tei-local-2".to_owned(),
            },
        );
        push(4_000, Event::ActorRestarted { actor: ActorName::Upstream, cause: "panicked in a handler".to_owned() });
        push(
            2_000,
            Event::Shortfall { tenant: TenantId::from("legal"), amount: "0.0000021".parse().unwrap_or_default() },
        );
        if self.outage {
            push(
                715,
                Event::BreakerOpened { upstream: upstream("azure-us-1"), reason: "31 of 100 calls failed".to_owned() },
            );
            push(
                700,
                Event::BreakerOpened { upstream: upstream("openai-eu-1"), reason: "44 of 120 calls failed".to_owned() },
            );
            push(500, Event::KeyParked { upstream: upstream("cohere-eu-north-4"), status: 401 });
            push(420, Event::Quarantined { upstream: upstream("tei-local-3"), cosine_milli: 912 });
            for step in 0..40 {
                push(300 - step, Event::UsageOdd { upstream: upstream("voyage-apac-1"), stated: 91_000, bound: 812 });
            }
            push(30, Event::BreakerHalfOpened { upstream: upstream("azure-us-1") });
        }
    }

    fn act(&self, action: &str, subject: &str) {
        let event =
            Event::AdminAction { actor: "admin".to_owned(), action: action.to_owned(), subject: subject.to_owned() };
        self.timeline.push(clock::wall(), event);
    }
}

impl Feed for MadeUp {
    fn snapshot(&self) -> DashboardSnapshot {
        let slo = Slo {
            window: Duration::from_secs(300),
            interactive_p95: Duration::from_millis(70),
            interactive_p99: Duration::from_millis(120),
            rerank_p95: Duration::from_millis(300),
            rerank_p99: Duration::from_millis(600),
            chat_p95: Duration::from_secs(10),
            chat_p99: Duration::from_secs(30),
        };
        let wall = clock::wall();
        let levels: Vec<_> =
            Objective::ALL.iter().map(|name| TargetLevel::of(&mut self.budget(*name), now(), 1)).collect();
        DashboardSnapshot {
            at_ms: wall.0,
            version: env!("CARGO_PKG_VERSION").to_owned(),
            config_version: "4f1c09aa12be".to_owned(),
            uptime_s: now().0 / 1_000_000_000,
            status: Serving::Serving,
            currency: "EUR".to_owned(),
            slo: SloView::new(&slo, &levels),
            classes: TrafficClass::ALL.map(|class| self.class(class)).to_vec(),
            models: Vec::new(),
            totals: TotalsView { cache_hit_ratio: 0.41, cost_per_query: 0.0000213 },
            buffered_bytes: 1_200_000,
            upstreams: (0..100).map(|at| self.upstream(at, wall)).collect(),
            tenants: (0..1_000).map(|at| self.tenant(at)).collect(),
            collections: self.collections(),
            retirements: vec![RetirementView {
                model: "text-embedding-3-small".to_owned(),
                upstream: Some("azure-1".to_owned()),
                on: "2028-02-09".to_owned(),
                days_left: 240,
            }],
            events: self.timeline.since(0, 300),
        }
    }

    fn history(&self) -> History {
        let classes =
            TrafficClass::ALL.map(|class| ClassHistory::new(class, &self.points(class), now(), clock::wall()));
        History { classes: classes.to_vec() }
    }
}

fn done(dashboard: &Dashboard, request: &HttpRequest, act: impl FnOnce() -> Result<(), String>) -> HttpResponse {
    let message = |text: &str| json!({ "error": { "message": text } });
    match dashboard.authorize(request).map(|_| act()) {
        Ok(Ok(())) => HttpResponse::Ok().json(json!({ "ok": true })),
        Ok(Err(problem)) => HttpResponse::BadRequest().json(message(&problem)),
        Err(denied) if denied.status() == 401 => HttpResponse::Unauthorized().json(message("log in")),
        Err(_) => HttpResponse::Forbidden().json(message("not from the page")),
    }
}

async fn upstream_action(
    request: HttpRequest,
    path: Path<(String, String)>,
    dashboard: Data<Dashboard>,
    made_up: Data<Arc<MadeUp>>,
) -> HttpResponse {
    let (id, verb) = path.into_inner();
    done(&dashboard, &request, || {
        let mut changes = made_up.changes.lock().unwrap_or_else(PoisonError::into_inner);
        match verb.as_str() {
            "drain" | "resume" => drop(changes.drained.insert(id.clone(), verb == "drain")),
            "open" => drop(changes.breakers.insert(id.clone(), BreakerLevel::Open)),
            "close" => drop(changes.breakers.insert(id.clone(), BreakerLevel::Closed)),
            _ => return Err("no such action".to_owned()),
        }
        made_up.act(&verb, &id);
        Ok(())
    })
}

async fn credit(
    request: HttpRequest,
    id: Path<String>,
    body: Json<Value>,
    dashboard: Data<Dashboard>,
    made_up: Data<Arc<MadeUp>>,
) -> HttpResponse {
    done(&dashboard, &request, || {
        let amount =
            body["amount"].as_str().and_then(|text| text.parse::<f64>().ok()).ok_or("amount is not a number")?;
        let mut changes = made_up.changes.lock().unwrap_or_else(PoisonError::into_inner);
        *changes.credit.entry(id.clone()).or_default() += amount;
        made_up.act("credit", &id);
        Ok(())
    })
}

async fn stage(
    request: HttpRequest,
    name: Path<String>,
    body: Json<Value>,
    dashboard: Data<Dashboard>,
    made_up: Data<Arc<MadeUp>>,
) -> HttpResponse {
    done(&dashboard, &request, || {
        let stage = body["stage"].as_str().ok_or("stage is missing")?.to_owned();
        let canary = body["canary"].as_f64().unwrap_or(0.0);
        made_up.changes.lock().unwrap_or_else(PoisonError::into_inner).stages.insert(name.clone(), (stage, canary));
        made_up.act("stage", &name);
        Ok(())
    })
}

async fn reload(request: HttpRequest, dashboard: Data<Dashboard>) -> HttpResponse {
    done(&dashboard, &request, || Err("2 problems: upstreams[3].tpm, tenants[0].budget".to_owned()))
}

#[actix_web::main]
async fn main() -> std::io::Result<()> {
    let mut arguments = std::env::args().skip(1);
    let address = arguments.next().unwrap_or_else(|| "127.0.0.1:8099".to_owned());
    let outage = arguments.next().is_none_or(|word| word != "calm");
    let made_up = Arc::new(MadeUp { outage, timeline: Timeline::new(500), changes: Mutex::default() });
    made_up.tell_story();
    let dashboard = Data::new(Dashboard::new(made_up.clone(), Arc::new(Preview)));
    println!("http://{address}/dashboard (token: preview)");
    HttpServer::new(move || {
        App::new()
            .app_data(Data::new(made_up.clone()))
            .configure(|config| configure(config, dashboard.clone()))
            .route("/admin/upstreams/{id}/{verb}", web::post().to(upstream_action))
            .route("/admin/tenants/{id}/credit", web::post().to(credit))
            .route("/admin/collections/{name}", web::put().to(stage))
            .route("/admin/reload", web::post().to(reload))
    })
    .workers(1)
    .bind(&address)?
    .run()
    .await
}
