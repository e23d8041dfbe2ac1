//! Check of files that other users must not be able to read.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use definitions::secrets;
use settings::Section;

use crate::config::Config;

/// Permission bits of other users: read and write.
const OTHERS: u32 = 0o006;

/// Secrets that every user of this machine could read or replace, with advice. A group may have access: where root owns
/// the files, the node reads them by its group.
pub fn open_to_others(config: &Config) -> Vec<String> {
    let open = of(config).into_iter().filter(|(_, path)| is_open(path));
    let warning = |(setting, path): (String, PathBuf)| {
        let path = path.display();
        format!(
            "{setting}: every user of this machine may read {path}: chmod 600 {path} (640 for a \
                 group of the node's own)"
        )
    };
    open.map(warning).collect()
}

/// Secret files, with the settings that name them.
fn of(config: &Config) -> Vec<(String, PathBuf)> {
    let Config { http, auth: _, jwt, http_auth, http_acl, cluster, edge, bridges, links, connectors, .. } =
        config;
    let named = [
        ("cluster.secret_file", &cluster.secret_file),
        ("cluster.tls_key", &cluster.tls_key),
        ("http.tls_key", &http.tls_key),
        ("jwt.secret_file", &jwt.secret_file),
        ("http_auth.headers_file", &http_auth.headers_file),
        ("http_auth.client_key", &http_auth.client_key),
        ("http_acl.headers_file", &http_acl.headers_file),
        ("http_acl.client_key", &http_acl.client_key),
    ];
    let named = named.into_iter().filter_map(|(name, path)| Some((name.to_owned(), path.clone()?)));
    let of_listeners = edge.listeners.iter().enumerate().filter_map(|(place, listener)| {
        Some((format!("listener.{place}.tls_key"), listener.tls_key.clone()?))
    });
    let of_entries = of_list(bridges).chain(of_list(links)).chain(of_list(connectors));
    named.chain(of_listeners).chain(of_entries).collect()
}

/// Secret files of the entries of a list.
fn of_list<S: Section>(entries: &[S]) -> impl Iterator<Item = (String, PathBuf)> {
    entries.iter().enumerate().flat_map(|(place, entry)| {
        let list = entry.description().name;
        secrets(entry).map(move |(setting, path)| (format!("{list}.{place}.{setting}"), path))
    })
}

fn is_open(path: &Path) -> bool {
    // A file that is missing or cannot be inspected is reported by its reader.
    std::fs::metadata(path)
        .is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & OTHERS != 0)
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;

    use super::*;

    #[test]
    fn a_secret_that_every_user_may_read_is_reported_with_its_setting() {
        let path = std::env::temp_dir().join(format!("meridian-secret-{}", std::process::id()));
        std::fs::write(&path, "secret").unwrap();
        let mut config = Config::default();
        config.cluster.secret_file = Some(path.clone());
        config.edge.listeners[1].tls_key = Some(path.clone());
        config.connectors.push(sinks::ConnectorSettings {
            token_file: Some(path.clone()),
            ..sinks::ConnectorSettings::default()
        });
        config.http.tls_key = Some("/nonexistent/key".into());
        let warnings = |mode| {
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            open_to_others(&config)
        };
        for mode in [0o644, 0o604, 0o602] {
            let found = warnings(mode);
            let [of_cluster, of_listener, of_connector] = &found[..] else { panic!("three: {found:?}") };
            assert!(
                of_cluster.starts_with("cluster.secret_file: ") && of_cluster.contains("chmod 600 "),
                "{of_cluster}"
            );
            assert!(of_listener.starts_with("listener.1.tls_key: "), "{of_listener}");
            assert!(of_connector.starts_with("connector.0.token_file: "), "{of_connector}");
        }
        for mode in [0o600, 0o640, 0o400] {
            assert_eq!(warnings(mode), Vec::<String>::new());
        }
        std::fs::remove_file(path).unwrap();
    }
}
