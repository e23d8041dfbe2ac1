//! Declaration, reading, checking and documentation of settings, once for the whole workspace.
//!
//! A crate declares its sections with [`section!`]. The binary joins them into one tree. [`load`] fills the tree from
//! defaults, a TOML file, changes at run time, the environment and the command line, in that order. Read [`Section`]
//! first. This crate knows no setting by name: it owns the mechanism, the other crates own the settings.
//!
//! **Invariant:** a setting's default, range, type and text exist in one place, its declaration. The reference page,
//! the example file and every error message are made from it.

#![forbid(unsafe_code)]

extern crate self as settings;

mod byte_size;
mod choices;
mod document;
mod duration;
mod host_port;
mod layers;
mod nearest;
mod problem;
mod reference;
mod runtime;
mod secret_file;
mod section;
mod tree;
mod value;

pub use byte_size::ByteSize;
pub use host_port::{HostPort, HostPorts, NotHostPort};
pub use layers::{ENVIRONMENT_PREFIX, Flag, Layers, Loaded, load};
pub use nearest::nearest;
pub use problem::{Fault, Problem, Source};
pub use reference::{example, reference, show};
pub use runtime::{Changed, Runtime, Setting, settings_of, take_reloadable, waiting_for_restart};
pub use secret_file::{secret_bytes, secret_line, secret_text};
pub use section::{Description, Field, Reload, Section, deserialize_section, read, read_within};
pub use serde;
pub use tree::{List, Tree};
pub use value::{Choice, Invalid, Raw, Value};
