//! Words for reasons in events.

use mqtt::ReasonCode;

/// Returns the name of a Reason Code as one word, such as `session_taken_over`.
pub fn reason(code: ReasonCode) -> String {
    code.to_string().to_ascii_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "_")
}

/// Returns the word for the text of a trace about a message that a client does not get.
pub fn drop_reason(why: &str) -> &'static str {
    match why {
        "expired" | "expired in its queue" => "expired",
        "the client's queue is full" | "the client's queue is full again" => "queue_full",
        "the client does not read fast enough" => "slow_reader",
        "larger than the client's Maximum Packet Size" => "packet_too_large",
        super::super::deliver::NOT_READABLE => "not_readable",
        why if why.starts_with("the node is overloaded") => "overload",
        _ => "not_stored",
    }
}
