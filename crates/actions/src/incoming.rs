//! Messages as rules see them.

use std::sync::Arc;

use broker::internal::ACTION;
use broker::origin::{ORIGIN, Origin};
use mqtt::{Properties, Publish, Subscription};
use rules::{Event, Field, Limits, Message, Sample, Value};

use crate::tenant::Namespace;

/// A message of the broker, with its origin.
#[derive(Clone, Debug)]
pub struct Incoming {
    pub topic: Box<str>,
    pub payload: Box<[u8]>,
    pub retain: bool,
    pub origin: Origin,
    /// False when the broker does not know the origin.
    pub has_origin: bool,
    /// Encoded properties of the publisher.
    properties: Box<[u8]>,
    /// Remaining Message Expiry Interval in seconds.
    pub expiry: Option<u32>,
}

impl Incoming {
    /// Reads a message from a connection of an action. `now_ms` is the time of a message whose origin is not known, in
    /// ms since 1970.
    pub fn of(publish: &Publish<'_>, topic: &str, now_ms: u64) -> Self {
        let mut users = publish.properties.user_properties();
        // The broker puts the origin first. Another action that has passed a message on repeats its origin after it.
        let mut origin_of = || users.next().filter(|(name, _)| *name == ORIGIN).map(|(_, value)| value);
        let own = origin_of().and_then(Origin::parse);
        let is_of_action = own.as_ref().is_some_and(|own| own.client_id.starts_with(ACTION));
        let passed_on = if is_of_action && topic.len() != publish.topic.len() { origin_of() } else { None };
        let is_passed_on = passed_on.is_some();
        let origin = passed_on.map_or(own, Origin::parse);
        let unknown = || Origin { received_ms: now_ms, qos: publish.qos as u8, ..Origin::default() };
        Self {
            topic: topic.into(),
            payload: publish.payload.into(),
            retain: publish.retain,
            has_origin: origin.is_some(),
            origin: origin.unwrap_or_else(unknown),
            properties: of_publisher(publish.properties, if is_passed_on { 2 } else { 1 }),
            expiry: publish.properties.message_expiry_interval(),
        }
    }

    /// The message as a rule of this namespace sees it, with this topic. A publisher that is not of the tenant is
    /// hidden.
    #[must_use]
    pub fn within(mut self, namespace: &Namespace, topic: &str) -> Self {
        self.topic = topic.into();
        if namespace.is_of_tenant() && *self.origin.mountpoint != *namespace.mountpoint() {
            let Origin { id, received_ms, qos, .. } = self.origin;
            self.origin = Origin { id, received_ms, qos, ..Origin::default() };
        }
        self
    }

    /// Number of bytes that it takes, about.
    pub fn size(&self) -> usize {
        size_of::<Self>() + self.topic.len() + self.payload.len() + self.properties.len()
    }

    /// Properties of the publisher.
    pub fn properties(&self) -> Properties<'_> {
        Properties::of_checked(&self.properties)
    }
}

/// Copies the properties without the first `skipped` User Properties, and without those that are for one delivery.
fn of_publisher(properties: Properties<'_>, skipped: usize) -> Box<[u8]> {
    let mut users = 0;
    let kept = properties.iter().filter(|property| match property {
        mqtt::Property::UserProperty(..) => {
            users += 1;
            users > skipped
        }
        mqtt::Property::SubscriptionIdentifier(_)
        | mqtt::Property::MessageExpiryInterval(_)
        | mqtt::Property::TopicAlias(_) => false,
        _ => true,
    });
    kept.collect::<mqtt::PropertiesBuf>().as_properties().as_bytes().into()
}

impl Message for Incoming {
    fn event(&self) -> Event {
        Event::Publish
    }

    fn field(&self, field: Field) -> Value {
        let text = |text: &str| if text.is_empty() { Value::Null } else { Value::from(text) };
        match field {
            Field::Id if self.has_origin => Value::from(format!("{:032x}", self.origin.id)),
            Field::ClientId => text(&self.origin.client_id),
            Field::Username => text(&self.origin.username),
            Field::Topic => Value::from(&*self.topic),
            Field::QoS => Value::Int(i64::from(self.origin.qos)),
            Field::Flags => {
                Value::object([("retain", Value::Bool(self.retain)), ("dup", Value::Bool(false))])
            }
            Field::PubProps => pub_props(self.properties(), self.expiry),
            Field::Timestamp | Field::PublishReceivedAt => {
                Value::Int(i64::try_from(self.origin.received_ms).unwrap_or(i64::MAX))
            }
            Field::Node => text(&self.origin.node),
            Field::Peerhost => text(&self.origin.peerhost),
            Field::ClientAttrs if self.has_origin => {
                let attributes = self.origin.attributes.iter();
                Value::object(attributes.map(|(name, value)| (&**name, Value::from(&**value))))
            }
            Field::Mountpoint => text(&self.origin.mountpoint),
            Field::Tenant => text(self.origin.mountpoint.trim_end_matches('/')),
            _ => Value::Null,
        }
    }

    fn payload(&self) -> &[u8] {
        &self.payload
    }
}

/// Properties of a PUBLISH as an object.
fn pub_props(properties: Properties<'_>, expiry: Option<u32>) -> Value {
    let mut members: Vec<(Arc<str>, Value)> = Vec::new();
    let mut add = |name: &str, value: Option<Value>| members.extend(value.map(|value| (name.into(), value)));
    add("Payload-Format-Indicator", properties.payload_format_indicator().map(|it| Value::Int(it.into())));
    add("Message-Expiry-Interval", expiry.map(|seconds| Value::Int(seconds.into())));
    add("Content-Type", properties.content_type().map(Value::from));
    add("Response-Topic", properties.response_topic().map(Value::from));
    add("Correlation-Data", properties.correlation_data().map(Value::of_bytes));
    let users: Vec<(&str, Value)> =
        properties.user_properties().map(|(name, value)| (name, Value::from(value))).collect();
    add("User-Property", Some(Value::object(users)));
    Value::object(members)
}

/// Input of a rule.
#[derive(Debug)]
pub enum Input<'a> {
    Message(&'a Incoming),
    Event(Sample),
}

impl<'a> Input<'a> {
    /// Reads what came on a topic. Topics of events have a JSON object with the fields of the event.
    ///
    /// # Errors
    /// The payload is not that of an event, or the event is about another tenant.
    pub fn of(message: &'a Incoming, limits: &Limits, namespace: &Namespace) -> Result<Self, String> {
        let Some(event) = Event::of_name(&message.topic) else { return Ok(Self::Message(message)) };
        let text = std::str::from_utf8(&message.payload).map_err(|error| error.to_string())?;
        let sample = Sample::parse(event, text, limits).map_err(|error| error.to_string())?;
        match namespace.is_of_tenant() {
            true => of_tenant(event, sample, namespace.mountpoint()).map(Self::Event),
            false => Ok(Self::Event(sample)),
        }
    }

    pub fn as_message(&self) -> &dyn Message {
        match self {
            Self::Message(message) => *message,
            Self::Event(event) => event,
        }
    }
}

/// Returns an event as a rule of its tenant sees it: without the mountpoint in its topic.
fn of_tenant(event: Event, sample: Sample, mountpoint: &str) -> Result<Sample, String> {
    if sample.field(Field::Mountpoint) != Value::from(mountpoint) {
        return Err("the event is not about a client of the tenant".to_owned());
    }
    // The topic of a check is as the client has sent it.
    let topic = match sample.field(Field::Topic) {
        Value::Text(topic) if event != Event::Authz => topic,
        _ => return Ok(sample),
    };
    let own = Subscription::parse(&topic).ok().and_then(|Subscription { share, filter }| {
        let own = filter.as_str().strip_prefix(mountpoint)?;
        Some(share.map_or_else(|| own.to_owned(), |share| format!("$share/{share}/{own}")))
    });
    Ok(sample.with_field(Field::Topic, own.map_or(Value::Null, |own| Value::from(&*own))))
}

#[cfg(test)]
mod tests {
    use mqtt::{PacketId, PropertiesBuf, Property, QoS};

    use super::*;

    const OWN: &str = "2:ff4:10001:22:c20:2:m/9:192.0.2.12:n114:4:site6:north1";

    fn publish<'a>(topic: &'a str, properties: Properties<'a>) -> Publish<'a> {
        let packet_id = PacketId::new(1);
        Publish {
            dup: true,
            qos: QoS::AtLeastOnce,
            retain: true,
            topic,
            packet_id,
            properties,
            payload: b"{\"t\":1}",
        }
    }

    #[test]
    fn fields_come_from_the_origin_and_the_packet() {
        let properties = PropertiesBuf::from_iter([
            Property::UserProperty(ORIGIN, OWN),
            Property::MessageExpiryInterval(9),
            Property::ContentType("x"),
            Property::UserProperty(ORIGIN, "forged"),
            Property::UserProperty("zone", "b"),
        ]);
        let message = Incoming::of(&publish("a/b", properties.as_properties()), "a/b", 5);
        for (field, expected) in [
            (Field::Id, Value::from(format!("{:032x}", 0xff))),
            (Field::ClientId, Value::from("c2")),
            (Field::Username, Value::Null),
            (Field::Topic, Value::from("a/b")),
            (Field::QoS, Value::Int(2)),
            (Field::Timestamp, Value::Int(1000)),
            (Field::Peerhost, Value::from("192.0.2.1")),
            (Field::Mountpoint, Value::from("m/")),
            (Field::Node, Value::from("n1")),
            (Field::Tenant, Value::from("m")),
        ] {
            assert_eq!(message.field(field), expected, "{field}");
        }
        assert_eq!(message.field(Field::ClientAttrs).member("site"), Some(&Value::from("north1")));
        let props = message.field(Field::PubProps);
        assert_eq!(props.member("Content-Type"), Some(&Value::from("x")));
        assert_eq!(props.member("Message-Expiry-Interval"), Some(&Value::Int(9)));
        let users = props.member("User-Property").expect("an object");
        assert_eq!(users.member("zone"), Some(&Value::from("b")));
        assert_eq!(message.field(Field::Flags).member("retain"), Some(&Value::Bool(true)));
    }

    #[test]
    fn a_message_of_another_action_has_its_first_origin() {
        let of_action = "1:14:20001:19:$action/a0:0:0:2:n2";
        let properties = PropertiesBuf::from_iter([
            Property::UserProperty(ORIGIN, of_action),
            Property::UserProperty(ORIGIN, OWN),
            Property::UserProperty("k", "v"),
        ]);
        let topic = "$action/b/x/y";
        let message = Incoming::of(&publish(topic, properties.as_properties()), "x/y", 5);
        assert_eq!((&*message.topic, &*message.origin.client_id), ("x/y", "c2"));
        let users: Vec<_> = message.properties().user_properties().collect();
        assert_eq!(users, [("k", "v")]);
    }

    #[test]
    fn a_client_cannot_pass_a_message_on() {
        let of_client = "1:14:20001:11:x0:0:0:2:n2";
        for own in [of_client, ""] {
            let properties = PropertiesBuf::from_iter([
                Property::UserProperty(ORIGIN, own),
                Property::UserProperty(ORIGIN, OWN),
            ]);
            let message = Incoming::of(&publish("$action/b/x", properties.as_properties()), "x", 5);
            assert_ne!(&*message.origin.client_id, "c2");
            assert_eq!(message.properties().user_properties().count(), 1);
        }
    }

    #[test]
    fn without_an_origin_the_time_is_that_of_the_arrival() {
        for properties in [
            PropertiesBuf::from_iter([Property::UserProperty(ORIGIN, "")]),
            PropertiesBuf::from_iter([
                Property::UserProperty(ORIGIN, ""),
                Property::UserProperty(ORIGIN, OWN),
            ]),
            PropertiesBuf::default(),
        ] {
            let message = Incoming::of(&publish("t", properties.as_properties()), "t", 77);
            assert_eq!(message.field(Field::ClientId), Value::Null);
            assert_eq!(message.field(Field::PublishReceivedAt), Value::Int(77));
            assert_eq!(message.field(Field::QoS), Value::Int(1));
        }
    }

    #[test]
    fn an_event_has_the_fields_of_its_json() {
        let limits = Limits::default();
        let name = Event::Connected.name();
        let mut message = Incoming::of(&publish(name, Properties::EMPTY), name, 1);
        message.payload = br#"{"event":"client.connected","clientid":"c"}"#[..].into();
        let input = Input::of(&message, &limits, &Namespace::default()).expect("an event");
        assert_eq!(input.as_message().event(), Event::Connected);
        assert_eq!(input.as_message().field(Field::ClientId), Value::from("c"));
        message.payload = b"[]"[..].into();
        assert!(Input::of(&message, &limits, &Namespace::default()).is_err());
    }

    fn acme() -> Namespace {
        Namespace::new("acme").expect("a tenant")
    }

    #[test]
    fn a_tenant_does_not_see_publishers_of_others() {
        let seen = |mountpoint: &str| {
            let origin = Origin {
                id: 9,
                received_ms: 7,
                qos: 1,
                client_id: "c".into(),
                username: "u".into(),
                mountpoint: mountpoint.into(),
                peerhost: "192.0.2.1".into(),
                node: "n1".into(),
                ..Origin::default()
            };
            let value = origin.to_value();
            let properties = PropertiesBuf::from_iter([Property::UserProperty(ORIGIN, &value)]);
            let message = Incoming::of(&publish("acme/x", properties.as_properties()), "acme/x", 5);
            let message = message.within(&acme(), "x");
            let fields =
                [Field::ClientId, Field::Username, Field::Peerhost, Field::Mountpoint, Field::Tenant];
            assert_eq!(message.field(Field::Topic), Value::from("x"));
            assert_eq!(message.field(Field::Timestamp), Value::Int(7));
            fields.iter().filter(|field| !message.field(**field).is_null()).count()
        };
        assert_eq!([seen("acme/"), seen("b/"), seen(""), seen("acme/b/")], [5, 0, 0, 0]);
    }

    #[test]
    fn an_event_is_seen_by_its_tenant_only_and_without_the_mountpoint() {
        let limits = Limits::default();
        let topic = |event: Event, mountpoint: &str, topic: &str| {
            let mut message = Incoming::of(&publish(event.name(), Properties::EMPTY), event.name(), 1);
            let payload = format!(r#"{{"mountpoint":{mountpoint},"topic":"{topic}"}}"#);
            message.payload = payload.into_bytes().into();
            let input = Input::of(&message, &limits, &acme())?;
            Ok::<_, String>(input.as_message().field(Field::Topic))
        };
        for (event, sent, seen) in [
            (Event::Dropped, "acme/a/b", Value::from("a/b")),
            (Event::Subscribed, "$share/g/acme/#", Value::from("$share/g/#")),
            (Event::Subscribed, "acme/+", Value::from("+")),
            (Event::Authz, "acme/a", Value::from("acme/a")),
            (Event::Dropped, "b/a", Value::Null),
        ] {
            assert_eq!(topic(event, "\"acme/\"", sent), Ok(seen), "{sent}");
        }
        for other in ["\"b/\"", "null", "\"acme/b/\"", "\"acme\""] {
            assert!(topic(Event::Dropped, other, "acme/a").is_err(), "{other}");
        }
    }
}
