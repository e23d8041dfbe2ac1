//! All bridges of a node, and the thread that starts and stops them.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bridge::Counters;
use broker::admin::{Admin, ClientDetail};
use definitions::{Definition, Named, Source, usable};
use edge::Door;

use crate::end_session::end_session;
use crate::leftover::{Found, LeftoverView, Leftovers};
use crate::queue::{Queue, QueueWatch};
use crate::registry::Registry;
use crate::runner::{Run, Runner, RunnerSettings};
use crate::settings::{BridgeProblem, BridgeSettings, QueueFull};

/// Time between two looks at what each bridge has to do.
const LOOK: Duration = Duration::from_millis(500);
/// Maximum time for the messages in flight of a bridge that moves to another node, is replaced, or whose node stops.
const STOP_MAX: Duration = Duration::from_secs(2);
/// Pause after a bridge that did not start.
const RETRY: Duration = Duration::from_secs(5);
/// Maximum time for the removal of a session.
const REMOVAL_MAX: Duration = Duration::from_secs(10);
/// Time after which other nodes have stopped a bridge that was removed.
const OTHER_NODES: Duration = Duration::from_secs(1);

/// State of a bridge, as its thread said last.
#[derive(Clone, Debug, Default)]
pub struct BridgeView {
    pub name: String,
    /// False for a session whose bridge is not configured any more.
    pub is_configured: bool,
    /// `None` for a session whose bridge is not configured any more.
    pub source: Option<Source>,
    pub is_enabled: bool,
    /// Client Identifier of the session in which messages wait.
    pub session: String,
    pub state: String,
    /// True when it is wanted and has made no progress for some time.
    pub is_failing: bool,
    /// Seconds since it is connected.
    pub connected_s: Option<u64>,
    pub counters: Counters,
    /// Messages that wait in the session, if this node leads its shard.
    pub queue: Queue,
    /// Messages for the other broker that are not complete.
    pub in_flight_out: u64,
    /// Messages of the other broker that are not complete.
    pub in_flight_in: u64,
    pub last_error: Option<String>,
}

/// The bridges of a node. Dropping it stops them.
pub struct Bridges {
    registry: Arc<Registry>,
    shared: Arc<Shared>,
    leftovers: Found,
    door: Door,
    /// Dropped at the end, which stops the thread that looks at the bridges.
    stop: Mutex<Option<SyncSender<()>>>,
}

/// Facts that the thread tells others.
#[derive(Default)]
struct Shared {
    /// Bridges that can run, by name.
    handles: Mutex<BTreeMap<String, Arc<Handle>>>,
    /// Bridges that were replaced or removed and have not stopped, with the time of that.
    ending: Mutex<Vec<(Instant, Arc<Handle>)>>,
    /// Bridges that cannot run.
    faulty: Mutex<Vec<BridgeView>>,
    /// Number of the last definitions that the thread has taken over.
    seen: AtomicU64,
}

impl Shared {
    fn all(&self) -> Vec<Arc<Handle>> {
        sync::lock(&self.handles).values().cloned().collect()
    }

    /// Forgets bridges that have stopped, which ends their threads. One that was started just before its end does not
    /// run yet.
    fn sweep(&self) {
        let is_ending =
            |(since, handle): &(Instant, Arc<Handle>)| since.elapsed() < LOOK || handle.runner.is_running();
        sync::lock(&self.ending).retain(is_ending);
    }

    /// Returns whether a bridge with this name has not stopped, other than the one that is configured.
    fn is_ending(&self, name: &str) -> bool {
        sync::lock(&self.ending).iter().any(|(_, handle)| handle.settings.name == name)
    }
}

struct Handle {
    settings: BridgeSettings,
    source: Source,
    client_id: String,
    runner: Runner,
    /// True while this node leads the shard of the session.
    is_here: AtomicBool,
    queue: Mutex<QueueWatch>,
}

impl Handle {
    /// Starts the thread of a bridge. It does not run yet.
    fn start(bridge: &Definition<BridgeSettings>, door: &Door) -> Result<Self, BridgeProblem> {
        let settings = bridge.settings.clone();
        let relay = settings.relay();
        let client_id = relay.local_client_id();
        let runner = RunnerSettings {
            noun: "bridge",
            thread: format!("bridge-{}", settings.name),
            relay,
            credentials: Box::new(settings.clone()),
            on_settled: Box::new(|_| ()),
        };
        Ok(Self {
            source: bridge.source,
            client_id,
            runner: Runner::spawn(runner, door)?,
            is_here: AtomicBool::new(false),
            queue: Mutex::default(),
            settings,
        })
    }

    /// Returns whether this is the bridge of a definition.
    fn is_of(&self, bridge: &Definition<BridgeSettings>) -> bool {
        self.settings == bridge.settings && self.source == bridge.source
    }

    fn view(&self) -> BridgeView {
        let view = self.runner.view();
        BridgeView {
            name: self.settings.name.clone(),
            is_configured: true,
            source: Some(self.source),
            is_enabled: self.settings.enabled,
            session: self.client_id.clone(),
            state: view.state,
            is_failing: view.is_failing,
            connected_s: view.connected_s,
            counters: view.counters,
            queue: sync::lock(&self.queue).queue(),
            in_flight_out: view.in_flight_out,
            in_flight_in: view.in_flight_in,
            last_error: view.last_error,
        }
    }
}

impl Bridges {
    /// Starts the threads of the bridges. `name` is that of this node, or of its cluster.
    ///
    /// # Errors
    /// The name of a bridge of the configuration file, and what is wrong with it.
    pub fn start(
        registry: Arc<Registry>,
        name: &str,
        door: &Door,
        admin: &Admin,
    ) -> Result<Self, (String, BridgeProblem)> {
        let all = registry.definitions();
        for bridge in all.values().filter(|bridge| bridge.source == Source::File) {
            // What is wrong with files is known at the start.
            let checked = bridge.settings.check_with_files();
            checked.map_err(|problem| (bridge.settings.name.clone(), problem))?;
        }
        let shared = Arc::new(Shared::default());
        let leftovers = Leftovers::new();
        let found = leftovers.found();
        let mut thread = Thread {
            registry: registry.clone(),
            shared: shared.clone(),
            door: door.clone(),
            admin: admin.clone(),
            name: name.to_owned(),
            runs: BTreeMap::new(),
            failed: BTreeMap::new(),
            leftovers,
            read: None,
            retry: None,
        };
        thread.take_over();
        if let Some((name, problem)) = thread.failed.pop_first() {
            return Err((name, problem));
        }
        let (stop, stopped) = sync_channel::<()>(1);
        critical::spawn("bridges", move || thread.run(&stopped))
            .map_err(|error| (String::new(), BridgeProblem { setting: "name", why: error.to_string() }))?;
        Ok(Self { registry, shared, leftovers: found, door: door.clone(), stop: Mutex::new(Some(stop)) })
    }

    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Bridges whose sessions are in shards that this node leads, by name. Those that cannot run, and sessions without
    /// a bridge, follow.
    pub fn views(&self) -> Vec<BridgeView> {
        let all = self.shared.all();
        let here = all.iter().filter(|handle| handle.is_here.load(Ordering::Relaxed));
        let faulty = sync::lock(&self.shared.faulty).clone();
        let leftovers = self.leftovers.views().into_iter().map(left_over);
        here.map(|handle| handle.view()).chain(faulty).chain(leftovers).collect()
    }

    /// Ends the session of a bridge that was removed, with the messages that wait in it. Returns false when there is
    /// none. It blocks for some seconds at most: until the bridge has stopped here, and other nodes know that it was
    /// removed.
    ///
    /// # Errors
    /// The session stays, and a new bridge with this name gets its messages.
    pub fn remove_session(&self, name: &str) -> Result<bool, String> {
        let (began, changes) = (Instant::now(), self.registry.changes());
        let has_stopped = || {
            self.shared.sweep();
            self.shared.seen.load(Ordering::Acquire) >= changes && !self.shared.is_ending(name)
        };
        while began.elapsed() < REMOVAL_MAX && (!has_stopped() || began.elapsed() < OTHER_NODES) {
            // tidy: allow(thread-sleep): a thread of the API that waits for this anyway.
            std::thread::sleep(Duration::from_millis(50));
        }
        let session = session_of(name);
        end_session(&self.door, &session, None, REMOVAL_MAX)
            .map_err(|why| format!("the session {session} was not removed: {why}"))
    }

    /// Completes what is in flight, and closes the connections. Returns after about two seconds at most.
    pub fn stop(&self) {
        drop(sync::lock(&self.stop).take());
        let ending = sync::lock(&self.shared.ending).clone().into_iter().map(|(_, handle)| handle);
        let all: Vec<_> = self.shared.all().into_iter().chain(ending).collect();
        all.iter().for_each(|handle| handle.runner.stop(STOP_MAX));
        let deadline = Instant::now() + STOP_MAX;
        while all.iter().any(|handle| handle.runner.is_running()) && Instant::now() < deadline {
            // tidy: allow(thread-sleep): the node stops, and no reactor waits for this thread.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Client Identifier of the session of a bridge.
fn session_of(name: &str) -> String {
    format!("$bridge/{name}")
}

/// View of a session whose bridge is not configured any more.
fn left_over(leftover: LeftoverView) -> BridgeView {
    let session = session_of(&leftover.name);
    BridgeView {
        state: format!("not configured; `meridian ctl kick '{session}' --session` removes its session"),
        // Somebody has to do something.
        is_failing: true,
        session,
        name: leftover.name,
        queue: leftover.queue,
        in_flight_out: leftover.in_flight,
        ..BridgeView::default()
    }
}

/// View of a bridge that cannot run.
fn faulty(bridge: &Definition<BridgeSettings>, fault: String) -> BridgeView {
    BridgeView {
        name: bridge.settings.name.clone(),
        is_configured: true,
        source: Some(bridge.source),
        is_enabled: bridge.settings.enabled,
        session: session_of(&bridge.settings.name),
        state: "cannot run".to_owned(),
        is_failing: bridge.settings.enabled,
        last_error: Some(fault),
        ..BridgeView::default()
    }
}

/// The thread that takes over changed definitions, starts each bridge where the shard of its session is led, and stops
/// it elsewhere.
struct Thread {
    registry: Arc<Registry>,
    shared: Arc<Shared>,
    door: Door,
    admin: Admin,
    /// Name of the node or of its cluster, for the hops of messages.
    name: String,
    /// Bridges by name, as in [`Shared::handles`].
    runs: BTreeMap<String, Runs>,
    /// Bridges that could not be started.
    failed: BTreeMap<String, BridgeProblem>,
    leftovers: Leftovers,
    /// Number of the definitions that were taken over.
    read: Option<u64>,
    /// Time at which those that failed are started again.
    retry: Option<Instant>,
}

/// Decisions of the thread about a bridge.
struct Runs {
    handle: Arc<Handle>,
    is_wanted: bool,
    has_warned: bool,
}

impl Thread {
    fn run(mut self, stopped: &Receiver<()>) {
        loop {
            self.look();
            match stopped.recv_timeout(LOOK) {
                Err(RecvTimeoutError::Timeout) => {}
                Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn look(&mut self) {
        let is_due = self.retry.is_some_and(|at| Instant::now() >= at);
        if is_due || self.read != Some(self.registry.changes()) {
            self.take_over();
        }
        self.shared.sweep();
        let refusals_are_read = self.admin.reads_queue_refusals();
        for (name, runs) in &mut self.runs {
            let handle = &runs.handle;
            let is_here = self.admin.hosts_internal(&handle.client_id);
            handle.is_here.store(is_here, Ordering::Relaxed);
            // All nodes of the cluster must understand that the queue refuses messages.
            let waits = handle.settings.queue_full == QueueFull::Refuse && !refusals_are_read;
            if waits && is_here && handle.settings.enabled && !runs.has_warned {
                runs.has_warned = true;
                tracing::warn!(
                    bridge = name,
                    "bridge: queue_full = \"refuse\" waits until all nodes of the cluster have this version"
                );
            }
            // An earlier bridge with this name has the same session.
            let is_wanted = handle.settings.enabled && is_here && !waits && !self.shared.is_ending(name);
            if is_wanted != runs.is_wanted {
                runs.is_wanted = is_wanted;
                match is_wanted {
                    true => run_with_filters(handle, self.admin.unique_name(&self.name), &self.admin),
                    false => handle.runner.stop(STOP_MAX),
                }
            }
            match is_here {
                true => ask_queued(handle, &self.admin),
                false => sync::lock(&handle.queue).is_elsewhere(),
            }
        }
        self.show_faulty();
        self.leftovers.look(&self.admin);
    }

    /// Takes over the definitions: stops bridges that were removed or changed, and makes new ones.
    fn take_over(&mut self) {
        let changes = self.registry.changes();
        let all = self.registry.definitions();
        let is_current = |name: &str, runs: &Runs| {
            all.get(name).is_some_and(|bridge| bridge.fault.is_none() && runs.handle.is_of(bridge))
        };
        let ended = self.runs.iter().filter(|(name, runs)| !is_current(name, runs));
        let ended: Vec<String> = ended.map(|(name, _)| name.clone()).collect();
        for runs in ended.iter().filter_map(|name| self.runs.remove(name)) {
            if runs.is_wanted || runs.handle.runner.is_running() {
                runs.handle.runner.stop(STOP_MAX);
                sync::lock(&self.shared.ending).push((Instant::now(), runs.handle));
            }
        }
        self.failed.clear();
        self.retry = None;
        for bridge in usable(&all) {
            let name = &bridge.settings.name;
            if self.runs.contains_key(name) {
                continue;
            }
            match Handle::start(bridge, &self.door) {
                Ok(handle) => {
                    let handle = Arc::new(handle);
                    self.runs.insert(name.clone(), Runs { handle, is_wanted: false, has_warned: false });
                }
                Err(error) => {
                    tracing::error!(%error, bridge = name, "bridge: it does not start; trying again");
                    self.failed.insert(name.clone(), error);
                    self.retry = Some(Instant::now() + RETRY);
                }
            }
        }
        let handles = self.runs.iter().map(|(name, runs)| (name.clone(), runs.handle.clone()));
        *sync::lock(&self.shared.handles) = handles.collect();
        self.leftovers.configure(all.keys().map(|name| session_of(name)).collect());
        self.read = Some(changes);
        self.shared.seen.store(changes, Ordering::Release);
    }

    /// Shows bridges that cannot run, on the node that would run them.
    fn show_faulty(&self) {
        let all: Arc<Named<BridgeSettings>> = self.registry.definitions();
        let here = all.values().filter_map(|bridge| {
            let failed = self.failed.get(&bridge.settings.name).map(ToString::to_string);
            let fault = bridge.fault.clone().or(failed)?;
            self.admin.hosts_internal(&session_of(&bridge.settings.name)).then(|| faulty(bridge, fault))
        });
        *sync::lock(&self.shared.faulty) = here.collect();
    }
}

/// Lets a bridge run, with the filters that its session has from earlier settings.
fn run_with_filters(handle: &Arc<Handle>, own_id: String, admin: &Admin) {
    let (of, ticket) = (handle.clone(), handle.runner.ticket());
    let answered = move |found: Option<Vec<Box<str>>>| {
        let filters = found.unwrap_or_default().into_iter().map(String::from).collect();
        of.runner.run(ticket, Run { filters, own_id, wanted: None });
    };
    admin.client_filters(&handle.client_id, Box::new(answered));
}

/// Asks what waits in the session of a bridge.
fn ask_queued(handle: &Arc<Handle>, admin: &Admin) {
    let of = handle.clone();
    let answered = move |detail: Option<Box<ClientDetail>>| {
        let Some(detail) = detail else { return };
        sync::lock(&of.queue).answered(&detail);
        let Some(session) = detail.session else { return };
        if of.runner.is_idle() {
            // What was in flight comes again.
            of.runner.queued((session.queued_messages + session.inflight) as u64);
        }
    };
    admin.client(&handle.client_id, Box::new(answered));
}
