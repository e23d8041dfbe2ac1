//! Quality of Service.

/// Quality of Service level of a PUBLISH, a Will or a subscription (section 4.3).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum QoS {
    #[default]
    AtMostOnce = 0,
    AtLeastOnce = 1,
    ExactlyOnce = 2,
}

impl QoS {
    /// Returns the level of two bits on the wire; `None` for 3 and above, which no packet may have [MQTT-3.3.1-4].
    #[inline]
    pub const fn from_bits(bits: u8) -> Option<QoS> {
        match bits {
            0 => Some(QoS::AtMostOnce),
            1 => Some(QoS::AtLeastOnce),
            2 => Some(QoS::ExactlyOnce),
            _ => None,
        }
    }
}

impl TryFrom<u8> for QoS {
    type Error = u8;

    /// Converts a value. The error is the invalid value.
    fn try_from(value: u8) -> Result<QoS, u8> {
        QoS::from_bits(value).ok_or(value)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// [MQTT-3.3.1-4]
    #[test]
    fn there_are_three_levels() {
        assert_eq!(QoS::try_from(0), Ok(QoS::AtMostOnce));
        assert_eq!(QoS::try_from(1), Ok(QoS::AtLeastOnce));
        assert_eq!(QoS::try_from(2), Ok(QoS::ExactlyOnce));
        assert!((3..=u8::MAX).all(|value| QoS::try_from(value) == Err(value)));
    }
}
