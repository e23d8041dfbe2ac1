//! SCRAM-SHA-256 from CONNECT to CONNACK: the guard within a node, and a client that sends packets.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use auth::settings::Auth as AuthSettings;
use auth::{
    BanKind, BanTarget, Figures, Guard, NewBan, PasswordFileEdit, PasswordHash, SCRAM_ITERATIONS_MIN,
};
use base64ct::{Base64, Encoding};
use broker::settings::Settings;
use broker::{Node, Time, Worker};
use hmac::{Hmac, KeyInit, Mac};
use mqtt::{Auth, Connect, Packet, PropertiesBuf, Property, ReasonCode, Version, decode, frame};
use sha2::{Digest, Sha256};

const METHOD: &str = "SCRAM-SHA-256";
const NOW: Time = Time(1_000);

/// Node with two users: alice may use SCRAM, and bob has an Argon2id hash.
struct TestBroker {
    directory: PathBuf,
    settings: AuthSettings,
    guard: Arc<Guard>,
    worker: Worker,
}

impl TestBroker {
    fn new(test: &str) -> Self {
        let directory = std::env::temp_dir().join(format!("meridian-scram-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        let mut edit = PasswordFileEdit::default();
        edit.store_decoy_key().unwrap();
        edit.set("alice", &PasswordHash::create_scram("wonderland", SCRAM_ITERATIONS_MIN).unwrap());
        edit.set("bob", &PasswordHash::create(b"builder").unwrap());
        let users = directory.join("users");
        edit.write(&users).unwrap();
        let settings = AuthSettings { password_file: Some(users), workers: 1, ..AuthSettings::default() };
        let guard = Arc::new(Guard::open(&settings).unwrap());
        let node = Node::new(Settings::default(), guard.clone(), "test".into(), 1, [5; 16]);
        Self { directory, settings, guard, worker: node.build_workers().remove(0) }
    }

    fn change_users(&self, change: impl FnOnce(&mut PasswordFileEdit)) {
        let path = self.settings.password_file.as_ref().unwrap();
        let mut edit = PasswordFileEdit::read(path).unwrap();
        change(&mut edit);
        edit.write(path).unwrap();
        self.guard.read(&self.settings).unwrap().apply();
    }

    fn ban(&self, username: &str) {
        let target = BanTarget::parse(BanKind::Username, username).unwrap();
        let ban = NewBan { target, reason: String::new(), by: String::new(), until: None };
        self.guard.bans().add(ban, SystemTime::now()).unwrap();
    }

    fn send(&mut self, slot: u32, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        assert!(packet.encode(Version::V5, &mut bytes));
        self.worker.receive(NOW, slot, &bytes);
        self.worker.settle(NOW);
    }

    /// Sends a CONNECT with SCRAM and `data`; `username` is the one in CONNECT.
    fn connect(&mut self, username: Option<&str>, data: Option<&[u8]>) -> u32 {
        let slot = self.worker.open(NOW, None).slot;
        let mut properties = PropertiesBuf::from_iter([Property::AuthenticationMethod(METHOD)]);
        if let Some(data) = data {
            assert!(properties.push(Property::AuthenticationData(data)));
        }
        self.send(
            slot,
            &Packet::Connect(Connect {
                version: Version::V5,
                bridge: false,
                clean_start: true,
                keep_alive: 0,
                client_id: "client",
                will: None,
                username,
                password: None,
                properties: properties.as_properties(),
            }),
        );
        slot
    }

    fn auth(&mut self, slot: u32, reason: ReasonCode, data: &[u8]) {
        let properties = [Property::AuthenticationMethod(METHOD), Property::AuthenticationData(data)];
        let properties = PropertiesBuf::from_iter(properties);
        self.send(slot, &Packet::Auth(Auth { reason, properties: properties.as_properties() }));
    }

    fn received(&mut self, slot: u32) -> (&'static str, ReasonCode, Vec<u8>) {
        let out = self.worker.output(slot).expect("the connection exists");
        let bytes = out.pending().to_vec();
        out.advance(bytes.len());
        let length = frame(&bytes, u32::MAX).expect("a packet").expect("a whole header");
        assert_eq!(length, bytes.len(), "one packet");
        let (kind, reason, properties) = match decode(Version::V5, &bytes).expect("a good packet") {
            Packet::ConnAck(connack) => ("CONNACK", connack.reason, connack.properties),
            Packet::Auth(auth) => ("AUTH", auth.reason, auth.properties),
            Packet::Disconnect(disconnect) => ("DISCONNECT", disconnect.reason, disconnect.properties),
            other => panic!("{other:?}"),
        };
        let data = properties.authentication_data().unwrap_or_default().to_vec();
        (kind, reason, data)
    }

    /// Returns the challenge in answer to a CONNECT.
    fn challenge(&mut self, user: &str) -> (u32, Vec<u8>) {
        let slot = self.connect(Some(user), Some(client_first(user).as_bytes()));
        let (kind, reason, data) = self.received(slot);
        assert_eq!((kind, reason), ("AUTH", ReasonCode::ContinueAuthentication));
        (slot, data)
    }

    /// Returns the answer to a complete login.
    fn login(&mut self, user: &str, password: &str) -> (u32, (&'static str, ReasonCode)) {
        let (slot, challenge) = self.challenge(user);
        let (answer, signature) = client_final(user, password, &challenge);
        self.auth(slot, ReasonCode::ContinueAuthentication, &answer);
        let (kind, reason, data) = self.received(slot);
        if reason == ReasonCode::Success {
            assert_eq!(data, signature, "the server proves its knowledge of the password");
        }
        (slot, (kind, reason))
    }
}

impl Drop for TestBroker {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.directory).unwrap();
    }
}

fn client_first(user: &str) -> String {
    format!("n,,n={user},r=fyko+d2lbbFgONRv9qkxdawL")
}

fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).unwrap();
    mac.update(message);
    mac.finalize().into_bytes().into()
}

/// Returns `client-final-message`, and the expected `server-final-message`.
fn client_final(user: &str, password: &str, challenge: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let challenge = std::str::from_utf8(challenge).unwrap();
    let part = |name| challenge.split(',').find_map(|part| part.strip_prefix(name)).unwrap();
    let (nonce, iterations) = (part("r="), part("i=").parse().unwrap());
    let mut salted = [0; 32];
    let salt = Base64::decode_vec(part("s=")).unwrap();
    pbkdf2::pbkdf2_hmac::<Sha256>(password.as_bytes(), &salt, iterations, &mut salted);
    let client_key = hmac(&salted, b"Client Key");
    let without_proof = format!("c=biws,r={nonce}");
    let auth = format!("{},{challenge},{without_proof}", &client_first(user)[3..]);
    let signature = hmac(&Sha256::digest(client_key), auth.as_bytes());
    let proof: Vec<u8> = client_key.iter().zip(signature).map(|(a, b)| a ^ b).collect();
    let server = hmac(&hmac(&salted, b"Server Key"), auth.as_bytes());
    let (proof, server) = (Base64::encode_string(&proof), Base64::encode_string(&server));
    (format!("{without_proof},p={proof}").into_bytes(), format!("v={server}").into_bytes())
}

const IN: (&str, ReasonCode) = ("CONNACK", ReasonCode::Success);
const OUT: (&str, ReasonCode) = ("CONNACK", ReasonCode::NotAuthorized);

#[test]
fn the_right_password_is_accepted_and_a_wrong_one_refused() {
    let mut test_broker = TestBroker::new("login");
    assert_eq!(test_broker.login("alice", "wonderland").1, IN);
    let (slot, answer) = test_broker.login("alice", "Wonderland");
    assert_eq!(answer, OUT);
    assert!(test_broker.worker.is_closing(slot));
    let expected =
        Figures { accepted: 1, scram_accepted: 1, refused: 1, scram_refused: 1, ..Figures::default() };
    assert_eq!(test_broker.guard.figures(), expected);
}

/// The packets and their lengths are the same; only the nonce differs.
#[test]
fn an_unknown_user_looks_like_one_with_a_wrong_password() {
    let mut test_broker = TestBroker::new("unknown");
    let salt = |challenge: &[u8]| {
        let text = String::from_utf8(challenge.to_vec()).unwrap();
        text.split_once(",s=").unwrap().1.to_owned()
    };
    let known = test_broker.challenge("alice").1;
    for unknown in ["eve", "bob"] {
        let (first, second) = (test_broker.challenge(unknown).1, test_broker.challenge(unknown).1);
        assert_eq!(salt(&first), salt(&second), "{unknown}");
        assert_ne!(salt(&first), salt(&known), "{unknown}");
        assert_eq!(first.len(), known.len(), "{unknown}");
        assert_ne!(first, second, "the nonce is new");
        for password in ["wonderland", "builder", ""] {
            assert_eq!(test_broker.login(unknown, password).1, OUT, "{unknown}");
        }
        test_broker.change_users(|_| {});
        assert_eq!(salt(&test_broker.challenge(unknown).1), salt(&first), "a reload changes nothing");
    }
}

/// An answer is valid only for its own challenge.
#[test]
fn a_replayed_answer_is_refused() {
    let mut test_broker = TestBroker::new("replay");
    let (slot, challenge) = test_broker.challenge("alice");
    let (answer, _) = client_final("alice", "wonderland", &challenge);
    test_broker.auth(slot, ReasonCode::ContinueAuthentication, &answer);
    assert_eq!(test_broker.received(slot).1, ReasonCode::Success);
    let (slot, _) = test_broker.challenge("alice");
    test_broker.auth(slot, ReasonCode::ContinueAuthentication, &answer);
    assert_eq!(test_broker.received(slot).1, ReasonCode::NotAuthorized);
}

/// Rules, bans and the Will use the name in CONNECT.
#[test]
fn a_client_cannot_prove_one_user_and_connect_as_another() {
    let mut test_broker = TestBroker::new("names");
    for username in [Some("bob"), Some("Alice"), Some("")] {
        let slot = test_broker.connect(username, Some(client_first("alice").as_bytes()));
        let (kind, reason, _) = test_broker.received(slot);
        assert_eq!((kind, reason), OUT, "{username:?}");
    }
}

#[test]
fn invalid_scram_messages_are_refused() {
    let mut test_broker = TestBroker::new("malformed");
    let cases: [(Option<&[u8]>, ReasonCode); 5] = [
        (None, ReasonCode::ProtocolError),
        (Some(b""), ReasonCode::ProtocolError),
        (Some(b"\xff\0"), ReasonCode::ProtocolError),
        (Some(b"n,a=root,n=alice,r=x"), ReasonCode::NotAuthorized),
        (Some(b"p=tls-exporter,,n=alice,r=x"), ReasonCode::NotAuthorized),
    ];
    for (data, expected) in cases {
        let slot = test_broker.connect(Some("alice"), data);
        let (kind, reason, _) = test_broker.received(slot);
        assert_eq!((kind, reason), ("CONNACK", expected), "{data:?}");
        assert!(test_broker.worker.is_closing(slot));
    }
    let (slot, _) = test_broker.challenge("alice");
    test_broker.auth(slot, ReasonCode::ContinueAuthentication, b"c=biws");
    assert_eq!(test_broker.received(slot).1, ReasonCode::ProtocolError);
}

/// [MQTT-4.12.1-1] [MQTT-4.12.1-2]
#[test]
fn a_client_authenticates_again_while_connected() {
    let mut test_broker = TestBroker::new("again");
    let (slot, answer) = test_broker.login("alice", "wonderland");
    assert_eq!(answer, IN);
    for (password, expected) in
        [("wonderland", ("AUTH", ReasonCode::Success)), ("wrong", ("DISCONNECT", ReasonCode::NotAuthorized))]
    {
        test_broker.auth(slot, ReasonCode::ReAuthenticate, client_first("alice").as_bytes());
        let (_, _, challenge) = test_broker.received(slot);
        let (answer, _) = client_final("alice", password, &challenge);
        test_broker.auth(slot, ReasonCode::ContinueAuthentication, &answer);
        let (kind, reason, _) = test_broker.received(slot);
        assert_eq!((kind, reason), expected);
    }
    assert!(test_broker.worker.is_closing(slot));
}

#[test]
fn a_ban_applies_before_during_and_after_an_exchange() {
    let mut test_broker = TestBroker::new("bans");
    let (open, answer) = test_broker.login("alice", "wonderland");
    assert_eq!(answer, IN);
    let (slot, challenge) = test_broker.challenge("alice");
    test_broker.ban("alice");
    let (answer, _) = client_final("alice", "wonderland", &challenge);
    test_broker.auth(slot, ReasonCode::ContinueAuthentication, &answer);
    assert_eq!(test_broker.received(slot).1, ReasonCode::Banned);
    let slot = test_broker.connect(Some("alice"), Some(client_first("alice").as_bytes()));
    assert_eq!(test_broker.received(slot).1, ReasonCode::Banned);
    test_broker.auth(open, ReasonCode::ReAuthenticate, client_first("alice").as_bytes());
    assert!(test_broker.worker.is_closing(open));
}

#[test]
fn a_password_that_changes_during_an_exchange_ends_it() {
    let mut test_broker = TestBroker::new("changed");
    let (slot, challenge) = test_broker.challenge("alice");
    test_broker.change_users(|users| {
        users.set("alice", &PasswordHash::create_scram("wonderland", SCRAM_ITERATIONS_MIN).unwrap());
    });
    let (answer, _) = client_final("alice", "wonderland", &challenge);
    test_broker.auth(slot, ReasonCode::ContinueAuthentication, &answer);
    assert_eq!(test_broker.received(slot).1, ReasonCode::NotAuthorized);
    assert_eq!(test_broker.login("alice", "wonderland").1, IN);
}

/// [MQTT-4.12.0-1]
#[test]
fn the_method_is_unknown_without_scram_users() {
    let mut test_broker = TestBroker::new("nobody");
    test_broker.change_users(|users| assert!(users.remove("alice")));
    let slot = test_broker.connect(Some("bob"), Some(client_first("bob").as_bytes()));
    assert_eq!(test_broker.received(slot).1, ReasonCode::BadAuthenticationMethod);
}
