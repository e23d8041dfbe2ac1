//! Probes that check whether a broker accepts clients.

use super::target::Target;
use crate::bench::child;
use anyhow::{Result, bail};
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

/// Maximum time until a broker answers.
const LONGEST: Duration = Duration::from_secs(120);

/// CONNECT of MQTT 3.1.1 with Clean Session, and the Client Identifier `chaos`.
const CONNECT: &[u8] = b"\x10\x11\0\x04MQTT\x04\x02\0\x0a\0\x05chaos";
const DISCONNECT: &[u8] = &[0xe0, 0];

/// Waits for the first CONNACK that accepts a client. Returns its time.
///
/// # Errors
/// The broker ends, or does not answer in time.
pub fn wait_for_connack(address: SocketAddr, target: &mut Target) -> Result<Instant> {
    let deadline = Instant::now() + LONGEST;
    loop {
        if accepts(address) {
            return Ok(Instant::now());
        }
        if let Some(status) = target.ended() {
            bail!(
                "the broker ended when it was started ({status}); its log ends with\n{}",
                target.log_tail()
            );
        }
        if child::interrupted() {
            bail!("interrupted");
        }
        if Instant::now() > deadline {
            bail!("no CONNACK in {} s; its log ends with\n{}", LONGEST.as_secs(), target.log_tail());
        }
        // Short, because it is part of the measurement.
        std::thread::sleep(Duration::from_millis(1));
    }
}

fn accepts(address: SocketAddr) -> bool {
    let ask = || {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(10)))?;
        stream.write_all(CONNECT)?;
        let mut answer = [0; 4];
        stream.read_exact(&mut answer)?;
        stream.write_all(DISCONNECT)?;
        std::io::Result::Ok(answer)
    };
    matches!(ask(), Ok([0x20, 2, _, 0]))
}

/// Returns whether a process listens there.
pub fn listens(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}
