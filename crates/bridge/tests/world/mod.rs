//! A simulated world: a relay between two model brokers, over connections that fail.

mod broker;
mod interest;
mod oracle;
mod plan;
mod report;

use std::time::Duration;

use bridge::{ConnectionId, Dropped, Existing, Input, Output, Relay, Settings, Side, Sides, State, Time};
use mqtt::ReasonCode;
use random::Random;

use broker::{Broker, Message};
use interest::WantedFilters;
use oracle::Oracle;
use plan::{Faults, Plan, QOS};
pub use report::Report;

/// A transport connection between the relay and a broker.
struct Pipe {
    id: ConnectionId,
    is_open: bool,
    to_broker: Vec<u8>,
    to_relay: Vec<u8>,
    /// The connection has ended. The relay does not know it yet.
    is_cut: bool,
}

struct World {
    random: Random,
    now: Time,
    relay: Relay,
    settings: Settings,
    brokers: Sides<Broker>,
    /// The remote broker at the other address, if that is another one.
    standby: Option<Broker>,
    /// Address of the remote broker in `brokers`.
    address: String,
    pipes: Sides<Option<Pipe>>,
    /// Steps for which a broker does not read.
    stalled: Sides<usize>,
    oracle: Oracle,
    faults: Faults,
    /// A session was lost, and the relay has not released its identifiers. When the process ends now, that is
    /// forgotten. The value is the side and its connection then.
    recovering: Option<(Side, Option<ConnectionId>)>,
    next_number: u32,
    incarnations: u64,
    /// Filters that the owner of the relay wants, if they change.
    wanted_filters: Option<WantedFilters>,
}

/// Maximum number of bytes on the way in each direction of a connection, with faults and without.
const PIPE_MAX: [usize; 2] = [300, 4_000];

/// Size in bytes of a message that brokers with a limit do not accept, and of one that the bridge does not accept.
const LARGE: [usize; 2] = [900, 1_200];

/// Runs one world and checks it.
pub fn run(seed: u64, report: &mut Report) {
    let mut world = World::new(seed, report);
    world.start();
    for _ in 0..300 + world.random.below(700) {
        world.step(report);
        world.relay.check_invariants();
        world.check_bounds();
    }
    world.calm(report);
    if world.standby.is_some() {
        world.cut(Side::Remote, report);
        world.calm(report);
    }
    world.check_subscriptions(report);
    world.oracle.check(&world.brokers, report);
    world.finish(report);
}

impl World {
    fn new(seed: u64, report: &mut Report) -> Self {
        let mut random = Random::new(seed);
        let Plan { settings, local, remote, is_separate, faults } = Plan::draw(&mut random, report);
        let relay = Relay::new(settings.clone(), "own", Existing::default(), seed).expect("valid settings");
        let wanted_filters = settings.interest.is_some().then(WantedFilters::default);
        let mut local = Broker::new("local", local);
        local.origin = wanted_filters.is_some().then_some("far");
        let unlisted = *random.pick(&[0, 5, 50]);
        let with_list = |name, caps| {
            let mut broker = Broker::new(name, caps);
            broker.unlisted = unlisted;
            broker
        };
        Self {
            wanted_filters,
            oracle: Oracle::new(&settings),
            standby: is_separate.then(|| with_list("remote-2", remote.clone())),
            address: "remote-1".into(),
            brokers: Sides { local, remote: with_list("remote-1", remote) },
            random,
            now: Time(1),
            relay,
            settings,
            pipes: Sides::default(),
            stalled: Sides::default(),
            faults,
            recovering: None,
            next_number: 0,
            incarnations: 1,
        }
    }

    fn start(&mut self) {
        self.handle(Input::Start);
    }

    fn handle(&mut self, input: Input<'_>) {
        self.relay.handle(self.now, input).expect("the settings do not change");
        while let Some(output) = self.relay.poll_output() {
            match output {
                Output::Open { connection, address } => {
                    assert_eq!(address.is_some(), connection.side == Side::Remote);
                    if let Some(address) = address {
                        self.change_address(address);
                    }
                    let pipe = Pipe {
                        id: connection,
                        is_open: false,
                        to_broker: Vec::new(),
                        to_relay: Vec::new(),
                        is_cut: false,
                    };
                    assert!(self.pipes.of_mut(connection.side).replace(pipe).is_none(), "two connections");
                }
                Output::Close { connection, rest } => {
                    let pipe = self.pipes.of_mut(connection.side).take();
                    if let Some(mut pipe) =
                        pipe.filter(|pipe| pipe.id == connection && pipe.is_open && !pipe.is_cut)
                    {
                        pipe.to_broker.extend(rest);
                        // The end may come before the last bytes.
                        if self.random.percent(20) {
                            pipe.to_broker.truncate(self.random.below(pipe.to_broker.len() + 1));
                        }
                        let mut report = Report::default();
                        let broker = self.brokers.of_mut(connection.side);
                        broker.receive(&mut self.random, &mut report, &pipe.to_broker);
                        broker.close();
                    }
                }
                Output::StateChanged => {}
            }
        }
        if let State::Connected { .. } = self.relay.state()
            && Side::ALL.iter().all(|side| self.relay.wants_read(*side))
        {
            self.recovering.take_if(|(side, before)| self.relay.connection(*side) != *before);
        }
    }

    /// Exchanges the remote brokers when the relay connects to the other one.
    fn change_address(&mut self, address: String) {
        if let Some(standby) = self.standby.as_mut().filter(|_| self.address != address) {
            let remote = &mut self.brokers.remote;
            self.oracle.may_be_duplicated(&remote.incomplete());
            self.oracle.may_be_duplicated(&standby.incomplete());
            self.oracle.may_be_duplicated(&self.brokers.local.incomplete());
            remote.close();
            std::mem::swap(remote, standby);
            // The messages that the bridge has published are in one list, in their order.
            standby.accepted.append(&mut remote.accepted);
            std::mem::swap(&mut remote.accepted, &mut standby.accepted);
            standby.refused.append(&mut remote.refused);
            std::mem::swap(&mut remote.refused, &mut standby.refused);
        }
        self.address = address;
    }

    fn step(&mut self, report: &mut Report) {
        let side = if self.random.percent(50) { Side::Local } else { Side::Remote };
        if self.random.below(1000) < self.faults.rate {
            self.fault(side, report);
        }
        if self.random.percent(6) {
            self.change_interest(report);
        }
        if self.random.percent(25) {
            self.check_settled();
        }
        match self.random.below(100) {
            0..12 => self.publish(side),
            12..60 => self.transfer(side, report, false),
            60..85 => {
                if *self.stalled.of(side) == 0 {
                    self.brokers.of_mut(side).work(&mut self.random, report, false);
                }
            }
            85..93 => {
                self.pass_time();
                self.start_again(report);
            }
            _ => self.open(side, report, false),
        }
        for side in Side::ALL {
            let stalled = self.stalled.of_mut(side);
            *stalled = stalled.saturating_sub(1);
        }
    }

    fn fault(&mut self, side: Side, report: &mut Report) {
        match self.random.below(12) {
            0..4 if self.faults.cuts => self.cut(side, report),
            4..6 if self.faults.kills && self.recovering.is_none() => self.kill(report),
            6 if self.faults.remote_sessions && self.can_lose(Side::Remote) => {
                self.lose_session(Side::Remote, report)
            }
            7 if self.faults.local_sessions && self.can_lose(Side::Local) => {
                self.lose_session(Side::Local, report)
            }
            8 if self.faults.operator && self.random.percent(50) => {
                report.add("gentle stop");
                let within = Duration::from_millis(self.random.below(3000) as u64);
                self.handle(Input::Stop { within });
            }
            8 if self.faults.operator => {
                report.add("new settings");
                self.settings.in_flight = 1 + self.random.below(12) as u16;
                self.handle(Input::Configure(Box::new(self.settings.clone())));
            }
            9 if self.wanted_filters.is_some() && self.random.percent(50) => {
                report.add("another export");
                let remote = &mut self.brokers.remote;
                remote.exports_many = !remote.exports_many;
                self.cut(Side::Remote, report);
            }
            10..12 if self.faults.refusals => {
                let broker = self.brokers.of_mut(side);
                broker.refuses = match broker.refuses {
                    None => {
                        Some(*self.random.pick(&[ReasonCode::QuotaExceeded, ReasonCode::UnspecifiedError]))
                    }
                    Some(_) => None,
                };
            }
            _ if self.faults.stalls => {
                *self.stalled.of_mut(side) = self.random.below(60);
                report.add("slow reader");
            }
            _ => {}
        }
    }

    fn publish(&mut self, side: Side) {
        let number = self.next_number;
        self.next_number += 1;
        let qos = *self.random.pick(&QOS);
        let name = *self.random.pick(&["a", "b", "refused"]);
        let name = match (&self.wanted_filters, side) {
            (Some(_), Side::Remote) => *self.random.pick(&["a", "b", "refused", "mine", "theirs", "far"]),
            _ => name,
        };
        let topic = match (side, self.random.percent(25)) {
            (Side::Local, true) => format!("both/{name}/x"),
            (Side::Remote, true) => format!("x/{name}/both"),
            (Side::Local, false) => format!("out/{name}"),
            (Side::Remote, false) => format!("in/{name}"),
        };
        let padding = if self.random.percent(5) { *self.random.pick(&LARGE) } else { self.random.below(60) };
        let message = Message { topic, qos, number, padding };
        if self.brokers.of_mut(side).publish(message.clone()) {
            let origin = self.brokers.of(side).name;
            self.oracle.published(side, origin, &message, &self.brokers.of(side.other()).caps);
        }
    }

    /// Moves some bytes in both directions of a connection.
    fn transfer(&mut self, side: Side, report: &mut Report, is_calm: bool) {
        let is_stalled = *self.stalled.of(side) > 0;
        let (pipes, brokers, random) = (&mut self.pipes, &mut self.brokers, &mut self.random);
        let Some(pipe) = pipes.of_mut(side).as_mut().filter(|pipe| pipe.is_open) else { return };
        let broker = brokers.of_mut(side);
        let id = pipe.id;
        let pipe_max = PIPE_MAX[usize::from(is_calm)];
        let mut some = |count: usize| if is_calm { count } else { random.below(count + 1) };
        // From the relay to the connection and to the broker.
        let outgoing = self.relay.outgoing(side);
        let count = some(outgoing.len().min(pipe_max.saturating_sub(pipe.to_broker.len())));
        pipe.to_broker.extend_from_slice(&outgoing[..count]);
        let read = if is_stalled { 0 } else { some(pipe.to_broker.len()) };
        let to_broker: Vec<u8> = pipe.to_broker.drain(..read).collect();
        // From the broker to the connection and to the relay.
        let written = some(broker.unsent.len().min(pipe_max.saturating_sub(pipe.to_relay.len())));
        if !pipe.is_cut {
            pipe.to_relay.extend(broker.unsent.drain(..written));
            broker.receive(&mut self.random, report, &to_broker);
        }
        self.handle(Input::Sent(id, count));
        if !self.relay.wants_read(side) {
            report.add("reading paused");
            return;
        }
        let Some(pipe) = self.pipes.of_mut(side).as_mut().filter(|pipe| pipe.id == id) else { return };
        let read = if is_calm { pipe.to_relay.len() } else { self.random.below(pipe.to_relay.len() + 1) };
        let to_relay: Vec<u8> = pipe.to_relay.drain(..read).collect();
        if !to_relay.is_empty() {
            self.handle(Input::Received(id, &to_relay));
        }
        // A broker closes after a DISCONNECT or a refusal, and the relay reads what came before.
        if let Some(pipe) = self.pipes.of_mut(side).as_mut().filter(|pipe| pipe.id == id)
            && (pipe.is_cut || !self.brokers.of(side).is_open())
            && pipe.to_relay.is_empty()
        {
            self.pipes.of_mut(side).take();
            self.brokers.of_mut(side).close();
            self.handle(Input::Closed(id, "reset".into()));
        }
    }

    fn open(&mut self, side: Side, report: &mut Report, is_calm: bool) {
        let Some(pipe) = self.pipes.of_mut(side).as_mut().filter(|pipe| !pipe.is_open) else { return };
        let id = pipe.id;
        if !is_calm && self.faults.cuts && self.random.percent(10) {
            report.add("connection not opened");
            self.pipes.of_mut(side).take();
            return self.handle(Input::Failed(id, "unreachable".into()));
        }
        pipe.is_open = true;
        self.brokers.of_mut(side).open();
        self.handle(Input::Opened(id));
    }

    fn pass_time(&mut self) {
        self.now = self.now.after(Duration::from_millis(self.random.below(600) as u64));
        if self.relay.poll_timeout().is_some_and(|due| due <= self.now) {
            self.handle(Input::Timeout);
        }
    }

    /// Starts a bridge that was stopped.
    fn start_again(&mut self, report: &mut Report) {
        if let State::Stopped { reason } = self.relay.state() {
            report.add(if reason == "by request" { "stopped" } else { "stopped with messages in flight" });
            self.continue_interest(report);
            self.start();
        }
    }

    /// Ends a connection at any byte. The relay reads what has arrived, later.
    fn cut(&mut self, side: Side, report: &mut Report) {
        if let Some(pipe) = self.pipes.of_mut(side).as_mut().filter(|pipe| pipe.is_open && !pipe.is_cut) {
            report.add(if side == Side::Local { "local connection cut" } else { "remote connection cut" });
            pipe.is_cut = true;
            let arrives = self.random.below(pipe.to_broker.len() + 1);
            pipe.to_relay.truncate(self.random.below(pipe.to_relay.len() + 1));
            let broker = self.brokers.of_mut(side);
            broker.receive(&mut self.random, report, &pipe.to_broker[..arrives]);
            broker.close();
        }
    }

    /// Ends the process of the relay and starts another.
    fn kill(&mut self, report: &mut Report) {
        report.add("process ended");
        for side in Side::ALL {
            self.cut(side, report);
            self.brokers.of_mut(side).close();
        }
        self.pipes = Sides::default();
        self.incarnations += 1;
        let address = self.relay.last_address().map(str::to_owned);
        let existing = Existing { address, ..Existing::default() };
        self.relay =
            Relay::new(self.settings.clone(), "own", existing, self.incarnations).expect("valid settings");
        self.repeat_interest(report);
        self.start();
    }

    fn lose_session(&mut self, side: Side, report: &mut Report) {
        report.add(if side == Side::Local { "local session lost" } else { "remote session lost" });
        // What the other broker had sent to this one, and what was complete is not known any more.
        self.oracle.may_be_duplicated(&self.brokers.of(side.other()).incomplete());
        let lost = self.brokers.of_mut(side).lose_session();
        self.oracle.may_be_lost(&lost);
        if let Some(pipe) = self.pipes.of_mut(side).as_mut() {
            pipe.is_cut |= pipe.is_open;
            // What was on the way to the relay still arrives.
        }
        self.recovering = Some((side, self.relay.connection(side)));
    }

    /// Returns whether the loss of another session can be distinguished from an earlier one.
    fn can_lose(&self, side: Side) -> bool {
        self.recovering.is_none_or(|(before, _)| before == side)
    }

    /// Runs without faults until nothing moves.
    fn calm(&mut self, report: &mut Report) {
        self.stalled = Sides::default();
        self.brokers.remote.unlisted = 0;
        let brokers =
            [&mut self.brokers.local, &mut self.brokers.remote].into_iter().chain(&mut self.standby);
        brokers.for_each(|broker| broker.refuses = None);
        self.complete_interest();
        for round in 0.. {
            assert!(
                round < 20_000,
                "it does not complete: {}, {:?}\n{}\n{}",
                self.relay.state(),
                self.relay.counters(),
                self.brokers.local.summary(),
                self.brokers.remote.summary()
            );
            for side in Side::ALL {
                self.open(side, report, true);
                self.transfer(side, report, true);
                self.brokers.of_mut(side).work(&mut self.random, report, true);
            }
            self.check_bounds();
            self.now = self.now.after(Duration::from_millis(10));
            if self.relay.poll_timeout().is_some_and(|due| due <= self.now) {
                self.handle(Input::Timeout);
            }
            self.start_again(report);
            let is_connected = matches!(self.relay.state(), State::Connected { .. });
            let is_quiet = Side::ALL.iter().all(|side| {
                self.brokers.of(*side).is_quiet()
                    && self.relay.outgoing(*side).is_empty()
                    && self
                        .pipes
                        .of(*side)
                        .as_ref()
                        .is_none_or(|pipe| pipe.to_broker.is_empty() && pipe.to_relay.is_empty())
            });
            if is_connected && is_quiet && (self.wanted_filters.is_none() || self.relay.is_settled()) {
                break;
            }
        }
        assert_eq!((self.relay.in_flight(Side::Local), self.relay.in_flight(Side::Remote)), (0, 0));
        for side in Side::ALL {
            assert_eq!(self.brokers.of(side).state.as_deref(), Some("1"), "{side:?}");
        }
    }

    /// Stops the bridge gently.
    fn finish(&mut self, report: &mut Report) {
        self.handle(Input::Stop { within: Duration::from_secs(5) });
        assert!(matches!(self.relay.state(), State::Stopped { .. }), "{}", self.relay.state());
        let counters = self.relay.counters();
        let has_refused = counters.postponed.local > 0;
        assert!(counters.held.local == 0 || has_refused, "this broker keeps to the Receive Maximum");
        report
            .add_many("refused for now by the remote broker, as the relay saw it", counters.postponed.local);
        report.add_many("refused for now by this broker, as the relay saw it", counters.postponed.remote);
        report.add_many("held messages", counters.held.remote);
        report.add_many("identifiers released at both brokers", counters.resets);
        report.add_many("restarts because of too many messages in flight", counters.restarts);
        report.add_many("released identifiers", counters.released);
        report.add_many("sessions lost, as the relay saw it", counters.remote_sessions_lost);
        for from in Side::ALL {
            let refused: u64 = counters.refused.of(from).values().sum();
            report.add_many("refused, as the relay saw it", refused);
        }
        report.add_many("too large for the broker", counters.dropped(Side::Local, Dropped::TooLarge));
        report.add_many("too large for the bridge", counters.dropped(Side::Remote, Dropped::TooLarge));
        assert_eq!(counters.unexpected_acks, 0);
        report.add_many("stale filters", counters.stale_filters);
        report.add_many("lists unanswered, as the relay saw it", counters.lists_unanswered);
        report.add_many("messages of this cluster", counters.dropped(Side::Remote, Dropped::OwnOrigin));
        report.add_many("messages of a third cluster", counters.dropped(Side::Remote, Dropped::OtherOrigin));
        assert_eq!(counters.lists_invalid, 0);
    }

    fn check_bounds(&self) {
        for side in Side::ALL {
            // One packet, and an acknowledgement for each identifier of this run, may exceed the bound.
            let bound = self.settings.outgoing_max + 2_000;
            assert!(
                self.relay.outgoing(side).len() <= bound,
                "{} bytes wait",
                self.relay.outgoing(side).len()
            );
            assert!(self.relay.unread(side) <= PIPE_MAX[1] + 1_000);
        }
    }
}
