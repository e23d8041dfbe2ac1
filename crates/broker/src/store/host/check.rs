//! Invariants of a shard between two requests.

use super::ShardHost;
use super::live::Bodies;

impl ShardHost {
    pub fn check_invariants(&self) {
        self.replica.state().check_sessions();
        let connected = self.live.values().map(|live| live.bodies.bytes()).sum();
        let absent = self.memory.absent.values().map(Bodies::bytes).sum();
        for (uid, bodies) in &self.memory.absent {
            assert!(!bodies.is_empty(), "no empty entries");
            assert!(!self.live.contains_key(uid), "a connected session keeps its messages in `live`");
        }
        self.check_charged();
        assert!(self.touched.is_empty(), "all touched sessions were handled");
        assert_eq!((connected, absent), (self.memory.held.for_connected, self.memory.held.for_absent));
        assert!(!self.replica.has_log() || absent == 0, "messages for absent sessions are on disk only");
        for (uid, live) in &self.live {
            let session = self.replica.state().session(*uid).expect("a session with a connection exists");
            // Dropped messages move an empty range, which contains nothing to send.
            let open = session.open();
            assert!(live.next <= open.end && (open.is_empty() || open.start <= live.next));
            assert!(
                live.over.iter().all(|over| over.n >= session.within() && over.n < session.waiting().end)
            );
            // The command that settles it may be on its way to the log.
            let is_underway = !self.replica.is_idle();
            let due = live.due(&self.settings.queue).max(live.put_off);
            assert!(is_underway || live.armed <= due, "a session is scheduled for the time when it is due");
            let client =
                self.clients.get(session.client_id()).expect("a session with a connection has a client");
            assert_eq!((client.session(), client.owner()), (Some(*uid), Some(live.connection)));
        }
        for client in self.clients.values() {
            let is_awaiting = client.has_pending() && self.producers.has_waiting(&client.client_id());
            assert!(
                !client.has_pending() || client.owner().is_some() || client.is_claiming() || is_awaiting,
                "a claim waits only for an owner"
            );
            assert!(
                client.owner().is_some() || client.underway() > 0 || is_awaiting,
                "every client has a reason to be remembered"
            );
        }
    }

    /// Number of bytes that count against `limits.memory_unsynced_max`.
    pub fn unsynced_bytes(&self) -> u64 {
        self.appends.unsynced
    }

    /// Number of identities of messages that their publishers may send again.
    pub fn identities(&self) -> usize {
        self.replica.state().identities()
    }

    /// Checks the further invariants of a shard without sessions and without requests in progress.
    pub fn check_quiet(&self) {
        assert!(self.replica.is_idle(), "no batches are in progress");
        assert_eq!((self.sessions(), self.clients.len(), self.live.len()), (0, 0, 0));
        assert_eq!(self.replica.state().filters().len(), 0, "unused filters");
        assert_eq!(self.replica.state().counts().ephemeral, 0, "ephemeral sessions without a connection");
        self.appends.check_empty();
        assert_eq!(self.memory.absent.len(), 0, "messages without a session");
    }
}
