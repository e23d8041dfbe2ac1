//! Notifications to the service manager, as `sd_notify` of systemd defines them for units with `Type=notify`. Each one
//! is a datagram to the socket that the environment names. A failure is logged and has no other effect.

use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::sync::mpsc::{self, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use std::{ffi::OsStr, io};

/// Variable with the path of the socket, or with `@` and the name of an abstract one. Without it nothing is sent.
pub const VARIABLE: &str = "NOTIFY_SOCKET";

/// Time between two requests for more time while the node starts or leaves, and the time that each one requests.
const EXTEND_INTERVAL: Duration = Duration::from_secs(20);
const EXTENSION: Duration = Duration::from_secs(90);
/// Time after which the node counts as started although its cluster does not let it serve clients. The other cores may
/// be started only after this one.
const CLUSTER_WAIT_MAX: Duration = Duration::from_secs(20);
/// Time for what a stop does after its own time limits, such as closing the store.
const STOP_MARGIN: Duration = Duration::from_secs(60);
/// Maximum time for the service manager to make room in the queue of its socket.
const SEND_MAX: Duration = Duration::from_secs(2);

const SERVES: &str = "serves clients";
const WAITS: &str = "waits for its cluster, and refuses clients until then: see /health/ready";

/// The service manager that started this process.
pub struct ServiceManager {
    socket: Option<(UnixDatagram, SocketAddr)>,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    /// State of the running node, for operators.
    condition: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Starting,
    Ready,
    Reloading,
    Stopping,
}

/// Requests more time from the service manager until it is dropped.
pub struct Extension {
    _ends: Option<SyncSender<()>>,
}

impl ServiceManager {
    /// Returns the service manager that the environment names, or one that gets nothing.
    pub fn from_environment() -> Arc<Self> {
        let name = std::env::var_os(VARIABLE);
        let socket = name.and_then(|name| match open(&name) {
            Ok(socket) => Some(socket),
            Err(error) => {
                tracing::warn!(address = ?name, %error, "service manager not notified: {VARIABLE} names no usable socket");
                None
            }
        });
        Arc::new(Self { socket, state: Mutex::new(State { phase: Phase::Starting, condition: SERVES }) })
    }

    /// Reports that the node starts. A large log takes a while to read.
    pub fn starting(self: &Arc<Self>) -> Extension {
        self.send("STATUS=starts");
        self.extend()
    }

    /// Reports that the node serves clients.
    pub fn ready(&self) {
        self.set_condition(SERVES);
    }

    /// Reports that the node has started, if its cluster does not let it serve clients within 20 seconds.
    pub fn ready_soon(self: &Arc<Self>) {
        let manager = self.clone();
        self.spawn(move || {
            let (_never, ends) = mpsc::sync_channel::<()>(0);
            // Nothing is sent, so this waits for the whole time.
            let _ = ends.recv_timeout(CLUSTER_WAIT_MAX);
            manager.waits();
        });
    }

    fn waits(&self) {
        self.set_condition(WAITS);
    }

    fn set_condition(&self, condition: &'static str) {
        let mut state = sync::lock(&self.state);
        // The cluster may have let clients in meanwhile.
        if condition == WAITS && state.phase != Phase::Starting {
            return;
        }
        state.condition = condition;
        match state.phase {
            Phase::Starting => {
                state.phase = Phase::Ready;
                self.send(&format!("READY=1\nSTATUS={condition}"));
            }
            Phase::Ready | Phase::Reloading => self.send(&format!("STATUS={condition}")),
            Phase::Stopping => {}
        }
    }

    /// Reports that a reload begins.
    pub fn reloading(&self) {
        let mut state = sync::lock(&self.state);
        if state.phase == Phase::Ready {
            state.phase = Phase::Reloading;
            let now = monotonic().as_micros();
            self.send(&format!("RELOADING=1\nMONOTONIC_USEC={now}\nSTATUS=reads its configuration again"));
        }
    }

    /// Reports that the reload has ended. All users of the machine can read the status, so it has no reason.
    pub fn reloaded(&self, is_refused: bool) {
        let mut state = sync::lock(&self.state);
        if state.phase == Phase::Reloading {
            state.phase = Phase::Ready;
            let refused = if is_refused { "; the last reload was refused: see the log" } else { "" };
            self.send(&format!("READY=1\nSTATUS={}{refused}", state.condition));
        }
    }

    /// Reports that the node stops, and needs at most this time for it, and a margin.
    pub fn stopping(&self, status: &str, within: Duration) {
        sync::lock(&self.state).phase = Phase::Stopping;
        let extension = within.saturating_add(STOP_MARGIN).as_micros();
        self.send(&format!("STOPPING=1\nSTATUS={status}\nEXTEND_TIMEOUT_USEC={extension}"));
    }

    /// Requests more time, again and again, until the result is dropped.
    pub fn extend(self: &Arc<Self>) -> Extension {
        if self.socket.is_none() {
            return Extension { _ends: None };
        }
        let (ends, ended) = mpsc::sync_channel::<()>(0);
        let manager = self.clone();
        self.spawn(move || {
            while let Err(RecvTimeoutError::Timeout) = ended.recv_timeout(EXTEND_INTERVAL) {
                manager.send(&format!("EXTEND_TIMEOUT_USEC={}", EXTENSION.as_micros()));
            }
        });
        Extension { _ends: Some(ends) }
    }

    fn spawn(&self, run: impl FnOnce() + Send + 'static) {
        if self.socket.is_some()
            && let Err(error) = critical::spawn("notify", run)
        {
            tracing::warn!(%error, "service manager not notified: no thread");
        }
    }

    fn send(&self, message: &str) {
        let Some((socket, address)) = &self.socket else { return };
        if let Err(error) = socket.send_to_addr(message.as_bytes(), address) {
            tracing::warn!(%error, message, "service manager not notified");
        }
    }
}

fn open(name: &OsStr) -> io::Result<(UnixDatagram, SocketAddr)> {
    let address = match name.as_bytes() {
        [b'@', name @ ..] => SocketAddr::from_abstract_name(name)?,
        [b'/', ..] => SocketAddr::from_pathname(name)?,
        _ => return Err(io::Error::new(io::ErrorKind::InvalidInput, "it begins with neither / nor @")),
    };
    let socket = UnixDatagram::unbound()?;
    socket.set_write_timeout(Some(SEND_MAX))?;
    Ok((socket, address))
}

/// Time of CLOCK_MONOTONIC, which the service manager compares with its own.
fn monotonic() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the pointer is valid for the call, which writes the struct or nothing.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &mut time) };
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec.unsigned_abs() as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A service manager with an abstract socket, and its messages so far.
    struct Listening(Arc<ServiceManager>, UnixDatagram);

    impl Listening {
        fn new(test: &str) -> Self {
            let name = format!("meridian-notify-{test}-{}", std::process::id());
            let address = SocketAddr::from_abstract_name(&name).unwrap();
            let listener = UnixDatagram::bind_addr(&address).unwrap();
            listener.set_nonblocking(true).unwrap();
            let socket = Some(open(format!("@{name}").as_ref()).unwrap());
            let state = Mutex::new(State { phase: Phase::Starting, condition: SERVES });
            Self(Arc::new(ServiceManager { socket, state }), listener)
        }

        fn got(&self) -> Vec<String> {
            let mut buffer = [0; 1024];
            let mut messages = Vec::new();
            while let Ok(len) = self.1.recv(&mut buffer) {
                messages.push(String::from_utf8(buffer[..len].to_vec()).unwrap());
            }
            messages
        }
    }

    #[test]
    fn a_node_that_waits_for_its_cluster_is_ready_once() {
        let it = Listening::new("waits");
        it.0.reloading();
        it.0.reloaded(false);
        assert_eq!(it.got(), [""; 0], "a reload does not end the start");
        it.0.waits();
        it.0.ready();
        it.0.waits();
        assert_eq!(it.got(), [format!("READY=1\nSTATUS={WAITS}"), format!("STATUS={SERVES}")]);
    }

    #[test]
    fn a_reload_has_a_begin_and_an_end() {
        let it = Listening::new("reload");
        it.0.ready();
        it.got();
        let before = monotonic();
        it.0.reloading();
        let messages = it.got();
        let lines: Vec<&str> = messages[0].lines().collect();
        let at: u128 = lines[1].strip_prefix("MONOTONIC_USEC=").unwrap().parse().unwrap();
        assert!(
            lines[0] == "RELOADING=1" && at >= before.as_micros() && at <= monotonic().as_micros(),
            "{lines:?}"
        );
        it.0.reloaded(true);
        it.0.reloaded(false);
        assert_eq!(it.got(), ["READY=1\nSTATUS=serves clients; the last reload was refused: see the log"]);
    }

    #[test]
    fn nothing_follows_a_stop() {
        let it = Listening::new("stop");
        it.0.stopping("stops", Duration::from_secs(5));
        it.0.ready();
        it.0.waits();
        it.0.reloading();
        assert_eq!(it.got(), ["STOPPING=1\nSTATUS=stops\nEXTEND_TIMEOUT_USEC=65000000"]);
    }

    #[test]
    fn only_absolute_paths_and_abstract_names_are_sockets() {
        for name in ["", "run/notify", "vsock:2:1", &format!("/{}", "x".repeat(200))] {
            assert!(open(name.as_ref()).is_err(), "{name}");
        }
        assert!(open("/run/nobody".as_ref()).is_ok(), "it may be there later");
    }

    #[test]
    fn a_socket_that_is_gone_does_no_harm() {
        let Listening(manager, listener) = Listening::new("gone");
        drop(listener);
        manager.ready();
        manager.stopping("stops", Duration::MAX);
    }
}
