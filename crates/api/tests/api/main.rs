//! The server on a free port of loopback, asked by a client that is written here.

mod node;
mod support;
