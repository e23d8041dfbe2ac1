//! Faults of rules, and their location.

use std::fmt;

use mqtt::TopicError;

/// Rule that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuleError {
    /// Column in its line; counts characters from 1.
    pub column: u32,
    pub fault: RuleFault,
}

/// Fault at that column.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RuleFault {
    /// The line begins with neither `allow` nor `deny`.
    Decision(String),
    /// This is expected, and something else or the end of the line was found.
    Expected {
        what: &'static str,
        found: Option<String>,
    },
    /// This is expected, and a keyword was found.
    Keyword {
        what: &'static str,
        found: String,
    },
    /// Another condition next to `everyone`.
    EveryoneAlone,
    QuoteOpen,
    /// Unknown character after a backslash between quotation marks.
    Escape(char),
    TopicInvalid {
        topic: String,
        why: TopicError,
    },
    /// Topic that begins with `$share/`.
    Share {
        filter: String,
    },
    Placeholder(String),
    /// `#` next to other topics.
    AllTopicsBeside,
    /// `eq` with a wildcard in a rule about publishing only.
    EqPublish,
    Address {
        text: String,
        why: crate::NetError,
    },
    CertField(String),
    Fingerprint(String),
    AttributeName(String),
    Qos(String),
    Twice(&'static str),
    /// `retain` in a rule about subscribing.
    RetainSubscribe,
    /// More than [`RULES_MAX`](super::RULES_MAX) rules.
    TooMany,
}

impl RuleError {
    pub(super) fn new(column: u32, fault: RuleFault) -> Self {
        Self { column, fault }
    }
}

impl fmt::Display for RuleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "column {}: {}", self.column, self.fault)
    }
}

impl std::error::Error for RuleError {}

impl fmt::Display for RuleFault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Decision(token) => write!(
                f,
                "a rule begins with allow or deny, not `{token}`; such as: allow user alice publish sensors/+/temp"
            ),
            Self::Expected { what, found: None } => {
                write!(f, "the line ends where {what} is expected")
            }
            Self::Expected { what, found: Some(found) } => write!(f, "expected {what}, found `{found}`"),
            Self::Keyword { what, found } => write!(
                f,
                "expected {what}, found `{found}`, which is a word of the rules; write \"{found}\" if it is a name here"
            ),
            Self::EveryoneAlone => {
                f.write_str("everyone stands alone: leave it out, or leave out the other conditions")
            }
            Self::QuoteOpen => f.write_str("the quotation mark is not closed; add \" after the name"),
            Self::Escape(character) => write!(
                f,
                "`\\{character}` is unknown; between quotation marks there are \\\" \\\\ and \\*, and \\\\ is a backslash"
            ),
            Self::TopicInvalid { topic, why } => {
                write!(f, "`{topic}` is not a Topic Filter: {why}")?;
                if topic.starts_with('#') {
                    f.write_str("; a comment after a rule begins with ##")?;
                }
                Ok(())
            }
            Self::Share { filter } => {
                write!(
                    f,
                    "rules apply to shared subscriptions too: write the filter alone, `{filter}`"
                )
            }
            Self::Placeholder(name) => write!(
                f,
                "unknown placeholder `${{{name}`; there are ${{clientid}}, ${{username}}, ${{cert_cn}}, ${{listener}} and ${{attribute.NAME}}"
            ),
            Self::AllTopicsBeside => f.write_str(
                "# is every topic, so other topics next to it have no effect: leave out one or the other; a comment after a rule begins with ##",
            ),
            Self::EqPublish => f.write_str(
                "nothing is published to a wildcard: leave out eq to mean the topics that it matches, or write subscribe",
            ),
            Self::Address { text, why } => write!(f, "`{text}` is not an address: {why}"),
            Self::CertField(text) => write!(
                f,
                "expected FIELD=VALUE such as cn=gateway-*, found `{text}`; fields are cn, subject, issuer, serial, dns, email, uri and fingerprint"
            ),
            Self::Fingerprint(text) => write!(
                f,
                "`{text}` is not a SHA-256 fingerprint: it has 64 hexadecimal digits, with colons or without"
            ),
            Self::AttributeName(text) => write!(
                f,
                "expected NAME=VALUE such as role=admin, found `{text}`; a name has A to Z, a to z, digits, `_`, `-`, `.` and `:`"
            ),
            Self::Qos(text) => {
                write!(f, "`{text}` is not a QoS; write 0, 1 or 2, several as in 0,1, or a range as in 0..1")
            }
            Self::Twice(token) => write!(f, "{token} occurs twice; leave out one of them"),
            Self::RetainSubscribe => f.write_str(
                "retain is about publishing: leave it out, or write publish instead of subscribe or all",
            ),
            Self::TooMany => write!(f, "there are more than {} rules", super::RULES_MAX),
        }
    }
}
