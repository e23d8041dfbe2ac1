//! Sessions of bridges that are not configured any more. They keep what their topics get until somebody removes them.

use std::collections::BTreeMap;
use std::sync::mpsc::sync_channel;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use broker::admin::{Admin, ClientDetail, ClientFilter, ClientPage, Cursor};

use crate::queue::{Queue, QueueWatch};

/// Beginning of the Client Identifier of each bridge.
const PREFIX: &str = "$bridge/";
/// Time between the start and the first search. The sessions of a cluster come to the node in these seconds.
const FIRST: Duration = Duration::from_secs(5);
/// Time between two searches. Shards move between nodes, and bring such sessions with them.
const AGAIN: Duration = Duration::from_secs(600);
/// Time between two questions about a session.
const ASK: Duration = Duration::from_secs(2);
/// Maximum number of sessions in one answer.
const AT_ONCE: usize = 100;
/// Maximum number of such sessions that are shown.
const LEFTOVERS_MAX: usize = 1_000;
/// Maximum time for one answer of the node.
const ANSWER_MAX: Duration = Duration::from_secs(30);

/// Sessions without a bridge, in shards that this node leads.
pub struct Leftovers {
    /// Client Identifiers of the bridges that are configured.
    configured: Vec<String>,
    search_at: Instant,
    asked: Instant,
    found: Arc<Mutex<BTreeMap<String, Leftover>>>,
}

#[derive(Clone, Copy, Debug, Default)]
struct Leftover {
    queue: QueueWatch,
    in_flight: u64,
    is_here: bool,
}

/// A session without a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftoverView {
    /// Name that the bridge had.
    pub name: String,
    pub queue: Queue,
    pub in_flight: u64,
}

/// The sessions without a bridge that were found so far.
#[derive(Clone)]
pub struct Found(Arc<Mutex<BTreeMap<String, Leftover>>>);

impl Found {
    pub fn views(&self) -> Vec<LeftoverView> {
        let found = sync::lock(&self.0);
        let here = found.iter().filter(|(_, leftover)| leftover.is_here);
        here.map(|(session, leftover)| LeftoverView {
            name: name_of(session).to_owned(),
            queue: leftover.queue.queue(),
            in_flight: leftover.in_flight,
        })
        .collect()
    }
}

fn name_of(session: &str) -> &str {
    session.strip_prefix(PREFIX).unwrap_or(session)
}

impl Leftovers {
    pub fn new() -> Self {
        let now = Instant::now();
        Self { configured: Vec::new(), search_at: now + FIRST, asked: now, found: Arc::default() }
    }

    /// Takes over the Client Identifiers of the bridges that are configured. The session of one that was removed is
    /// found some seconds later.
    pub fn configure(&mut self, configured: Vec<String>) {
        // The caller has a list for each change of settings, and every few seconds while a bridge does not start. A
        // search goes through all sessions of the node.
        let is_removed = self.configured.iter().any(|session| !configured.contains(session));
        self.configured = configured;
        if is_removed {
            self.search_at = self.search_at.min(Instant::now() + FIRST);
        }
    }

    pub fn found(&self) -> Found {
        Found(self.found.clone())
    }

    /// Searches when it is time, and asks about the sessions that were found. It does not wait.
    pub fn look(&mut self, admin: &Admin) {
        // A search may have begun before a bridge was configured.
        sync::lock(&self.found).retain(|session, _| !self.configured.contains(session));
        let now = Instant::now();
        if now >= self.search_at {
            self.search_at = now + AGAIN;
            self.search(admin);
        }
        if now.duration_since(self.asked) < ASK {
            return;
        }
        self.asked = now;
        let sessions: Vec<String> = sync::lock(&self.found).keys().cloned().collect();
        for session in sessions {
            let is_here = admin.hosts_internal(&session);
            if let Some(leftover) = sync::lock(&self.found).get_mut(&session) {
                leftover.is_here = is_here;
                if !is_here {
                    leftover.queue.is_elsewhere();
                }
            }
            if is_here {
                self.ask(session, admin);
            }
        }
    }

    fn ask(&self, session: String, admin: &Admin) {
        let (found, of) = (self.found.clone(), session.clone());
        let answered = move |detail: Option<Box<ClientDetail>>| {
            let mut found = sync::lock(&found);
            match detail.filter(|detail| detail.session.is_some()) {
                // Somebody has removed it.
                None => drop(found.remove(&of)),
                Some(detail) => {
                    if let Some(leftover) = found.get_mut(&of) {
                        leftover.queue.answered(&detail);
                        leftover.in_flight = detail.session.map_or(0, |session| session.inflight as u64);
                    }
                }
            }
        };
        admin.client(&session, Box::new(answered));
    }

    /// Looks through all sessions of the node, on a thread of its own. Each question costs the node a bounded piece of
    /// work.
    fn search(&self, admin: &Admin) {
        let (admin, configured, found) = (admin.clone(), self.configured.clone(), self.found.clone());
        let run = move || {
            for session in sessions(&admin) {
                if configured.contains(&session) {
                    continue;
                }
                let mut found = sync::lock(&found);
                if found.len() >= LEFTOVERS_MAX || found.contains_key(&session) {
                    continue;
                }
                tracing::warn!(
                    bridge = name_of(&session),
                    session,
                    "bridge: a session has no [[bridge]] and keeps what its topics get; configure the bridge, or remove \
                     the session with `meridian ctl kick SESSION --session`"
                );
                found.insert(session, Leftover { is_here: true, ..Leftover::default() });
            }
        };
        // Without a thread, the next search is in ten minutes.
        if let Err(error) = critical::spawn("bridge-search", run) {
            tracing::warn!(%error, "bridge: no thread to look for sessions without a bridge");
        }
    }
}

/// Sessions of bridges on this node.
fn sessions(admin: &Admin) -> Vec<String> {
    let filter = Arc::new(ClientFilter { contains: Some(PREFIX.to_owned()), ..ClientFilter::default() });
    let (mut sessions, mut from) = (Vec::new(), Some(Cursor::default()));
    while let Some(at) = from {
        let (answer, answers) = sync_channel(1);
        let answered = move |page: ClientPage| {
            // It fails when the search has been given up.
            let _ = answer.try_send(page);
        };
        admin.clients(at, AT_ONCE, filter.clone(), Box::new(answered));
        // The node stops, or is overloaded: the next search finds the rest.
        let Ok(page) = answers.recv_timeout(ANSWER_MAX) else { break };
        let names = page.items.iter().map(|item| &*item.client_id).filter(|id| id.starts_with(PREFIX));
        sessions.extend(names.map(str::to_owned));
        from = page.next.filter(|_| sessions.len() < LEFTOVERS_MAX);
    }
    sessions
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_removal_of_a_bridge_makes_a_search_come_earlier() {
        let mut leftovers = Leftovers::new();
        let configure = |leftovers: &mut Leftovers, names: &[&str]| {
            let late = Instant::now() + AGAIN;
            leftovers.search_at = late;
            leftovers.configure(names.iter().map(|name| format!("{PREFIX}{name}")).collect());
            leftovers.search_at < late
        };
        assert!(!configure(&mut leftovers, &["a", "b"]));
        assert!(!configure(&mut leftovers, &["a", "b"]));
        assert!(!configure(&mut leftovers, &["a", "b", "c"]));
        assert!(configure(&mut leftovers, &["a", "c"]));
        assert!(configure(&mut leftovers, &["d", "c"]));
        assert!(configure(&mut leftovers, &[]));
        assert!(!configure(&mut leftovers, &[]));
    }
}
