//! Properties on the command line: `-D publish content-type text/plain`, `-D connect user-property name value`.

use mqtt::{PropertiesBuf, Property};

use super::Failure;

/// Properties for each packet that the clients send.
#[derive(Debug, Default)]
pub struct Properties {
    pub connect: PropertiesBuf,
    pub will: PropertiesBuf,
    pub publish: PropertiesBuf,
    pub subscribe: PropertiesBuf,
    pub disconnect: PropertiesBuf,
}

impl Properties {
    /// Parses the words after all `-D` options as one list: packet, name, and one value or, for a User Property, two.
    ///
    /// # Errors
    /// [`Failure::Usage`] for unknown words, values out of range, and a property that is repeated and may not be.
    pub fn parse(words: &[String]) -> Result<Self, Failure> {
        let mut properties = Self::default();
        let mut seen: Vec<(&str, &str)> = Vec::new();
        let mut words = words.iter().map(String::as_str);
        while let Some(packet) = words.next() {
            let mut word =
                || words.next().ok_or_else(|| usage("-D takes a packet, a property's name, and its value"));
            let name = word()?;
            let value = word()?;
            let second = if name == USER_PROPERTY { word()? } else { "" };
            let Some((_, packets)) = KNOWN.iter().find(|(known, _)| *known == name) else {
                let nearest =
                    settings::nearest(name, KNOWN.iter().map(|(name, _)| *name)).unwrap_or_default();
                return Err(usage(&format!(
                    "-D: unknown property `{name}`; the nearest known one is `{nearest}`"
                )));
            };
            if !packets.contains(&packet) {
                return Err(usage(&format!(
                    "-D: `{name}` goes with {}, not with `{packet}`",
                    packets.join(", ")
                )));
            }
            if name != USER_PROPERTY && seen.contains(&(packet, name)) {
                return Err(usage(&format!("-D: `{name}` can be given once only")));
            }
            seen.push((packet, name));
            let target = match packet {
                "connect" => &mut properties.connect,
                "will" => &mut properties.will,
                "publish" => &mut properties.publish,
                "subscribe" => &mut properties.subscribe,
                _ => &mut properties.disconnect,
            };
            if !target.push(property(name, value, second)?) {
                return Err(usage(&format!("-D: the value of `{name}` is too long")));
            }
        }
        Ok(properties)
    }

    pub fn is_empty(&self) -> bool {
        let Self { connect, will, publish, subscribe, disconnect } = self;
        [connect, will, publish, subscribe, disconnect].iter().all(|properties| properties.is_empty())
    }
}

const USER_PROPERTY: &str = "user-property";

/// Names, and the packets they belong to (table 2-4).
const KNOWN: [(&str, &[&str]); 18] = [
    ("payload-format-indicator", &["publish", "will"]),
    ("message-expiry-interval", &["publish", "will"]),
    ("content-type", &["publish", "will"]),
    ("response-topic", &["publish", "will"]),
    ("correlation-data", &["publish", "will"]),
    ("subscription-identifier", &["subscribe"]),
    ("session-expiry-interval", &["connect", "disconnect"]),
    ("authentication-method", &["connect"]),
    ("authentication-data", &["connect"]),
    ("request-problem-information", &["connect"]),
    ("request-response-information", &["connect"]),
    ("will-delay-interval", &["will"]),
    ("receive-maximum", &["connect"]),
    ("topic-alias-maximum", &["connect"]),
    ("maximum-packet-size", &["connect"]),
    ("topic-alias", &["publish"]),
    ("reason-string", &["disconnect"]),
    (USER_PROPERTY, &["connect", "will", "publish", "subscribe", "disconnect"]),
];

fn property<'a>(name: &str, value: &'a str, second: &'a str) -> Result<Property<'a>, Failure> {
    Ok(match name {
        "payload-format-indicator" => Property::PayloadFormatIndicator(number(name, value, 0, 1)? as u8),
        "message-expiry-interval" => Property::MessageExpiryInterval(number(name, value, 0, u32::MAX)?),
        "content-type" => Property::ContentType(value),
        "response-topic" => Property::ResponseTopic(value),
        "correlation-data" => Property::CorrelationData(value.as_bytes()),
        "subscription-identifier" => Property::SubscriptionIdentifier(number(name, value, 1, 268_435_455)?),
        "session-expiry-interval" => Property::SessionExpiryInterval(number(name, value, 0, u32::MAX)?),
        "authentication-method" => Property::AuthenticationMethod(value),
        "authentication-data" => Property::AuthenticationData(value.as_bytes()),
        "request-problem-information" => {
            Property::RequestProblemInformation(number(name, value, 0, 1)? as u8)
        }
        "request-response-information" => {
            Property::RequestResponseInformation(number(name, value, 0, 1)? as u8)
        }
        "will-delay-interval" => Property::WillDelayInterval(number(name, value, 0, u32::MAX)?),
        "receive-maximum" => Property::ReceiveMaximum(number(name, value, 1, 65_535)? as u16),
        "topic-alias-maximum" => Property::TopicAliasMaximum(number(name, value, 0, 65_535)? as u16),
        "maximum-packet-size" => Property::MaximumPacketSize(number(name, value, 1, u32::MAX)?),
        "topic-alias" => Property::TopicAlias(number(name, value, 1, 65_535)? as u16),
        "reason-string" => Property::ReasonString(value),
        _ => Property::UserProperty(value, second),
    })
}

fn number(name: &str, value: &str, low: u32, high: u32) -> Result<u32, Failure> {
    let number = value.parse().ok().filter(|number| (low..=high).contains(number));
    number.ok_or_else(|| usage(&format!("-D: `{name}` is a number from {low} to {high}, not `{value}`")))
}

fn usage(text: &str) -> Failure {
    Failure::Usage(text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Properties, String> {
        let words: Vec<String> = text.split_whitespace().map(str::to_owned).collect();
        Properties::parse(&words).map_err(|failure| failure.to_string())
    }

    #[test]
    fn properties_go_to_their_packets_in_order() {
        let properties = parse(
            "publish content-type text/plain publish user-property a 1 connect receive-maximum 5 \
             publish user-property b 2",
        )
        .unwrap();
        let publish: Vec<_> = properties.publish.as_properties().iter().collect();
        let expected = [
            Property::ContentType("text/plain"),
            Property::UserProperty("a", "1"),
            Property::UserProperty("b", "2"),
        ];
        assert_eq!(publish, expected);
        assert_eq!(properties.connect.as_properties().receive_maximum(), Some(5));
        assert!(properties.will.is_empty() && !properties.is_empty());
    }

    #[test]
    fn every_known_property_is_accepted_in_its_packets() {
        for (name, packets) in KNOWN {
            for packet in packets {
                let value = if name == USER_PROPERTY { "1 1" } else { "1" };
                assert!(!parse(&format!("{packet} {name} {value}")).unwrap().is_empty(), "{packet} {name}");
            }
        }
    }

    #[test]
    fn mistakes_are_named() {
        let error = |text| parse(text).unwrap_err();
        assert!(error("publish content-tipe x").contains("nearest known one is `content-type`"));
        assert!(error("connect content-type x").contains("goes with publish, will, not with `connect`"));
        assert!(error("connect receive-maximum 0").contains("a number from 1 to 65535, not `0`"));
        assert!(error("publish content-type a publish content-type b").contains("once only"));
        assert!(error("publish user-property a").contains("takes a packet"));
    }
}
