//! Messages and acknowledgements between the two connections.

use mqtt::{
    Ack, Outgoing, Packet, PacketId, PacketType, Properties, Publish, QoS, ReasonCode, Version, decode,
    put_short_ack,
};

use crate::client::Unsent;
use crate::counters::{Counters, Dropped};
use crate::lane::{Lane, Step};
use crate::message::{Terms, Translator};
use crate::mutation::{Mutation, mutated};
use crate::refusals::{Next, Refusals, may_pass};
use crate::side::{Side, Sides};
use crate::sweep::Sweep;

/// Passes packets from one connection to the other. A message keeps its Packet Identifier, and an acknowledgement is
/// sent only when the other broker has sent it. So the sessions of the two brokers have the whole state, and each
/// message that is not complete comes again after a loss of connections.
///
/// **Invariant:** a broker gets PUBACK, PUBREC or PUBCOMP for a message only after the other broker has sent it, or
/// when the message ends here. A refusal that may pass is not passed on.
#[derive(Debug)]
pub(crate) struct Flow {
    pub(crate) translator: Translator,
    pub(crate) counters: Counters,
    /// A lane for each sending broker.
    lanes: Sides<Lane>,
    /// Limits of the brokers on the present connections.
    terms: Option<Sides<Terms>>,
    /// PUBREL packets to each broker that release what an earlier session left open.
    sweeps: Sides<Option<Sweep>>,
    /// Messages of each sending broker that were refused for a reason that may pass.
    refusals: Sides<Refusals>,
    /// Broker that has refused a message for a reason that may pass, and the reason. Both connections must end.
    ends: Option<(Side, ReasonCode)>,
    outgoing_max: usize,
    /// True when identifiers are released at both brokers. Neither side can wait for the other then. So everything else
    /// is ignored, and comes again on the next connections.
    is_sweep_only: bool,
    /// True when messages that need an acknowledgement are left to their sender's session.
    is_draining: bool,
    /// Message from this broker that is not passed on, because the remote broker closes its connection each time.
    condemned: Option<PacketId>,
    /// Number of pairs of connections so far.
    pairs: u16,
}

/// The buffers of one direction, and the versions that packets in them have.
struct Ends<'a> {
    /// Buffer to the broker that the message comes from.
    source: &'a mut Unsent,
    /// Buffer to the broker that the message goes to.
    target: &'a mut Unsent,
}

impl Flow {
    pub(crate) fn new(translator: Translator, outgoing_max: usize) -> Self {
        Self {
            translator,
            counters: Counters::default(),
            lanes: Sides::default(),
            terms: None,
            sweeps: Sides::default(),
            refusals: Sides::default(),
            ends: None,
            outgoing_max,
            is_sweep_only: false,
            is_draining: false,
            condemned: None,
            pairs: 0,
        }
    }

    /// Replaces the rules of the translation, between connections.
    pub(crate) fn configure(&mut self, translator: Translator, outgoing_max: usize) {
        (self.translator, self.outgoing_max) = (translator, outgoing_max);
    }

    /// Returns the lane of the messages from `from`.
    pub(crate) fn lane(&self, from: Side) -> &Lane {
        self.lanes.of(from)
    }

    /// Returns the lane of the messages from `from`.
    pub(crate) fn lane_mut(&mut self, from: Side) -> &mut Lane {
        self.lanes.of_mut(from)
    }

    /// Drops a message from this broker when it comes again.
    pub(crate) fn condemn(&mut self, id: PacketId) {
        self.condemned = Some(id);
    }

    pub(crate) fn set_draining(&mut self, is_draining: bool) {
        self.is_draining = is_draining;
    }

    /// Starts with new connections.
    pub(crate) fn attach(&mut self, terms: Sides<Terms>) {
        self.reset();
        Side::ALL.iter().for_each(|from| self.refusals.of_mut(*from).attach());
        self.pairs = self.pairs.wrapping_add(1);
        self.terms = Some(terms);
    }

    /// Forgets the connections.
    pub(crate) fn reset(&mut self) {
        self.lanes.local.reset();
        self.lanes.remote.reset();
        self.sweeps = Sides::default();
        self.is_sweep_only = false;
        (self.terms, self.ends) = (None, None);
    }

    /// Notes that a broker has a new session, which sends other messages with the same identifiers.
    pub(crate) fn session_is_new(&mut self, side: Side) {
        self.lanes.of_mut(side).unreleased.sender_restarted();
        self.lanes.of_mut(side.other()).unreleased.receiver_restarted();
        self.refusals.of_mut(side).sender_restarted();
    }

    /// Returns the broker that has refused a message for a reason that may pass, and the reason. Both connections must
    /// end then, so that the message comes again.
    pub(crate) fn take_refusal(&mut self) -> Option<(Side, ReasonCode)> {
        self.ends.take()
    }

    /// Starts to release identifiers at `at`, if the sender of the messages to it has lost its session. A broker
    /// without QoS 2 keeps none, and may take a PUBREL for an error.
    pub(crate) fn start_sweep(&mut self, at: Side) {
        let has_exactly_once =
            self.terms.as_ref().is_some_and(|terms| terms.of(at).maximum_qos == QoS::ExactlyOnce);
        if has_exactly_once && !mutated(Mutation::SkipSweep) {
            *self.sweeps.of_mut(at) = self.lanes.of_mut(at.other()).unreleased.sweep();
        }
        self.is_sweep_only = Side::ALL.iter().all(|side| self.is_sweeping(*side));
    }

    /// Ends sweeps that a broker does not answer.
    pub(crate) fn abandon_sweeps(&mut self) {
        for at in Side::ALL {
            if self.sweeps.of_mut(at).take().is_some() {
                self.lanes.of_mut(at.other()).unreleased.abandon();
                self.counters.sweeps_abandoned += 1;
            }
        }
    }

    /// Returns whether identifiers at `at` are being released.
    pub(crate) fn is_sweeping(&self, at: Side) -> bool {
        self.sweeps.of(at).is_some()
    }

    /// Returns whether packets from `from` must wait, because identifiers at the other broker are being released.
    pub(crate) fn must_wait(&self, from: Side) -> bool {
        self.is_sweeping(from.other()) && !self.is_sweep_only
    }

    /// Number of identifiers that are being released; 0 when there is no sweep.
    pub(crate) fn sweep_remaining(&self) -> usize {
        let sweeps = [&self.sweeps.local, &self.sweeps.remote];
        sweeps.into_iter().flatten().map(Sweep::remaining).sum()
    }

    /// Continues to release identifiers at `at`.
    pub(crate) fn write_sweep(&mut self, at: Side, out: &mut Unsent) {
        if let Some(sweep) = self.sweeps.of_mut(at) {
            self.counters.released += sweep.write(self.outgoing_max, out);
            if sweep.is_done(&mut self.lanes.of_mut(at.other()).unreleased) {
                *self.sweeps.of_mut(at) = None;
            }
        }
    }

    /// Handles a packet from the broker `from`. `own` is the buffer to that broker, `other` the one to the other.
    pub(crate) fn handle(&mut self, from: Side, packet: Packet<'_>, own: &mut Unsent, other: &mut Unsent) {
        let Some(terms) = self.terms.clone() else { return };
        if self.is_sweep_only && packet.packet_type() != PacketType::PubComp {
            if matches!(packet, Packet::Publish(publish) if publish.qos == QoS::AtMostOnce) {
                self.counters.dropped.of_mut(from)[Dropped::NotReady as usize] += 1;
            }
            return;
        }
        // A message and its PUBREL come from the sender, the other acknowledgements from the receiver.
        match packet {
            Packet::Publish(publish) => {
                let mut ends = Ends { source: own, target: other };
                self.publish(from, &terms, &publish, &mut ends);
            }
            Packet::PubRel(ack) => {
                let mut ends = Ends { source: own, target: other };
                self.pubrel(from, &terms, ack.packet_id, &mut ends);
            }
            Packet::PubAck(ack) | Packet::PubRec(ack) | Packet::PubComp(ack) => {
                if packet.packet_type() == PacketType::PubComp {
                    if let Some(sweep) = self.sweeps.of_mut(from) {
                        return sweep.answered();
                    }
                    if self.is_sweep_only {
                        return;
                    }
                }
                let mut ends = Ends { source: other, target: own };
                let sender = from.other();
                self.acknowledged(sender, &terms, packet.packet_type(), ack, &mut ends);
                self.release_held(sender, &terms, &mut ends);
            }
            _ => {}
        }
    }

    /// Handles a message from `from` whose packet was too large and is discarded. `own` is the buffer to that broker.
    pub(crate) fn discard(&mut self, from: Side, qos: QoS, packet_id: Option<PacketId>, own: &mut Unsent) {
        let Some(terms) = self.terms.clone() else { return };
        self.counters.dropped.of_mut(from)[Dropped::TooLarge as usize] += 1;
        if let Some(id) = packet_id {
            self.complete(from, &terms, id, qos, Dropped::TooLarge.reason_code(), own);
        }
    }

    fn publish(&mut self, from: Side, terms: &Sides<Terms>, publish: &Publish<'_>, ends: &mut Ends<'_>) {
        let lane = self.lanes.of_mut(from);
        if publish.qos > QoS::AtMostOnce && (self.is_draining || lane.is_skipping()) {
            return;
        }
        let is_full = publish.qos > QoS::AtMostOnce
            && lane.counted() >= self.refusals.of(from).window(terms.of(from.other()).receive_maximum)
            && !mutated(Mutation::HoldNothing);
        if lane.is_holding() || is_full {
            let mut packet = Vec::new();
            Packet::Publish(*publish).encode(terms.of(from).version, &mut packet);
            if lane.hold(publish.qos, packet, self.outgoing_max) {
                *self.counters.held.of_mut(from) += 1;
            } else if publish.qos == QoS::AtMostOnce {
                self.counters.dropped.of_mut(from)[Dropped::BufferFull as usize] += 1;
            }
            return;
        }
        self.forward(from, terms, publish, ends);
    }

    /// Returns whether messages were ignored that must come again, and nothing else is in flight with them. Then both
    /// connections must start again, and this call counts it.
    pub(crate) fn must_restart(&mut self) -> bool {
        if self.is_sweep_only {
            let is_done = self.sweep_remaining() == 0;
            self.counters.resets += u64::from(is_done);
            return is_done;
        }
        let lanes = [&self.lanes.local, &self.lanes.remote];
        let is_due = lanes.into_iter().any(|lane| lane.is_skipping() && lane.in_flight() == 0);
        self.counters.restarts += u64::from(is_due);
        is_due
    }

    /// Sends packets that waited for the receiver's Receive Maximum.
    fn release_held(&mut self, from: Side, terms: &Sides<Terms>, ends: &mut Ends<'_>) {
        let window = self.refusals.of(from).window(terms.of(from.other()).receive_maximum);
        loop {
            let lane = self.lanes.of_mut(from);
            if lane.counted() >= window || self.ends.is_some() {
                return;
            }
            let Some(packet) = lane.unhold() else { return };
            if let Ok(Packet::Publish(publish)) = decode(terms.of(from).version, &packet) {
                self.forward(from, terms, &publish, ends);
            }
        }
    }

    fn forward(&mut self, from: Side, terms: &Sides<Terms>, publish: &Publish<'_>, ends: &mut Ends<'_>) {
        let target = terms.of(from.other());
        if from == Side::Local && publish.packet_id.is_some() && self.condemned == publish.packet_id {
            self.condemned = None;
            return self.drop_message(from, terms, publish, Dropped::ClosesConnection, ends);
        }
        let translated = match self.translator.translate(from, publish, terms) {
            Ok(translated) => translated,
            Err(cause) => return self.drop_message(from, terms, publish, cause, ends),
        };
        let outgoing = Outgoing {
            dup: publish.dup,
            qos: translated.qos,
            retain: translated.retain,
            packet_id: publish.packet_id.map(|id| self.identifier(from, id)),
            topic: &translated.topic,
            topic_alias: None,
            message_expiry: translated.message_expiry,
            subscription_ids: &[],
            properties: self.translator.properties().as_bytes(),
            payload: publish.payload,
        };
        let length = outgoing.encoded_len(target.version);
        if length > target.packet_size_max as usize {
            return self.drop_message(from, terms, publish, Dropped::TooLarge, ends);
        }
        let is_full = !ends.target.is_empty() && ends.target.len() + length > self.outgoing_max;
        if publish.qos == QoS::AtMostOnce && is_full {
            return self.drop_message(from, terms, publish, Dropped::BufferFull, ends);
        }
        if translated.qos < QoS::ExactlyOnce {
            release_earlier(publish, target, ends);
        }
        outgoing.encode(target.version, ends.target.buffer());
        let traffic = &mut self.counters.messages.of_mut(from)[translated.qos as usize];
        traffic.messages += 1;
        traffic.bytes += length as u64;
        if let Some(id) = publish.packet_id {
            self.published(from, terms, id, (publish.qos, translated.qos), ends);
        }
    }

    /// Notes the first step of a message that needs an acknowledgement.
    fn published(
        &mut self,
        from: Side,
        terms: &Sides<Terms>,
        id: PacketId,
        (came, went): (QoS, QoS),
        ends: &mut Ends<'_>,
    ) {
        if went == QoS::AtMostOnce {
            return self.complete(from, terms, id, came, ReasonCode::Success, ends.source);
        }
        let lane = self.lanes.of_mut(from);
        if went == QoS::ExactlyOnce {
            lane.unreleased.insert(id);
        }
        lane.publish(id, Step::Published { came, went });
        if mutated(Mutation::AcknowledgeEarly) {
            if came == QoS::ExactlyOnce {
                put_short_ack(PacketType::PubRec, id, ends.source.buffer());
                lane.set(id, Step::Received);
            } else {
                put_short_ack(PacketType::PubAck, id, ends.source.buffer());
                lane.remove(id);
            }
        }
    }

    fn drop_message(
        &mut self,
        from: Side,
        terms: &Sides<Terms>,
        publish: &Publish<'_>,
        cause: Dropped,
        ends: &mut Ends<'_>,
    ) {
        self.counters.dropped.of_mut(from)[cause as usize] += 1;
        release_earlier(publish, terms.of(from.other()), ends);
        if let Some(id) = publish.packet_id {
            self.complete(from, terms, id, publish.qos, cause.reason_code(), ends.source);
        }
    }

    /// Acknowledges a message to its sender: the receiver has finished with it, or never gets it.
    fn complete(
        &mut self,
        from: Side,
        terms: &Sides<Terms>,
        id: PacketId,
        qos: QoS,
        reason: ReasonCode,
        source: &mut Unsent,
    ) {
        let version = terms.of(from).version;
        let lane = self.lanes.of_mut(from);
        lane.remove(id);
        if qos == QoS::ExactlyOnce {
            // A failure ends the message. Otherwise, and before 5.0 always, the sender continues with PUBREL.
            if !reason.is_error() || !version.has_receive_maximum() {
                lane.set(id, Step::EndsHere);
            }
            put_ack(PacketType::PubRec, id, reason, version, source);
        } else {
            put_ack(PacketType::PubAck, id, reason, version, source);
        }
    }

    fn pubrel(&mut self, from: Side, terms: &Sides<Terms>, id: PacketId, ends: &mut Ends<'_>) {
        let target_id = self.identifier(from, id);
        let lane = self.lanes.of_mut(from);
        let step = lane.step(id);
        let is_resumed = step.is_none();
        // A broker without QoS 2 never had the message as QoS 2. It may take a PUBREL for an error.
        let ends_here = step == Some(Step::EndsHere)
            || is_resumed && terms.of(from.other()).maximum_qos < QoS::ExactlyOnce
            || is_resumed && mutated(Mutation::ForgetPubRel);
        if ends_here {
            lane.remove(id);
            put_short_ack(PacketType::PubComp, id, ends.source.buffer());
            return;
        }
        lane.unreleased.insert(id);
        lane.set(id, Step::Released { counted: !is_resumed });
        put_short_ack(PacketType::PubRel, target_id, ends.target.buffer());
    }

    fn acknowledged(
        &mut self,
        from: Side,
        terms: &Sides<Terms>,
        packet_type: PacketType,
        ack: Ack<'_>,
        ends: &mut Ends<'_>,
    ) {
        let id = self.identifier(from, ack.packet_id);
        let version = terms.of(from).version;
        let lane = self.lanes.of_mut(from);
        let step = lane.step(id);
        let is_answer = matches!(
            (packet_type, step),
            (PacketType::PubAck, Some(Step::Published { went: QoS::AtLeastOnce, .. }))
                | (PacketType::PubRec, Some(Step::Published { went: QoS::ExactlyOnce, .. }))
        );
        if is_answer && may_pass(ack.reason) && !mutated(Mutation::EndRefused) {
            return self.refused(from, terms, id, ack.reason, ends);
        }
        lane.acknowledgements += u64::from(step.is_some());
        match (packet_type, step) {
            (PacketType::PubAck, Some(Step::Published { came, .. })) if is_answer => {
                self.note_reason(from, ack.reason);
                self.complete(from, terms, id, came, ack.reason, ends.source);
            }
            (PacketType::PubRec, Some(Step::Published { came, .. })) if is_answer => {
                self.note_reason(from, ack.reason);
                if ack.reason.is_error() {
                    self.lanes.of_mut(from).unreleased.remove(id);
                    self.complete(from, terms, id, came, ack.reason, ends.source);
                } else {
                    self.lanes.of_mut(from).set(id, Step::Received);
                    put_ack(PacketType::PubRec, id, ack.reason, version, ends.source);
                }
            }
            (PacketType::PubComp, Some(Step::Released { .. })) => {
                lane.remove(id);
                lane.unreleased.remove(id);
                // A broker that lost its session does not know the identifier. The message is complete all the same.
                put_short_ack(PacketType::PubComp, id, ends.source.buffer());
            }
            // The answer to a PUBREL of `release_earlier`, or of a sweep that was abandoned.
            (PacketType::PubComp, _) => {}
            _ => self.counters.unexpected_acks += 1,
        }
        if is_answer {
            let next = self.refusals.of_mut(from).answered(id);
            self.obey(from, terms, next, ends);
        }
    }

    /// Handles a refusal that may pass. The message gets no acknowledgement, so that its sender keeps it.
    fn refused(
        &mut self,
        from: Side,
        terms: &Sides<Terms>,
        id: PacketId,
        reason: ReasonCode,
        ends: &mut Ends<'_>,
    ) {
        let lane = self.lanes.of_mut(from);
        // The receiver does not keep the identifier of a message that it refuses [MQTT-4.3.3-9].
        lane.unreleased.remove(id);
        let unanswered = lane.unacknowledged();
        let next = self.refusals.of_mut(from).refused(id, reason, unanswered);
        self.obey(from, terms, next, ends);
    }

    /// Gives up a message that was refused too often, and ends the connections if that is due.
    fn obey(&mut self, from: Side, terms: &Sides<Terms>, next: Next, ends: &mut Ends<'_>) {
        if let Some((id, reason)) = next.given_up
            && let Some(Step::Published { came, .. }) = self.lanes.of(from).step(id)
        {
            self.note_reason(from, reason);
            self.complete(from, terms, id, came, reason, ends.source);
        }
        if let Some(reason) = next.ends {
            *self.counters.postponed.of_mut(from) += 1;
            self.ends = Some((from.other(), reason));
        }
    }

    fn note_reason(&mut self, from: Side, reason: ReasonCode) {
        if reason.is_error() {
            *self.counters.refused.of_mut(from).entry(reason).or_default() += 1;
        }
        *self.counters.unmatched.of_mut(from) += u64::from(reason == ReasonCode::NoMatchingSubscribers);
    }

    /// Returns the identifier on the other connection, which is the same.
    fn identifier(&self, from: Side, id: PacketId) -> PacketId {
        if from == Side::Local && mutated(Mutation::NewIdentifiers) {
            return PacketId::new(id.get() ^ (self.pairs % 8) << 8).unwrap_or(id);
        }
        id
    }

    pub(crate) fn check_invariants(&self) {
        self.lanes.local.check_invariants();
        self.lanes.remote.check_invariants();
    }
}

/// Releases the identifier of a message that is not passed on with QoS 2. Before the settings changed, it may have been
/// sent with QoS 2. The receiver would keep the identifier, and take a later message for this one.
fn release_earlier(publish: &Publish<'_>, target: &Terms, ends: &mut Ends<'_>) {
    if let Some(id) = publish.packet_id
        && publish.dup
        && publish.qos == QoS::ExactlyOnce
        && target.maximum_qos == QoS::ExactlyOnce
    {
        put_short_ack(PacketType::PubRel, id, ends.target.buffer());
    }
}

fn put_ack(
    packet_type: PacketType,
    packet_id: PacketId,
    reason: ReasonCode,
    version: Version,
    out: &mut Unsent,
) {
    let ack = Ack { packet_id, reason, properties: Properties::EMPTY };
    let packet = match packet_type {
        PacketType::PubAck => Packet::PubAck(ack),
        _ => Packet::PubRec(ack),
    };
    if !packet.encode(version, out.buffer()) {
        put_short_ack(packet_type, packet_id, out.buffer());
    }
}
