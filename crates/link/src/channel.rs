use crate::lane::Lanes;
use crate::time::Time;
use crate::wire::{Decoder, ResumePoint};

/// One connection of a link.
#[derive(Debug)]
pub struct Channel {
    pub generation: u32,
    /// Those that it carries.
    pub lanes: Lanes,
    pub decoder: Decoder,
    pub last_received: Time,
    /// When a ping becomes due.
    pub ping_at: Time,
    pub ping_due: bool,
    /// The peer wants these echoed.
    pub pong: Option<Time>,
    /// What the peer is to be told before anything else.
    pub resume_points: Option<Vec<ResumePoint>>,
    /// The peer has said where to go on: frames may leave.
    pub is_open: bool,
    /// The lane whose turn it is, among those of one class.
    pub turn: u8,
}

impl Channel {
    /// One whose first ping is due; another is at `ping_at`.
    pub fn new(
        now: Time,
        ping_at: Time,
        generation: u32,
        lanes: Lanes,
        resume_points: Vec<ResumePoint>,
    ) -> Self {
        Self {
            generation,
            lanes,
            decoder: Decoder::default(),
            last_received: now,
            ping_at,
            ping_due: true,
            pong: None,
            resume_points: Some(resume_points),
            is_open: false,
            turn: 0,
        }
    }
}
