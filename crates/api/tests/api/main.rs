//! Tests of the server on a free port of loopback, with a client that is part of the tests.

mod access;
mod actions;
mod alarms;
mod assets;
mod audit;
mod bad_input;
mod bridges;
mod changes;
mod cluster;
mod document;
mod fanout;
mod hostile;
mod keys;
mod links;
mod login;
mod metrics;
mod node;
mod operators;
mod schema;
mod smuggling;
mod storage;
mod streams;
mod support;
