//! Brokers and credentials: the options that `ha` and `tx-rx` share.

use crate::codec::Version;
use crate::config::SetupError;
use crate::config::from_args::resolve;
use crate::login::Login;
use crate::plan::with_ports;
use clap::Args;
use std::net::SocketAddr;

/// Options as they are typed.
#[derive(Args, Debug)]
pub struct Target {
    /// Brokers, each with an optional port. ha: a client that loses one goes to the next. tx-rx: with two, the
    /// publisher is on the first and the subscriber on the second
    #[arg(long, short = 'h', default_value = "localhost", value_delimiter = ',', num_args = 1)]
    host: Vec<String>,
    #[arg(long, short = 'p', default_value_t = 1883)]
    pub port: u16,
    /// Protocol version: 4 (3.1.1) or 5
    #[arg(long, short = 'V', default_value_t = 5, value_parser = clap::value_parser!(u8).range(4..=5))]
    version: u8,
    #[command(flatten)]
    pub login: Login,
    /// Print the result as one JSON object on standard output
    #[arg(long)]
    pub json: bool,
    /// Print no lines while running
    #[arg(long)]
    pub quiet: bool,
}

impl Target {
    /// Resolves the hosts.
    ///
    /// # Errors
    /// A host without an address.
    pub fn hosts(&self) -> Result<Vec<SocketAddr>, SetupError> {
        resolve(&with_ports(&self.host, self.port), true)
    }

    pub fn version(&self) -> Version {
        if self.version == 5 { Version::V5 } else { Version::V311 }
    }
}
