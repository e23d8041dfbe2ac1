//! `meridian bench` against a node: the reports, several processes, and what goes wrong.

mod links;
mod node;
mod reports;
mod scenario;
mod trouble;
