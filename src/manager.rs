//! What the service manager that started this process is told: ready, reloading, stopping. It speaks systemd's protocol
//! (a datagram to the socket that `NOTIFY_SOCKET` names) and says nothing where nobody listens. Decides nothing.

use std::sync::Arc;

use sd_notify::NotifyState;

use crate::lifecycle::Lifecycle;

/// Both listeners take requests and signals are heard.
pub fn ready() {
    tell(&[NotifyState::Ready, NotifyState::Status("serving")]);
}

/// The process is about to end: what is under way finishes, nothing new is to come.
pub fn stopping() {
    tell(&[NotifyState::Stopping, NotifyState::Status("draining")]);
}

/// A reload under way; dropping it tells that it is over, whatever came of it.
#[derive(Debug)]
#[must_use = "dropping it tells that the reload is over"]
pub struct Reloading(Arc<Lifecycle>);

/// Tells that a reload begins.
pub fn reloading(lifecycle: &Arc<Lifecycle>) -> Reloading {
    if !lifecycle.is_draining() {
        // The manager tells this reload from an earlier one by the time, and refuses one without it.
        match NotifyState::monotonic_usec_now() {
            Ok(now) => tell(&[NotifyState::Reloading, now]),
            Err(error) => tracing::warn!(%error, "the service manager is not told of a reload"),
        }
    }
    Reloading(Arc::clone(lifecycle))
}

impl Drop for Reloading {
    fn drop(&mut self) {
        // After "stopping" there is no way back to "ready".
        if !self.0.is_draining() {
            ready();
        }
    }
}

fn tell(news: &[NotifyState<'_>]) {
    if let Err(error) = sd_notify::notify(news) {
        tracing::warn!(%error, "the service manager cannot be told");
    }
}
