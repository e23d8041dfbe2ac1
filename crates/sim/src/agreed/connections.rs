//! Connections of the clients.

use crate::net::{Direction, Link, Piece};
use crate::node::Node;
use crate::schedule::Event;

use super::claims::{Origin, SessionNumber};
use super::client::Client;
use super::ephemeral::Fate;
use super::world::AgreedShards;

/// Number of the first client that writes or reads retained messages, of the first device, and of the first contender.
const RETAINED_CLIENTS: usize = 1000;
const DEVICES: usize = 2000;
const CONTENDERS: usize = 4000;
/// Number of times that a client acts before it leaves its node.
const LAST_ACTIONS: usize = 4;

impl AgreedShards {
    /// Opens a connection to a node, or to any one. Returns the node; `None` when none runs.
    fn open(&mut self, number: usize, home: Option<usize>) -> Option<(usize, Link)> {
        let runs = |at: &usize| self.hosts[*at].node.is_some();
        let running: Vec<usize> = match home {
            Some(home) => Some(home).filter(runs).into_iter().collect(),
            None => (0..self.hosts.len()).filter(runs).collect(),
        };
        if running.is_empty() {
            return None;
        }
        let home = *self.cx.random.pick(&running);
        let node = self.hosts[home].node.as_mut()?;
        let link = self.net.open(number);
        let worker = node.open(&mut self.cx, link);
        self.claims.opened(link, Origin { node: home, process: node.incarnation(), worker });
        self.cx.report.connections += 1;
        self.homes.insert(link, home);
        self.cx.log(|| format!("client {number} connects to node {home} on {link}"));
        Some((home, link))
    }

    pub(super) fn act(&mut self, number: usize) {
        match &self.clients[number].connection {
            None => {
                let Some((home, link)) = self.open(number, None) else { return };
                let bytes = self.clients[number].connect(&self.cx, &mut self.claims, link);
                self.net.send(&mut self.cx, link, Direction::ToNode, bytes);
                self.after_turn(home);
            }
            Some(connection) => {
                let link = connection.link;
                if self.is_calm {
                    return;
                }
                let clients = self.clients.len();
                let bytes = self.clients[number].act(&mut self.cx, &mut self.messages, clients);
                self.net.send(&mut self.cx, link, Direction::ToNode, bytes);
            }
        }
    }

    pub(super) fn act_retained(&mut self, client: usize) {
        let Some(link) = self.retained.link(client) else {
            let home = self.retained.home(client);
            let Some((home, link)) = self.open(RETAINED_CLIENTS + client, home) else { return };
            let bytes = self.retained.connect(&self.cx, &mut self.claims, client, link);
            self.net.send(&mut self.cx, link, Direction::ToNode, bytes);
            return self.after_turn(home);
        };
        let (bytes, gives_up) = self.retained.act(&mut self.cx, client, self.is_calm);
        self.net.send(&mut self.cx, link, Direction::ToNode, bytes);
        if gives_up {
            self.net.lose(&mut self.cx, link);
        }
    }

    pub(super) fn act_device(&mut self, device: usize) {
        if self.is_calm {
            return;
        }
        let Some(link) = self.devices.link(device) else {
            if !self.devices.wants_connection(self.cx.now(), device) {
                return;
            }
            let Some((home, link)) = self.open(DEVICES + device, None) else { return };
            let records = (&mut self.messages, &mut self.claims);
            let bytes = self.devices.connect(&mut self.cx, records, device, link);
            self.net.send(&mut self.cx, link, Direction::ToNode, bytes);
            return self.after_turn(home);
        };
        let (bytes, fate) = self.devices.act(&mut self.cx, &mut self.claims, device);
        self.net.send(&mut self.cx, link, Direction::ToNode, bytes);
        if fate == Fate::Lose {
            self.net.lose(&mut self.cx, link);
        }
    }

    pub(super) fn act_contender(&mut self, contender: usize) {
        if self.is_calm {
            return;
        }
        let Some(link) = self.contenders.link(contender) else {
            if !self.contenders.wants_connection(self.cx.now(), contender) {
                return;
            }
            let Some((home, link)) = self.open(CONTENDERS + contender, None) else { return };
            let bytes = self.contenders.connect(&mut self.cx, &mut self.claims, contender, link);
            self.net.send(&mut self.cx, link, Direction::ToNode, bytes);
            return self.after_turn(home);
        };
        let (bytes, fate) = self.contenders.act(&mut self.cx, &mut self.claims, contender);
        self.net.send(&mut self.cx, link, Direction::ToNode, bytes);
        if fate == Fate::Lose {
            self.net.lose(&mut self.cx, link);
        }
    }

    pub(super) fn arrive(&mut self, link: Link, direction: Direction) {
        let Some(home) = self.homes.get(&link).copied() else { return };
        match direction {
            Direction::ToNode => {
                let Some(node) = &mut self.hosts[home].node else { return };
                let now = self.cx.now();
                let waits_until = node.paused_until(now).max(self.net.late_until(now, link, direction));
                if let Some(until) = waits_until {
                    return self.cx.at(until, Event::Arrive { link, direction });
                }
                match self.net.take(link, direction) {
                    Some(Piece::Bytes(bytes)) => node.receive(&mut self.cx, &mut self.net, link, &bytes),
                    Some(Piece::End) => node.lost(&mut self.cx, &mut self.net, link),
                    None => return,
                }
                self.after_turn(home);
            }
            Direction::ToClient => match self.net.take(link, direction) {
                Some(Piece::Bytes(bytes)) => self.received(link, &bytes),
                Some(Piece::End) => self.disconnected(link, true),
                None => {}
            },
        }
    }

    /// Lets half of the clients of a node go to other nodes. What they have sent last arrives late.
    pub(super) fn leave_node(&mut self, at: usize) {
        let clients = (0..self.clients.len()).filter_map(|client| {
            let connection = self.clients[client].connection.as_ref()?;
            Some((Some(client), connection.link))
        });
        let devices = (0..self.devices.len()).filter_map(|device| self.devices.link(device));
        let contenders = (0..self.contenders.len()).filter_map(|contender| self.contenders.link(contender));
        let all = clients.chain(devices.chain(contenders).map(|link| (None, link)));
        let of_node: Vec<_> = all.filter(|(_, link)| self.homes.get(link) == Some(&at)).collect();
        for (client, link) in of_node {
            if self.cx.random.below(2) == 0 {
                continue;
            }
            if let Some(client) = client {
                (0..LAST_ACTIONS).for_each(|_| self.act(client));
            }
            self.cx.report.agreed_abandoned += 1;
            self.net.abandon(&mut self.cx, link);
        }
    }

    /// Notes the connections that a node has ended, and the sessions that it has given to others.
    pub(super) fn note_connections(&mut self, at: usize) {
        let Some(node) = &mut self.hosts[at].node else { return };
        let now = self.cx.now();
        for (link, session, epoch) in node.take_granted() {
            self.claims.granted(link, SessionNumber { number: session.origin(), epoch });
        }
        for (link, taken) in node.take_ended() {
            self.claims.ended(now, link);
            self.devices.ended(link, taken);
        }
    }

    /// Notes that an incarnation of a node is over, with all its connections.
    pub(super) fn end_claims(&mut self, at: usize) {
        let now = self.cx.now();
        let of_node = self.homes.iter().filter(|(_, home)| **home == at);
        of_node.for_each(|(link, _)| self.claims.node_ended(now, *link));
    }

    /// Lets a client read.
    fn received(&mut self, link: Link, bytes: &[u8]) {
        let answers = if let Some(client) = self.retained.of_link(link) {
            self.retained.read(&mut self.cx, &mut self.claims, client, bytes)
        } else if let Some(device) = self.devices.of_link(link) {
            return self.devices.read(&mut self.cx, &mut self.claims, device, bytes);
        } else if let Some(contender) = self.contenders.of_link(link) {
            return self.contenders.read(&mut self.cx, &mut self.claims, contender, bytes);
        } else if let Some(client) = self.clients.iter_mut().find(|client| has_link(client, link)) {
            client.read(&mut self.cx, &mut self.messages, &mut self.claims, bytes)
        } else {
            return;
        };
        self.net.send(&mut self.cx, link, Direction::ToNode, answers);
    }

    /// Lets a client notice that its connection is gone. `is_end` says that the node has closed it.
    fn disconnected(&mut self, link: Link, is_end: bool) {
        if let Some(client) = self.retained.of_link(link) {
            self.retained.disconnected(&mut self.cx, client);
        } else if let Some(device) = self.devices.of_link(link) {
            let records = (&mut self.messages, &mut self.claims);
            let node = self.homes.get(&link).and_then(|home| self.hosts[*home].node.as_ref());
            let last_frozen = node.and_then(Node::last_frozen);
            self.devices.disconnected(&mut self.cx, records, device, (is_end, last_frozen));
        } else if let Some(contender) = self.contenders.of_link(link) {
            self.contenders.disconnected(&mut self.cx, &mut self.claims, contender, is_end);
        } else if let Some(client) = self.clients.iter_mut().find(|client| has_link(client, link)) {
            client.disconnected();
        }
    }

    pub(super) fn lost(&mut self, link: Link, direction: Direction) {
        match direction {
            Direction::ToNode => {
                let Some(home) = self.homes.get(&link).copied() else { return };
                let Some(node) = &mut self.hosts[home].node else { return };
                if let Some(until) = node.paused_until(self.cx.now()) {
                    return self.cx.at(until, Event::Lost { link, direction });
                }
                node.lost(&mut self.cx, &mut self.net, link);
                self.after_turn(home);
            }
            Direction::ToClient => self.disconnected(link, false),
        }
    }
}

fn has_link(client: &Client, link: Link) -> bool {
    client.connection.as_ref().is_some_and(|connection| connection.link == link)
}
