//! Plan of a seed: the node, its clients, and the times of all faults.

use std::sync::Arc;
use std::time::Duration;

use broker::settings::{QueueFull, Settings, SharedStrategy};

use crate::node::Setup;
use crate::schedule::{MILLI, Micros, SECOND};
use random::Random;

/// A fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Cuts the power.
    Cut,
    /// Cuts the power in the disk operation of this number from now on.
    CutInOperation(u64),
    /// Kills the process (`kill -9`).
    Kill,
    /// Stops the node in order.
    Stop,
    /// Limits the free space of the disk to `room` bytes, for a time.
    Full { room: u64, time: Micros },
    /// Lets one write find no room.
    WriteFull(u64),
    /// Fails a sync. The node is restarted later.
    SyncFails { after: u64, restart: Micros },
    /// Sets the wall clock.
    ClockJump,
    /// Stops the process for a time, like SIGSTOP.
    PauseProcess { time: Micros },
    /// Denies all clients the right to publish their Wills.
    DenyWills,
    /// Makes a client unreachable for a time.
    Partition { client: usize, time: Micros },
    /// Loses a client's connection.
    LoseConnection { client: usize },
}

pub struct Plan {
    pub setup: Setup,
    /// Number of clients that keep to the protocol, and of hostile ones.
    pub clients: usize,
    pub hostile: usize,
    /// Time of the last fault.
    pub length: Micros,
    pub faults: Vec<(Micros, Fault)>,
    /// True if queues are small.
    pub tight: bool,
}

impl Plan {
    pub fn of(seed: u64, random: &mut Random) -> Self {
        let tight = seed % 8 == 7;
        let mut settings = Settings::default();
        settings.sys.interval = Duration::ZERO;
        settings.session.expiry_max = Duration::from_secs(u64::from(crate::client::LONG));
        settings.shared.strategy = *random.pick(&SharedStrategy::ALL);
        settings.queue.messages_max = if tight { 3 } else { 1_000_000 };
        if seed % 16 == 15 {
            // No client is disconnected for a full queue.
            settings.queue.full_wait = Duration::from_secs(100_000);
            settings.queue.full_wait_total = settings.queue.full_wait;
        }
        settings.queue.full = if random.percent(50) { QueueFull::DropOldest } else { QueueFull::DropNewest };
        if random.percent(30) {
            settings.mqtt.inflight_max = 2 + random.below(6) as u16;
        }
        let mut entropy = [0; 48];
        entropy.iter_mut().for_each(|byte| *byte = random.draw() as u8);
        let mut setup = Setup {
            urgent: &[],
            settings,
            rules: Arc::default(),
            workers: 1 + random.below(4) as u16,
            segment_bytes: *random.pick(&[8 << 10, 16 << 10, 64 << 10, 256 << 10]),
            commit_bytes_max: *random.pick(&[2_000, 30_000, 8 << 20]),
            low_bytes_per_commit: *random.pick(&[500, 8_000, 1 << 20]),
            entropy,
            sync_max: *random.pick(&[300, 5 * MILLI, 30 * MILLI]),
            keeps_ahead: seed % 3 != 1,
            replica: None,
            #[cfg(feature = "trial")]
            mutation: None,
        };
        let clients = 5 + random.below(6);
        let hostile = random.below(2);
        let length = (20 + random.below(40) as u64) * SECOND;
        let count = 3 + random.below(9);
        let mut faults: Vec<_> =
            (0..count).map(|_| (random.draw() % length, Fault::any(random, clients))).collect();
        if seed % 16 == 7 {
            // The counter of dropped messages ends with the process.
            faults.retain(|(_, fault)| !fault.is_deadly());
        }
        if seed % 2 == 1 && !tight {
            // A connection often ends before the retained messages of a subscription have arrived.
            setup.settings.retained.scanned_per_second = SLOW_LOOKS;
        }
        if seed % 4 == 2 {
            // Longer than 1.5 times the Keep Alive.
            let time = (8 + random.below(8) as u64) * SECOND;
            faults.push((random.draw() % length, Fault::PauseProcess { time }));
        }
        if seed % 4 == 1 {
            faults.push((random.draw() % length, Fault::DenyWills));
        }
        faults.sort_by_key(|(at, _)| *at);
        Self { setup, clients, hostile, length, faults, tight }
    }
}

/// Retained messages that a slow node scans per second.
const SLOW_LOOKS: u32 = 20;

impl Plan {
    /// Returns whether retained messages arrive so slowly that connections often end before that.
    pub fn is_slow_with_retained(&self) -> bool {
        self.setup.settings.retained.scanned_per_second == SLOW_LOOKS
    }
}

impl Fault {
    /// Returns whether the fault ends the node's process.
    fn is_deadly(self) -> bool {
        !matches!(
            self,
            Self::Full { .. }
                | Self::WriteFull(_)
                | Self::ClockJump
                | Self::Partition { .. }
                | Self::LoseConnection { .. }
                | Self::PauseProcess { .. }
                | Self::DenyWills
        )
    }

    fn any(random: &mut Random, clients: usize) -> Self {
        let operations = 1 + random.draw() % 40;
        match random.below(100) {
            0..=11 => Self::Cut,
            12..=29 => Self::CutInOperation(operations),
            30..=41 => Self::Kill,
            42..=47 => Self::Stop,
            48..=57 => {
                let (room, time) = (random.draw() % 100_000, SECOND / 2 + random.draw() % (8 * SECOND));
                Self::Full { room, time }
            }
            58..=60 => Self::WriteFull(operations),
            61..=67 => Self::SyncFails { after: operations, restart: SECOND + random.draw() % (4 * SECOND) },
            68..=75 => Self::ClockJump,
            76..=84 => Self::Partition {
                client: random.below(clients),
                time: SECOND / 10 + random.draw() % (8 * SECOND),
            },
            _ => Self::LoseConnection { client: random.below(clients) },
        }
    }
}
