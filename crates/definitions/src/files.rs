//! Files that entries name.

use std::path::{Component, Path, PathBuf};

use settings::{Section, Value as _};

use crate::json::json;
use crate::problem::Problem;

/// Directory with the secrets of entries. Who may change entries can name files below it only: otherwise any file that
/// the node may read could be sent to another system.
#[derive(Clone, Debug, Default)]
pub struct SecretsDirectory(Option<PathBuf>);

impl SecretsDirectory {
    /// Creates the check of a directory. With none, entries may name any file.
    pub fn new(directory: Option<PathBuf>) -> Self {
        Self(directory)
    }

    /// Checks that the files with secrets of an entry are below the directory. It compares paths as they are written:
    /// a symbolic link below the directory may lead elsewhere.
    ///
    /// # Errors
    /// The first setting that names a file elsewhere.
    pub fn check(&self, settings: &impl Section) -> Result<(), Problem> {
        let Some(own) = &self.0 else { return Ok(()) };
        let elsewhere = secrets(settings).find(|(_, path)| !is_below(path, own));
        elsewhere.map_or(Ok(()), |(setting, path)| {
            let why = format!(
                "{} is not below {}, which is http.secrets_directory; write a path below it without ..",
                path.display(),
                own.display()
            );
            Err(Problem::new(setting, why))
        })
    }
}

/// Returns the settings of an entry that name files or directories, with their values.
pub fn paths<S: Section>(settings: &S) -> impl Iterator<Item = (&'static str, PathBuf)> {
    let fields = settings.description().fields.iter().filter(|field| field.type_name == PathBuf::TYPE);
    fields.filter_map(|field| Some((field.key, json(&settings.show(field.key)?).as_str()?.into())))
}

/// Returns the settings of an entry that name files with secrets, with their values.
pub fn secrets<S: Section>(settings: &S) -> impl Iterator<Item = (&'static str, PathBuf)> {
    paths(settings).filter(|(setting, _)| !WITHOUT_SECRETS.contains(setting))
}

/// Returns whether a path leads to something below a directory, as far as that is known without the file system.
pub fn is_below(path: &Path, directory: &Path) -> bool {
    // A name such as `..` leads out of the directory.
    is_plain(path) && path.starts_with(directory) && path != directory
}

/// Returns whether a path has names only, without `.` and `..`.
pub fn is_plain(path: &Path) -> bool {
    path.components().all(|part| matches!(part, Component::Normal(_) | Component::RootDir))
}

/// Settings of files and directories that contain no secret. All others count as secrets, also new ones.
const WITHOUT_SECRETS: [&str; 3] = ["tls_ca", "tls_certificate", "directory"];

#[cfg(test)]
mod tests {
    use super::*;

    settings::section! {
        /// Pigeons.
        [pigeon]
        pub struct Pigeon {
            /// Name of the pigeon.
            pub name: String = "", at start;
            /// File with a secret.
            pub ring_file: Option<PathBuf> = "", at start;
            /// Private key.
            pub tls_key: Option<PathBuf> = "", at start;
            /// Authorities.
            pub tls_ca: Option<PathBuf> = "", at start;
        }
    }

    #[test]
    fn the_paths_of_an_entry_are_those_that_are_set() {
        let pigeon = Pigeon {
            name: "/n".into(),
            tls_ca: Some("/a \"b\"".into()),
            tls_key: Some("k".into()),
            ..Pigeon::default()
        };
        let found: Vec<_> = paths(&pigeon).collect();
        assert_eq!(found, [("tls_key", "k".into()), ("tls_ca", "/a \"b\"".into())]);
    }

    #[test]
    fn secrets_are_below_their_directory_as_paths_are_written() {
        let directory = SecretsDirectory::new(Some("/secrets".into()));
        let set = |path: &str| Pigeon { ring_file: Some(path.into()), ..Pigeon::default() };
        for path in ["/secrets/a", "/secrets/a/b", "/secrets//a", "/secrets/..a"] {
            assert_eq!(directory.check(&set(path)), Ok(()), "{path}");
        }
        for path in [
            "/etc/a",
            "/secrets",
            "/secrets/",
            "/secretsx/a",
            "/secrets/../etc/a",
            "/secrets/a/..",
            "secrets/a",
        ] {
            let problem = directory.check(&set(path)).expect_err(path);
            assert_eq!(problem.setting, "ring_file");
            assert_eq!(
                problem.why,
                format!(
                    "{path} is not below /secrets, which is http.secrets_directory; write a path below it without .."
                )
            );
            assert_eq!(SecretsDirectory::default().check(&set(path)), Ok(()), "{path}");
        }
        let public = Pigeon { tls_ca: Some("/etc/ca".into()), ..Pigeon::default() };
        assert_eq!(directory.check(&public), Ok(()));
        let key = Pigeon { tls_key: Some("/etc/key".into()), ..public };
        assert_eq!(directory.check(&key).expect_err("a key").setting, "tls_key");
    }
}
