//! User memory of an idle connection, as the example `idle` of crate `edge` measures it.

use anyhow::{Context, Result, ensure};

#[derive(clap::Args)]
pub struct Args {
    /// Number of connections, each with its own wildcard subscription
    #[arg(long, default_value_t = 1_000_000)]
    connections: u32,
}

pub fn run(args: &Args) -> Result<()> {
    let status = crate::repository::cargo()
        .args(["run", "--release", "--quiet", "--package", "edge", "--example", "idle", "--"])
        .arg(args.connections.to_string())
        .status()
        .context("cargo did not start")?;
    ensure!(status.success(), "the measurement failed: {status}");
    Ok(())
}
