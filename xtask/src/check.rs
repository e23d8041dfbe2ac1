//! `cargo xtask check`: everything that CI looks at besides the tests.

use crate::repository::root;
use crate::{clauses, dependencies, tidy};
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

#[derive(clap::Args)]
pub struct Args {
    /// Only these steps
    #[arg(value_enum)]
    steps: Vec<Step>,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum Step {
    /// cargo fmt --check
    Fmt,
    /// cargo clippy, warnings denied
    Clippy,
    /// cargo xtask tidy
    Tidy,
    /// Licences, banned crates, duplicate versions
    Dependencies,
    /// docs/clauses.toml can be read, and every clause cited exists
    Clauses,
}

fn cargo(arguments: &[&str]) -> Result<()> {
    let status = crate::repository::cargo().args(arguments).current_dir(root()).status().context("cargo")?;
    ensure!(status.success(), "cargo {} failed", arguments.join(" "));
    Ok(())
}

fn step(step: Step) -> Result<()> {
    match step {
        Step::Fmt => cargo(&["fmt", "--all", "--check"]),
        Step::Clippy => {
            cargo(&["clippy", "--quiet", "--workspace", "--all-targets", "--locked", "--", "-D", "warnings"])
        }
        Step::Tidy => tidy::run(),
        Step::Dependencies => dependencies::run(),
        Step::Clauses => clauses::check(),
    }
}

/// Runs every step, also after one has failed, so that one run shows everything.
pub fn run(args: &Args) -> Result<()> {
    let steps = if args.steps.is_empty() { Step::value_variants() } else { &args.steps[..] };
    let mut failed = vec![];
    for s in steps {
        println!("== {s:?}");
        if let Err(error) = step(*s) {
            println!("{error:#}");
            failed.push(format!("{s:?}"));
        }
    }
    if !failed.is_empty() {
        bail!("failed: {}", failed.join(", "));
    }
    Ok(())
}
