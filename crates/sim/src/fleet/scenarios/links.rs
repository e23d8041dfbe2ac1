//! What a link carries to a node that has begun anew, or has forgotten the link.

use super::*;

/// A replicant that hears of the first node by way of the others only, and a client on each of the two.
fn apart(is_agreed: bool) -> (Story, usize) {
    let mut story = if is_agreed {
        agreed_of(4, |plan| plan.nodes[REPLICANT].role = Role::Replicant)
    } else {
        let mut plan = plan(Duration::ZERO);
        plan.add(Role::Replicant);
        Story::of(plan)
    };
    story.passes(10 * SECOND);
    let publisher = story.connects(REPLICANT);
    (story, publisher)
}

const REPLICANT: usize = 3;

impl Story {
    /// What the publisher says is acknowledged although the first node is cut off, and comes when it is there again.
    fn assert_waits_for_the_first_node(&mut self, publisher: usize) {
        let number = self.says_as(publisher, "t/0", QoS::AtLeastOnce, Keeps::Nothing);
        self.passes(SECOND);
        assert!(self.is_acknowledged(number) && !self.has_come(number));
        self.join(0, REPLICANT);
        self.passes(5 * SECOND);
        assert!(self.has_come(number));
    }
}

/// Others have said that a node has a later life, which was another process each time before: here it is the one that the link is about. What that
/// has taken is not for the next.
#[test]
fn what_a_life_in_the_same_process_has_taken_comes_no_more_to_the_next_one() {
    let (mut story, publisher) = apart(true);
    let keeper = story.fleet.clients.len();
    story.fleet.clients.push(Client::new(keeper, Some(0)));
    story.fleet.connect(keeper, 0);
    story.passes(SECOND);
    let filters = vec![("t/#".to_owned(), QoS::ExactlyOnce)];
    story.with(keeper, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    story.passes(3 * SECOND);
    let life = story.lives()[0];
    story.isolate(0);
    story.until("it is dead", |story| story.state(1, 0) == Some(State::Dead));
    story.join(0, 1);
    story.join(0, 2);
    story.until("it has joined again", |story| {
        story.lives()[0] > life && (0..4).all(|node| story.members(node) == 4)
    });
    story.passes(3 * SECOND);
    story.join(0, REPLICANT);
    story.passes(5 * SECOND);
    assert_eq!(story.link(REPLICANT, 0), (true, 0), "the process is the same");
    story.fleet.connect(keeper, 0);
    story.passes(2 * SECOND);
    // What comes is not acknowledged before the process ends, and the next one has forgotten it when the link is there again.
    let now = story.fleet.cx.now();
    story.fleet.wan.cut(now, 0, REPLICANT, LONG);
    let number = story.says_as(publisher, "t/0", QoS::ExactlyOnce, Keeps::Nothing);
    story.passes(100 * MILLI);
    assert!(story.came_to(keeper, number));
    story.part(0, REPLICANT);
    story.restart(0);
    story.passes(2 * SECOND);
    story.fleet.connect(keeper, 0);
    story.passes(5 * SECOND);
    story.join(0, REPLICANT);
    // Whatever comes twice ends the simulation.
    story.passes(5 * SECOND);
    assert_eq!(story.link(REPLICANT, 0), (true, 1));
    assert!(story.is_acknowledged(number));
}

/// A node has died before it said hello over a link that had just been made: nobody said whom that is about.
#[test]
fn what_is_sent_over_a_link_to_a_life_that_said_nothing_is_for_the_next() {
    let (mut story, publisher) = apart(false);
    story.restart(0);
    let mut waited = 0;
    while story.link(REPLICANT, 0) != (true, 1) {
        story.passes(20);
        waited += 1;
        assert!(waited < 100_000, "the link comes back");
    }
    story.fleet.fault(&Fault::Kill { node: 0 });
    story.part(0, REPLICANT);
    story.fleet.start(0);
    story.passes(4 * SECOND);
    story.fleet.connect(SUBSCRIBER, 0);
    story.passes(SECOND);
    story.subscribes();
    story.passes(5 * SECOND);
    assert!(story.is_subscribed(), "it is known to the replicant by way of another core");
    story.assert_waits_for_the_first_node(publisher);
}

/// Those who removed a node while it was cut off have forgotten their links to it, and it has not.
#[test]
fn what_a_node_sends_that_was_removed_and_is_back_is_not_lost_with_the_old_links() {
    let (mut story, _) = apart(true);
    story.subscribes();
    story.passes(3 * SECOND);
    story.isolate(REPLICANT);
    story.until("it is dead", |story| story.state(0, REPLICANT) == Some(State::Dead));
    story.removes(0, REPLICANT, WishId(ORDERS));
    story.until("it is removed", |story| (0..3).all(|node| story.members(node) == 3));
    story.passes(5 * SECOND);
    story.join(1, REPLICANT);
    story.join(2, REPLICANT);
    story.until("it has joined again", |story| (0..4).all(|node| story.members(node) == 4));
    let publisher = story.connects(REPLICANT);
    story.passes(3 * SECOND);
    assert!(story.is_subscribed());
    story.assert_waits_for_the_first_node(publisher);
}
