//! A test host: it applies commands one by one, and keeps their records.
#![allow(dead_code, reason = "each test uses its part")]

use mqtt::{PacketId, QoS};
use shard::{
    Acknowledgement, Answer, BatchBuilder, Claim, Command, Effect, Filter, Limits, MessageKey, MessageView,
    NEVER, PartId, RequestNumber, SessionUid, Shard, Will, WillFate,
};

pub const KEY: [u8; 16] = *b"nobody may know.";

pub struct Host {
    pub shard: Shard,
    pub now: u64,
    /// Records applied, in order; the first has index 1.
    pub log: Vec<Vec<u8>>,
}

impl Default for Host {
    fn default() -> Self {
        Self { shard: Shard::new(3, KEY), now: 0, log: Vec::new() }
    }
}

impl Host {
    pub fn with(limits: Limits) -> Self {
        let mut host = Self::default();
        assert_eq!(host.answer(&Command::Configure(limits)), Answer::Done);
        host
    }

    /// Applies one batch; returns its effects.
    pub fn apply(&mut self, commands: &[Command<'_>]) -> Vec<Effect> {
        let mut builder = BatchBuilder::new(self.now);
        for command in commands {
            builder.push(command);
        }
        self.append(builder.finish())
    }

    /// Applies a batch; returns its effects.
    pub fn append(&mut self, batch: Vec<u8>) -> Vec<Effect> {
        self.log.push(batch);
        let mut effects = Vec::new();
        let (index, batch) = (self.log.len() as u64, &self.log[self.log.len() - 1]);
        self.shard.apply(index, batch, &mut effects).expect("the next batch");
        self.shard.check_invariants();
        effects
    }

    /// Applies one command; returns its answer and its other effects.
    pub fn submit(&mut self, command: &Command<'_>) -> (Answer, Vec<Effect>) {
        let mut effects = self.apply(std::slice::from_ref(command));
        let at = effects.iter().position(|effect| matches!(effect, Effect::Answer { .. }));
        match effects.remove(at.expect("every command is answered")) {
            Effect::Answer { ordinal: 0, answer } => (answer, effects),
            other => panic!("{other:?}"),
        }
    }

    /// Applies a command with a number; returns its answer and its other effects.
    pub fn request_effects(&mut self, command: &Command<'_>, number: RequestNumber) -> (Answer, Vec<Effect>) {
        let mut builder = BatchBuilder::new(self.now);
        builder.push_numbered(command, number);
        let mut effects = self.append(builder.finish());
        let at = effects.iter().position(|effect| matches!(effect, Effect::Answer { .. }));
        match effects.remove(at.expect("every command is answered")) {
            Effect::Answer { ordinal: 0, answer } => (answer, effects),
            other => panic!("{other:?}"),
        }
    }

    pub fn request(&mut self, command: &Command<'_>, number: RequestNumber) -> Answer {
        self.request_effects(command, number).0
    }

    /// Applies a request again. Checks that it changes nothing, also in a shard that begins with a checkpoint.
    pub fn again(&mut self, command: &Command<'_>, number: RequestNumber) -> Answer {
        let parts = self.whole_checkpoint();
        let mut restored = restore(&parts, self.shard.applied());
        let digest = self.shard.digest();
        let (answer, effects) = self.request_effects(command, number);
        assert_eq!((effects, self.shard.digest()), (vec![], digest), "{command:?} comes again");
        let mut same = Vec::new();
        let (index, batch) = (self.log.len() as u64, &self.log[self.log.len() - 1]);
        restored.apply(index, batch, &mut same).expect("the next batch");
        assert_eq!(same, [Effect::Answer { ordinal: 0, answer: answer.clone() }]);
        assert_eq!(restored.digest(), digest);
        answer
    }

    /// Subscribes to everything at QoS 2, not on behalf of a connection.
    pub fn subscribe_to_all(&mut self, session: SessionUid) -> Vec<Effect> {
        self.subscribe((session, 0), "#", 2)
    }

    /// Claims a session with a number.
    pub fn claim_numbered(&mut self, claim: &Command<'_>, number: u64) -> SessionUid {
        match self.request(claim, RequestNumber::Claim { number }) {
            Answer::Claimed { session: Some(session), .. } => session,
            other => panic!("{other:?}"),
        }
    }

    pub fn answer(&mut self, command: &Command<'_>) -> Answer {
        self.submit(command).0
    }

    pub fn effects(&mut self, command: &Command<'_>) -> Vec<Effect> {
        self.submit(command).1
    }

    pub fn claim(&mut self, client_id: &str) -> (SessionUid, u32) {
        self.claim_as(&claim(client_id))
    }

    pub fn claim_as(&mut self, claim: &Claim<'_>) -> (SessionUid, u32) {
        match self.answer(&Command::Claim(claim.clone())) {
            Answer::Claimed { session: Some(session), epoch, .. } => (session, epoch),
            other => panic!("{other:?}"),
        }
    }

    pub fn release(&mut self, (session, epoch): (SessionUid, u32)) -> Vec<Effect> {
        self.effects(&Command::Release { session, epoch, expiry_s: None, will: WillFate::Arm })
    }

    pub fn subscribe(&mut self, (session, epoch): (SessionUid, u32), text: &str, options: u8) -> Vec<Effect> {
        let filters = vec![Filter { text, options, id: 0 }];
        self.effects(&Command::Subscribe { session, epoch, filters })
    }

    pub fn publish(&mut self, topic: &str) -> Vec<Effect> {
        self.effects(&publish(topic))
    }

    pub fn ack(&mut self, (session, epoch): (SessionUid, u32), id: u16, kind: Acknowledgement) -> Answer {
        self.ack_effects((session, epoch), id, kind).0
    }

    pub fn ack_effects(
        &mut self,
        (session, epoch): (SessionUid, u32),
        id: u16,
        kind: Acknowledgement,
    ) -> (Answer, Vec<Effect>) {
        let packet_id = PacketId::new(id).expect("not 0");
        self.submit(&Command::Acknowledge { session, epoch, packet_id, kind })
    }

    pub fn tick(&mut self, now: u64) -> Vec<Effect> {
        self.now = now;
        self.effects(&Command::Tick)
    }

    /// Returns the topics of the unfinished messages of a session, in order.
    pub fn queue(&self, session: SessionUid) -> Vec<String> {
        let session = self.shard.session(session).expect("is there");
        let needed = |phase| !matches!(phase, shard::Phase::Received | shard::Phase::Finished);
        let entries = session.entries(0).filter(|(_, entry)| needed(entry.phase));
        entries.map(|(_, entry)| self.message(entry.key).topic.to_owned()).collect()
    }

    pub fn message(&self, key: MessageKey) -> MessageView<'_> {
        shard::message_at(&self.log[key.index() as usize - 1], key).expect("a message is stored there")
    }

    /// Takes a checkpoint of all parts, as a shard that has never written one.
    pub fn whole_checkpoint(&self) -> Vec<(PartId, Vec<u8>)> {
        let mut replayed = Self::default();
        for batch in &self.log {
            replayed.append(batch.clone());
        }
        replayed.checkpoint()
    }

    /// Takes a whole checkpoint at once.
    pub fn checkpoint(&mut self) -> Vec<(PartId, Vec<u8>)> {
        let mut parts = Vec::new();
        self.shard.begin_checkpoint();
        while !self.shard.write_parts(1, &mut |part, bytes| parts.push((part, bytes.to_vec()))) {}
        parts
    }
}

pub fn restore(parts: &[(PartId, Vec<u8>)], index: u64) -> Shard {
    let mut shard = Shard::new(3, *b"another secret.."); // No result may depend on it.
    for (part, bytes) in parts.iter().filter(|(_, bytes)| !bytes.is_empty()) {
        shard.restore_part(*part, bytes).expect("a part");
    }
    shard.restored(index).expect("a checkpoint");
    shard
}

pub fn view(topic: &str) -> MessageView<'_> {
    MessageView {
        topic,
        properties: &[],
        payload: b"payload",
        qos: QoS::ExactlyOnce,
        retain: false,
        expires: NEVER,
        received: 0,
        publisher_key: 0,
    }
}

pub fn publish(topic: &str) -> Command<'_> {
    Command::Publish { message: view(topic), wait: true, identity: None }
}

pub fn claim(client_id: &str) -> Claim<'_> {
    Claim {
        client_id,
        user: 7,
        owner: None,
        connection: 70,
        clean_start: false,
        expiry_s: 100,
        window: 2,
        will: None,
        keeps_ephemeral: false,
        queue_limits: None,
    }
}

pub fn will(topic: &str, delay_s: u32) -> Option<Will<'_>> {
    Some(Will { message: view(topic), delay_s })
}

/// Describes effects without sessions: short enough to be compared as text.
pub fn describe(effects: &[Effect]) -> Vec<String> {
    let text = |effect: &Effect| match effect {
        Effect::Answer { answer, .. } => format!("{answer:?}"),
        Effect::Queued { n, pinned: true, .. } => format!("queued {n} pinned"),
        Effect::Queued { n, over: true, .. } => format!("queued {n} over"),
        Effect::Queued { n, .. } => format!("queued {n}"),
        Effect::Pinned { from, to, .. } => format!("pinned {from}..{to}"),
        Effect::Room { before, .. } => format!("room {before}"),
        Effect::Dropped { from, to, reason, .. } => format!("dropped {from}..{to} {reason:?}"),
        Effect::NotQueued { .. } => "not queued".to_owned(),
        Effect::SessionEnded { client_id, reason, .. } => format!("ended {client_id} {reason:?}"),
        Effect::FilterAdded { filter } => format!("added {filter}"),
        Effect::FilterRemoved { filter } => format!("removed {filter}"),
        Effect::WillDue { id, .. } => format!("will {id}"),
        Effect::Orphaned { id, .. } => format!("orphan {id}"),
        Effect::RetainedExpired { topic } => format!("expired {topic}"),
        Effect::RetainedChanged { messages, .. } => format!("retained {messages}"),
    };
    effects.iter().map(text).collect()
}
