use crate::lane::Lanes;
use crate::time::Time;
use crate::wire::{Decoder, ResumePoint};

/// One transport connection of a link.
#[derive(Debug)]
pub struct Channel {
    pub generation: u32,
    /// Lanes that the channel carries.
    pub lanes: Lanes,
    pub decoder: Decoder,
    pub last_received: Time,
    /// Time at which a ping becomes due.
    pub ping_at: Time,
    pub ping_due: bool,
    /// Time in the peer's last ping, to be echoed.
    pub pong: Option<Time>,
    /// Resume points that the peer must receive before anything else.
    pub resume_points: Option<Vec<ResumePoint>>,
    /// True once the peer has sent its resume points: frames may leave.
    pub is_open: bool,
    /// Lane that writes next among the lanes of one class.
    pub turn: u8,
}

impl Channel {
    /// Creates a channel. Its first ping is due at once, each later one at `ping_at`.
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
