//! `cargo xtask chaos --upgrade`: nodes of an older version are replaced by this one, and back where that is allowed.
//! [`old`] finds or builds the old program, [`alone`] tests a node alone. For the cluster see
//! [`cluster::upgrade`](super::cluster).

mod alone;
mod old;

use super::cluster::{self, CheckResults};
use super::{Args, target};
use crate::bench::child;
use anyhow::{Context, Result, ensure};
use std::fmt;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Programs of the two versions.
#[derive(Clone, Copy)]
pub struct Programs<'a> {
    pub old: &'a Path,
    pub new: &'a Path,
}

#[derive(Clone, Copy, Debug)]
pub enum Version {
    Old,
    New,
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Old => "the old version",
            Self::New => "the new version",
        })
    }
}

impl Programs<'_> {
    pub fn of(&self, version: Version) -> &Path {
        match version {
            Version::Old => self.old,
            Version::New => self.new,
        }
    }
}

pub fn run(args: &Args) -> Result<()> {
    child::catch_signals();
    let begun = Instant::now();
    let Some(old) = old::program(args)? else { return Ok(()) };
    let new = match &args.program {
        Some(program) => program.canonicalize().with_context(|| program.display().to_string())?,
        None => {
            target::build(args.debug, true)?;
            target::profile_directory(args.debug).join("meridian")
        }
    };
    println!("from {} to {}", old.display(), new.display());
    let directory: PathBuf = args.dir.clone().unwrap_or_else(|| target::directory().join("chaos-upgrade"));
    let programs = Programs { old: &old, new: &new };
    let mut results = CheckResults::default();
    if let Err(error) = alone::run(args.port, programs, &directory.join("alone"), &mut results) {
        results.check(false, || format!("a node alone: {error:#}"));
    }
    if let Err(error) = cluster::upgrade::run(args, programs, &directory.join("cluster"), &mut results) {
        results.check(false, || format!("{error:#}"));
    }
    println!("{:.1} s", begun.elapsed().as_secs_f64());
    for what in &results.failed {
        println!("failed: {what}");
    }
    println!("{} passed, {} failed", results.passed, results.failed.len());
    ensure!(results.failed.is_empty(), "see {}", directory.display());
    Ok(())
}
