//! Nodes of a cluster, the connections to them, and the leaders of partitions.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use super::code::{Code, Consequence};
use super::connection::{Access, Connection, Endpoint};
use super::messages::{self as api, Metadata, TopicMetadata};
use super::wire::Writer;
use crate::WriteError;

/// Maximum number of topics that are remembered.
pub const TOPICS_MAX: usize = 1000;
/// Maximum number of nodes of a cluster.
const BROKERS_MAX: usize = 1000;
/// Topics of one request, so that the answer stays small.
const TOPICS_OF_REQUEST: usize = 10;
/// Time after which partitions are read again, to find new ones.
const AGE_MAX: Duration = Duration::from_secs(300);

/// A cluster as one sink sees it.
pub struct Cluster {
    access: Access,
    bootstrap: Vec<Endpoint>,
    /// Connection to a bootstrap address, for questions about the cluster.
    contact: Option<Connection>,
    brokers: HashMap<i32, Endpoint>,
    connections: HashMap<i32, Connection>,
    topics: HashMap<Box<str>, Topic>,
}

/// Partitions of a topic.
pub struct Topic {
    /// Node that leads each partition; `None` when there is none. Never empty.
    pub leaders: Vec<Option<i32>>,
    read_at: Instant,
}

impl Cluster {
    pub fn new(access: Access, bootstrap: Vec<Endpoint>) -> Self {
        let (brokers, connections, topics) = Default::default();
        Self { access, bootstrap, contact: None, brokers, connections, topics }
    }

    /// Returns the connection to a bootstrap address. The first one that answers is used.
    ///
    /// # Errors
    /// A sentence for each address.
    pub fn contact(&mut self, deadline: Instant) -> Result<&mut Connection, String> {
        let contact = match self.contact.take().filter(Connection::is_usable) {
            Some(contact) => contact,
            None => self.open_contact(deadline)?,
        };
        Ok(self.contact.insert(contact))
    }

    fn open_contact(&self, deadline: Instant) -> Result<Connection, String> {
        let mut reasons = vec![];
        for (at, endpoint) in self.bootstrap.iter().enumerate() {
            // An address that does not answer leaves time for the others.
            let left = deadline.saturating_duration_since(Instant::now());
            let share = left / (self.bootstrap.len() - at) as u32;
            match Connection::open(endpoint, &self.access, Instant::now() + share) {
                Ok(connection) => return Ok(connection),
                Err(why) => reasons.push(why),
            }
        }
        Err(reasons.join("; "))
    }

    /// Sends a request to the contact and reads its answer.
    ///
    /// # Errors
    /// A sentence.
    pub fn ask<T>(
        &mut self,
        api: api::Api,
        body: &Writer,
        deadline: Instant,
        read: impl FnOnce(&mut super::wire::Reader<'_>) -> Result<T, super::wire::Malformed>,
    ) -> Result<T, String> {
        let contact = self.contact(deadline)?;
        let answer = contact.call(api, body, deadline).and_then(|answer| contact.parse(&answer, read));
        if answer.is_err() {
            self.contact = None;
        }
        answer
    }

    /// Returns the connection to a node, which is opened if necessary.
    ///
    /// # Errors
    /// A sentence.
    pub fn connection(&mut self, broker: i32, deadline: Instant) -> Result<&mut Connection, String> {
        let connection = match self.connections.remove(&broker).filter(Connection::is_usable) {
            Some(connection) => connection,
            None => {
                let endpoint = self.brokers.get(&broker).ok_or_else(|| {
                    format!("the cluster names node {broker} as a leader, but not its address")
                })?;
                Connection::open(endpoint, &self.access, deadline).map_err(|why| {
                    format!(
                        "node {broker} of the cluster, as it announces itself (advertised.listeners): {why}"
                    )
                })?
            }
        };
        Ok(self.connections.entry(broker).insert_entry(connection).into_mut())
    }

    /// Returns the connection that [`Self::connection`] has opened.
    pub fn opened(&mut self, broker: i32) -> Option<&mut Connection> {
        self.connections.get_mut(&broker)
    }

    /// Closes the connection to a node.
    pub fn close(&mut self, broker: i32) {
        self.connections.remove(&broker);
    }

    /// Forgets all partitions, because a leader has changed or does not answer.
    pub fn forget_topics(&mut self) {
        self.topics.clear();
    }

    pub fn topic(&self, name: &str) -> Option<&Topic> {
        self.topics.get(name)
    }

    /// Makes sure that the partitions of these topics are known. Returns true when others were forgotten for them.
    ///
    /// # Errors
    /// A topic does not exist, or the cluster does not answer.
    pub fn learn(&mut self, names: &[&str], deadline: Instant) -> Result<bool, WriteError> {
        let is_known = |topic: &Topic| topic.read_at.elapsed() < AGE_MAX;
        let mut unknown: Vec<&str> = names.to_vec();
        unknown.retain(|name| !self.topics.get(*name).is_some_and(is_known));
        let is_crowded = self.topics.len() + unknown.len() > TOPICS_MAX;
        if is_crowded {
            self.topics.clear();
            unknown = names.to_vec();
        }
        for part in unknown.chunks(TOPICS_OF_REQUEST) {
            let metadata = self.read_metadata(part, true, deadline).map_err(WriteError::Unavailable)?;
            for topic in metadata.topics {
                let name = topic.name.clone();
                let leaders = leaders(topic)?;
                if part.contains(&name.as_str()) {
                    self.topics.insert(name.into(), Topic { leaders, read_at: Instant::now() });
                }
            }
        }
        match names.iter().find(|name| !self.topics.contains_key(**name)) {
            Some(name) => {
                Err(WriteError::Unavailable(format!("the cluster says nothing about topic `{name}`")))
            }
            None => Ok(is_crowded),
        }
    }

    /// Reads the nodes of the cluster, and topics. `creates` allows the cluster to create them, if it does that.
    ///
    /// # Errors
    /// A sentence.
    pub fn read_metadata(
        &mut self,
        topics: &[&str],
        creates: bool,
        deadline: Instant,
    ) -> Result<Metadata, String> {
        let mut body = Writer::default();
        api::write_metadata(&mut body, topics, creates);
        let metadata = self.ask(api::METADATA, &body, deadline, api::read_metadata)?;
        let mut brokers = HashMap::new();
        for broker in metadata.brokers.iter().take(BROKERS_MAX) {
            let Ok(port @ 1..) = u16::try_from(broker.port) else { continue };
            brokers.insert(broker.id, Endpoint { host: broker.host.clone(), port });
        }
        // A node that has moved is not reached at its previous address.
        self.connections.retain(|id, _| brokers.get(id).is_some_and(|now| self.brokers.get(id) == Some(now)));
        self.brokers = brokers;
        Ok(metadata)
    }
}

/// Returns the leaders of a topic by partition.
///
/// # Errors
/// The topic cannot be written to.
pub fn leaders(topic: TopicMetadata) -> Result<Vec<Option<i32>>, WriteError> {
    let name = topic.name.escape_debug();
    match topic.code.consequence() {
        Consequence::Written => {}
        Consequence::Refused => return Err(WriteError::Refused(format!("topic `{name}`: {}", topic.code))),
        _ => return Err(WriteError::Unavailable(format!("topic `{name}`: {}", topic.code))),
    }
    let mut leaders = vec![None; topic.leaders.len()];
    for (partition, leader) in topic.leaders {
        let slot = usize::try_from(partition).ok().and_then(|at| leaders.get_mut(at)).ok_or_else(|| {
            WriteError::Unavailable(format!("topic `{name}`: the cluster does not name all partitions"))
        })?;
        *slot = (leader >= 0).then_some(leader);
    }
    if leaders.is_empty() {
        return Err(WriteError::Unavailable(format!("topic `{name}`: {}", Code(3))));
    }
    Ok(leaders)
}
