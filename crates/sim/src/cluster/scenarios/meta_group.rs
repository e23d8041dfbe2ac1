//! Scenarios of the members: joining, dead, leaving and removed ones, and commands of operators.

use cluster::RouterCommand;
use cluster::meta::{Answer, Command, ProposalId, Roster, State};

use super::super::operators::FIRST_OTHER_PROPOSAL;
use super::*;

pub(super) mod dead;
pub(super) mod founding;
#[cfg(test)]
mod incarnations;
#[cfg(test)]
mod leaving;
pub(super) mod majorities;
#[cfg(test)]
mod origins;
pub(super) mod placement;
pub(super) mod removed;

/// Starts cores that find each other, each with its own log.
fn meta_group_of(cores: usize, change: impl FnOnce(&mut Plan)) -> Scenario {
    meta_group_of_links(cores, |_| None, change)
}

fn meta_group_of_links(
    cores: usize,
    links: impl Fn(usize) -> Option<u64>,
    change: impl FnOnce(&mut Plan),
) -> Scenario {
    meta_group_of_seed(super::SEED, cores, links, change)
}

fn meta_group_of_seed(
    seed: u64,
    cores: usize,
    links: impl Fn(usize) -> Option<u64>,
    change: impl FnOnce(&mut Plan),
) -> Scenario {
    let mut plan = plan(Duration::from_millis(5));
    while plan.nodes.len() < cores {
        plan.add(Role::Core);
    }
    change(&mut plan);
    Scenario::of_seed(seed, plan, links)
}

fn meta_group() -> Scenario {
    meta_group_of(3, |_| ())
}

impl Scenario {
    fn known(&self, node: usize) -> &Roster {
        self.meta(node).expect("the node runs").roster()
    }

    /// State of one node as another knows it.
    fn state(&self, node: usize, of: usize) -> Option<State> {
        self.known(node).members.get(&id(of)).map(|member| member.state)
    }

    /// Unjoined peers as a node reports them: the name or the address, and the reason.
    fn not_joined(&self, node: usize) -> Vec<String> {
        let process = self.cluster.members[node].process.as_ref().expect("the node runs");
        let all = process.router.view(process.time(&self.cluster.cx)).not_joined;
        let reason =
            all.iter().map(|it| format!("{}: {}", it.name.as_ref().unwrap_or(&it.address), it.reason));
        reason.collect()
    }

    fn leader(&self) -> usize {
        let leads = |node: &usize| self.meta(*node).is_some_and(|meta| meta.leader() == Some(id(*node)));
        (0..self.cluster.members.len()).find(leads).expect("a replica leads")
    }

    /// Members' states, in the order of names, and the number of voters as a node knows them. `None` if it is not a
    /// member.
    fn roster(&self, node: usize) -> Option<(Vec<State>, usize)> {
        let meta = self.meta(node).filter(|meta| meta.is_member())?;
        let states = (0..3).filter_map(|at| self.state(node, at));
        let process = self.cluster.members[node].process.as_ref()?;
        let voters = meta.status(process.time(&self.cluster.cx)).map_or(0, |status| status.voters.len());
        Some((states.collect(), voters))
    }

    fn assert_whole(&self) {
        for node in 0..3 {
            assert_eq!(self.roster(node), Some((vec![State::Alive; 3], 3)), "n{node}");
        }
    }

    /// Asserts that a message gets from the third node to the subscriber on the first.
    fn assert_serves(&mut self) {
        self.run_for(SECOND);
        let number = self.publishes();
        self.run_for(2 * SECOND);
        assert!(self.is_acknowledged(number));
        assert!(self.has_arrived(number));
    }

    /// Incarnation of each member.
    fn incarnations(&self) -> Vec<u64> {
        (0..3).map(|at| self.known(0).members[&id(at)].incarnation.0).collect()
    }

    /// Features that entries of the log may require, as a core knows them.
    fn adopted(&self, node: usize) -> u64 {
        self.meta(node).and_then(Meta::adopted).expect("a core that runs")
    }

    fn revisions(&self) -> Vec<u64> {
        self.cluster.members.iter().map(|member| member.copy.position().revision).collect()
    }

    fn founded(&self) -> Vec<u128> {
        (0..3).map(|node| self.known(node).founded).collect()
    }
}

impl Scenario {
    /// Sends an operator's command to a node.
    fn orders(&mut self, node: usize, command: RouterCommand) {
        let process = self.cluster.members[node].process.as_mut().expect("runs");
        let now = process.time(&self.cluster.cx);
        process.router.handle_command(now, command);
        process.wake(&mut self.cluster.cx, 1);
    }

    /// Lets an operator remove a node in the incarnation that the asked node knows.
    fn removes(&mut self, node: usize, removed: usize, proposal: ProposalId) {
        let incarnation = self.known(node).members[&id(removed)].incarnation;
        self.orders(node, RouterCommand::Proposal(proposal, Command::Remove(id(removed), Some(incarnation))));
    }

    /// Result of the last command of an operator.
    fn outcome(&mut self) -> Option<Result<Answer, String>> {
        self.cluster.operators.other_answers.pop()
    }

    /// Replaces a node by another machine, whose clock implies this number of previous incarnations.
    fn is_replaced(&mut self, node: usize, incarnations: u64) {
        self.cluster.fault(&Fault::Kill { node });
        self.cluster.empty_disk(node);
        self.cluster.members[node].incarnation = incarnations;
        self.cluster.start(node);
    }

    /// Asserts that a new subscription on a node gets its SUBACK in time after many others, and then gets messages.
    fn assert_settles(&mut self, node: usize) {
        let client = self.connects(node);
        let filters = (0..60).map(|number| (format!("u/{number}"), QoS::AtLeastOnce)).collect();
        self.with(client, |client, scene| client.subscribes_to(scene, filters, Level::Local));
        self.run_for(SECOND);
        let subscriber = self.cluster.clients.len();
        self.cluster.clients.push(Client::member(subscriber));
        self.cluster.connect(subscriber, node);
        self.run_for(SECOND);
        let filters = vec![("t/#".to_owned(), QoS::AtLeastOnce)];
        self.with(subscriber, |client, scene| client.subscribes_to(scene, filters, Level::Cluster));
        self.run_for(5 * SECOND);
        let location = self.cluster.clients[subscriber].location();
        let is_granted =
            location.is_some_and(|(.., view)| self.cluster.oracle.view(view).granted.contains_key("t/#"));
        assert!(is_granted, "no SUBACK on n{node}");
        let number = self.publishes();
        self.run_for(2 * SECOND);
        assert!(self.is_acknowledged(number) && self.has_arrived_at(subscriber, number));
    }

    fn leaders(&self, nodes: std::ops::Range<usize>) -> Vec<Option<NodeId>> {
        let process = |node: usize| self.cluster.members[node].process.as_ref().expect("runs");
        nodes.map(|node| process(node).router.meta().leader()).collect()
    }
}
