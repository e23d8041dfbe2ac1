//! Questions from node to node.

use bytes::Bytes;
use link::{Lane, NodeId, Time};

use super::Fabric;
use crate::asks::{ANSWER_MAX, ANSWERING_MAX, Asked, Asker, PART, Part, QUESTION_MAX, Question, Unanswered};
use crate::features::ANSWERS;
use crate::wire::Word;

impl Fabric {
    /// A question of another node, for this one's owner.
    pub fn poll_asked(&mut self) -> Option<Asked> {
        self.asked.pop_front()
    }

    /// What came of a question of this node, by its key.
    pub fn poll_answered(&mut self) -> Option<(u64, Result<Bytes, Unanswered>)> {
        self.answered.pop_front()
    }

    pub(super) fn ask(&mut self, now: Time, question: Question) {
        self.counters.asks += 1;
        let key = question.key;
        if let Err(why) = self.try_ask(now, question) {
            self.unanswered(key, why);
        }
    }

    fn try_ask(&mut self, now: Time, question: Question) -> Result<(), Unanswered> {
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
        self.waiting.insert(key, id, now.after(within))?;
        if !self.say(now, id, Lane::ROUTES, &Word::Ask { number: key, question: &bytes }) {
            self.waiting.part(id, key, Part::Not(Unanswered::Busy), &[]);
            return Err(Unanswered::Busy);
        }
        Ok(())
    }

    /// A peer asks.
    pub(super) fn asked(&mut self, now: Time, from: NodeId, number: u64, question: &[u8]) {
        let Some(peer) = self.peers.get_mut(&from) else { return };
        if peer.answering >= ANSWERING_MAX || question.len() > QUESTION_MAX {
            let why = if question.len() > QUESTION_MAX { Unanswered::Large } else { Unanswered::Busy };
            self.counters.asked_refused += 1;
            self.say(now, from, Lane::ROUTES, &Word::Answer { number, part: Part::Not(why), bytes: &[] });
            return;
        }
        peer.answering += 1;
        self.counters.asked += 1;
        let asker = Asker { node: from, life: peer.life, number };
        let bytes = Bytes::copy_from_slice(question);
        self.asked.push_back(Asked { asker, name: peer.info.name.clone(), bytes });
    }

    /// This node's owner answers a peer; `None`: it does not.
    pub(super) fn answer(&mut self, now: Time, to: Asker, answer: Option<&[u8]>) {
        let Asker { node, life, number } = to;
        let Some(peer) = self.peers.get_mut(&node).filter(|peer| peer.life == life) else { return };
        peer.answering = peer.answering.saturating_sub(1);
        let not = |why| Word::Answer { number, part: Part::Not(why), bytes: &[] };
        let is_said = match answer {
            None => self.say(now, node, Lane::ROUTES, &not(Unanswered::Declined)),
            Some(answer) if answer.len() > ANSWER_MAX => {
                self.say(now, node, Lane::ROUTES, &not(Unanswered::Large))
            }
            Some(answer) => {
                let (before, last) = answer.split_at(answer.len().saturating_sub(1) / PART * PART);
                before.chunks(PART).all(|bytes| {
                    self.say(now, node, Lane::ROUTES, &Word::Answer { number, part: Part::More, bytes })
                }) && self.say(
                    now,
                    node,
                    Lane::ROUTES,
                    &Word::Answer { number, part: Part::Last, bytes: last },
                )
            }
        };
        if !is_said {
            // The link is full: whoever asked gives up in time.
            self.counters.asked_refused += 1;
        }
    }

    /// A part of an answer came.
    pub(super) fn answer_came(&mut self, from: NodeId, number: u64, part: Part, bytes: &[u8]) {
        match self.waiting.part(from, number, part, bytes) {
            Some(Ok(answer)) => self.answered.push_back((number, Ok(answer))),
            Some(Err(why)) => self.unanswered(number, why),
            None => {}
        }
    }

    /// A peer is cut off, or has begun anew: its answers will not come.
    pub(super) fn lose_asks(&mut self, id: NodeId) {
        for key in self.waiting.lost(id) {
            self.unanswered(key, Unanswered::Down);
        }
    }

    pub(super) fn tend_asks(&mut self, now: Time) {
        for key in self.waiting.overdue(now) {
            self.unanswered(key, Unanswered::Late);
        }
    }

    fn unanswered(&mut self, key: u64, why: Unanswered) {
        self.counters.asks_unanswered += 1;
        self.answered.push_back((key, Err(why)));
    }
}
