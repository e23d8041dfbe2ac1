//! A relay with a thread of its own.

use std::fmt::Display;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bridge::{Counters, Existing, Relay, State, Time};
use edge::Door;
use mio::{Poll, Waker};
use random::Random;
use rustls::ClientConfig;

use crate::driver::{Command, Decision, Driver, WAKER};
use crate::health::Health;
use crate::held::{Held, HeldTokens, Until};
use crate::opening::Opening;
use crate::settings::BridgeProblem;

/// Password and TLS of a relay at the remote broker. They are asked for at each connection.
pub trait Credentials: Send {
    /// Returns the password of the remote session.
    ///
    /// # Errors
    /// The reason why there is none now. The relay tries again later.
    fn password(&self) -> Result<Option<Vec<u8>>, BridgeProblem>;

    /// Returns the files of TLS; `None` without TLS.
    ///
    /// # Errors
    /// A file cannot be used. The relay tries again later.
    fn tls(&self) -> Result<Option<Arc<ClientConfig>>, BridgeProblem>;

    /// Returns the host name that the certificate of the remote broker must have; `None` for that of its address.
    fn tls_server_name(&self) -> Option<&str>;

    /// Returns the path of the WebSocket at the remote broker; `None` without WebSocket.
    fn websocket_path(&self) -> Option<&str> {
        None
    }
}

/// Settings of a [`Runner`].
pub struct RunnerSettings {
    /// Word for the relay in the log, such as `bridge`.
    pub noun: &'static str,
    /// Name of its thread.
    pub thread: String,
    /// Settings of the relay. The password is that of `credentials`.
    pub relay: bridge::Settings,
    pub credentials: Box<dyn Credentials>,
    /// Called on the thread of the relay when [`Runner::settled_number`] has grown. It must not block.
    pub on_settled: Box<dyn Fn(u64) + Send>,
}

/// Facts with which a relay starts.
#[derive(Clone, Debug, Default)]
pub struct Run {
    /// Filters of the subscriptions of the local session, from earlier settings.
    pub filters: Vec<String>,
    /// Name of this node, or of its cluster, in the hops of messages.
    pub own_id: String,
    /// All filters that are wanted at the remote broker, if they change while the relay runs.
    pub wanted: Option<Vec<Box<str>>>,
}

/// Number of a decision whether a relay runs. A later decision has a higher number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(u64);

/// State of a relay, as its thread said last.
#[derive(Clone, Debug, Default)]
pub struct RunnerView {
    pub state: String,
    /// Address of the remote broker, while the relay is connected or connects.
    pub address: Option<String>,
    /// True when it is to run and has made no progress for some time.
    pub is_failing: bool,
    /// Seconds since it is connected.
    pub connected_s: Option<u64>,
    pub counters: Counters,
    /// Messages for the remote broker that are not complete.
    pub in_flight_out: u64,
    /// Messages of the remote broker that are not complete.
    pub in_flight_in: u64,
    pub last_error: Option<String>,
    /// Number of filters that are wanted at the remote broker.
    pub filters_wanted: u64,
    /// Number of these that the remote broker has confirmed.
    pub filters_subscribed: u64,
    /// Name of the state that the sessions of the remote cluster continue.
    pub history: Option<String>,
    /// True when the remote session may have subscriptions that are not wanted, because it was not listed.
    pub may_have_stale: bool,
}

/// Facts that the thread of a relay tells others.
#[derive(Default)]
pub struct Published {
    pub view: Mutex<RunnerView>,
    /// True until the relay has stopped.
    pub is_running: AtomicBool,
    /// True while a lazy relay waits for messages.
    pub is_idle: AtomicBool,
    pub settled: AtomicU64,
}

/// A relay with a thread of its own. The thread ends when the runner is dropped. Messages that are in flight then come
/// again: [`Self::stop`] completes them first.
pub struct Runner {
    commands: Mutex<Commands>,
    waker: Arc<Waker>,
    published: Arc<Published>,
    decisions: AtomicU64,
}

struct Commands {
    sender: Sender<Command>,
    /// Number of the last change of the wanted filters.
    wants: u64,
}

impl Runner {
    /// Starts the thread of a relay. The relay does not run yet.
    ///
    /// # Errors
    /// A setting is not valid, or the system has no more threads or files.
    pub fn spawn(settings: RunnerSettings, door: &Door) -> Result<Self, BridgeProblem> {
        let failed = |why: &dyn Display| BridgeProblem { setting: "name", why: why.to_string() };
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(|error| failed(&error))?;
        let mut random = Random::new(u64::from_le_bytes(seed));
        let relay = Relay::new(settings.relay.clone(), "", Existing::default(), random.draw());
        let relay = relay.map_err(|error| failed(&error))?;
        let poll = Poll::new().map_err(|error| failed(&error))?;
        let waker = Arc::new(Waker::new(poll.registry(), WAKER).map_err(|error| failed(&error))?);
        // tidy: allow(unbounded-channel): the owner joins its changes, and the thread takes all commands at once.
        let (sender, received) = channel();
        let published = Arc::new(Published::default());
        let thread = settings.thread.clone();
        let driver = Driver {
            relay,
            random,
            settings,
            ticket: Ticket::default(),
            run: None,
            started_for: Ticket::default(),
            health: Health::default(),
            poll,
            door: door.clone(),
            commands: received,
            published: published.clone(),
            clock: Instant::now(),
            local: None,
            remote: None,
            opening: Opening::new(waker.clone()),
            opens: None,
            readable: [false; 2],
            logged: State::New,
            restores_logged: 0,
            shown: State::New,
            buffer: Vec::new(),
            next_view: Time::default(),
            held: HeldTokens::default(),
            looked: (0, State::New),
        };
        critical::spawn(thread, move || driver.run()).map_err(|error| failed(&error))?;
        let commands = Mutex::new(Commands { sender, wants: 0 });
        Ok(Self { commands, waker, published, decisions: AtomicU64::new(0) })
    }

    /// Begins a decision. Of two decisions the later one counts, whatever the order in which they are carried out.
    pub fn ticket(&self) -> Ticket {
        Ticket(self.decisions.fetch_add(1, Ordering::Relaxed) + 1)
    }

    /// Lets the relay run, unless a later decision exists. Returns the number of `Run::wanted` for
    /// [`Self::settled_number`].
    pub fn run(&self, ticket: Ticket, run: Run) -> u64 {
        self.numbered(|number| Command::Decided(ticket, Decision::Run(number, run)))
    }

    /// Completes what is in flight, for at most this time, and closes the connections.
    pub fn stop(&self, within: Duration) {
        self.send(Command::Decided(self.ticket(), Decision::Stop(within)));
    }

    /// Changes the filters that are wanted at the remote broker. Returns the number of this change for
    /// [`Self::settled_number`].
    pub fn want(&self, add: Vec<Box<str>>, remove: Vec<Box<str>>) -> u64 {
        self.numbered(|number| Command::Want { number, add, remove })
    }

    /// Keeps `until` until the remote broker has confirmed or refused these filters, and drops it then. Filters of
    /// earlier changes count. It is dropped, too, when no answer is expected any more: when the connection is lost or
    /// cannot be made, when the relay stops, and with the runner. If too many are kept, its flag stays as it is.
    pub fn hold(&self, filters: Vec<Box<str>>, until: Until) {
        self.send(Command::Hold(Held { filters, until }));
    }

    /// Notes how many messages wait in the local session. A lazy relay needs it.
    pub fn queued(&self, count: u64) {
        self.send(Command::Queued(count));
    }

    /// Returns the number of the last change whose filters the remote broker has confirmed or refused, with those of
    /// all earlier changes.
    pub fn settled_number(&self) -> u64 {
        self.published.settled.load(Ordering::Relaxed)
    }

    /// State of the relay. It is at most half a second old.
    pub fn view(&self) -> RunnerView {
        sync::lock(&self.published.view).clone()
    }

    /// Returns whether the relay was started and has not stopped.
    pub fn is_running(&self) -> bool {
        self.published.is_running.load(Ordering::Relaxed)
    }

    /// Returns whether a lazy relay waits for messages.
    pub fn is_idle(&self) -> bool {
        self.published.is_idle.load(Ordering::Relaxed)
    }

    fn numbered(&self, command: impl FnOnce(u64) -> Command) -> u64 {
        let mut commands = sync::lock(&self.commands);
        commands.wants += 1;
        // The thread ends only after an error that it has logged.
        let _ = commands.sender.send(command(commands.wants));
        let _ = self.waker.wake();
        commands.wants
    }

    fn send(&self, command: Command) {
        // The same.
        let _ = sync::lock(&self.commands).sender.send(command);
        let _ = self.waker.wake();
    }
}
