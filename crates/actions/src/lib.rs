//! The actions of a node: their registry, threads and connections.
//!
//! [`Registry`] knows all connectors and actions: those of the configuration file, and those of the configuration
//! store, which it changes.

#![forbid(unsafe_code)]

mod incoming;
mod plan;
mod registry;
mod settings;

pub use registry::{
    ACTIONS_MAX, Authorship, CONNECTORS_MAX, Definition, Definitions, Noun, Registry, RegistryError, Source,
    check, settings_of_json, settings_to_json,
};
pub use settings::ActionsSettings;
