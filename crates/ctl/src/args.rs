//! The command line of `meridian ctl`, and the connection options of it and `meridian top`.

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::{Args, Subcommand};
use settings::{Raw, Value as _};
use tls::{ClientTls, Trust};

use crate::client::Client;
use crate::commands::{self, Command as _};
use crate::console::Console;
use crate::failure::Failure;
use crate::url::{self, Url};

/// Options to reach a node and to authenticate.
#[derive(Args, Clone, Debug)]
pub struct ConnectionArgs {
    /// URL of the node's HTTP API
    #[arg(long, value_name = "URL", env = "MERIDIAN_URL", default_value = url::DEFAULT, value_parser = Url::parse, global = true)]
    url: Url,
    /// File with the API key's token; default: the environment variable MERIDIAN_TOKEN
    #[arg(long, value_name = "FILE", global = true)]
    token_file: Option<PathBuf>,
    /// Authorities (PEM) that sign the node's certificate, for https; default: those of this system
    #[arg(long, visible_alias = "cafile", value_name = "FILE", env = "MERIDIAN_CA", global = true)]
    ca: Option<PathBuf>,
    /// Certificate chain (PEM) to present to a node that requires one
    #[arg(long, value_name = "FILE", env = "MERIDIAN_CERT", requires = "key", global = true)]
    cert: Option<PathBuf>,
    /// Private key (PEM) of --cert
    #[arg(long, value_name = "FILE", env = "MERIDIAN_KEY", requires = "cert", global = true)]
    key: Option<PathBuf>,
    /// Do not check the node's certificate: an attacker on the network can read the token and impersonate the node
    #[arg(long, global = true)]
    insecure: bool,
    /// Maximum time to wait for an answer
    #[arg(long, value_name = "DURATION", default_value = "10s", value_parser = duration, global = true)]
    timeout: Duration,
}

impl ConnectionArgs {
    /// # Errors
    /// [`Failure::Local`] for a file that cannot be used, [`Failure::Usage`] for an invalid token.
    pub fn client(&self) -> Result<Client, Failure> {
        let token = match &self.token_file {
            Some(path) => Some(token_of_file(path)?),
            None => {
                std::env::var("MERIDIAN_TOKEN").ok().map(|t| t.trim().to_owned()).filter(|t| !t.is_empty())
            }
        };
        if token.as_ref().is_some_and(|token| !token.bytes().all(|b| b.is_ascii_graphic())) {
            return Err(Failure::Usage("the token contains invalid characters".to_owned()));
        }
        let tls = match self.url.secure() {
            true => Some(self.tls().config().map_err(|error| Failure::Local(error.to_string()))?),
            false => None,
        };
        Ok(Client::new(self.url.clone(), token, self.timeout.max(Duration::from_millis(1)), tls))
    }

    fn tls(&self) -> ClientTls {
        let trust = match &self.ca {
            _ if self.insecure => Trust::Anybody,
            Some(path) => Trust::File(path.clone()),
            None => Trust::System,
        };
        ClientTls { trust, own: self.cert.clone().zip(self.key.clone()), ..ClientTls::default() }
    }

    /// Returns the warning to print before anything is sent.
    pub fn warning(&self) -> Option<String> {
        if self.insecure && self.url.secure() {
            return Some(format!(
                "WARNING: --insecure: the certificate of {} is not checked; an attacker on the network can \
                 read and change everything, including the token. Use --ca FILE to check it.",
                self.url.as_str()
            ));
        }
        let token =
            self.token_file.is_some() || std::env::var_os("MERIDIAN_TOKEN").is_some_and(|t| !t.is_empty());
        (token && !self.url.loopback() && !self.url.secure()).then(|| {
            format!(
                "the token goes to {} unencrypted; use https:// (docs/security.md) or a tunnel (ssh -L)",
                self.url.as_str()
            )
        })
    }
}

/// Maximum size of a token file; a token is shorter than 100 bytes.
const TOKEN_FILE_MAX: u64 = 4_096;

/// Reads the token on the first line of a file that is not empty.
///
/// # Errors
/// [`Failure::Local`].
pub fn token_of_file(path: &Path) -> Result<String, Failure> {
    let trouble = |why: String| Failure::Local(format!("--token-file {}: {why}", path.display()));
    let metadata = std::fs::metadata(path).map_err(|error| trouble(error.to_string()))?;
    if metadata.is_file() && metadata.len() > TOKEN_FILE_MAX {
        return Err(trouble("this is not a token: the file is longer than 4 KiB".to_owned()));
    }
    let text = std::fs::read_to_string(path).map_err(|error| trouble(error.to_string()))?;
    match text.lines().map(str::trim).find(|line| !line.is_empty()) {
        Some(token) => Ok(token.to_owned()),
        None => Err(trouble("the file is empty; it must contain one token on one line".to_owned())),
    }
}

/// Parses `10s`, `2m`, `90d`.
pub fn duration(text: &str) -> Result<Duration, String> {
    Duration::from_raw(&Raw::Text(text.to_owned())).map_err(|error| error.to_string())
}

/// Query and change a running node over its HTTP API
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl status
  meridian ctl clients --search sensor- --min-queued 100
  meridian ctl client sensor-17                 one client with its session and connection
  meridian ctl routes --match building/3/temp   receivers of this topic
  meridian ctl trace --client sensor-17         packets of the client, live
  meridian ctl clients --all --json | jq -r .client_id
  meridian ctl config set log.level=debug

A list shows the first 100 items; --limit N shows more, --all shows all. --json prints one document; with --all, and for
streams, one document per line (NDJSON).

Exit codes: 0 done, 1 refused or failed, 2 wrong command line, 3 node not reachable or unavailable, 4 not found, 5 not permitted.
docs/ctl.md has more.")]
pub struct CtlArgs {
    #[command(flatten)]
    connection: ConnectionArgs,
    /// Print JSON for scripts instead of tables for people; errors are problem documents on standard error
    #[arg(long, global = true)]
    json: bool,
    /// Answer for this node of the cluster only, by way of the one at --url. Without it, lists and clients are those of
    /// all nodes, and everything else is about the node at --url
    #[arg(long, value_name = "NAME", global = true)]
    node: Option<String>,
    /// Do not ask before an action that cannot be undone
    #[arg(long, short, global = true)]
    yes: bool,
    #[command(subcommand)]
    command: CtlCommand,
}

/// Nouns, and a few verbs that are used often.
#[derive(Debug, Subcommand)]
enum CtlCommand {
    Status(commands::status::StatusArgs),
    Health(commands::health::HealthArgs),
    Whoami(commands::whoami::WhoamiArgs),
    Clients(commands::clients::ClientsArgs),
    Client(commands::client::ClientArgs),
    Sessions(commands::clients::SessionsArgs),
    Session(commands::client::SessionArgs),
    Kick(commands::client::KickArgs),
    Storage(commands::storage::StorageArgs),
    Cluster(commands::cluster::ClusterArgs),
    Links(commands::links::LinksArgs),
    Bridges(commands::bridges::BridgesArgs),
    #[command(visible_alias = "action")]
    Actions(commands::actions::ActionsArgs),
    #[command(visible_alias = "connector")]
    Connectors(commands::connectors::ConnectorsArgs),
    Subscriptions(commands::subscriptions::SubscriptionsArgs),
    Routes(commands::routes::RoutesArgs),
    Retained(commands::retained::RetainedArgs),
    Publish(commands::publish::PublishArgs),
    Trace(commands::trace::TraceArgs),
    #[command(visible_alias = "bans")]
    Ban(commands::ban::BanArgs),
    Config(commands::config::ConfigArgs),
    Log(commands::log::LogArgs),
    TopicMetrics(commands::topic_metrics::TopicMetricsArgs),
    Slow(commands::slow::SlowArgs),
    TopTalkers(commands::top_talkers::TopTalkersArgs),
    #[command(visible_alias = "user")]
    Users(commands::users::UsersArgs),
    #[command(visible_alias = "rule")]
    Rules(commands::rules::RulesArgs),
    #[command(visible_alias = "key")]
    Keys(commands::keys::KeysArgs),
    #[command(visible_alias = "account")]
    Accounts(commands::accounts::AccountsArgs),
    Audit(commands::audit::AuditArgs),
    Metrics(commands::metrics::MetricsArgs),
}

impl CtlArgs {
    /// Runs the command. Reports an error on standard error.
    pub fn run(self) -> ExitCode {
        let json = self.json;
        match self.go() {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => failure.report("ctl", json, &mut std::io::stderr()),
        }
    }

    fn go(self) -> Result<(), Failure> {
        let client = self.connection.client()?.of_node(self.node);
        let mut console = Console::new(client, self.json, self.yes);
        if let Some(warning) = self.connection.warning() {
            console.note(&warning);
        }
        let done = self.command.run(&mut console);
        // Output before a failure is part of the result.
        let flushed = console.flush();
        console.note_missing();
        done.and(flushed)
    }

    /// Runs the command for a test. Returns result, standard output, standard error.
    #[cfg(test)]
    pub fn run_captured(self) -> (Result<(), Failure>, String, String) {
        let (done, out, notes) = self.run_bytes();
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (done, text(out), text(notes))
    }

    #[cfg(test)]
    pub fn run_bytes(self) -> (Result<(), Failure>, Vec<u8>, Vec<u8>) {
        let (mut out, mut notes) = (Vec::new(), Vec::new());
        let done = self.connection.client().and_then(|client| {
            let client = client.of_node(self.node);
            let mut console = Console::to(client, self.json, self.yes, &mut out, &mut notes);
            let done = self.command.run(&mut console);
            let flushed = console.flush();
            console.note_missing();
            done.and(flushed)
        });
        (done, out, notes)
    }
}

impl CtlCommand {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        match self {
            Self::Status(args) => args.run(console),
            Self::Health(args) => args.run(console),
            Self::Whoami(args) => args.run(console),
            Self::Clients(args) => args.run(console),
            Self::Client(args) => args.run(console),
            Self::Sessions(args) => args.run(console),
            Self::Session(args) => args.run(console),
            Self::Kick(args) => args.run(console),
            Self::Storage(args) => args.run(console),
            Self::Cluster(args) => args.run(console),
            Self::Links(args) => args.run(console),
            Self::Subscriptions(args) => args.run(console),
            Self::Routes(args) => args.run(console),
            Self::Retained(args) => args.run(console),
            Self::Publish(args) => args.run(console),
            Self::Trace(args) => args.run(console),
            Self::Ban(args) => args.run(console),
            Self::Config(args) => args.run(console),
            Self::Log(args) => args.run(console),
            Self::TopicMetrics(args) => args.run(console),
            Self::Slow(args) => args.run(console),
            Self::Bridges(args) => args.run(console),
            Self::Actions(args) => args.run(console),
            Self::Connectors(args) => args.run(console),
            Self::TopTalkers(args) => args.run(console),
            Self::Users(args) => args.run(console),
            Self::Rules(args) => args.run(console),
            Self::Keys(args) => args.run(console),
            Self::Accounts(args) => args.run(console),
            Self::Audit(args) => args.run(console),
            Self::Metrics(args) => args.run(console),
        }
    }
}
