use mqtt::QoS;

/// Messages of a Topic Filter that a node wants.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Wants(u8);

impl Wants {
    /// Nothing.
    pub const NOTHING: Self = Self(0);
    /// Everything: for a session that ends with its connection.
    pub const ALL: Self = Self(1);
    /// Messages that are delivered at QoS 0: for the connection of a durable session.
    pub const QOS0: Self = Self(2);
    /// Messages of QoS 1 and 2: for a durable session.
    pub const STORED: Self = Self(4);

    /// Messages that are delivered at QoS 0: for the connection of a session of a linked cluster. Nodes of earlier
    /// versions ignore it.
    pub const LINK: Self = Self(8);

    pub const EACH: [Self; 4] = [Self::ALL, Self::QOS0, Self::STORED, Self::LINK];

    /// Decodes the output of [`Self::bits`]; bits without a meaning are ignored.
    pub fn from_bits(bits: u8) -> Self {
        Self(bits & (Self::ALL.0 | Self::QOS0.0 | Self::STORED.0 | Self::LINK.0))
    }

    pub fn bits(self) -> u8 {
        self.0
    }

    pub fn is_nothing(self) -> bool {
        self.0 == 0
    }

    pub fn includes(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    #[must_use]
    pub fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    #[must_use]
    pub fn without(self, other: Self) -> Self {
        Self(self.0 & !other.0)
    }

    /// Returns whether a message of this QoS is wanted. A message above QoS 0 may be delivered at QoS 0 to a
    /// subscription of that QoS.
    pub fn takes(self, qos: QoS) -> bool {
        match qos {
            QoS::AtMostOnce => self.0 & (Self::ALL.0 | Self::QOS0.0 | Self::LINK.0) != 0,
            QoS::AtLeastOnce | QoS::ExactlyOnce => self.0 != 0,
        }
    }
}
