//! The table of commands. Names are stable; scripts rely on them.

use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::account::AccountArgs;
use crate::acl_command::AclCommand;
use crate::bench_command::BenchArgs;
use crate::client::pub_command::PubArgs;
use crate::client::sub_command::SubArgs;
use crate::config::ConfigArgs;
use crate::config_command::ConfigCommand;
use crate::dev_cluster::{self, Size};
use crate::key::KeyArgs;
use crate::passwd::PasswdArgs;
use crate::storage::StorageArgs;

/// Version and commit.
pub const VERSION: &str = concat!(env!("CARGO_PKG_VERSION"), " (", env!("MERIDIAN_COMMIT"), ")");

/// Run an MQTT broker. Without a command, the program runs a node, as `meridian start` does.
#[derive(Debug, Parser)]
#[command(name = "meridian", version = VERSION, args_conflicts_with_subcommands = true)]
pub struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    start: StartArgs,
}

#[derive(Args, Debug)]
#[command(mut_arg("config", |config| config.short('c')))]
struct StartArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Start a cluster on this machine instead of one node, to try it: 3+2 is three cores and two replicants on
    /// 127.0.0.1 to 127.0.0.5. Each node is a process with its own directory below the data directory; --listen and
    /// --http choose the ports
    #[arg(long, value_name = "CORES+REPLICANTS")]
    dev_cluster: Option<Size>,
}

impl StartArgs {
    fn run(&self) -> ExitCode {
        match self.dev_cluster {
            Some(size) => dev_cluster::run(size, &self.config),
            None => crate::start::run(&self.config),
        }
    }
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run a node
    Start(StartArgs),
    /// Show, check and document the configuration
    Config(ConfigCommandArgs),
    /// Publish messages
    Pub(PubArgs),
    /// Subscribe and print messages
    Sub(SubArgs),
    /// Add, change or remove users of a password file
    Passwd(PasswdArgs),
    /// Explain the access rules
    Acl(AclCommandArgs),
    /// Create, list and remove the API keys of a node
    Key(KeyArgs),
    /// Create, list and remove the accounts of people who log in to the dashboard of a node
    Account(AccountArgs),
    Storage(StorageArgs),
    /// Measure a broker, with the options of emqtt-bench: `meridian bench --help`
    Bench(BenchArgs),
    Ctl(ctl::CtlArgs),
    Top(ctl::TopArgs),
    Completions(ctl::CompletionsArgs),
}

#[derive(Debug, Args)]
struct ConfigCommandArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Args)]
struct AclCommandArgs {
    #[command(subcommand)]
    command: AclCommand,
}

impl Cli {
    pub fn run(self) -> ExitCode {
        match self.command {
            None => self.start.run(),
            Some(Command::Start(args)) => args.run(),
            Some(Command::Config(args)) => args.command.run(),
            Some(Command::Pub(args)) => args.run(),
            Some(Command::Sub(args)) => args.run(),
            Some(Command::Passwd(args)) => args.run(),
            Some(Command::Acl(args)) => args.command.run(),
            Some(Command::Key(args)) => args.run(),
            Some(Command::Account(args)) => args.run(),
            Some(Command::Storage(args)) => args.run(),
            Some(Command::Bench(args)) => args.run(),
            Some(Command::Ctl(args)) => args.run(),
            Some(Command::Top(args)) => args.run(),
            Some(Command::Completions(args)) => args.run(<Self as clap::CommandFactory>::command()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_table_is_consistent() {
        use clap::CommandFactory as _;
        Cli::command().debug_assert();
    }

    fn parse(arguments: &str) -> Cli {
        Cli::try_parse_from(arguments.split_whitespace()).unwrap_or_else(|error| panic!("{error}"))
    }

    #[test]
    fn start_is_the_default_command() {
        assert!(parse("meridian").command.is_none());
        let cli = parse(
            "meridian --config x --set mqtt.qos_max=1 --set sys.interval=0 --listen [::1]:1 --workers 2",
        );
        assert!(cli.command.is_none());
        assert_eq!(cli.start.config.config.as_deref(), Some(std::path::Path::new("x")));
        assert_eq!(cli.start.config.set, ["mqtt.qos_max=1", "sys.interval=0"]);
        let Some(Command::Start(args)) = parse("meridian start --data-dir d --name n").command else {
            panic!("start")
        };
        assert_eq!(args.config.name.as_deref(), Some("n"));
    }

    #[test]
    fn a_node_joins_a_cluster_by_flags() {
        let cli = parse(
            "meridian --cluster-listen h:1 --join a:1,b:1 --role replicant --region eu --cluster-secret-file s",
        );
        let config = cli.start.config;
        assert_eq!(config.cluster_listen.as_deref(), Some("h:1"));
        assert_eq!(config.join.as_deref(), Some("a:1,b:1"));
        assert_eq!((config.role.as_deref(), config.region.as_deref()), (Some("replicant"), Some("eu")));
        assert_eq!(config.cluster_secret_file.as_deref(), Some("s"));
    }
}
