//! `meridian start`: runs a node until a signal ends it.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use actions::Registry;
use api::{Bound, Keys, Parts, Server};
use broker::peers::Peers;
use broker::settings::Durability;
use broker::spans::SpanQueues;
use configstore::{ConfigStore, LocalStore, Position, ReplicatedStore};
use linking::{Acceptor, Own};
use settings::{Layers, Loaded};

use crate::action_views::ActionViews;
use crate::bridge_views::BridgeViews;
use crate::cli::VERSION;
use crate::cluster::{self, Cluster};
use crate::config::{Config, ConfigArgs};
use crate::drain::Drainer;
use crate::exposure;
use crate::files::Files;
use crate::holder;
use crate::link_views::LinkViews;
use crate::log::Log;
use crate::node::Node;
use crate::notify::ServiceManager;
use crate::otel::Otel;
use crate::replicated::ReplicatedSettings;
use crate::running::{Loading, Running};
use crate::secrets;
use crate::signals::{Signal, Signals};
use crate::store::{LogUse, Store, cluster_incarnation};
use crate::system;

/// Minimum time for the thread of the links to end, even when the stop is to be shorter.
const LINKS_END_MIN: Duration = Duration::from_secs(5);

/// Runs a node. Exits with 0 after a stop. Exits with 1 when the node did not start, failed to leave its cluster, or
/// one of its threads did not end.
pub fn run(args: &ConfigArgs) -> ExitCode {
    let (layers, loaded) = match args.load() {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let config = &loaded.tree;
    let name = config.node.name.clone().unwrap_or_else(system::host_name);
    let stores = match open_stores(config, &name) {
        Ok(stores) => stores,
        Err(refusal) => {
            eprintln!("{refusal}");
            return ExitCode::FAILURE;
        }
    };
    // Before the first other thread.
    let signals = match Signals::hold() {
        Ok(signals) => signals,
        Err(error) => {
            eprintln!("signals cannot be blocked: {error}");
            return ExitCode::FAILURE;
        }
    };
    // Dropped after everything that logs.
    let otel = match Otel::start(&config.otel, &name) {
        Ok(otel) => otel,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let log = Arc::new(Log::start(&config.log, &otel));
    match serve(args, (layers, loaded), stores, signals, &name, (&log, otel.spans())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
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

/// Stores of the data directory that are opened before the node starts.
struct OpenStores {
    config_store: Arc<dyn ConfigStore>,
    /// The same store, when it is replicated.
    replicated: Option<Arc<ReplicatedStore>>,
    keys: Keys,
}

impl OpenStores {
    fn open(config: &Config, name: &str) -> Result<Self, String> {
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

/// Opens the stores and checks that the node may be reached as configured. The check depends on the API keys.
fn open_stores(config: &Config, name: &str) -> Result<OpenStores, String> {
    let data_dir = &config.node.data_dir;
    exposure::check(config).map_err(|refusal| refusal.to_string())?;
    let problems = config.problems();
    if !problems.is_empty() {
        return Err(problems.join("\n"));
    }
    if config.storage.durability == Durability::LocalDisk {
        system::prepare_data_dir(data_dir)?;
    }
    let stores = OpenStores::open(config, name)?;
    exposure::check_http(&config.http, &stores.keys, data_dir).map_err(|refusal| refusal.to_string())?;
    Ok(stores)
}

fn serve(
    args: &ConfigArgs,
    (layers, loaded): (Layers, Loaded<Config>),
    OpenStores { config_store, replicated, keys }: OpenStores,
    signals: Signals,
    name: &str,
    (log, spans): (&Arc<Log>, Option<Arc<SpanQueues>>),
) -> Result<(), String> {
    let manager = ServiceManager::from_environment();
    let starting = manager.starting();
    let (agreed_settings, updates) = ReplicatedSettings::open(config_store.clone())?;
    let loading = Loading::join(layers, loaded, &agreed_settings);
    let config = loading.loaded.tree.clone();
    log.configure(&config.log);
    tracing::info!(version = VERSION, name, "meridian starts");
    if let Some((path, runtime)) = &loading.layers.runtime {
        let changes = runtime.values().len();
        tracing::info!(path = %path.display(), changes, "settings that were changed at run time are in force");
    }
    if let Err(error) = system::refuse_huge_pages() {
        tracing::debug!(%error, "huge pages stay on: idle connections may take more memory");
    }
    match system::raise_descriptor_limit() {
        Ok(limit) => tracing::info!(limit = limit.now, was = limit.before, "file descriptors"),
        Err(error) => tracing::warn!(%error, "the limit of file descriptors cannot be raised"),
    }
    let read = Files::read(&config, name, &config_store).map_err(|problems| problems.join("\n"))?;
    let Files { guard, users, rules, bans, services, tokens } = read;
    let torn = config_store.figures().torn_bytes;
    if torn > 0 {
        tracing::warn!(
            bytes = torn,
            "the last change in the configuration store is not complete, as after a crash; it is \
                 cut off. If neither process nor machine crashed, check the disk"
        );
    }
    let imported = bans.import(&config.node.data_dir).map_err(|error| error.to_string())?;
    if imported > 0 {
        tracing::info!(bans = imported, "bans.json was imported into the configuration store");
    }
    let guard = guard.with_bans(bans);
    let guard = Arc::new(guard);
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
    for advice in secrets::open_to_others(&config).iter().chain(&cluster::advice(&config)) {
        tracing::warn!("{advice}");
    }
    // Before the node: one that cannot be operated as configured does not start.
    if let Some(warning) = exposure::plain_text_warning(&config.http) {
        tracing::warn!("{warning}");
    }
    let http = Bound::bind(&config.http).map_err(|error| holder::of_http(error).to_string())?;
    let log_use =
        LogUse { is_core: Cluster::has_replica(&config), shares_shards: cluster::shares_shards(&config) };
    let (store, broker_store, meta, shards) = match config.storage.durability {
        Durability::LocalDisk => {
            let opened = Store::open(&config.storage, &config.node.data_dir, log_use)?;
            (Some(opened.store), Some(opened.broker), Some(opened.meta), opened.shards)
        }
        Durability::Memory if log_use.shares_shards => (None, Some(store_in_memory()?), None, None),
        Durability::Memory => (None, None, None, None),
    };
    let cluster = Cluster::prepare(&config, name, meta, shards)?;
    let own = cluster.as_ref().and_then(|cluster| cluster.own());
    let broker_store = broker_store.map(|store| broker::Store { own, ..store });
    if own.is_some() {
        guard.close();
        tracing::info!(
            "clients are refused until this node knows the replicas of its cluster; all cores need cluster.replicas"
        );
    }
    if let (Some(cluster), Some(config_store)) = (&cluster, &replicated) {
        if config_store.position() == Position::default() {
            guard.close();
            tracing::info!(
                "clients are refused until this node has the users, rules, bans and keys of its \
                     cluster"
            );
        }
        cluster.copy_records(config_store)?;
    }
    let (connectors, actions) = (config.connectors.clone(), config.actions.clone());
    let registry = Registry::open(
        config_store.clone(),
        connectors,
        actions,
        &config.connector_access,
        &config.secrets(),
    )?;
    if !registry.definitions().actions.is_empty() {
        // Actions need the origin of the first message, too.
        guard.close();
    }
    let bridges =
        bridges::Registry::open(config_store.clone(), config.bridges.clone(), config.own_of_bridges())?;
    let links = linking::Registry::open(
        config_store.clone(),
        config.links.clone(),
        Own { node: name.to_owned(), ..config.own() },
    );
    let (links, acceptor) = (Arc::new(links?), Arc::new(Acceptor::default()));
    if links.takes() {
        // The first SUBACK may have to wait for links.
        guard.close();
    }
    guard.set_links(acceptor.clone());
    let peers = cluster.clone().map(|cluster| cluster as Arc<dyn Peers>);
    let segments = store.as_ref().map_or(0, Store::segments);
    let node = Node::start(&config, guard.clone(), broker_store, peers, spans, segments)
        .map_err(|error| holder::of_listener(error).to_string())?;
    let bridges = Arc::new(node.start_bridges(&config, name, bridges)?);
    let history = history(store.as_ref(), replicated.clone());
    let links = Arc::new(node.start_links(&config, name, (links, acceptor), history, cluster.as_ref())?);
    let actions = Arc::new(node.start_actions(&config, name, registry)?);
    let https = http.as_ref().map(Bound::certificates);
    node.admin().name_node(name);
    node.admin().set_server_reference(config.node.server_reference.as_deref().map(Into::into));
    let drainer = Drainer::start(node.admin(), name, cluster.clone(), config_store)?;
    let handles = node.handles(https, cluster.clone());
    let files = handles.files.clone();
    let running = Running::new(args.clone(), loading, agreed_settings, guard.clone(), handles, log.clone());
    let running = Arc::new(running);
    running
        .follow_cluster(updates)
        .map_err(|error| format!("no thread for the cluster's settings: {error}"))?;
    let http = match http {
        None => None,
        Some(bound) => {
            let parts = Parts {
                admin: node.admin(),
                guard: guard.clone(),
                configuration: running.clone(),
                keys,
                users,
                rules,
                log: log.ring().clone(),
                node: node.facts(&config, name, files.clone()),
                storage: store.as_ref().map(Store::operator),
                cluster: cluster.clone().map(|cluster| cluster as Arc<dyn api::Cluster>),
                bridges: Arc::new(BridgeViews { bridges: bridges.clone(), node: name.to_owned() }),
                actions: Arc::new(ActionViews { engine: actions.clone(), node: name.to_owned() }),
                links: Arc::new(LinkViews {
                    engine: links.clone(),
                    node: name.to_owned(),
                    cluster: cluster.clone(),
                }),
                drains: drainer.clone(),
            };
            Some(bound.serve(parts).map_err(|error| format!("HTTP cannot be served: {error}"))?)
        }
    };
    if store.is_none() {
        tracing::warn!(
            "sessions and retained messages are kept in memory only: a restart loses them \
                 (storage.durability = \"memory\")"
        );
    }
    let readiness = http.as_ref().map(Server::readiness);
    let opened = {
        let (guard, manager) = (guard.clone(), manager.clone());
        move || {
            guard.open_up();
            if let Some(readiness) = readiness {
                readiness.ready();
            }
            tracing::info!("the node serves");
            manager.ready();
        }
    };
    match &cluster {
        Some(cluster) => {
            cluster.when_known(opened);
            manager.ready_soon();
        }
        None => opened(),
    }
    drop(starting);
    files.warn();
    running.watch_files().map_err(|error| format!("no thread for watched files: {error}"))?;
    if let Err(error) = files.warn_daily() {
        tracing::warn!(%error, "certificates that expire soon are logged at a reload only");
    }
    loop {
        match signals.wait().map_err(|error| format!("signals cannot be waited for: {error}"))? {
            Signal::Stop | Signal::OwnStop => break,
            Signal::Reload => {
                manager.reloading();
                let reloaded = running.reload_all("SIGHUP");
                match &reloaded {
                    Ok(reloaded) => tracing::info!(files = reloaded.files.join(", "), "reloaded"),
                    Err(refused) => tracing::error!("not reloaded, everything stays as it was: {refused}"),
                }
                manager.reloaded(reloaded.is_err());
            }
        }
    }

    let leaves = cluster.as_ref().is_some_and(|cluster| api::Cluster::is_leaving(&**cluster));
    let within = running.shutdown_timeout();
    manager.stopping("stops; in a cluster it drains first", running.drain_max().saturating_add(within));
    drainer.drain_to_stop(running.drain_max(), leaves, |pause| {
        matches!(signals.wait_for(pause), Ok(Some(Signal::Stop)))
    });
    let is_leaving = cluster.as_ref().is_some_and(|cluster| cluster.stopping());
    // The time for leaving depends on other nodes. It ends by itself when they do not answer.
    let _extension = is_leaving.then(|| manager.extend());
    manager.stopping(if is_leaving { "stops, to leave its cluster" } else { "stops" }, within);
    match is_leaving {
        true => tracing::info!(?within, "stopping, to leave the cluster; a signal ends at once"),
        false => tracing::info!(?within, "stopping; a second signal ends at once"),
    }
    if let Some(http) = &http {
        http.stopping();
    }
    // tidy: allow(thread): the process ends anyway.
    let impatient = std::thread::Builder::new().name("stop".to_owned()).spawn(move || {
        // A reload has no effect now. A stop of this process is expected: an operator may request to leave during the
        // stop.
        while let Ok(Signal::Reload | Signal::OwnStop) = signals.wait() {}
        std::process::exit(1);
    });
    if let Err(error) = impatient {
        tracing::warn!(%error, "a second signal will not be noticed");
    }
    let _span = tracing::info_span!("stop").entered();
    drainer.end();
    links.stop();
    bridges.stop();
    actions.stop();
    let (mut is_stuck, mut left) = (false, Ok(()));
    match cluster {
        // Its shards need it until other cores have them.
        Some(cluster) if is_leaving && cluster.shard_replicas() > 0 => {
            node.close(within);
            left = leave(&cluster);
            node.stop(within);
            is_stuck = !cluster.stop(within.max(LINKS_END_MIN));
        }
        Some(cluster) => {
            node.stop(within);
            if is_leaving {
                left = leave(&cluster);
            }
            is_stuck = !cluster.stop(within.max(LINKS_END_MIN));
        }
        None => node.stop(within),
    }
    if let Some(store) = store {
        store.close();
    }
    if let Some(http) = http {
        http.stop();
    }
    if is_stuck {
        return Err("the thread that carries the node's links did not end in time: it is stuck, \
                    and ends with the process. All durable data is written"
            .to_owned());
    }
    left.map_err(|why| {
        format!(
            "stopped without having left the cluster: {why}. It is still a member: start it and \
             let it leave again, or remove it when it is dead, on another node: meridian ctl \
             cluster remove {name}"
        )
    })
}

fn leave(cluster: &Cluster) -> Result<(), String> {
    tracing::info!("leaving the cluster: the cores remove this node from its members");
    let left = cluster.leave();
    if left.is_ok() {
        tracing::info!("this node has left the cluster");
    }
    left
}

/// Returns the name of the state that sessions continue, for linked clusters.
fn history(store: Option<&Store>, replicated: Option<Arc<ReplicatedStore>>) -> linking::History {
    let log = store.map(Store::log_name);
    Box::new(move || match &replicated {
        Some(config_store) => {
            let founded = config_store.position().founded;
            (founded != 0).then(|| format!("c:{founded:032x}"))
        }
        None => log.as_ref().map(|log| format!("n:{log}")),
    })
}
