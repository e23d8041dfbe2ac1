//! `meridian account`: the accounts of a node, in its data directory. It works like `meridian key`.

use std::fs;
use std::io::{self, IsTerminal as _};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use api::Role;
use clap::{Args, Subcommand};

use crate::key::{KeyRole, Location, ended, say_when};

#[derive(Debug, Args)]
#[command(after_help = "\
Run it as the user of the node, on its machine. It needs no password and no key, so it works when an admin has forgotten the password:
  meridian account passwd alice --data-dir /var/lib/meridian
The password is asked for twice at a terminal, and read as one line from anything else.
In a cluster, run it on one node; the account is valid on all. When the node does not run, or reaches no majority of the cores, the
change is applied as soon as it does.")]
pub struct AccountArgs {
    #[command(subcommand)]
    command: AccountCommand,
}

#[derive(Debug, Subcommand)]
enum AccountCommand {
    /// Create an account
    Add {
        /// Name of the account
        name: String,
        /// Role of the account
        #[arg(long, value_enum)]
        role: KeyRole,
        #[command(flatten)]
        password: Password,
        #[command(flatten)]
        location: Location,
    },
    /// Change the password of an account, which ends its sessions
    Passwd {
        /// Name of the account
        name: String,
        #[command(flatten)]
        password: Password,
        #[command(flatten)]
        location: Location,
    },
    /// List the accounts
    List {
        #[command(flatten)]
        location: Location,
    },
    /// Remove an account, which ends its sessions
    Remove {
        /// Name of the account
        name: String,
        #[command(flatten)]
        location: Location,
    },
}

#[derive(Args, Debug)]
struct Password {
    /// File whose first line is the password
    #[arg(long, value_name = "FILE")]
    password_file: Option<PathBuf>,
}

impl Password {
    fn read(&self) -> Result<String, String> {
        match &self.password_file {
            Some(path) => first_line(path).map_err(|error| format!("{}: {error}", path.display())),
            None if io::stdin().is_terminal() => ctl::typed_password().map_err(unreadable),
            None => ctl::line().map_err(unreadable),
        }
    }
}

fn first_line(path: &Path) -> io::Result<String> {
    Ok(fs::read_to_string(path)?.lines().next().unwrap_or_default().to_owned())
}

fn unreadable(error: io::Error) -> String {
    format!("the password cannot be read: {error}")
}

impl AccountArgs {
    /// Runs the command. Exits with 1 when it failed.
    pub fn run(self) -> ExitCode {
        ended(self.command.run())
    }
}

impl AccountCommand {
    fn run(self) -> Result<String, String> {
        match self {
            Self::Add { name, role, password, location } => {
                let (file, role) = (location.file()?, Role::from(role));
                let made = file.add_account(&name, role, &password.read()?);
                let outcome = made.map_err(|error| error.to_string())?;
                say_when(&outcome, "the account is not in force yet");
                eprintln!("account {name} for {}, in {}", role.with_article(), file.path().display());
            }
            Self::Passwd { name, password, location } => {
                let changed = location.file()?.set_password(&name, &password.read()?);
                let outcome = changed.map_err(|error| error.to_string())?;
                say_when(&outcome, "the password is not changed yet");
                eprintln!("the password of the account {name} is changed");
            }
            Self::Remove { name, location } => {
                let outcome = location.file()?.remove_account(&name).map_err(|error| error.to_string())?;
                say_when(&outcome, "the account is not removed yet");
            }
            Self::List { location } => return list(&location),
        }
        Ok(String::new())
    }
}

fn list(location: &Location) -> Result<String, String> {
    let file = location.file()?;
    let accounts = file.accounts().map_err(|error| error.to_string())?;
    if accounts.is_empty() {
        eprintln!("{}: no accounts", file.path().display());
        return Ok(String::new());
    }
    let width = accounts.iter().map(|account| account.name.len()).max().unwrap_or(0).max(4);
    let mut out = format!("{:width$}  {:8}  {:24}  changed\n", "name", "role", "created");
    for account in accounts {
        let (name, role, created) = (&account.name, account.role.name(), account.created_at.to_string());
        out.push_str(&format!("{name:width$}  {role:8}  {created:24}  {}\n", account.changed_at));
    }
    Ok(out)
}
