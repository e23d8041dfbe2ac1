//! Health of a relay: progress and the lack of it.

use std::time::Duration;

use bridge::{Relay, Side, Start, State, Time};

/// Time without progress after which a relay counts as failing.
const FAILING: Duration = Duration::from_secs(30);
/// Duration of a connection after which the absence of messages is no sign of a failure: those that wait arrive sooner.
const QUIET: Duration = Duration::from_secs(2);

/// Health of a relay. A connection alone is no progress: a broker may accept it, and close it at a message each time.
#[derive(Debug, Default)]
pub struct Health {
    /// Time since which the relay is to run and makes no progress.
    missing_since: Option<Time>,
}

/// Facts about a relay at one moment.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    now: Time,
    phase: Phase,
    /// Time since which messages are in flight, and none was acknowledged.
    stalled_since: Option<Time>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// The relay needs no connection.
    Rests,
    /// The connection has shown to be good.
    Works,
    /// The connection may be good.
    Connected,
    /// A connection is needed, and there is none.
    Missing,
}

impl Look {
    pub fn at(now: Time, relay: &Relay) -> Self {
        let settings = relay.settings();
        let phase = match relay.state() {
            State::Idle => Phase::Rests,
            // Such a relay ends with its connection.
            State::Stopped { .. } if settings.start == Start::Once => Phase::Rests,
            State::Connected { since, .. } => {
                let age = now.since(since);
                let is_good =
                    |from: &Side| relay.has_progress(*from) || relay.in_flight(*from) == 0 && age >= QUIET;
                match age >= settings.backoff.stable || Side::ALL.iter().all(is_good) {
                    true => Phase::Works,
                    false => Phase::Connected,
                }
            }
            _ => Phase::Missing,
        };
        Self { now, phase, stalled_since: relay.stalled_since() }
    }
}

impl Health {
    /// Notes that the relay is to run.
    pub fn start(&mut self, now: Time) {
        self.missing_since = Some(now);
    }

    /// Notes that the relay is to stop.
    pub fn stop(&mut self) {
        self.missing_since = None;
    }

    /// Looks at the relay. Returns whether it is failing.
    pub fn look(&mut self, look: Look, is_wanted: bool) -> bool {
        match look.phase {
            Phase::Rests | Phase::Works => self.missing_since = None,
            Phase::Missing if is_wanted => {
                self.missing_since.get_or_insert(look.now);
            }
            Phase::Connected | Phase::Missing => {}
        }
        let began = [self.missing_since, look.stalled_since.filter(|_| is_wanted)];
        began.into_iter().flatten().any(|since| look.now.since(since) >= FAILING)
    }
}

#[cfg(test)]
mod tests {
    use bridge::{ConnectionId, Direction, Existing, Input, Output, Settings, Topic};
    use mqtt::{
        Ack, ConnAck, Packet, PacketId, Properties, Publish, QoS, ReasonCode, SubAck, Version, decode, frame,
    };

    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    /// A relay whose brokers accept each connection and answer subscriptions.
    struct Bench {
        relay: Relay,
        health: Health,
        now: Time,
        connections: [Option<ConnectionId>; 2],
        is_failing: bool,
    }

    impl Bench {
        fn started() -> Self {
            let mut settings = Settings::new("b", "remote");
            settings.topics = vec![Topic::new("a/#", Direction::Both, QoS::AtLeastOnce)];
            settings.keep_alive = 0;
            let relay = Relay::new(settings, "own", Existing::default(), 1).expect("valid settings");
            let (health, connections) = (Health::default(), [None; 2]);
            let mut bench = Self { relay, health, now: Time(0), connections, is_failing: false };
            bench.health.start(bench.now);
            bench.handle(Input::Start);
            bench
        }

        fn handle(&mut self, input: Input<'_>) {
            self.relay.handle(self.now, input).expect("valid settings");
            while let Some(output) = self.relay.poll_output() {
                let Output::Open { connection, .. } = output else { continue };
                self.connections[connection.side as usize] = Some(connection);
                self.relay.handle(self.now, Input::Opened(connection)).expect("valid settings");
                let (reason, properties) = (ReasonCode::Success, Properties::EMPTY);
                self.receive(
                    connection.side,
                    Packet::ConnAck(ConnAck { session_present: true, reason, properties }),
                );
            }
            for side in Side::ALL {
                let bytes = self.relay.outgoing(side).to_vec();
                let Some(connection) = self.relay.connection(side).filter(|_| !bytes.is_empty()) else {
                    continue;
                };
                self.relay.handle(self.now, Input::Sent(connection, bytes.len())).expect("valid settings");
                let mut rest = &bytes[..];
                while let Some(length) = frame(rest, u32::MAX).expect("valid packets") {
                    let (packet, tail) = rest.split_at(length);
                    rest = tail;
                    if let Packet::Subscribe(it) = decode(Version::V5, packet).expect("valid packets") {
                        let reasons = vec![0; it.filters.len()];
                        let (packet_id, properties) = (it.packet_id, Properties::EMPTY);
                        self.receive(
                            side,
                            Packet::SubAck(SubAck { packet_id, properties, reasons: &reasons }),
                        );
                    }
                }
            }
        }

        fn receive(&mut self, side: Side, packet: Packet<'_>) {
            let mut bytes = Vec::new();
            assert!(packet.encode(Version::V5, &mut bytes));
            let connection = self.connections[side as usize].expect("a connection");
            self.handle(Input::Received(connection, &bytes));
        }

        fn publish(&mut self, from: Side, id: u16) {
            self.receive(
                from,
                Packet::Publish(Publish {
                    dup: false,
                    qos: QoS::AtLeastOnce,
                    retain: false,
                    topic: "a/b",
                    packet_id: PacketId::new(id),
                    properties: Properties::EMPTY,
                    payload: b"x",
                }),
            );
        }

        fn acknowledge(&mut self, side: Side, id: u16) {
            let packet_id = PacketId::new(id).expect("not 0");
            let (reason, properties) = (ReasonCode::Success, Properties::EMPTY);
            self.receive(side, Packet::PubAck(Ack { packet_id, reason, properties }));
        }

        fn cut(&mut self) {
            let connection = self.connections[Side::Remote as usize].expect("a connection");
            self.handle(Input::Closed(connection, "reset".into()));
        }

        /// Lets time pass, and looks at each second.
        fn pass(&mut self, seconds: u32) {
            for _ in 0..seconds {
                self.now = self.now.after(SECOND);
                if self.relay.poll_timeout().is_some_and(|due| due <= self.now) {
                    self.handle(Input::Timeout);
                }
                self.is_failing = self.health.look(Look::at(self.now, &self.relay), true);
            }
        }
    }

    /// [MQTT3-3.3.5-2]: a broker of 3.1.1 may close at a message that it does not accept.
    #[test]
    fn a_broker_that_closes_at_each_message_makes_a_relay_fail_although_the_other_direction_moves() {
        let mut bench = Bench::started();
        for id in 1..30 {
            bench.pass(1);
            if matches!(bench.relay.state(), State::Connected { .. }) {
                bench.publish(Side::Local, 1);
                bench.publish(Side::Remote, id);
                bench.acknowledge(Side::Local, id);
                assert!(bench.relay.has_progress(Side::Remote));
                bench.pass(1);
                bench.cut();
            }
        }
        assert!(bench.is_failing);
        bench.pass(60);
        assert!(matches!(bench.relay.state(), State::Connected { .. }));
        assert!(!bench.is_failing, "nothing is in flight");
    }

    #[test]
    fn an_acknowledgement_or_a_quiet_connection_is_progress() {
        let mut bench = Bench::started();
        bench.cut();
        bench.pass(1);
        bench.pass(2);
        assert!(bench.health.missing_since.is_none(), "{}", bench.relay.state());
        bench.cut();
        while !matches!(bench.relay.state(), State::Connected { .. }) {
            bench.pass(1);
        }
        bench.publish(Side::Local, 1);
        bench.pass(5);
        assert!(bench.health.missing_since.is_some());
        bench.acknowledge(Side::Remote, 1);
        bench.pass(1);
        assert!(bench.health.missing_since.is_none());
    }

    #[test]
    fn a_broker_that_acknowledges_nothing_makes_a_relay_fail_although_it_stays_connected() {
        let mut bench = Bench::started();
        bench.pass(40);
        assert!(!bench.is_failing);
        bench.publish(Side::Local, 1);
        bench.pass(20);
        bench.publish(Side::Local, 2);
        bench.pass(9);
        assert!(!bench.is_failing);
        bench.pass(1);
        assert!(bench.is_failing);
        bench.acknowledge(Side::Remote, 1);
        bench.pass(29);
        assert!(!bench.is_failing);
        bench.pass(1);
        assert!(bench.is_failing, "the other message has no acknowledgement");
    }

    #[test]
    fn a_relay_that_is_to_stop_does_not_fail() {
        let mut bench = Bench::started();
        bench.publish(Side::Local, 1);
        bench.health.stop();
        bench.now = bench.now.after(SECOND * 100);
        assert!(!bench.health.look(Look::at(bench.now, &bench.relay), false));
    }
}
