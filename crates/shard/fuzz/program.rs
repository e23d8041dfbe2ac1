//! Turns bytes into commands. Compares the shard with the model after each, and with a replica that began with a
//! checkpoint. After a change of leader, requests come again; the model does not see them twice.

use std::collections::{BTreeMap, VecDeque};

use mqtt::{PacketId, QoS, ReasonCode};
use shard::{
    Acknowledgement, Answer, BatchBuilder, Claim, Command, Cursor, EPHEMERAL_EPOCH, Effect, Enqueue, Filter,
    Identity, LANES_MAX, Limits, MessageView, NEVER, NodeIncarnation, PartId, Phase, QueueFull, QueueLimits,
    RequestNumber, Rewrite, SessionUid, Shard, ShardId, ShardSet, Subscribed, WalkStep, Will, WillFate,
    fnv64,
};

use crate::model::{self, Message, Model};

#[path = "check.rs"]
mod check;

/// Plays a program to its end. Panics when the shard differs from the model.
pub fn run(program: &[u8]) {
    play(program, Run::step);
}

/// Plays a program whose sessions last longer, and whose leader changes often.
pub fn run_repeats(program: &[u8]) {
    play(program, Run::step_of_cluster);
}

fn play<'a>(program: &'a [u8], step: fn(&mut Run<'a>)) {
    let mut run = Run::new(Bytes(program));
    run.configure();
    while !run.bytes.0.is_empty() {
        if !run.repeating.is_empty() && run.bytes.flag() {
            run.repeat();
        }
        step(&mut run);
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
    /// The same for ephemeral sessions.
    ephemerals: BTreeMap<String, Vec<SessionUid>>,
    /// State that the effects imply: phase, and whether beyond the limits, by session and delivery.
    mirror: BTreeMap<SessionUid, BTreeMap<u64, (Phase, bool)>>,
    /// The parts of the last complete checkpoint, as a log holds them.
    stored: BTreeMap<PartId, Vec<u8>>,
    /// The unfinished checkpoint: its index and the pages written so far.
    writing: Option<(u64, Pages)>,
    replica: Option<Shard>,
    messages: u64,
    /// Number of the last request with one. All requests count together, so that numbers have gaps.
    last_number: u64,
    /// The last requests, which may come again.
    requests: VecDeque<Applied>,
    /// Requests that are to come again after a change of leader.
    repeating: VecDeque<Applied>,
}

/// A request that was applied.
#[derive(Clone)]
struct Applied {
    batch: Vec<u8>,
    answer: Answer,
}

/// Number of the last requests that may come again.
const REQUESTS_KEPT: usize = 24;
const _: () = assert!(REQUESTS_KEPT <= shard::REFUSALS_MAX);

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
            ephemerals: BTreeMap::new(),
            mirror: BTreeMap::new(),
            stored: BTreeMap::new(),
            writing: None,
            replica: None,
            messages: 0,
            last_number: 0,
            requests: VecDeque::new(),
            repeating: VecDeque::new(),
        }
    }

    fn step(&mut self) {
        match self.bytes.next() % 27 {
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
            25 => self.change_leader(),
            _ => self.checkpoint(),
        }
    }

    fn step_of_cluster(&mut self) {
        match self.bytes.next() % 32 {
            0..6 => self.publish(),
            6..13 => self.acknowledge(),
            13 => self.claim(),
            14..17 => self.subscribe(),
            17..22 => self.inbound(),
            22 => self.enqueue(),
            23 => self.walk(),
            24 => self.retain(),
            25 => self.change_leader(),
            26 => match self.bytes.next() % 8 {
                0 => self.end_node(),
                1..3 => self.release(),
                3 => self.pass_time(),
                4 => self.overdue(),
                _ => self.forget(),
            },
            _ => self.checkpoint(),
        }
    }

    fn apply(&mut self, command: &Command<'_>) -> Answer {
        self.request(command, None)
    }

    /// Applies a command. One with a number may come again.
    fn request(&mut self, command: &Command<'_>, number: Option<RequestNumber>) -> Answer {
        let mut builder = BatchBuilder::new(self.now);
        match number {
            Some(number) => builder.push_numbered(command, number),
            None => builder.push(command),
        };
        let effects = self.append(builder.finish());
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
        let answer = answer.expect("every command is answered");
        let is_refused = matches!(answer, Answer::Stale | Answer::Gone);
        if number.is_some() && (!is_refused || self.last_number.is_multiple_of(8)) {
            let batch = self.log.last().cloned().unwrap_or_default();
            self.requests.push_back(Applied { batch, answer: answer.clone() });
            if self.requests.len() > REQUESTS_KEPT {
                self.requests.pop_front();
            }
        }
        answer
    }

    /// Applies a batch of one command.
    fn append(&mut self, batch: Vec<u8>) -> Vec<Effect> {
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
        effects
    }

    /// Number of a command of a connection: a number for two of three epochs.
    fn of_connection(&mut self, epoch: u32) -> Option<RequestNumber> {
        if epoch.is_multiple_of(3) {
            return None;
        }
        self.last_number += 1;
        Some(RequestNumber::Connection { epoch, number: self.last_number })
    }

    /// Notes that a command of the present owner was applied.
    fn note_number(&mut self, client: &str, number: Option<RequestNumber>) {
        if let (Some(RequestNumber::Connection { number, .. }), Some(session)) =
            (number, self.model.sessions.get_mut(client))
        {
            session.last_number = number;
        }
    }

    /// Number of a message: none, or one of a node, which usually has its last incarnation.
    fn of_lane(&mut self) -> Option<RequestNumber> {
        let choice = self.bytes.next();
        if choice & 1 == 0 {
            return None;
        }
        let node = 1 + u64::from(choice >> 1 & 3) % 3;
        let last = self.model.nodes.get(&node).map_or(1, |(incarnation, _)| *incarnation);
        let incarnation = match choice >> 3 {
            0 => last + 1,
            1 => last.saturating_sub(1),
            _ => last,
        };
        self.last_number += 1;
        let lane = [0, 2, LANES_MAX - 1][usize::from(choice >> 3) % 3];
        let owner = NodeIncarnation { node, incarnation };
        Some(RequestNumber::Lane { owner, lane, number: self.last_number })
    }

    /// Returns whether the owner of a message is alive, or there is none.
    fn may_send(&mut self, number: Option<RequestNumber>) -> bool {
        match number {
            Some(RequestNumber::Lane { owner, .. }) => self.model.enter(Some(owner)),
            _ => true,
        }
    }

    /// The replica that began with a checkpoint becomes the leader, and some of the last requests come again.
    fn change_leader(&mut self) {
        if let Some(replica) = &mut self.replica {
            std::mem::swap(&mut self.shard, replica);
            self.writing = None;
        }
        let from = self.requests.len().saturating_sub(usize::from(self.bytes.next()) % (REQUESTS_KEPT + 1));
        self.repeating.extend(self.requests.range(from..).cloned());
    }

    /// Applies the next request that comes again. It changes nothing.
    fn repeat(&mut self) {
        let Some(Applied { batch, answer: first }) = self.repeating.pop_front() else { return };
        let commands = shard::commands(&batch).expect("was applied");
        let numbers = shard::request_numbers(&batch).expect("was applied");
        let [(command, Some(number))] = [(&commands[0], numbers[0])] else { panic!("it has a number") };
        let expected = self.answer_again(command, number, &first);
        let digest = self.shard.digest();
        let mut builder = BatchBuilder::new(self.shard.now());
        builder.push_numbered(command, number);
        let effects = self.append(builder.finish());
        let answered = [Effect::Answer { ordinal: 0, answer: expected }];
        assert_eq!(effects, answered, "{command:?} after {first:?}");
        assert_eq!(self.shard.digest(), digest, "{command:?} comes again");
    }

    /// Returns whether a message with this identity was accepted, if it has one.
    fn knows_any(&self, identity: Option<Identity>) -> bool {
        identity.is_some_and(|Identity { origin, number }| self.model.knows((origin, number)))
    }

    /// Returns the answer to a request that comes again, which was `first` the first time.
    fn answer_again(&self, command: &Command<'_>, number: RequestNumber, first: &Answer) -> Answer {
        match (command, number) {
            (Command::Claim(claim), _) => {
                if claim.owner.is_some_and(|owner| self.model.is_over(owner)) {
                    return Answer::Stale;
                }
                let session = self.model.sessions.get(claim.client_id);
                let uid = self.uids.get(claim.client_id).and_then(|uids| uids.last()).copied();
                let is_its_own = match first {
                    Answer::Claimed { session: None, .. } => {
                        let ephemeral = self.model.ephemerals.get(claim.client_id);
                        let is_of_claim = ephemeral.is_some_and(|it| it.number == Some(number));
                        let is_free = session.is_none() && ephemeral.is_none();
                        if claim.keeps_ephemeral { is_of_claim } else { is_free }
                    }
                    Answer::Claimed { session: own, epoch, .. } => {
                        session.is_some_and(|session| session.owned && session.epoch == *epoch) && uid == *own
                    }
                    _ => false,
                };
                if is_its_own { first.clone() } else { Answer::Stale }
            }
            (_, RequestNumber::Lane { owner, .. }) if self.model.is_over(owner) => Answer::Stale,
            (Command::Forget(_) | Command::ForgetBelow(_), _) => Answer::Done,
            (Command::Enqueue(enqueue), _) => {
                let is_there = self.client_of(enqueue.session).is_some();
                match first {
                    _ if self.knows_any(enqueue.identity) => Answer::Repeated,
                    _ if !is_there => Answer::Gone,
                    Answer::Refused { .. } => first.clone(),
                    _ => Answer::Repeated,
                }
            }
            // The shard remembers more refused messages than come again here.
            (Command::Publish { identity, .. }, _)
                if matches!(first, Answer::Refused { .. }) && !self.knows_any(*identity) =>
            {
                Answer::PerhapsRefused
            }
            (_, RequestNumber::Lane { .. }) => Answer::Repeated,
            (_, RequestNumber::Connection { epoch, .. }) => self.answer_to_connection(command, epoch, first),
            (_, RequestNumber::Claim { .. }) => unreachable!("only Claims have such numbers"),
        }
    }

    fn answer_to_connection(&self, command: &Command<'_>, epoch: u32, first: &Answer) -> Answer {
        let uid = match command {
            Command::Acknowledge { session, .. }
            | Command::Receive { session, .. }
            | Command::Released { session, .. }
            | Command::Refuse { session, .. }
            | Command::Subscribe { session, .. }
            | Command::Unsubscribe { session, .. }
            | Command::Walk { session, .. }
            | Command::Release { session, .. } => *session,
            _ => unreachable!("commands of connections only"),
        };
        let Some(session) = self.client_of(uid).and_then(|client| self.model.sessions.get(client)) else {
            return Answer::Gone;
        };
        if session.epoch != epoch || matches!(first, Answer::Stale | Answer::Gone) {
            return Answer::Stale;
        }
        match command {
            Command::Acknowledge { packet_id, kind: Acknowledgement::PubRec, .. } => {
                let is_open = |entry: &&model::Entry| {
                    entry.phase != Phase::Waiting && shard::packet_id(entry.n) == *packet_id
                };
                match session.entries.iter().find(is_open) {
                    Some(entry) if entry.phase == Phase::Received => {
                        Answer::Release { n: entry.n, again: true }
                    }
                    Some(_) => Answer::Repeated,
                    None => Answer::Unknown,
                }
            }
            Command::Acknowledge { .. } => Answer::Repeated,
            Command::Receive { packet_id, .. } => {
                let id = packet_id.get();
                let received = Answer::Received { toggle: session.toggles.contains(&id), again: false };
                if session.received.contains(&id) { received } else { Answer::Repeated }
            }
            Command::Subscribe { filters, .. } => {
                let Filter { text, options, .. } = filters[0];
                let granted = [ReasonCode::Success, ReasonCode::GrantedQoS1, ReasonCode::GrantedQoS2];
                let result = match session.subscriptions.contains_key(text) {
                    true => Subscribed {
                        reason: granted[usize::from(options & 3)],
                        existed: options & 3 > 0 && !session.walks.contains_key(text),
                    },
                    false => Subscribed { reason: ReasonCode::QuotaExceeded, existed: false },
                };
                Answer::Subscribed { results: [result].into() }
            }
            Command::Unsubscribe { .. } => Answer::Unsubscribed { results: [ReasonCode::Success].into() },
            _ => Answer::Done,
        }
    }

    /// Returns the client of a session that exists.
    fn client_of(&self, session: SessionUid) -> Option<&str> {
        let of = |(client, uids): (&String, &Vec<SessionUid>)| {
            self.model.sessions.contains_key(client) && uids.last() == Some(&session)
        };
        self.uids.iter().find(|entry| of(*entry)).map(|(client, _)| &**client)
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
        let number = self.of_lane();
        let answer = self.request(&Command::Publish { message: view, wait, identity }, number);
        if !self.may_send(number) {
            return assert_eq!(answer, Answer::Stale);
        }
        if let Some(Identity { origin, number }) = identity {
            if self.model.knows((origin, number)) {
                return assert_eq!(answer, Answer::Repeated);
            }
            self.model.identities.remove(&(origin, number ^ 1));
        }
        if wait && self.model.refuses_publish(&message) {
            return assert!(matches!(answer, Answer::Refused { .. }), "{answer:?}");
        }
        self.model.identities.extend(identity.map(|Identity { origin, number }| (origin, number)));
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
        let number = self.of_lane();
        let answer = self.request(&Command::Enqueue(enqueue), number);
        if !self.may_send(number) {
            return assert_eq!(answer, Answer::Stale);
        }
        let identity = identity.map(|identity| (identity.origin, identity.number));
        if identity.is_some_and(|identity| self.model.knows(identity)) {
            return assert_eq!(answer, Answer::Repeated);
        }
        if !self.is_there(client, session) {
            return assert_eq!(answer, Answer::Gone);
        }
        if self.model.refuses(client, modelled.size) {
            return assert_eq!(answer, Answer::Refused { session });
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
        let number = self.of_connection(epoch);
        let answer = self.request(&Command::Acknowledge { session, epoch, packet_id, kind }, number);
        if !fine {
            return assert!(matches!(answer, Answer::Stale | Answer::Gone), "{answer:?}");
        }
        self.note_number(client, number);
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
        let keeps_ephemeral = choice & 16 == 0;
        let queue_limits = (choice & 32 != 0).then(|| QueueLimits {
            messages_max: self.bytes.of(&[1, 3, 20]),
            bytes_max: self.bytes.of(&[100, 1000, u64::MAX]),
            age_max_ms: self.bytes.of(&[u64::MAX, 1000]),
            full: self.bytes.of(&[QueueFull::DropOldest, QueueFull::DropNewest, QueueFull::Refuse]),
        });
        let claim = Claim {
            client_id: client,
            user,
            owner,
            connection,
            clean_start,
            expiry_s,
            window,
            will,
            keeps_ephemeral,
            queue_limits,
        };
        let number = owner.filter(|_| choice & 8 == 0).map(|_| {
            self.last_number += 1;
            RequestNumber::Claim { number: u64::MAX - self.last_number }
        });
        let answer = self.request(&Command::Claim(claim), number);
        if !self.model.enter(owner) {
            return assert_eq!(answer, Answer::Stale);
        }
        let will_payload = will.map(|_| payload.clone());
        let will = will_payload.clone().map(|payload| model::Will { payload, delay_s, due: NEVER });
        let (present, epoch) =
            self.model.claim(client, owner, (clean_start, expiry_s, window), queue_limits, will);
        let Answer::Claimed { session, epoch: said, present: was } = answer else { panic!("{answer:?}") };
        assert_eq!((was, session.map(|_| said)), (present, epoch));
        if session.is_none() && keeps_ephemeral {
            let will = will_payload;
            self.model.ephemerals.insert(client.to_owned(), model::Ephemeral { owner, will, number });
            let view = self.shard.ephemeral_of(client).expect("it has begun");
            assert_eq!((view.connection(), view.client_id()), (connection, client));
            self.ephemerals.entry(client.to_owned()).or_default().push(view.uid());
        }
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
        if self.bytes.flag() {
            return self.release_ephemeral(client);
        }
        let (session, epoch, fine) = self.owner(client);
        let expiry_s = self.bytes.of(&[None, None, Some(0), Some(30), Some(u32::MAX)]);
        let will = self.bytes.of(&[WillFate::Arm, WillFate::Discard, WillFate::Arm]);
        let number = self.of_connection(epoch);
        let answer = self.request(&Command::Release { session, epoch, expiry_s, will }, number);
        if fine {
            self.note_number(client, number);
            self.model.release(client, expiry_s, will == WillFate::Arm);
        }
        assert_eq!(answer == Answer::Done, fine, "{answer:?}");
    }

    /// Releases the last ephemeral session of a client, or the one before it.
    fn release_ephemeral(&mut self, client: &str) {
        let is_last = !self.bytes.next().is_multiple_of(4);
        let uids = self.ephemerals.get(client).map_or(&[][..], |uids| uids);
        let uid = if is_last { uids.last() } else { uids.len().checked_sub(2).map(|at| &uids[at]) };
        let Some(session) = uid.copied() else { return };
        let will = self.bytes.of(&[WillFate::Arm, WillFate::Discard]);
        let answer = self.apply(&Command::Release { session, epoch: EPHEMERAL_EPOCH, expiry_s: None, will });
        let is_there = is_last && self.model.ephemerals.contains_key(client);
        assert_eq!(answer == Answer::Done, is_there, "{answer:?}");
        if is_there {
            self.model.end_ephemeral(client, will == WillFate::Arm);
        }
    }

    fn walk(&mut self) {
        let client = self.client();
        let (session, epoch, is_owned) = self.owner(client);
        let number = self.of_connection(epoch).filter(|_| self.bytes.flag());
        let fine = self.is_there(client, session) && (number.is_none() || is_owned);
        let (filter, after) = (self.bytes.of(&FILTERS), self.bytes.of(&TOPICS));
        let byte = self.bytes.next();
        let done: ShardSet = (0..8).filter(|shard| byte >> shard & 1 == 1).map(ShardId).collect();
        let step = match byte % 4 {
            0 => WalkStep::Begin,
            1 => WalkStep::BeginIfNew,
            2 => WalkStep::At { done, after },
            _ => WalkStep::End,
        };
        let answer = self.request(&Command::Walk { session, filter, step }, number);
        match (fine, number) {
            (true, _) => assert_eq!(answer, Answer::Done),
            (false, None) => assert_eq!(answer, Answer::Gone),
            (false, Some(_)) => assert!(matches!(answer, Answer::Gone | Answer::Stale)),
        }
        if fine {
            self.note_number(client, number);
        }
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
        let number = self.of_connection(epoch);
        let known =
            self.model.sessions.get(client).is_some_and(|session| session.subscriptions.contains_key(text));
        if choice >> 6 == 0 {
            let answer = self.request(&Command::Unsubscribe { session, epoch, filters: vec![text] }, number);
            let Answer::Unsubscribed { results } = answer else { return assert!(!fine, "{answer:?}") };
            self.note_number(client, number);
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
        let answer = self.request(&Command::Subscribe { session, epoch, filters }, number);
        let Answer::Subscribed { results } = answer else { return assert!(!fine, "{answer:?}") };
        self.note_number(client, number);
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
        let number = self.of_connection(epoch);
        let command = match choice % 4 {
            0 | 1 => Command::Receive { session, epoch, packet_id },
            2 => Command::Released { session, epoch, packet_id },
            _ => Command::Refuse { session, epoch, packet_id },
        };
        let answer = self.request(&command, number);
        if !fine {
            return assert!(matches!(answer, Answer::Stale | Answer::Gone), "{answer:?}");
        }
        self.note_number(client, number);
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
        let number = self.of_lane();
        let answer = self.request(&Command::Retain { message }, number);
        if !self.may_send(number) {
            return assert_eq!(answer, Answer::Stale);
        }
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
        // A node that has the shard alone forgets all nodes.
        self.requests.clear();
        self.repeating.clear();
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
                let number = self.of_lane();
                // Low numbers only: those below are not accepted any more.
                let below = self.bytes.next() % 16;
                let command = match below {
                    0..3 => Command::ForgetBelow(Identity { number: u64::from(below), ..identity }),
                    _ => Command::Forget(identity),
                };
                let answer = self.request(&command, number);
                if !self.may_send(number) {
                    return assert_eq!(answer, Answer::Stale);
                }
                match command {
                    Command::ForgetBelow(below) => self.model.forget_below(below.origin, below.number),
                    _ => drop(self.model.identities.remove(&(identity.origin, identity.number))),
                }
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
}
