//! Requests to the node at intervals, on a thread of its own, so that keys work while a node does not answer.

use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TrySendError, sync_channel};
use std::thread;
use std::time::Duration;

use super::snapshot::{Answers, Snapshot};
use crate::client::Client;

/// Result of a request.
#[derive(Debug)]
pub enum Update {
    Snapshot(Box<Snapshot>),
    Trouble(String),
}

/// Handle of the thread, which ends when this is dropped, or with the process.
pub struct Feed {
    update: Receiver<Update>,
    interval: SyncSender<Option<Duration>>,
}

/// Maximum number of changes of the interval that wait for the thread; more than a person types during one request.
const CHANGES_MAX: usize = 64;

impl Feed {
    /// Starts the thread, whose first request is after `interval`.
    pub fn start(client: Client, interval: Duration) -> Self {
        let (sender, update) = sync_channel(2);
        let (change, changes) = sync_channel(CHANGES_MAX);
        thread::spawn(move || run(&client, interval, &changes, &sender));
        Self { update, interval: change }
    }

    /// Sets the interval; `None` pauses until there is an interval again.
    pub fn set_interval(&self, interval: Option<Duration>) {
        match self.interval.try_send(interval) {
            Ok(()) | Err(TrySendError::Disconnected(_)) => {}
            // A key is held while the node does not answer: the interval on the screen is not yet in force.
            Err(TrySendError::Full(_)) => {}
        }
    }

    /// Returns the update since the last call. `Err` when the thread is gone, which is a defect of the program.
    pub fn take(&self) -> Result<Option<Update>, ()> {
        match self.update.try_recv() {
            Ok(update) => Ok(Some(update)),
            Err(std::sync::mpsc::TryRecvError::Empty) => Ok(None),
            Err(std::sync::mpsc::TryRecvError::Disconnected) => Err(()),
        }
    }
}

/// Time that a paused feed sleeps in one piece.
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
            // The first line has the fault; the others have advice for a command line.
            Err(failure) => {
                Update::Trouble(failure.to_string().lines().next().unwrap_or_default().to_owned())
            }
        };
        if sender.send(update).is_err() {
            return;
        }
    }
}
