//! Subscription Options (3.8.3.1).

use crate::error::DecodeError;
use crate::qos::QoS;

/// Retained messages that a new subscription receives (3.8.3.1).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum RetainHandling {
    /// All messages that match [MQTT-3.3.1-9].
    #[default]
    Send = 0,
    /// All messages that match, if the subscription did not exist [MQTT-3.3.1-10].
    SendIfNew = 1,
    /// No messages [MQTT-3.3.1-11].
    DoNotSend = 2,
}

/// Options of a subscription. Before 5.0 there is only the QoS; the others have their defaults, with the same
/// meaning.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct SubscriptionOptions {
    /// Highest QoS at which messages are sent.
    pub qos: QoS,
    /// True to exclude the subscriber's own messages [MQTT-3.8.3-3].
    pub no_local: bool,
    /// True to keep the publisher's RETAIN flag [MQTT-3.3.1-12] [MQTT-3.3.1-13].
    pub retain_as_published: bool,
    pub retain_handling: RetainHandling,
}

impl SubscriptionOptions {
    /// Returns the byte of a 5.0 SUBSCRIBE.
    #[inline]
    pub const fn to_byte(self) -> u8 {
        self.qos as u8
            | (self.no_local as u8) << 2
            | (self.retain_as_published as u8) << 3
            | (self.retain_handling as u8) << 4
    }

    /// Returns the options of a byte of a 5.0 SUBSCRIBE.
    ///
    /// # Errors
    /// A reserved bit [MQTT-3.8.3-5], QoS 3 or Retain Handling 3 (3.8.3.1).
    #[inline]
    pub const fn from_byte(options: u8) -> Result<SubscriptionOptions, DecodeError> {
        if options & 0b1100_0000 != 0 {
            return Err(DecodeError::SubscriptionOptionsReserved { options });
        }
        let Some(qos) = QoS::from_bits(options & 0b11) else {
            return Err(DecodeError::SubscriptionQoSInvalid);
        };
        let retain_handling = match options >> 4 {
            0 => RetainHandling::Send,
            1 => RetainHandling::SendIfNew,
            2 => RetainHandling::DoNotSend,
            _ => return Err(DecodeError::RetainHandlingInvalid),
        };
        Ok(SubscriptionOptions {
            qos,
            no_local: options & 0b0100 != 0,
            retain_as_published: options & 0b1000 != 0,
            retain_handling,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Table 3-8: each byte is either refused or equals the result of [`SubscriptionOptions::to_byte`].
    #[test]
    fn every_byte_is_refused_or_encoded_again() {
        for byte in 0..=u8::MAX {
            let expected = if byte & 0xC0 != 0 {
                // [MQTT-3.8.3-5]
                Err(DecodeError::SubscriptionOptionsReserved { options: byte })
            } else if byte & 0b11 == 0b11 {
                Err(DecodeError::SubscriptionQoSInvalid)
            } else if byte & 0b11_0000 == 0b11_0000 {
                Err(DecodeError::RetainHandlingInvalid)
            } else {
                Ok(byte)
            };
            assert_eq!(SubscriptionOptions::from_byte(byte).map(SubscriptionOptions::to_byte), expected);
        }
        let options = SubscriptionOptions {
            qos: QoS::ExactlyOnce,
            no_local: true,
            retain_as_published: false,
            retain_handling: RetainHandling::SendIfNew,
        };
        assert_eq!(options.to_byte(), 0b0001_0110);
        assert_eq!(SubscriptionOptions::default().to_byte(), 0);
    }
}
