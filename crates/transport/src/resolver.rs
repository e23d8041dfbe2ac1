//! Resolution of host names on separate threads, because the system's resolver blocks.

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, mpsc};

use crate::config::TransportConfig;
use crate::mailbox::{MailboxItem, Sender};

/// Connections that wait for names. Each name has at most one query in progress.
pub struct Resolver {
    questions: mpsc::SyncSender<Box<str>>,
    waiting: BTreeMap<Box<str>, Vec<u64>>,
}

/// Maximum names that wait for a thread. A mesh asks again for names that do not fit.
const QUESTIONS_MAX: usize = 1024;
/// Number of threads. A name whose servers do not answer occupies one for half a minute; other names do not wait for
/// it.
const THREADS: usize = 4;

impl Resolver {
    /// Starts the threads.
    ///
    /// # Errors
    /// A thread could not be started.
    pub fn start<L: Send + 'static>(config: &TransportConfig, answers: Sender<L>) -> io::Result<Self> {
        let (thread, resolve) = (&config.thread, config.resolve);
        let (questions, asked) = mpsc::sync_channel::<Box<str>>(QUESTIONS_MAX);
        let asked = Arc::new(Mutex::new(asked));
        for _ in 0..THREADS {
            let (asked, answers) = (asked.clone(), answers.clone());
            critical::spawn(format!("{thread}-names"), move || {
                loop {
                    let next = sync::lock(&asked).recv();
                    let Ok(address) = next else { return };
                    let found = resolve(&address);
                    if answers.post(MailboxItem::Resolved { address, found }).is_err() {
                        return;
                    }
                }
            })?;
        }
        Ok(Self { questions, waiting: BTreeMap::new() })
    }

    /// Returns the address if it needs no query. Otherwise returns `None`, and the answer arrives in the mailbox.
    pub fn ask(&mut self, connection: u64, address: &str) -> Option<SocketAddr> {
        if let Ok(address) = address.parse() {
            return Some(address);
        }
        if let Some(waiting) = self.waiting.get_mut(address) {
            waiting.push(connection);
        } else if self.questions.try_send(address.into()).is_ok() {
            self.waiting.insert(address.into(), vec![connection]);
        }
        None
    }

    /// Takes the connections that have asked for an address.
    pub fn answered(&mut self, address: &str) -> Vec<u64> {
        self.waiting.remove(address).unwrap_or_default()
    }

    /// Drops a connection's request. The query itself continues.
    pub fn forget(&mut self, connection: u64) {
        self.waiting.values_mut().for_each(|waiting| waiting.retain(|it| *it != connection));
    }
}
