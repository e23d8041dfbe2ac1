//! `meridian key`: the API keys of a node, in its data directory. A node that runs there makes the change, also when
//! the keys are replicated. So it is the recovery when the last admin key is lost.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use api::{KeyFile, NewKey, Outcome, Role};
use clap::{Args, Subcommand, ValueEnum};
use settings::{Raw, Value as _};

use crate::config::ConfigArgs;

#[derive(Debug, Args)]
#[command(after_help = "\
Run it as the user of the node, on its machine. It needs no other key, so it works when the last admin key is lost:
  meridian key add rescue --role admin --data-dir /var/lib/meridian
In a cluster, run it on one node; the key is valid on all. When the node does not run, or reaches no majority of the cores, the
change is applied as soon as it does.")]
pub struct KeyArgs {
    #[command(subcommand)]
    command: KeyCommand,
}

#[derive(Debug, Subcommand)]
enum KeyCommand {
    /// Create a key and print its token, which is not stored anywhere
    Add {
        /// Name of the key, for lists and the audit log
        name: String,
        /// Role of the key
        #[arg(long, value_enum)]
        role: KeyRole,
        /// Duration for which the key is valid, as in 90d or 12h [default: no expiry]
        #[arg(long, value_name = "DURATION", value_parser = duration)]
        expires: Option<Duration>,
        /// File with the token of the key, for a token that other programs know already [default: a random token,
        /// which is printed]
        #[arg(long, value_name = "FILE")]
        token_file: Option<PathBuf>,
        /// Do nothing when there is a key of this name, or when a key waits for the node to make it
        #[arg(long)]
        if_absent: bool,
        #[command(flatten)]
        location: Location,
    },
    /// List the keys
    List {
        #[command(flatten)]
        location: Location,
    },
    /// Remove a key
    Remove {
        /// Name of the key
        name: String,
        #[command(flatten)]
        location: Location,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum KeyRole {
    /// Read everything but payloads, keys and the audit log
    Viewer,
    /// Act on clients and messages
    Operator,
    /// Change the configuration and the keys
    Admin,
}

impl From<KeyRole> for Role {
    fn from(role: KeyRole) -> Self {
        match role {
            KeyRole::Viewer => Self::Viewer,
            KeyRole::Operator => Self::Operator,
            KeyRole::Admin => Self::Admin,
        }
    }
}

/// Location of the node's data.
#[derive(Args, Debug)]
pub struct Location {
    /// Data directory of the node [default: the configured one, or ./data]
    #[arg(long, value_name = "DIRECTORY")]
    data_dir: Option<PathBuf>,
    /// Configuration file (TOML) of the node
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
}

impl Location {
    /// Returns the keys and accounts there.
    ///
    /// # Errors
    /// The configuration cannot be read.
    pub fn file(&self) -> Result<KeyFile, String> {
        let directory = match &self.data_dir {
            Some(directory) => directory.clone(),
            None => {
                let args = ConfigArgs { config: self.config.clone(), ..ConfigArgs::default() };
                args.load().map_err(|error| error.to_string())?.1.tree.node.data_dir
            }
        };
        Ok(KeyFile::in_directory(&directory))
    }
}

fn duration(text: &str) -> Result<Duration, String> {
    let read = Duration::from_raw(&Raw::Text(text.to_owned())).map_err(|error| error.to_string())?;
    if read.is_zero() { Err("a key that is never valid is of no use".to_owned()) } else { Ok(read) }
}

impl KeyArgs {
    /// Runs the command. Exits with 1 when it failed.
    pub fn run(self) -> ExitCode {
        let done = match self.command {
            KeyCommand::Add { name, role, expires, token_file, if_absent, location } => {
                location.file().and_then(|file| match if_absent && has(&file, &name)? {
                    true => Ok(String::new()),
                    false => add(&file, name, role, expires, token_file.as_deref()),
                })
            }
            KeyCommand::List { location } => location.file().and_then(|file| list(&file)),
            KeyCommand::Remove { name, location } => location.file().and_then(|file| {
                let outcome = file.remove(&name).map_err(|error| error.to_string())?;
                say_when(&outcome, "the key is not removed yet");
                Ok(String::new())
            }),
        };
        ended(done)
    }
}

/// Prints the result of a command. Returns 1 for an error.
pub fn ended(done: Result<String, String>) -> ExitCode {
    match done {
        Ok(text) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn has(file: &KeyFile, name: &str) -> Result<bool, String> {
    let has = file.has(name).map_err(|error| error.to_string())?;
    if has {
        eprintln!("there is a key {name} already, or a key waits for the node; nothing is changed");
    }
    Ok(has)
}

/// Adds a key. Only a new token goes to standard output, so that it can be redirected to a file.
fn add(
    file: &KeyFile,
    name: String,
    role: KeyRole,
    expires_in: Option<Duration>,
    token_file: Option<&Path>,
) -> Result<String, String> {
    let new = NewKey { name, role: role.into(), expires_in };
    let (key, printed, outcome) = match token_file {
        None => file.add(&new).map(|(key, token, outcome)| (key, Some(token), outcome)),
        Some(path) => {
            let text = fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
            file.add_with_token(&new, text.trim()).map(|(key, outcome)| (key, None, outcome))
        }
    }
    .map_err(|error| error.to_string())?;
    say_when(&outcome, "the key is not in force yet");
    let until = key.expires_at.map_or("for good".to_owned(), |time| format!("until {time}"));
    let (role, path) = (key.role.name(), file.path());
    eprint!("key {} for a {role}, valid {until}, in {}.", key.name, path.display());
    match printed {
        Some(token) => {
            eprintln!(" This is its token; it is not shown again:");
            Ok(format!("{token}\n"))
        }
        None => {
            eprintln!();
            Ok(String::new())
        }
    }
}

/// Reports a change that is not applied yet, and what it waits for.
pub fn say_when(outcome: &Outcome, what: &str) {
    let Outcome::Pending { path, runs } = outcome else { return };
    let path = path.display();
    match runs {
        true => eprintln!(
            "{what}: the node here has not applied the change. It will, as soon as it reaches a \
             majority of the cores (its log says more); to withdraw it, remove {path}"
        ),
        false => eprintln!(
            "{what}: the keys are replicated, and no node runs here. The change is applied when \
                 the node is started; to withdraw it, remove {path}"
        ),
    }
}

fn list(file: &KeyFile) -> Result<String, String> {
    let keys = file.read().map_err(|error| error.to_string())?;
    if keys.is_empty() {
        eprintln!("{}: no keys", file.path().display());
        return Ok(String::new());
    }
    let width = keys.iter().map(|key| key.name.len()).max().unwrap_or(0).max(4);
    let mut out = format!("{:width$}  {:8}  {:24}  expires\n", "name", "role", "created");
    for key in keys {
        let expires = key.expires_at.map_or("never".to_owned(), |time| time.to_string());
        let (role, created) = (key.role.name(), key.created_at.to_string());
        out.push_str(&format!("{:width$}  {role:8}  {created:24}  {expires}\n", key.name));
    }
    Ok(out)
}
