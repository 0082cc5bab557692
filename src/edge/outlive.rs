//! Work that outlives whoever waits for it. Owns nothing else: what the work does once its client has left is the work's
//! to decide.

use std::panic::AssertUnwindSafe;
use std::pin::Pin;

use futures_util::FutureExt as _;
use futures_util::future::poll_immediate;

/// What `work` makes, unless it panics. It begins at once, here, and where that is all there is to do (an answer out of the
/// cache) it costs no task; if it has to wait, it goes on as a task of its own. Boxed, because a task of tokio's moves its
/// future several times, and a request's is large.
///
/// # Cancel safety
/// Safe: dropped midway, on a thread of the HTTP server, it leaves `work` running there.
pub async fn outlive<T: 'static>(work: Pin<Box<impl Future<Output = T> + 'static>>) -> Result<T, Panicked> {
    let mut work = AssertUnwindSafe(work).catch_unwind();
    match poll_immediate(&mut work).await {
        Some(ended) => ended.map_err(|_cause| Panicked),
        None => actix_web::rt::spawn(work).await.ok().and_then(Result::ok).ok_or(Panicked),
    }
}

/// A fault of the gateway itself; the panic hook has told of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Panicked;

#[cfg(test)]
mod tests {
    use std::panic::resume_unwind;

    use tokio::sync::oneshot;

    use super::*;

    #[actix_web::test]
    async fn it_hands_over_what_it_made_at_once_and_later() {
        assert_eq!(outlive(Box::pin(async { 7 })).await, Ok(7));
        let (go, gate) = oneshot::channel();
        let work = outlive(Box::pin(async move { gate.await.ok() }));
        let (made, sent) = futures_util::join!(work, async { go.send(8) });
        assert_eq!((made, sent), (Ok(Some(8)), Ok(())));
    }

    #[actix_web::test]
    async fn dropped_midway_it_goes_on_to_its_end() {
        let (go, gate) = oneshot::channel::<()>();
        let (done, ended) = oneshot::channel();
        let work = outlive(Box::pin(async move { done.send(gate.await.is_ok()) }));
        assert!(poll_immediate(Box::pin(work)).await.is_none(), "it waits at the gate");
        go.send(()).expect("somebody waits at the gate");
        assert_eq!(ended.await, Ok(true));
    }

    #[actix_web::test]
    async fn a_fault_of_the_work_is_told_to_its_waiter() {
        let at_once = outlive(Box::pin(async { resume_unwind(Box::new("fault")) }));
        assert_eq!(at_once.await, Err::<(), _>(Panicked));
        let later = outlive(Box::pin(async {
            tokio::task::yield_now().await;
            resume_unwind(Box::new("fault"))
        }));
        assert_eq!(later.await, Err::<(), _>(Panicked));
    }
}
