//! A relay of the program that takes messages from another cluster, and the interest that it follows.

use bridge::{
    ConnectionId, Direction, Existing, Input, InterestSettings, Output, Relay, Settings, Side, Time, Topic,
};
use broker::InterestWatch;
use linking::{Delta, Interest};
use mqtt::{QoS, Version};

use super::plan::Route;
use crate::net::Link;

/// Names of the clusters.
pub const NAMES: [&str; 3] = ["a", "b", "c"];
/// Topics of all links.
pub const TOPICS: &str = "t/#";

/// A relay of one link and origin.
pub struct Pull {
    pub route: Route,
    pub relay: Option<Relay>,
    interest: Interest,
    /// Number of the last change of the interest.
    number: u64,
    /// Connections of the relay, by side.
    pub links: [Option<(Link, ConnectionId)>; 2],
    /// Bytes that the relay does not want yet.
    inbox: [Vec<u8>; 2],
    /// Number of the last scheduled look.
    pub tick: u64,
}

/// Request of a relay to the simulation.
pub enum Wants {
    Open(ConnectionId),
    Close(Link, Vec<u8>),
    Send(Link, Vec<u8>),
}

fn index(side: Side) -> usize {
    match side {
        Side::Local => 0,
        Side::Remote => 1,
    }
}

fn new_interest(route: Route) -> Interest {
    let interest = Interest::new("", std::iter::once(TOPICS), 1_000);
    if route.is_direct() { interest } else { interest.without_groups() }
}

impl Pull {
    pub fn new(route: Route) -> Self {
        let (links, inbox) = Default::default();
        Self { route, relay: None, interest: new_interest(route), number: 0, links, inbox, tick: 0 }
    }

    /// Cluster of origin, unless it is the other cluster.
    fn transit(&self) -> Option<&'static str> {
        (!self.route.is_direct()).then(|| NAMES[self.route.origin])
    }

    /// Begins a relay that knows nothing of the sessions.
    pub fn start(&mut self, now: Time, seed: u64, watch: &InterestWatch) {
        let (own, other) = (NAMES[self.route.at], NAMES[self.route.from]);
        let transit = self.transit();
        let of_origin = transit.map(|origin| format!("/{origin}")).unwrap_or_default();
        let settings = Settings {
            local_client_id: Some(format!("$linked/{other}{of_origin}")),
            addresses: vec!["other".to_owned()],
            client_id: format!("$link/{own}{of_origin}"),
            version: Version::V5,
            in_flight: 20,
            keep_alive: 5,
            topics: vec![Topic::new(TOPICS, Direction::In, QoS::ExactlyOnce)],
            interest: Some(InterestSettings::new(own, other, transit)),
            ..Settings::new(&format!("{other}{}", of_origin.replace('/', ".")), "")
        };
        let relay = Relay::new(settings, &format!("{own}-id"), Existing::default(), seed);
        self.relay = Some(relay.expect("valid settings"));
        self.interest = new_interest(self.route);
        self.links = Default::default();
        self.inbox = Default::default();
        let mut walk = self.interest.walk();
        watch.for_each(None, &mut |filter| walk.offer(filter));
        watch.for_each(Some(NAMES[self.route.origin]), &mut |filter| walk.offer(filter));
        self.interest.finish(walk);
        let Delta { add, remove } = self.interest.take();
        self.number += 1;
        let number = self.number;
        self.handle(now, Input::Want { number, add, remove });
        self.handle(now, Input::Start);
    }

    fn handle(&mut self, now: Time, input: Input<'_>) {
        if let Some(relay) = &mut self.relay {
            relay.handle(now, input).expect("valid settings");
            relay.check_invariants();
        }
    }

    /// Follows changes of filters. Returns whether there was any.
    pub fn follow(&mut self, now: Time, watch: &InterestWatch, filters: &[Box<str>]) -> bool {
        if self.relay.is_none() {
            return false;
        }
        for filter in filters {
            let is_wanted =
                watch.is_wanted(None, filter) || watch.is_wanted(Some(NAMES[self.route.origin]), filter);
            self.interest.set(filter, is_wanted);
        }
        let Delta { add, remove } = self.interest.take();
        let has_changed = !(add.is_empty() && remove.is_empty());
        if has_changed {
            self.number += 1;
            let number = self.number;
            self.handle(now, Input::Want { number, add, remove });
        }
        has_changed
    }

    /// Returns whether the other cluster has confirmed all filters that are wanted.
    pub fn is_settled(&self) -> bool {
        self.relay.as_ref().is_some_and(|relay| relay.is_settled() && relay.settled_number() >= self.number)
    }

    /// Describes the relay, for a failed check.
    pub fn describe(&self) -> String {
        let Some(relay) = &self.relay else { return format!("{:?}: no relay", self.route) };
        let (wanted, subscribed) = (relay.wanted(), relay.subscribed());
        format!(
            "{:?}: {}, {subscribed} of {wanted} filters, {} of {} changes, last error {:?}",
            self.route,
            relay.state(),
            relay.settled_number(),
            self.number,
            relay.last_error()
        )
    }

    pub fn may_have_stale(&self) -> bool {
        self.relay.as_ref().is_none_or(Relay::may_have_stale)
    }

    pub fn opened(&mut self, now: Time, connection: ConnectionId, link: Option<Link>) {
        match link {
            Some(link) => {
                self.links[index(connection.side)] = Some((link, connection));
                self.inbox[index(connection.side)].clear();
                self.handle(now, Input::Opened(connection));
            }
            None => self.handle(now, Input::Failed(connection, "the node is down".to_owned())),
        }
    }

    pub fn received(&mut self, link: Link, bytes: &[u8]) {
        let side = self.links.iter().position(|it| it.is_some_and(|(of, _)| of == link));
        if let Some(side) = side {
            self.inbox[side].extend_from_slice(bytes);
        }
    }

    pub fn lost(&mut self, now: Time, link: Link) {
        for side in 0..2 {
            if let Some((_, connection)) = self.links[side].take_if(|(of, _)| *of == link) {
                self.inbox[side].clear();
                self.handle(now, Input::Closed(connection, "lost".to_owned()));
            }
        }
    }

    /// Lets the relay go on until it wants something, or nothing.
    pub fn next(&mut self, now: Time) -> Option<Wants> {
        loop {
            let relay = self.relay.as_mut()?;
            if relay.poll_timeout().is_some_and(|at| at <= now) {
                self.handle(now, Input::Timeout);
                continue;
            }
            match relay.poll_output() {
                Some(Output::Open { connection, .. }) => return Some(Wants::Open(connection)),
                Some(Output::Close { connection, rest }) => {
                    let link = self.links[index(connection.side)].take_if(|(_, of)| *of == connection);
                    match link {
                        Some((link, _)) => return Some(Wants::Close(link, rest)),
                        None => continue,
                    }
                }
                Some(_) => continue,
                None => {}
            }
            for side in Side::ALL {
                let Some((link, connection)) = self.links[index(side)] else { continue };
                let bytes = relay.outgoing(side).to_vec();
                if !bytes.is_empty() && relay.connection(side) == Some(connection) {
                    let count = bytes.len();
                    self.handle(now, Input::Sent(connection, count));
                    return Some(Wants::Send(link, bytes));
                }
            }
            let mut has_read = false;
            for side in Side::ALL {
                let Some((_, connection)) = self.links[index(side)] else { continue };
                let Some(relay) = &self.relay else { continue };
                if relay.wants_read(side) && !self.inbox[index(side)].is_empty() {
                    let bytes = std::mem::take(&mut self.inbox[index(side)]);
                    self.handle(now, Input::Received(connection, &bytes));
                    has_read = true;
                }
            }
            if !has_read {
                return None;
            }
        }
    }
}
