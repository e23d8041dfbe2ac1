//! The state machine of a bridge.

mod interface;
mod memory;
mod phases;
mod wire;

use std::collections::VecDeque;

use mqtt::{Packet, PacketId, QoS, ReasonCode};
use random::Random;

use crate::client::{CloseReason, Event};
use crate::counters::{Counters, Dropped};
use crate::flow::Flow;
use crate::interest::{Interest, Request};
use crate::message::Translator;
use crate::settings::{Settings, SettingsError, Start};
use crate::side::{Side, Sides};
use crate::time::Time;
pub use interface::{ConnectionId, Input, Output, State};
use memory::Memory;
use wire::Wire;

/// A bridge: a relay between a durable session at this broker and a session at the remote broker.
///
/// 1. It registers its subscriptions at this broker and disconnects. From then on the local session queues messages.
/// 2. It connects to the remote broker. While that fails, the queue of the local session grows.
/// 3. It connects to this broker, and accepts no more messages in flight than the remote broker does.
/// 4. It passes on messages and acknowledgements, with the same Packet Identifiers on both sides.
///
/// When one connection ends, it closes the other one too. Both sessions then send again what is not complete.
///
/// **Invariant:** a message needs no state here. A new relay continues where an earlier one with the same sessions
/// ended.
#[derive(Debug)]
pub struct Relay {
    settings: Settings,
    own_id: String,
    random: Random,
    phase: Phase,
    wires: Sides<Option<Wire>>,
    flow: Flow,
    outputs: VecDeque<Output>,
    connections: u64,
    /// True when the local session has the present subscriptions.
    is_primed: bool,
    /// Filters of earlier settings, whose subscriptions must end.
    stale: Sides<Vec<String>>,
    memory: Memory,
    /// Index of the present address.
    address: usize,
    /// Number of attempts that failed since the last stable connection.
    failures: u32,
    /// Number of times in a row that it has connected again because messages were ignored, without a stable connection
    /// in between.
    restarts: u32,
    /// True to set the bridge bit in the next CONNECT.
    is_private: bool,
    will: WillForm,
    /// Message at which the remote broker has closed the connection, and how often in a row.
    suspect: Option<(PacketId, u8)>,
    /// True when the sessions were seen before.
    known: Sides<bool>,
    /// Address of the last connection to the remote broker.
    last_address: Option<String>,
    /// True when the remote broker was connected before.
    was_connected: bool,
    /// Receive Maximum of this broker, as it was announced last.
    local_receive_maximum: u16,
    queued: u64,
    /// Number of identifiers that were to be released, and the time at which it changed.
    sweep_progress: (usize, Time),
    /// Number of acknowledgements of the messages from each side, and the time at which it changed. `None` while no
    /// message is in flight.
    stalls: Sides<Option<(u64, Time)>>,
    /// Time of the last message or acknowledgement.
    last_traffic: Time,
    last_error: Option<String>,
    /// Subscription that this broker has refused while they were registered.
    refused: Option<String>,
    /// Subscriptions at the remote broker, if they change.
    interest: Option<Interest>,
    /// Name of the state that the sessions of the remote cluster continue, as it was seen last.
    history: Option<String>,
    /// Time of the last restore of the remote cluster that was counted.
    restore_counted: Option<Time>,
    /// Name of what the remote cluster exports, as it was seen last.
    export: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Phase {
    New,
    Priming,
    Idle,
    Connecting,
    /// The remote broker is connected, and the local connection is not.
    Attaching,
    Running {
        since: Time,
    },
    Draining {
        until: Time,
    },
    Waiting {
        until: Time,
        reason: String,
    },
    Stopped {
        reason: String,
    },
}

/// Form of the Will that the remote broker accepts.
#[derive(Clone, Copy, Debug)]
struct WillForm {
    qos: QoS,
    retain: bool,
}

/// Subscriptions that exist before a relay starts, from earlier settings or an earlier process.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Existing {
    /// Filters of the subscriptions. Those that the settings do not have are ended.
    pub filters: Sides<Vec<String>>,
    /// Address of the last connection of an earlier process to the remote broker.
    pub address: Option<String>,
}

/// Effect of one packet on the relay.
enum Effect {
    None,
    Connected,
    Closed(CloseReason),
    /// A broker has refused a message for a reason that may pass.
    Refused(Side, ReasonCode),
}

/// Number of bytes of acknowledgements that may wait for a broker beyond the bound: one for each Packet Identifier.
const ACKS_MAX: usize = 65_535 * 5;

impl Relay {
    /// Creates a bridge. `own_id` identifies this broker or its cluster in the list of hops. `seed` is random.
    ///
    /// # Errors
    /// A setting that is not valid.
    pub fn new(
        settings: Settings,
        own_id: &str,
        mut existing: Existing,
        seed: u64,
    ) -> Result<Self, SettingsError> {
        let map = settings.check()?;
        let mut memory = Memory::new(settings.memory.clone());
        let stored = memory.restore(&mut existing.filters.local);
        existing.filters.remote.extend(stored);
        let translator = Translator::new(&settings, map, own_id);
        let flow = Flow::new(translator, settings.outgoing_max);
        let mut relay = Self {
            own_id: own_id.to_owned(),
            random: Random::new(seed),
            phase: Phase::New,
            wires: Sides::default(),
            flow,
            outputs: VecDeque::new(),
            connections: 0,
            is_primed: false,
            stale: Sides::default(),
            memory,
            address: 0,
            failures: 0,
            restarts: 0,
            is_private: settings.has_bridge_bit(),
            will: WillForm::PREFERRED,
            suspect: None,
            known: Sides { local: false, remote: existing.address.is_some() },
            last_address: existing.address,
            was_connected: false,
            local_receive_maximum: u16::MAX,
            queued: 0,
            sweep_progress: (0, Time::default()),
            stalls: Sides::default(),
            last_traffic: Time::default(),
            last_error: None,
            refused: None,
            interest: settings.interest.clone().map(Interest::new),
            history: settings.interest.as_ref().and_then(|interest| interest.history.clone()),
            restore_counted: None,
            export: None,
            settings,
        };
        for side in Side::ALL {
            relay.add_stale(side, existing.filters.of(side).iter());
        }
        Ok(relay)
    }

    /// Continues with the counters of an earlier relay.
    #[must_use]
    pub fn with_counters(mut self, counters: Counters) -> Self {
        self.flow.counters = counters;
        self
    }

    /// Continues with the filters that an earlier relay wanted at the remote broker. What its session has there is not
    /// known any more.
    #[must_use]
    pub fn with_interest_of(mut self, earlier: &Self) -> Self {
        if let (Some(interest), Some(earlier)) = (&mut self.interest, &earlier.interest) {
            interest.continue_from(earlier);
        }
        if earlier.history.is_some() {
            self.history.clone_from(&earlier.history);
        }
        self.restore_counted = earlier.restore_counted;
        self
    }

    pub fn settings(&self) -> &Settings {
        &self.settings
    }

    /// Name of the state that the sessions of the remote cluster continue, for [`InterestSettings`]. It is another one
    /// after a restore from a backup.
    ///
    /// [`InterestSettings`]: crate::InterestSettings
    pub fn history(&self) -> Option<&str> {
        self.history.as_deref()
    }

    /// Number of filters that are wanted at the remote broker.
    pub fn wanted(&self) -> usize {
        self.interest.as_ref().map_or(0, Interest::wanted)
    }

    /// Number of filters that are wanted at the remote broker and that it has confirmed.
    pub fn subscribed(&self) -> usize {
        self.interest.as_ref().map_or(0, Interest::subscribed)
    }

    /// Returns whether the remote broker has confirmed or refused all changes of the wanted filters.
    pub fn is_settled(&self) -> bool {
        self.interest.as_ref().is_none_or(Interest::is_settled)
    }

    /// Returns the highest number of an [`Input::Want`] whose filters the remote broker has confirmed or refused, with
    /// those of all earlier ones.
    pub fn settled_number(&self) -> u64 {
        self.interest.as_ref().map_or(0, Interest::settled_number)
    }

    /// Returns whether the answer of the remote broker to a filter that is wanted there is still to come. A relay that
    /// has lost its connection, or has failed to make one, expects none. One that was just started does.
    pub fn is_pending(&self, filter: &str) -> bool {
        let is_first = !self.was_connected && self.failures == 0;
        let expects = match self.phase {
            Phase::Attaching | Phase::Running { .. } => true,
            Phase::New | Phase::Priming | Phase::Connecting => is_first,
            Phase::Idle | Phase::Draining { .. } | Phase::Waiting { .. } | Phase::Stopped { .. } => false,
        };
        expects && self.interest.as_ref().is_some_and(|interest| interest.is_pending(filter))
    }

    /// Number of times that the answer of [`Self::is_pending`] may have become false for filters on this connection.
    pub fn settles(&self) -> u64 {
        self.interest.as_ref().map_or(0, Interest::settles)
    }

    /// Number of filters whose state at the remote broker is stored, with those that are not wanted any more.
    pub fn known_filters(&self) -> usize {
        self.interest.as_ref().map_or(0, Interest::known)
    }

    /// Returns whether the remote session may have subscriptions that are not wanted, because it was not listed.
    pub fn may_have_stale(&self) -> bool {
        self.interest.as_ref().is_some_and(Interest::may_have_stale)
    }

    pub fn counters(&self) -> &Counters {
        &self.flow.counters
    }

    /// Number of messages from a broker that are not complete.
    pub fn in_flight(&self, from: Side) -> usize {
        self.flow.lane(from).in_flight()
    }

    /// Returns whether a message from a broker was acknowledged on the present connections.
    pub fn has_progress(&self, from: Side) -> bool {
        self.flow.lane(from).has_progress()
    }

    /// Time since which messages of one direction are in flight, and none of them was acknowledged.
    pub fn stalled_since(&self) -> Option<Time> {
        let stalls = [self.stalls.local, self.stalls.remote];
        stalls.into_iter().flatten().map(|(_, since)| since).min()
    }

    /// Address of the last connection to the remote broker, for [`Existing`].
    pub fn last_address(&self) -> Option<&str> {
        self.last_address.as_deref()
    }

    /// Cause of the last failure.
    pub fn last_error(&self) -> Option<&str> {
        self.last_error.as_deref()
    }

    pub fn state(&self) -> State {
        let address = || self.current_address().to_owned();
        match &self.phase {
            Phase::New => State::New,
            Phase::Priming => State::Preparing,
            Phase::Idle => State::Idle,
            Phase::Connecting | Phase::Attaching => State::Connecting { address: address() },
            Phase::Running { since } => State::Connected { address: address(), since: *since },
            Phase::Draining { .. } => State::Stopping,
            Phase::Waiting { until, reason } => State::Waiting { until: *until, reason: reason.clone() },
            Phase::Stopped { reason } => State::Stopped { reason: reason.clone() },
        }
    }

    /// Handles one input. [`Self::poll_output`] and [`Self::outgoing`] have the results.
    ///
    /// # Errors
    /// New settings that are not valid. The bridge continues with the present ones.
    pub fn handle(&mut self, now: Time, input: Input<'_>) -> Result<(), SettingsError> {
        let before = self.phase.clone();
        match input {
            Input::Start => self.start(now),
            Input::Opened(id) => self.opened(now, id),
            Input::Failed(id, cause) => {
                if self.take_wire(id) {
                    self.lost(now, id.side, format!("no connection: {cause}"));
                }
            }
            Input::Closed(id, cause) => self.closed(now, id, &cause),
            Input::Received(id, bytes) => {
                if let Some(client) = self.wire(id).and_then(|wire| wire.client.as_mut()) {
                    client.receive(now, bytes);
                }
            }
            Input::Sent(id, count) => {
                if let Some(client) = self.wire(id).and_then(|wire| wire.client.as_mut()) {
                    client.unsent_mut().consume(count);
                }
            }
            Input::Timeout => self.timed_out(now),
            Input::Queued(count) => {
                self.queued = count;
                if self.phase == Phase::Idle {
                    self.connect_if_due(now);
                }
            }
            Input::Stop { within } => self.stop(now, within),
            Input::Configure(settings) => self.configure(now, *settings)?,
            Input::Password(password) => self.settings.password = password,
            Input::Want { number, add, remove } => {
                if let Some(interest) = &mut self.interest {
                    interest.want(&mut self.flow.counters, number, &add, &remove);
                }
            }
            Input::WantOnly { number, filters } => {
                if let Some(interest) = &mut self.interest {
                    interest.want_only(&mut self.flow.counters, number, &filters);
                }
            }
        }
        self.process(now);
        if before != self.phase {
            self.outputs.push_back(Output::StateChanged);
        }
        Ok(())
    }

    /// Returns the next request, oldest first.
    pub fn poll_output(&mut self) -> Option<Output> {
        self.outputs.pop_front()
    }

    /// Returns the connection of a side, if one was requested.
    pub fn connection(&self, side: Side) -> Option<ConnectionId> {
        self.wires.of(side).as_ref().map(|wire| wire.id)
    }

    /// Returns the bytes to be written to a side. [`Input::Sent`] removes them.
    pub fn outgoing(&self, side: Side) -> &[u8] {
        let client = self.wires.of(side).as_ref().and_then(|wire| wire.client.as_ref());
        client.map_or(&[], |client| client.unsent().bytes())
    }

    /// Returns whether bytes of a side can be handled now. While they cannot, the driver must not read from the side:
    /// what it reads would only be stored.
    pub fn wants_read(&self, side: Side) -> bool {
        let Some(wire) = self.wires.of(side) else { return false };
        let Some(client) = &wire.client else { return false };
        if client.limits().is_none() {
            return true;
        }
        match self.phase {
            Phase::Priming => true,
            Phase::Running { .. } | Phase::Draining { .. } => {
                let other = self.wires.of(side.other()).as_ref().map_or(0, Wire::outgoing_len);
                !self.flow.must_wait(side)
                    && other < self.settings.outgoing_max.max(1)
                    && wire.outgoing_len() < self.settings.outgoing_max.saturating_add(ACKS_MAX)
            }
            _ => false,
        }
    }

    /// Number of bytes that the relay stores of packets that it has received and not handled.
    pub fn unread(&self, side: Side) -> usize {
        let client = self.wires.of(side).as_ref().and_then(|wire| wire.client.as_ref());
        client.map_or(0, |client| client.unread())
    }

    /// Returns the time at which [`Input::Timeout`] is due.
    pub fn poll_timeout(&self) -> Option<Time> {
        let wires = Side::ALL.iter().filter_map(|side| self.wires.of(*side).as_ref());
        let of_wires = wires.filter_map(|wire| match (&wire.client, wire.limits()) {
            (Some(client), Some(_)) if self.phase != Phase::Priming => client.timeout(),
            _ => Some(wire.deadline),
        });
        let of_phase = match (&self.phase, self.settings.start) {
            (Phase::Waiting { until, .. } | Phase::Draining { until, .. }, _) => Some(*until),
            (Phase::Running { .. }, _) if self.flow.sweep_remaining() > 0 => {
                Some(self.sweep_progress.1.after(self.settings.connect_timeout))
            }
            (Phase::Running { .. }, Start::Lazy { idle, .. }) => Some(self.last_traffic.after(idle)),
            _ => None,
        };
        let of_list = self.interest.as_ref().and_then(Interest::timeout);
        of_wires.chain(of_phase).chain(of_list).min()
    }

    /// Checks the relay's own state.
    ///
    /// # Panics
    /// Panics when the state contradicts itself.
    pub fn check_invariants(&self) {
        self.flow.check_invariants();
        self.interest.iter().for_each(Interest::check_invariants);
        let has = |side| self.wires.of(side).is_some();
        let expected = match self.phase {
            Phase::New | Phase::Idle | Phase::Waiting { .. } | Phase::Stopped { .. } => (false, false),
            Phase::Priming => (true, false),
            Phase::Connecting => (false, true),
            Phase::Attaching | Phase::Running { .. } | Phase::Draining { .. } => (true, true),
        };
        assert_eq!((has(Side::Local), has(Side::Remote)), expected, "connections in {:?}", self.phase);
    }

    /// Handles received packets until nothing more can be done now.
    fn process(&mut self, now: Time) {
        loop {
            let mut progress = false;
            for side in Side::ALL {
                progress |= self.continue_sweep(now, side);
                while self.wants_read(side) && self.process_packet(now, side) {
                    progress = true;
                }
            }
            self.send_interest(now);
            progress |= self.advance(now);
            if !progress {
                break;
            }
        }
        let remaining = self.flow.sweep_remaining();
        if remaining != self.sweep_progress.0 {
            self.sweep_progress = (remaining, now);
        }
        for side in Side::ALL {
            self.note_stall(now, side);
            let is_reading = self.wants_read(side);
            if let Some(client) = self.wires.of_mut(side).as_mut().and_then(|wire| wire.client.as_mut()) {
                if is_reading {
                    client.resume(now);
                } else {
                    client.pause(now);
                }
            }
        }
    }

    /// Notes since when the messages in flight from a side have no acknowledgement.
    fn note_stall(&mut self, now: Time, from: Side) {
        let (lane, stall) = (self.flow.lane(from), self.stalls.of_mut(from));
        *stall = match *stall {
            _ if lane.in_flight() == 0 => None,
            Some((count, since)) if count == lane.acknowledgements => Some((count, since)),
            _ => Some((lane.acknowledgements, now)),
        };
    }

    /// Continues to release identifiers at a side. Returns whether that has ended now.
    fn continue_sweep(&mut self, now: Time, side: Side) -> bool {
        if !self.flow.is_sweeping(side) {
            return false;
        }
        if let Some(client) = self.wires.of_mut(side).as_mut().and_then(|wire| wire.client.as_mut()) {
            let before = client.unsent().len();
            self.flow.write_sweep(side, client.unsent_mut());
            if client.unsent().len() > before {
                client.note_sent(now);
            }
        }
        !self.flow.is_sweeping(side)
    }

    /// Sends changes of the wanted filters to the remote broker, as far as it keeps up.
    fn send_interest(&mut self, now: Time) {
        let Some(interest) = &mut self.interest else { return };
        if let (Phase::Running { .. }, Some(wire)) = (&self.phase, &mut self.wires.remote)
            && let Some(client) = &mut wire.client
            && let Some(packet_max) = client.limits().map(|limits| limits.packet_size_max as usize)
        {
            while client.unsent().len() < self.settings.outgoing_max.max(1)
                && let Some(request) =
                    interest.next_request(now, &mut self.flow.counters, client.requests(), packet_max)
            {
                match request {
                    Request::Subscribe(filters) => client.subscribe_at_once(now, filters),
                    Request::Unsubscribe(filters) => client.unsubscribe_at_once(now, filters),
                    Request::List(payload) => {
                        let topic = &interest.settings().list_topic;
                        client.publish_at_most_once(now, topic, payload.as_bytes());
                    }
                }
            }
        }
        if let Some(error) = interest.take_error() {
            self.last_error = Some(error);
        }
    }

    /// Handles one packet of a side. Returns false when there is none.
    fn process_packet(&mut self, now: Time, side: Side) -> bool {
        let is_attached = matches!(self.phase, Phase::Running { .. } | Phase::Draining { .. });
        let (wires, flow) = (&mut self.wires, &mut self.flow);
        let (wire, other) = match side {
            Side::Local => (&mut wires.local, &mut wires.remote),
            Side::Remote => (&mut wires.remote, &mut wires.local),
        };
        let Some(client) = wire.as_mut().and_then(|wire| wire.client.as_mut()) else { return false };
        let effect = match client.poll(now) {
            Ok(None) => return false,
            Err(reason) => Effect::Closed(reason),
            Ok(Some((Event::Connected, _))) => Effect::Connected,
            Ok(Some((Event::Packet(packet), own))) => {
                if let (Side::Remote, Some(interest), Packet::Publish(publish)) =
                    (side, &mut self.interest, &packet)
                    && publish.qos == QoS::AtMostOnce
                    && publish.topic == interest.settings().filters_topic
                {
                    interest.listed(&mut flow.counters, publish.payload);
                    return true;
                }
                let other = other.as_mut().and_then(|wire| wire.client.as_mut()).filter(|_| is_attached);
                match other {
                    Some(other) => {
                        self.last_traffic = now;
                        let before = (own.len(), other.unsent().len());
                        flow.handle(side, packet, own, other.unsent_mut());
                        let is_answered = own.len() > before.0;
                        if other.unsent().len() > before.1 {
                            other.note_sent(now);
                        }
                        if is_answered {
                            client.note_sent(now);
                        }
                        flow.take_refusal()
                            .map_or(Effect::None, |(side, reason)| Effect::Refused(side, reason))
                    }
                    // Messages that need an acknowledgement get none: they come again on the next connection.
                    None => {
                        if matches!(packet, Packet::Publish(publish) if publish.qos == QoS::AtMostOnce) {
                            flow.counters.dropped.of_mut(side)[Dropped::NotReady as usize] += 1;
                        }
                        Effect::None
                    }
                }
            }
            Ok(Some((Event::TooLarge(qos, packet_id), own))) => {
                flow.discard(side, qos, packet_id, own);
                client.note_sent(now);
                Effect::None
            }
            Ok(Some((Event::Subscribed(answers), _))) => {
                if let (Side::Remote, Some(interest)) = (side, &mut self.interest) {
                    interest.made(&mut flow.counters, answers);
                    return true;
                }
                for (filter, reason) in answers {
                    // A filter that is not stored stays at the remote broker when it is removed from the settings.
                    let is_stored = side == Side::Local && self.memory.note_stored(&filter, reason);
                    if is_stored || !reason.is_error() {
                        continue;
                    }
                    flow.counters.subscriptions_refused += 1;
                    let refusal = format!("the subscription {filter} was refused: {reason}");
                    if side == Side::Local && self.phase == Phase::Priming {
                        self.refused = Some(refusal.clone());
                    }
                    self.last_error = Some(refusal);
                }
                Effect::None
            }
            Ok(Some((Event::Unsubscribed(answers), _))) => {
                if let (Side::Remote, Some(interest)) = (side, &mut self.interest) {
                    interest.ended(&mut flow.counters, answers);
                    return true;
                }
                self.stale.of_mut(side).retain(|stale| answers.iter().all(|(filter, _)| filter != stale));
                match side {
                    Side::Local => answers.iter().for_each(|(filter, _)| self.memory.note_forgotten(filter)),
                    Side::Remote => {
                        let forgotten = self.memory.to_forget(&answers);
                        if let Some(local) = other.as_mut().and_then(|wire| wire.client.as_mut()) {
                            local.unsubscribe(now, &forgotten);
                        }
                    }
                }
                Effect::None
            }
        };
        match effect {
            Effect::None => {}
            Effect::Connected => self.connected(now, side),
            Effect::Closed(reason) => self.ended(now, side, &reason),
            Effect::Refused(side, reason) => self.refused(now, side, reason),
        }
        true
    }
}

impl WillForm {
    const PREFERRED: Self = Self { qos: QoS::AtLeastOnce, retain: true };
}
