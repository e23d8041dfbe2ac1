//! Parts of a node that are opened before it starts.

use std::sync::Arc;

use actions::Registry;
use api::Keys;
use auth::{Guard, RuleTable, Users};
use broker::settings::Durability;
use configstore::{ConfigStore, LocalStore, Position, ReplicatedStore};
use linking::{Acceptor, Own};

use crate::cluster::{self, Cluster};
use crate::config::Config;
use crate::exposure;
use crate::files::Files;
use crate::secrets;
use crate::store::{LogUse, Store, cluster_incarnation};

/// Stores of the data directory that are opened before the node starts.
pub struct OpenStores {
    pub config_store: Arc<dyn ConfigStore>,
    /// The same store, when it is replicated.
    pub replicated: Option<Arc<ReplicatedStore>>,
    pub keys: Keys,
}

impl OpenStores {
    /// # Errors
    /// A store cannot be opened.
    pub fn open(config: &Config, name: &str) -> Result<Self, String> {
        let data_dir = &config.node.data_dir;
        let (config_store, replicated): (Arc<dyn ConfigStore>, _) = if cluster::is_clustered(config) {
            let mut incarnation = [0; 8];
            getrandom::fill(&mut incarnation)
                .map_err(|error| format!("the system has no random bytes: {error}"))?;
            let config_store = ReplicatedStore::open(data_dir, name, u64::from_le_bytes(incarnation));
            let config_store = Arc::new(config_store.map_err(|error| error.to_string())?);
            (config_store.clone(), Some(config_store))
        } else {
            (Arc::new(LocalStore::open_standalone(data_dir).map_err(|error| error.to_string())?), None)
        };
        let keys = Keys::open(config_store.clone()).map_err(|error| error.to_string())?;
        keys.import(data_dir).map_err(|error| error.to_string())?;
        Ok(Self { config_store, replicated, keys })
    }
}

/// Parts that decide who may connect and what clients may do.
pub struct AccessParts {
    pub guard: Arc<Guard>,
    pub users: Arc<Users>,
    pub rules: Arc<RuleTable>,
}

impl AccessParts {
    /// Reads all files that the settings name, and imports the bans of an earlier version.
    ///
    /// # Errors
    /// Every file that cannot be used.
    pub fn open(config: &Config, name: &str, config_store: &Arc<dyn ConfigStore>) -> Result<Self, String> {
        let read = Files::read(config, name, config_store).map_err(|problems| problems.join("\n"))?;
        let Files { guard, users, rules, bans, services, tokens } = read;
        let torn = config_store.figures().torn_bytes;
        if torn > 0 {
            tracing::warn!(
                bytes = torn,
                "the last change in the configuration store is not complete, as after a crash; it is cut off. If neither \
                 process nor machine crashed, check the disk"
            );
        }
        let imported = bans.import(&config.node.data_dir).map_err(|error| error.to_string())?;
        if imported > 0 {
            tracing::info!(bans = imported, "bans.json was imported into the configuration store");
        }
        let guard = Arc::new(guard.with_bans(bans));
        rules.on_change({
            let guard = Arc::downgrade(&guard);
            move |rules| {
                if let Some(guard) = guard.upgrade() {
                    guard.set_database_rules(rules);
                }
            }
        });
        guard.set_http_services(services);
        if let Some(tokens) = tokens {
            guard.set_tokens(tokens);
        }
        let warnings =
            secrets::open_to_others(config).into_iter().chain(secrets::missing_directories(config));
        let warnings = warnings.chain(cluster::advice(config));
        for advice in warnings.chain(exposure::plain_text_warning(&config.http)) {
            tracing::warn!("{advice}");
        }
        Ok(Self { guard, users, rules })
    }
}

/// The data of this node, and its part in a cluster.
pub struct Data {
    /// `None` if nothing is kept on disk.
    pub store: Option<Store>,
    pub broker_store: Option<broker::Store>,
    pub cluster: Option<Arc<Cluster>>,
}

impl Data {
    /// Opens the log. Clients are refused until this node knows the replicas and the records of its cluster.
    ///
    /// # Errors
    /// The log cannot be read, or the settings of the cluster contradict each other or what is on disk.
    pub fn open(
        config: &Config,
        name: &str,
        guard: &Guard,
        replicated: Option<&Arc<ReplicatedStore>>,
    ) -> Result<Self, String> {
        let log_use =
            LogUse { is_core: Cluster::has_replica(config), shares_shards: cluster::shares_shards(config) };
        let (store, broker_store, meta, shards) = match config.storage.durability {
            Durability::LocalDisk => {
                let opened = Store::open(&config.storage, &config.node.data_dir, log_use)?;
                (Some(opened.store), Some(opened.broker), Some(opened.meta), opened.shards)
            }
            Durability::Memory if log_use.shares_shards => (None, Some(store_in_memory()?), None, None),
            Durability::Memory => (None, None, None, None),
        };
        let cluster = Cluster::prepare(config, name, meta, shards)?;
        let own = cluster.as_ref().and_then(|cluster| cluster.own());
        let broker_store = broker_store.map(|store| broker::Store { own, ..store });
        if own.is_some() {
            guard.close();
            tracing::info!(
                "clients are refused until this node knows the replicas of its cluster; all cores need cluster.replicas"
            );
        }
        if let (Some(cluster), Some(config_store)) = (&cluster, replicated) {
            if config_store.position() == Position::default() {
                guard.close();
                tracing::info!(
                    "clients are refused until this node has the users, rules, bans and keys of its cluster"
                );
            }
            cluster.copy_records(config_store)?;
        }
        Ok(Self { store, broker_store, cluster })
    }
}

/// Store of a node that keeps nothing on disk, and whose sessions are on other nodes.
fn store_in_memory() -> Result<broker::Store, String> {
    let mut hash_key = [0; 16];
    getrandom::fill(&mut hash_key).map_err(|error| format!("the system has no random bytes: {error}"))?;
    Ok(broker::Store {
        log: None,
        shards: Vec::new(),
        agreements: Vec::new(),
        own: None,
        incarnation: cluster_incarnation()?,
        hash_key,
    })
}

/// Definitions of connectors and actions, bridges, and links to other clusters.
pub struct Registries {
    pub actions: Registry,
    pub bridges: bridges::Registry,
    pub links: Arc<linking::Registry>,
    pub acceptor: Arc<Acceptor>,
}

impl Registries {
    /// Clients are refused until actions and links run, if there are any.
    ///
    /// # Errors
    /// A definition cannot be used.
    pub fn open(
        config: &Config,
        name: &str,
        config_store: &Arc<dyn ConfigStore>,
        guard: &Guard,
    ) -> Result<Self, String> {
        let (connectors, actions) = (config.connectors.clone(), config.actions.clone());
        let (access, secrets) = (&config.connector_access, &config.secrets());
        let actions = Registry::open(config_store.clone(), connectors, actions, access, secrets)?;
        if !actions.definitions().actions.is_empty() {
            // Actions need the origin of the first message, too.
            guard.close();
        }
        let bridges =
            bridges::Registry::open(config_store.clone(), config.bridges.clone(), config.own_of_bridges())?;
        let own = Own { node: name.to_owned(), ..config.own() };
        let links = Arc::new(linking::Registry::open(config_store.clone(), config.links.clone(), own)?);
        let acceptor = Arc::new(Acceptor::default());
        if links.takes() {
            // The first SUBACK may have to wait for links.
            guard.close();
        }
        guard.set_links(acceptor.clone());
        Ok(Self { actions, bridges, links, acceptor })
    }
}
