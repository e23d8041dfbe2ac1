//! Counters and times that workers publish and the main thread reads during a run.

use crate::pulse::Pulse;
use serde::{Deserialize, Serialize};
use std::sync::Mutex;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicU8, AtomicU64};

/// Phase of a run; only the main thread changes it.
#[derive(Clone, Copy, Debug, PartialEq, PartialOrd)]
pub enum Phase {
    Connect,
    /// Publishers send.
    Run,
    /// Publishers have stopped; what is on its way still arrives.
    Stop,
    End,
}

macro_rules! counters {
    ($($f:ident),* $(,)?) => {
        #[derive(Default, Clone, Debug, PartialEq, Serialize, Deserialize)]
        pub struct Counts { $(pub $f: u64,)* }
        #[derive(Default)]
        #[repr(align(128))]
        pub struct AtomicCounts { $(pub $f: AtomicU64,)* }
        impl AtomicCounts {
            pub fn store(&self, c: &Counts) { $(self.$f.store(c.$f, Relaxed);)* }
            pub fn load(&self) -> Counts { Counts { $($f: self.$f.load(Relaxed),)* } }
        }
        impl Counts {
            pub fn add(&mut self, o: &Counts) { $(self.$f = self.$f.wrapping_add(o.$f);)* }
        }
    };
}

counters!(
    started,
    connacked,
    ready_subs,
    ready_pubs,
    up,
    failed,
    attempts_failed,
    disconnects,
    reconnects,
    sessions_lost_pub,
    sessions_lost_sub,
    sessions_resumed,
    sent,
    expected,
    acked,
    rejected,
    recv,
    uniq,
    dup,
    late,
    recv_bytes,
    foreign,
    unexpected,
    corrupt,
    tx_bytes,
    rx_bytes,
    unacked,
    backlog,
    bad_acks,
    acks_out_of_order,
    resent,
    pubrel_resent,
    q2_suppressed,
    dup_flag,
    retain_flag,
    pubrel_unknown,
    recv_max_exceeded,
    qos_downgraded,
    qos_wrong,
    no_subscribers,
    pings,
    blocked_writes,
    writes,
    reads,
    gone,
    left,
    done_pubs,
    gaps,
    not_increasing,
    untracked,
    no_header
);

/// First and last times; kept per worker and merged with min/max.
pub struct Times {
    pub first_connect: AtomicU64,
    pub last_connack: AtomicU64,
    pub last_ready: AtomicU64,
    pub first_send: AtomicU64,
    pub last_send: AtomicU64,
    pub last_ack: AtomicU64,
    pub last_recv: AtomicU64,
}

pub struct Shared {
    phase: AtomicU8,
    pub t0: AtomicU64,
    pub w0: AtomicU64,
    pub w1: AtomicU64,
    pub counts: Vec<AtomicCounts>,
    pub times: Times,
    /// Request number for pulses: the main thread increments it, and each worker then stores its pulse.
    pub beat: AtomicU64,
    pub pulses: Vec<Mutex<Pulse>>,
}

impl Shared {
    pub fn new(threads: usize) -> Shared {
        Shared {
            phase: AtomicU8::new(Phase::Connect as u8),
            t0: AtomicU64::new(0),
            w0: AtomicU64::new(u64::MAX),
            w1: AtomicU64::new(u64::MAX),
            counts: (0..threads).map(|_| Default::default()).collect(),
            times: Times {
                first_connect: AtomicU64::new(u64::MAX),
                last_connack: AtomicU64::new(0),
                last_ready: AtomicU64::new(0),
                first_send: AtomicU64::new(u64::MAX),
                last_send: AtomicU64::new(0),
                last_ack: AtomicU64::new(0),
                last_recv: AtomicU64::new(0),
            },
            beat: AtomicU64::new(0),
            pulses: (0..threads).map(|_| Default::default()).collect(),
        }
    }
    pub fn phase(&self) -> Phase {
        match self.phase.load(Acquire) {
            0 => Phase::Connect,
            1 => Phase::Run,
            2 => Phase::Stop,
            _ => Phase::End,
        }
    }
    pub fn set_phase(&self, phase: Phase) {
        self.phase.store(phase as u8, Release);
    }
    pub fn sum(&self) -> Counts {
        let mut c = Counts::default();
        for x in &self.counts {
            c.add(&x.load());
        }
        c
    }
}
