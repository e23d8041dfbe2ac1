//! Settings of protection.

use std::time::Duration;

use settings::section;

use super::backoff::Rule;

section! {
    /// Limits for clients that try too often. IPv4 addresses are counted singly, IPv6 addresses by their /64.
    [protection]
    pub struct Protection {
        /// Maximum number of wrong logins of one address for one user name within `failures_window`. Beyond it, logins
        /// of this address for this name are refused without a check, with 0x9F (Connection rate exceeded). Clients
        /// with a recent success (`auth.cache_ttl`) are still admitted. The same number for one user name from all
        /// addresses together delays each login for it by `failures_delay`. 0 is no limit, also none for addresses.
        pub failures_max: u32 = "10" in "0..=1000000", on reload;
        /// Maximum number of wrong logins of one address within `failures_window`, for all user names. Beyond it,
        /// logins of this address are refused without a check, with 0x9F. 0 is no limit.
        pub failures_address_max: u32 = "100" in "0..=1000000", on reload;
        /// Delay before a login is checked while its user name has too many wrong logins. 0s is no delay.
        pub failures_delay: Duration = "1s" in "0s..=10s", on reload;
        /// Time over which wrong logins are added up.
        pub failures_window: Duration = "1m" in "1s..=1d", on reload;
        /// Time for which logins are first refused. It doubles each time.
        pub failures_backoff: Duration = "10s" in "1s..=1d", on reload;
        /// Maximum time for which logins are refused. After the same time without a wrong login, the next refusal lasts
        /// `failures_backoff` again.
        pub failures_backoff_max: Duration = "10m" in "1s..=7d", on reload;
        /// Maximum number of connects with one Client Identifier within `flapping_window`; with more it is banned. A
        /// client with a mountpoint counts apart from those of other tenants, and is refused until the window is over,
        /// without a ban. Only admitted connects count. Each node counts the connects to itself. In a cluster with
        /// replicas of sessions, the node that leads the client's shard counts those to all nodes, with its own
        /// settings. 0 is no limit.
        pub flapping_connects_max: u32 = "0" in "0..=1000000", on reload;
        /// Time over which connects of a Client Identifier are added up.
        pub flapping_window: Duration = "1m" in "1s..=1d", on reload;
        /// Duration of the ban of a flapping Client Identifier.
        pub flapping_ban: Duration = "5m" in "1s..=365d", on reload;
        /// Maximum number of connects of one address in a second; others are refused with 0x9F. 0 is no limit.
        pub address_connects_per_second: u32 = "0" in "0..=1000000", on reload;
        /// Maximum number of addresses, user names and Client Identifiers that are remembered for this, of each kind.
        /// The oldest are removed.
        pub entries_max: u32 = "65536" in "16..=16777216", at start;
    }
}

impl Protection {
    /// Returns the back-off rule with this number of failures before a wait.
    pub(super) fn backoff(&self, failures_max: u32) -> Rule {
        Rule {
            failures_max,
            window: self.failures_window,
            first: self.failures_backoff,
            longest: self.failures_backoff_max.max(self.failures_backoff),
        }
    }
}
