//! A replica whose owner does the jobs of its state machine, when a test says so. Its peer is the test.

use std::collections::VecDeque;

use super::*;
use crate::wire::Appended;
use crate::{Job, Status};

pub(super) struct Owner {
    pub replica: Replica,
    pub machine: Counting,
    pub effects: Vec<u64>,
    /// Jobs without an answer.
    pub jobs: VecDeque<Job>,
    /// Last entry of the jobs that were answered.
    pub applied: Option<u64>,
    /// Commands that the other replica was sent, by their indexes.
    pub replicated: BTreeMap<u64, Vec<u8>>,
    /// True if the other replica answers.
    pub is_answered: bool,
    pub writer: Writer,
    pub log: Log,
    recorder: EventRecorder,
    pub now: u64,
    calls: u32,
}

pub(super) fn config() -> Config {
    Config::new(GROUP, OWN, member(OWN), 1)
}

/// Vote of the other replica as a leader.
pub(super) fn vote_of_other(term: u64) -> Vote {
    Vote { leader_id: openraft::impls::leader_id_std::LeaderId::new(term, OTHER), committed: true }
}

impl Owner {
    pub fn on(config: Config) -> Self {
        let Lone { group, writer, recorder, log, now, calls, .. } = Lone::on(config);
        let (replica, machine) = group.into_parts();
        Self {
            replica,
            machine,
            effects: Vec::new(),
            jobs: VecDeque::new(),
            applied: None,
            replicated: BTreeMap::new(),
            is_answered: true,
            writer,
            log,
            recorder,
            now,
            calls,
        }
    }

    /// A replica that leads a group of its own, and whose jobs so far are done.
    pub fn leads_alone(config: Config) -> Self {
        let mut owner = Self::on(config);
        owner.replica.initialize(BTreeMap::from([(OWN, member(OWN))]));
        owner.works(50);
        assert_eq!(owner.status().role, Role::Leader);
        owner.takes_events();
        owner
    }

    fn takes_events(&mut self) {
        while self.replica.poll_leadership().is_some() {}
        while self.replica.poll_event().is_some() {}
    }

    /// A replica that leads a group with the other one.
    pub fn leads_another(config: Config) -> Self {
        let mut owner = Self::on(config);
        owner.replica.initialize([OWN, OTHER].map(|replica| (replica, member(replica))).into());
        for _ in 0..1_000 {
            owner.works(1);
            if owner.status().role == Role::Leader {
                owner.works(20);
                owner.takes_events();
                return owner;
            }
        }
        panic!("it does not lead: {:?}", owner.status());
    }

    pub fn status(&self) -> Status {
        self.replica.status(Time(self.now))
    }

    /// Makes so many turns, does all jobs, and writes what waits.
    pub fn works(&mut self, turns: usize) {
        for _ in 0..turns {
            self.turns(1);
            self.does_jobs();
        }
    }

    /// Makes so many turns of 10 ms, and takes the jobs.
    pub fn turns(&mut self, turns: usize) {
        for _ in 0..turns {
            while let Ok(Commit::Wrote { .. }) = self.writer.commit_once() {}
            self.now += 10_000;
            handle_events(&mut self.replica, &self.recorder);
            self.replica.turn(Time(self.now));
            run_reads(&mut self.replica, &self.log, None);
            self.jobs.extend(std::iter::from_fn(|| self.replica.poll_job()));
            if self.is_answered {
                self.answers();
            }
        }
    }

    /// Runs the jobs that were taken.
    pub fn does_jobs(&mut self) {
        for job in std::mem::take(&mut self.jobs) {
            self.does(job);
        }
    }

    pub fn does(&mut self, job: Job) {
        match &job {
            Job::Apply { last, .. } | Job::Restored { last, .. } => self.applied = Some(*last),
            Job::BeginCheckpoint { last, .. } => assert_eq!(self.applied, Some(*last)),
            _ => {}
        }
        job.run(&mut self.machine, &mut self.effects);
    }

    /// Runs turns until there is a job, and takes the first one.
    pub fn next_job(&mut self) -> Job {
        for _ in 0..200 {
            if let Some(job) = self.jobs.pop_front() {
                return job;
            }
            self.turns(1);
        }
        panic!("no job comes in 2 s");
    }

    /// Passes a message of the other replica. Returns the number of the call.
    pub fn receives(&mut self, body: Body) -> u32 {
        self.calls += 1;
        receive(&mut self.replica, self.calls, body);
        self.calls
    }

    /// The other replica grants its vote, and takes all entries.
    fn answers(&mut self) {
        for (call, body) in sent(&mut self.replica) {
            let answer = match body {
                Body::Vote { vote, .. } => Body::Voted { vote, last: None, granted: true },
                Body::Append(append) => {
                    for entry in append.entries {
                        if let Payload::Normal(command) = entry.payload {
                            self.replicated.insert(entry.log_id.index, command.0.to_vec());
                        }
                    }
                    Body::Appended(Appended::All)
                }
                _ => continue,
            };
            receive(&mut self.replica, call, answer);
        }
    }

    /// Writes a command. Returns whether it was taken.
    pub fn writes(&mut self, number: u32) -> bool {
        self.replica.write(Arc::new(number.to_le_bytes().to_vec()))
    }

    /// Numbers of the commands that the other replica was sent, in the order of their indexes.
    pub fn numbers(&self) -> Vec<u32> {
        let number = |command: &Vec<u8>| u32::from_le_bytes(command[..].try_into().expect("four bytes"));
        self.replicated.values().map(number).collect()
    }
}
