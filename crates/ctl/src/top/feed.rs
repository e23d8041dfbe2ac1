//! Asks the node at intervals, on a thread of its own, so that a node that does not answer freezes no key.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use super::snapshot::{Answers, Snapshot};
use crate::client::Client;

/// What came of asking.
#[derive(Debug)]
pub enum Update {
    Snapshot(Box<Snapshot>),
    Trouble(String),
}

/// The thread ends when this is dropped, or with the process.
pub struct Feed {
    update: Receiver<Update>,
    interval: SyncSender<Option<Duration>>,
}

/// Changes of the interval that wait for the thread; more than a person types during one request.
const CHANGES_MAX: usize = 64;

impl Feed {
    /// Asks for the first time after `interval`.
    pub fn start(client: Client, interval: Duration) -> Self {
        let (sender, update) = sync_channel(2);
        let (change, changes) = sync_channel(CHANGES_MAX);
        thread::spawn(move || run(&client, interval, &changes, &sender));
        Self { update, interval: change }
    }

    /// `None`: do not ask until there is an interval again.
    pub fn set_interval(&self, interval: Option<Duration>) {
        match self.interval.try_send(interval) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            // Somebody leans on a key while the node does not answer: the interval on the screen is then a wish.
            Err(TrySendError::Full(_)) => {}
        }
    }

    /// What came since the last time. `Err` when the thread is gone, which is a mistake of ours.
    pub fn take(&self) -> Result<Option<Update>, ()> {
        match self.update.try_recv() {
            Ok(update) => Ok(Some(update)),
            Err(std::sync::mpsc::TryRecvError::Empty) => Ok(None),
            Err(std::sync::mpsc::TryRecvError::Disconnected) => Err(()),
        }
    }
}

/// How long a paused feed sleeps at a time.
const PAUSE: Duration = Duration::from_secs(3_600);

fn run(
    client: &Client,
    interval: Duration,
    changes: &Receiver<Option<Duration>>,
    sender: &SyncSender<Update>,
) {
    let mut interval = Some(interval);
    loop {
        match changes.recv_timeout(interval.unwrap_or(PAUSE)) {
            Ok(change) => {
                interval = change;
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => return,
            Err(RecvTimeoutError::Timeout) if interval.is_none() => continue,
            Err(RecvTimeoutError::Timeout) => {}
        }
        let update = match Answers::ask(client) {
            Ok(answers) => Update::Snapshot(Box::new(Snapshot::read(&answers))),
            // The first line says what is wrong, the others what to do at a command line.
            Err(failure) => {
                Update::Trouble(failure.to_string().lines().next().unwrap_or_default().to_owned())
            }
        };
        if sender.send(update).is_err() {
            return;
        }
    }
}
