//! Removal of the session of an action.

use std::io::{Read as _, Write as _};
use std::time::{Duration, Instant};

use bridge::{Client, ConnectOptions, Event, Time};
use mqtt::ReasonCode;

use crate::consumer::{brief_connect, client_id};
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
        let failed = |why: String| format!("the session {} was not removed: {why}", client_id(name));
        let brief = brief_connect(client_id(name));
        // A connection that begins a new session does not learn whether there was one.
        let look = ConnectOptions { clean_start: false, session_expiry: u32::MAX, ..brief.clone() };
        let is_present = self.connect_once(&look, began).map_err(failed)?;
        // The new session ends with its connection [MQTT-3.1.2-4].
        self.connect_once(&brief, began).map_err(failed)?;
        Ok(is_present)
    }

    /// Connects and disconnects. Returns whether the broker had a session.
    fn connect_once(&self, options: &ConnectOptions, began: Instant) -> Result<bool, String> {
        let failed = |error: std::io::Error| error.to_string();
        let now = || Time(began.elapsed().as_micros() as u64);
        let mut client = Client::new(now(), options).map_err(|reason| reason.to_string())?;
        let mut stream = self.door().open().map_err(failed)?;
        stream.set_read_timeout(Some(REMOVAL_MAX)).map_err(failed)?;
        let connect = client.unsent().bytes().to_vec();
        stream.write_all(&connect).map_err(failed)?;
        client.unsent_mut().consume(connect.len());
        let mut buffer = [0; 4096];
        loop {
            let count = stream.read(&mut buffer).map_err(failed)?;
            if count == 0 {
                return Err("the broker closed the connection".to_owned());
            }
            client.receive(now(), &buffer[..count]);
            let event = client.poll(now()).map_err(|reason| reason.to_string())?;
            if let Some((Event::Connected, _)) = event {
                break;
            }
        }
        let is_present = client.limits().is_some_and(|limits| limits.session_present);
        client.disconnect(ReasonCode::Success);
        stream.write_all(client.unsent().bytes()).map_err(failed)?;
        Ok(is_present)
    }
}

/// Time after which other nodes have stopped an action that was removed.
const OTHER_NODES: Duration = Duration::from_secs(1);
