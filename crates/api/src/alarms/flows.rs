//! Alarms of actions, bridges and links to other clusters that stand still or lose messages.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use super::{Alarm, Severity, span};
use crate::actions::ActionStatus;
use crate::bridges::BridgeView;
use crate::links::{LinkGiving, LinkStatus, LinkTaking};
use crate::state::State;

/// Time after the last dropped message for which a flow counts as dropping.
const DROPPING: Duration = Duration::from_secs(15 * 60);
/// Age of the oldest message from which the session of an absent cluster is reported, in seconds.
const WAITING_S: u64 = 30;
/// Maximum number of alarms of one code. One more counts the others.
const ALARMS_MAX: usize = 10;
/// Maximum number of flows whose drops are known.
const FLOWS_MAX: usize = 10_000;
/// Maximum number of characters of the cause, which the other system may have written.
const CAUSE_MAX: usize = 200;

/// An action, a bridge or a link to another cluster, as an alarm needs it.
#[derive(Debug)]
struct Flow {
    code: &'static str,
    /// Kind and name, for people.
    title: String,
    /// Command that shows more.
    command: String,
    /// Reason why it stands still; `None` while it does not.
    fault: Option<String>,
    /// Messages that wait for it.
    waiting: u64,
    /// Messages that were lost since the start of the node.
    dropped: u64,
}

impl Flow {
    fn of_action(status: &ActionStatus) -> Self {
        let fault = status.failing.then(|| match status.since_s {
            0 => cause(status.last_error.as_deref(), status.state),
            since => {
                format!("for {}, {}", span(since as f64), cause(status.last_error.as_deref(), status.state))
            }
        });
        Self {
            code: "action",
            title: format!("action {}", status.name),
            command: format!("meridian ctl actions {}", status.name),
            fault,
            waiting: status.queued_messages,
            dropped: status.dropped,
        }
    }

    fn of_bridge(view: &BridgeView) -> Self {
        // As the alert counts: messages that come back, and those of a topic that was removed, are not lost.
        let not_lost = view.dropped_by_cause.looped + view.dropped_by_cause.unmapped;
        Self {
            code: "bridge",
            title: format!("bridge {}", view.name),
            command: "meridian ctl bridges".to_owned(),
            fault: view.failing.then(|| cause(view.last_error.as_deref(), &view.state)),
            waiting: view.queued_messages,
            dropped: view.dropped.saturating_sub(not_lost),
        }
    }

    fn of_taking(link: &str, taking: &LinkTaking) -> Self {
        // Messages that come back, and those that nobody wants any more, are not lost.
        let not_lost = taking.dropped.looped + taking.dropped.unwanted;
        Self {
            code: "cluster_link",
            title: format!("link from the cluster {link} with messages of {}", taking.origin),
            command: format!("meridian ctl links external {link}"),
            fault: taking.failing.then(|| cause(taking.last_error.as_deref(), &taking.state)),
            waiting: 0,
            dropped: taking.dropped.sum().saturating_sub(not_lost),
        }
    }

    fn of_giving(link: &str, giving: &LinkGiving) -> Self {
        let waits = giving.oldest_s.filter(|waits| *waits >= WAITING_S && !giving.connected);
        Self {
            code: "cluster_link",
            title: format!("link to the cluster {link} with messages of {}", giving.origin),
            command: format!("meridian ctl links external {link}"),
            fault: waits.map(|waits| {
                format!(
                    "the other cluster is not connected, and the oldest message has waited for {}",
                    span(waits as f64)
                )
            }),
            waiting: giving.queued_messages,
            dropped: giving.dropped,
        }
    }

    fn all(state: &State) -> Vec<Self> {
        let mut flows: Vec<_> = state.actions.views().iter().map(Self::of_action).collect();
        flows.extend(state.bridges.views().iter().map(Self::of_bridge));
        for LinkStatus { name, taking, giving, .. } in &state.links.views() {
            flows.extend(taking.iter().map(|taking| Self::of_taking(name, taking)));
            flows.extend(giving.iter().map(|giving| Self::of_giving(name, giving)));
        }
        flows
    }

    fn standing(&self) -> Option<String> {
        let Self { title, command, waiting, .. } = self;
        let fault = self.fault.as_ref()?;
        Some(format!(
            "the {title} stands still: {fault}; {waiting} messages wait. Remove the cause; it then continues by itself \
             ({command})"
        ))
    }

    fn dropping(&self, (count, within): (u64, Duration)) -> String {
        let Self { title, command, .. } = self;
        format!(
            "the {title} has lost {count} messages within {} ({command} and the metrics show the reasons)",
            span(within.as_secs_f64())
        )
    }
}

/// Last error, or else the state, on one line.
fn cause(last_error: Option<&str>, state: &str) -> String {
    let text = last_error.unwrap_or(state).chars().map(|c| if c.is_control() { ' ' } else { c });
    text.take(CAUSE_MAX).collect()
}

/// Flows that have lost messages lately.
#[derive(Debug, Default)]
pub(crate) struct Drops(Mutex<BTreeMap<String, Dropped>>);

/// Messages that one flow has lost.
#[derive(Clone, Copy, Debug)]
struct Dropped {
    /// Value of the counter at the last look.
    count: u64,
    /// Value before the present series of drops, and its begin and end.
    before: u64,
    first: Instant,
    last: Instant,
}

impl Drops {
    /// Compares the counters with those of the last look.
    fn look(&self, flows: &[Flow], now: Instant) {
        let mut known = sync::lock(&self.0);
        for Flow { title, dropped: count, .. } in flows.iter().filter(|flow| flow.dropped > 0) {
            let (count, has_room) = (*count, known.len() < FLOWS_MAX);
            match known.get_mut(title) {
                Some(seen) if count == seen.count => {}
                Some(seen) => {
                    // The counter begins again when a flow is removed and added again.
                    let before = if count < seen.count { 0 } else { seen.count };
                    if count < seen.count || now.saturating_duration_since(seen.last) >= DROPPING {
                        (seen.before, seen.first) = (before, now);
                    }
                    (seen.count, seen.last) = (count, now);
                }
                None if has_room => {
                    known.insert(title.clone(), Dropped { count, before: 0, first: now, last: now });
                }
                None => {}
            }
        }
        if known.len() >= FLOWS_MAX {
            known.retain(|_, seen| now.saturating_duration_since(seen.last) < DROPPING);
        }
    }

    /// Messages that a flow has lost lately, and since when.
    fn of(&self, flow: &Flow, now: Instant) -> Option<(u64, Duration)> {
        let seen = sync::lock(&self.0).get(&flow.title).copied()?;
        let is_recent = now.saturating_duration_since(seen.last) < DROPPING;
        is_recent.then(|| (seen.count - seen.before, now.saturating_duration_since(seen.first)))
    }
}

/// Notes what was lost since the last look.
pub(crate) fn look(state: &State) {
    state.drops.look(&Flow::all(state), Instant::now());
}

/// Returns the alarms of this node.
pub(super) fn all(state: &State) -> Vec<Alarm> {
    let (flows, now) = (Flow::all(state), Instant::now());
    state.drops.look(&flows, now);
    of(&state.node.name, &flows, &state.drops, now)
}

fn of(node: &str, flows: &[Flow], drops: &Drops, now: Instant) -> Vec<Alarm> {
    let standing = flows.iter().filter_map(|flow| Some((flow.code, flow.standing()?)));
    let dropping = flows.iter().filter_map(|flow| Some(("dropping", flow.dropping(drops.of(flow, now)?))));
    let mut by_code = BTreeMap::<_, Vec<String>>::new();
    for (code, text) in standing.chain(dropping) {
        by_code.entry(code).or_default().push(text);
    }
    let mut alarms = Vec::new();
    for (code, mut texts) in by_code {
        let more = texts.len().saturating_sub(ALARMS_MAX);
        texts.truncate(ALARMS_MAX);
        if more > 0 {
            texts.push(format!(
                "the same of {more} more (meridian ctl actions, bridges and links external list them)"
            ));
        }
        alarms.extend(texts.into_iter().map(|text| Alarm::new(node, Severity::Warning, code, text)));
    }
    alarms
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow(name: &str, dropped: u64) -> Flow {
        Flow::of_action(&ActionStatus { name: name.to_owned(), dropped, ..ActionStatus::default() })
    }

    fn texts(flows: &[Flow], drops: &Drops, now: Instant) -> Vec<(&'static str, String)> {
        of("n1", flows, drops, now).into_iter().map(|alarm| (alarm.code, alarm.text)).collect()
    }

    #[test]
    fn a_flow_that_stands_still_is_an_alarm_with_its_cause() {
        let action = ActionStatus {
            name: "rows".to_owned(),
            failing: true,
            since_s: 312,
            last_error: Some("connection\nrefused".to_owned()),
            queued_messages: 7,
            ..ActionStatus::default()
        };
        let bridge = BridgeView {
            name: "plant".to_owned(),
            failing: true,
            state: "waits".to_owned(),
            ..BridgeView::default()
        };
        let taking = LinkTaking { origin: "munich".to_owned(), failing: true, ..LinkTaking::default() };
        let giving = LinkGiving { origin: "berlin".to_owned(), oldest_s: Some(30), ..LinkGiving::default() };
        let connected = LinkGiving { connected: true, ..giving.clone() };
        let flows = [
            Flow::of_action(&action),
            Flow::of_action(&ActionStatus { failing: false, ..action.clone() }),
            Flow::of_bridge(&bridge),
            Flow::of_taking("m", &taking),
            Flow::of_giving("m", &giving),
            Flow::of_giving("m", &connected),
        ];
        let texts = texts(&flows, &Drops::default(), Instant::now());
        let codes: Vec<_> = texts.iter().map(|(code, _)| *code).collect();
        assert_eq!(codes, ["action", "bridge", "cluster_link", "cluster_link"]);
        let expected = "the action rows stands still: for 5m 12s, connection refused; 7 messages wait. ";
        assert!(texts[0].1.starts_with(expected), "{texts:?}");
        assert!(texts[1].1.contains("bridge plant stands still: waits; 0 messages"), "{texts:?}");
        assert!(texts[3].1.contains("the oldest message has waited for 30s"), "{texts:?}");
    }

    /// A counter never falls, so an alarm is about the time since it grew last.
    #[test]
    fn a_flow_that_loses_messages_is_an_alarm_until_it_has_lost_none_for_some_time() {
        let (drops, start) = (Drops::default(), Instant::now());
        let lost = |count, seconds| {
            let (flows, now) = ([flow("rows", count)], start + Duration::from_secs(seconds));
            drops.look(&flows, now);
            texts(&flows, &drops, now).pop().map(|(_, text)| text.split(" (").next().unwrap().to_owned())
        };
        let text = |count, within| Some(format!("the action rows has lost {count} messages within {within}"));
        assert_eq!(lost(0, 0), None);
        assert_eq!(lost(5, 10), text(5, "0s"));
        assert_eq!(lost(9, 70), text(9, "1m"));
        assert_eq!(lost(9, 70 + 899), text(9, "15m 59s"));
        assert_eq!(lost(9, 70 + 900), None);
        assert_eq!(lost(10, 5_000), text(1, "0s"));
        assert_eq!(lost(2, 5_001), text(2, "0s"), "the counter has begun again");
    }

    #[test]
    fn messages_that_are_not_lost_raise_no_alarm() {
        let mut taking = LinkTaking::default();
        (taking.dropped.looped, taking.dropped.unwanted) = (3, 4);
        assert_eq!(Flow::of_taking("m", &taking).dropped, 0);
        taking.dropped.no_room = 1;
        assert_eq!(Flow::of_taking("m", &taking).dropped, 1);
    }

    #[test]
    fn the_number_of_alarms_is_limited() {
        let (drops, now) = (Drops::default(), Instant::now());
        let flows: Vec<_> = (0..25).map(|number| flow(&number.to_string(), 1)).collect();
        drops.look(&flows, now);
        let texts = texts(&flows, &drops, now);
        assert_eq!(texts.len(), ALARMS_MAX + 1);
        assert!(texts[ALARMS_MAX].1.starts_with("the same of 15 more"), "{texts:?}");
    }
}
