//! Named entries of the configuration file and of the configuration store, such as connectors, actions, bridges
//! and cluster links.
//!
//! An entry is a section of settings with a name. [`Kind`] says what it is called and where it is stored. One of the
//! file takes precedence over one of the store with the same name. A [`Registry`] joins both sources, and changes those
//! of the store.

#![forbid(unsafe_code)]

mod changes;
mod definition;
mod error;
mod files;
mod json;
mod problem;
mod record;
mod registry;

pub use changes::Authorship;
pub use definition::{Definition, Kind, Named, Source, defined, hide, of_file};
pub use error::EntryError;
pub use files::{SecretsDirectory, is_below, is_plain, paths, secrets};
pub use json::{parse, settings_of_json, settings_to_json};
pub use problem::{Problem, check_name};
pub use registry::{Join, Listed, Registry, mark, usable};
