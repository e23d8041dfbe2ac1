//! Credentials of the clients.

use crate::secret::Secret;
use clap::Args;

/// Options of every command that connects.
#[derive(Args, Clone, Debug)]
pub struct Login {
    /// User Name; for conn, sub and pub: %i is the client's number, %rand_9 one of 1 to 9
    #[arg(long, short = 'u')]
    pub username: Option<String>,
    #[arg(long, short = 'P')]
    pub password: Option<Secret>,
}
