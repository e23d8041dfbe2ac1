//! Many nodes that start at the same moment, and once more: they all belong to the cluster, and its cores do not notice.

use super::fleet::{Fleet, Node};
use super::{Found, exchange, timed};
use anyhow::{Context, Result};
use std::time::Instant;

/// The term of the first election of a cluster.
const FIRST_TERM: u64 = 1;

/// They were just started at once, all of them.
pub fn suffer(fleet: &mut Fleet, found: &mut Found) -> Result<()> {
    let first = led(fleet)?;
    is_spread(fleet, found)?;
    found.check(first.1 == FIRST_TERM, || format!("the cores have elected until term {}", first.1));
    let replicants: Vec<usize> = (0..fleet.nodes.len()).filter(|at| !fleet.nodes[*at].is_core).collect();
    println!("SIGKILL of {} replicants at once, and a start of all of them", replicants.len());
    fleet.kill_at_once(&replicants)?;
    let begun = Instant::now();
    for at in &replicants {
        fleet.start_again(*at)?;
    }
    fleet.wait_until_whole()?;
    println!("  {:5.1} s     from their start until all is as it was", begun.elapsed().as_secs_f64());
    is_spread(fleet, found)?;
    let again = led(fleet)?;
    found.check(again == first, || format!("{first:?} led, and now {again:?}: the cores have elected again"));
    fleet.wait_until_whole()?;
    exchange(fleet, found)
}

/// Who leads, and the term.
fn led(fleet: &Fleet) -> Result<(String, u64)> {
    let leader = fleet.leader()?;
    let term = fleet.views(None).term().context("the cores do not name one term")?;
    Ok((fleet.nodes[leader].name.clone(), term))
}

/// Where the replicants hear from once they have taken their shares, and the memory.
fn is_spread(fleet: &Fleet, found: &mut Found) -> Result<()> {
    let begun = Instant::now();
    timed("until the replicants are spread evenly", begun, || is_even(fleet).then_some(()), found)?;
    let spread = fleet.views(None).spread();
    let counts: Vec<String> = spread.iter().map(|(core, count)| format!("{core} {count}")).collect();
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    let memory: Vec<(u64, u64)> = fleet.nodes.iter().map(Node::memory).collect();
    let all = memory.iter().map(|(now, _)| now).sum();
    let top = memory.iter().map(|(_, top)| *top).max().unwrap_or(0);
    println!(
        "              replicants hear from {}; {:.0} MiB in all nodes together, {:.0} MiB at most in one",
        counts.join(", "),
        mib(all),
        mib(top)
    );
    Ok(())
}

/// Whether no core has two replicants more than another.
fn is_even(fleet: &Fleet) -> bool {
    let spread = fleet.views(None).spread();
    let (least, most) = (spread.values().min(), spread.values().max());
    !spread.contains_key("nobody") && most.zip(least).is_some_and(|(most, least)| most - least <= 1)
}
