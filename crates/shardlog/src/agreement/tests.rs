//! Agreement of a shard whose only replica is this one.

use std::collections::BTreeMap;
use std::sync::Mutex;

use consensus::{Member, ReplicaId};
use storage::fault::FaultDisk;
use storage::{Commit, ForEachEvent, Options, Writer};

use super::*;

const SHARD: ShardId = ShardId(3);

/// An agreement, and the log that it writes to.
struct Lone {
    agreement: ShardAgreement,
    writer: Writer,
    events: Arc<Mutex<Vec<LogEvent>>>,
    now: u64,
}

impl Lone {
    /// Starts the agreement. The group takes at most `waiting_max` batches that are not committed.
    fn start(waiting_max: usize) -> Self {
        let events = Arc::<Mutex<Vec<LogEvent>>>::default();
        let queue = events.clone();
        let listener = Box::new(ForEachEvent(move |event| sync::lock(&queue).push(event)));
        let disk = Arc::new(FaultDisk::new(1));
        let options = Options { entropy: Some([1; 48]), ..Options::default() };
        let opened = storage::open(disk, options, listener, &mut |_| ()).expect("a log");
        let (id, member) = (ReplicaId(1), Member { node: NodeId(1) });
        let config = Config { waiting_max, ..Config::new(LogGroup(0), id, member, 1) };
        let owner = AgreementOwner {
            schedule_read: Box::new(|_, _| ()),
            report_reached: Box::new(|_, _| ()),
            transfer_permit: Arc::default(),
        };
        let started = ShardAgreement::start(Time(0), SHARD, config, opened.log, &[], [1; 16], owner);
        let (_, agreement) = started.expect("the log is empty");
        let mut lone = Self { agreement, writer: opened.writer, events, now: 0 };
        let voters = BTreeMap::from([(id, member)]);
        let target = TargetMembers {
            epoch: 1,
            founders: voters.clone(),
            voters,
            known: Default::default(),
            is_settled: true,
        };
        lone.agreement.handle(Box::new(AgreementInput::Target(target)));
        lone
    }

    /// Runs a turn of 10 ms.
    fn turns(&mut self) {
        self.now += 10;
        for event in std::mem::take(&mut *sync::lock(&self.events)) {
            self.agreement.handle(Box::new(AgreementInput::Log(event)));
        }
        self.agreement.turn(Time(self.now));
    }

    /// Writes what waits for the disk.
    fn writes(&mut self) {
        while matches!(self.writer.commit_once(), Ok(Commit::Wrote { .. })) {}
    }

    /// Performs the next step, with the disk, and returns it.
    fn next_step(&mut self) -> Step {
        for _ in 0..1_000 {
            if let Some(step) = self.agreement.poll() {
                if matches!(step, Step::Commit(_) | Step::PassOver(_)) {
                    self.agreement.done();
                }
                return step;
            }
            self.writes();
            self.turns();
        }
        panic!("no step in 10 s");
    }

    /// Performs steps up to this one, and returns the numbers of the batches that are committed before it.
    fn steps_up_to(&mut self, is_last: impl Fn(&Step) -> bool) -> Vec<u64> {
        let mut numbers = Vec::new();
        loop {
            match self.next_step() {
                step if is_last(&step) => return numbers,
                Step::Commit(CommittedBatch { number, .. }) => numbers.extend(number),
                _ => {}
            }
        }
    }
}

fn leads(step: &Step) -> bool {
    matches!(step, Step::Leads { .. })
}

/// A message whose batch never reached the group would count as held by a majority, and its publisher would be
/// acknowledged.
#[test]
fn batches_of_a_period_that_is_over_are_not_held() {
    let mut lone = Lone::start(2);
    lone.steps_up_to(leads);
    let batch = Arc::new(vec![0; UNCOMMITTED_MAX / 4]);
    (1..=3).for_each(|number| lone.agreement.propose(number, batch.clone()));
    lone.turns();
    assert_eq!(lone.agreement.held(), 2, "the group has taken two, and the only replica has them");
    // More than the uncommitted batches of one period. The next period begins, and the owner has not taken the end of
    // the first one.
    (4..=5).for_each(|number| lone.agreement.propose(number, batch.clone()));
    (0..9).for_each(|_| lone.turns());
    assert!(matches!(lone.agreement.role, Role::Leads { .. }) && lone.agreement.is_outdated());
    lone.agreement.propose(6, Arc::default());
    lone.agreement.read_barrier(1);
    assert_eq!(lone.agreement.held(), 0);
    assert!(lone.steps_up_to(|step| matches!(step, Step::Follows)).is_empty());
    assert!(lone.steps_up_to(leads).is_empty());
}
