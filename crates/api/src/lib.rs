//! HTTP: the API under `/api/v1`, `/metrics`, `/health`, and the dashboard's files.
//!
//! [`Bound::bind`] opens the address, [`Bound::serve`] answers on a runtime of its own. Read [`routes`](crate::routes)
//! for the requests and `gate` for their admission. `routes/node.rs` is the model of a route file.
//!
//! **Invariant:** nothing here runs on a reactor, and nothing here holds a resource that a reactor waits for.
//! **Invariant:** every route is in the OpenAPI document, and the role that it needs is read from there.

mod accounts;
mod actions;
mod alarm_events;
mod alarms;
mod ask;
mod assets;
mod audit;
mod bridges;
mod catch_panic;
mod change_queue;
mod changes;
mod cluster;
mod configuration;
mod drains;
pub mod durable;
mod extract;
mod fanout;
mod gate;
mod history;
mod host;
mod keys;
mod links;
mod log_limiter;
mod log_ring;
mod metrics;
#[cfg(feature = "document")]
mod openapi;
mod operations;
mod paced;
mod paging;
mod problem;
mod process;
mod proxies;
mod role;
mod routes;
mod server;
mod session_cookie;
mod sessions;
pub mod settings;
mod slots;
mod sse;
mod state;
mod storage;
mod timestamp;
mod tls;
mod turns;

pub use accounts::{Account, Accounts, PASSWORD_MIN};
pub use actions::{
    Action, ActionStatus, ActionTest, ActionTested, Actions, Connector, ConnectorTest, ConnectorTested,
    EntryRefused, EntrySource, TestError, TestStage, TestedField, TestedRecord, WaitingMessages,
};
pub use bridges::{BridgeDrops, BridgeEntry, BridgeView, Bridges};
pub use cluster::{
    AnswerCallback, Cluster, ClusterView, GrantView, LaneView, LinkView, MemberView, MembershipView,
    NodeRoutes, Order, OrderCallback, OrderError, ReplicaView, Reply, RequestHandler, ShardView, ShardsView,
    TransportView, UnjoinedPeerView,
};
pub use configuration::{
    Author, Change, Changed, Changes, ConfigView, Configuration, LogLevelView, Refused, Reloaded,
    ReplicatedValue, Scope, SettingProblem, SettingView, Version, without_secrets,
};
pub use drains::{
    DrainOrder, DrainRefused, DrainView, Drains, LoadQuestion, LoadUnknown, NodeLoad, ask_load,
};
pub use keys::{Key, KeyError, KeyFile, Keys, NewKey, Outcome};
pub use links::{ClusterLink, LinkGiving, LinkRefusal, LinkStatus, LinkTaking, Links, TakingDrops};
pub use log_ring::LogRing;
#[cfg(feature = "document")]
pub use openapi::document;
pub use role::{Caller, Role, Way};
pub use server::{BindError, Bound, Readiness, Server};
pub use sessions::{SessionId, Sessions, TABLE as SESSIONS};
pub use state::{ListenerFacts, NodeFacts, Parts, RefusedFiles, State, WatchedFiles};
pub use storage::{
    Backup, BackupFile, BackupPart, BackupRefused, Durations, RecoveryView, Storage, StorageCondition,
    StorageView,
};
pub use timestamp::Timestamp;
pub use tls::{CertificateError, Certificates, Renewed};

/// The OpenAPI document. The server sends it and reads the required roles from it.
///
/// A test of this crate generates it with the feature `document` and compares. The program is built without that
/// feature.
pub const DOCUMENT: &str = include_str!("../openapi.json");
