//! Workers of all nodes whose requests the shards of this worker take.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::frame::{self, AnswerItems, Ended, NotLeading, Received};
use crate::ids::{ShardId, Time, WorkerId};
use crate::origin::Origins;
use crate::peers::MemberIncarnations;
use crate::store::Producer;
use crate::store::wire::{ShardAnswer, encode_answer};

/// Lanes of requests. Each has the number of a worker that does not exist on this node: it stands for the producer in
/// connections and tokens.
pub(super) struct Serving {
    /// Number of workers of this node. Lanes have the numbers after them.
    workers: u16,
    lanes: BTreeMap<WorkerId, ServedLane>,
    /// Number of the last lane. A number is used again after all others: what waits with an earlier one has ended then.
    last: u16,
    by_producer: BTreeMap<(ShardId, Producer), WorkerId>,
    /// Lanes whose requests are not all committed.
    unsettled: BTreeSet<WorkerId>,
    /// Lanes with answers to send.
    changed: BTreeSet<WorkerId>,
}

pub(super) struct ServedLane {
    pub shard: ShardId,
    pub producer: Producer,
    pub round: u32,
    /// Number of the last request.
    last: u64,
    /// Number of the connections that were reported.
    reported: u64,
    /// Batches with commands of requests, and the number of the last of these requests. `None` for a request whose
    /// commands are not proposed yet.
    proposals: VecDeque<(Option<u64>, u64)>,
    /// Items of this turn's frames.
    out: Vec<AnswerItems>,
}

/// Frame of one turn for a worker.
pub(super) struct ToProducer {
    pub producer: Producer,
    pub bytes: Vec<u8>,
}

impl Serving {
    pub fn new(workers: u16) -> Self {
        Self {
            workers,
            lanes: BTreeMap::new(),
            last: workers,
            by_producer: BTreeMap::new(),
            unsettled: BTreeSet::new(),
            changed: BTreeSet::new(),
        }
    }

    /// Lane of a producer in this round.
    pub fn find(&self, shard: ShardId, producer: Producer, round: u32) -> Option<WorkerId> {
        let lane = *self.by_producer.get(&(shard, producer))?;
        self.lanes.get(&lane).filter(|served| served.round == round).map(|_| lane)
    }

    /// Returns the producer of a lane.
    pub fn producer(&self, lane: WorkerId) -> Option<Producer> {
        self.lanes.get(&lane).map(|served| served.producer)
    }

    /// Begins a round of a producer. Returns the lane, and the one of its previous round. `None` when there is no room.
    pub fn begin(
        &mut self,
        shard: ShardId,
        producer: Producer,
        round: u32,
    ) -> Option<(WorkerId, Option<WorkerId>)> {
        // The last number stands for nobody.
        let numbers = self.workers..u16::MAX;
        if self.lanes.len() >= numbers.len() {
            return None;
        }
        let mut lane = WorkerId(self.last);
        while self.lanes.contains_key(&lane) || !numbers.contains(&lane.0) {
            lane = WorkerId(if lane.0 + 1 < numbers.end { lane.0 + 1 } else { numbers.start });
        }
        self.last = lane.0 + 1;
        let (proposals, out) = (VecDeque::new(), Vec::new());
        let (last, reported) = (0, 0);
        self.lanes.insert(lane, ServedLane { shard, producer, round, last, reported, proposals, out });
        let before = self.by_producer.insert((shard, producer), lane);
        before.into_iter().for_each(|before| self.remove(before));
        Some((lane, before))
    }

    /// Ends the lanes of a node. Returns their shards and numbers.
    pub fn end_node(&mut self, node: u64) -> Vec<(ShardId, WorkerId)> {
        self.end(|lane| lane.producer.owner.node == node)
    }

    /// Ends the lanes of incarnations that are over. Returns their shards and numbers.
    pub fn end_incarnations(&mut self, members: &MemberIncarnations) -> Vec<(ShardId, WorkerId)> {
        self.end(|lane| members.has_ended(lane.producer.owner))
    }

    /// Ends the lanes of a shard that has no host any more.
    pub fn end_shard(&mut self, shard: ShardId) {
        self.end(|lane| lane.shard == shard);
    }

    fn end(&mut self, is_over: impl Fn(&ServedLane) -> bool) -> Vec<(ShardId, WorkerId)> {
        let over: Vec<(ShardId, WorkerId)> = self
            .lanes
            .iter()
            .filter(|(_, served)| is_over(served))
            .map(|(lane, served)| (served.shard, *lane))
            .collect();
        for (shard, lane) in &over {
            if let Some(served) = self.lanes.get(lane) {
                self.by_producer.remove(&(*shard, served.producer));
            }
            self.remove(*lane);
        }
        over
    }

    /// Ends a lane.
    pub fn end_lane(&mut self, lane: WorkerId) {
        if let Some(served) = self.lanes.get(&lane) {
            self.by_producer.remove(&(served.shard, served.producer));
        }
        self.remove(lane);
    }

    fn remove(&mut self, lane: WorkerId) {
        self.lanes.remove(&lane);
        self.unsettled.remove(&lane);
        self.changed.remove(&lane);
    }

    /// Returns whether a request of this number may come next. Links keep the order, so only a broken peer sends
    /// another.
    pub fn is_next(&mut self, lane: WorkerId, number: u64) -> bool {
        let Some(served) = self.lanes.get_mut(&lane) else { return false };
        // The beginning of a round has no numbers.
        let is_report = number == 0 && served.last == 0;
        let is_next = number > served.last || is_report;
        served.last = number.max(served.last);
        served.reported += u64::from(is_report);
        is_next
    }

    /// Reports what has arrived, even without an answer.
    pub fn send_receipt(&mut self, lane: WorkerId) {
        self.changed.insert(lane);
    }

    /// Notes that a request was handled. Its commands are in batches up to this one; `None` if they are proposed later,
    /// see [`Self::proposed_late`].
    pub fn handled(&mut self, lane: WorkerId, number: u64, proposal: Option<u64>) {
        let Some(served) = self.lanes.get_mut(&lane) else { return };
        match served.proposals.back_mut() {
            Some((last, until)) if proposal.is_some() && *last == proposal => *until = number,
            _ => served.proposals.push_back((proposal, number)),
        }
        self.unsettled.insert(lane);
    }

    /// Shard of a lane.
    pub fn shard(&self, lane: WorkerId) -> Option<ShardId> {
        self.lanes.get(&lane).map(|served| served.shard)
    }

    /// Notes that the commands of a request that waited are in batches up to this one.
    pub fn proposed_late(&mut self, lane: WorkerId, number: u64, proposal: u64) {
        let Some(served) = self.lanes.get_mut(&lane) else { return };
        let mut waiting = served.proposals.iter_mut();
        if let Some((waits, _)) = waiting.find(|(waits, of)| waits.is_none() && *of == number) {
            *waits = Some(proposal);
        }
    }

    /// Reports requests that are committed. `has_applied` tells which batches of a shard are.
    pub fn settle(&mut self, now: Time, has_applied: impl Fn(ShardId, u64) -> bool) {
        let mut settled = Vec::new();
        self.unsettled.retain(|lane| {
            let Some(ServedLane { shard, proposals, .. }) = self.lanes.get_mut(lane) else { return false };
            let mut number = None;
            while let Some((_, until)) = proposals
                .pop_front_if(|(proposal, _)| proposal.is_some_and(|proposal| has_applied(*shard, proposal)))
            {
                number = Some(until);
            }
            settled.extend(number.map(|number| (*lane, number)));
            !proposals.is_empty()
        });
        for (lane, number) in settled {
            self.answer(now, lane, Origins::Kept, &ShardAnswer::Settled { number });
        }
    }

    /// Queues an answer. Drops one for a lane that is gone.
    pub fn answer(&mut self, now: Time, lane: WorkerId, origins: Origins, answer: &ShardAnswer) {
        let Some(served) = self.lanes.get_mut(&lane) else { return };
        let mut bytes = Vec::new();
        encode_answer(answer, now, origins, &mut bytes);
        let last = served.out.last_mut();
        match last.filter(|frame| frame.len() + bytes.len() <= frame::FULL) {
            Some(frame) => frame.push(&bytes),
            None => {
                let mut frame = AnswerItems::new();
                frame.push(&bytes);
                served.out.push(frame);
            }
        }
        self.changed.insert(lane);
    }

    /// Takes the frames of this turn. `index` is that of the last record that a shard has applied.
    pub fn take_frames(&mut self, index: impl Fn(ShardId) -> u64) -> Vec<ToProducer> {
        let mut frames = Vec::new();
        for lane in std::mem::take(&mut self.changed) {
            let Some(served) = self.lanes.get_mut(&lane) else { continue };
            let received = match served.last {
                0 => Received::Connections(served.reported),
                last => Received::Request(last),
            };
            let ServedLane { shard, producer, round, out, .. } = served;
            let items = if out.is_empty() { vec![AnswerItems::new()] } else { std::mem::take(out) };
            let incarnation = producer.owner.incarnation;
            for items in items {
                let bytes = items.into_frame(incarnation, (*shard, *round), (index(*shard), received));
                frames.push(ToProducer { producer: *producer, bytes });
            }
        }
        frames
    }

    /// Makes the answer to a frame that no lane takes. `term`: in which this node leads the shard; 0 if it does not.
    pub fn not_leading(shard: ShardId, producer: Producer, round: u32, term: u64) -> ToProducer {
        let not_leading = NotLeading { incarnation: producer.owner.incarnation, shard, round, term };
        ToProducer { producer, bytes: not_leading.encode() }
    }

    /// Makes the answer to a frame of an incarnation that is over. `last`: last incarnation of its node.
    pub fn ended(shard: ShardId, producer: Producer, round: u32, last: u64) -> ToProducer {
        let ended = Ended { incarnation: producer.owner.incarnation, shard, round, last };
        ToProducer { producer, bytes: ended.encode() }
    }

    pub fn has_work(&self) -> bool {
        !self.changed.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use shard::NodeIncarnation;

    use super::frame::{ToWorker, decode_answers};
    use super::*;
    use crate::store::wire::decode_answer;

    const NOW: Time = Time(1_000);

    /// Numbers up to which the requests of all lanes are reported as committed.
    fn settled(serving: &mut Serving, applied: u64) -> Vec<u64> {
        serving.settle(NOW, |_, proposal| proposal <= applied);
        let mut settled = Vec::new();
        for frame in serving.take_frames(|_| 0) {
            let Ok(ToWorker::Answers(answers)) = decode_answers(&frame.bytes) else { panic!("answers") };
            for bytes in &answers.items {
                match decode_answer(bytes, WorkerId(0), NOW) {
                    Ok(ShardAnswer::Settled { number }) => settled.push(number),
                    other => panic!("{other:?}"),
                }
            }
        }
        settled
    }

    #[test]
    fn requests_behind_one_that_waits_are_not_reported_as_committed() {
        let mut serving = Serving::new(2);
        let producer = Producer { owner: NodeIncarnation { node: 1, incarnation: 7 }, lane: 0 };
        let (lane, _) = serving.begin(ShardId(3), producer, 1).expect("room");
        for (number, proposal) in [(1, Some(5)), (2, None), (3, None), (4, Some(6)), (5, Some(6))] {
            serving.handled(lane, number, proposal);
        }
        assert_eq!(settled(&mut serving, 6), [1]);
        assert_eq!(settled(&mut serving, 6), []);
        serving.proposed_late(lane, 3, 7);
        assert_eq!(settled(&mut serving, 7), []);
        serving.proposed_late(lane, 2, 8);
        assert_eq!(settled(&mut serving, 7), []);
        assert_eq!(settled(&mut serving, 8), [5]);
        assert_eq!(serving.shard(lane), Some(ShardId(3)));
        serving.end_lane(lane);
        serving.proposed_late(lane, 2, 9);
        assert_eq!(serving.shard(lane), None);
    }
}
