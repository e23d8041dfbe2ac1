/// What a frame is for, in the order in which frames leave.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Class {
    /// Leases, Raft: at most once, of no use after a reconnect.
    Control,
    /// Claims of Client Identifiers and acknowledgements of clients.
    Claims,
    /// Routes and other replicated maps.
    Routes,
    /// Messages of QoS 1 and 2.
    Assured,
    /// Messages of QoS 0: at most once.
    BestEffort,
}

/// One of the sequences of frames of a link. Frames of one lane arrive in order; lanes do not wait for each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Lane(u8);

/// Lanes for messages of each of the two classes.
pub const LANES_MAX: u8 = 16;

impl Lane {
    pub const CONTROL: Self = Self(0);
    pub const CLAIMS: Self = Self(1);
    pub const ROUTES: Self = Self(2);
    pub(crate) const COUNT: usize = 3 + 2 * LANES_MAX as usize;

    /// For messages of QoS 1 and 2 whose topics hash to `index`, of which the remainder by [`LANES_MAX`] counts.
    pub fn assured(index: u8) -> Self {
        Self(3 + index % LANES_MAX)
    }

    /// For messages of QoS 0 likewise.
    pub fn best_effort(index: u8) -> Self {
        Self(3 + LANES_MAX + index % LANES_MAX)
    }

    pub fn class(self) -> Class {
        match self.0 {
            0 => Class::Control,
            1 => Class::Claims,
            2 => Class::Routes,
            lane if lane < 3 + LANES_MAX => Class::Assured,
            _ => Class::BestEffort,
        }
    }

    /// Which of its class.
    pub fn index(self) -> u8 {
        match self.class() {
            Class::Control | Class::Claims | Class::Routes => 0,
            Class::Assured => self.0 - 3,
            Class::BestEffort => self.0 - 3 - LANES_MAX,
        }
    }

    pub(crate) fn of_class(class: Class, index: u8) -> Self {
        match class {
            Class::Control => Self::CONTROL,
            Class::Claims => Self::CLAIMS,
            Class::Routes => Self::ROUTES,
            Class::Assured => Self::assured(index),
            Class::BestEffort => Self::best_effort(index),
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

    /// The channel that carries it, of `channels`: the first has no messages when there are more.
    pub(crate) fn channel(self, channels: u8) -> u8 {
        match self.class() {
            class if class.is_message() && channels > 1 => 1 + self.index() % (channels - 1),
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
    pub const ALL: Self = Self((1 << Lane::COUNT) - 1);

    pub fn of_class(class: Class) -> Self {
        let messages = (1 << LANES_MAX) - 1;
        match class {
            Class::Control => Self(1),
            Class::Claims => Self(1 << 1),
            Class::Routes => Self(1 << 2),
            Class::Assured => Self(messages << 3),
            Class::BestEffort => Self(messages << (3 + LANES_MAX)),
        }
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

    /// Its lanes in their order, those from `lane` on first.
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
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Control, Self::Claims, Self::Routes, Self::Assured, Self::BestEffort];

    /// Whether there are several lanes of it, for messages of clients.
    pub(crate) fn is_message(self) -> bool {
        matches!(self, Self::Assured | Self::BestEffort)
    }

    /// Whether what was lost with a connection is sent again.
    pub fn is_resumed(self) -> bool {
        match self {
            Self::Claims | Self::Routes | Self::Assured => true,
            Self::Control | Self::BestEffort => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_lane_has_a_class_an_index_and_a_byte() {
        for lane in Lane::all() {
            assert_eq!(Lane::of_byte(lane.byte()), Some(lane));
            assert_eq!(Lane::of_class(lane.class(), lane.index()), lane);
        }
        assert_eq!(Lane::of_byte(Lane::COUNT as u8), None);
    }

    #[test]
    fn a_set_of_lanes_begins_where_it_is_told() {
        let lanes: Lanes =
            [Lane::ROUTES, Lane::assured(3), Lane::assured(15), Lane::best_effort(15)].into_iter().collect();
        let assured = lanes.and(Lanes::of_class(Class::Assured));
        assert!(assured.from(Lane::assured(4)).eq([Lane::assured(15), Lane::assured(3)]));
        assert!(assured.from(Lane::assured(3)).eq([Lane::assured(3), Lane::assured(15)]));
        assert!(Lanes::ALL.eq(Lane::all()));
        for class in Class::ALL {
            assert!(Lanes::of_class(class).eq(Lane::all().filter(|lane| lane.class() == class)));
        }
    }

    #[test]
    fn messages_keep_off_the_first_channel_when_there_are_more() {
        for lane in Lane::all() {
            assert_eq!(lane.channel(1), 0);
            let is_message = matches!(lane.class(), Class::Assured | Class::BestEffort);
            assert_eq!(lane.channel(4) > 0, is_message);
            assert!(lane.channel(4) < 4);
        }
        assert_eq!(Lane::assured(5).channel(4), Lane::best_effort(5).channel(4));
    }
}
