//! `cargo xtask check`: every check of CI other than the tests.

use crate::repository::root;
use crate::{clauses, dependencies, features, tidy};
use anyhow::{Context, Result, bail, ensure};
use clap::ValueEnum;

#[derive(clap::Args)]
pub struct Args {
    /// Run only these steps
    #[arg(value_enum)]
    steps: Vec<Step>,
}

#[derive(Clone, Copy, ValueEnum, Debug)]
enum Step {
    /// Run cargo fmt --check
    Fmt,
    /// Run cargo clippy, with warnings denied
    Clippy,
    /// Run cargo xtask tidy
    Tidy,
    /// Check licences, banned crates, duplicate versions
    Dependencies,
    /// Check that dependencies have the same features whichever packages are selected
    Features,
    /// Test the function jq of rules, which is off by default, and check that the program can have it
    Jq,
    /// Check that docs/clauses.toml is valid, and that every cited clause exists
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
        Step::Features => features::run(),
        Step::Jq => {
            cargo(&["test", "--quiet", "--package", "rules", "--features", "jq", "--lib", "--locked", "jq"])?;
            let program = ["--package", "meridian", "--features", "jq", "--invert", "jaq-core"];
            cargo(
                &[&["tree", "--quiet", "--locked", "--edges", "normal", "--depth", "1"][..], &program[..]]
                    .concat(),
            )
        }
        Step::Clauses => clauses::check(),
    }
}

/// Runs every step, also after a failure, so that one run shows all failures.
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
