//! Watched files of a configuration.

use std::path::PathBuf;

use crate::config::Config;

/// Files that belong together: they are read, refused and used as one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// Listener with this index in the configuration.
    Listener(u16),
    /// The HTTP API.
    Https,
    /// Links to other nodes.
    Links,
    /// Services that are asked about clients: `http_auth` and `http_acl`.
    HttpServices,
    /// Keys that verify tokens. `jwt.jwks_file` is not among them: the thread of the JWK Set reads it regularly.
    Jwt,
}

impl Part {
    /// Name in logs and alarms.
    pub fn name(self, config: &Config) -> String {
        match self {
            Self::Listener(index) => match config.edge.listeners.get(usize::from(index)) {
                Some(listener) if !listener.name.is_empty() => format!("listener {}", listener.name),
                Some(listener) => format!("listener {}", listener.address),
                None => format!("listener {index}"),
            },
            Self::Https => "http".to_owned(),
            Self::Links => "cluster".to_owned(),
            Self::HttpServices => "http_auth, http_acl".to_owned(),
            Self::Jwt => "jwt".to_owned(),
        }
    }
}

/// Returns all parts that have files, with their paths. A path may be a directory of certificates and keys.
pub fn files(config: &Config) -> Vec<(Part, Vec<PathBuf>)> {
    let listeners = config.edge.listeners.iter().enumerate().filter_map(|(index, listener)| {
        let part = Part::Listener(u16::try_from(index).ok()?);
        let files = [
            &listener.tls_certificate,
            &listener.tls_key,
            &listener.tls_names,
            &listener.tls_client_ca,
            &listener.tls_client_crl,
        ];
        Some((part, set(&files)))
    });
    let (http, cluster, jwt) = (&config.http, &config.cluster, &config.jwt);
    let (auth, acl) = (&config.http_auth, &config.http_acl);
    let mut services = Vec::new();
    if auth.url.is_some() {
        let files = [&auth.headers_file, &auth.ca_file, &auth.client_certificate, &auth.client_key];
        services.extend(set(&files));
    }
    if acl.url.is_some() {
        let files = [&acl.headers_file, &acl.ca_file, &acl.client_certificate, &acl.client_key];
        services.extend(set(&files));
    }
    let others = [
        (Part::Https, set(&[&http.tls_certificate, &http.tls_key, &http.tls_client_ca])),
        (Part::Links, set(&[&cluster.tls_certificate, &cluster.tls_key, &cluster.tls_ca])),
        (Part::HttpServices, services),
        (Part::Jwt, set(&[&jwt.secret_file, &jwt.public_key_file, &jwt.jwks_ca_file])),
    ];
    listeners.chain(others).filter(|(_, files)| !files.is_empty()).collect()
}

fn set(files: &[&Option<PathBuf>]) -> Vec<PathBuf> {
    files.iter().copied().flatten().cloned().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_part_has_the_files_that_are_read_together() {
        let mut config = Config::default();
        assert_eq!(files(&config), [], "no setting names a file");
        config.edge.listeners[0].tls_certificate = Some("server.crt".into());
        config.edge.listeners[0].tls_names = Some("names".into());
        config.http.tls_key = Some("http.key".into());
        config.cluster.tls_ca = Some("ca.pem".into());
        config.cluster.secret_file = Some("secret".into());
        config.auth.acl_file = Some("acl".into());
        config.http_acl.headers_file = Some("headers".into());
        config.jwt.public_key_file = Some("jwt.pem".into());
        let of = |paths: &[&str]| paths.iter().map(PathBuf::from).collect::<Vec<_>>();
        let mut expected = vec![
            (Part::Listener(0), of(&["server.crt", "names"])),
            (Part::Https, of(&["http.key"])),
            (Part::Links, of(&["ca.pem"])),
            (Part::Jwt, of(&["jwt.pem"])),
        ];
        assert_eq!(files(&config), expected, "a service without an address has no files");
        config.http_acl.url = Some("http://127.0.0.1/".into());
        expected.insert(3, (Part::HttpServices, of(&["headers"])));
        assert_eq!(files(&config), expected);
    }
}
