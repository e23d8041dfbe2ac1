//! Reason Strings for refused requests of MQTT 5.0 clients. The texts name the limit or the rule, and nothing about
//! other clients.

use mqtt::ReasonCode;

/// Limits that the filters of one SUBSCRIBE exceeded, other than the number of subscriptions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExceededLimits {
    /// Limits on unusual wildcard shapes, such as `routing.shapes_max`.
    pub shapes: bool,
    /// Limits on the bytes that the node holds, `quota.client_bytes_max` and `quota.user_bytes_max`.
    pub bytes: bool,
    /// Limit on the shared subscriptions of one client, `session.shared_subscriptions_max`.
    pub shared: bool,
}

impl ExceededLimits {
    /// Adds the limits that other subscriptions exceeded.
    pub fn add(&mut self, other: Self) {
        self.shapes |= other.shapes;
        self.bytes |= other.bytes;
        self.shared |= other.shared;
    }
}

/// Maximum number of Topic Filters that a Reason String mentions. The Reason Codes cover the others.
const FILTERS_NAMED_MAX: usize = 4;

/// Returns a Reason String for the Reason Codes of a SUBACK or UNSUBACK; `None` if nothing was refused.
pub fn reason_string(reasons: &[u8], exceeded: ExceededLimits) -> Option<String> {
    let refused = reasons.iter().enumerate().filter_map(|(index, byte)| {
        let reason = ReasonCode::try_from(*byte).ok().filter(|reason| reason.is_error())?;
        Some(if reasons.len() == 1 {
            why(reason, exceeded)
        } else {
            format!("Topic Filter {}: {}", index + 1, why(reason, exceeded))
        })
    });
    let reasons: Vec<String> = refused.take(FILTERS_NAMED_MAX).collect();
    (!reasons.is_empty()).then(|| reasons.join("; "))
}

fn why(reason: ReasonCode, exceeded: ExceededLimits) -> String {
    let more = match reason {
        ReasonCode::NotAuthorized => "access control does not allow it",
        ReasonCode::TopicFilterInvalid => "it is malformed, too long or has too many levels",
        ReasonCode::QuotaExceeded if exceeded.shapes => {
            "too many different arrangements of wildcards, of this client or of all clients; use at most two + in at most 16 levels, which \
             is never refused for this"
        }
        ReasonCode::QuotaExceeded if exceeded.bytes => {
            "the Topic Filters of this client, or of its user, have reached their maximum number of bytes"
        }
        ReasonCode::QuotaExceeded if exceeded.shared => {
            "this client has reached its maximum number of shared subscriptions"
        }
        ReasonCode::QuotaExceeded => {
            "the maximum number of subscriptions is reached, or no more can be stored"
        }
        reason => return reason.name().to_owned(),
    };
    format!("{}: {more}", reason.name())
}

/// Returns a Reason String for a refused PUBLISH.
pub fn publish(reason: ReasonCode) -> Option<&'static str> {
    match reason {
        ReasonCode::NotAuthorized => {
            Some("access control does not allow this client to publish to this topic")
        }
        ReasonCode::QuotaExceeded => Some(
            "there is no room for the message: a limit of this node, or of the client's user, is reached",
        ),
        _ => None,
    }
}

/// Returns a Reason String for a refused CONNECT.
pub fn connect(reason: ReasonCode) -> Option<&'static str> {
    match reason {
        ReasonCode::NotAuthorized => Some("access control does not accept the credentials of this client"),
        ReasonCode::QuotaExceeded => Some(
            "a limit on connections or sessions is reached, of this node, of the client's user or of its mountpoint",
        ),
        ReasonCode::UseAnotherServer => Some("this node is drained for maintenance: connect to another one"),
        _ => None,
    }
}

/// Reason String for a client whose session cannot be reached.
pub const NO_ANSWER: &str =
    "the nodes that store the sessions do not answer: try again later, or another node";
/// Reason String for a client whose Will is denied.
pub const WILL_DENIED: &str = "access control does not allow this client to publish its Will Message";
pub const WILL_TOO_LARGE: &str = "the Will Message is larger than this node accepts";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reason_string_names_the_reason_and_the_filter() {
        let reason_string = |reasons: &[u8]| reason_string(reasons, ExceededLimits::default());
        assert_eq!(reason_string(&[0, 1, 2]), None);
        assert_eq!(
            reason_string(&[0x87]).as_deref(),
            Some("Not authorized: access control does not allow it")
        );
        let several = reason_string(&[0, 0x9E, 1, 0xA2]).expect("two");
        let both = "Topic Filter 2: Shared Subscriptions not supported; Topic Filter 4: Wildcard Subscriptions not supported";
        assert_eq!(several, both);
        assert_eq!(reason_string(&[0x80; 100]).expect("some").matches(';').count(), FILTERS_NAMED_MAX - 1);
    }

    #[test]
    fn a_reason_string_names_exceeded_wildcard_limits() {
        let shapes = reason_string(&[0x97], ExceededLimits { shapes: true, ..ExceededLimits::default() })
            .expect("refused");
        assert!(shapes.contains("arrangements of wildcards"), "{shapes}");
    }
}
