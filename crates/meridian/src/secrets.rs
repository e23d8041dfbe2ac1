//! Check of files that other users must not be able to read, and of the directories of such files.

use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use definitions::{is_plain, secrets};
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

/// Checks the directories below which entries name their files. Returns what is wrong: no file would be below such a
/// directory, and the entries would be refused because of their files.
pub fn check_directories(config: &Config) -> Vec<String> {
    let wrong =
        directories(config).filter_map(|(setting, path)| Some((setting, check_directory(path).err()?)));
    wrong.map(|(setting, why)| format!("{setting}: {why}")).collect()
}

/// Directories of files of entries that cannot be inspected, with advice. The node starts without them: a directory may
/// be mounted later, and files are read when an entry needs them.
pub fn missing_directories(config: &Config) -> Vec<String> {
    let missing =
        directories(config).filter_map(|(setting, path)| Some((setting, path, path.metadata().err()?)));
    let warning = |(setting, path, error): (&str, &Path, std::io::Error)| {
        let path = path.display();
        match error.kind() {
            ErrorKind::NotFound => {
                format!("{setting}: there is no directory {path}: create it, or name the one with the files")
            }
            _ => format!("{setting}: {path} cannot be inspected, {error}: let the user of the node read it"),
        }
    };
    missing.map(warning).collect()
}

/// Directories below which entries name their files, with their settings.
fn directories(config: &Config) -> impl Iterator<Item = (&'static str, &Path)> {
    let named = [
        ("http.secrets_directory", &config.http.secrets_directory),
        ("actions.tenant_directory", &config.connector_access.tenant_directory),
    ];
    named.into_iter().filter_map(|(setting, path)| Some((setting, path.as_deref()?)))
}

fn check_directory(path: &Path) -> Result<(), String> {
    let shown = path.display();
    if !path.is_absolute() {
        return Err(format!(
            "{shown} is a relative path; write an absolute one, such as /etc/meridian/secrets"
        ));
    }
    if !is_plain(path) {
        return Err(format!("{shown} has `..` in it; write the path without it"));
    }
    match path.metadata() {
        Ok(found) if !found.is_dir() => {
            Err(format!("{shown} is not a directory; name the directory of the files"))
        }
        Err(error) if error.kind() == ErrorKind::NotADirectory => {
            Err(format!("{shown} lies below a file; name the directory of the files"))
        }
        _ => Ok(()),
    }
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

    #[test]
    fn a_directory_of_files_is_checked_with_its_setting() {
        let directory = std::env::temp_dir().join(format!("meridian-secrets-{}", std::process::id()));
        let (file, missing) = (directory.join("file"), directory.join("missing"));
        std::fs::create_dir_all(&directory).unwrap();
        std::fs::write(&file, "secret").unwrap();
        let checked = |path: &Path| {
            let mut config = Config::default();
            config.http.secrets_directory = Some(path.to_owned());
            config.connector_access.tenant_directory = Some(path.to_owned());
            (check_directories(&config), missing_directories(&config))
        };
        let both = |why: &str| {
            ["http.secrets_directory", "actions.tenant_directory"]
                .map(|setting| format!("{setting}: {why}"))
                .to_vec()
        };
        let shown = directory.display();
        assert_eq!(checked(&directory), (Vec::new(), Vec::new()));
        assert_eq!(checked(&directory.join(".")), (Vec::new(), Vec::new()));
        let why = format!("there is no directory {shown}/missing: create it, or name the one with the files");
        assert_eq!(checked(&missing), (Vec::new(), both(&why)));
        for (path, why) in [
            (Path::new("secrets"), "secrets is a relative path; write an absolute one".to_owned()),
            (Path::new("./secrets"), "./secrets is a relative path; write an absolute one".to_owned()),
            (&missing.join(".."), format!("{shown}/missing/.. has `..` in it; write the path without it")),
            (&file, format!("{shown}/file is not a directory; name the directory of the files")),
            (&file.join("a"), format!("{shown}/file/a lies below a file; name the directory of the files")),
        ] {
            let (problems, _) = checked(path);
            assert_eq!(problems.len(), 2, "{problems:?}");
            for (problem, expected) in problems.iter().zip(both(&why)) {
                assert!(problem.starts_with(&expected), "{problem}");
            }
        }
        std::fs::remove_dir_all(directory).unwrap();
        assert_eq!(
            (check_directories(&Config::default()), missing_directories(&Config::default())),
            Default::default()
        );
    }
}
