//! A bridge between two MQTT brokers, without I/O, clocks or threads.
//!
//! Read [`Relay`] first. [`Settings`] describe a bridge, [`TopicMap`] names its topics on both sides, and [`Client`] is
//! the client side of one connection.
//!
//! The driver of a [`Relay`] owns the connections and the clock:
//! 1. It gives each event to [`Relay::handle`], first [`Input::Start`].
//! 2. It then performs all outputs of [`Relay::poll_output`]. It writes the bytes of [`Relay::outgoing`] for each side,
//!    and reports what was written with [`Input::Sent`].
//! 3. It reads from a side only while [`Relay::wants_read`] is true, at most some 64 KiB at once.
//! 4. It calls again at [`Relay::poll_timeout`] with [`Input::Timeout`].
//!
//! **Invariant:** a bridge needs no state of its own for a message. The sessions of the two brokers have all of it.

#![forbid(unsafe_code)]

mod client;
mod counters;
mod cover;
mod flow;
mod interest;
mod lane;
mod message;
mod mutation;
mod refusals;
mod relay;
mod settings;
mod side;
mod sweep;
mod time;
mod topic_map;

pub use client::{Client, CloseReason, ConnectOptions, Event, Limits, Unsent, WillMessage};
pub use counters::{Counters, Dropped, Traffic};
pub use cover::cover;
pub use interest::{InterestError, InterestSettings};
pub use message::{GROUP, ORIGIN, VIA};
pub use mutation::Mutation;
#[cfg(feature = "trial")]
pub use mutation::{mutate, reached};
pub use relay::{ConnectionId, Existing, Input, Output, Relay, State};
pub use settings::{
    AddressOrder, AddressSessions, Backoff, Direction, Names, Notifications, Pass, Password, Settings,
    SettingsError, Start, Topic,
};
pub use side::{Side, Sides};
pub use time::Time;
pub use topic_map::{MapError, Mapped, TopicMap, Wanted};
