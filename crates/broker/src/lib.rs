//! The broker of one node, without sockets: dispatch, sessions, shared subscriptions, retained messages, Wills.

pub mod access;
pub mod settings;
