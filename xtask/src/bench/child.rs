//! Child processes that end with this process, however it ends.

use anyhow::{Context, Result};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn on_signal(_: i32) {
    INTERRUPTED.store(true, SeqCst);
}

/// Makes SIGINT and SIGTERM only set a flag from now on; every wait of this module ends at them.
pub fn catch_signals() {
    // SAFETY: the handler only stores to an atomic.
    unsafe {
        libc::signal(libc::SIGINT, on_signal as *const () as libc::sighandler_t);
        libc::signal(libc::SIGTERM, on_signal as *const () as libc::sighandler_t);
    }
}

pub fn interrupted() -> bool {
    INTERRUPTED.load(SeqCst)
}

/// A child that is ended when this is dropped: by SIGTERM, and by SIGKILL after 5 s.
pub struct Guarded(Child);

impl Guarded {
    pub fn spawn(command: &mut Command) -> Result<Guarded> {
        let name = command.get_program().to_string_lossy().into_owned();
        // SAFETY: `prctl` is async-signal-safe and touches no memory.
        unsafe {
            command.pre_exec(|| {
                // Ends the child also when this process is killed without a chance to clean up.
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            });
        }
        command.spawn().map(Guarded).with_context(|| format!("cannot start {name}"))
    }

    pub fn id(&self) -> u32 {
        self.0.id()
    }

    pub fn child(&mut self) -> &mut Child {
        &mut self.0
    }

    /// The exit status, or `None` while it runs.
    pub fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().ok().flatten()
    }

    /// Waits for the end; `None` when the time is over or a signal came first.
    pub fn wait(&mut self, longest: Duration) -> Option<ExitStatus> {
        until(longest, || self.ended())
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        if self.ended().is_some() {
            return;
        }
        // SAFETY: this is a child that is not yet waited for, so the id still refers to it.
        unsafe { libc::kill(self.id() as i32, libc::SIGTERM) };
        let deadline = Instant::now() + Duration::from_secs(5);
        while Instant::now() < deadline {
            if self.ended().is_some() {
                return;
            }
            pause();
        }
        // An error here cannot be handled better: the child is gone, or the kernel ends it with this process.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Calls `done` repeatedly until it has an answer, the time is over or a signal came.
pub fn until<T>(longest: Duration, mut done: impl FnMut() -> Option<T>) -> Option<T> {
    let deadline = Instant::now() + longest;
    loop {
        if let Some(answer) = done() {
            return Some(answer);
        }
        if interrupted() || Instant::now() > deadline {
            return None;
        }
        pause();
    }
}

fn pause() {
    std::thread::sleep(Duration::from_millis(20));
}
