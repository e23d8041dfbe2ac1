//! Named entries of the configuration file and of the configuration store, such as connectors, actions, bridges
//! and cluster links.
//!
//! An entry is a section of settings with a name. [`Kind`] says what it is called and where it is stored. One of the
//! file takes precedence over one of the store with the same name. [`Changes`] proposes changes of those in the store.

#![forbid(unsafe_code)]

mod changes;
mod definition;
mod error;
mod files;
mod json;
mod problem;
mod record;

pub use changes::{Authorship, Changes, may_put, may_remove};
pub use definition::{Definition, Kind, Named, Source, defined, hide, of_file, of_record};
pub use error::EntryError;
pub use files::{SecretsDirectory, is_below, is_plain, paths, secrets};
pub use json::{parse, settings_of_json, settings_to_json};
pub use problem::{Problem, check_name};
pub use record::{put, read};
