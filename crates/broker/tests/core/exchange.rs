//! Enhanced authentication (4.12) with a mechanism of the test's own: the client answers a challenge by repeating it.

use std::sync::Arc;
use std::time::Duration;

use broker::access::{
    Access, Action, Admission, AuthReply, AuthResult, Credentials, Identity, Mechanism, Permission,
    Principal, RetryAuthorize, Step,
};
use broker::settings::Settings;
use broker::{Node, Time, Worker};
use mqtt::{Auth, Connect, Packet, Properties, PropertiesBuf, Property, ReasonCode, Version, decode, frame};

struct Echo;

impl Mechanism for Echo {
    fn step(&mut self, data: Option<&[u8]>) -> Step {
        match data {
            None => Step::Continue(b"challenge".to_vec()),
            Some(b"challenge") => Step::Success(Some(b"welcome".to_vec()), Box::default()),
            Some(b"for a minute") => {
                let lifetime = Some(Duration::from_secs(60));
                Step::Success(None, Box::new(Admission { lifetime, ..Admission::default() }))
            }
            Some(b"as somebody else") => {
                let username = Some("mallory".into());
                Step::Success(None, Box::new(Admission { username, ..Admission::default() }))
            }
            Some(b"with fewer rights") => {
                let attributes = vec![("rights".into(), "few".into())];
                let principal = Some(Arc::new(Principal { attributes, ..Principal::default() }));
                Step::Success(None, Box::new(Admission { principal, ..Admission::default() }))
            }
            Some(b"as a tenant") => {
                let principal = Principal { mountpoint: Some("t/".into()), ..Principal::default() };
                let principal = Some(Arc::new(principal));
                Step::Success(None, Box::new(Admission { principal, ..Admission::default() }))
            }
            Some(_) => Step::Failure(ReasonCode::NotAuthorized),
        }
    }
}

struct EchoAccess;

impl Access for EchoAccess {
    fn authenticate(&self, _: Credentials<'_>, _: &mut dyn FnMut() -> AuthReply) -> Option<AuthResult> {
        Some(AuthResult::Allow)
    }

    fn mechanism(&self, method: &str, _: Credentials<'_>) -> Option<Box<dyn Mechanism>> {
        (method == "ECHO").then(|| Box::new(Echo) as Box<dyn Mechanism>)
    }

    fn guards_topics(&self) -> bool {
        true
    }

    fn authorize(
        &self,
        identity: Identity<'_>,
        _: Action,
        topic: &str,
        _: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Option<Permission> {
        let has_few = identity.principal.is_some_and(|principal| !principal.attributes.is_empty());
        Some(Permission { allowed: !(has_few && topic == "secret"), lasting: true })
    }

    fn generation(&self) -> u64 {
        0
    }
}

/// One client of one worker.
struct Client {
    worker: Worker,
    slot: u32,
}

const NOW: Time = Time(1_000);

impl Client {
    fn connect(method: &str) -> Self {
        Self::connect_with(method, None)
    }

    fn connect_with(method: &str, receive_max: Option<u16>) -> Self {
        let node = Node::new(Settings::default(), Arc::new(EchoAccess), "test".into(), 1, [5; 16]);
        let mut worker = node.build_workers().remove(0);
        let slot = worker.open(NOW, None).slot;
        let mut client = Self { worker, slot };
        let mut properties = PropertiesBuf::from_iter([Property::AuthenticationMethod(method)]);
        receive_max.into_iter().for_each(|max| assert!(properties.push(Property::ReceiveMaximum(max))));
        client.send(&Packet::Connect(Connect {
            version: Version::V5,
            bridge: false,
            clean_start: true,
            keep_alive: 0,
            client_id: "client",
            will: None,
            username: None,
            password: None,
            properties: properties.as_properties(),
        }));
        client
    }

    fn send(&mut self, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        assert!(packet.encode(Version::V5, &mut bytes));
        self.send_bytes(&bytes);
    }

    fn send_bytes(&mut self, bytes: &[u8]) {
        self.worker.receive(NOW, self.slot, bytes);
        self.worker.settle(NOW);
    }

    /// First bytes of the packets that the client was sent.
    fn take(&mut self) -> Vec<u8> {
        let out = self.worker.output(self.slot).expect("the connection exists");
        let bytes = out.pending().to_vec();
        out.advance(bytes.len());
        self.worker.written(NOW, self.slot);
        let (mut at, mut first) = (0, Vec::new());
        while let Ok(Some(length)) = frame(&bytes[at..], u32::MAX) {
            first.push(bytes[at]);
            at += length;
        }
        first
    }

    fn auth(&mut self, reason: ReasonCode, method: &str, data: Option<&[u8]>) {
        let mut properties = PropertiesBuf::from_iter([Property::AuthenticationMethod(method)]);
        if let Some(data) = data {
            assert!(properties.push(Property::AuthenticationData(data)));
        }
        self.send(&Packet::Auth(Auth { reason, properties: properties.as_properties() }));
    }

    /// The one packet that the client was sent: its kind, Reason Code, method and data.
    fn received(&mut self) -> (String, ReasonCode, Option<String>, Option<Vec<u8>>) {
        let out = self.worker.output(self.slot).expect("the connection exists");
        let bytes = out.pending().to_vec();
        out.advance(bytes.len());
        let length = frame(&bytes, u32::MAX).expect("a packet").expect("a whole header");
        assert_eq!(length, bytes.len(), "one packet");
        let packet = decode(Version::V5, &bytes).expect("a good packet");
        let (reason, properties) = match &packet {
            Packet::ConnAck(connack) => (connack.reason, connack.properties),
            Packet::Auth(auth) => (auth.reason, auth.properties),
            Packet::Disconnect(disconnect) => (disconnect.reason, disconnect.properties),
            other => panic!("{other:?}"),
        };
        let method = properties.authentication_method().map(str::to_owned);
        let data = properties.authentication_data().map(<[u8]>::to_vec);
        (format!("{:?}", packet.packet_type()), reason, method, data)
    }

    fn accepted() -> Self {
        Self::accepted_with(None)
    }

    fn accepted_with(receive_max: Option<u16>) -> Self {
        let mut client = Self::connect_with("ECHO", receive_max);
        client.received();
        client.auth(ReasonCode::ContinueAuthentication, "ECHO", Some(b"challenge"));
        assert_eq!(client.received().0, "ConnAck");
        client
    }
}

fn said(
    kind: &str,
    reason: ReasonCode,
    data: Option<&[u8]>,
) -> (String, ReasonCode, Option<String>, Option<Vec<u8>>) {
    (kind.to_owned(), reason, Some("ECHO".to_owned()), data.map(<[u8]>::to_vec))
}

/// [MQTT-4.12.0-2] [MQTT-4.12.0-3] [MQTT-4.12.0-5]
#[test]
fn an_exchange_ends_in_connack_with_its_method_and_data() {
    let mut client = Client::connect("ECHO");
    assert_eq!(client.received(), said("Auth", ReasonCode::ContinueAuthentication, Some(b"challenge")));
    client.auth(ReasonCode::ContinueAuthentication, "ECHO", Some(b"challenge"));
    assert_eq!(client.received(), said("ConnAck", ReasonCode::Success, Some(b"welcome")));
    assert!(!client.worker.is_closing(client.slot));
}

/// [MQTT-4.12.0-1] [MQTT-4.12.0-4]
#[test]
fn an_unknown_method_and_a_wrong_answer_are_refused() {
    let mut client = Client::connect("OTHER");
    let (kind, reason, ..) = client.received();
    assert_eq!((kind.as_str(), reason), ("ConnAck", ReasonCode::BadAuthenticationMethod));
    assert!(client.worker.is_closing(client.slot));

    let mut client = Client::connect("ECHO");
    client.received();
    client.auth(ReasonCode::ContinueAuthentication, "ECHO", Some(b"wrong"));
    let (kind, reason, ..) = client.received();
    assert_eq!((kind.as_str(), reason), ("ConnAck", ReasonCode::NotAuthorized));
    assert!(client.worker.is_closing(client.slot));
}

/// [MQTT-3.1.2-30]: only AUTH and DISCONNECT may arrive before the exchange has ended; the method stays
/// [MQTT-4.12.0-5].
#[test]
fn no_other_packet_is_accepted_during_an_exchange() {
    let mut client = Client::connect("ECHO");
    client.received();
    client.send(&Packet::PingReq);
    let (kind, reason, ..) = client.received();
    assert_eq!((kind.as_str(), reason), ("ConnAck", ReasonCode::ProtocolError));
    assert!(client.worker.is_closing(client.slot));

    let mut client = Client::connect("ECHO");
    client.received();
    client.auth(ReasonCode::ContinueAuthentication, "OTHER", Some(b"challenge"));
    let (kind, reason, ..) = client.received();
    assert_eq!((kind.as_str(), reason), ("ConnAck", ReasonCode::BadAuthenticationMethod));
}

/// [MQTT-4.12.1-1]
#[test]
fn a_client_authenticates_again_while_connected() {
    let mut client = Client::accepted();
    client.auth(ReasonCode::ReAuthenticate, "ECHO", None);
    assert_eq!(client.received(), said("Auth", ReasonCode::ContinueAuthentication, Some(b"challenge")));
    client.auth(ReasonCode::ContinueAuthentication, "ECHO", Some(b"challenge"));
    assert_eq!(client.received(), said("Auth", ReasonCode::Success, Some(b"welcome")));
    assert!(!client.worker.is_closing(client.slot));
}

/// Messages that wait for a client were allowed to its earlier rights. It gets none that the new ones do not allow.
#[test]
fn messages_that_wait_are_checked_again_after_a_re_authentication() {
    for renews in [false, true] {
        let mut client = Client::accepted_with(Some(1));
        client.send_bytes(b"\x82\x0C\0\x01\0\0\x06secret\x01");
        client.take();
        for id in 1..=3 {
            client.send_bytes(&[b"\x32\x0B\0\x06secret\0".as_slice(), &[id], b"\0"].concat());
        }
        client.take();
        if renews {
            client.auth(ReasonCode::ReAuthenticate, "ECHO", None);
            client.auth(ReasonCode::ContinueAuthentication, "ECHO", Some(b"with fewer rights"));
            client.take();
        }
        client.send_bytes(b"\x40\x02\0\x01");
        let is_sent = client.take().iter().any(|first| first >> 4 == 3);
        assert_eq!(is_sent, !renews, "the second message");
    }
}

/// A connection with a limited admission lasts as long as its last authentication says.
#[test]
fn a_client_that_authenticates_again_in_time_stays() {
    for again in [true, false] {
        let mut client = Client::connect("ECHO");
        client.received();
        client.auth(ReasonCode::ContinueAuthentication, "ECHO", Some(b"for a minute"));
        assert_eq!(client.received(), said("ConnAck", ReasonCode::Success, None));
        client.worker.tick(NOW.after(Duration::from_secs(50)));
        if again {
            client.auth(ReasonCode::ReAuthenticate, "ECHO", Some(b"challenge"));
            assert_eq!(client.received(), said("Auth", ReasonCode::Success, Some(b"welcome")));
        }
        client.worker.tick(NOW.after(Duration::from_secs(61)));
        if again {
            assert!(!client.worker.is_closing(client.slot));
        } else {
            let (kind, reason, ..) = client.received();
            assert_eq!((kind.as_str(), reason), ("Disconnect", ReasonCode::MaximumConnectTime));
        }
    }
}

/// State of the connection belongs to the user that created it.
#[test]
fn a_client_cannot_change_its_identity_by_authenticating_again() {
    for whom in ["as somebody else", "as a tenant"] {
        let mut client = Client::accepted();
        client.auth(ReasonCode::ReAuthenticate, "ECHO", Some(whom.as_bytes()));
        let (kind, reason, ..) = client.received();
        assert_eq!((kind.as_str(), reason), ("Disconnect", ReasonCode::NotAuthorized));
        assert!(client.worker.is_closing(client.slot));
    }
}

/// [MQTT-4.12.1-2]
#[test]
fn a_failed_or_misplaced_re_authentication_ends_the_connection() {
    let mut client = Client::accepted();
    client.auth(ReasonCode::ReAuthenticate, "ECHO", Some(b"wrong"));
    let (kind, reason, ..) = client.received();
    assert_eq!((kind.as_str(), reason), ("Disconnect", ReasonCode::NotAuthorized));

    let mut client = Client::accepted();
    client.auth(ReasonCode::ContinueAuthentication, "ECHO", Some(b"challenge"));
    let (kind, reason, ..) = client.received();
    assert_eq!(
        (kind.as_str(), reason),
        ("Disconnect", ReasonCode::ProtocolError),
        "no exchange is in progress"
    );

    let mut client = Client::accepted();
    let properties = Properties::default();
    client.send(&Packet::Auth(Auth { reason: ReasonCode::Success, properties }));
    assert!(client.worker.is_closing(client.slot));
}
