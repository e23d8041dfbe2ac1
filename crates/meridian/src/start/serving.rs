//! A node that serves clients, from its start to its stop.

use std::sync::Arc;
use std::time::Duration;

use actions::Engine;
use api::{Bound, Parts, Server};
use auth::Guard;
use bridges::Bridges;
use broker::peers::Peers;
use broker::spans::SpanQueues;
use configstore::ReplicatedStore;

use super::parts::{AccessParts, Data, OpenStores, Registries};
use crate::action_views::ActionViews;
use crate::bridge_views::BridgeViews;
use crate::cluster::Cluster;
use crate::config::{Config, ConfigArgs};
use crate::drain::Drainer;
use crate::expiry::TlsFiles;
use crate::holder;
use crate::link_views::LinkViews;
use crate::log::Log;
use crate::node::Node;
use crate::notify::ServiceManager;
use crate::replicated::{ReplicatedSettings, Updates};
use crate::running::{Loading, Running};
use crate::signals::{Signal, Signals};
use crate::store::Store;

/// Minimum time for the thread of the links to end, even when the stop is to be shorter.
const LINKS_END_MIN: Duration = Duration::from_secs(5);

/// Circumstances of the start of a node.
pub struct Context<'a> {
    pub args: &'a ConfigArgs,
    pub config: &'a Config,
    pub name: &'a str,
    pub log: &'a Arc<Log>,
    pub spans: Option<Arc<SpanQueues>>,
    pub manager: Arc<ServiceManager>,
}

/// A node that serves clients.
pub struct Serving {
    name: String,
    manager: Arc<ServiceManager>,
    running: Arc<Running>,
    files: TlsFiles,
    node: Node,
    /// `None` if nothing is kept on disk.
    store: Option<Store>,
    cluster: Option<Arc<Cluster>>,
    bridges: Arc<Bridges>,
    links: Arc<linking::Engine>,
    actions: Arc<Engine>,
    drainer: Arc<Drainer>,
    http: Option<Server>,
}

impl Serving {
    /// Starts a node. It accepts clients at once, or, in a cluster, when it knows what it needs for that.
    ///
    /// # Errors
    /// The node cannot be run as configured. No client has been served then.
    pub fn start(
        context: Context<'_>,
        (loading, agreed_settings, updates): (Loading, ReplicatedSettings, Updates),
        OpenStores { config_store, replicated, keys }: OpenStores,
    ) -> Result<Self, String> {
        let Context { args, config, name, log, spans, manager } = context;
        let AccessParts { guard, users, rules } = AccessParts::open(config, name, &config_store)?;
        // Before the node: one that cannot be operated as configured does not start.
        let http = Bound::bind(&config.http).map_err(|error| holder::of_http(error).to_string())?;
        let Data { store, broker_store, cluster } = Data::open(config, name, &guard, replicated.as_ref())?;
        let registries = Registries::open(config, name, &config_store, &guard)?;
        let peers = cluster.clone().map(|cluster| cluster as Arc<dyn Peers>);
        let segments = store.as_ref().map_or(0, Store::segments);
        let node = Node::start(config, guard.clone(), broker_store, peers, spans, segments)
            .map_err(|error| holder::of_listener(error).to_string())?;
        let bridges = Arc::new(node.start_bridges(config, name, registries.bridges)?);
        let history = history(store.as_ref(), replicated);
        let links = (registries.links, registries.acceptor);
        let links = Arc::new(node.start_links(config, name, links, history, cluster.as_ref())?);
        let actions = Arc::new(node.start_actions(config, name, registries.actions)?);
        let https = http.as_ref().map(Bound::certificates);
        node.admin().name_node(name);
        node.admin().set_server_reference(config.node.server_reference.as_deref().map(Into::into));
        let drainer = Drainer::start(node.admin(), name, cluster.clone(), config_store)?;
        let handles = node.handles(https, cluster.clone());
        let files = handles.files.clone();
        let running =
            Running::new(args.clone(), loading, agreed_settings, guard.clone(), handles, log.clone());
        let running = Arc::new(running);
        running
            .follow_cluster(updates)
            .map_err(|error| format!("no thread for the cluster's settings: {error}"))?;
        let parts = Parts {
            admin: node.admin(),
            guard: guard.clone(),
            configuration: running.clone(),
            keys,
            users,
            rules,
            log: log.ring().clone(),
            node: node.facts(config, name, files.clone()),
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
        let http = http.map(|bound| bound.serve(parts)).transpose();
        let http = http.map_err(|error| format!("HTTP cannot be served: {error}"))?;
        if store.is_none() {
            tracing::warn!(
                "sessions and retained messages are kept in memory only: a restart loses them \
                 (storage.durability = \"memory\")"
            );
        }
        let name = name.to_owned();
        let serving = Self {
            name,
            manager,
            running,
            files,
            node,
            store,
            cluster,
            bridges,
            links,
            actions,
            drainer,
            http,
        };
        serving.open_up(guard);
        Ok(serving)
    }

    /// Accepts clients as soon as this node can serve them.
    fn open_up(&self, guard: Arc<Guard>) {
        let (readiness, manager) = (self.http.as_ref().map(Server::readiness), self.manager.clone());
        let open = move || {
            guard.open_up();
            if let Some(readiness) = readiness {
                readiness.ready();
            }
            tracing::info!("the node serves");
            manager.ready();
        };
        match &self.cluster {
            Some(cluster) => {
                cluster.when_known(open);
                self.manager.ready_soon();
            }
            None => open(),
        }
    }

    /// Notices changes of files, and certificates that expire.
    ///
    /// # Errors
    /// There is no thread for it.
    pub fn watch_files(&self) -> Result<(), String> {
        self.files.warn();
        self.running.watch_files().map_err(|error| format!("no thread for watched files: {error}"))?;
        if let Err(error) = self.files.clone().warn_daily() {
            tracing::warn!(%error, "certificates that expire soon are logged at a reload only");
        }
        Ok(())
    }

    /// Waits for a signal that stops the node, and reloads at others.
    ///
    /// # Errors
    /// Signals cannot be waited for.
    pub fn wait_for_stop(&self, signals: &Signals) -> Result<(), String> {
        loop {
            match signals.wait().map_err(|error| format!("signals cannot be waited for: {error}"))? {
                Signal::Stop | Signal::OwnStop => return Ok(()),
                Signal::Reload => {
                    self.manager.reloading();
                    let reloaded = self.running.reload_all("SIGHUP");
                    match &reloaded {
                        Ok(reloaded) => tracing::info!(files = reloaded.files.join(", "), "reloaded"),
                        Err(refused) => {
                            tracing::error!("not reloaded, everything stays as it was: {refused}");
                        }
                    }
                    self.manager.reloaded(reloaded.is_err());
                }
            }
        }
    }

    /// Stops the node: it drains, leaves its cluster if it is asked to, notifies its clients, and closes its store.
    ///
    /// # Errors
    /// It could not leave its cluster, or one of its threads did not end.
    pub fn stop(self, signals: Signals) -> Result<(), String> {
        let within = self.running.shutdown_timeout();
        let is_leaving = self.drain(&signals, within);
        // The time for leaving depends on other nodes. It ends by itself when they do not answer.
        let _extension = is_leaving.then(|| self.manager.extend());
        self.manager.stopping(if is_leaving { "stops, to leave its cluster" } else { "stops" }, within);
        match is_leaving {
            true => tracing::info!(?within, "stopping, to leave the cluster; a signal ends at once"),
            false => tracing::info!(?within, "stopping; a second signal ends at once"),
        }
        if let Some(http) = &self.http {
            http.stopping();
        }
        end_at_signal(signals);
        let _span = tracing::info_span!("stop").entered();
        self.drainer.end();
        self.links.stop();
        self.bridges.stop();
        self.actions.stop();
        let (mut is_stuck, mut left) = (false, Ok(()));
        match self.cluster {
            // Its shards need it until other cores have them.
            Some(cluster) if is_leaving && cluster.shard_replicas() > 0 => {
                self.node.close(within);
                left = leave(&cluster);
                self.node.stop(within);
                is_stuck = !cluster.stop(within.max(LINKS_END_MIN));
            }
            Some(cluster) => {
                self.node.stop(within);
                if is_leaving {
                    left = leave(&cluster);
                }
                is_stuck = !cluster.stop(within.max(LINKS_END_MIN));
            }
            None => self.node.stop(within),
        }
        if let Some(store) = self.store {
            store.close();
        }
        if let Some(http) = self.http {
            http.stop();
        }
        if is_stuck {
            return Err("the thread that carries the node's links did not end in time: it is stuck, and ends with the \
                        process. All durable data is written"
                .to_owned());
        }
        left.map_err(|why| {
            format!(
                "stopped without having left the cluster: {why}. It is still a member: start it and let it leave again, \
                 or remove it when it is dead, on another node: meridian ctl cluster remove {}",
                self.name
            )
        })
    }

    /// Gives clients and shards to other nodes, unless a signal ends that. Returns whether the node leaves its cluster.
    fn drain(&self, signals: &Signals, within: Duration) -> bool {
        let cluster = self.cluster.as_ref();
        let leaves = cluster.is_some_and(|cluster| api::Cluster::is_leaving(&**cluster));
        let drain_max = self.running.drain_max();
        self.manager.stopping("stops; in a cluster it drains first", drain_max.saturating_add(within));
        self.drainer.drain_to_stop(drain_max, leaves, |pause| {
            matches!(signals.wait_for(pause), Ok(Some(Signal::Stop)))
        });
        cluster.is_some_and(|cluster| cluster.stopping())
    }
}

/// Ends the process at once at the next signal that stops it.
fn end_at_signal(signals: Signals) {
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
