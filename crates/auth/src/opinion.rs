//! What one source of authorisation says of a question.

/// An answer of one source; the sources are asked in their order until one of them has an opinion.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Opinion {
    Allow,
    Deny,
    /// It does not speak of this: the next source is asked.
    None,
    /// It has to find out first: it took a [`RetryAuthorize`](broker::access::RetryAuthorize), which is dropped when it knows.
    Later,
    /// It could not find out: the question is refused (fail closed), or the next source is asked where the operator said so.
    Failed,
}
