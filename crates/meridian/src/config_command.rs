//! `meridian config`: checks, shows and documents the configuration.

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
    /// Read the configuration and all files it names, and report problems
    Check(ConfigArgs),
    /// Print the effective settings as TOML, each with its source
    Show(ConfigArgs),
    /// Print the reference of all settings as Markdown
    Reference,
    /// Print a configuration file with every setting at its default
    Example,
    /// Print a mosquitto.conf as a configuration of Meridian, and list what has no counterpart
    Import {
        /// Path of the mosquitto.conf
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
                // The reader has closed the pipe, as `head` does.
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
    let (replicated, _updates) = ReplicatedSettings::open(config_store.clone())?;
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
    problems.extend(config.problems());
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
    let refused = refused.into_iter().map(|SettingProblem { name, detail }| {
        let detail = detail.replace(char::is_control, " ");
        format!("the cluster setting {name} does not apply to this node: {detail}")
    });
    let warnings = secrets::open_to_others(&config).into_iter().chain(secrets::missing_directories(&config));
    let warnings = warnings.chain(cluster::out_of_date(&config.cluster));
    warnings.chain(refused).for_each(|warning| out.push_str(&format!("warning: {warning}\n")));
    cluster::advice(&config).iter().for_each(|advice| out.push_str(&format!("advice: {advice}\n")));
    Ok(out + "the configuration is valid\n")
}

fn show(args: &ConfigArgs) -> Result<String, String> {
    let (layers, loaded) = args.load().map_err(|error| error.to_string())?;
    let config_store =
        LocalStore::read_only(&loaded.tree.node.data_dir).map_err(|error| error.to_string())?;
    let (replicated, _updates) = ReplicatedSettings::open(Arc::new(config_store))?;
    let Loading { mut loaded, refused, .. } = Loading::join(layers, loaded, &replicated);
    let mut out = settings::show(&mut loaded);
    for SettingProblem { name, detail } in refused {
        let detail = detail.replace(char::is_control, " ");
        out.push_str(&format!("# the cluster setting {name} does not apply to this node: {detail}\n"));
    }
    Ok(out)
}

fn reference() -> String {
    REFERENCE_HEAD.to_owned() + &flags() + &settings::reference::<Config>()
}

/// Flags of `meridian start`, as `--help` prints them.
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

Every setting has a default. A node without any configuration listens on 127.0.0.1:1883, and on 127.0.0.1:8083 for
WebSocket. Settings have these sources. Each overrides the ones before it:

1. the defaults below;
2. one TOML file, `meridian start --config meridian.toml` ([meridian.example.toml](../meridian.example.toml) has every
   setting);
3. settings of the [cluster](clustering.md#users-rules-bans-keys-and-settings) (`meridian ctl config set --cluster`);
4. changes made while the node ran (`PATCH /api/v1/config`, `meridian ctl config set`), in `DATA_DIR/runtime.toml`;
5. the environment: `MERIDIAN__SECTION__KEY`, such as `MERIDIAN__MQTT__QOS_MAX=1`;
6. the command line: `--set section.key=value`, repeated as needed;
7. the [flags](#flags-of-meridian-start) that stand for a setting, such as `--http` for `http.listen`.

Sections in double brackets can be repeated. Their entries count from 0: `MERIDIAN__LISTENER__0__ADDRESS`,
`--set listener.1.address=[::1]:1883`. Entries of the file replace the default ones; environment and `--set` change an
entry or add the next one; `--listen` replaces all entries, and `--set` can still refine those it makes.

A size is written `512B`, `64KiB`, `1MiB`, `2GiB` (or `kB`, `MB`, `GB` in thousands); a duration `100ms`, `5s`, `10m`,
`2h`, `7d`; an address `10.0.0.1:7883`, `a.example.com:7883` or `[fd00::1]:7883`. Several addresses are separated by
commas. An empty text in environment or `--set` unsets an optional setting. Unknown settings, wrong values and values
out of range are errors that name their source. `meridian config check` finds them without starting a node. `meridian
config show` prints the settings that a node would start with, and the source of each; for settings of the cluster it
reads the copy in `DATA_DIR`. `meridian ctl config` shows the settings of a running node.

SIGHUP makes a running node read its files again (so does `POST /api/v1/config/reload`): settings marked *on SIGHUP*
take effect, and the password and ACL files are read again. When they contain an error, the node reports it and keeps
its settings. The same settings can be changed through the API. Each change is a version with author and comment, and
the last 100 versions are kept. Rolling back creates a new version with the settings of an old one.";

const FLAGS_HEAD: &str = "
## Flags of `meridian start`

`meridian start --help` prints the same list. Without a command, `meridian` starts a node, too.

| flag | setting | meaning |
|---|---|---|
";

const EXAMPLE_HEAD: &str = "\
# Every setting with its default. Generated by `meridian config example > meridian.example.toml`.
# docs/configuration.md has the same in tables, and explains how environment and command line override this file.
";

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use api::{Author, Changes};

    use super::*;

    /// A data directory with these settings of the cluster.
    fn data_dir(of: &[(&str, &str)]) -> PathBuf {
        let path = std::env::temp_dir().join(format!("meridian-config-show-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let config_store = Arc::new(LocalStore::open(&path).unwrap());
        let (replicated, _news) = ReplicatedSettings::open(config_store).unwrap();
        let changes: Changes =
            of.iter().map(|(name, value)| ((*name).to_owned(), Some((*value).to_owned()))).collect();
        replicated.propose(&changes, &Author::default()).unwrap();
        path
    }

    /// Flags that set a setting, and flags that set none.
    #[test]
    fn every_flag_of_a_start_is_in_the_reference_with_its_setting() {
        let reference = reference();
        for row in [
            "| `--config FILE` |  | Configuration file (TOML); none is read unless named |",
            "| `--listen ADDRESS` | `listener.address` | Address for clients",
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
    fn the_settings_of_the_cluster_are_shown_from_the_data_directory() {
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
            "# the cluster setting mqtt.qos_max",
        ] {
            assert!(shown.contains(part), "{part}: {shown}");
        }
    }
}
