//! A JSON object, written member by member.

use std::collections::BTreeMap;
use std::ops::Range;

use mqtt::{Properties, Property, QoS};

use crate::connection::Connection;
use crate::connection::Role;
use crate::ids::Time;
use crate::message::MessageView;
use crate::node::Node;
use crate::origin;

/// Members about the publisher of a message whose publisher is hidden, with the comma before them.
const NOBODY: &[u8] = br#","from_clientid":null,"from_username":null"#;

/// A complete event.
#[derive(Debug)]
pub(super) struct Finished {
    pub text: Vec<u8>,
    /// Mountpoint of the client that the event is about; empty without one.
    pub mountpoint: Box<str>,
    /// The event as its tenant sees it, if that differs.
    pub of_tenant: Option<Vec<u8>>,
}

/// A JSON object that is being written.
#[derive(Debug)]
pub(super) struct Json {
    text: Vec<u8>,
    /// Mountpoint of the client that the event is about; empty without one.
    mountpoint: Box<str>,
    /// Members about a publisher that is not of the tenant.
    hidden: Option<Range<usize>>,
}

impl Json {
    /// Begins an event with the fields that all have.
    pub fn begin(event: &str, timestamp: u64, node: &str) -> Self {
        let mut json = Self::new(Vec::with_capacity(512));
        json.text.push(b'{');
        json.text("event", Some(event));
        json.number("timestamp", Some(timestamp));
        json.text("node", Some(node));
        json
    }

    fn new(text: Vec<u8>) -> Self {
        Self { text, mountpoint: Box::default(), hidden: None }
    }

    /// Notes the mountpoint of the client that the event is about.
    pub fn about(mut self, mountpoint: &str) -> Self {
        self.mountpoint = mountpoint.into();
        self
    }

    pub fn finish(mut self) -> Finished {
        self.text.push(b'}');
        let mut of_tenant = None;
        if let Some(Range { start, end }) = self.hidden.take() {
            let mut text = self.text[..start].to_vec();
            text.extend_from_slice(NOBODY);
            text.extend_from_slice(&self.text[end..]);
            of_tenant = Some(text);
        }
        Finished { text: self.text, mountpoint: self.mountpoint, of_tenant }
    }

    fn key(&mut self, key: &str) {
        if self.text.last() != Some(&b'{') {
            self.text.push(b',');
        }
        self.string(key.as_bytes());
        self.text.push(b':');
    }

    pub fn text(&mut self, key: &str, text: Option<&str>) {
        self.key(key);
        match text {
            Some(text) => self.string(text.as_bytes()),
            None => self.text.extend_from_slice(b"null"),
        }
    }

    pub fn number(&mut self, key: &str, number: Option<u64>) {
        self.key(key);
        match number {
            Some(number) => self.text.extend_from_slice(number.to_string().as_bytes()),
            None => self.text.extend_from_slice(b"null"),
        }
    }

    pub fn flag(&mut self, key: &str, flag: Option<bool>) {
        self.key(key);
        self.text.extend_from_slice(match flag {
            Some(true) => b"true",
            Some(false) => b"false",
            None => b"null",
        });
    }

    /// Writes bytes as a string. What is not UTF-8 becomes U+FFFD.
    fn string(&mut self, bytes: &[u8]) {
        self.text.push(b'"');
        for chunk in bytes.utf8_chunks() {
            let text = chunk.valid();
            let mut from = 0;
            for (at, byte) in text.bytes().enumerate() {
                if byte >= 0x20 && byte != b'"' && byte != b'\\' {
                    continue;
                }
                self.text.extend_from_slice(&text.as_bytes()[from..at]);
                from = at + 1;
                match byte {
                    b'"' => self.text.extend_from_slice(b"\\\""),
                    b'\\' => self.text.extend_from_slice(b"\\\\"),
                    b'\n' => self.text.extend_from_slice(b"\\n"),
                    b'\r' => self.text.extend_from_slice(b"\\r"),
                    b'\t' => self.text.extend_from_slice(b"\\t"),
                    _ => self.text.extend_from_slice(format!("\\u{byte:04x}").as_bytes()),
                }
            }
            self.text.extend_from_slice(&text.as_bytes()[from..]);
            if !chunk.invalid().is_empty() {
                self.text.extend_from_slice("\u{fffd}".as_bytes());
            }
        }
        self.text.push(b'"');
    }

    fn object(&mut self, key: &str, write: impl FnOnce(&mut Self)) {
        self.key(key);
        self.text.push(b'{');
        write(self);
        self.text.push(b'}');
    }

    /// Writes properties by their names in the specification. Authentication Data are secret and left out.
    pub fn properties(&mut self, key: &str, properties: Properties<'_>, expiry: Option<u32>) {
        self.object(key, |json| {
            for property in properties.iter() {
                // The remaining time replaces the one of the publisher.
                if expiry.is_none() || !matches!(property, Property::MessageExpiryInterval(_)) {
                    json.property(&property);
                }
            }
            if let Some(seconds) = expiry {
                json.number("Message-Expiry-Interval", Some(seconds.into()));
            }
            // A name may occur several times. A member of an object occurs once, and the last value counts.
            let users: BTreeMap<_, _> = properties.user_properties().collect();
            if !users.is_empty() {
                json.object("User-Property", |json| {
                    users.iter().for_each(|(name, value)| json.text(name, Some(value)));
                });
            }
        });
    }

    fn property(&mut self, property: &Property<'_>) {
        match *property {
            Property::PayloadFormatIndicator(value) => {
                self.number("Payload-Format-Indicator", Some(value.into()));
            }
            Property::MessageExpiryInterval(value) => {
                self.number("Message-Expiry-Interval", Some(value.into()));
            }
            Property::ContentType(value) => self.text("Content-Type", Some(value)),
            Property::ResponseTopic(value) => self.text("Response-Topic", Some(value)),
            Property::CorrelationData(value) => {
                self.key("Correlation-Data");
                self.string(value);
            }
            Property::SubscriptionIdentifier(value) => {
                self.number("Subscription-Identifier", Some(value.into()));
            }
            Property::SessionExpiryInterval(value) => {
                self.number("Session-Expiry-Interval", Some(value.into()));
            }
            Property::AuthenticationMethod(value) => self.text("Authentication-Method", Some(value)),
            Property::RequestProblemInformation(value) => {
                self.number("Request-Problem-Information", Some(value.into()));
            }
            Property::RequestResponseInformation(value) => {
                self.number("Request-Response-Information", Some(value.into()));
            }
            Property::ReasonString(value) => self.text("Reason-String", Some(value)),
            Property::ReceiveMaximum(value) => self.number("Receive-Maximum", Some(value.into())),
            Property::TopicAliasMaximum(value) => self.number("Topic-Alias-Maximum", Some(value.into())),
            Property::MaximumPacketSize(value) => self.number("Maximum-Packet-Size", Some(value.into())),
            // User Properties are written together. The others are in no packet of an event, or secret.
            Property::UserProperty(..)
            | Property::AuthenticationData(_)
            | Property::AssignedClientIdentifier(_)
            | Property::ServerKeepAlive(_)
            | Property::WillDelayInterval(_)
            | Property::ResponseInformation(_)
            | Property::ServerReference(_)
            | Property::TopicAlias(_)
            | Property::MaximumQoS(_)
            | Property::RetainAvailable(_)
            | Property::WildcardSubscriptionAvailable(_)
            | Property::SubscriptionIdentifierAvailable(_)
            | Property::SharedSubscriptionAvailable(_) => {}
        }
    }

    /// Writes the node that an alarm is about.
    pub fn details(&mut self, node: &str) {
        self.object("details", |json| json.text("node", Some(node)));
    }

    pub fn subscription_id(&mut self, key: &str, id: u32) {
        self.object(key, |json| {
            if id > 0 {
                json.number("Subscription-Identifier", Some(id.into()));
            }
        });
    }
}

/// Groups of fields.
impl Json {
    /// Writes the fields of a client.
    pub fn client(&mut self, connection: Option<&Connection>, node: &Node) {
        self.names(connection);
        self.peerhost(connection);
        let peer = connection.and_then(Connection::peer).map(|peer| peer.to_string());
        self.text("peername", peer.as_deref());
        self.text("sockname", None);
        let listener = connection.map(|connection| node.listener_name(connection.listener));
        self.text("listener", listener.filter(|name| !name.is_empty()));
        self.rights(connection);
    }

    fn names(&mut self, connection: Option<&Connection>) {
        self.text("clientid", connection.map(Connection::own_client_id));
        self.text("username", connection.and_then(Connection::username));
    }

    fn peerhost(&mut self, connection: Option<&Connection>) {
        let host = connection.and_then(Connection::peer).map(|peer| peer.ip().to_string());
        self.text("peerhost", host.as_deref());
    }

    fn rights(&mut self, connection: Option<&Connection>) {
        let extra = connection.and_then(|connection| connection.extra.as_deref());
        let principal = extra.and_then(|extra| extra.principal.as_deref());
        let attributes = principal.iter().flat_map(|principal| &principal.attributes);
        let attributes: BTreeMap<&str, &str> = attributes.map(|(name, value)| (&**name, &**value)).collect();
        self.object("client_attrs", |json| {
            attributes.iter().for_each(|(name, value)| json.text(name, Some(value)));
        });
        let mountpoint = connection.map(Connection::mountpoint).filter(|mountpoint| !mountpoint.is_empty());
        self.text("mountpoint", mountpoint);
        self.text("tenant", mountpoint.map(|mountpoint| mountpoint.trim_end_matches('/')));
    }

    pub fn protocol(&mut self, connection: &Connection) {
        self.text("proto_name", Some(connection.version.protocol_name()));
        self.number("proto_ver", Some(connection.version as u64));
    }

    /// Writes the fields of a Network Connection.
    pub fn connection(&mut self, connection: &Connection) {
        self.protocol(connection);
        self.number("keepalive", Some(connection.keep_alive.into()));
        let connecting = connection.connecting.as_deref();
        self.flag("clean_start", connecting.map(|connecting| connecting.clean_start));
        self.number("expiry_interval", Some(connection.session_expiry.into()));
        self.flag("is_bridge", Some(connection.marks.role == Role::Bridge));
        let properties = connecting.and_then(|connecting| connecting.properties.as_deref());
        self.properties("conn_props", Properties::of_checked(properties.unwrap_or_default()), None);
    }

    /// Writes the fields of a message. `connection` is its publisher, or its receiver in events about a delivery.
    pub fn message(
        &mut self,
        connection: Option<&Connection>,
        (now, view, qos): (Time, &MessageView<'_>, QoS),
        node: &Node,
    ) {
        self.text("id", None);
        self.names(connection);
        self.body((now, view, qos), node);
        self.peerhost(connection);
        self.rights(connection);
    }

    /// Writes the fields of a message for a session whose client is not connected to this worker.
    pub fn message_for(
        &mut self,
        client_id: &str,
        (now, view, qos): (Time, &MessageView<'_>, QoS),
        node: &Node,
    ) {
        self.text("id", None);
        self.text("clientid", Some(client_id));
        self.text("username", None);
        self.body((now, view, qos), node);
        self.peerhost(None);
        self.rights(None);
    }

    fn body(&mut self, (now, view, qos): (Time, &MessageView<'_>, QoS), node: &Node) {
        self.text("topic", Some(view.topic));
        self.number("qos", Some(qos as u64));
        self.key("payload");
        self.string(view.payload);
        self.object("flags", |json| {
            json.flag("retain", Some(view.retain));
            json.flag("dup", Some(false));
        });
        let expiry = view.remaining_expiry(now).unwrap_or(Some(0));
        self.properties("pub_props", Properties::of_checked(origin::split(view.properties).1), expiry);
        self.number("publish_received_at", Some(node.wall_ms(view.received)));
    }

    /// Writes the publisher of a message, as far as this node knows it.
    pub fn publisher(&mut self, node: &Node, key: u64) {
        let known = node.publishers.get(key);
        let start = self.text.len();
        self.text("from_clientid", known.as_ref().map(|known| &*known.client_id));
        self.text("from_username", known.as_ref().and_then(|known| known.username.as_deref()));
        if !self.mountpoint.is_empty() && known.is_some_and(|known| known.mountpoint != self.mountpoint) {
            self.hidden = Some(start..self.text.len());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_member_of_an_object_occurs_once() {
        let properties = mqtt::PropertiesBuf::from_iter([
            Property::UserProperty("b", "1"),
            Property::MessageExpiryInterval(90),
            Property::UserProperty("a", "2"),
            Property::UserProperty("b", "3"),
        ]);
        let written = |expiry| {
            let mut json = Json::new(vec![b'{']);
            json.properties("p", properties.as_properties(), expiry);
            String::from_utf8(json.finish().text).expect("UTF-8")
        };
        let users = r#""User-Property":{"a":"2","b":"3"}"#;
        assert_eq!(written(Some(7)), format!(r#"{{"p":{{"Message-Expiry-Interval":7,{users}}}}}"#));
        assert_eq!(written(None), format!(r#"{{"p":{{"Message-Expiry-Interval":90,{users}}}}}"#));
    }

    #[test]
    fn strings_are_escaped_and_bytes_that_are_not_utf_8_are_replaced() {
        for (bytes, json) in [
            (&b"plain \xc3\xa4"[..], "\"plain \u{e4}\""),
            (b"\"quoted\\\"", r#""\"quoted\\\"""#),
            (b"\n\r\t\x00\x1f", r#""\n\r\t\u0000\u001f""#),
            (b"a\xffb\xc3", "\"a\u{fffd}b\u{fffd}\""),
            (b"", "\"\""),
        ] {
            let mut written = Json::new(Vec::new());
            written.string(bytes);
            assert_eq!(String::from_utf8_lossy(&written.text), json);
        }
    }
}
