/// Purpose of a frame, in the order in which frames leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Leases and Raft messages: delivered at most once, useless after a reconnect.
    Control,
    /// Claims of Client Identifiers and acknowledgements of clients.
    Claims,
    /// Raft messages of shards. They carry messages of clients, so they do not share a lane with leases. Delivered at
    /// most once; useless after a reconnect.
    Agreement,
    /// Requests to shards, and their answers.
    Requests,
    /// Routes and other replicated maps.
    Routes,
    /// Messages of QoS 1 and 2.
    Assured,
    /// Messages of QoS 0: at most once.
    BestEffort,
}

/// One ordered sequence of frames of a link. Frames of one lane arrive in order; lanes do not wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(u8);

/// Number of lanes for messages in each of the two message classes.
pub const LANES_MAX: u8 = 16;

/// Number of lanes in each of [`Class::Agreement`] and [`Class::Requests`].
pub const SHARD_LANES_MAX: u8 = 8;

/// Number of lanes of version 1 of the protocol, and the first lane of each class of version 2.
const COUNT_1: u8 = 3 + 2 * LANES_MAX;
const AGREEMENT: u8 = COUNT_1;
const REQUESTS: u8 = AGREEMENT + SHARD_LANES_MAX;
/// Version of the protocol that has the lanes for shards.
const VERSION_OF_SHARDS: u16 = 2;

impl Lane {
    pub const CONTROL: Self = Self(0);
    pub const CLAIMS: Self = Self(1);
    pub const ROUTES: Self = Self(2);
    pub(crate) const COUNT: usize = (REQUESTS + SHARD_LANES_MAX) as usize;

    /// Returns the lane for messages of QoS 1 and 2 whose topics hash to `index`, modulo [`LANES_MAX`].
    pub fn assured(index: u8) -> Self {
        Self(3 + index % LANES_MAX)
    }

    /// Returns the lane for messages of QoS 0, like [`Self::assured`].
    pub fn best_effort(index: u8) -> Self {
        Self(3 + LANES_MAX + index % LANES_MAX)
    }

    /// Returns the lane for Raft messages of the shard with number `index`, modulo [`SHARD_LANES_MAX`].
    pub fn agreement(index: u16) -> Self {
        Self(AGREEMENT + (index % u16::from(SHARD_LANES_MAX)) as u8)
    }

    /// Returns the lane for requests and answers of the worker with number `index`, modulo [`SHARD_LANES_MAX`].
    pub fn requests(index: u16) -> Self {
        Self(REQUESTS + (index % u16::from(SHARD_LANES_MAX)) as u8)
    }

    pub fn class(self) -> Class {
        match self.0 {
            0 => Class::Control,
            1 => Class::Claims,
            2 => Class::Routes,
            lane if lane < 3 + LANES_MAX => Class::Assured,
            lane if lane < AGREEMENT => Class::BestEffort,
            lane if lane < REQUESTS => Class::Agreement,
            _ => Class::Requests,
        }
    }

    /// Returns the index of the lane within its class.
    pub fn index(self) -> u8 {
        match self.class() {
            Class::Control | Class::Claims | Class::Routes => 0,
            Class::Assured => self.0 - 3,
            Class::BestEffort => self.0 - 3 - LANES_MAX,
            Class::Agreement => self.0 - AGREEMENT,
            Class::Requests => self.0 - REQUESTS,
        }
    }

    pub(crate) fn of_class(class: Class, index: u8) -> Self {
        match class {
            Class::Control => Self::CONTROL,
            Class::Claims => Self::CLAIMS,
            Class::Routes => Self::ROUTES,
            Class::Assured => Self::assured(index),
            Class::BestEffort => Self::best_effort(index),
            Class::Agreement => Self::agreement(index.into()),
            Class::Requests => Self::requests(index.into()),
        }
    }

    pub(crate) fn of_byte(byte: u8) -> Option<Self> {
        (usize::from(byte) < Self::COUNT).then_some(Self(byte))
    }

    pub(crate) fn byte(self) -> u8 {
        self.0
    }

    pub(crate) fn all() -> impl Iterator<Item = Self> {
        (0..Self::COUNT as u8).map(Self)
    }

    /// Returns the channel, of `channels`, that carries the lane. The first channel carries no messages, and nothing
    /// that contains messages, when there are more.
    pub(crate) fn channel(self, channels: u8) -> u8 {
        match self.class() {
            class if class.is_bulk() && channels > 1 => 1 + self.index() % (channels - 1),
            _ => 0,
        }
    }
}

/// A set of lanes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Lanes(u64);

const _: () = assert!(Lane::COUNT <= 64);

impl Lanes {
    pub const NONE: Self = Self(0);

    /// Returns the lanes of a version of the protocol. Version 0 has none: the peer's version is not known.
    pub fn of_version(version: u16) -> Self {
        match version {
            0 => Self::NONE,
            1..VERSION_OF_SHARDS => Self((1 << COUNT_1) - 1),
            VERSION_OF_SHARDS.. => Self((1 << Lane::COUNT) - 1),
        }
    }

    pub fn of_class(class: Class) -> Self {
        let messages = (1 << LANES_MAX) - 1;
        let shards = (1 << SHARD_LANES_MAX) - 1;
        match class {
            Class::Control => Self(1),
            Class::Claims => Self(1 << 1),
            Class::Routes => Self(1 << 2),
            Class::Assured => Self(messages << 3),
            Class::BestEffort => Self(messages << (3 + LANES_MAX)),
            Class::Agreement => Self(shards << AGREEMENT),
            Class::Requests => Self(shards << REQUESTS),
        }
    }

    pub fn contains(self, lane: Lane) -> bool {
        self.0 & 1 << lane.0 != 0
    }

    pub fn insert(&mut self, lane: Lane) {
        self.0 |= 1 << lane.0;
    }

    pub fn remove(&mut self, lane: Lane) {
        self.0 &= !(1 << lane.0);
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }

    pub fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// Iterates over the lanes in order, beginning at `lane`.
    pub fn from(self, lane: Lane) -> impl Iterator<Item = Lane> {
        let before = (1 << lane.0) - 1;
        Self(self.0 & !before).into_iter().chain(Self(self.0 & before))
    }
}

impl Iterator for Lanes {
    type Item = Lane;

    fn next(&mut self) -> Option<Lane> {
        if self.0 == 0 {
            return None;
        }
        let lane = Lane(self.0.trailing_zeros() as u8);
        self.0 &= self.0 - 1;
        Some(lane)
    }
}

impl FromIterator<Lane> for Lanes {
    fn from_iter<I: IntoIterator<Item = Lane>>(lanes: I) -> Self {
        let mut set = Self::NONE;
        lanes.into_iter().for_each(|lane| set.insert(lane));
        set
    }
}

impl Class {
    /// All classes, in order.
    pub const ALL: [Self; 7] = [
        Self::Control,
        Self::Claims,
        Self::Agreement,
        Self::Requests,
        Self::Routes,
        Self::Assured,
        Self::BestEffort,
    ];

    /// Returns whether the class has several lanes, whose frames are messages of clients or contain some.
    pub(crate) fn is_bulk(self) -> bool {
        matches!(self, Self::Agreement | Self::Requests | Self::Assured | Self::BestEffort)
    }

    /// Returns whether frames that were lost with a connection are sent again.
    pub fn is_resumed(self) -> bool {
        match self {
            Self::Claims | Self::Requests | Self::Routes | Self::Assured => true,
            Self::Control | Self::Agreement | Self::BestEffort => false,
        }
    }

    /// Returns whether only nodes of version 2 and later have lanes of the class.
    pub(crate) fn is_for_shards(self) -> bool {
        matches!(self, Self::Agreement | Self::Requests)
    }

    /// Returns whether frames are useless after a reconnect: those that were not written are dropped with the
    /// connection, and none is accepted without one.
    pub(crate) fn is_transient(self) -> bool {
        matches!(self, Self::Control | Self::Agreement)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::handshake::VERSION;

    #[test]
    fn every_lane_has_a_class_an_index_and_a_byte() {
        for lane in Lane::all() {
            assert_eq!(Lane::of_byte(lane.byte()), Some(lane));
            assert_eq!(Lane::of_class(lane.class(), lane.index()), lane);
        }
        assert_eq!(Lane::of_byte(Lane::COUNT as u8), None);
    }

    #[test]
    fn iteration_of_lanes_begins_at_the_given_lane() {
        let lanes: Lanes =
            [Lane::ROUTES, Lane::assured(3), Lane::assured(15), Lane::best_effort(15)].into_iter().collect();
        let assured = lanes.and(Lanes::of_class(Class::Assured));
        assert!(assured.from(Lane::assured(4)).eq([Lane::assured(15), Lane::assured(3)]));
        assert!(assured.from(Lane::assured(3)).eq([Lane::assured(3), Lane::assured(15)]));
        assert!(Lanes::of_version(VERSION).eq(Lane::all()));
        for class in Class::ALL {
            assert!(Lanes::of_class(class).eq(Lane::all().filter(|lane| lane.class() == class)));
        }
    }

    /// Nodes of version 1 end a connection with a lane that they do not know.
    #[test]
    fn version_1_has_no_lanes_for_shards() {
        let known: Vec<Lane> = Lanes::of_version(1).collect();
        assert!(known.iter().map(|lane| lane.byte()).eq(0..35));
        let is_for_shards = |lane: &Lane| matches!(lane.class(), Class::Agreement | Class::Requests);
        assert!(!known.iter().any(is_for_shards));
        assert_eq!(Lane::all().filter(is_for_shards).count() + known.len(), Lane::COUNT);
        assert!(Lanes::of_version(0).is_empty());
        assert_eq!([Lane::agreement(0), Lane::requests(0)].map(Lane::byte), [35, 43]);
        assert_eq!(Lane::requests(SHARD_LANES_MAX.into()), Lane::requests(0));
    }

    #[test]
    fn the_first_of_several_channels_carries_no_messages() {
        for lane in Lane::all() {
            assert_eq!(lane.channel(1), 0);
            let is_single = matches!(lane.class(), Class::Control | Class::Claims | Class::Routes);
            assert_eq!(lane.channel(4) == 0, is_single);
            assert!(lane.channel(4) < 4);
        }
        assert_eq!(Lane::assured(5).channel(4), Lane::best_effort(5).channel(4));
    }
}
