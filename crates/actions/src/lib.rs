//! The actions of a node: their registry, threads and connections.

#![forbid(unsafe_code)]
