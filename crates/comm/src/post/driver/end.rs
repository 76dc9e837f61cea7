//! The end of a post, and of the exchange with one rank.

use std::task::Waker;
use std::time::Instant;

use dayfly_protocol::error::Failure;

use super::{Driver, Peer};
use crate::engine::Engine;
use crate::post::PostError;
use crate::post::incoming::error_of;
use crate::post::state::Phase;
use crate::post::word;

impl Driver {
    /// Ends the exchange with a rank after a failure.
    pub(super) fn fail(&mut self, engine: &mut Engine, rank: usize, failure: &Failure) {
        self.part_with(engine, rank, error_of(rank as u32, failure));
    }

    /// Ends the exchange with a rank.
    pub(super) fn part_with(&mut self, engine: &mut Engine, rank: usize, why: PostError) {
        let mut link = self.link(engine, rank);
        let peer = &mut self.peers[rank];
        if peer.end.is_some() {
            return;
        }
        // The engine may have completed messages since the last look.
        peer.incoming.take_arrived(&mut link, &mut self.results.messages);
        peer.outgoing.report_left(&mut link);
        let is_cut = peer.incoming.is_incomplete();
        peer.outgoing.abandon(&mut link, &why);
        peer.incoming.abandon(&mut link);
        peer.end = Some(why.clone());
        match why {
            PostError::PeerClosed { rank } if is_cut => self.results.losses.push(PostError::PeerLost {
                rank,
                reason: "it closed its post before its messages had arrived".into(),
            }),
            PostError::PeerLost { .. } => self.results.losses.push(why),
            _ => {}
        }
        let own = self.shared.rank as usize;
        let mut others = self.peers.iter().enumerate().filter(|(rank, _)| *rank != own);
        self.results.is_exhausted = others.all(|(_, peer)| peer.end.is_some());
    }

    /// Ends the post here, and informs the others that it is revoked. Every rank does so once.
    pub(super) fn revoke(&mut self, engine: &mut Engine, by: u32) {
        if self.end.is_some() {
            return;
        }
        for rank in 0..self.peers.len() {
            self.send_word(engine, rank, word::revoke(by));
        }
        self.give_up(engine, PostError::Revoked { by });
    }

    /// Ends the post here, and informs the others that it is closed.
    pub(super) fn stop(&mut self, engine: &mut Engine, why: PostError) {
        self.send_close(engine);
        self.give_up(engine, why);
    }

    pub(super) fn send_close(&mut self, engine: &mut Engine) {
        if self.closed_at.is_none() {
            self.closed_at = Some(Instant::now());
            for rank in 0..self.peers.len() {
                self.send_word(engine, rank, word::close());
            }
        }
    }

    /// Gives all messages up, except words that must still leave.
    fn give_up(&mut self, engine: &mut Engine, why: PostError) {
        for rank in 0..self.peers.len() {
            let mut link = self.link(engine, rank);
            let Peer { incoming, outgoing, .. } = &mut self.peers[rank];
            outgoing.abandon_messages(&mut link, &why);
            incoming.abandon(&mut link);
        }
        self.end = Some(why.clone());
        let (wakers, unwanted) = {
            let mut state = self.shared.lock();
            (state.end(why), state.take_unwanted())
        };
        drop(unwanted);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// Informs the others of the end, once everything has left.
    pub(super) fn close_when_idle(&mut self, engine: &mut Engine) {
        let is_idle = |peer: &Peer| peer.outgoing.is_idle();
        match self.phase {
            Phase::Open => {}
            Phase::Closing if self.end.is_none() && !self.peers.iter().all(is_idle) => {}
            Phase::Closing | Phase::Stopping => self.send_close(engine),
        }
    }
}
