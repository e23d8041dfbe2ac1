use std::collections::VecDeque;

use bytes::Bytes;

use crate::channel::Channel;
use crate::config::Config;
use crate::counters::Counters;
use crate::error::{PeerError, Refused};
use crate::frame::Frame;
use crate::handshake::{Established, LinkId};
use crate::lane::{Class, Lane, Lanes};
use crate::mutation::{Mutation, mutated};
use crate::output::Output;
use crate::receiving::Receiving;
use crate::sending::Sending;
use crate::time::Time;
use crate::wire::{self, FRAME_MAX, Record, ResumePoint};

/// This node's end of the link to one peer. It outlives connections; it ends when the peer is removed.
///
/// **Invariant:** on resumed lanes ([`Class::is_resumed`]) every accepted frame arrives once and in order, or the peer
/// has forgotten the link ([`Event::Restarted`]). On other lanes frames arrive at most once and in order.
///
/// **Invariant:** a frame is written again only after the channel that carried it was lost.
#[derive(Debug)]
pub struct Link {
    id: LinkId,
    config: Config,
    /// Link id of the peer that the lanes' state belongs to.
    peer: Option<LinkId>,
    /// Number of channels, as the peer that dialed announced or as this node dialed.
    channels_count: u8,
    /// Lanes that both ends know; none before the peer's first handshake.
    lanes: Lanes,
    channels: Vec<Option<Channel>>,
    generations: u32,
    /// Number that changes each time the peer has forgotten the link. It also differs from that of any other link with
    /// that peer.
    epoch: u32,
    sending: Vec<Sending>,
    receiving: Vec<Receiving>,
    /// Bytes that wait, by class.
    held: [u64; Class::ALL.len()],
    /// Outgoing lanes that may have something to write.
    ready: Lanes,
    /// Incoming lanes that may owe the peer an acknowledgement.
    unacknowledged: Lanes,
    /// Time at which they are acknowledged, unless that is under way.
    acknowledge_at: Time,
    /// Bits of the channels that may have output since they were last polled.
    writable: u32,
    events: VecDeque<Event>,
    /// Time since which frames wait for the peer's next incarnation.
    expects_since: Option<Time>,
    /// Last round-trip time, in microseconds.
    round_trip: Option<u64>,
    counters: Counters,
}

/// Id of one of a link's connections, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ChannelId {
    index: u8,
    generation: u32,
}

/// Credit of the lane that a received frame uses until it is consumed ([`Link::consume`]).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "credit that is not returned stops the lane"]
pub struct Credit {
    lane: Lane,
    bytes: u64,
    epoch: u32,
}

/// Event of a link, in order.
#[derive(Debug, PartialEq, Eq)]
pub enum Event {
    /// A frame arrived. It shares memory with other frames of the same read: copy it to keep it for long.
    Received { lane: Lane, number: u64, frame: Bytes, credit: Credit },
    /// The peer has the frames of a resumed lane before `next`.
    Acknowledged { lane: Lane, next: u64 },
    /// The first channel carries frames again: the peer is reachable.
    Up,
    /// No first channel exists: the peer is suspect.
    Suspect,
    /// The peer has forgotten the link, as after a restart. Frames that waited for it or for its acknowledgement never
    /// arrive, except those sent after [`Link::expect_restart`]. All lanes restart with number 0.
    Restarted,
    /// The peer was expected to restart ([`Link::expect_restart`]), but continues as before. Frames that waited for its
    /// next incarnation go to this one.
    Continued,
    /// A channel was silent for too long: its connection must be closed.
    Silent { channel: ChannelId },
}

impl ChannelId {
    /// Returns the index of the channel among the link's connections.
    pub fn index(self) -> u8 {
        self.index
    }
}

impl Link {
    /// Creates a link without channels. `id` is random and never reused.
    pub fn new(id: LinkId, config: Config) -> Self {
        Self {
            id,
            peer: None,
            channels_count: 1,
            lanes: Lanes::NONE,
            channels: Vec::new(),
            generations: 0,
            epoch: id.0 as u32,
            sending: Lane::all().map(Sending::new).collect(),
            receiving: Lane::all().map(|lane| Receiving::new(lane, config.window)).collect(),
            config,
            held: [0; Class::ALL.len()],
            ready: Lanes::NONE,
            unacknowledged: Lanes::NONE,
            acknowledge_at: Time::NEVER,
            writable: 0,
            events: VecDeque::new(),
            expects_since: None,
            round_trip: None,
            counters: Counters::default(),
        }
    }

    pub fn id(&self) -> LinkId {
        self.id
    }

    pub fn config(&self) -> &Config {
        &self.config
    }

    /// Makes a connection a channel once its handshake is done. It replaces an earlier channel with the same number.
    pub fn attach(&mut self, now: Time, established: &Established) -> ChannelId {
        let is_new = self.peer.replace(established.link).is_some_and(|known| known != established.link);
        if is_new {
            self.restart();
        }
        let known = Lanes::of_version(established.version);
        if (established.channels, known) != (self.channels_count, self.lanes) {
            // Lanes move to other channels: all channels start again.
            self.drop_channels();
            (self.channels_count, self.lanes) = (established.channels, known);
        }
        let count = usize::from(self.channels_count.max(1));
        self.channels.resize_with(count.max(self.channels.len()), || None);
        let index = established.channel.min(self.channels_count.saturating_sub(1));
        self.drop_channel(index);
        self.generations += 1;
        let lanes = self.carried(index);
        let resume_points =
            lanes.map(|lane| self.receiving[usize::from(lane.byte())].resume_point()).collect();
        let ping_at = now.after(self.config.heartbeat);
        self.channels[usize::from(index)] =
            Some(Channel::new(now, ping_at, self.generations, lanes, resume_points));
        self.writable |= 1 << index;
        self.counters.attached += 1;
        ChannelId { index, generation: self.generations }
    }

    /// Removes a channel whose connection has ended.
    pub fn detach(&mut self, channel: ChannelId) {
        if self.channel(channel).is_some() {
            self.drop_channel(channel.index);
        }
    }

    /// Returns whether frames can reach the peer now.
    pub fn is_up(&self) -> bool {
        self.channels.first().and_then(Option::as_ref).is_some_and(|channel| channel.is_open)
    }

    /// Accepts a frame for a lane and returns its number. The peer has it when [`Event::Acknowledged`] reports a
    /// greater number.
    ///
    /// # Errors
    /// [`Refused`] when there is no room; the caller decides what to do.
    pub fn send(&mut self, now: Time, lane: Lane, frame: Frame) -> Result<u64, Refused> {
        let class = lane.class();
        let (held, length) = (self.held[class as usize], frame.len());
        let refused = if length > FRAME_MAX as usize {
            Some(Refused::TooLarge { length })
        } else if class.is_for_shards() && !self.lanes.contains(lane) {
            Some(Refused::Unsupported)
        } else if class.is_transient() && !self.is_up() {
            Some(Refused::Down)
        } else if self.is_full(class, length as u64) && !mutated(Mutation::NoBound) {
            Some(Refused::Full { bytes: held })
        } else {
            None
        };
        if let Some(refused) = refused {
            self.counters.at(class).refused += 1;
            return Err(refused);
        }
        self.held[class as usize] += length as u64;
        self.ready.insert(lane);
        self.writable |= 1 << lane.channel(self.channels_count);
        Ok(self.sending[usize::from(lane.byte())].push(now, frame))
    }

    /// Returns whether a class has no room for a frame. A class that holds nothing takes any frame. Requests are
    /// accepted until their bound is reached, so the last one may exceed it: a large request whose sender waits until
    /// the class is half empty is never refused again and again because of the small requests of others.
    fn is_full(&self, class: Class, length: u64) -> bool {
        let (held, bound) = (self.held[class as usize], self.config.buffer_max.of(class));
        match class {
            Class::Requests => held > 0 && held >= bound,
            _ => held > 0 && held + length > bound,
        }
    }

    /// Returns the credit of a received frame that was handled.
    pub fn consume(&mut self, credit: Credit) {
        if credit.epoch == self.epoch || mutated(Mutation::CountOldCredit) {
            let receiving = &mut self.receiving[usize::from(credit.lane.byte())];
            receiving.consume(credit.bytes);
            if receiving.is_urgent() {
                self.unacknowledged.insert(credit.lane);
                self.mark_acknowledging();
            }
        }
    }

    /// Handles bytes received on a channel. Bytes of a closed channel are ignored.
    ///
    /// # Errors
    /// [`PeerError`] when the peer violates the protocol. The channel is removed then, and its connection must be
    /// closed.
    pub fn input(&mut self, now: Time, id: ChannelId, mut bytes: Bytes) -> Result<(), PeerError> {
        self.counters.bytes_received += bytes.len() as u64;
        let Some(channel) = self.channel(id) else { return Ok(()) };
        channel.last_received = now;
        let mut decoder = std::mem::take(&mut channel.decoder);
        let done = loop {
            match decoder.next(&mut bytes) {
                Ok(Some(record)) => match self.record(now, id.index, record) {
                    Ok(()) => {}
                    Err(error) => break Err(error),
                },
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        match (&done, self.channel(id)) {
            (Ok(()), Some(channel)) => channel.decoder = decoder,
            _ => self.drop_channel(id.index),
        }
        if self.acknowledge_at <= now {
            self.mark_acknowledging();
        }
        done
    }

    /// Acknowledges what was received at once, because somebody waits for it at the peer.
    pub fn acknowledge(&mut self) {
        self.mark_acknowledging();
    }

    /// Forgets the peer, and everything that waited for it. The link gets the new id `id`, which is random and never
    /// reused.
    ///
    /// When a node forgets one incarnation of its peer and that incarnation comes back, the peer must notice. The
    /// changed id makes it notice.
    pub fn forget(&mut self, id: LinkId) {
        self.id = id;
        if self.peer.take().is_some() {
            self.restart();
        }
    }

    /// Expects the peer to have restarted or to have forgotten the link, as other nodes report, before the peer itself
    /// has said so. From now on, frames in assured lanes wait for the incarnation that runs now. Either the peer
    /// reports that it has forgotten the link ([`Event::Restarted`]), or it answers a ping that leaves after this call:
    /// then the link still belongs to it ([`Event::Continued`]). Without the wait, frames written earlier and not
    /// acknowledged would be lost with the peer or arrive twice, and neither end could tell which.
    pub fn expect_restart(&mut self, now: Time) {
        let assured = self.sending.iter_mut().filter(|sending| sending.lane().class() == Class::Assured);
        assured.for_each(Sending::expect_restart);
        self.expects_since = Some(now);
        for (index, channel) in self.channels.iter_mut().enumerate() {
            if let Some(channel) = channel {
                channel.ping_due = true;
                self.writable |= 1 << index;
            }
        }
    }

    /// Notes that the peer was alive at that time. If a restart was expected, the peer has not forgotten the link.
    fn confirm_alive(&mut self, at: Time) {
        let is_later = |since: &mut Time| *since <= at || mutated(Mutation::BelieveOldPongs);
        if self.expects_since.take_if(is_later).is_none() {
            return;
        }
        for sending in &mut self.sending {
            sending.expect_no_restart();
            if sending.is_ready() {
                let lane = sending.lane();
                self.ready.insert(lane);
                self.writable |= 1 << lane.channel(self.channels_count);
            }
        }
        self.events.push_back(Event::Continued);
    }

    /// Returns the link id of the peer that the lanes' state belongs to, if any.
    pub fn peer(&self) -> Option<LinkId> {
        self.peer
    }

    /// Returns bits of the channels, by index, that may have output since the last call. The first call returns all of
    /// them.
    pub fn take_writable(&mut self) -> u32 {
        std::mem::take(&mut self.writable)
    }

    /// Returns whether there are channels with output, or events.
    pub fn has_pending(&self) -> bool {
        self.writable != 0 || !self.events.is_empty()
    }

    /// Returns whether a channel exists.
    pub fn has(&self, channel: ChannelId) -> bool {
        self.channels
            .get(usize::from(channel.index))
            .is_some_and(|known| known.as_ref().is_some_and(|known| known.generation == channel.generation))
    }

    /// Returns the time of the last input from the peer over the existing channels.
    pub fn last_received(&self) -> Option<Time> {
        self.channels.iter().flatten().map(|channel| channel.last_received).max()
    }

    /// Returns whether [`Self::poll_event`] has an event.
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// Returns the oldest event.
    pub fn poll_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Appends the output of a channel until `out` holds `budget` bytes; the last frame may exceed it. Acknowledgements
    /// and credit come first, then frames by class.
    pub fn output(&mut self, now: Time, id: ChannelId, budget: usize, out: &mut Output) {
        let (begun, heartbeat) = (out.len(), self.config.heartbeat);
        let Some(channel) = self.channel(id) else { return };
        if let Some(resume_points) = channel.resume_points.take() {
            wire::put_resume(&resume_points, out);
        }
        if let Some(time) = channel.pong.take() {
            wire::put_pong(time, out);
            // One ping or answer in each direction is enough, and the peer's next one comes before this node's. On the
            // first channel both nodes ping, to measure the round trip.
            if id.index != 0 {
                channel.ping_at = now.after(2 * heartbeat);
            }
        }
        if std::mem::take(&mut channel.ping_due) {
            wire::put_ping(now, out);
        }
        if channel.is_open {
            let (turn, lanes) = (channel.turn, channel.lanes);
            // Those that may wait go with other output.
            let waits = self.acknowledge_at != Time::NEVER && self.acknowledge_at > now;
            let has_other = out.len() > begun || !self.ready.and(lanes).is_empty();
            let is_time = has_other || !waits;
            if is_time && !self.unacknowledged.is_empty() && self.acknowledging() == Some(id.index) {
                self.write_acknowledgements(out);
            }
            if !self.ready.and(lanes).is_empty() {
                let turn = self.write_frames(lanes, turn, budget, out);
                if let Some(channel) = self.channel(id) {
                    channel.turn = turn;
                }
            }
            if out.len() >= budget {
                self.writable |= 1 << id.index;
            }
        }
        self.counters.bytes_sent += (out.len() - begun) as u64;
    }

    /// Iterates over the channels. After any change of the link, each may have output.
    pub fn channels(&self) -> impl Iterator<Item = ChannelId> {
        let some = (0..).zip(&self.channels);
        some.filter_map(|(index, channel)| {
            Some(ChannelId { index, generation: channel.as_ref()?.generation })
        })
    }

    /// Returns the time at which [`Self::handle_timeout`] is due.
    pub fn timeout(&self) -> Time {
        let silence_max = self.config.silence_max;
        let channels = self.channels.iter().flatten();
        let due = channels.map(|channel| channel.ping_at.min(channel.last_received.after(silence_max)));
        due.min().unwrap_or(Time::NEVER).min(self.acknowledge_at)
    }

    /// Returns the time at which received frames are acknowledged. Input may bring it nearer; otherwise
    /// [`Self::timeout`] includes it.
    pub fn acknowledge_at(&self) -> Time {
        self.acknowledge_at
    }

    /// Handles the passing of time: sends pings and acknowledgements that are due, and drops channels that are silent.
    /// Work that is nearly due is done too, so that an idle node wakes up once for everything.
    pub fn handle_timeout(&mut self, now: Time) {
        let Config { silence_max, heartbeat, acknowledge_after, .. } = self.config;
        if self.acknowledge_at <= now.after(acknowledge_after / NEARLY) {
            self.mark_acknowledging();
        }
        for index in 0..self.channels.len() as u8 {
            let Some(channel) = self.channels[usize::from(index)].as_mut() else { continue };
            if channel.last_received.after(silence_max) <= now {
                let channel = ChannelId { index, generation: channel.generation };
                self.counters.silent += 1;
                self.drop_channel(index);
                self.events.push_back(Event::Silent { channel });
            } else if channel.ping_at <= now.after(heartbeat / NEARLY) {
                channel.ping_at = now.after(heartbeat);
                channel.ping_due = true;
                self.writable |= 1 << index;
            }
        }
    }

    /// Returns the last measured time from a ping to its answer, in microseconds.
    pub fn round_trip(&self) -> Option<u64> {
        self.round_trip
    }

    pub fn counters(&self) -> &Counters {
        &self.counters
    }

    /// Returns for a class: bytes that wait for the peer or its acknowledgement, the number of such frames, and the age
    /// of the oldest in microseconds.
    pub fn waiting(&self, now: Time, class: Class) -> (u64, u64, u64) {
        let lanes = || self.sending.iter().filter(|sending| sending.lane().class() == class);
        let oldest = lanes().filter_map(Sending::oldest).min();
        (
            self.held[class as usize],
            lanes().map(Sending::frames).sum(),
            oldest.map_or(0, |since| now.since(since)),
        )
    }

    /// Returns the bytes that were received and not consumed yet.
    pub fn unconsumed(&self) -> u64 {
        self.receiving.iter().map(Receiving::held).sum()
    }

    pub fn check_invariants(&self) {
        self.sending.iter().for_each(Sending::check_invariants);
        self.receiving.iter().for_each(|receiving| receiving.check_invariants(u64::from(FRAME_MAX)));
        for class in Class::ALL {
            let lanes = self.sending.iter().filter(|sending| sending.lane().class() == class);
            assert_eq!(lanes.map(Sending::held).sum::<u64>(), self.held[class as usize]);
        }
        let open = self.channels.iter().flatten().filter(|channel| channel.is_open);
        assert!(open.count() == 0 || self.peer.is_some(), "no peer sends resume points before its handshake");
    }

    fn channel(&mut self, id: ChannelId) -> Option<&mut Channel> {
        let channel = self.channels.get_mut(usize::from(id.index))?.as_mut()?;
        (channel.generation == id.generation).then_some(channel)
    }

    /// Returns the lanes that a channel carries.
    fn carried(&self, index: u8) -> Lanes {
        let count = self.channels_count;
        self.lanes.filter(|lane| lane.channel(count) == index).collect()
    }

    /// Returns the channel that acknowledges for all lanes: the first one that can, because it carries the least.
    fn acknowledging(&self) -> Option<u8> {
        let open = |channel: &Option<Channel>| channel.as_ref().is_some_and(|channel| channel.is_open);
        self.channels.iter().position(open).map(|index| index as u8)
    }

    /// Marks the channel that must send the pending acknowledgements as having output.
    fn mark_acknowledging(&mut self) {
        self.acknowledge_at = Time::NEVER;
        if !self.unacknowledged.is_empty()
            && let Some(acknowledging) = self.acknowledging()
        {
            self.writable |= 1 << acknowledging;
        }
    }

    fn write_acknowledgements(&mut self, out: &mut Output) {
        self.acknowledge_at = Time::NEVER;
        for lane in std::mem::take(&mut self.unacknowledged) {
            if let Some((next, limit)) = self.receiving[usize::from(lane.byte())].take_acknowledgement() {
                wire::put_acknowledged(lane, next, limit, out);
            }
        }
    }

    /// Writes frames of some lanes; message lanes begin at `turn`. Returns the turn of the next call.
    fn write_frames(&mut self, lanes: Lanes, turn: u8, budget: usize, out: &mut Output) -> u8 {
        let mut last = turn;
        for class in Class::ALL {
            let lanes = lanes.and(Lanes::of_class(class));
            // Each lane in turn writes a part, until none of them can.
            while !self.ready.and(lanes).is_empty() {
                for lane in self.ready.and(lanes).from(Lane::of_class(class, turn)) {
                    if out.len() >= budget {
                        return last;
                    }
                    if self.write_some(lane, budget, out) {
                        last = lane.index().wrapping_add(1);
                    }
                }
            }
        }
        last
    }

    /// Writes a part of one lane. Returns whether it wrote something.
    fn write_some(&mut self, lane: Lane, budget: usize, out: &mut Output) -> bool {
        let sending = &mut self.sending[usize::from(lane.byte())];
        let counters = self.counters.at(lane.class());
        let (begun, held) = (out.len(), sending.held());
        while out.len() < budget
            && out.len() - begun < QUANTUM
            && let Some(written) = sending.write()
        {
            wire::put_frame(lane, written.number, &written.frame, out);
            counters.sent += 1;
            counters.sent_bytes += written.frame.len() as u64;
            counters.retransmitted += u64::from(written.is_again);
        }
        counters.stalled += u64::from(sending.stalls());
        if !sending.is_ready() {
            self.ready.remove(lane);
        }
        self.held[lane.class() as usize] -= held - sending.held();
        out.len() > begun
    }

    fn record(&mut self, now: Time, index: u8, record: Record) -> Result<(), PeerError> {
        let count = self.channels_count;
        let kind = record.kind();
        let Some(channel) = self.channels[usize::from(index)].as_mut() else { return Ok(()) };
        let (is_open, carried) = (channel.is_open, channel.lanes);
        match record {
            Record::Ping { time } => {
                channel.pong = Some(time);
                self.writable |= 1 << index;
            }
            Record::Pong { time } => {
                self.round_trip = Some(now.since(time));
                self.confirm_alive(time);
            }
            Record::Resume { resume_points } if !is_open => self.resume(index, &resume_points)?,
            Record::Frame { lane, number, frame } if is_open && carried.contains(lane) => {
                let receiving = &mut self.receiving[usize::from(lane.byte())];
                let number = receiving.admit(number, frame.len() as u64)?;
                if lane.class().is_resumed() {
                    self.unacknowledged.insert(lane);
                    let after = self.config.acknowledge_after;
                    let at = if receiving.has_many() { now } else { now.after(after) };
                    self.acknowledge_at = self.acknowledge_at.min(at);
                }
                let counters = self.counters.at(lane.class());
                counters.received += 1;
                counters.received_bytes += frame.len() as u64;
                let credit = Credit { lane, bytes: frame.len() as u64, epoch: self.epoch };
                self.events.push_back(Event::Received { lane, number, frame, credit });
            }
            Record::Acknowledged { lane, next, limit } if is_open && self.lanes.contains(lane) => {
                let sending = &mut self.sending[usize::from(lane.byte())];
                let held = sending.held();
                let is_news = sending.acknowledged(next, limit)?;
                if sending.is_ready() {
                    self.ready.insert(lane);
                    self.writable |= 1 << lane.channel(count);
                }
                self.held[lane.class() as usize] -= held - sending.held();
                if is_news {
                    self.events.push_back(Event::Acknowledged { lane, next });
                }
            }
            Record::Frame { lane, .. } | Record::Acknowledged { lane, .. } => {
                return Err(PeerError::UnexpectedRecord { kind, lane: lane.byte() });
            }
            Record::Resume { .. } => return Err(PeerError::UnexpectedRecord { kind, lane: 0 }),
        }
        Ok(())
    }

    /// Handles the peer's resume points for the lanes of a channel.
    fn resume(&mut self, index: u8, resume_points: &[ResumePoint]) -> Result<(), PeerError> {
        let lanes = self.carried(index);
        if !lanes.eq(resume_points.iter().map(|resume_point| resume_point.lane)) {
            return Err(PeerError::UnexpectedRecord { kind: Record::RESUME, lane: index });
        }
        for resume_point in resume_points {
            let sending = &mut self.sending[usize::from(resume_point.lane.byte())];
            let held = sending.held();
            let lost = sending.resume(resume_point)?;
            let (is_news, class) = (held != sending.held(), resume_point.lane.class());
            self.held[class as usize] -= held - sending.held();
            self.counters.at(class).lost += lost;
            if is_news {
                self.events
                    .push_back(Event::Acknowledged { lane: resume_point.lane, next: resume_point.next });
            }
        }
        if let Some(channel) = self.channels[usize::from(index)].as_mut() {
            channel.is_open = true;
        }
        self.ready = self.ready.or(lanes);
        self.writable |= 1 << index;
        if index == 0 {
            self.events.push_back(Event::Up);
        }
        Ok(())
    }

    fn drop_channel(&mut self, index: u8) {
        let channel = self.channels.get_mut(usize::from(index)).and_then(Option::take);
        let Some(channel) = channel.filter(|channel| channel.is_open) else { return };
        self.receiving.iter_mut().for_each(Receiving::resend);
        // Another channel must send the acknowledgements from now on.
        self.unacknowledged = self.lanes;
        self.mark_acknowledging();
        // Without the first channel the peer is suspect, and has no use for what waits on the others.
        let dropped = if index == 0 { self.lanes } else { channel.lanes };
        for lane in dropped.filter(|lane| lane.class().is_transient()) {
            let sending = &mut self.sending[usize::from(lane.byte())];
            self.held[lane.class() as usize] -= sending.held();
            self.counters.at(lane.class()).lost += sending.drop_unwritten();
        }
        if index == 0 {
            self.events.push_back(Event::Suspect);
        }
    }

    fn drop_channels(&mut self) {
        (0..self.channels.len() as u8).for_each(|index| self.drop_channel(index));
    }

    fn restart(&mut self) {
        // This event comes before the peer is suspect: frames that wait for a suspect peer may still arrive.
        self.events.push_back(Event::Restarted);
        self.drop_channels();
        self.held = [0; Class::ALL.len()];
        (self.ready, self.unacknowledged) = (Lanes::NONE, Lanes::NONE);
        self.lanes = Lanes::NONE;
        for sending in std::mem::take(&mut self.sending) {
            let (lane, frames) = (sending.lane(), sending.frames());
            let sending = sending.restarted();
            self.counters.at(lane.class()).lost += frames - sending.frames();
            self.held[lane.class() as usize] += sending.held();
            if sending.frames() > 0 {
                self.ready.insert(lane);
            }
            self.sending.push(sending);
        }
        self.receiving = Lane::all().map(|lane| Receiving::new(lane, self.config.window)).collect();
        self.epoch = self.epoch.wrapping_add(1);
        self.expects_since = None;
        self.counters.restarts += 1;
    }
}

/// Divisor of the heartbeat: work that is due within that part is nearly due. With less than half of a heartbeat, two
/// channels could miss each other for ever.
const NEARLY: u32 = 2;
/// Bytes that a lane writes before the next lane of its class has its turn.
const QUANTUM: usize = 64 * 1024;
