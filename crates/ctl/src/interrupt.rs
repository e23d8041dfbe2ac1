//! Ctrl-C and SIGTERM for commands that run until then. The signals only set a flag: the command ends by itself, after
//! it has restored what it changed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Flag that reports a request to end this process.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// Sets the flag on SIGINT, SIGTERM and SIGHUP from now on; the second signal ends the process as usual.
    pub fn watch() -> Self {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // The order matters: the first signal finds the flag unset, and sets it afterwards. Registration fails for
            // signals that cannot be caught, and these three can.
            drop(flag::register_conditional_default(signal, interrupt.0.clone()));
            drop(flag::register(signal, interrupt.0.clone()));
        }
        interrupt
    }

    pub fn raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
