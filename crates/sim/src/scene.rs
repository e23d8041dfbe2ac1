//! What clients act on: the node, the network, the oracle.

use std::collections::BTreeMap;

use crate::context::Context;
use crate::disk::Machine;
use crate::net::{Direction, Link, Net};
use crate::node::Node;
use crate::oracle::Oracle;
use crate::packets::Sent;

pub struct Scene {
    pub cx: Context,
    pub net: Net,
    pub machine: Machine,
    /// `None` while its process does not run.
    pub node: Option<Node>,
    pub oracle: Oracle,
    /// The node's time when it died, or when it will at least begin.
    pub stopped_at: u64,
    /// Lives that are over: the first connection that was not theirs any more, and the node's time when they ended.
    pub past: Vec<(Link, u64)>,
    /// Bytes of connections up to the end of their DISCONNECT.
    pub goodbyes: BTreeMap<Link, u64>,
    /// Nothing goes wrong any more, and nothing new is begun.
    pub healing: bool,
}

impl Scene {
    /// The node's time; while it does not run, when it stopped.
    pub fn time(&self) -> u64 {
        self.node.as_ref().map_or(self.stopped_at, |node| node.time(&self.cx).0)
    }

    /// The node's time for what comes on a connection: of one that an earlier life had, when that ended. What is under way may
    /// arrive long after, when the node's time is another.
    pub fn time_on(&self, link: Link) -> u64 {
        let ended = self.past.iter().find(|(first, _)| link < *first);
        ended.map_or_else(|| self.time(), |(_, time)| *time)
    }

    /// The node's life is over, at this time of its own.
    pub fn end_incarnation(&mut self, time: u64) {
        self.stopped_at = time;
        self.past.push((self.net.opened(), time));
    }

    /// A connection to the node; nobody answers while it does not run.
    pub fn connect(&mut self, client: usize) -> Option<Link> {
        let node = self.node.as_mut()?;
        let link = self.net.open(client);
        node.open(&mut self.cx, link);
        self.cx.report.connections += 1;
        Some(link)
    }

    pub fn send(&mut self, link: Link, bytes: Vec<u8>) {
        self.net.send(&mut self.cx, link, Direction::ToNode, bytes);
    }

    pub fn log_sent(&mut self, name: &str, link: Link, packet: &Sent) {
        self.cx.log(|| format!("{name} on {link} sends {}", brief(packet)));
    }

    pub fn log_received(&mut self, name: &str, link: Link, packet: &Sent) {
        self.cx.log(|| format!("{name} on {link} gets {}", brief(packet)));
    }
}

/// A packet in a line, without what fills its payload up.
pub fn brief(packet: &Sent) -> String {
    let mut text = format!("{packet:?}").replace("....", "");
    if text.len() > 400 {
        text.truncate((0..400).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0));
    }
    text
}
