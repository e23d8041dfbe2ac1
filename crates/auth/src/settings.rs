//! The settings of access control.

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
    /// Who may connect, and what they may do. Without a way to authenticate everybody may connect, but then only loopback
    /// addresses and Unix sockets are opened.
    [auth]
    pub struct Auth {
        /// Ways to authenticate in the order in which they are asked, separated by commas: `certificate`, `users`, `password_file`, `jwt`,
        /// `http`. Each must be configured. Unset: those that are configured, in this order.
        pub chain: Option<ChainNames> = "", on reload;
        /// How long all of them may take together; then the client is refused as Server unavailable.
        pub timeout: Duration = "5s" in "10ms..=1m", on reload;
        /// What follows when one of them cannot find out.
        pub on_failure: OnFailure = "refuse", on reload;
        /// Whether clients that show neither user name, password nor certificate may connect. Unset, they may when there is no way to
        /// authenticate. `true` is also the permission to listen on other than loopback addresses without one.
        pub allow_anonymous: Option<bool> = "", on reload;
        /// Listeners where they may in any case, by name, separated by commas.
        pub anonymous_listeners: ListenerNames = "", on reload;
        /// Users and their hashed passwords, made with `meridian passwd` or taken over from mosquitto (`$7$`).
        pub password_file: Option<PathBuf> = "", on reload;
        /// What of a client's certificate is its user name. With one, a verified certificate is enough to connect.
        pub certificate_username: CertificateName = "none", on reload;
        /// What of a client's certificate is its Client Identifier, whatever CONNECT says.
        pub certificate_client_id: CertificateName = "none", on reload;
        /// What comes before every topic of a client and is not seen by it, such as `tenants/${username}/`. Known are `${username}`,
        /// `${clientid}`, `${cert_cn}`, `${listener}` and `${attribute.NAME}`. A user or token with a mountpoint of its own has that instead.
        pub mountpoint: Option<Template> = "", on reload;
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
        /// Threads that ask other servers about clients.
        pub network_workers: usize = "16" in "1..=1024", at start;
        /// Connections that wait for one of these; those beyond it are refused as Server busy.
        pub network_waiting_max: u32 = "4096" in "1..=1000000", at start;
        /// Successes that are remembered (as keyed hashes), so that reconnecting costs little; 0 remembers none.
        pub cache_max: u32 = "100000", at start;
        /// How long a success is remembered; never longer than it is good.
        pub cache_ttl: Duration = "10m", at start;
        /// Users that there may be in the user database; the HTTP API refuses more.
        pub users_max: u32 = "1000000" in "0..=3000000", at start;
        /// Bans that there may be at once; the HTTP API refuses more.
        pub bans_max: u32 = "100000" in "0..=1000000", at start;
    }
}

choices! {
    /// What follows when a link of the chain cannot find out.
    pub enum OnFailure {
        /// The client is refused as Server unavailable.
        Refuse = "refuse",
        /// The next link is asked; when none knows the client, it is refused as Server unavailable.
        Next = "next",
    }
}
