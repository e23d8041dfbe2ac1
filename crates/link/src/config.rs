use std::time::Duration;

use crate::lane::Class;

/// Bounds of one link. Each end has its own.
#[derive(Clone, Debug)]
pub struct Config {
    /// Bytes of one lane that the peer may send before earlier ones are consumed. A frame that begins within the window
    /// may end beyond it.
    pub window: u64,
    /// Maximum bytes of each class that wait for the peer or for its acknowledgement.
    pub buffer_max: BufferMax,
    /// Maximum time after which a received frame is acknowledged. Frames of this time share an acknowledgement.
    /// [`Link::acknowledge`](crate::Link::acknowledge) ends it.
    pub acknowledge_after: Duration,
    /// Interval between pings on every channel. A channel sends none while it answers the peer's pings.
    pub heartbeat: Duration,
    /// Time without input after which a channel is dead.
    pub silence_max: Duration,
}

/// Maximum bytes that wait in a link, for each class separately. The caller drops messages that do not fit. The last
/// request may exceed the bound of its class.
#[derive(Clone, Debug)]
pub struct BufferMax {
    pub control: u64,
    pub claims: u64,
    pub agreement: u64,
    pub requests: u64,
    pub routes: u64,
    pub assured: u64,
    pub best_effort: u64,
}

impl BufferMax {
    /// Returns the bound of a class.
    pub fn of(&self, class: Class) -> u64 {
        match class {
            Class::Control => self.control,
            Class::Claims => self.claims,
            Class::Agreement => self.agreement,
            Class::Requests => self.requests,
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
                agreement: 32 * MIB,
                requests: 32 * MIB,
                routes: 16 * MIB,
                assured: 64 * MIB,
                best_effort: 16 * MIB,
            },
            acknowledge_after: Duration::from_millis(40),
            heartbeat: Duration::from_secs(1),
            silence_max: Duration::from_secs(5),
        }
    }
}
