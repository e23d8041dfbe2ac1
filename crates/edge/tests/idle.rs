//! Memory of an idle connection. `cargo xtask idle` measures the user memory of a process, and `cargo xtask bench
//! --only idle` does so with sockets. This test counts the bytes requested from the allocator, which other programs on
//! the machine do not influence.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use broker::access::AllowAll;
use edge::Reactor;
use mqtt::{
    Connect, Packet, PacketId, Properties, QoS, RetainHandling, Subscribe, SubscribeFiltersBuf,
    SubscriptionOptions, Version,
};

struct Counting;

static LIVE: AtomicI64 = AtomicI64::new(0);

// SAFETY: every call goes to the system allocator; this only adds up sizes.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size() as i64, Ordering::Relaxed);
        // SAFETY: the caller upholds the contract of `dealloc`.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Number of connections. Most machines allow a process this many sockets, and the sixteen tables of clients have just
/// grown here.
const CONNECTIONS: i64 = 15_000;
/// Maximum number of bytes for each connection. Measured: 394, in a debug build and with all timers in few lists, which
/// then take 18 bytes and 32 at most. The budget of a process is 768 bytes. The allocator, structures that exist once,
/// and buffers that were used once take the rest. Structures that exist for each connection have their sizes in the
/// code.
const BYTES_MAX: i64 = 420;

#[test]
fn an_idle_connection_keeps_no_more_than_its_budget() {
    let settings = broker::settings::Settings::default();
    let node = broker::Node::new(settings, Arc::new(AllowAll), "idle".into(), 1, *b"a fixed hash key");
    let mut reactor = Reactor::detached(node).expect("a poller can be had");
    add(&mut reactor, 0..1_000);
    let before = LIVE.load(Ordering::Relaxed);
    add(&mut reactor, 1_000..1_000 + CONNECTIONS as u32);
    let each = (LIVE.load(Ordering::Relaxed) - before) / CONNECTIONS;
    let counters = reactor.worker().counters();
    assert_eq!(counters.clients_connected, 1_000 + CONNECTIONS as u64, "every client was accepted");
    assert_eq!(counters.subscriptions_added, 1_000 + CONNECTIONS as u64, "every subscription was granted");
    assert!(
        each <= BYTES_MAX,
        "{each} bytes for each of {CONNECTIONS} idle connections, {BYTES_MAX} at most"
    );
}

/// Adds clients that connect, each with a subscription to its own filter.
fn add(reactor: &mut Reactor, numbers: std::ops::Range<u32>) {
    let mut bytes = Vec::new();
    for number in numbers {
        let slot = reactor.attach();
        bytes.clear();
        connect(number, &mut bytes);
        reactor.push(slot, &bytes);
        reactor.turn();
        bytes.clear();
        subscribe(number, &mut bytes);
        reactor.push(slot, &bytes);
        reactor.turn();
    }
    reactor.turn();
}

fn connect(number: u32, out: &mut Vec<u8>) {
    let connect = Connect {
        version: Version::V3_1_1,
        bridge: false,
        clean_start: true,
        keep_alive: 300,
        client_id: &format!("client-{number:07}"),
        will: None,
        username: None,
        password: None,
        properties: Properties::default(),
    };
    assert!(Packet::Connect(connect).encode(Version::V3_1_1, out));
}

fn subscribe(number: u32, out: &mut Vec<u8>) {
    let options = SubscriptionOptions {
        qos: QoS::AtLeastOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: RetainHandling::Send,
    };
    let mut filters = SubscribeFiltersBuf::default();
    filters.push(&format!("bench/{number}/#"), options);
    let packet_id = PacketId::new(1).expect("not 0");
    let subscribe = Subscribe { packet_id, properties: Properties::default(), filters: filters.as_filters() };
    assert!(Packet::Subscribe(subscribe).encode(Version::V3_1_1, out));
}
