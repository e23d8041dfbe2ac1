//! Clients that contend for Client Identifiers: two clients use each of them, on any nodes, and take each other over
//! again and again. Each exchanges messages of QoS 1 or 2 while it is connected. A verdict says whether two connections
//! of one Client Identifier were served at the same time.
//!
//! An exchange is acknowledged at some moment between its PUBLISH and its last acknowledgement. So one connection was
//! served while another one was, when a whole exchange of the second one lies between two exchanges of the first one.

use anyhow::{Result, bail};
use random::Random;
use std::collections::VecDeque;
use std::net::SocketAddr;
use std::ops::AddAssign;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::client::Client;

/// Maximum time for an answer, including the time after the fault of a node.
const ANSWER: Duration = Duration::from_secs(15);
/// Pause after a refused connection.
const PAUSE: Duration = Duration::from_millis(20);
/// Maximum pause in milliseconds between two exchanges, and between two connections.
const PAUSE_MAX_MS: u64 = 12;
/// Maximum number of half-open connections of a contender.
const HALF_OPEN_MAX: usize = 8;
/// Session Expiry Interval of Client Identifiers with durable sessions, in seconds.
const EXPIRY_S: u32 = 600;
/// Reason Code of DISCONNECT: another connection has the Client Identifier.
const TAKEN_OVER: &str = "[8e";

/// Opens a connection of a contender to an address.
pub type Open<'a> = dyn Fn(SocketAddr) -> Result<Client> + Sync + 'a;

/// One of the two clients of a Client Identifier.
#[derive(Clone, Copy, Debug)]
pub struct Contender {
    /// Number of the Client Identifier. Sessions of odd ones outlive their connections.
    pub name: usize,
    pub side: usize,
}

/// The acknowledged exchanges of one connection, in their order: the times of PUBLISH and of the last acknowledgement.
#[derive(Clone, Debug)]
pub struct Served {
    name: usize,
    exchanges: Vec<(Instant, Instant)>,
}

/// Connections of a contender.
#[derive(Default)]
pub struct Outcome {
    served: Vec<Served>,
    counts: Counts,
}

/// Number of connections by their end.
#[derive(Clone, Copy, Default)]
struct Counts {
    refused: usize,
    taken_over: usize,
    left: usize,
    dropped: usize,
    /// The node has closed it for another reason, or was gone.
    lost: usize,
}

impl AddAssign for Counts {
    fn add_assign(&mut self, other: Self) {
        self.refused += other.refused;
        self.taken_over += other.taken_over;
        self.left += other.left;
        self.dropped += other.dropped;
        self.lost += other.lost;
    }
}

impl Contender {
    /// All contenders for this number of Client Identifiers.
    pub fn all(names: usize) -> impl Iterator<Item = Self> {
        (0..names).flat_map(|name| (0..2).map(move |side| Self { name, side }))
    }

    /// Contends until `is_over`. `connect` opens a connection to a node, which it may choose by the number.
    pub fn contend(self, is_over: &AtomicBool, connect: impl Fn(u64, &Open) -> Result<Client>) -> Outcome {
        let mut random = Random::new((self.name as u64) << 8 | self.side as u64);
        let mut outcome = Outcome::default();
        // Connections without DISCONNECT, whose sockets stay open.
        let mut half_open = VecDeque::new();
        let id = format!("contended-{}", self.name);
        while !is_over.load(Ordering::Relaxed) {
            let open = |address: SocketAddr| match self.name % 2 {
                0 => Client::connect_within(address, &id, true, 0, ANSWER),
                _ => Client::connect_within(address, &id, false, EXPIRY_S, ANSWER),
            };
            let Ok(mut client) = connect(random.draw(), &open) else {
                outcome.counts.refused += 1;
                std::thread::sleep(PAUSE);
                continue;
            };
            let mut exchanges = Vec::new();
            let stays = random.below_u64(60);
            let end = (0..stays).find_map(|_| {
                let sent = Instant::now();
                let qos = 1 + random.below_u64(2) as u8;
                let answer = client.publish("contended", &id, qos, false);
                let end = answer.err();
                if end.is_none() {
                    exchanges.push((sent, Instant::now()));
                    std::thread::sleep(Duration::from_millis(random.below_u64(PAUSE_MAX_MS)));
                }
                end.or_else(|| is_over.load(Ordering::Relaxed).then(|| anyhow::anyhow!("the end")))
            });
            let counts = &mut outcome.counts;
            match end {
                Some(error) if error.to_string().contains(TAKEN_OVER) => counts.taken_over += 1,
                Some(_) => counts.lost += 1,
                None if random.percent(50) => {
                    counts.left += usize::from(client.disconnect().is_ok());
                }
                None => {
                    counts.dropped += 1;
                    half_open.push_back(client);
                    if half_open.len() > HALF_OPEN_MAX {
                        half_open.pop_front();
                    }
                }
            }
            outcome.served.push(Served { name: self.name, exchanges });
            std::thread::sleep(Duration::from_millis(random.below_u64(PAUSE_MAX_MS)));
        }
        outcome
    }
}

/// Result of the check of all contenders.
pub struct Verdict {
    /// Connections with an acknowledged exchange.
    pub served: usize,
    /// Times that a connection was served right after another one of its Client Identifier.
    pub changes: usize,
    pub exchanges: usize,
    counts: Counts,
}

impl Verdict {
    /// Checks all connections.
    ///
    /// # Errors
    /// Two connections of one Client Identifier were served at the same time.
    pub fn of(outcomes: Vec<Outcome>) -> Result<Self> {
        let mut counts = Counts::default();
        let mut served = Vec::new();
        for outcome in outcomes {
            counts += outcome.counts;
            served.extend(outcome.served.into_iter().filter(|served| !served.exchanges.is_empty()));
        }
        served.sort_by_key(|served| (served.name, served.exchanges[0]));
        let mut changes = 0;
        for connections in served.chunk_by(|one, next| one.name == next.name) {
            changes += connections.len() - 1;
            if let Some((one, other)) = served_at_once(connections) {
                bail!("two connections of contended-{} were served at once: {one:?}, {other:?}", one.name);
            }
        }
        let exchanges = served.iter().map(|served| served.exchanges.len()).sum();
        Ok(Self { served: served.len(), changes, exchanges, counts })
    }

    pub fn describe(&self) -> String {
        let Counts { refused, taken_over, left, dropped, lost } = self.counts;
        format!(
            "{} connections were served, {} times after another one of the same Client Identifier, with {} \
             acknowledged messages; {taken_over} were taken over, {left} left, {dropped} stayed half open, {lost} \
             lost their node, {refused} were refused",
            self.served, self.changes, self.exchanges
        )
    }
}

/// Two connections of one Client Identifier. One was served between two exchanges of the other one.
/// `connections` are in the order of their first exchanges.
fn served_at_once(connections: &[Served]) -> Option<(&Served, &Served)> {
    connections.iter().enumerate().find_map(|(at, one)| {
        let first_end = one.exchanges[0].1;
        let last_begin = one.exchanges[one.exchanges.len() - 1].0;
        let later = connections[at + 1..].iter().take_while(|other| other.exchanges[0].0 < last_begin);
        later
            .filter(|other| {
                other.exchanges.iter().any(|(sent, done)| *sent > first_end && *done < last_begin)
            })
            .map(|other| (one, other))
            .next()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn served(begin: Instant, exchanges: &[(u64, u64)]) -> Served {
        let at = |ms| begin + Duration::from_millis(ms);
        Served { name: 1, exchanges: exchanges.iter().map(|(sent, done)| (at(*sent), at(*done))).collect() }
    }

    #[test]
    fn an_exchange_between_two_of_another_connection_is_found() {
        let begin = Instant::now();
        let check = |one: &[(u64, u64)], other: &[(u64, u64)]| {
            let mut connections = [served(begin, one), served(begin, other)];
            connections.sort_by_key(|served| served.exchanges[0]);
            served_at_once(&connections).is_some()
        };
        let inside = [(0, 2), (10, 12)];
        assert!(check(&inside, &[(4, 6)]));
        assert!(check(&[(4, 6)], &inside), "the order does not matter");
        assert!(check(&inside, &[(4, 6), (20, 21)]));
        assert!(!check(&inside, &[(20, 22), (30, 31)]), "one after the other");
        // The second one may have been acknowledged after 12, or before 1.
        assert!(!check(&inside, &[(4, 14)]));
        assert!(!check(&inside, &[(1, 6)]));
        assert!(!check(&[(0, 2)], &[(1, 3)]), "one exchange each");
    }
}
