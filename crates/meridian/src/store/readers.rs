//! Threads that read queued messages and the Raft log back from disk.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use broker::ShardId;
use consensus::{LogRead, LogReadResult};
use shardlog::{AgreementRead, LogNotifier, ReadRequest};
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
    Log(LogRead, Box<dyn FnOnce(LogReadResult) + Send>),
    Agreement(ShardId, AgreementRead, Arc<LogNotifier>),
}

impl ReadQueue {
    pub fn read_messages(&self, request: ReadRequest) {
        self.put(Read::Messages(request));
    }

    /// Queues a read of the Raft log. `callback` is called with its result on another thread.
    pub fn read_log(&self, read: LogRead, callback: impl FnOnce(LogReadResult) + Send + 'static) {
        self.put(Read::Log(read, Box::new(callback)));
    }

    /// Queues a read for the agreement of a shard, which gets the result.
    pub fn read_for_agreement(&self, shard: ShardId, read: AgreementRead, notifier: Arc<LogNotifier>) {
        self.put(Read::Agreement(shard, read, notifier));
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
            Read::Log(read, callback) => callback(read.run(log)),
            Read::Agreement(shard, read, notifier) => read.run(log, |input| notifier.tell(shard, input)),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::{Duration, Instant};

    use consensus::{Config, Group, LogGroup, Member, Outcome, ReplicaId, StorageGroups};
    use link::{NodeId, Time};
    use shardlog::EventForwarder;
    use storage::LogEvent;
    use storage::fault::FaultDisk;

    use super::*;

    /// A replica with no room for entries in memory applies what these threads have read.
    #[test]
    fn a_replica_applies_entries_that_the_threads_have_read() {
        let notifier = Arc::new(LogNotifier::default());
        let options = storage::Options { segment_bytes: 1 << 20, ..storage::Options::default() };
        let events = Box::new(EventForwarder(notifier.clone()));
        let opened = storage::open(Arc::new(FaultDisk::new(1)), options, events, &mut |_| ());
        let opened = opened.expect("a new log");
        let threads = storage::spawn(opened.writer, opened.keeper).expect("threads");
        let (readers, reads) = Readers::start(&opened.log, &notifier).expect("threads");
        let (sender, log_events) = channel();
        let sender = Mutex::new(sender);
        notifier.set_meta_listener(Box::new(move |event| drop(sync::lock(&sender).send(event))));
        let member = Member { node: NodeId(1) };
        let config = Config { entry_cache_bytes: 0, ..Config::new(LogGroup(0), ReplicaId(1), member, 1) };
        let [entries, votes] = shardlog::META;
        let state = cluster::meta::MetaState::default();
        let mut group =
            Group::start(Time(0), config, opened.log, StorageGroups { entries, votes }, &[], state)
                .expect("an empty log");
        group.initialize(BTreeMap::from([(ReplicaId(1), member)]));
        let (results, done) = channel();
        let (began, mut proposal) = (Instant::now(), None);
        let applied = loop {
            assert!(began.elapsed() < Duration::from_secs(60), "{:?}", group.status(Time(0)));
            let now = Time(began.elapsed().as_micros() as u64);
            for event in log_events.try_iter() {
                match event {
                    LogEvent::Durable(of, index) => group.durable(of, index),
                    LogEvent::Checkpointed(of, index) => group.checkpoint_durable(of, index),
                    LogEvent::PartsDurable(of, parts) => group.parts_durable(of, parts),
                    other => panic!("{other:?}"),
                }
            }
            done.try_iter().for_each(|result| group.handle_read(result));
            group.turn(now);
            while let Some(read) = group.poll_read() {
                let results = results.clone();
                reads.read_log(read, move |result| drop(results.send(result)));
            }
            if proposal.is_none() && group.status(now).role == consensus::Role::Leader {
                proposal = Some(group.propose(vec![0], Duration::from_secs(30)));
            }
            let event =
                std::iter::from_fn(|| group.poll_event()).find(|event| Some(event.request) == proposal);
            if let Some(event) = event {
                break event.outcome;
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        assert!(matches!(applied, Ok(Outcome::Applied(..))), "{applied:?}");
        assert!(group.counters().stored_reads > 0);
        threads.stop();
        readers.stop();
    }
}
