use configstore::{Copy, RecordsLimits};

use super::*;

const OURS: u128 = 7;
const CORES: [NodeId; 2] = [NodeId(1), NodeId(2)];
const NODE: NodeId = NodeId(9);

/// Returns a batch that puts a number under a key, proposed once.
fn batch(id: u64, key: u8, number: u64) -> Vec<u8> {
    let mut out = vec![1];
    out.extend(u128::from(id).to_le_bytes());
    out.push(0);
    out.extend(1_u32.to_le_bytes());
    out.extend([1, b't', 1, 0, b'a' + key % 26, 0, 1]);
    let value = number.to_string();
    out.extend((value.len() as u32).to_le_bytes());
    out.extend(value.as_bytes());
    out
}

/// Checks the bytes of version 1. They must never change.
#[test]
fn messages_keep_their_byte_format() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let number = |number: u8| format!("{number:02x}00000000000000");
    let founded = format!("{}{}", number(5), number(0));
    let ask = SyncRequest { at: Position { founded: 5, revision: 6 }, whole: 7, offset: 8 };
    assert_eq!(hex(&ask.encode()), [founded.clone(), number(6), number(7), number(8)].concat());
    assert_eq!(SyncRequest::decode(&ask.encode()), Some(ask));
    let tail = SyncAnswer::Tail { founded: 5, revision: 6, first: 7, batches: vec![b"ab", b""] };
    let golden = ["00", &founded, &number(6), &number(7), "02000000", "6162", "00000000"].concat();
    assert_eq!(hex(&tail.encode()), golden);
    let part = SyncAnswer::Part { founded: 5, revision: 6, size: 7, offset: 8, bytes: b"ab" };
    assert_eq!(hex(&part.encode()), ["01", &founded, &number(6), &number(7), &number(8), "6162"].concat());
    for answered in [tail, part] {
        let bytes = answered.encode();
        assert_eq!(SyncAnswer::decode(&bytes), Some(answered));
        for length in 0..bytes.len() {
            let _ = SyncAnswer::decode(&bytes[..length]);
        }
        for at in 0..bytes.len() {
            for value in 0..=255 {
                let mut bad = bytes.clone();
                bad[at] = value;
                let _ = SyncAnswer::decode(&bad);
                let mut record_sync = RecordSync::new(RecordSyncConfig::default());
                record_sync.set_position(Position::default());
                record_sync.ask(Time(0), &CORES);
                record_sync.answered(Time(0), CORES[0], 5, &bad);
                let records = Records::default();
                record_sync.handle_request(Time(0), NODE, &bad, (5, &records));
            }
        }
    }
}

/// Two cores with the same records, and a node that follows one of them over links that lose messages.
struct SyncTest {
    now: Time,
    records: Vec<Records>,
    cores: Vec<RecordSync>,
    node: RecordSync,
    copy: Copy,
    up: Vec<bool>,
    lost: u32,
    proposed: u64,
    random: u64,
    taken: (usize, usize),
}

impl SyncTest {
    fn new(seed: u64) -> Self {
        let limits = RecordsLimits { tail_max: 6, ..RecordsLimits::default() };
        let config = RecordSyncConfig { part_bytes: 40 };
        Self {
            now: Time(1),
            records: vec![Records::new(limits); 2],
            cores: vec![RecordSync::new(config), RecordSync::new(config)],
            node: RecordSync::new(config),
            copy: Copy::default(),
            up: vec![true; 2],
            lost: 0,
            proposed: 0,
            random: seed.wrapping_mul(2).wrapping_add(1),
            taken: (0, 0),
        }
    }

    fn below(&mut self, below: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % below
    }

    fn is_lost(&mut self) -> bool {
        let lost = u64::from(self.lost);
        self.below(100) < lost
    }

    fn proposes(&mut self, at: usize) {
        self.proposed += 1;
        let (id, key) = (self.proposed, self.below(26) as u8);
        let batch = batch(id, key, id);
        self.records[at].apply(&batch);
        self.records[1 - at].apply(&batch);
    }

    fn at_node(&mut self, core: usize, answered: Vec<Vec<u8>>) {
        for answered in answered {
            if !self.is_lost() {
                assert!(self.node.answered(self.now, CORES[core], OURS, &answered));
            }
        }
    }

    /// Lets a quarter of a second pass.
    fn passes(&mut self) {
        self.now = self.now.after(Duration::from_millis(250));
        for core in 0..2 {
            let answered = self.cores[core].push(self.now, OURS, &self.records[core]);
            self.at_node(core, answered.into_iter().map(|(_, answered)| answered).collect());
        }
        // Runs as long as any node has something to send.
        for _ in 0..20 {
            while let Some(delivery) = self.node.poll_delivery() {
                match &delivery {
                    RecordUpdate::Tail { .. } => self.taken.0 += 1,
                    RecordUpdate::Whole { .. } => self.taken.1 += 1,
                }
                assert!(self.copy.take(&delivery), "{delivery:?} is not for {:?}", self.copy.position());
                self.node.set_position(self.copy.position());
            }
            let there: Vec<NodeId> = (0..2).filter(|at| self.up[*at]).map(|at| CORES[at]).collect();
            for (to, ask) in self.node.ask(self.now, &there) {
                let core = usize::from(to == CORES[1]);
                if self.is_lost() || !self.up[core] {
                    continue;
                }
                let records = (OURS, &self.records[core]);
                let answered =
                    self.cores[core].handle_request(self.now, NODE, &ask, records).expect("a word");
                self.at_node(core, answered);
            }
        }
    }

    fn cuts(&mut self, core: usize, is_up: bool) {
        if self.up[core] == is_up {
            return;
        }
        self.up[core] = is_up;
        if !is_up {
            self.node.lost(CORES[core]);
            self.cores[core].lost(NODE);
        }
    }

    fn is_same(&self) -> bool {
        self.copy.position().revision == self.records[0].revision()
    }
}

#[test]
fn a_complete_copy_receives_changes_at_once() {
    let mut sync_test = SyncTest::new(1);
    sync_test.node.set_position(sync_test.copy.position());
    sync_test.passes();
    assert_eq!(sync_test.node.known_revision(), Some(0));
    for number in 1..=3 {
        sync_test.proposes(0);
        sync_test.passes();
        assert_eq!(
            (sync_test.copy.position(), sync_test.is_same()),
            (Position { founded: OURS, revision: number }, true)
        );
    }
    assert_eq!(sync_test.taken, (3, 0));
}

#[test]
fn a_copy_far_behind_gets_the_whole_in_parts_and_resumes() {
    let mut sync_test = SyncTest::new(1);
    sync_test.node.set_position(sync_test.copy.position());
    for _ in 0..60 {
        sync_test.proposes(1);
    }
    sync_test.passes();
    assert!(sync_test.is_same());
    assert_eq!(sync_test.taken, (0, 1));
    assert!(sync_test.records[0].whole().len() > 40 * 4 * 2, "more than one answer");
    assert_eq!(sync_test.copy.get("t", "a").is_some(), sync_test.records[0].get("t", "a").is_some());
}

#[test]
fn a_copy_of_another_cluster_or_with_uncommitted_records_is_replaced() {
    let mut sync_test = SyncTest::new(1);
    sync_test.proposes(0);
    let theirs = RecordUpdate::Whole { founded: OURS + 1, bytes: sync_test.records[0].whole().into() };
    assert!(sync_test.copy.take(&theirs));
    sync_test.node.set_position(sync_test.copy.position());
    sync_test.passes();
    assert_eq!((sync_test.copy.position().founded, sync_test.is_same()), (OURS, true));
    // The cores lost their disks, and were restored from an older backup.
    let mut ahead = sync_test.records[0].clone();
    ahead.apply(&batch(99, 3, 99));
    let batches = ahead.since(1, 1 << 20).expect("they are kept");
    assert!(sync_test.copy.take(&RecordUpdate::Tail { founded: OURS, first: 2, batches }));
    sync_test.node.set_position(sync_test.copy.position());
    sync_test.passes();
    assert_eq!(sync_test.copy.position().revision, 2, "a core may be behind for a moment");
    for _ in 0..4 * 40 {
        sync_test.passes();
    }
    assert!(sync_test.is_same(), "{:?}", sync_test.copy.position());
    assert!(sync_test.copy.get("t", "d").is_none_or(|stored| &*stored.value != "99"));
}

#[test]
fn a_core_without_a_subscription_sends_nothing() {
    let mut sync_test = SyncTest::new(1);
    sync_test.node.set_position(sync_test.copy.position());
    sync_test.passes();
    assert!(sync_test.cores[0].readers.contains_key(&NODE));
    // The first core does not answer for a while.
    sync_test.lost = 100;
    sync_test.node.set_position(sync_test.copy.position());
    sync_test.proposes(0);
    for _ in 0..12 {
        sync_test.passes();
    }
    sync_test.lost = 0;
    for _ in 0..40 {
        sync_test.passes();
    }
    assert!(sync_test.is_same());
    let askers = sync_test.cores.iter().filter(|core| core.readers.contains_key(&NODE)).count();
    assert!(askers >= 1);
    let before = sync_test.taken;
    sync_test.proposes(0);
    sync_test.passes();
    assert_eq!(sync_test.taken, (before.0 + 1, before.1), "one update");
}

/// Each end of a link notices its loss on its own.
#[test]
fn a_core_that_forgot_a_node_is_asked_again() {
    let mut sync_test = SyncTest::new(1);
    sync_test.node.set_position(sync_test.copy.position());
    sync_test.passes();
    sync_test.cores[0].lost(NODE);
    sync_test.proposes(0);
    (0..4 * 4).for_each(|_| sync_test.passes());
    assert!(!sync_test.is_same(), "no core has sent it");
    (0..4).for_each(|_| sync_test.passes());
    assert!(sync_test.is_same());
    let askers = sync_test.cores.iter().filter(|core| core.readers.contains_key(&NODE)).count();
    assert_eq!(askers, 1, "it was quiet, and continues with the same core");
}

/// Messages are lost and cores stop and start. When that ends, the copy equals the cores' records.
#[test]
fn copies_converge_despite_any_loss() {
    let mut wholes = 0;
    for seed in 0..400 {
        let mut sync_test = SyncTest::new(seed);
        sync_test.node.set_position(sync_test.copy.position());
        for _ in 0..80 {
            match sync_test.below(13) {
                0..=4 => {
                    let core = sync_test.below(2) as usize;
                    sync_test.proposes(core);
                }
                5 => sync_test.lost = sync_test.below(90) as u32,
                6 => {
                    let (core, is_up) = (sync_test.below(2) as usize, sync_test.below(2) == 0);
                    sync_test.cuts(core, is_up);
                }
                8 => {
                    // A link is lost on one end only.
                    let core = sync_test.below(2) as usize;
                    sync_test.cores[core].lost(NODE);
                }
                7 => {
                    // The process of the node, or of a core, restarts.
                    sync_test.node = RecordSync::new(RecordSyncConfig { part_bytes: 40 });
                    sync_test.node.set_position(sync_test.copy.position());
                    let core = sync_test.below(2) as usize;
                    sync_test.cores[core] = RecordSync::new(RecordSyncConfig { part_bytes: 40 });
                }
                _ => sync_test.passes(),
            }
        }
        sync_test.lost = 0;
        (0..2).for_each(|core| sync_test.cuts(core, true));
        for _ in 0..80 {
            sync_test.passes();
        }
        assert!(sync_test.is_same(), "seed {seed}: {:?}", sync_test.copy.position());
        let mut same = Copy::default();
        if sync_test.proposed > 0 {
            same.take(&RecordUpdate::Whole { founded: OURS, bytes: sync_test.records[0].whole().into() });
        }
        assert_eq!(sync_test.copy.digest(), same.digest(), "seed {seed}");
        wholes += sync_test.taken.1;
    }
    assert!(wholes > 50, "{wholes}");
}
