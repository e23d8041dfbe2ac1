//! Scenarios with a fixed list of nodes: exchanged routes, leases, and failures.

#[cfg(test)]
mod groups;
pub(super) mod incarnations;
pub(super) mod leases;
pub(super) mod retained;
pub(super) mod routes;
pub(super) mod sessions;

use super::*;
