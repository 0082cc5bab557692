//! Listeners, signals, and an orderly end.

use std::any::Any;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use actix_web::dev::{Server, ServerHandle};
use actix_web::rt::net::TcpStream;
use actix_web::{App, HttpServer};
use socket2::SockRef;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::{sleep, timeout};

use crate::actors::upstream::{Command, Order};
use crate::edge;
use crate::gateway::Gateway;
use crate::worker::Worker;

/// Idle client connections are kept this long: longer than common SDK pools keep theirs, so that the client closes
/// first and never sends into a connection that is going away.
const KEEP_ALIVE: Duration = Duration::from_secs(75);

/// Connections waiting to be accepted.
const BACKLOG: u32 = 4096;

/// While draining, work is still taken for this long, so that load balancers see readiness fall first; never longer
/// than half of `server.drain_s`.
const NOTICE: Duration = Duration::from_secs(1);

/// Kept back from `server.drain_s` for flushing the ledger and ending the process.
const RESERVE: Duration = Duration::from_millis(500);

/// The two listeners, bound.
pub struct Listeners {
    client: Server,
    admin: Server,
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
    let client =
        HttpServer::new(move || App::new().app_data(Worker::new(Arc::clone(&shared))).configure(edge::client_routes))
            .workers(server.workers)
            .client_request_timeout(server.header_timeout)
            .keep_alive(KEEP_ALIVE)
            .h1_allow_half_closed(false)
            .tcp_nodelay(true)
            .backlog(BACKLOG)
            .on_connect(move |connection, _| bound_writes(connection, server.write_timeout))
            .disable_signals()
            .bind(server.listen)
            .map_err(|error| named("server.listen", server.listen, &error))?;
    let shared = Arc::clone(gateway);
    let admin =
        HttpServer::new(move || App::new().app_data(Worker::new(Arc::clone(&shared))).configure(edge::admin_routes))
            .workers(1)
            .client_request_timeout(server.header_timeout)
            .keep_alive(KEEP_ALIVE)
            .tcp_nodelay(true)
            .disable_signals()
            .bind(server.admin_listen)
            .map_err(|error| named("server.admin_listen", server.admin_listen, &error))?;
    let first = |addresses: Vec<SocketAddr>, asked: SocketAddr| addresses.first().copied().unwrap_or(asked);
    let (client_addr, admin_addr) = (first(client.addrs(), server.listen), first(admin.addrs(), server.admin_listen));
    Ok(Listeners { client: client.run(), admin: admin.run(), client_addr, admin_addr })
}

/// Has the system end a connection whose peer takes nothing of what is sent for `limit`.
///
/// A body of an answer is only asked for its next piece once the last one is out, so nothing in this process would notice
/// a client that stopped reading.
fn bound_writes(connection: &dyn Any, limit: Duration) {
    if let Some(stream) = connection.downcast_ref::<TcpStream>()
        && let Err(error) = SockRef::from(stream).set_tcp_user_timeout(Some(limit))
    {
        tracing::debug!(%error, "a connection has no write time-out");
    }
}

/// Serves until SIGTERM or SIGINT, then ends in order: readiness falls, queued batch work is turned away, new work is
/// refused, what is under way finishes, records are flushed.
///
/// # Errors
/// When signals cannot be listened for, or a listener failed.
pub async fn serve(gateway: Arc<Gateway>, listeners: Listeners) -> io::Result<()> {
    let (client, admin) = (listeners.client.handle(), listeners.admin.handle());
    let client_task = actix_web::rt::spawn(listeners.client);
    let admin_task = actix_web::rt::spawn(listeners.admin);
    let mut terminate = signal(SignalKind::terminate())?;
    let mut interrupt = signal(SignalKind::interrupt())?;
    tokio::select! {
        _ = terminate.recv() => tracing::info!("SIGTERM: draining"),
        _ = interrupt.recv() => tracing::info!("SIGINT: draining"),
    }
    drain(&gateway).await;
    stop(client, admin).await;
    let _ended = timeout(RESERVE, async { (client_task.await, admin_task.await) }).await;
    gateway.backlog.stop();
    gateway.journal.retry()
}

async fn drain(gateway: &Gateway) {
    let limit = gateway.running.load().plan.server.drain;
    let end = tokio::time::Instant::now() + limit.saturating_sub(RESERVE * 2);
    gateway.lifecycle.drain();
    for upstream in &gateway.running.load().upstreams {
        upstream.actor.do_send(Order(Command::ShutDown));
    }
    sleep(NOTICE.min(limit / 2)).await;
    gateway.lifecycle.refuse();
    if tokio::time::timeout_at(end, gateway.lifecycle.idle()).await.is_err() {
        tracing::warn!(requests = gateway.lifecycle.in_flight(), "drain_s is over, requests are cut");
    }
}

async fn stop(client: ServerHandle, admin: ServerHandle) {
    // Every request has had its time by now; graceful only lets written answers leave the sockets.
    let _in_time = timeout(RESERVE, client.stop(true)).await;
    admin.stop(false).await;
}
