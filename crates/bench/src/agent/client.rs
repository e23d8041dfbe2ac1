//! The controller's end: agents that run shares of the load.

use super::sealed::{End, From, Sealed, To};
use super::secret::Shared;
use crate::config::SetupError;
use crate::config::from_args::with_port;
use crate::plan::Plan;
use crate::run::members::Members;
use crate::run::share::{self, ControllerMessage, MemberMessage};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::io::{self, BufReader, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::PathBuf;
use std::time::Duration;

/// Addresses of the agents, and their secret.
#[derive(Args, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Agents {
    /// Agents that share the clients instead of this process: HOST or HOST:PORT of each
    #[arg(long, value_name = "HOSTS", value_delimiter = ',')]
    pub agents: Vec<String>,
    /// File with the secret that the agents share
    #[arg(long, value_name = "FILE", requires = "agents")]
    pub secret_file: Option<PathBuf>,
}

/// Default port of an agent.
const PORT: u16 = 1899;
const AGENTS_MAX: usize = 256;
const CONNECT: Duration = Duration::from_secs(5);

/// Connects to all agents and gives each its share of all plans.
///
/// # Errors
/// An agent that is not reachable, or with which communication is not allowed or fails.
pub fn connect(agents: &Agents, plans: &[Plan], members: &mut Members) -> Result<(), SetupError> {
    if agents.agents.len() > AGENTS_MAX {
        return Err(SetupError::Agent(format!("{AGENTS_MAX} agents at most")));
    }
    let secret = Shared::read(agents.secret_file.as_deref())?;
    let of = agents.agents.len();
    for (index, agent) in agents.agents.iter().enumerate() {
        let failed = |why: String| SetupError::Agent(format!("agent {agent}: {why}"));
        let whole = with_port(agent.trim(), PORT);
        let mut addresses = whole.to_socket_addrs().map_err(|error| failed(error.to_string()))?;
        let address = addresses.next().ok_or_else(|| failed("no address".to_owned()))?;
        if secret.is_none() && !address.ip().is_loopback() {
            return Err(failed(format!(
                "{address} is another machine: passwords would be sent unencrypted; use \
                     --secret-file FILE"
            )));
        }
        let stream = TcpStream::connect_timeout(&address, CONNECT)
            .map_err(|error| failed(format!("{error}: is `meridian bench agent` running there?")))?;
        let (from, to) = greet(stream, &secret).map_err(failed)?;
        let shares: Vec<Plan> = plans.iter().map(|plan| plan.share(index, of)).collect();
        members
            .add(format!("agent {agent}"), &shares, from, Box::new(to))
            .map_err(|error| failed(error.to_string()))?;
    }
    Ok(())
}

/// Introduces this end, and reads whether the agent is free.
fn greet(stream: TcpStream, secret: &Shared) -> Result<(BufReader<From>, To), String> {
    let text = |error: io::Error| error.to_string();
    let Sealed { from, mut to } = Sealed::new(stream, End::Controller, secret.bytes()).map_err(text)?;
    let hello = serde_json::to_string(&ControllerMessage::Alive).map_err(|error| error.to_string())? + "\n";
    to.write_all(hello.as_bytes()).and_then(|()| to.flush()).map_err(text)?;
    let mut from = BufReader::new(from);
    let line = share::line(&mut from).map_err(text)?.ok_or("it closed the connection")?;
    match serde_json::from_str(&line) {
        Ok(MemberMessage::Alive) => Ok((from, to)),
        Ok(MemberMessage::Failed(why)) => Err(why),
        _ => Err("its answer could not be understood".to_owned()),
    }
}
