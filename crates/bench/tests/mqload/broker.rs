//! A small MQTT broker with faults on request, in threads of the test process.
//!
//! It implements the parts that mqload needs (CONNECT, SUBSCRIBE, PUBLISH at every QoS, persistent sessions) and
//! nothing else. It makes faults on purpose and in countable numbers, so that a test knows what mqload must have
//! seen.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::{self, BufReader, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

/// Fault of every 50th PUBLISH that the broker forwards.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Fault {
    None,
    Drop,
    Duplicate,
    /// The message is delivered as two messages, with an identifier each.
    Twice,
    /// The next message overtakes it.
    Swap,
    /// The last payload bit changes.
    Flip,
}

#[derive(Clone, Copy)]
pub struct Behaviour {
    pub fault: Fault,
    /// Maximum size in bytes of a write.
    pub piece: usize,
    /// Number of packets from a client after which its connection is closed.
    pub cut_after: Option<u32>,
    /// True when sessions end with their connection, whatever the client requested.
    pub forgetful: bool,
    /// Receive Maximum in CONNACK of 5.0; a client that exceeds it is disconnected.
    pub receive_maximum: Option<u16>,
    /// True when an unexpected message is sent to every subscriber after its SUBACK.
    pub foreign: bool,
}

impl Default for Behaviour {
    fn default() -> Behaviour {
        Behaviour {
            fault: Fault::None,
            piece: usize::MAX,
            cut_after: None,
            forgetful: false,
            receive_maximum: None,
            foreign: false,
        }
    }
}

pub struct Broker {
    pub address: String,
}

#[derive(Default)]
struct Session {
    v5: bool,
    filters: Vec<(String, u8)>,
    /// Stream for its packets while it is connected; the number distinguishes connections.
    writer: Option<(u64, TcpStream)>,
    packet_id: u16,
    /// Sent and unfinished packets: the PUBLISH, or `None` once it is a PUBREL.
    unfinished: BTreeMap<u16, Option<Vec<u8>>>,
    received: HashSet<u16>,
}

#[derive(Default)]
struct State {
    sessions: HashMap<String, Session>,
    forwarded: u64,
    held: Option<(String, Vec<u8>)>,
    connections: u64,
    /// Next member of each shared subscription.
    turns: HashMap<String, usize>,
}

impl State {
    /// Returns whether the session of `id` belongs to `connection` now.
    fn serves(&self, id: &str, connection: u64) -> bool {
        self.sessions.get(id).and_then(|s| s.writer.as_ref()).is_some_and(|w| w.0 == connection)
    }
}

impl Broker {
    /// Serves until the process ends.
    pub fn start(behaviour: Behaviour) -> Broker {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let state = Arc::new(Mutex::new(State::default()));
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, state) = (stream.unwrap(), state.clone());
                std::thread::spawn(move || {
                    // An error here is a client that has disconnected.
                    let _ = serve(&stream, &state, behaviour);
                    let _ = stream.shutdown(Shutdown::Both);
                });
            }
        });
        Broker { address }
    }
}

/// Answers the first packet of each connection with fixed bytes, then holds the connection open.
pub fn canned(answer: &'static [u8]) -> Broker {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            std::thread::spawn(move || {
                let _ = packet(&mut BufReader::new(&stream)).and_then(|_| stream.write_all(answer));
                let _ = io::copy(&mut stream, &mut io::sink());
            });
        }
    });
    Broker { address }
}

/// First byte and body of the next packet.
pub fn packet(from: &mut impl Read) -> io::Result<(u8, Vec<u8>)> {
    let mut b = [0u8];
    from.read_exact(&mut b)?;
    let first = b[0];
    let (mut len, mut shift) = (0usize, 0);
    loop {
        from.read_exact(&mut b)?;
        len |= usize::from(b[0] & 127) << shift;
        shift += 7;
        if b[0] < 128 {
            break;
        }
    }
    let mut body = vec![0; len];
    from.read_exact(&mut body)?;
    Ok((first, body))
}

fn encode(first: u8, body: &[u8]) -> Vec<u8> {
    let mut out = vec![first];
    let mut len = body.len();
    loop {
        let more = if len > 127 { 128 } else { 0 };
        out.push((len & 127) as u8 | more);
        len >>= 7;
        if len == 0 {
            break;
        }
    }
    out.extend_from_slice(body);
    out
}

/// Reader of the fields of a packet's body.
struct Fields<'a>(&'a [u8]);

impl<'a> Fields<'a> {
    fn take(&mut self, n: usize) -> &'a [u8] {
        let (a, b) = self.0.split_at(n);
        self.0 = b;
        a
    }
    fn u8(&mut self) -> u8 {
        self.take(1)[0]
    }
    fn u16(&mut self) -> u16 {
        u16::from_be_bytes(self.take(2).try_into().unwrap())
    }
    fn text(&mut self) -> &'a [u8] {
        let n = self.u16();
        self.take(n.into())
    }
    /// Skips properties: mqload's lists are shorter than 128 bytes.
    fn skip_properties(&mut self) {
        let n = self.u8();
        self.take(n.into());
    }
}

fn serve(stream: &TcpStream, state: &Mutex<State>, behaviour: Behaviour) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut input = BufReader::new(stream);
    let (_, connect) = packet(&mut input)?;
    let mut f = Fields(&connect);
    f.text();
    let v5 = f.u8() == 5;
    let clean = f.u8() & 2 != 0;
    f.u16();
    if v5 {
        f.skip_properties();
    }
    let id = String::from_utf8(f.text().to_vec()).unwrap();
    let me = accept(stream, &mut state.lock().unwrap(), &id, v5, clean, behaviour)?;
    let mut packets = 0;
    let outcome = loop {
        let (first, body) = match packet(&mut input) {
            Ok(p) => p,
            Err(e) => break Err(e),
        };
        packets += 1;
        if behaviour.cut_after.is_some_and(|n| packets > n) {
            break Ok(());
        }
        let mut s = state.lock().unwrap();
        if !s.serves(&id, me) {
            break Ok(());
        }
        if handle(&mut s, &id, first, &body, behaviour).is_none() {
            break Ok(());
        }
    };
    let mut s = state.lock().unwrap();
    if s.serves(&id, me) {
        if behaviour.forgetful {
            s.sessions.remove(&id);
        } else {
            s.sessions.get_mut(&id).unwrap().writer = None;
        }
    }
    outcome
}

/// Finds or makes the session, answers CONNECT, and sends unfinished packets again. Returns the connection's number.
fn accept(
    stream: &TcpStream,
    s: &mut MutexGuard<State>,
    id: &str,
    v5: bool,
    clean: bool,
    behaviour: Behaviour,
) -> io::Result<u64> {
    s.connections += 1;
    let me = s.connections;
    if clean {
        s.sessions.remove(id);
    }
    let present = s.sessions.contains_key(id);
    let session = s.sessions.entry(id.to_string()).or_default();
    session.v5 = v5;
    session.writer = Some((me, stream.try_clone()?));
    let mut connack = vec![present as u8, 0];
    if v5 {
        match behaviour.receive_maximum {
            Some(n) => connack.extend_from_slice(&[3, 0x21, (n >> 8) as u8, n as u8]),
            None => connack.push(0),
        }
    }
    send(session, &encode(0x20, &connack), behaviour.piece);
    for (packet_id, publish) in session.unfinished.clone() {
        match publish {
            Some(mut p) => {
                p[0] |= 8;
                send(session, &p, behaviour.piece)
            }
            None => send(session, &encode(0x62, &packet_id.to_be_bytes()), behaviour.piece),
        }
    }
    Ok(me)
}

/// Sends bytes. A disconnected client receives nothing; its session keeps its unfinished packets.
fn send(session: &Session, bytes: &[u8], piece: usize) {
    if let Some((_, stream)) = &session.writer {
        let mut stream: &TcpStream = stream;
        for part in bytes.chunks(piece) {
            let _ = stream.write_all(part);
        }
    }
}

/// Handles a packet. `None` closes the connection.
fn handle(s: &mut State, id: &str, first: u8, body: &[u8], behaviour: Behaviour) -> Option<()> {
    let piece = behaviour.piece;
    let me = s.sessions.get_mut(id).unwrap();
    let mut f = Fields(body);
    match first >> 4 {
        3 => {
            let qos = (first >> 1) & 3;
            let topic = String::from_utf8(f.text().to_vec()).unwrap();
            let packet_id = if qos > 0 { f.u16() } else { 0 };
            if me.v5 {
                f.skip_properties();
            }
            let new = qos < 2 || me.received.insert(packet_id);
            if behaviour.receive_maximum.is_some_and(|max| me.received.len() > max.into()) {
                return None;
            }
            if new {
                forward(s, &topic, qos, f.0, behaviour);
            }
            if qos > 0 {
                let kind = if qos == 1 { 0x40 } else { 0x50 };
                send(&s.sessions[id], &encode(kind, &packet_id.to_be_bytes()), piece);
            }
        }
        4 | 7 => {
            me.unfinished.remove(&f.u16());
        }
        5 => {
            let packet_id = f.u16();
            me.unfinished.insert(packet_id, None);
            send(me, &encode(0x62, &packet_id.to_be_bytes()), piece);
        }
        6 => {
            let packet_id = f.u16();
            me.received.remove(&packet_id);
            send(me, &encode(0x70, &packet_id.to_be_bytes()), piece);
        }
        8 => {
            let packet_id = f.u16();
            let mut suback = packet_id.to_be_bytes().to_vec();
            if me.v5 {
                f.skip_properties();
                suback.push(0);
            }
            while !f.0.is_empty() {
                let filter = String::from_utf8(f.text().to_vec()).unwrap();
                let qos = f.u8() & 3;
                me.filters.push((filter, qos));
                suback.push(qos);
            }
            send(me, &encode(0x90, &suback), piece);
            if behaviour.foreign {
                let body: &[u8] = if me.v5 { b"\0\x01x\0hello" } else { b"\0\x01xhello" };
                send(me, &encode(0x30, body), piece);
            }
        }
        12 => send(me, &[0xd0, 0], piece),
        14 => return None,
        other => panic!("mqload sent a packet of type {other}"),
    }
    Some(())
}

/// Returns whether `filter` (`+` only, without the share prefix) selects `topic`.
fn selects(filter: &str, topic: &str) -> bool {
    let (mut f, mut t) = (filter.split('/'), topic.split('/'));
    loop {
        match (f.next(), t.next()) {
            (None, None) => return true,
            (Some(a), Some(b)) if a == "+" || a == b => {}
            _ => return false,
        }
    }
}

fn forward(s: &mut State, topic: &str, qos: u8, payload: &[u8], behaviour: Behaviour) {
    let mut to: Vec<(String, u8)> = vec![];
    let mut groups: BTreeMap<String, Vec<(String, u8)>> = BTreeMap::new();
    for (id, session) in &s.sessions {
        for (filter, granted) in &session.filters {
            if let Some(rest) = filter.strip_prefix("$share/") {
                if selects(rest.split_once('/').unwrap().1, topic) {
                    groups.entry(filter.clone()).or_default().push((id.clone(), *granted));
                }
            } else if selects(filter, topic) {
                to.push((id.clone(), *granted));
            }
        }
    }
    for (filter, mut members) in groups {
        members.sort();
        let turn = s.turns.entry(filter).or_default();
        *turn += 1;
        to.push(members[*turn % members.len()].clone());
    }
    for (id, granted) in to {
        deliver(s, &id, topic, qos.min(granted), payload, behaviour);
    }
}

fn deliver(s: &mut State, id: &str, topic: &str, qos: u8, payload: &[u8], behaviour: Behaviour) {
    s.forwarded += 1;
    let hit = s.forwarded.is_multiple_of(50);
    if hit && behaviour.fault == Fault::Drop {
        return;
    }
    deliver_once(s, id, topic, qos, payload, behaviour, hit);
    if hit && behaviour.fault == Fault::Twice {
        deliver_once(s, id, topic, qos, payload, behaviour, hit);
    }
}

fn deliver_once(
    s: &mut State,
    id: &str,
    topic: &str,
    qos: u8,
    payload: &[u8],
    behaviour: Behaviour,
    hit: bool,
) {
    let session = s.sessions.get_mut(id).unwrap();
    let mut body = (topic.len() as u16).to_be_bytes().to_vec();
    body.extend_from_slice(topic.as_bytes());
    if qos > 0 {
        session.packet_id = session.packet_id % 60_000 + 1;
        body.extend_from_slice(&session.packet_id.to_be_bytes());
    }
    if session.v5 {
        body.push(0);
    }
    body.extend_from_slice(payload);
    if hit && behaviour.fault == Fault::Flip {
        *body.last_mut().unwrap() ^= 1;
    }
    let publish = encode(0x30 | qos << 1, &body);
    if qos > 0 {
        session.unfinished.insert(session.packet_id, Some(publish.clone()));
    }
    if hit && behaviour.fault == Fault::Swap {
        s.held = Some((id.to_string(), publish));
        return;
    }
    send(session, &publish, behaviour.piece);
    if hit && behaviour.fault == Fault::Duplicate {
        send(session, &publish, behaviour.piece);
    }
    if let Some((id, held)) = s.held.take() {
        send(&s.sessions[&id], &held, behaviour.piece);
    }
}
