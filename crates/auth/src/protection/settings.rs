//! The settings of protection.

use std::time::Duration;

use settings::section;

use super::backoff::Rule;

section! {
    /// What happens to clients that try too often. Addresses count by themselves in IPv4, and by their /64 in IPv6.
    [protection]
    pub struct Protection {
        /// Wrong logins of one address for one user name within `failures_window`; further ones of this address for this name are refused
        /// unchecked with 0x9F (Connection rate exceeded). Who got in a short while ago (`auth.cache_ttl`) still gets in. As many for
        /// one user name from all addresses together delay each login for it by `failures_delay`. 0 is no limit, also none for addresses.
        pub failures_max: u32 = "10" in "0..=1000000", on reload;
        /// Wrong logins of one address within `failures_window`, whatever the user names; further ones of this address are refused unchecked
        /// with 0x9F. 0 is no limit.
        pub failures_address_max: u32 = "100" in "0..=1000000", on reload;
        /// How long a login waits before it is checked while its user name had too many wrong logins. 0s does not wait.
        pub failures_delay: Duration = "1s" in "0s..=10s", on reload;
        /// How long wrong logins are added up.
        pub failures_window: Duration = "1m" in "1s..=1d", on reload;
        /// For how long they are refused at first; each time twice as long as the time before.
        pub failures_backoff: Duration = "10s" in "1s..=1d", on reload;
        /// The longest time. After as long without a wrong login it begins with `failures_backoff` again.
        pub failures_backoff_max: Duration = "10m" in "1s..=7d", on reload;
        /// Connects with one Client Identifier within `flapping_window`; with more it is banned. 0 is no limit. Only those count
        /// that were let in, so that nobody can have another one banned.
        pub flapping_connects_max: u32 = "0" in "0..=1000000", on reload;
        /// How long its connects are added up.
        pub flapping_window: Duration = "1m" in "1s..=1d", on reload;
        /// For how long it is banned.
        pub flapping_ban: Duration = "5m" in "1s..=365d", on reload;
        /// Connects that one address may make in a second; those beyond it are refused with 0x9F. 0 is no limit.
        pub address_connects_per_second: u32 = "0" in "0..=1000000", on reload;
        /// Addresses, user names and Client Identifiers that are remembered for this, of each kind; the oldest are given up.
        pub entries_max: u32 = "65536" in "16..=16777216", at start;
    }
}

impl Protection {
    /// With so many failures until a wait.
    pub(super) fn backoff(&self, failures_max: u32) -> Rule {
        Rule {
            failures_max,
            window: self.failures_window,
            first: self.failures_backoff,
            longest: self.failures_backoff_max.max(self.failures_backoff),
        }
    }
}
