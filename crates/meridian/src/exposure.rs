//! Whether listeners may be opened to the network.

use std::fmt;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};

use api::Keys;
use api::settings::Listen;
use auth::settings::Auth;
use edge::settings::Listener;

/// A listener that other machines reach, where nothing says who may connect.
#[derive(Debug, PartialEq, Eq)]
pub struct Exposed {
    address: String,
}

impl fmt::Display for Exposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} can be reached from other machines, and nothing says who may connect. Either name a password file \
             (auth.password_file, made with `meridian passwd -c FILE USER`), or let everybody in on purpose \
             (--set auth.allow_anonymous=true), or listen on 127.0.0.1 only.",
            self.address
        )
    }
}

/// # Errors
/// The first listener that is open to other machines without a password file or a word that this is meant.
pub fn check(listeners: &[Listener], auth: &Auth) -> Result<(), Exposed> {
    let guarded = match auth.allow_anonymous {
        Some(_) => true,
        None => auth.password_file.is_some(),
    };
    match listeners.iter().find(|listener| !guarded && !is_local(&listener.address)) {
        Some(listener) => Err(Exposed { address: listener.address.clone() }),
        None => Ok(()),
    }
}

/// HTTP that other machines reach, where no key says who may do what.
#[derive(Debug, PartialEq, Eq)]
pub struct HttpExposed {
    address: SocketAddr,
    data_dir: PathBuf,
}

impl fmt::Display for HttpExposed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "HTTP on {} can be reached from other machines, and there is no API key, so everybody could do everything. Make \
             one (`meridian key add NAME --role admin --data-dir {}`), or listen on loopback only (--http 127.0.0.1:18083), \
             or do without (--http off).",
            self.address,
            self.data_dir.display()
        )
    }
}

/// # Errors
/// HTTP that is open to other machines without an API key.
pub fn check_http(listen: Listen, keys: &Keys, data_dir: &Path) -> Result<(), HttpExposed> {
    match listen {
        Listen::At(address) if !is_loopback(address.ip()) && keys.is_empty() => {
            Err(HttpExposed { address, data_dir: data_dir.to_owned() })
        }
        Listen::At(_) | Listen::Off => Ok(()),
    }
}

/// A name counts as local when all its addresses are. One that cannot be resolved cannot be opened either; why is
/// then said by whoever tries.
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
    use super::*;

    fn refused(address: &str, auth: &Auth) -> bool {
        let local = Listener::default();
        let listener = Listener { address: address.to_owned(), ..Listener::default() };
        check(&[local, listener], auth).is_err()
    }

    #[test]
    fn only_this_machine_gets_in_without_a_word() {
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
    fn a_password_file_or_a_word_opens_the_network() {
        let address = "0.0.0.0:1883";
        assert!(!refused(address, &Auth { password_file: Some("users".into()), ..Auth::default() }));
        assert!(!refused(address, &Auth { allow_anonymous: Some(true), ..Auth::default() }));
        // Then nobody gets in at all, which is safe.
        assert!(!refused(address, &Auth { allow_anonymous: Some(false), ..Auth::default() }));
    }

    #[test]
    fn the_refusal_says_what_to_do() {
        let listener = Listener { address: "0.0.0.0:1883".into(), ..Listener::default() };
        let text = check(&[listener], &Auth::default()).unwrap_err().to_string();
        for word in ["0.0.0.0:1883", "auth.password_file", "auth.allow_anonymous=true", "127.0.0.1"] {
            assert!(text.contains(word), "{text}");
        }
    }

    #[test]
    fn http_off_loopback_needs_a_key() {
        let directory = std::env::temp_dir().join(format!("meridian-exposure-{}", std::process::id()));
        let check = |address: &str| {
            let keys = Keys::read_only(&directory).unwrap();
            check_http(Listen::At(address.parse().unwrap()), &keys, &directory)
        };
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
        api::KeyFile::in_directory(&directory).add(&new).unwrap();
        assert_eq!(check("0.0.0.0:0"), Ok(()));
        std::fs::remove_dir_all(directory).unwrap();
    }
}
