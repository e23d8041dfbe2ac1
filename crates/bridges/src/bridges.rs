//! All bridges of a node, and the thread that starts and stops them.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bridge::{Counters, Existing, Relay, State, Time};
use broker::admin::{Admin, ClientDetail, SubscriptionInfo};
use edge::Door;
use mio::{Poll, Waker};
use random::Random;

use crate::driver::{Command, Driver, WAKER, Wanted};
use crate::settings::{BridgeProblem, BridgeSettings, QueueFull};

/// Time between two looks at what each bridge has to do.
const LOOK: Duration = Duration::from_millis(500);
/// Maximum time for the messages in flight of a bridge that moves to another node, or whose node stops.
const STOP_MAX: Duration = Duration::from_secs(2);

/// Maximum number of subscriptions of earlier settings that a bridge ends.
const FILTERS_MAX: usize = 1000;

/// State of a bridge, as its thread said last.
#[derive(Clone, Debug, Default)]
pub struct BridgeView {
    pub name: String,
    pub is_enabled: bool,
    /// Client Identifier of the session in which messages wait.
    pub session: String,
    pub state: String,
    /// True when it is wanted and has had no connection for some time.
    pub is_failing: bool,
    /// Seconds since it is connected.
    pub connected_s: Option<u64>,
    pub counters: Counters,
    /// Messages that wait in the session, if this node leads its shard.
    pub queued: u64,
    /// Messages for the other broker that are not complete.
    pub in_flight_out: u64,
    /// Messages of the other broker that are not complete.
    pub in_flight_in: u64,
    pub last_error: Option<String>,
}

/// Facts that the thread of a bridge tells others.
#[derive(Default)]
pub struct Published {
    pub state: Mutex<BridgeView>,
    /// True while this node leads the shard of the session.
    pub is_here: AtomicBool,
    /// True until the bridge has stopped.
    pub is_running: AtomicBool,
    pub is_idle: AtomicBool,
    /// Number of messages that wait in the session.
    pub queued: AtomicU64,
}

/// The bridges of a node. Dropping it stops them.
pub struct Bridges {
    handles: Vec<Arc<Handle>>,
    /// Dropped at the end, which stops the thread that looks at the bridges.
    stop: Mutex<Option<SyncSender<()>>>,
}

struct Handle {
    name: String,
    client_id: String,
    is_enabled: bool,
    /// True if its queue refuses messages when it is full. All nodes of the cluster must understand that.
    refuses: bool,
    commands: Mutex<Sender<Command>>,
    waker: Waker,
    published: Arc<Published>,
    /// Number of the last decision whether it runs.
    decisions: AtomicU64,
}

impl Handle {
    fn next_decision(&self) -> u64 {
        self.decisions.fetch_add(1, Ordering::Relaxed) + 1
    }

    fn stop(&self) {
        self.command(Command::Wanted(self.next_decision(), Wanted::Stop(STOP_MAX)));
    }

    fn view(&self) -> BridgeView {
        let published = sync::lock(&self.published.state).clone();
        BridgeView {
            name: self.name.clone(),
            is_enabled: self.is_enabled,
            session: self.client_id.clone(),
            queued: self.published.queued.load(Ordering::Relaxed),
            ..published
        }
    }

    fn command(&self, command: Command) {
        // The thread of a bridge ends only with the node, or after an error that it has logged.
        let _ = sync::lock(&self.commands).send(command);
        let _ = self.waker.wake();
    }
}

impl Bridges {
    /// Starts the threads of the bridges. `name` is that of this node, or of its cluster.
    ///
    /// # Errors
    /// The name of a bridge, and what is wrong with it.
    pub fn start(
        settings: &[BridgeSettings],
        name: &str,
        door: &Door,
        admin: &Admin,
    ) -> Result<Self, (String, BridgeProblem)> {
        let mut handles = Vec::new();
        for settings in settings {
            let handle = start(settings, door).map_err(|problem| (settings.name.clone(), problem))?;
            handles.push(Arc::new(handle));
        }
        let stop = match handles.is_empty() {
            true => None,
            false => Some(
                look_after(handles.clone(), name.to_owned(), admin.clone())
                    .map_err(|why| (String::new(), why))?,
            ),
        };
        Ok(Self { handles, stop: Mutex::new(stop) })
    }

    /// Bridges whose sessions are in shards that this node leads, in the order of the configuration.
    pub fn views(&self) -> Vec<BridgeView> {
        let here = self.handles.iter().filter(|handle| handle.published.is_here.load(Ordering::Relaxed));
        here.map(|handle| handle.view()).collect()
    }

    /// Completes what is in flight, and closes the connections. Returns after about two seconds at most.
    pub fn stop(&self) {
        drop(sync::lock(&self.stop).take());
        self.handles.iter().for_each(|handle| handle.stop());
        let deadline = Instant::now() + STOP_MAX;
        let is_running = |handle: &Arc<Handle>| handle.published.is_running.load(Ordering::Relaxed);
        while self.handles.iter().any(is_running) && Instant::now() < deadline {
            // tidy: allow(thread-sleep): the node stops, and no reactor waits for this thread.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn start(settings: &BridgeSettings, door: &Door) -> Result<Handle, BridgeProblem> {
    settings.check()?;
    let failed = |why: &dyn std::fmt::Display| BridgeProblem { setting: "name", why: why.to_string() };
    settings.tls()?;
    let relay = settings.relay(settings.password()?);
    let client_id = relay.local_client_id();
    let mut seed = [0; 8];
    getrandom::fill(&mut seed).map_err(|error| failed(&error))?;
    let mut random = Random::new(u64::from_le_bytes(seed));
    let relay = Relay::new(relay, "", Existing::default(), random.draw());
    let relay = relay.map_err(|error| failed(&error))?;
    let poll = Poll::new().map_err(|error| failed(&error))?;
    let waker = Waker::new(poll.registry(), WAKER).map_err(|error| failed(&error))?;
    // tidy: allow(unbounded-channel): two commands a second at most, and the thread takes all of them at once.
    let (commands, received) = channel();
    let published = Arc::new(Published::default());
    let driver = Driver {
        relay,
        random,
        settings: settings.clone(),
        wanted: (0, Wanted::Stop(Duration::ZERO)),
        started_for: 0,
        missing_since: None,
        poll,
        door: door.clone(),
        commands: received,
        published: published.clone(),
        clock: Instant::now(),
        local: None,
        remote: None,
        readable: [false; 2],
        logged: State::New,
        shown: State::New,
        buffer: Vec::new(),
        next_view: Time::default(),
    };
    critical::spawn(format!("bridge-{}", settings.name), move || driver.run())
        .map_err(|error| failed(&error))?;
    let commands = Mutex::new(commands);
    let (name, is_enabled) = (settings.name.clone(), settings.enabled);
    let decisions = AtomicU64::new(0);
    let refuses = settings.queue_full == QueueFull::Refuse;
    Ok(Handle { name, client_id, is_enabled, refuses, commands, waker, published, decisions })
}

/// Starts the thread that starts each bridge where the shard of its session is led, and stops it elsewhere.
fn look_after(
    handles: Vec<Arc<Handle>>,
    name: String,
    admin: Admin,
) -> Result<SyncSender<()>, BridgeProblem> {
    let (stop, stopped) = sync_channel::<()>(1);
    let run = move || {
        let mut runs = vec![(false, false); handles.len()];
        loop {
            for (handle, (runs, has_warned)) in handles.iter().zip(&mut runs) {
                let is_here = admin.hosts_internal(&handle.client_id);
                handle.published.is_here.store(is_here, Ordering::Relaxed);
                let waits = handle.refuses && !admin.reads_queue_refusals();
                if waits && is_here && handle.is_enabled && !*has_warned {
                    *has_warned = true;
                    tracing::warn!(
                        bridge = handle.name,
                        "bridge: queue_full = \"refuse\" waits until all nodes of the cluster have this version"
                    );
                }
                let wanted = handle.is_enabled && is_here && !waits;
                if wanted != *runs {
                    *runs = wanted;
                    match wanted {
                        true => run_with_filters(handle, admin.unique_name(&name), &admin),
                        false => handle.stop(),
                    }
                }
                match is_here {
                    true => ask_queued(handle, &admin),
                    false => handle.published.queued.store(0, Ordering::Relaxed),
                }
            }
            match stopped.recv_timeout(LOOK) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    };
    critical::spawn("bridges", run)
        .map_err(|error| BridgeProblem { setting: "name", why: error.to_string() })?;
    Ok(stop)
}

/// Lets a bridge run, with the filters that its session has from earlier settings.
fn run_with_filters(handle: &Arc<Handle>, own_id: String, admin: &Admin) {
    let (of, number) = (handle.clone(), handle.next_decision());
    let answered = move |found: Option<(Vec<SubscriptionInfo>, Option<usize>)>| {
        let subscriptions = found.map_or_else(Vec::new, |(subscriptions, _)| subscriptions);
        let filters = subscriptions.into_iter().map(|subscription| subscription.filter.into()).collect();
        of.command(Command::Wanted(number, Wanted::Run { filters, own_id }));
    };
    admin.client_subscriptions(&handle.client_id, 0, FILTERS_MAX, Box::new(answered));
}

/// Asks how many messages wait in the session of a bridge.
fn ask_queued(handle: &Arc<Handle>, admin: &Admin) {
    let of = handle.clone();
    let answered = move |detail: Option<Box<ClientDetail>>| {
        let Some(session) = detail.and_then(|detail| detail.session) else { return };
        of.published.queued.store(session.queued_messages as u64, Ordering::Relaxed);
        if of.published.is_idle.load(Ordering::Relaxed) {
            // What was in flight comes again.
            of.command(Command::Queued((session.queued_messages + session.inflight) as u64));
        }
    };
    admin.client(&handle.client_id, Box::new(answered));
}
