//! Output of `meridian sub` for a message.

use std::io::{self, Write};
use std::time::SystemTime;

use mqtt::{Properties, Property, QoS};

use super::time;

/// A message to print.
#[derive(Clone, Copy, Debug)]
pub struct Message<'a> {
    pub topic: &'a str,
    pub payload: &'a [u8],
    pub qos: QoS,
    pub retain: bool,
    /// Packet Identifier; 0 with QoS 0.
    pub packet_id: u16,
    pub properties: Properties<'a>,
    pub arrived: SystemTime,
}

/// A format, parsed from the text after `-F`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Format(Vec<Piece>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Vec<u8>),
    Field(u8),
}

/// Characters that can follow a `%`, and their meanings.
const FIELDS: [(u8, &str); 20] = [
    (b't', "topic"),
    (b'p', "payload"),
    (b'x', "payload in hexadecimal digits"),
    (b'X', "payload in capital hexadecimal digits"),
    (b'l', "bytes of the payload"),
    (b'q', "QoS"),
    (b'r', "1 for a retained message, else 0"),
    (b'm', "Packet Identifier"),
    (b'A', "Topic Alias"),
    (b'C', "Content Type"),
    (b'D', "Correlation Data"),
    (b'E', "Message Expiry Interval"),
    (b'F', "Payload Format Indicator"),
    (b'P', "User Properties, as name:value"),
    (b'R', "Response Topic"),
    (b'S', "Subscription Identifiers"),
    (b'I', "time of arrival, ISO 8601, UTC"),
    (b'U', "time of arrival, seconds since 1970"),
    (b'j', "all of it as JSON, the payload as a string"),
    (b'J', "all of it as JSON, a JSON payload as such"),
];

impl Format {
    /// Parses a format.
    ///
    /// # Errors
    /// An unknown character after `%` or `\`.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut pieces = Vec::new();
        let mut literal = Vec::new();
        let mut bytes = text.bytes();
        while let Some(byte) = bytes.next() {
            match byte {
                b'%' => match bytes.next() {
                    Some(b'%') => literal.push(b'%'),
                    Some(field) if FIELDS.iter().any(|(known, _)| *known == field) => {
                        if !literal.is_empty() {
                            pieces.push(Piece::Text(std::mem::take(&mut literal)));
                        }
                        pieces.push(Piece::Field(field));
                    }
                    other => return Err(unknown('%', other)),
                },
                b'\\' => literal.push(match bytes.next() {
                    Some(b'n') => b'\n',
                    Some(b't') => b'\t',
                    Some(b'r') => b'\r',
                    Some(b'0') => 0,
                    Some(b'a') => 7,
                    Some(b'e') => 27,
                    Some(b'\\') => b'\\',
                    other => return Err(unknown('\\', other)),
                }),
                byte => literal.push(byte),
            }
        }
        if !literal.is_empty() {
            pieces.push(Piece::Text(literal));
        }
        Ok(Self(pieces))
    }

    /// Appends a line break to the format.
    pub fn with_newline(mut self) -> Self {
        self.0.push(Piece::Text(b"\n".to_vec()));
        self
    }

    /// Writes a message. With `terminal`, control characters of the message are escaped, so a terminal does not obey
    /// them. The text of the format itself is the user's own and is not escaped.
    ///
    /// # Errors
    /// Errors of `out`.
    pub fn write(&self, message: &Message<'_>, terminal: bool, out: &mut impl Write) -> io::Result<()> {
        for piece in &self.0 {
            match piece {
                Piece::Text(text) => out.write_all(text)?,
                Piece::Field(field) if terminal => {
                    let mut raw = Vec::new();
                    write_field(*field, message, &mut raw)?;
                    let safe = match (field, std::str::from_utf8(&raw)) {
                        (b'j' | b'J', Ok(document)) => ctl::escape::json(document).into_owned(),
                        (b'p', _) => ctl::escape::payload(&raw),
                        _ => ctl::escape::bytes(&raw),
                    };
                    out.write_all(safe.as_bytes())?;
                }
                Piece::Field(field) => write_field(*field, message, out)?,
            }
        }
        Ok(())
    }
}

/// Lines of the help text about the fields.
pub fn help() -> String {
    let fields = FIELDS.iter().map(|(field, text)| format!("  %{}  {text}\n", char::from(*field)));
    fields.collect::<String>() + "  %%  a percent sign;  \\n \\t \\r \\0 \\a \\e \\\\  as usual"
}

fn unknown(sign: char, byte: Option<u8>) -> String {
    match byte {
        Some(byte) if byte.is_ascii() => format!("`{sign}{}` is unknown in a format", char::from(byte)),
        Some(_) => format!("`{sign}` with that character is unknown in a format"),
        None => format!("a format cannot end with `{sign}`"),
    }
}

fn write_field(field: u8, message: &Message<'_>, out: &mut impl Write) -> io::Result<()> {
    let properties = message.properties;
    match field {
        b't' => out.write_all(message.topic.as_bytes()),
        b'p' => out.write_all(message.payload),
        b'x' => message.payload.iter().try_for_each(|byte| write!(out, "{byte:02x}")),
        b'X' => message.payload.iter().try_for_each(|byte| write!(out, "{byte:02X}")),
        b'l' => write!(out, "{}", message.payload.len()),
        b'q' => write!(out, "{}", message.qos as u8),
        b'r' => write!(out, "{}", u8::from(message.retain)),
        b'm' => write!(out, "{}", message.packet_id),
        b'A' => optional(out, properties.topic_alias()),
        b'C' => optional(out, properties.content_type()),
        b'D' => out.write_all(properties.correlation_data().unwrap_or_default()),
        b'E' => optional(out, properties.message_expiry_interval()),
        b'F' => optional(out, properties.payload_format_indicator()),
        b'P' => joined(out, properties.user_properties().map(|(name, value)| format!("{name}:{value}"))),
        b'R' => optional(out, properties.response_topic()),
        b'S' => joined(out, subscription_identifiers(properties)),
        b'I' => out.write_all(time::iso8601(message.arrived).as_bytes()),
        b'U' => {
            let since = time::since_epoch(message.arrived);
            write!(out, "{}.{:09}", since.as_secs(), since.subsec_nanos())
        }
        b'j' => write!(out, "{}", json(message, false)),
        _ => write!(out, "{}", json(message, true)),
    }
}

fn optional(out: &mut impl Write, value: Option<impl std::fmt::Display>) -> io::Result<()> {
    value.map_or(Ok(()), |value| write!(out, "{value}"))
}

fn joined(out: &mut impl Write, values: impl Iterator<Item = impl std::fmt::Display>) -> io::Result<()> {
    for (index, value) in values.enumerate() {
        write!(out, "{}{value}", if index == 0 { "" } else { " " })?;
    }
    Ok(())
}

fn subscription_identifiers(properties: Properties<'_>) -> impl Iterator<Item = u32> {
    properties.iter().filter_map(|property| match property {
        Property::SubscriptionIdentifier(identifier) => Some(identifier),
        _ => None,
    })
}

/// The message as JSON. Field names are those of mosquitto_sub, so readers of its output can read this.
fn json(message: &Message<'_>, payload_is_json: bool) -> serde_json::Value {
    use serde_json::{Map, Value};

    let text = |bytes: &[u8]| Value::from(String::from_utf8_lossy(bytes).into_owned());
    let mut object = Map::new();
    object.insert("tst".to_owned(), time::iso8601(message.arrived).into());
    object.insert("topic".to_owned(), message.topic.into());
    object.insert("qos".to_owned(), (message.qos as u8).into());
    object.insert("retain".to_owned(), u8::from(message.retain).into());
    object.insert("payloadlen".to_owned(), message.payload.len().into());
    if message.packet_id != 0 {
        object.insert("mid".to_owned(), message.packet_id.into());
    }
    let mut properties = Map::new();
    let mut user = Vec::new();
    let mut identifiers = Vec::new();
    for property in message.properties.iter() {
        let (name, value) = match property {
            Property::PayloadFormatIndicator(value) => ("payload-format-indicator", value.into()),
            Property::MessageExpiryInterval(value) => ("message-expiry-interval", value.into()),
            Property::ContentType(value) => ("content-type", value.into()),
            Property::ResponseTopic(value) => ("response-topic", value.into()),
            Property::CorrelationData(value) => ("correlation-data", text(value)),
            Property::TopicAlias(value) => ("topic-alias", value.into()),
            Property::SubscriptionIdentifier(value) => {
                identifiers.push(Value::from(value));
                continue;
            }
            Property::UserProperty(name, value) => {
                user.push(Value::from(Map::from_iter([(name.to_owned(), Value::from(value))])));
                continue;
            }
            // The decoder refuses all other properties in a PUBLISH.
            _ => continue,
        };
        properties.insert(name.to_owned(), value);
    }
    if !identifiers.is_empty() {
        properties.insert("subscription-identifiers".to_owned(), identifiers.into());
    }
    if !user.is_empty() {
        properties.insert("user-properties".to_owned(), user.into());
    }
    if !properties.is_empty() {
        object.insert("properties".to_owned(), properties.into());
    }
    let parsed = payload_is_json.then(|| serde_json::from_slice(message.payload).ok()).flatten();
    object.insert("payload".to_owned(), parsed.unwrap_or_else(|| text(message.payload)));
    object.into()
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, UNIX_EPOCH};

    use mqtt::PropertiesBuf;

    use super::*;

    fn print(format: &str, payload: &[u8], properties: &[Property<'_>]) -> String {
        print_to(false, format, payload, properties)
    }

    fn print_to(terminal: bool, format: &str, payload: &[u8], properties: &[Property<'_>]) -> String {
        let mut buffer = PropertiesBuf::default();
        properties.iter().for_each(|property| assert!(buffer.push(*property)));
        let message = Message {
            topic: "a/b",
            payload,
            qos: QoS::AtLeastOnce,
            retain: true,
            packet_id: 7,
            properties: buffer.as_properties(),
            arrived: UNIX_EPOCH + Duration::from_millis(1_500),
        };
        let mut out = Vec::new();
        Format::parse(format).unwrap().write(&message, terminal, &mut out).unwrap();
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn every_field_is_printed() {
        assert_eq!(print("%t %p|%l %q %r %m %%\\n", b"hi", &[]), "a/b hi|2 1 1 7 %\n");
        assert_eq!(print("%x %X", b"\x0a\xff", &[]), "0aff 0AFF");
        assert_eq!(print("%I %U", b"", &[]), "1970-01-01T00:00:01+0000 1.500000000");
    }

    #[test]
    fn absent_properties_are_printed_as_nothing() {
        let properties = [
            Property::PayloadFormatIndicator(1),
            Property::MessageExpiryInterval(60),
            Property::ContentType("text/plain"),
            Property::ResponseTopic("r"),
            Property::CorrelationData(b"c"),
            Property::TopicAlias(3),
            Property::SubscriptionIdentifier(5),
            Property::SubscriptionIdentifier(6),
            Property::UserProperty("n", "v"),
            Property::UserProperty("n", "w"),
        ];
        assert_eq!(print("%F|%E|%C|%R|%D|%A|%S|%P", b"", &properties), "1|60|text/plain|r|c|3|5 6|n:v n:w");
        assert_eq!(print("%F%E%C%R%D%A%S%P", b"", &[]), "");
    }

    #[test]
    fn json_has_the_payload_as_string_or_as_json() {
        let head =
            r#"{"tst":"1970-01-01T00:00:01+0000","topic":"a/b","qos":1,"retain":1,"payloadlen":7,"mid":7"#;
        assert_eq!(print("%j", br#"{"a":1}"#, &[]), format!(r#"{head},"payload":"{{\"a\":1}}"}}"#));
        assert_eq!(print("%J", br#"{"a":1}"#, &[]), format!(r#"{head},"payload":{{"a":1}}}}"#));
        assert_eq!(print("%J", b"no json", &[]), format!(r#"{head},"payload":"no json"}}"#));
        let properties = [Property::ContentType("x"), Property::UserProperty("n", "v")];
        let expected =
            r#""properties":{"content-type":"x","user-properties":[{"n":"v"}]},"payload":"no json"}"#;
        assert_eq!(print("%j", b"no json", &properties), format!("{head},{expected}"));
    }

    /// Unescaped, a publisher could write control sequences to a subscriber's terminal.
    #[test]
    fn a_terminal_gets_no_control_sequences() {
        let hostile = "a\x1b]0;evil\x07\r\u{9b}2J\u{202e}";
        let properties = [
            Property::ContentType(hostile),
            Property::ResponseTopic(hostile),
            Property::CorrelationData(hostile.as_bytes()),
            Property::UserProperty(hostile, hostile),
        ];
        let format = "%p %C %R %D %P %j %J";
        let (safe, raw) = (
            print_to(true, format, hostile.as_bytes(), &properties),
            print(format, hostile.as_bytes(), &properties),
        );
        assert!(!safe.contains(|c: char| c.is_control() || c == '\u{202e}'), "{safe:?}");
        assert!(raw.contains(hostile), "a file gets the bytes");
        let text = "one\n\ttwo \u{6e29}";
        assert_eq!(
            print_to(true, "%p\\e", text.as_bytes(), &[]),
            format!("{text}\x1b"),
            "text stays, and the format is the user's"
        );
        assert_eq!(print_to(true, "%p", b"\xff", &[]), "\\xff");
    }

    #[test]
    fn unknown_format_characters_are_refused() {
        for (format, sign) in [("%y", "%y"), ("a\\q", "\\q"), ("%", "%"), ("\\", "\\"), ("%é", "%")] {
            let error = Format::parse(format).unwrap_err();
            assert!(error.contains(sign), "{error}");
        }
    }

    proptest::proptest! {
        #[test]
        fn no_format_panics(format in "[%\\\\a-zA-Zé]{0,12}", payload: Vec<u8>) {
            if Format::parse(&format).is_ok() {
                let printable: Vec<u8> = payload.iter().map(|byte| byte & 0x7f).collect();
                print(&format, &printable, &[]);
            }
        }
    }
}
