//! Parts of the simulation that clients use: the node, the network, the oracle.

use std::collections::BTreeMap;

use crate::context::Context;
use crate::disk::Machine;
use crate::net::{Direction, Link, Net};
use crate::node::Node;
use crate::oracle::Oracle;
use testkit::packets::Sent;

pub struct Scene {
    pub cx: Context,
    pub net: Net,
    pub machine: Machine,
    /// `None` while its process does not run.
    pub node: Option<Node>,
    pub oracle: Oracle,
    /// Time of the node at its death. Its next incarnation begins at this time or later.
    pub stopped_at: u64,
    /// Past incarnations: the first link after theirs, and the time of the node at which they ended.
    pub past: Vec<(Link, u64)>,
    /// Number of bytes of each connection up to the end of its DISCONNECT.
    pub goodbyes: BTreeMap<Link, u64>,
    /// True after the last fault: nothing new is begun.
    pub healing: bool,
}

impl Scene {
    /// Time of the node. While it does not run, the time at which it stopped.
    pub fn time(&self) -> u64 {
        self.node.as_ref().map_or(self.stopped_at, |node| node.time(&self.cx).0)
    }

    /// Time of the node for data on a connection. For a connection of a past incarnation, it is the end of that one.
    /// Data may arrive long after that, when the clock of the node has another time.
    pub fn time_on(&self, link: Link) -> u64 {
        let ended = self.past.iter().find(|(first, _)| link < *first);
        ended.map_or_else(|| self.time(), |(_, time)| *time)
    }

    /// Ends the node's incarnation at this time of its own.
    pub fn end_incarnation(&mut self, time: u64) {
        self.stopped_at = time;
        self.past.push((self.net.opened(), time));
    }

    /// Opens a connection to the node. Returns `None` while that does not run.
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

/// Formats a packet in one line, without the padding of its payload.
pub fn brief(packet: &Sent) -> String {
    let mut text = format!("{packet:?}").replace("....", "");
    if text.len() > 400 {
        text.truncate((0..400).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0));
    }
    text
}
