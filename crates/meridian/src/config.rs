//! The configuration of a node: the sections of all crates in one tree, and its layers.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use actions::ActionsSettings;
use api::settings::HttpSettings;
use auth::settings::{Auth, HttpAclSettings, HttpAuthSettings, Jwt, Protection};
use bridges::BridgeSettings;
use broker::settings::Settings as BrokerSettings;
use clap::Args;
use definitions::SecretsDirectory;
use edge::settings::EdgeSettings;
use linking::{LinkSettings, Own};
use settings::{
    Fault, Flag, HostPort, Invalid, Layers, List, Loaded, Problem, Raw, Runtime, Section, Tree, Value,
    choices, section,
};
use sinks::{ActionSettings, ConnectorSettings};
use tracing_subscriber::EnvFilter;

use crate::cluster::{ClusterSettings, is_clustered, shares_shards};
use crate::otel::OtelSettings;
use crate::running::runtime_path;
use crate::store::StorageSettings;
use crate::system;

/// All settings.
#[derive(Clone, Debug, Default)]
pub struct Config {
    pub node: NodeSettings,
    pub storage: StorageSettings,
    pub log: LogSettings,
    pub otel: OtelSettings,
    pub http: HttpSettings,
    pub edge: EdgeSettings,
    pub auth: Auth,
    pub jwt: Jwt,
    pub http_auth: HttpAuthSettings,
    pub http_acl: HttpAclSettings,
    pub protection: Protection,
    pub broker: BrokerSettings,
    pub cluster: ClusterSettings,
    pub bridges: Vec<BridgeSettings>,
    pub links: Vec<LinkSettings>,
    /// Addresses that connectors may reach.
    pub connector_access: ActionsSettings,
    pub connectors: Vec<ConnectorSettings>,
    pub actions: Vec<ActionSettings>,
}

section! {
    /// Node-wide settings.
    [node]
    pub struct NodeSettings {
        /// Name of the node in logs and in its cluster; the machine's name when unset.
        pub name: Option<String> = "", at start;
        /// Directory for the node's data. It is created when the first byte is written.
        pub data_dir: PathBuf = "./data", at start;
        /// Maximum time of a stop. Clients are notified and messages in flight to them are sent; after that,
        /// connections are closed.
        pub shutdown_timeout: std::time::Duration = "5s" in "0s..=10m", at start;
        /// Maximum time of the drain before a stop, in a cluster with other nodes: SIGTERM takes clients and shards
        /// away gently, and the node stops when none is left. `0s` turns it off. The service manager must allow this
        /// time and `shutdown_timeout`.
        pub drain_max: std::time::Duration = "30s" in "0s..=1h", at start;
        /// Server Reference for MQTT 5.0 clients that a drain refuses or disconnects, such as the address of a load
        /// balancer. Without it, clients choose another address themselves.
        pub server_reference: Option<String> = "", at start;
        /// Address of this node for clients, such as `n2.example.com:1883`. A drain of another node that names this one
        /// (`--to`) tells it to MQTT 5.0 clients. Without it, such a drain uses `server_reference` of this node.
        pub client_address: Option<String> = "", at start;
        /// Interval at which the node looks whether files have changed: certificates, keys, authorities and revocation
        /// lists of listeners, HTTP and cluster links, keys of JWT, and files of `http_auth` and `http_acl`. A change
        /// that two looks in a row saw is used without a reload. `0s` turns it off; less than 100 ms counts as 100 ms.
        pub watch_files: std::time::Duration = "5s" in "0s..=1h", on reload;
    }
}

section! {
    /// Log on standard error.
    [log]
    pub struct LogSettings {
        /// Level of the log: `error`, `warn`, `info`, `debug` or `trace`, also for single parts: `info,edge=debug`.
        pub level: LogLevel = "info", on reload;
        /// Format of a line of the log.
        pub format: LogFormat = "text", at start;
        /// Logging of clients that connect and disconnect, at level `info`.
        pub clients: ClientLog = "auto", on reload;
    }
}

choices! {
    /// Logging of clients that connect and disconnect.
    pub enum ClientLog {
        /// Logs them when standard error is a terminal.
        Auto = "auto",
        /// Always logs them.
        On = "on",
        /// Never logs them.
        Off = "off",
    }
}

choices! {
    /// Format of a line of the log.
    pub enum LogFormat {
        /// Text for people.
        Text = "text",
        /// One JSON object per line, for machines.
        Json = "json",
    }
}

/// Level of the log in the syntax of `tracing-subscriber`'s `EnvFilter`. Parsing checks it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogLevel(String);

impl LogLevel {
    /// Filter for this level, with or without the events of clients that connect and disconnect.
    pub fn filter(&self, clients: bool) -> EnvFilter {
        let clients = if clients { "" } else { "clients=off," };
        // `openraft` logs each of its steps. A level that names one of these targets overrides this.
        EnvFilter::new(format!("openraft=error,{clients}{}", self.0))
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Value for LogLevel {
    const TYPE: &'static str = "string";

    fn from_raw(raw: &Raw) -> Result<Self, Invalid> {
        let text = String::from_raw(raw)?;
        // `EnvFilter` reads a single word as the name of a target, at any level; here it is more likely a misspelt
        // level.
        let plain = text.split(',').all(|part| part.contains('=') || LEVELS.contains(&part.trim()));
        if text.is_empty() || !plain || EnvFilter::try_new(&text).is_err() {
            return Err(
                raw.expected("a level (error, warn, info, debug, trace), or one as in info,edge=debug")
            );
        }
        Ok(Self(text))
    }

    fn to_toml(&self) -> Option<String> {
        self.0.to_toml()
    }
}

const LEVELS: [&str; 6] = ["off", "error", "warn", "info", "debug", "trace"];

impl Config {
    /// Facts about this node that its links to other clusters depend on.
    pub fn own(&self) -> Own {
        let node = self.node.name.clone().unwrap_or_else(system::host_name);
        Own { node, is_clustered: is_clustered(self), listens: self.listens(), secrets: self.secrets() }
    }

    /// Facts about this node that its bridges depend on.
    pub fn own_of_bridges(&self) -> bridges::Own {
        bridges::Own { listens: self.listens(), secrets: self.secrets() }
    }

    /// Directory with the secrets of connectors, bridges and links.
    pub fn secrets(&self) -> SecretsDirectory {
        SecretsDirectory::new(self.http.secrets_directory.clone())
    }

    /// Addresses of the listeners.
    pub fn listens(&self) -> Vec<HostPort> {
        self.edge.listeners.iter().filter_map(|listener| listener.address.parse().ok()).collect()
    }

    /// Problems of listeners, bridges, links, connectors and actions that no section sees alone.
    pub fn problems(&self) -> Vec<String> {
        let listeners = &self.edge.listeners;
        let reserved = listeners.iter().enumerate().filter(|(_, listener)| listener.name.starts_with('$'));
        let reserved = reserved.map(|(at, listener)| {
            let name = &listener.name;
            format!(
                "listener.{at}.name: \"{name}\" begins with `$`, as names inside the node do; use another one"
            )
        });
        let of_bridges = bridges::check(&self.bridges, &self.own_of_bridges());
        let of_links = linking::check(&self.links, &self.own());
        let of_actions =
            actions::check(&self.connectors, &self.actions, &self.connector_access, &self.secrets());
        let mut problems: Vec<String> =
            reserved.chain(of_bridges).chain(of_links).chain(of_actions).collect();
        let lists = [
            ("bridge", "a bridge", self.bridges.is_empty()),
            ("cluster_link", "a cluster link", self.links.is_empty()),
            ("action", "an action", self.actions.is_empty()),
        ];
        let runs_everywhere = is_clustered(self) && !shares_shards(self);
        for (list, one, _) in lists.into_iter().filter(|(_, _, is_empty)| runs_everywhere && !is_empty) {
            problems.push(format!(
                "{list}: in a cluster {one} needs replicas of sessions, or each node would run it; set cluster.replicas to 3"
            ));
        }
        problems
    }
}

impl Tree for Config {
    fn sections(&mut self) -> Vec<&mut dyn Section> {
        let Self {
            node,
            storage,
            log,
            otel,
            http,
            edge,
            auth,
            jwt,
            http_auth,
            http_acl,
            protection,
            broker,
            cluster,
            bridges: _,
            links: _,
            connector_access,
            connectors: _,
            actions: _,
        } = self;
        let BrokerSettings {
            mqtt,
            session,
            queue,
            limits,
            quota,
            shared,
            retained,
            sys,
            monitor,
            routing,
            overload,
            durability: _,
        } = broker;
        vec![
            node,
            storage,
            log,
            otel,
            http,
            edge,
            auth,
            jwt,
            http_auth,
            http_acl,
            protection,
            mqtt,
            session,
            queue,
            limits,
            quota,
            shared,
            retained,
            sys,
            monitor,
            routing,
            overload,
            cluster,
            connector_access,
        ]
    }

    fn lists(&mut self) -> Vec<&mut dyn List> {
        vec![
            &mut self.edge.listeners,
            &mut self.broker.durability,
            &mut self.bridges,
            &mut self.links,
            &mut self.connectors,
            &mut self.actions,
        ]
    }
}

/// Configuration options of the command line.
#[derive(Args, Clone, Debug, Default)]
pub struct ConfigArgs {
    /// Configuration file (TOML); none is read unless named
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// One setting, as in mqtt.qos_max=1 or listener.0.address=[::1]:1883; can be repeated
    #[arg(long, value_name = "SECTION.KEY=VALUE")]
    pub set: Vec<String>,
    /// Address for clients, instead of the configured listeners; can be repeated [default: 127.0.0.1:1883,
    /// and 127.0.0.1:8083 for WebSocket]
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Vec<String>,
    /// Address of the API, metrics and the dashboard, or `off` [default: 127.0.0.1:18083]
    #[arg(long, value_name = "ADDRESS")]
    pub http: Option<String>,
    /// Directory for the node's data [default: ./data]
    #[arg(long, value_name = "DIRECTORY")]
    pub data_dir: Option<String>,
    /// Number of threads that serve connections; 0 is one per CPU [default: 0]
    #[arg(long, value_name = "NUMBER")]
    pub workers: Option<String>,
    /// Name of the node in logs and in its cluster [default: the machine's name]
    #[arg(long)]
    pub name: Option<String>,
    /// Address for links of other nodes; with it, the node belongs to a cluster
    #[arg(long, value_name = "ADDRESS")]
    pub cluster_listen: Option<String>,
    /// Cluster ports of some nodes, through which this one finds the others; a core without any starts a cluster
    #[arg(long, value_name = "ADDRESS[,ADDRESS]...")]
    pub join: Option<String>,
    /// Role of the node: `core` votes and stores, `replicant` serves clients only [default: core]
    #[arg(long)]
    pub role: Option<String>,
    /// Region of the node: nodes of one region are near each other
    #[arg(long)]
    pub region: Option<String>,
    /// File with the secret that all nodes of the cluster share
    #[arg(long, value_name = "FILE")]
    pub cluster_secret_file: Option<String>,
}

/// Reason why the configuration cannot be loaded.
#[derive(Debug)]
pub enum ConfigError {
    /// The file of `--config` cannot be read.
    Unreadable {
        path: PathBuf,
        error: std::io::Error,
    },
    /// The file of the settings that were changed at run time cannot be read.
    DataDir {
        path: PathBuf,
        data_dir: PathBuf,
        error: std::io::Error,
    },
    /// The file of `--config` is one of mosquitto.
    Mosquitto(PathBuf),
    Problems(Vec<Problem>),
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unreadable { path, error } => {
                let path = path.display();
                match error.kind() {
                    ErrorKind::NotFound => write!(
                        f,
                        "--config {path}: there is no such file. Without --config the defaults hold; `meridian config example > {path}` writes a \
                         file with every setting in it"
                    ),
                    ErrorKind::PermissionDenied => {
                        write!(
                            f,
                            "--config {path}: this user may not read it. Change its permissions, \
                                 or start as another user"
                        )
                    }
                    ErrorKind::IsADirectory => {
                        write!(f, "--config {path}: this is a directory. Name the file in it")
                    }
                    ErrorKind::InvalidData => {
                        write!(f, "--config {path}: this file is not UTF-8 text. Name a TOML file")
                    }
                    _ => write!(f, "--config {path}: {error}"),
                }
            }
            Self::DataDir { path, data_dir, error } => {
                f.write_str(&system::data_dir_trouble(data_dir, path, error))
            }
            Self::Mosquitto(path) => write!(
                f,
                "{}: this is a configuration of mosquitto, and Meridian reads TOML. `meridian \
                 config import {} > meridian.toml` converts it",
                path.display(),
                path.display()
            ),
            Self::Problems(problems) => {
                // One line answers the whole list.
                let first = problems.iter().position(is_of_node_list);
                let answered = problems.iter().enumerate();
                let answered =
                    answered.filter(|(index, problem)| Some(*index) == first || !is_of_node_list(problem));
                for (index, problem) in answered {
                    let separator = if index == 0 { "" } else { "\n" };
                    match advice(problem) {
                        Some(advice) => write!(f, "{separator}{}: {advice}", problem.source)?,
                        None => write!(f, "{separator}{problem}")?,
                    }
                }
                Ok(())
            }
        }
    }
}

/// Returns whether a problem is about the list of nodes of version 0.1.
fn is_of_node_list(problem: &Problem) -> bool {
    problem.fault.name().is_some_and(|name| name.split('.').next() == Some("cluster_node"))
}

/// Correction for a setting that an earlier version or other brokers have.
fn advice(problem: &Problem) -> Option<String> {
    if is_of_node_list(problem) {
        return Some(NODE_LIST.to_owned());
    }
    let Fault::Unknown { name, .. } = &problem.fault else { return None };
    let (list, key) = (name.split('.').next()?, name.rsplit('.').next()?);
    let write = match (list, key) {
        ("listener", "port" | "host" | "bind" | "bind_address" | "ip") => {
            "host and port are one setting: write address = \"127.0.0.1:1883\" for this machine only, or address = \"0.0.0.0:1883\" for all networks"
        }
        ("listener", "protocol" | "type") => {
            "write transport = \"websocket\" for WebSocket; tls_certificate turns TLS on"
        }
        ("listener", "certfile" | "cert" | "tls_cert") => "write tls_certificate",
        ("listener", "keyfile" | "key") => "write tls_key",
        ("listener", "cafile" | "ca") => "write tls_client_ca",
        ("actions", "secrets_directory") => {
            "write http.secrets_directory, which holds for connectors, bridges and cluster links"
        }
        _ => return None,
    };
    Some(format!("unknown setting `{name}`: {write}"))
}

const NODE_LIST: &str = "[[cluster_node]] does not exist any more: nodes find each other by cluster.join, and the cores agree on the members. \
     Remove the list, and set cluster.listen to the address of this node in it (if it is set already, keep it, and set cluster.advertise to that \
     address), cluster.join to the addresses of all its cores, and cluster.role and cluster.region as in it. docs/clustering.md, \"From a list of nodes\", has the steps";

/// Returns whether a text has the form of a mosquitto.conf: lines of a known word and a value without `=`.
fn is_of_mosquitto(text: &str) -> bool {
    const WORDS: [&str; 16] = [
        "acl_file",
        "allow_anonymous",
        "autosave_interval",
        "bind_address",
        "cafile",
        "certfile",
        "connection",
        "include_dir",
        "keyfile",
        "listener",
        "log_dest",
        "log_type",
        "password_file",
        "per_listener_settings",
        "persistence",
        "pid_file",
    ];
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    let mut words = lines.map(|line| line.split_once(char::is_whitespace).unwrap_or((line, "")));
    // The first line decides: in TOML it is a section, or contains a `=`.
    words.next().is_some_and(|(word, value)| WORDS.contains(&word) && !value.trim_start().starts_with('='))
}

impl ConfigArgs {
    /// Reads file, environment and the changes made at run time again, and joins all layers.
    ///
    /// # Errors
    /// A file that cannot be read; settings that are unknown or wrong, all of them at once.
    pub fn load(&self) -> Result<(Layers, Loaded<Config>), ConfigError> {
        let layers = self.layers()?;
        let data_dir = joined(&layers)?.tree.node.data_dir;
        self.with_runtime(layers, &data_dir)
    }

    /// Loads the configuration of a node with this data directory, whatever the file says now.
    ///
    /// # Errors
    /// The same as for [`ConfigArgs::load`].
    pub fn load_with_data_dir(&self, data_dir: &Path) -> Result<(Layers, Loaded<Config>), ConfigError> {
        self.with_runtime(self.layers()?, data_dir)
    }

    /// Adds the contents of the file of changes made at run time, if there is one.
    fn with_runtime(
        &self,
        mut layers: Layers,
        data_dir: &Path,
    ) -> Result<(Layers, Loaded<Config>), ConfigError> {
        let path = runtime_path(data_dir);
        match std::fs::read_to_string(&path) {
            Ok(text) => {
                let runtime = Runtime::parse(&path, &text).map_err(ConfigError::Problems)?;
                layers.runtime = Some((path, runtime));
            }
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(ConfigError::DataDir { path, data_dir: data_dir.to_owned(), error }),
        }
        let loaded = joined(&layers)?;
        Ok((layers, loaded))
    }

    fn layers(&self) -> Result<Layers, ConfigError> {
        let file = match &self.config {
            None => None,
            Some(path) => match std::fs::read_to_string(path) {
                Ok(text) if is_of_mosquitto(&text) => return Err(ConfigError::Mosquitto(path.clone())),
                Ok(text) => Some((path.clone(), text)),
                Err(error) => return Err(ConfigError::Unreadable { path: path.clone(), error }),
            },
        };
        // A Meridian variable that is not UTF-8 gets replacement characters, and is refused as a value.
        let environment = std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned()))
            .collect();
        Ok(Layers { file, environment, set: self.set.clone(), flags: self.flags(), ..Layers::default() })
    }

    fn flags(&self) -> Vec<Flag> {
        let mut flags = Vec::new();
        if !self.listen.is_empty() {
            flags.push(Flag::List("--listen", "listener", "address", self.listen.clone()));
        }
        for (flag, setting, value) in FLAGS {
            flags.extend(value(self).iter().map(|value| Flag::Value(flag, setting, value.clone())));
        }
        flags
    }
}

/// Setting of a flag, such as `--http`; `None` when the flag sets none, or is unknown.
pub fn setting_of_flag(flag: &str) -> Option<&'static str> {
    let known = FLAGS.iter().map(|(flag, setting, _)| (*flag, *setting));
    known
        .chain([("--listen", "listener.address")])
        .find(|(name, _)| *name == flag)
        .map(|(_, setting)| setting)
}

type ValueOf = fn(&ConfigArgs) -> &Option<String>;

/// Flags that each set one setting.
const FLAGS: [(&str, &str, ValueOf); 9] = [
    ("--http", "http.listen", |args| &args.http),
    ("--data-dir", "node.data_dir", |args| &args.data_dir),
    ("--workers", "edge.workers", |args| &args.workers),
    ("--name", "node.name", |args| &args.name),
    ("--cluster-listen", "cluster.listen", |args| &args.cluster_listen),
    ("--join", "cluster.join", |args| &args.join),
    ("--role", "cluster.role", |args| &args.role),
    ("--region", "cluster.region", |args| &args.region),
    ("--cluster-secret-file", "cluster.secret_file", |args| &args.cluster_secret_file),
];

fn joined(layers: &Layers) -> Result<Loaded<Config>, ConfigError> {
    settings::load(layers).map_err(ConfigError::Problems)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(args: ConfigArgs) -> Result<Config, String> {
        let layers = Layers { set: args.set.clone(), flags: args.flags(), ..Layers::default() };
        settings::load(&layers)
            .map(|loaded: Loaded<Config>| loaded.tree)
            .map_err(|problems| ConfigError::Problems(problems).to_string())
    }

    /// Reading every declaration panics on a default that is invalid or out of its range, and on an invalid range.
    #[test]
    fn every_declaration_holds() {
        let mut config = Config::default();
        let mut names = std::collections::HashSet::new();
        for section in config.sections() {
            assert!(names.insert(section.description().name), "{} twice", section.description().name);
            for field in section.description().fields {
                section.set(field.key, &Raw::Text(field.default.to_owned())).unwrap();
                assert!(field.doc.iter().all(|line| !line.trim().is_empty()), "{}", field.key);
            }
        }
        assert!(names.len() >= 11);
    }

    #[test]
    fn flags_set_their_settings() {
        let args = ConfigArgs {
            listen: vec!["[::1]:1".into(), "unix:/run/m.sock".into()],
            http: Some("off".into()),
            data_dir: Some("/d".into()),
            workers: Some("3".into()),
            name: Some("n".into()),
            set: vec!["edge.workers=9".into()],
            ..ConfigArgs::default()
        };
        let config = load(args).unwrap();
        let addresses: Vec<_> = config.edge.listeners.iter().map(|listener| &*listener.address).collect();
        assert_eq!(addresses, ["[::1]:1", "unix:/run/m.sock"]);
        assert_eq!((config.edge.workers, config.node.name.as_deref()), (3, Some("n")));
        assert_eq!(config.node.data_dir, PathBuf::from("/d"));
        let error = load(ConfigArgs { workers: Some("many".into()), ..ConfigArgs::default() }).unwrap_err();
        assert!(error.starts_with("--workers: edge.workers: expected a whole number"), "{error}");
    }

    #[test]
    fn an_unknown_log_level_is_refused() {
        let level =
            |text: &str| load(ConfigArgs { set: vec![format!("log.level={text}")], ..ConfigArgs::default() });
        for good in ["debug", "info,edge=trace", "off", "edge=debug,warn"] {
            assert_eq!(level(good).unwrap().log.level.to_string(), good);
        }
        for bad in ["", "loud", "info,edge=loud", "inf"] {
            assert!(level(bad).unwrap_err().contains("a level (error"), "{bad}");
        }
    }

    #[test]
    fn all_problems_are_reported_at_once() {
        let set = ["mqtt.qos_max=3", "mqtt.qos=1"].map(str::to_owned).to_vec();
        let error = load(ConfigArgs { set, ..ConfigArgs::default() }).unwrap_err();
        assert_eq!(error.lines().count(), 2, "{error}");
    }

    #[test]
    fn a_missing_file_is_named() {
        let args = ConfigArgs { config: Some("/nonexistent/m.toml".into()), ..ConfigArgs::default() };
        let error = args.load().unwrap_err().to_string();
        assert!(error.starts_with("--config /nonexistent/m.toml: "), "{error}");
    }

    #[test]
    fn unknown_settings_of_other_versions_and_brokers_are_answered_with_a_correction() {
        let of_file = |text: &str| {
            let layers = Layers { file: Some(("m.toml".into(), text.to_owned())), ..Layers::default() };
            match settings::load::<Config>(&layers) {
                Ok(_) => "it is fine".to_owned(),
                Err(problems) => ConfigError::Problems(problems).to_string(),
            }
        };
        for (text, says) in [
            (
                "[[listener]]\nport = 1883\n",
                "m.toml:2: unknown setting `listener.0.port`: host and port are one setting: write address = ",
            ),
            (
                "[[cluster_node]]\nname = \"a\"\naddress = \"h:1\"\n[[cluster_node]]\nname = \"b\"\n[mqtt]\nqos_max = 1\n",
                "m.toml:2: [[cluster_node]] does not exist any more: nodes find each other by cluster.join",
            ),
            ("[cluster_node]\nname = \"a\"\n", "cluster.join"),
            ("[[listener]]\nprotocol = \"websockets\"\n", "write transport = \"websocket\""),
            ("[[listener]]\ncertfile = \"c\"\n", "write tls_certificate"),
            ("[actions]\nsecrets_directory = \"/s\"\n", "write http.secrets_directory"),
            ("[[listener]]\nadress = \"c\"\n", "the nearest known one is `listener.0.address`"),
            (
                "[[listener]]\naddress = \"1883\"\n",
                "m.toml:2: listener.0.address: expected an address with its port",
            ),
        ] {
            let error = of_file(text);
            assert!(error.contains(says) && error.lines().count() == 1, "{error}");
        }
    }

    #[test]
    fn a_mosquitto_file_and_a_missing_file_are_recognised() {
        assert!(is_of_mosquitto("# a comment\n\nlistener 1883\nallow_anonymous true\n"));
        assert!(is_of_mosquitto("per_listener_settings true\n"));
        for ours in
            ["[[listener]]\naddress = \"x:1\"\n", "listener = 1\n", "", "persistence\t= 1\n", "word 1\n"]
        {
            assert!(!is_of_mosquitto(ours), "{ours}");
        }
        let load = |path: &str| {
            let args = ConfigArgs { config: Some(path.into()), ..ConfigArgs::default() };
            args.load().expect_err("it cannot be read").to_string()
        };
        let absent = load("nope.toml");
        assert!(absent.starts_with("--config nope.toml: there is no such file"), "{absent}");
        assert!(absent.contains("meridian config example > nope.toml"), "{absent}");
        assert!(load("/").contains("this is a directory"));
    }
}
