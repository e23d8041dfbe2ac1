//! Thread that carries packets between the devices of the hosts.

use crate::LabError;
use crate::network::Network;
use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Job for the network between two packets.
type Job = Box<dyn FnOnce(Duration, &mut Network) + Send>;

/// Handle of the thread. Dropping it ends the thread.
pub(crate) struct Forwarder {
    jobs: SyncSender<Job>,
    /// Socket with a byte for each job; its end ends the thread. `None` in `drop` only.
    waker: Option<UnixStream>,
    thread: Option<JoinHandle<()>>,
}

/// Maximum number of waiting jobs.
const JOBS_MAX: usize = 16;
/// Maximum number of packets of one host, or due packets, before the others have their turn.
const TURN: usize = 64;
/// Size of the packet buffer in bytes: more than the maximum of `mtu`.
const PACKET_MAX: usize = 9216;

impl Forwarder {
    /// Starts the thread.
    ///
    /// # Errors
    /// The system provides no thread or no socket.
    pub(crate) fn start(network: Network, tuns: Vec<File>) -> Result<Self, LabError> {
        let (waker, wakeups) = UnixStream::pair().map_err(LabError::system("socketpair"))?;
        wakeups.set_nonblocking(true).map_err(LabError::system("socketpair"))?;
        let (jobs, waiting) = sync_channel(JOBS_MAX);
        let forwarder_loop = ForwarderLoop { network, tuns, wakeups, waiting, clock: Instant::now() };
        let thread = std::thread::Builder::new().name("lab".into()).spawn(move || forwarder_loop.run());
        let thread = thread.map_err(LabError::system("thread"))?;
        Ok(Self { jobs, waker: Some(waker), thread: Some(thread) })
    }

    /// Runs a job on the network and waits for its result.
    pub(crate) fn ask<T: Send + 'static>(
        &self,
        work: impl FnOnce(Duration, &mut Network) -> T + Send + 'static,
    ) -> Result<T, LabError> {
        let (answer, answered) = sync_channel(1);
        let job: Job = Box::new(move |now, network| {
            // The caller waits for this, unless its thread has panicked.
            let _ = answer.send(work(now, network));
        });
        self.jobs.send(job).map_err(|_| LabError::Stopped)?;
        let mut waker = self.waker.as_ref().ok_or(LabError::Stopped)?;
        waker.write_all(&[0]).map_err(|_| LabError::Stopped)?;
        answered.recv().map_err(|_| LabError::Stopped)
    }
}

impl Drop for Forwarder {
    fn drop(&mut self) {
        self.waker = None;
        if let Some(thread) = self.thread.take() {
            // The panic was reported on standard error, and there is nothing left to undo.
            let _ = thread.join();
        }
    }
}

struct ForwarderLoop {
    network: Network,
    tuns: Vec<File>,
    wakeups: UnixStream,
    waiting: Receiver<Job>,
    clock: Instant,
}

impl ForwarderLoop {
    fn run(mut self) {
        prefer();
        let entry = |fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
        let mut polled: Vec<libc::pollfd> = self.tuns.iter().map(|tun| entry(tun.as_raw_fd())).collect();
        polled.push(entry(self.wakeups.as_raw_fd()));
        let mut buffer = vec![0; PACKET_MAX];
        loop {
            self.deliver();
            let left = self.network.next_at().map(|at| at.saturating_sub(self.clock.elapsed()));
            if wait(&mut polled, left).is_err() {
                return;
            }
            for (host, polled) in polled[..self.tuns.len()].iter().enumerate() {
                if polled.revents != 0 {
                    self.take(host, &mut buffer);
                }
            }
            if polled[self.tuns.len()].revents != 0 {
                match self.wakeups.read(&mut buffer) {
                    Ok(0) => return,
                    Ok(_) => {}
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                    Err(_) => return,
                }
                while let Ok(job) = self.waiting.try_recv() {
                    job(self.clock.elapsed(), &mut self.network);
                }
            }
        }
    }

    fn take(&mut self, host: usize, buffer: &mut [u8]) {
        for _ in 0..TURN {
            let Ok(length) = (&self.tuns[host]).read(buffer) else { return };
            self.network.enter(self.clock.elapsed(), host, &buffer[..length]);
        }
    }

    fn deliver(&mut self) {
        for _ in 0..TURN {
            let Some((host, packet)) = self.network.due(self.clock.elapsed()) else { return };
            // A device with a full queue loses packets, like any device.
            let _ = (&self.tuns[host]).write(&packet);
        }
    }
}

/// Requests real-time priority, if the system allows it: nodes that fill the processors must not delay the network
/// too.
fn prefer() {
    let parameters = libc::sched_param { sched_priority: 10 };
    // SAFETY: `parameters` is valid until the call returns. Without the right to it, the call changes nothing.
    unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, &parameters) };
}

fn wait(polled: &mut [libc::pollfd], longest: Option<Duration>) -> io::Result<()> {
    let longest = longest.map(|longest| libc::timespec {
        tv_sec: longest.as_secs() as libc::time_t,
        tv_nsec: libc::c_long::from(longest.subsec_nanos() as i32),
    });
    let pointer = longest.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
    // SAFETY: both are valid until the call returns, and the length is that of the slice.
    let result =
        unsafe { libc::ppoll(polled.as_mut_ptr(), polled.len() as libc::nfds_t, pointer, std::ptr::null()) };
    match io::Error::last_os_error() {
        error if result < 0 && error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}
