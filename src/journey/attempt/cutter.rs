//! Owns how the work of a round is cut into calls. Refuses to know who takes them.

use std::collections::VecDeque;
use std::ops::Range;

use crate::actors::upstream::TooLarge;
use crate::pure::adaptive_batch::{ItemSize, Learned, front, split};

use super::Parts;

/// Cuts the work into parts, as late as possible so that each is sized by what is known then.
pub(super) struct Cutter {
    sizes: Vec<ItemSize>,
    next: usize,
    again: VecDeque<Range<usize>>,
    learned: Learned,
}

impl Cutter {
    pub(super) fn new(parts: &Parts<'_>) -> Cutter {
        let size = |index: &usize| ItemSize {
            tokens: parts.call.estimate(*index).likely,
            bytes: parts.call.raw_bytes(*index),
        };
        let sizes = parts.indices.iter().map(size).collect();
        Cutter { sizes, next: 0, again: VecDeque::new(), learned: Learned::default() }
    }

    pub(super) fn next(&mut self, parts: &Parts<'_>) -> Option<Range<usize>> {
        let limits = parts.limits().tighter(self.learned.limits());
        if let Some(range) = self.again.pop_front() {
            // Cut by what was known then; more may have been learned since.
            let cut = range.start + front(&self.sizes[range.clone()], &limits);
            if cut < range.end {
                self.again.push_front(cut..range.end);
            }
            return Some(range.start..cut);
        }
        if self.next >= self.sizes.len() {
            return None;
        }
        let length = front(&self.sizes[self.next..], &limits);
        let range = self.next..self.next + length;
        self.next = range.end;
        Some(range)
    }

    /// Calls that are left to make, as far as is known.
    pub(super) fn calls(&self, parts: &Parts<'_>) -> usize {
        split(&self.sizes, &parts.limits().tighter(self.learned.limits())).len()
    }

    /// Cuts a part that was too large into smaller ones; false if it cannot be cut: a single input, or inputs that
    /// mean something together.
    pub(super) fn split(&mut self, parts: &Parts<'_>, range: Range<usize>, refused: TooLarge) -> bool {
        if !parts.call.items_stand_alone() || !self.learned.refused(refused.sent, refused.kind, refused.hint) {
            return false;
        }
        let pieces = split(&self.sizes[range.clone()], &self.learned.limits());
        for piece in pieces.into_iter().rev() {
            self.again.push_front(range.start + piece.start..range.start + piece.end);
        }
        true
    }

    /// Cuts a part in two; false if it cannot be cut.
    pub(super) fn halve(&mut self, parts: &Parts<'_>, range: Range<usize>) -> bool {
        if !parts.call.items_stand_alone() || range.len() < 2 {
            return false;
        }
        let middle = range.start + range.len() / 2;
        self.again.push_front(middle..range.end);
        self.again.push_front(range.start..middle);
        true
    }
}
