//! A run in several processes of this program.

use super::members::Members;
use crate::agent;
use crate::config::SetupError;
use crate::plan::{Output, Plan};
use std::io::BufReader;
use std::process::{Child, Command, Stdio};

/// Hidden argument that makes a process run a share.
pub const SHARE: &str = "--share";

/// Child processes, killed when this is dropped.
pub struct Children(Vec<Child>);

/// Collects the members that share the plans: agents, processes of this program, or this one alone. The returned
/// children end with the run.
///
/// # Errors
/// Agents that are not reachable, processes that cannot be started.
pub fn gather(plans: &[Plan], output: &Output, split: usize) -> Result<(Members, Children), SetupError> {
    let mut members = Members::new();
    let children = match (output.agents.agents.is_empty(), split) {
        (false, _) => agent::connect(&output.agents, plans, &mut members).map(|()| Children(vec![]))?,
        (true, 0 | 1) => here(plans, &mut members).map(|()| Children(vec![]))?,
        (true, split) => start(plans, split, &mut members)?,
    };
    Ok((members, children))
}

/// Starts `split` processes, each with its share of all plans.
///
/// # Errors
/// A process that cannot be started.
fn start(plans: &[Plan], split: usize, members: &mut Members) -> Result<Children, SetupError> {
    let failed = |error: std::io::Error| {
        SetupError::Elsewhere(format!("another process of this program cannot be started: {error}"))
    };
    let program = std::env::current_exe().map_err(failed)?;
    let mut children = Children(vec![]);
    for index in 0..split {
        let mut child = Command::new(&program)
            .args(["bench", SHARE])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(failed)?;
        let (to, from) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        children.0.push(child);
        let name = format!("process {} of {split}", index + 1);
        let shares: Vec<Plan> = plans.iter().map(|plan| plan.share(index, split)).collect();
        members.add(name, &shares, BufReader::new(from), Box::new(to)).map_err(failed)?;
    }
    Ok(children)
}

/// Runs the plans in this process, through the same interface as for another process.
///
/// # Errors
/// No descriptors for it.
fn here(plans: &[Plan], members: &mut Members) -> Result<(), SetupError> {
    let failed = |error: std::io::Error| SetupError::Elsewhere(format!("no pipe: {error}"));
    let (their_from, to) = std::io::pipe().map_err(failed)?;
    let (from, their_to) = std::io::pipe().map_err(failed)?;
    // The thread is not joined: it ends after its last message, or when the reader is gone.
    std::thread::spawn(move || super::share::run(BufReader::new(their_from), their_to));
    let shares: Vec<Plan> = plans.iter().map(|plan| plan.share(0, 1)).collect();
    members.add("process 1 of 1".to_owned(), &shares, BufReader::new(from), Box::new(to)).map_err(failed)
}

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Finished children have ended by themselves.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
