//! `meridian config`: what is configured, whether it holds, and what can be configured.

use std::io::Write as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;

use api::{Keys, SettingProblem};
use auth::PasswordFile;
use clap::{Command, CommandFactory as _, Subcommand};
use configstore::{ConfigStore, LocalStore};

use crate::cli::Cli;
use crate::cluster;
use crate::config::{Config, ConfigArgs, setting_of_flag};
use crate::exposure;
use crate::files::Files;
use crate::import;
use crate::replicated::ReplicatedSettings;
use crate::running::Loading;
use crate::secrets;
use crate::system;

#[derive(Debug, Subcommand)]
pub enum ConfigCommand {
    /// Read the configuration and all files it names, and say what is wrong
    Check(ConfigArgs),
    /// Print the settings in force as TOML, each with where it came from
    Show(ConfigArgs),
    /// Print the reference of all settings as Markdown
    Reference,
    /// Print a configuration file with every setting at its default
    Example,
    /// Print a mosquitto.conf as a configuration of Meridian, and list what has no counterpart
    Import {
        /// The mosquitto.conf
        file: PathBuf,
    },
}

impl ConfigCommand {
    pub fn run(self) -> ExitCode {
        let result = match self {
            Self::Check(args) => check(&args),
            Self::Show(args) => show(&args),
            Self::Reference => Ok(reference()),
            Self::Example => Ok(example()),
            Self::Import { file } => import::mosquitto(&file).map(|imported| {
                imported.left.iter().for_each(|line| eprintln!("! {line}"));
                imported.toml
            }),
        };
        match result {
            Ok(text) => match std::io::stdout().write_all(text.as_bytes()) {
                Ok(()) => ExitCode::SUCCESS,
                // Whoever reads has enough, as `head` does.
                Err(_) => ExitCode::FAILURE,
            },
            Err(problems) => {
                eprintln!("{problems}");
                ExitCode::FAILURE
            }
        }
    }
}

fn check(args: &ConfigArgs) -> Result<String, String> {
    let (layers, loaded) = args.load().map_err(|error| error.to_string())?;
    let config_store =
        LocalStore::read_only(&loaded.tree.node.data_dir).map_err(|error| error.to_string())?;
    let config_store = Arc::new(config_store) as Arc<dyn ConfigStore>;
    let replicated = replicated(&loaded.tree, &config_store)?;
    let Loading { loaded, refused, .. } = Loading::join(layers, loaded, &replicated);
    let config = loaded.tree;
    let name = config.node.name.clone().unwrap_or_else(system::host_name);

    let mut problems = Vec::new();
    if let Err(refusal) = exposure::check(&config) {
        problems.push(refusal.to_string());
    }
    match Keys::read_only(&config.node.data_dir) {
        Ok(keys) => {
            if let Err(refusal) = exposure::check_http(&config.http, &keys, &config.node.data_dir) {
                problems.push(refusal.to_string());
            }
        }
        Err(error) => problems.push(error.to_string()),
    }
    if let Err(more) = Files::read(&config, &name, &config_store) {
        problems.extend(more);
    }
    if !problems.is_empty() {
        return Err(problems.join("\n"));
    }

    let mut out = String::new();
    if let Some((path, users)) =
        config.auth.password_file.as_ref().and_then(|path| Some((path, PasswordFile::read(path).ok()?)))
    {
        out.push_str(&format!("{}: {} users\n", path.display(), users.len()));
    }
    if let Some(path) = &config.auth.acl_file {
        out.push_str(&format!("{}: access rules read\n", path.display()));
    }
    if !config.cluster_nodes.is_empty() {
        let nodes = config.cluster_nodes.len();
        out.push_str(&format!("cluster: {nodes} nodes, this one is {name:?}\n"));
    }
    let refused = refused.into_iter().map(|SettingProblem { name, detail }| {
        let detail = detail.replace(char::is_control, " ");
        format!("the cluster agrees on {name}, and this node cannot apply it: {detail}")
    });
    let warnings = secrets::open_to_others(&config).into_iter().chain(cluster::out_of_date(&config.cluster));
    warnings.chain(refused).for_each(|warning| out.push_str(&format!("warning: {warning}\n")));
    cluster::advice(&config).iter().for_each(|advice| out.push_str(&format!("advice: {advice}\n")));
    Ok(out + "the configuration holds\n")
}

fn show(args: &ConfigArgs) -> Result<String, String> {
    let (layers, loaded) = args.load().map_err(|error| error.to_string())?;
    let config_store =
        LocalStore::read_only(&loaded.tree.node.data_dir).map_err(|error| error.to_string())?;
    let replicated = replicated(&loaded.tree, &(Arc::new(config_store) as Arc<dyn ConfigStore>))?;
    let Loading { mut loaded, refused, .. } = Loading::join(layers, loaded, &replicated);
    let mut out = settings::show(&mut loaded);
    for SettingProblem { name, detail } in refused {
        let detail = detail.replace(char::is_control, " ");
        out.push_str(&format!("# the cluster agrees on {name}, and this node cannot take it up: {detail}\n"));
    }
    Ok(out)
}

/// What the node's data directory has of the settings that its cluster agrees on. A node that runs there is not disturbed.
fn replicated(config: &Config, config_store: &Arc<dyn ConfigStore>) -> Result<ReplicatedSettings, String> {
    let (replicated, _news) =
        ReplicatedSettings::open(config.cluster_nodes.is_empty().then(|| config_store.clone()))?;
    Ok(replicated)
}

fn reference() -> String {
    REFERENCE_HEAD.to_owned() + &flags() + &settings::reference::<Config>()
}

/// The flags of `meridian start`, as `--help` has them.
fn flags() -> String {
    let mut out = FLAGS_HEAD.to_owned();
    let command = Cli::command();
    for flag in command.find_subcommand("start").into_iter().flat_map(Command::get_arguments) {
        let Some(name) = flag.get_long().map(|name| format!("--{name}")) else { continue };
        let values = flag.get_value_names().unwrap_or_default();
        let values: Vec<String> = values.iter().map(|value| format!(" {value}")).collect();
        let setting = setting_of_flag(&name).map_or(String::new(), |setting| format!("`{setting}`"));
        let meaning = flag.get_help().map(ToString::to_string).unwrap_or_default();
        let (values, meaning) = (values.concat(), meaning.replace('|', "\\|"));
        out.push_str(&format!("| `{name}{values}` | {setting} | {meaning} |\n"));
    }
    out
}

fn example() -> String {
    EXAMPLE_HEAD.to_owned() + &settings::example::<Config>()
}

const REFERENCE_HEAD: &str = "\
# Configuration

<!-- Generated by `meridian config reference > docs/configuration.md`; a test fails when it is stale. -->

Every setting has a default; a node without any configuration listens on 127.0.0.1:1883. Settings come from, each over
the ones before it:

1. the defaults below;
2. one TOML file, `meridian start --config meridian.toml` ([meridian.example.toml](../meridian.example.toml) has every
   setting);
3. what the nodes of a [cluster](clustering.md#users-rules-bans-keys-and-settings) agree on (`meridian ctl config set --cluster`);
4. what was changed while the node ran (`PATCH /api/v1/config`, `meridian ctl config set`), in `DATA_DIR/runtime.toml`;
5. the environment: `MERIDIAN__SECTION__KEY`, such as `MERIDIAN__MQTT__QOS_MAX=1`;
6. the command line: `--set section.key=value`, repeated as needed;
7. the [flags](#flags-of-meridian-start) that stand for a setting, such as `--http` for `http.listen`.

Sections in double brackets can be repeated. Their entries count from 0: `MERIDIAN__LISTENER__0__ADDRESS`,
`--set listener.1.address=[::1]:1883`. Entries of the file replace the default one; environment and `--set` change an
entry or add the next one; `--listen` replaces all entries, and `--set` can still refine those it makes.

A size is written `512B`, `64KiB`, `1MiB`, `2GiB` (or `kB`, `MB`, `GB` in thousands); a duration `100ms`, `5s`, `10m`,
`2h`, `7d`; an address `10.0.0.1:7883`, `a.example.com:7883` or `[fd00::1]:7883`, addresses with commas between them. An empty text in environment or `--set` unsets an optional setting. An unknown setting, a wrong value and a
value out of range are errors that say where they are; `meridian config check` looks for them without starting
anything, and `meridian config show` prints those that a node would start with, and where each came from: of what a cluster
agrees on, the copy in `DATA_DIR`. `meridian ctl config` asks a node that runs.

SIGHUP makes a running node read its files again (so does `POST /api/v1/config/reload`): settings marked *on SIGHUP* take
effect, and the password and ACL files are read again. When something is wrong with them, the node says so and keeps what
it has. The same settings can be changed through the API; each change is a version with author and comment, of which the
last 100 are kept, and rolling back makes an old version a new one.
";

const FLAGS_HEAD: &str = "
## Flags of `meridian start`

`meridian start --help` says the same. Without a command `meridian` starts a node too.

| flag | setting | meaning |
|---|---|---|
";

const EXAMPLE_HEAD: &str = "\
# Every setting with its default. Generated by `meridian config example > meridian.example.toml`.
# docs/configuration.md says the same in tables, and how environment and command line go over this file.
";

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use api::{Author, Changes};

    use super::*;

    /// A data directory in which the cluster's settings are these.
    fn data_dir(of: &[(&str, &str)]) -> PathBuf {
        let path = std::env::temp_dir().join(format!("meridian-config-show-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let config_store = Arc::new(LocalStore::open(&path).unwrap());
        let (replicated, _news) = ReplicatedSettings::open(Some(config_store)).unwrap();
        let changes: Changes =
            of.iter().map(|(name, value)| ((*name).to_owned(), Some((*value).to_owned()))).collect();
        replicated.propose(&changes, &Author::default()).unwrap();
        path
    }

    /// Those that have a word of their own for a setting, and those that have none.
    #[test]
    fn every_flag_of_a_start_is_in_the_reference_with_its_setting() {
        let reference = reference();
        for row in [
            "| `--config FILE` |  | Configuration file (TOML); none is read unless named |",
            "| `--listen ADDRESS` | `listener.address` | Where clients connect",
            "| `--cluster-listen ADDRESS` | `cluster.listen` | ",
            "| `--join ADDRESS[,ADDRESS]...` | `cluster.join` | ",
            "| `--dev-cluster CORES+REPLICANTS` |  | ",
        ] {
            assert!(reference.contains(row), "{row}");
        }
        let start = Cli::command().find_subcommand("start").map(|start| start.get_arguments().count());
        assert_eq!(reference.matches("\n| `--").count(), start.expect("a command"));
    }

    #[test]
    fn what_the_cluster_agrees_on_is_shown_from_the_data_directory() {
        let path = data_dir(&[("queue.messages_max", "123"), ("mqtt.qos_max", "9"), ("log.level", "debug")]);
        let args = ConfigArgs {
            data_dir: Some(path.to_str().unwrap().to_owned()),
            set: vec!["log.level=warn".to_owned()],
            ..ConfigArgs::default()
        };
        let shown = show(&args).unwrap();
        std::fs::remove_dir_all(path).unwrap();
        for part in [
            "messages_max = 123",
            "# the cluster\n",
            "level = \"warn\"",
            "# the cluster agrees on mqtt.qos_max",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
}
