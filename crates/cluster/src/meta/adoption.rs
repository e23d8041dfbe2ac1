//! Adoption of new commands in the Raft log of the cores. A command that older versions do not know is proposed only
//! when every core of the roster is known to understand it, whether it is reachable or not. Until then an older form is
//! proposed, or nothing.
//!
//! The leader records once, in the log, that all cores understand a feature ([`Command::Adopt`]). From then on the
//! feature needs no reachable cores, and no core joins without it.

use consensus::Status;
use link::NodeId;
use link::Time;

use super::placement::PlacementCommand;
use super::{Answer, Command, Meta};
use crate::features::{LOG, LOG_READABLE};
use crate::mutation::{Mutation, mutated};

/// Form in which a proposal is made.
pub enum CompatibleForm {
    Command(Command),
    Answered(Answer),
}

impl Meta {
    /// Returns the adopted features that commands in the log may use, if this is a core.
    pub fn adopted(&self) -> Option<u64> {
        self.core.as_ref().map(|core| core.group().state().adopted)
    }

    /// Returns whether all cores read a form, as far as this node knows. A replicant does not see what they have
    /// adopted, and goes by the cores that it is linked to.
    pub fn is_read_by_cores(&self, feature: u64) -> bool {
        if let Some(adopted) = self.adopted() {
            return adopted & feature != 0;
        }
        let mut linked = self.roster.cores().filter_map(|(id, _)| self.features.get(&id)).peekable();
        linked.peek().is_some() && linked.all(|features| features & feature != 0)
    }

    /// Returns the log features that a node understands, if known.
    fn understands(&self, now: Time, node: NodeId) -> Option<u64> {
        if node == self.id {
            return Some(self.config.features & LOG_READABLE);
        }
        let linked = self.features.get(&node).copied();
        linked.or_else(|| self.relays.features(now, node)).map(|features| features & LOG_READABLE)
    }

    pub(super) fn has_features(&self, now: Time, node: NodeId, wanted: u64) -> bool {
        self.understands(now, node).is_some_and(|features| features & wanted == wanted)
    }

    pub(super) fn may_ask_for(&self, features: u64) -> bool {
        let asked_for = self.core.as_ref().map_or(0, |core| core.group().state().asked_for());
        asked_for & features == features || mutated(Mutation::AdoptUnread)
    }

    /// Returns the command that adopts features which all cores understand and the log may not use yet.
    pub(super) fn adoption(&self, now: Time, status: &Status) -> Option<Command> {
        let is_core = |node: NodeId| self.roster.members.get(&node).is_some_and(super::Member::is_core);
        // A replica of a removed node receives entries until it is removed from the group.
        let are_cores = status.members.iter().all(|(_, replica)| is_core(replica.node));
        if !are_cores || !self.knows_cores(now) {
            return None;
        }
        let of_cores = self.roster.cores().map(|(id, _)| self.understands(now, id).unwrap_or(0));
        let all = if mutated(Mutation::AdoptUnread) { LOG } else { of_cores.reduce(|all, one| all & one)? };
        let more = all & !self.adopted()?;
        (more != 0).then_some(Command::Adopt(more))
    }

    /// Returns the form of a node's proposal that all cores understand, or `None` if that is not known yet.
    pub(super) fn compatible_form(
        &mut self,
        now: Time,
        from: NodeId,
        command: Command,
    ) -> Option<CompatibleForm> {
        if let Command::Join { replica: Some(_), .. } = &command {
            let lacking = self.adopted()? & !self.understands(now, from)?;
            if lacking != 0 {
                if let Some(core) = &mut self.core {
                    core.turn_away(from);
                }
                return Some(CompatibleForm::Answered(Answer::Unread(
                    "this core runs too old a version for its cluster: update it".into(),
                )));
            }
        }
        if let Command::Adopt(_) = command {
            // Only the leader knows.
            return Some(CompatibleForm::Answered(Answer::Refused));
        }
        if let Command::Placement(command) = &command {
            // This leader plans; cores report what their shards have done, and may have a state to begin with.
            let may_propose = match command {
                PlacementCommand::Found(first) => self.may_found(from, first),
                PlacementCommand::Done { .. } => true,
                PlacementCommand::Move(_) => false,
            };
            if !may_propose || !self.roster.members.get(&from).is_some_and(super::Member::is_core) {
                return Some(CompatibleForm::Answered(Answer::Refused));
            }
        }
        let asked_for = command.asks_for();
        if self.may_ask_for(asked_for) {
            return Some(CompatibleForm::Command(command));
        }
        match command {
            Command::Remove(id, Some(incarnation)) => Some(match self.roster.members.get(&id) {
                Some(member) if member.incarnation != incarnation => {
                    CompatibleForm::Answered(Answer::Old(member.incarnation))
                }
                _ => CompatibleForm::Command(Command::Remove(id, None)),
            }),
            _ if !self.knows_all(now) => None,
            _ => {
                self.who_lacks(now, asked_for).map(|why| CompatibleForm::Answered(Answer::Unread(why.into())))
            }
        }
    }

    /// Returns whether this leader has applied all committed entries. Only then can it refuse a repeated proposal that
    /// an earlier leader may have accepted.
    fn knows_all(&self, now: Time) -> bool {
        self.has_quorum(now) && self.status(now).is_some_and(|status| status.applied == status.last)
    }

    /// Describes the cores that prevent the adoption of a feature, for operators. Returns `None` when there are none
    /// and it is about to be adopted.
    fn who_lacks(&self, now: Time, feature: u64) -> Option<String> {
        let names = |is_it: &dyn Fn(Option<u64>) -> bool| {
            let those = self.roster.cores().filter(|(id, _)| is_it(self.understands(now, *id)));
            those.map(|(_, core)| &*core.info.name).collect::<Vec<_>>().join(", ")
        };
        let old = names(&|known| known.is_some_and(|known| known & feature != feature));
        let absent = names(&|known| known.is_none());
        if !old.is_empty() {
            return Some(format!("cores run a version that does not understand it: {old}. Update them"));
        }
        (!absent.is_empty()).then(|| {
            format!("it is unknown whether all cores understand it, because some are not reachable: {absent}. Start them, or remove them")
        })
    }

    /// Returns the answer to a command of a later version.
    pub(super) fn unread_here(&self) -> Answer {
        let own = &self.own.name;
        Answer::Unread(
            format!("the leader runs a version that does not understand it: {own}. Update it").into(),
        )
    }
}
