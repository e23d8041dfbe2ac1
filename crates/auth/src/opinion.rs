//! Answer of one source of authorisation.

/// Answer of one source. The sources are asked in order until one has an opinion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opinion {
    Allow,
    Deny,
    /// No rule of the source applies: the next source is asked.
    None,
    /// The answer is pending. The source has taken a [`RetryAuthorize`](access::RetryAuthorize), and drops it
    /// when the answer is known.
    Later,
    /// The source failed: access is refused (fail closed), or the next source is asked if the operator has configured
    /// that.
    Failed,
}
