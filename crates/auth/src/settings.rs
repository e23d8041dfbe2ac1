//! Settings of access control.

use std::path::PathBuf;
use std::time::Duration;

use settings::{choices, section};

pub use crate::acl::SubscribeRule;
pub use crate::authority::{NoMatch, SourceNames};
pub use crate::certificate::CertificateName;
pub use crate::chain::{ChainNames, LinkName};
pub use crate::guard::ListenerNames;
pub use crate::jwt::{Jwt, SecretEncoding, TokenField};
pub use crate::mountpoint::Template;
pub use crate::protection::settings::Protection;
pub use crate::web::settings::{HttpAclSettings, HttpAuthSettings, Method as HttpMethod};

section! {
    /// Access control: who may connect, publish and subscribe. Without a way to authenticate every client may connect,
    /// but then only loopback addresses and Unix sockets are opened.
    [auth]
    pub struct Auth {
        /// Ways to authenticate in the order in which they are asked, separated by commas: `certificate`, `users`,
        /// `password_file`, `jwt`, `http`. Each must be configured. Unset: those that are configured, in this order.
        pub chain: Option<ChainNames> = "", on reload;
        /// Maximum time of all ways together. Beyond it the client is refused with Server unavailable.
        pub timeout: Duration = "5s" in "10ms..=1m", on reload;
        /// Action when one of them fails.
        pub on_failure: OnFailure = "refuse", on reload;
        /// Accept clients without user name, password and certificate. Unset: they are accepted while there is no way
        /// to authenticate. `true` also permits listening on other than loopback addresses without one.
        pub allow_anonymous: Option<bool> = "", on reload;
        /// Names of listeners that always accept such clients, separated by commas.
        pub anonymous_listeners: ListenerNames = "", on reload;
        /// Password file with users and hashes, made with `meridian passwd` or by mosquitto (`$7$`).
        pub password_file: Option<PathBuf> = "", on reload;
        /// Field of a client's certificate that is its user name. With it, a verified certificate is enough to connect.
        pub certificate_username: CertificateName = "none", on reload;
        /// Field of a client's certificate that is its Client Identifier. It replaces the one in CONNECT.
        pub certificate_client_id: CertificateName = "none", on reload;
        /// Prefix of all topics of a client, invisible to the client, such as `tenants/${username}/`. It may contain
        /// `${username}`, `${clientid}`, `${cert_cn}`, `${listener}` and `${attribute.NAME}`. The own mountpoint of a
        /// user or token replaces it.
        pub mountpoint: Option<Template> = "", on reload;
        /// Sources of authorisation in the order in which they are asked, separated by commas: `rules`, `database`,
        /// `acl_file`, `http`. Unset: those that are configured, in this order.
        pub sources: Option<SourceNames> = "", on reload;
        /// Decision when no source has a rule for an action. Unset: everything is allowed without any source, and
        /// refused otherwise. `allow` also permits listening on other than loopback addresses without a source.
        pub no_match: Option<NoMatch> = "", on reload;
        /// File of access rules for publishing and subscribing, one a line; see docs/access-rules.md.
        pub rules_file: Option<PathBuf> = "", on reload;
        /// ACL file in mosquitto's syntax.
        pub acl_file: Option<PathBuf> = "", on reload;
        /// Condition for granting a subscription under an ACL file. Every delivery is checked too.
        pub acl_subscribe: SubscribeRule = "covered", on reload;
        /// Number of threads that check passwords; 0 is half of the CPUs, at least one.
        pub workers: usize = "0" in "0..=256", at start;
        /// Maximum number of connections that wait for such a thread; others are refused with Server busy.
        pub waiting_max: u32 = "4096" in "1..=1000000", at start;
        /// Number of threads that ask other servers about clients.
        pub network_workers: usize = "16" in "1..=1024", at start;
        /// Maximum number of connections that wait for one of these; others are refused with Server busy.
        pub network_waiting_max: u32 = "4096" in "1..=1000000", at start;
        /// Maximum number of remembered successes (as keyed hashes), which make reconnecting cheap; 0 remembers none.
        pub cache_max: u32 = "100000", at start;
        /// Time for which a success is remembered, at most until its own end.
        pub cache_ttl: Duration = "10m", at start;
        /// Maximum number of users in the user database; the HTTP API refuses more.
        pub users_max: u32 = "1000000" in "0..=3000000", at start;
        /// Maximum number of bans; the HTTP API refuses more.
        pub bans_max: u32 = "100000" in "0..=1000000", at start;
    }
}

choices! {
    /// Action when a link of the chain fails.
    pub enum OnFailure {
        /// The client is refused with Server unavailable.
        Refuse = "refuse",
        /// The next link is asked. If no link knows the client, it is refused with Server unavailable.
        Next = "next",
    }
}
