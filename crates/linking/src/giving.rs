//! Messages that wait here for other clusters.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bridges::Sum;
use broker::admin::{Admin, ClientDetail};
use definitions::Named;

use crate::acceptor::transit;
use crate::names::remote_session;
use crate::settings::LinkSettings;
use crate::view::Giving;

/// Time between two questions about a session.
const ASK: Duration = Duration::from_secs(1);

/// Sessions of other clusters in shards that this node leads.
#[derive(Default)]
pub struct Given {
    known: Arc<Mutex<Known>>,
    asked: Option<Instant>,
}

/// A link, and the Client Identifier of a session of the other cluster.
type Key = (String, String);

#[derive(Default)]
struct Known {
    sessions: BTreeMap<Key, Giving>,
    /// Messages that were dropped, also of sessions whose shards other nodes lead now.
    dropped: BTreeMap<Key, Sum>,
}

impl Given {
    /// Asks again about all sessions that may exist, when it is time. `own` returns the name of this cluster in a link.
    pub fn look(&mut self, all: &Named<LinkSettings>, own: impl Fn(&LinkSettings) -> String, admin: &Admin) {
        if self.asked.is_some_and(|asked| asked.elapsed() < ASK) {
            return;
        }
        self.asked = Some(Instant::now());
        let mut expected = BTreeMap::new();
        for (name, entry) in all {
            expected.insert((name.clone(), remote_session(name, None)), own(&entry.settings));
            for origin in transit(name, all) {
                expected.insert((name.clone(), remote_session(name, Some(origin))), origin.to_owned());
            }
        }
        sync::lock(&self.known).dropped.retain(|key, _| expected.contains_key(key));
        expected.retain(|(_, session), _| admin.hosts_internal(session));
        let mut known = sync::lock(&self.known);
        known.sessions.retain(|key, _| expected.contains_key(key));
        let elsewhere = known.dropped.iter_mut().filter(|(key, _)| !expected.contains_key(*key));
        elsewhere.for_each(|(_, sum)| sum.begin_again());
        drop(known);
        for (key, origin) in expected {
            let session = key.1.clone();
            let known = self.known.clone();
            let answered = move |detail: Option<Box<ClientDetail>>| {
                let Known { sessions, dropped } = &mut *sync::lock(&known);
                match detail.and_then(|detail| giving(origin, &key.1, &detail)) {
                    Some(giving) => {
                        let dropped = dropped.entry(key.clone()).or_default().add(giving.dropped);
                        sessions.insert(key, Giving { dropped, ..giving });
                    }
                    None => drop(sessions.remove(&key)),
                }
            };
            admin.client(&session, Box::new(answered));
        }
    }

    pub fn of(&self, link: &str) -> Vec<Giving> {
        let known = sync::lock(&self.known);
        known
            .sessions
            .iter()
            .filter(|((name, _), _)| name == link)
            .map(|(_, giving)| giving.clone())
            .collect()
    }
}

fn giving(origin: String, session: &str, detail: &ClientDetail) -> Option<Giving> {
    let state = detail.session.as_ref()?;
    Some(Giving {
        origin,
        session: session.to_owned(),
        is_connected: detail.info.connected,
        elsewhere: detail.elsewhere.map(|connection| connection.node),
        address: detail.info.address,
        filters: detail.info.subscriptions as u64,
        queued_messages: state.queued_messages as u64,
        queued_bytes: state.queued_bytes,
        oldest_s: state.oldest_queued.map(|waits| waits.as_secs()),
        in_flight: state.inflight as u64,
        dropped: state.dropped,
    })
}
