use registry::{Copy, RecordsLimits};

use super::*;

const OURS: u128 = 7;
const CORES: [NodeId; 2] = [NodeId(1), NodeId(2)];
const NODE: NodeId = NodeId(9);

/// One that puts a number under a key, proposed once.
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

/// The bytes of version 1, for ever.
#[test]
fn words_have_these_bytes() {
    let hex = |bytes: &[u8]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let number = |number: u8| format!("{number:02x}00000000000000");
    let founded = format!("{}{}", number(5), number(0));
    let ask = Ask { at: Position { founded: 5, revision: 6 }, whole: 7, offset: 8 };
    assert_eq!(hex(&ask.encode()), [founded.clone(), number(6), number(7), number(8)].concat());
    assert_eq!(Ask::decode(&ask.encode()), Some(ask));
    let tail = Told::Tail { founded: 5, revision: 6, first: 7, batches: vec![b"ab", b""] };
    let golden = ["00", &founded, &number(6), &number(7), "02000000", "6162", "00000000"].concat();
    assert_eq!(hex(&tail.encode()), golden);
    let part = Told::Part { founded: 5, revision: 6, size: 7, offset: 8, bytes: b"ab" };
    assert_eq!(hex(&part.encode()), ["01", &founded, &number(6), &number(7), &number(8), "6162"].concat());
    for told in [tail, part] {
        let bytes = told.encode();
        assert_eq!(Told::decode(&bytes), Some(told));
        for length in 0..bytes.len() {
            let _ = Told::decode(&bytes[..length]);
        }
        for at in 0..bytes.len() {
            for value in 0..=255 {
                let mut bad = bytes.clone();
                bad[at] = value;
                let _ = Told::decode(&bad);
                let mut courier = Courier::new(CourierConfig::default());
                courier.copied(Position::default());
                courier.ask(Time(0), &CORES);
                courier.told(Time(0), CORES[0], 5, &bad);
                let records = Records::default();
                courier.asked(Time(0), NODE, &bad, (5, &records));
            }
        }
    }
}

/// Two cores with the same records, and a node that follows one of them over links that lose words.
struct World {
    now: Time,
    records: Vec<Records>,
    cores: Vec<Courier>,
    node: Courier,
    copy: Copy,
    up: Vec<bool>,
    lost: u32,
    proposed: u64,
    random: u64,
    taken: (usize, usize),
}

impl World {
    fn new(seed: u64) -> Self {
        let limits = RecordsLimits { tail_max: 6, ..RecordsLimits::default() };
        let config = CourierConfig { part_bytes: 40 };
        Self {
            now: Time(1),
            records: vec![Records::new(limits); 2],
            cores: vec![Courier::new(config), Courier::new(config)],
            node: Courier::new(config),
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

    fn at_node(&mut self, core: usize, told: Vec<Vec<u8>>) {
        for told in told {
            if !self.is_lost() {
                assert!(self.node.told(self.now, CORES[core], OURS, &told));
            }
        }
    }

    /// A quarter of a second passes.
    fn passes(&mut self) {
        self.now = self.now.after(Duration::from_millis(250));
        for core in 0..2 {
            let told = self.cores[core].push(self.now, OURS, &self.records[core]);
            self.at_node(core, told.into_iter().map(|(_, told)| told).collect());
        }
        // As long as anybody has something to say.
        for _ in 0..20 {
            while let Some(delivery) = self.node.poll_delivery() {
                match &delivery {
                    Delivery::Tail { .. } => self.taken.0 += 1,
                    Delivery::Whole { .. } => self.taken.1 += 1,
                }
                assert!(self.copy.take(&delivery), "{delivery:?} is not for {:?}", self.copy.position());
                self.node.copied(self.copy.position());
            }
            let there: Vec<NodeId> = (0..2).filter(|at| self.up[*at]).map(|at| CORES[at]).collect();
            for (to, ask) in self.node.ask(self.now, &there) {
                let core = usize::from(to == CORES[1]);
                if self.is_lost() || !self.up[core] {
                    continue;
                }
                let records = (OURS, &self.records[core]);
                let told = self.cores[core].asked(self.now, NODE, &ask, records).expect("a word");
                self.at_node(core, told);
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
fn a_node_is_told_at_once_of_what_comes_after_it_has_everything() {
    let mut world = World::new(1);
    world.node.copied(world.copy.position());
    world.passes();
    assert_eq!(world.node.heard(), Some(0));
    for number in 1..=3 {
        world.proposes(0);
        world.passes();
        assert_eq!(
            (world.copy.position(), world.is_same()),
            (Position { founded: OURS, revision: number }, true)
        );
    }
    assert_eq!(world.taken, (3, 0));
}

#[test]
fn who_was_away_for_long_gets_the_whole_in_parts_and_goes_on_where_it_stopped() {
    let mut world = World::new(1);
    world.node.copied(world.copy.position());
    for _ in 0..60 {
        world.proposes(1);
    }
    world.passes();
    assert!(world.is_same());
    assert_eq!(world.taken, (0, 1));
    assert!(world.records[0].whole().len() > 40 * 4 * 2, "more than one answer");
    assert_eq!(world.copy.get("t", "a").is_some(), world.records[0].get("t", "a").is_some());
}

#[test]
fn a_copy_of_another_cluster_or_of_what_was_never_agreed_is_made_anew() {
    let mut world = World::new(1);
    world.proposes(0);
    let theirs = Delivery::Whole { founded: OURS + 1, bytes: world.records[0].whole().into() };
    assert!(world.copy.take(&theirs));
    world.node.copied(world.copy.position());
    world.passes();
    assert_eq!((world.copy.position().founded, world.is_same()), (OURS, true));
    // The cores lost their disks, and were restored from before.
    let mut ahead = world.records[0].clone();
    ahead.apply(&batch(99, 3, 99));
    let batches = ahead.since(1, 1 << 20).expect("they are kept");
    assert!(world.copy.take(&Delivery::Tail { founded: OURS, first: 2, batches }));
    world.node.copied(world.copy.position());
    world.passes();
    assert_eq!(world.copy.position().revision, 2, "a core may be behind for a moment");
    for _ in 0..4 * 40 {
        world.passes();
    }
    assert!(world.is_same(), "{:?}", world.copy.position());
    assert!(world.copy.get("t", "d").is_none_or(|stored| &*stored.value != "99"));
}

#[test]
fn whoever_is_asked_no_more_says_no_more() {
    let mut world = World::new(1);
    world.node.copied(world.copy.position());
    world.passes();
    assert!(world.cores[0].readers.contains_key(&NODE));
    // The first core does not answer for a while.
    world.lost = 100;
    world.node.copied(world.copy.position());
    world.proposes(0);
    for _ in 0..12 {
        world.passes();
    }
    world.lost = 0;
    for _ in 0..40 {
        world.passes();
    }
    assert!(world.is_same());
    let asked = world.cores.iter().filter(|core| core.readers.contains_key(&NODE)).count();
    assert!(asked >= 1);
    let before = world.taken;
    world.proposes(0);
    world.passes();
    assert_eq!(world.taken, (before.0 + 1, before.1), "told once");
}

/// Links are found to be lost by each end for itself.
#[test]
fn a_core_that_has_forgotten_a_node_which_noticed_nothing_is_asked_again() {
    let mut world = World::new(1);
    world.node.copied(world.copy.position());
    world.passes();
    world.cores[0].lost(NODE);
    world.proposes(0);
    (0..4 * 4).for_each(|_| world.passes());
    assert!(!world.is_same(), "nobody has told it");
    (0..4).for_each(|_| world.passes());
    assert!(world.is_same());
    let asked = world.cores.iter().filter(|core| core.readers.contains_key(&NODE)).count();
    assert_eq!(asked, 1, "it was quiet, and goes on with the same core");
}

/// Whatever is lost, and whichever core goes and comes back: when that ends, the copy is what the cores have.
#[test]
fn copies_become_the_same_through_any_loss() {
    let mut wholes = 0;
    for seed in 0..400 {
        let mut world = World::new(seed);
        world.node.copied(world.copy.position());
        for _ in 0..80 {
            match world.below(13) {
                0..=4 => {
                    let core = world.below(2) as usize;
                    world.proposes(core);
                }
                5 => world.lost = world.below(90) as u32,
                6 => {
                    let (core, is_up) = (world.below(2) as usize, world.below(2) == 0);
                    world.cuts(core, is_up);
                }
                8 => {
                    // A link that was lost on one end only.
                    let core = world.below(2) as usize;
                    world.cores[core].lost(NODE);
                }
                7 => {
                    // The node's process, and a core's.
                    world.node = Courier::new(CourierConfig { part_bytes: 40 });
                    world.node.copied(world.copy.position());
                    let core = world.below(2) as usize;
                    world.cores[core] = Courier::new(CourierConfig { part_bytes: 40 });
                }
                _ => world.passes(),
            }
        }
        world.lost = 0;
        (0..2).for_each(|core| world.cuts(core, true));
        for _ in 0..80 {
            world.passes();
        }
        assert!(world.is_same(), "seed {seed}: {:?}", world.copy.position());
        let mut same = Copy::default();
        if world.proposed > 0 {
            same.take(&Delivery::Whole { founded: OURS, bytes: world.records[0].whole().into() });
        }
        assert_eq!(world.copy.digest(), same.digest(), "seed {seed}");
        wholes += world.taken.1;
    }
    assert!(wholes > 50, "{wholes}");
}
