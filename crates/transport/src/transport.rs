//! Loop of the transport thread: it passes commands, bytes and time to the handler, and the handler's output to the
//! sockets.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use bytes::Bytes;
use link::{ConnectionId, Demand, Output, PeerError, Time};
use mio::event::Event;
use mio::{Events, Interest, Poll, Token};

use crate::Handler;
use crate::address_rotation::{AddressRotation, Attempt, DialPurpose};
use crate::config::TransportConfig;
use crate::figures::{Counts, add};
use crate::listener::Listener;
use crate::mailbox::{Inbox, MailboxItem};
use crate::net;
use crate::resolver::Resolver;
use crate::secure::{Tls, explain};
use crate::socket::{CloseReason, Socket, Stage};

pub const WAKER: Token = Token(usize::MAX);
/// First token of listeners; tokens of connections are smaller.
const LISTENERS: usize = usize::MAX / 2;
const EVENTS: usize = 256;
const SCRATCH: usize = 64 * 1024;
/// Maximum commands that one turn handles; below, connections of one listener, and reads and writes of one socket.
const COMMANDS_MAX: usize = 1024;
const ACCEPTED_MAX: usize = 64;
const READS_MAX: usize = 4;
const WRITES_MAX: usize = 4;
/// See [`Transport::pause_min`].
const PAUSE_MIN: Duration = Duration::from_secs(1);
/// Pause after the system had no resources for a connection.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

pub struct Transport<C: Handler> {
    handler: C,
    config: TransportConfig,
    poll: Poll,
    inbox: Inbox<C::Command>,
    listeners: Vec<Listener>,
    resolver: Resolver,
    counts: Arc<Counts>,
    /// Sockets by the number of their connection.
    sockets: BTreeMap<u64, Socket>,
    /// Connections to make whose name is not resolved yet.
    resolving: BTreeMap<u64, (ConnectionId, DialPurpose)>,
    address_rotation: AddressRotation,
    ready: Vec<u64>,
    writing: Vec<u64>,
    scratch: Vec<u8>,
    out: Output,
    now: Time,
    /// Minimum time from a poll until the end of the reads after it that counts as a stop of the process. Less is a
    /// long turn.
    pause_min: Duration,
    /// True when the mesh had an event after the handler's turn.
    needs_turn: bool,
    /// True when more commands wait than one turn takes.
    has_more_commands: bool,
    is_stopping: bool,
}

impl<C: Handler> Transport<C> {
    pub fn new(
        handler: C,
        config: TransportConfig,
        poll: Poll,
        inbox: Inbox<C::Command>,
        mut listeners: Vec<Listener>,
        resolver: Resolver,
        counts: Arc<Counts>,
    ) -> io::Result<Self> {
        for (at, listener) in listeners.iter_mut().enumerate() {
            poll.registry().register(&mut listener.socket, Token(LISTENERS + at), Interest::READABLE)?;
        }
        Ok(Self {
            handler,
            config,
            poll,
            inbox,
            listeners,
            resolver,
            counts,
            sockets: BTreeMap::new(),
            resolving: BTreeMap::new(),
            address_rotation: AddressRotation::default(),
            ready: Vec::new(),
            writing: Vec::new(),
            scratch: vec![0; SCRATCH],
            out: Output::default(),
            now: Time(0),
            pause_min: PAUSE_MIN,
            needs_turn: false,
            has_more_commands: false,
            is_stopping: false,
        })
    }

    /// Runs until it is stopped.
    pub fn run(mut self) {
        let mut events = Events::with_capacity(EVENTS);
        while !self.is_stopping {
            self.wait(&mut events);
            self.read_all(&mut events);
            self.finish_turn();
        }
        for (_, socket) in std::mem::take(&mut self.sockets) {
            socket.close(Bytes::new());
        }
    }

    /// Reads from the sockets that the last poll has reported. If the process was stopped meanwhile, it polls and reads
    /// once more: no peer is judged by its silence before its bytes were read.
    fn read_all(&mut self, events: &mut Events) {
        let polled = self.now;
        self.read_polled(events);
        if self.now.since(polled) >= self.pause_min.as_micros() as u64 {
            if let Err(error) = poll_through(&mut self.poll, events, Some(Duration::ZERO)) {
                complain_about_poll(&error);
            }
            self.read_polled(events);
        }
    }

    fn read_polled(&mut self, events: &mut Events) {
        for event in &*events {
            match event.token() {
                WAKER => add(&self.counts.wakeups, 1),
                Token(at) if at >= LISTENERS => {
                    if let Some(listener) = self.listeners.get_mut(at - LISTENERS) {
                        listener.is_pending = true;
                    }
                }
                Token(number) => self.event(number as u64, event),
            }
        }
        events.clear();
        self.accept_all();
        self.read_ready();
        self.now = self.time();
    }

    /// Sleeps until an event or a time-out, and takes commands.
    fn wait(&mut self, events: &mut Events) {
        self.now = self.time();
        let accepts = self.listeners.iter().any(|it| it.is_pending && it.not_before <= self.now);
        let due = self.due();
        let is_busy = self.needs_turn
            || self.has_more_commands
            || accepts
            || !self.ready.is_empty()
            || !self.writing.is_empty()
            || due <= self.now;
        let timeout = match due {
            _ if is_busy => Some(Duration::ZERO),
            Time::NEVER => None,
            due => Some(Duration::from_micros(due.since(self.now))),
        };
        (self.needs_turn, self.has_more_commands) = (false, false);
        let poll = &mut self.poll;
        let slept = if is_busy {
            poll_through(poll, events, timeout).map(|()| self.inbox.next())
        } else {
            self.inbox
                .sleep(|waits| poll_through(poll, events, if waits { timeout } else { Some(Duration::ZERO) }))
        };
        let mut item = slept.unwrap_or_else(|error| {
            complain_about_poll(&error);
            None
        });
        self.now = self.time();
        let mut taken = 0;
        while let Some(some) = item.or_else(|| self.inbox.next()) {
            self.take(some);
            item = None;
            taken += 1;
            if taken >= COMMANDS_MAX {
                self.has_more_commands = true;
                break;
            }
        }
    }

    /// Returns the time of the next work that needs no event.
    fn due(&mut self) -> Time {
        let paused = self.listeners.iter().filter(|it| it.is_pending).map(|it| it.not_before);
        let paused = paused.min().unwrap_or(Time::NEVER);
        paused.min(self.handler.timeout()).min(self.handler.mesh().timeout())
    }

    fn time(&self) -> Time {
        Time(u64::try_from(self.config.clock.elapsed().as_micros()).unwrap_or(u64::MAX))
    }

    fn take(&mut self, item: MailboxItem<C::Command>) {
        match item {
            MailboxItem::Command(command) => {
                add(&self.counts.commands, 1);
                self.handler.handle_command(self.now, command);
            }
            MailboxItem::Resolved { address, found } => self.resolved(&address, found),
            MailboxItem::Renewed(tls) => {
                if self.config.tls.is_some() {
                    self.config.tls = Some(tls);
                }
            }
            MailboxItem::Stop => self.is_stopping = true,
        }
    }

    fn event(&mut self, number: u64, event: &Event) {
        let Some(socket) = self.sockets.get_mut(&number) else { return };
        let is_read_closed = event.is_read_closed() || event.is_error();
        socket.is_read_closed |= is_read_closed;
        if socket.stage == Stage::Connecting {
            if event.is_writable() || event.is_error() || event.is_write_closed() {
                self.connected(number);
            }
            return;
        }
        if (event.is_readable() || is_read_closed) && !std::mem::replace(&mut socket.is_ready, true) {
            self.ready.push(number);
        }
        if event.is_writable() || event.is_write_closed() {
            socket.is_blocked = false;
            self.write_later(number);
        }
    }

    fn accept_all(&mut self) {
        for at in 0..self.listeners.len() {
            if self.listeners[at].not_before > self.now {
                continue;
            }
            let mut taken = 0;
            while self.listeners[at].is_pending && taken < ACCEPTED_MAX {
                taken += 1;
                match self.listeners[at].socket.accept() {
                    Ok((stream, from)) => self.accepted(stream, from),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        self.listeners[at].is_pending = false;
                    }
                    // The peer has disconnected already.
                    Err(error)
                        if matches!(
                            error.kind(),
                            io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                        ) => {}
                    Err(error) => {
                        add(&self.counts.accept_errors, 1);
                        let listener = &mut self.listeners[at];
                        listener.not_before = self.now.after(ACCEPT_PAUSE);
                        if let Some(suppressed) = listener.log_limiter.should_log(self.now) {
                            tracing::warn!(%error, suppressed, "another node's connection cannot be accepted: check the limit of open files");
                        }
                        break;
                    }
                }
            }
        }
    }

    fn accepted(&mut self, stream: mio::net::TcpStream, from: SocketAddr) {
        add(&self.counts.accepted, 1);
        let Some(id) = self.handler.mesh().accepted(self.now, from) else { return };
        let tls = match self.config.tls.as_ref().map(Tls::accept).transpose() {
            Ok(tls) => tls,
            Err(error) => return self.handler.mesh().broken(self.now, id, &explain(&error)),
        };
        self.insert(Socket::new(id, stream, tls, Stage::Open));
    }

    /// Registers a socket with the poll.
    fn insert(&mut self, mut socket: Socket) {
        let (id, number) = (socket.id, socket.id.number());
        let both = Interest::READABLE | Interest::WRITABLE;
        match self.poll.registry().register(&mut socket.stream, Token(number as usize), both) {
            Ok(()) => drop(self.sockets.insert(number, socket)),
            Err(error) => {
                self.handler.mesh().closed(self.now, id, &error.to_string());
                self.needs_turn = true;
            }
        }
        self.counts.connections.store(self.sockets.len() as u64, Ordering::Relaxed);
    }

    fn dial(&mut self, id: ConnectionId, purpose: DialPurpose, address: &str) {
        add(&self.counts.dialed, 1);
        match self.resolver.ask(id.number(), address) {
            Some(found) => self.connect(id, self.address_rotation.begin(purpose, address, vec![found])),
            None => drop(self.resolving.insert(id.number(), (id, purpose))),
        }
    }

    fn resolved(&mut self, address: &str, found: io::Result<Vec<SocketAddr>>) {
        for number in self.resolver.answered(address) {
            let Some((id, purpose)) = self.resolving.remove(&number) else { continue };
            match &found {
                Ok(found) if !found.is_empty() => {
                    self.connect(id, self.address_rotation.begin(purpose, address, found.clone()));
                }
                Ok(_) => self.handler.mesh().closed(self.now, id, "the name has no address"),
                Err(error) => self.handler.mesh().closed(self.now, id, &error.to_string()),
            }
        }
    }

    /// Tries one address after the other until a connection can be started.
    fn connect(&mut self, id: ConnectionId, mut attempt: Attempt) {
        let mut why = "no address is left".to_owned();
        while let Some(address) = self.address_rotation.next(&mut attempt) {
            match net::connect(address, &self.config, &self.counts) {
                Ok(stream) => {
                    let mut socket = Socket::new(id, stream, None, Stage::Connecting);
                    socket.attempt = Some(attempt);
                    return self.insert(socket);
                }
                Err(error) => {
                    why = attempt.explain(&error);
                    self.address_rotation.failed(&attempt);
                }
            }
        }
        self.handler.mesh().closed(self.now, id, &why);
        self.needs_turn = true;
    }

    /// Handles the end of a connection attempt, successful or not.
    fn connected(&mut self, number: u64) {
        let Some(socket) = self.sockets.get_mut(&number) else { return };
        let failed = match socket.stream.take_error() {
            Ok(None) => match socket.stream.peer_addr() {
                Ok(_) => None,
                Err(error) if error.kind() == io::ErrorKind::NotConnected => return,
                Err(error) => Some(error),
            },
            Ok(Some(error)) | Err(error) => Some(error),
        };
        let Some(socket) = self.remove(number) else { return };
        let Socket { id, stream, attempt: Some(attempt), is_read_closed, .. } = socket else { return };
        if let Some(error) = failed {
            self.address_rotation.failed(&attempt);
            if attempt.is_last() {
                return self.handler.mesh().closed(self.now, id, &attempt.explain(&error));
            }
            return self.connect(id, attempt);
        }
        match self.config.tls.as_ref().map(|tls| tls.dial(&attempt.name)).transpose() {
            Ok(tls) => {
                let mut socket = Socket::new(id, stream, tls, Stage::Open);
                (socket.attempt, socket.is_ready) = (Some(attempt), true);
                // The event came with the connection, and does not come again.
                socket.is_read_closed = is_read_closed;
                // The socket is registered already.
                self.sockets.insert(number, socket);
                self.counts.connections.store(self.sockets.len() as u64, Ordering::Relaxed);
                self.handler.mesh().dialed(self.now, id);
                self.ready.push(number);
                self.write_later(number);
            }
            Err(error) => self.handler.mesh().broken(self.now, id, &explain(&error)),
        }
    }

    fn read_ready(&mut self) {
        let mut ready = std::mem::take(&mut self.ready);
        ready.retain(|number| self.read(*number));
        // Sockets that have more, and sockets that were added meanwhile.
        ready.append(&mut self.ready);
        self.ready = ready;
    }

    /// Reads a part. Returns true when there may be more. Bytes count from the time after they were read: if the
    /// process was stopped since the turn began, the turn's time is older than they are. A lease that is requested by
    /// them would end too early for a core that grants it.
    fn read(&mut self, number: u64) -> bool {
        for _ in 0..READS_MAX {
            let Some(socket) = self.sockets.get_mut(&number) else { return false };
            let read = socket.read(&mut self.scratch);
            self.now = self.time();
            let Some(socket) = self.sockets.get_mut(&number) else { return false };
            match read {
                Ok((count, bytes, is_more)) => {
                    add(&self.counts.reads, 1);
                    add(&self.counts.bytes_read, count as u64);
                    let (id, is_done, is_known) = (socket.id, !is_more, socket.attempt.is_none());
                    socket.is_ready = is_more;
                    if socket.tls_has_output() {
                        // TLS may have an answer, and the peer may wait for it.
                        socket.is_blocked = false;
                        self.write_later(number);
                    }
                    if !bytes.is_empty() {
                        self.handler.mesh().input(self.now, id, bytes);
                        if !is_known && self.handler.mesh().is_joined(id) {
                            self.joined(number);
                        }
                    }
                    if is_done {
                        return false;
                    }
                }
                Err(ended) => {
                    self.ended(number, &ended);
                    return false;
                }
            }
        }
        true
    }

    /// Notes that the peer was found at the dialed address.
    fn joined(&mut self, number: u64) {
        let socket = self.sockets.get_mut(&number);
        if let Some(attempt) = socket.and_then(|socket| socket.attempt.take()) {
            self.address_rotation.joined(&attempt);
        }
    }

    fn ended(&mut self, number: u64, why: &CloseReason) {
        let Some(mut socket) = self.remove(number) else { return };
        if let Some(attempt) = &socket.attempt {
            self.address_rotation.failed(attempt);
        }
        self.needs_turn = true;
        let (now, mesh) = (self.now, self.handler.mesh());
        match why {
            CloseReason::Closed => mesh.closed(now, socket.id, "the peer closed the connection"),
            CloseReason::Io(error) => mesh.closed(now, socket.id, &error.to_string()),
            CloseReason::Tls(_) | CloseReason::NoTls => {
                let reason = match why {
                    CloseReason::Tls(error) => explain(error),
                    _ => PeerError::SpeaksNoTls.to_string(),
                };
                add(&self.counts.tls_errors, 1);
                socket.alert();
                mesh.broken(now, socket.id, &reason);
            }
        }
    }

    fn remove(&mut self, number: u64) -> Option<Socket> {
        let socket = self.sockets.remove(&number)?;
        self.counts.connections.store(self.sockets.len() as u64, Ordering::Relaxed);
        Some(socket)
    }

    /// Handles time-outs, runs the handler's turn, and carries out the results.
    fn finish_turn(&mut self) {
        add(&self.counts.turns, 1);
        if self.handler.mesh().timeout() <= self.now {
            self.handler.mesh().handle_timeout(self.now);
        }
        self.handler.turn(self.now);
        while let Some(demand) = self.handler.mesh().poll_demand() {
            match demand {
                Demand::Dial { connection, peer, address } => {
                    let purpose = if peer.is_some() { DialPurpose::Peer } else { DialPurpose::Discovery };
                    self.dial(connection, purpose, &address);
                }
                Demand::Close { connection, last, reason } => self.close(connection, last, &reason),
            }
        }
        while let Some(id) = self.handler.mesh().poll_writable() {
            self.write_later(id.number());
        }
        let mut writing = std::mem::take(&mut self.writing);
        writing.retain(|number| self.write(*number));
        writing.append(&mut self.writing);
        self.writing = writing;
    }

    fn close(&mut self, id: ConnectionId, last: Bytes, reason: &str) {
        tracing::debug!(connection = id.number(), reason, "a connection of a link is closed");
        if self.resolving.remove(&id.number()).is_some() {
            self.resolver.forget(id.number());
        }
        if let Some(socket) = self.remove(id.number()) {
            if let Some(attempt) = &socket.attempt {
                self.address_rotation.failed(attempt);
            }
            socket.close(last);
        }
    }

    fn write_later(&mut self, number: u64) {
        if let Some(socket) = self.sockets.get_mut(&number)
            && !socket.is_blocked
            && !std::mem::replace(&mut socket.is_writing, true)
        {
            self.writing.push(number);
        }
    }

    /// Writes the output of a connection. Returns true when there is more and the socket accepts it.
    fn write(&mut self, number: u64) -> bool {
        for _ in 0..WRITES_MAX {
            let Some(socket) = self.sockets.get_mut(&number) else { return false };
            if socket.stage == Stage::Open && socket.is_empty() {
                self.handler.mesh().output(self.now, socket.id, self.config.output_max, &mut self.out);
                socket.push(self.out.drain());
            }
            if socket.is_empty() || socket.is_blocked {
                socket.is_writing = false;
                return false;
            }
            match socket.write() {
                Ok(written) => {
                    add(&self.counts.writes, written.writes);
                    add(&self.counts.bytes_written, written.bytes as u64);
                    add(&self.counts.blocked, u64::from(socket.is_blocked));
                }
                Err(ended) => {
                    self.ended(number, &ended);
                    return false;
                }
            }
        }
        true
    }
}

fn complain_about_poll(error: &io::Error) {
    tracing::error!(%error, "the sockets of the cluster's links cannot be polled");
}

/// Polls again at once when a signal ended the wait. A process that was suspended thus handles the bytes that arrived
/// meanwhile before it judges any peer by its silence.
fn poll_through(poll: &mut Poll, events: &mut Events, timeout: Option<Duration>) -> io::Result<()> {
    let mut result = poll.poll(events, timeout);
    while result.as_ref().is_err_and(|error| error.kind() == io::ErrorKind::Interrupted) {
        result = poll.poll(events, Some(Duration::ZERO));
    }
    result
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;
    use std::net::{TcpListener, TcpStream};

    use link::{Identity, Mesh, MeshConfig, Secret};
    use mio::Waker;

    use super::*;
    use crate::mailbox::mailbox;

    struct OnlyMesh(Mesh);

    impl Handler for OnlyMesh {
        type Command = ();

        fn handle_command(&mut self, _: Time, (): ()) {}

        fn mesh(&mut self) -> &mut Mesh {
            &mut self.0
        }

        fn turn(&mut self, _: Time) {}

        fn timeout(&self) -> Time {
            Time::NEVER
        }
    }

    /// A transport with a connection whose peer has sent a byte. Returns the peer, too.
    fn transport() -> (Transport<OnlyMesh>, TcpStream) {
        let identity =
            Identity { name: "a".into(), cluster: [1; 16], features: 0, descriptor: Bytes::default() };
        let random = Box::new(|bytes: &mut [u8]| bytes.fill(7));
        let mesh = Mesh::new(identity, Secret::new(b"secret"), random, MeshConfig::default());
        let poll = Poll::new().expect("a poller");
        let (sender, inbox) = mailbox(Waker::new(poll.registry(), WAKER).expect("a waker"));
        let config = TransportConfig::default();
        let resolver = Resolver::start(&config, sender).expect("threads");
        let counts = Arc::<Counts>::default();
        let transport = Transport::new(OnlyMesh(mesh), config, poll, inbox, Vec::new(), resolver, counts);
        let mut transport = transport.expect("a transport");
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let mut peer = TcpStream::connect(listener.local_addr().expect("an address")).expect("a connection");
        let (stream, from) = listener.accept().expect("a connection");
        stream.set_nonblocking(true).expect("a socket");
        transport.accepted(mio::net::TcpStream::from_std(stream), from);
        peer.write_all(&[0]).expect("it is sent");
        (transport, peer)
    }

    /// The process is stopped in a turn, after the thread has read the clock. Otherwise a core would grant a lease that
    /// is over for it before it is over for the other node.
    #[test]
    fn bytes_count_from_the_time_after_they_were_read() {
        let (mut transport, _peer) = transport();
        let number = *transport.sockets.keys().next().expect("a socket");
        transport.now = transport.time();
        let polled = transport.now;
        while transport.time() == polled {
            std::thread::yield_now();
        }
        transport.read(number);
        assert!(transport.now > polled);
        assert_eq!(transport.counts.figures().bytes_read, 1);
    }

    /// The process is stopped after a poll that reported nothing.
    #[test]
    fn sockets_are_read_once_more_after_a_stop_of_the_process() {
        for (pause_min, bytes) in [(Duration::ZERO, 1), (Duration::from_secs(1 << 20), 0)] {
            let (mut transport, _peer) = transport();
            (transport.now, transport.pause_min) = (transport.time(), pause_min);
            transport.read_all(&mut Events::with_capacity(EVENTS));
            assert_eq!(transport.counts.figures().bytes_read, bytes, "{pause_min:?}");
        }
    }
}
