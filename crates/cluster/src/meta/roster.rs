//! Roster that the cores agree on: the members of the cluster, their incarnations, and whether they are alive.

use std::collections::BTreeMap;

use consensus::ReplicaId;
use link::NodeId;
use replog::Incarnation;

use super::command::{Answer, Command};
use super::reader::Reader;
use crate::config::{NodeInfo, Role};
use crate::mutation::{Mutation, mutated};

/// Maximum number of nodes of one cluster.
pub const NODES_MAX: usize = 1000;

/// First byte of a roster.
const VERSION: u8 = 1;
/// Bit next to a member's state: the member leaves.
const LEAVES: u8 = 4;

/// Members of a cluster at one index of the meta group's log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Roster {
    /// Index of the last command that changed it.
    pub index: u64,
    /// Random id of the cluster, made when it was founded. Nodes of another cluster do not belong here, whatever their
    /// names. 0 before the founding.
    pub founded: u128,
    pub members: BTreeMap<NodeId, Member>,
}

/// A node that belongs to the cluster until it leaves or is removed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Member {
    pub info: NodeInfo,
    /// Last incarnation that has joined.
    pub incarnation: Incarnation,
    pub state: State,
    /// True when it is leaving: it remains a member until it has no vote.
    pub leaves: bool,
    /// Replica in the meta group, on a core.
    pub replica: Option<ReplicaId>,
}

/// State of a member's last incarnation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Alive,
    /// No core reaches it. A core that knows this lets it acknowledge nothing. The value is the index of the suspicion.
    Suspect(u64),
    /// The incarnation is over for all other nodes, whether the process knows it or not.
    Dead,
}

impl Roster {
    pub fn cores(&self) -> impl Iterator<Item = (NodeId, &Member)> {
        self.members.iter().map(|(id, member)| (*id, member)).filter(|(_, member)| member.is_core())
    }

    pub(super) fn change(&mut self, index: u64, command: Command) -> Answer {
        match command {
            Command::Found(id) if self.founded == 0 && id != 0 => self.founded = id,
            Command::Found(_) => return Answer::Done,
            Command::Join { info, incarnation, replica } => {
                return self.join(index, info, incarnation, replica);
            }
            Command::Remove(id, meant) => match self.members.get(&id) {
                Some(member) if meant.is_some_and(|meant| meant != member.incarnation) => {
                    return Answer::Old(member.incarnation);
                }
                Some(_) => drop(self.members.remove(&id)),
                None => return Answer::Done,
            },
            Command::Suspect(id, incarnation) => match self.state_of(id, incarnation) {
                Some(state @ State::Alive) => *state = State::Suspect(index),
                _ => return Answer::Done,
            },
            Command::ClearSuspicion(id, incarnation) => match self.state_of(id, incarnation) {
                Some(state @ State::Suspect(_)) => *state = State::Alive,
                _ => return Answer::Done,
            },
            Command::DeclareDead(id, incarnation) => match self.state_of(id, incarnation) {
                Some(state @ State::Suspect(_)) => *state = State::Dead,
                _ => return Answer::Done,
            },
            Command::Leave(id, incarnation) => match self.members.get_mut(&id) {
                Some(member) if member.incarnation == incarnation && !member.leaves => member.leaves = true,
                _ => return Answer::Done,
            },
            Command::Lead(_) | Command::Records(_) | Command::Adopt(_) | Command::Placement(_) => {
                return Answer::Refused;
            }
        }
        self.index = index;
        Answer::Done
    }

    /// Returns the state of exactly this incarnation.
    fn state_of(&mut self, id: NodeId, incarnation: Incarnation) -> Option<&mut State> {
        let member = self.members.get_mut(&id)?;
        (member.incarnation == incarnation).then_some(&mut member.state)
    }

    fn join(
        &mut self,
        index: u64,
        info: NodeInfo,
        incarnation: Incarnation,
        replica: Option<ReplicaId>,
    ) -> Answer {
        let id = NodeId::of_name(&info.name);
        if self.founded == 0 || replica.is_some() != (info.role == Role::Core) {
            return Answer::Refused;
        }
        let known = self.members.get(&id);
        let leaves = known.is_some_and(|known| known.incarnation == incarnation && known.leaves);
        match known {
            Some(known) if known.info.name != info.name => return Answer::Refused,
            Some(known) if known.incarnation == incarnation && known.state != State::Dead => {
                // The command was repeated, or the node has moved.
                if known.info == info && known.replica == replica {
                    return Answer::Done;
                }
            }
            Some(known) if known.incarnation >= incarnation && !mutated(Mutation::OldIncarnationsJoin) => {
                return Answer::Old(Incarnation(known.incarnation.0.saturating_add(1)));
            }
            None if self.members.len() >= NODES_MAX => return Answer::Refused,
            Some(_) | None => {}
        }
        self.members.insert(id, Member { info, incarnation, state: State::Alive, leaves, replica });
        self.index = index;
        Answer::Done
    }

    pub fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        out.extend(self.index.to_le_bytes());
        out.extend(self.founded.to_le_bytes());
        for member in self.members.values() {
            let (state, since) = match member.state {
                State::Alive => (0, 0),
                State::Suspect(index) => (1, index),
                State::Dead => (2, 0),
            };
            out.push(state | if member.leaves { LEAVES } else { 0 });
            out.extend(u64::to_le_bytes(since));
            super::command::put_member(&member.info, member.incarnation, member.replica, &mut out);
        }
        out
    }

    /// Decodes the result of [`Self::encode`]; returns `None` for anything else. Never panics.
    pub fn decode(bytes: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        if reader.u8()? != VERSION {
            return None;
        }
        let (index, founded) = (reader.u64()?, reader.u128()?);
        let mut members = BTreeMap::new();
        while !reader.is_empty() {
            let (state, since) = (reader.u8()?, reader.u64()?);
            let leaves = state & LEAVES != 0;
            let state = match state & !LEAVES {
                0 => State::Alive,
                1 => State::Suspect(since),
                2 => State::Dead,
                _ => return None,
            };
            let (info, incarnation, replica) = super::command::take_member(&mut reader)?;
            let member = Member { info, incarnation, state, leaves, replica };
            if members.len() >= NODES_MAX
                || members.insert(NodeId::of_name(&member.info.name), member).is_some()
            {
                return None;
            }
        }
        Some(Self { index, founded, members })
    }
}

impl Member {
    pub fn is_core(&self) -> bool {
        self.info.role == Role::Core
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn info(name: &str, role: Role) -> NodeInfo {
        NodeInfo { name: name.into(), role, region: "eu".into(), address: format!("{name}:7883").into() }
    }

    fn join(name: &str, incarnation: u64) -> Command {
        let replica = Some(ReplicaId(7));
        Command::Join { info: info(name, Role::Core), incarnation: Incarnation(incarnation), replica }
    }

    fn apply(roster: &mut Roster, index: u64, command: &Command) -> Answer {
        roster.change(index, command.clone())
    }

    #[test]
    fn a_cluster_is_founded_once_and_before_any_node_joins() {
        let mut roster = Roster::default();
        assert_eq!(apply(&mut roster, 1, &join("a", 5)), Answer::Refused);
        apply(&mut roster, 2, &Command::Found(3));
        apply(&mut roster, 3, &Command::Found(4));
        assert_eq!((roster.founded, roster.index), (3, 2));
        assert_eq!(apply(&mut roster, 4, &join("a", 5)), Answer::Done);
        assert_eq!(roster.members.len(), 1);
    }

    #[test]
    fn an_incarnation_that_is_not_newer_does_not_join() {
        let mut roster = Roster { founded: 1, ..Roster::default() };
        apply(&mut roster, 1, &join("a", 5));
        assert_eq!(apply(&mut roster, 2, &join("a", 4)), Answer::Old(Incarnation(6)));
        assert_eq!(apply(&mut roster, 3, &join("a", 5)), Answer::Done);
        assert_eq!(roster.index, 1, "it was repeated");
        assert_eq!(apply(&mut roster, 4, &join("a", 6)), Answer::Done);
        assert_eq!(roster.index, 4);
    }

    #[test]
    fn an_incarnation_dies_once_after_suspicion_and_only_another_one_returns() {
        let (id, incarnation) = (NodeId::of_name("a"), Incarnation(5));
        let mut roster = Roster { founded: 1, ..Roster::default() };
        let state = |roster: &Roster| roster.members[&id].state;
        apply(&mut roster, 1, &join("a", 5));
        apply(&mut roster, 2, &Command::DeclareDead(id, incarnation));
        assert_eq!(state(&roster), State::Alive, "it was not suspected");
        apply(&mut roster, 3, &Command::Suspect(id, Incarnation(4)));
        assert_eq!(state(&roster), State::Alive, "that was an earlier incarnation");
        apply(&mut roster, 4, &Command::Suspect(id, incarnation));
        assert_eq!(state(&roster), State::Suspect(4));
        apply(&mut roster, 5, &Command::Suspect(id, incarnation));
        assert_eq!(state(&roster), State::Suspect(4));
        apply(&mut roster, 6, &Command::ClearSuspicion(id, incarnation));
        assert_eq!(state(&roster), State::Alive);
        apply(&mut roster, 7, &Command::Suspect(id, incarnation));
        apply(&mut roster, 8, &Command::DeclareDead(id, incarnation));
        assert_eq!(state(&roster), State::Dead);
        apply(&mut roster, 9, &Command::ClearSuspicion(id, incarnation));
        assert_eq!((state(&roster), roster.index), (State::Dead, 8));
        assert_eq!(apply(&mut roster, 10, &join("a", 5)), Answer::Old(Incarnation(6)));
        assert_eq!(apply(&mut roster, 11, &join("a", 6)), Answer::Done);
        assert_eq!(state(&roster), State::Alive);
        apply(&mut roster, 12, &Command::Remove(id, None));
        assert!(roster.members.is_empty());
    }

    #[test]
    fn only_the_given_incarnation_is_removed() {
        let (id, remove) = (NodeId::of_name("a"), |incarnation| {
            Command::Remove(NodeId::of_name("a"), Some(Incarnation(incarnation)))
        });
        let mut roster = Roster { founded: 1, ..Roster::default() };
        apply(&mut roster, 1, &join("a", 5));
        apply(&mut roster, 2, &Command::Suspect(id, Incarnation(5)));
        apply(&mut roster, 3, &Command::DeclareDead(id, Incarnation(5)));
        apply(&mut roster, 4, &join("a", 6));
        for meant in [5, 7] {
            assert_eq!(apply(&mut roster, 5, &remove(meant)), Answer::Old(Incarnation(6)));
        }
        assert_eq!((roster.members[&id].state, roster.index), (State::Alive, 4), "it came back");
        assert_eq!(apply(&mut roster, 6, &remove(6)), Answer::Done);
        assert_eq!((roster.members.len(), roster.index), (0, 6));
        assert_eq!(apply(&mut roster, 7, &remove(6)), Answer::Done, "it was repeated");
        assert_eq!(roster.index, 6);
    }

    #[test]
    fn a_cluster_has_a_maximum_number_of_nodes() {
        let mut roster = Roster { founded: 1, ..Roster::default() };
        for node in 0..NODES_MAX {
            assert_eq!(apply(&mut roster, node as u64, &join(&format!("n{node}"), 1)), Answer::Done);
        }
        assert_eq!(apply(&mut roster, 5000, &join("another", 1)), Answer::Refused);
        assert_eq!(apply(&mut roster, 5001, &join("n7", 2)), Answer::Done);
    }

    /// Checks the bytes of version 1. They must never change.
    #[test]
    fn a_roster_keeps_its_byte_format() {
        let mut roster = Roster { index: 9, founded: 0x0102, members: BTreeMap::new() };
        let members = [
            ("a", Role::Core, State::Suspect(8), Some(ReplicaId(7))),
            ("b", Role::Replicant, State::Dead, None),
        ];
        for (name, role, state, replica) in members {
            let member = Member {
                info: info(name, role),
                incarnation: Incarnation(5),
                state,
                leaves: state == State::Dead,
                replica,
            };
            roster.members.insert(NodeId::of_name(name), member);
        }
        let bytes = roster.encode();
        let found: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
        let golden = concat!(
            "01",
            "0900000000000000",
            "02010000000000000000000000000000",
            "06",
            "0000000000000000",
            "01",
            "0500000000000000",
            "0000000000000000",
            "0162",
            "026575",
            "06623a37383833",
            "01",
            "0800000000000000",
            "00",
            "0500000000000000",
            "0700000000000000",
            "0161",
            "026575",
            "06613a37383833",
        );
        assert_eq!(found, golden);
        assert_eq!(Roster::decode(&bytes), Some(roster));
        for length in 26..bytes.len() {
            let part = Roster::decode(&bytes[..length]);
            assert!(part.is_none_or(|part| part.members.len() == 1), "{length}");
        }
        for at in 0..bytes.len() {
            for value in 0..=255 {
                let mut bad = bytes.clone();
                bad[at] = value;
                let _ = Roster::decode(&bad);
            }
        }
    }
}
