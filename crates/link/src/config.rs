use std::time::Duration;

use crate::lane::Class;

/// Bounds of one link. Both ends have their own.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes of one lane that the peer may send before earlier ones are consumed; a frame that begins within them may end beyond.
    pub window: u64,
    /// Bytes of a class that wait for the peer or for its acknowledgement.
    pub buffer_max: BufferMax,
    /// A ping leaves so often on every channel, unless the peer's do: then it is their answers.
    pub heartbeat: Duration,
    /// A channel on which nothing came for so long is dead.
    pub silence_max: Duration,
}

/// Bytes that may wait in a link, for each class by itself: messages that find no place are for the caller to drop.
#[derive(Clone, Debug)]
pub struct BufferMax {
    pub control: u64,
    pub claims: u64,
    pub routes: u64,
    pub assured: u64,
    pub best_effort: u64,
}

impl BufferMax {
    /// That of a class.
    pub fn of(&self, class: Class) -> u64 {
        match class {
            Class::Control => self.control,
            Class::Claims => self.claims,
            Class::Routes => self.routes,
            Class::Assured => self.assured,
            Class::BestEffort => self.best_effort,
        }
    }
}

impl Default for Config {
    fn default() -> Self {
        const MIB: u64 = 1 << 20;
        Self {
            window: 4 * MIB,
            buffer_max: BufferMax {
                control: 16 * MIB,
                claims: 16 * MIB,
                routes: 16 * MIB,
                assured: 64 * MIB,
                best_effort: 16 * MIB,
            },
            heartbeat: Duration::from_secs(1),
            silence_max: Duration::from_secs(5),
        }
    }
}
