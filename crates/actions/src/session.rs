//! Removal of the session of an action.

use std::time::{Duration, Instant};

use bridges::end_session;

use crate::consumer::client_id;
use crate::engine::Engine;

/// Maximum time for the removal.
const REMOVAL_MAX: Duration = Duration::from_secs(10);

impl Engine {
    /// Ends the session of an action that was removed, with the messages that wait in it. Returns false when there is
    /// none. It blocks for some seconds at most: until the threads of the action have ended here, and other nodes know
    /// that it was removed.
    ///
    /// # Errors
    /// The session stays, and a new action with this name gets its messages.
    pub fn remove_session(&self, name: &str) -> Result<bool, String> {
        let began = Instant::now();
        while began.elapsed() < REMOVAL_MAX && (self.has_threads(name) || began.elapsed() < OTHER_NODES) {
            // tidy: allow(thread-sleep): a thread of the API that waits for this anyway.
            std::thread::sleep(Duration::from_millis(50));
        }
        let session = client_id(name);
        end_session(self.door(), &session, REMOVAL_MAX)
            .map_err(|why| format!("the session {session} was not removed: {why}"))
    }
}

/// Time after which other nodes have stopped an action that was removed.
const OTHER_NODES: Duration = Duration::from_secs(1);
