//! State that every handler can access.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use auth::{Guard, RuleTable, Users};
use axum::extract::FromRequestParts;
use axum::http::request::Parts as RequestParts;
use broker::admin::Admin;
use tls::Expiry;
use tokio::sync::Semaphore;

use crate::actions::Actions;
use crate::alarms::flows::Drops;
use crate::audit::Audit;
use crate::bridges::Bridges;
use crate::change_queue::ChangeQueue;
use crate::changes::Changes;
use crate::cluster::Cluster;
use crate::configuration::Configuration;
use crate::drains::Drains;
use crate::history::History;
use crate::keys::Keys;
use crate::links::Links;
use crate::log_ring::LogRing;
use crate::metrics::HttpMetrics;
use crate::operations::Operations;
use crate::proxies::Proxies;
use crate::routes::{LOGIN_HASHES_MAX, LOGINS_MAX, TESTS_MAX};
use crate::sessions::SessionLimits;
use crate::settings::HttpSettings;
use crate::sse::Streams;
use crate::storage::{Storage, StorageCondition};
use crate::turns::TurnWindow;

/// Parts of the node that the server is given.
pub struct Parts {
    pub admin: Admin,
    pub guard: Arc<Guard>,
    pub configuration: Arc<dyn Configuration>,
    pub keys: Keys,
    pub users: Arc<Users>,
    pub rules: Arc<RuleTable>,
    pub log: LogRing,
    pub node: NodeFacts,
    /// `None`: nothing is kept on disk.
    pub storage: Option<Arc<dyn Storage>>,
    /// `None`: the node belongs to no cluster.
    pub cluster: Option<Arc<dyn Cluster>>,
    pub bridges: Arc<dyn Bridges>,
    pub actions: Arc<dyn Actions>,
    pub links: Arc<dyn Links>,
    pub drains: Arc<dyn Drains>,
}

/// Facts that do not change while the node runs.
pub struct NodeFacts {
    pub name: String,
    pub version: &'static str,
    pub commit: &'static str,
    pub data_dir: PathBuf,
    pub connections_max: usize,
    /// Address for clients that a drain of another node sends here.
    pub client_address: Option<String>,
    pub listeners: Vec<ListenerFacts>,
    /// Returns the expiries of the TLS files, each with its listener; called at each scrape.
    pub expiries: Box<dyn Fn() -> Vec<(String, Expiry)> + Send + Sync>,
    /// Returns the figures about watched files; called at each scrape.
    pub watched: Box<dyn Fn() -> WatchedFiles + Send + Sync>,
}

/// Files that the node uses when they change, without a reload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct WatchedFiles {
    /// Number of changes that were used.
    pub used: u64,
    /// Number of changes that could not be used.
    pub refusals: u64,
    /// Changed files that cannot be used now.
    pub refused: Vec<RefusedFiles>,
}

/// Changed files of one part of the node that cannot be used. The previous contents stay in use.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RefusedFiles {
    /// Part of the node, such as `listener mqtts` or `http`.
    pub part: String,
    pub why: String,
}

/// One MQTT listener.
pub struct ListenerFacts {
    pub name: String,
    pub address: String,
    /// Maximum number of connections; 0 is no limit of its own.
    pub connections_max: usize,
    pub connections: Box<dyn Fn() -> usize + Send + Sync>,
}

/// State that every handler can access; a handler takes it as an argument. Cheap to clone.
#[derive(Clone)]
pub struct State(Arc<Shared>);

/// See [`State`].
pub struct Shared {
    pub admin: Admin,
    pub guard: Arc<Guard>,
    pub configuration: Arc<dyn Configuration>,
    pub keys: Keys,
    pub users: Arc<Users>,
    pub rules: Arc<RuleTable>,
    pub log: LogRing,
    pub node: NodeFacts,
    /// `None`: nothing is kept on disk.
    pub storage: Option<Arc<dyn Storage>>,
    /// `None`: the node belongs to no cluster.
    pub cluster: Option<Arc<dyn Cluster>>,
    pub bridges: Arc<dyn Bridges>,
    pub actions: Arc<dyn Actions>,
    pub links: Arc<dyn Links>,
    pub drains: Arc<dyn Drains>,
    pub settings: HttpSettings,
    pub(crate) proxies: Proxies,
    /// Address of the HTTP server.
    pub address: SocketAddr,
    pub(crate) streams: Streams,
    pub(crate) audit: Audit,
    pub(crate) changes: Changes,
    /// Queue of changes of records, on which the cores of a cluster must agree.
    pub(crate) records_queue: ChangeQueue,
    /// Queue of changes that this node makes and writes by itself.
    pub(crate) node_queue: ChangeQueue,
    pub(crate) metrics: HttpMetrics,
    pub(crate) operations: Operations,
    /// Permits for tests of actions and connectors.
    pub(crate) action_tests: Arc<Semaphore>,
    /// Permits for logins, and for passwords that are checked.
    pub(crate) logins: Semaphore,
    pub(crate) login_hashes: Semaphore,
    /// Permit to read the sessions of other nodes.
    pub(crate) session_reads: Arc<Semaphore>,
    pub(crate) turns: TurnWindow,
    pub(crate) history: History,
    /// Actions, bridges and links that have lost messages lately.
    pub(crate) drops: Drops,
    phase: AtomicU8,
}

/// Phase of the node between start and stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    Starting,
    Ready,
    Stopping,
}

impl Phase {
    pub fn name(self) -> &'static str {
        match self {
            Self::Starting => "starting",
            Self::Ready => "ready",
            Self::Stopping => "stopping",
        }
    }
}

impl State {
    pub(crate) fn new(
        parts: Parts,
        settings: HttpSettings,
        address: SocketAddr,
        operations: Operations,
        audit: Audit,
    ) -> Self {
        let Parts {
            admin,
            guard,
            configuration,
            keys,
            users,
            rules,
            log,
            node,
            storage,
            cluster,
            bridges,
            actions,
            links,
            drains,
        } = parts;
        Self(Arc::new(Shared {
            admin,
            guard,
            configuration,
            keys,
            users,
            rules,
            log,
            node,
            storage,
            cluster,
            bridges,
            actions,
            links,
            drains,
            address,
            streams: Streams::new(settings.streams_max as usize),
            audit,
            changes: Changes::new(settings.connections_max),
            records_queue: ChangeQueue::of_records(),
            node_queue: ChangeQueue::of_node(),
            metrics: HttpMetrics::new(settings.refusals_per_second),
            operations,
            action_tests: Arc::new(Semaphore::new(TESTS_MAX)),
            logins: Semaphore::new(LOGINS_MAX),
            login_hashes: Semaphore::new(LOGIN_HASHES_MAX),
            session_reads: Arc::new(Semaphore::new(1)),
            turns: TurnWindow::default(),
            history: History::default(),
            drops: Drops::default(),
            phase: AtomicU8::new(Phase::Starting as u8),
            // The server has checked the setting before it was bound.
            proxies: Proxies::parse(&settings.proxy_networks).unwrap_or_default(),
            settings,
        }))
    }

    pub fn phase(&self) -> Phase {
        match self.phase.load(Ordering::Acquire) {
            0 => Phase::Starting,
            1 => Phase::Ready,
            _ => Phase::Stopping,
        }
    }

    /// Enters a phase. Never returns to an earlier one.
    pub(crate) fn enter(&self, phase: Phase) {
        self.phase.fetch_max(phase as u8, Ordering::Release);
    }

    /// Condition of the disk; `None` where nothing is kept on it.
    pub fn storage_condition(&self) -> Option<StorageCondition> {
        self.storage.as_ref().map(|storage| storage.condition())
    }

    pub(crate) fn session_limits(&self) -> SessionLimits {
        let settings = &self.settings;
        SessionLimits {
            lifetime: settings.session_lifetime,
            idle: settings.session_idle,
            per_account: settings.sessions_per_account as usize,
            all: settings.sessions_max as usize,
        }
    }

    /// Returns whether no token is needed: there is no key and no account, and only this machine can connect.
    pub fn is_open(&self) -> bool {
        self.address.ip().to_canonical().is_loopback() && self.keys.is_empty()
    }
}

impl Deref for State {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.0
    }
}

impl FromRequestParts<State> for State {
    type Rejection = Infallible;

    async fn from_request_parts(_: &mut RequestParts, state: &State) -> Result<Self, Infallible> {
        Ok(state.clone())
    }
}
