//! Log lines about a node's part in its cluster: links, leases, the core that a replicant is attached to, the leader,
//! and suspicions. Each change has a line. Frequent changes have a few lines per minute.

use std::collections::BTreeMap;
use std::num::NonZeroU64;
use std::time::Duration;

use link::{NodeId, Time};
use replog::Incarnation;

use super::ClusterRouter;
use crate::config::WithoutQuorum;
use crate::meta::{Member, State};

/// A value that may change, and the last line about it.
#[derive(Debug)]
struct Changes<T> {
    is: T,
    since: Time,
    /// Time for which the previous value lasted.
    lasted: Duration,
    logged: T,
    has_logged: bool,
    /// Number of changes without a line.
    suppressed: u64,
    lines: Window,
}

/// A line that is due.
#[derive(Debug, PartialEq, Eq)]
struct Line<T> {
    is: T,
    /// Value in the last line, or the initial value if there is none.
    was: T,
    is_first: bool,
    /// Time for which the previous value lasted.
    lasted: Duration,
    /// Number of changes without a line before this one, if any.
    suppressed: Option<NonZeroU64>,
}

/// Count of lines in the last minute, or slightly more.
#[derive(Debug, Default)]
struct Window {
    since: Time,
    count: u32,
}

/// Maximum number of lines in a window: for one value, and for all other nodes together. A suppressed line follows
/// later if it is still true then.
const LINES_MAX: u32 = 4;
const LINES_OF_NODES_MAX: u32 = 100;
const WINDOW: Duration = Duration::from_secs(60);
/// Interval between checks whether a suppressed line may be written.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

impl Window {
    fn has_room(&mut self, now: Time, lines_max: u32) -> bool {
        if self.since.after(WINDOW) <= now {
            *self = Self { since: now, count: 0 };
        }
        self.count < lines_max
    }
}

impl<T: Copy + PartialEq> Changes<T> {
    fn new(now: Time, is: T) -> Self {
        let lines = Window { since: now, count: 0 };
        Self { is, since: now, lasted: Duration::ZERO, logged: is, has_logged: false, suppressed: 0, lines }
    }

    /// Sets the present value.
    fn update(&mut self, now: Time, is: T) -> bool {
        let is_changed = self.is != is;
        if is_changed {
            self.lasted = Duration::from_micros(now.since(self.since));
            (self.is, self.since) = (is, now);
            self.suppressed += 1;
        }
        is_changed
    }

    /// Returns the line to write now, within the budget of `all`.
    fn next_line(&mut self, now: Time, all: Option<&mut Window>) -> Option<Line<T>> {
        if self.suppressed == 0 || !self.lines.has_room(now, LINES_MAX) {
            return None;
        }
        if let Some(all) = all {
            if !all.has_room(now, LINES_OF_NODES_MAX) {
                return None;
            }
            all.count += 1;
        }
        self.lines.count += 1;
        let suppressed = NonZeroU64::new(std::mem::take(&mut self.suppressed) - 1);
        let was = std::mem::replace(&mut self.logged, self.is);
        let is_first = !std::mem::replace(&mut self.has_logged, true);
        Some(Line { is: self.is, was, is_first, lasted: self.lasted, suppressed })
    }
}

/// State of a member according to the meta group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Standing {
    Unknown,
    Alive(Incarnation),
    Suspect(Incarnation),
    Dead,
}

impl Standing {
    fn of(member: &Member) -> Self {
        match member.state {
            State::Alive => Self::Alive(member.incarnation),
            State::Suspect(_) => Self::Suspect(member.incarnation),
            State::Dead => Self::Dead,
        }
    }
}

/// Values of a node that may have a line.
#[derive(Debug)]
pub(super) struct EventLog {
    /// State of each member's link.
    links: BTreeMap<NodeId, Changes<bool>>,
    members: BTreeMap<NodeId, Changes<Standing>>,
    /// True while a majority of the cores lets this node acknowledge.
    is_fresh: Changes<bool>,
    /// True while this node's index has no room for an interest of other nodes.
    is_full: Changes<bool>,
    attached: Changes<Option<NodeId>>,
    leader: Changes<Option<NodeId>>,
    of_nodes: Window,
    /// Time of the next check after a change.
    due: Time,
}

impl EventLog {
    pub fn new(now: Time) -> Self {
        Self {
            links: BTreeMap::new(),
            members: BTreeMap::new(),
            is_fresh: Changes::new(now, false),
            is_full: Changes::new(now, false),
            attached: Changes::new(now, None),
            leader: Changes::new(now, None),
            of_nodes: Window::default(),
            due: Time::NEVER,
        }
    }

    pub fn link(&mut self, now: Time, node: NodeId, is_up: bool) {
        let link = self.links.entry(node).or_insert_with(|| Changes::new(now, false));
        if link.update(now, is_up) {
            self.due = Time::default();
        }
    }

    /// Notes a member. Members that are known from the start get no line about joining.
    pub fn member(&mut self, now: Time, node: NodeId, member: &Member, is_news: bool) {
        let standing = Standing::of(member);
        let known = self.members.entry(node).or_insert_with(|| {
            let was_alive = Standing::Alive(member.incarnation);
            Changes::new(now, if is_news { Standing::Unknown } else { was_alive })
        });
        if known.update(now, standing) {
            self.due = Time::default();
        }
    }

    pub fn fresh(&mut self, now: Time, is_fresh: bool) {
        if self.is_fresh.update(now, is_fresh) {
            self.due = Time::default();
        }
    }

    pub fn unrouted(&mut self, now: Time, is_full: bool) {
        if self.is_full.update(now, is_full) {
            self.due = Time::default();
        }
    }

    pub fn attached(&mut self, now: Time, core: Option<NodeId>) {
        if self.attached.update(now, core) {
            self.due = Time::default();
        }
    }

    pub fn leader(&mut self, now: Time, leader: NodeId) {
        if self.leader.update(now, Some(leader)) {
            self.due = Time::default();
        }
    }

    /// Removes a node that is no longer a member.
    pub fn forget(&mut self, node: NodeId) {
        self.links.remove(&node);
        self.members.remove(&node);
    }
}

impl ClusterRouter {
    /// Writes the lines that are due.
    pub(super) fn write_event_log(&mut self, now: Time) {
        if self.event_log.due > now {
            return;
        }
        let all = &mut self.event_log.of_nodes;
        let links = self.event_log.links.iter_mut();
        let links: Vec<_> =
            links.filter_map(|(id, link)| Some((*id, link.next_line(now, Some(&mut *all))?))).collect();
        let members = self.event_log.members.iter_mut();
        let members: Vec<_> =
            members.filter_map(|(id, member)| Some((*id, member.next_line(now, Some(&mut *all))?))).collect();
        let is_fresh = self.event_log.is_fresh.next_line(now, None);
        let is_full = self.event_log.is_full.next_line(now, None);
        let attached = self.event_log.attached.next_line(now, None);
        let leader = self.event_log.leader.next_line(now, None);
        let leads = self.membership.meta.leader() == Some(self.own);
        links.iter().for_each(|(id, line)| self.log_link(*id, line));
        for (id, line) in &members {
            self.log_member(*id, line, leads);
        }
        is_fresh.iter().for_each(|line| self.log_fresh(now, line));
        is_full.iter().for_each(|line| self.log_unrouted(line));
        attached.iter().for_each(|line| self.log_attached(line));
        // A leader logs that itself.
        leader.iter().filter(|_| !leads).for_each(|line| self.log_leader(now, line));
        let event_log = &self.event_log;
        let is_left = event_log.links.values().any(|link| link.suppressed > 0)
            || event_log.members.values().any(|member| member.suppressed > 0)
            || event_log.is_fresh.suppressed
                + event_log.is_full.suppressed
                + event_log.attached.suppressed
                + event_log.leader.suppressed
                > 0;
        self.event_log.due = if is_left { now.after(CHECK_INTERVAL) } else { Time::NEVER };
    }

    fn log_link(&self, id: NodeId, line: &Line<bool>) {
        let Some(peer) = self.peers.get(&id) else { return };
        let (node, suppressed) = (&*peer.info.name, line.suppressed);
        match (line.is, line.is_first) {
            (true, true) => tracing::info!(node, suppressed, "linked to node {node}"),
            (true, false) => {
                tracing::info!(node, after = ?brief(line.lasted), suppressed, "linked to node {node} again");
            }
            (false, _) => {
                let status = self.mesh.peer(id);
                let why = status
                    .and_then(|status| status.last_error)
                    .map_or("the connection ended", |(_, why)| why);
                tracing::warn!(
                    node,
                    up = ?brief(line.lasted),
                    suppressed,
                    "link to node {node} lost: {why}. Nothing waits for that node any more; messages of QoS 1 and 2 for its clients are \
                     queued here up to cluster.buffer_max"
                );
            }
        }
    }

    fn log_member(&self, id: NodeId, line: &Line<Standing>, leads: bool) {
        let Some(peer) = self.peers.get(&id) else { return };
        let (node, suppressed) = (&*peer.info.name, line.suppressed);
        let kind = if peer.is_core() { "core" } else { "replicant" };
        match (line.is, line.was) {
            (Standing::Alive(_), Standing::Unknown) => {
                tracing::info!(node, suppressed, "{kind} {node} has joined the cluster");
            }
            (Standing::Alive(incarnation), Standing::Suspect(suspected)) if incarnation == suspected => {
                // A leader has logged it with its proposal.
                if !leads {
                    tracing::info!(node, after = ?brief(line.lasted), suppressed, "node {node} is no longer suspected");
                }
            }
            (Standing::Alive(_), _) => {
                tracing::info!(
                    node,
                    suppressed,
                    "{kind} {node} has joined the cluster again: its earlier clients are disconnected"
                );
            }
            (Standing::Suspect(_), _) => {
                if !leads {
                    tracing::warn!(
                        node,
                        suppressed,
                        "node {node} is suspected: no core reaches it. The interest of its clients is kept until the cores declare it dead"
                    );
                }
            }
            (Standing::Dead, _) => tracing::warn!(
                node,
                suppressed,
                "node declared dead by the cores: its clients are gone, and messages for its durable sessions wait for it"
            ),
            (Standing::Unknown, _) => {}
        }
    }

    fn log_fresh(&self, now: Time, line: &Line<bool>) {
        let suppressed = line.suppressed;
        match (line.is, line.is_first) {
            (true, true) => {
                tracing::info!(suppressed, "a majority of the cores lets this node acknowledge QoS 1 and 2");
            }
            (true, false) => {
                let what = match self.config.without_quorum {
                    WithoutQuorum::Hold => "publishers of QoS 1 and 2 continue",
                    WithoutQuorum::Freeze => "its clients are served again",
                    WithoutQuorum::Serve => "acknowledged messages reach all subscribers again",
                };
                tracing::info!(
                    after = ?brief(line.lasted),
                    suppressed,
                    "a majority of the cores lets this node acknowledge again: {what}"
                );
            }
            (false, _) => {
                let why = self.not_fresh_for(now);
                let what = match self.config.without_quorum {
                    WithoutQuorum::Hold => {
                        "publishers of QoS 1 and 2 wait until one does, and QoS 0 reaches only the nodes that this one reaches"
                    }
                    WithoutQuorum::Freeze => {
                        "nothing is read from clients or sent to them until one does (cluster.without_quorum)"
                    }
                    WithoutQuorum::Serve => {
                        "this node continues (cluster.without_quorum), and subscribers on other nodes may miss acknowledged messages"
                    }
                };
                tracing::warn!(
                    held = ?brief(line.lasted),
                    suppressed,
                    "no majority of the cores lets this node acknowledge any more: {why}; {what}"
                );
            }
        }
    }

    fn log_unrouted(&self, line: &Line<bool>) {
        let routes = &self.node.routes;
        let (unrouted, example) = (routes.unrouted(), routes.any_unrouted().unwrap_or_default());
        if line.is {
            tracing::error!(
                unrouted,
                %example,
                "the routing index is full: filters of other nodes or of durable sessions are not routed here. Publishers of QoS 1 and 2 \
                 wait on this node until they are; spread the clients over more nodes, then restart this one"
            );
        } else {
            tracing::info!(after = ?brief(line.lasted), "all filters are routed again");
        }
    }

    /// Describes why no majority of the cores lets this node acknowledge.
    fn not_fresh_for(&self, now: Time) -> String {
        let meta = &self.membership.meta;
        if let Some(why) = meta.waits_for().filter(|_| !meta.is_member()) {
            return why;
        }
        let cores = || self.peers.values().filter(|peer| peer.is_core());
        let all = cores().count() + usize::from(self.is_core());
        let unreached: Vec<&str> = cores().filter(|core| !core.is_up).map(|core| &*core.info.name).collect();
        let reached = all - unreached.len();
        if reached <= all / 2 {
            return format!("of {all} cores this node reaches {reached}, and not {}", unreached.join(", "));
        }
        let grants = self.leases.held.granted_by().filter(|(_, until)| *until > now).count();
        format!(
            "of {all} cores this node reaches {reached}, and {grants} let it acknowledge: this node, or a core, lacks recent subscriptions of other nodes"
        )
    }

    fn log_attached(&self, line: &Line<Option<NodeId>>) {
        let suppressed = line.suppressed;
        let was = line.was.map(|was| self.peers.get(&was));
        let from = was.flatten().map(|peer| &*peer.info.name);
        let why = match was {
            None => "",
            Some(None) => ": the previous core is no member any more",
            Some(Some(peer)) if !peer.is_up => ": the link to the previous core is lost",
            Some(Some(peer)) if peer.dead.is_some() => ": the cores have declared the previous core dead",
            Some(Some(_)) => ": the replicants are spread evenly",
        };
        let Some(core) = line.is.and_then(|core| self.peers.get(&core)) else {
            tracing::warn!(
                from,
                suppressed,
                "this node is attached to no core{why}. Other nodes do not learn of its clients' subscriptions until it reaches one"
            );
            return;
        };
        let to = &*core.info.name;
        let region = Some(&*core.info.region).filter(|region| !region.is_empty());
        let own = &*self.config.own.region;
        let is_far = !own.is_empty() && core.info.region.as_ref() != own;
        let far = if is_far { ", because no core of its own region is reachable" } else { "" };
        tracing::info!(from, to, region, suppressed, "this node is attached to core {to}{far}{why}");
    }

    fn log_leader(&self, now: Time, line: &Line<Option<NodeId>>) {
        let Some(leader) = line.is.and_then(|leader| self.peers.get(&leader)) else { return };
        let term = self.membership.meta.status(now).map(|status| status.term);
        tracing::info!(
            node = &*leader.info.name,
            term,
            suppressed = line.suppressed,
            "core {} leads the meta group",
            leader.info.name
        );
    }
}

/// Rounds a duration to the digits worth showing.
fn brief(duration: Duration) -> Duration {
    Duration::from_millis(duration.as_millis() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000)
    }

    fn line(is: bool, was: bool, is_first: bool, seconds: u64, suppressed: u64) -> Option<Line<bool>> {
        Some(Line {
            is,
            was,
            is_first,
            lasted: Duration::from_secs(seconds),
            suppressed: NonZeroU64::new(suppressed),
        })
    }

    #[test]
    fn a_change_has_a_line_at_once_and_nothing_else_has() {
        let mut link = Changes::new(at(0), false);
        assert!(!link.update(at(1), false));
        assert_eq!(link.next_line(at(1), None), None);
        assert!(link.update(at(3), true));
        assert_eq!(link.next_line(at(3), None), line(true, false, true, 3, 0));
        assert_eq!(link.next_line(at(3), None), None);
        link.update(at(10), false);
        assert_eq!(link.next_line(at(10), None), line(false, true, false, 7, 0));
    }

    /// The final value has a line, with the number of changes without one.
    #[test]
    fn frequent_changes_have_a_few_lines_a_minute() {
        let mut link = Changes::new(at(0), false);
        let mut lines = Vec::new();
        for second in 1..=101 {
            link.update(at(second), second % 2 == 1);
            lines.extend(link.next_line(at(second), None));
        }
        assert_eq!(lines.len(), 2 * LINES_MAX as usize);
        assert_eq!(lines.get(4), line(false, false, false, 1, 55).as_ref());
        assert_eq!(link.next_line(at(119), None), None);
        assert_eq!(link.next_line(at(120), None), line(true, true, false, 1, 37));
        assert_eq!(link.next_line(at(180), None), None);
    }

    #[test]
    fn lines_of_all_other_nodes_have_a_bound_and_final_states_are_logged() {
        let mut all = Window::default();
        let mut links: Vec<_> = (0..150).map(|_| Changes::new(at(0), false)).collect();
        links.iter_mut().for_each(|link| assert!(link.update(at(1), true)));
        let mut logged =
            |now| links.iter_mut().filter_map(|link| link.next_line(now, Some(&mut all))).count();
        assert_eq!(logged(at(1)), LINES_OF_NODES_MAX as usize);
        assert_eq!(logged(at(59)), 0);
        assert_eq!(logged(at(60)), 50);
        assert_eq!(logged(at(61)), 0);
    }
}
