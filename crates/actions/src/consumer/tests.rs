//! A consumer with a broker of the test.

use broker::origin::{ORIGIN, Origin};
use mqtt::{Ack, ConnAck, Outgoing, Properties, PropertiesBuf, Property, SubAck, Version, decode};
use rules::{RenderError, Value};
use sinks::{ActionSettings, Guard, Record, Sink, Target};

use super::*;

/// A target whose records are the JSON of outputs. Outputs without `v` have no form.
struct Plain;

impl Target for Plain {
    fn render(&self, output: &Value) -> Result<Record, RenderError> {
        let value = output.member("v").filter(|value| !value.is_null());
        let value = value.ok_or_else(|| RenderError::Missing { path: "v".into() })?;
        assert_ne!(value, &Value::from("fault"), "a fault of the renderer");
        let text = match value {
            Value::Int(number) => number.to_string(),
            other => format!("{other:?}"),
        };
        Ok(Record { fields: vec![Some(text.into_bytes().into())], id: 0 })
    }

    fn field_names(&self) -> Vec<String> {
        vec!["v".into()]
    }

    fn open(&self) -> Box<dyn Sink> {
        unreachable!("the test is the writer")
    }
}

const GUARD: Guard = Guard { allow_loopback: true, allow_private: true };

fn settings(change: impl FnOnce(&mut ActionSettings)) -> ActionSettings {
    let mut settings = ActionSettings {
        name: "test".into(),
        rule: "SELECT payload.v AS v, clientid FROM \"a/#\" WHERE payload.v != 0".into(),
        topic: "out".into(),
        batch_max: 2,
        batch_wait: Duration::ZERO,
        ..ActionSettings::default()
    };
    change(&mut settings);
    settings
}

/// The broker's side of a connection.
struct Broker {
    consumer: Consumer,
    now: Now,
    next_id: u16,
}

impl Broker {
    fn writing(change: impl FnOnce(&mut ActionSettings)) -> Self {
        Self::of(change, Some(Arc::new(Plain)))
    }

    fn publishing(change: impl FnOnce(&mut ActionSettings)) -> Self {
        Self::of(change, None)
    }

    fn of(change: impl FnOnce(&mut ActionSettings), target: Option<Arc<dyn Target>>) -> Self {
        let mut plan = Plan::new(&settings(change), None, GUARD).expect("valid settings");
        if let Some(target) = target {
            plan.output = Output::Write(target);
        }
        let consumer = Consumer::new(Arc::new(plan), "node", vec!["old/#".into()], 1);
        let now = Now { time: Time(0), wall: Duration::from_secs(1_000) };
        let mut broker = Self { consumer, now, next_id: 0 };
        broker.connect();
        broker
    }

    fn connect(&mut self) {
        self.consumer.opened(self.now).expect("the settings fit");
        let sent = self.sent();
        assert!(sent[0].starts_with("CONNECT $action/test"), "{sent:?}");
        let properties = PropertiesBuf::from_iter([Property::ReceiveMaximum(10)]);
        let properties = properties.as_properties();
        let ack = ConnAck { session_present: true, reason: ReasonCode::Success, properties };
        self.send(&Packet::ConnAck(ack));
    }

    fn send(&mut self, packet: &Packet<'_>) {
        let mut bytes = Vec::new();
        assert!(packet.encode(Version::V5, &mut bytes));
        self.receive(&bytes);
    }

    fn receive(&mut self, bytes: &[u8]) {
        self.consumer.receive(self.now, bytes).expect("the connection stays");
    }

    /// Publishes with QoS 1, and with QoS 0 without an origin.
    fn publish(&mut self, topic: &str, payload: &str, hops: &[&str]) {
        self.next_id += 1;
        let packet_id = PacketId::new(self.next_id);
        let origin = Origin {
            id: u128::from(self.next_id),
            received_ms: 5,
            qos: 1,
            client_id: "c1".into(),
            ..Origin::default()
        };
        let origin = origin.to_value();
        let hops = hops.iter().map(|hop| Property::UserProperty(VIA, hop));
        let all = [Property::UserProperty(ORIGIN, &origin)].into_iter().chain(hops);
        self.deliver(topic, payload.as_bytes(), packet_id, &all.collect());
    }

    fn deliver(&mut self, topic: &str, payload: &[u8], id: Option<PacketId>, properties: &PropertiesBuf) {
        let packet = Outgoing {
            dup: false,
            qos: if id.is_some() { QoS::AtLeastOnce } else { QoS::AtMostOnce },
            retain: false,
            packet_id: id,
            topic,
            topic_alias: None,
            message_expiry: None,
            subscription_ids: &[],
            properties: properties.as_properties().as_bytes(),
            payload,
        };
        let mut bytes = Vec::new();
        packet.encode(Version::V5, &mut bytes);
        self.receive(&bytes);
    }

    /// Packets of the consumer, in words.
    fn sent(&mut self) -> Vec<String> {
        let mut words = Vec::new();
        let bytes = self.consumer.outgoing().to_vec();
        self.consumer.sent(bytes.len());
        let mut rest = &bytes[..];
        while let Some(size) = mqtt::frame(rest, u32::MAX).expect("valid") {
            let (packet, after) = rest.split_at(size);
            rest = after;
            words.push(match decode(Version::V5, packet).expect("valid") {
                Packet::Connect(connect) => format!("CONNECT {}", connect.client_id),
                Packet::PubAck(ack) => format!("PUBACK {}", ack.packet_id.get()),
                Packet::PubRel(ack) => format!("PUBREL {}", ack.packet_id.get()),
                Packet::Subscribe(subscribe) => {
                    let filters: Vec<_> =
                        subscribe.filters.iter().map(|(filter, _)| filter.to_owned()).collect();
                    format!("SUBSCRIBE {}", filters.join(" "))
                }
                Packet::Unsubscribe(unsubscribe) => {
                    let filters: Vec<_> = unsubscribe.filters.iter().map(str::to_owned).collect();
                    format!("UNSUBSCRIBE {}", filters.join(" "))
                }
                Packet::Publish(publish) => {
                    let users: Vec<_> = publish
                        .properties
                        .user_properties()
                        .map(|(name, value)| format!("{name}={value}"))
                        .collect();
                    let payload = String::from_utf8_lossy(publish.payload).into_owned();
                    format!("PUBLISH {} {payload} [{}]", publish.topic, users.join(" "))
                }
                other => format!("{other:?}"),
            });
        }
        words
    }

    /// Texts of the next batch, which stays open.
    fn batch(&mut self) -> Option<(usize, Batch, Vec<String>)> {
        let (lane, batch) = self.consumer.poll_batch(self.now)?;
        let text = |item: &Item| {
            let field = item.record.fields[0].clone().expect("a value");
            String::from_utf8(field.into_vec()).expect("UTF-8")
        };
        let texts = batch.items.iter().map(text).collect();
        Some((lane, batch, texts))
    }

    fn written(&mut self, lane: usize, batch: &Batch, outcome: impl Fn(usize) -> Outcome) {
        let results = batch.items.iter().enumerate().map(|(at, item)| Written {
            sequence: item.sequence,
            bytes: item.record.bytes(),
            outcome: outcome(at),
        });
        self.consumer.written(lane, batch.epoch, results.collect(), Some(Vec::new()));
    }

    fn acknowledge(&mut self, id: u16, reason: ReasonCode) {
        let packet_id = PacketId::new(id).expect("not 0");
        self.send(&Packet::PubAck(Ack { packet_id, reason, properties: Properties::EMPTY }));
    }
}

#[test]
fn it_subscribes_its_rule_and_ends_subscriptions_of_earlier_rules() {
    let mut broker = Broker::writing(|_| {});
    assert_eq!(broker.sent(), ["SUBSCRIBE $action/test/# a/#", "UNSUBSCRIBE old/#"]);
    assert!(!broker.consumer.is_subscribed());
    let packet_id = PacketId::new(65_535).expect("not 0");
    let reasons = &[1, 1];
    broker.send(&Packet::SubAck(SubAck { packet_id, properties: Properties::EMPTY, reasons }));
    let packet_id = PacketId::new(65_534).expect("not 0");
    broker.send(&Packet::UnsubAck(SubAck { packet_id, properties: Properties::EMPTY, reasons: &[0] }));
    assert!(broker.consumer.is_subscribed());
}

#[test]
fn messages_are_acknowledged_in_order_once_their_records_are_written() {
    let mut broker = Broker::writing(|_| {});
    broker.sent();
    for value in ["1", "2", "0", "3"] {
        broker.publish("a/b", &format!("{{\"v\":{value}}}"), &[]);
    }
    assert_eq!(broker.sent(), [""; 0]);
    let (lane, first, texts) = broker.batch().expect("two records");
    assert_eq!(texts, ["1", "2"]);
    assert!(broker.batch().is_none(), "the lane is busy");
    broker.written(lane, &first, |_| Outcome::Written);
    // The third message was not selected.
    assert_eq!(broker.sent(), ["PUBACK 1", "PUBACK 2", "PUBACK 3"]);
    let (lane, second, texts) = broker.batch().expect("the last record");
    assert_eq!(texts, ["3"]);
    broker.written(lane, &second, |_| Outcome::Written);
    assert_eq!(broker.sent(), ["PUBACK 4"]);
    let counters = broker.consumer.counters();
    assert_eq!((counters.received, counters.not_selected, counters.written), (4, 1, 3));
    assert_eq!((counters.records, counters.batches, counters.bytes), (3, 2, 3));
    assert_eq!(broker.consumer.in_flight(), 0);
}

#[test]
fn a_record_has_the_same_number_each_time_its_message_comes() {
    let mut broker = Broker::writing(|_| {});
    let mut ids = Vec::new();
    for _ in 0..2 {
        broker.next_id = 0;
        broker.publish("a", "{\"v\":1}", &[]);
        broker.publish("a", "{\"v\":1}", &[]);
        let (lane, batch, _) = broker.batch().expect("records");
        ids.push(batch.items.iter().map(|item| item.record.id).collect::<Vec<_>>());
        broker.consumer.forget();
        broker.written(lane, &batch, |_| Outcome::Abandoned);
        broker.connect();
    }
    assert_eq!(ids[0], ids[1]);
    assert_ne!(ids[0][0], ids[0][1]);
}

#[test]
fn results_of_an_earlier_connection_acknowledge_nothing() {
    let mut broker = Broker::writing(|_| {});
    broker.publish("a", "{\"v\":1}", &[]);
    let (lane, old, _) = broker.batch().expect("a record");
    broker.consumer.forget();
    assert!(!broker.consumer.is_idle());
    broker.connect();
    broker.next_id = 0;
    broker.publish("a", "{\"v\":1}", &[]);
    assert!(broker.batch().is_none(), "the earlier batch is being written");
    broker.sent();
    broker.written(lane, &old, |_| Outcome::Written);
    assert_eq!(broker.sent(), [""; 0]);
    let (lane, new, _) = broker.batch().expect("the record again");
    broker.written(lane, &new, |_| Outcome::Written);
    assert_eq!(broker.sent(), ["PUBACK 1"]);
}

#[test]
fn what_is_given_up_goes_to_dead_letters_and_fallback_before_it_is_acknowledged() {
    let mut broker = Broker::writing(|settings| {
        settings.dead_letter = "dead/${reason}".into();
        settings.fallback = "other".into();
    });
    broker.publish("a/x", "{\"v\":1}", &[]);
    broker.publish("a/x", "not json", &[]);
    broker.publish("a/x", "{}", &[]);
    let sent = broker.sent();
    let (of_second, of_third) = (&sent[2..4], &sent[4..6]);
    assert!(
        of_second[0].starts_with("PUBLISH dead/not_json not json [meridian-via=node/test action=test"),
        "{sent:?}"
    );
    assert!(of_second[0].contains("topic=a/x reason=not_json error=payload"), "{sent:?}");
    assert!(of_second[1].starts_with("PUBLISH $action/other/a/x not json [$origin="), "{sent:?}");
    assert!(of_third[0].starts_with("PUBLISH dead/"), "{sent:?}");
    let (lane, batch, _) = broker.batch().expect("the first record");
    broker.written(lane, &batch, |_| Outcome::Refused("no".into()));
    let sent = broker.sent();
    assert!(sent[0].starts_with("PUBLISH dead/refused"), "{sent:?}");
    assert_eq!(sent.len(), 2);
    for id in [1, 2, 3, 4, 5] {
        broker.acknowledge(id, ReasonCode::Success);
        assert_eq!(broker.sent(), [""; 0]);
    }
    // The fallback has no session yet.
    broker.acknowledge(6, ReasonCode::NoMatchingSubscribers);
    assert_eq!(broker.sent(), [""; 0]);
    broker.now.time = Time(1_000_000);
    broker.consumer.handle_timeout(broker.now);
    assert!(broker.sent()[0].starts_with("PUBLISH $action/other/"));
    broker.acknowledge(7, ReasonCode::Success);
    assert_eq!(broker.sent(), ["PUBACK 1", "PUBACK 2", "PUBACK 3"]);
    let counters = broker.consumer.counters();
    assert_eq!((counters.dead_letters, counters.fallbacks, counters.dropped), (3, 3, 0));
    assert_eq!((counters.refused, counters.evaluation_errors, counters.render_errors), (1, 1, 1));
}

/// The answers of the broker must be read while the fallback has no session, and messages come between them.
#[test]
fn while_a_message_is_published_the_messages_that_come_use_a_bounded_amount_of_memory() {
    let mut broker = Broker::writing(|settings| {
        settings.fallback = "other".into();
        settings.batch_max = 1;
    });
    broker.publish("a", "not json", &[]);
    broker.acknowledge(1, ReasonCode::NoMatchingSubscribers);
    let large = "x".repeat(1 << 20);
    for number in 0..60 {
        broker.publish("a", &format!("{{\"v\":\"{number} {large}\"}}"), &[]);
        assert!(broker.consumer.wants_read());
    }
    // Each message is in memory with its record, and one more may be.
    let made = broker.consumer.counters().records;
    assert!((10..=17).contains(&made), "{made}");
    assert_eq!(broker.consumer.in_flight(), 61);
    // When the fallback has a session, the others follow in their order.
    broker.now.time = Time(1_000_000);
    broker.consumer.handle_timeout(broker.now);
    broker.acknowledge(2, ReasonCode::Success);
    let mut numbers = Vec::new();
    while let Some((lane, batch, texts)) = broker.batch() {
        numbers.extend(texts.iter().filter_map(|text| text.split(['\"', ' ']).nth(1)?.parse::<u32>().ok()));
        broker.written(lane, &batch, |_| Outcome::Written);
        if broker.consumer.timeout() == Some(Time::default()) {
            broker.consumer.handle_timeout(broker.now);
        }
    }
    assert_eq!(numbers, (0..60).collect::<Vec<_>>());
    assert_eq!((broker.consumer.in_flight(), broker.consumer.bytes), (0, 0));
}

/// The message comes again after a restart of the node, so a panic would end the node again and again.
#[test]
fn a_message_whose_record_cannot_be_made_because_of_a_fault_is_given_up() {
    let mut broker = Broker::writing(|_| {});
    broker.sent();
    broker.publish("a", "{\"v\":\"fault\"}", &[]);
    assert_eq!(broker.sent(), ["PUBACK 1"]);
    let counters = broker.consumer.counters();
    assert_eq!((counters.evaluation_errors, counters.dropped, counters.records), (1, 1, 0));
    assert!(broker.consumer.last_error().expect("is known").contains("please report it"));
}

#[test]
fn without_dead_letters_what_is_given_up_is_counted_and_acknowledged() {
    let mut broker = Broker::writing(|_| {});
    broker.sent();
    broker.publish("a", "not json", &[]);
    assert_eq!(broker.sent(), ["PUBACK 1"]);
    assert_eq!(broker.consumer.counters().dropped, 1);
    assert!(broker.consumer.last_error().expect("is known").contains("not JSON"));
}

#[test]
fn outputs_are_published_and_loops_end() {
    let mut broker = Broker::publishing(|settings| {
        settings.content = "${v}".into();
        settings.hops_max = 2;
        settings.headers = "from: ${clientid}".into();
    });
    broker.sent();
    broker.publish("a", "{\"v\":7}", &["x"]);
    assert_eq!(broker.sent(), ["PUBLISH out 7 [meridian-via=x meridian-via=node/test from=c1]"]);
    broker.publish("a", "{\"v\":8}", &["node/test"]);
    broker.publish("a", "{\"v\":9}", &["x", "y"]);
    assert_eq!(broker.sent(), [""; 0], "the first message is not acknowledged");
    broker.acknowledge(1, ReasonCode::Success);
    assert_eq!(broker.sent(), ["PUBACK 1", "PUBACK 2", "PUBACK 3"]);
    let counters = broker.consumer.counters();
    assert_eq!((counters.loops, counters.written), (2, 1));
    assert_eq!(counters.last_write, Some(Duration::from_secs(1_000)));
}

#[test]
fn the_rule_applies_to_messages_that_another_action_has_passed_on() {
    let mut broker = Broker::writing(|_| {});
    let origin = Origin { id: 9, client_id: "first".into(), ..Origin::default() }.to_value();
    let properties = PropertiesBuf::from_iter([
        Property::UserProperty(ORIGIN, ""),
        Property::UserProperty(ORIGIN, &origin),
    ]);
    broker.deliver("$action/test/a/b", b"{\"v\":5}", PacketId::new(1), &properties);
    assert_eq!(broker.batch().expect("a record").2, ["5"]);
    broker.deliver("$action/test/z", b"{\"v\":5}", PacketId::new(2), &properties);
    assert_eq!(broker.consumer.counters().not_selected, 1);
}

#[test]
fn messages_of_qos_0_beyond_the_limit_are_dropped() {
    let mut broker = Broker::writing(|settings| settings.in_flight = 2);
    let properties = PropertiesBuf::from_iter([Property::UserProperty(ORIGIN, "")]);
    for _ in 0..3 {
        broker.deliver("a", b"{\"v\":5}", None, &properties);
    }
    assert_eq!((broker.consumer.counters().dropped_qos0, broker.consumer.counters().dropped), (1, 0));
    let (lane, batch, texts) = broker.batch().expect("records");
    assert_eq!(texts.len(), 2);
    broker.sent();
    broker.written(lane, &batch, |_| Outcome::Written);
    assert_eq!(broker.sent(), [""; 0]);
    assert_eq!(broker.consumer.in_flight(), 0);
}

#[test]
fn records_of_a_topic_stay_in_one_lane() {
    let mut broker = Broker::writing(|settings| {
        settings.connections = 4;
        settings.batch_max = 100;
    });
    for number in 1..40 {
        broker.publish(&format!("a/{}", number % 5), &format!("{{\"v\":{number}}}"), &[]);
    }
    let mut seen = 0;
    let mut lanes = 0;
    while let Some((_, batch, texts)) = broker.batch() {
        lanes += 1;
        seen += batch.items.len();
        for topic in 0..5 {
            let of_topic: Vec<u32> =
                texts.iter().map(|it| it.parse().expect("a number")).filter(|it| it % 5 == topic).collect();
            assert!(of_topic.is_empty() || of_topic.len() >= 7, "{texts:?}");
            assert!(of_topic.is_sorted());
        }
    }
    assert_eq!(seen, 39);
    assert!(lanes > 1);
}

#[test]
fn a_record_that_failed_is_written_again_with_later_ones_and_given_up_in_the_end() {
    let mut broker = Broker::writing(|settings| settings.dead_letter = "dead/${reason}".into());
    broker.publish("a", "{\"v\":1}", &[]);
    broker.publish("a", "{\"v\":2}", &[]);
    broker.sent();
    let (lane, batch, _) = broker.batch().expect("records");
    let result = |item: &Item, outcome| Written { sequence: item.sequence, bytes: 1, outcome };
    let done = vec![result(&batch.items[1], Outcome::Written)];
    broker.consumer.written(lane, batch.epoch, done, None);
    assert!(!broker.consumer.is_idle(), "the writer pauses");
    broker.publish("a", "{\"v\":3}", &[]);
    assert!(broker.batch().is_none());
    let mut failed = batch.items[0].clone();
    failed.failures = failed.failures.with(1);
    broker.consumer.written(lane, batch.epoch, Vec::new(), Some(vec![failed]));
    let (lane, batch, texts) = broker.batch().expect("records");
    assert_eq!(texts, ["1", "3"]);
    assert_eq!(broker.sent(), [""; 0], "the first message is not complete");
    broker.written(lane, &batch, |at| match at {
        0 => Outcome::GivenUp("HTTP status 500".into()),
        _ => Outcome::Written,
    });
    let sent = broker.sent();
    assert!(sent.len() == 1 && sent[0].starts_with("PUBLISH dead/failed"), "{sent:?}");
    broker.acknowledge(1, ReasonCode::Success);
    assert_eq!(broker.sent(), ["PUBACK 1", "PUBACK 2", "PUBACK 3"]);
    assert_eq!((broker.consumer.counters().given_up, broker.consumer.counters().dead_letters), (1, 1));
}

#[test]
fn after_a_stop_no_batch_starts() {
    let mut broker = Broker::writing(|_| {});
    broker.publish("a", "{\"v\":1}", &[]);
    broker.consumer.stop();
    assert!(broker.batch().is_none());
    assert_eq!(broker.consumer.timeout(), None);
    assert!(broker.consumer.is_idle());
}

/// Whatever its session gets, from an earlier action of the same name or by a mistake elsewhere.
#[test]
fn an_action_of_a_tenant_handles_messages_and_events_of_the_tenant_only() {
    let mut broker = Broker::writing(|settings| {
        settings.tenant = "acme".into();
        settings.rule = "SELECT topic AS v FROM \"#\", \"$events/client/connected\"".into();
        settings.batch_max = 10;
        settings.fallback = "other".into();
        settings.dead_letter = "dead/${topic}".into();
    });
    let event = "$action/$events/client/connected/";
    let subscribed = format!("SUBSCRIBE $action/test/# acme/# {event} {event}acme/");
    assert_eq!(broker.sent(), [&*subscribed, "UNSUBSCRIBE old/#"]);
    for topic in [
        "acme/a",
        "b/a",
        "acme",
        "a",
        "acme/$events/client/connected",
        "$events/client/connected",
        "acme/$SYS/x",
        "$action/$events/client/connected/b/",
        "$action/test/b/a",
        "$action/test/acme/passed/on",
    ] {
        broker.publish(topic, "{}", &[]);
    }
    let of_event = |broker: &mut Broker, mountpoint: &str| {
        let payload = format!("{{\"mountpoint\":\"{mountpoint}\",\"topic\":\"acme/t\"}}");
        broker.publish("$action/$events/client/connected/acme/", &payload, &[]);
    };
    of_event(&mut broker, "acme/");
    let (_, _, texts) = broker.batch().expect("records");
    assert_eq!(texts.len(), 3, "{texts:?}");
    assert!(texts[0].contains("\"a\"") && texts[1].contains("passed/on"), "{texts:?}");
    assert_eq!(broker.consumer.counters().not_selected, 8);
    broker.sent();
    of_event(&mut broker, "b/");
    let sent = broker.sent();
    assert_eq!(sent.len(), 2, "{sent:?}");
    assert!(sent[0].starts_with("PUBLISH acme/dead/$events/client/connected "), "{sent:?}");
    assert!(sent[1].starts_with(&format!("PUBLISH $action/other/{event}acme/ ")), "{sent:?}");
}
