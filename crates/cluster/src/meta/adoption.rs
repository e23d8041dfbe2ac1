//! What the log may ask of cores: a command that versions before do not know is proposed when every core of the roster is known to understand it, whether it is
//! there or not. Until then there is an older form, or nothing.
//!
//! The core that leads says once, in the log, that all understand a feature ([`Command::Adopt`]). From then on it needs nobody to be there, and no core
//! joins that does not understand it.

use consensus::Status;
use link::NodeId;
use link::Time;

use super::{Answer, Command, Meta};
use crate::features::LOG;
use crate::mutation::{Mutation, mutated};

/// What is made of a wish.
pub enum CompatibleForm {
    Command(Command),
    Answered(Answer),
}

impl Meta {
    /// Features that the log may ask of cores, where this is one.
    pub fn adopted(&self) -> Option<u64> {
        self.group.as_ref().map(|group| group.state().adopted)
    }

    /// What a node understands of the log, if that is known.
    fn understands(&self, now: Time, node: NodeId) -> Option<u64> {
        if node == self.id {
            return Some(self.config.features & LOG);
        }
        let linked = self.features.get(&node).copied();
        linked.or_else(|| self.relays.features(now, node)).map(|features| features & LOG)
    }

    pub(super) fn has_features(&self, now: Time, node: NodeId, wanted: u64) -> bool {
        self.understands(now, node).is_some_and(|features| features & wanted == wanted)
    }

    pub(super) fn may_ask_for(&self, features: u64) -> bool {
        let asked_for = self.group.as_ref().map_or(0, |group| group.state().asked_for());
        asked_for & features == features || mutated(Mutation::AdoptUnread)
    }

    /// What all cores understand, and the log may not ask for yet.
    pub(super) fn adoption(&self, now: Time, status: &Status) -> Option<Command> {
        let is_core = |node: NodeId| self.roster.members.get(&node).is_some_and(super::Member::is_core);
        // A replica whose node was removed takes entries until it is none.
        let are_cores = status.members.iter().all(|(_, replica)| is_core(replica.node));
        if !are_cores || !self.knows_cores(now) {
            return None;
        }
        let of_cores = self.roster.cores().map(|(id, _)| self.understands(now, id).unwrap_or(0));
        let all = if mutated(Mutation::AdoptUnread) { LOG } else { of_cores.reduce(|all, one| all & one)? };
        let more = all & !self.adopted()?;
        (more != 0).then_some(Command::Adopt(more))
    }

    /// How a wish of a node is proposed, so that all cores understand it; `None`: it is not known yet.
    pub(super) fn compatible_form(
        &mut self,
        now: Time,
        from: NodeId,
        command: Command,
    ) -> Option<CompatibleForm> {
        if let Command::Join { replica: Some(_), .. } = &command {
            let lacking = self.adopted()? & !self.understands(now, from)?;
            if lacking != 0 {
                self.turned_away.push_back(from);
                return Some(CompatibleForm::Answered(Answer::Unread(
                    "this core runs too old a version for its cluster: update it".into(),
                )));
            }
        }
        if let Command::Adopt(_) = command {
            // Nobody but the core that leads knows.
            return Some(CompatibleForm::Answered(Answer::Refused));
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

    /// Whether nothing was agreed upon that this core, which leads, has not applied: who asks again is not refused what an earlier leader has taken.
    fn knows_all(&self, now: Time) -> bool {
        self.has_quorum(now) && self.status(now).is_some_and(|status| status.applied == status.last)
    }

    /// Cores that are in the way of a feature, for people; `None`: none is, and it is about to be adopted.
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
            format!("nobody knows yet whether all cores understand it, as some are not there: {absent}. Start them, or remove them")
        })
    }

    /// To a command of a later version.
    pub(super) fn unread_here(&self) -> Answer {
        let own = &self.own.name;
        Answer::Unread(
            format!("the core that leads runs a version that does not understand it: {own}. Update it")
                .into(),
        )
    }
}
