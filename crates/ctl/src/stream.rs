//! An event stream with a timeout and an interrupt: a thread reads, the command receives.

use std::io::Read;
use std::sync::mpsc::{Receiver, RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use serde_json::Value;

use crate::client::Client;
use crate::failure::Failure;
use crate::interrupt::Interrupt;
use crate::query::Query;
use crate::sse::{Item, Parser};

/// Maximum number of events that wait for a slow terminal. Beyond it the node waits, and reports the number of lost
/// events.
const WAITING_MAX: usize = 1_024;
/// Time between two checks for Ctrl-C.
const POLL_INTERVAL: Duration = Duration::from_millis(100);

/// Next item of a stream.
#[derive(Debug, PartialEq)]
pub enum Next {
    Event {
        name: String,
        data: Value,
    },
    /// No event for a moment: time to show the output.
    Quiet,
    /// The node or a person ended the stream.
    End,
}

enum StreamItem {
    Event { name: String, data: Value },
    Broken(Failure),
}

pub struct Stream {
    events: Receiver<StreamItem>,
    interrupt: Interrupt,
    ended: bool,
}

impl Stream {
    /// # Errors
    /// As [`Client::stream`].
    pub fn open(client: &Client, path: &str, query: &Query, interrupt: Interrupt) -> Result<Self, Failure> {
        let mut body = client.stream(path, query)?;
        let (to, events) = sync_channel(WAITING_MAX);
        let client = client.clone();
        // The thread ends with the stream or with the process: its read cannot be interrupted from here.
        thread::spawn(move || {
            let (mut parser, mut buffer) = (Parser::new(), vec![0; 16 << 10]);
            loop {
                let mut items = Vec::new();
                let broken = match body.read(&mut buffer) {
                    Ok(0) => return,
                    Ok(n) => parser
                        .feed(&buffer[..n], |item| items.push(item))
                        .err()
                        .map(|_| client.not_meridian("an event without end".to_owned())),
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => None,
                    Err(error) => Some(client.not_meridian(format!("the stream ended early ({error})"))),
                };
                for item in items {
                    let Item::Event { name, data } = item else { continue };
                    let read = match serde_json::from_str(&data) {
                        Ok(data) => StreamItem::Event { name, data },
                        Err(error) => {
                            StreamItem::Broken(client.not_meridian(format!("an event is not JSON ({error})")))
                        }
                    };
                    if to.send(read).is_err() {
                        return;
                    }
                }
                if let Some(failure) = broken {
                    // The receiver is gone, so nothing needs to be reported.
                    drop(to.send(StreamItem::Broken(failure)));
                    return;
                }
            }
        });
        Ok(Self { events, interrupt, ended: false })
    }

    /// Waits a moment for the next item.
    ///
    /// # Errors
    /// [`Failure::NotMeridian`] when the stream ended early or cannot be read.
    pub fn next(&mut self) -> Result<Next, Failure> {
        if self.ended || self.interrupt.raised() {
            return Ok(Next::End);
        }
        match self.events.recv_timeout(POLL_INTERVAL) {
            Ok(StreamItem::Event { name, data }) => Ok(Next::Event { name, data }),
            Ok(StreamItem::Broken(failure)) => {
                self.ended = true;
                Err(failure)
            }
            Err(RecvTimeoutError::Timeout) => Ok(Next::Quiet),
            Err(RecvTimeoutError::Disconnected) => {
                self.ended = true;
                Ok(Next::End)
            }
        }
    }
}
