//! Alarms: present faults of a node or its cluster, each with the action that ends it.
//!
//! There is one list. The dashboard, `meridian top`, `meridian ctl status` and `meridian ctl cluster` all show it.

pub(crate) mod flows;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use serde::Serialize;
use tls::{Expiry, ExpiryKind};
#[cfg(feature = "document")]
use utoipa::ToSchema;

use crate::cluster::{ClusterView, LinkView, MembershipView, UnjoinedPeerView};
use crate::process::ProcessFigures;
use crate::state::{Phase, RefusedFiles, State};
use crate::storage::StorageCondition;

/// Age of a waiting frame, in seconds, from which a link counts as too slow for the messages that are published.
const FRAME_AGE_MAX: f64 = 5.0;
/// Time in seconds without progress after which a drain is reported.
const DRAIN_STALLED_S: u64 = 60;
/// Maximum share of retransmitted frames, in percent. Without lost connections the share is 0.
const RETRANSMITTED_MAX: f64 = 1.0;

/// A present fault, and the action that ends it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct Alarm {
    /// Node that the alarm is about.
    pub node: String,
    /// `error` (a function fails), `warning` (a function will fail, or works badly) or `notice`.
    pub severity: Severity,
    /// Subject of the alarm, for programs: `storage`, `node`, `open`, `limits`, `certificate`, `membership`, `quorum`,
    /// `acknowledging`, `shards`, `dead`, `drain`, `link`, `unjoined_peers`, `clock`, `routes_unindexed`, `refused`,
    /// `bbr`, `no_answer`, `action`, `bridge`, `cluster_link` or `dropping`.
    pub code: &'static str,
    /// Description of the fault and of the action that ends it, for people.
    pub text: String,
}

/// Severity of an alarm.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "document", schema(as = AlarmSeverity))]
pub enum Severity {
    Error,
    Warning,
    Notice,
}

impl Alarm {
    pub(crate) fn new(node: &str, severity: Severity, code: &'static str, text: impl Into<String>) -> Self {
        Self { node: node.to_owned(), severity, code, text: text.into() }
    }
}

/// Returns all alarms that this node knows of, the most severe first.
pub(crate) fn all(state: &State, stuck: Option<String>) -> Vec<Alarm> {
    let node = &state.node.name;
    let mut alarms = of_node(state);
    alarms.extend(stuck.map(|why| Alarm::new(node, Severity::Error, "node", why)));
    let view = state.cluster.as_ref().and_then(|cluster| cluster.view());
    alarms.extend(view.iter().flat_map(of_cluster));
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    alarms.extend(of_certificates(node, (state.node.expiries)(), i64::try_from(now).unwrap_or(i64::MAX)));
    alarms.extend(of_refused_files(node, (state.node.watched)().refused));
    alarms.extend(flows::all(state));
    // The sort is stable: alarms of one severity keep their order.
    alarms.sort_by_key(|alarm| alarm.severity);
    alarms
}

fn of_node(state: &State) -> Vec<Alarm> {
    let node = &state.node.name;
    let alarm = |severity, code, text: String| Alarm::new(node, severity, code, text);
    let mut alarms = Vec::new();
    match state.phase() {
        Phase::Ready => {}
        Phase::Starting => alarms.push(alarm(
            Severity::Warning,
            "node",
            "the node is starting and serves no clients yet (meridian ctl health shows what it waits for)"
                .to_owned(),
        )),
        Phase::Stopping => alarms.push(alarm(Severity::Warning, "node", "the node is stopping".to_owned())),
    }
    match state.storage_condition() {
        Some(StorageCondition::Full) => alarms.push(alarm(
            Severity::Error,
            "storage",
            format!(
                "the disk of {} is full, or no file descriptor is left for the log: messages for durable \
                 sessions and retained messages are refused. Free some space; the node then continues by \
                 itself (meridian ctl storage)",
                state.node.data_dir.display()
            ),
        )),
        Some(StorageCondition::Failed) => alarms.push(alarm(
            Severity::Error,
            "storage",
            format!(
                "the disk of {} has failed: durable sessions are refused. Check the disk, then restart the node (meridian ctl storage)",
                state.node.data_dir.display()
            ),
        )),
        Some(StorageCondition::Good) | None => {}
    }
    if state.is_open() {
        alarms.push(alarm(
            Severity::Warning,
            "open",
            "there is no API key and no account: everybody on this machine is admin. Make one: `meridian account \
             add NAME --role admin`, or `meridian key add NAME --role admin`"
                .to_owned(),
        ));
    }
    if let Some(drain) = state.drains.view().filter(|drain| drain.stalled_s >= DRAIN_STALLED_S) {
        let why = drain.paused_because.as_deref().unwrap_or("clients or shards do not leave");
        alarms.push(alarm(
            Severity::Warning,
            "drain",
            format!(
                "the drain of this node has made no progress for {} s: {why} (meridian ctl cluster drains; meridian ctl \
                 cluster undrain {node} cancels it)",
                drain.stalled_s
            ),
        ));
    }
    alarms.extend(of_limits(state));
    alarms
}

/// Adds alarms for limits that are nearly reached.
fn of_limits(state: &State) -> Vec<Alarm> {
    let node = &state.node.name;
    let is_near = |part: u64, whole: u64| whole > 0 && part.saturating_mul(10) > whole.saturating_mul(9);
    let figures = state.admin.figures();
    let mut alarms = Vec::new();
    let mut add = |severity, text: String| alarms.push(Alarm::new(node, severity, "limits", text));
    let mut warn = |text: String| add(Severity::Warning, text);
    let (connections, connections_max) =
        (figures.total(|worker| worker.connections), state.node.connections_max as u64);
    if is_near(connections, connections_max) {
        warn(format!(
            "{connections} clients are connected, more than 90 % of limits.connections_max \
             ({connections_max})"
        ));
    }
    for listener in &state.node.listeners {
        let (connections, most) = ((listener.connections)(), listener.connections_max);
        if is_near(connections as u64, most as u64) {
            warn(format!(
                "the listener {} has {connections} connections, more than 90 % of its limit of {most}",
                listener.name
            ));
        }
    }
    let process = ProcessFigures::read();
    if let (Some(open), Some(most)) = (process.open_fds, process.max_fds)
        && is_near(open, most)
    {
        warn(format!(
            "{open} file descriptors are in use, more than 90 % of the limit of {most}: raise ulimit -n or \
             LimitNOFILE, and restart the node"
        ));
    }
    let errors = figures.total(|worker| {
        let errors = worker.reactor.accept_errors;
        errors.descriptors + errors.limit + errors.other
    });
    if errors > 0 {
        // A count since the start never returns to 0, so it is a notice.
        add(
            Severity::Notice,
            format!(
                "{errors} connections could not be accepted since the start (meridian_accept_errors_total \
                 shows the reasons)"
            ),
        );
    }
    alarms
}

/// Adds alarms for certificates and revocation lists that have expired or expire within 14 days. A file is named once,
/// with all listeners that use it.
fn of_certificates(node: &str, expiries: Vec<(String, Expiry)>, now: i64) -> Vec<Alarm> {
    let mut files: BTreeMap<(PathBuf, &'static str, i64), (Expiry, Vec<String>)> = BTreeMap::new();
    for (listener, expiry) in expiries {
        let key = (expiry.file.clone(), expiry.kind.name(), expiry.not_after);
        let (_, listeners) = files.entry(key).or_insert_with(|| (expiry, Vec::new()));
        if !listeners.contains(&listener) {
            listeners.push(listener);
        }
    }
    let alarms = files.into_values().filter_map(|(expiry, listeners)| {
        let days = expiry.days_to_warn_of(now)?;
        let is_over = expiry.is_over(now);
        let what = match expiry.kind {
            ExpiryKind::Server => "certificate",
            ExpiryKind::ClientCa => "authority for clients' certificates",
            ExpiryKind::ClientCrl => "list of revoked certificates",
        };
        let (severity, when) = match (is_over, days) {
            (true, _) => (Severity::Error, "has expired".to_owned()),
            (false, 0) => (Severity::Warning, "expires within a day".to_owned()),
            (false, 1) => (Severity::Warning, "expires in 1 day".to_owned()),
            (false, days) => (Severity::Warning, format!("expires in {days} days")),
        };
        let text = format!(
            "the {what} {} ({}) {when}: renew the file. It is used within seconds; with node.watch_files = \"0s\", after meridian ctl config reload",
            expiry.file.display(),
            listeners.join(", ")
        );
        Some(Alarm::new(node, severity, "certificate", text))
    });
    alarms.collect()
}

/// Adds alarms for changed files that cannot be used.
fn of_refused_files(node: &str, refused: Vec<RefusedFiles>) -> Vec<Alarm> {
    let alarm = |RefusedFiles { part, why }| {
        let text = format!(
            "the changed files of {part} cannot be used, and the previous contents stay in use: {why}. Correct the \
             files; the node then uses them by itself"
        );
        Alarm::new(node, Severity::Warning, "certificate", text)
    };
    refused.into_iter().map(alarm).collect()
}

/// Adds alarms for the node's part in its cluster.
fn of_cluster(view: &ClusterView) -> Vec<Alarm> {
    let node = &view.node;
    let error = |code, text: &str| Alarm::new(node, Severity::Error, code, text);
    let mut alarms: Vec<Alarm> = of_membership(node, &view.membership);
    let waits = view.membership.waits_for.is_some();
    // The alarm about the membership says why such a node does not acknowledge.
    if !view.acknowledging && !waits {
        let (up, all) = reached(view);
        alarms.push(error("acknowledging", if up > all / 2 {
            "not acknowledging, though a majority of cores is reached: publishers of QoS 1 and 2 wait. \
             Routes are still being applied (meridian ctl routes --nodes), links are slow (meridian ctl \
             links), or a restarted core waits for a missing node, up to cluster.suback_timeout"
        } else {
            "not acknowledging: no majority of cores is reached, and publishers of QoS 1 and 2 wait. Start \
             the cores again; cluster.without_quorum = \"serve\" continues without them, and may miss \
             subscribers on other nodes"
        }));
    }
    if view.role == "replicant" && view.attached_to.is_none() {
        alarms.push(error(
            "acknowledging",
            "attached to no core: this node receives no subscriptions of other nodes until a core is up",
        ));
    }
    alarms.extend(of_shards(view));
    alarms.extend(of_links(view));
    alarms.extend(view.unjoined_peers.iter().map(unjoined_peers));
    alarms.extend(of_clocks(view));
    if view.routes_unindexed > 0 {
        alarms.push(error(
            "routes_unindexed",
            "filters of other nodes have no room in this node's routing index: publishers of QoS 1 and 2 wait here. Spread the clients over more \
             nodes, then restart this one",
        ));
    }
    if view.refused > 0 || view.dropped_suspect > 0 {
        alarms.push(Alarm::new(
            node,
            Severity::Notice,
            "refused",
            "messages of QoS 1 and 2 to other nodes were refused since the start because a buffer was full: \
             raise cluster.buffer_max, or publish less",
        ));
    }
    if !view.transport.bbr {
        alarms.push(Alarm::new(
            node,
            Severity::Notice,
            "bbr",
            "links do not use BBR: over long distances bulk transfers are slow (modprobe tcp_bbr)",
        ));
    }
    alarms
}

/// Returns the number of cores that this node reaches, itself included, and the number of all cores.
fn reached(view: &ClusterView) -> (usize, usize) {
    let own = usize::from(view.role == "core");
    let cores = view.links.iter().filter(|link| link.role == "core");
    cores.fold((own, own), |(up, all), core| (up + usize::from(core.state == "up"), all + 1))
}

/// Returns an alarm for the shards that have no leader, with the cores that have to come back for a majority.
fn of_shards(view: &ClusterView) -> Option<Alarm> {
    let shards = &view.shards.as_ref()?.items;
    let lost: Vec<_> = shards.iter().filter(|shard| shard.leader.is_none()).collect();
    if lost.is_empty() {
        return None;
    }
    let is_away = |name: &&String| {
        let member = view.membership.members.iter().find(|member| member.node == **name);
        **name != view.node && member.is_none_or(|member| member.state != "alive")
    };
    let mut away = BTreeSet::new();
    for shard in &lost {
        let of_shard: Vec<&String> = shard.replicas.iter().filter(is_away).collect();
        let has_majority = of_shard.len() * 2 < shard.replicas.len();
        away.extend(of_shard.into_iter().filter(|_| !has_majority));
    }
    let names = away.iter().map(|name| name.as_str()).collect::<Vec<_>>().join(", ");
    let (count, all) = (lost.len(), shards.len());
    let text = match away.is_empty() {
        true => format!(
            "{count} of {all} shards have no leader that this node reaches: their clients and messages wait. \
             An election takes seconds after a core was lost; if it stays, meridian ctl links shows the links"
        ),
        false => format!(
            "{count} of {all} shards have no leader that this node reaches: their clients and messages wait. \
             Start these cores again: {names}"
        ),
    };
    Some(Alarm::new(&view.node, Severity::Error, "shards", text))
}

fn of_membership(node: &str, membership: &MembershipView) -> Vec<Alarm> {
    let error = |code, text: String| Alarm::new(node, Severity::Error, code, text);
    let mut alarms = Vec::new();
    if let Some(why) = &membership.waits_for {
        alarms.push(error("membership", format!("{}: {why}", membership.describe_waiting())));
    }
    match &membership.replica {
        Some(replica) if replica.failure.is_some() => {
            let failure = replica.failure.as_deref().unwrap_or_default();
            alarms.push(error(
                "quorum",
                format!(
                    "this core no longer takes part in the meta group: {failure}. Check its disk and \
                    restart it"
                ),
            ));
        }
        Some(replica) if !replica.quorum && membership.joined => alarms.push(error(
            "quorum",
            "no quorum: this core reaches no majority of the voters, so no node can join or be declared \
             dead. Start the missing cores"
                .to_owned(),
        )),
        _ => {}
    }
    for member in membership.members.iter().filter(|member| member.state == "dead") {
        let name = &member.node;
        let text = format!(
            "{name} is dead: start it again, or, when it does not return, meridian ctl cluster remove {name}"
        );
        alarms.push(Alarm::new(name, Severity::Error, "dead", text));
    }
    alarms
}

fn of_links(view: &ClusterView) -> Vec<Alarm> {
    // The alarm `dead` covers dead nodes, and the alarm `unjoined_peers` covers nodes that have not joined.
    let is_known = |link: &&LinkView| link.state == "dead" || is_not_joined(view, link);
    let mut alarms = Vec::new();
    for link in view.links.iter().filter(|link| !is_known(link)) {
        let why = match (&link.last_error, link.last_error_s) {
            (Some(error), Some(ago)) => format!("; {} ago: {error}", span(ago)),
            (Some(error), None) => format!("; {error}"),
            (None, _) => String::new(),
        };
        let (node, is_up) = (&link.node, link.state == "up");
        if !is_up {
            alarms.push(Alarm::new(node, Severity::Error, "link", format!(
                "{node} ({}): silent for {}{why}. Check that it runs (`meridian ctl health` there), that its \
                 address and the firewall are right, and that cluster.id, secret and TLS are the same",
                link.address,
                span(link.state_s)
            )));
        } else if link.connections < link.connections_wanted {
            let (connections, wanted) = (link.connections, link.connections_wanted);
            let text = format!("{node}: {connections} of {wanted} connections are up{why}");
            alarms.push(Alarm::new(node, Severity::Warning, "link", text));
        }
        let oldest = link.lanes.iter().map(|lane| lane.oldest_s).fold(0.0, f64::max);
        if is_up && oldest > FRAME_AGE_MAX {
            alarms.push(Alarm::new(
                node,
                Severity::Warning,
                "link",
                format!(
                    "{node}: frames have waited for {}: the link or the node is slower than its publishers",
                    span(oldest)
                ),
            ));
        }
        if link.retransmitted_percent > RETRANSMITTED_MAX {
            alarms.push(Alarm::new(node, Severity::Warning, "link", format!(
                "{node}: frames are sent again because connections to it are lost: check the network between \
                 the nodes"
            )));
        }
    }
    alarms
}

/// Returns whether another alarm gives the reason why the other node of a link has not joined.
fn is_not_joined(view: &ClusterView, link: &LinkView) -> bool {
    let is_it = |one: &UnjoinedPeerView| one.name.as_ref() == Some(&link.node) && one.address == link.address;
    link.state != "up" && view.unjoined_peers.iter().any(is_it)
}

fn unjoined_peers(one: &UnjoinedPeerView) -> Alarm {
    let UnjoinedPeerView { address, reason, count, .. } = one;
    // Any host that reaches the port may claim a name, with any character in it.
    let name = one.name.as_ref().map(|name| format!(" ({})", name.escape_debug()));
    let times = if *count == 1 { "once".to_owned() } else { format!("{count} times") };
    let text =
        format!("{address}{}: {reason} ({times}, last {} ago)", name.unwrap_or_default(), span(one.last_s));
    Alarm::new(one.name.as_deref().unwrap_or(address), Severity::Warning, "unjoined_peers", text)
}

/// Adds alarms for wrong clocks.
fn of_clocks(view: &ClusterView) -> Vec<Alarm> {
    let fix = "timedatectl set-ntp true or chronyc makestep sets it without a restart";
    let apart = |ahead: f64| {
        let seconds = ahead.abs();
        let seconds = if seconds < 10.0 { seconds } else { seconds.round() };
        format!("{} {}", span(seconds), if ahead < 0.0 { "behind" } else { "ahead of" })
    };
    let own = view.clock_offset_s;
    let of_own = own.map(|off| {
        let text =
            format!("the clock of this node ({}) is {} those of most nodes: {fix}", view.node, apart(off));
        Alarm::new(&view.node, Severity::Warning, "clock", text)
    });
    let of_others = view.links.iter().filter(|link| link.clock_differs).filter_map(|link| {
        let (node, ahead) = (&link.node, link.clock_ahead_s?);
        let text = match own {
            None => {
                format!(
                    "the clock of {node} is {} that of this node: {fix}, on the machine that is wrong",
                    apart(ahead)
                )
            }
            Some(off) => format!("the clock of {node} is {} those of most nodes: {fix}", apart(ahead + off)),
        };
        Some(Alarm::new(node, Severity::Warning, "clock", text))
    });
    of_own.into_iter().chain(of_others).collect()
}

/// Formats a number of seconds for people: `250ms`, `1.5s`, `12s`, `5m 12s`, `1h`, `3d 4h`.
fn span(seconds: f64) -> String {
    let Ok(span) = Duration::try_from_secs_f64(seconds.max(0.0)) else { return "-".to_owned() };
    let (ms, s) = (span.as_millis(), span.as_secs());
    let two = |whole: u64, unit: &str, rest: u64, small: &str| match rest {
        0 => format!("{whole}{unit}"),
        rest => format!("{whole}{unit} {rest}{small}"),
    };
    match s {
        0 if ms == 0 => "0s".to_owned(),
        0 => format!("{ms}ms"),
        1..10 if ms % 1000 / 100 > 0 => format!("{s}.{}s", ms % 1000 / 100),
        1..60 => format!("{s}s"),
        60..3_600 => two(s / 60, "m", s % 60, "s"),
        3_600..86_400 => two(s / 3_600, "h", s % 3_600 / 60, "m"),
        _ => two(s / 86_400, "d", s % 86_400 / 3_600, "h"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_expires_is_one_alarm_with_all_its_listeners() {
        let day = 24 * 3_600;
        let expiry =
            |file: &str, not_after| Expiry { kind: ExpiryKind::Server, file: file.into(), not_after };
        let expiries = vec![
            ("tls".to_owned(), expiry("a.pem", 3 * day)),
            ("http".to_owned(), expiry("a.pem", 3 * day)),
            ("wss".to_owned(), expiry("b.pem", -1)),
            ("old".to_owned(), expiry("c.pem", 300 * day)),
        ];
        let alarms = of_certificates("n1", expiries, 0);
        let texts: Vec<_> = alarms.iter().map(|alarm| (alarm.severity, &*alarm.text)).collect();
        assert_eq!(texts.len(), 2, "{texts:?}");
        assert_eq!(texts[0].0, Severity::Warning);
        assert!(texts[0].1.contains("a.pem (tls, http) expires in 3 days"), "{texts:?}");
        assert!(texts[1].0 == Severity::Error && texts[1].1.contains("b.pem (wss) has expired"), "{texts:?}");
    }

    #[test]
    fn spans_are_formatted_shortly() {
        for (seconds, text) in [
            (-1.0, "0s"),
            (0.25, "250ms"),
            (1.5, "1.5s"),
            (2.0, "2s"),
            (312.0, "5m 12s"),
            (3_600.0, "1h"),
            (273_600.0, "3d 4h"),
            (f64::INFINITY, "-"),
        ] {
            assert_eq!(span(seconds), text);
        }
    }
}
