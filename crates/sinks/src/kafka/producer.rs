//! Writes records to the leaders of their partitions.
//!
//! A [`Producer`] has a number from the cluster, and counts the batches of each partition. A batch that is sent again
//! has the same place in the count, so the cluster stores it once. Records that were stored although their call failed
//! are remembered by their ids, and not sent again.

use std::collections::hash_map::Entry as MapEntry;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant, SystemTime};

use super::batch::{self, Entry, Sequence};
use super::cluster::{self, Cluster};
use super::code::{Code, Consequence};
use super::connection::Connection;
use super::messages::{self as api, Produced};
use super::wire::Writer;
use super::{Fields, check_topic};
use crate::{Record, WriteError};

/// Maximum number of records that are remembered.
const REMEMBERED_MAX: usize = 200_000;
/// Number of bytes of an answer about a partition, with the message of an error.
const ANSWER_OF_PARTITION: usize = 1024;
/// Number of bytes of an answer about a record that is not accepted.
const ANSWER_OF_RECORD: usize = 256;
/// Maximum number of nodes whose addresses a test tries.
const TESTED_MAX: usize = 16;

/// A partition of a topic.
type Partition = (Box<str>, usize);

/// A sink that writes to a cluster.
pub struct Producer {
    cluster: Cluster,
    headers: Box<[Box<str>]>,
    /// Topic without placeholders, for tests.
    constant_topic: Option<String>,
    timeout: Duration,
    identity: Option<Identity>,
    /// Place of the next batch of a partition.
    next: HashMap<Partition, i32>,
    /// Ids of a batch that may be stored already, at the place of the next one.
    uncertain: HashMap<Partition, Box<[u128]>>,
    /// Partitions of records of uncertain batches.
    assigned: HashMap<u128, usize>,
    /// Ids of stored records whose call has failed because of others.
    stored: HashSet<u128>,
    /// Number of batches without a key. It chooses their partitions in turn.
    turn: usize,
}

/// Number of a producer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Identity {
    Known {
        producer: i64,
        epoch: i16,
    },
    /// The cluster gives no numbers to this user.
    Unsupported,
}

/// Records of a call for one partition.
struct Group<'a> {
    partition: Partition,
    leader: i32,
    records: Vec<&'a Record>,
    result: Option<Result<(), Failure>>,
}

impl Group<'_> {
    /// Number of bytes that an answer about the group may have. It can have an error for each record.
    fn answer_max(&self) -> usize {
        self.partition.0.len() + ANSWER_OF_PARTITION + self.records.len() * ANSWER_OF_RECORD
    }
}

/// Reason why a group is not known to be stored.
#[derive(Clone)]
enum Failure {
    Refused(String),
    /// The request did not reach the cluster.
    NotSent(String),
    /// The group may be stored.
    Uncertain(String),
    /// The leader failed, and the cause may be in a record. The group may be stored.
    Failed(String),
    /// The leader does not store the group, and the cause may be in a record.
    NotStored(String),
    /// The cluster does not accept the place of the group in the count.
    OutOfSequence(String),
}

impl Producer {
    pub fn new(
        cluster: Cluster,
        headers: Box<[Box<str>]>,
        constant_topic: Option<String>,
        timeout: Duration,
    ) -> Self {
        let (next, uncertain, assigned, stored) = Default::default();
        Self {
            cluster,
            headers,
            constant_topic,
            timeout,
            identity: None,
            next,
            uncertain,
            assigned,
            stored,
            turn: 0,
        }
    }

    fn write_until(&mut self, records: &[Record], deadline: Instant) -> Result<(), WriteError> {
        let mut rest: Vec<&Record> = records.iter().collect();
        rest.retain(|record| record.id == 0 || !self.stored.contains(&record.id));
        if !rest.is_empty() {
            let mut groups = self.groups(&rest, deadline)?;
            self.ensure_identity(&groups, deadline).map_err(WriteError::Unavailable)?;
            self.send(&mut groups, deadline);
            self.settle(groups)?;
        }
        for record in records {
            self.stored.remove(&record.id);
        }
        Ok(())
    }

    /// Divides records by partition.
    fn groups<'a>(
        &mut self,
        records: &[&'a Record],
        deadline: Instant,
    ) -> Result<Vec<Group<'a>>, WriteError> {
        let mut names = vec![];
        let mut is_new = HashSet::new();
        for record in records {
            let topic = Fields::of(record).topic;
            let topic = std::str::from_utf8(topic).map_err(|_| WriteError::Refused(not_text()))?;
            check_topic(topic).map_err(WriteError::Refused)?;
            if is_new.insert(topic) {
                names.push(topic);
            }
        }
        if self.cluster.learn(&names, deadline)? {
            self.restart();
        }
        let mut groups: Vec<Group<'a>> = vec![];
        let mut at: HashMap<Partition, usize> = HashMap::new();
        self.turn = self.turn.wrapping_add(1);
        for record in records {
            let (partition, leader) = self.choose(record)?;
            match at.entry(partition) {
                MapEntry::Occupied(entry) => groups[*entry.get()].records.push(record),
                MapEntry::Vacant(entry) => {
                    let partition = entry.key().clone();
                    entry.insert(groups.len());
                    groups.push(Group { partition, leader, records: vec![record], result: None });
                }
            }
        }
        Ok(groups)
    }

    /// Returns the partition of a record and its leader.
    fn choose(&self, record: &Record) -> Result<(Partition, i32), WriteError> {
        let fields = Fields::of(record);
        let name = std::str::from_utf8(fields.topic).map_err(|_| WriteError::Refused(not_text()))?;
        let leaders = self.cluster.topic(name).map_or(&[][..], |topic| &topic.leaders);
        let no_leader = || WriteError::Unavailable(format!("topic `{name}`: {}", Code(5)));
        let assigned =
            self.assigned.get(&record.id).copied().filter(|at| record.id != 0 && *at < leaders.len());
        let partition = match (assigned, fields.key) {
            (Some(partition), _) => partition,
            (None, Some(key)) if !leaders.is_empty() => batch::partition_of(key, leaders.len()),
            _ => {
                let available = leaders.iter().flatten().count().max(1);
                let mut with_leader = (0..leaders.len()).filter(|at| leaders[*at].is_some());
                with_leader.nth(self.turn % available).ok_or_else(no_leader)?
            }
        };
        let leader = leaders.get(partition).copied().flatten().ok_or_else(no_leader)?;
        Ok(((name.into(), partition), leader))
    }

    /// Gets a number from the cluster if there is none, or if a place in the count would be used for other records than
    /// the ones that were sent with it. The cluster would take those for the records that it has.
    fn ensure_identity(&mut self, groups: &[Group<'_>], deadline: Instant) -> Result<(), String> {
        let is_other = |group: &Group<'_>| {
            let ids = || group.records.iter().map(|record| record.id);
            let sent = self.uncertain.get(&group.partition);
            sent.is_some_and(|sent| !ids().eq(sent.iter().copied()) || sent.contains(&0))
        };
        if groups.iter().any(is_other) {
            self.restart();
        }
        if self.identity.is_none() {
            self.identity = Some(self.ask_identity(deadline)?);
        }
        Ok(())
    }

    fn ask_identity(&mut self, deadline: Instant) -> Result<Identity, String> {
        if !self.cluster.contact(deadline)?.supports(api::INIT_PRODUCER_ID) {
            return Ok(Identity::Unsupported);
        }
        let mut body = Writer::default();
        api::write_init_producer_id(&mut body);
        let (code, producer, epoch) =
            self.cluster.ask(api::INIT_PRODUCER_ID, &body, deadline, api::read_init_producer_id)?;
        match code {
            Code::NONE => Ok(Identity::Known { producer, epoch }),
            Code::CLUSTER_AUTHORIZATION_FAILED => {
                tracing::warn!(
                    "kafka: the user may not use idempotent writes; records can occur twice after a lost connection"
                );
                Ok(Identity::Unsupported)
            }
            code => Err(format!("the cluster gives no number to the producer: {code}")),
        }
    }

    /// Begins again as a new producer. The cluster cannot recognize records that were sent before.
    fn restart(&mut self) {
        self.identity = None;
        self.next.clear();
        self.uncertain.clear();
    }

    /// Sends each leader its groups in one request, and then reads the answers.
    fn send(&mut self, groups: &mut [Group<'_>], deadline: Instant) {
        let mut leaders: Vec<i32> = groups.iter().map(|group| group.leader).collect();
        leaders.sort_unstable();
        leaders.dedup();
        let time = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let time = i64::try_from(time.as_millis()).unwrap_or(i64::MAX);
        for leader in &leaders {
            let mut parts: Vec<_> = groups.iter().filter(|group| group.leader == *leader).collect();
            parts.sort_by(|one, other| one.partition.cmp(&other.partition));
            let batches: Vec<_> = parts.iter().map(|group| self.encode(group, time)).collect();
            let produced = parts.iter().zip(&batches).map(|(group, batch)| Produced {
                topic: &group.partition.0,
                partition: group.partition.1 as i32,
                batch,
            });
            let failure = self.request(*leader, &produced.collect::<Vec<_>>(), deadline).err();
            fail(groups, *leader, failure);
        }
        for leader in leaders {
            if groups.iter().any(|group| group.leader == leader && group.result.is_none()) {
                let of_leader = groups.iter().filter(|group| group.leader == leader);
                let expected = of_leader.map(Group::answer_max).sum();
                match self.answers(leader, expected, deadline) {
                    Ok(results) => assign(groups, leader, results),
                    Err(why) => {
                        self.cluster.close(leader);
                        fail(groups, leader, Some(Failure::Uncertain(why)));
                    }
                }
            }
        }
    }

    fn encode(&self, group: &Group<'_>, time: i64) -> Vec<u8> {
        let entries: Vec<_> = group.records.iter().map(|record| self.entry(record)).collect();
        let sequence = match self.identity {
            Some(Identity::Known { producer, epoch }) => {
                let first = self.next.get(&group.partition).copied().unwrap_or(0);
                Sequence { producer, epoch, first }
            }
            _ => Sequence { producer: -1, epoch: -1, first: -1 },
        };
        batch::encode(&entries, sequence, time)
    }

    fn entry<'a>(&'a self, record: &'a Record) -> Entry<'a> {
        let fields = Fields::of(record);
        let values = fields.headers.iter().map(|value| value.as_deref().unwrap_or_default());
        let headers = self.headers.iter().map(|name| &**name).zip(values).collect();
        Entry { key: fields.key, value: fields.content, headers }
    }

    fn request(&mut self, leader: i32, batches: &[Produced<'_>], deadline: Instant) -> Result<(), Failure> {
        let connection = self.cluster.connection(leader, deadline).map_err(Failure::NotSent)?;
        let left = deadline.saturating_duration_since(Instant::now()).as_millis();
        let mut body = Writer::default();
        api::write_produce(&mut body, batches, i32::try_from(left).unwrap_or(i32::MAX).max(1));
        let sent = connection.send(produce_version(connection), &body, deadline);
        if sent.is_err() {
            self.cluster.close(leader);
        }
        sent.map_err(Failure::Uncertain)
    }

    fn answers(
        &mut self,
        leader: i32,
        expected: usize,
        deadline: Instant,
    ) -> Result<Vec<api::ProduceResult>, String> {
        let connection = self.cluster.opened(leader).ok_or("the connection is closed")?;
        let answer = connection.receive(expected, deadline)?;
        let version = produce_version(connection).version;
        connection.parse(&answer, |reader| api::read_produce(reader, version))
    }

    /// Remembers what is stored and what may be. Returns the first failure of the strongest kind. One whose cause is in
    /// no record comes first, because the caller must not give up a record because of it. Records of other partitions
    /// are stored and not sent again.
    fn settle(&mut self, groups: Vec<Group<'_>>) -> Result<(), WriteError> {
        if self.stored.len().max(self.assigned.len()) > REMEMBERED_MAX {
            self.stored.clear();
            self.assigned.clear();
        }
        let (mut refused, mut failed, mut unavailable, mut is_out_of_sequence) = (None, None, None, false);
        for group in groups {
            let ids: Box<[u128]> = group.records.iter().map(|record| record.id).collect();
            let unanswered =
                || Failure::Uncertain("the server did not answer about all partitions".to_owned());
            match group.result.unwrap_or_else(|| Err(unanswered())) {
                Ok(()) => {
                    let next = self.next.entry(group.partition.clone()).or_default();
                    *next = (next.wrapping_add(ids.len() as i32)) & i32::MAX;
                    self.uncertain.remove(&group.partition);
                    ids.iter().for_each(|id| _ = self.assigned.remove(id));
                    self.stored.extend(ids.iter().filter(|id| **id != 0));
                }
                Err(Failure::Refused(why)) => {
                    self.uncertain.remove(&group.partition);
                    refused = refused.or(Some(why));
                }
                Err(Failure::OutOfSequence(why)) => {
                    is_out_of_sequence = true;
                    unavailable = unavailable.or(Some(why));
                }
                Err(Failure::NotSent(why)) => unavailable = unavailable.or(Some(why)),
                Err(Failure::NotStored(why)) => {
                    self.uncertain.remove(&group.partition);
                    failed = failed.or(Some(why));
                }
                Err(Failure::Uncertain(why)) => {
                    self.note_uncertain(group.partition, ids);
                    unavailable = unavailable.or(Some(why));
                }
                Err(Failure::Failed(why)) => {
                    self.note_uncertain(group.partition, ids);
                    failed = failed.or(Some(why));
                }
            }
        }
        if is_out_of_sequence {
            self.restart();
        }
        if let Some(why) = unavailable {
            return Err(WriteError::Unavailable(why));
        }
        if let Some(why) = failed {
            return Err(WriteError::Failed(why));
        }
        refused.map_or(Ok(()), |why| Err(WriteError::Refused(why)))
    }

    /// Remembers a batch that may be stored, so that the same records go to the same place again.
    fn note_uncertain(&mut self, partition: Partition, ids: Box<[u128]>) {
        self.assigned.extend(ids.iter().map(|id| (*id, partition.1)));
        self.uncertain.insert(partition, ids);
    }

    fn test_until(&mut self, deadline: Instant) -> Result<String, WriteError> {
        let names: Vec<String> = self.constant_topic.iter().cloned().collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let metadata =
            self.cluster.read_metadata(&names, false, deadline).map_err(WriteError::Unavailable)?;
        let cluster = metadata.cluster.unwrap_or_else(|| "without a name".to_owned());
        let mut report = format!("cluster {} with {} nodes", cluster.escape_debug(), metadata.brokers.len());
        let mut nodes: Vec<i32> = metadata.brokers.iter().map(|broker| broker.id).collect();
        for topic in metadata.topics {
            let name = topic.name.clone();
            let leaders = cluster::leaders(topic)?;
            report.push_str(&format!("; topic {} has {} partitions", name.escape_debug(), leaders.len()));
            nodes.retain(|id| leaders.contains(&Some(*id)));
        }
        for node in nodes.into_iter().take(TESTED_MAX) {
            self.cluster.connection(node, deadline).map_err(WriteError::Unavailable)?;
        }
        if self.ask_identity(deadline).map_err(WriteError::Unavailable)? == Identity::Unsupported {
            report
                .push_str("; without idempotent writes, so records can occur twice after a lost connection");
        }
        Ok(report)
    }
}

impl crate::Sink for Producer {
    fn write(&mut self, records: &[Record]) -> Result<(), WriteError> {
        let result = self.write_until(records, Instant::now() + self.timeout);
        if let Err(WriteError::Unavailable(_)) = &result {
            self.cluster.forget_topics();
        }
        result
    }

    fn test(&mut self) -> Result<String, WriteError> {
        self.test_until(Instant::now() + self.timeout)
    }
}

/// Sets the result of all groups of a leader that have none.
fn fail(groups: &mut [Group<'_>], leader: i32, failure: Option<Failure>) {
    let Some(failure) = failure else { return };
    for group in groups.iter_mut().filter(|group| group.leader == leader && group.result.is_none()) {
        group.result = Some(Err(failure.clone()));
    }
}

/// Sets the results that a leader has answered.
fn assign(groups: &mut [Group<'_>], leader: i32, results: Vec<api::ProduceResult>) {
    let results: HashMap<(&str, i32), &api::ProduceResult> =
        results.iter().map(|result| ((result.topic.as_str(), result.partition), result)).collect();
    for group in groups.iter_mut().filter(|group| group.leader == leader) {
        let key = (&*group.partition.0, group.partition.1 as i32);
        group.result = results.get(&key).map(|result| outcome(result));
    }
}

fn outcome(result: &api::ProduceResult) -> Result<(), Failure> {
    let detail =
        result.message.as_ref().map(|text| format!(" ({})", text.escape_debug())).unwrap_or_default();
    let why = format!("topic `{}`, partition {}: {}{detail}", result.topic, result.partition, result.code);
    match result.code.consequence() {
        Consequence::Written => Ok(()),
        Consequence::Refused => Err(Failure::Refused(why)),
        Consequence::Later => Err(Failure::Uncertain(why)),
        Consequence::Failed => Err(Failure::Failed(why)),
        Consequence::NotStored => Err(Failure::NotStored(why)),
        Consequence::NewProducer => Err(Failure::OutOfSequence(why)),
    }
}

fn produce_version(connection: &Connection) -> api::Api {
    if connection.supports(api::PRODUCE_8) { api::PRODUCE_8 } else { api::PRODUCE_7 }
}

fn not_text() -> String {
    "the topic is not UTF-8".to_owned()
}
