//! `meridian bench` against a node: reports, several processes, and failures.

mod links;
mod node;
mod reports;
mod scenario;
mod trouble;
