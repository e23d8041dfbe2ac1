//! Decoding, and encoding into a buffer with capacity, do not allocate.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use mqtt::{Outgoing, Packet, PacketId, QoS, Version, decode, frame};

struct Counting;

thread_local! {
    /// Number of allocations of this thread; the test harness has other threads.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; counting uses only a thread-local number without
// destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: promised by the caller.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn allocations(work: impl FnOnce()) -> u64 {
    let before = COUNT.with(Cell::get);
    work();
    COUNT.with(Cell::get) - before
}

#[test]
fn the_counter_counts() {
    assert_ne!(allocations(|| drop(std::hint::black_box(vec![1_u8]))), 0);
}

/// Every packet of the fuzz corpus: all types, all versions, all properties.
#[test]
fn decoding_and_encoding_the_corpus_do_not_allocate() {
    let directory = concat!(env!("CARGO_MANIFEST_DIR"), "/fuzz/corpus/decode");
    let mut packets = 0;
    for entry in std::fs::read_dir(directory).expect("the corpus") {
        let path = entry.expect("a file").path();
        let input = std::fs::read(&path).expect("a readable file");
        let version = Version::ALL[usize::from(input[0])];
        let mut rest = &input[1..];
        let mut out = Vec::with_capacity(input.len());
        while let Ok(Some(size)) = frame(rest, u32::MAX) {
            let Some((packet, following)) = rest.split_at_checked(size) else { break };
            rest = following;
            out.clear();
            let count = allocations(|| {
                let decoded = decode(version, packet).expect("the corpus is valid");
                std::hint::black_box(look_at(decoded));
                assert!(decoded.encode(version, &mut out));
            });
            assert_eq!(count, 0, "{}", path.display());
            packets += 1;
        }
        assert!(rest.is_empty(), "{}", path.display());
    }
    assert!(packets > 50);
}

/// Reads the fields that a server reads.
fn look_at(packet: Packet<'_>) -> usize {
    match packet {
        Packet::Connect(connect) => connect.properties.iter().count() + connect.session_expiry() as usize,
        Packet::Publish(publish) => publish.properties.iter().count() + publish.payload.len(),
        Packet::Subscribe(subscribe) => subscribe.filters.iter().map(|(filter, _)| filter.len()).sum(),
        Packet::Unsubscribe(unsubscribe) => unsubscribe.filters.iter().map(str::len).sum(),
        _ => 0,
    }
}

#[test]
fn refusing_does_not_allocate() {
    let packets: [&[u8]; 5] = [
        &[0x00, 0],
        &[0x36, 0],
        b"\x10\x07\0\x04MQTT\x09",
        b"\x30\x04\0\x01#\0",
        b"\x30\x07\0\x01a\x03\x26\0\x09",
    ];
    for packet in packets {
        let count = allocations(|| assert!(decode(Version::V5, packet).is_err()));
        assert_eq!(count, 0, "{packet:02X?}");
    }
}

#[test]
fn outgoing_does_not_allocate() {
    let payload = [0x55; 256];
    for version in Version::ALL {
        for qos in [QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce] {
            let outgoing = Outgoing {
                dup: false,
                qos,
                retain: false,
                packet_id: PacketId::new(7),
                topic: "sensors/kitchen/temperature",
                topic_alias: Some(1),
                message_expiry: Some(60),
                subscription_ids: &[1, 300],
                properties: b"\x03\0\x04text",
                payload: &payload,
            };
            // The capacity is exact: reserving more would allocate.
            let mut out = Vec::with_capacity(outgoing.encoded_len(version));
            let capacity = out.capacity();
            assert_eq!(allocations(|| outgoing.encode(version, &mut out)), 0);
            assert_eq!((out.len(), out.capacity()), (capacity, capacity));
        }
    }
}
