//! The loop of one thread: what the sockets, the other threads and the clock have for its worker, and what it has for them.

use std::io::{self, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, Instant};

use broker::{Batch, OUT_SLICES_MAX, Then, Time, Worker, WorkerId};
use mio::{Events, Interest, Poll, Token, Waker};

use crate::listener::{Listener, ListenerSocket, Place};
use crate::mailbox::{Inbox, Mail, Mailbox, mailbox};
use crate::node::{Stopped, canonical};
use crate::stream::Stream;

/// One thread's sockets and its worker of the broker.
pub struct Reactor {
    worker: Worker,
    index: u16,
    poll: Poll,
    inbox: Inbox,
    mailboxes: Vec<Mailbox>,
    listeners: Vec<Listener>,
    /// Whether each listener may have more to accept, and from when on.
    accepting: Vec<Accepting>,
    /// By the worker's slots.
    peers: Vec<Option<Peer>>,
    /// Connections that may have more to read.
    ready: Vec<u32>,
    scratch: Vec<u8>,
    dirty: Vec<u32>,
    woken: Vec<u32>,
    spare: Vec<Batch>,
    connections: Arc<AtomicUsize>,
    connections_max: usize,
    /// The reactor that gets the next connection of a listener that deals out.
    deal_to: usize,
    clock: Instant,
    now: Time,
    stop_by: Option<Time>,
    stopped: Stopped,
    complained: Time,
}

/// The transport's side of a connection.
struct Peer {
    stream: Stream,
    /// Bytes that the worker could not use yet.
    kept: Vec<u8>,
    /// Length of the packet that `kept` begins, as far as known.
    packet_len: u32,
    marks: PeerMarks,
    _place: Option<Box<Place>>,
}

#[derive(Clone, Copy, Default)]
struct PeerMarks {
    /// In the list `ready`.
    ready: bool,
    /// The last write did not take everything: wait for the socket's word.
    write_blocked: bool,
    /// The peer has said that it sends nothing more: read on until the end shows.
    read_closed: bool,
    /// The worker takes no bytes until it wakes the connection.
    held: bool,
    /// We have said that nothing more comes, and read until the peer has said so too.
    draining: bool,
}

#[derive(Clone, Copy, Default)]
struct Accepting {
    pending: bool,
    not_before: Time,
}

pub(crate) const WAKER: Token = Token(usize::MAX);
const LISTENERS: usize = usize::MAX / 2;
const EVENTS: usize = 1024;
const SCRATCH: usize = 64 * 1024;
/// Kept bytes up to which they are copied before what is read next; beyond, reading appends to them.
const KEPT_COPIED: usize = 4 * 1024;
/// Connections accepted from one listener in one turn.
const ACCEPT_BATCH: usize = 128;
/// Pause after the system refused to accept: out of descriptors or memory.
const ACCEPT_PAUSE_MS: u64 = 100;
/// Bytes waiting in another reactor's mailbox at which this one stops reading from its sockets.
const MAILBOX_FULL: usize = 16 * 1024 * 1024;
/// Mail worked through in one turn.
const MAIL_BATCH: usize = 64;
const FLUSH_ROUNDS: usize = 4;
const SPARE_BATCHES: usize = 16;
/// Record bytes that a spare batch keeps.
const SPARE_BYTES: usize = 1024 * 1024;

impl Reactor {
    pub(crate) fn new(
        index: u16,
        node: Arc<broker::Node>,
        poll: Poll,
        inbox: Inbox,
        mailboxes: Vec<Mailbox>,
        listeners: Vec<Listener>,
        clock: Instant,
    ) -> Self {
        Self {
            worker: Worker::new(WorkerId(index), node),
            index,
            poll,
            inbox,
            mailboxes,
            accepting: vec![Accepting::default(); listeners.len()],
            listeners,
            peers: Vec::new(),
            ready: Vec::new(),
            scratch: vec![0; SCRATCH],
            dirty: Vec::new(),
            woken: Vec::new(),
            spare: Vec::new(),
            connections: Arc::new(AtomicUsize::new(0)),
            connections_max: usize::MAX,
            deal_to: 0,
            clock,
            now: Time::default(),
            stop_by: None,
            stopped: Stopped::default(),
            complained: Time::default(),
        }
    }

    /// Shares the node's count of connections, and its limit.
    pub(crate) fn limited_to(mut self, connections: Arc<AtomicUsize>, connections_max: usize) -> Self {
        self.connections = connections;
        self.connections_max = connections_max;
        self
    }

    /// A reactor without sockets and without others, for measuring: connections are made by [`Self::attach`], bytes come by
    /// [`Self::push`], and what would be sent vanishes.
    pub fn detached(node: Arc<broker::Node>) -> io::Result<Self> {
        let poll = Poll::new()?;
        let (mailbox, inbox) = mailbox(Waker::new(poll.registry(), WAKER)?);
        Ok(Self::new(0, node, poll, inbox, vec![mailbox], Vec::new(), Instant::now()))
    }

    /// A connection without a socket; returns its slot.
    pub fn attach(&mut self) -> u32 {
        self.now = self.time();
        let id = self.worker.open(self.now, None);
        self.add_peer(id.slot, Stream::Memory, None);
        id.slot
    }

    /// Bytes from the client of a connection without a socket, as if they had been read in one piece.
    pub fn push(&mut self, slot: u32, bytes: &[u8]) {
        let Some(peer) = self.peers[slot as usize].as_mut() else { return };
        if peer.kept.is_empty() {
            let consumed = self.offer(slot, bytes);
            if consumed < bytes.len() {
                self.keep(slot, bytes.to_vec(), consumed);
            }
            return;
        }
        let mut all = std::mem::take(&mut peer.kept);
        all.extend_from_slice(bytes);
        let consumed = self.offer(slot, &all);
        self.keep(slot, all, consumed);
    }

    /// One turn of the loop, without sleeping.
    pub fn turn(&mut self) {
        self.now = self.time();
        self.finish_turn();
    }

    pub fn worker(&self) -> &Worker {
        &self.worker
    }

    /// Runs until it is told to stop.
    pub(crate) fn run(mut self) -> Stopped {
        let mut events = Events::with_capacity(EVENTS);
        for (at, listener) in self.listeners.iter_mut().enumerate() {
            let token = Token(LISTENERS + at);
            let registered = match &mut listener.socket {
                ListenerSocket::Tcp(socket) => {
                    self.poll.registry().register(socket, token, Interest::READABLE)
                }
                ListenerSocket::Unix(socket, _) => {
                    self.poll.registry().register(socket, token, Interest::READABLE)
                }
            };
            if let Err(error) = registered {
                tracing::error!(%error, listener = listener.shared.name, "cannot poll a listener");
            }
        }
        loop {
            self.wait(&mut events);
            for event in &events {
                match event.token() {
                    WAKER => {}
                    Token(at) if at >= LISTENERS => {
                        if let Some(accepting) = self.accepting.get_mut(at - LISTENERS) {
                            accepting.pending = true;
                        }
                    }
                    Token(slot) => self.event(slot as u32, event),
                }
            }
            events.clear();
            self.accept_all();
            self.read_ready();
            self.finish_turn();
            if let Some(stop_by) = self.stop_by
                && (self.worker.connections() == 0 || self.now >= stop_by)
            {
                self.stopped.forced = self.worker.connections();
                return self.stopped;
            }
        }
    }

    /// Sleeps until something happens, and takes mail.
    fn wait(&mut self, events: &mut Events) {
        self.now = self.time();
        let reading = !self.ready.is_empty() && !self.is_overloaded();
        let accepting = |accepting: &Accepting| accepting.pending && accepting.not_before <= self.now;
        let busy = reading || self.worker.has_work() || self.accepting.iter().any(accepting);
        let mut timeout = if busy { Some(Duration::ZERO) } else { self.timeout() };
        if !self.ready.is_empty() && !reading {
            // Another reactor has to work first; it sends no word when it has.
            timeout = Some(timeout.map_or(OVERLOAD_PAUSE, |timeout| timeout.min(OVERLOAD_PAUSE)));
        }
        let mail = if busy {
            self.poll_sockets(events, timeout);
            self.inbox.next()
        } else {
            self.worker.park();
            let poll = &mut self.poll;
            let slept = self.inbox.sleep(|| poll.poll(events, timeout));
            self.worker.unpark();
            slept.unwrap_or_else(|error| {
                complain_about_poll(&error);
                None
            })
        };
        self.now = self.time();
        let mut mail = mail.or_else(|| self.inbox.next());
        for _ in 0..MAIL_BATCH {
            let Some(next) = mail else { break };
            self.take_mail(next);
            mail = self.inbox.next();
        }
        if let Some(next) = mail {
            self.take_mail(next);
        }
    }

    fn poll_sockets(&mut self, events: &mut Events, timeout: Option<Duration>) {
        if let Err(error) = self.poll.poll(events, timeout) {
            complain_about_poll(&error);
        }
    }

    fn timeout(&self) -> Option<Duration> {
        let paused =
            self.accepting.iter().filter(|accepting| accepting.pending).map(|accepting| accepting.not_before);
        let next = paused.chain(self.stop_by).chain([self.worker.next_timeout()]).min()?;
        (next != Time::NEVER).then(|| next.since(self.now).max(Duration::from_millis(1)))
    }

    fn time(&self) -> Time {
        Time(self.clock.elapsed().as_millis() as u64)
    }

    fn take_mail(&mut self, mail: Mail) {
        match mail {
            Mail::Batch { mut batch, .. } => {
                self.worker.take_batch(self.now, &mut batch);
                if self.spare.len() < SPARE_BATCHES {
                    batch.recycle(SPARE_BYTES);
                    self.spare.push(batch);
                }
            }
            Mail::Letter(letter) => {
                let mut batch = Batch::of(letter);
                self.worker.take_batch(self.now, &mut batch);
            }
            Mail::Adopt { stream, peer, place } => self.adopt(stream, peer, Some(place)),
            Mail::Stop { within } => {
                self.listeners.clear();
                self.accepting.clear();
                self.stopped.connections = self.worker.connections();
                self.stop_by = Some(self.now.after(within));
                self.worker.stop(self.now);
            }
        }
    }

    fn event(&mut self, slot: u32, event: &mio::event::Event) {
        let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        if event.is_writable() && std::mem::take(&mut peer.marks.write_blocked) {
            self.dirty.push(slot);
        }
        let peer_closed = event.is_read_closed() || event.is_error();
        let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        peer.marks.read_closed |= peer_closed;
        if event.is_readable() || peer_closed {
            self.mark_ready(slot);
        }
    }

    fn mark_ready(&mut self, slot: u32) {
        if let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut)
            && !peer.marks.ready
        {
            peer.marks.ready = true;
            self.ready.push(slot);
        }
    }

    fn is_overloaded(&self) -> bool {
        let own = usize::from(self.index);
        self.mailboxes.iter().enumerate().any(|(at, mailbox)| at != own && mailbox.weight() > MAILBOX_FULL)
    }

    /// Reads once from every connection that may have something.
    fn read_ready(&mut self) {
        if self.ready.is_empty() || self.is_overloaded() {
            return;
        }
        for slot in std::mem::take(&mut self.ready) {
            if let Some(peer) = self.peers[slot as usize].as_mut() {
                peer.marks.ready = false;
                self.read(slot);
            }
        }
    }

    fn read(&mut self, slot: u32) {
        let Some(peer) = self.peers[slot as usize].as_mut() else { return };
        if peer.marks.held {
            return;
        }
        if peer.marks.draining {
            return self.drain(slot);
        }
        let kept = peer.kept.len();
        let direct = kept > KEPT_COPIED;
        let (buffer, from) = if direct {
            // What a large packet still lacks, as far as it may come at once.
            let more = (peer.packet_len as usize).saturating_sub(kept).clamp(SCRATCH, 4 * SCRATCH);
            peer.kept.resize(kept + more, 0);
            (&mut peer.kept, kept)
        } else {
            self.scratch[..kept].copy_from_slice(&peer.kept);
            (&mut self.scratch, kept)
        };
        let room = buffer.len() - from;
        let result = peer.stream.read(&mut buffer[from..]);
        let read = *result.as_ref().unwrap_or(&0);
        if direct {
            peer.kept.truncate(kept + read);
        }
        match result {
            Ok(0) => return self.lose(slot),
            Ok(_) => {}
            Err(error) => match error.kind() {
                io::ErrorKind::WouldBlock => return,
                io::ErrorKind::Interrupted => return self.mark_ready(slot),
                _ => return self.lose(slot),
            },
        }
        // A short read has emptied the socket; more will raise an edge. After the peer's end only an empty read is the end.
        let more = read == room || peer.marks.read_closed;
        if direct {
            let bytes = std::mem::take(&mut peer.kept);
            let consumed = self.offer(slot, &bytes);
            self.keep(slot, bytes, consumed);
        } else {
            let scratch = std::mem::take(&mut self.scratch);
            let consumed = self.offer(slot, &scratch[..kept + read]);
            if let Some(peer) = self.peers[slot as usize].as_mut() {
                peer.kept.clear();
                peer.kept.extend_from_slice(&scratch[consumed..kept + read]);
                if peer.kept.is_empty() {
                    peer.kept = Vec::new();
                }
            }
            self.scratch = scratch;
        }
        if more {
            self.mark_ready(slot);
        }
    }

    fn keep(&mut self, slot: u32, mut bytes: Vec<u8>, consumed: usize) {
        if let Some(peer) = self.peers[slot as usize].as_mut() {
            bytes.drain(..consumed);
            peer.kept = if bytes.is_empty() { Vec::new() } else { bytes };
        }
    }

    /// Gives bytes to the worker; returns how many it has taken.
    fn offer(&mut self, slot: u32, bytes: &[u8]) -> usize {
        let received = self.worker.receive(self.now, slot, bytes);
        if let Some(peer) = self.peers[slot as usize].as_mut() {
            match received.then {
                Then::Read { packet_len } => peer.packet_len = packet_len as u32,
                Then::Hold => peer.marks.held = true,
                Then::Close => return bytes.len(),
            }
        }
        received.consumed
    }

    /// Offers again what was kept of connections that the worker has woken.
    fn offer_woken(&mut self) {
        let mut woken = std::mem::take(&mut self.woken);
        self.worker.take_woken(&mut woken);
        for slot in woken.drain(..) {
            let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut) else { continue };
            if !std::mem::take(&mut peer.marks.held) {
                continue;
            }
            let bytes = std::mem::take(&mut peer.kept);
            if !bytes.is_empty() {
                let consumed = self.offer(slot, &bytes);
                self.keep(slot, bytes, consumed);
            }
            // Edges that came meanwhile were not acted on.
            self.mark_ready(slot);
        }
        self.woken = woken;
    }

    /// Timers, batches to other reactors, and everything that is to be written.
    fn finish_turn(&mut self) {
        if self.worker.next_timeout() <= self.now {
            self.worker.tick(self.now);
        }
        for _ in 0..FLUSH_ROUNDS {
            self.worker.settle(self.now);
            // Batches go first: when a client sees an answer, what it did is on its way to everybody.
            self.send_batches();
            let more = self.flush();
            self.offer_woken();
            if !more && !self.worker.has_work() {
                break;
            }
        }
        self.worker.end_turn();
    }

    fn send_batches(&mut self) {
        for (at, mailbox) in self.mailboxes.iter().enumerate() {
            if at == usize::from(self.index) {
                continue;
            }
            let outgoing = self.worker.outgoing(WorkerId(at as u16));
            if outgoing.is_empty() {
                continue;
            }
            let mut batch = self.spare.pop().unwrap_or_default();
            std::mem::swap(&mut batch, outgoing);
            let weight = batch.weight();
            mailbox.send(Mail::Batch { batch, weight });
        }
    }

    /// Writes what connections have, and closes those that are done. True when something was left for another round.
    fn flush(&mut self) -> bool {
        let mut unblocked = std::mem::take(&mut self.dirty);
        for slot in unblocked.drain(..) {
            self.flush_one(slot);
        }
        self.worker.take_dirty(&mut unblocked);
        let any = !unblocked.is_empty();
        for slot in &unblocked {
            self.flush_one(*slot);
        }
        unblocked.clear();
        self.dirty = unblocked;
        any
    }

    fn flush_one(&mut self, slot: u32) {
        let Some(peer) = self.peers.get_mut(slot as usize).and_then(Option::as_mut) else { return };
        if peer.marks.draining {
            // Whoever marks a draining connection has lost patience with it.
            return self.remove(slot);
        }
        let mut failed = false;
        if !peer.marks.write_blocked
            && let Some(out) = self.worker.output(slot)
        {
            let before = out.len();
            while !out.is_empty() {
                let mut slices = [IoSlice::new(&[]); OUT_SLICES_MAX];
                let (offered, result) = match out.pending_slices(&mut slices) {
                    0 => (out.len(), peer.stream.write(out.pending())),
                    count => {
                        let slices = &slices[..count];
                        (slices.iter().map(|slice| slice.len()).sum(), peer.stream.write_vectored(slices))
                    }
                };
                match result {
                    Ok(count) => {
                        out.advance(count);
                        if count < offered {
                            peer.marks.write_blocked = true;
                            break;
                        }
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        peer.marks.write_blocked = true;
                        break;
                    }
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(_) => {
                        failed = true;
                        break;
                    }
                }
            }
            let written = out.len() < before;
            if written {
                self.worker.written(self.now, slot);
            }
        }
        if failed {
            self.lose(slot);
        } else if self.worker.is_closing(slot) && self.worker.output(slot).is_none_or(|out| out.is_empty()) {
            self.close(slot);
        }
    }

    /// Everything has left: tell the peer, and read until it has noticed, so that nothing sent is lost to a reset.
    fn close(&mut self, slot: u32) {
        let Some(peer) = self.peers[slot as usize].as_mut() else { return };
        if peer.marks.read_closed || peer.stream.shut_down_writing().is_err() {
            return self.remove(slot);
        }
        peer.marks.draining = true;
        peer.marks.held = false;
        peer.kept = Vec::new();
        self.drain(slot);
    }

    fn drain(&mut self, slot: u32) {
        let Some(peer) = self.peers[slot as usize].as_mut() else { return };
        loop {
            match peer.stream.read(&mut self.scratch) {
                Ok(0) => return self.remove(slot),
                Ok(count) if count == self.scratch.len() => return self.mark_ready(slot),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(_) => return self.remove(slot),
            }
        }
    }

    /// The peer is gone.
    fn lose(&mut self, slot: u32) {
        self.worker.lost(self.now, slot);
        self.remove(slot);
    }

    fn remove(&mut self, slot: u32) {
        // Closing the descriptor takes it out of the poll.
        self.peers[slot as usize] = None;
        self.worker.vacate(slot);
    }

    fn accept_all(&mut self) {
        for at in 0..self.listeners.len() {
            if self.accepting[at].pending && self.accepting[at].not_before <= self.now {
                self.accept_from(at);
            }
        }
    }

    fn accept_from(&mut self, at: usize) {
        for _ in 0..ACCEPT_BATCH {
            let listener = &mut self.listeners[at];
            if listener.shared.connect_rate > 0 {
                if listener.until <= self.now.0 {
                    listener.until = self.now.0 + 1000;
                    listener.allowance = listener.shared.connect_rate;
                }
                if listener.allowance == 0 {
                    // The others wait in the backlog.
                    self.accepting[at].not_before = Time(listener.until);
                    return;
                }
                listener.allowance -= 1;
            }
            let accepted = match &listener.socket {
                ListenerSocket::Tcp(socket) => {
                    socket.accept().map(|(stream, peer)| (Stream::Tcp(stream), Some(canonical(peer))))
                }
                ListenerSocket::Unix(socket, _) => {
                    socket.accept().map(|(stream, _)| (Stream::Unix(stream), None))
                }
            };
            match accepted {
                Ok((stream, peer)) => self.accepted(at, stream, peer),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    self.accepting[at].pending = false;
                    return;
                }
                Err(error)
                    if matches!(
                        error.kind(),
                        io::ErrorKind::Interrupted | io::ErrorKind::ConnectionAborted
                    ) => {}
                Err(error) => {
                    // Out of descriptors or memory: what is there goes on, and the backlog waits for better times.
                    self.accepting[at].not_before = Time(self.now.0 + ACCEPT_PAUSE_MS);
                    self.complain(&format!("cannot accept connections: {error}"));
                    return;
                }
            }
        }
    }

    fn accepted(&mut self, at: usize, stream: Stream, peer: Option<SocketAddr>) {
        let listener = &self.listeners[at];
        let Some(place) = Place::take(&listener.shared, &self.connections, self.connections_max) else {
            let name = listener.shared.name.clone();
            return self
                .complain(&format!("connection refused: listener {name} or the node has as many as it may"));
        };
        let place = Box::new(place);
        if listener.deals_out {
            self.deal_to = (self.deal_to + 1) % self.mailboxes.len();
            if self.deal_to != usize::from(self.index) {
                return self.mailboxes[self.deal_to].send(Mail::Adopt { stream, peer, place });
            }
        }
        self.adopt(stream, peer, Some(place));
    }

    fn adopt(&mut self, mut stream: Stream, peer: Option<SocketAddr>, place: Option<Box<Place>>) {
        if self.stop_by.is_some() {
            return;
        }
        let id = self.worker.open(self.now, peer);
        if let Err(error) = stream.register(self.poll.registry(), Token(id.slot as usize)) {
            self.worker.vacate(id.slot);
            return self.complain(&format!("cannot poll a connection: {error}"));
        }
        self.add_peer(id.slot, stream, place);
    }

    fn add_peer(&mut self, slot: u32, stream: Stream, place: Option<Box<Place>>) {
        let at = slot as usize;
        if self.peers.len() <= at {
            self.peers.resize_with(at + 1, || None);
        }
        let marks = PeerMarks::default();
        self.peers[at] = Some(Peer { stream, kept: Vec::new(), packet_len: 0, marks, _place: place });
    }

    /// Logs at most once a second.
    fn complain(&mut self, what: &str) {
        if self.complained <= self.now {
            self.complained = Time(self.now.0 + 1000);
            tracing::warn!(reactor = self.index, "{what}");
        }
    }
}

/// Pause before a reactor looks again whether another has caught up.
const OVERLOAD_PAUSE: Duration = Duration::from_millis(1);

fn complain_about_poll(error: &io::Error) {
    if error.kind() != io::ErrorKind::Interrupted {
        tracing::error!(%error, "polling failed");
    }
}
