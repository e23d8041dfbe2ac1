//! Questions from node to node.

use bytes::Bytes;
use link::{Lane, NodeId, Time};

use super::ClusterRouter;
use crate::features::ANSWERS;
use crate::questions::{
    ANSWER_MAX, ANSWERING_MAX, Asker, PART, Part, QUESTION_MAX, Question, ReceivedQuestion, Unanswered,
};
use crate::wire::PeerMessage;

impl ClusterRouter {
    /// Returns the time from which this node may end its membership, which was requested at `since`.
    pub(super) fn answers_arrive(&self, since: Time) -> Time {
        let is_answering = self.peers.iter().any(|(_, peer)| peer.answering > 0);
        self.questions.answers_arrive(since, is_answering)
    }

    /// Returns a question of another node for this one's owner.
    pub fn poll_question(&mut self) -> Option<ReceivedQuestion> {
        self.questions.poll_received()
    }

    /// Returns the outcome of a question of this node, with its key.
    pub fn poll_answered(&mut self) -> Option<(u64, Result<Bytes, Unanswered>)> {
        self.questions.poll_outcome()
    }

    pub(super) fn ask(&mut self, now: Time, question: Question) {
        self.counters.requests_sent += 1;
        let key = question.key;
        if let Err(why) = self.try_send_question(now, question) {
            self.questions.fail(key, why);
        }
    }

    fn try_send_question(&mut self, now: Time, question: Question) -> Result<(), Unanswered> {
        let Question { key, to, bytes, within } = question;
        let id = NodeId::of_name(&to);
        let peer = self.peers.get(&id).ok_or(Unanswered::Unknown)?;
        if !peer.is_up {
            return Err(Unanswered::Down);
        }
        if self.mesh.peer(id).is_none_or(|peer| peer.features & ANSWERS == 0) {
            return Err(Unanswered::Old);
        }
        if bytes.len() > QUESTION_MAX {
            return Err(Unanswered::Large);
        }
        self.questions.insert(key, id, now.after(within))?;
        if !self.send_message(now, id, Lane::ROUTES, &PeerMessage::Ask { number: key, question: &bytes }) {
            self.questions.remove(key);
            return Err(Unanswered::Busy);
        }
        Ok(())
    }

    /// Handles a peer's question.
    pub(super) fn question_received(&mut self, now: Time, from: NodeId, number: u64, question: &[u8]) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        if peer.answering >= ANSWERING_MAX || question.len() > QUESTION_MAX {
            let why = if question.len() > QUESTION_MAX { Unanswered::Large } else { Unanswered::Busy };
            self.counters.requests_refused += 1;
            self.send_message(
                now,
                from,
                Lane::ROUTES,
                &PeerMessage::Answer { number, part: Part::Not(why), bytes: &[] },
            );
            return;
        }
        peer.answering += 1;
        self.counters.requests_received += 1;
        let asker = Asker { node: from, link_epoch: peer.link_epoch, number };
        let bytes = Bytes::copy_from_slice(question);
        self.questions.receive(ReceivedQuestion { asker, name: peer.info.name.clone(), bytes });
    }

    /// Sends the owner's answer to a peer; `None` if there is none.
    pub(super) fn answer(&mut self, now: Time, to: Asker, answer: Option<&[u8]>) {
        let Asker { node, link_epoch, number } = to;
        let Some(peer) = self.peers.get_mut(&node).filter(|peer| peer.link_epoch == link_epoch) else {
            return;
        };
        peer.answering = peer.answering.saturating_sub(1);
        self.questions.answered(now);
        let not = |why| PeerMessage::Answer { number, part: Part::Not(why), bytes: &[] };
        let is_said = match answer {
            None => self.send_message(now, node, Lane::ROUTES, &not(Unanswered::Declined)),
            Some(answer) if answer.len() > ANSWER_MAX => {
                self.send_message(now, node, Lane::ROUTES, &not(Unanswered::Large))
            }
            Some(answer) => {
                let (before, last) = answer.split_at(answer.len().saturating_sub(1) / PART * PART);
                before.chunks(PART).all(|bytes| {
                    self.send_message(
                        now,
                        node,
                        Lane::ROUTES,
                        &PeerMessage::Answer { number, part: Part::More, bytes },
                    )
                }) && self.send_message(
                    now,
                    node,
                    Lane::ROUTES,
                    &PeerMessage::Answer { number, part: Part::Last, bytes: last },
                )
            }
        };
        if !is_said {
            // The link has no room: the node that asked gives up in time.
            self.counters.requests_refused += 1;
        }
    }
}
