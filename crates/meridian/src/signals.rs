//! Signals. The node handles them one by one in its main thread; the clients are interrupted by them.

use std::io;
use std::sync::atomic::{AtomicBool, Ordering};

/// A signal to a running node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Signal {
    /// SIGTERM or SIGINT.
    Stop,
    /// A stop that this process requested: [`stop_this_process`].
    OwnStop,
    /// SIGHUP.
    Reload,
}

/// Stops this process. The signal does not count as the second one of an impatient operator.
///
/// # Errors
/// Errors of the system; none is known to happen.
pub fn stop_this_process() -> io::Result<()> {
    // SAFETY: neither call has preconditions.
    match unsafe { libc::kill(libc::getpid(), libc::SIGTERM) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Returns whether this process was started to survive its terminal, as `nohup` does: SIGHUP is ignored.
pub fn outlives_terminal() -> bool {
    let mut action = std::mem::MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: the pointer is valid for the call, which fills in the struct when it succeeds, and changes nothing.
    unsafe {
        libc::sigaction(libc::SIGHUP, std::ptr::null(), action.as_mut_ptr()) == 0
            && action.assume_init().sa_sigaction == libc::SIG_IGN
    }
}

/// Signals that a node handles, blocked in every thread so that only [`Signals::wait`] receives them.
pub struct Signals(libc::sigset_t);

impl Signals {
    /// Blocks the signals. Call in the main thread before any other thread is started: threads inherit the mask.
    ///
    /// # Errors
    /// Errors of the system; none is known to happen.
    pub fn hold() -> io::Result<Self> {
        // SAFETY: `sigemptyset` initialises the set before anything reads it, the others get valid pointers to it,
        // and the previous mask is not requested.
        unsafe {
            let mut set = std::mem::MaybeUninit::<libc::sigset_t>::uninit();
            libc::sigemptyset(set.as_mut_ptr());
            let mut set = set.assume_init();
            for signal in [libc::SIGTERM, libc::SIGINT, libc::SIGHUP] {
                libc::sigaddset(&mut set, signal);
            }
            match libc::pthread_sigmask(libc::SIG_BLOCK, &set, std::ptr::null_mut()) {
                0 => Ok(Self(set)),
                error => Err(io::Error::from_raw_os_error(error)),
            }
        }
    }

    /// Waits for the next signal.
    ///
    /// # Errors
    /// Errors of the system; none is known to happen.
    pub fn wait(&self) -> io::Result<Signal> {
        let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::uninit();
        loop {
            // SAFETY: both pointers are valid for the call, and the set was made by `hold`.
            match unsafe { libc::sigwaitinfo(&self.0, info.as_mut_ptr()) } {
                libc::SIGHUP => return Ok(Signal::Reload),
                // SAFETY: the call has filled it in, and these signals come from processes only, so they have an id.
                signal if signal >= 0 && unsafe { is_own(info.assume_init_ref()) } => {
                    return Ok(Signal::OwnStop);
                }
                signal if signal >= 0 => return Ok(Signal::Stop),
                _ => match io::Error::last_os_error() {
                    error if error.kind() == io::ErrorKind::Interrupted => {}
                    error => return Err(error),
                },
            }
        }
    }

    /// Waits for the next signal, at most for `limit`.
    ///
    /// # Errors
    /// Errors of the system; none is known to happen.
    pub fn wait_for(&self, limit: std::time::Duration) -> io::Result<Option<Signal>> {
        let time = libc::timespec {
            tv_sec: limit.as_secs() as libc::time_t,
            tv_nsec: libc::c_long::from(limit.subsec_nanos()),
        };
        // SAFETY: both pointers are valid for the call, the set was made by `hold`, and no information is requested.
        match unsafe { libc::sigtimedwait(&self.0, std::ptr::null_mut(), &time) } {
            libc::SIGHUP => Ok(Some(Signal::Reload)),
            signal if signal >= 0 => Ok(Some(Signal::Stop)),
            _ => match io::Error::last_os_error() {
                error if [Some(libc::EAGAIN), Some(libc::EINTR)].contains(&error.raw_os_error()) => Ok(None),
                error => Err(error),
            },
        }
    }
}

/// Returns whether a signal was sent by [`stop_this_process`].
///
/// # Safety
/// The signal was sent by a process, or by the kernel, which has the id 0.
unsafe fn is_own(info: &libc::siginfo_t) -> bool {
    // SAFETY: the caller guarantees that there is an id; the other call has no preconditions.
    info.si_code == libc::SI_USER && unsafe { info.si_pid() == libc::getpid() }
}

static INTERRUPTED: AtomicBool = AtomicBool::new(false);

extern "C" fn note(_: libc::c_int) {
    INTERRUPTED.store(true, Ordering::Relaxed);
}

/// Makes SIGINT and SIGTERM interrupt blocking system calls from now on; [`interrupted`] reports them. A second one
/// ends the process as usual.
pub fn interrupt_on_stop() {
    for signal in [libc::SIGINT, libc::SIGTERM] {
        // SAFETY: a zeroed `sigaction` is a valid one; the handler only stores to an atomic, which is allowed in one.
        // Without SA_RESTART blocking calls return, and with SA_RESETHAND the second signal has its default effect.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = note as extern "C" fn(libc::c_int) as libc::sighandler_t;
            action.sa_flags = libc::SA_RESETHAND;
            libc::sigaction(signal, &action, std::ptr::null_mut());
        }
    }
}

pub fn interrupted() -> bool {
    INTERRUPTED.load(Ordering::Relaxed)
}
