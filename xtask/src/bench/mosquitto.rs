//! Mosquitto: its program and its configuration. It is the peer of most measurements, and the other broker of the chaos
//! test.

use super::recipe;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Storage of its state.
#[derive(Clone, Copy)]
pub enum Persistence<'a> {
    Off,
    /// A directory that it writes after every change, as often as it can.
    EveryChange(&'a str),
}

/// Settings of every configuration. Limits that Meridian does not have are off. A process that changes its user would
/// survive the death of this one.
const SETTINGS: &str = "allow_anonymous true\n\
    set_tcp_nodelay true\n\
    max_queued_messages 1000000\n\
    max_inflight_messages 0\n\
    user root\n";

pub fn program() -> Option<PathBuf> {
    recipe::find("mosquitto")
}

/// A plain listener.
pub fn listener(address: SocketAddr) -> String {
    format!("listener {} {}\n", address.port(), address.ip())
}

/// The configuration with these listeners.
pub fn config(listeners: &str, persistence: Persistence) -> String {
    let persistence = match persistence {
        Persistence::Off => "persistence false\n".to_owned(),
        Persistence::EveryChange(directory) => format!(
            "persistence true\npersistence_location {directory}/\nautosave_on_changes true\nautosave_interval 1\n"
        ),
    };
    format!("{listeners}{SETTINGS}{persistence}")
}
