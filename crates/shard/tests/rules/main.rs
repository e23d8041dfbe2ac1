//! Effects of commands, rule by rule.

#[path = "../support/mod.rs"]
mod support;

mod deliver;
mod ephemeral;
mod full;
mod inbound;
mod incarnation;
mod log;
mod publish;
mod repeat;
mod retained;
mod shift;
mod wills;
