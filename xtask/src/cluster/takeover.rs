//! A durable session that is resumed on one node after the other, while its last connection is still open, with queues
//! of several lengths.

use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::fmt::Write as _;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::time::Duration;

use super::bench::{Args, VIEW, mqload, start_with};
use super::nodes::Nodes;
use crate::bench::child::interrupted;
use crate::bench::durable::client::Client;

/// Numbers of queued messages.
const LENGTHS: [u32; 4] = [0, 1_000, 100_000, 1_000_000];
/// Number of takeovers with each length.
const TAKEOVERS: usize = 60;
/// Settings of a queue with the longest length.
const ROOM: [&str; 3] =
    ["queue.messages_max=2000000", "queue.bytes_max=4GiB", "limits.memory_queued_max=8GiB"];
/// Maximum seconds to fill a queue.
const FILL_MAX_S: u32 = 200;

pub fn run(args: &Args, programs: &Path, page: &mut String) -> Result<()> {
    let cluster = start_with(args, programs, (3, 0), &ROOM)?;
    writeln!(
        page,
        "\nA durable session that is taken over by another node, {TAKEOVERS} times with each queue of messages of 256 B\n"
    )?;
    writeln!(
        page,
        "| queued | CONNECT to CONNACK, p50 ms | p99 | longest | CONNECT to the first message, p50 ms | p99 | longest |"
    )?;
    writeln!(page, "|---|---|---|---|---|---|---|")?;
    for length in LENGTHS {
        let (connacks, firsts) = take_over(programs, &cluster, length)?;
        writeln!(page, "| {length} | {} | {} |", spread(connacks), spread(firsts))?;
    }
    Ok(())
}

/// Times of the takeovers of a session with this number of queued messages: to CONNACK, and to the first message.
fn take_over(programs: &Path, cluster: &Nodes, length: u32) -> Result<(Vec<Duration>, Vec<Duration>)> {
    let id = format!("takeover-{length}");
    let connect = |at: usize| Client::connect(cluster.nodes[at].mqtt, Ipv4Addr::LOCALHOST, &id);
    let mut client = connect(0)?;
    client.subscribe(&id)?;
    client.leave()?;
    fill(programs, cluster.nodes[0].mqtt, &id, length)?;
    std::thread::sleep(VIEW);
    let (mut connacks, mut firsts) = (Vec::new(), Vec::new());
    let mut last = connect(0)?;
    for step in 1..=TAKEOVERS {
        ensure!(!interrupted(), "interrupted");
        let mut next = connect(step % cluster.nodes.len())?;
        ensure!(next.session_present, "the session of {id} is gone");
        connacks.push(next.connack);
        if length > 0 {
            firsts.push(next.first_message()?);
        }
        last = next;
    }
    last.leave()?;
    Ok((connacks, firsts))
}

/// Queues messages of 256 bytes for one disconnected session.
fn fill(programs: &Path, to: SocketAddr, topic: &str, length: u32) -> Result<()> {
    if length == 0 {
        return Ok(());
    }
    let load = format!(
        "pubsub -p 10 -s 0 -q 1 --inflight 500 -l 256 --coalesce-us 500 --pub-topic {topic} -m {length} --max-time {FILL_MAX_S} \
         --pub-host {to} --sub-host {to}"
    );
    let report = mqload(programs, &load)?;
    let acknowledged =
        report.pointer("/totals/acked").and_then(Value::as_u64).context("acknowledged messages")?;
    ensure!(
        acknowledged == u64::from(length),
        "{acknowledged} of {length} messages were acknowledged in {FILL_MAX_S} s"
    );
    Ok(())
}

/// Cells of a table: median, 99th percentile and maximum in milliseconds.
fn spread(mut times: Vec<Duration>) -> String {
    times.sort_unstable();
    let Some(last) = times.len().checked_sub(1) else { return "- | - | -".to_owned() };
    let at = |share: f64| times[((times.len() as f64 * share) as usize).min(last)].as_secs_f64() * 1e3;
    format!("{:.2} | {:.2} | {:.2}", at(0.5), at(0.99), at(1.0))
}
