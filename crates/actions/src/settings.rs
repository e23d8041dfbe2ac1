//! Settings of all actions of a node: `[actions]`.

use std::path::PathBuf;

use settings::{ByteSize, section};
use sinks::Guard;

section! {
    /// Addresses that connectors may use, and limits of tenants. Link-local addresses are always refused.
    [actions]
    pub struct ActionsSettings {
        /// Allow connectors to reach addresses of the node's own machine.
        pub allow_loopback: bool = "false", at start;
        /// Allow connectors to reach addresses of private networks.
        pub allow_private: bool = "true", at start;
        /// Directory with a directory for each tenant that has the name of the tenant; an absolute path without `..`.
        /// All files of a connector of a tenant are below it. Unset: such connectors have no files.
        pub tenant_directory: Option<PathBuf> = "", at start;
        /// Maximum number of actions of a tenant.
        pub tenant_actions_max: u32 = "20" in "0..=1000", at start;
        /// Maximum number of connectors of a tenant.
        pub tenant_connectors_max: u32 = "20" in "0..=1000", at start;
        /// Maximum sum of `queue_bytes_max` of the actions of a tenant.
        pub tenant_queue_bytes_max: ByteSize = "8GiB", at start;
    }
}

impl ActionsSettings {
    pub fn guard(&self) -> Guard {
        Guard { allow_loopback: self.allow_loopback, allow_private: self.allow_private }
    }
}
