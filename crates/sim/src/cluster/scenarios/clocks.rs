//! Scenarios with wrong wall clocks.

use cluster::{CLOCKS, FEATURES, LOG, Link, View};

use super::super::member::BEGAN;
use super::*;

const HOUR: Micros = 3_600 * SECOND;
/// Tolerance in milliseconds, longer than frames take.
const ABOUT: i64 = 50;

/// Starts three nodes whose clocks are ahead by these times.
fn with_clocks(skews: [Micros; 3]) -> Scenario {
    Scenario::of_links(skewed(skews), |_| Some(FEATURES & !LOG))
}

fn skewed(skews: [Micros; 3]) -> Plan {
    Plan { skews: skews.into(), ..plan(Duration::ZERO) }
}

impl Scenario {
    fn view(&self, node: usize) -> View {
        let process = self.cluster.members[node].process.as_ref().expect("the node runs");
        process.router.view(process.time(&self.cluster.cx))
    }

    /// Status of a node's link to another.
    fn reported_link(&self, node: usize, of: usize) -> Link {
        let name = format!("n{of}");
        self.view(node).links.into_iter().find(|link| *link.peer.name == *name).expect("a link")
    }

    /// Sets a node's clock ahead by this time.
    fn sets_clock(&mut self, node: usize, skew: Micros) {
        let world = (BEGAN + self.cluster.cx.now() + skew) / MILLI;
        let process = self.cluster.members[node].process.as_mut().expect("the node runs");
        let now = process.time(&self.cluster.cx);
        process.router.set_wall_clock(now, world);
    }
}

fn is_about(ahead: Option<i64>, expected: i64) -> bool {
    ahead.is_some_and(|ahead| (ahead - expected).abs() <= ABOUT)
}

/// The node knows it, too, and notices at once when the clock is corrected. The others notice within ten seconds.
#[test]
fn a_clock_that_is_off_by_an_hour_is_known_to_all_within_seconds() {
    let hour = (HOUR / MILLI).cast_signed();
    let mut scenario = with_clocks([0, HOUR, 0]);
    for node in [0, 2] {
        let (wrong, right) = (scenario.reported_link(node, 1), scenario.reported_link(node, 2 - node));
        assert!(is_about(wrong.clock_ahead, hour) && wrong.clock_differs, "{wrong:?}");
        assert!(is_about(right.clock_ahead, 0) && !right.clock_differs, "{right:?}");
        assert_eq!(scenario.view(node).clock_off, None);
        let of_wrong = scenario.reported_link(1, node);
        assert!(is_about(of_wrong.clock_ahead, -hour) && !of_wrong.clock_differs, "{of_wrong:?}");
    }
    assert!(is_about(scenario.view(1).clock_off, hour));
    scenario.sets_clock(1, 0);
    scenario.run_for(SECOND);
    assert_eq!(scenario.view(1).clock_off, None);
    scenario.run_for(11 * SECOND);
    for node in [0, 2] {
        let link = scenario.reported_link(node, 1);
        assert!(is_about(link.clock_ahead, 0) && !link.clock_differs, "{link:?}");
    }
    scenario.sets_clock(0, 3 * SECOND);
    scenario.run_for(SECOND);
    assert!(is_about(scenario.view(0).clock_off, 3_000), "{:?}", scenario.view(0));
}

#[test]
fn a_clock_that_is_off_by_half_a_second_is_not_reported() {
    let mut scenario = with_clocks([0, SECOND / 2, SECOND / 4]);
    scenario.run_for(100 * SECOND);
    for node in 0..3 {
        let view = scenario.view(node);
        assert!(view.clock_off.is_none() && view.links.iter().all(|link| !link.clock_differs), "{view:?}");
    }
    assert!(
        is_about(scenario.reported_link(0, 1).clock_ahead, 500)
            && is_about(scenario.reported_link(2, 1).clock_ahead, 250)
    );
}

/// Frames that a link held while it was cut off are old when they arrive.
#[test]
fn the_clock_of_a_node_that_was_cut_off_is_not_reported_as_wrong() {
    let mut scenario = with_clocks([0; 3]);
    for cut in [3, 55, 62] {
        scenario.part(0, 1);
        scenario.run_for(cut * SECOND);
        scenario.join(0, 1);
        for _ in 0..200 {
            scenario.run_for(SECOND / 10);
            for (node, of) in [(0, 1), (1, 0)] {
                let link = scenario.reported_link(node, of);
                assert!(
                    !link.clock_differs && link.clock_ahead.is_none_or(|ahead| ahead.abs() <= ABOUT),
                    "{link:?}"
                );
            }
        }
        assert!(is_about(scenario.reported_link(0, 1).clock_ahead, 0));
    }
}

/// An old measurement says nothing about a link that carries nothing.
#[test]
fn a_link_that_is_cut_off_has_no_round_trip_until_it_is_back() {
    let mut scenario = with_clocks([0; 3]);
    assert!(scenario.reported_link(0, 1).round_trip.is_some());
    scenario.part(0, 1);
    scenario.run_for(20 * SECOND);
    let link = scenario.reported_link(0, 1);
    assert_eq!((link.is_up, link.round_trip), (false, None));
    assert!(scenario.reported_link(0, 2).round_trip.is_some(), "the other link is as it was");
    scenario.join(0, 1);
    scenario.run_for(20 * SECOND);
    let link = scenario.reported_link(0, 1);
    assert!(link.is_up && link.round_trip.is_some(), "{link:?}");
}

#[test]
fn a_version_that_does_not_report_its_clock_is_not_asked() {
    let links = |node| Some(if node == 1 { FEATURES & !LOG & !CLOCKS } else { FEATURES & !LOG });
    let mut scenario = Scenario::of_links(skewed([0, HOUR, 0]), links);
    scenario.run_for(70 * SECOND);
    for node in 0..3 {
        let process = scenario.cluster.members[node].process.as_ref().expect("the node runs");
        assert_eq!(process.router.counters().malformed, 0, "n{node}");
    }
    assert_eq!(
        (scenario.reported_link(0, 1).clock_ahead, scenario.reported_link(1, 0).clock_ahead),
        (None, None)
    );
    assert!(is_about(scenario.reported_link(0, 2).clock_ahead, 0));
    assert!(scenario.reported_link(0, 1).is_up);
}

/// A retained message with the node's own stamp would win against all writes of the next hour.
#[test]
fn a_node_whose_clock_is_ahead_stamps_retained_messages_by_the_clocks_of_the_others() {
    let mut scenario = with_clocks([0, HOUR, 0]);
    let ahead = scenario.connects(1);
    scenario.part(1, 0);
    scenario.part(1, 2);
    scenario.run_for(2 * SECOND);
    scenario.publishes_as(ahead, "r/0", QoS::AtMostOnce, RetainAction::Message);
    scenario.run_for(2 * SECOND);
    let later = scenario.publishes_on("r/0", QoS::AtMostOnce, RetainAction::Message);
    scenario.run_for(SECOND);
    scenario.join(1, 0);
    scenario.join(1, 2);
    scenario.run_for(5 * SECOND);
    for node in 0..3 {
        assert_eq!(scenario.retained(node), [later], "n{node}");
    }
}
