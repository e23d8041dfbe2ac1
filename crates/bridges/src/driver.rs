//! The thread of one relay: it moves bytes between the relay and two sockets.

use std::io::{self, Read as _, Write as _};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, TryRecvError};
use std::time::{Duration, Instant};

use bridge::{ConnectionId, Existing, Input, Output, Password, Relay, Side, Sides, State, Time};
use edge::Door;
use mio::{Events, Interest, Poll, Token};
use random::Random;

use crate::health::{Health, Look};
use crate::held::{Held, HeldTokens};
use crate::opening::Opening;
use crate::remote::{Remote, Target};
use crate::runner::{Published, Run, RunnerSettings, RunnerView, Ticket};

const LOCAL: Token = Token(0);
const REMOTE: Token = Token(1);
pub const WAKER: Token = Token(2);
/// Maximum time until the view of the relay is renewed.
const VIEW: Duration = Duration::from_millis(500);
/// Maximum number of steps before requests and timeouts have their turn.
const STEPS_AT_ONCE: usize = 16;
/// Size of a read.
const READ: usize = 64 << 10;
/// Maximum number of reads of one side before the other side has its turn.
const READS_AT_ONCE: usize = 8;

/// Request to the thread.
#[derive(Debug)]
pub enum Command {
    /// Run, or do not.
    Decided(Ticket, Decision),
    /// Number of messages that wait in the local session.
    Queued(u64),
    /// Change the filters that are wanted at the remote broker.
    Want { number: u64, add: Vec<Box<str>>, remove: Vec<Box<str>> },
    /// Keep this until the remote broker has confirmed or refused its filters.
    Hold(Held),
}

/// Decision whether a relay runs.
#[derive(Debug)]
pub enum Decision {
    /// Run. The number is that of the filters that are wanted at the remote broker.
    Run(u64, Run),
    /// Complete what is in flight, for at most this time, and close the connections.
    Stop(Duration),
}

/// A relay with its sockets.
pub struct Driver {
    pub relay: Relay,
    pub random: Random,
    pub settings: RunnerSettings,
    /// The last decision.
    pub ticket: Ticket,
    /// Facts with which the relay starts; `None` if it is to stop.
    pub run: Option<Run>,
    /// Decision for which the relay was started last. A relay that stops by itself stays so.
    pub started_for: Ticket,
    pub health: Health,
    pub poll: Poll,
    pub door: Door,
    pub commands: Receiver<Command>,
    pub published: Arc<Published>,
    pub clock: Instant,
    pub local: Option<(ConnectionId, mio::net::UnixStream)>,
    pub remote: Option<(ConnectionId, Remote)>,
    pub opening: Opening<Remote>,
    /// Connection to the remote broker that is being opened, with the password for it.
    pub opens: Option<(ConnectionId, Option<Vec<u8>>)>,
    /// Sides that may have something to read.
    pub readable: [bool; 2],
    /// State that was logged last.
    pub logged: State,
    /// Number of restores of the remote cluster that were logged.
    pub restores_logged: u64,
    /// State that operators see.
    pub shown: State,
    /// Memory for reads.
    pub buffer: Vec<u8>,
    /// Time at which operators get the counters again.
    pub next_view: Time,
    /// Tokens that wait for answers of the remote broker.
    pub held: HeldTokens,
    /// [`Relay::settles`] and the state at the last look at `held`.
    pub looked: (u64, State),
}

impl Driver {
    /// Runs until the owner drops the sender of the commands.
    pub fn run(mut self) {
        let mut events = Events::with_capacity(16);
        loop {
            if !self.take_commands() {
                self.handle(Input::Stop { within: Duration::ZERO });
                self.handle(Input::Timeout);
                self.obey();
                self.published.is_running.store(false, Ordering::Relaxed);
                return;
            }
            self.go_on();
            self.take_opened();
            // What one step sends may allow the next one.
            let is_busy = (0..STEPS_AT_ONCE).all(|_| self.obey() | self.write() | self.read());
            self.publish();
            let now = self.now();
            let due = self.relay.poll_timeout().map_or(VIEW, |due| due.since(now)).min(VIEW);
            let due = if is_busy { Duration::ZERO } else { due };
            if let Err(error) = self.poll.poll(&mut events, Some(due))
                && error.kind() != io::ErrorKind::Interrupted
            {
                let (noun, name) = (self.settings.noun, &self.settings.relay.name);
                tracing::error!(%error, name, "{noun}: the sockets cannot be polled; its thread ends");
                self.published.is_running.store(false, Ordering::Relaxed);
                return;
            }
            for event in &events {
                match event.token() {
                    LOCAL => self.readable[0] = true,
                    REMOTE => self.readable[1] = true,
                    _ => {}
                }
            }
            let now = self.now();
            if self.relay.poll_timeout().is_some_and(|due| due <= now) {
                self.handle(Input::Timeout);
            }
        }
    }

    fn now(&self) -> Time {
        Time(self.clock.elapsed().as_micros() as u64)
    }

    fn handle(&mut self, input: Input<'_>) {
        if let Err(error) = self.relay.handle(self.now(), input) {
            let (noun, name) = (self.settings.noun, &self.settings.relay.name);
            tracing::error!(%error, name, "{noun}: settings are refused");
        }
    }

    /// Returns false when the owner is gone.
    fn take_commands(&mut self) -> bool {
        loop {
            match self.commands.try_recv() {
                Ok(Command::Decided(ticket, decision)) => self.decided(ticket, decision),
                Ok(Command::Queued(count)) => self.handle(Input::Queued(count)),
                Ok(Command::Want { number, add, remove }) => {
                    self.handle(Input::Want { number, add, remove });
                    // What nobody wants any more is not waited for.
                    self.looked.0 = u64::MAX;
                }
                Ok(Command::Hold(held)) => self.held.push(held, |filter| self.relay.is_pending(filter)),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return false,
            }
        }
    }

    fn decided(&mut self, ticket: Ticket, decision: Decision) {
        // A later decision may have overtaken this one.
        let is_last = ticket > self.ticket;
        self.ticket = self.ticket.max(ticket);
        match decision {
            Decision::Run(number, mut run) if is_last => {
                // The next relay continues with the filters of this one.
                if let Some(filters) = run.wanted.take() {
                    self.handle(Input::WantOnly { number, filters });
                }
                self.run = Some(run);
            }
            Decision::Run(..) => {}
            Decision::Stop(within) if is_last => {
                self.handle(Input::Stop { within });
                self.run = None;
                self.health.stop();
            }
            Decision::Stop(_) => {}
        }
    }

    /// Starts the relay if that was decided, and it does not run or end.
    fn go_on(&mut self) {
        let Some(Run { filters, own_id, .. }) = &self.run else { return };
        let is_at_rest = matches!(self.relay.state(), State::New | State::Stopped { .. });
        if self.started_for == self.ticket || !is_at_rest {
            return;
        }
        let (filters, own_id) = (filters.clone(), own_id.clone());
        self.started_for = self.ticket;
        self.health.start(self.now());
        // The connections of the last run close.
        self.obey();
        let filters = Sides { local: filters, remote: Vec::new() };
        let existing = Existing { filters, ..Existing::default() };
        let counters = self.relay.counters().clone();
        match Relay::new(self.settings.relay.clone(), &own_id, existing, self.random.draw()) {
            Ok(relay) => self.relay = relay.with_counters(counters).with_interest_of(&self.relay),
            Err(error) => {
                let (noun, name) = (self.settings.noun, &self.settings.relay.name);
                tracing::error!(%error, name, "{noun}: settings are refused");
                return;
            }
        }
        self.handle(Input::Start);
    }

    /// Opens and closes connections. Returns whether the relay has had a request.
    fn obey(&mut self) -> bool {
        let mut has_obeyed = false;
        while let Some(output) = self.relay.poll_output() {
            has_obeyed = true;
            match output {
                Output::Open { connection, address: None } => self.open_local(connection),
                Output::Open { connection, address: Some(address) } => self.open_remote(connection, &address),
                Output::Close { connection, rest } => self.close(connection, &rest),
                Output::StateChanged => self.log_state(),
            }
        }
        has_obeyed
    }

    fn open_local(&mut self, connection: ConnectionId) {
        let opened = self.door.open().and_then(|stream| {
            stream.set_nonblocking(true)?;
            let mut stream = mio::net::UnixStream::from_std(stream);
            let interest = Interest::READABLE | Interest::WRITABLE;
            self.poll.registry().register(&mut stream, LOCAL, interest)?;
            Ok(stream)
        });
        match opened {
            Ok(stream) => {
                self.local = Some((connection, stream));
                self.handle(Input::Opened(connection));
            }
            Err(error) => self.handle(Input::Failed(connection, error.to_string())),
        }
    }

    fn open_remote(&mut self, connection: ConnectionId, address: &str) {
        // Files are read again, because certificates are renewed and passwords change.
        let credentials = &self.settings.credentials;
        let tls = credentials.tls().map_err(|problem| problem.to_string());
        let password = credentials.password().map_err(|problem| problem.to_string());
        let target = Target {
            address: address.to_owned(),
            tls: None,
            tls_server_name: credentials.tls_server_name().map(str::to_owned),
            websocket_path: credentials.websocket_path().map(str::to_owned),
        };
        let begun = tls.and_then(|tls| {
            let password = password?;
            let target = Target { tls, ..target };
            self.opening.begin(connection, move || Remote::open(&target))?;
            Ok(password)
        });
        match begun {
            Ok(password) => self.opens = Some((connection, password)),
            Err(why) => self.handle(Input::Failed(connection, why)),
        }
    }

    /// Takes over a connection that was opened, unless the relay has given it up.
    fn take_opened(&mut self) {
        let Some((connection, opened)) = self.opening.take() else { return };
        let Some((_, password)) = self.opens.take_if(|(id, _)| *id == connection) else { return };
        let opened = opened.and_then(|mut remote| {
            remote.register(self.poll.registry(), REMOTE).map_err(|error| error.to_string())?;
            Ok(remote)
        });
        match opened {
            Ok(remote) => {
                self.remote = Some((connection, remote));
                self.handle(Input::Password(password.map(Password::new)));
                self.handle(Input::Opened(connection));
            }
            Err(why) => self.handle(Input::Failed(connection, why)),
        }
    }

    fn close(&mut self, connection: ConnectionId, rest: &[u8]) {
        match connection.side {
            Side::Local => {
                if let Some((_, mut stream)) = self.local.take_if(|(id, _)| *id == connection) {
                    // A DISCONNECT that does not fit into the socket is not worth a wait.
                    let _ = stream.write(rest);
                }
            }
            Side::Remote => {
                self.opens.take_if(|(id, _)| *id == connection);
                if let Some((_, mut remote)) = self.remote.take_if(|(id, _)| *id == connection) {
                    // The same.
                    let _ = remote.write(rest);
                    remote.close();
                }
            }
        }
    }

    /// Writes what the relay has for each side. Returns whether anything was written.
    fn write(&mut self) -> bool {
        let mut has_written = false;
        for side in Side::ALL {
            let Some(connection) = self.relay.connection(side) else { continue };
            let bytes = self.relay.outgoing(side);
            let written = match side {
                Side::Local => match &mut self.local {
                    Some((id, stream)) if *id == connection && !bytes.is_empty() => match stream.write(bytes)
                    {
                        Err(error) if error.kind() == io::ErrorKind::WouldBlock => continue,
                        written => written.map_err(|error| error.to_string()),
                    },
                    _ => continue,
                },
                Side::Remote => match &mut self.remote {
                    Some((id, remote)) if *id == connection && (!bytes.is_empty() || remote.has_unsent()) => {
                        remote.write(bytes).map_err(|error| remote.explain(&error))
                    }
                    _ => continue,
                },
            };
            match written {
                Ok(0) => {}
                Ok(count) => {
                    has_written = true;
                    self.handle(Input::Sent(connection, count));
                }
                Err(why) => self.lost(connection, why),
            }
        }
        has_written
    }

    /// Reads from the sides that the relay can handle. Returns whether anything was read.
    fn read(&mut self) -> bool {
        let mut has_read = false;
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.resize(READ, 0);
        for (at, side) in Side::ALL.into_iter().enumerate() {
            for _ in 0..READS_AT_ONCE {
                if !self.readable[at] || !self.relay.wants_read(side) {
                    break;
                }
                let Some(connection) = self.relay.connection(side) else { break };
                let read = match side {
                    Side::Local => match &mut self.local {
                        Some((id, stream)) if *id == connection => stream.read(&mut buffer),
                        _ => break,
                    },
                    Side::Remote => match &mut self.remote {
                        Some((id, remote)) if *id == connection => remote.read(&mut buffer),
                        _ => break,
                    },
                };
                match read {
                    Ok(0) => {
                        self.lost(connection, "the broker closed the connection".to_owned());
                        has_read = true;
                    }
                    Ok(count) => {
                        has_read = true;
                        self.handle(Input::Received(connection, &buffer[..count]));
                    }
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => self.readable[at] = false,
                    Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                    Err(error) => {
                        let why = match &self.remote {
                            Some((_, remote)) if side == Side::Remote => remote.explain(&error),
                            _ => error.to_string(),
                        };
                        self.lost(connection, why);
                        has_read = true;
                    }
                }
            }
        }
        self.buffer = buffer;
        has_read
    }

    fn lost(&mut self, connection: ConnectionId, why: String) {
        match connection.side {
            Side::Local => drop(self.local.take_if(|(id, _)| *id == connection)),
            Side::Remote => drop(self.remote.take_if(|(id, _)| *id == connection)),
        }
        self.handle(Input::Closed(connection, why));
    }

    fn log_state(&mut self) {
        let (noun, name) = (self.settings.noun, &*self.settings.relay.name);
        let state = self.relay.state();
        if std::mem::replace(&mut self.logged, state.clone()) == state {
            return;
        }
        match state {
            State::Connected { address, .. } => tracing::info!(name, address, "{noun}: connected"),
            State::Waiting { reason, .. } => tracing::warn!(name, reason, "{noun}: not connected"),
            State::Stopped { reason } => tracing::info!(name, reason, "{noun}: stopped"),
            state => tracing::debug!(name, %state, "{noun}"),
        }
    }

    /// Drops what waits for filters that the remote broker has answered.
    fn release_held(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let seen = (self.relay.settles(), self.relay.state());
        if std::mem::replace(&mut self.looked, seen.clone()) != seen {
            self.held.retain(|filter| self.relay.is_pending(filter));
        }
    }

    /// Shows operators the state, at once when it has changed.
    fn publish(&mut self) {
        self.release_held();
        let settled = self.relay.settled_number();
        if self.published.settled.swap(settled, Ordering::Relaxed) < settled {
            (self.settings.on_settled)(settled);
        }
        let restores = self.relay.counters().remote_restores;
        if std::mem::replace(&mut self.restores_logged, restores) < restores {
            let (noun, name) = (self.settings.noun, &*self.settings.relay.name);
            tracing::warn!(
                name,
                "{noun}: the other cluster continues from a backup; comparing subscriptions again. Messages of the \
                 time since the backup may be missing, and earlier ones may come again"
            );
        }
        let (now, state) = (self.now(), self.relay.state());
        // A connection may last less than the time between two views.
        let is_failing = self.health.look(Look::at(now, &self.relay), self.run.is_some());
        if now < self.next_view && state == self.shown {
            return;
        }
        self.next_view = now.after(VIEW);
        self.shown = state.clone();
        let is_running = !matches!(state, State::New | State::Stopped { .. });
        self.published.is_running.store(is_running, Ordering::Relaxed);
        self.published.is_idle.store(state == State::Idle, Ordering::Relaxed);
        let text = state.to_string();
        let (address, connected_s) = match state {
            State::Connected { address, since } => (Some(address), Some(now.since(since).as_secs())),
            State::Connecting { address } => (Some(address), None),
            _ => (None, None),
        };
        *sync::lock(&self.published.view) = RunnerView {
            state: text,
            address,
            is_failing,
            connected_s,
            counters: self.relay.counters().clone(),
            in_flight_out: self.relay.in_flight(Side::Local) as u64,
            in_flight_in: self.relay.in_flight(Side::Remote) as u64,
            last_error: self.relay.last_error().map(str::to_owned),
            filters_wanted: self.relay.wanted() as u64,
            filters_subscribed: self.relay.subscribed() as u64,
            history: self.relay.history().map(str::to_owned),
            may_have_stale: self.relay.may_have_stale(),
        };
    }
}
