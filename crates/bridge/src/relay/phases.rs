//! Transitions between the phases of a relay.

use std::time::Duration;

use mqtt::{QoS, ReasonCode, RetainHandling, SubscriptionOptions, TopicFilter, Version};

use super::interface::{ConnectionId, Output};
use super::wire::{Presence, Wire};
use super::{Phase, Relay, WillForm};
use crate::client::{Client, CloseReason, ConnectOptions, WillMessage};
use crate::interest::Interest;
use crate::message::Translator;
use crate::mutation::{Mutation, mutated};
use crate::settings::{AddressOrder, AddressSessions, Settings, SettingsError, Start};
use crate::side::{Side, Sides};
use crate::time::Time;

/// Number of times in a row that a relay connects again without a pause.
const RESTARTS_AT_ONCE: u32 = 2;
/// Minimum time between two restores of the remote cluster that are counted.
const RESTORES_COUNTED_EVERY: Duration = Duration::from_secs(600);
/// Maximum length of the name of a state without its first two characters.
const HISTORY_MAX: usize = 64;

impl Relay {
    pub(super) fn start(&mut self, now: Time) {
        if matches!(self.phase, Phase::New | Phase::Stopped { .. }) {
            (self.restarts, self.failures) = (0, 0);
            self.flow.set_draining(false);
            self.proceed(now);
        }
    }

    pub(super) fn stop(&mut self, now: Time, within: Duration) {
        if let Phase::Running { .. } = self.phase {
            self.flow.set_draining(true);
            self.phase = Phase::Draining { until: now.after(within) };
        } else if !matches!(self.phase, Phase::Draining { .. }) {
            self.halt(now, "by request");
        }
    }

    pub(super) fn configure(&mut self, now: Time, settings: Settings) -> Result<(), SettingsError> {
        if settings.name != self.settings.name {
            return Err(SettingsError::NameChanged);
        }
        let map = settings.check()?;
        let before = self.flow.translator.map().clone();
        let is_active = !matches!(self.phase, Phase::New | Phase::Stopped { .. } | Phase::Draining { .. });
        let is_other = settings.client_id != self.settings.client_id;
        let addresses_changed = settings.addresses != self.settings.addresses;
        self.close_both(now);
        self.flow.configure(Translator::new(&settings, map, &self.own_id), settings.outgoing_max);
        self.is_private = settings.has_bridge_bit();
        self.will = WillForm::PREFERRED;
        self.settings = settings;
        self.configure_interest();
        if is_other && self.last_address.is_some() {
            self.replace_remote_session();
        }
        if addresses_changed {
            self.address = 0;
        }
        for side in Side::ALL {
            self.add_stale(side, before.wanted(side).iter().map(|wanted| &wanted.filter));
        }
        self.is_primed = false;
        if is_active {
            (self.restarts, self.failures) = (0, 0);
            self.proceed(now);
        } else if let Phase::Draining { .. } = self.phase {
            self.phase = Phase::Stopped { reason: "by request".to_owned() };
        }
        Ok(())
    }

    /// Continues with the wanted filters under new settings. What the remote session has is found out again.
    fn configure_interest(&mut self) {
        if self.interest.as_ref().map(Interest::settings) == self.settings.interest.as_ref() {
            return;
        }
        let mut interest = self.settings.interest.clone().map(Interest::new);
        if let (Some(interest), Some(before)) = (&mut interest, &self.interest) {
            interest.continue_from(before);
        }
        self.interest = interest;
    }

    /// Notes filters of earlier settings, and forgets those that the settings have.
    pub(super) fn add_stale<'a>(&mut self, side: Side, filters: impl Iterator<Item = &'a String>) {
        if side == Side::Remote && self.settings.interest.is_some() {
            return;
        }
        let wanted = self.flow.translator.map().wanted(side);
        let stale = self.stale.of_mut(side);
        for filter in filters {
            if !stale.contains(filter) && TopicFilter::parse(filter).is_ok() {
                stale.push(filter.clone());
            }
        }
        stale.retain(|filter| wanted.iter().all(|wanted| wanted.filter != *filter));
    }

    /// Takes the next step towards a connection.
    fn proceed(&mut self, now: Time) {
        if self.is_primed {
            self.connect_if_due(now);
        } else {
            self.phase = Phase::Priming;
            self.open(now, Side::Local, None);
        }
    }

    /// Connects to the remote broker, or waits for messages.
    pub(super) fn connect_if_due(&mut self, now: Time) {
        if let Start::Lazy { queued_min, .. } = self.settings.start
            && self.queued < queued_min
        {
            self.phase = Phase::Idle;
        } else {
            self.connect(now);
        }
    }

    fn connect(&mut self, now: Time) {
        self.phase = Phase::Connecting;
        let address = self.current_address().to_owned();
        self.open(now, Side::Remote, Some(address));
    }

    pub(super) fn current_address(&self) -> &str {
        let addresses = &self.settings.addresses;
        addresses.get(self.address % addresses.len().max(1)).map_or("", String::as_str)
    }

    fn open(&mut self, now: Time, side: Side, address: Option<String>) {
        self.connections += 1;
        let connection = ConnectionId { side, number: self.connections };
        *self.wires.of_mut(side) = Some(Wire::new(connection, now.after(self.settings.connect_timeout)));
        self.outputs.push_back(Output::Open { connection, address });
    }

    /// Returns a connection, unless it was replaced.
    pub(super) fn wire(&mut self, id: ConnectionId) -> Option<&mut Wire> {
        self.wires.of_mut(id.side).as_mut().filter(|wire| wire.id == id)
    }

    /// Removes a connection that has ended. Returns false when it was replaced.
    pub(super) fn take_wire(&mut self, id: ConnectionId) -> bool {
        self.wires.of_mut(id.side).take_if(|wire| wire.id == id).is_some()
    }

    pub(super) fn opened(&mut self, now: Time, id: ConnectionId) {
        let options = match id.side {
            Side::Local => self.local_options(),
            Side::Remote => self.remote_options(),
        };
        let Some(wire) = self.wire(id).filter(|wire| wire.client.is_none()) else { return };
        match Client::new(now, &options) {
            Ok(client) => wire.client = Some(client),
            Err(reason) => self.halt(now, &reason.to_string()),
        }
    }

    fn local_options(&self) -> ConnectOptions {
        let remote = self.wires.remote.as_ref().and_then(Wire::limits);
        let receive_maximum = match remote {
            _ if mutated(Mutation::IgnoreReceiveMaximum) => u16::MAX,
            // One message at a time shows at which one the remote broker closes.
            Some(_) if self.suspect.is_some() => 1,
            Some(limits) => limits.receive_maximum.min(self.settings.in_flight),
            // Messages are not handled on this connection, and the fewer arrive the better.
            None => 1,
        };
        let topic = self.settings.notifications.local.as_ref().filter(|_| remote.is_some());
        ConnectOptions {
            version: Version::V5,
            private: false,
            client_id: self.settings.local_client_id(),
            username: None,
            password: None,
            clean_start: false,
            session_expiry: u32::MAX,
            keep_alive: 0,
            receive_maximum,
            packet_size_max: self.settings.packet_size_max,
            user_properties: self.settings.local_properties.clone(),
            will: topic.map(|topic| will(topic, WillForm::PREFERRED)),
        }
    }

    fn remote_options(&self) -> ConnectOptions {
        let settings = &self.settings;
        ConnectOptions {
            version: settings.version,
            private: self.is_private,
            client_id: settings.client_id.clone(),
            username: settings.username.clone(),
            password: settings.password.clone(),
            clean_start: settings.clean || mutated(Mutation::CleanStart),
            session_expiry: if settings.clean { 0 } else { settings.session_expiry },
            keep_alive: settings.keep_alive,
            receive_maximum: settings.in_flight.min(self.local_receive_maximum),
            packet_size_max: settings.packet_size_max,
            user_properties: Vec::new(),
            will: settings.notifications.remote.as_ref().map(|topic| will(topic, self.will)),
        }
    }

    /// Handles the CONNACK of a side.
    pub(super) fn connected(&mut self, now: Time, side: Side) {
        let Some(limits) = self.wires.of(side).as_ref().and_then(Wire::limits).cloned() else { return };
        if side == Side::Remote {
            self.note_address();
        }
        if !limits.session_present {
            // It has received no message.
            self.flow.session_is_new(side);
        }
        let is_lost = !limits.session_present && *self.known.of(side);
        *self.known.of_mut(side) = true;
        match side {
            Side::Local => {
                self.local_receive_maximum = limits.receive_maximum;
                self.flow.counters.local_sessions_lost += u64::from(is_lost);
                if !limits.session_present {
                    self.memory.session_is_new();
                }
                match self.phase {
                    Phase::Priming => self.prime(now),
                    Phase::Attaching => self.attach(now),
                    _ => {}
                }
            }
            Side::Remote => {
                self.note_history(now, limits.history);
                self.note_export(limits.export);
                if !limits.session_present {
                    self.interest.iter_mut().for_each(Interest::session_is_new);
                }
                let is_lost = is_lost && !self.settings.clean;
                self.flow.counters.remote_sessions_lost += u64::from(is_lost);
                self.flow.counters.reconnects += u64::from(self.was_connected);
                self.was_connected = true;
                let unnamed = format!("{}/{}", self.own_id, self.settings.name);
                self.flow.translator.set_remote_id(limits.hop.unwrap_or(unnamed));
                self.phase = Phase::Attaching;
                self.open(now, Side::Local, None);
            }
        }
    }

    /// Notes the address of a connection. Another broker has another session, with other messages under the same
    /// identifiers.
    fn note_address(&mut self) {
        let address = Some(self.current_address().to_owned());
        let is_other = self.last_address.is_some() && self.last_address != address;
        self.last_address = address;
        let is_separate = self.settings.address_sessions == AddressSessions::Separate;
        if is_other && is_separate && !mutated(Mutation::IgnoreAddress) {
            self.replace_remote_session();
        }
    }

    /// Notes the state that the remote cluster continues. One that was restored has older sessions, with other
    /// subscriptions, and with other messages under the same identifiers. The broker of an older version has none. The
    /// owner stores the name, so one that no broker sends is ignored.
    fn note_history(&mut self, now: Time, history: Option<String>) {
        let is_possible = |name: &String| self.interest.is_some() && is_history(name);
        let Some(history) = history.filter(is_possible) else { return };
        let is_restored = self.history.as_deref().is_some_and(|before| is_other_history(before, &history));
        self.history = Some(history);
        if is_restored {
            // A hostile cluster may have another name on each connection.
            if self.restore_counted.is_none_or(|last| now.since(last) >= RESTORES_COUNTED_EVERY) {
                self.restore_counted = Some(now);
                self.flow.counters.remote_restores += 1;
            }
            self.interest.iter_mut().for_each(Interest::forget_session);
            self.flow.lane_mut(Side::Remote).unreleased.sender_restarted();
        }
    }

    /// Notes what the remote cluster exports. When that changes, it removes the subscriptions that it does not export
    /// any more. The broker of an older version does not say it, and removes none.
    fn note_export(&mut self, export: Option<String>) {
        let Some(export) = export.filter(|_| self.interest.is_some()) else { return };
        if self.export.as_ref() != Some(&export) {
            self.interest.iter_mut().for_each(Interest::forget_session);
        }
        self.export = Some(export);
    }

    fn replace_remote_session(&mut self) {
        self.interest.iter_mut().for_each(Interest::forget_session);
        self.known.remote = false;
        self.flow.lane_mut(Side::Remote).unreleased.sender_restarted();
        self.flow.lane_mut(Side::Local).unreleased.receiver_replaced();
    }

    /// Registers the subscriptions at this broker.
    fn prime(&mut self, now: Time) {
        let topic = self.settings.notifications.local.clone();
        if let Some(wire) = &mut self.wires.local {
            wire.notify(now, topic.as_deref(), Presence::Disconnected);
        }
        // The session queues no messages of QoS 0. Retained ones would come to this connection, which ends.
        self.subscribe(now, Side::Local, |qos| qos > QoS::AtMostOnce);
    }

    /// Starts to pass on messages: both brokers are connected.
    fn attach(&mut self, now: Time) {
        let terms = |wire: &Option<Wire>| wire.as_ref().and_then(Wire::terms);
        let (Some(local), Some(remote)) = (terms(&self.wires.local), terms(&self.wires.remote)) else {
            return;
        };
        self.flow.attach(Sides { local, remote });
        self.phase = Phase::Running { since: now };
        self.last_traffic = now;
        let local = self.wires.local.as_ref().and_then(Wire::limits);
        let is_new = local.is_some_and(|limits| !limits.session_present);
        self.subscribe(now, Side::Local, |qos| is_new || qos == QoS::AtMostOnce);
        match &mut self.interest {
            Some(interest) => interest.attach(),
            None => self.subscribe(now, Side::Remote, |_| true),
        }
        for side in Side::ALL {
            self.flow.start_sweep(side);
            let topic = self.state_topic(side);
            if let Some(wire) = self.wires.of_mut(side) {
                wire.notify(now, topic.as_deref(), Presence::Connected);
            }
        }
    }

    fn state_topic(&self, side: Side) -> Option<String> {
        match side {
            Side::Local => self.settings.notifications.local.clone(),
            Side::Remote => self.settings.notifications.remote.clone(),
        }
    }

    /// Ends subscriptions of earlier settings, and subscribes to the present filters.
    fn subscribe(&mut self, now: Time, side: Side, is_due: impl Fn(QoS) -> bool) {
        // A remote broker before 5.0 does this for a client with the bridge bit.
        let options = |qos: QoS| SubscriptionOptions {
            qos,
            no_local: true,
            retain_as_published: true,
            retain_handling: RetainHandling::SendIfNew,
        };
        let wanted = self.flow.translator.map().wanted(side);
        let wanted = wanted.into_iter().filter(|wanted| is_due(wanted.qos));
        let mut filters: Vec<_> = wanted.map(|wanted| (wanted.filter, options(wanted.qos))).collect();
        if side == Side::Local && !self.settings.clean {
            let remote = self.flow.translator.map().wanted(Side::Remote).into_iter();
            let stored = self.memory.to_store(remote.map(|wanted| wanted.filter));
            filters.extend(stored.into_iter().map(|filter| (filter, options(QoS::AtMostOnce))));
        }
        let Some(wire) = self.wires.of_mut(side) else { return };
        let Some(client) = &mut wire.client else { return };
        client.unsubscribe(now, self.stale.of(side));
        client.subscribe(now, &filters);
        wire.is_subscribed = true;
    }

    /// Ends a phase whose work is done. Returns whether it did.
    pub(super) fn advance(&mut self, now: Time) -> bool {
        match self.phase {
            Phase::Priming => {
                let is_open = |wire: &Wire| {
                    !wire.is_subscribed
                        || wire.client.as_ref().is_none_or(|client| client.requests_open() > 0)
                };
                if self.wires.local.as_ref().is_none_or(is_open) {
                    return false;
                }
                if let Some(refusal) = self.refused.take() {
                    // Its messages would not wait for the bridge.
                    self.lost(now, Side::Local, refusal);
                    return true;
                }
                self.is_primed = true;
                self.close_both(now);
                self.proceed(now);
                true
            }
            Phase::Draining { .. } => {
                let is_quiet = Side::ALL.iter().all(|side| {
                    self.flow.lane(*side).in_flight() == 0
                        && self.wires.of(*side).as_ref().is_none_or(|wire| wire.outgoing_len() == 0)
                });
                if is_quiet {
                    self.halt(now, "by request");
                }
                is_quiet
            }
            Phase::Running { since } if self.flow.must_restart() => {
                self.restart(now, since);
                true
            }
            _ => false,
        }
    }

    /// Connects again, because messages were ignored that must come again. A remote broker that causes this on each
    /// connection is connected after a pause.
    fn restart(&mut self, now: Time, since: Time) {
        self.close_both(now);
        if now.since(since) >= self.settings.backoff.stable {
            (self.restarts, self.failures) = (0, 0);
        }
        self.restarts = self.restarts.saturating_add(1);
        if self.restarts <= RESTARTS_AT_ONCE {
            return self.connect(now);
        }
        self.failures = self.failures.saturating_add(1);
        let reason = "messages had to come again on each of the last connections".to_owned();
        self.phase = Phase::Waiting { until: now.after(self.delay()), reason };
    }

    /// Handles the end of a connection that a broker or the network has caused.
    pub(super) fn closed(&mut self, now: Time, id: ConnectionId, cause: &str) {
        let Some(wire) = self.wire(id) else { return };
        let is_connecting = wire.client.is_some() && wire.limits().is_none();
        if id.side == Side::Remote {
            self.note_unanswered();
        }
        self.take_wire(id);
        if id.side == Side::Remote {
            self.note_close();
        }
        if id.side == Side::Remote && is_connecting && self.can_be_public() {
            // A broker that does not know the bridge bit may close without a CONNACK. The next attempts alternate.
            self.is_private = !self.is_private;
        }
        self.lost(now, id.side, format!("the connection ended: {cause}"));
    }

    /// Notes that the connection to the remote broker ends. Without a CONNACK it is not known whether the CONNECT has
    /// created a new session, which is present at the next connection and has no subscriptions.
    fn note_unanswered(&mut self) {
        let is_unanswered = |wire: &Wire| wire.client.is_some() && wire.limits().is_none();
        if self.wires.remote.as_ref().is_some_and(is_unanswered) {
            self.interest.iter_mut().for_each(Interest::forget_session);
        }
    }

    /// Notes that the remote broker has closed the connection, perhaps because of a message.
    fn note_close(&mut self) {
        let (Some(closes_max), Phase::Running { .. }) = (self.settings.closes_max, &self.phase) else {
            return;
        };
        let lane = self.flow.lane_mut(Side::Local);
        let oldest = lane.oldest().filter(|_| !lane.has_progress());
        let before = self.suspect.take();
        let Some(id) = oldest else { return };
        let count = before.filter(|(known, _)| *known == id).map_or(1, |(_, count)| count.saturating_add(1));
        if count >= closes_max {
            self.flow.condemn(id);
        } else {
            self.suspect = Some((id, count));
        }
    }

    /// Handles the end of a connection that the client has decided, or a CONNACK or DISCONNECT has announced.
    pub(super) fn ended(&mut self, now: Time, side: Side, reason: &CloseReason) {
        if let (Side::Remote, CloseReason::Refused { reason: code, .. }) = (side, reason) {
            match code {
                ReasonCode::UnsupportedProtocolVersion if self.is_private => {
                    if !self.can_be_public() {
                        let text = "the remote broker does not accept bridges, and messages would come back: use \
                                    MQTT 5.0, change the topics, or allow the echo";
                        return self.halt(now, text);
                    }
                    self.is_private = false;
                    self.close_both(now);
                    return self.connect(now);
                }
                ReasonCode::RetainNotSupported => self.will.retain = false,
                ReasonCode::QoSNotSupported => self.will.qos = QoS::AtMostOnce,
                _ => {}
            }
        }
        if let (Side::Remote, CloseReason::Disconnected { .. }) = (side, reason) {
            self.note_close();
        }
        self.lost(now, side, reason.to_string());
        if let CloseReason::Disconnected { reason: ReasonCode::SessionTakenOver, .. } = reason {
            // Another client with these sessions may have changed the subscriptions.
            self.interest.iter_mut().for_each(Interest::forget_session);
        }
    }

    /// Ends both connections, because a broker has refused a message for a reason that may pass. Its sender sends it
    /// again.
    pub(super) fn refused(&mut self, now: Time, side: Side, reason: ReasonCode) {
        self.lost(now, side, format!("it refuses a message, which comes again: {reason}"));
    }

    /// Returns whether the bridge bit may be left out.
    fn can_be_public(&self) -> bool {
        self.settings.has_bridge_bit()
            && (self.settings.allow_echo || self.flow.translator.map().echoes().next().is_none())
    }

    /// Handles a failure on a side: closes both connections and waits.
    pub(super) fn lost(&mut self, now: Time, side: Side, cause: String) {
        let name = match side {
            Side::Local => "this broker".to_owned(),
            Side::Remote => self.current_address().to_owned(),
        };
        let reason = format!("{name}: {cause}");
        self.last_error = Some(reason.clone());
        let phase = self.phase.clone();
        self.close_both(now);
        let is_stable = match phase {
            Phase::Running { since } => now.since(since) >= self.settings.backoff.stable,
            Phase::Draining { .. } => {
                self.phase = Phase::Stopped { reason };
                return;
            }
            _ => false,
        };
        if matches!(phase, Phase::Connecting) {
            self.flow.counters.failed_attempts += 1;
        }
        if is_stable {
            (self.restarts, self.failures) = (0, 0);
        } else {
            self.failures = self.failures.saturating_add(1);
        }
        match self.settings.address_order {
            _ if side == Side::Local => {}
            AddressOrder::Ordered if is_stable => self.address = 0,
            AddressOrder::Ordered | AddressOrder::RoundRobin => {
                self.address = (self.address + 1) % self.settings.addresses.len().max(1);
            }
        }
        if self.settings.start == Start::Once && !matches!(phase, Phase::Priming) {
            self.phase = Phase::Stopped { reason };
            return;
        }
        self.phase = Phase::Waiting { until: now.after(self.delay()), reason };
    }

    /// Draws the time to wait.
    fn delay(&mut self) -> Duration {
        let backoff = self.settings.backoff;
        let doubled = backoff.min.saturating_mul(1 << self.failures.saturating_sub(1).min(20));
        let delay = doubled.min(backoff.max).max(backoff.min);
        let half = u64::try_from(delay.as_micros() / 2).unwrap_or(u64::MAX);
        delay.saturating_sub(Duration::from_micros(self.random.below_u64(half.saturating_add(1))))
    }

    /// Stops the bridge.
    fn halt(&mut self, now: Time, reason: &str) {
        self.close_both(now);
        self.phase = Phase::Stopped { reason: reason.to_owned() };
    }

    /// Closes both connections. The brokers keep their sessions.
    fn close_both(&mut self, now: Time) {
        let was_attached = matches!(self.phase, Phase::Running { .. } | Phase::Draining { .. });
        if !was_attached {
            self.note_unanswered();
        }
        for side in Side::ALL {
            let topic = self.state_topic(side).filter(|_| was_attached);
            if let Some(mut wire) = self.wires.of_mut(side).take() {
                wire.notify(now, topic.as_deref(), Presence::Disconnected);
                self.outputs.push_back(wire.close());
            }
        }
        self.flow.reset();
        self.interest.iter_mut().for_each(Interest::detach);
    }

    pub(super) fn timed_out(&mut self, now: Time) {
        for side in Side::ALL {
            let Some(wire) = self.wires.of_mut(side) else { continue };
            let is_waiting = wire.limits().is_none() || self.phase == Phase::Priming;
            if is_waiting && wire.deadline <= now {
                self.lost(now, side, "no answer in time".to_owned());
            } else if let Some(Err(reason)) = wire.client.as_mut().map(|client| client.handle_timeout(now)) {
                self.ended(now, side, &reason);
            }
        }
        let is_reading = self.wants_read(Side::Remote);
        if let Some(interest) = &mut self.interest {
            interest.timed_out(now, &mut self.flow.counters, is_reading);
        }
        match (&self.phase, self.settings.start) {
            (Phase::Waiting { until, .. }, _) if *until <= now => self.proceed(now),
            (Phase::Running { .. }, _)
                if self.flow.sweep_remaining() > 0
                    && self.sweep_progress.1.after(self.settings.connect_timeout) <= now =>
            {
                self.flow.abandon_sweeps();
            }
            (Phase::Draining { until }, _) if *until <= now => {
                self.halt(now, "by request, with messages in flight")
            }
            (Phase::Running { .. }, Start::Lazy { idle, .. }) if self.last_traffic.after(idle) <= now => {
                let in_flight: usize = Side::ALL.iter().map(|side| self.flow.lane(*side).in_flight()).sum();
                if in_flight == 0 {
                    self.close_both(now);
                    self.queued = 0;
                    self.phase = Phase::Idle;
                } else {
                    self.last_traffic = now;
                }
            }
            _ => {}
        }
    }
}

/// Returns whether this is the name of a state.
fn is_history(name: &str) -> bool {
    let rest = name.strip_prefix("n:").or_else(|| name.strip_prefix("c:"));
    rest.is_some_and(|rest| {
        let is_allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.');
        (1..=HISTORY_MAX).contains(&rest.len()) && rest.bytes().all(is_allowed)
    })
}

/// Returns whether a state does not continue an earlier one. A node alone has the state `n:..`. It continues as a
/// cluster, whose state is `c:..`.
fn is_other_history(before: &str, now: &str) -> bool {
    before != now && !(before.starts_with("n:") && now.starts_with("c:"))
}

fn will(topic: &str, form: WillForm) -> WillMessage {
    let payload = Presence::Disconnected.payload().to_vec();
    WillMessage { topic: topic.to_owned(), payload, qos: form.qos, retain: form.retain }
}
