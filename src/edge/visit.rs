//! One client connection from its beginning to its end: what bounds it before and beside its requests.
//!
//! A head that comes too slowly, is too long or is none is answered by the HTTP server itself (408, 431, 400), before any
//! code of ours runs, so no error of ours can be counted. Its connection is ours to see, though: it ends without a request.

use std::any::Any;
use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use actix_tls::accept::rustls_0_23::TlsStream;
use actix_web::HttpRequest;
use actix_web::dev::Extensions;
use actix_web::rt::net::TcpStream;
use socket2::SockRef;

use crate::clock;
use crate::pure::time::Mono;
use crate::telemetry::labels::VisitEnd;
use crate::telemetry::metrics::Metrics;

/// The HTTP server's clock ticks this often, so it may end a connection so much early.
const TICK: Duration = Duration::from_millis(500);

/// What holds for every connection of the client listener.
#[derive(Debug, Clone)]
pub struct Terms {
    /// Time for the first head.
    pub header_timeout: Duration,
    /// Time in which a peer must take something of what is sent.
    pub write_timeout: Duration,
    /// Where connections without a request are counted.
    pub metrics: Arc<Metrics>,
}

/// One connection; ends when dropped.
#[derive(Debug)]
struct Visit {
    since: Mono,
    asked: Cell<bool>,
    header_timeout: Duration,
    metrics: Arc<Metrics>,
}

impl Drop for Visit {
    fn drop(&mut self) {
        if !self.asked.get() {
            let slow = clock::mono().since(self.since) + TICK >= self.header_timeout;
            self.metrics.visit_without_request(if slow { VisitEnd::Slow } else { VisitEnd::Other });
        }
    }
}

/// A connection begins.
pub fn begin(connection: &dyn Any, data: &mut Extensions, terms: &Terms) {
    bound_writes(connection, terms.write_timeout);
    data.insert(Visit {
        since: clock::mono(),
        asked: Cell::new(false),
        header_timeout: terms.header_timeout,
        metrics: Arc::clone(&terms.metrics),
    });
}

/// A whole head came.
pub fn asked(request: &HttpRequest) {
    if let Some(visit) = request.conn_data::<Visit>() {
        visit.asked.set(true);
    }
}

/// Has the system end a connection whose peer takes nothing of what is sent for `limit`.
///
/// A body of an answer is only asked for its next piece once the last one is out, so nothing in this process would notice
/// a client that stopped reading.
fn bound_writes(connection: &dyn Any, limit: Duration) {
    let plain = connection.downcast_ref::<TcpStream>();
    let stream = plain.or_else(|| connection.downcast_ref::<TlsStream<TcpStream>>().map(|tls| tls.get_ref().0));
    if let Some(stream) = stream
        && let Err(error) = SockRef::from(stream).set_tcp_user_timeout(Some(limit))
    {
        tracing::debug!(%error, "a connection has no write time-out");
    }
}
