//! Commands of `meridian ctl`: one file for each noun.

use crate::console::Console;
use crate::failure::Failure;

pub mod accounts;
pub mod actions;
pub mod audit;
pub mod ban;
pub mod bridges;
pub mod client;
pub mod clients;
pub mod cluster;
pub mod config;
pub mod connectors;
mod entries;
pub mod external_links;
pub mod health;
pub mod keys;
pub mod links;
pub mod log;
pub mod metrics;
pub mod publish;
pub mod retained;
pub mod routes;
pub mod rules;
mod settings_file;
pub mod slow;
pub mod status;
pub mod storage;
pub mod subscriptions;
pub mod top_talkers;
pub mod topic_metrics;
pub mod trace;
pub mod users;
pub mod whoami;

/// Refuses flags of a list before a verb, where they would have no effect. `plain`: there are none.
///
/// # Errors
/// [`Failure::Usage`].
fn without_list_flags(plain: bool) -> Result<(), Failure> {
    let why = "options of the list have no effect before a verb: leave out the verb or the options";
    if plain { Ok(()) } else { Err(Failure::Usage(why.to_owned())) }
}

/// One subcommand with its arguments.
pub trait Command {
    /// # Errors
    /// [`Failure`] distinguishes the causes.
    fn run(self, console: &mut Console) -> Result<(), Failure>;
}
