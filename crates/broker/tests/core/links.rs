//! Sessions of linked clusters: what they get, and what they do to others.

use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use broker::access::{
    Access, Action, Admission, AuthReply, AuthResult, Credentials, INTERNAL_LISTENER, Identity, LinkQueue,
    LinkTerms, Permission, Principal, RetryAuthorize,
};
use broker::{Begun, Changed, ConnectionId, InterestWatch, LinkWaits, WaitingSuback};
use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::ReasonCode;
use mqtt::Version::V5;
use testkit::packets::*;

use crate::net::{Net, Peer, everywhere_guarded};

/// Access control that admits the linked clusters `c` and `d`, and refuses nothing else.
pub struct Clusters {
    export: Mutex<&'static [&'static str]>,
}

impl Default for Clusters {
    fn default() -> Self {
        Self { export: Mutex::new(&["t/#", "full"]) }
    }
}

impl Clusters {
    fn export(&self, filters: &'static [&'static str]) {
        *self.export.lock().expect("one thread") = filters;
    }
}

impl Access for Clusters {
    fn authenticate(
        &self,
        credentials: Credentials<'_>,
        _: &mut dyn FnMut() -> AuthReply,
    ) -> Option<AuthResult> {
        let Some(name) = credentials.client_id.strip_prefix("$link/") else { return Some(AuthResult::Allow) };
        let (name, origin) = name.split_once('/').map_or((name, None), |(name, origin)| (name, Some(origin)));
        if !["c", "d"].contains(&name) {
            return Some(AuthResult::Allow);
        }
        let link = LinkTerms {
            name: name.into(),
            origin: origin.map(Into::into),
            export: self.export.lock().expect("one thread").iter().map(|filter| Box::from(*filter)).collect(),
            queue: LinkQueue {
                messages_max: 3,
                bytes_max: 1 << 20,
                age_max_ms: u64::MAX,
                drop_newest: false,
            },
            history: Some("n:1".into()),
        };
        let principal = Principal { superuser: true, link: Some(link), ..Principal::default() };
        let admission = Admission { principal: Some(Arc::new(principal)), ..Admission::default() };
        Some(AuthResult::Admit(Box::new(admission)))
    }

    fn guards_topics(&self) -> bool {
        false
    }

    fn authorize(
        &self,
        _: Identity<'_>,
        _: Action,
        _: &str,
        _: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Option<Permission> {
        Some(Permission { allowed: true, lasting: true })
    }

    fn generation(&self) -> u64 {
        0
    }
}

pub fn everywhere(scenario: impl Fn(&mut Net)) {
    everywhere_guarded(|_| {}, Arc::<Clusters>::default, |net, _| scenario(net));
}

pub fn connect_link(net: &mut Net, index: usize, client_id: &str) -> Peer {
    net.connect(index, durable(V5, client_id))
}

/// Filters that a watch finds, without duplicates.
pub fn wanted(watch: &InterestWatch, origin: Option<&str>) -> Vec<String> {
    let mut filters = std::collections::BTreeSet::new();
    watch.for_each(origin, &mut |filter| {
        filters.insert(filter.to_owned());
    });
    assert!(filters.iter().all(|filter| watch.is_wanted(origin, filter)));
    filters.into_iter().collect()
}

#[test]
fn a_linked_cluster_subscribes_to_what_its_link_exports_and_publishes_requests_only() {
    everywhere(|net| {
        let link = connect_link(net, 0, "$link/c");
        let filters = [
            "t/1",
            "t/#",
            "u",
            "#",
            "$link/c/filters",
            "$link/d/filters",
            "$share/g/t/1",
            "$share/linked:g/t/1",
            "$share/$link:g/t/1",
            "$share/$link:linked:g/t/1",
            "$share/$link:linked:g/u",
            "$share/$link:linked:g/#",
            "$SYS/t",
        ];
        let refused = ReasonCode::NotAuthorized;
        for (id, filter) in filters.iter().enumerate() {
            net.send(link, subscribe(id as u16 + 1).to(filter, AtMostOnce));
            let [Sent::SubAck(_, reasons)] = &net.received(link)[..] else { panic!("one SUBACK") };
            let is_granted = ["t/1", "t/#", "$link/c/filters", "$share/$link:linked:g/t/1"].contains(filter);
            let expected = if is_granted { ReasonCode::Success } else { refused };
            assert_eq!(reasons[..], [expected], "{filter}");
        }
        for (id, topic) in ["$link/c/list", "$link/d/list", "$link/c/filters", "t/1"].iter().enumerate() {
            net.send(link, message(topic, "1").qos1(id as u16 + 1));
            let [Sent::PubAck(_, reason)] = &net.received(link)[..] else { panic!("one PUBACK") };
            let is_allowed = *topic == "$link/c/list";
            assert_eq!(*reason == refused, !is_allowed, "{topic}: {reason:?}");
        }
    });
}

#[test]
fn other_clients_are_no_linked_clusters_and_see_none_of_their_topics() {
    everywhere(|net| {
        for client_id in ["$link/x", "$linked/c", "$linkd/n1"] {
            let peer = net.connecting(1, durable(V5, client_id));
            assert_eq!(net.received(peer)[0], refused(ReasonCode::ClientIdentifierNotValid), "{client_id}");
        }
        let peer = net.connecting(1, durable(V5, "$link/c").will(message("w", "1")));
        assert_eq!(net.received(peer)[0], refused(ReasonCode::NotAuthorized));
        let client = net.connect(2, v5("client"));
        let filters = ["$link/#", "$link/c/list", "$share/$link:linked:g/t/1", "$share/$link:x/t/1"];
        for (id, filter) in filters.iter().enumerate() {
            net.send(client, subscribe(id as u16 + 1).to(filter, AtMostOnce));
            let [Sent::SubAck(_, reasons)] = &net.received(client)[..] else { panic!("one SUBACK") };
            assert_eq!(reasons[..], [ReasonCode::NotAuthorized], "{filter}");
        }
        net.send(client, message("$link/c/filters", "1").qos1(1));
        assert_eq!(net.received(client), [Sent::PubAck(1, ReasonCode::NotAuthorized)]);
        // The service of the process answers, and the link gets it.
        let link = connect_link(net, 0, "$link/c");
        net.subscribe(link, "$link/c/filters", AtMostOnce);
        net.node.name_listeners(vec!["tcp".into(), INTERNAL_LISTENER.into()]);
        let service = net.open(1, V5);
        net.came_in_by(service, 1);
        net.send(service, v5("$linkd/n1"));
        net.received(service);
        net.subscribe(service, "$link/+/list", AtMostOnce);
        net.publish(link, "$link/c/list", "0");
        assert_eq!(net.payloads(service), ["0"]);
        net.publish(service, "$link/c/filters", "0 0");
        assert_eq!(net.payloads(link), ["0 0"]);
    });
}

/// The session has subscriptions and messages of the time when the link exported more.
#[test]
fn what_a_link_does_not_export_any_more_does_not_cross() {
    let filters = |net: &mut Net| -> Vec<String> {
        let page = net.ask(|admin, reply| admin.client_subscriptions("$link/c", 0, 10, reply)).flatten();
        page.expect("a session").0.iter().map(|subscription| subscription.filter.to_string()).collect()
    };
    everywhere_guarded(
        |_| {},
        Arc::<Clusters>::default,
        |net, access| {
            let publisher = net.connect(1, v5("publisher"));
            let publish_all = |net: &mut Net, text: &str| {
                for (id, topic) in [(1, "t/1"), (2, "full"), (3, "jobs")] {
                    net.publish(publisher, topic, format!("{topic} {text} 0"));
                    net.send(publisher, message(topic, format!("{topic} {text} 1")).qos1(id));
                }
                net.received(publisher);
            };
            let payloads = |net: &mut Net, link: Peer| -> Vec<String> {
                let messages = net.received(link).into_iter().filter_map(|packet| match packet {
                    Sent::Publish(message) => Some(*message),
                    _ => None,
                });
                let messages: Vec<Message> = messages.collect();
                for message in &messages {
                    message.packet_id.into_iter().for_each(|id| net.send(link, puback(id)));
                }
                messages.into_iter().map(|message| message.payload).collect()
            };
            access.export(&["t/#", "full", "jobs"]);
            let link = connect_link(net, 0, "$link/c");
            let all = ["$link/c/filters", "$share/$link:linked:g/jobs", "full", "t/#"];
            for filter in all {
                net.send(link, subscribe(1).to(filter, AtLeastOnce));
                assert_eq!(net.received(link), [suback(1, &[AtLeastOnce])], "{filter}");
            }
            net.lose(link);
            publish_all(net, "away");
            access.export(&["full"]);
            let link = net.resume(2, durable(V5, "$link/c"));
            assert_eq!(payloads(net, link), ["full away 1"], "the others have waited, and are dropped");
            assert_eq!(net.counter(|counters| counters.dropped_not_readable), 2);
            assert_eq!(filters(net), ["$link/c/filters", "full"]);
            publish_all(net, "narrow");
            assert_eq!(payloads(net, link), ["full narrow 0", "full narrow 1"]);
            net.lose(link);
            access.export(&["t/#", "full", "jobs"]);
            let link = net.resume(1, durable(V5, "$link/c"));
            publish_all(net, "wide");
            assert_eq!(payloads(net, link), ["full wide 0", "full wide 1"], "it has to subscribe again");
            for filter in all {
                net.send(link, subscribe(1).to(filter, AtLeastOnce));
                assert_eq!(net.received(link), [suback(1, &[AtLeastOnce])], "{filter}");
            }
            publish_all(net, "again");
            let mut got = payloads(net, link);
            got.sort_unstable();
            let expected = ["full again 0", "full again 1", "jobs again 0", "jobs again 1"];
            assert_eq!(got[..4], expected);
            assert_eq!(got[4..], ["t/1 again 0", "t/1 again 1"]);
        },
    );
}

#[test]
fn a_linked_cluster_that_asks_for_another_origin_gets_its_list() {
    everywhere(|net| {
        net.node.name_listeners(vec!["tcp".into(), INTERNAL_LISTENER.into()]);
        let link = connect_link(net, 0, "$link/c/b");
        net.subscribe(link, "$link/c/b/filters", AtMostOnce);
        let service = net.open(1, V5);
        net.came_in_by(service, 1);
        net.send(service, v5("$linkd/n1"));
        net.received(service);
        net.publish(service, "$link/c/b/filters", "0 0");
        assert_eq!(net.payloads(link), ["0 0"]);
    });
}

/// Nothing returns to its origin, and what came over one link does not go on over others unless they ask for it.
#[test]
fn a_linked_cluster_gets_messages_of_the_origin_that_it_asks_for() {
    everywhere(|net| {
        let local = net.connect(0, durable(V5, "local"));
        let (own, of_b) = (connect_link(net, 1, "$link/c"), connect_link(net, 2, "$link/c/b"));
        for peer in [local, own, of_b] {
            net.subscribe(peer, "t/#", ExactlyOnce);
        }
        let publisher = net.connect(1, v5("publisher"));
        let mut payload = 0;
        for (origin, qos) in [None, Some("b"), Some("c"), Some("e")].iter().flat_map(|it| [(it, 0), (it, 1)])
        {
            payload += 1;
            let sent = message("t/x", payload);
            let sent = if qos == 0 { sent } else { sent.qos1(payload) };
            let sent = match origin {
                Some(origin) => sent.from_cluster(origin),
                None => sent,
            };
            net.send(publisher, sent);
            net.received(publisher);
            let text = payload.to_string();
            let got = |is_wanted: bool| if is_wanted { vec![text.clone()] } else { vec![] };
            assert_eq!(net.payloads(local), got(true));
            assert_eq!(net.payloads(own), got(origin.is_none()), "{origin:?} {qos}");
            assert_eq!(net.payloads(of_b), got(*origin == Some("b")), "{origin:?} {qos}");
        }
        // The same for what is retained.
        net.send(publisher, message("t/own", "own").qos1(100).retain());
        net.send(publisher, message("t/b", "of b").qos1(101).retain().from_cluster("b"));
        net.received(publisher);
        for peer in [own, of_b] {
            net.payloads(peer);
            net.send(peer, unsubscribe(50, &["t/#"]));
            net.received(peer);
            net.send(peer, subscribe(51).to("t/+", AtLeastOnce));
            let [ack, Sent::Publish(message)] = &net.received(peer)[..] else { panic!("one message") };
            assert_eq!(*ack, suback(51, &[AtLeastOnce]));
            assert_eq!(message.payload, if peer == own { "own" } else { "of b" });
        }
    });
}

#[test]
fn a_slow_linked_cluster_makes_no_publisher_wait() {
    everywhere(|net| {
        let link = net.connect(0, durable(V5, "$link/c").receive_max(1));
        net.subscribe(link, "full", AtLeastOnce);
        let publisher = net.connect(1, v5("publisher"));
        for id in 1..=20 {
            net.send(publisher, message("full", id).qos1(id));
            assert_eq!(net.received(publisher), [puback(id)], "{id}");
        }
        let detail = net.ask(|admin, reply| admin.client("$link/c", reply)).flatten().expect("a session");
        let session = detail.session.expect("is durable");
        assert_eq!((session.inflight, session.queued_messages), (1, 3));
    });
}

#[test]
fn a_watch_tells_filters_of_clients_from_those_of_linked_clusters() {
    everywhere(|net| {
        let before = net.connect(0, v5("before"));
        net.subscribe(before, "t/before", AtMostOnce);
        let woken = Arc::new(AtomicUsize::new(0));
        let count = woken.clone();
        let wake = move || {
            count.fetch_add(1, Relaxed);
        };
        let watch = net.admin().watch_interest(Arc::new(wake));
        assert_eq!(watch.take(), Changed::default());
        assert_eq!(wanted(&watch, None), ["t/before"]);
        let (ephemeral, kept) = (net.connect(1, v5("ephemeral")), net.connect(2, durable(V5, "kept")));
        let (own, of_b) = (connect_link(net, 0, "$link/c"), connect_link(net, 1, "$link/c/b"));
        let other = connect_link(net, 2, "$link/d");
        net.subscribe(ephemeral, "t/1", AtMostOnce);
        net.subscribe(kept, "t/2", AtLeastOnce);
        net.subscribe(kept, "$share/g/t/3", AtLeastOnce);
        net.subscribe(own, "t/4", ExactlyOnce);
        net.subscribe(own, "t/2", ExactlyOnce);
        net.subscribe(other, "t/4", ExactlyOnce);
        net.subscribe(of_b, "t/5", ExactlyOnce);
        assert!(woken.load(Relaxed) > 0);
        let changed = watch.take();
        for filter in ["t/1", "t/2", "t/3", "t/4", "t/5"] {
            assert!(changed.filters.iter().any(|it| **it == *filter), "{filter}");
        }
        assert_eq!(wanted(&watch, None), ["t/1", "t/2", "t/3", "t/before"]);
        assert_eq!(wanted(&watch, Some("")), ["t/2", "t/4"]);
        assert_eq!(wanted(&watch, Some("b")), ["t/5"]);
        // What a client wants ends with the client, whatever linked clusters want.
        for (peer, filter) in [(ephemeral, "t/1"), (kept, "t/2"), (other, "t/4"), (of_b, "t/5")] {
            net.send(peer, unsubscribe(9, &[filter]));
            net.received(peer);
            assert!(watch.take().filters.iter().any(|it| **it == *filter), "{filter}");
        }
        assert_eq!(wanted(&watch, None), ["t/3", "t/before"]);
        assert_eq!(wanted(&watch, Some("")), ["t/2", "t/4"]);
        assert!(wanted(&watch, Some("b")).is_empty());
        // A client that wants what a linked cluster wants.
        net.subscribe(kept, "t/4", AtLeastOnce);
        assert_eq!(wanted(&watch, None), ["t/3", "t/4", "t/before"]);
        net.lose(own);
        assert_eq!(wanted(&watch, Some("")), ["t/2", "t/4"], "the session stays");
        // The name says it, also while nobody is a member.
        assert!(
            watch.is_linked_group("$share/linked:g/t/3") && !watch.is_wanted(None, "$share/linked:g/t/3")
        );
        assert!(!watch.is_linked_group("$share/g/t/3") && !watch.is_linked_group("t/3"));
    });
}

/// Links that answer nothing by themselves.
#[derive(Default)]
struct Links {
    are_busy: bool,
    begun: Mutex<Vec<(WaitingSuback, Vec<String>)>>,
    cancelled: Mutex<Vec<ConnectionId>>,
}

impl LinkWaits for Links {
    fn begin(&self, suback: WaitingSuback, filters: Vec<Box<str>>, within: Duration) -> Begun {
        assert_eq!(within, Duration::from_secs(5), "the default");
        if self.are_busy {
            return Begun::Busy;
        }
        let filters: Vec<_> = filters.into_iter().map(String::from).collect();
        if filters.iter().all(|filter| filter.starts_with("local/")) {
            return Begun::Nothing;
        }
        self.begun.lock().expect("one thread").push((suback, filters));
        Begun::Waits
    }

    fn cancel(&self, connection: ConnectionId) {
        self.cancelled.lock().expect("one thread").push(connection);
    }
}

impl Links {
    fn of(net: &Net, are_busy: bool) -> Arc<Self> {
        let links = Arc::new(Self { are_busy, ..Self::default() });
        net.admin().set_link_waits(links.clone());
        links
    }

    /// Takes the only SUBACK that waits, with its filters.
    fn waiting(&self) -> (WaitingSuback, Vec<String>) {
        let mut begun = std::mem::take(&mut *self.begun.lock().expect("one thread"));
        assert_eq!(begun.len(), 1, "{begun:?}");
        begun.remove(0)
    }
}

#[test]
fn a_suback_of_level_links_waits_for_linked_clusters() {
    everywhere(|net| {
        let links = Links::of(net, false);
        let publisher = net.connect(2, v5("publisher"));
        for (index, connecting) in [(0, v5("ephemeral")), (1, durable(V5, "kept"))] {
            let client = net.connect(index, connecting);
            for (packet_id, is_confirmed) in [(1, true), (2, false), (3, true)] {
                let before = net.counter(|counters| counters.subacks_links_unconfirmed);
                let asked = subscribe(packet_id).to("t/1", AtLeastOnce).to("$share/g/t/2", AtLeastOnce);
                // A filter that is not granted makes nobody wait.
                let asked = asked.to(&"x/".repeat(200), AtMostOnce).level("links");
                net.send(client, asked);
                assert_eq!(net.received(client), [], "it waits");
                net.publish(publisher, "t/1", "before");
                assert_eq!(net.payloads(client), ["before"], "it is subscribed here");
                let (suback, filters) = links.waiting();
                assert_eq!(filters, ["t/1", "$share/g/t/2"]);
                net.admin().links_answered(suback, is_confirmed);
                // A second answer says nothing.
                net.admin().links_answered(suback, false);
                net.run();
                match &net.received(client)[..] {
                    [Sent::SubAck(id, reasons)] => assert_eq!((*id, reasons.len()), (packet_id, 3)),
                    other => panic!("{other:?}"),
                }
                let unconfirmed = net.counter(|counters| counters.subacks_links_unconfirmed) - before;
                assert_eq!(unconfirmed, u64::from(!is_confirmed));
            }
            net.send(client, subscribe(4).to("local/1", AtMostOnce).level("links"));
            assert_eq!(net.received(client), [suback(4, &[AtMostOnce])], "no link takes it");
            net.send(client, subscribe(5).to("t/3", AtMostOnce).level("cluster"));
            assert_eq!(net.received(client), [suback(5, &[AtMostOnce])], "another level");
        }
        assert!(links.begun.lock().expect("one thread").is_empty());
        assert!(links.cancelled.lock().expect("one thread").is_empty());
    });
}

#[test]
fn a_linked_cluster_and_a_full_node_do_not_wait_for_links() {
    everywhere(|net| {
        let links = Links::of(net, false);
        let link = connect_link(net, 0, "$link/c");
        net.send(link, subscribe(1).to("t/1", ExactlyOnce).level("links"));
        assert_eq!(net.received(link), [suback(1, &[ExactlyOnce])]);
        assert!(links.begun.lock().expect("one thread").is_empty());
    });
    everywhere(|net| {
        Links::of(net, true);
        let client = net.connect(0, v5("client"));
        net.send(client, subscribe(1).to("t/1", AtMostOnce).level("links"));
        assert_eq!(net.received(client), [suback(1, &[AtMostOnce])]);
        net.send_to_peers();
        assert_eq!(net.counter(|counters| counters.subacks_links_unconfirmed), 1);
    });
}

#[test]
fn the_end_of_a_connection_ends_its_waits_for_links() {
    everywhere(|net| {
        let links = Links::of(net, false);
        let (client, other) = (net.connect(0, v5("client")), net.connect(1, v5("other")));
        net.send(client, subscribe(1).to("t/1", AtMostOnce).level("links"));
        let (suback, _) = links.waiting();
        net.lose(other);
        assert!(links.cancelled.lock().expect("one thread").is_empty());
        net.lose(client);
        assert_eq!(*links.cancelled.lock().expect("one thread"), [suback.connection]);
        net.admin().links_answered(suback, true);
        net.run();
    });
}
