//! Checks that must hold for any bytes. Used by cargo-fuzz and, without it, by `tests/fuzz.rs`.

use mqtt::{DecodeError, Outgoing, Packet, Subscription, TopicFilter, TopicName, Version, decode, frame};

/// Reads `input` as a version (its first byte) and a stream of packets. Panics when the codec contradicts itself.
pub fn check(input: &[u8]) {
    let Some((&selector, stream)) = input.split_first() else { return };
    let version = Version::ALL[usize::from(selector) % 3];
    topics(stream);
    let mut rest = stream;
    loop {
        let size = frame(rest, SIZE_MAX);
        header_prefixes(rest, size);
        match size {
            Ok(Some(size)) if size <= rest.len() => {
                one(version, &rest[..size]);
                rest = &rest[size..];
            }
            Ok(_) => {
                // The stream ends within a packet.
                assert!(decode(version, rest).is_err(), "an incomplete packet");
                return;
            }
            Err(error) => {
                assert!(error.reason_code().is_error() && !error.to_string().is_empty());
                assert!(frame(rest, u32::MAX).is_ok() || decode(version, rest).is_err(), "a bad header");
                return;
            }
        }
    }
}

/// Maximum size of a packet in bytes.
const SIZE_MAX: u32 = 1 << 16;

/// Checks that the result of `frame` does not depend on how much of the body is there, and never comes too early.
fn header_prefixes(stream: &[u8], size: Result<Option<usize>, mqtt::DecodeError>) {
    let mut said = Ok(None);
    for end in 0..=stream.len().min(6) {
        let now = frame(&stream[..end], SIZE_MAX);
        if said != Ok(None) {
            assert_eq!(now, said, "more bytes changed the result");
        }
        said = now;
    }
    assert_eq!(said, size);
}

/// Checks one whole packet in all versions.
fn one(version: Version, bytes: &[u8]) {
    assert!(decode(version, &bytes[..bytes.len() - 1]).is_err(), "a byte is missing");
    let mut longer = bytes.to_vec();
    longer.push(0);
    assert!(decode(version, &longer).is_err(), "a byte too many");
    match decode(version, bytes) {
        Err(error) => {
            assert!(error.reason_code().is_error(), "{error:?}");
            assert!(!error.to_string().is_empty());
        }
        Ok(packet) => {
            // The output has every field and property.
            assert!(!format!("{packet:?}").is_empty());
            let mut encoded = vec![0xAA];
            assert!(packet.encode(version, &mut encoded), "{packet:?} cannot be encoded again");
            assert_eq!(frame(&encoded[1..], u32::MAX), Ok(Some(encoded.len() - 1)));
            let again = decode(version, &encoded[1..]);
            assert!(again == Ok(packet), "{packet:?}\nis encoded as\n{again:?}");
            for other in Version::ALL {
                translated(packet, other);
            }
            if let Packet::Connect(connect) = packet {
                assert_eq!(mqtt::connect_version(bytes), Some(connect.version));
            }
            contents(packet);
        }
    }
}

/// Checks that a packet encoded in any version decodes, and encodes to the same bytes again.
fn translated(packet: Packet<'_>, version: Version) {
    let mut encoded = Vec::new();
    if packet.encode(version, &mut encoded) {
        let read = match decode(version, &encoded) {
            // Before 5.0 `$share` is an ordinary level.
            Err(DecodeError::TopicFilterInvalid) if version == Version::V5 => return,
            read => read.expect("our own packet"),
        };
        let mut again = Vec::new();
        assert!(read.encode(version, &mut again));
        assert_eq!(encoded, again, "{read:?}");
    } else {
        assert!(encoded.is_empty());
    }
}

fn contents(packet: Packet<'_>) {
    match packet {
        Packet::Publish(publish) => {
            assert!(publish.topic.is_empty() || TopicName::parse(publish.topic).is_ok());
            let (mut scratch, mut encoded) = (Vec::new(), Vec::new());
            let subscription_id = publish.properties.subscription_identifier();
            let outgoing = Outgoing {
                dup: publish.dup,
                qos: publish.qos,
                retain: publish.retain,
                packet_id: publish.packet_id,
                topic: publish.topic,
                topic_alias: publish.properties.topic_alias(),
                message_expiry: publish.properties.message_expiry_interval(),
                subscription_ids: subscription_id.as_slice(),
                properties: publish.properties.forwardable(&mut scratch),
                payload: publish.payload,
            };
            for version in Version::ALL {
                encoded.clear();
                outgoing.encode(version, &mut encoded);
                if encoded.is_empty() {
                    assert_eq!(outgoing.encoded_len(version), usize::MAX);
                    continue;
                }
                assert_eq!(outgoing.encoded_len(version), encoded.len());
                let read = decode(version, &encoded).expect("our own packet");
                assert!(matches!(read, Packet::Publish(read) if read.payload == publish.payload));
            }
        }
        Packet::Connect(connect) => {
            assert!(connect.maximum_packet_size() > 0 && connect.receive_maximum() != Some(0));
            if let Some(will) = connect.will {
                assert!(TopicName::parse(will.topic).is_ok());
            }
        }
        Packet::Subscribe(subscribe) => {
            assert_eq!(subscribe.filters.iter().count(), subscribe.filters.len());
            assert!(subscribe.filters.iter().all(|(filter, _)| !filter.is_empty()));
        }
        Packet::Unsubscribe(unsubscribe) => {
            assert_eq!(unsubscribe.filters.iter().count(), unsubscribe.filters.len());
            assert!(unsubscribe.filters.iter().all(|filter| !filter.is_empty()));
        }
        _ => {}
    }
}

/// Checks topics: a Topic Name is a Topic Filter that matches itself, and so on.
fn topics(bytes: &[u8]) {
    let text = String::from_utf8_lossy(bytes);
    let (left, right) = text.split_at(text.floor_char_boundary(text.len() / 2));
    for part in [&text, left, right] {
        if let Ok(name) = TopicName::parse(part) {
            let filter = TopicFilter::parse(part).expect("a Topic Name is a Topic Filter");
            assert!(filter.matches(name) && !filter.has_wildcard());
            assert!(TopicFilter::parse("#").is_ok_and(|all| all.matches(name) != name.starts_with_dollar()));
        }
        if let Ok(filter) = TopicFilter::parse(part) {
            assert_eq!(filter.levels().collect::<Vec<_>>().join("/"), filter.as_str());
        }
        if let Ok(subscription) = Subscription::parse(part) {
            assert!(
                subscription.share.is_none_or(|share| !share.is_empty() && !share.contains(['/', '+', '#']))
            );
        }
    }
    if let (Ok(filter), Ok(name)) = (TopicFilter::parse(left), TopicName::parse(right)) {
        assert_eq!(filter.matches(name), matches_by_levels(filter, name), "{filter} {name}");
    }
}

/// Matches by the rules of 4.7 with another algorithm: from the end of the filter to its beginning.
fn matches_by_levels(filter: TopicFilter<'_>, name: TopicName<'_>) -> bool {
    let mut filter: Vec<&str> = filter.levels().collect();
    let mut name: Vec<&str> = name.levels().collect();
    let hidden = name[0].starts_with('$') && matches!(filter[0], "+" | "#");
    if filter.last() == Some(&"#") {
        filter.pop();
        if name.len() < filter.len() {
            return false;
        }
        name.truncate(filter.len());
    }
    !hidden
        && filter.len() == name.len()
        && filter.iter().zip(&name).all(|(want, is)| *want == "+" || want == is)
}
