//! The two sides of a bridge.

/// One of the two brokers that a bridge connects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// This broker, over a connection inside the process.
    Local,
    /// The other broker.
    Remote,
}

impl Side {
    /// Both sides.
    pub const ALL: [Self; 2] = [Self::Local, Self::Remote];

    /// Returns the opposite side.
    #[must_use]
    pub const fn other(self) -> Self {
        match self {
            Self::Local => Self::Remote,
            Self::Remote => Self::Local,
        }
    }
}

/// A value for each side.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sides<T> {
    pub local: T,
    pub remote: T,
}

impl<T> Sides<T> {
    /// Returns the value of a side.
    pub fn of(&self, side: Side) -> &T {
        match side {
            Side::Local => &self.local,
            Side::Remote => &self.remote,
        }
    }

    /// Returns the value of a side.
    pub fn of_mut(&mut self, side: Side) -> &mut T {
        match side {
            Side::Local => &mut self.local,
            Side::Remote => &mut self.remote,
        }
    }
}
