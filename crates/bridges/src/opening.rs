//! Opens a connection to the other broker on a thread of its own: a name or an address may not answer for seconds.

use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

use bridge::ConnectionId;
use mio::Waker;

/// The attempt to open a connection of one relay, with its result. There is one at a time.
pub struct Opening<T> {
    sender: SyncSender<(ConnectionId, Result<T, String>)>,
    results: Receiver<(ConnectionId, Result<T, String>)>,
    waker: Arc<Waker>,
    /// True until the result of the last attempt was taken.
    is_busy: bool,
}

impl<T: Send + 'static> Opening<T> {
    /// `waker` wakes the thread that calls [`Self::take`].
    pub fn new(waker: Arc<Waker>) -> Self {
        let (sender, results) = sync_channel(1);
        Self { sender, results, waker, is_busy: false }
    }

    /// Calls `open` on another thread.
    ///
    /// # Errors
    /// The last attempt has not ended, or the system has no more threads.
    pub fn begin(
        &mut self,
        connection: ConnectionId,
        open: impl FnOnce() -> Result<T, String> + Send + 'static,
    ) -> Result<(), String> {
        if self.is_busy {
            return Err("the last attempt has not ended: its name or address does not answer".to_owned());
        }
        let (sender, waker) = (self.sender.clone(), self.waker.clone());
        let run = move || {
            // Nobody needs it after the end of the relay. There is room, because there is one attempt at a time.
            let _ = sender.try_send((connection, open()));
            // It fails only without descriptors; the thread looks again by itself within half a second.
            let _ = waker.wake();
        };
        let started: io::Result<_> = critical::spawn("remote-open", run);
        started.map_err(|error| format!("no thread to connect: {error}"))?;
        self.is_busy = true;
        Ok(())
    }

    /// Returns the result of the attempt, when there is one.
    pub fn take(&mut self) -> Option<(ConnectionId, Result<T, String>)> {
        let result = self.results.try_recv().ok()?;
        self.is_busy = false;
        Some(result)
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use bridge::{Direction, Existing, Input, Output, Relay, Settings, Time, Topic};
    use mio::{Events, Poll, Token};
    use mqtt::QoS;

    use super::*;

    fn connection() -> ConnectionId {
        let mut settings = Settings::new("b", "h:1");
        settings.topics = vec![Topic::prefixed("#", Direction::In, QoS::AtMostOnce, "", "")];
        let mut relay = Relay::new(settings, "own", Existing::default(), 1).expect("valid settings");
        relay.handle(Time(0), Input::Start).expect("valid settings");
        loop {
            match relay.poll_output().expect("a connection is asked for") {
                Output::Open { connection, .. } => return connection,
                _ => continue,
            }
        }
    }

    #[test]
    fn an_address_that_does_not_answer_holds_up_nothing_else() {
        let mut poll = Poll::new().expect("a poll");
        let waker = Arc::new(Waker::new(poll.registry(), Token(0)).expect("a waker"));
        let mut opening = Opening::new(waker);
        let id = connection();
        let (answer, answers) = sync_channel::<()>(0);
        let slow = move || answers.recv().map(|()| 7).map_err(|error| error.to_string());
        assert_eq!(opening.begin(id, slow), Ok(()));
        assert_eq!(opening.take(), None);
        let refused = opening.begin(id, || Ok(8)).expect_err("one at a time");
        assert!(refused.starts_with("the last attempt has not ended"), "{refused}");
        answer.send(()).expect("the thread waits");
        let mut events = Events::with_capacity(4);
        let result = loop {
            poll.poll(&mut events, Some(Duration::from_secs(30))).expect("the waker");
            assert!(!events.is_empty(), "the thread wakes the other one");
            if let Some(result) = opening.take() {
                break result;
            }
        };
        assert_eq!(result, (id, Ok(7)));
        assert_eq!(opening.begin(id, || Err("no route".to_owned())), Ok(()));
        let result = loop {
            poll.poll(&mut events, Some(Duration::from_secs(30))).expect("the waker");
            if let Some(result) = opening.take() {
                break result;
            }
        };
        assert_eq!(result, (id, Err("no route".to_owned())));
    }
}
