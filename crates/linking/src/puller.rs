//! The work of taking messages of one cluster of origin by one link.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use bridge::{AddressSessions, Backoff, Direction, InterestSettings, Topic};
use bridges::{BridgeProblem, Credentials, Run, Runner, RunnerSettings, RunnerView};
use definitions::{Definition, Problem};
use edge::Door;
use mqtt::Version;
use rustls::ClientConfig;

use crate::cut::Taken;
use crate::interest::{Delta, Interest};
use crate::names::{USERNAME, local_session, remote_session};
use crate::settings::LinkSettings;
use crate::token::{Parties, make};
use crate::view::Taking;

/// Maximum time for the messages in flight of a link that stops or moves to another node.
pub const STOP_MAX: Duration = Duration::from_secs(2);
/// Number of broader filters that operators see.
const BROADER_SHOWN: usize = 20;

/// Number of filters whose subscription may always wait for the begin of others.
const HELD_MIN: usize = 10_000;

/// A link and the cluster of origin whose messages it takes.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Key {
    pub link: String,
    pub origin: String,
}

impl Key {
    /// Cluster whose messages come through the other cluster; `None` for its own.
    pub fn transit(&self) -> Option<&str> {
        (self.origin != self.link).then_some(&*self.origin)
    }

    /// Client Identifier of the session here.
    pub fn session(&self) -> String {
        local_session(&self.link, self.transit())
    }
}

/// A puller as this node knows it.
pub struct Puller {
    pub link: Arc<Definition<LinkSettings>>,
    /// Name of this cluster.
    pub own: Result<String, Problem>,
    /// Topics of the link.
    taken: Vec<Taken>,
    pub running: Option<Running>,
    /// Number of times that it was started.
    pub starts: u64,
    /// Runners that complete what is in flight, with the time at which they are dropped.
    pub ending: Vec<(Runner, Instant)>,
    /// True while this node leads the shard of the session.
    pub is_here: bool,
    /// True when the link does not take these messages any more, and its runners end.
    pub is_removed: bool,
    /// Reason why it did not start.
    pub failure: Option<String>,
    /// Time before which it does not start again.
    pub retry: Option<Instant>,
    /// State of the other cluster that was seen last.
    pub history: Option<String>,
}

impl Puller {
    pub fn new(link: Arc<Definition<LinkSettings>>, own: Result<String, Problem>) -> Self {
        Self {
            taken: taken(&link),
            link,
            own,
            running: None,
            starts: 0,
            ending: Vec::new(),
            is_here: false,
            is_removed: false,
            failure: None,
            retry: None,
            history: None,
        }
    }

    /// Replaces the settings of the link. What runs has the former ones.
    pub fn replace(&mut self, link: Arc<Definition<LinkSettings>>, own: Result<String, Problem>) {
        self.taken = taken(&link);
        (self.link, self.own) = (link, own);
    }

    /// Returns whether the link takes a part of a filter of a client.
    pub fn takes(&self, local: &str) -> bool {
        self.taken.iter().any(|topic| topic.cut(local).is_some())
    }

    /// Returns whether it should run on the node that leads its shard.
    pub fn is_wanted(&self) -> bool {
        !self.is_removed && self.link.settings.enabled && self.link.fault.is_none() && self.own.is_ok()
    }

    /// Stops it. What is in flight is completed for a while.
    pub fn stop(&mut self) {
        if let Some(Running { runner, .. }) = self.running.take() {
            self.history = runner.view().history.or_else(|| self.history.take());
            runner.stop(STOP_MAX);
            self.ending.push((runner, Instant::now() + STOP_MAX + STOP_MAX));
        }
        (self.failure, self.retry) = (None, None);
    }

    /// Drops runners that have ended.
    pub fn sweep(&mut self) {
        let now = Instant::now();
        self.ending.retain(|(runner, until)| runner.is_running() && now < *until);
    }

    pub fn taking(&self, key: &Key) -> Taking {
        let of_key = Taking { origin: key.origin.clone(), session: key.session(), ..Taking::default() };
        let Some(running) = &self.running else {
            let settings = &self.link.settings;
            let (state, is_failing, last_error) = match (&self.link.fault, &self.own, &self.failure) {
                (Some(fault), ..) => ("stopped: the link cannot be used", true, Some(fault.clone())),
                (_, Err(problem), _) => ("stopped: the link cannot be used", true, Some(problem.to_string())),
                (_, _, Some(failure)) => ("stopped: the link does not start", true, Some(failure.clone())),
                _ if !settings.enabled => ("stopped: the link is not enabled", false, None),
                _ => ("starting", false, None),
            };
            let relay =
                RunnerView { state: state.to_owned(), is_failing, last_error, ..RunnerView::default() };
            return Taking { relay, ..of_key };
        };
        let interest = &running.interest;
        Taking {
            relay: running.runner.view(),
            filters_wanted: interest.wanted() as u64,
            filters_broader: interest.broader().count() as u64,
            broader: interest.broader().take(BROADER_SHOWN).map(str::to_owned).collect(),
            ..of_key
        }
    }
}

fn taken(link: &Definition<LinkSettings>) -> Vec<Taken> {
    let LinkSettings { prefix, topics, .. } = &link.settings;
    topics.iter().map(|topic| Taken::new(prefix, topic)).collect()
}

/// A puller that runs.
pub struct Running {
    pub runner: Runner,
    pub interest: Interest,
    /// True until the runner knows all filters that are wanted.
    pub is_new: bool,
    /// Filters whose subscription is to end when the change with this number is settled.
    held: HashMap<Box<str>, u64>,
    /// Maximum number of these. Beyond, subscriptions end before others have begun.
    held_max: usize,
    /// Number of the last change.
    number: u64,
    own_id: String,
}

impl Running {
    /// Starts the thread of a puller. It does not connect before [`Self::flush`].
    ///
    /// # Errors
    /// A setting is wrong, or the system has no more threads.
    pub fn start(
        key: &Key,
        puller: &Puller,
        own_id: String,
        door: &Door,
        on_settled: Box<dyn Fn(u64) + Send>,
    ) -> Result<Self, String> {
        let own = puller.own.as_ref().map_err(Problem::to_string)?;
        let settings = &puller.link.settings;
        let credentials = LinkCredentials { link: puller.link.clone(), own: own.clone() };
        let transit = key.transit().map(|transit| format!("-{transit}")).unwrap_or_default();
        let runner = Runner::spawn(
            RunnerSettings {
                noun: "cluster link",
                thread: format!("link-{}{transit}", key.link),
                relay: relay(settings, own, key, puller.history.as_deref()),
                credentials: Box::new(credentials),
                on_settled,
            },
            door,
        );
        let topics = settings.topics.iter();
        let mut interest = Interest::new(&settings.prefix, topics, settings.filters_max as usize);
        if key.transit().is_some() {
            interest = interest.without_groups();
        }
        Ok(Self {
            runner: runner.map_err(|problem| problem.to_string())?,
            interest,
            is_new: true,
            held: HashMap::new(),
            // A broader filter may replace as many as there may be.
            held_max: (settings.filters_max as usize).saturating_mul(2).max(HELD_MIN),
            number: 0,
            own_id,
        })
    }

    /// Tells the runner what has changed in the interest. Subscriptions begin before others end, so that no message is
    /// missed when a filter replaces another one.
    pub fn flush(&mut self) {
        let Delta { add, remove } = self.interest.take();
        if std::mem::take(&mut self.is_new) {
            let run = Run { filters: Vec::new(), own_id: self.own_id.clone(), wanted: Some(add) };
            self.number = self.runner.run(self.runner.ticket(), run);
            return;
        }
        if !add.is_empty() {
            for filter in &add {
                self.held.remove(filter);
            }
            self.number = self.runner.want(add, Vec::new());
        }
        let number = self.number;
        self.held.extend(remove.into_iter().map(|filter| (filter, number)));
        self.release();
    }

    /// Ends the subscriptions whose successors are confirmed.
    pub fn release(&mut self) {
        if self.held.is_empty() {
            return;
        }
        let settled = self.runner.settled_number();
        let is_beyond = self.held.len() > self.held_max;
        let due: Vec<Box<str>> = self
            .held
            .extract_if(|_, number| is_beyond || *number <= settled)
            .map(|(filter, _)| filter)
            .collect();
        if !due.is_empty() {
            // Its own number does not hold later ones: an end has no successor.
            self.runner.want(Vec::new(), due);
        }
    }
}

/// Settings of the relay of a puller.
fn relay(settings: &LinkSettings, own: &str, key: &Key, history: Option<&str>) -> bridge::Settings {
    let transit = key.transit();
    let qos = settings.qos_max();
    let topic = |filter: &str| Topic::prefixed(filter, Direction::In, qos, &settings.prefix, "");
    let mut interest = InterestSettings::new(own, &key.link, transit);
    interest.qos = qos;
    interest.history = history.map(str::to_owned);
    // Its own subscription for answers is one more.
    interest.filters_max = (settings.filters_max as usize).max(settings.topics.iter().count()) + 1;
    // There may be as many groups.
    interest.filters_max += settings.filters_max as usize;
    let name = transit.map_or_else(|| key.link.clone(), |transit| format!("{}.{transit}", key.link));
    bridge::Settings {
        local_client_id: Some(key.session()),
        // All addresses reach one cluster. With a session for each, a message in flight would come twice.
        address_sessions: AddressSessions::Shared,
        addresses: settings.addresses().map(|address| address.as_str().to_owned()).collect(),
        client_id: remote_session(own, transit),
        username: Some(USERNAME.to_owned()),
        version: Version::V5,
        clean: false,
        keep_alive: settings.keep_alive.as_secs() as u16,
        in_flight: settings.in_flight,
        topics: settings.topics.iter().map(topic).collect(),
        backoff: Backoff { min: settings.backoff_min, max: settings.backoff_max, ..Backoff::default() },
        packet_size_max: settings.packet_size_max.bytes() as u32,
        interest: Some(interest),
        ..bridge::Settings::new(&name, "")
    }
}

/// Token and TLS of a link.
struct LinkCredentials {
    link: Arc<Definition<LinkSettings>>,
    own: String,
}

impl Credentials for LinkCredentials {
    fn password(&self) -> Result<Option<Vec<u8>>, BridgeProblem> {
        let problem = |setting, why: String| BridgeProblem { setting, why };
        let secret = self.link.settings.secret().map_err(|error| problem("secret_file", error.why))?;
        let mut nonce = [0; 16];
        getrandom::fill(&mut nonce).map_err(|error| problem("secret_file", error.to_string()))?;
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let parties = Parties { from: &self.own, to: &self.link.settings.name };
        Ok(Some(make(parties, secret.bytes(), now_ms, nonce).into_bytes()))
    }

    fn tls(&self) -> Result<Option<Arc<ClientConfig>>, BridgeProblem> {
        self.link.settings.tls()
    }

    fn tls_server_name(&self) -> Option<&str> {
        self.link.settings.tls_server_name.as_deref()
    }
}

#[cfg(test)]
mod tests {
    use definitions::settings_of_json;
    use serde_json::json;

    use super::*;

    #[test]
    fn the_relay_of_each_link_has_valid_settings() {
        let more = json!({
            "address": "h:1883,i:1883", "topics": "a/#\n#", "prefix": "south/", "origins": "east", "qos": 1, "secret_file": "/s",
        });
        let settings: LinkSettings =
            settings_of_json("south", more.as_object().expect("object")).expect("valid");
        for (origin, client_id, session) in
            [("south", "$link/north", "$linked/south"), ("east", "$link/north/east", "$linked/south/east")]
        {
            let key = Key { link: "south".into(), origin: origin.into() };
            let relay = relay(&settings, "north", &key, None);
            assert_eq!(relay.check().err(), None);
            assert_eq!((relay.client_id.as_str(), relay.local_client_id().as_str()), (client_id, session));
            assert_eq!((relay.addresses.len(), relay.topics.len()), (2, 2));
            assert_eq!(relay.address_sessions, AddressSessions::Shared);
        }
    }
}
