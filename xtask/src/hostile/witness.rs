//! Ordinary clients of a broker that is attacked, and their delays.

use super::wire;
use crate::cluster::client::Client;
use anyhow::{Context, Result, ensure};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The longest waits of witnesses, and the broker's memory in bytes.
pub struct Felt {
    pub ping: Duration,
    pub puback: Duration,
    pub connect: Duration,
    pub health: Duration,
    pub before: u64,
    pub most: u64,
}

/// Threads that use a broker until they are stopped.
pub struct Witnesses {
    ends: Arc<AtomicBool>,
    ping: JoinHandle<Result<Duration>>,
    puback: JoinHandle<Result<Duration>>,
    connect: JoinHandle<Result<Duration>>,
    health: JoinHandle<Result<Duration>>,
    memory: JoinHandle<Result<Duration>>,
    most: Arc<std::sync::atomic::AtomicU64>,
    before: u64,
}

/// Wait that fails the attack.
const WAIT_MAX: Duration = Duration::from_secs(60);

impl Witnesses {
    /// Starts the witnesses.
    ///
    /// # Errors
    /// The broker does not serve them before the attack begins.
    pub fn start(mqtt: SocketAddr, http: SocketAddr, pid: u32) -> Result<Self> {
        let ends = Arc::new(AtomicBool::new(false));
        let mut pinging = wire::connected(mqtt, "witness-ping", 0, 100)?;
        pinging.set_read_timeout(Some(WAIT_MAX))?;
        let ping = every(&ends, Duration::from_millis(20), move || {
            pinging.write_all(&[0xc0, 0])?;
            pinging.read_exact(&mut [0; 2]).context("a client that pings is disconnected")
        });
        let mut subscriber = Client::connect(mqtt, "witness-subscriber")?;
        subscriber.subscribe("plant/+/+/+/state", 1, "local")?;
        let mut publisher = Client::connect(mqtt, "witness-publisher")?;
        publisher.be_patient(WAIT_MAX);
        let mut number = 0;
        let puback = every(&ends, Duration::from_millis(20), move || {
            number += 1;
            publisher.publish("plant/a/b/c/state", &number.to_string(), 1, false)?;
            let got = subscriber.receive(WAIT_MAX)?.context("an acknowledged message did not arrive")?;
            ensure!(got.payload == number.to_string(), "{} arrived instead of {number}", got.payload);
            Ok(())
        });
        let mut times = 0;
        let connect = every(&ends, Duration::from_millis(200), move || {
            times += 1;
            let mut client = Client::connect(mqtt, &format!("witness-{times}"))?;
            client.subscribe("hall/+/+/+/+/state", 1, "local")
        });
        let health = every(&ends, Duration::from_millis(200), move || {
            let mut stream = wire::dial(http)?;
            stream.set_read_timeout(Some(WAIT_MAX))?;
            stream.write_all(b"GET /health/live HTTP/1.1\r\nHost: 127.0.0.1\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            ensure!(
                answer.starts_with("HTTP/1.1 200"),
                "/health/live: {}",
                answer.lines().next().unwrap_or("nothing")
            );
            Ok(())
        });
        let before = resident(pid)?;
        let most = Arc::new(std::sync::atomic::AtomicU64::new(before));
        let seen = most.clone();
        let memory = every(&ends, Duration::from_millis(50), move || {
            // The end of the process is noticed elsewhere.
            seen.fetch_max(resident(pid).unwrap_or_default(), Relaxed);
            Ok(())
        });
        Ok(Self { ends, ping, puback, connect, health, memory, most, before })
    }

    /// Stops the witnesses and returns their figures.
    ///
    /// # Errors
    /// An operation that failed and must not fail.
    pub fn end(self) -> Result<Felt> {
        self.ends.store(true, Relaxed);
        let join = |thread: JoinHandle<Result<Duration>>| thread.join().expect("witnesses do not panic");
        join(self.memory)?;
        let (ping, puback, connect, health) =
            (join(self.ping), join(self.puback), join(self.connect), join(self.health));
        Ok(Felt {
            ping: ping?,
            puback: puback?,
            connect: connect?,
            health: health?,
            before: self.before,
            most: self.most.load(Relaxed),
        })
    }
}

/// Repeats an operation; returns the longest time that it took.
fn every(
    ends: &Arc<AtomicBool>,
    pause: Duration,
    mut act: impl FnMut() -> Result<()> + Send + 'static,
) -> JoinHandle<Result<Duration>> {
    let ends = ends.clone();
    std::thread::spawn(move || {
        let mut longest = Duration::ZERO;
        while !ends.load(Relaxed) {
            let began = Instant::now();
            act()?;
            longest = longest.max(began.elapsed());
            std::thread::sleep(pause);
        }
        Ok(longest)
    })
}

/// Resident memory of a process, in bytes.
fn resident(pid: u32) -> Result<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).context("VmRSS")?;
    let kib: u64 = line.trim().trim_end_matches(" kB").parse()?;
    Ok(kib << 10)
}
