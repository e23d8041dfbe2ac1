//! Turns bytes into commands. Compares the shard with the model after each, and with a replica that began with a
//! checkpoint.

use std::collections::{BTreeMap, BTreeSet};

use mqtt::{PacketId, QoS};
use shard::{
    Acknowledgement, Answer, BatchBuilder, Claim, Command, Cursor, Effect, Enqueue, Filter, Identity, Limits,
    MessageView, NEVER, NodeIncarnation, PartId, Phase, QueueFull, Rewrite, SessionUid, Shard, ShardId,
    ShardSet, WalkStep, Will, WillFate, fnv64,
};

use crate::model::{self, Message, Model};

/// Plays a program to its end. Panics when the shard differs from the model.
pub fn run(program: &[u8]) {
    let mut run = Run::new(Bytes(program));
    run.configure();
    while !run.bytes.0.is_empty() {
        run.step();
        run.finish_sweep();
        run.check();
    }
}

struct Run<'a> {
    bytes: Bytes<'a>,
    shard: Shard,
    model: Model,
    now: u64,
    log: Vec<Vec<u8>>,
    /// Present and past sessions of each client, the present one last.
    uids: BTreeMap<String, Vec<SessionUid>>,
    /// State that the effects imply: phase, and whether beyond the limits, by session and delivery.
    mirror: BTreeMap<SessionUid, BTreeMap<u64, (Phase, bool)>>,
    /// The parts of the last complete checkpoint, as a log holds them.
    stored: BTreeMap<PartId, Vec<u8>>,
    /// The unfinished checkpoint: its index and the pages written so far.
    writing: Option<(u64, Pages)>,
    replica: Option<Shard>,
    messages: u64,
}

type Pages = Vec<(PartId, Vec<u8>)>;

/// A program; it reads as zeros after its end.
struct Bytes<'a>(&'a [u8]);

impl Bytes<'_> {
    fn next(&mut self) -> u8 {
        let Some((first, rest)) = self.0.split_first() else { return 0 };
        self.0 = rest;
        *first
    }

    fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::from(self.next()) % choices.len()]
    }

    fn flag(&mut self) -> bool {
        self.next() & 1 == 1
    }
}

const CLIENTS: [&str; 4] = ["a", "b", "longer-name", "d"];
const TOPICS: [&str; 4] = ["t/0", "t/1", "u", "t/1/x"];
const FILTERS: [&str; 6] = ["t/0", "t/+", "#", "u", "t/#", "$share/g/u"];
/// Sizes of payloads. The size of a message is its topic and payload, which the shard counts in units of 8.
const PAYLOADS: [usize; 3] = [8, 24, 200];

impl<'a> Run<'a> {
    fn new(bytes: Bytes<'a>) -> Self {
        Self {
            bytes,
            shard: Shard::new(5, [1; 16]),
            model: Model::default(),
            now: 0,
            log: Vec::new(),
            uids: BTreeMap::new(),
            mirror: BTreeMap::new(),
            stored: BTreeMap::new(),
            writing: None,
            replica: None,
            messages: 0,
        }
    }

    fn step(&mut self) {
        match self.bytes.next() % 26 {
            0..5 => self.publish(),
            5..9 => self.acknowledge(),
            9 | 10 => self.claim(),
            11 => self.release(),
            12 => self.subscribe(),
            13 => self.pass_time(),
            14 => self.enqueue(),
            15 | 16 => self.inbound(),
            17 => self.overdue(),
            18 => self.configure(),
            19 => self.retain(),
            20 => self.start_again(),
            21 => self.rewrite(),
            24 => self.end_node(),
            22 => self.forget(),
            23 => self.walk(),
            _ => self.checkpoint(),
        }
    }

    fn apply(&mut self, command: &Command<'_>) -> Answer {
        let mut builder = BatchBuilder::new(self.now);
        builder.push(command);
        let batch = builder.finish();
        self.log.push(batch);
        let (index, batch) = (self.log.len() as u64, &self.log[self.log.len() - 1]);
        let mut effects = Vec::new();
        // Every other record is applied in portions of one effect.
        let portion = if index.is_multiple_of(2) { 1 } else { usize::MAX };
        while !self.shard.apply_some(index, batch, portion, &mut effects).expect("the next batch") {
            assert!(self.shard.is_midway() && self.shard.applied() == index - 1);
            self.shard.check_invariants();
        }
        if let Some(replica) = &mut self.replica {
            let mut same = Vec::new();
            replica.apply(index, batch, &mut same).expect("the next batch");
            assert_eq!(same, effects, "a replica that began with a checkpoint has the same effects");
        }
        if let Command::Acknowledge { session, .. } = command {
            self.mirror_answer(*session, &effects);
        }
        let mut answer = None;
        for effect in effects {
            self.mirror_effect(&effect);
            if let Effect::Answer { answer: said, .. } = effect {
                assert!(answer.replace(said).is_none(), "one answer");
            }
        }
        self.model.now = self.shard.now();
        answer.expect("every command is answered")
    }

    fn mirror_answer(&mut self, session: SessionUid, effects: &[Effect]) {
        let Some(queue) = self.mirror.get_mut(&session) else { return };
        for effect in effects {
            match effect {
                Effect::Answer { answer: Answer::Finished { n }, .. } => drop(queue.remove(n)),
                Effect::Answer { answer: Answer::Release { n, .. }, .. } => {
                    queue.insert(*n, (Phase::Received, false));
                }
                _ => {}
            }
        }
    }

    fn mirror_effect(&mut self, effect: &Effect) {
        match effect {
            Effect::Queued { session, n, pinned, over, .. } => {
                let phase = if *pinned { Phase::Pinned } else { Phase::Waiting };
                assert!(self.mirror.entry(*session).or_default().insert(*n, (phase, *over)).is_none());
            }
            Effect::Pinned { session, from, to } => {
                for n in *from..*to {
                    let queue = self.mirror.entry(*session).or_default();
                    let (phase, _) = queue.get_mut(&n).expect("was queued");
                    if *phase == Phase::Waiting {
                        queue.insert(n, (Phase::Pinned, false));
                    }
                }
            }
            Effect::Room { session, before } => {
                let queue = self.mirror.entry(*session).or_default();
                queue.range_mut(..before).for_each(|(_, (_, over))| *over = false);
            }
            Effect::Dropped { session, from, to, .. } => {
                for n in *from..*to {
                    let dropped = self.mirror.entry(*session).or_default().remove(&n);
                    assert_eq!(dropped.map(|(phase, _)| phase), Some(Phase::Waiting));
                }
            }
            Effect::SessionEnded { session, .. } => drop(self.mirror.remove(session)),
            _ => {}
        }
    }

    fn client(&mut self) -> &'static str {
        self.bytes.of(&CLIENTS)
    }

    /// Chooses a session of a client, which may be gone, and the epoch of its owner, which may be stale. True when
    /// neither is.
    fn owner(&mut self, client: &str) -> (SessionUid, u32, bool) {
        let (kind, uids) = (self.bytes.next(), self.uids.get(client));
        let nobody = SessionUid::from_u64(77 << 24);
        let session = self.model.sessions.get(client);
        match (session, uids.map(Vec::as_slice)) {
            (Some(session), Some([.., uid])) if kind % 16 != 0 => {
                let epoch = if kind % 16 == 1 { session.epoch ^ 0x100 } else { session.epoch };
                (*uid, epoch, session.owned && epoch == session.epoch)
            }
            (None, Some([first, ..])) | (Some(_), Some([first, _, ..])) => (*first, 1, false),
            _ => (nobody, 1, false),
        }
    }

    fn payload(&mut self) -> Vec<u8> {
        self.messages += 1;
        let mut payload = vec![0; self.bytes.of(&PAYLOADS)];
        payload[..8].copy_from_slice(&self.messages.to_le_bytes());
        payload
    }

    fn message<'m>(&mut self, payload: &'m [u8]) -> (MessageView<'m>, Message<'m>) {
        let topic = self.bytes.of(&TOPICS);
        let flags = self.bytes.next();
        let publisher = CLIENTS[usize::from(flags >> 3 & 3)];
        let qos = if flags & 3 == 0 { QoS::AtLeastOnce } else { QoS::ExactlyOnce };
        let expires = if flags >> 5 == 0 { self.now + u64::from(flags) * 100 } else { NEVER };
        let view = MessageView {
            topic,
            properties: &[],
            payload,
            qos,
            retain: flags & 4 != 0,
            expires,
            received: self.now,
            publisher_key: fnv64(publisher.as_bytes()),
        };
        let size = view.encoded_len().next_multiple_of(8) as u64;
        let (payload, retain) = (payload.to_vec(), view.retain);
        (view, Message { topic, payload, size, qos, retain, expires, publisher })
    }

    fn publish(&mut self) {
        let payload = self.payload();
        let (view, message) = self.message(&payload);
        let choice = self.bytes.next();
        let identity = Identity { origin: 1, number: u64::from(choice >> 2 & 7) };
        let identity = (choice & 1 == 1).then_some(identity);
        let wait = choice & 2 == 0;
        let answer = self.apply(&Command::Publish { message: view, wait, identity });
        if let Some(Identity { origin, number }) = identity {
            if !self.model.identities.insert((origin, number)) {
                return assert_eq!(answer, Answer::Repeated);
            }
            self.model.identities.remove(&(origin, number ^ 1));
        }
        assert_eq!(answer, Answer::Published { matched: self.model.publish(&message, wait) });
    }

    fn enqueue(&mut self) {
        let client = self.client();
        let (session, ..) = self.owner(client);
        let payload = self.payload();
        let (message, modelled) = self.message(&payload);
        let choice = self.bytes.next();
        let (ids, retain) = (vec![9; usize::from(choice >> 4 & 3)], choice & 1 == 1);
        let identity =
            (choice & 2 == 2).then_some(Identity { origin: 2, number: u64::from(choice >> 2 & 1) });
        let group = (choice & 8 == 8).then_some("$share/g/u");
        let qos = message.qos;
        let enqueue = Enqueue { session, message, qos, retain, ids: ids.clone(), identity, group };
        let answer = self.apply(&Command::Enqueue(enqueue));
        let identity = identity.map(|identity| (identity.origin, identity.number));
        if identity.is_some_and(|identity| self.model.identities.contains(&identity)) {
            return assert_eq!(answer, Answer::Repeated);
        }
        if !self.is_there(client, session) {
            return assert_eq!(answer, Answer::Gone);
        }
        assert_eq!(answer, Answer::Done);
        self.model.identities.extend(identity);
        self.model.enqueue(client, &modelled, qos, retain, ids, group.is_some(), true);
    }

    fn is_there(&self, client: &str, session: SessionUid) -> bool {
        self.model.sessions.contains_key(client)
            && self.uids.get(client).and_then(|uids| uids.last()) == Some(&session)
    }

    fn acknowledge(&mut self) {
        let client = self.client();
        let (session, epoch, fine) = self.owner(client);
        let choice = self.bytes.next();
        let open = self.model.sessions.get(client).map_or(&[][..], |session| &session.entries);
        // The choice is usually an open delivery, sometimes any other.
        let n = match open.get(usize::from(choice >> 3) % open.len().clamp(1, 4)) {
            Some(entry) if choice != 255 => entry.n,
            _ => u64::from(choice),
        };
        use Acknowledgement::*;
        let kind = self.bytes.of(&[PubAck, PubRec, PubComp, PubAck, PubRec, PubComp, PubRecRefused, Skip]);
        let packet_id = shard::packet_id(n);
        let answer = self.apply(&Command::Acknowledge { session, epoch, packet_id, kind });
        if !fine {
            return assert!(matches!(answer, Answer::Stale | Answer::Gone), "{answer:?}");
        }
        let known = self.model.acknowledge(client, packet_id.get(), kind);
        assert_eq!(matches!(answer, Answer::Finished { .. } | Answer::Release { .. }), known, "{answer:?}");
    }

    fn claim(&mut self) {
        let client = self.client();
        let choice = self.bytes.next();
        let payload = self.payload();
        let (message, _) = self.message(&payload);
        let delay_s = self.bytes.of(&[0, 5, 100, u32::MAX]);
        let will = (choice & 1 == 1).then_some(Will { message, delay_s });
        let clean_start = choice & 6 == 6;
        let expiry_s = self.bytes.of(&[60, 0, 600, u32::MAX, 600]);
        let window = self.bytes.of(&[1, 2, 5, 0, 5]);
        let (connection, user) = (u64::from(choice), 0);
        let owner = self.node();
        let claim = Claim { client_id: client, user, owner, connection, clean_start, expiry_s, window, will };
        let answer = self.apply(&Command::Claim(claim));
        if !self.model.enter(owner) {
            return assert_eq!(answer, Answer::Stale);
        }
        let payload = payload.clone();
        let will = will.map(|_| model::Will { payload, delay_s, due: NEVER });
        let (present, epoch) = self.model.claim(client, owner, (clean_start, expiry_s, window), will);
        let Answer::Claimed { session, epoch: said, present: was } = answer else { panic!("{answer:?}") };
        assert_eq!((was, session.map(|_| said)), (present, epoch));
        if let Some(uid) = session {
            let uids = self.uids.entry(client.to_owned()).or_default();
            assert_eq!(uids.last() == Some(&uid), present, "the same session or another");
            if !present {
                uids.push(uid);
            }
        }
    }

    fn release(&mut self) {
        let client = self.client();
        let (session, epoch, fine) = self.owner(client);
        let expiry_s = self.bytes.of(&[None, None, Some(0), Some(30), Some(u32::MAX)]);
        let will = self.bytes.of(&[WillFate::Arm, WillFate::Discard, WillFate::Arm]);
        let answer = self.apply(&Command::Release { session, epoch, expiry_s, will });
        if fine {
            self.model.release(client, expiry_s, will == WillFate::Arm);
        }
        assert_eq!(answer == Answer::Done, fine, "{answer:?}");
    }

    fn walk(&mut self) {
        let client = self.client();
        let (session, ..) = self.owner(client);
        let fine = self.is_there(client, session);
        let (filter, after) = (self.bytes.of(&FILTERS), self.bytes.of(&TOPICS));
        let byte = self.bytes.next();
        let done: ShardSet = (0..8).filter(|shard| byte >> shard & 1 == 1).map(ShardId).collect();
        let step = match byte % 4 {
            0 => WalkStep::Begin,
            1 => WalkStep::BeginIfNew,
            2 => WalkStep::At { done, after },
            _ => WalkStep::End,
        };
        let answer = self.apply(&Command::Walk { session, filter, step });
        assert_eq!(answer, if fine { Answer::Done } else { Answer::Gone });
        let maximum = self.model.limits.subscriptions_max as usize;
        let Some(session) = self.model.sessions.get_mut(client).filter(|_| fine) else { return };
        let at = match step {
            WalkStep::End => {
                session.walks.remove(filter);
                return;
            }
            WalkStep::BeginIfNew if session.subscriptions.contains_key(filter) => return,
            WalkStep::Begin | WalkStep::BeginIfNew => (ShardSet::EMPTY, ""),
            WalkStep::At { done, after } => (done, after),
        };
        if session.walks.len() < maximum || session.walks.contains_key(filter) {
            session.walks.insert(filter.to_owned(), at);
        }
    }

    fn subscribe(&mut self) {
        let client = self.client();
        let (session, mut epoch, mut fine) = self.owner(client);
        let text = self.bytes.of(&FILTERS);
        let choice = self.bytes.next();
        if choice >> 6 == 3 {
            (epoch, fine) = (0, self.is_there(client, session));
        }
        let known =
            self.model.sessions.get(client).is_some_and(|session| session.subscriptions.contains_key(text));
        if choice >> 6 == 0 {
            let answer = self.apply(&Command::Unsubscribe { session, epoch, filters: vec![text] });
            let Answer::Unsubscribed { results } = answer else { return assert!(!fine, "{answer:?}") };
            assert!(fine && (results[0] == mqtt::ReasonCode::Success) == known);
            let session = self.model.sessions.get_mut(client).expect("is there");
            session.subscriptions.remove(text);
            if known {
                session.walks.remove(text);
            }
            return;
        }
        let options = (choice & 0xF).min(if choice & 3 == 3 { choice & 0xC } else { 0xF });
        let id = u32::from(choice >> 4 & 3);
        let filters = vec![Filter { text, options, id }];
        let answer = self.apply(&Command::Subscribe { session, epoch, filters });
        let Answer::Subscribed { results } = answer else { return assert!(!fine, "{answer:?}") };
        let maximum = self.model.limits.subscriptions_max as usize;
        let session = self.model.sessions.get_mut(client).expect("is there");
        let refused = !known && session.subscriptions.len() >= maximum;
        assert_eq!((results[0].existed, results[0].reason.is_error()), (known, refused));
        if !refused {
            session.subscriptions.insert(text.to_owned(), (options, id));
        }
    }

    fn pass_time(&mut self) {
        self.now += u64::from(self.bytes.next()) * self.bytes.of(&[1, 100, 1_000, 10_000]);
        if self.bytes.flag() {
            while self.apply(&Command::Tick) == (Answer::Progress { more: true }) {}
            self.model.tick();
        }
    }

    fn inbound(&mut self) {
        let client = self.client();
        let (session, epoch, fine) = self.owner(client);
        let choice = self.bytes.next();
        let id = self.bytes.of(&[1, 2, 63, 64, u16::MAX]);
        let packet_id = PacketId::new(id).expect("not 0");
        let answer = self.apply(&match choice % 4 {
            0 | 1 => Command::Receive { session, epoch, packet_id },
            2 => Command::Released { session, epoch, packet_id },
            _ => Command::Refuse { session, epoch, packet_id },
        });
        if !fine {
            return assert!(matches!(answer, Answer::Stale | Answer::Gone), "{answer:?}");
        }
        let session = self.model.sessions.get_mut(client).expect("is there");
        let known = session.received.contains(&id);
        let expected = if choice % 4 < 2 {
            session.received.extend((!known).then_some(id));
            Answer::Received { toggle: session.toggles.contains(&id), again: known }
        } else {
            session.received.retain(|other| *other != id);
            if known && choice % 4 == 2 && !session.toggles.remove(&id) {
                session.toggles.insert(id);
            }
            if known { Answer::Done } else { Answer::Unknown }
        };
        assert_eq!(answer, expected);
    }

    fn overdue(&mut self) {
        let client = self.client();
        let (session, ..) = self.owner(client);
        let answer = self.apply(&Command::Overdue { session });
        let there = self.is_there(client, session);
        assert_eq!(answer, if there { Answer::Done } else { Answer::Gone });
        if there {
            self.model.settle(client);
            self.model.pump(client);
        }
    }

    fn configure(&mut self) {
        let limits = Limits {
            queue_messages_max: self.bytes.of(&[3, 1, 8]),
            queue_bytes_max: self.bytes.of(&[1 << 20, 300, 100]),
            queue_age_max_ms: self.bytes.of(&[NEVER, NEVER, 50_000]),
            queue_full: self.bytes.of(&[QueueFull::DropOldest, QueueFull::DropNewest]),
            absent_bytes_max: self.bytes.of(&[NEVER, NEVER, 200, 0]),
            subscriptions_max: self.bytes.of(&[100, 2]),
        };
        self.apply(&Command::Configure(limits));
        self.model.limits = limits;
        // The shard releases deliveries that the old limits held back at the next event of each session; the model
        // does it at once.
        for client in CLIENTS {
            let Some(session) = self.model.sessions.get(client).filter(|session| session.owned) else {
                continue;
            };
            let uid = self.uids[client].last().copied().expect("is there");
            let packet_id = shard::packet_id(0);
            let kind = Acknowledgement::Skip;
            let epoch = session.epoch;
            let answer = self.apply(&Command::Acknowledge { session: uid, epoch, packet_id, kind });
            self.model.acknowledge(client, packet_id.get(), kind);
            drop(answer);
            self.apply(&Command::Overdue { session: uid });
            self.model.settle(client);
            self.model.pump(client);
        }
    }

    fn retain(&mut self) {
        let payload = if self.bytes.next() < 64 { Vec::new() } else { self.payload() };
        let (message, modelled) = self.message(&payload);
        let answer = self.apply(&Command::Retain { message });
        let topic = modelled.topic.to_owned();
        let before = match payload.is_empty() {
            true => self.model.retained.remove(&topic),
            false => self.model.retained.insert(topic, (payload.clone(), message.expires)),
        };
        assert_eq!(answer, Answer::Retained { replaced: before.is_some() });
    }

    /// Crashes and restarts the node; other commands come before the sweep is complete.
    fn start_again(&mut self) {
        let elapsed_ms = u64::from(self.bytes.next()) * 1_000;
        self.now = self.shard.now() + elapsed_ms;
        self.apply(&Command::Started { incarnation: 1, elapsed_ms });
        assert_eq!(self.shard.now(), self.now);
        self.model.start_alone();
        self.sweep();
    }

    /// Ends a node of the cluster; other commands come before the sweep is complete.
    fn end_node(&mut self) {
        let Some(owner) = self.node() else { return };
        assert_eq!(self.apply(&Command::NodeEnded(owner)), Answer::Done);
        self.model.end_node(owner);
        self.sweep();
    }

    /// Chooses an incarnation of a node: the last one that was chosen, an earlier one or the next. `None` is a node
    /// that holds the shard alone.
    fn node(&mut self) -> Option<NodeIncarnation> {
        let choice = self.bytes.next();
        let node = u64::from(choice % 4);
        let last = self.model.nodes.get(&node).map_or(1, |(incarnation, _)| *incarnation);
        let incarnation = match choice / 4 % 8 {
            0 => last + 1,
            1 => last.saturating_sub(1),
            _ => last,
        };
        (node > 0).then_some(NodeIncarnation { node, incarnation })
    }

    fn sweep(&mut self) {
        for _ in 0..self.bytes.next() % 4 {
            match self.bytes.next() % 4 {
                0 => self.publish(),
                1 => self.claim(),
                2 => self.enqueue(),
                _ => drop(self.apply(&Command::Sweep { count: 1 })),
            }
        }
    }

    fn finish_sweep(&mut self) {
        while self.shard.sweeping() {
            self.apply(&Command::Sweep { count: 1 });
        }
    }

    fn rewrite(&mut self) {
        let last = self.shard.applied();
        let mut cursor = Some(Cursor::default());
        let mut needed = Vec::new();
        while let Some(from) = cursor {
            let budget = usize::from(self.bytes.next() % 4);
            let found = self.shard.needed_messages(|index| index <= last, from, budget);
            needed.extend(found.messages);
            cursor = found.cursor;
        }
        let sessions = self.shard.sessions_from(0, usize::MAX).0;
        let sessions = sessions.iter().filter_map(|uid| self.shard.session(*uid));
        let entries: Vec<_> = sessions
            .flat_map(|session| session.entries(0).map(move |(n, entry)| (entry, session.uid(), n)))
            .filter(|(entry, ..)| matches!(entry.phase, Phase::Waiting | Phase::Pinned))
            .collect();
        let of_entries = entries.iter().map(|(entry, ..)| (entry.key, entry.size));
        let of_orphans = self.shard.orphans().map(|(_, orphan)| (orphan.key, orphan.size));
        assert!(of_entries.chain(of_orphans).eq(needed.iter().copied()), "all of them, in order");
        let Some(from) = needed.iter().map(|(key, _)| *key).min() else { return };
        let same =
            entries.iter().filter(|(entry, ..)| entry.key == from).map(|(_, session, n)| (*session, *n));
        let some = same.take(usize::from(self.bytes.next() % 4) + 1).collect::<Vec<_>>();
        let orphans = self.shard.orphans().filter(|(_, orphan)| orphan.key == from).map(|(id, _)| id);
        let orphans: Vec<_> = orphans.collect();
        let moved = (some.len() + orphans.len()) as u32;
        let record = self.log[from.index() as usize - 1].clone();
        let message = shard::message_at(&record, from).expect("a message");
        let rewrite = Rewrite { from, message, entries: some, orphans };
        assert_eq!(self.apply(&Command::Rewrite(rewrite)), Answer::Rewritten { moved });
    }

    fn forget(&mut self) {
        match self.bytes.next() % 4 {
            0 => {
                let due = self.shard.due_wills().next();
                let Some((id, message)) = due.map(|(id, message)| (id, message.clone())) else { return };
                let payload = MessageView::decode(&message).expect("a message").payload;
                let at = self.model.wills.iter().position(|will| will == payload).expect("is due");
                self.model.wills.remove(at);
                self.apply(&Command::WillDone { id });
            }
            1 => {
                let Some((id, key)) = self.shard.orphans().map(|(id, orphan)| (id, orphan.key)).next() else {
                    return;
                };
                let payload = self.body(key);
                let at = self.model.orphans.iter().position(|orphan| *orphan == payload).expect("is there");
                self.model.orphans.remove(at);
                self.apply(&Command::OrphanDone { id });
            }
            2 => {
                let identity = Identity { origin: 1, number: u64::from(self.bytes.next() % 8) };
                self.model.identities.remove(&(identity.origin, identity.number));
                self.apply(&Command::Forget(identity));
            }
            _ => {
                let client = self.client();
                let (session, ..) = self.owner(client);
                let there = self.is_there(client, session);
                let answer = self.apply(&Command::End { session });
                assert_eq!(answer, if there { Answer::Done } else { Answer::Gone });
                if there {
                    self.model.end(client);
                }
            }
        }
    }

    /// Begins a checkpoint, writes a portion of it, or completes it and begins a replica with it.
    fn checkpoint(&mut self) {
        let choice = self.bytes.next() % 8;
        let Some((index, mut parts)) = self.writing.take() else {
            let index = self.shard.begin_checkpoint();
            self.writing = Some((index, Vec::new()));
            return;
        };
        if choice == 7 {
            return self.shard.abandon_checkpoint();
        }
        if !self.shard.write_parts(1, &mut |part, bytes| parts.push((part, bytes.to_vec()))) {
            self.writing = Some((index, parts));
            return;
        }
        for (part, bytes) in parts {
            if bytes.is_empty() {
                self.stored.remove(&part);
            } else {
                self.stored.insert(part, bytes);
            }
        }
        let mut replica = Shard::new(5, [2; 16]);
        for (part, bytes) in &self.stored {
            replica.restore_part(*part, bytes).expect("a part");
        }
        replica.restored(index).expect("a checkpoint");
        replica.check_invariants();
        for (index, batch) in (index + 1..).zip(&self.log[index as usize..]) {
            replica.apply(index, batch, &mut Vec::new()).expect("the next");
        }
        assert_eq!(replica.digest(), self.shard.digest());
        self.replica = Some(replica);
    }

    fn body(&self, key: shard::MessageKey) -> Vec<u8> {
        let record = &self.log[key.index() as usize - 1];
        shard::message_at(record, key).expect("a message is stored there").payload.to_vec()
    }

    fn check(&self) {
        self.shard.check_invariants();
        if let Some(replica) = &self.replica {
            assert_eq!(replica.digest(), self.shard.digest());
        }
        for client in CLIENTS {
            let uid = self.shard.session_of(client);
            assert_eq!(uid.is_some(), self.model.sessions.contains_key(client), "{client}");
            if let (Some(uid), Some(session)) = (uid, self.model.sessions.get(client)) {
                self.check_session(uid, session);
            }
        }
        let mut wills: Vec<_> = self.shard.due_wills().map(|(_, message)| message.clone()).collect();
        let payload = |message: &[u8]| MessageView::decode(message).expect("ours").payload.to_vec();
        let wills: BTreeSet<_> = wills.drain(..).map(|message| payload(&message)).collect();
        assert_eq!(wills, self.model.wills.iter().cloned().collect());
        let orphans: BTreeSet<_> = self.shard.orphans().map(|(_, orphan)| self.body(orphan.key)).collect();
        assert_eq!(orphans, self.model.orphans.iter().cloned().collect());
        assert_eq!(self.shard.identities(), self.model.identities.len());
        assert_eq!(self.shard.retained_counts().0, self.model.retained.len() as u64);
        for (topic, (expected, _)) in &self.model.retained {
            assert_eq!(self.shard.retained(topic).map(|message| payload(message)).as_ref(), Some(expected));
        }
    }

    fn check_session(&self, uid: SessionUid, session: &model::Session) {
        let view = self.shard.session(uid).expect("is there");
        if let Some(replica) = &self.replica {
            let same = replica.session(uid).expect("is there");
            assert!(
                same.entries(0).eq(view.entries(0)),
                "deliveries to a client do not depend on checkpoints"
            );
        }
        assert_eq!((view.owner().is_some(), view.epoch()), (session.owned, session.epoch));
        assert_eq!(view.owner_node(), session.owner.filter(|_| session.owned));
        assert_eq!(
            (view.window(), view.expiry_s(), view.ends()),
            (session.window, session.expiry_s, session.ends)
        );
        assert_eq!(view.will_due(), session.will.as_ref().map_or(NEVER, |will| will.due));
        let subscriptions =
            session.subscriptions.iter().map(|(text, (options, id))| (&**text, *options, *id));
        assert!(view.subscriptions().eq(subscriptions));
        let walks = session.walks.iter().map(|(filter, (done, after))| (&**filter, *done, *after));
        assert!(view.walks().eq(walks));
        let received = session.received.iter().map(|id| (*id, session.toggles.contains(id)));
        assert!(view.received().map(|(id, toggle)| (id.get(), toggle)).eq(received));
        let entries: Vec<_> = view
            .entries(0)
            .filter(|(_, entry)| entry.phase != Phase::Finished)
            .map(|(n, entry)| (n, entry.phase, n >= view.within(), entry))
            .collect();
        assert_eq!(entries.len(), session.entries.len(), "{:?}", session.entries);
        let mirror = self.mirror.get(&uid);
        for ((n, phase, over, entry), expected) in entries.iter().zip(&session.entries) {
            assert_eq!((*n, *phase, *over), (expected.n, expected.phase, expected.over));
            assert_eq!(
                mirror.and_then(|mirror| mirror.get(n)),
                Some(&(*phase, *over)),
                "the effects are complete"
            );
            assert_eq!((entry.qos, entry.retain, entry.size), (expected.qos, expected.retain, expected.size));
            if *phase != Phase::Received {
                assert_eq!((entry.ids, entry.expires), (&*expected.ids, expected.expires));
                assert_eq!(entry.group.is_some(), expected.grouped);
                assert_eq!(self.body(entry.key), expected.payload);
            }
        }
        assert_eq!(mirror.map_or(0, BTreeMap::len), entries.len(), "the effects are complete");
    }
}
