//! Inputs and outputs of a relay.

use std::fmt;
use std::time::Duration;

use crate::settings::{Password, Settings};
use crate::side::Side;
use crate::time::Time;

/// One connection to one of the two brokers. Inputs about an earlier connection are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnectionId {
    pub side: Side,
    pub(super) number: u64,
}

/// An event that a relay handles.
#[derive(Debug)]
pub enum Input<'a> {
    /// Starts the bridge, also after it has stopped.
    Start,
    /// A connection was opened.
    Opened(ConnectionId),
    /// A connection could not be opened.
    Failed(ConnectionId, String),
    /// A connection has ended, with the cause if it is known.
    Closed(ConnectionId, String),
    /// Bytes arrived on a connection.
    Received(ConnectionId, &'a [u8]),
    /// Bytes at the beginning of [`Relay::outgoing`](super::Relay::outgoing) were written.
    Sent(ConnectionId, usize),
    /// The time of [`Relay::poll_timeout`](super::Relay::poll_timeout) has come.
    Timeout,
    /// Number of messages that wait in the local session while it is not connected. A lazy bridge needs it.
    Queued(u64),
    /// Stops the bridge. Messages in flight are completed first, for at most this time.
    Stop { within: Duration },
    /// Replaces the settings. The connections are closed and opened again.
    Configure(Box<Settings>),
    /// Password of the following connections to the remote broker, before [`Input::Opened`].
    Password(Option<Password>),
    /// Changes the filters that are wanted at the remote broker. The caller chooses a higher `number` each time, see
    /// [`Relay::settled_number`](super::Relay::settled_number). A filter in both lists is wanted.
    ///
    /// The first one has all filters that are wanted then: subscriptions of the remote session that are not among them
    /// end. Only a relay with [`InterestSettings`](crate::InterestSettings) accepts this.
    Want { number: u64, add: Vec<Box<str>>, remove: Vec<Box<str>> },
    /// Replaces the filters that are wanted at the remote broker, in the manner of [`Input::Want`].
    WantOnly { number: u64, filters: Vec<Box<str>> },
}

/// A request of a relay.
#[derive(Debug, PartialEq, Eq)]
pub enum Output {
    /// Open a connection: to this broker, or to the remote one at this address.
    Open { connection: ConnectionId, address: Option<String> },
    /// Write `rest` if the connection accepts it within a short time, and close the connection. It may be opening.
    Close { connection: ConnectionId, rest: Vec<u8> },
    /// [`Relay::state`](super::Relay::state) has changed.
    StateChanged,
}

/// State of a bridge, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum State {
    /// The bridge was created and not started.
    New,
    /// The bridge registers its subscriptions at this broker.
    Preparing,
    /// A lazy bridge waits for messages.
    Idle,
    /// The bridge connects to this address.
    Connecting {
        address: String,
    },
    Connected {
        address: String,
        since: Time,
    },
    /// The bridge completes messages before it stops.
    Stopping,
    /// The bridge connects again at `until`, because of `reason`.
    Waiting {
        until: Time,
        reason: String,
    },
    Stopped {
        reason: String,
    },
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::New => f.write_str("not started"),
            Self::Preparing => f.write_str("registering subscriptions"),
            Self::Idle => f.write_str("idle"),
            Self::Connecting { address } => write!(f, "connecting to {address}"),
            Self::Connected { address, .. } => write!(f, "connected to {address}"),
            Self::Stopping => f.write_str("stopping"),
            Self::Waiting { reason, .. } => write!(f, "waiting: {reason}"),
            Self::Stopped { reason } => write!(f, "stopped: {reason}"),
        }
    }
}
