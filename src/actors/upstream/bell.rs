//! Where workers say that a call out of a loan has ended. One for all upstreams, so that the control thread is woken once for
//! all calls of the next moment and not once for each upstream: over many upstreams each call would else be the first since its
//! actor looked last. Owns when it is time; refuses to know what a look finds.
//!
//! Whoever is rung for soon looks with the next moment. All others take turns, a few each moment: a look costs the same
//! whether one call has ended or a hundred, and over many upstreams it would be one for each call.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use actix::prelude::*;
use parking_lot::Mutex;

use super::{CallsEnded, UpstreamActor};
use crate::pure::admission::Look;

/// How long ends of calls are gathered.
const LOOK_AFTER: Duration = Duration::from_millis(4);

/// So many look in turn each time ...
const TURNS: usize = 4;

/// ... or this part of those who wait for theirs, if that is more: a second or two for thousands, who look once a second besides.
const PART: usize = 128;

/// See the module.
pub struct Bell {
    rung: Arc<RungUpstreams>,
    ringer: Addr<Ringer>,
}

type RungUpstreams = Mutex<Rung<Addr<UpstreamActor>>>;

/// Those at which calls have ended.
#[derive(Debug)]
struct Rung<T> {
    soon: Vec<T>,
    in_turn: VecDeque<T>,
    /// Whether the ringer comes by itself.
    awake: bool,
}

impl<T> Default for Rung<T> {
    fn default() -> Rung<T> {
        Rung { soon: Vec::new(), in_turn: VecDeque::new(), awake: false }
    }
}

impl<T> Rung<T> {
    /// Notes one; whether the ringer has to be called.
    fn add(&mut self, one: T, look: Look) -> bool {
        match look {
            Look::Soon => self.soon.push(one),
            Look::InTurn => self.in_turn.push_back(one),
        }
        !std::mem::replace(&mut self.awake, true)
    }

    /// Those who look now, and whether others are left for the next time.
    fn take(&mut self) -> (Vec<T>, bool) {
        let turns = TURNS.max(self.in_turn.len() / PART).min(self.in_turn.len());
        let mut now = std::mem::take(&mut self.soon);
        now.extend(self.in_turn.drain(..turns));
        self.awake = !self.in_turn.is_empty();
        (now, self.awake)
    }
}

impl Bell {
    /// A bell that is heard on `arbiter`.
    pub fn start(arbiter: &ArbiterHandle) -> Arc<Bell> {
        let rung = Arc::default();
        let heard = Arc::clone(&rung);
        Arc::new(Bell { rung, ringer: Ringer::start_in_arbiter(arbiter, move |_| Ringer(heard)) })
    }

    /// A call has ended at `upstream`.
    pub(super) fn ring(&self, upstream: &Addr<UpstreamActor>, look: Look) {
        let is_first = self.rung.lock().add(upstream.clone(), look);
        if is_first {
            self.ringer.do_send(Rings);
        }
    }
}

impl std::fmt::Debug for Bell {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rung = self.rung.lock();
        f.debug_struct("Bell").field("soon", &rung.soon.len()).field("in_turn", &rung.in_turn.len()).finish()
    }
}

/// Somebody rang first.
#[derive(Message)]
#[rtype(result = "()")]
struct Rings;

/// Sits on the control thread and has everybody look at whom it was rung for. Should it ever be gone, upstreams still look
/// once a second.
struct Ringer(Arc<RungUpstreams>);

impl Ringer {
    fn wait(context: &mut Context<Ringer>) {
        context.run_later(LOOK_AFTER, |ringer, context| {
            let (now, more) = ringer.0.lock().take();
            for upstream in now {
                upstream.do_send(CallsEnded);
            }
            if more {
                Ringer::wait(context);
            }
        });
    }
}

impl Actor for Ringer {
    type Context = Context<Self>;
}

impl Handler<Rings> for Ringer {
    type Result = ();

    fn handle(&mut self, _: Rings, context: &mut Self::Context) {
        Ringer::wait(context);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_is_rung_for_soon_looks_next_and_the_others_take_turns() {
        let mut rung = Rung::default();
        assert!(rung.add(0, Look::InTurn), "the ringer sleeps");
        for one in 1..10 {
            assert!(!rung.add(one, Look::InTurn));
        }
        assert!(!rung.add(99, Look::Soon));
        assert_eq!(rung.take(), (vec![99, 0, 1, 2, 3], true));
        assert!(!rung.add(10, Look::InTurn), "it comes anyway");
        assert_eq!(rung.take(), (vec![4, 5, 6, 7], true));
        assert_eq!(rung.take(), (vec![8, 9, 10], false));
        assert!(rung.add(11, Look::Soon), "it sleeps again");
        assert_eq!(rung.take(), (vec![11], false));
    }

    #[test]
    fn nobody_of_very_many_waits_for_long() {
        let mut rung = Rung::default();
        (0..10_000).for_each(|one| {
            rung.add(one, Look::InTurn);
        });
        let turns = (1..).take_while(|_| !rung.take().0.contains(&9_999)).count();
        assert!(LOOK_AFTER * turns as u32 <= Duration::from_millis(2_500), "{turns}");
    }
}
