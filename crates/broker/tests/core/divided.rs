//! SUBSCRIBE and UNSUBSCRIBE packets with very many filters, which take several turns.

use mqtt::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
use mqtt::ReasonCode::{self, GrantedQoS1, NoSubscriptionExisted, QuotaExceeded, Success};
use mqtt::Version::{V3_1_1, V5};
use mqtt::{RetainHandling, SubscriptionOptions};
use settings::ByteSize;

use crate::net::{Net, Peer, everywhere, everywhere_with};
use crate::store::Kind;
use testkit::packets::*;

/// Number of filters of a piece.
const PIECE: usize = 256;

fn filter(number: usize) -> String {
    format!("f/{number}")
}

fn many(packet_id: u16, filters: std::ops::Range<usize>) -> Subscribing {
    filters.fold(subscribe(packet_id), |all, number| all.to(&filter(number), AtLeastOnce))
}

fn end_of_many(packet_id: u16, filters: std::ops::Range<usize>) -> Sent {
    let filters: Vec<String> = filters.map(filter).collect();
    unsubscribe(packet_id, &filters.iter().map(String::as_str).collect::<Vec<_>>())
}

/// Returns what a client has received after so many turns as very many filters take.
fn later(net: &mut Net, peer: Peer) -> Vec<Sent> {
    net.pass(100);
    net.received(peer)
}

fn divided(net: &Net) -> u64 {
    net.counter(|counters| counters.packets_divided)
}

/// Each filter has its Reason Code in its place [MQTT-3.8.4-6] [MQTT-3.11.3-1], and other clients are served meanwhile.
#[test]
fn other_clients_do_not_wait_for_a_packet_with_very_many_filters() {
    for connecting in [v5("c"), v3("c"), durable(V5, "c"), durable(V3_1_1, "c")] {
        everywhere(|net| {
            let version = connecting.version;
            let client = net.connect(0, connecting.clone());
            let other = net.connect(0, v5("other"));
            net.subscribe(client, &filter(1200), AtMostOnce);
            net.send(client, many(1, 0..1000));
            net.send(other, Sent::PingReq);
            assert_eq!(net.received(client), [], "no turn has handled all filters");
            assert_eq!(net.received(other), [Sent::PingResp]);
            assert_eq!(later(net, client), [Sent::SubAck(1, vec![GrantedQoS1; 1000])]);
            for number in [0, PIECE - 1, PIECE, 999] {
                net.send(other, message(&filter(number), number).qos1(1));
                assert_eq!(net.received(other), [puback(1)]);
                assert_eq!(net.payloads(client), [number.to_string()]);
            }
            net.send(client, end_of_many(2, 600..1201));
            assert_eq!(net.received(client), []);
            let mut reasons = vec![Success; 400];
            reasons.resize(600, NoSubscriptionExisted);
            reasons.push(Success);
            assert_eq!(later(net, client), [unsuback(version, 2, &reasons)]);
            net.publish(other, &filter(600), "gone");
            net.publish(other, &filter(599), "still there");
            assert_eq!(net.payloads(client), ["still there"]);
            assert_eq!(divided(net), 2);
        });
    }
}

/// Packets keep their order, and PINGREQ and acknowledgements do not wait.
#[test]
fn packets_behind_one_with_very_many_filters_wait() {
    for connecting in [v5("c"), durable(V5, "c")] {
        everywhere(|net| {
            let client = net.connect(0, connecting.clone());
            let other = net.connect(1, v5("other"));
            net.subscribe(client, "t", AtLeastOnce);
            net.send(other, message("t", 1).qos1(1));
            net.send_all(
                client,
                [
                    many(1, 0..600).into(),
                    unsubscribe(2, &["f/599"]),
                    message("f/0", "own").qos1(3).into(),
                    Sent::PingReq,
                    many(4, 300..900).into(),
                ],
            );
            let received = net.received(client);
            let [Sent::Publish(delivered), Sent::PingResp] = received.as_slice() else {
                panic!("{received:?}");
            };
            net.send(client, puback(delivered.packet_id.expect("QoS 1")));
            let received = later(net, client);
            let acks = received.iter().filter(|packet| !matches!(packet, Sent::Publish(_)));
            let expected = [
                Sent::SubAck(1, vec![GrantedQoS1; 600]),
                unsuback(V5, 2, &[Success]),
                puback(3),
                Sent::SubAck(4, vec![GrantedQoS1; 600]),
            ];
            let acks: Vec<_> = acks.cloned().collect();
            assert!(expected.iter().all(|ack| acks.contains(ack)) && acks.len() == 4, "{acks:?}");
            assert_eq!(acks[0], expected[0]);
            net.publish(other, "f/599", "again");
            assert_eq!(net.payloads(client), ["again"], "the second SUBSCRIBE came after UNSUBSCRIBE");
        });
    }
}

/// A connection that ends in between leaves nothing. `everywhere` checks that.
#[test]
fn a_connection_may_end_between_two_pieces() {
    for connecting in [v5("c"), durable(V5, "c")] {
        everywhere(|net| {
            let client = net.connect(0, connecting.clone());
            net.send(client, many(1, 0..1000));
            net.lose(client);
            net.pass(100);
            let mut again = connecting.clone();
            again.client_id = "d".into();
            let client = net.connect(1, again);
            net.send(client, many(1, 0..1000));
            net.send(client, goodbye());
            // SUBACK of a durable session waits for the store, and DISCONNECT does not.
            let received = later(net, client);
            assert!(received.ends_with(&[Sent::Closed]) && received.len() <= 2, "{received:?}");
            if connecting.expiry.is_none() {
                assert_eq!(received[0], Sent::SubAck(1, vec![GrantedQoS1; 1000]));
            }
        });
    }
}

/// [MQTT-3.8.3-4], in a piece that is not the first.
#[test]
fn a_protocol_error_in_a_later_piece_closes_the_connection() {
    everywhere(|net| {
        let client = net.connect(0, v5("c"));
        let no_local = SubscriptionOptions { no_local: true, ..SubscriptionOptions::default() };
        net.send(client, many(1, 0..700).with("$share/g/t", no_local).to("t", AtMostOnce));
        assert_eq!(later(net, client), [disconnect(ReasonCode::ProtocolError), Sent::Closed]);
    });
}

/// [MQTT-2.2.1-3]: the Packet Identifier is in use until SUBACK is sent.
#[test]
fn the_packet_identifier_is_in_use_until_the_last_piece_is_stored() {
    everywhere(|net| {
        let client = net.connect(0, durable(V5, "c"));
        net.store.hold(&[Kind::Subscribe]);
        net.send(client, many(1, 0..300));
        net.pass(100);
        net.send(client, subscribe(1).to("t", AtMostOnce));
        assert_eq!(net.received(client), [disconnect(ReasonCode::ProtocolError), Sent::Closed]);
        net.store.hold(&[]);
        net.release_held();
    });
}

/// The pieces that wait for the store are bounded like packets that wait for it.
#[test]
fn pieces_wait_while_the_store_has_too_many() {
    everywhere(|net| {
        let client = net.connect(0, durable(V5, "c"));
        net.store.hold(&[Kind::Subscribe]);
        net.send(client, many(1, 0..70 * PIECE));
        net.pass(200);
        assert_eq!(net.store.held(), 32, "each piece is a request");
        net.lose(client);
        net.store.hold(&[]);
        net.release_held();
        let client = net.resume(1, durable(V5, "c"));
        net.store.hold(&[Kind::Subscribe]);
        net.send(client, many(1, 0..70 * PIECE));
        net.pass(200);
        net.send(client, Sent::PingReq);
        assert_eq!(net.received(client), [Sent::PingResp]);
        net.store.hold(&[]);
        net.release_held();
        assert_eq!(later(net, client), [Sent::SubAck(1, vec![GrantedQoS1; 70 * PIECE])]);
    });
}

/// Limits count the filters of earlier pieces, and the Reason String names the limit.
#[test]
fn limits_apply_to_all_pieces_together() {
    for connecting in [v5("c"), durable(V5, "c")] {
        everywhere_with(
            |settings| {
                settings.session.shared_subscriptions_max = 300;
                settings.session.subscriptions_max = 650;
            },
            |net| {
                let client = net.connect(0, connecting.clone());
                let shared = (0..400)
                    .fold(subscribe(1), |all, number| all.to(&format!("$share/g{number}/t"), AtLeastOnce));
                net.send(client, shared);
                let mut reasons = vec![GrantedQoS1; 300];
                reasons.resize(400, QuotaExceeded);
                assert_eq!(later(net, client), [Sent::SubAck(1, reasons)]);
                net.send(client, many(2, 0..600));
                let received = later(net, client);
                let [Sent::SubAck(2, reasons)] = received.as_slice() else { panic!("{received:?}") };
                assert_eq!(reasons.iter().filter(|reason| **reason == GrantedQoS1).count(), 350);
                assert!(reasons[..350].iter().all(|reason| *reason == GrantedQoS1));
            },
        );
    }
}

/// A packet whose filters just fit into `quota.client_bytes_max` is granted, although its own bytes are held meanwhile.
#[test]
fn filters_that_wait_for_their_turn_do_not_count_more_than_subscriptions() {
    for connecting in [v5("c"), durable(V5, "c")] {
        // 600 filters that count 128 bytes each, and one byte of the Client Identifier.
        for (last_len, granted) in [(63, 600), (64, 599)] {
            everywhere_with(
                |settings| settings.quota.client_bytes_max = ByteSize::kib(75),
                |net| {
                    let client = net.connect(0, connecting.clone());
                    let all = (1..600)
                        .fold(subscribe(1), |all, number| all.to(&format!("{number:064}"), AtLeastOnce));
                    net.send(client, all.to(&"l".repeat(last_len), AtLeastOnce));
                    let mut reasons = vec![GrantedQoS1; granted];
                    reasons.resize(600, QuotaExceeded);
                    assert_eq!(later(net, client), [Sent::SubAck(1, reasons)]);
                },
            );
        }
    }
}

/// [MQTT-3.3.1-9] [MQTT-3.3.1-10]: Retain Handling 1 sends nothing for a filter that the client has, also of an earlier
/// piece.
#[test]
fn retained_messages_of_all_pieces_are_sent() {
    for connecting in [v5("c"), durable(V5, "c")] {
        everywhere(|net| {
            let other = net.connect(1, v5("other"));
            for number in [3, 700] {
                net.send(other, message(&filter(number), number).retain());
            }
            let client = net.connect(0, connecting.clone());
            let if_new =
                |all: Subscribing, number| all.retain_handling(&filter(number), RetainHandling::SendIfNew);
            net.send(client, (0..800).chain([3]).fold(subscribe(1), if_new));
            net.pass(500);
            let received = net.received(client).into_iter();
            let mut payloads: Vec<_> = received
                .filter_map(
                    |packet| if let Sent::Publish(message) = packet { Some(message.payload) } else { None },
                )
                .collect();
            payloads.sort();
            assert_eq!(payloads, ["3", "700"]);
        });
    }
}

/// Small packets in one segment are bounded together.
#[test]
fn filters_of_small_packets_count_together() {
    everywhere(|net| {
        let client = net.connect(0, v5("c"));
        let packets = (0..20).map(|packet| many(packet + 1, 0..100).into());
        let pauses = net.counter(|counters| counters.fan_out_pauses);
        net.send_all(client, packets);
        assert_eq!(net.received(client).len(), 3, "packets with 300 filters");
        assert_eq!(net.counter(|counters| counters.fan_out_pauses), pauses + 1);
        assert_eq!(later(net, client).len(), 17);
        assert_eq!(divided(net), 0);
        net.send(client, many(1, 0..PIECE).to("one more", ExactlyOnce));
        assert_eq!(divided(net), 1);
        later(net, client);
    });
}
