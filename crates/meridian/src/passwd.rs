//! `meridian passwd`: users of a password file.

use std::io::{self, IsTerminal as _};
use std::path::PathBuf;
use std::process::ExitCode;

use auth::{
    PasswordFile, PasswordFileEdit, PasswordHash, SCRAM_ITERATIONS, SCRAM_ITERATIONS_MAX,
    SCRAM_ITERATIONS_MIN,
};
use clap::Args;

/// Add, change or remove users of a password file. Passwords are stored as Argon2id hashes, or with --scram so that
/// MQTT 5.0 clients can log in by SCRAM-SHA-256 (others still send the password). The password is asked for twice at
/// a terminal, and read as one line from anything else. A running node reads the file again on SIGHUP
#[derive(Args, Debug)]
pub struct PasswdArgs {
    /// Create the file; an existing file is overwritten
    #[arg(short, long, conflicts_with = "delete")]
    create: bool,
    /// Remove the user
    #[arg(short = 'D', long)]
    delete: bool,
    /// Take the password from the command line, where other users of this machine can see it
    #[arg(short, long, conflicts_with = "delete", requires = "password")]
    batch: bool,
    /// Store the keys for SCRAM-SHA-256; easier to guess from a stolen file than Argon2id
    #[arg(long, conflicts_with = "delete")]
    scram: bool,
    /// Iterations that the client computes at each login, with --scram
    #[arg(long, requires = "scram", default_value_t = SCRAM_ITERATIONS,
        value_parser = clap::value_parser!(u32).range(i64::from(SCRAM_ITERATIONS_MIN)..=i64::from(SCRAM_ITERATIONS_MAX)))]
    iterations: u32,
    /// Password file, see auth.password_file
    file: PathBuf,
    /// User name
    user: String,
    /// Password, with --batch
    #[arg(requires = "batch")]
    password: Option<String>,
}

impl PasswdArgs {
    pub fn run(self) -> ExitCode {
        match self.change() {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("meridian passwd: {error}");
                ExitCode::FAILURE
            }
        }
    }

    fn change(self) -> Result<(), String> {
        if self.user.is_empty() || self.user.contains([':', '\n', '\r']) || self.user.starts_with('#') {
            return Err("a user name must not be empty, contain `:` or begin with `#`".to_owned());
        }
        let at_file = |error: io::Error| format!("{}: {error}", self.file.display());
        let mut edit = match PasswordFileEdit::read(&self.file) {
            Ok(_) if self.create => PasswordFileEdit::default(),
            Ok(edit) => edit,
            Err(error) if error.kind() == io::ErrorKind::NotFound && !self.delete => {
                PasswordFileEdit::default()
            }
            Err(error) => return Err(at_file(error)),
        };
        if self.delete {
            if !edit.remove(&self.user) {
                return Err(format!("{}: there is no user `{}`", self.file.display(), self.user));
            }
        } else {
            let password = match self.password {
                Some(password) => password,
                None => ask().map_err(|error| format!("the password cannot be read: {error}"))?,
            };
            if password.is_empty() {
                return Err("the password is empty".to_owned());
            }
            let random = |error| format!("the system has no random bytes: {error}");
            let hash = if self.scram {
                edit.store_decoy_key().map_err(random)?;
                let hash = PasswordHash::create_scram(&password, self.iterations);
                hash.map_err(|error| error.to_string())?
            } else {
                PasswordHash::create(password.as_bytes()).map_err(random)?
            };
            edit.set(&self.user, &hash);
        }
        // An error in another line would make the node refuse the file: report it now.
        PasswordFile::parse(&self.file, &edit.text()).map_err(|error| error.to_string())?;
        edit.write(&self.file).map_err(at_file)
    }
}

fn ask() -> io::Result<String> {
    if io::stdin().is_terminal() { ctl::typed_password() } else { ctl::line() }
}

#[cfg(test)]
mod tests {
    use auth::{ScramRecord, ScramSource as _};

    use super::*;

    /// Returns whether the user can use SCRAM.
    fn knows(file: &PasswordFile, user: &str) -> bool {
        matches!(file.scram(user), ScramRecord::Keys(_))
    }

    struct Directory(PathBuf);

    impl Directory {
        fn new(test: &str) -> Self {
            let path = std::env::temp_dir().join(format!("meridian-passwd-{test}-{}", std::process::id()));
            std::fs::create_dir_all(&path).unwrap();
            Self(path)
        }

        fn args(&self, user: &str, password: Option<&str>) -> PasswdArgs {
            PasswdArgs {
                create: false,
                delete: false,
                batch: password.is_some(),
                scram: false,
                iterations: SCRAM_ITERATIONS,
                file: self.0.join("users"),
                user: user.to_owned(),
                password: password.map(str::to_owned),
            }
        }

        fn users(&self) -> usize {
            PasswordFile::read(&self.0.join("users")).unwrap().len()
        }
    }

    impl Drop for Directory {
        fn drop(&mut self) {
            std::fs::remove_dir_all(&self.0).unwrap();
        }
    }

    #[test]
    fn users_are_added_changed_and_removed() {
        let directory = Directory::new("users");
        directory.args("alice", Some("a")).change().unwrap();
        directory.args("bob", Some("b")).change().unwrap();
        directory.args("bob", Some("c")).change().unwrap();
        assert_eq!(directory.users(), 2);
        PasswdArgs { delete: true, ..directory.args("bob", None) }.change().unwrap();
        assert_eq!(directory.users(), 1);
        let error = PasswdArgs { delete: true, ..directory.args("bob", None) }.change().unwrap_err();
        assert!(error.contains("there is no user `bob`"), "{error}");
        PasswdArgs { create: true, ..directory.args("carol", Some("c")) }.change().unwrap();
        assert_eq!(directory.users(), 1);
    }

    #[test]
    fn scram_users_and_others_share_a_file() {
        let directory = Directory::new("scram");
        directory.args("alice", Some("a")).change().unwrap();
        PasswdArgs { scram: true, ..directory.args("bob", Some("b")) }.change().unwrap();
        PasswdArgs { scram: true, ..directory.args("carol", Some("c")) }.change().unwrap();
        let file = PasswordFile::read(&directory.0.join("users")).unwrap();
        assert!(knows(&file, "bob") && knows(&file, "carol"));
        assert!(!knows(&file, "alice"));
        assert!(file.stores_decoy_key(), "so that a restart does not reveal which users exist");
        let error = PasswdArgs { scram: true, ..directory.args("bob", Some("\u{7}")) }.change().unwrap_err();
        assert!(error.contains("control characters"), "{error}");
        directory.args("bob", Some("b")).change().unwrap();
        assert!(!knows(&PasswordFile::read(&directory.0.join("users")).unwrap(), "bob"));
    }

    #[test]
    fn names_and_passwords_that_the_file_cannot_hold_are_refused() {
        let directory = Directory::new("refused");
        for (user, password) in [("", "x"), ("a:b", "x"), ("a\nb", "x"), ("#a", "x"), ("a", "")] {
            assert!(directory.args(user, Some(password)).change().is_err(), "{user:?}");
        }
        assert!(!directory.0.join("users").exists());
        assert!(PasswdArgs { delete: true, ..directory.args("a", None) }.change().is_err());
    }
}
