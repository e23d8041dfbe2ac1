//! Measures memory per session and per queued message, and the CPU time of commands (Linux): `cargo run --release
//! -p shard --example memory [sessions] [messages]`.

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::{Duration, Instant};

use mqtt::QoS;
use shard::{
    Acknowledgement, BatchBuilder, Claim, Command, Effect, Filter, Limits, MessageView, NEVER,
    NodeIncarnation, SessionUid, Shard, WillFate, packet_id,
};

/// Allocator that counts the requested bytes, without the rounding of the system allocator.
struct Counting;

static HELD: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system allocator; only the sizes are added up.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller's promise is passed on.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// Number of commands of one batch.
const BATCH: usize = 256;

struct Bench {
    shard: Shard,
    builder: BatchBuilder,
    effects: Vec<Effect>,
    pending: usize,
}

impl Bench {
    fn new() -> Self {
        let shard = Shard::new(0, *b"a secret of none");
        let mut bench = Self { shard, builder: BatchBuilder::new(0), effects: Vec::new(), pending: 0 };
        let limits = Limits { queue_messages_max: u32::MAX, queue_bytes_max: u64::MAX, ..Limits::default() };
        bench.push(&Command::Configure(limits));
        bench.flush();
        bench
    }

    fn push(&mut self, command: &Command<'_>) {
        self.builder.push(command);
        self.pending += 1;
        if self.pending == BATCH || self.builder.is_full() {
            self.flush();
        }
    }

    fn flush(&mut self) {
        self.effects.clear();
        let index = self.shard.applied() + 1;
        let applied = self.shard.apply(index, self.builder.bytes(), &mut self.effects);
        applied.expect("the next batch");
        self.builder.begin(0);
        self.pending = 0;
    }

    fn session(&mut self, client_id: &str, filter: &str) -> SessionUid {
        let claim = Claim {
            client_id,
            user: 1,
            owner: None,
            connection: 2,
            clean_start: false,
            expiry_s: 86_400,
            window: 1024,
            will: None,
            keeps_ephemeral: false,
            queue_limits: None,
        };
        self.push(&Command::Claim(claim));
        self.flush();
        let session = self.shard.session_of(client_id).expect("claimed");
        let filters = vec![Filter { text: filter, options: 1, id: 0 }];
        self.push(&Command::Subscribe { session, epoch: 1, filters });
        session
    }

    fn release(&mut self, session: SessionUid) {
        self.push(&Command::Release { session, epoch: 1, expiry_s: None, will: WillFate::Arm });
    }
}

fn publish(topic: &str) -> Command<'_> {
    let message = MessageView {
        topic,
        properties: &[],
        payload: &[b'x'; 64],
        qos: QoS::AtLeastOnce,
        retain: false,
        expires: NEVER,
        received: 0,
        publisher_key: 1,
    };
    Command::Publish { message, wait: true, identity: None }
}

fn main() {
    let mut arguments = std::env::args().skip(1).map(|argument| argument.parse().expect("a number"));
    let sessions: usize = arguments.next().unwrap_or(100_000);
    let messages: usize = arguments.next().unwrap_or(1_000_000);
    offline_sessions(sessions);
    ephemeral_sessions(sessions);
    queued_messages(messages);
    one_session_in_step(messages);
    checkpoint(sessions.min(100_000));
    for count in [625, 6_250, 62_500] {
        one_for_all(count);
    }
}

/// Returns the CPU time of this process, so that other processes on the machine do not count.
fn cpu_time() -> Duration {
    let figures = std::fs::read_to_string("/proc/self/schedstat").expect("Linux provides the CPU time");
    let nanoseconds = figures.split(' ').next().and_then(|figure| figure.parse().ok());
    Duration::from_nanos(nanoseconds.expect("a number"))
}

/// Returns Client Identifiers that belong to shard 0.
fn client_ids() -> impl Iterator<Item = (usize, String)> {
    let ids = (0..).map(|number| (number, format!("device-{number:09}")));
    ids.filter(|(_, id)| shard::client_bucket(id).is_multiple_of(16))
}

fn held() -> usize {
    HELD.load(Relaxed)
}

fn offline_sessions(count: usize) {
    let mut bench = Bench::new();
    let clients: Vec<_> = client_ids().take(count).collect();
    let before = held();
    let start = cpu_time();
    for (number, client_id) in clients.iter() {
        let session = bench.session(client_id, &format!("devices/{number:09}/commands"));
        bench.release(session);
    }
    bench.flush();
    let each = (cpu_time() - start).as_nanos() as usize / count;
    println!(
        "offline session, 16-byte identifier, one subscription of 26 bytes: {} bytes",
        (held() - before) / count
    );
    println!("  of that in the index of filters: {} bytes", bench.shard.routes_memory() / count);
    println!("  claim, subscribe, release: {each} ns");
}

fn ephemeral_sessions(count: usize) {
    let mut bench = Bench::new();
    let clients: Vec<_> = client_ids().take(count).collect();
    let owner = Some(NodeIncarnation { node: 1, incarnation: 1 });
    let before = held();
    for (_, client_id) in &clients {
        bench.push(&Command::Claim(Claim {
            client_id,
            user: 1,
            owner,
            connection: 2,
            clean_start: true,
            expiry_s: 0,
            window: 1024,
            will: None,
            keeps_ephemeral: true,
            queue_limits: None,
        }));
    }
    bench.flush();
    let each = (held() - before) / count;
    println!("ephemeral session of a node of a cluster, 16-byte identifier: {each} bytes");
}

fn queued_messages(count: usize) {
    let mut bench = Bench::new();
    let session = bench.session("reader", "t");
    bench.release(session);
    bench.flush();
    let before = held();
    let start = cpu_time();
    (0..count).for_each(|_| bench.push(&publish("t")));
    bench.flush();
    let each = (cpu_time() - start).as_nanos() as usize / count;
    println!(
        "message queued for one session: {:.1} bytes, {each} ns",
        (held() - before) as f64 / count as f64
    );
    let claim = Claim {
        client_id: "reader",
        user: 1,
        owner: None,
        connection: 2,
        clean_start: false,
        expiry_s: 86_400,
        window: 1024,
        will: None,
        keeps_ephemeral: false,
        queue_limits: None,
    };
    // The time is too short for the kernel's CPU accounting.
    let start = Instant::now();
    bench.push(&Command::Claim(claim));
    bench.flush();
    println!("claim of a session with {count} messages: {} us", start.elapsed().as_micros());
    let start = cpu_time();
    for n in 0..count as u64 {
        let kind = Acknowledgement::PubAck;
        bench.push(&Command::Acknowledge { session, epoch: 2, packet_id: packet_id(n), kind });
    }
    bench.flush();
    let each = (cpu_time() - start).as_nanos() as usize / count;
    let left = bench.shard.session(session).map_or(0, |session| session.waiting().count());
    println!("acknowledge, which pins the next: {each} ns, {left} left");
}

/// Measures a publisher and a subscriber that keeps up: each batch acknowledges the deliveries of the previous one.
fn one_session_in_step(count: usize) {
    let mut bench = Bench::new();
    let session = bench.session("reader", "t");
    bench.flush();
    let mut n = 0;
    let start = cpu_time();
    for round in 0..count / (BATCH / 2) {
        for _ in 0..BATCH / 2 {
            bench.push(&publish("t"));
        }
        for _ in 0..if round == 0 { 0 } else { BATCH / 2 } {
            let kind = Acknowledgement::PubAck;
            bench.push(&Command::Acknowledge { session, epoch: 1, packet_id: packet_id(n), kind });
            n += 1;
        }
    }
    bench.flush();
    let elapsed = cpu_time() - start;
    println!("publish to one session and acknowledge: {} ns", elapsed.as_nanos() as u64 / n);
}

/// Measures one message for each of `count` absent sessions of this shard; a node has 16 times as many.
fn one_for_all(count: usize) {
    let mut bench = Bench::new();
    for (_, client_id) in client_ids().take(count) {
        let session = bench.session(&client_id, "all");
        bench.release(session);
    }
    bench.flush();
    let one = |bench: &mut Bench| {
        let start = Instant::now();
        bench.push(&publish("all"));
        bench.flush();
        start.elapsed().as_micros()
    };
    let first = one(&mut bench);
    // The time is too short for the kernel's CPU accounting. The shortest run is the least disturbed one.
    let another = (0..20).map(|_| one(&mut bench)).min().unwrap_or_default();
    let saving = (0..20).map(|_| {
        bench.shard.begin_checkpoint();
        one(&mut bench)
    });
    let saving = saving.min().unwrap_or_default();
    println!(
        "one message for {count} sessions that are away: the first {first} us, another {another} us, \
         at the beginning of a checkpoint {saving} us"
    );
}

fn checkpoint(sessions: usize) {
    let mut bench = Bench::new();
    for (number, client_id) in client_ids().take(sessions) {
        let session = bench.session(&client_id, &format!("devices/{number:09}/commands"));
        bench.release(session);
    }
    bench.flush();
    let start = cpu_time();
    let mut parts = Vec::new();
    let index = bench.shard.begin_checkpoint();
    while !bench.shard.write_parts(1 << 20, &mut |part, bytes| parts.push((part, bytes.to_vec()))) {}
    let bytes: usize = parts.iter().map(|(_, bytes)| bytes.len()).sum();
    println!(
        "checkpoint of {sessions} sessions: {} bytes each, {} ms",
        bytes / sessions,
        (cpu_time() - start).as_millis()
    );
    let start = cpu_time();
    let mut restored = Shard::new(0, *b"a secret of none");
    for (part, bytes) in &parts {
        restored.restore_part(*part, bytes).expect("a part");
    }
    restored.restored(index).expect("a checkpoint");
    println!("restored: {} ms", (cpu_time() - start).as_millis());
}
