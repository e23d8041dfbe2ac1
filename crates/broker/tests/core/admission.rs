//! Admission of clients: names, mountpoints, durations, and permissions when another server has to be asked.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::access::{
    Access, Action, Admission, AuthReply, AuthResult, Credentials, Identity, Permission, Principal, Rates,
    RetryAuthorize, Validity,
};
use broker::admin::{Admin, NewSubscription};
use broker::settings::{PublishDenied, SessionOwner, Settings};
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::ReasonCode::{self, ClientIdentifierNotValid, MaximumConnectTime, NotAuthorized, SessionTakenOver};
use mqtt::Version::{V3_1_1, V5};

use crate::net::{Net, Peer, everywhere_guarded, everywhere_with, settings};
use testkit::packets::*;

/// Access control that reads the admission from the user name. The answer for topics under `ask/` is known when the
/// test says so, for others at once. `no` in a topic denies it.
#[derive(Default)]
struct Desk {
    known: Mutex<HashMap<String, bool>>,
    waiting: Mutex<Vec<(String, RetryAuthorize)>>,
    asked: Mutex<Vec<(String, String)>>,
    generation: Mutex<u64>,
    /// Client Identifiers that may not be connected.
    gone: Mutex<Vec<&'static str>>,
    /// Validity of clients with the user name `member`.
    membership: Arc<Validity>,
}

impl Access for Desk {
    fn authenticate(
        &self,
        credentials: Credentials<'_>,
        _: &mut dyn FnMut() -> AuthReply,
    ) -> Option<AuthResult> {
        let Some(username) = credentials.username else { return Some(AuthResult::Allow) };
        let mut admission = Admission::default();
        let mut principal = Principal::default();
        for word in username.split(' ') {
            match word.split_once('=') {
                Some(("tenant", tenant)) => principal.mountpoint = Some(format!("{tenant}/").into()),
                Some(("seconds", seconds)) => {
                    admission.lifetime = Some(Duration::from_secs(seconds.parse().expect("a number")));
                }
                Some(("rate", rate)) => {
                    let messages_per_second = rate.parse().expect("a number");
                    principal.rates = Some(Rates { messages_per_second, ..Rates::default() });
                }
                Some(("id", id)) => admission.client_id = Some(id.into()),
                Some(("user", user)) => admission.username = Some(user.into()),
                None if word == "member" => admission.validity = Some(self.membership.clone()),
                _ => {}
            }
        }
        admission.principal = Some(Arc::new(principal));
        Some(AuthResult::Admit(Box::new(admission)))
    }

    fn guards_topics(&self) -> bool {
        true
    }

    fn may_answer_later(&self) -> bool {
        true
    }

    fn authorize(
        &self,
        identity: Identity<'_>,
        action: Action,
        topic: &str,
        later: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Option<Permission> {
        if action != Action::Receive {
            self.asked.lock().unwrap().push((identity.client_id.into(), topic.into()));
        }
        let answer = |allowed| Some(Permission { allowed, lasting: !topic.starts_with("ask/") });
        if !topic.starts_with("ask/") || action == Action::Receive {
            return answer(!topic.contains("no"));
        }
        match self.known.lock().unwrap().get(topic) {
            Some(allowed) => answer(*allowed),
            None => {
                self.waiting.lock().unwrap().push((topic.to_owned(), later()));
                None
            }
        }
    }

    fn generation(&self) -> u64 {
        *self.generation.lock().unwrap()
    }

    fn revoked(&self, identity: Identity<'_>) -> Option<ReasonCode> {
        self.gone.lock().unwrap().contains(&identity.client_id).then_some(ReasonCode::Banned)
    }

    fn revocations(&self) -> u64 {
        self.gone.lock().unwrap().len() as u64 + u64::from(self.membership.has_ended())
    }
}

impl Desk {
    /// Gives the answer to all that wait for it.
    fn knows(&self, net: &mut Net, topic: &str, allowed: bool) {
        self.known.lock().unwrap().insert(topic.into(), allowed);
        self.waiting.lock().unwrap().retain(|(waiting, _)| waiting != topic);
        net.run();
    }

    /// Lets all that wait ask again, although the answer is still unknown.
    fn knows_nothing(&self, net: &mut Net) {
        let waiting = std::mem::take(&mut *self.waiting.lock().unwrap());
        drop(waiting);
        net.run();
    }

    fn waiting(&self) -> usize {
        self.waiting.lock().unwrap().len()
    }
}

fn at_the_desk(scenario: impl Fn(&mut Net, &Desk)) {
    at_the_desk_with(|_| {}, scenario);
}

fn at_the_desk_with(change: impl Fn(&mut Settings), scenario: impl Fn(&mut Net, &Desk)) {
    everywhere_guarded(change, || Arc::new(Desk::default()), scenario);
}

fn topics(net: &mut Net, peer: Peer) -> Vec<String> {
    let topic = |sent| match sent {
        Sent::Publish(message) => Some(message.topic),
        _ => None,
    };
    net.received(peer).into_iter().filter_map(topic).collect()
}

#[test]
fn tenants_exchange_no_messages_and_do_not_see_their_mountpoint() {
    at_the_desk(|net, _| {
        let operator = net.connect(0, v5("operator").username("user=op"));
        net.subscribe(operator, "#", AtMostOnce);
        let readers = [
            net.connect(1, v5("c").username("tenant=a")),
            net.connect(2, v3("c").username("tenant=b")),
            net.connect(0, durable(V5, "d").username("tenant=a")),
        ];
        for reader in readers {
            net.subscribe(reader, "#", AtLeastOnce);
            net.subscribe(reader, "$share/g/s", AtLeastOnce);
        }
        let writer = net.connect(2, v5("w").username("tenant=a").alias_max(9));
        net.subscribe(writer, "t", ExactlyOnce);
        net.send(writer, message("t", 1).qos2(1));
        assert_eq!(net.received(writer).len(), 2, "PUBREC and its own message");
        assert_eq!(topics(net, readers[0]), ["t"]);
        assert_eq!(topics(net, readers[1]), Vec::<String>::new());
        assert_eq!(topics(net, readers[2]), ["t"]);
        assert_eq!(topics(net, operator), ["a/t"], "a client without a mountpoint receives all");
        net.publish(operator, "b/x/y", 2);
        assert_eq!(topics(net, readers[1]), ["x/y"]);
        net.publish(operator, "x", 3);
        for reader in readers {
            assert_eq!(topics(net, reader), Vec::<String>::new());
        }
        // One of the two of the tenant gets it, and no other client.
        net.publish(writer, "s", 4);
        let got: Vec<_> = readers.iter().map(|reader| topics(net, *reader).len()).collect();
        assert!(got[0] + got[2] == 3 && got[1] == 0, "two by `#`, one by the group: {got:?}");
    });
}

#[test]
fn unsubscribe_retained_messages_and_wills_stay_behind_the_mountpoint() {
    at_the_desk(|net, _| {
        let witness = net.connect(0, v5("witness").username("user=op"));
        net.subscribe(witness, "#", AtMostOnce);
        let client = net.connect(1, v5("c").username("tenant=a").will(message("gone", "w").retain()));
        net.send(client, message("kept", 1).qos1(1).retain());
        assert_eq!(net.received(client), [puback(1)]);
        let other = net.connect(2, v5("c").username("tenant=b"));
        net.send(other, subscribe(1).to("#", AtMostOnce));
        assert_eq!(net.received(other), [suback(1, &[AtMostOnce])]);
        let same = net.connect(2, v3("d").username("tenant=a"));
        net.send(same, subscribe(1).to("kept", AtMostOnce));
        net.run();
        let received = net.received(same);
        assert_eq!(received[0], suback(1, &[AtMostOnce]));
        assert!(matches!(&received[1..], [Sent::Publish(kept)] if kept.topic == "kept" && kept.retain));
        net.send(same, unsubscribe(2, &["kept"]));
        assert_eq!(net.received(same), [unsuback(V3_1_1, 2, &[])]);
        net.send(client, message("kept", 2).qos1(2));
        assert_eq!(net.received(same), []);
        assert_eq!(topics(net, witness), ["a/kept", "a/kept"]);
        net.lose(client);
        assert_eq!(topics(net, witness), ["a/gone"]);
        assert_eq!(net.received(other), []);
    });
}

/// Otherwise a wildcard of the tenant's would match topics that [MQTT-4.7.2-1] keeps from it.
#[test]
fn a_client_behind_a_mountpoint_cannot_publish_to_topics_that_begin_with_a_dollar() {
    at_the_desk(|net, _| {
        let client = net.connect(0, v5("c").username("tenant=a"));
        net.subscribe(client, "#", AtLeastOnce);
        net.send(client, message("$x", 1).qos1(1));
        assert_eq!(net.received(client), [Sent::PubAck(1, NotAuthorized)]);
        net.send(client, subscribe(2).to(&"a/".repeat(200), AtMostOnce).to("$SYS/#", AtMostOnce));
        let invalid = ReasonCode::TopicFilterInvalid;
        assert_eq!(net.received(client), [Sent::SubAck(2, vec![invalid, ReasonCode::Success])]);
        net.send(client, subscribe(3).to("a#", AtMostOnce));
        assert_eq!(net.closed(client), Some(Some(ReasonCode::MalformedPacket)));
    });
}

/// The Client Identifiers of two tenants are different, and rules see them as the client wrote them.
#[test]
fn a_tenant_has_client_identifiers_of_its_own() {
    at_the_desk(|net, desk| {
        let first = net.connect(0, durable(V5, "c").username("tenant=a"));
        net.subscribe(first, "t", AtLeastOnce);
        let second = net.connect(1, durable(V5, "c").username("tenant=b"));
        assert_eq!(net.closed(first), None);
        assert_eq!(net.closed(second), None);
        net.lose(first);
        let resumed = net.resume(2, durable(V5, "c").resumes().username("tenant=a"));
        let writer = net.connect(0, v5("w").username("tenant=a"));
        net.publish(writer, "t", 1);
        assert_eq!(topics(net, resumed), ["t"]);
        let mut asked = desk.asked.lock().unwrap().clone();
        asked.dedup();
        assert_eq!(asked, [("c".into(), "t".into()), ("w".into(), "t".into())]);
    });
}

/// `#` also matches the level above it, which is outside of the mountpoint.
#[test]
fn a_tenant_does_not_see_the_topic_above_its_mountpoint() {
    at_the_desk(|net, _| {
        let operator = net.connect(0, v5("operator").username("user=op"));
        net.send(operator, message("a", "kept").retain());
        let readers =
            [v5("c").username("tenant=a"), durable(V5, "d").username("tenant=a")].map(|c| net.connect(1, c));
        for reader in readers {
            net.subscribe(reader, "#", ExactlyOnce);
            net.subscribe(reader, "$share/g/#", AtLeastOnce);
        }
        for message in [message("a", "x"), message("a", "x").qos1(1), message("a", "x").qos2(2)] {
            net.send(operator, message);
        }
        net.publish(operator, "a/b", "y");
        for reader in readers {
            let topics = topics(net, reader);
            assert!(!topics.is_empty() && topics.iter().all(|topic| topic == "b"), "{topics:?}");
        }
    });
}

/// Messages on that topic are not queued for a tenant's absent session either. The tenant's own messages are, however
/// its clients are named.
#[test]
fn messages_on_the_topic_above_a_mountpoint_are_not_queued_for_its_tenant() {
    at_the_desk(|net, _| {
        let operator = net.connect(0, v5("operator").username("user=op"));
        for (tenant, name) in [("a", "plain"), ("a", "b/c"), ("a/b", "deep")] {
            let session = durable(V5, name).username(&format!("tenant={tenant}"));
            let reader = net.connect(1, session.clone());
            net.subscribe(reader, "#", ExactlyOnce);
            net.subscribe(reader, "$share/g/#", AtLeastOnce);
            net.lose(reader);
            for id in 1..=2 {
                net.send(operator, message(tenant, "above").qos1(id));
            }
            let known = format!("{tenant}/{name}");
            let detail = net.ask(|admin, reply| admin.client(&known, reply)).flatten().expect("known");
            assert_eq!(detail.session.expect("durable").queued_messages, 0, "{known}");
            for (topic, id) in [(format!("{tenant}/b"), 3), (format!("{tenant}/b/c"), 4)] {
                net.send(operator, message(&topic, "below").qos1(id));
            }
            let reader = net.resume(1, session.clone());
            let mut topics = topics(net, reader);
            topics.sort();
            assert_eq!(topics, ["b", "b", "b/c", "b/c"], "{known}");
            let last = net.connect(1, v5(name).username(&format!("tenant={tenant}")));
            net.lose(last);
        }
    });
}

/// `quota.user_percent` applies to all users behind a mountpoint together, including their sessions from before a
/// restart.
#[test]
fn one_tenant_cannot_use_all_sessions() {
    let mut settings = settings();
    settings.session.sessions_max = 8;
    settings.quota.user_percent = 50;
    let member = |tenant: &str, number: usize| {
        durable(V5, &format!("c{number}")).username(&format!("tenant={tenant} user=u{number}"))
    };
    let (mut net, mut log) = Net::with_log(2, settings, Arc::new(Desk::default()));
    for is_again in [false, true] {
        for number in 0..4 {
            let client = net.connecting(number, member("a", number));
            net.sync(&log);
            assert_eq!(net.received(client), [connack(is_again)]);
        }
        // Each of them counts, and none counts before it has reconnected.
        for _ in 0..2 {
            let fifth = net.connecting(1, member("a", 4));
            net.sync(&log);
            assert_eq!(net.received(fifth), [refused(ReasonCode::QuotaExceeded), Sent::Closed]);
            (net, log) = net.after_crash_under(&log, Arc::new(Desk::default()));
        }
    }
    let other = net.connecting(1, member("b", 4));
    net.sync(&log);
    assert_eq!(net.received(other), [connack(false)]);
}

/// A client without a mountpoint may have the same name as a tenant's client. Neither gets the other's session, whose
/// subscriptions reach further than it may see.
#[test]
fn a_client_without_a_mountpoint_cannot_take_over_a_tenants_session() {
    for owner in [SessionOwner::User, SessionOwner::Anybody] {
        at_the_desk_with(
            |settings| settings.session.owner = owner,
            |net, _| {
                let outside = net.connect(0, durable(V5, "a/c").username("user=op"));
                let nobody = net.connect(1, durable(V5, "a/d"));
                net.subscribe(outside, "#", AtLeastOnce);
                net.subscribe(nobody, "#", AtLeastOnce);
                net.lose(outside);
                for (client_id, user) in [("c", "tenant=a"), ("c", "tenant=a user=op"), ("d", "tenant=a")] {
                    let inside = net.connecting(2, durable(V5, client_id).resumes().username(user));
                    assert_eq!(net.received(inside), [refused(ClientIdentifierNotValid), Sent::Closed]);
                }
                let inside = net.connect(2, durable(V5, "e").username("tenant=a"));
                for connecting in [durable(V5, "a/e").resumes(), durable(V5, "a/e").username("user=op")] {
                    let outside = net.connecting(0, connecting);
                    assert_eq!(net.received(outside), [refused(ClientIdentifierNotValid), Sent::Closed]);
                }
                assert_eq!(net.closed(inside), None);
            },
        );
    }
}

/// An operator's subscription for a client stays behind its mountpoint too.
#[test]
fn an_operator_cannot_subscribe_a_tenants_client_to_topics_outside() {
    at_the_desk(|net, _| {
        let client = net.connect(0, v5("c").username("tenant=a"));
        for (filter, granted) in [("a/t", true), ("b/t", false), ("#", false), ("t", false)] {
            let asked = |admin: &Admin, reply| {
                admin.subscribe("a/c", filter_of(filter), reply).expect("a filter");
            };
            let reason = net.ask(asked).expect("an answer").expect("the client is connected");
            assert_eq!(!reason.is_error(), granted, "{filter}");
        }
        let writer = net.connect(1, v5("w").username("tenant=a"));
        net.publish(writer, "t", 1);
        assert_eq!(topics(net, client), ["t"]);
    });
}

fn filter_of(text: &str) -> NewSubscription {
    NewSubscription {
        filter: text.into(),
        qos: AtMostOnce,
        no_local: false,
        retain_as_published: false,
        retain_handling: mqtt::RetainHandling::Send,
        subscription_id: None,
    }
}

#[test]
fn an_admission_may_name_the_client() {
    at_the_desk(|net, _| {
        let named = net.connect(0, v5("whatever").username("id=c user=alice"));
        let rival = net.connecting(1, v5("c").username("user=bob"));
        assert_eq!(net.received(rival), [refused(ClientIdentifierNotValid), Sent::Closed]);
        let same = net.connecting(1, v5("c").username("user=alice"));
        assert_eq!(net.received(same), [connack(false)]);
        assert_eq!(net.received(named), [disconnect(SessionTakenOver), Sent::Closed]);
        let nobody = net.connecting(1, v5("x").username("id="));
        assert_eq!(net.received(nobody), [refused(ClientIdentifierNotValid), Sent::Closed]);
    });
}

#[test]
fn a_session_belongs_to_its_user() {
    at_the_desk(|net, _| {
        let alice = net.connect(0, durable(V5, "c").username("alice"));
        net.subscribe(alice, "t", AtLeastOnce);
        for connecting in [v5("c"), durable(V5, "c").resumes()] {
            let bob = net.connecting(1, connecting.username("bob"));
            assert_eq!(net.received(bob), [refused(ClientIdentifierNotValid), Sent::Closed]);
        }
        assert_eq!(net.closed(alice), None);
        net.lose(alice);
        let bob = net.connecting(1, v5("c").username("bob"));
        assert_eq!(net.received(bob), [refused(ClientIdentifierNotValid), Sent::Closed], "it is absent");
        net.resume(2, durable(V5, "c").resumes().username("alice"));
        let gone = net.connect(2, v5("d").username("alice"));
        net.lose(gone);
        net.connect(0, v5("d").username("bob"));
    });
    let anybody = |settings: &mut Settings| settings.session.owner = SessionOwner::Anybody;
    at_the_desk_with(anybody, |net, _| {
        let alice = net.connect(0, durable(V5, "c").username("alice"));
        net.resume(1, durable(V5, "c").resumes().username("bob"));
        assert_eq!(net.received(alice), [disconnect(SessionTakenOver), Sent::Closed]);
    });
    // Without user names a session belongs to nobody.
    everywhere_with(
        |_| {},
        |net| {
            let nobody = net.connect(0, durable(V5, "c"));
            net.resume(1, durable(V5, "c").resumes().username("alice"));
            assert_eq!(net.received(nobody), [disconnect(SessionTakenOver), Sent::Closed]);
            let again = net.connecting(1, durable(V5, "c").resumes());
            assert_eq!(net.received(again), [refused(ClientIdentifierNotValid), Sent::Closed]);
        },
    );
}

#[test]
fn an_expired_admission_ends_the_connection() {
    at_the_desk(|net, _| {
        let short = net.connect(0, v5("short").username("seconds=5"));
        let older = net.connect(1, v3("older").username("seconds=5"));
        let long = net.connect(2, v5("long").username("seconds=500"));
        net.pass(4_500);
        assert_eq!(net.received(short), []);
        net.pass(1_000);
        assert_eq!(net.received(short), [disconnect(MaximumConnectTime), Sent::Closed]);
        assert_eq!(net.received(older), [Sent::Closed]);
        assert_eq!(net.received(long), []);
        assert_eq!(net.counter(|counters| counters.admissions_expired), 2);
    });
}

#[test]
fn a_class_of_users_has_its_own_rate() {
    at_the_desk(|net, _| {
        let slow = net.connect(0, v5("slow").username("rate=2"));
        let fast = net.connect(1, v5("fast").username("x"));
        for client in [slow, fast] {
            net.send_all(client, (1..=10).map(|id| message("t", id).qos1(id).into()));
        }
        assert_eq!(net.received(fast).len(), 10);
        assert_eq!(net.received(slow).len(), 2);
        net.pass(1_100);
        assert_eq!(net.received(slow).len(), 2);
    });
}

#[test]
fn a_publish_waits_until_its_permission_is_known_and_keeps_its_order() {
    for version in [V3_1_1, V5] {
        at_the_desk(|net, desk| {
            let reader = net.connect(1, v5("reader").username("x"));
            net.subscribe(reader, "#", AtLeastOnce);
            let client = net.connect(0, Connecting { version, ..v5("c").username("x") });
            let packets = [
                message("ask/yes", 1).qos1(1).into(),
                message("t", 2).qos1(2).into(),
                message("ask/never", 3).qos1(3).into(),
                message("t", 4).qos1(4).into(),
            ];
            net.send_all(client, packets);
            assert_eq!((net.received(client), net.payloads(reader).len()), (vec![], 0));
            desk.knows(net, "ask/yes", true);
            assert_eq!(net.received(client), [puback(1), puback(2)]);
            assert_eq!(net.payloads(reader), ["1", "2"]);
            desk.knows(net, "ask/never", false);
            let denied = if version == V5 { NotAuthorized } else { ReasonCode::Success };
            assert_eq!(net.received(client), [Sent::PubAck(3, denied), puback(4)]);
            assert_eq!(net.payloads(reader), ["4"]);
            assert_eq!(net.counter(|counters| counters.permissions_awaited), 2);
        });
    }
}

/// A source that never answers causes a refusal in the end, and no packet is retried for ever.
#[test]
fn a_question_that_is_never_answered_is_refused_in_the_end() {
    at_the_desk(|net, desk| {
        let client = net.connect(0, v5("c").username("x"));
        net.send(client, message("ask/a", 1).qos1(1));
        net.send(client, subscribe(2).to("ask/b", AtMostOnce).to("t", AtMostOnce));
        for _ in 0..20 {
            desk.knows_nothing(net);
        }
        let refused = Sent::SubAck(2, vec![NotAuthorized, ReasonCode::Success]);
        assert_eq!(net.received(client), [Sent::PubAck(1, NotAuthorized), refused]);
        let will = net.connecting(1, v5("w").username("x").will(message("ask/c", "")));
        assert_eq!(net.received(will), []);
        for _ in 0..20 {
            desk.knows_nothing(net);
        }
        assert_eq!(net.received(will), [testkit::packets::refused(NotAuthorized), Sent::Closed]);
        assert_eq!(desk.waiting(), 0);
    });
}

#[test]
fn a_subscribe_asks_for_all_its_filters_at_once_and_waits_for_all_answers() {
    at_the_desk(|net, desk| {
        let client = net.connect(0, durable(V5, "c").username("x"));
        net.send(client, subscribe(1).to("ask/a", AtLeastOnce).to("t", AtMostOnce).to("ask/b", ExactlyOnce));
        net.send(client, Sent::PingReq);
        assert_eq!(desk.waiting(), 2);
        assert_eq!(net.received(client), [Sent::PingResp], "the connection works meanwhile");
        desk.knows(net, "ask/b", false);
        assert_eq!(net.received(client), []);
        desk.knows(net, "ask/a", true);
        desk.knows(net, "ask/a", true);
        let granted = [ReasonCode::GrantedQoS1, ReasonCode::Success, NotAuthorized];
        assert_eq!(net.received(client), [Sent::SubAck(1, granted.to_vec())]);
    });
}

/// Each piece of a SUBSCRIBE with very many filters asks for its own.
#[test]
fn a_subscribe_with_very_many_filters_waits_for_the_answers_of_each_piece() {
    at_the_desk(|net, desk| {
        let client = net.connect(0, durable(V5, "c").username("x tenant=a"));
        let unasked = |all: Subscribing, numbers: std::ops::Range<u32>| {
            numbers.fold(all, |all, number| all.to(&format!("t/{number}"), AtLeastOnce))
        };
        let all = unasked(subscribe(1).to("ask/a", AtLeastOnce), 0..400).to("ask/b", ExactlyOnce);
        net.send(client, unasked(all, 400..700));
        net.pass(100);
        assert_eq!(desk.waiting(), 1, "the second piece has not been looked at");
        net.send(client, Sent::PingReq);
        assert_eq!(net.received(client), [Sent::PingResp], "the connection works meanwhile");
        desk.knows(net, "ask/a", true);
        net.pass(100);
        assert_eq!(desk.waiting(), 1);
        assert_eq!(net.received(client), []);
        desk.knows(net, "ask/b", false);
        net.pass(100);
        let mut granted = vec![ReasonCode::GrantedQoS1; 702];
        granted[401] = NotAuthorized;
        assert_eq!(net.received(client), [Sent::SubAck(1, granted)]);
        net.send(client, message("t/699", "").qos1(1));
        assert_eq!(net.received(client).len(), 2, "PUBACK and its own message");
    });
}

#[test]
fn a_client_is_admitted_when_its_will_is_allowed() {
    for (allowed, first) in [(true, connack(false)), (false, refused(NotAuthorized))] {
        at_the_desk(|net, desk| {
            let will = message("ask/w", "").retain();
            let client = net.connecting(1, v5("c").username("tenant=a").will(will));
            assert_eq!(net.received(client), []);
            desk.knows(net, "ask/w", allowed);
            assert_eq!(net.received(client)[0], first);
            let denied = net.connecting(1, v5("d").username("x").will(message("no", "")));
            assert_eq!(net.received(denied), [refused(NotAuthorized), Sent::Closed]);
        });
    }
}

/// A lasting answer is not requested again until the rules change.
#[test]
fn a_lasting_answer_is_remembered_until_the_rules_change() {
    let disconnect = |settings: &mut Settings| settings.mqtt.publish_denied = PublishDenied::Ignore;
    at_the_desk_with(disconnect, |net, desk| {
        let client = net.connect(0, v5("c").username("x"));
        let asked = || desk.asked.lock().unwrap().len();
        for id in 1..=5 {
            net.send(client, message("t", id).qos1(id));
        }
        assert_eq!(asked(), 1);
        net.send(client, message("t", 6).qos1(6).retain());
        assert_eq!(asked(), 2, "another action");
        *desk.generation.lock().unwrap() += 1;
        net.send(client, message("t", 7).qos1(7));
        assert_eq!(asked(), 3);
        assert_eq!(net.received(client).len(), 7);
    });
}

/// A durable session's messages were queued under older rules.
#[test]
fn a_queued_message_that_may_not_be_read_any_more_is_not_delivered() {
    at_the_desk(|net, _| {
        let reader = net.connect(0, durable(V5, "reader").username("x"));
        net.subscribe(reader, "#", ExactlyOnce);
        let writer = net.connect(1, v5("w").username("x"));
        net.lose(reader);
        let will = net.connect(2, v5("op").username("tenant=no"));
        net.publish(will, "t", "not for you");
        net.send(will, message("t", "nor this").qos1(1));
        net.send(writer, message("t", "yours").qos1(1));
        let reader = net.resume(0, durable(V5, "reader").resumes().username("x"));
        assert_eq!(net.payloads(reader), ["yours"]);
        assert_eq!(net.counter(|counters| counters.dropped_not_readable), 1);
    });
}

/// Clients are identified by the names that access control gave them, without their mountpoints.
#[test]
fn a_revoked_client_is_closed_and_refused_afterwards() {
    at_the_desk(|net, desk| {
        let connections = [
            net.connect(0, v5("c")),
            net.connect(1, v3("another").username("id=c tenant=a")),
            net.connect(2, v5("c").username("tenant=b")),
        ];
        let stays = [net.connect(1, v5("cc")), net.connect(2, v5("d").username("id=e"))];
        net.pass(2_000);
        assert!(connections.iter().all(|peer| net.closed(*peer).is_none()));
        desk.gone.lock().unwrap().push("c");
        net.pass(2_000);
        let [plain, old, tenant] = connections;
        // DISCONNECT does not know 0x8A (3.14.2.1), and 3.1.1 has none to send.
        assert_eq!(net.closed(plain), Some(Some(ReasonCode::AdministrativeAction)));
        assert_eq!(net.closed(old), Some(None));
        assert_eq!(net.closed(tenant), Some(Some(ReasonCode::AdministrativeAction)));
        assert!(stays.iter().all(|peer| net.closed(*peer).is_none()));
        let again = net.connecting(0, v5("another").username("id=c"));
        assert_eq!(net.received(again), [refused(ReasonCode::Banned), Sent::Closed]);
    });
}

#[test]
fn a_client_is_closed_when_its_credentials_become_invalid() {
    at_the_desk(|net, desk| {
        let members =
            [net.connect(0, v5("a").username("member")), net.connect(1, v5("b").username("member"))];
        let stays = net.connect(2, v5("c").username("user=d"));
        net.pass(2_000);
        assert!(members.iter().all(|peer| net.closed(*peer).is_none()));
        desk.membership.end();
        net.pass(2_000);
        for member in members {
            assert_eq!(net.closed(member), Some(Some(ReasonCode::AdministrativeAction)));
        }
        assert_eq!(net.closed(stays), None);
        // The answer was on its way meanwhile: another one may be positive.
        let late = net.connecting(0, v5("d").username("member"));
        assert_eq!(net.received(late), [refused(ReasonCode::ServerUnavailable), Sent::Closed]);
    });
}

/// Rules of a test: a client may publish and read everything until its name, as `user/client`, is on a list.
#[derive(Default)]
struct Denied {
    publishing: Mutex<Vec<&'static str>>,
    reading: Mutex<Vec<&'static str>>,
    generation: Mutex<u64>,
}

impl Denied {
    fn deny(&self, names: &[&'static str]) {
        self.publishing.lock().unwrap().extend(names);
        *self.generation.lock().unwrap() += 1;
    }

    fn deny_reading(&self, name: &'static str) {
        self.reading.lock().unwrap().push(name);
        *self.generation.lock().unwrap() += 1;
    }
}

impl Access for Denied {
    fn authenticate(&self, of: Credentials<'_>, later: &mut dyn FnMut() -> AuthReply) -> Option<AuthResult> {
        Desk::default().authenticate(of, later)
    }

    fn guards_topics(&self) -> bool {
        true
    }

    fn authorize(
        &self,
        identity: Identity<'_>,
        action: Action,
        _: &str,
        _: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Option<Permission> {
        let name = format!("{}/{}", identity.username.unwrap_or_default(), identity.client_id);
        let list = match action {
            Action::Publish { .. } => &self.publishing,
            Action::Receive => &self.reading,
            Action::Subscribe { .. } => return Some(Permission { allowed: true, lasting: true }),
        };
        let allowed = !list.lock().unwrap().iter().any(|denied| *denied == name);
        Some(Permission { allowed, lasting: true })
    }

    fn generation(&self) -> u64 {
        *self.generation.lock().unwrap()
    }
}

fn wills_of(clients: [Connecting; 4]) -> [Connecting; 4] {
    let will = |topic: &str| message(topic, "gone").qos(AtLeastOnce);
    let [ephemeral, durable, delayed, retained] = clients;
    [
        ephemeral.will(will("w/ephemeral")),
        durable.will(will("w/durable")),
        delayed.delayed_will(will("w/delayed"), 60),
        retained.delayed_will(will("w/retained").retain(), 60),
    ]
}

/// The changes are in the order of time: rules change while the clients are connected, or while the delay of their
/// Wills runs.
#[test]
fn a_will_is_not_published_once_the_right_to_publish_it_is_taken_away() {
    for is_connected in [true, false] {
        everywhere_guarded(
            |_| {},
            || Arc::new(Denied::default()),
            |net, rules| {
                let witness = net.connect(0, v5("witness").username("user=w"));
                net.subscribe(witness, "#", AtLeastOnce);
                let clients = wills_of([
                    v5("c").username("user=u"),
                    durable(V5, "d").username("user=u"),
                    durable(V5, "e").username("user=u"),
                    durable(V5, "f").username("user=u"),
                ]);
                let first = if is_connected { 0 } else { 2 };
                let connecting = clients.into_iter().skip(first).enumerate();
                let peers: Vec<_> = connecting.map(|(at, client)| net.connect(at % 3, client)).collect();
                let deny = || rules.deny(&["u/c", "u/d", "u/e", "u/f"]);
                if is_connected {
                    deny();
                }
                peers.iter().for_each(|peer| net.lose(*peer));
                if !is_connected {
                    deny();
                }
                net.jump(61);
                assert_eq!(topics(net, witness), [""; 0]);
                assert_eq!(net.counter(|counters| counters.wills_denied), peers.len() as u64);
                let late = net.connect(1, v5("late").username("user=w"));
                net.subscribe(late, "w/#", AtLeastOnce);
                assert_eq!(topics(net, late), [""; 0], "nothing is retained");
            },
        );
    }
}

/// The store remembers the client of a Will. One Will was left before the crash, the other is due to it.
#[test]
fn a_will_is_not_published_after_a_restart_with_rules_that_deny_it() {
    let rules = Arc::new(Denied::default());
    let (mut net, log) = Net::with_log(1, settings(), rules.clone());
    let clients = ["away", "here", "allowed"].map(|name| {
        let will = message(&format!("w/{name}"), "gone").qos(AtLeastOnce);
        let client = net.connecting(0, durable(V5, name).username("user=u").delayed_will(will, 60));
        net.sync(&log);
        assert_eq!(net.received(client), [connack(false)]);
        client
    });
    net.lose(clients[0]);
    net.sync(&log);
    rules.deny(&["u/away", "u/here"]);
    let (mut net, log) = net.after_crash_under(&log, rules);
    let witness = net.connect(0, v5("witness").username("user=w"));
    net.subscribe(witness, "w/#", AtLeastOnce);
    net.jump(61);
    net.sync(&log);
    assert_eq!(topics(&mut net, witness), ["w/allowed"]);
    assert_eq!(net.counter(|counters| counters.wills_denied), 2);
}

/// Clients are judged by user and Client Identifier as they were admitted.
#[test]
fn a_change_of_the_rules_does_not_affect_the_wills_of_others() {
    everywhere_guarded(
        |_| {},
        || Arc::new(Denied::default()),
        |net, rules| {
            let witness = net.connect(0, v5("witness").username("user=w"));
            net.subscribe(witness, "#", AtLeastOnce);
            let clients = wills_of([
                v5("c").username("user=u"),
                durable(V5, "d").username("user=u"),
                durable(V5, "e").username("user=u"),
                durable(V5, "f").username("user=u"),
            ]);
            let peers = clients.map(|client| net.connect(1, client));
            rules.deny(&["other/c", "u/other", "/d", "/e"]);
            net.pass(2_000);
            peers.iter().for_each(|peer| net.lose(*peer));
            rules.deny(&["other/f"]);
            net.jump(61);
            let mut published = topics(net, witness);
            published.sort();
            assert_eq!(published, ["w/delayed", "w/durable", "w/ephemeral", "w/retained"]);
        },
    );
}

#[test]
fn a_revoked_client_leaves_no_will() {
    at_the_desk(|net, desk| {
        let witness = net.connect(0, v5("witness").username("x"));
        net.subscribe(witness, "w/#", AtLeastOnce);
        let clients = |end: &str| {
            wills_of([
                v5(&format!("c{end}")).username(end),
                durable(V5, &format!("d{end}")).username(end),
                durable(V5, &format!("e{end}")).username(end),
                durable(V5, &format!("f{end}")).username(end),
            ])
        };
        let banned = clients("user=banned").map(|client| net.connect(1, client));
        let expired = clients("seconds=10").map(|client| net.connect(1, client));
        let removed = clients("member").map(|client| net.connect(2, client));
        desk.gone.lock().unwrap().extend(["cuser=banned", "duser=banned", "euser=banned", "fuser=banned"]);
        desk.membership.end();
        net.pass(2_000);
        net.jump(11);
        for peer in [banned, expired, removed].concat() {
            assert!(net.closed(peer).is_some());
        }
        net.jump(61);
        assert_eq!(topics(net, witness), [""; 0]);
        assert_eq!(net.counter(|counters| counters.wills_denied), 12);
    });
}

/// The message waits in the queue of a session that ends with its connection.
#[test]
fn a_message_that_waits_for_a_connected_client_is_not_delivered_when_it_may_not_be_read_any_more() {
    everywhere_guarded(
        |_| {},
        || Arc::new(Denied::default()),
        |net, rules| {
            let reader = net.connect(0, v5("reader").username("user=r").receive_max(1));
            net.subscribe(reader, "t", AtLeastOnce);
            let writer = net.connect(1, v5("w").username("user=w"));
            for id in 1..=3 {
                net.send(writer, message("t", id).qos1(id));
            }
            assert_eq!(net.payloads(reader), ["1"]);
            rules.deny_reading("r/reader");
            net.send(reader, puback(1));
            assert_eq!(net.received(reader), []);
            assert_eq!(net.counter(|counters| counters.dropped_not_readable), 2);
        },
    );
}

/// The QoS 2 exchange is completed, because the client may have the message and remember its identifier.
#[test]
fn a_sent_message_that_may_not_be_read_any_more_is_not_sent_again() {
    everywhere_guarded(
        |_| {},
        || Arc::new(Denied::default()),
        |net, rules| {
            let reader = net.connect(0, durable(V5, "reader").username("user=r"));
            net.subscribe(reader, "t", ExactlyOnce);
            let writer = net.connect(1, v5("w").username("user=w"));
            net.send(writer, message("t", 1).qos2(1));
            net.send(writer, message("t", 2).qos1(2));
            assert_eq!(net.payloads(reader), ["1", "2"]);
            net.lose(reader);
            rules.deny_reading("r/reader");
            let reader = net.resume(0, durable(V5, "reader").resumes().username("user=r"));
            assert_eq!(net.received(reader), [pubrel(1)]);
            net.send(reader, pubcomp(1));
            net.lose(reader);
            let reader = net.resume(0, durable(V5, "reader").resumes().username("user=r"));
            assert_eq!(net.received(reader), []);
        },
    );
}
