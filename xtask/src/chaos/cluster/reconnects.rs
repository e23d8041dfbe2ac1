//! Thousands of clients whose node is killed, and which connect again to other nodes at the same moment: all of them
//! are served, Wills are published once, and clients of other nodes notice nothing.

use super::test_cluster::TestCluster;
use super::{ARRIVAL, CheckResults, TargetRole, pick};
use crate::bench::child;
use crate::cluster::client::Client;
use crate::cluster::many::{ManyClients, Profile, WILLS};
use anyhow::{Result, ensure};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::{Duration, Instant};

/// Number of clients of the killed node that connect again, of those that do not, and of clients of other nodes.
const RETURNING: usize = 5_000;
const ABSENT: usize = 100;
const OTHERS: usize = 1_000;
/// Number of clients that connect at the same time before the fault.
const AT_ONCE: usize = 200;
/// Maximum time until all are connected, before and after the fault.
const CONNECTED_MAX: Duration = Duration::from_secs(120);
/// Session Expiry Interval of durable sessions, in seconds.
const EXPIRY_S: u32 = 3600;
/// Will Delay Interval of clients that are back before, and of clients that do not return, in seconds.
const LONG_DELAY_S: u32 = 600;
const SHORT_DELAY_S: u32 = 5;
/// Maximum time until all Wills have arrived, and time after which another message would have arrived.
const WILLS_MAX: Duration = Duration::from_secs(60);
const GRACE: Duration = Duration::from_secs(3);
/// Time without a fault.
const CALM: Duration = Duration::from_secs(2);
/// Pause between two messages of a pair.
const PAUSE: Duration = Duration::from_millis(10);
/// Maximum time of a turn of the clients, and of a turn of the client that gets the Wills.
const TURN: Duration = Duration::from_millis(50);

pub fn apply_fault(test_cluster: &mut TestCluster, results: &mut CheckResults) -> Result<()> {
    for target_role in [TargetRole::Replicant, TargetRole::Leader] {
        let at = pick(test_cluster, target_role)?;
        let name = &test_cluster.nodes[at].name;
        println!("SIGKILL of {name} with {RETURNING} clients, which connect to the other nodes at once");
        kill_and_reconnect(test_cluster, at, results)?;
        ensure!(!child::interrupted(), "interrupted");
    }
    Ok(())
}

/// Addresses of the node that is killed, and of the others.
struct Nodes {
    victim: SocketAddr,
    others: Vec<SocketAddr>,
}

fn kill_and_reconnect(test_cluster: &mut TestCluster, at: usize, results: &mut CheckResults) -> Result<()> {
    let name = test_cluster.nodes[at].name.clone();
    let others = test_cluster.nodes.iter().enumerate().filter(|(other, _)| *other != at);
    let others = others.map(|(_, node)| node.mqtt).collect();
    let nodes = Nodes { victim: test_cluster.nodes[at].mqtt, others };
    let profiles = profiles(&name, &nodes);
    let due = profiles.iter().filter(|profile| will_is_due(profile, nodes.victim));
    let due: Vec<String> = due.map(|profile| profile.id.clone()).collect();
    let mut clients = ManyClients::new(profiles, nodes.others.clone());
    let mut watcher = Client::connect(nodes.others[0], &format!("{name}-wills"))?;
    watcher.subscribe(WILLS, 1, "cluster")?;
    let pairs = Pair::all(&nodes.others, &name)?;
    let is_over = AtomicBool::new(false);
    let (killed, wills, figures) = std::thread::scope(|scope| {
        let (is_over, due) = (&is_over, due.len());
        let wills = scope.spawn(move || receive_wills(watcher, due, is_over));
        let pairs: Vec<_> =
            pairs.into_iter().map(|pair| scope.spawn(move || pair.exchange(is_over))).collect();
        let killed = kill(test_cluster, at, &nodes, &mut clients, results);
        is_over.store(true, Relaxed);
        let wills = wills.join().expect("no panic");
        let pairs: Result<Vec<Figures>> =
            pairs.into_iter().map(|pair| pair.join().expect("no panic")).collect();
        (killed, wills, pairs)
    });
    judge_wills(&due, &wills?, killed?, results);
    let figures = figures?;
    let longest = |of: fn(&Figures) -> Duration| figures.iter().map(of).max().unwrap_or_default().as_millis();
    println!(
        "              meanwhile {} messages between clients of the other nodes: longest time until PUBACK {} ms, until \
         the arrival {} ms",
        figures.iter().map(|it| it.messages).sum::<u32>(),
        longest(|it| it.puback),
        longest(|it| it.arrival)
    );
    results.check(true, String::new);
    clients.end();
    test_cluster.start_again(at)?;
    let recovered = test_cluster.wait_until_whole()?;
    println!("  {:5.1} s     from its start until the cluster has recovered", recovered.as_secs_f64());
    Ok(())
}

/// Connects all clients, kills their node, and publishes a message to each when all are back. Returns the time of the
/// kill.
fn kill(
    test_cluster: &mut TestCluster,
    at: usize,
    nodes: &Nodes,
    clients: &mut ManyClients,
    results: &mut CheckResults,
) -> Result<Instant> {
    let begun = Instant::now();
    clients.connect(AT_ONCE, CONNECTED_MAX)?;
    println!("  {:5.1} s     until {} clients are connected", begun.elapsed().as_secs_f64(), clients.ready());
    turn_until(clients, CALM, |_| false)?;
    let killed = Instant::now();
    test_cluster.nodes[at].end(libc::SIGKILL)?;
    let are_back = turn_until(clients, CONNECTED_MAX, |clients| clients.back(nodes.victim) == RETURNING)?;
    results.check(are_back, || {
        let back = clients.back(nodes.victim);
        format!("only {back} of {RETURNING} clients are back after {} s", CONNECTED_MAX.as_secs())
    });
    let returns = clients.returns(nodes.victim);
    let ms = |share: f64| {
        let at = returns.connacks.len().saturating_sub(1) as f64 * share;
        returns.connacks.get(at as usize).map_or(0, Duration::as_millis)
    };
    println!(
        "  {:5.1} s     from SIGKILL until {} clients are connected and subscribed again; ms until CONNACK: p50 {}, p99 {}, \
         longest {}; {} connects were repeated",
        killed.elapsed().as_secs_f64(),
        clients.back(nodes.victim),
        ms(0.5),
        ms(0.99),
        ms(1.0),
        returns.repeated
    );
    let wrong = clients.wrong_sessions(nodes.victim);
    results.check(wrong == 0, || format!("Session Present is wrong for {wrong} clients"));
    publish_to_each(nodes, clients, results)?;
    let disturbed = clients.disturbed(nodes.victim);
    results
        .check(disturbed == 0, || format!("{disturbed} clients of other nodes have lost their connection"));
    Ok(killed)
}

/// Publishes a message to each client, one after the other on each node, and checks that each client gets it once.
fn publish_to_each(nodes: &Nodes, clients: &mut ManyClients, results: &mut CheckResults) -> Result<()> {
    let topics: Vec<String> =
        clients.profiles().filter(|profile| profile.returns).map(Profile::topic).collect();
    let share = topics.len().div_ceil(nodes.others.len());
    let have_it = std::thread::scope(|scope| {
        let publishers = nodes.others.iter().zip(topics.chunks(share)).map(|(node, topics)| {
            scope.spawn(move || -> Result<()> {
                let mut client = Client::connect(*node, &format!("to-each-{node}"))?;
                topics.iter().try_for_each(|topic| client.publish(topic, "you are back", 1, false))
            })
        });
        let publishers: Vec<_> = publishers.collect();
        let have_it = turn_until(clients, CONNECTED_MAX, |clients| {
            clients.with_messages(|count| count > 0) == topics.len()
        });
        publishers.into_iter().try_for_each(|it| it.join().expect("no panic"))?;
        have_it
    })?;
    turn_until(clients, GRACE, |_| false)?;
    let (once, more) = (clients.with_messages(|count| count == 1), clients.with_messages(|count| count > 1));
    println!("              {once} clients have got a message that was published afterwards, once");
    results.check(have_it && once == topics.len(), || {
        format!("{once} of {} clients have got the message once, {more} more than once", topics.len())
    });
    Ok(())
}

/// Runs the clients until this holds or the time is over, and returns whether it holds.
fn turn_until(
    clients: &mut ManyClients,
    longest: Duration,
    holds: impl Fn(&ManyClients) -> bool,
) -> Result<bool> {
    let begun = Instant::now();
    while begun.elapsed() < longest && !child::interrupted() {
        clients.turn(TURN)?;
        if holds(clients) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Clients of the node that is killed and of the others. Most sessions are ephemeral, and some of both kinds have
/// Wills.
fn profiles(victim: &str, nodes: &Nodes) -> Vec<Profile> {
    let usual = |number: usize, kind: &str, home: SocketAddr| {
        let (expiry_s, will_delay_s) = match number % 10 {
            0 => (EXPIRY_S, Some(LONG_DELAY_S)),
            1 => (0, Some(0)),
            2 => (EXPIRY_S, None),
            _ => (0, None),
        };
        Profile { id: format!("{victim}-{kind}-{number}"), home, expiry_s, will_delay_s, returns: true }
    };
    let absent = |number: usize| {
        let (expiry_s, delay) = if number.is_multiple_of(2) { (0, 0) } else { (EXPIRY_S, SHORT_DELAY_S) };
        let profile = usual(number, "absent", nodes.victim);
        Profile { expiry_s, will_delay_s: Some(delay), returns: false, ..profile }
    };
    let returning = (0..RETURNING).map(|number| usual(number, "returning", nodes.victim));
    let others = (0..OTHERS).map(|number| usual(number, "other", nodes.others[number % nodes.others.len()]));
    returning.chain((0..ABSENT).map(absent)).chain(others).collect()
}

/// Returns whether the Will of a client has to be published: its session ends with its connection, or its client does
/// not return within the delay.
fn will_is_due(profile: &Profile, victim: SocketAddr) -> bool {
    let is_due = |delay| delay == 0 || !profile.returns;
    profile.home == victim && profile.will_delay_s.is_some_and(is_due)
}

/// Client Identifiers of all Wills, and the times of their arrival. Waits for `due` of them after the end, and for more
/// than that.
fn receive_wills(mut watcher: Client, due: usize, is_over: &AtomicBool) -> Result<Vec<(String, Instant)>> {
    let mut wills = Vec::new();
    let mut over_since = None;
    loop {
        if let Some(will) = watcher.receive(TURN)? {
            wills.push((will.payload, Instant::now()));
            continue;
        }
        if is_over.load(Relaxed) {
            let since: &Instant = over_since.get_or_insert_with(Instant::now);
            let longest = if wills.len() < due { WILLS_MAX } else { GRACE };
            if since.elapsed() > longest {
                return Ok(wills);
            }
        }
    }
}

fn judge_wills(due: &[String], wills: &[(String, Instant)], killed: Instant, results: &mut CheckResults) {
    let mut counts: BTreeMap<&str, u32> = due.iter().map(|id| (&id[..], 0)).collect();
    let mut undue = Vec::new();
    for (id, _) in wills {
        match counts.get_mut(&id[..]) {
            Some(count) => *count += 1,
            None => undue.push(&id[..]),
        }
    }
    let last = wills.iter().map(|(_, at)| at.saturating_duration_since(killed)).max().unwrap_or_default();
    println!("  {:5.1} s     from SIGKILL until the last of {} Wills", last.as_secs_f64(), wills.len());
    let some = |ids: Vec<&str>| ids.into_iter().take(5).collect::<Vec<_>>().join(", ");
    let with = |is_so: fn(u32) -> bool| -> Vec<&str> {
        counts.iter().filter(|(_, count)| is_so(**count)).map(|(id, _)| *id).collect()
    };
    for (what, ids) in [
        ("were not published", with(|count| count == 0)),
        ("were published more than once", with(|count| count > 1)),
        ("were published although the client is connected", undue),
    ] {
        results.check(ids.is_empty(), || format!("{} Wills {what}: {}", ids.len(), some(ids.clone())));
    }
}

/// A publisher and a subscriber on different nodes that stay.
struct Pair {
    publisher: Client,
    subscriber: Client,
    topic: String,
}

/// Figures of a pair: the longest times from PUBLISH to PUBACK and to the arrival.
#[derive(Default)]
struct Figures {
    messages: u32,
    puback: Duration,
    arrival: Duration,
}

impl Pair {
    /// Pairs of each node and the next one.
    fn all(nodes: &[SocketAddr], victim: &str) -> Result<Vec<Self>> {
        let pair = |at: usize| {
            let (from, to) = (nodes[at], nodes[(at + 1) % nodes.len()]);
            let topic = format!("pairs/{victim}/{at}");
            let mut subscriber = Client::connect(to, &format!("{victim}-pair-to-{at}"))?;
            subscriber.subscribe(&topic, 1, "cluster")?;
            Ok(Self {
                publisher: Client::connect(from, &format!("{victim}-pair-from-{at}"))?,
                subscriber,
                topic,
            })
        };
        (0..nodes.len()).map(pair).collect()
    }

    /// Sends one message after the other until the end.
    ///
    /// # Errors
    /// A message is not acknowledged or does not arrive.
    fn exchange(mut self, is_over: &AtomicBool) -> Result<Figures> {
        let mut figures = Figures::default();
        while !is_over.load(Relaxed) {
            let (begun, payload) = (Instant::now(), figures.messages.to_string());
            self.publisher.publish(&self.topic, &payload, 1, false)?;
            figures.puback = figures.puback.max(begun.elapsed());
            let found = self.subscriber.receive(ARRIVAL)?;
            ensure!(
                found.as_ref().is_some_and(|message| message.payload == payload),
                "{}: expected message {payload}, got {found:?}",
                self.topic
            );
            figures.arrival = figures.arrival.max(begun.elapsed());
            figures.messages += 1;
            std::thread::sleep(PAUSE);
        }
        Ok(figures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wills_are_due_of_absent_clients_and_of_ended_sessions() {
        let node = |port| SocketAddr::from(([127, 0, 0, 1], port));
        let nodes = Nodes { victim: node(1), others: vec![node(2), node(3)] };
        let profiles = profiles("n4", &nodes);
        let due = |kind: &str| {
            let of_kind = profiles.iter().filter(|profile| profile.id.contains(kind));
            of_kind.filter(|profile| will_is_due(profile, nodes.victim)).count()
        };
        assert_eq!((due("returning"), due("absent"), due("other")), (RETURNING / 10, ABSENT, 0));
        let ids: std::collections::BTreeSet<&str> = profiles.iter().map(|profile| &profile.id[..]).collect();
        assert_eq!(ids.len(), RETURNING + ABSENT + OTHERS);
    }

    #[test]
    fn a_will_that_is_missing_doubled_or_undue_fails() {
        let check = |wills: &[&str]| {
            let mut results = CheckResults::default();
            let now = Instant::now();
            let wills: Vec<_> = wills.iter().map(|id| ((*id).to_owned(), now)).collect();
            judge_wills(&["a".to_owned(), "b".to_owned()], &wills, now, &mut results);
            results.failed.len()
        };
        assert_eq!(check(&["b", "a"]), 0);
        assert_eq!(check(&["b"]), 1);
        assert_eq!(check(&["a", "b", "b"]), 1);
        assert_eq!(check(&["a", "b", "c"]), 1);
        assert_eq!(check(&["c", "c"]), 2);
    }
}
