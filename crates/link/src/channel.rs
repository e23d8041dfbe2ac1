use crate::lane::Lanes;
use crate::time::Time;
use crate::wire::{Decoder, Place};

/// One connection of a link.
#[derive(Debug)]
pub struct Channel {
    pub generation: u32,
    /// Those that it carries.
    pub lanes: Lanes,
    pub decoder: Decoder,
    pub heard: Time,
    /// When a ping becomes due.
    pub ping_at: Time,
    pub ping_due: bool,
    /// The peer wants these echoed.
    pub pong: Option<Time>,
    /// What the peer is to be told before anything else.
    pub places: Option<Vec<Place>>,
    /// The peer has said where to go on: frames may leave.
    pub is_open: bool,
    /// The lane whose turn it is, among those of one class.
    pub turn: u8,
}

impl Channel {
    /// One whose first ping is due; another is at `ping_at`.
    pub fn new(now: Time, ping_at: Time, generation: u32, lanes: Lanes, places: Vec<Place>) -> Self {
        Self {
            generation,
            lanes,
            decoder: Decoder::default(),
            heard: now,
            ping_at,
            ping_due: true,
            pong: None,
            places: Some(places),
            is_open: false,
            turn: 0,
        }
    }
}
