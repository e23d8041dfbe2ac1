//! Invariants of a shard between any two batches.

use crate::counts::Counts;
use crate::deadline::Deadline;
use crate::entry::Phase;
use crate::ids::SESSIONS_MAX;
use crate::links::LinkFilter;
use crate::message::NEVER;
use crate::route::Options;
use crate::shard::Shard;

impl Shard {
    /// Checks all invariants. Takes time in proportion to the state.
    ///
    /// # Panics
    /// Panics when an invariant does not hold: a bug of this crate.
    pub fn check_invariants(&self) {
        self.retained.check_invariants();
        self.check_sessions();
    }

    /// Checks the invariants of [`Self::check_invariants`] except those of retained messages.
    pub fn check_sessions(&self) {
        self.sessions.check_invariants();
        self.eras.check_invariants();
        let mut counts = Counts::default();
        let (mut armed, mut refusing) = (0, 0);
        for session in self.sessions.from(0) {
            let (uid, owned) = (session.uid, session.has_owner);
            assert!(uid.count() <= self.sessions_created && session.epoch > 0);
            assert!(self.eras.is_plausible(session.era, owned));
            counts.sessions += 1;
            counts.owned += u64::from(owned);
            counts.subscriptions += session.subscriptions.len() as u64;
            assert!(!session.has_owner || session.ends == NEVER, "an owned session does not end");
            assert!(!session.has_owner || session.will().is_none_or(|will| will.due == NEVER));
            if owned && !self.is_owned(session) {
                assert!(self.sweep <= uid.slot(), "the sweep will find it");
            }
            if session.deadline() != NEVER {
                armed += 1;
                assert!(self.deadlines.contains(&Deadline::new(session.deadline(), uid.slot())));
            }
            assert!(session.extra.as_ref().is_none_or(|extra| !extra.is_empty()));
            assert_eq!(session.refuses_messages(), self.refusing.contains(&uid.slot()));
            refusing += usize::from(session.refuses_messages());
            let Some(queue) = &session.queue else { continue };
            queue.check_invariants();
            assert!(owned || queue.within() == queue.end(), "no publisher waits for an absent session");
            counts.queued_messages += queue.end() - queue.waiting_range().start;
            counts.queued_bytes += queue.waiting_bytes();
            counts.held_bytes += queue.bytes();
            counts.held_absent_bytes += if owned { 0 } else { queue.bytes() };
        }
        self.check_ephemerals();
        assert_eq!((armed, refusing), (self.deadlines.len(), self.refusing.len()));
        let levels = |counts: &Counts| {
            let Counts { sessions, owned, subscriptions, queued_messages, queued_bytes, .. } = *counts;
            let Counts { held_bytes, held_absent_bytes, .. } = *counts;
            (sessions, owned, subscriptions, queued_messages, queued_bytes, held_bytes, held_absent_bytes)
        };
        assert_eq!(levels(&counts), levels(&self.counts));
        let orphans_are = |entry: &crate::entry::Entry| {
            entry.phase() == Phase::Waiting
                && self.bodies.details(entry).is_some_and(|details| details.group.is_some())
        };
        assert!(self.orphans.values().all(orphans_are));
        assert!(self.orphans.keys().all(|id| *id <= self.orphans_created));
        assert!(self.wills.keys().all(|id| *id <= self.wills_created));
        let queued = self.sessions.from(0).filter_map(|session| session.queue.as_ref());
        let queued = queued.flat_map(|queue| queue.from(0).map(|(_, entry)| entry));
        let needed = queued.chain(self.orphans.values()).filter(|entry| entry.needs_body());
        self.bodies.check_invariants(needed);
        self.check_routes();
    }

    fn check_ephemerals(&self) {
        self.ephemerals.check_invariants();
        assert_eq!(self.counts.ephemeral, self.ephemerals.len() as u64);
        for session in self.ephemerals.from(0) {
            assert!(session.uid.count() <= self.sessions_created && self.sessions.get(session.uid).is_none());
            assert!(self.sessions.slot_of(&session.client_id).is_none(), "one session of any kind");
            assert!(self.eras.is_plausible(session.era, true));
            if !self.eras.is_live(session.era) {
                assert!(self.sweep <= SESSIONS_MAX + session.uid.slot(), "the sweep will find it");
            }
        }
    }

    /// Checks that the index holds exactly the subscriptions that are not shared, and the groups the others of QoS 1
    /// and 2.
    fn check_routes(&self) {
        let plain = |session: &crate::session::Session| {
            let texts = session.subscriptions.iter();
            texts
                .filter(|(text, ..)| mqtt::Subscription::parse(text).is_ok_and(|s| s.share.is_none()))
                .count()
        };
        assert_eq!(self.routes.len(), self.sessions.from(0).map(plain).sum::<usize>());
        let is_stored = |options| Options(options).qos() > mqtt::QoS::AtMostOnce;
        let groups = self.groups.iter().count();
        let filters = self.filters();
        let plain = filters.iter().filter(|text| !text.starts_with("$share/"));
        let plain: std::collections::BTreeSet<_> =
            plain.map(|text| LinkFilter::parse(text).map_or(&**text, |link| link.filter)).collect();
        assert_eq!(self.routes.filters() + groups, plain.len() + groups);
        let members =
            self.groups.iter().flat_map(|(text, slots)| slots.iter().map(move |slot| (text, *slot)));
        for (text, slot) in members {
            let session = self.sessions.at(slot).expect("a member of a group exists");
            assert!(session.subscriptions.get(text).is_some_and(|(options, _)| is_stored(options)));
        }
        let texts = self.sessions.from(0).flat_map(|session| session.subscriptions.iter());
        let is_shared = |text: &str| mqtt::Subscription::parse(text).is_ok_and(|s| s.share.is_some());
        let shared = texts.filter(|(text, options, _)| is_shared(text) && is_stored(*options)).count();
        assert_eq!(self.groups.iter().map(|(_, slots)| slots.len()).sum::<usize>(), shared);
    }
}
