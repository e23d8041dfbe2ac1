//! Ctrl-C and SIGTERM for commands that run until then. They only raise a flag: the command ends by itself, with what it
//! has to put back put back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::flag;

/// Says whether somebody wants this process to end.
#[derive(Clone, Debug, Default)]
pub struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// From now on SIGINT, SIGTERM and SIGHUP raise the flag; the second one ends the process as usual.
    pub fn watch() -> Self {
        let interrupt = Self::default();
        for signal in [SIGINT, SIGTERM, SIGHUP] {
            // The order matters: the first signal finds the flag down, and raises it after.
            // Registering fails for signals that cannot be caught, and these three can.
            drop(flag::register_conditional_default(signal, interrupt.0.clone()));
            drop(flag::register(signal, interrupt.0.clone()));
        }
        interrupt
    }

    pub fn raised(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}
