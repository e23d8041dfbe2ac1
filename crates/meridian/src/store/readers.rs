//! Threads that read queued messages and entries of the Raft log back from disk.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use consensus::{EntryRead, EntryReadResult};
use shardlog::{LogNotifier, ReadRequest};
use storage::Log;

/// Number of threads. Reactors never wait for a disk, and a session does not wait for the reads of another.
const READERS: usize = 2;

pub struct Readers {
    reads: ReadQueue,
    threads: Vec<JoinHandle<()>>,
}

/// Queue of reads; `None` when the node stops.
#[derive(Clone)]
pub struct ReadQueue(Arc<Mutex<Option<Sender<Read>>>>);

enum Read {
    Messages(ReadRequest),
    Entries(EntryRead, Box<dyn FnOnce(EntryReadResult) + Send>),
}

impl ReadQueue {
    pub fn read_messages(&self, request: ReadRequest) {
        self.put(Read::Messages(request));
    }

    /// Queues a read of the Raft log. `callback` is called with its result on another thread.
    pub fn read_entries(&self, read: EntryRead, callback: impl FnOnce(EntryReadResult) + Send + 'static) {
        self.put(Read::Entries(read, Box::new(callback)));
    }

    fn put(&self, read: Read) {
        if let Some(reads) = &*sync::lock(&self.0) {
            // Without a reader the node is stopping.
            let _ = reads.send(read);
        }
    }
}

impl Readers {
    /// Starts the threads. Also returns their queue.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(log: &Log, notifier: &Arc<LogNotifier>) -> std::io::Result<(Self, ReadQueue)> {
        // A session with a connection has one read under way, and so have a segment, a group, and another replica.
        // tidy: allow(unbounded-channel): the number of reads is bounded
        let (reads, asked) = channel();
        let asked = Arc::new(Mutex::new(asked));
        let threads = (0..READERS).map(|number| {
            let (log, notifier, asked) = (log.clone(), notifier.clone(), asked.clone());
            critical::spawn(format!("log-reader-{number}"), move || read_all(&log, &notifier, &asked))
        });
        let threads = threads.collect::<Result<_, _>>()?;
        let reads = ReadQueue(Arc::new(Mutex::new(Some(reads))));
        Ok((Self { reads: reads.clone(), threads }, reads))
    }

    pub fn stop(self) {
        drop(sync::lock(&self.reads.0).take());
        for reader in self.threads {
            // A panic of the thread ends the process.
            let _ = reader.join();
        }
    }
}

fn read_all(log: &Log, notifier: &LogNotifier, asked: &Mutex<Receiver<Read>>) {
    loop {
        let next = sync::lock(asked).recv();
        let Ok(read) = next else { return };
        match read {
            Read::Messages(request) => request.run(log, notifier),
            Read::Entries(read, callback) => callback(read.run(log)),
        }
    }
}
