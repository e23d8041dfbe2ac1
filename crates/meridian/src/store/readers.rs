//! Threads that read queued messages back from disk.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use shardlog::{LogNotifier, ReadRequest};
use storage::Log;

/// Number of threads. Reactors never wait for a disk, and a session does not wait for the reads of another.
const READERS: usize = 2;

pub struct Readers {
    /// Queue of reads; `None` when the node stops.
    reads: Arc<Mutex<Option<Sender<ReadRequest>>>>,
    threads: Vec<JoinHandle<()>>,
}

impl Readers {
    /// Starts the threads. Also returns the function that queues a read.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn start(
        log: &Log,
        notifier: &Arc<LogNotifier>,
    ) -> std::io::Result<(Self, impl Fn(ReadRequest) + use<>)> {
        // A session with a connection has one read under way, and so have a segment and a group.
        // tidy: allow(unbounded-channel): the number of reads is bounded
        let (reads, asked) = channel();
        let asked = Arc::new(Mutex::new(asked));
        let threads = (0..READERS).map(|number| {
            let (log, notifier, asked) = (log.clone(), notifier.clone(), asked.clone());
            critical::spawn(format!("log-reader-{number}"), move || read_all(&log, &notifier, &asked))
        });
        let threads = threads.collect::<Result<_, _>>()?;
        let reads = Arc::new(Mutex::new(Some(reads)));
        let ask = reads.clone();
        let read_by = move |reading| {
            if let Some(reads) = &*sync::lock(&ask) {
                // Without a reader the node is stopping.
                let _ = reads.send(reading);
            }
        };
        Ok((Self { reads, threads }, read_by))
    }

    pub fn stop(self) {
        drop(sync::lock(&self.reads).take());
        for reader in self.threads {
            // A panic of the thread ends the process.
            let _ = reader.join();
        }
    }
}

fn read_all(log: &Log, notifier: &LogNotifier, asked: &Mutex<Receiver<ReadRequest>>) {
    loop {
        let next = sync::lock(asked).recv();
        let Ok(reading) = next else { return };
        reading.run(log, notifier);
    }
}
