//! Listeners, signals, and an orderly end.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::{Server, ServerHandle};
use actix_web::middleware::from_fn;
use actix_web::web::Data;
use actix_web::{App, HttpServer};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::{sleep, timeout, timeout_at};

use crate::actors::upstream::{Command, Order};
use crate::dashboard::http::Dashboard;
use crate::dashboard::live::{ConfiguredToken, Live};
use crate::gateway::{By, Gateway};
use crate::worker::Worker;
use crate::{dashboard, edge, manager};

/// Idle client connections are kept this long: longer than common SDK pools keep theirs, so that the client closes
/// first and never sends into a connection that is going away.
const KEEP_ALIVE: Duration = Duration::from_secs(75);

/// After an answer that came before the whole request was read, so much longer is read on and thrown away: a client that
/// reads only once it has sent everything would else find a reset connection instead of the answer.
const LINGER: Duration = Duration::from_secs(5);

/// Connections waiting to be accepted.
const BACKLOG: u32 = 4096;

/// While draining, work is still taken for this long, so that load balancers see readiness fall first; never longer
/// than half of `server.drain_s`.
const NOTICE: Duration = Duration::from_secs(1);

/// Then work is refused, and the listeners close once no request has come for this long: a client that has just come, or
/// was just answered and comes again, learns where it stands. Closing a listener resets the connections that wait in it.
const REFUSAL: Duration = Duration::from_millis(300);

/// Clients that come again at once whenever they are refused do not keep the listeners open for longer than this.
const INSISTENCE: Duration = Duration::from_secs(2);

/// Longest of each step after the last request: cut answers leave, connections close, tasks end. Three of them are kept
/// back from `server.drain_s`.
const STEP: Duration = Duration::from_millis(300);

/// The two listeners, bound.
pub struct Listeners {
    client: Server,
    admin: Server,
    dashboard: Data<Dashboard>,
    /// Where clients connect.
    pub client_addr: SocketAddr,
    /// Where administrators connect.
    pub admin_addr: SocketAddr,
}

/// Binds both listeners.
///
/// # Errors
/// When an address cannot be bound; the message names the configuration key.
pub fn bind(gateway: &Arc<Gateway>) -> io::Result<Listeners> {
    let server = gateway.running.load().plan.server.clone();
    let named = |key: &str, address: SocketAddr, error: &io::Error| {
        io::Error::new(error.kind(), format!("{key} = \"{address}\" cannot be listened on: {error}"))
    };
    let shared = Arc::clone(gateway);
    let terms = edge::visit::Terms {
        header_timeout: server.header_timeout,
        write_timeout: server.write_timeout,
        metrics: Arc::clone(gateway.telemetry.events.metrics()),
    };
    let client = HttpServer::new(move || {
        let app = App::new().wrap(from_fn(edge::frame::around));
        app.app_data(Worker::new(Arc::clone(&shared))).configure(edge::client_routes)
    })
    .workers(server.workers)
    .client_request_timeout(server.header_timeout)
    .keep_alive(KEEP_ALIVE)
    .client_disconnect_timeout(LINGER)
    .h1_allow_half_closed(false)
    .tcp_nodelay(true)
    .backlog(BACKLOG)
    .on_connect(move |connection, data| edge::visit::begin(connection, data, &terms))
    .disable_signals();
    let client = match &gateway.certificate {
        None => client.bind(server.listen),
        Some(certificate) => {
            let tls = certificate.server_config().map_err(io::Error::other)?;
            client.bind_rustls_0_23(server.listen, tls)
        }
    };
    let client = client.map_err(|error| named("server.listen", server.listen, &error))?;
    let shared = Arc::clone(gateway);
    let live = Arc::new(Live::new(Arc::clone(gateway)));
    let dashboard = Data::new(Dashboard::new(live, Arc::new(ConfiguredToken(Arc::clone(gateway)))));
    let shown = dashboard.clone();
    let admin = HttpServer::new(move || {
        App::new()
            .wrap(from_fn(edge::framing::around))
            .app_data(Worker::new(Arc::clone(&shared)))
            .configure(|config| dashboard::http::configure(config, shown.clone()))
            .configure(edge::admin_routes)
    })
    .workers(1)
    .client_request_timeout(server.header_timeout)
    .keep_alive(KEEP_ALIVE)
    .tcp_nodelay(true)
    .disable_signals()
    .bind(server.admin_listen)
    .map_err(|error| named("server.admin_listen", server.admin_listen, &error))?;
    let first = |addresses: Vec<SocketAddr>, asked: SocketAddr| addresses.first().copied().unwrap_or(asked);
    let (client_addr, admin_addr) = (first(client.addrs(), server.listen), first(admin.addrs(), server.admin_listen));
    gateway.telemetry.events.lifecycle(&format!("started, listening on {client_addr}"));
    Ok(Listeners { client: client.run(), admin: admin.run(), dashboard, client_addr, admin_addr })
}

/// Serves until SIGTERM or SIGINT, then ends in order: readiness falls, queued batch work is turned away, new work is
/// refused, what is under way finishes, records are flushed. SIGHUP reloads. A second signal to end is heard, too: what
/// is under way is then answered with an error at once.
///
/// # Errors
/// When signals cannot be listened for, or a listener failed.
pub async fn serve(gateway: Arc<Gateway>, listeners: Listeners) -> io::Result<()> {
    let (client, admin) = (listeners.client.handle(), listeners.admin.handle());
    let client_task = actix_web::rt::spawn(listeners.client);
    let admin_task = actix_web::rt::spawn(listeners.admin);
    let mut signals = Signals::listen()?;
    manager::ready();
    signals.serve_until_end(&gateway).await;
    gateway.telemetry.events.lifecycle("draining");
    drain(&gateway, &mut signals).await;
    // Open dashboards would hold the admin listener up; until here they have shown the draining.
    listeners.dashboard.close();
    stop(client, admin).await;
    let _ended = timeout(STEP, async { (client_task.await, admin_task.await) }).await;
    if let Some(redis) = &gateway.redis {
        redis.stop();
    }
    gateway.backlog.stop();
    gateway.journal.retry()
}

/// What the process is told from outside.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
    hang_up: Signal,
}

impl Signals {
    fn listen() -> io::Result<Signals> {
        Ok(Signals {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
            hang_up: signal(SignalKind::hangup())?,
        })
    }

    async fn end(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => tracing::info!("SIGTERM"),
            _ = self.interrupt.recv() => tracing::info!("SIGINT"),
        }
    }

    async fn serve_until_end(&mut self, gateway: &Arc<Gateway>) {
        loop {
            tokio::select! {
                _ = self.terminate.recv() => return tracing::info!("SIGTERM: draining"),
                _ = self.interrupt.recv() => return tracing::info!("SIGINT: draining"),
                _ = self.hang_up.recv() => {
                    // In a task of its own, so that a signal to end is heard meanwhile. What is wrong is reported there.
                    let gateway = Arc::clone(gateway);
                    actix_web::rt::spawn(async move { drop(gateway.reload(&By::signal()).await) });
                }
            }
        }
    }
}

async fn drain(gateway: &Gateway, signals: &mut Signals) {
    let limit = gateway.running.load().plan.server.drain;
    let end = tokio::time::Instant::now() + limit.saturating_sub(STEP * 3);
    gateway.lifecycle.drain();
    manager::stopping();
    for upstream in gateway.running.load().upstreams.iter() {
        upstream.actor.do_send(Order(Command::ShutDown));
    }
    let finishing = async {
        sleep(NOTICE.min(limit / 2)).await;
        gateway.lifecycle.refuse();
        gateway.lifecycle.idle().await;
    };
    let finished = tokio::select! {
        finished = timeout_at(end, finishing) => finished.is_ok(),
        () = signals.end() => false,
    };
    if !finished {
        tracing::warn!(requests = gateway.lifecycle.in_flight(), "time is over: requests under way are cut");
        gateway.lifecycle.refuse();
        gateway.lifecycle.cut();
        let _in_time = timeout(STEP, gateway.lifecycle.idle()).await;
        return;
    }
    let latest = end.min(tokio::time::Instant::now() + INSISTENCE);
    let _in_time = timeout_at(latest, gateway.lifecycle.quiet(async || sleep(REFUSAL).await)).await;
}

async fn stop(client: ServerHandle, admin: ServerHandle) {
    // Every request has had its time by now; graceful only lets written answers leave the sockets.
    let _in_time = timeout(STEP, client.stop(true)).await;
    admin.stop(false).await;
}
