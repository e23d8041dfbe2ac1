//! All cores are killed at once: replicants go on with what needs nobody to agree, say so, and when the cores are back all is as it was.

use super::fleet::Fleet;
use super::{ARRIVAL, Found, timed};
use crate::bench::child;
use crate::cluster::client::Client;
use anyhow::{Result, ensure};
use std::time::{Duration, Instant};

/// How long there is no core, from when the replicants know of it.
const WITHOUT: Duration = Duration::from_secs(5);
/// What is not acknowledged by then waits.
const HELD: Duration = Duration::from_secs(2);
/// Whom the cores had agreed to keep away before.
const BANNED: &str = "chaos-banned";

pub fn suffer(fleet: &mut Fleet, found: &mut Found) -> Result<()> {
    let (cores, replicants): (Vec<usize>, Vec<usize>) =
        (0..fleet.nodes.len()).partition(|at| fleet.nodes[*at].is_core);
    fleet.ctl(replicants[0], &["ban", "add", "client-id", BANNED])?;
    let mut receivers = Vec::new();
    for at in &replicants {
        let mut client = Client::connect(fleet.nodes[*at].mqtt, &format!("chaos-apart-to-{at}"))?;
        client.subscribe("chaos-apart/+", 1, "cluster")?;
        receivers.push(client);
    }
    fleet.kill_at_once(&cores)?;
    let begun = Instant::now();
    let know = || {
        let knows = |at: &usize| {
            let said = fleet.nodes[*at].health("quorum");
            said.is_some_and(|(status, why)| status == 503 && why.contains("no majority"))
        };
        replicants.iter().all(knows).then_some(())
    };
    timed("the replicants say that no majority lets them acknowledge", begun, know, found)?;
    let since = Instant::now();
    for at in &replicants {
        let said = fleet.ctl(*at, &["cluster", "status"])?;
        let name = &fleet.nodes[*at].name;
        found.check(said.contains("! "), || {
            format!("ctl cluster status at {name} has nothing to say: {said}")
        });
        found.check(!acknowledges(fleet, *at)?, || format!("{name} acknowledges and reaches no core"));
        let refused = fleet.ctl(*at, &["ban", "add", "client-id", "chaos-nobody"]);
        found.check(refused.is_err(), || format!("a change at {name} holds, and no core has agreed"));
        serve(fleet, (*at, &replicants), &mut receivers, found)?;
    }
    child::until(WITHOUT.saturating_sub(since.elapsed()), || None::<()>);
    let begun = Instant::now();
    for at in &cores {
        fleet.start_again(*at)?;
    }
    fleet.wait_until_whole()?;
    println!(
        "  {:5.1} s     from the start of the cores until all is as it was",
        begun.elapsed().as_secs_f64()
    );
    for at in 0..fleet.nodes.len() {
        let (name, banned) = (&fleet.nodes[at].name, fleet.ctl(at, &["ban"])?);
        found.check(banned.contains(BANNED), || format!("{name} has forgotten what was agreed upon"));
    }
    Ok(())
}

/// QoS 0 comes to clients of the same node and of those that are there.
fn serve(
    fleet: &Fleet,
    (at, replicants): (usize, &[usize]),
    receivers: &mut [Client],
    found: &mut Found,
) -> Result<()> {
    let from = &fleet.nodes[at];
    let topic = format!("chaos-apart/{}", from.name);
    Client::connect(from.mqtt, "chaos-apart-from")?.publish(&topic, &from.name, 0, false)?;
    for (to, receiver) in replicants.iter().zip(receivers) {
        let came = receiver.receive(ARRIVAL)?;
        let is_so = came.is_some_and(|message| message.payload == from.name);
        found.check(is_so, || format!("QoS 0 from {} does not come to {}", from.name, fleet.nodes[*to].name));
    }
    ensure!(!child::interrupted(), "interrupted");
    Ok(())
}

/// Whether a message of QoS 1 that nobody wants is acknowledged there.
fn acknowledges(fleet: &Fleet, at: usize) -> Result<bool> {
    let mut client = Client::connect(fleet.nodes[at].mqtt, "chaos-whether")?;
    client.be_patient(HELD);
    Ok(client.publish("chaos-nobody", "whether", 1, false).is_ok())
}
