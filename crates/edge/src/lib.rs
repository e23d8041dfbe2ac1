//! edge

pub mod settings;
