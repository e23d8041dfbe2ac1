//! What a client of MQTT 5.0 is told of subscriptions that it does not get, besides their Reason Codes.

use mqtt::ReasonCode;

/// Topic Filters that one packet says something about, at most; the Reason Codes say the rest.
const TOLD_MAX: usize = 4;

/// A Reason String for the Reason Codes of a SUBACK or UNSUBACK; `None` when nothing was refused.
pub fn told(reasons: &[u8]) -> Option<String> {
    let refused = reasons.iter().enumerate().filter_map(|(index, byte)| {
        let reason = ReasonCode::try_from(*byte).ok().filter(|reason| reason.is_error())?;
        Some(if reasons.len() == 1 {
            why(reason)
        } else {
            format!("Topic Filter {}: {}", index + 1, why(reason))
        })
    });
    let told: Vec<String> = refused.take(TOLD_MAX).collect();
    (!told.is_empty()).then(|| told.join("; "))
}

fn why(reason: ReasonCode) -> String {
    let more = match reason {
        ReasonCode::NotAuthorized => "access control does not allow it",
        ReasonCode::TopicFilterInvalid => "it is malformed, too long or has too many levels",
        ReasonCode::QuotaExceeded => {
            "there are as many subscriptions as there may be, or nothing more can be kept"
        }
        reason => return reason.name().to_owned(),
    };
    format!("{}: {more}", reason.name())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_why_and_of_several_which() {
        assert_eq!(told(&[0, 1, 2]), None);
        assert_eq!(told(&[0x87]).as_deref(), Some("Not authorized: access control does not allow it"));
        let several = told(&[0, 0x9E, 1, 0xA2]).expect("two");
        let both = "Topic Filter 2: Shared Subscriptions not supported; Topic Filter 4: Wildcard Subscriptions not supported";
        assert_eq!(several, both);
        assert_eq!(told(&[0x80; 100]).expect("some").matches(';').count(), TOLD_MAX - 1);
    }
}
