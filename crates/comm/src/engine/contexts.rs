//! Contexts: the numbers that tell the messages of communicators apart.
//!
//! The ranks of a new communicator agree on its context: each proposes one, and they take the greatest. Two threads may do
//! so at the same time for two communicators, and each rank may propose for them in another order. So no two proposals in
//! a group are equal: those of rank `r` of `n` ranks are `2 r` more than a multiple of `2 n`. The odd number above each
//! belongs to it, for a second communicator of the same ranks.

use super::Engine;

impl Engine {
    /// Returns a context that no rank has proposed, and no communicator of this rank has.
    pub fn propose_context(&mut self) -> u32 {
        let (step, own) = (2 * self.size, 2 * self.rank);
        let rounds = self.next_context.saturating_sub(own).div_ceil(step);
        // Contexts beyond the last one are refused when they are used.
        let context = rounds.saturating_mul(step).saturating_add(own);
        self.next_context = context.saturating_add(2);
        context
    }

    /// Notes that a context is in use.
    pub fn note_context(&mut self, context: u32) {
        self.next_context = self.next_context.max(context.saturating_add(1));
    }
}
