//! Checks whether listeners may be opened to the network.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};

use api::settings::{HttpSettings, Listen};
use api::{KeyFile, Keys};
use auth::settings::Auth;

use crate::config::Config;

/// A listener that other machines reach.
#[derive(Debug, PartialEq, Eq)]
pub struct Exposed {
    address: String,
    missing: Missing,
}

/// Rule that is missing for clients of an exposed listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Missing {
    /// Nothing says which clients may connect.
    Authentication,
    /// Nothing says what clients may do.
    Authorisation,
}

impl fmt::Display for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.missing == Missing::Authorisation {
            return write!(
                f,
                "{} can be reached from other machines, and nothing says what clients may do. \
                 Either write rules, such as one that gives each user the topics below its \
                 name,\n\n    echo 'allow everyone all ${{username}}/#' > access.rules\n\nand \
                 name the file (--set auth.rules_file=access.rules), or let every client do \
                 everything on purpose (--set auth.no_match=allow), or listen on 127.0.0.1 \
                 only. See docs/access-rules.md.",
                self.address
            );
        }
        write!(
            f,
            "{} can be reached from other machines, and nothing says who may connect. Either name a password file \
             (auth.password_file, made with `meridian passwd -c FILE USER`) or another way to authenticate: tokens (section \
             [jwt]), a service of yours (http_auth.url), or those that auth.chain names, such as auth.chain=users; \
             or let every client in on purpose (--set auth.allow_anonymous=true), or listen on 127.0.0.1 only.",
            self.address
        )
    }
}

/// Refuses open listeners without rules.
///
/// # Errors
/// The first listener that other machines reach, while a rule is missing: which clients may connect, or what clients
/// may do.
pub fn check(config: &Config) -> Result<(), Exposed> {
    let missing = match () {
        () if !authenticates(config) => Missing::Authentication,
        () if !authorises(&config.auth) => Missing::Authorisation,
        () => return Ok(()),
    };
    match config.edge.listeners.iter().find(|listener| !is_local(&listener.address)) {
        Some(listener) => Err(Exposed { address: listener.address.to_string(), missing }),
        None => Ok(()),
    }
}

/// Returns whether something says which clients may connect, whatever happens later.
fn authenticates(Config { auth, jwt, http_auth, .. }: &Config) -> bool {
    // A named chain has links, or the node does not start. Users of the database count only there: without a name in
    // the chain nothing is protected after the last of them is removed.
    let is_said = auth.allow_anonymous.is_some() || auth.password_file.is_some() || auth.chain.is_some();
    let has_keys = jwt.secret_file.is_some()
        || jwt.public_key_file.is_some()
        || jwt.jwks_file.is_some()
        || jwt.jwks_url.is_some();
    is_said || has_keys || http_auth.url.is_some()
}

/// Returns whether something says what clients may do. A named source counts: it refuses requests that it has no rule
/// for.
fn authorises(auth: &Auth) -> bool {
    auth.rules_file.is_some() || auth.acl_file.is_some() || auth.sources.is_some() || auth.no_match.is_some()
}

/// HTTP that other machines reach and that is not secure.
#[derive(Debug, PartialEq, Eq)]
pub enum HttpExposed {
    /// Neither an API key nor an account exists, so requests are not restricted.
    NoKey { address: SocketAddr, data_dir: PathBuf },
    /// API keys could be read on the network.
    PlainText { address: SocketAddr },
}

impl fmt::Display for HttpExposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoKey { address, data_dir } => write!(
                f,
                "HTTP on {address} can be reached from other machines, and there is no API key \
                 and no account, so any client could do everything. Make one (`meridian key add \
                 NAME --role admin --data-dir {0}`, or `meridian account add` with the same \
                 options), or listen on loopback only (--http 127.0.0.1:18083), or \
                 do without (--http off).",
                data_dir.display()
            ),
            Self::PlainText { address } => write!(
                f,
                "HTTP on {address} can be reached from other machines without TLS, so API keys \
                 can be read on the network. Either set http.tls_certificate and http.tls_key \
                 (docs/security.md), or listen on loopback only (--http 127.0.0.1:18083) behind \
                 a proxy that has TLS, or say that this is meant (--set \
                 http.plain_text_allowed=true)."
            ),
        }
    }
}

/// Refuses insecure HTTP.
///
/// # Errors
/// HTTP that other machines reach without an API key and an account, or without TLS and `http.plain_text_allowed`.
pub fn check_http(http: &HttpSettings, keys: &Keys, data_dir: &Path) -> Result<(), HttpExposed> {
    let address = match http.listen {
        Listen::At(address) if !is_loopback(address.ip()) => address,
        Listen::At(_) | Listen::Off => return Ok(()),
    };
    // A pending key is made as soon as the node runs; until then requests are refused.
    if keys.is_empty() && !KeyFile::in_directory(data_dir).has_pending_key() {
        return Err(HttpExposed::NoKey { address, data_dir: data_dir.to_owned() });
    }
    if http.tls_certificate.is_none() && !http.plain_text_allowed {
        return Err(HttpExposed::PlainText { address });
    }
    Ok(())
}

/// Warning at every start: API keys cross the network unencrypted.
pub fn plain_text_warning(http: &HttpSettings) -> Option<String> {
    match http.listen {
        Listen::At(address) if !is_loopback(address.ip()) && http.tls_certificate.is_none() => Some(format!(
            "HTTP on {address} is without TLS (http.plain_text_allowed): API keys can be read on \
                 the network"
        )),
        Listen::At(_) | Listen::Off => None,
    }
}

/// Returns whether an address is local. A name is local when all its addresses are. A name that cannot be resolved
/// cannot be opened either; the listener reports it.
fn is_local(address: &str) -> bool {
    if address.starts_with("unix:") {
        return true;
    }
    if let Ok(address) = address.parse::<SocketAddr>() {
        return is_loopback(address.ip());
    }
    match address.to_socket_addrs() {
        Ok(mut addresses) => addresses.all(|address| is_loopback(address.ip())),
        Err(_) => true,
    }
}

fn is_loopback(ip: IpAddr) -> bool {
    ip.to_canonical().is_loopback()
}

#[cfg(test)]
mod tests {
    use auth::settings::{HttpAuthSettings, Jwt, NoMatch, SourceNames};
    use edge::settings::{EdgeSettings, Listener};

    use super::*;

    /// A configuration with a listener at this address and one on loopback.
    fn config(address: &str, auth: &Auth) -> Config {
        let listener = Listener { address: address.into(), ..Listener::default() };
        let edge = EdgeSettings { listeners: vec![Listener::default(), listener], ..EdgeSettings::default() };
        Config { edge, auth: auth.clone(), ..Config::default() }
    }

    fn refused(address: &str, auth: &Auth) -> bool {
        check(&config(address, auth)).is_err()
    }

    #[test]
    fn without_rules_only_loopback_may_be_opened() {
        let auth = Auth::default();
        for address in
            ["127.0.0.1:1883", "127.9.9.9:1", "[::1]:1883", "[::ffff:127.0.0.1]:1", "unix:/run/m.sock"]
        {
            assert!(!refused(address, &auth), "{address}");
        }
        for address in
            ["0.0.0.0:1883", "[::]:1883", "192.0.2.1:1883", "[2001:db8::1]:1883", "[::ffff:192.0.2.1]:1"]
        {
            assert!(refused(address, &auth), "{address}");
        }
    }

    #[test]
    fn a_password_file_or_an_explicit_setting_opens_the_network() {
        let address = "0.0.0.0:1883";
        let ruled = || Auth { rules_file: Some("rules".into()), ..Auth::default() };
        assert!(!refused(address, &Auth { password_file: Some("users".into()), ..ruled() }));
        assert!(!refused(address, &Auth { allow_anonymous: Some(true), ..ruled() }));
        let chain = auth::settings::ChainNames(vec![auth::settings::LinkName::Certificate]);
        assert!(!refused(address, &Auth { chain: Some(chain), ..ruled() }));
        // With this setting no client can connect at all, which is safe.
        assert!(!refused(address, &Auth { allow_anonymous: Some(false), ..ruled() }));
    }

    #[test]
    fn keys_of_tokens_or_a_service_open_the_network() {
        let ruled = config("0.0.0.0:1883", &Auth { rules_file: Some("rules".into()), ..Auth::default() });
        let with_jwt = |jwt: Jwt| check(&Config { jwt, ..ruled.clone() }).is_ok();
        assert!(with_jwt(Jwt { secret_file: Some("secret".into()), ..Jwt::default() }));
        assert!(with_jwt(Jwt { public_key_file: Some("key".into()), ..Jwt::default() }));
        assert!(with_jwt(Jwt { jwks_file: Some("set".into()), ..Jwt::default() }));
        assert!(with_jwt(Jwt { jwks_url: Some("https://id.example/".into()), ..Jwt::default() }));
        // Without keys there are no tokens.
        assert!(!with_jwt(Jwt { issuer: "https://id.example/".into(), ..Jwt::default() }));
        let with_service = |url: Option<&str>| {
            let http_auth = HttpAuthSettings { url: url.map(Into::into), ..HttpAuthSettings::default() };
            check(&Config { http_auth, ..ruled.clone() }).is_ok()
        };
        assert!(with_service(Some("http://127.0.0.1/")) && !with_service(None));
    }

    /// The last user of the database may be removed while the network stays open. Only a chain that names the
    /// database still protects it then.
    #[test]
    fn users_of_the_database_open_the_network_when_the_chain_names_them() {
        let ruled = Auth { rules_file: Some("rules".into()), ..Auth::default() };
        assert!(refused("0.0.0.0:1883", &ruled));
        let chain = auth::settings::ChainNames(vec![auth::settings::LinkName::Users]);
        assert!(!refused("0.0.0.0:1883", &Auth { chain: Some(chain), ..ruled }));
    }

    #[test]
    fn authenticated_clients_need_access_rules() {
        let address = "0.0.0.0:1883";
        let users = || Auth { password_file: Some("users".into()), ..Auth::default() };
        assert!(refused(address, &users()));
        assert!(refused(address, &Auth { allow_anonymous: Some(true), ..Auth::default() }));
        assert!(!refused("127.0.0.1:1883", &users()));
        for no_match in [NoMatch::Allow, NoMatch::Deny] {
            assert!(!refused(address, &Auth { no_match: Some(no_match), ..users() }));
        }
        assert!(!refused(address, &Auth { acl_file: Some("acl".into()), ..users() }));
        let database = Some(SourceNames(vec![auth::SourceName::Database]));
        assert!(!refused(address, &Auth { sources: database, ..users() }));
        let text = check(&config(address, &users())).unwrap_err().to_string();
        for word in [address, "auth.rules_file=access.rules", "auth.no_match=allow", "127.0.0.1"] {
            assert!(text.contains(word), "{text}");
        }
    }

    #[test]
    fn the_refusal_contains_advice() {
        let text = check(&config("0.0.0.0:1883", &Auth::default())).unwrap_err().to_string();
        for word in [
            "0.0.0.0:1883",
            "auth.password_file",
            "[jwt]",
            "http_auth.url",
            "auth.chain=users",
            "auth.allow_anonymous=true",
            "127.0.0.1",
        ] {
            assert!(text.contains(word), "{text}");
        }
    }

    #[test]
    fn http_off_loopback_needs_a_key() {
        let directory = std::env::temp_dir().join(format!("meridian-exposure-{}", std::process::id()));
        let http = |address: &str| HttpSettings {
            listen: Listen::At(address.parse().unwrap()),
            ..HttpSettings::default()
        };
        let check_these =
            |http: &HttpSettings| check_http(http, &Keys::read_only(&directory).unwrap(), &directory);
        let check = |address: &str| check_these(&http(address));
        for local in ["127.0.0.1:0", "[::1]:0", "[::ffff:127.0.0.1]:0"] {
            assert_eq!(check(local), Ok(()));
        }
        for open in ["0.0.0.0:0", "[::]:0", "192.0.2.1:0"] {
            let text = check(open).unwrap_err().to_string();
            assert!(
                text.contains("meridian key add") && text.contains(&*directory.to_string_lossy()),
                "{text}"
            );
        }
        let new = api::NewKey { name: "a".into(), role: api::Role::Admin, expires_in: None };
        KeyFile::in_directory(&directory).add(&new).unwrap();
        let text = check("0.0.0.0:0").unwrap_err().to_string();
        assert!(text.contains("http.tls_certificate") && text.contains("plain_text_allowed=true"), "{text}");
        let secure = HttpSettings { tls_certificate: Some("c".into()), ..http("0.0.0.0:0") };
        let meant = HttpSettings { plain_text_allowed: true, ..http("0.0.0.0:0") };
        assert_eq!((check_these(&secure), check_these(&meant)), (Ok(()), Ok(())));
        assert!(plain_text_warning(&meant).is_some());
        for quiet in [secure, http("127.0.0.1:0")] {
            assert_eq!(plain_text_warning(&quiet), None);
        }
        std::fs::remove_dir_all(&directory).unwrap();

        // A node with the keys of a cluster makes the pending key when it runs.
        let copy = configstore::ReplicatedStore::open(&directory, "a", 1).unwrap();
        copy.init_empty(7);
        drop(copy);
        let meant = || check_these(&HttpSettings { plain_text_allowed: true, ..http("0.0.0.0:0") });
        assert!(meant().is_err());
        KeyFile::in_directory(&directory).add(&new).unwrap();
        assert!(Keys::read_only(&directory).unwrap().is_empty());
        assert_eq!(meant(), Ok(()));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
