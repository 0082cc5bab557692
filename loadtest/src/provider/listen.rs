//! The listening socket: opened, closed while a script refuses connections, opened again at the same port.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::mpsc;

use tokio::net::{TcpListener, TcpSocket};
use tokio_util::sync::CancellationToken;

use super::serve::{Shared, connection};
use crate::timer;

const BACKLOG: u32 = 4096;

/// Listens and serves until `ending`. The address, or why there is none, goes to `bound`.
///
/// # Cancel safety
/// Dropping the future closes the listener; connections live on in the runtime.
pub(super) async fn listen(
    address: SocketAddr,
    shared: Arc<Shared>,
    ending: CancellationToken,
    bound: mpsc::Sender<io::Result<SocketAddr>>,
) {
    // The port stays bound for as long as the provider lives, so that nobody else gets it while the listener is
    // closed: a bound socket that does not listen refuses connections like a dead server.
    let keeper = match bind(address) {
        Ok(keeper) => keeper,
        Err(error) => return drop(bound.send(Err(error))),
    };
    let ready = keeper.local_addr().and_then(|address| Ok((address, open(address)?)));
    let (address, listener) = match ready {
        Ok(ready) => ready,
        Err(error) => return drop(bound.send(Err(error))),
    };
    let mut first = Some(listener);
    // Whoever starts the provider may already have given up; then `ending` follows at once.
    let _ = bound.send(Ok(address));
    let mut period = ending.child_token();
    while !ending.is_cancelled() {
        let (refusing, edge) = shared.live().refusing();
        let change = async {
            match edge {
                Some(wait) => timer::sleep(wait).await,
                None => std::future::pending().await,
            }
        };
        if refusing {
            first = None;
            tokio::select! {
                () = ending.cancelled() => return,
                () = change => {}
                () = shared.script_changed.notified() => {}
            }
            continue;
        }
        let listener = match first.take().map_or_else(|| open(address), Ok) {
            Ok(listener) => listener,
            Err(_) => return,
        };
        tokio::pin!(change);
        loop {
            tokio::select! {
                () = ending.cancelled() => break,
                () = &mut change => break,
                () = shared.script_changed.notified() => break,
                accepted = listener.accept() => if let Ok((stream, _)) = accepted {
                    let (shared, period) = (Arc::clone(&shared), period.clone());
                    tokio::spawn(async move {
                        tokio::select! {
                            () = period.cancelled() => {}
                            () = connection(shared, stream) => {}
                        }
                    });
                },
            }
        }
        if shared.live().refusing().0 {
            // A server that died takes its connections with it.
            drop(listener);
            period.cancel();
            period = ending.child_token();
        } else {
            first = Some(listener);
        }
    }
}

fn bind(address: SocketAddr) -> io::Result<TcpSocket> {
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    Ok(socket)
}

fn open(address: SocketAddr) -> io::Result<TcpListener> {
    bind(address)?.listen(BACKLOG)
}
