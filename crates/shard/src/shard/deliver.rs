//! The client's part in QoS 1 and 2, in both directions.

use mqtt::{PacketId, QoS};

use crate::command::Acknowledgement;
use crate::effect::{Answer, Effect};
use crate::entry::Phase;
use crate::ids::SessionUid;
use crate::shard::Shard;

impl Shard {
    pub(super) fn acknowledge(
        &mut self,
        uid: SessionUid,
        epoch: u32,
        packet_id: PacketId,
        kind: Acknowledgement,
        effects: &mut Vec<Effect>,
    ) -> Answer {
        let slot = match self.owned_slot(uid, epoch) {
            Ok(slot) => slot,
            Err(answer) => return answer,
        };
        let session = self.session_at(slot);
        let Some(queue) = session.queue.as_mut() else { return Answer::Unknown };
        let Some(n) = queue.numbered(packet_id) else { return Answer::Unknown };
        let Some(entry) = queue.get_mut(n) else { return Answer::Unknown };
        let (phase, qos) = (entry.phase(), entry.qos());
        match (kind, phase, qos) {
            (Acknowledgement::PubAck, Phase::Pinned, QoS::AtLeastOnce)
            | (Acknowledgement::PubRecRefused, Phase::Pinned, QoS::ExactlyOnce)
            | (Acknowledgement::PubComp, Phase::Received, _)
            | (Acknowledgement::Skip, Phase::Pinned, _) => {}
            (Acknowledgement::PubRec, Phase::Pinned, QoS::ExactlyOnce) => {
                let mut body = *entry;
                entry.details = 0;
                queue.receive(n);
                self.release_entry(&mut body, true);
                // The message is no longer needed [MQTT-4.3.3-4], so its bytes may make room for another.
                self.pump(slot, effects);
                return Answer::Release { n, again: false };
            }
            (Acknowledgement::PubRec, Phase::Received, _) => return Answer::Release { n, again: true },
            (Acknowledgement::Skip, ..) | (_, Phase::Waiting | Phase::Finished, _) => return Answer::Unknown,
            _ => return Answer::WrongKind,
        }
        let mut body = *entry;
        entry.details = 0;
        queue.finish(n);
        if phase == Phase::Pinned {
            self.release_entry(&mut body, true);
        }
        self.counts.skipped += u64::from(kind == Acknowledgement::Skip);
        self.pump(slot, effects);
        Answer::Finished { n }
    }

    pub(super) fn receive(&mut self, uid: SessionUid, epoch: u32, packet_id: PacketId) -> Answer {
        match self.owned_slot(uid, epoch) {
            Ok(slot) => {
                let inbound = self.session_at(slot).inbound_mut();
                Answer::Received { toggle: inbound.toggle(packet_id), again: !inbound.receive(packet_id) }
            }
            Err(answer) => answer,
        }
    }

    pub(super) fn released(&mut self, uid: SessionUid, epoch: u32, packet_id: PacketId) -> Answer {
        match self.owned_slot(uid, epoch) {
            Ok(slot) => self.end_of_inbound(slot, |inbound| inbound.release(packet_id)),
            Err(answer) => answer,
        }
    }

    pub(super) fn refuse(&mut self, uid: SessionUid, epoch: u32, packet_id: PacketId) -> Answer {
        match self.owned_slot(uid, epoch) {
            Ok(slot) => self.end_of_inbound(slot, |inbound| inbound.refuse(packet_id)),
            Err(answer) => answer,
        }
    }

    fn end_of_inbound(
        &mut self,
        slot: u32,
        end: impl FnOnce(&mut crate::inbound::Inbound) -> bool,
    ) -> Answer {
        let session = self.session_at(slot);
        let known = end(session.inbound_mut());
        session.drop_extra_if_empty();
        if known { Answer::Done } else { Answer::Unknown }
    }

    pub(super) fn overdue(&mut self, uid: SessionUid, effects: &mut Vec<Effect>) -> Answer {
        match self.slot(uid, effects) {
            Ok(slot) => {
                self.settle_over(slot, effects);
                self.pump(slot, effects);
                Answer::Done
            }
            Err(answer) => answer,
        }
    }
}
