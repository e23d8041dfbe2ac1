//! The settings of access control.

use std::path::PathBuf;
use std::time::Duration;

use settings::section;

pub use crate::acl::SubscribeRule;
pub use crate::authority::{NoMatch, SourceNames};
pub use crate::web::settings::{HttpAclSettings, HttpAuthSettings, Method as HttpMethod};

section! {
    /// Who may connect, and what they may do. Without a password file everybody may connect, but then only loopback
    /// addresses and Unix sockets are opened.
    [auth]
    pub struct Auth {
        /// Whether clients without a user name may connect. Unset, they may when there is no password file. `true`
        /// is also the permission to listen on other than loopback addresses without a password file.
        pub allow_anonymous: Option<bool> = "", on reload;
        /// Users and their hashed passwords, made with `meridian passwd` or taken over from mosquitto (`$7$`).
        pub password_file: Option<PathBuf> = "", on reload;
        /// Sources of authorisation in the order in which they are asked, separated by commas: `rules`, `database`, `acl_file`, `http`.
        /// Unset: those that are configured, in this order.
        pub sources: Option<SourceNames> = "", on reload;
        /// What follows when none of them speaks of a question. Unset: everything is allowed when there is no source at all, and
        /// refused otherwise. `allow` is also the permission to listen on other than loopback addresses without a source.
        pub no_match: Option<NoMatch> = "", on reload;
        /// Who may publish and subscribe to what, one rule a line; see docs/access-rules.md.
        pub rules_file: Option<PathBuf> = "", on reload;
        /// Which topics who may read and write, in mosquitto's syntax.
        pub acl_file: Option<PathBuf> = "", on reload;
        /// When a subscription is granted under an ACL. Every delivery is checked besides.
        pub acl_subscribe: SubscribeRule = "covered", on reload;
        /// Threads that check passwords; 0 is half of the CPUs, at least one.
        pub workers: usize = "0" in "0..=256", at start;
        /// Connections that wait for such a thread; those beyond it are refused as Server busy.
        pub waiting_max: u32 = "4096" in "1..=1000000", at start;
        /// Accepted passwords that are remembered (as keyed hashes), so that reconnecting costs little; 0 remembers none.
        pub remembered_max: u32 = "100000", at start;
        /// How long an accepted password is remembered.
        pub remembered_time: Duration = "10m", at start;
        /// Bans that there may be at once; the HTTP API refuses more.
        pub bans_max: u32 = "100000" in "0..=1000000", at start;
    }
}
