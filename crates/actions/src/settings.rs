//! Settings of all actions of a node: `[actions]`.

use settings::section;
use sinks::Guard;

section! {
    /// Addresses that connectors may reach. Link-local addresses are always refused.
    [actions]
    pub struct ActionsSettings {
        /// Allow connectors to reach addresses of the node's own machine.
        pub allow_loopback: bool = "false", at start;
        /// Allow connectors to reach addresses of private networks.
        pub allow_private: bool = "true", at start;
    }
}

impl ActionsSettings {
    pub fn guard(&self) -> Guard {
        Guard { allow_loopback: self.allow_loopback, allow_private: self.allow_private }
    }
}
