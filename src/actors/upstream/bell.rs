//! Where workers say that a call out of a loan has ended. One for all upstreams, so that the control thread is woken once for
//! all calls of the next moment and not once for each upstream: over many upstreams each call would else be the first since its
//! actor looked last. Owns when it is time; refuses to know what a look finds.

use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use parking_lot::Mutex;

use super::{CallsEnded, UpstreamActor};

/// How long ends of calls are gathered.
const LOOK_AFTER: Duration = Duration::from_millis(4);

/// See the module.
pub struct Bell {
    rung: Arc<Rung>,
    ringer: Addr<Ringer>,
}

/// Upstreams at which calls have ended.
type Rung = Mutex<Vec<Addr<UpstreamActor>>>;

impl Bell {
    /// A bell that is heard on `arbiter`.
    pub fn start(arbiter: &ArbiterHandle) -> Arc<Bell> {
        let rung = Arc::new(Rung::default());
        let heard = Arc::clone(&rung);
        Arc::new(Bell { rung, ringer: Ringer::start_in_arbiter(arbiter, move |_| Ringer(heard)) })
    }

    /// A call has ended at `upstream`; it looks soon.
    pub(super) fn ring(&self, upstream: &Addr<UpstreamActor>) {
        let mut rung = self.rung.lock();
        rung.push(upstream.clone());
        let is_first = rung.len() == 1;
        drop(rung);
        if is_first {
            self.ringer.do_send(Rings);
        }
    }
}

impl std::fmt::Debug for Bell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Bell").field("rung", &self.rung.lock().len()).finish()
    }
}

/// Somebody rang first.
#[derive(Message)]
#[rtype(result = "()")]
struct Rings;

/// Sits on the control thread and has everybody look at whom it was rung for. Should it ever be gone, upstreams still look
/// once a second.
struct Ringer(Arc<Rung>);

impl Actor for Ringer {
    type Context = Context<Self>;
}

impl Handler<Rings> for Ringer {
    type Result = ();

    fn handle(&mut self, _: Rings, context: &mut Self::Context) {
        context.run_later(LOOK_AFTER, |ringer, _| {
            for upstream in std::mem::take(&mut *ringer.0.lock()) {
                upstream.do_send(CallsEnded);
            }
        });
    }
}
