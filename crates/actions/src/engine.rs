//! All actions of a node, and the thread that starts and stops them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use broker::admin::{Admin, ClientDetail};
use definitions::Definition;
use edge::Door;
use serde_json::{Map, Value};
use sinks::{ActionSettings, ConnectorSettings, WhenFull};

use crate::consumer::client_id;
use crate::counters::Counters;
use crate::driver::{self, Published, QueueView, Running};
use crate::plan::Plan;
use crate::registry::Registry;

/// Time between two looks at what each action has to do.
const LOOK: Duration = Duration::from_millis(250);
/// Maximum time for batches of an action that stops.
const STOP_MAX: Duration = Duration::from_secs(2);
/// Time without success after which an action counts as failing.
const FAILING: Duration = Duration::from_secs(30);
/// Time between two questions about the queue of an action.
const COUNT: Duration = Duration::from_secs(1);

/// Reason why an action with `queue_full = "refuse"` does not start.
const WAITS_FOR_NODES: &str = "\"refuse\" needs this version of Meridian on all nodes of the cluster";

/// State of an action on this node.
#[derive(Clone, Debug, Default)]
pub struct ActionStatus {
    pub name: String,
    /// `running`, `retrying`, `starting` or `stopped`.
    pub state: &'static str,
    /// True when it has not been able to write, or to start, for some time.
    pub is_failing: bool,
    /// Time since which it is in this state, while it retries.
    pub since: Option<Duration>,
    pub last_error: Option<String>,
    /// Client Identifier of the session in which messages wait.
    pub session: String,
    pub queue: QueueView,
    pub in_flight: u64,
    pub counters: Counters,
}

/// The actions of a node. Dropping it stops them.
pub struct Engine {
    shared: Arc<Shared>,
    /// Dropped at the end, which stops the thread that looks at the actions.
    stop: Mutex<Option<SyncSender<()>>>,
}

struct Shared {
    registry: Arc<Registry>,
    actions: Mutex<BTreeMap<String, Action>>,
    /// Filters of tests that wait for a message. It is held while filters are selected, so that the last set counts.
    test_filters: Mutex<Vec<BTreeSet<Box<str>>>>,
    door: Door,
    admin: Admin,
    /// Name of this node.
    node: String,
    /// Name of the cluster or, without one, of the node.
    name: String,
    run: u64,
}

/// An action with its connector.
#[derive(PartialEq)]
struct Defined {
    action: Arc<Definition<ActionSettings>>,
    connector: Option<Arc<Definition<ConnectorSettings>>>,
}

/// An action as this node knows it.
struct Action {
    is_enabled: bool,
    /// The action and its connector, as they were defined last.
    defined: Defined,
    /// Parsed settings, or what is wrong with them.
    plan: Result<Arc<Plan>, String>,
    /// Number that grows when the settings change.
    revision: u64,
    published: Arc<Published>,
    running: Option<(u64, Running)>,
    /// The request for the subscriptions of the session is on its way, since this time.
    asked: Option<Instant>,
    /// Answer to it.
    found: Arc<Mutex<Option<Vec<String>>>>,
    /// Time since which the action is wanted and cannot start.
    missing_since: Option<Instant>,
    /// True while other nodes of the cluster do not understand its queue.
    waits_for_nodes: bool,
    /// Time of the last question about the queue.
    counted: Option<Instant>,
    /// True when it is no longer defined, and its threads end.
    is_removed: bool,
}

impl Engine {
    /// Starts the thread that starts the actions which belong to this node. `node` is the name of this node, and `name`
    /// that of its cluster, if it has one.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(
        registry: Arc<Registry>,
        node: &str,
        name: &str,
        door: &Door,
        admin: &Admin,
    ) -> Result<Self, String> {
        let mut run = [0; 8];
        getrandom::fill(&mut run).map_err(|error| error.to_string())?;
        let shared = Arc::new(Shared {
            registry,
            actions: Mutex::default(),
            test_filters: Mutex::default(),
            door: door.clone(),
            admin: admin.clone(),
            node: node.to_owned(),
            name: name.to_owned(),
            run: u64::from_le_bytes(run),
        });
        // Messages have their origin from the first connection of a client on.
        let changes = shared.registry.changes();
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        admin.set_wall_clock_of_origins(since_1970);
        shared.update();
        let (stop, stopped) = sync_channel::<()>(1);
        let of_thread = shared.clone();
        let look = move || {
            let mut seen = changes;
            loop {
                let changes = of_thread.registry.changes();
                if changes != seen {
                    seen = changes;
                    of_thread.update();
                }
                of_thread.look();
                match stopped.recv_timeout(LOOK) {
                    Err(RecvTimeoutError::Timeout) => {}
                    Ok(()) | Err(RecvTimeoutError::Disconnected) => return,
                }
            }
        };
        critical::spawn("actions", look).map_err(|error| error.to_string())?;
        Ok(Self { shared, stop: Mutex::new(Some(stop)) })
    }

    pub fn registry(&self) -> &Arc<Registry> {
        &self.shared.registry
    }

    /// Returns why an action with these settings cannot be added now.
    pub fn unfit(&self, settings: &Map<String, Value>) -> Option<&'static str> {
        let refuses = settings.get("queue_full").and_then(Value::as_str) == Some("refuse");
        (refuses && !self.shared.admin.reads_queue_refusals()).then_some(WAITS_FOR_NODES)
    }

    /// Actions whose sessions are in shards that this node leads.
    pub fn statuses(&self) -> Vec<ActionStatus> {
        let actions = sync::lock(&self.shared.actions);
        let here = actions
            .iter()
            .filter(|(_, action)| !action.is_removed && action.published.is_here.load(Ordering::Relaxed));
        here.map(|(name, action)| action.status(name)).collect()
    }

    /// Returns whether an action has threads here.
    pub(crate) fn has_threads(&self, name: &str) -> bool {
        let actions = sync::lock(&self.shared.actions);
        actions.get(name).is_some_and(Action::has_threads)
    }

    pub(crate) fn door(&self) -> &Door {
        &self.shared.door
    }

    /// Gives messages of these filters their origin until the guard is dropped.
    pub(crate) fn select(&self, filters: BTreeSet<Box<str>>) -> Selected<'_> {
        sync::lock(&self.shared.test_filters).push(filters.clone());
        self.shared.select_origins();
        Selected { engine: self, filters }
    }

    /// Completes what is being written, and closes the connections. Returns after about two seconds at most.
    pub fn stop(&self) {
        drop(sync::lock(&self.stop).take());
        let published: Vec<_> = {
            let actions = sync::lock(&self.shared.actions);
            let running =
                |action: &Action| action.running.as_ref().map(|(_, running)| running.stop(STOP_MAX));
            actions
                .values()
                .filter(|action| running(action).is_some())
                .map(|it| it.published.clone())
                .collect()
        };
        let deadline = Instant::now() + STOP_MAX;
        let is_running = |published: &Arc<Published>| published.threads.load(Ordering::Acquire) > 0;
        while published.iter().any(is_running) && Instant::now() < deadline {
            // tidy: allow(thread-sleep): the node stops, and no reactor waits for this thread.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Filters whose messages get their origin for a test.
pub(crate) struct Selected<'a> {
    engine: &'a Engine,
    filters: BTreeSet<Box<str>>,
}

impl Drop for Selected<'_> {
    fn drop(&mut self) {
        let mut all = sync::lock(&self.engine.shared.test_filters);
        if let Some(at) = all.iter().position(|filters| *filters == self.filters) {
            all.swap_remove(at);
        }
        drop(all);
        self.engine.shared.select_origins();
    }
}

impl Shared {
    /// Takes over changed definitions.
    fn update(&self) {
        let definitions = self.registry.definitions();
        let mut actions = sync::lock(&self.actions);
        for (name, action) in actions.iter_mut() {
            if !definitions.actions.contains_key(name) {
                (action.is_enabled, action.is_removed) = (false, true);
                action.published.is_here.store(false, Ordering::Relaxed);
                action.stop();
            }
        }
        for (name, definition) in &definitions.actions {
            let defined = Defined {
                action: definition.clone(),
                connector: definitions.connector_of(&definition.settings).cloned(),
            };
            match actions.get_mut(name) {
                Some(action) if action.defined == defined && !action.is_removed => {}
                Some(action) => {
                    action.is_removed = false;
                    action.update(self.plan(&defined), defined);
                }
                None => drop(actions.insert(name.clone(), Action::new(self.plan(&defined), defined))),
            }
        }
        drop(actions);
        self.select_origins();
    }

    fn plan(&self, defined: &Defined) -> Result<Arc<Plan>, String> {
        if let Some(fault) = &defined.action.fault {
            return Err(fault.clone());
        }
        let connector = defined.connector.as_ref().map(|connector| &connector.settings);
        let plan = Plan::new(&defined.action.settings, connector, self.registry.guard());
        plan.map(Arc::new).map_err(|problem| problem.to_string())
    }

    /// Gives the messages that actions select their origin, also those for actions that are not enabled, whose messages
    /// wait.
    fn select_origins(&self) {
        let of_tests = sync::lock(&self.test_filters);
        let mut selected: BTreeSet<Box<str>> = of_tests.iter().flatten().cloned().collect();
        for (name, action) in sync::lock(&self.actions).iter().filter(|(_, action)| !action.is_removed) {
            let Ok(plan) = &action.plan else { continue };
            selected.extend(plan.rule.filters().map(|filter| Box::from(&*plan.namespace.mounted(filter))));
            // Messages that other actions pass on.
            selected.insert(format!("{}/#", client_id(name)).into());
        }
        if let Err(count) = self.admin.select_origins(&selected, &self.node, self.run) {
            tracing::error!(
                count,
                "actions: the routing index is full; rules do not see the publishers of some messages"
            );
        }
    }

    /// Starts and stops actions.
    fn look(&self) {
        let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.admin.set_wall_clock_of_origins(since_1970);
        let mut actions = sync::lock(&self.actions);
        actions.retain(|_, action| !action.is_removed || action.has_threads());
        for (name, action) in actions.iter_mut().filter(|(_, action)| !action.is_removed) {
            let client = client_id(name);
            let is_here = self.admin.hosts_internal(&client);
            action.published.is_here.store(is_here, Ordering::Relaxed);
            action.waits_for_nodes = action.refuses() && !self.admin.reads_queue_refusals();
            let wanted = action.is_enabled && is_here && action.plan.is_ok() && !action.waits_for_nodes;
            if action.running.is_some() && !action.has_threads() {
                tracing::warn!(action = name, "action: its threads have ended; starting them again");
                action.stop();
            }
            let is_current =
                action.running.as_ref().is_some_and(|(revision, _)| *revision == action.revision);
            if !wanted || !is_current {
                let missing_since = action.missing_since;
                action.stop();
                if action.waits_for_nodes {
                    action.missing_since = missing_since.or_else(|| Some(Instant::now()));
                }
            }
            if wanted && !is_current {
                self.start(name, action);
            }
            let is_due = action.counted.is_none_or(|counted| counted.elapsed() >= COUNT);
            match is_here {
                true if is_due => {
                    action.counted = Some(Instant::now());
                    self.ask_queued(&client, &action.published);
                }
                true => {}
                false => sync::lock(&action.published.queue).leave(),
            }
        }
    }

    /// Starts an action once its earlier threads have ended and the subscriptions of its session are known.
    fn start(&self, name: &str, action: &mut Action) {
        action.missing_since.get_or_insert_with(Instant::now);
        if action.has_threads() {
            return;
        }
        let Ok(plan) = action.plan.clone() else { return };
        let Some(subscribed) = sync::lock(&action.found).take() else {
            // An answer that does not come within some time was lost with the shard's leader.
            if action.asked.is_none_or(|asked| asked.elapsed() > Duration::from_secs(5)) {
                action.asked = Some(Instant::now());
                // An earlier answer that comes late is not for this question.
                action.found = Arc::default();
                self.ask_subscriptions(name, action.found.clone());
            }
            return;
        };
        action.asked = None;
        let own_id = self.admin.unique_name(&self.name);
        match driver::start(plan, &own_id, subscribed, &self.door, &action.published) {
            Ok(running) => {
                action.running = Some((action.revision, running));
                action.missing_since = None;
            }
            Err(error) => tracing::error!(%error, action = name, "action: it does not start; trying again"),
        }
    }

    fn ask_subscriptions(&self, name: &str, found: Arc<Mutex<Option<Vec<String>>>>) {
        let answered = move |answer: Option<Vec<Box<str>>>| {
            let filters = answer.unwrap_or_default().into_iter().map(String::from);
            *sync::lock(&found) = Some(filters.collect());
        };
        self.admin.client_filters(&client_id(name), Box::new(answered));
    }

    /// Asks what waits in the session of an action, and what it has dropped.
    fn ask_queued(&self, client: &str, published: &Arc<Published>) {
        let of = published.clone();
        let answered = move |detail: Option<Box<ClientDetail>>| {
            let session = detail.and_then(|detail| detail.session);
            sync::lock(&of.queue).update(session.as_ref());
        };
        self.admin.client(client, Box::new(answered));
    }
}

impl Action {
    fn new(plan: Result<Arc<Plan>, String>, defined: Defined) -> Self {
        Self {
            is_enabled: defined.action.settings.enabled,
            defined,
            plan,
            revision: 0,
            published: Arc::default(),
            running: None,
            asked: None,
            found: Arc::default(),
            missing_since: None,
            waits_for_nodes: false,
            counted: None,
            is_removed: false,
        }
    }

    fn update(&mut self, plan: Result<Arc<Plan>, String>, defined: Defined) {
        self.is_enabled = defined.action.settings.enabled;
        self.defined = defined;
        self.plan = plan;
        self.revision += 1;
    }

    fn refuses(&self) -> bool {
        self.plan.as_ref().is_ok_and(|plan| plan.settings.queue_full == WhenFull::Refuse)
    }

    fn has_threads(&self) -> bool {
        self.published.threads.load(Ordering::Acquire) > 0
    }

    fn stop(&mut self) {
        if let Some((_, running)) = self.running.take() {
            running.stop(STOP_MAX);
        }
        self.missing_since = None;
    }

    fn status(&self, name: &str) -> ActionStatus {
        let view = sync::lock(&self.published.view).clone();
        let is_running = self.running.is_some();
        let missing = self.missing_since.or(view.missing_since.filter(|_| is_running));
        let since = view.failing_since.or(missing).filter(|_| self.is_enabled);
        let since = since.map(|since| since.elapsed());
        let waits = self.waits_for_nodes.then(|| WAITS_FOR_NODES.to_owned());
        let state = match () {
            () if !self.is_enabled || self.plan.is_err() => "stopped",
            () if is_running && view.failing_since.is_some() => "retrying",
            () if is_running && view.is_connected => "running",
            () => "starting",
        };
        ActionStatus {
            name: name.to_owned(),
            state,
            is_failing: self.is_enabled && self.plan.is_err() || since.is_some_and(|since| since >= FAILING),
            since,
            last_error: self.plan.as_ref().err().cloned().or(waits).or(view.last_error),
            session: client_id(name),
            queue: *sync::lock(&self.published.queue),
            in_flight: view.in_flight,
            counters: view.counters,
        }
    }
}

#[cfg(test)]
mod tests {
    use sinks::Guard;

    use super::*;

    const GUARD: Guard = Guard { allow_loopback: true, allow_private: true };

    fn action(change: impl FnOnce(&mut ActionSettings)) -> Action {
        let mut settings = ActionSettings {
            name: "a".into(),
            rule: "SELECT * FROM \"t\"".into(),
            topic: "out".into(),
            ..ActionSettings::default()
        };
        change(&mut settings);
        let plan = Plan::new(&settings, None, GUARD).map(Arc::new).map_err(|problem| problem.to_string());
        let definition = definitions::defined(settings, None);
        Action::new(plan, Defined { action: Arc::new(definition), connector: None })
    }

    #[test]
    fn the_state_says_whether_an_action_runs_and_why_not() {
        let off = action(|settings| settings.enabled = false).status("a");
        assert_eq!((off.state, off.is_failing, off.last_error), ("stopped", false, None));
        let wrong = action(|settings| settings.rule.clear()).status("a");
        assert_eq!((wrong.state, wrong.is_failing), ("stopped", true));
        assert!(wrong.last_error.is_some_and(|why| why.starts_with("rule: ")));
        let mut missing = action(|_| {});
        assert_eq!((missing.status("a").state, missing.status("a").is_failing), ("starting", false));
        missing.missing_since = Instant::now().checked_sub(FAILING);
        let status = missing.status("a");
        assert_eq!((status.state, status.is_failing, &*status.session), ("starting", true, "$action/a"));
    }

    #[test]
    fn new_settings_are_a_new_revision_and_a_stop_ends_the_wait() {
        let mut changed = action(|_| {});
        changed.missing_since = Some(Instant::now());
        changed.stop();
        assert_eq!(changed.status("a").since, None);
        let Action { plan, defined, .. } = action(|settings| settings.enabled = false);
        changed.update(plan, defined);
        assert_eq!((changed.revision, changed.is_enabled, changed.has_threads()), (1, false, false));
    }
}
