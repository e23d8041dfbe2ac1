//! Random requests and answers that have everything that travels, and nothing else.

use mqtt::{PacketId, QoS, ReasonCode};
use random::Random;
use session::{Dispatched, Toggles};
use shard::{QueueFull, QueueLimits};

use crate::batch::{Claimed, Resume, SessionDelivery, SubscriptionIds, Token, TokenKind};
use crate::durability::Durability;
use crate::ids::{ConnectionId, GroupId, SessionId, ShardId, ShardSet, Ticket, Time};
use crate::message::{Message, MessageView};
use crate::node::OwnerKey;
use crate::quota::{Payers, Quotas};
use crate::route::Options;
use crate::store::wire::{RequestOrigin, ShardAnswer};
use crate::store::{
    Acknowledgement, Attach, Claim, Completion, DueWill, Enqueue, EnqueueForGroup, EnqueueForPage,
    EnqueueToGroup, GroupName, Identity, Release, Request, SHARDS, WalkProgress, WillDisposition,
};
use crate::will::WillOwner;

/// Time at which everything is encoded and decoded.
pub const NOW: Time = Time(1 << 40);

pub struct Generator {
    random: Random,
    /// Lane of all connections and tokens, shard of all requests.
    origin: RequestOrigin,
}

const TEXTS: [&str; 5] = ["", "c", "ü/ß", "a client", "0123456789abcdef"];
const TOPICS: [&str; 5] = ["t", "a/ü", "/", "$SYS/x", "sport/tennis/player1"];
const FILTERS: [&str; 5] = ["#", "+/b", "a/#", "$share/g/a/+", "sport"];

impl Generator {
    pub fn new(seed: u64, origin: RequestOrigin) -> Self {
        Self { random: Random::new(seed), origin }
    }

    pub fn request(&mut self) -> Request {
        match self.random.below(26) {
            0 => Request::Claim(Box::new(self.claim())),
            1 => Request::Release(Box::new(self.release())),
            2 => Request::Attach(Box::new(self.attach())),
            3 => Request::Subscribe {
                session: self.session(),
                connection: self.connection(),
                ticket: self.ticket(),
                filters: self.subscriptions(),
                shapes: None,
                retained: self.bool(),
            },
            4 => Request::Unsubscribe {
                session: self.session(),
                connection: self.connection(),
                ticket: self.ticket(),
                filters: self.list(|random| random.text().into()),
            },
            5 => Request::Withdraw { session: self.session(), filter: self.text().into() },
            6 => Request::Append {
                message: self.message(),
                identity: self.option(Self::identity),
                refusal: self.option(Self::reason),
                token: self.option(Self::token),
            },
            7 => Request::ForgetIdentity { identity: self.identity() },
            8 if self.bool() => Request::ForgetBelow { identity: self.identity() },
            8 => Request::ForgetOrigin { origin: self.u64() },
            9 => Request::Retain {
                message: self.message(),
                stamp: 0,
                copied_by: None,
                refusal: self.option(Self::reason),
                token: self.option(Self::token),
                payers: self.payers(),
            },
            10 => Request::AskRoomToRetain {
                topic: self.topic().into(),
                size: self.u64(),
                connection: self.connection(),
                payers: self.payers(),
            },
            11 => Request::DeleteRetained { topic: self.text().into(), token: self.token() },
            12 => Request::Enqueue {
                session: self.session(),
                entries: self.list(Self::entry),
                group: self.option(Self::enqueue_for_group).map(Box::new),
                token: self.option(Self::token),
                page: self.option(Self::enqueue_for_page).map(Box::new),
            },
            13 => Request::AskRoomForPage { session: self.session(), connection: self.connection() },
            14 => Request::EndWalk { session: self.session(), filter: self.text().into() },
            15 => Request::Acknowledge {
                session: self.session(),
                connection: self.connection(),
                packet_id: self.packet_id(),
                kind: *self.random.pick(&[
                    Acknowledgement::PubAck,
                    Acknowledgement::PubRec { refused: false },
                    Acknowledgement::PubRec { refused: true },
                    Acknowledgement::PubComp,
                ]),
            },
            16 => Request::Receive {
                session: self.session(),
                packet_id: self.packet_id(),
                durability: *self.random.pick(&[Durability::LocalDisk, Durability::Memory]),
                token: self.token(),
            },
            17 => Request::Released {
                session: self.session(),
                connection: self.connection(),
                packet_id: self.packet_id(),
            },
            18 => Request::Forget {
                session: self.session(),
                packet_id: self.packet_id(),
                flip: self.bool(),
                token: None,
            },
            19 => Request::EnqueueToGroup(Box::new(EnqueueToGroup {
                name: self.group_name(),
                group: self.group(),
                message: self.message(),
                identity: self.option(Self::identity),
                token: self.token(),
            })),
            20 => Request::FindIdentity { identity: self.identity(), token: self.token() },
            21 => Request::FindOrphans { asker: self.shard(), orphans: self.list(Self::u64).into() },
            22 => Request::OrphansKnown { by: self.shard(), orphans: self.list(Self::u64) },
            23 => Request::AcceptedBy { key: self.u32(), by: self.shard() },
            24 => Request::WillDispatched {
                key: self.u32(),
                outstanding: self.u32() >> 2,
                shards: self.shards(),
            },
            _ => Request::Accepted { key: self.u32(), reason: self.reason() },
        }
    }

    pub fn answer(&mut self) -> ShardAnswer {
        match self.random.below(15) {
            0 => ShardAnswer::Acknowledged { number: self.u64(), reason: self.reason() },
            1 => ShardAnswer::Settled { number: self.u64() },
            2 => ShardAnswer::Will(Box::new(DueWill {
                shard: self.shard(),
                key: self.u32(),
                id: self.u64(),
                message: self.will(),
                owner: self.option(Self::owner).map(Into::into),
            })),
            kind => ShardAnswer::Completion(self.completion(kind)),
        }
    }

    fn completion(&mut self, kind: usize) -> Completion {
        let connection = self.connection();
        match kind {
            3 => Completion::Claimed(Claimed {
                connection,
                session_present: self.bool(),
                session: self.option(Self::any_session),
                epoch: self.u32(),
                resume: self.option(Self::resume).map(Box::new),
            }),
            4 => Completion::ClaimRefused { connection, reason: self.reason() },
            5 => Completion::Revoke { connection },
            6 => Completion::QueueFull { connection },
            7 => {
                let results = self.list(|random| (random.reason(), random.bool()));
                Completion::Subscribed { connection, ticket: self.ticket(), results }
            }
            8 => {
                let results = self.list(Self::reason);
                Completion::Unsubscribed { connection, ticket: self.ticket(), results }
            }
            9 => Completion::Deliver { connection, first: self.delivery(), more: self.list(Self::delivery) },
            10 => Completion::Release { connection, packet_id: self.packet_id(), reason: self.reason() },
            11 => Completion::WrongAcknowledgement { connection },
            12 => Completion::Complete { connection, packet_id: self.packet_id() },
            13 => Completion::RoomForPage { connection },
            _ => Completion::RoomToRetain { connection, is_there: self.bool() },
        }
    }

    fn claim(&mut self) -> Claim {
        Claim {
            client_id: self.text().into(),
            connection: self.connection(),
            user: OwnerKey::from_u32(self.u32()),
            payers: Payers::default(),
            clean_start: self.bool(),
            expiry: self.u32(),
            window: self.u16(),
            will: self.option(|random| {
                let (will, owner) = (random.will(), random.option(Self::owner));
                (owner.map_or(will.clone(), |owner| owner.sign(&will)), random.u32())
            }),
            queue_limits: self.option(|random| QueueLimits {
                messages_max: random.u32(),
                bytes_max: random.u64(),
                age_max_ms: random.u64(),
                full: *random.random.pick(&[QueueFull::DropOldest, QueueFull::DropNewest, QueueFull::Refuse]),
            }),
            number: self.origin.number,
        }
    }

    fn release(&mut self) -> Release {
        Release {
            client_id: self.text().into(),
            connection: self.connection(),
            expiry: self.option(Self::u32),
            will: *self.random.pick(&[WillDisposition::Discard, WillDisposition::Arm]),
            will_owner: None,
            dispatched: self.option(|random| random.list(Self::dispatched)),
            known_to: self.shards(),
            number: self.origin.number,
        }
    }

    fn attach(&mut self) -> Attach {
        Attach {
            client_id: self.text().into(),
            session: self.session(),
            epoch: self.u32(),
            connection: self.connection(),
            user: OwnerKey::from_u32(self.u32()),
            payers: Payers::default(),
            window: self.u16(),
            last: self.option(Self::packet_id),
            known_to: self.shards(),
        }
    }

    fn entry(&mut self) -> Enqueue {
        Enqueue {
            message: self.message(),
            qos: self.stored_qos(),
            retain: self.bool(),
            subscription_ids: self.subscription_ids(),
            group: self.option(Self::group),
        }
    }

    fn enqueue_for_group(&mut self) -> EnqueueForGroup {
        let (name, is_connected) = (self.group_name(), self.bool());
        EnqueueForGroup { name, is_connected, identity: self.option(Self::identity) }
    }

    fn enqueue_for_page(&mut self) -> EnqueueForPage {
        let (connection, filter) = (self.connection(), self.text().into());
        EnqueueForPage { connection, filter, progress: self.option(Self::walk_progress) }
    }

    fn resume(&mut self) -> Resume {
        Resume {
            subscriptions: self.subscriptions(),
            received: self.list(|random| random.packet_id().get()),
            toggles: Toggles::of_pages(self.list(|random| (random.u16(), random.u64()))),
            dispatched: self.list(Self::dispatched),
            walks: self.list(|random| (random.text().into(), random.walk_progress())),
        }
    }

    fn delivery(&mut self) -> SessionDelivery {
        let packet_id = self.packet_id();
        if self.random.below(4) == 0 {
            return SessionDelivery::PubRel { packet_id };
        }
        SessionDelivery::Publish {
            packet_id,
            qos: self.stored_qos(),
            dup: self.bool(),
            retain: self.bool(),
            message: self.message(),
            subscription_ids: self.subscription_ids(),
        }
    }

    fn payers(&mut self) -> Payers {
        let mut owner = || self.option(Self::u32).map_or(OwnerKey::NOBODY, OwnerKey::from_u32);
        let (user, mountpoint) = (owner(), owner());
        Quotas::default().payers(user, mountpoint)
    }

    fn message(&mut self) -> Message {
        let properties: Vec<u8> = self.list(|random| random.random.byte());
        let payload: Vec<u8> = self.list(|random| random.random.byte());
        let expires = self.option(Self::u32);
        let view = MessageView {
            topic: self.topic(),
            properties: &properties,
            payload: &payload,
            qos: *self.random.pick(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]),
            retain: self.bool(),
            expires: expires.map_or(Time::NEVER, |left| Time(NOW.0 + u64::from(left))),
            received: Time(NOW.0 - u64::from(self.u32())),
            publisher: None,
            publisher_key: self.u64(),
            durability: *self.random.pick(&[Durability::LocalDisk, Durability::Memory]),
            span: 0,
        };
        view.to_message()
    }

    /// A Will without its owner. `expires` is an interval.
    fn will(&mut self) -> Message {
        let message = self.message();
        let expires = self.option(Self::u32).map_or(Time::NEVER, |seconds| Time(u64::from(seconds) * 1000));
        let view = MessageView { properties: &[1, 1], expires, received: Time(0), ..message.view() };
        view.to_message()
    }

    fn owner(&mut self) -> WillOwner {
        let username = self.option(Self::text);
        let expires = self.option(Self::u32).map(|left| Time(NOW.0 + u64::from(left)));
        WillOwner::for_test(self.text(), username, expires)
    }

    fn walk_progress(&mut self) -> WalkProgress {
        WalkProgress { done: self.shards(), after: self.option(|random| random.topic().into()) }
    }

    fn dispatched(&mut self) -> Dispatched<ShardSet> {
        Dispatched { packet_id: self.packet_id(), shards: self.shards(), losses: self.u32() }
    }

    fn subscriptions(&mut self) -> Vec<(Box<str>, Options, u32)> {
        self.list(|random| {
            let text = (*random.random.pick(&FILTERS)).into();
            (text, random.options(), random.u32())
        })
    }

    fn subscription_ids(&mut self) -> SubscriptionIds {
        SubscriptionIds::of(&self.list(Self::u32))
    }

    fn options(&mut self) -> Options {
        let byte = self.random.byte();
        Options::from_byte(if byte & 3 == 3 { byte & !1 } else { byte })
    }

    fn token(&mut self) -> Token {
        let kind = *self.random.pick(&[TokenKind::Publisher, TokenKind::Append, TokenKind::Other]);
        Token::requested(self.origin.lane, self.origin.number).for_kind(kind)
    }

    fn group_name(&mut self) -> GroupName {
        let filter = self.random.pick(&["a/+", "#", "$SYS/#", "b"]);
        GroupName { share: (*self.random.pick(&["g", "ü", "$g"])).into(), filter: (*filter).into() }
    }

    fn connection(&mut self) -> ConnectionId {
        ConnectionId { worker: self.origin.lane, slot: self.u32(), generation: self.u32() }
    }

    fn session(&mut self) -> SessionId {
        SessionId { shard: self.origin.shard, ..self.any_session() }
    }

    fn any_session(&mut self) -> SessionId {
        SessionId { shard: self.shard(), slot: self.u32(), generation: self.u32() }
    }

    fn group(&mut self) -> GroupId {
        GroupId { shard: self.shard(), slot: self.u32(), generation: self.u32() }
    }

    fn identity(&mut self) -> Identity {
        Identity { origin: self.u64(), number: self.u64() }
    }

    fn shard(&mut self) -> ShardId {
        ShardId(self.random.below(usize::from(SHARDS)) as u16)
    }

    fn shards(&mut self) -> ShardSet {
        (0..self.random.below(4)).map(|_| self.shard()).collect()
    }

    fn ticket(&mut self) -> Ticket {
        match self.random.below(3) {
            0 => Ticket::of(self.packet_id()),
            1 => Ticket::of_piece(self.packet_id(), self.random.below(Ticket::PIECES_MAX) as u32),
            _ => Ticket::of_operator(self.random.below(99)),
        }
    }

    fn packet_id(&mut self) -> PacketId {
        PacketId::new(self.u16().max(1)).expect("not 0")
    }

    fn reason(&mut self) -> ReasonCode {
        loop {
            if let Ok(reason) = ReasonCode::try_from(self.random.byte()) {
                return reason;
            }
        }
    }

    fn stored_qos(&mut self) -> QoS {
        *self.random.pick(&[QoS::AtLeastOnce, QoS::ExactlyOnce])
    }

    fn text(&mut self) -> &'static str {
        self.random.pick::<&str>(&TEXTS)
    }

    fn topic(&mut self) -> &'static str {
        self.random.pick::<&str>(&TOPICS)
    }

    fn bool(&mut self) -> bool {
        self.random.below(2) == 0
    }

    fn u16(&mut self) -> u16 {
        self.u64() as u16
    }

    fn u32(&mut self) -> u32 {
        self.u64() as u32
    }

    /// A number of any size, often the smallest or largest.
    fn u64(&mut self) -> u64 {
        match self.random.below(6) {
            0 => 0,
            1 => u64::MAX,
            _ => self.random.draw() >> self.random.below(64),
        }
    }

    fn option<T>(&mut self, value: impl FnOnce(&mut Self) -> T) -> Option<T> {
        self.bool().then(|| value(self))
    }

    fn list<T>(&mut self, mut value: impl FnMut(&mut Self) -> T) -> Vec<T> {
        (0..self.random.below(4)).map(|_| value(self)).collect()
    }
}
