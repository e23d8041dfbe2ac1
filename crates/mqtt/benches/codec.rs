//! Measures nanoseconds per operation of the codec's hot path: `cargo bench -p mqtt`. Each figure is the best of
//! several runs, the one least disturbed by other load on the machine.

use std::hint::black_box;
use std::time::Instant;

use mqtt::{
    Outgoing, Packet, PacketId, PropertiesBuf, Property, QoS, TopicFilter, TopicName, Version, decode, frame,
};

const TOPIC: &str = "sensors/building-7/floor-3/temperature";
const PAYLOAD: [u8; 256] = [0x55; 256];

fn main() {
    let mut properties = PropertiesBuf::default();
    for property in [
        Property::PayloadFormatIndicator(0),
        Property::ContentType("application/json"),
        Property::UserProperty("trace", "0af7651916cd43dd8448eb211c80319c"),
    ] {
        assert!(properties.push(property));
    }
    let none = PropertiesBuf::default();
    for (version, qos, properties) in [
        (Version::V3_1_1, QoS::AtMostOnce, &none),
        (Version::V3_1_1, QoS::AtLeastOnce, &none),
        (Version::V5, QoS::AtMostOnce, &none),
        (Version::V5, QoS::AtLeastOnce, &none),
        (Version::V5, QoS::AtLeastOnce, &properties),
    ] {
        let outgoing = Outgoing {
            dup: false,
            qos,
            retain: false,
            packet_id: PacketId::new(7),
            topic: TOPIC,
            topic_alias: None,
            message_expiry: None,
            subscription_ids: &[],
            properties: properties.as_properties().as_bytes(),
            payload: &PAYLOAD,
        };
        let mut bytes = Vec::new();
        outgoing.encode(version, &mut bytes);
        let name = format!(
            "PUBLISH {} B, MQTT {version}, QoS {}, {} properties",
            PAYLOAD.len(),
            qos as u8,
            properties.as_properties().iter().count()
        );
        measure(&format!("decode {name}"), || {
            let bytes = black_box(&bytes[..]);
            let size = frame(bytes, 1 << 20).unwrap().unwrap();
            let Ok(Packet::Publish(publish)) = decode(version, &bytes[..size]) else { panic!() };
            black_box((publish.topic, publish.properties.topic_alias(), publish.payload.len()));
        });
        let mut out = Vec::with_capacity(1024);
        measure(&format!("encode {name}"), || {
            out.clear();
            black_box(&outgoing).encode(version, &mut out);
            black_box(out.len());
        });
    }
    let mut scratch = Vec::new();
    measure("forwardable, 3 properties", || {
        black_box(black_box(properties.as_properties()).forwardable(&mut scratch).len());
    });
    let puback = [0x40, 2, 0, 7];
    measure("decode PUBACK", || {
        black_box(decode(Version::V5, black_box(&puback)).is_ok());
    });
    let name = TopicName::parse(TOPIC).unwrap();
    let filter = TopicFilter::parse("sensors/+/floor-3/#").unwrap();
    measure("match sensors/+/floor-3/#", || {
        black_box(black_box(filter).matches(black_box(name)));
    });
}

fn measure(name: &str, mut work: impl FnMut()) {
    const RUNS: usize = 20;
    const ROUNDS: u32 = 20_000;
    let best = (0..RUNS).map(|_| {
        let start = Instant::now();
        for _ in 0..ROUNDS {
            work();
        }
        start.elapsed() / ROUNDS
    });
    let best = best.min().unwrap_or_default();
    println!("{name:<62} {:>6} ns", best.as_nanos());
}
