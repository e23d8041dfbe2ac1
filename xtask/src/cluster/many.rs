//! Thousands of clients of MQTT 5.0 in one thread. Each subscribes to a Topic Filter of its own, and connects again at
//! once when its connection ends.

use anyhow::{Context, Result, ensure};
use socket2::{Domain, Socket, Type};
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use super::client::{Packet, encode, put_text, split};

/// Topic Name of all Wills. The payload is the Client Identifier.
pub const WILLS: &str = "many/wills";

/// Pause after a refused connection.
const PAUSE: Duration = Duration::from_millis(100);
/// Connect flags.
const CLEAN_START: u8 = 0x02;
const WILL_AT_QOS_1: u8 = 0x0c;
/// Packet Identifier of SUBSCRIBE.
const SUBSCRIBE_ID: [u8; 2] = [0, 1];
/// DISCONNECT that ends the session and drops the Will: code 0, Session Expiry Interval 0.
const END: [u8; 7] = [0, 5, 0x11, 0, 0, 0, 0];

/// Properties of a client.
#[derive(Clone, Debug)]
pub struct Profile {
    pub id: String,
    /// Node of its first connection.
    pub home: SocketAddr,
    /// Session Expiry Interval in seconds.
    pub expiry_s: u32,
    /// Will Delay Interval in seconds, if it has a Will.
    pub will_delay_s: Option<u32>,
    /// True if it connects again when its connection ends.
    pub returns: bool,
}

impl Profile {
    /// Topic Filter of its subscription.
    pub fn topic(&self) -> String {
        format!("many/clients/{}", self.id)
    }
}

pub struct ManyClients {
    clients: Vec<Client>,
    /// Nodes of later connections.
    nodes: Vec<SocketAddr>,
    polled: Vec<libc::pollfd>,
    /// Clients of `polled`, in its order.
    polled_clients: Vec<usize>,
}

struct Client {
    profile: Profile,
    state: State,
    stream: Option<TcpStream>,
    unread: Vec<u8>,
    /// True after its first connection.
    was_ready: bool,
    /// Number of connects after its first connection.
    attempts: usize,
    /// Time of the next connect.
    due: Option<Instant>,
    /// End of its last connection, or the start of its first connect.
    since: Instant,
    /// Time from `since` to the last CONNACK, and until it was subscribed.
    connack: Duration,
    ready: Duration,
    /// Session Present of the last CONNACK.
    session_present: bool,
    received: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Away,
    Connecting,
    /// CONNECT was sent.
    Asking,
    /// SUBSCRIBE was sent.
    Subscribing,
    Ready,
}

/// Figures of clients that have connected again.
#[derive(Debug, Default)]
pub struct Returns {
    /// Times from the end of the last connection to CONNACK, in order.
    pub connacks: Vec<Duration>,
    /// Longest time from the end of the last connection until a client was subscribed.
    pub longest: Duration,
    /// Number of connects that were refused or ended before CONNACK.
    pub repeated: usize,
}

impl ManyClients {
    /// Clients that connect to their homes, as [`Self::turn`] allows.
    pub fn new(profiles: Vec<Profile>, nodes: Vec<SocketAddr>) -> Self {
        let now = Instant::now();
        let clients = profiles.into_iter().map(|profile| Client {
            profile,
            state: State::Away,
            stream: None,
            unread: Vec::new(),
            was_ready: false,
            attempts: 0,
            due: None,
            since: now,
            connack: Duration::ZERO,
            ready: Duration::ZERO,
            session_present: false,
            received: 0,
        });
        Self { clients: clients.collect(), nodes, polled: Vec::new(), polled_clients: Vec::new() }
    }

    pub fn profiles(&self) -> impl Iterator<Item = &Profile> {
        self.clients.iter().map(|client| &client.profile)
    }

    /// Connects all clients to their homes, at most `at_once` at the same time.
    ///
    /// # Errors
    /// Not all are connected and subscribed within `longest`, or a packet is wrong.
    pub fn connect(&mut self, at_once: usize, longest: Duration) -> Result<()> {
        let begun = Instant::now();
        let mut started = 0;
        while self.ready() < self.clients.len() {
            ensure!(
                begun.elapsed() < longest,
                "only {} of {} clients are connected after {} s",
                self.ready(),
                self.clients.len(),
                longest.as_secs()
            );
            while started < self.clients.len() && started - self.ready() < at_once {
                let client = &mut self.clients[started];
                (client.since, client.due) = (Instant::now(), Some(Instant::now()));
                started += 1;
            }
            self.turn(PAUSE)?;
        }
        Ok(())
    }

    /// Number of clients that are connected and subscribed.
    pub fn ready(&self) -> usize {
        self.clients.iter().filter(|client| client.state == State::Ready).count()
    }

    /// Number of clients of a node that have connected again and are subscribed.
    pub fn back(&self, home: SocketAddr) -> usize {
        self.moved(home).filter(|client| client.state == State::Ready).count()
    }

    /// Clients of a node that have tried to connect again.
    fn moved(&self, home: SocketAddr) -> impl Iterator<Item = &Client> {
        self.clients.iter().filter(move |client| client.profile.home == home && client.attempts > 0)
    }

    /// Number of clients that have got a number of messages.
    pub fn with_messages(&self, is_so: impl Fn(u32) -> bool) -> usize {
        self.clients.iter().filter(|client| is_so(client.received)).count()
    }

    /// Figures of the clients of a node that have connected again.
    pub fn returns(&self, home: SocketAddr) -> Returns {
        let mut returns = Returns::default();
        for client in self.moved(home) {
            returns.connacks.push(client.connack);
            returns.longest = returns.longest.max(client.ready);
            returns.repeated += client.attempts - 1;
        }
        returns.connacks.sort_unstable();
        returns
    }

    /// Number of clients of a node that are back without the session that they should have, or with one that they
    /// should not have.
    pub fn wrong_sessions(&self, home: SocketAddr) -> usize {
        self.moved(home).filter(|client| client.session_present != (client.profile.expiry_s > 0)).count()
    }

    /// Number of clients of other nodes whose connection has ended.
    pub fn disturbed(&self, home: SocketAddr) -> usize {
        let others = self.clients.iter().filter(|client| client.profile.home != home);
        others.filter(|client| client.attempts > 0 || client.state != State::Ready).count()
    }

    /// Disconnects all clients and ends their sessions.
    pub fn end(mut self) {
        for client in &mut self.clients {
            if let Some(stream) = &mut client.stream {
                // The node may be gone, and then the client is disconnected.
                let _ = stream.write_all(&encode(0xe0, &END));
            }
        }
    }

    /// Waits for packets, at most this long, and handles them. Clients without a connection connect again when it is
    /// due.
    ///
    /// # Errors
    /// A packet is wrong, or the system has no room for connections.
    pub fn turn(&mut self, longest: Duration) -> Result<()> {
        let now = Instant::now();
        for client in &mut self.clients {
            if client.due.is_some_and(|due| due <= now) {
                client.open(&self.nodes)?;
            }
        }
        self.polled.clear();
        self.polled_clients.clear();
        for (at, client) in self.clients.iter().enumerate() {
            if let Some(stream) = &client.stream {
                let events = if client.state == State::Connecting { libc::POLLOUT } else { libc::POLLIN };
                self.polled.push(libc::pollfd { fd: stream.as_raw_fd(), events, revents: 0 });
                self.polled_clients.push(at);
            }
        }
        let due = self.clients.iter().filter_map(|client| client.due).min();
        let wait = due.map_or(longest, |due| longest.min(due.saturating_duration_since(now)));
        // SAFETY: the pointer and the number are those of the vector.
        unsafe {
            libc::poll(
                self.polled.as_mut_ptr(),
                self.polled.len() as libc::nfds_t,
                wait.as_millis() as i32 + 1,
            )
        };
        for (polled, at) in self.polled.iter().zip(&self.polled_clients) {
            if polled.revents != 0 {
                self.clients[*at].handle()?;
            }
        }
        Ok(())
    }
}

impl Client {
    /// Begins to connect: first to the home, later to the others in turn.
    fn open(&mut self, nodes: &[SocketAddr]) -> Result<()> {
        self.due = None;
        let address = if self.was_ready { self.next_node(nodes) } else { self.profile.home };
        let socket = Socket::new(Domain::IPV4, Type::STREAM, None).context("a socket: see ulimit -n")?;
        socket.set_nonblocking(true)?;
        socket.set_tcp_nodelay(true)?;
        match socket.connect(&address.into()) {
            Err(error) if error.raw_os_error() != Some(libc::EINPROGRESS) => self.retry(),
            _ => {
                self.state = State::Connecting;
                self.stream = Some(socket.into());
            }
        }
        Ok(())
    }

    fn next_node(&mut self, nodes: &[SocketAddr]) -> SocketAddr {
        self.attempts += 1;
        let number: usize = self.profile.id.bytes().map(usize::from).sum();
        nodes[(number + self.attempts) % nodes.len()]
    }

    /// Connects again after a pause.
    fn retry(&mut self) {
        self.forget_connection();
        self.due = Some(Instant::now() + PAUSE);
    }

    /// The connection has ended.
    fn lose(&mut self) {
        if self.state != State::Ready {
            self.retry();
            return;
        }
        self.forget_connection();
        self.since = Instant::now();
        self.due = self.profile.returns.then_some(self.since);
    }

    fn forget_connection(&mut self) {
        self.stream = None;
        self.unread.clear();
        self.state = State::Away;
    }

    /// Handles what the socket has.
    fn handle(&mut self) -> Result<()> {
        let Some(stream) = &mut self.stream else { return Ok(()) };
        if self.state == State::Connecting {
            if stream.take_error()?.is_some() {
                self.retry();
                return Ok(());
            }
            self.state = State::Asking;
            self.send(0x10, &connect(&self.profile));
            return Ok(());
        }
        let mut chunk = [0; 4096];
        match stream.read(&mut chunk) {
            Ok(0) => self.lose(),
            Ok(count) => {
                self.unread.extend(&chunk[..count]);
                while let Some((packet, length)) = split(&self.unread) {
                    self.unread.drain(..length);
                    self.take(&packet).with_context(|| self.profile.id.clone())?;
                }
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted) => {}
            Err(_) => self.lose(),
        }
        Ok(())
    }

    fn take(&mut self, Packet { first, body }: &Packet) -> Result<()> {
        match (first & 0xf0, self.state) {
            (0x20, State::Asking) if body.get(1) == Some(&0) => {
                self.connack = self.since.elapsed();
                self.session_present = body[0] & 1 == 1;
                if self.session_present {
                    // The subscription is part of the session.
                    self.be_ready();
                } else {
                    self.state = State::Subscribing;
                    let mut subscribe = SUBSCRIBE_ID.to_vec();
                    subscribe.push(0);
                    put_text(&self.profile.topic(), &mut subscribe);
                    subscribe.push(1);
                    self.send(0x82, &subscribe);
                }
            }
            // A refusal, or the announced end of the connection.
            (0x20, State::Asking) | (0xe0, _) => self.lose(),
            (0x90, State::Subscribing) => {
                ensure!(body.last() == Some(&1), "SUBACK is {body:02x?}");
                self.be_ready();
            }
            (0x30, State::Ready) => {
                let topic = self.profile.topic();
                let is_own = body.get(2..2 + topic.len()) == Some(topic.as_bytes());
                ensure!(is_own && first & 6 == 2, "the message {first:02x} {body:02x?}");
                let id = body.get(2 + topic.len()..4 + topic.len()).context("no Packet Identifier")?.to_vec();
                self.received += 1;
                self.send(0x40, &id);
            }
            _ => anyhow::bail!("packet {first:#04x} in the state {:?}", self.state),
        }
        Ok(())
    }

    fn be_ready(&mut self) {
        self.state = State::Ready;
        self.was_ready = true;
        self.ready = self.since.elapsed();
    }

    /// Sends a small packet. A connection that has no room for it has ended, or is about to.
    fn send(&mut self, first: u8, body: &[u8]) {
        let packet = encode(first, body);
        let is_sent = self.stream.as_mut().is_some_and(|stream| stream.write_all(&packet).is_ok());
        if !is_sent {
            self.lose();
        }
    }
}

/// Body of CONNECT.
fn connect(profile: &Profile) -> Vec<u8> {
    let mut body = b"\0\x04MQTT\x05".to_vec();
    let clean_start = if profile.expiry_s == 0 { CLEAN_START } else { 0 };
    body.push(clean_start | if profile.will_delay_s.is_some() { WILL_AT_QOS_1 } else { 0 });
    // No Keep Alive, and the Session Expiry Interval.
    body.extend(b"\0\0\x05\x11");
    body.extend(profile.expiry_s.to_be_bytes());
    put_text(&profile.id, &mut body);
    if let Some(delay) = profile.will_delay_s {
        body.extend(b"\x05\x18");
        body.extend(delay.to_be_bytes());
        put_text(WILLS, &mut body);
        put_text(&profile.id, &mut body);
    }
    body
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    fn profile(home: SocketAddr, expiry_s: u32) -> Profile {
        Profile { id: "m1".to_owned(), home, expiry_s, will_delay_s: None, returns: true }
    }

    /// Accepts a connection, reads CONNECT and answers with these bytes.
    fn accept(listener: &TcpListener, clients: &mut ManyClients, answer: &[u8]) -> TcpStream {
        let mut stream = until(clients, || {
            listener.set_nonblocking(true).unwrap();
            listener.accept().ok().map(|(stream, _)| stream)
        });
        until(clients, || {
            stream.set_nonblocking(true).unwrap();
            stream.read(&mut [0; 100]).ok()
        });
        stream.write_all(answer).unwrap();
        stream
    }

    fn until<T>(clients: &mut ManyClients, mut found: impl FnMut() -> Option<T>) -> T {
        loop {
            clients.turn(Duration::from_millis(1)).unwrap();
            if let Some(found) = found() {
                return found;
            }
        }
    }

    #[test]
    fn a_client_whose_connection_ends_connects_to_another_node_and_finds_its_session() {
        let [home, other] = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
        let address = home.local_addr().unwrap();
        let away = other.local_addr().unwrap();
        let mut clients = ManyClients::new(vec![profile(address, 60)], vec![away]);
        clients.clients[0].due = Some(Instant::now());
        let mut stream = accept(&home, &mut clients, b"\x20\x03\x00\x00\x00");
        stream.write_all(b"\x90\x04\x00\x01\x00\x01").unwrap();
        while clients.ready() == 0 {
            clients.turn(Duration::from_millis(1)).unwrap();
        }
        assert_eq!((clients.back(address), clients.disturbed(away)), (0, 0));

        drop(stream);
        // The first answer is "Server busy", the second one has the session.
        drop(accept(&other, &mut clients, b"\x20\x03\x00\x89\x00"));
        let mut stream = accept(&other, &mut clients, b"\x20\x03\x01\x00\x00");
        let topic = clients.profiles().next().unwrap().topic();
        let mut body = Vec::new();
        put_text(&topic, &mut body);
        body.extend(b"\x00\x07\x00x");
        stream.write_all(&encode(0x32, &body)).unwrap();
        while clients.with_messages(|count| count == 1) == 0 {
            clients.turn(Duration::from_millis(1)).unwrap();
        }
        let returns = clients.returns(address);
        assert_eq!((returns.connacks.len(), returns.repeated, clients.wrong_sessions(address)), (1, 1, 0));
        assert_eq!((clients.back(address), clients.disturbed(away)), (1, 1));
        clients.clients[0].session_present = false;
        assert_eq!(clients.wrong_sessions(address), 1);
    }

    #[test]
    fn a_will_is_in_connect_after_the_client_identifier() {
        let home = SocketAddr::from(([127, 0, 0, 1], 1));
        let with_will = Profile { will_delay_s: Some(7), ..profile(home, 0) };
        let expected =
            b"\0\x04MQTT\x05\x0e\0\0\x05\x11\0\0\0\0\0\x02m1\x05\x18\0\0\0\x07\0\x0amany/wills\0\x02m1";
        assert_eq!(connect(&with_will), expected);
        assert_eq!(connect(&profile(home, 60))[7], 0, "a durable session is resumed");
    }
}
