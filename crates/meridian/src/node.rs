//! Interface between the binary and the crate `edge`: starting, reloading and stopping the node.

use std::sync::Arc;
use std::time::Duration;

use actions::{Engine, Registry};
use api::{ListenerFacts, NodeFacts};
use auth::Guard;
use bridges::Bridges;
use broker::admin::Admin;
use broker::peers::Peers;
use broker::spans::SpanQueues;
use linking::Acceptor;

use crate::cli::VERSION;
use crate::cluster::{Cluster, is_clustered};
use crate::config::Config;
use crate::expiry::TlsFiles;
use crate::running::Handles;

/// A node that serves clients.
pub struct Node(edge::Node);

impl Node {
    /// Starts the node. `segments`: number of segments that the log has now.
    ///
    /// # Errors
    /// An address that cannot be opened, for example; the text contains advice.
    pub fn start(
        config: &Config,
        access: Arc<Guard>,
        store: Option<broker::Store>,
        peers: Option<Arc<dyn Peers>>,
        spans: Option<Arc<SpanQueues>>,
        segments: u64,
    ) -> Result<Self, edge::StartError> {
        let node = edge::start(edge::Options {
            edge: config.edge.clone(),
            broker: config.broker.clone(),
            access,
            version: format!("meridian {VERSION}"),
            descriptors_reserved: descriptors_reserved(config, peers.is_some(), segments),
            store,
            peers,
            spans,
        })?;
        for listener in node.listeners() {
            tracing::info!(name = listener.name, address = listener.address, "listening");
        }
        tracing::info!(connections_max = node.connections_max(), "ready");
        Ok(Self(node))
    }

    /// Interface for the requests of operators.
    pub fn admin(&self) -> Admin {
        self.0.admin()
    }

    /// Handles for changing the running node.
    pub fn handles(&self, https: Option<api::Certificates>, links: Option<Arc<Cluster>>) -> Handles {
        let files = TlsFiles { listeners: self.0.certificates(), https, links, watched: Arc::default() };
        Handles { admin: self.0.admin(), files }
    }

    /// Facts about the node for the API.
    pub fn facts(&self, config: &Config, name: &str, files: TlsFiles) -> NodeFacts {
        let listeners = self.0.listeners().iter().cloned().map(|bound| ListenerFacts {
            name: bound.name.clone(),
            address: bound.address.clone(),
            connections_max: bound.connections_max(),
            connections: Box::new(move || bound.connections()),
        });
        let watched = files.watched.clone();
        NodeFacts {
            name: name.to_owned(),
            version: env!("CARGO_PKG_VERSION"),
            commit: env!("MERIDIAN_COMMIT"),
            data_dir: config.node.data_dir.clone(),
            connections_max: self.0.connections_max(),
            client_address: config
                .node
                .client_address
                .clone()
                .or_else(|| config.node.server_reference.clone()),
            listeners: listeners.collect(),
            expiries: Box::new(move || files.expiries()),
            watched: Box::new(move || sync::lock(&watched).clone()),
        }
    }

    /// Starts the bridges to other brokers.
    ///
    /// # Errors
    /// The setting that is wrong, with advice.
    pub fn start_bridges(
        &self,
        config: &Config,
        name: &str,
        registry: bridges::Registry,
    ) -> Result<Bridges, String> {
        let name = if is_clustered(config) { &config.cluster.id } else { name };
        let started = Bridges::start(Arc::new(registry), name, &self.0.door(), &self.admin());
        started.map_err(|(name, problem)| format!("bridge \"{name}\": {problem}"))
    }

    /// Starts the links to other clusters.
    ///
    /// # Errors
    /// There is no thread for them.
    pub fn start_links(
        &self,
        config: &Config,
        name: &str,
        (registry, acceptor): (Arc<linking::Registry>, Arc<Acceptor>),
        history: linking::History,
        cluster: Option<&Arc<Cluster>>,
    ) -> Result<linking::Engine, String> {
        let name = if is_clustered(config) { &config.cluster.id } else { name };
        let nodes = cluster.cloned().map(|cluster| cluster as Arc<dyn linking::Nodes>);
        let of_node = (&self.0.door(), &self.admin());
        let engine = linking::Engine::start(registry, acceptor, name, history, of_node, nodes)?;
        if let Some(cluster) = cluster {
            cluster.answer_links(engine.answerer());
        }
        Ok(engine)
    }

    /// Starts the actions.
    ///
    /// # Errors
    /// There is no thread for them.
    pub fn start_actions(&self, config: &Config, name: &str, registry: Registry) -> Result<Engine, String> {
        let cluster = if is_clustered(config) { &config.cluster.id } else { name };
        Engine::start(Arc::new(registry), name, cluster, &self.0.door(), &self.admin())
    }

    /// Begins to disconnect all clients, within about this time, and accepts no others. Everything else goes on.
    pub fn close(&self, within: Duration) {
        self.0.close(within);
    }

    /// Stops the node: notifies clients and sends messages in flight. Takes at most about `within`.
    pub fn stop(self, within: Duration) {
        let stopped = self.0.stop(within);
        tracing::info!(connections = stopped.connections, cut_off = stopped.forced, "stopped");
    }
}

/// Number of segments that a log may gain in addition to twice those that it has at start: each is an open file.
const SEGMENTS_KEPT: u64 = 64;
/// Numbers of reserved descriptors for links to nodes, and for incoming handshakes.
const LINKS_KEPT: (usize, usize) = (32, 64);

/// Descriptors for operators, other nodes and the log: clients must not use them.
fn descriptors_reserved(config: &Config, has_peers: bool, segments: u64) -> usize {
    let (nodes, handshakes) = LINKS_KEPT;
    let links = if has_peers { nodes * usize::from(config.cluster.connections) + handshakes } else { 0 };
    let http = if config.http.listen != api::settings::Listen::Off {
        config.http.connections_max as usize
    } else {
        0
    };
    http + links + (2 * segments + SEGMENTS_KEPT) as usize
}
