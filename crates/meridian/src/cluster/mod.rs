//! The node's part in a cluster: from the configuration to the thread that carries its links.

mod incarnation;
mod known;
mod peer_requests;
mod proposals;
mod record_copies;
mod settings;
mod shards;
mod shutdown;
mod view;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{SocketAddr, ToSocketAddrs as _};
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc;
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ::settings::HostPort;
use ::tls::{Age, Expiry, check_mutual};
use api::Order;
use broker::Node;
use broker::peers::{Outbound, Peers};
use broker::settings::Durability;
use cluster::meta::{Command, CoreLog, Meta, MetaConfig, MetaState};
use cluster::{ClusterRouter, Role, RouterCommand, Unanswered, View};
use configstore::ReplicatedStore;
use consensus::{Group, LogGroup, Member, ReplicaId, StartError, StorageGroups};
use link::{BufferMax, Config as LinkConfig, Identity, Mesh, MeshConfig, NodeId, Secret, Time};
use replog::Incarnation;
use ring::digest;
use shard::NodeIncarnation;
use shardlog::{LogNotifier, TransferPermit};
use transport::{Handle, Handler, Names, Sender, Tls, TlsFiles, TransportConfig};

pub use settings::ClusterSettings;

use self::known::WhenKnown;
use self::peer_requests::{NoAnswer, PeerRequests};
use self::proposals::Proposals;
use self::record_copies::RecordCopies;
use self::shards::{PreparedShards, ShardPlacements};
use self::shutdown::Shutdown;
use crate::config::Config;
use crate::signals;
use crate::store::{MetaLog, ReadQueue, ShardsLog};

/// Minimum length of the secret in bytes: a shorter one could be guessed.
const SECRET_MIN: usize = 16;
/// Interval at which a node that leaves logs the progress of its shards.
const LEAVING_INTERVAL: Duration = Duration::from_secs(10);
/// Time without a sign of the cluster router after which a node that leaves no longer waits for it. The router itself
/// ends the wait a minute after the last progress, or ten minutes while shards move.
const ROUTER_SILENCE_MAX: Duration = Duration::from_secs(70);
/// Interval at which the state of the cluster router is published for operators, and the additional delay while it is
/// idle.
const VIEW_INTERVAL: Duration = Duration::from_millis(500);
const VIEW_DELAY_MAX: Duration = Duration::from_millis(150);

/// Connection of the node to the others of its cluster.
pub struct Cluster {
    /// Parts that wait for the start of the node.
    prepared: Mutex<Option<Prepared>>,
    handle: Mutex<Option<Handle<RouterCommand>>>,
    shared: Arc<Shared>,
    /// Certificates of links in use.
    tls: Mutex<Option<Tls>>,
    /// Maximum time to wait for another node's answer.
    request_timeout: Duration,
    /// Maximum time for which a SUBACK waits.
    suback_timeout: Duration,
    shutdown: Shutdown,
    /// This node, if the shards belong to the cluster.
    own: Option<NodeIncarnation>,
    /// Thread of the replicas of shards.
    replicas: Mutex<Option<JoinHandle<()>>>,
}

struct Prepared {
    config: cluster::Config,
    mesh: Mesh,
    transport: TransportConfig,
    hash_seed: u64,
    meta: PreparedMeta,
    shards: Option<PreparedShards>,
}

struct PreparedMeta {
    config: MetaConfig,
    /// Raft log of a core.
    log: Option<MetaLog>,
    seed: u64,
}

type MetaLogAccess = (Arc<LogNotifier>, ReadQueue);

impl PreparedMeta {
    /// Starts the meta group. Returns the listener of the log, which is connected once the commands have a receiver,
    /// and the queue of reads of the log.
    fn start(self, now: Time, config: &cluster::Config) -> Result<(Meta, Option<MetaLogAccess>), String> {
        let own = config.own.clone();
        let (group, access) = match self.log {
            Some(MetaLog { log, notifier, recovered, reads }) => {
                let CoreLog { node, replica } = core_log(&log, &own.name);
                let of_group = consensus::Config::new(LogGroup(0), replica, Member { node }, self.seed);
                let [entries, votes] = shardlog::META;
                let storage_groups = StorageGroups { entries, votes };
                let state = MetaState::new(Default::default(), self.config.features);
                let group = Group::start(now, of_group, log, storage_groups, &recovered, state);
                let group = group.map_err(|error| match error {
                    StartError::UnsupportedVersion => error.to_string(),
                    _ => format!(
                        "the Raft log of the meta group cannot be read: {error}. Restore a \
                         backup, or move the data directory away and start the node with an \
                         empty one: either way it joins the group again"
                    ),
                })?;
                (Some(group), Some((notifier, reads)))
            }
            None => (None, None),
        };
        Ok((Meta::new(now, own, config.incarnation, self.config, group), access))
    }
}

/// Returns the log of this core as a replica. Another log, or another copy of this one, is another replica: it does not
/// know the promises of this one.
fn core_log(log: &storage::Log, name: &str) -> CoreLog {
    let identity = log.identity();
    let first = identity.log.first_chunk().map_or(1, |first| u64::from_le_bytes(*first));
    CoreLog { node: NodeId::of_name(name), replica: ReplicaId((first ^ identity.copy).max(1)) }
}

#[derive(Default)]
struct Shared {
    sender: OnceLock<Sender<RouterCommand>>,
    last_view: Mutex<LastView>,
    peer_requests: PeerRequests,
    proposals: Proposals,
    record_copies: RecordCopies,
    /// The placement of shards, if they belong to the cluster.
    placement_known: WhenKnown,
    /// Bytes of commands that the cluster router has not handled yet.
    backlog: AtomicUsize,
    /// Permission to transfer the leadership of shards, one at a time.
    transfer_permit: Arc<TransferPermit>,
}

/// Last state that the cluster router's thread published.
#[derive(Default)]
struct LastView {
    view: Option<Arc<View>>,
    /// Time of the last update; the start counts as one.
    at: Option<Instant>,
}

impl Shared {
    fn lock_last_view(&self) -> MutexGuard<'_, LastView> {
        sync::lock(&self.last_view)
    }
}

/// Checks the settings of the cluster and the files of links, if the node belongs to one.
///
/// # Errors
/// A problem of the configuration or its files, with advice.
pub fn check(config: &Config, name: &str) -> Result<(), String> {
    if is_clustered(config) {
        checked(config, name)?;
    }
    Ok(())
}

/// Advice on a valid cluster configuration that is not recommended.
pub fn advice(config: &Config) -> Vec<String> {
    match is_clustered(config) {
        true => {
            let ports = settings::join(&config.cluster).iter().filter_map(|peer| other_port(config, peer));
            settings::advice(&config.cluster).into_iter().chain(ports).collect()
        }
        false => settings::unused(&config.cluster).into_iter().collect(),
    }
}

/// Returns whether the node belongs to a cluster, so that the records of [`configstore`] are replicated.
pub fn is_clustered(config: &Config) -> bool {
    let settings = &config.cluster;
    settings.listen.is_some() || settings.join.is_some()
}

/// Returns whether the shards of the session store belong to the cluster, and not to each node alone.
pub fn shares_shards(config: &Config) -> bool {
    is_clustered(config) && config.cluster.replicas > 0
}

/// Returns whether messages may have durability `memory`.
fn has_memory_class(config: &Config) -> bool {
    let mut rules = config.broker.durability.iter().map(|rule| rule.class);
    let mut listeners = config.edge.listeners.iter().map(|listener| listener.durability);
    rules.any(|class| class == Durability::Memory) || listeners.any(|class| class == Durability::Memory)
}

fn checked(config: &Config, name: &str) -> Result<(Secret, Option<Tls>), String> {
    settings::check(&config.cluster, name)?;
    let is_core = config.cluster.role == settings::RoleSetting::Core;
    if is_core && config.storage.durability == Durability::Memory {
        return Err("a core stores the Raft log of the cluster on disk: set \
             storage.durability = \"local-disk\", or cluster.role = \"replicant\""
            .to_owned());
    }
    check_shards(config)?;
    check_listen_conflict(config)?;
    check_peer_addresses(config)?;
    Ok((secret(&config.cluster)?, tls(&config.cluster)?))
}

/// Checks the settings of a node whose shards belong to the cluster.
fn check_shards(config: &Config) -> Result<(), String> {
    if !shares_shards(config) {
        return Ok(());
    }
    if config.edge.workers > usize::from(shard::LANES_MAX) {
        return Err(format!(
            "a node with cluster.replicas has {} workers at most: set edge.workers or --workers",
            shard::LANES_MAX
        ));
    }
    Ok(())
}

/// Checks that no other listener uses the address for links.
fn check_listen_conflict(config: &Config) -> Result<(), String> {
    let Some(listen) = &config.cluster.listen else { return Ok(()) };
    match client_addresses(config).find(|(_, address)| address.overlaps(listen)) {
        Some((setting, address)) => Err(format!(
            "other nodes connect to {listen} (cluster.listen), and {setting} is {address}: they need ports of their own, such as 7883 for nodes"
        )),
        None => Ok(()),
    }
}

/// Addresses for clients and operators of this node, with the settings that name them. Values that are not an address
/// with a port, such as `off`, are skipped.
fn client_addresses(config: &Config) -> impl Iterator<Item = (String, HostPort)> {
    let clients = config.edge.listeners.iter().enumerate();
    let clients =
        clients.map(|(index, listener)| (format!("listener.{index}.address"), listener.address.to_string()));
    let http = ("http.listen".to_owned(), config.http.listen.to_string());
    clients.chain([http]).filter_map(|(setting, address)| Some((setting, address.parse().ok()?)))
}

/// Checks that no address of another node is a port for clients or operators of this node.
fn check_peer_addresses(config: &Config) -> Result<(), String> {
    let cluster = &config.cluster;
    // A port opened at an unspecified address has all addresses of the machine. Only the listed ones and loopback are
    // known.
    let is_own = |address: &HostPort| {
        let known = [&cluster.listen, &cluster.advertise].into_iter().flatten();
        address.is_loopback() || known.into_iter().any(|own| own.host().eq_ignore_ascii_case(address.host()))
    };
    for address in settings::join(cluster) {
        let is_it = |client_address: &HostPort| {
            client_address.is_same(address) || client_address.overlaps(address) && is_own(address)
        };
        if let Some((client_setting, client_address)) =
            client_addresses(config).find(|(_, client_address)| is_it(client_address))
        {
            return Err(format!(
                "cluster.join: {address} is not a port for nodes: {client_setting} of this node is \
                 {client_address}. Name the cluster ports of nodes, their cluster.listen or \
                 cluster.advertise{}",
                example_port(config)
            ));
        }
    }
    Ok(())
}

/// Advice on an address of another node that has the port of this node's clients or operators: nodes mostly use the
/// same ports.
fn other_port(config: &Config, address: &HostPort) -> Option<String> {
    let is_cluster_port =
        config.cluster.listen.as_ref().is_some_and(|listen| listen.port() == address.port());
    let (client_setting, client_address) = client_addresses(config)
        .find(|(_, client_address)| client_address.port() == address.port() && !is_cluster_port)?;
    Some(format!(
        "cluster.join: {address} has the port of {client_setting} ({client_address}): check that it is the cluster port of that node, its cluster.listen or \
         cluster.advertise{}",
        example_port(config)
    ))
}

/// An example of a cluster port, when this node has one.
fn example_port(config: &Config) -> String {
    let listen = config.cluster.listen.as_ref();
    listen.map(|listen| format!(", here {listen}")).unwrap_or_default()
}

impl Cluster {
    /// Prepares the cluster part that `config` describes; `None` when the node belongs to no cluster. `log` is for a
    /// core's replica of the meta group, `shards_log` for those of shards.
    ///
    /// # Errors
    /// A problem of the configuration or its files, with advice.
    pub fn prepare(
        config: &Config,
        name: &str,
        log: Option<MetaLog>,
        shards_log: Option<ShardsLog>,
    ) -> Result<Option<Arc<Self>>, String> {
        let settings = &config.cluster;
        if !is_clustered(config) {
            return Ok(None);
        }
        let (secret, tls) = checked(config, name)?;
        warn_of_the_future(settings);
        let listen = settings.listen.as_ref().map(resolve).transpose()?.unwrap_or_default();
        let batches = config.broker.routing.batch_sync == broker::settings::BatchSync::Auto;
        let incarnation = incarnation::next(&config.node.data_dir)?;
        let cluster_config = settings::config(settings, name, batches, incarnation);
        let packs = if cluster_config.packs { cluster::PACKS } else { 0 };
        let shares_shards = shares_shards(config);
        let own_state = shards_log.as_ref().and_then(ShardsLog::unaccepted_state);
        let of_shards = settings::features_of_shards(settings, own_state.is_some());
        let features = cluster::FEATURES & !cluster::PACKS | packs | cluster::ORIGINS | of_shards;
        let (id, descriptor) = (cluster_id(&settings.id), Default::default());
        let identity = Identity { name: name.into(), cluster: id, features, descriptor };
        let assured = settings.buffer_max.bytes();
        let buffer_max = BufferMax { assured, best_effort: assured / 4, ..LinkConfig::default().buffer_max };
        let silence_max = settings.silence_max;
        let link =
            LinkConfig { buffer_max, silence_max, heartbeat: silence_max / 5, ..LinkConfig::default() };
        let mesh_config = MeshConfig {
            link,
            connections: settings.connections,
            cluster: settings.id.as_str().into(),
            ..MeshConfig::default()
        };
        let mut seed = [0; 48];
        getrandom::fill(&mut seed).map_err(|error| format!("the system has no random bytes: {error}"))?;
        let [a, b, c, d, e, f] =
            [0, 8, 16, 24, 32, 40].map(|at| seed[at..].first_chunk().map_or(0, |it| u64::from_le_bytes(*it)));
        let meta = PreparedMeta {
            config: settings::meta_config(
                settings,
                (u128::from(a) << 64 | u128::from(b).max(1), u128::from(e) << 64 | u128::from(f)),
                own_state,
            ),
            log: log.filter(|_| cluster_config.own.role == Role::Core),
            seed: c,
        };
        let is_core = cluster_config.own.role == Role::Core;
        let shards = shares_shards.then(|| PreparedShards {
            log: shards_log.filter(|_| is_core).map(|log| (core_log(&log.log, name), log)),
            seed: c ^ d,
            overlaps_connacks: settings.connack == settings::ConnackSetting::Overlap,
            reports_held: has_memory_class(config),
            copy_rate: NonZeroU64::new(config.cluster.copy_rate.bytes()).unwrap_or(NonZeroU64::MIN),
        });
        let own = NodeIncarnation { node: NodeId::of_name(name).0, incarnation: incarnation.0 };
        let mesh = Mesh::new(identity, secret, Box::new(fill), mesh_config);
        let in_use = Mutex::new(tls.clone());
        let transport = TransportConfig { listen, tls, ..TransportConfig::default() };
        Ok(Some(Arc::new(Self {
            prepared: Mutex::new(Some(Prepared {
                config: cluster_config,
                mesh,
                transport,
                hash_seed: d,
                meta,
                shards,
            })),
            handle: Mutex::default(),
            shared: Arc::default(),
            tls: in_use,
            request_timeout: settings.request_timeout,
            suback_timeout: settings.suback_timeout,
            shutdown: Shutdown::default(),
            own: shares_shards.then_some(own),
            replicas: Mutex::default(),
        })))
    }

    /// This node in its cluster, if the shards belong to the cluster.
    pub fn own(&self) -> Option<NodeIncarnation> {
        self.own
    }

    /// Returns whether this node is a core and has a replica of the meta group.
    pub fn has_replica(config: &Config) -> bool {
        is_clustered(config) && config.cluster.role == settings::RoleSetting::Core
    }

    /// Copies the replicated records into this store from now on, and proposes its changes to the cores.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn copy_records(&self, config_store: &Arc<ReplicatedStore>) -> Result<(), String> {
        record_copies::start(&self.shared, config_store.clone())
    }

    /// Calls `call` as soon as this node can serve clients. It knows the valid users, rules, bans and keys: it has a
    /// copy of the cluster's records, or the cluster has none. If the shards belong to the cluster, it knows where they
    /// are.
    pub fn when_known(&self, call: impl FnOnce() + Send + 'static) {
        let shared = self.shared.clone();
        let shares_shards = self.own.is_some();
        self.shared.record_copies.first.call(Box::new(move || match shares_shards {
            true => shared.placement_known.call(Box::new(call)),
            false => call(),
        }));
    }

    /// Starts the links and the cluster router.
    ///
    /// # Errors
    /// An address that cannot be bound, or no thread.
    pub fn start(&self, node: &Arc<Node>, clock: broker::Instant) -> Result<(), String> {
        let prepared = sync::lock(&self.prepared).take();
        let Some(Prepared { config, mesh, transport, hash_seed, meta, shards }) = prepared else {
            return Ok(());
        };
        let elapsed = clock.elapsed();
        let now = Time(elapsed.as_micros() as u64);
        let began = SystemTime::now().checked_sub(elapsed).map_or(0, since_1970);
        let config = cluster::Config { wall_ms: began, ..config };
        let (meta, access) = meta.start(now, &config)?;
        let (meta_events, log_reads) = access.unzip();
        let router = ClusterRouter::new(now, config, node.clone(), mesh, hash_seed, meta);
        self.shared.lock_last_view().at = Some(Instant::now());
        let shards = shards.map(|shards| shards.start(node, clock, &self.shared)).transpose()?;
        let (shards, replicas) = shards.unzip();
        *sync::lock(&self.replicas) = replicas.flatten();
        let served = RouterThread { router, shared: self.shared.clone(), log_reads, shards, viewed_at: None };
        let handle = transport::spawn(served, TransportConfig { clock, ..transport })
            .map_err(|error| error.to_string())?;
        for address in handle.addresses() {
            tracing::info!(%address, "listening for other nodes of the cluster");
        }
        if let Some(notifier) = meta_events {
            let sender = handle.sender();
            notifier.set_meta_listener(Box::new(move |event| {
                // A thread that has ended needs no events.
                let _ = sender.send(RouterCommand::Log(event));
            }));
        }
        let _ = self.shared.sender.set(handle.sender());
        *self.lock_handle() = Some(handle);
        Ok(())
    }

    /// Reads the files of links again; `None` when the node was started without TLS on links, and stays without.
    ///
    /// # Errors
    /// Files that cannot be read or do not match; then nothing has changed.
    pub fn read_tls(&self, settings: &ClusterSettings) -> Result<Option<Tls>, String> {
        if self.lock_tls().is_none() {
            return Ok(None);
        }
        let tls = tls(settings)?;
        warn_of_the_future(settings);
        Ok(tls)
    }

    /// Uses these certificates for new connections; existing connections continue.
    pub fn renew(&self, tls: Tls) {
        if let Some(handle) = self.lock_handle().as_ref() {
            handle.renew(tls.clone());
        }
        *self.lock_tls() = Some(tls);
    }

    /// Expiry of the files of links that are in use.
    pub fn expiries(&self) -> Vec<Expiry> {
        self.lock_tls().as_ref().map(|tls| tls.expiries().to_vec()).unwrap_or_default()
    }

    fn lock_tls(&self) -> MutexGuard<'_, Option<Tls>> {
        sync::lock(&self.tls)
    }

    /// Lets the links of this node answer other nodes. Later calls have no effect.
    pub fn answer_links(&self, answerer: linking::Answerer) {
        self.shared.peer_requests.set_links(answerer);
    }

    /// Announces that the node stops. From then on it cannot be made to leave the cluster, and another core leads if
    /// this one did. Returns whether the node leaves its cluster when it has stopped.
    pub fn stopping(&self) -> bool {
        self.shutdown.stop();
        self.send(RouterCommand::Resign);
        self.shutdown.leaves()
    }

    /// Sets the nodes that are drained, each with the nodes that get its shards; none: any node. Cores among them
    /// transfer the shards that they lead.
    pub fn set_drained(&self, names: &BTreeMap<String, BTreeSet<String>>, own: &str) {
        self.shared.transfer_permit.set_leaving(names.contains_key(own));
        let ids = |names: &BTreeSet<String>| names.iter().map(|name| NodeId::of_name(name)).collect();
        let nodes = names.iter().map(|(name, to)| (NodeId::of_name(name), ids(to))).collect();
        self.send(RouterCommand::Drained(nodes));
    }

    /// Returns the number of replicas of shards that this node has.
    pub fn shard_replicas(&self) -> u64 {
        let view = self.shared.lock_last_view().view.clone();
        view.and_then(|view| Some(view.membership.placement.as_ref()?.own)).unwrap_or(0)
    }

    /// Waits until the node is no longer a member: its clients are gone, and other cores get its shards. Bounded by the
    /// time without progress.
    ///
    /// # Errors
    /// The reason why it still is a member.
    pub fn leave(&self) -> Result<(), String> {
        let (left, leaves) = mpsc::sync_channel(1);
        self.shared
            .proposals
            .leave(self.shared.sender.get(), Box::new(move |outcome| drop(left.send(outcome))));
        let mut last = 0;
        let outcome = shutdown::await_leave(&leaves, LEAVING_INTERVAL, || {
            let replicas = self.shard_replicas();
            if replicas > 0 && std::mem::replace(&mut last, replicas) != replicas {
                tracing::info!(replicas, "other cores take over the shards of this node");
            }
            api::Cluster::silence(self) < ROUTER_SILENCE_MAX
        });
        match outcome {
            Some(outcome) => outcome.map_err(|why| why.to_string()),
            None => Err("the cores have not answered".to_owned()),
        }
    }

    /// Stops the exchange with other nodes. Returns false when the thread of the links has not ended `within` that
    /// time: it is stuck.
    pub fn stop(&self, within: Duration) -> bool {
        // The lock is not held during the wait: the API reads the handle meanwhile.
        let handle = self.lock_handle().take();
        self.shared.lock_last_view().at = None;
        if !handle.is_none_or(|handle| handle.stop_within(within)) {
            return false;
        }
        // Its channel has ended with the thread of the links. A panic of the thread ends the process.
        sync::lock(&self.replicas).take().is_none_or(|thread| thread.join().is_ok())
    }

    fn lock_handle(&self) -> MutexGuard<'_, Option<Handle<RouterCommand>>> {
        sync::lock(&self.handle)
    }

    fn send(&self, command: RouterCommand) {
        // After the end of the thread nothing receives answers any more.
        if let Some(sender) = self.shared.sender.get() {
            let _ = sender.send(command);
        }
    }
}

impl api::Cluster for Cluster {
    fn view(&self) -> Option<api::ClusterView> {
        let figures = self.lock_handle().as_ref()?.figures();
        let view = self.shared.lock_last_view().view.clone()?;
        Some(view::of(&view, &figures, self.shared.transfer_permit.counts()))
    }

    fn node_name(&self, node: u64) -> Option<String> {
        let view = self.shared.lock_last_view().view.clone()?;
        let mut members = view.membership.members.iter().map(|member| &member.info.name);
        members.find(|name| NodeId::of_name(name).0 == node).map(ToString::to_string)
    }

    fn silence(&self) -> Duration {
        self.shared.lock_last_view().at.map_or(Duration::ZERO, |at| at.elapsed())
    }

    fn ask(&self, node: &str, question: Vec<u8>, callback: api::AnswerCallback) {
        let Shared { sender, peer_requests, .. } = &*self.shared;
        let callback =
            Box::new(|answer: Result<_, NoAnswer>| callback(answer.map_err(peer_requests::explain)));
        peer_requests.ask(sender.get(), node, question, self.request_timeout, callback);
    }

    fn set_request_handler(&self, request_handler: Arc<dyn api::RequestHandler>) {
        self.shared.peer_requests.set_request_handler(request_handler);
    }

    fn order(&self, order: Order, callback: api::OrderCallback) {
        let Shared { sender, proposals, .. } = &*self.shared;
        let sender = sender.get();
        match order {
            Order::Remove { node, incarnation } => {
                let incarnation = Some(Incarnation(incarnation));
                proposals.propose(sender, Command::Remove(NodeId::of_name(&node), incarnation), callback);
            }
            Order::Lead(node) => proposals.propose(sender, Command::Lead(NodeId::of_name(&node)), callback),
            Order::Balance => {
                self.send(RouterCommand::Balance);
                callback(Ok(()));
            }
            Order::JoinAt(addresses) => {
                self.send(RouterCommand::JoinAt(addresses.into_iter().map(Into::into).collect()));
                callback(Ok(()));
            }
            Order::Leave => callback(self.shutdown.leave(signals::stop_this_process)),
        }
    }

    fn is_leaving(&self) -> bool {
        self.shutdown.leaves()
    }
}

impl linking::Nodes for Cluster {
    fn leader_of(&self, client_id: &str) -> Option<String> {
        let shard = broker::shard_of_client(client_id);
        let view = self.shared.lock_last_view().view.clone()?;
        let mut shards = view.membership.placement.as_ref()?.shards.iter();
        let leader = shards.find(|it| it.shard == shard.0)?.leader.as_ref()?;
        Some(leader.to_string())
    }

    fn ask(
        &self,
        node: &str,
        question: Vec<u8>,
        within: Duration,
        reply: Box<dyn FnOnce(linking::Answered) + Send>,
    ) {
        let Shared { sender, peer_requests, .. } = &*self.shared;
        peer_requests.ask(
            sender.get(),
            node,
            question,
            within,
            Box::new(|answer| reply(link_answer(answer))),
        );
    }
}

/// Returns the answer to a question about links.
fn link_answer(answer: Result<Vec<u8>, NoAnswer>) -> linking::Answered {
    match answer {
        Ok(bytes) => linking::Answered::Bytes(bytes),
        Err(NoAnswer::Of(Unanswered::Old | Unanswered::Declined)) => linking::Answered::Unsupported,
        Err(NoAnswer::NoPart | NoAnswer::Of(_)) => linking::Answered::Lost,
    }
}

impl Peers for Cluster {
    fn connect(&self, node: &Arc<Node>, clock: broker::Instant) -> Result<(), String> {
        self.start(node, clock)
    }

    fn submit(&self, outbound: Outbound) {
        self.shared.backlog.fetch_add(outbound.weight(), Relaxed);
        self.send(RouterCommand::Outbound(outbound));
    }

    fn backlog(&self) -> usize {
        self.shared.backlog.load(Relaxed)
    }

    fn routes_changed(&self) {
        self.send(RouterCommand::RoutesChanged);
    }

    fn suback_timeout(&self) -> Duration {
        self.suback_timeout
    }
}

/// The cluster router on its thread.
struct RouterThread {
    router: ClusterRouter,
    shared: Arc<Shared>,
    /// Queue of reads of the Raft log, on a core.
    log_reads: Option<ReadQueue>,
    /// Present if the shards belong to the cluster.
    shards: Option<ShardPlacements>,
    viewed_at: Option<Time>,
}

impl RouterThread {
    fn queue_log_reads(&mut self) {
        // The first turn may come before the start has ended.
        let (Some(reads), Some(sender)) = (&self.log_reads, self.shared.sender.get()) else { return };
        while let Some(read) = self.router.poll_log_read() {
            let sender = sender.clone();
            reads.read_log(read, move |result| {
                // A thread that has ended needs no entries.
                let _ = sender.send(RouterCommand::LogRead(result));
            });
        }
    }
}

impl Handler for RouterThread {
    type Command = RouterCommand;

    fn handle_command(&mut self, now: Time, command: RouterCommand) {
        if let RouterCommand::Outbound(outbound) = &command {
            self.shared.backlog.fetch_sub(outbound.weight(), Relaxed);
        }
        self.router.handle_command(now, command);
    }

    fn mesh(&mut self) -> &mut Mesh {
        self.router.mesh()
    }

    fn turn(&mut self, now: Time) {
        self.router.turn(now);
        self.queue_log_reads();
        if let Some(shards) = &mut self.shards {
            shards.poll(now, &self.router, &self.shared);
        }
        self.shared.peer_requests.poll(&mut self.router, self.shared.sender.get());
        self.shared.proposals.poll(&mut self.router);
        self.shared.record_copies.poll(now, &mut self.router);
        if self.viewed_at.is_none_or(|viewed_at| viewed_at.after(VIEW_INTERVAL) <= now) {
            self.viewed_at = Some(now);
            // NTP may have set the clock.
            self.router.set_wall_clock(now, since_1970(SystemTime::now()));
            let view = Arc::new(self.router.view(now));
            *self.shared.lock_last_view() = LastView { view: Some(view), at: Some(Instant::now()) };
        }
    }

    fn timeout(&self) -> Time {
        let look = self
            .viewed_at
            .map_or(Time::default(), |viewed_at| viewed_at.after(VIEW_INTERVAL + VIEW_DELAY_MAX));
        self.router.timeout().min(look)
    }
}

/// Milliseconds since 1970; 0 before.
fn since_1970(time: SystemTime) -> u64 {
    time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

fn fill(bytes: &mut [u8]) {
    // Without randomness no connection could be made safely.
    getrandom::fill(bytes).expect("the system has randomness after it had some at the start");
}

/// Hashes the name to an id: names differ in length, ids do not.
fn cluster_id(name: &str) -> [u8; 16] {
    let digest = digest::digest(&digest::SHA256, name.as_bytes());
    digest.as_ref().first_chunk().copied().unwrap_or_default()
}

fn secret(settings: &ClusterSettings) -> Result<Secret, String> {
    let Some(path) = &settings.secret_file else {
        return Err("a cluster needs a secret that all its nodes know: make one (openssl rand \
             -hex 32 > cluster.secret), copy the file to every node, and name it (--set \
             cluster.secret_file=cluster.secret)"
            .to_owned());
    };
    let secret = read_secret(path)?;
    Ok(Secret::new(&secret))
}

/// Reads the secret that the nodes of a cluster share.
///
/// # Errors
/// A file that cannot be read or is too short, with advice.
pub fn read_secret(path: &Path) -> Result<Vec<u8>, String> {
    let text =
        std::fs::read(path).map_err(|error| format!("cluster.secret_file: {}: {error}", path.display()))?;
    let secret = text.trim_ascii();
    if secret.len() < SECRET_MIN {
        return Err(format!(
            "cluster.secret_file: {} has {} bytes, and at least {SECRET_MIN} are needed: openssl rand -hex 32 > {}",
            path.display(),
            secret.len(),
            path.display()
        ));
    }
    Ok(secret.to_vec())
}

fn tls(settings: &ClusterSettings) -> Result<Option<Tls>, String> {
    match (&settings.tls_certificate, &settings.tls_key, &settings.tls_ca) {
        (None, None, None) => Ok(None),
        (Some(certificate), Some(key), Some(authorities)) => {
            let files = TlsFiles {
                certificate: certificate.clone(),
                key: key.clone(),
                authorities: authorities.clone(),
                names: Names::Any,
            };
            let tls = Tls::load(&files).map_err(|error| format!("cluster.tls: {error}"))?;
            check_mutual(certificate, authorities, now()).map_err(|error| format!("cluster.tls: {error}"))?;
            Ok(Some(tls))
        }
        _ => Err("cluster.tls_certificate, cluster.tls_key and cluster.tls_ca belong together: set all three, or none".to_owned()),
    }
}

/// Unix time in seconds.
fn now() -> u64 {
    since_1970(SystemTime::now()) / 1_000
}

/// Reports a certificate of links that the clock shows as expired or not yet valid.
pub fn out_of_date(settings: &ClusterSettings) -> Option<String> {
    let (certificate, age) = certificate_age(settings)?;
    let (state, fix) = match age {
        Age::Valid => return None,
        Age::Over(seconds) => (format!("has expired {} ago", span(seconds)), "renew it"),
        Age::NotYet(seconds) => {
            (format!("is valid in {} only", span(seconds)), "set the clock of this machine, or make another")
        }
    };
    Some(format!(
        "cluster.tls_certificate: {} {state}, and other nodes refuse it: {fix}",
        certificate.display()
    ))
}

/// Age of the certificate of links. `None` without TLS, and for other problems, which other checks report.
fn certificate_age(settings: &ClusterSettings) -> Option<(&Path, Age)> {
    let (certificate, authorities) = (settings.tls_certificate.as_ref()?, settings.tls_ca.as_ref()?);
    Some((certificate, check_mutual(certificate, authorities, now()).ok()?))
}

/// Warns about a certificate of links that is not valid yet. Certificates that expire soon are logged with those of
/// listeners.
fn warn_of_the_future(settings: &ClusterSettings) {
    let is_future = certificate_age(settings).is_some_and(|(_, age)| matches!(age, Age::NotYet(_)));
    if let Some(warning) = out_of_date(settings).filter(|_| is_future) {
        tracing::warn!("{warning}");
    }
}

fn span(seconds: u64) -> String {
    match seconds {
        0..7_200 => format!("{} minutes", seconds / 60),
        7_200..172_800 => format!("{} hours", seconds / 3_600),
        _ => format!("{} days", seconds / 86_400),
    }
}

fn resolve(address: &HostPort) -> Result<Vec<SocketAddr>, String> {
    let found = address.as_str().to_socket_addrs();
    let found = found.map_err(|error| {
        format!("cluster.listen: {address}: {error}; a name has to be one that this machine's resolver knows")
    })?;
    // An address that a name resolves to twice is bound once.
    let mut addresses: Vec<SocketAddr> = found.collect();
    addresses.dedup();
    Ok(addresses)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, channel};
    use std::thread;

    use super::*;

    /// A core that blocks from its first command until the other end of the channel is dropped.
    struct Stuck(Mesh, Receiver<()>);

    impl Handler for Stuck {
        type Command = RouterCommand;

        fn handle_command(&mut self, _: Time, _: RouterCommand) {
            // Blocks: the channel carries nothing.
            let _ = self.1.recv();
        }

        fn mesh(&mut self) -> &mut Mesh {
            &mut self.0
        }

        fn turn(&mut self, _: Time) {}

        fn timeout(&self) -> Time {
            Time::NEVER
        }
    }

    /// A cluster part whose thread is stuck until the other end of the channel is dropped.
    fn stuck() -> (Cluster, mpsc::Sender<()>) {
        let identity =
            Identity { name: "a".into(), cluster: [1; 16], features: 0, descriptor: Default::default() };
        let mesh = Mesh::new(identity, Secret::new(b"secret"), Box::new(fill), MeshConfig::default());
        let (resume, until) = channel();
        let handle = transport::spawn(Stuck(mesh, until), TransportConfig::default()).expect("a thread");
        let cluster = Cluster {
            prepared: Mutex::default(),
            handle: Mutex::new(Some(handle)),
            shared: Arc::default(),
            tls: Mutex::default(),
            request_timeout: Duration::ZERO,
            suback_timeout: Duration::ZERO,
            shutdown: Shutdown::default(),
            own: None,
            replicas: Mutex::default(),
        };
        let sender = cluster.lock_handle().as_ref().map(Handle::sender).expect("it runs");
        assert!(sender.send(RouterCommand::Resign).is_ok());
        (cluster, resume)
    }

    #[test]
    fn a_stop_does_not_wait_for_ever_for_a_stuck_thread() {
        let (cluster, resume) = stuck();
        assert!(!cluster.stop(Duration::from_millis(1)));
        assert!(cluster.stop(Duration::ZERO), "nothing is left to stop");
        drop(resume);
    }

    #[test]
    fn a_view_does_not_wait_for_a_thread_that_is_ending() {
        let (cluster, resume) = stuck();
        thread::scope(|scope| {
            let stopped = scope.spawn(|| cluster.stop(Duration::from_secs(60)));
            let is_free = || cluster.handle.try_lock().is_ok_and(|handle| handle.is_none());
            // tidy: allow(thread-sleep): a test that polls.
            let is_seen = (0..5_000).any(|_| {
                is_free() || {
                    thread::sleep(Duration::from_millis(1));
                    false
                }
            });
            drop(resume);
            assert!(stopped.join().expect("no panic"), "it ends once it can");
            assert!(is_seen, "reading the view waits for the thread");
        });
    }
}
