//! The line of those who wait for money that others hold: who is next, and whose patience ends when. Knows no balances.

use std::collections::VecDeque;
use std::time::Duration;

use tokio::sync::oneshot;

use super::{HoldRefusal, PlaceHold};
use crate::ids::HoldId;
use crate::pure::money::Money;
use crate::pure::time::Mono;

/// However often others settle, nobody waits longer than this, or than its own patience if that is longer.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(10);

/// What an ask is answered, at once or later.
pub(super) type Verdict = Result<Money, HoldRefusal>;

/// Somebody who waits.
pub(super) struct Waiting {
    pub(super) ask: PlaceHold,
    since: Mono,
    reply: oneshot::Sender<Verdict>,
}

impl Waiting {
    /// Answers; false if nobody is there to hear it.
    pub(super) fn answer(self, verdict: Verdict) -> bool {
        self.reply.send(verdict).is_ok()
    }

    /// When its patience ends if the last hold was resolved at `progress` and none will be.
    fn until(&self, progress: Mono) -> Mono {
        let patience = self.ask.patience;
        self.since.max(progress).plus(patience).min(self.since.plus(patience.max(LONGEST_WAIT)))
    }
}

/// Those who wait, by patience and then by arrival.
#[derive(Default)]
pub(super) struct Line {
    waiting: VecDeque<Waiting>,
    progress: Mono,
}

impl Line {
    /// A hold was resolved: everybody's patience begins anew.
    pub(super) fn progressed(&mut self, now: Mono) {
        self.progress = now;
    }

    /// Whether nobody waits.
    pub(super) fn is_empty(&self) -> bool {
        self.waiting.is_empty()
    }

    /// How many go before an ask of this patience.
    pub(super) fn ahead_of(&self, patience: Duration) -> usize {
        self.waiting.partition_point(|waiting| waiting.ask.patience <= patience)
    }

    /// Joins the line; the answer comes over the channel.
    pub(super) fn join(&mut self, ask: PlaceHold, now: Mono) -> oneshot::Receiver<Verdict> {
        let (reply, answer) = oneshot::channel();
        self.waiting.insert(self.ahead_of(ask.patience), Waiting { ask, since: now, reply });
        answer
    }

    /// Takes out who is next.
    pub(super) fn pop(&mut self) -> Option<Waiting> {
        self.waiting.pop_front()
    }

    /// Puts back who was taken out just now.
    pub(super) fn put_back(&mut self, next: Waiting) {
        self.waiting.push_front(next);
    }

    /// Takes out whoever waits for this hold.
    pub(super) fn leave(&mut self, id: HoldId) -> Option<Waiting> {
        let place = self.waiting.iter().position(|waiting| waiting.ask.id == id)?;
        self.waiting.remove(place)
    }

    /// Takes out everybody whose patience has ended.
    pub(super) fn impatient(&mut self, now: Mono) -> VecDeque<Waiting> {
        let progress = self.progress;
        let (gone, stay) = std::mem::take(&mut self.waiting).into_iter().partition(|one| one.until(progress) <= now);
        self.waiting = stay;
        gone
    }

    /// The least patience of all.
    pub(super) fn least_patience(&self) -> Option<Duration> {
        self.waiting.front().map(|waiting| waiting.ask.patience)
    }

    /// When the next patience ends.
    pub(super) fn next_end(&self) -> Option<Mono> {
        self.waiting.iter().map(|waiting| waiting.until(self.progress)).min()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn join(line: &mut Line, id: u64, patience_ms: u64, now_ms: u64) {
        let ask = PlaceHold {
            id: HoldId(id),
            upper: Money::ZERO,
            likely: Money::ZERO,
            lower: Money::ZERO,
            expires_at: Mono::ZERO,
            patience: Duration::from_millis(patience_ms),
            tokens: 0,
        };
        drop(line.join(ask, Mono::from_millis(now_ms)));
    }

    fn ids(waiting: impl IntoIterator<Item = Waiting>) -> Vec<u64> {
        waiting.into_iter().map(|waiting| waiting.ask.id.0).collect()
    }

    #[test]
    fn the_less_patient_go_first_and_equals_as_they_came() {
        let mut line = Line::default();
        for (id, patience) in [(1, 300), (2, 20), (3, 300), (4, 20), (5, 100)] {
            join(&mut line, id, patience, id);
        }
        assert_eq!(line.ahead_of(Duration::from_millis(100)), 3);
        assert_eq!(line.least_patience(), Some(Duration::from_millis(20)));
        assert_eq!(line.leave(HoldId(4)).map(|waiting| waiting.ask.id), Some(HoldId(4)));
        assert!(line.leave(HoldId(4)).is_none());
        assert_eq!(ids(std::iter::from_fn(|| line.pop())), [2, 5, 1, 3]);
    }

    #[test]
    fn settlements_renew_patience_but_not_for_ever() {
        let mut line = Line::default();
        join(&mut line, 1, 250, 0);
        join(&mut line, 2, 250, 100);
        assert_eq!(line.next_end(), Some(Mono::from_millis(250)));
        assert_eq!(ids(line.impatient(Mono::from_millis(249))), [0_u64; 0]);
        line.progressed(Mono::from_millis(200));
        assert_eq!(line.next_end(), Some(Mono::from_millis(450)));
        assert_eq!(ids(line.impatient(Mono::from_millis(449))), [0_u64; 0]);
        line.progressed(Mono::from_millis(9_999));
        assert_eq!(line.next_end(), Some(Mono::from_millis(10_000)), "the longest wait of the first");
        assert_eq!(ids(line.impatient(Mono::from_millis(10_000))), [1]);
        assert_eq!(ids(line.impatient(Mono::from_millis(10_100))), [2]);
        assert_eq!(line.next_end(), None);
    }

    #[test]
    fn whoever_is_more_patient_than_the_longest_wait_may_be() {
        let mut line = Line::default();
        join(&mut line, 1, 300_000, 0);
        line.progressed(Mono::from_millis(200_000));
        assert_eq!(line.next_end(), Some(Mono::from_millis(300_000)));
    }
}
