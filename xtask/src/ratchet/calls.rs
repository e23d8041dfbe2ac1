//! System calls of a message: a node of one reactor under strace, and clients in lock-step, so that nothing depends
//! on timing. At QoS 1 a PINGREQ follows the subscriber's PUBACK; its answer shows that the broker has received both.

use super::Measured;
use crate::bench::broker::{Broker, Directory, Kind, Start};
use crate::bench::child::{self, Guarded};
use crate::bench::listener::client::{Client, ListenerKind};
use anyhow::{Context, Result, ensure};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const MESSAGES: u16 = 1_000;
/// Number of rounds; the minimum counts, because periodic calls of a node add more per message where messages take
/// longer.
const ROUNDS: usize = 3;
const TOPIC: &str = "plant/7/temperature";

pub fn measure() -> Result<Measured> {
    if Command::new("strace").arg("-V").stdout(Stdio::null()).status().is_err() {
        return Ok(Measured::Impossible("strace is not installed (apt-get install strace)".into()));
    }
    crate::bench::cargo_build(&["--package", "meridian", "--bin", "meridian"])?;
    let mut figures = vec![];
    for qos in [0, 1] {
        let name = format!("lock-step-qos{qos}");
        eprintln!("{name}");
        let mut least = f64::INFINITY;
        for _ in 0..ROUNDS {
            match round(qos)? {
                Ok(calls) => least = least.min(calls),
                Err(why) => return Ok(Measured::Impossible(why)),
            }
        }
        figures.push((format!("{name}.system-calls"), least));
    }
    Ok(Measured::Figures(figures))
}

/// System calls of a message, or the reason why they cannot be counted here.
fn round(qos: u8) -> Result<Result<f64, String>> {
    // A new node fills its first segments with zeros. They are small here.
    let arguments = ["--workers=1", "--set=storage.segment_size=1MiB", "--set=storage.reserve=2MiB"];
    let arguments = arguments.map(str::to_owned);
    let start =
        Start { kind: Kind::Meridian, arguments: &arguments, within: &std::env::temp_dir(), syncs: None };
    let broker = Broker::start_as(&start)?.settled()?;
    let mut pair = Pair::connect(&broker, qos)?;
    // One-time work is done by then.
    (0..100).try_for_each(|_| pair.message())?;
    let directory = Directory::new()?;
    let log = directory.join("calls");
    let mut tracer = match trace(&broker, &log)? {
        Ok(tracer) => tracer,
        Err(why) => return Ok(Err(why)),
    };
    let flow = (0..MESSAGES).try_for_each(|_| pair.message());
    // SAFETY: this is a child that is not yet waited for, so the id still refers to it.
    unsafe { libc::kill(tracer.id() as i32, libc::SIGINT) };
    tracer.wait(Duration::from_secs(10)).context("strace does not end")?;
    flow?;
    let text = std::fs::read_to_string(&log).context("the log of strace")?;
    let calls = total(&text).with_context(|| format!("strace counted nothing:\n{text}"))?;
    ensure!(calls >= u64::from(MESSAGES), "a message takes one call at least:\n{text}");
    Ok(Ok(calls as f64 / f64::from(MESSAGES)))
}

/// Attaches strace to the process. Returns the reason when it may not.
fn trace(broker: &Broker, log: &Path) -> Result<Result<Guarded, String>> {
    let mut command = Command::new("strace");
    command.args(["-f", "-c", "-q", "-o"]).arg(log).args(["-p", &broker.pid().to_string()]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut tracer = Guarded::spawn(&mut command)?;
    let pid = broker.pid();
    let attached = child::until(Duration::from_secs(10), || match tracer.ended() {
        Some(status) => Some(Err(format!("strace may not trace here ({status})"))),
        None => is_traced(pid).then_some(Ok(())),
    });
    Ok(match attached {
        Some(Ok(())) => Ok(tracer),
        Some(Err(why)) => Err(why),
        None => Err("strace does not attach".into()),
    })
}

/// Returns whether every thread has its tracer.
fn is_traced(pid: u32) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{pid}/task")) else { return false };
    threads.flatten().all(|thread| {
        let status = std::fs::read_to_string(thread.path().join("status")).unwrap_or_default();
        status.lines().any(|line| line.strip_prefix("TracerPid:").is_some_and(|pid| pid.trim() != "0"))
    })
}

/// Number of calls in the last line of strace's table.
fn total(text: &str) -> Option<u64> {
    let line = text.lines().rev().find(|line| line.trim_end().ends_with(" total"))?;
    // % time, seconds, microseconds a call, calls, and errors when there were any.
    line.split_whitespace().nth(3)?.parse().ok()
}

/// A publisher, a subscriber, and one message between them.
struct Pair {
    publisher: Client,
    subscriber: Client,
    publish: Vec<u8>,
    qos: u8,
}

impl Pair {
    fn connect(broker: &Broker, qos: u8) -> Result<Pair> {
        let mut subscriber = Client::connect(broker.address, ListenerKind::Plain, None, "subscriber")?;
        let mut subscribe = vec![0x82, 5 + TOPIC.len() as u8, 0, 1, 0, TOPIC.len() as u8];
        subscribe.extend(TOPIC.bytes());
        subscribe.push(qos);
        subscriber.send(&subscribe)?;
        let suback = subscriber.packet()?;
        ensure!(suback == [0x90, 3, 0, 1, qos], "SUBACK is {suback:02x?}");
        let mut publish = vec![0x30 | qos << 1, 0, 0, TOPIC.len() as u8];
        publish.extend(TOPIC.bytes());
        if qos > 0 {
            publish.extend([0, 1]);
        }
        publish.extend([0x55; 64]);
        publish[1] = publish.len() as u8 - 2;
        let publisher = Client::connect(broker.address, ListenerKind::Plain, None, "publisher")?;
        Ok(Pair { publisher, subscriber, publish, qos })
    }

    fn message(&mut self) -> Result<()> {
        self.publisher.send(&self.publish)?;
        let received = self.subscriber.packet()?;
        ensure!(received[0] == self.publish[0], "not the PUBLISH: {received:02x?}");
        if self.qos > 0 {
            let puback = self.publisher.packet()?;
            ensure!(puback == [0x40, 2, 0, 1], "PUBACK is {puback:02x?}");
            let at = 4 + TOPIC.len();
            self.subscriber.send(&[0x40, 2, received[at], received[at + 1], 0xC0, 0])?;
            let answer = self.subscriber.packet()?;
            ensure!(answer == [0xD0, 0], "PINGRESP is {answer:02x?}");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_total_is_found_with_and_without_errors() {
        let table = "% time     seconds  usecs/call     calls    errors syscall\n\
                     ------ ----------- ----------- --------- --------- ----------------\n \
                     52.00    0.001000           1      2000        10 recvfrom\n\
                     ------ ----------- ----------- --------- --------- ----------------\n\
                     100.00    0.002000           0      4017        10 total\n";
        assert_eq!(total(table), Some(4017));
        assert_eq!(total("100.00    0.002000           0      4017           total\n"), Some(4017));
        assert_eq!(total("nothing"), None);
    }
}
