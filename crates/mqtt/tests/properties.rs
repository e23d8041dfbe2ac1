//! Properties of every packet in every version, however the network splits the stream.

mod common;

use common::{Sample, sample};
use mqtt::{Outgoing, Packet, Version, decode, frame};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::select;

proptest! {
    #![proptest_config(ProptestConfig { cases: 1024, failure_persistence: None, ..ProptestConfig::default() })]

    /// Decoding an encoded packet gives the same packet, without the fields that the version does not have.
    #[test]
    fn round_trip(sample in sample(), version in select(&Version::ALL[..])) {
        let mut bytes = Vec::new();
        let encodable = sample.with(|packet| packet.encode(version, &mut bytes));
        match sample.as_encoded_in(version) {
            None => {
                prop_assert!(!encodable);
                prop_assert!(bytes.is_empty());
            }
            Some(said) => {
                prop_assert!(encodable);
                prop_assert_eq!(frame(&bytes, u32::MAX), Ok(Some(bytes.len())));
                let decoded = decode(version, &bytes);
                said.with(|said| {
                    prop_assert!(decoded == Ok(said), "{:?}\n{:?}", decoded, said);
                    Ok(())
                })?;
            }
        }
    }

    /// A packet that is cut short anywhere is known to be incomplete, and decoding it fails.
    #[test]
    fn a_prefix_is_no_packet(sample in sample(), version in select(&Version::ALL[..])) {
        let mut bytes = Vec::new();
        sample.with(|packet| packet.encode(version, &mut bytes));
        for end in 0..bytes.len() {
            let size = frame(&bytes[..end], u32::MAX);
            prop_assert!(size == Ok(None) || size == Ok(Some(bytes.len())), "{:?} of {}", size, bytes.len());
            // Our own headers are at most five bytes long.
            prop_assert!(end < 5 || size != Ok(None));
            prop_assert!(decode(version, &bytes[..end]).is_err());
        }
    }

    /// Forwarded properties reach the subscriber completely and in order [MQTT-3.3.2-17] [MQTT-3.3.2-18].
    #[test]
    fn forwarding(sample in sample(), expiry in proptest::option::of(any::<u32>()), ids in vec(1..=268_435_455_u32, 0..3)) {
        sample.with(|packet| {
            let Packet::Publish(publish) = packet else { return Ok(()) };
            let mut scratch = Vec::new();
            let outgoing = Outgoing {
                dup: publish.dup,
                qos: publish.qos,
                retain: publish.retain,
                packet_id: publish.packet_id,
                topic: "t",
                topic_alias: None,
                message_expiry: expiry,
                subscription_ids: &ids,
                properties: publish.properties.forwardable(&mut scratch),
                payload: publish.payload,
            };
            let mut bytes = Vec::new();
            outgoing.encode(Version::V5, &mut bytes);
            prop_assert_eq!(bytes.len(), outgoing.encoded_len(Version::V5));
            let Ok(Packet::Publish(received)) = decode(Version::V5, &bytes) else { panic!("{bytes:02X?}") };
            prop_assert_eq!(received.properties.message_expiry_interval(), expiry);
            prop_assert_eq!(received.properties.topic_alias(), None);
            let received_ids = received.properties.iter().filter_map(|property| match property {
                mqtt::Property::SubscriptionIdentifier(id) => Some(id),
                _ => None,
            });
            prop_assert!(received_ids.eq(ids.iter().copied()));
            prop_assert!(received.properties.user_properties().eq(publish.properties.user_properties()));
            prop_assert_eq!(received.properties.content_type(), publish.properties.content_type());
            prop_assert_eq!(received.properties.response_topic(), publish.properties.response_topic());
            prop_assert_eq!(received.properties.correlation_data(), publish.properties.correlation_data());
            prop_assert_eq!(
                received.properties.payload_format_indicator(),
                publish.properties.payload_format_indicator()
            );
            Ok(())
        })?;
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Every split of the stream in two gives the same packets, and so does every chunk size.
    #[test]
    fn splits(samples in vec(sample(), 1..6), version in select(&Version::ALL[..])) {
        let mut stream = Vec::new();
        let mut expected = Vec::new();
        for sample in &samples {
            if sample.with(|packet| packet.encode(version, &mut stream)) {
                expected.push(sample.as_encoded_in(version).expect("encoded"));
            }
        }
        for cut in 0..=stream.len() {
            receive(version, [&stream[..cut], &stream[cut..]].into_iter(), &expected)?;
        }
        for size in [1, 2, 3, 7, 64] {
            receive(version, stream.chunks(size), &expected)?;
        }
    }
}

/// Receives `chunks` as a connection does and compares the packets.
fn receive<'a>(
    version: Version,
    chunks: impl Iterator<Item = &'a [u8]>,
    expected: &[Sample],
) -> Result<(), TestCaseError> {
    let mut expected = expected.iter();
    let mut buffer = Vec::new();
    for chunk in chunks {
        buffer.extend_from_slice(chunk);
        let mut start = 0;
        while let Some(size) =
            frame(&buffer[start..], u32::MAX).map_err(|error| TestCaseError::fail(error.to_string()))?
        {
            let Some(bytes) = buffer.get(start..start + size) else { break };
            let decoded = decode(version, bytes);
            let next = expected.next().ok_or_else(|| TestCaseError::fail("one packet too many"))?;
            next.with(|packet| {
                prop_assert!(decoded == Ok(packet), "{:?}\n{:?}", decoded, packet);
                Ok(())
            })?;
            start += size;
        }
        buffer.drain(..start);
    }
    prop_assert!(buffer.is_empty());
    prop_assert!(expected.next().is_none(), "a packet is missing");
    Ok(())
}
