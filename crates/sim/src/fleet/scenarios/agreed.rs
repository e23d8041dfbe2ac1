//! Clusters whose cores agree on the members: who joins, is dead, leaves and is removed, and what operators want of them.

use cluster::Letter;
use cluster::meta::{Answer, Command, Meta, Roster, State, WishId};

use super::super::operators::ORDERS;
use super::*;

pub(super) mod gone;

/// Cores that find each other, each with a log of its own.
fn agreed_of(cores: usize, change: impl FnOnce(&mut Plan)) -> Story {
    agreed_of_links(cores, |_| None, change)
}

fn agreed_of_links(
    cores: usize,
    links: impl Fn(usize) -> Option<u64>,
    change: impl FnOnce(&mut Plan),
) -> Story {
    agreed_of_seed(super::SEED, cores, links, change)
}

fn agreed_of_seed(
    seed: u64,
    cores: usize,
    links: impl Fn(usize) -> Option<u64>,
    change: impl FnOnce(&mut Plan),
) -> Story {
    let mut plan = plan(Duration::from_millis(5));
    while plan.nodes.len() < cores {
        plan.add(Role::Core);
    }
    plan.is_agreed = true;
    for (number, setup) in plan.setups.iter_mut().enumerate() {
        setup.entropy = [number as u8 + 1; 48];
    }
    change(&mut plan);
    let mut story = Story::of_seed(seed, plan, links);
    let nodes = 0..cores;
    story.until("all belong to it", |story| nodes.clone().all(|node| story.members(node) == cores));
    story
}

fn agreed() -> Story {
    agreed_of(3, |_| ())
}

impl Story {
    fn meta(&self, node: usize) -> Option<&Meta> {
        self.fleet.members[node].process.as_ref()?.fabric.meta()
    }

    fn known(&self, node: usize) -> &Roster {
        self.meta(node).expect("the node runs").roster()
    }

    /// Members that a node knows, if it is one.
    fn members(&self, node: usize) -> usize {
        self.meta(node).filter(|meta| meta.is_member()).map_or(0, |meta| meta.roster().members.len())
    }

    /// The state of one node as another knows it.
    fn state(&self, node: usize, of: usize) -> Option<State> {
        self.known(node).members.get(&id(of)).map(|member| member.state)
    }

    /// Who is not joined to a node, as that one tells: the name, or the address where there is none, and why.
    fn not_joined(&self, node: usize) -> Vec<String> {
        let process = self.fleet.members[node].process.as_ref().expect("the node runs");
        let all = process.fabric.view(process.time(&self.fleet.cx)).not_joined;
        let told = all.iter().map(|it| format!("{}: {}", it.name.as_ref().unwrap_or(&it.address), it.reason));
        told.collect()
    }

    fn leader(&self) -> usize {
        let leads = |node: &usize| self.meta(*node).is_some_and(|meta| meta.leader() == Some(id(*node)));
        (0..self.fleet.members.len()).find(leads).expect("somebody leads")
    }

    /// What a node knows to be agreed upon, if it belongs to the cluster: each member's state by name, and how many vote.
    fn roster(&self, node: usize) -> Option<(Vec<State>, usize)> {
        let meta = self.meta(node).filter(|meta| meta.is_member())?;
        let states = (0..3).filter_map(|at| self.state(node, at));
        let process = self.fleet.members[node].process.as_ref()?;
        let voters = meta.status(process.time(&self.fleet.cx)).map_or(0, |status| status.voters.len());
        Some((states.collect(), voters))
    }

    fn assert_whole(&self) {
        for node in 0..3 {
            assert_eq!(self.roster(node), Some((vec![State::Alive; 3], 3)), "n{node}");
        }
    }

    /// A message goes from the third node to the subscriber on the first.
    fn assert_serves(&mut self) {
        self.passes(SECOND);
        let number = self.publishes();
        self.passes(2 * SECOND);
        assert!(self.is_acknowledged(number));
        assert!(self.has_come(number));
    }

    /// The life of each node that has joined.
    fn lives(&self) -> Vec<u64> {
        (0..3).map(|at| self.known(0).members[&id(at)].incarnation.0).collect()
    }

    /// What the log may ask of cores, as one of them knows.
    fn adopted(&self, node: usize) -> u64 {
        self.meta(node).and_then(Meta::adopted).expect("a core that runs")
    }

    fn revisions(&self) -> Vec<u64> {
        self.fleet.members.iter().map(|member| member.copy.position().revision).collect()
    }

    fn founded(&self) -> Vec<u128> {
        (0..3).map(|node| self.known(node).founded).collect()
    }
}

#[cfg_attr(test, test)]
pub(super) fn nodes_that_know_addresses_only_form_one_cluster() {
    let mut story = agreed();
    story.assert_whole();
    story.subscribes();
    story.passes(3 * SECOND);
    assert!(story.is_subscribed());
    story.assert_serves();
}

#[test]
fn a_node_that_is_killed_joins_again_in_a_new_life() {
    let mut story = agreed();
    story.subscribes();
    for killed in [1, 2, 1] {
        story.passes(3 * SECOND);
        let lives = story.lives();
        story.fleet.fault(&Fault::Kill { node: killed });
        story.passes(30 * SECOND);
        story.assert_whole();
        let grown: Vec<bool> = story.lives().iter().zip(&lives).map(|(now, then)| now > then).collect();
        assert_eq!(grown, (0..3).map(|node| node == killed).collect::<Vec<_>>());
    }
}

#[test]
fn a_cluster_that_loses_all_its_processes_comes_back_as_it_was() {
    let mut story = agreed();
    let founded = story.founded();
    story.fleet.fault(&Fault::KillMany { nodes: vec![0, 1, 2] });
    story.passes(40 * SECOND);
    story.assert_whole();
    assert_eq!(story.founded(), founded);
}

#[cfg_attr(test, test)]
pub(super) fn whoever_is_cut_off_is_dead_for_the_others_acknowledges_nothing_and_joins_again() {
    let mut story = agreed();
    story.subscribes();
    story.passes(3 * SECOND);
    let lives = story.lives();
    story.isolate(2);
    story.passes(10 * SECOND);
    assert_eq!(story.roster(0), Some((vec![State::Alive, State::Alive, State::Dead], 3)));
    let number = story.publishes();
    story.passes(5 * SECOND);
    assert!(!story.is_acknowledged(number), "the node is in no majority");
    story.release(2);
    story.passes(10 * SECOND);
    story.assert_whole();
    let now = story.lives();
    assert!(now[2] > lives[2] && now[..2] == lives[..2], "{lives:?} {now:?}");
    assert!(story.fleet.clients[PUBLISHER].place().is_none(), "its clients were let go");
}

/// Its lease may hold for longer than it takes the others to find that they do not hear it.
#[cfg_attr(test, test)]
pub(super) fn nobody_is_dead_who_may_still_acknowledge() {
    let mut story = agreed();
    story.passes(5 * SECOND);
    let (leader, checked) = (story.leader(), story.fleet.cx.report.fleet_check_dead);
    let cut_off = (leader + 1) % 3;
    story.isolate(cut_off);
    story.until("it is dead", |story| story.state(leader, cut_off) == Some(State::Dead));
    story.passes(3 * SECOND);
    assert!(story.fleet.cx.report.fleet_check_dead > checked);
}

/// A node's clock runs at 0.96 of its speed, and those of the others at 1.04: that is within what leases allow for.
#[cfg_attr(test, test)]
pub(super) fn nobody_is_dead_who_may_still_acknowledge_by_a_clock_that_is_slow() {
    let mut story = agreed_of(3, |plan| {
        plan.rates = vec![1_040, 1_040, 960];
        plan.config.lease = Duration::from_secs(10);
    });
    story.passes(5 * SECOND);
    let checked = story.fleet.cx.report.fleet_check_dead;
    story.isolate(2);
    story.until("it is dead", |story| story.state(0, 2) == Some(State::Dead));
    story.passes(3 * SECOND);
    assert!(story.fleet.cx.report.fleet_check_dead > checked);
}

#[test]
fn a_replicant_that_was_cut_off_learns_what_was_agreed_upon_meanwhile() {
    let mut story = agreed_of(3, |plan| plan.nodes[2].role = Role::Replicant);
    // As much as cores remember by change, and more.
    for count in [3, 40] {
        story.part(2, 0);
        story.part(2, 1);
        story.passes(2 * SECOND);
        let before = story.fleet.members[2].copy.position();
        for number in 0..count {
            story.fleet.proposes_anew(number % 2);
            story.passes(SECOND / 4);
        }
        assert_eq!(story.fleet.members[2].copy.position(), before);
        assert!(!story.fleet.copies_are_the_same());
        // Nobody agrees to what it wants, and it is not done later either.
        story.fleet.proposes(2);
        story.passes(6 * SECOND);
        story.join(2, 0);
        story.join(2, 1);
        story.passes(15 * SECOND);
        assert!(story.fleet.copies_are_the_same());
        assert!(story.fleet.members[2].copy.position() > before);
        story.fleet.check_records();
    }
    assert!(story.fleet.report().fleet_wholes > 0);
}

#[test]
fn what_one_node_proposes_all_have_within_a_second_and_the_delay_of_a_link() {
    for latency in [MILLI, 100 * MILLI] {
        let mut story = agreed_of(5, |plan| {
            plan.nodes[3..].iter_mut().for_each(|node| node.role = Role::Replicant);
            plan.latency = latency;
        });
        story.passes(15 * SECOND);
        let mut revision = story.revisions()[0];
        for node in [3, 0, 1, 2, 4, 3] {
            story.fleet.proposes_anew(node);
            story.passes(SECOND + latency);
            revision += 1;
            assert_eq!(story.revisions(), [revision; 5], "by n{node}, {latency} us away");
        }
    }
}

/// Others acknowledge what its subscribers would have wanted, had they not been given up: no connection goes on as if it had missed nothing.
#[cfg_attr(test, test)]
pub(super) fn who_stays_connected_to_a_node_that_was_dead_for_others_misses_nothing() {
    let mut story = agreed();
    story.subscribes();
    story.passes(3 * SECOND);
    assert!(story.is_subscribed());
    story.isolate(0);
    story.until("it is dead", |story| story.state(1, 0) == Some(State::Dead));
    let number = story.publishes();
    story.passes(3 * SECOND);
    assert!(story.is_acknowledged(number), "whom it was for is dead");
    story.release(0);
    story.until("it joins again", |story| story.state(1, 0) == Some(State::Alive));
    story.passes(5 * SECOND);
    assert!(story.fleet.clients[SUBSCRIBER].place().is_none() || story.has_come(number));
}

/// A suspicion takes nothing away: it may be wrong.
#[cfg_attr(test, test)]
pub(super) fn a_node_that_was_suspected_and_is_heard_again_keeps_what_its_clients_want() {
    let mut story = agreed_of(3, |plan| plan.config.lease = Duration::from_secs(10));
    story.subscribes();
    story.passes(15 * SECOND);
    assert!(story.is_subscribed());
    let lives = story.lives();
    story.isolate(0);
    story.until("it is suspected", |story| matches!(story.state(1, 0), Some(State::Suspect(_))));
    story.release(0);
    story.until("it is heard again", |story| story.state(1, 0) == Some(State::Alive));
    story.passes(5 * SECOND);
    assert_eq!(story.lives(), lives);
    story.assert_serves();
}

/// One core hears a node again that all suspect, and what it has to say is late. The one that leads declares that node dead by what it knows: had the
/// first let the node acknowledge, the dead would have a lease.
#[cfg_attr(test, test)]
pub(super) fn who_is_suspected_may_acknowledge_nothing_though_a_core_hears_it_again() {
    let mut deaths = 0;
    for late in [0, 500, 1_000] {
        let mut story = agreed_of(3, |plan| {
            plan.config.lease = Duration::from_secs(6);
            plan.mesh.link.silence_max = Duration::from_millis(1_500);
        });
        story.passes(10 * SECOND);
        let leader = story.leader();
        let (first, cut_off) = ((leader + 1) % 3, (leader + 2) % 3);
        story.part(cut_off, first);
        story.passes(2_500 * MILLI);
        story.part(cut_off, leader);
        story.passes((4_700 + late) * MILLI);
        let now = story.fleet.cx.now();
        story.fleet.wan.cut(now, first, leader, 1_300 * MILLI);
        story.join(cut_off, first);
        story.passes(5 * SECOND);
        deaths += story.fleet.cx.report.fleet_deaths;
    }
    assert!(deaths > 0, "nobody was declared dead too late to be heard");
}

#[cfg_attr(test, test)]
pub(super) fn a_node_that_has_lost_its_number_takes_a_greater_one_than_any_before() {
    let mut story = agreed();
    story.restart(0);
    story.passes(10 * SECOND);
    let lives = story.lives();
    story.fleet.members[0].incarnation = 0;
    story.restart(0);
    story.passes(10 * SECOND);
    story.assert_whole();
    story.fleet.connect(SUBSCRIBER, 0);
    story.passes(SECOND);
    story.subscribes();
    story.passes(3 * SECOND);
    assert!(story.is_subscribed());
    story.assert_serves();
    assert!(story.lives()[0] > lives[0]);
}

/// Cores that begin a cluster tell each other of those that they have met.
#[test]
fn a_core_that_is_told_of_one_other_begins_with_all() {
    for told_of in [0, 1] {
        let mut story = agreed_of(3, |plan| plan.meets = vec![vec![0, 1], vec![0, 1], vec![told_of]]);
        story.passes(10 * SECOND);
        story.assert_whole();
    }
}

/// Of four cores one is removed, and of the three that are left one is lost.
#[cfg_attr(test, test)]
pub(super) fn a_core_that_was_removed_counts_no_more() {
    let mut story = agreed_of(4, |_| ());
    story.passes(8 * SECOND);
    story.isolate(3);
    story.until("it is dead", |story| story.state(0, 3) == Some(State::Dead));
    story.removes(0, 3, WishId(ORDERS));
    story.until("it is removed", |story| (0..3).all(|node| story.members(node) == 3));
    story.passes(5 * SECOND);
    story.isolate(2);
    story.passes(5 * SECOND);
    let writer = story.connects(1);
    let number = story.says_as(writer, "t/0", QoS::AtLeastOnce, Keeps::Nothing);
    story.passes(10 * SECOND);
    assert!(story.is_acknowledged(number), "two of three cores are a majority");
}

/// Two of five cores are gone, and removed at once: those who have heard of that, and those who have not, would be two majorities.
#[cfg_attr(test, test)]
pub(super) fn cores_go_one_after_the_other() {
    let mut story = agreed_of(5, |_| ());
    story.passes(10 * SECOND);
    let leader = story.leader();
    let gone = [(leader + 1) % 5, (leader + 2) % 5];
    for node in gone {
        story.isolate(node);
    }
    story.until("they are dead", |story| {
        gone.iter().all(|node| story.state(leader, *node) == Some(State::Dead))
    });
    for (number, node) in gone.into_iter().enumerate() {
        story.removes(leader, node, WishId(ORDERS + number as u64));
    }
    story.until("both are removed", |story| story.members(leader) == 3);
}

/// Two nodes are removed, and the one that went first comes back first. It has one place with the others then: what is retained there is for all places, and
/// would come to it twice.
#[test]
fn a_node_that_was_removed_and_joins_again_hears_everything_once() {
    let mut story = agreed_of(5, |_| ());
    story.passes(10 * SECOND);
    let gone = [3, 4];
    for node in gone {
        story.isolate(node);
    }
    story.until("they are dead", |story| gone.iter().all(|node| story.state(0, *node) == Some(State::Dead)));
    for (number, node) in gone.into_iter().enumerate() {
        story.removes(0, node, WishId(ORDERS + number as u64));
        story.until("it is removed", |story| (0..3).all(|at| story.members(at) == 4 - number));
    }
    for other in 0..3 {
        story.join(other, 3);
    }
    story.until("it has joined again", |story| (0..4).all(|node| story.members(node) == 4));
    let reader = story.connects(3);
    let filters = vec![(RETAINED.to_owned(), QoS::ExactlyOnce)];
    story.with(reader, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    story.passes(3 * SECOND);
    let writer = story.connects(0);
    let number = story.says_as(writer, "r/0", QoS::ExactlyOnce, Keeps::Message);
    story.passes(3 * SECOND);
    // Whatever comes twice ends the simulation.
    assert!(story.came_to(reader, number) && story.is_acknowledged(number));
}

/// A node has written much, is declared dead, and has written little since it joined again. What cores have settled of its life before is none of what
/// it waits for now.
#[test]
fn a_life_that_has_written_less_than_the_one_before_has_its_subscriptions_settled() {
    let mut story = agreed();
    for _ in 0..3 {
        let client = story.connects(0);
        let filters = (0..60).map(|number| (format!("u/{number}"), QoS::AtLeastOnce)).collect();
        story.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Local));
        story.passes(SECOND);
        story.fleet.fault(&Fault::LoseClient { client });
        story.passes(SECOND);
    }
    story.subscribes();
    story.passes(3 * SECOND);
    assert!(story.is_subscribed());
    story.isolate(0);
    story.until("it is dead", |story| story.state(1, 0) == Some(State::Dead));
    story.release(0);
    story.until("it joins again", |story| story.state(1, 0) == Some(State::Alive));
    story.passes(5 * SECOND);
    story.fleet.connect(SUBSCRIBER, 0);
    story.passes(SECOND);
    story.subscribes();
    story.passes(5 * SECOND);
    assert!(story.is_subscribed());
    story.assert_serves();
}

/// One of three cores does not read records. They are refused until it is updated, and then no core of a version before takes part any more.
#[cfg_attr(test, test)]
pub(super) fn what_some_core_does_not_understand_is_agreed_upon_when_it_is_updated() {
    let mut story = agreed_of(3, |plan| plan.old = vec![1]);
    story.passes(20 * SECOND);
    for node in [0, 2] {
        story.fleet.proposes_anew(node);
    }
    story.passes(5 * SECOND);
    assert_eq!((story.adopted(0), story.fleet.operators.unread), (0, 2));
    assert_eq!(story.revisions(), [0; 3]);
    story.fleet.members[1].log = Some(cluster::LOG);
    story.restart(1);
    story.until("all understand it", |story| story.adopted(0) == cluster::LOG);
    story.fleet.proposes_anew(0);
    story.passes(3 * SECOND);
    assert_eq!(story.revisions(), [1; 3]);
    story.fleet.members[0].log = Some(0);
    story.restart(0);
    assert_eq!(story.fleet.report().fleet_outdated, 1, "its log is of a later version");
    story.passes(20 * SECOND);
    story.assert_whole();
    story.fleet.check_records();
}

/// It is removed in the form that all understand.
#[test]
fn what_a_core_that_is_gone_understands_counts_until_it_is_removed() {
    let mut story = agreed_of(4, |plan| plan.old = vec![3]);
    story.passes(20 * SECOND);
    story.isolate(3);
    story.until("it is dead", |story| story.state(0, 3) == Some(State::Dead));
    story.fleet.proposes_anew(0);
    story.passes(5 * SECOND);
    assert_eq!((story.adopted(0), story.fleet.operators.unread), (0, 1));
    story.removes(0, 3, WishId(ORDERS));
    story.until("it is removed", |story| (0..3).all(|node| story.members(node) == 3));
    story.until("the rest understands it", |story| story.adopted(0) == cluster::LOG);
    assert_eq!(story.outcome(), Some(Ok(Answer::Done)));
    story.fleet.proposes_anew(1);
    story.passes(3 * SECOND);
    assert_eq!(story.revisions()[..3], [1; 3]);
}

/// Three cores, 200 ms there and back.
fn far_apart(seed: u64, time: Micros) -> Story {
    let change = |plan: &mut Plan| {
        plan.latency = 100 * MILLI;
        plan.mesh.link.silence_max = Duration::from_secs(5);
    };
    let mut story = agreed_of_seed(seed, 3, |_| None, change);
    story
        .until("all vote", |story| (0..3).all(|node| story.roster(node) == Some((vec![State::Alive; 3], 3))));
    story.passes(time);
    story
}

/// Votes are split one time in four, and four times in a row one time in 256.
#[test]
fn another_core_leads_soon_after_the_last_word_of_the_one_that_led() {
    let mut times: Vec<Micros> = (0..40)
        .map(|round| {
            let mut story = far_apart(super::SEED + round, 5 * SECOND + round * 170 * MILLI);
            let (leader, now) = (story.leader(), story.fleet.cx.now());
            story.isolate(leader);
            story.until("another leads", |story| {
                let others = (0..3).filter(|node| *node != leader);
                let known: Vec<_> = others.filter_map(|node| story.meta(node)?.leader()).collect();
                known.len() == 2 && known[0] == known[1] && known[0] != id(leader)
            });
            story.fleet.cx.now() - now
        })
        .collect();
    times.sort_unstable();
    let bounds = [(20, 4), (35, 7), (39, 10)];
    assert!(bounds.iter().all(|(at, seconds)| times[*at] < seconds * SECOND), "{times:?}");
}

/// Nor do both links of the leader that stall at one time.
#[test]
fn a_link_that_stalls_for_a_second_deposes_nobody() {
    let mut story = far_apart(super::SEED, 5 * SECOND);
    let term = |story: &Story| {
        let process = story.fleet.members[0].process.as_ref().expect("runs");
        story.meta(0).and_then(|meta| meta.status(process.time(&story.fleet.cx))).expect("a core").term
    };
    let (leader, before) = (story.leader(), term(&story));
    for round in 0..20 {
        let now = story.fleet.cx.now();
        for other in (0..3).filter(|node| *node != leader) {
            story.fleet.wan.cut(now, leader, other, SECOND);
        }
        story.passes(3 * SECOND + round * 70 * MILLI);
    }
    assert_eq!((story.leader(), term(&story)), (leader, before));
}

impl Story {
    /// An operator wants something of a node.
    fn orders(&mut self, node: usize, letter: Letter) {
        let process = self.fleet.members[node].process.as_mut().expect("runs");
        let now = process.time(&self.fleet.cx);
        process.fabric.letter(now, letter);
        process.wake(&mut self.fleet.cx, 1);
    }

    /// An operator has a node remove another one, in the life that the first knows of.
    fn removes(&mut self, node: usize, gone: usize, wish: WishId) {
        let life = self.known(node).members[&id(gone)].incarnation;
        self.orders(node, Letter::Wish(wish, Command::Remove(id(gone), Some(life))));
    }

    /// What came of what an operator wanted last.
    fn outcome(&mut self) -> Option<Result<Answer, String>> {
        self.fleet.operators.ordered.pop()
    }

    /// A node is not there any more, and another machine takes its place, whose clock says that so many lives were before.
    fn is_replaced(&mut self, node: usize, lives: u64) {
        self.fleet.fault(&Fault::Kill { node });
        self.fleet.empty_disk(node);
        self.fleet.members[node].incarnation = lives;
        self.fleet.start(node);
    }

    /// Whoever subscribes on a node, to much and then to one thing more, is told in time that all know it, and gets what is published for it.
    fn assert_settles(&mut self, node: usize) {
        let client = self.connects(node);
        let filters = (0..60).map(|number| (format!("u/{number}"), QoS::AtLeastOnce)).collect();
        self.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Local));
        self.passes(SECOND);
        let subscriber = self.fleet.clients.len();
        self.fleet.clients.push(Client::member(subscriber));
        self.fleet.connect(subscriber, node);
        self.passes(SECOND);
        let filters = vec![("t/#".to_owned(), QoS::AtLeastOnce)];
        self.with(subscriber, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
        self.passes(5 * SECOND);
        let place = self.fleet.clients[subscriber].place();
        let is_granted =
            place.is_some_and(|(.., view)| self.fleet.oracle.view(view).granted.contains_key("t/#"));
        assert!(is_granted, "no SUBACK on n{node}");
        let number = self.publishes();
        self.passes(2 * SECOND);
        assert!(self.is_acknowledged(number) && self.came_to(subscriber, number));
    }

    fn leaders(&self, nodes: std::ops::Range<usize>) -> Vec<Option<NodeId>> {
        let process = |node: usize| self.fleet.members[node].process.as_ref().expect("runs");
        nodes.map(|node| process(node).fabric.meta().expect("agreed").leader()).collect()
    }
}

#[test]
fn cores_that_leave_give_up_their_votes_and_the_last_stays() {
    for first in 0..3 {
        let mut story = agreed();
        let (second, last) = ((first + 1) % 3, (first + 2) % 3);
        story.passes(2 * SECOND);
        for (leaves, stays, left) in [(first, second, 2), (second, last, 1)] {
            story.orders(leaves, Letter::Leave(WishId(ORDERS)));
            story.passes(20 * SECOND);
            assert_eq!(story.outcome(), Some(Ok(Answer::Done)), "n{leaves} of {left}, n{first} first");
            assert_eq!(story.roster(leaves), None);
            assert_eq!(story.roster(stays), Some((vec![State::Alive; left], 1)), "two bear no more than one");
            // Nobody waits for it: the rest has a leader, and what it has left it does not join again.
            story.passes(70 * SECOND);
            assert_eq!(story.roster(stays), Some((vec![State::Alive; left], 1)), "two bear no more than one");
            let meta =
                story.fleet.members[stays].process.as_ref().and_then(|it| it.fabric.meta()).expect("agreed");
            assert!(meta.leader().is_some(), "n{leaves} of {left}, n{first} first");
        }
        story.orders(last, Letter::Leave(WishId(ORDERS)));
        story.passes(SECOND);
        let outcome = story.outcome().expect("at once");
        assert!(outcome.is_err_and(|why| why.contains("last core")));
    }
}

/// Which of two nodes connects to the other makes no difference.
#[test]
fn nobody_misses_a_node_that_has_left_and_ended() {
    for leaves in 0..3 {
        let mut story = agreed();
        story.passes(2 * SECOND);
        story.orders(leaves, Letter::Leave(WishId(ORDERS)));
        let others = [(leaves + 1) % 3, (leaves + 2) % 3];
        story.until("it has left", |story| {
            others.iter().all(|other| !story.known(*other).members.contains_key(&id(leaves)))
        });
        story.fleet.members[leaves].is_off = true;
        story.fleet.kill(leaves, false);
        for _ in 0..40 {
            story.passes(SECOND);
            for other in others {
                // An impostor may try the name of a node that is there.
                let told = story.not_joined(other);
                let of_it: Vec<_> = told.iter().filter(|it| it.starts_with(&format!("n{leaves}:"))).collect();
                assert!(of_it.is_empty(), "n{other} misses n{leaves}, which has left: {of_it:?}");
            }
        }
    }
}

/// Of two cores one has a vote, and gives it to the other when it leaves. It hears nothing of who leads then, and the one that does has it go when it says that it knows
/// of the core that left before.
#[test]
fn a_core_that_has_given_up_its_vote_says_what_it_knows() {
    let mut story = agreed_of(4, |plan| plan.nodes[REPLICANT].role = Role::Replicant);
    story.passes(10 * SECOND);
    let leader = story.leader();
    let [first, stays] = [1, 2].map(|other| (leader + other) % 3);
    for leaves in [first, leader] {
        story.orders(leaves, Letter::Leave(WishId(ORDERS)));
        story.until("it has left", |story| !story.known(stays).members.contains_key(&id(leaves)));
    }
    story.until("the last leads", |story| story.meta(stays).and_then(Meta::leader) == Some(id(stays)));
    story.until("it acknowledges", |story| story.is_fresh(stays) && story.is_fresh(REPLICANT));
}

#[test]
fn a_core_leaves_when_a_majority_is_there_again_and_says_so_when_it_is_not() {
    let mut story = agreed();
    for node in [0, 1] {
        story.part(2, node);
    }
    story.orders(2, Letter::Leave(WishId(ORDERS)));
    story.passes(61 * SECOND);
    let outcome = story.outcome().expect("its time is over");
    assert!(outcome.is_err_and(|why| why.contains("no majority")));
    assert_eq!(story.roster(0).map(|(states, _)| states.len()), Some(3), "nobody has heard of it");
}

#[test]
fn the_lead_goes_where_an_operator_wants_it() {
    let mut story = agreed();
    for (asked, wanted) in [(0, 1), (2, 1), (2, 0), (1, 2), (1, 2)] {
        let node = NodeId::of_name(&format!("n{wanted}"));
        story.orders(asked, Letter::Wish(WishId(ORDERS), Command::Lead(node)));
        story.passes(5 * SECOND);
        assert_eq!(story.outcome(), Some(Ok(Answer::Done)), "n{wanted}, asked of n{asked}");
        assert_eq!(story.leaders(0..3), [Some(node); 3]);
    }
    story.assert_whole();
}

#[test]
fn a_core_that_is_back_gets_its_share_of_replicants_when_it_is_asked_for() {
    let mut story = agreed_of(3, |plan| plan.nodes[2].role = Role::Replicant);
    // The only replicant falls to the core with the smallest number.
    let first = usize::from(NodeId::of_name("n1") < NodeId::of_name("n0"));
    story.fleet.fault(&Fault::Kill { node: first });
    story.passes(40 * SECOND);
    assert_eq!(story.attached(2), 1 - first, "a core that has just begun attracts nobody");
    story.orders(1 - first, Letter::Balance);
    story.passes(SECOND);
    assert_eq!(story.attached(2), first);
    story.subscribes();
    story.passes(3 * SECOND);
    assert!(story.is_subscribed());
    story.assert_serves();
}

/// Each hears at first from the core that it has met first, which may be the same for all.
#[test]
fn replicants_that_begin_at_once_are_spread_over_the_cores() {
    let replicants = 3..9;
    let mut story = agreed_of(9, |plan| {
        plan.nodes[3..9].iter_mut().for_each(|node| node.role = Role::Replicant);
    });
    story.passes(20 * SECOND);
    let mut counts = std::collections::BTreeMap::new();
    for node in replicants {
        let process = story.fleet.members[node].process.as_ref().expect("runs");
        let view = process.fabric.view(process.time(&story.fleet.cx));
        *counts.entry(view.attached.map(|name| name.to_string())).or_insert(0) += 1;
    }
    let even = ["n0", "n1", "n2"].map(|core| (Some(core.to_owned()), 2));
    assert_eq!(counts.into_iter().collect::<Vec<_>>(), even);
}

/// Others have said that a node has a later life, which was another process each time before: here it is the one that the link is about. What that
/// has taken is not for the next.
#[test]
fn what_a_life_in_the_same_process_has_taken_comes_no_more_to_the_next_one() {
    let mut story = agreed_of(4, |plan| plan.nodes[REPLICANT].role = Role::Replicant);
    let publisher = story.connects(REPLICANT);
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
    let mut waited = 0;
    while !story.came_to(keeper, number) {
        // It is on the disk first, which may take a second.
        story.passes(10 * MILLI);
        waited += 1;
        assert!(waited < 200, "it comes");
    }
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

/// A node that was dead for the others does not know whether the link to one that it does not reach yet is still about the same process. It meets that
/// one again, which takes what it is sent and dies before anything of it is heard: what was sent waits for the next process, and comes to that only.
#[test]
fn what_waits_for_the_next_life_of_a_node_is_not_given_to_one_that_dies_before_it_is_heard() {
    let mut story = agreed_of(4, |plan| {
        plan.nodes[REPLICANT].role = Role::Replicant;
        // Messages go over the connection that comes first.
        plan.mesh.connections = 1;
    });
    story.passes(10 * SECOND);
    let keeper = story.fleet.clients.len();
    story.fleet.clients.push(Client::new(keeper, Some(0)));
    story.fleet.connect(keeper, 0);
    story.passes(SECOND);
    let filters = vec![("t/#".to_owned(), QoS::ExactlyOnce)];
    story.with(keeper, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
    story.passes(3 * SECOND);
    story.isolate(REPLICANT);
    story.until("it is dead", |story| story.state(1, REPLICANT) == Some(State::Dead));
    story.join(1, REPLICANT);
    story.join(2, REPLICANT);
    story.until("it has joined again", |story| {
        story.state(REPLICANT, REPLICANT) == Some(State::Alive) && story.is_fresh(REPLICANT)
    });
    story.passes(3 * SECOND);
    let publisher = story.connects(REPLICANT);
    let number = story.says_as(publisher, "t/0", QoS::ExactlyOnce, Keeps::Nothing);
    story.passes(SECOND);
    assert!(!story.link(REPLICANT, 0).0);
    story.join(0, REPLICANT);
    let mut waited = 0;
    while story.link(REPLICANT, 0) != (true, 0) {
        story.passes(20);
        waited += 1;
        assert!(waited < 100_000, "the link comes back, and is the same");
    }
    let now = story.fleet.cx.now();
    story.fleet.wan.cut(now, 0, REPLICANT, LONG);
    story.passes(100 * MILLI);
    assert!(!story.came_to(keeper, number));
    // All that it had answered is lost with the connections. Had any of that come, what waits would be for the life that is over.
    for wire in story.fleet.wan.between(0, REPLICANT) {
        story.fleet.wan.swallow(&mut story.fleet.cx, wire);
    }
    story.restart(0);
    story.join(0, REPLICANT);
    story.passes(5 * SECOND);
    assert_eq!(story.link(REPLICANT, 0), (true, 1));
    story.fleet.connect(keeper, 0);
    // Whatever comes twice ends the simulation.
    story.passes(5 * SECOND);
    assert!(story.is_acknowledged(number) && story.came_to(keeper, number));
}

/// Those who removed a node while it was cut off have forgotten their links to it, and it has not.
#[test]
fn what_a_node_sends_that_was_removed_and_is_back_is_not_lost_with_the_old_links() {
    let mut story = agreed_of(4, |plan| plan.nodes[REPLICANT].role = Role::Replicant);
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

/// A node is no member any more for another one, over a link that stays, and is one again. What it tells then answers what it is asked then, and
/// not what it was asked before.
#[test]
fn what_a_node_tells_that_is_a_member_again_over_the_same_link_answers_what_it_is_asked_then() {
    let mut story = agreed_of(5, |plan| plan.config.tombstones_max = 0);
    let gone = [3, 4];
    for node in gone {
        story.isolate(node);
    }
    story.until("they are dead", |story| gone.iter().all(|node| story.state(0, *node) == Some(State::Dead)));
    story.removes(0, 4, WishId(ORDERS));
    story.until("it is removed", |story| (0..3).all(|node| story.members(node) == 4));
    // The two know nothing of that, and ask each other as members do.
    story.join(3, 4);
    story.passes(5 * SECOND);
    for other in 0..3 {
        story.join(3, other);
    }
    story.until("the one has joined again", |story| story.members(3) == 4);
    story.release(4);
    story.until("so has the other", |story| (0..5).all(|node| story.members(node) == 5));
    assert_eq!(story.link(3, 4), (true, 0), "the link has stayed");
    let [stays, goes] = [("s/#", 4), ("t/#", 4)].map(|(filter, node)| {
        let client = story.connects(node);
        let filters = vec![(filter.to_owned(), QoS::AtLeastOnce)];
        story.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Local));
        story.until("the other knows", |story| story.knows_route(3, filter));
        client
    });
    // What it wants no more is told by all that it wants still.
    story.with(goes, |client, scene| client.leaves(scene, "t/#"));
    story.until("the other knows that, too", |story| !story.knows_route(3, "t/#"));
    assert!(story.knows_route(3, "s/#"), "{stays}");
}

/// A node was killed before it was a member, and is one in its next life. A core still has a link to the first, which looks as if it worked: what is for
/// the node's clients waits for the life that they are connected to.
#[test]
fn what_is_for_a_member_is_not_lost_with_a_link_to_a_life_that_was_none() {
    let mut story = agreed_of(4, |plan| plan.nodes[REPLICANT].role = Role::Replicant);
    let leader = story.leader();
    let core = (0..3).find(|node| *node != leader).expect("there are three");
    let publisher = story.connects(core);
    story.isolate(REPLICANT);
    story.until("it is dead", |story| story.state(leader, REPLICANT) == Some(State::Dead));
    story.removes(leader, REPLICANT, WishId(ORDERS));
    story.until("it is removed", |story| (0..3).all(|node| story.members(node) == 3));
    // It ends before it has heard of a cluster, and says nothing to members of one.
    story.restart(REPLICANT);
    story.join(core, REPLICANT);
    let is_linked = |story: &mut Story| {
        let process = story.fleet.members[core].process.as_mut().expect("the node runs");
        process.fabric.mesh().peer(id(REPLICANT)).is_some_and(|peer| peer.is_up)
    };
    while !is_linked(&mut story) {
        story.passes(MILLI);
    }
    story.part(core, REPLICANT);
    story.restart(REPLICANT);
    for other in (0..3).filter(|node| *node != core) {
        story.join(other, REPLICANT);
    }
    story.until("it has joined", |story| (0..4).all(|node| story.members(node) == 4));
    let subscriber = story.has_subscriber(REPLICANT);
    assert_eq!(story.link(core, REPLICANT), (true, 0), "the core has not noticed");
    let number = story.says_as(publisher, "t/0", QoS::AtLeastOnce, Keeps::Nothing);
    story.passes(100 * MILLI);
    story.join(core, REPLICANT);
    story.passes(10 * SECOND);
    assert!(story.is_acknowledged(number));
    assert!(story.came_to(subscriber, number));
}
