//! A steady flow of messages allocates nothing, within a worker and between two.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use broker::access::AllowAll;
use broker::admin::Admin;
use broker::settings::Settings;
use broker::{Batch, ConnectionId, Node, Time, Worker, WorkerId};
use mqtt::{
    Ack, Connect, Outgoing, Packet, PacketId, Properties, QoS, ReasonCode, RetainHandling, Subscribe,
    SubscribeFiltersBuf, SubscriptionOptions, Version,
};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: everything is the system allocator's; only a count is added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Two workers and the batches between them, reused as a reactor reuses them.
struct Pair {
    workers: [Worker; 2],
    spare: Batch,
    dirty: Vec<u32>,
    /// Bytes that the watched connection was sent.
    received: Vec<u8>,
}

impl Pair {
    /// `rule` is the source of a rule of an action.
    fn new(rule: Option<&str>) -> Self {
        let mut settings = Settings::default();
        settings.sys.interval = std::time::Duration::ZERO;
        let node = Node::new(settings, Arc::new(AllowAll), "test".into(), 2, [7; 16]);
        let sources = rule.map(Box::from).into_iter().collect();
        let admin = Admin::new(node.clone(), std::time::SystemTime::UNIX_EPOCH, broker::Instant::now());
        admin.select_origins(&sources, "test", 1).expect("there is room");
        let workers = <[Worker; 2]>::try_from(node.build_workers()).ok().expect("two workers");
        Self { workers, spare: Batch::default(), dirty: Vec::new(), received: Vec::new() }
    }

    fn connect(&mut self, worker: usize, name: &str, filter: Option<(&str, QoS)>) -> ConnectionId {
        let id = self.workers[worker].open(NOW, None);
        let mut bytes = Vec::new();
        let connect = Connect {
            version: Version::V3_1_1,
            bridge: false,
            clean_start: true,
            keep_alive: 0,
            client_id: name,
            will: None,
            username: None,
            password: None,
            properties: Properties::default(),
        };
        assert!(Packet::Connect(connect).encode(Version::V3_1_1, &mut bytes));
        self.push(id, &bytes);
        self.settle(None);
        if let Some((filter, qos)) = filter {
            let options = SubscriptionOptions {
                qos,
                no_local: false,
                retain_as_published: false,
                retain_handling: RetainHandling::Send,
            };
            let mut filters = SubscribeFiltersBuf::default();
            filters.push(filter, options);
            let (packet_id, properties) = (PacketId::new(1).expect("not 0"), Properties::default());
            let subscribe = Subscribe { packet_id, properties, filters: filters.as_filters() };
            bytes.clear();
            assert!(Packet::Subscribe(subscribe).encode(Version::V3_1_1, &mut bytes));
            self.push(id, &bytes);
            self.settle(None);
        }
        id
    }

    fn push(&mut self, id: ConnectionId, bytes: &[u8]) {
        let received = self.workers[id.worker.index()].receive(NOW, id.slot, bytes);
        assert_eq!(received.consumed, bytes.len());
    }

    /// Runs turns of both workers until nothing is left to do; keeps the bytes that `watched` was sent.
    fn settle(&mut self, watched: Option<ConnectionId>) {
        for _ in 0..8 {
            for (from, to) in [(0, 1), (1, 0)] {
                self.workers[from].settle(NOW);
                let outgoing = self.workers[from].outgoing(WorkerId(to as u16));
                if !outgoing.is_empty() {
                    std::mem::swap(&mut self.spare, outgoing);
                    self.workers[to].take_batch(NOW, &mut self.spare);
                    self.spare.recycle(usize::MAX);
                }
                let mut dirty = std::mem::take(&mut self.dirty);
                self.workers[from].take_dirty(&mut dirty);
                for slot in dirty.drain(..) {
                    let out = self.workers[from].output(slot).expect("a dirty connection exists");
                    if watched.is_some_and(|id| id.worker.index() == from && id.slot == slot) {
                        self.received.extend_from_slice(out.pending());
                    }
                    out.advance(out.len());
                    self.workers[from].written(NOW, slot);
                }
                self.dirty = dirty;
                self.workers[from].end_turn();
            }
        }
    }
}

const NOW: Time = Time(1_000);

fn publish(qos: QoS, packet_id: Option<PacketId>, out: &mut Vec<u8>) {
    let packet = Outgoing {
        dup: false,
        qos,
        retain: false,
        packet_id,
        topic: "plant/7/temperature",
        topic_alias: None,
        message_expiry: None,
        subscription_ids: &[],
        properties: &[],
        payload: &[0x55; 256],
    };
    packet.encode(Version::V3_1_1, out);
}

/// Sends messages from a client on worker 0 to subscribers on both; returns the allocations of the second half.
fn allocations(qos: QoS, rule: Option<&str>) -> u64 {
    let mut pair = Pair::new(rule);
    let near = pair.connect(0, "near", Some(("plant/+/temperature", qos)));
    let far = pair.connect(1, "far", Some(("plant/+/temperature", qos)));
    let publisher = pair.connect(0, "publisher", None);
    let (mut bytes, mut acknowledgement) = (Vec::with_capacity(1024), Vec::with_capacity(16));
    pair.received.reserve(4096);
    let mut before = 0;
    for round in 0..20_000_u32 {
        if round == 10_000 {
            before = ALLOCATIONS.load(Ordering::Relaxed);
        }
        let packet_id = PacketId::new((round % 60_000 + 1) as u16).filter(|_| qos > QoS::AtMostOnce);
        bytes.clear();
        publish(qos, packet_id, &mut bytes);
        pair.push(publisher, &bytes);
        for subscriber in [near, far] {
            pair.received.clear();
            pair.settle(Some(subscriber));
            if subscriber == near {
                assert!(pair.received.len() > 256, "the message has arrived");
            }
            if let Some(packet_id) = packet_id {
                acknowledgement.clear();
                let reason = ReasonCode::Success;
                let ack = Ack { packet_id, reason, properties: Properties::default() };
                assert!(Packet::PubAck(ack).encode(Version::V3_1_1, &mut acknowledgement));
                pair.push(subscriber, &acknowledgement);
            }
        }
    }
    assert_eq!(
        pair.workers[1].counters().publish_sent(),
        20_000,
        "the other worker's subscriber has all of them"
    );
    ALLOCATIONS.load(Ordering::Relaxed) - before
}

/// All flows are in one test because the count is that of the process.
#[test]
fn a_steady_flow_allocates_nothing() {
    assert_eq!(allocations(QoS::AtMostOnce, None), 0, "QoS 0");
    assert_eq!(allocations(QoS::AtLeastOnce, None), 0, "QoS 1");
    // An action costs nothing for messages that no source of its rule matches, whatever other actions select.
    for qos in [QoS::AtMostOnce, QoS::AtLeastOnce] {
        assert_eq!(allocations(qos, Some("plant/+/pressure")), 0, "{qos:?} with a rule that matches nothing");
    }
    let selected = allocations(QoS::AtMostOnce, Some("plant/+/temperature"));
    assert!(selected > 0, "a message that a rule selects gets its origin, so the rule above is in force");
}
