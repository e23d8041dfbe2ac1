//! Operators that change records during faults. In the end, every accepted change is on all nodes, and no refused one
//! is on any.

use std::collections::BTreeMap;

use cluster::meta::{Answer, Command, ProposalId, RecordBatch};
use configstore::{Change, Expected, Revision, Table};

use super::step::Step;
use super::world::SimCluster;
use crate::schedule::{Event, MILLI, SECOND};

const TABLE: Table = Table::named("records");
/// Number of keys, so small that operators conflict.
const KEYS: usize = 6;

/// A proposal. The value that it writes is its number.
#[derive(Debug)]
struct RecordProposal {
    key: String,
    is_removal: bool,
    expected: Expected,
    outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Outcome {
    Unknown,
    Accepted(u64),
    Refused,
}

#[derive(Debug, Default)]
pub struct Operators {
    proposed: Vec<RecordProposal>,
    /// Number of proposals that not all cores would have understood.
    pub unread: u64,
    /// Results of all other commands.
    pub other_answers: Vec<Result<Answer, String>>,
}

/// First number of proposals that are not about records.
pub const FIRST_OTHER_PROPOSAL: u64 = 1 << 32;

impl Operators {
    /// Records the results of proposals.
    pub fn record_answers(&mut self, answers: Vec<(ProposalId, Result<Answer, String>)>) {
        for (ProposalId(number), answer) in answers {
            if number >= FIRST_OTHER_PROPOSAL {
                self.other_answers.push(answer);
                continue;
            }
            let proposed = &mut self.proposed[number as usize];
            assert_eq!(proposed.outcome, Outcome::Unknown, "proposal {number} is answered twice");
            proposed.outcome = match answer {
                Ok(Answer::Records(answer)) => {
                    let answer =
                        configstore::Answer::decode(&answer).expect("an answer of a core can be decoded");
                    answer.outcome.map_or(Outcome::Refused, |()| Outcome::Accepted(answer.revision.0))
                }
                Ok(Answer::Unread(_)) => {
                    self.unread += 1;
                    Outcome::Refused
                }
                _ => Outcome::Unknown,
            };
        }
    }
}

impl SimCluster {
    /// Lets an operator on a random node change something.
    pub(super) fn operate(&mut self) {
        if self.is_healing {
            return;
        }
        let node = self.cx.random.below(self.members.len());
        self.propose_record(node);
        self.operate_membership();
        self.move_leader_or_replicants();
        let pause = self.cx.between(20 * MILLI, SECOND);
        self.cx.after(pause, Event::SimCluster(Step::Operate));
    }

    pub(super) fn propose_record(&mut self, node: usize) {
        let number = self.operators.proposed.len() as u64;
        let member = &mut self.members[node];
        if member.stopped > self.cx.now() {
            return;
        }
        let Some(process) = member.process.as_mut() else { return };
        let random = &mut self.cx.random;
        let key = format!("k{}", random.below(KEYS));
        // Taken from the node's copy, which may be old.
        let known = member.copy.get(TABLE.name(), &key).map_or(Revision(0), |stored| stored.revision);
        let expected = match random.below(5) {
            0 => Expected::Absent,
            1 => Expected::Present,
            2 | 3 => Expected::At(known),
            _ => Expected::Anything,
        };
        let is_removal = random.percent(25);
        let change = match is_removal {
            true => Change::remove(TABLE, key.as_str()),
            false => Change::number(TABLE, key.as_str(), number),
        };
        self.operators.proposed.push(RecordProposal { key, is_removal, expected, outcome: Outcome::Unknown });
        let batch = configstore::encode_batch(u128::from(number) + 1, &[change.expecting(expected)]);
        let now = process.time(&self.cx);
        process.router.propose(now, ProposalId(number), &Command::Records(RecordBatch(batch)));
        process.wake(&mut self.cx, 10);
        self.cx.report.cluster_proposed += 1;
    }

    /// Proposes a change that has no conflict.
    #[cfg(any(test, feature = "trial"))]
    pub(super) fn propose_new_record(&mut self, node: usize) {
        let number = self.operators.proposed.len() as u64;
        let process = self.members[node].process.as_mut().expect("it runs");
        let (key, expected) = (format!("new{number}"), Expected::Absent);
        let change = Change::number(TABLE, key.as_str(), number).expecting(expected);
        let proposed = RecordProposal { key, is_removal: false, expected, outcome: Outcome::Unknown };
        self.operators.proposed.push(proposed);
        let batch = configstore::encode_batch(u128::from(number) + 1, &[change]);
        let now = process.time(&self.cx);
        process.router.propose(now, ProposalId(number), &Command::Records(RecordBatch(batch)));
        process.wake(&mut self.cx, 10);
    }

    /// Returns whether the copies of all available nodes have the latest revision of the cores.
    pub(super) fn copies_are_the_same(&self) -> bool {
        let revisions = self.members.iter().filter_map(|member| {
            let process = member.process.as_ref()?;
            process.router.meta().records_revision()
        });
        let most = revisions.max().unwrap_or(0);
        self.available_nodes().iter().all(|node| self.members[*node].copy.position().revision == most)
    }

    /// Asserts that all nodes have all accepted changes.
    pub(super) fn check_records(&mut self) {
        let available_nodes = self.available_nodes();
        let copy = &self.members[available_nodes[0]].copy;
        for node in &available_nodes {
            let member = &self.members[*node];
            let digests = (member.copy.digest(), copy.digest());
            assert_eq!(
                member.copy.position(),
                copy.position(),
                "n{node} lags behind n{}",
                available_nodes[0]
            );
            assert_eq!(digests.0, digests.1, "n{node} has other records than n{}", available_nodes[0]);
        }
        let proposed = &self.operators.proposed;
        let revision = copy.position().revision;
        let mut accepted = BTreeMap::new();
        for (number, proposed) in proposed.iter().enumerate() {
            let Outcome::Accepted(at) = proposed.outcome else { continue };
            assert!(at <= revision, "proposal {number} made revision {at}, and {revision} is the last");
            let other = accepted.insert(at, number);
            assert_eq!(other, None, "two proposals made revision {at}");
        }
        let found: BTreeMap<&str, (usize, u64)> = copy
            .table(TABLE.name())
            .map(|record| {
                let number = record.value.and_then(|value| value.parse().ok()).expect("a number");
                (record.key, (number, record.revision.0))
            })
            .collect();
        for (key, (number, at)) in &found {
            let writer = &proposed[*number];
            assert_eq!(writer.key, *key, "proposal {number} is under another key");
            let outcome = writer.outcome;
            let is_confirmed = outcome == Outcome::Unknown || outcome == Outcome::Accepted(*at);
            assert!(
                is_confirmed,
                "proposal {number} is in force since {at}, and its operator got {outcome:?}"
            );
        }
        for (at, number) in &accepted {
            let change = &proposed[*number];
            let later = |is_removal: bool| {
                proposed.iter().any(|other| {
                    let is_later = match other.outcome {
                        Outcome::Unknown => true,
                        Outcome::Accepted(revision) => revision > *at,
                        Outcome::Refused => false,
                    };
                    other.key == change.key && other.is_removal == is_removal && is_later
                })
            };
            let holds = match found.get(change.key.as_str()) {
                Some((writer, revision)) if *revision == *at => writer == number,
                Some((_, revision)) => *revision > *at,
                None => change.is_removal || later(true),
            };
            assert!(holds, "proposal {number}, accepted as revision {at}, is lost: {change:?}, {found:?}");
            // The condition was met: no other change came in between.
            if let Expected::At(Revision(known)) = change.expected {
                let between = accepted.range(known + 1..*at);
                let other = between
                    .filter(|(_, other)| proposed[**other].key == change.key)
                    .map(|(_, other)| other)
                    .next();
                assert_eq!(other, None, "proposal {number} relied on revision {known}");
            }
        }
        self.cx.report.cluster_check_accepted += accepted.len() as u64;
    }

    /// Counts the results of proposals.
    pub(super) fn count_operations(&mut self) {
        let (proposed, report) = (&self.operators.proposed, &mut self.cx.report);
        for proposed in proposed {
            match proposed.outcome {
                Outcome::Accepted(_) => report.cluster_records_accepted += 1,
                Outcome::Refused => report.cluster_records_refused += 1,
                Outcome::Unknown => report.cluster_records_unknown += 1,
            }
        }
        report.cluster_check_unsupported += self.operators.unread;
        report.cluster_check_refused +=
            proposed.iter().filter(|proposed| proposed.outcome == Outcome::Refused).count() as u64;
    }
}
