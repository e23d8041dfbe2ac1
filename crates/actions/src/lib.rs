//! The actions of a node: their registry, threads and connections.
//!
//! [`Registry`] knows all connectors and actions: those of the configuration file, and those of the configuration
//! store, which it changes.

#![forbid(unsafe_code)]

mod consumer;
mod counters;
mod driver;
mod engine;
mod incoming;
mod lane;
mod parts;
mod plan;
mod registry;
mod session;
mod settings;
mod tenant;
mod trial;
mod writer;

pub use counters::Counters;
pub use engine::{ActionStatus, Engine};
pub use plan::Plan;
pub use registry::{ACTIONS_MAX, CONNECTORS_MAX, Definitions, Registry, RegistryError, check, is_name};
pub use settings::ActionsSettings;
pub use trial::{LIVE_MAX, Stage, TrialMessage, Tried, test_connector, trial_action};
