//! Comparison of the shard with the model.

use std::collections::{BTreeMap, BTreeSet};

use shard::{MessageView, NEVER, Phase, SessionUid};

use super::{CLIENTS, Run};
use crate::model;

impl Run<'_> {
    /// Panics when the state differs from the model.
    pub(super) fn check(&self) {
        self.shard.check_invariants();
        if let Some(replica) = &self.replica {
            assert_eq!(replica.digest(), self.shard.digest());
        }
        for client in CLIENTS {
            let uid = self.shard.session_of(client);
            assert_eq!(uid.is_some(), self.model.sessions.contains_key(client), "{client}");
            if let (Some(uid), Some(session)) = (uid, self.model.sessions.get(client)) {
                self.check_session(uid, session);
            }
            let ephemeral = self.shard.ephemeral_of(client);
            let ephemeral = ephemeral.map(|view| (view.owner_node(), view.has_will()));
            let expected = self.model.ephemerals.get(client);
            assert_eq!(
                ephemeral,
                expected.map(|session| (session.owner, session.will.is_some())),
                "{client}"
            );
        }
        let mut wills: Vec<_> = self.shard.due_wills().map(|(_, message)| message.clone()).collect();
        let payload = |message: &[u8]| MessageView::decode(message).expect("ours").payload.to_vec();
        let wills: BTreeSet<_> = wills.drain(..).map(|message| payload(&message)).collect();
        assert_eq!(wills, self.model.wills.iter().cloned().collect());
        let orphans: BTreeSet<_> = self.shard.orphans().map(|(_, orphan)| self.body(orphan.key)).collect();
        assert_eq!(orphans, self.model.orphans.iter().cloned().collect());
        assert_eq!(self.shard.identities(), self.model.identities.len());
        assert_eq!(self.shard.retained_counts().0, self.model.retained.len() as u64);
        for (topic, (expected, _)) in &self.model.retained {
            assert_eq!(self.shard.retained(topic).map(|message| payload(message)).as_ref(), Some(expected));
        }
    }

    fn check_session(&self, uid: SessionUid, session: &model::Session) {
        let view = self.shard.session(uid).expect("is there");
        if let Some(replica) = &self.replica {
            let same = replica.session(uid).expect("is there");
            assert!(
                same.entries(0).eq(view.entries(0)),
                "deliveries to a client do not depend on checkpoints"
            );
        }
        assert_eq!((view.owner().is_some(), view.epoch()), (session.owned, session.epoch));
        assert_eq!(view.last_number(), session.last_number);
        assert_eq!(view.owner_node(), session.owner.filter(|_| session.owned));
        assert_eq!(
            (view.window(), view.expiry_s(), view.ends()),
            (session.window, session.expiry_s, session.ends)
        );
        assert_eq!(view.will_due(), session.will.as_ref().map_or(NEVER, |will| will.due));
        let subscriptions =
            session.subscriptions.iter().map(|(text, (options, id))| (&**text, *options, *id));
        assert!(view.subscriptions().eq(subscriptions));
        let walks = session.walks.iter().map(|(filter, (done, after))| (&**filter, *done, *after));
        assert!(view.walks().eq(walks));
        let received = session.received.iter().map(|id| (*id, session.toggles.contains(id)));
        assert!(view.received().map(|(id, toggle)| (id.get(), toggle)).eq(received));
        let entries: Vec<_> = view
            .entries(0)
            .filter(|(_, entry)| entry.phase != Phase::Finished)
            .map(|(n, entry)| (n, entry.phase, n >= view.within(), entry))
            .collect();
        assert_eq!(entries.len(), session.entries.len(), "{:?}", session.entries);
        let mirror = self.mirror.get(&uid);
        for ((n, phase, over, entry), expected) in entries.iter().zip(&session.entries) {
            assert_eq!((*n, *phase, *over), (expected.n, expected.phase, expected.over));
            assert_eq!(
                mirror.and_then(|mirror| mirror.get(n)),
                Some(&(*phase, *over)),
                "the effects are complete"
            );
            assert_eq!((entry.qos, entry.retain, entry.size), (expected.qos, expected.retain, expected.size));
            if *phase != Phase::Received {
                assert_eq!((entry.ids, entry.expires), (&*expected.ids, expected.expires));
                assert_eq!(entry.group.is_some(), expected.grouped);
                assert_eq!(self.body(entry.key), expected.payload);
            }
        }
        assert_eq!(mirror.map_or(0, BTreeMap::len), entries.len(), "the effects are complete");
    }
}
