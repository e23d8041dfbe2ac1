//! All bridges of a node, and the thread that starts and stops them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bridge::Counters;
use broker::admin::{Admin, ClientDetail};
use edge::Door;

use crate::leftover::{Found, LeftoverView, Leftovers};
use crate::queue::{Queue, QueueWatch};
use crate::runner::{Credentials, Run, Runner, RunnerSettings};
use crate::settings::{BridgeProblem, BridgeSettings, QueueFull};

/// Time between two looks at what each bridge has to do.
const LOOK: Duration = Duration::from_millis(500);
/// Maximum time for the messages in flight of a bridge that moves to another node, or whose node stops.
const STOP_MAX: Duration = Duration::from_secs(2);

/// State of a bridge, as its thread said last.
#[derive(Clone, Debug, Default)]
pub struct BridgeView {
    pub name: String,
    /// False for a session whose bridge is not configured any more.
    pub is_configured: bool,
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
    handles: Vec<Arc<Handle>>,
    leftovers: Found,
    /// Dropped at the end, which stops the thread that looks at the bridges.
    stop: Mutex<Option<SyncSender<()>>>,
}

struct Handle {
    name: String,
    client_id: String,
    is_enabled: bool,
    /// True if its queue refuses messages when it is full. All nodes of the cluster must understand that.
    refuses: bool,
    runner: Runner,
    /// True while this node leads the shard of the session.
    is_here: AtomicBool,
    queue: Mutex<QueueWatch>,
}

impl Handle {
    fn view(&self) -> BridgeView {
        let view = self.runner.view();
        BridgeView {
            name: self.name.clone(),
            is_configured: true,
            is_enabled: self.is_enabled,
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
        let configured = handles.iter().map(|handle| handle.client_id.clone()).collect();
        let leftovers = Leftovers::new(configured);
        let found = leftovers.found();
        let stop = look_after(handles.clone(), leftovers, name.to_owned(), admin.clone());
        let stop = stop.map_err(|why| (String::new(), why))?;
        Ok(Self { handles, leftovers: found, stop: Mutex::new(Some(stop)) })
    }

    /// Bridges whose sessions are in shards that this node leads, in the order of the configuration. Sessions without a
    /// bridge follow.
    pub fn views(&self) -> Vec<BridgeView> {
        let here = self.handles.iter().filter(|handle| handle.is_here.load(Ordering::Relaxed));
        let leftovers = self.leftovers.views().into_iter().map(left_over);
        here.map(|handle| handle.view()).chain(leftovers).collect()
    }

    /// Completes what is in flight, and closes the connections. Returns after about two seconds at most.
    pub fn stop(&self) {
        drop(sync::lock(&self.stop).take());
        self.handles.iter().for_each(|handle| handle.runner.stop(STOP_MAX));
        let deadline = Instant::now() + STOP_MAX;
        while self.handles.iter().any(|handle| handle.runner.is_running()) && Instant::now() < deadline {
            // tidy: allow(thread-sleep): the node stops, and no reactor waits for this thread.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// View of a session whose bridge is not configured any more.
fn left_over(leftover: LeftoverView) -> BridgeView {
    let session = format!("$bridge/{}", leftover.name);
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

fn start(settings: &BridgeSettings, door: &Door) -> Result<Handle, BridgeProblem> {
    settings.check()?;
    // What is wrong with files is known at the start.
    settings.tls()?;
    settings.password()?;
    let relay = settings.relay();
    let client_id = relay.local_client_id();
    let runner = RunnerSettings {
        noun: "bridge",
        thread: format!("bridge-{}", settings.name),
        relay,
        credentials: Box::new(settings.clone()),
        on_settled: Box::new(|_| ()),
    };
    Ok(Handle {
        name: settings.name.clone(),
        client_id,
        is_enabled: settings.enabled,
        refuses: settings.queue_full == QueueFull::Refuse,
        runner: Runner::spawn(runner, door)?,
        is_here: AtomicBool::new(false),
        queue: Mutex::default(),
    })
}

/// Starts the thread that starts each bridge where the shard of its session is led, and stops it elsewhere.
fn look_after(
    handles: Vec<Arc<Handle>>,
    mut leftovers: Leftovers,
    name: String,
    admin: Admin,
) -> Result<SyncSender<()>, BridgeProblem> {
    let (stop, stopped) = sync_channel::<()>(1);
    let run = move || {
        let mut runs = vec![(false, false); handles.len()];
        loop {
            for (handle, (runs, has_warned)) in handles.iter().zip(&mut runs) {
                let is_here = admin.hosts_internal(&handle.client_id);
                handle.is_here.store(is_here, Ordering::Relaxed);
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
                        false => handle.runner.stop(STOP_MAX),
                    }
                }
                match is_here {
                    true => ask_queued(handle, &admin),
                    false => sync::lock(&handle.queue).is_elsewhere(),
                }
            }
            leftovers.look(&admin);
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
