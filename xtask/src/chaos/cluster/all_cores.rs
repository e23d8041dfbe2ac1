//! All cores are killed at once. Replicants continue with everything that needs no agreement, and report their state.
//! They take no new clients, because nobody can tell whether another node has a client of the same name.
//! After the restart of the cores the cluster recovers.

use super::test_cluster::TestCluster;
use super::{ARRIVAL, CheckResults, timed};
use crate::bench::child;
use crate::cluster::client::Client;
use anyhow::{Result, ensure};
use std::time::{Duration, Instant};

/// Time without a core, from when the replicants know of it.
const WITHOUT: Duration = Duration::from_secs(5);
/// Time after which an unacknowledged message counts as waiting.
const HELD: Duration = Duration::from_secs(2);
/// Client that the cores had banned before.
const BANNED: &str = "chaos-banned";

pub fn apply_fault(test_cluster: &mut TestCluster, results: &mut CheckResults) -> Result<()> {
    let (cores, replicants): (Vec<usize>, Vec<usize>) =
        (0..test_cluster.nodes.len()).partition(|at| test_cluster.nodes[*at].is_core);
    test_cluster.ctl(replicants[0], &["ban", "add", "client-id", BANNED])?;
    let (mut receivers, mut senders) = (Vec::new(), Vec::new());
    for at in &replicants {
        let address = test_cluster.nodes[*at].mqtt;
        let mut client = Client::connect(address, &format!("chaos-apart-to-{at}"))?;
        client.subscribe("chaos-apart/+", 1, "cluster")?;
        receivers.push(client);
        let sender = |qos: u8| Client::connect(address, &format!("chaos-apart-{qos}-from-{at}"));
        senders.push([sender(0)?, sender(1)?]);
    }
    test_cluster.kill_at_once(&cores)?;
    let begun = Instant::now();
    let know = || {
        let knows = |at: &usize| {
            let said = test_cluster.nodes[*at].health("quorum");
            said.is_some_and(|(status, why)| status == 503 && why.contains("no majority"))
        };
        replicants.iter().all(knows).then_some(())
    };
    timed("the replicants report that no majority lets them acknowledge", begun, know, results)?;
    let since = Instant::now();
    for (at, [at_qos_0, at_qos_1]) in replicants.iter().zip(&mut senders) {
        let said = test_cluster.ctl(*at, &["cluster", "status"])?;
        let name = &test_cluster.nodes[*at].name;
        results.check(said.contains("! "), || {
            format!("ctl cluster status at {name} reports no problem: {said}")
        });
        results.check(!acknowledges(at_qos_1), || format!("{name} acknowledges and reaches no core"));
        let refused = test_cluster.ctl(*at, &["ban", "add", "client-id", "chaos-nobody"]);
        results.check(refused.is_err(), || format!("a change at {name} is applied, and no core has agreed"));
        serve(test_cluster, (*at, &replicants), (at_qos_0, &mut receivers), results)?;
    }
    let new = Client::connect(test_cluster.nodes[replicants[0]].mqtt, "chaos-new");
    let refused = new.map_or_else(|why| format!("{why:#}"), |_| "it is accepted".to_owned());
    results.check(refused.contains("88"), || format!("a new client is not refused with 0x88: {refused}"));
    child::until(WITHOUT.saturating_sub(since.elapsed()), || None::<()>);
    let begun = Instant::now();
    for at in &cores {
        test_cluster.start_again(*at)?;
    }
    test_cluster.wait_until_whole()?;
    println!(
        "  {:5.1} s     from the start of the cores until the cluster has recovered",
        begun.elapsed().as_secs_f64()
    );
    for at in 0..test_cluster.nodes.len() {
        let (name, banned) = (&test_cluster.nodes[at].name, test_cluster.ctl(at, &["ban"])?);
        results.check(banned.contains(BANNED), || format!("{name} has lost the replicated change"));
    }
    Ok(())
}

/// Checks that QoS 0 messages reach clients of the same node and of reachable nodes.
fn serve(
    test_cluster: &TestCluster,
    (at, replicants): (usize, &[usize]),
    (sender, receivers): (&mut Client, &mut [Client]),
    results: &mut CheckResults,
) -> Result<()> {
    let from = &test_cluster.nodes[at];
    let topic = format!("chaos-apart/{}", from.name);
    sender.publish(&topic, &from.name, 0, false)?;
    for (to, receiver) in replicants.iter().zip(receivers) {
        let came = receiver.receive(ARRIVAL)?;
        let is_so = came.is_some_and(|message| message.payload == from.name);
        results.check(is_so, || {
            format!("QoS 0 from {} does not reach {}", from.name, test_cluster.nodes[*to].name)
        });
    }
    ensure!(!child::interrupted(), "interrupted");
    Ok(())
}

/// Returns whether a message of QoS 1 without subscribers is acknowledged there.
fn acknowledges(client: &mut Client) -> bool {
    client.be_patient(HELD);
    client.publish("chaos-nobody", "whether", 1, false).is_ok()
}
