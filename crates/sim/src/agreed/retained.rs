//! Clients that retain messages on a few common topics, and clients that subscribe to them; the oracle of both.
//!
//! A topic is a register: each PUBLISH with RETAIN is a write, and each new subscription is a read. A read must not
//! find a write that was overwritten for sure when it began. A write is overwritten for sure by another one that began
//! after its end and has an effect: it was acknowledged, or an earlier read has found it.

use std::collections::BTreeMap;

use mqtt::{QoS, ReasonCode, SubscriptionOptions, Version};
use testkit::Endpoint;
use testkit::packets::{self, Message, Sent};

use super::claims::Claims;
use crate::context::Context;
use crate::net::Link;
use crate::schedule::{Micros, SECOND};

/// Writers and readers, and what they know.
pub struct RetainedClients {
    history: History,
    clients: Vec<RetainedClient>,
    /// The message that each read ends with is retained.
    has_end: bool,
}

/// Number of topics.
const TOPICS: usize = 3;
/// Topic of a message that is always retained. Each read subscribes to it last, so its message comes last.
const END: &str = "end";
/// Writers, readers with a session that ends with the connection, and readers with one that does not.
const WRITERS: usize = 2;
const READERS: usize = 2;
/// Time after which a reader may give up a read.
const PATIENCE: Micros = 5 * SECOND;

fn topic(number: usize) -> String {
    format!("common/{number}")
}

fn topic_number(text: &str) -> Option<usize> {
    text.strip_prefix("common/")?.parse().ok()
}

/// Writes to all topics, in the order in which they began.
#[derive(Default)]
struct History(Vec<Write>);

#[derive(Debug)]
struct Write {
    topic: usize,
    deletes: bool,
    began: Micros,
    /// Time of the acknowledgement. Later the write has no effect any more.
    ended: Option<Micros>,
    /// First time at which the write was known to have had its effect.
    seen: Option<Micros>,
}

impl History {
    fn begin(&mut self, now: Micros, topic: usize, deletes: bool) -> usize {
        self.0.push(Write { topic, deletes, began: now, ended: None, seen: None });
        self.0.len() - 1
    }

    fn end(&mut self, now: Micros, write: usize) {
        let write = &mut self.0[write];
        write.ended = Some(now);
        write.seen.get_or_insert(now);
    }

    /// Returns whether a write was overwritten for sure at `now`.
    fn is_overwritten(&self, write: &Write, now: Micros) -> bool {
        let Some(ended) = write.ended else { return false };
        let of_topic = self.0.iter().filter(|other| other.topic == write.topic);
        of_topic.filter(|other| other.seen.is_some_and(|seen| seen < now)).any(|other| other.began > ended)
    }

    /// Checks what a read has found: a write, or nothing.
    fn check(
        &mut self,
        (began, now): (Micros, Micros),
        topic: usize,
        found: Option<usize>,
    ) -> Result<(), String> {
        let found = match found {
            Some(number) => {
                let write = self.0.get(number).filter(|write| write.topic == topic && !write.deletes);
                let Some(write) = write else { return Err(format!("nobody wrote {number} to {topic}")) };
                if self.is_overwritten(write, began) {
                    return Err(format!("{number} was overwritten: {write:?}"));
                }
                Some(number)
            }
            None => {
                let of_topic = || self.0.iter().enumerate().filter(|(_, write)| write.topic == topic);
                let mut deletions = of_topic()
                    .filter(|(_, write)| write.deletes && !self.is_overwritten(write, began))
                    .map(|(number, _)| number);
                let (first, second) = (deletions.next(), deletions.next());
                let is_written = of_topic().any(|(_, write)| write.seen.is_some_and(|seen| seen < began));
                if is_written && first.is_none() {
                    return Err(format!("nothing was found on {topic}, and no deletion is the last write"));
                }
                first.filter(|_| is_written && second.is_none())
            }
        };
        if let Some(number) = found {
            self.0[number].seen.get_or_insert(now);
        }
        Ok(())
    }
}

struct RetainedClient {
    name: String,
    connection: Option<Connection>,
    role: Role,
    /// Node that the client always connects to.
    home: Option<usize>,
    next_id: u16,
}

struct Connection {
    link: Link,
    endpoint: Endpoint,
    is_open: bool,
}

enum Role {
    Writer { outstanding: Option<Outstanding> },
    Reader { is_durable: bool, read: Read, identifier: u32, found: Option<BTreeMap<usize, usize>> },
}

/// A PUBLISH without its last acknowledgement.
#[derive(Clone, Debug)]
struct Outstanding {
    /// `None` for the message that reads end with.
    write: Option<usize>,
    id: u16,
    qos: QoS,
    is_sent: bool,
    is_received: bool,
}

/// State of a reader.
enum Read {
    Idle,
    Reading {
        began: Micros,
        /// Topics that match the filter.
        topics: Vec<usize>,
        filter: String,
        /// Writes that were found, by topic.
        found: BTreeMap<usize, usize>,
        /// Topics on which a message came that was not retained, which the retained one must not follow.
        live: Vec<usize>,
    },
    Unsubscribing,
}

impl RetainedClients {
    pub fn new() -> Self {
        let client =
            |name: String, role| RetainedClient { name, connection: None, role, home: None, next_id: 0 };
        let reader = |number: usize| {
            let is_durable = number % 2 == 1;
            let role = Role::Reader { is_durable, read: Read::Idle, identifier: 0, found: None };
            client(format!("reader-{number}"), role)
        };
        let writers =
            (0..WRITERS).map(|number| client(format!("writer-{number}"), Role::Writer { outstanding: None }));
        let clients = writers.chain((0..2 * READERS).map(reader)).collect();
        Self { history: History::default(), clients, has_end: false }
    }

    /// Adds a client that reads everything from one node.
    pub fn add_last_reader(&mut self, home: usize) -> usize {
        let role = Role::Reader { is_durable: false, read: Read::Idle, identifier: 0, found: None };
        let name = format!("last-reader-{home}");
        self.clients.push(RetainedClient { name, connection: None, role, home: Some(home), next_id: 0 });
        self.clients.len() - 1
    }

    pub fn len(&self) -> usize {
        self.clients.len()
    }

    /// Node that a client connects to, if it is always the same.
    pub fn home(&self, client: usize) -> Option<usize> {
        self.clients[client].home
    }

    pub fn link(&self, client: usize) -> Option<Link> {
        self.clients[client].connection.as_ref().map(|connection| connection.link)
    }

    /// Client of a connection.
    pub fn of_link(&self, link: Link) -> Option<usize> {
        (0..self.clients.len()).find(|client| self.link(*client) == Some(link))
    }

    /// Messages that the last read of a client has found, by topic.
    pub fn found(&self, client: usize) -> Option<BTreeMap<String, String>> {
        let Role::Reader { found: Some(found), .. } = &self.clients[client].role else { return None };
        Some(found.iter().map(|(at, write)| (topic(*at), write.to_string())).collect())
    }

    /// Begins a connection. Returns the bytes to send.
    pub fn connect(&mut self, cx: &Context, claims: &mut Claims, client: usize, link: Link) -> Vec<u8> {
        let RetainedClient { name, connection, role, .. } = &mut self.clients[client];
        let is_durable = !matches!(role, Role::Reader { is_durable: false, .. });
        let connect =
            if is_durable { packets::durable(Version::V5, name) } else { packets::v5(name).receive_max(3) };
        claims.begin(cx.now(), link, name, connect.clean_start, connect.expiry.unwrap_or(0));
        let mut endpoint = Endpoint::new(Version::V5);
        let mut bytes = Vec::new();
        endpoint.write(&Sent::Connect(Box::new(connect)), &mut bytes);
        *connection = Some(Connection { link, endpoint, is_open: false });
        bytes
    }

    pub fn disconnected(&mut self, cx: &mut Context, client: usize) {
        let client = &mut self.clients[client];
        client.connection = None;
        if let Role::Reader { read, .. } = &mut client.role {
            cx.report.agreed_reads_broken += u64::from(matches!(read, Read::Reading { .. }));
            *read = Read::Idle;
        }
    }

    /// Lets a client do something. Returns the bytes to send, and whether the client wants to lose its connection.
    pub fn act(&mut self, cx: &mut Context, number: usize, is_calm: bool) -> (Vec<u8>, bool) {
        let Self { history, clients, has_end } = self;
        let client = &mut clients[number];
        let mut bytes = Vec::new();
        if !client.connection.as_ref().is_some_and(|connection| connection.is_open) {
            return (bytes, false);
        }
        match &mut client.role {
            Role::Writer { outstanding: Some(_) } => {}
            Role::Writer { outstanding } if !*has_end && number == 0 => {
                *outstanding = Some(Outstanding {
                    write: None,
                    id: 1,
                    qos: QoS::AtLeastOnce,
                    is_sent: false,
                    is_received: false,
                });
                client.send_outstanding(&[], &mut bytes);
            }
            Role::Writer { .. } if is_calm => {}
            Role::Writer { outstanding } => {
                let deletes = cx.random.percent(25);
                let write = history.begin(cx.now(), cx.random.below(TOPICS), deletes);
                let qos = *cx.random.pick(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]);
                *outstanding =
                    Some(Outstanding { write: Some(write), id: 1, qos, is_sent: false, is_received: false });
                cx.log(|| format!("writer {number} writes {write} {qos:?}: {:?}", history.0[write]));
                cx.report.agreed_retained += 1;
                cx.report.agreed_retained_deleted += u64::from(deletes);
                client.send_outstanding(&history.0, &mut bytes);
                if qos == QoS::AtMostOnce {
                    client.role = Role::Writer { outstanding: None };
                }
            }
            Role::Reader { read: Read::Idle, found, .. } => {
                let is_last = client.home.is_some();
                let may_read = if is_last { found.is_none() } else { !is_calm };
                if *has_end && may_read {
                    client.begin_read(cx, &mut bytes);
                }
            }
            Role::Reader { read: Read::Reading { began, .. }, .. } => {
                let gives_up = !is_calm && *began + PATIENCE < cx.now() && cx.random.percent(5);
                return (bytes, gives_up);
            }
            Role::Reader { read: Read::Unsubscribing, .. } => {}
        }
        (bytes, false)
    }

    /// Handles received bytes, and returns the answers.
    pub fn read(&mut self, cx: &mut Context, claims: &mut Claims, number: usize, bytes: &[u8]) -> Vec<u8> {
        let mut answers = Vec::new();
        if let Some(connection) = &mut self.clients[number].connection {
            connection.endpoint.read(bytes);
        }
        while let Some(packet) =
            self.clients[number].connection.as_mut().and_then(|connection| connection.endpoint.pop())
        {
            cx.log(|| format!("{} gets {}", self.clients[number].name, crate::scene::brief(&packet)));
            if let (Sent::ConnAck { session_present, reason: ReasonCode::Success }, Some(link)) =
                (&packet, self.link(number))
            {
                claims.connected(cx.now(), link, *session_present);
            }
            self.handle(cx, number, packet, &mut answers);
        }
        answers
    }

    fn handle(&mut self, cx: &mut Context, number: usize, packet: Sent, answers: &mut Vec<u8>) {
        let Self { history, clients, has_end } = self;
        let client = &mut clients[number];
        match packet {
            Sent::ConnAck { reason: ReasonCode::Success, .. } => {
                if let Some(connection) = &mut client.connection {
                    connection.is_open = true;
                }
                client.send_outstanding(&history.0, answers);
            }
            // The Claim came again after a later one.
            Sent::ConnAck { .. } | Sent::Disconnect { .. } => {}
            Sent::SubAck(_, reasons) => {
                assert!(reasons.iter().all(|reason| !reason.is_error()), "{}: {reasons:?}", client.name);
            }
            Sent::UnsubAck(..) => {
                if let Role::Reader { read, .. } = &mut client.role {
                    *read = Read::Idle;
                }
            }
            Sent::Publish(message) => {
                match message.qos {
                    QoS::AtMostOnce => {}
                    QoS::AtLeastOnce => client.write(&packets::puback(id_of(&message)), answers),
                    QoS::ExactlyOnce => client.write(&packets::pubrec(id_of(&message)), answers),
                }
                client.found(cx, history, &message, answers);
            }
            Sent::PubRel(id, _) => client.write(&packets::pubcomp(id), answers),
            Sent::PubAck(_, reason) | Sent::PubComp(_, reason) => {
                client.acknowledged(cx, history, has_end, reason);
            }
            Sent::PubRec(_, reason) if reason.is_error() => {
                client.acknowledged(cx, history, has_end, reason);
            }
            Sent::PubRec(id, _) => {
                if let Role::Writer { outstanding: Some(outstanding) } = &mut client.role {
                    outstanding.is_received = true;
                }
                client.write(&packets::pubrel(id), answers);
            }
            other => panic!("{}: {other:?}", client.name),
        }
    }

    /// Returns whether nothing is under way.
    pub fn is_settled(&self) -> bool {
        self.clients.iter().all(|client| match &client.role {
            Role::Writer { outstanding } => outstanding.is_none(),
            Role::Reader { read, .. } => matches!(read, Read::Idle),
        })
    }
}

fn id_of(message: &Message) -> u16 {
    message.packet_id.unwrap_or_default()
}

impl RetainedClient {
    fn write(&mut self, packet: &Sent, bytes: &mut Vec<u8>) {
        if let Some(connection) = &mut self.connection {
            connection.endpoint.write(packet, bytes);
        }
    }

    /// Sends the message of a writer, perhaps again.
    fn send_outstanding(&mut self, history: &[Write], bytes: &mut Vec<u8>) {
        let Role::Writer { outstanding: Some(outstanding) } = &mut self.role else { return };
        let was_sent = std::mem::replace(&mut outstanding.is_sent, true);
        let Outstanding { write, id, qos, is_received, .. } = outstanding.clone();
        let message = match write.map(|write| (write, &history[write])) {
            None => packets::message(END, "end"),
            Some((_, Write { topic: at, deletes: true, .. })) => packets::message(&topic(*at), ""),
            Some((write, Write { topic: at, .. })) => packets::message(&topic(*at), write),
        };
        let message = match qos {
            QoS::AtMostOnce => message,
            QoS::AtLeastOnce => message.qos1(id),
            QoS::ExactlyOnce => message.qos2(id),
        };
        let message = if was_sent { message.retain().dup() } else { message.retain() };
        let packet = match is_received {
            true => packets::pubrel(id),
            false => Sent::Publish(Box::new(message)),
        };
        self.write(&packet, bytes);
    }

    fn acknowledged(&mut self, cx: &Context, history: &mut History, has_end: &mut bool, reason: ReasonCode) {
        let Role::Writer { outstanding } = &mut self.role else { return };
        let Some(Outstanding { write, .. }) = outstanding.take() else { return };
        let is_refused = reason.is_error() && reason != ReasonCode::PacketIdentifierNotFound;
        assert!(!is_refused, "a retained message is refused, within all limits: {reason:?}");
        match write {
            Some(write) => history.end(cx.now(), write),
            None => *has_end = true,
        }
    }

    fn begin_read(&mut self, cx: &mut Context, bytes: &mut Vec<u8>) {
        let (is_last, next_id) = (self.home.is_some(), &mut self.next_id);
        *next_id = *next_id % 60_000 + 1;
        let Role::Reader { read, identifier, .. } = &mut self.role else { return };
        let is_wildcard = is_last || cx.random.percent(50);
        let one = cx.random.below(TOPICS);
        let (filter, topics) =
            if is_wildcard { ("common/+".into(), (0..TOPICS).collect()) } else { (topic(one), vec![one]) };
        let qos = *cx.random.pick(&[QoS::AtMostOnce, QoS::AtLeastOnce, QoS::ExactlyOnce]);
        *identifier += 1;
        let options = SubscriptionOptions { qos, ..SubscriptionOptions::default() };
        let subscribe = packets::subscribe(*next_id).with(&filter, options).with(END, options);
        let subscribe = subscribe.identifier(*identifier);
        let (found, live) = (BTreeMap::new(), Vec::new());
        *read = Read::Reading { began: cx.now(), topics, filter, found, live };
        cx.log(|| format!("{} subscribes {subscribe:?}", self.name));
        self.write(&Sent::Subscribe(Box::new(subscribe)), bytes);
    }

    /// Handles a message for a reader. The message of [`END`] ends the read.
    fn found(&mut self, cx: &mut Context, history: &mut History, message: &Message, answers: &mut Vec<u8>) {
        let Role::Reader { is_durable, read, identifier, found: last } = &mut self.role else { return };
        let Read::Reading { began, topics, filter, found, live } = read else { return };
        let at = topic_number(&message.topic);
        if let Some(at) = at.filter(|_| !message.retain) {
            // The retained message of the topic does not follow it, even if it is for an earlier subscription.
            return live.push(at);
        }
        if !message.subscription_ids.contains(identifier) {
            // An earlier read was broken off.
            return;
        }
        if let Some(at) = at {
            found.extend(message.payload.parse().ok().map(|write| (at, write)));
            return;
        }
        let times = (*began, cx.now());
        for at in topics.iter() {
            if live.contains(at) {
                cx.report.agreed_reads_live += 1;
                continue;
            }
            let write = found.get(at).copied();
            if let Err(why) = history.check(times, *at, write) {
                panic!("{}: read from {began} to {}: {why}", self.name, cx.now());
            }
            match write {
                Some(_) => cx.report.agreed_reads_found += 1,
                None => cx.report.agreed_reads_nothing += 1,
            }
        }
        cx.report.agreed_reads_durable += u64::from(*is_durable);
        *last = Some(std::mem::take(found));
        let filter = std::mem::take(filter);
        *read = Read::Unsubscribing;
        self.next_id = self.next_id % 60_000 + 1;
        let unsubscribe = packets::unsubscribe(self.next_id, &[filter.as_str(), END]);
        self.write(&unsubscribe, answers);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A write that ended before another began must not be found after that one.
    #[test]
    fn a_read_finds_no_write_that_was_overwritten_for_sure() {
        let mut history = History::default();
        let first = history.begin(1, 0, false);
        assert!(history.check((2, 3), 0, None).is_ok() && history.check((2, 3), 0, Some(first)).is_ok());
        assert!(history.check((4, 5), 0, None).is_err(), "an earlier read has found it");
        history.end(6, first);
        let second = history.begin(7, 0, false);
        assert!(history.check((8, 9), 0, Some(first)).is_ok(), "the second write may have had no effect yet");
        history.end(10, second);
        assert!(history.check((10, 11), 0, Some(first)).is_ok(), "the read began before the acknowledgement");
        assert!(history.check((11, 12), 0, Some(first)).is_err());
        assert!(history.check((11, 12), 1, Some(first)).is_err(), "it is of another topic");
        let deletion = history.begin(13, 0, true);
        assert!(history.check((14, 15), 0, Some(second)).is_ok() && history.check((14, 15), 0, None).is_ok());
        history.end(20, deletion);
        assert!(
            history.check((21, 22), 0, Some(second)).is_err() && history.check((21, 22), 0, None).is_ok()
        );
        let third = history.begin(23, 0, false);
        assert!(history.check((24, 25), 0, Some(third)).is_ok());
        assert!(history.check((26, 27), 0, None).is_err(), "an earlier read has found the third");
    }
}
