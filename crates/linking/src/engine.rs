//! All links of a node, and the thread that starts and stops them and follows the interest of clients.

mod waits;

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bridges::end_session;
use broker::InterestWatch;
use broker::admin::Admin;
use definitions::{Named, usable};
use edge::Door;

use self::waits::{Inbox, Waits, end_overdue};
use crate::acceptor::Acceptor;
use crate::answers::Answers;
use crate::giving::Given;
use crate::histories::Histories;
use crate::interest::Walk;
use crate::names::{USERNAME, local_session, remote_session};
use crate::puller::{Key, Puller, Running, STOP_MAX};
use crate::registry::Registry;
use crate::removals::Removals;
use crate::service::Service;
use crate::settings::LinkSettings;
use crate::subacks::Subacks;
use crate::view::LinkView;

pub use self::waits::{Answered, Answerer, Nodes};

/// Time between two looks at what each link has to do.
const LOOK: Duration = Duration::from_millis(250);
/// Minimum time between two looks at the changes of filters. The first change after a pause does not wait.
const COALESCE: Duration = Duration::from_millis(50);
/// Time between two looks at all filters, for links that take broader filters than those of clients: the shortest and
/// the longest one. In between, the looks take one part in [`WALK_PARTS`] of the time of the thread.
const WALK_MIN: Duration = Duration::from_secs(5);
const WALK_MAX: Duration = Duration::from_secs(60);
const WALK_PARTS: u32 = 100;
/// Number of filters of a look until SUBACKs whose time is over are sent.
const OFFERED_AT_ONCE: usize = 4_096;
/// Time between two looks at the files with secrets.
const SECRETS: Duration = Duration::from_secs(5);
/// Maximum time for the removal of a session.
const REMOVAL_MAX: Duration = Duration::from_secs(10);
/// Time for other nodes to learn that a link was removed. One that takes longer is the reason for [`Removals`].
const OTHER_NODES: Duration = Duration::from_secs(1);
/// Pause after a link that did not start.
const RETRY: Duration = Duration::from_secs(5);

/// The links of a node. Dropping it stops them.
pub struct Engine {
    registry: Arc<Registry>,
    acceptor: Arc<Acceptor>,
    shared: Arc<Shared>,
    door: Door,
}

/// Returns the name of the state that the sessions of this node or cluster continue, if it is known. It is another one
/// after a restore from a backup: `n:..` for a node alone, and `c:..` for a cluster.
pub type History = Box<dyn Fn() -> Option<String> + Send>;

/// Value of [`Shared::take_nothing`] that is no number of definitions.
const UNKNOWN: u64 = u64::MAX;

/// Facts that the thread shares with others.
struct Shared {
    views: Mutex<Vec<LinkView>>,
    wake: SyncSender<()>,
    /// True when filters may have changed.
    has_changes: AtomicBool,
    /// True when subscriptions of a link were confirmed.
    has_settled: AtomicBool,
    is_stopping: AtomicBool,
    has_stopped: AtomicBool,
    /// Number of the last look that has seen all definitions.
    seen: AtomicU64,
    /// Number of the definitions by which no link takes anything, so that no SUBACK waits; [`UNKNOWN`] if it is not
    /// known, or a link takes something.
    take_nothing: AtomicU64,
    inbox: Mutex<Inbox>,
    removals: Removals,
    /// True while a thread ends the sessions of removed links again.
    is_removing: AtomicBool,
}

impl Shared {
    fn new(wake: SyncSender<()>) -> Self {
        Self {
            views: Mutex::default(),
            wake,
            has_changes: AtomicBool::new(false),
            has_settled: AtomicBool::new(false),
            is_stopping: AtomicBool::new(false),
            has_stopped: AtomicBool::new(false),
            seen: AtomicU64::new(0),
            take_nothing: AtomicU64::new(UNKNOWN),
            inbox: Mutex::default(),
            removals: Removals::default(),
            is_removing: AtomicBool::new(false),
        }
    }

    fn wake(&self) {
        // A full channel has a wake-up already.
        let _ = self.wake.try_send(());
    }
}

impl Engine {
    /// Starts the thread that runs the links whose sessions belong to this node. `name` is that of the cluster or,
    /// without one, of the node. `nodes` are the others of the cluster.
    ///
    /// # Errors
    /// The system cannot start a thread.
    pub fn start(
        registry: Arc<Registry>,
        acceptor: Arc<Acceptor>,
        name: &str,
        history: History,
        (door, admin): (&Door, &Admin),
        nodes: Option<Arc<dyn Nodes>>,
    ) -> Result<Self, String> {
        let (wake, woken) = sync_channel(1);
        let shared = Arc::new(Shared::new(wake));
        admin.set_link_waits(Arc::new(Waits { shared: shared.clone(), registry: registry.clone() }));
        let thread = Thread {
            registry: registry.clone(),
            acceptor: acceptor.clone(),
            shared: shared.clone(),
            door: door.clone(),
            admin: admin.clone(),
            name: name.to_owned(),
            history,
            histories: Histories::new(registry.config_store().clone()),
            pullers: BTreeMap::new(),
            watch: None,
            service: None,
            given: Given::default(),
            nodes,
            subacks: Subacks::default(),
            answers: Answers::default(),
            next_walk: Instant::now() + WALK_MIN,
            read: None,
        };
        critical::spawn("cluster-links", move || thread.run(&woken)).map_err(|error| error.to_string())?;
        Ok(Self { registry, acceptor, shared, door: door.clone() })
    }

    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Answers the questions of other nodes about links that run here.
    pub fn answerer(&self) -> Answerer {
        Answerer(self.shared.clone())
    }

    /// State of the links that exist, as far as this node knows it.
    pub fn views(&self) -> Vec<LinkView> {
        let mut views = sync::lock(&self.shared.views).clone();
        for view in &mut views {
            view.refusal = self.acceptor.refusal(&view.name);
        }
        views
    }

    /// Returns the names of all clusters whose messages some link takes. Sessions of a link may exist for each of them.
    /// To be asked before the link is removed.
    pub fn origins(&self) -> BTreeSet<String> {
        let all = self.registry.definitions();
        all.values().flat_map(|entry| entry.settings.taken_origins()).map(str::to_owned).collect()
    }

    /// Ends the sessions of a link that was removed: those of what this cluster took by it, and those in which messages
    /// wait for the other cluster. Returns false when there was none. It blocks for some seconds at most, until the
    /// link has ended here. The sessions are ended again within a minute, because another node may learn later than
    /// this one that the link was removed.
    ///
    /// # Errors
    /// A session stays, and may collect messages up to its limits. It goes on if the link is added again.
    pub fn remove_sessions(&self, link: &str, origins: &BTreeSet<String>) -> Result<bool, String> {
        let (began, changes) = (Instant::now(), self.registry.changes());
        let has_seen = || self.shared.seen.load(Ordering::Acquire) >= changes;
        while began.elapsed() < REMOVAL_MAX && (!has_seen() || began.elapsed() < OTHER_NODES) {
            // tidy: allow(thread-sleep): a thread of the API that waits for this anyway.
            std::thread::sleep(Duration::from_millis(50));
        }
        self.shared.removals.add(Instant::now(), link, origins);
        end_sessions(&self.door, link, origins)
    }

    /// Completes what is in flight, and closes the connections. Returns after about two seconds at most.
    pub fn stop(&self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        self.shared.wake();
        let deadline = Instant::now() + STOP_MAX;
        while !self.shared.has_stopped.load(Ordering::Acquire) && Instant::now() < deadline {
            // tidy: allow(thread-sleep): the node stops, and no reactor waits for this thread.
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

/// Ends the sessions of a link, for its messages and those of these origins. Returns false when there was none.
fn end_sessions(door: &Door, link: &str, origins: &BTreeSet<String>) -> Result<bool, String> {
    let transits = origins.iter().filter(|origin| *origin != link).map(|origin| Some(origin.as_str()));
    let mut had_one = false;
    for transit in std::iter::once(None).chain(transits) {
        let here = (local_session(link, transit), None);
        let there = (remote_session(link, transit), Some(USERNAME));
        for (session, username) in [here, there] {
            had_one |= end_session(door, &session, username, REMOVAL_MAX)
                .map_err(|why| format!("the session {session} was not removed: {why}"))?;
        }
    }
    Ok(had_one)
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.is_stopping.store(true, Ordering::Release);
        self.shared.wake();
    }
}

struct Thread {
    registry: Arc<Registry>,
    acceptor: Arc<Acceptor>,
    shared: Arc<Shared>,
    door: Door,
    admin: Admin,
    /// Name of the cluster or of the node, for the hops of messages.
    name: String,
    history: History,
    histories: Histories,
    pullers: BTreeMap<Key, Puller>,
    /// Exists while a link runs here.
    watch: Option<InterestWatch>,
    /// Exists since the first link.
    service: Option<Service>,
    given: Given,
    nodes: Option<Arc<dyn Nodes>>,
    /// SUBACKs of this node that wait for links of any node.
    subacks: Subacks,
    /// Questions of nodes about links that run here.
    answers: Answers,
    /// Time of the next look at all filters.
    next_walk: Instant,
    /// Number of the definitions that were taken over, and the time at which secrets were read.
    read: Option<(u64, Instant)>,
}

impl Thread {
    fn run(mut self, woken: &Receiver<()>) {
        let (mut next_look, mut next_changes) = (Instant::now(), Instant::now());
        loop {
            if self.shared.is_stopping.load(Ordering::Acquire) {
                return self.end();
            }
            let now = Instant::now();
            if now >= next_look {
                self.look();
                next_look = Instant::now() + LOOK;
            }
            let has_changes = self.shared.has_changes.load(Ordering::Acquire);
            if has_changes && now >= next_changes {
                self.follow_changes();
                next_changes = Instant::now() + COALESCE;
            }
            if self.shared.has_settled.swap(false, Ordering::AcqRel) {
                self.pullers
                    .values_mut()
                    .filter_map(|puller| puller.running.as_mut())
                    .for_each(Running::release);
            }
            self.serve_subacks(Instant::now());
            let due = if has_changes { next_look.min(next_changes) } else { next_look };
            let due = self.subacks_due().map_or(due, |of_subacks| due.min(of_subacks));
            match woken.recv_timeout(due.saturating_duration_since(Instant::now())) {
                Ok(()) | Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return self.end(),
            }
        }
    }

    /// Stops all links, and waits until they have completed what is in flight.
    fn end(mut self) {
        self.watch = None;
        self.end_subacks();
        self.pullers.values_mut().for_each(Puller::stop);
        let deadline = Instant::now() + STOP_MAX;
        while self.pullers.values().any(|puller| !puller.ending.is_empty()) && Instant::now() < deadline {
            // tidy: allow(thread-sleep): the node stops, and no reactor waits for this thread.
            std::thread::sleep(Duration::from_millis(10));
            self.pullers.values_mut().for_each(Puller::sweep);
        }
        self.shared.has_stopped.store(true, Ordering::Release);
    }

    /// Takes over changed definitions, and starts and stops links.
    fn look(&mut self) {
        let changes = self.registry.changes();
        let all = self.registry.definitions();
        let is_new = self.read.is_none_or(|(seen, _)| seen != changes);
        if is_new || self.read.is_some_and(|(_, at)| at.elapsed() >= SECRETS) {
            self.read = Some((changes, Instant::now()));
            self.acceptor.update(&all, self.registry.own(), (self.history)().as_deref());
        }
        if is_new {
            self.update(&all);
        }
        self.pullers.values_mut().for_each(Puller::sweep);
        self.pullers.retain(|_, puller| !puller.is_removed || !puller.ending.is_empty());
        let mut new = BTreeSet::new();
        for (key, puller) in &mut self.pullers {
            puller.is_here = self.admin.hosts_internal(&key.session());
            let is_wanted = puller.is_here && puller.is_wanted();
            match (is_wanted, puller.running.is_some()) {
                (false, true) => puller.stop(),
                (true, false)
                    if puller.ending.is_empty() && puller.retry.is_none_or(|at| Instant::now() >= at) =>
                {
                    let own_id = self.admin.unique_name(&self.name);
                    // Another node may have run it meanwhile.
                    puller.history = self.histories.of(key).or_else(|| puller.history.take());
                    let shared = self.shared.clone();
                    let on_settled = move |_| {
                        shared.has_settled.store(true, Ordering::Release);
                        shared.wake();
                    };
                    match Running::start(key, puller, own_id, &self.door, Box::new(on_settled)) {
                        Ok(running) => {
                            puller.running = Some(running);
                            puller.starts += 1;
                            (puller.failure, puller.retry) = (None, None);
                            new.insert(key.clone());
                        }
                        Err(error) => {
                            tracing::error!(%error, link = key.link, "cluster link: it does not start; trying again");
                            (puller.failure, puller.retry) = (Some(error), Some(Instant::now() + RETRY));
                        }
                    }
                }
                _ => {}
            }
        }
        let take_nothing = !self.pullers.values().any(Puller::is_wanted);
        self.shared.take_nothing.store(if take_nothing { changes } else { UNKNOWN }, Ordering::Release);
        self.store_histories(&all);
        self.watch_while_needed();
        self.walk(&new);
        if Instant::now() >= self.next_walk {
            let broader = self.pullers.iter().filter(|(_, puller)| {
                let interest = puller.running.as_ref().map(|running| &running.interest);
                interest.is_some_and(|interest| interest.has_broader() || interest.lacks_groups())
            });
            let broader = broader.map(|(key, _)| key.clone()).collect();
            let began = Instant::now();
            self.walk(&broader);
            let pause = (began.elapsed() * WALK_PARTS).clamp(WALK_MIN, WALK_MAX);
            self.next_walk = Instant::now() + pause;
        }
        self.serve(&all);
        self.repeat_removals(&all);
        let own = self.registry.own();
        let own_name = |link: &LinkSettings| link.own(own).map(str::to_owned).unwrap_or_default();
        self.given.look(&all, own_name, &self.admin);
        self.publish_views(&all);
        if !self.pullers.values().any(|puller| !puller.ending.is_empty()) {
            self.shared.seen.store(changes, Ordering::Release);
        }
    }

    fn update(&mut self, all: &Named<LinkSettings>) {
        let mut wanted = BTreeMap::new();
        for entry in all.values() {
            for origin in entry.settings.taken_origins() {
                let key = Key { link: entry.settings.name.clone(), origin: origin.to_owned() };
                wanted.insert(key, entry.clone());
            }
        }
        for (key, puller) in &mut self.pullers {
            if wanted.get(key).is_none_or(|link| *link != puller.link) {
                puller.stop();
            }
            let is_removed = !wanted.contains_key(key);
            if is_removed && !puller.is_removed {
                puller.history = None;
                if puller.is_here {
                    self.histories.forget(key);
                }
            }
            puller.is_removed = is_removed;
        }
        for (key, link) in wanted {
            let own = link.settings.own(self.registry.own()).map(str::to_owned);
            match self.pullers.get_mut(&key) {
                Some(puller) => puller.replace(link, own),
                None => drop(self.pullers.insert(key, Puller::new(link, own))),
            }
        }
    }

    /// Stores the states of other clusters that links see, and removes those of links that do not exist.
    fn store_histories(&mut self, all: &Named<LinkSettings>) {
        let seen = self.pullers.iter().filter_map(|(key, puller)| {
            let history = puller.running.as_ref()?.runner.view().history?;
            Some((key.clone(), history))
        });
        let seen: Vec<(Key, String)> = seen.collect();
        let is_defined = |key: &Key| {
            let link = all.get(&key.link);
            link.is_some_and(|link| link.settings.taken_origins().any(|origin| origin == key.origin))
        };
        let hosts = |key: &Key| self.admin.hosts_internal(&key.session());
        self.histories.look(Instant::now(), &seen, is_defined, hosts);
    }

    /// Watches the filters of clients while a link runs here.
    fn watch_while_needed(&mut self) {
        let is_needed = self.pullers.values().any(|puller| puller.running.is_some());
        if !is_needed {
            self.watch = None;
        } else if self.watch.is_none() {
            let shared = self.shared.clone();
            let wake = move || {
                shared.has_changes.store(true, Ordering::Release);
                shared.wake();
            };
            self.watch = Some(self.admin.watch_interest(Arc::new(wake)));
        }
    }

    /// Looks at all filters for these links.
    fn walk(&mut self, keys: &BTreeSet<Key>) {
        let Some(watch) = self.watch.as_ref().filter(|_| !keys.is_empty()) else { return };
        let mut walks: Vec<(&Key, Walk)> = Vec::new();
        for key in keys {
            if let Some(running) = self.pullers.get(key).and_then(|puller| puller.running.as_ref()) {
                walks.push((key, running.interest.walk()));
            }
        }
        // SUBACKs wait for this thread, and their time ends meanwhile.
        let (subacks, shared, admin) = (&mut self.subacks, &*self.shared, &self.admin);
        let mut offered = 0_usize;
        let mut count = move || {
            offered += 1;
            if offered.is_multiple_of(OFFERED_AT_ONCE) {
                end_overdue(subacks, shared, admin);
            }
        };
        watch.for_each(None, &mut |filter| {
            walks.iter_mut().for_each(|(_, walk)| walk.offer(filter));
            count();
        });
        let origins: BTreeSet<&str> = walks.iter().map(|(key, _)| key.origin.as_str()).collect();
        for origin in origins {
            watch.for_each(Some(origin), &mut |filter| {
                let of_origin = walks.iter_mut().filter(|(key, _)| key.origin == origin);
                of_origin.for_each(|(_, walk)| walk.offer(filter));
                count();
            });
        }
        for (key, walk) in walks {
            if let Some(running) = self.pullers.get_mut(key).and_then(|puller| puller.running.as_mut()) {
                let before = Beyond::of(running);
                running.interest.finish(walk);
                before.log_change(key, running);
                running.flush();
            }
        }
    }

    /// Tells the links which filters have changed.
    fn follow_changes(&mut self) {
        self.shared.has_changes.store(false, Ordering::Release);
        let Some(watch) = &self.watch else { return };
        let changed = watch.take();
        if changed.is_overrun {
            let all = self.pullers.iter().filter(|(_, puller)| puller.running.is_some());
            let all = all.map(|(key, _)| key.clone()).collect();
            return self.walk(&all);
        }
        let running = self.pullers.iter().filter_map(|(key, puller)| Some((key, puller.running.as_ref()?)));
        let before: Vec<(Key, Beyond)> =
            running.map(|(key, running)| (key.clone(), Beyond::of(running))).collect();
        let filters: HashSet<Box<str>> = changed.filters.into_iter().collect();
        for filter in &filters {
            let of_clients = watch.is_wanted(None, filter);
            for (key, puller) in &mut self.pullers {
                let Some(running) = &mut puller.running else { continue };
                let is_wanted = of_clients || watch.is_wanted(Some(&key.origin), filter);
                running.interest.set(filter, is_wanted);
            }
        }
        for (key, before) in before {
            if let Some(running) = self.pullers.get(&key).and_then(|puller| puller.running.as_ref()) {
                before.log_change(&key, running);
            }
        }
        self.pullers.values_mut().filter_map(|puller| puller.running.as_mut()).for_each(Running::flush);
    }

    /// Ends the sessions of removed links again, on a thread of its own: that may wait for other nodes.
    fn repeat_removals(&self, all: &Named<LinkSettings>) {
        if self.shared.is_removing.load(Ordering::Acquire) {
            return;
        }
        let due = self.shared.removals.take_due(Instant::now(), |link| all.contains_key(link));
        if due.is_empty() {
            return;
        }
        let (shared, door) = (self.shared.clone(), self.door.clone());
        shared.is_removing.store(true, Ordering::Release);
        let run = move || {
            for removal in due {
                let link = &removal.link;
                match end_sessions(&door, link, &removal.origins) {
                    Ok(true) => {
                        tracing::info!(link, "cluster link: a session of the removed link is ended again")
                    }
                    Ok(false) => {}
                    Err(error) => {
                        tracing::warn!(link, %error, "cluster link: a session of the removed link stays")
                    }
                }
            }
            shared.is_removing.store(false, Ordering::Release);
        };
        if let Err(error) = critical::spawn("link-removal", run) {
            tracing::warn!(%error, "cluster links: no thread to end sessions of removed links again");
            self.shared.is_removing.store(false, Ordering::Release);
        }
    }

    /// Starts the service with the first link.
    fn serve(&mut self, all: &Named<LinkSettings>) {
        let is_needed = usable(all).any(|link| link.settings.enabled && !link.settings.export.is_empty());
        if is_needed && self.service.is_none() {
            match Service::start(&self.registry.own().node, &self.door, &self.admin) {
                Ok(service) => self.service = Some(service),
                Err(error) => {
                    tracing::error!(%error, "cluster links: the service does not start; other clusters may keep filters");
                }
            }
        }
        if let Some(service) = &self.service {
            service.need(is_needed);
        }
    }

    fn publish_views(&self, all: &Named<LinkSettings>) {
        let views = all.keys().map(|name| {
            let of_link = self
                .pullers
                .iter()
                .filter(|(key, puller)| key.link == *name && puller.is_here && !puller.is_removed);
            LinkView {
                name: name.clone(),
                taking: of_link.map(|(key, puller)| puller.taking(key)).collect(),
                giving: self.given.of(name),
                refusal: None,
            }
        });
        *sync::lock(&self.shared.views) = views.collect();
    }
}

/// Things of a link that exceed `filters_max`.
#[derive(Clone, Copy)]
struct Beyond {
    has_broader: bool,
    lacks_groups: bool,
}

impl Beyond {
    fn of(running: &Running) -> Self {
        let interest = &running.interest;
        let has_broader = interest.broader().next().is_some();
        Self { has_broader, lacks_groups: interest.lacks_groups() }
    }

    fn log_change(self, key: &Key, running: &Running) {
        let (link, origin) = (&key.link, &key.origin);
        let after = Self::of(running);
        match (self.has_broader, after.has_broader) {
            (false, true) => {
                let count = running.interest.broader().count();
                let example = running.interest.broader().next().unwrap_or_default();
                tracing::warn!(
                    link,
                    origin,
                    count,
                    example,
                    "cluster link: clients have more filters than filters_max; taking broader ones for some of them"
                );
            }
            (true, false) => tracing::info!(
                link,
                origin,
                "cluster link: clients have fewer filters again; taking exactly these"
            ),
            _ => {}
        }
        if !self.lacks_groups && after.lacks_groups {
            tracing::warn!(
                link,
                origin,
                "cluster link: more linked shared groups than filters_max; some get no messages of the other cluster"
            );
        }
    }
}
