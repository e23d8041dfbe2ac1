//! SUBACKs of level `links`, which wait until linked clusters have the subscriptions.

use std::time::Duration;

use crate::ids::{ConnectionId, Ticket};

/// A SUBACK that waits for links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WaitingSuback {
    pub connection: ConnectionId,
    pub ticket: Ticket,
}

/// Result of [`LinkWaits::begin`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Begun {
    /// The answer will come.
    Waits,
    /// No link takes any of the filters.
    Nothing,
    /// Too many SUBACKs wait.
    Busy,
}

/// The links to other clusters, for SUBACKs. Workers call it, so it must not block.
pub trait LinkWaits: Send + Sync {
    /// Begins to wait until links have the filters of a SUBSCRIBE, for at most this time. All nodes of this cluster
    /// know them. [`Admin::links_answered`](crate::admin::Admin::links_answered) ends the wait.
    fn begin(&self, suback: WaitingSuback, filters: Vec<Box<str>>, within: Duration) -> Begun;

    /// Ends the waits of a connection, which is closed. They get no answer.
    fn cancel(&self, connection: ConnectionId);
}
