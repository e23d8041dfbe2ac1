//! `meridian ctl accounts`: people who log in to the dashboard with a name and a password.

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use ureq::http::Method;

use super::Command;
use super::keys::Role;
use crate::confirm::confirm;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::pages::show_whole;
use crate::password::PasswordArgs;
use crate::query::{Query, encode};
use crate::table::{left, right};

/// List, make, change and remove accounts: people who log in to the dashboard with a name and a password
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl accounts
  meridian ctl accounts add alice --role operator        asks for the password
  meridian ctl accounts add alice --role admin < file    or reads it from standard input
  meridian ctl accounts passwd alice
  meridian ctl accounts role alice viewer
  meridian ctl accounts remove alice

Roles are those of `meridian ctl keys`. A new password or role ends the sessions of the account, on every node.
The first account is made with `meridian account add NAME --role admin` on the node's machine.
Programs use keys, see `meridian ctl keys`. Clients of MQTT are users, see `meridian ctl users`.")]
pub struct AccountsArgs {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List accounts (the default)
    List,
    /// Make an account
    Add {
        /// Name of the account
        name: String,
        /// Role of the account
        #[arg(long, value_enum)]
        role: Role,
        #[command(flatten)]
        password: PasswordArgs,
    },
    /// Change the password of an account
    Passwd {
        /// Name of the account
        name: String,
        #[command(flatten)]
        password: PasswordArgs,
    },
    /// Change the role of an account
    Role {
        /// Name of the account
        name: String,
        /// New role
        #[arg(value_enum)]
        role: Role,
    },
    /// Remove an account
    Remove {
        /// Name of the account
        name: String,
    },
}

const PATH: &str = "/api/v1/accounts";

impl Command for AccountsArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        match self.verb {
            None | Some(Verb::List) => list(console),
            Some(Verb::Add { name, role, password }) => {
                let body = json!({"name": name, "role": role.name(), "password": password.read(console)?});
                let added = console.client.send(Method::POST, PATH, &Query::new(), Some(&body))?;
                console.done(&added, &format!("account {name}, {}", role.name()))
            }
            Some(Verb::Passwd { name, password }) => {
                let body = json!({"password": password.read(console)?});
                change(console, &name, &body, "the password is changed, and its sessions have ended")
            }
            Some(Verb::Role { name, role }) => {
                let body = json!({"role": role.name()});
                change(console, &name, &body, &format!("{} now, and its sessions have ended", role.name()))
            }
            Some(Verb::Remove { name }) => {
                confirm(console, &format!("Remove the account {name}?"))?;
                let removed = console.client.send(Method::DELETE, &path(&name), &Query::new(), None)?;
                console.done(&removed, &format!("account {name} is removed"))
            }
        }
    }
}

fn path(name: &str) -> String {
    format!("{PATH}/{}", encode(name))
}

fn change(console: &mut Console, name: &str, body: &Value, done: &str) -> Result<(), Failure> {
    let changed = console.client.send(Method::PATCH, &path(name), &Query::new(), Some(body))?;
    console.done(&changed, &format!("account {name}: {done}"))
}

fn list(console: &mut Console) -> Result<(), Failure> {
    let answer = console.client.get(PATH, &Query::new())?;
    let columns = [left("NAME"), left("ROLE"), right("SESSIONS"), left("CREATED"), left("CHANGED")];
    show_whole(console, &answer, "accounts", &columns, |account: &Value| {
        vec![
            account.cell("name"),
            account.cell("role"),
            account.count_cell("sessions"),
            account.time_cell("created_at"),
            account.time_cell("changed_at"),
        ]
    })
}
