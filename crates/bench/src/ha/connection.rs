//! One client's connection to a broker: the socket, unsent bytes, the time of the next attempt.

use super::publisher::Publisher;
use super::subscriber::Subscriber;
use crate::net;

/// Progress of a connection.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Stage {
    /// No connection; the next attempt is at this time.
    Away(u64),
    /// The TCP connection is being opened.
    Tcp,
    Connack,
    Suback,
    Ready,
}

pub enum Role {
    Publisher(Box<Publisher>),
    Subscriber(Box<Subscriber>),
}

/// A client over all of its connections. Times are nanoseconds of CLOCK_MONOTONIC.
pub struct Connection {
    pub role: Role,
    /// Number among the clients of its role.
    pub number: usize,
    pub fd: i32,
    pub stage: Stage,
    /// Distinguishes events of this socket from those of an earlier one.
    pub generation: u32,
    /// Number of the host, modulo their count, unless it stays with its first.
    pub host: usize,
    /// Number of failed attempts since it was ready.
    pub attempt: u32,
    /// True when a broker has reported an existing session, or created one.
    pub session: bool,
    pub ready_once: bool,
    pub keepalive: u16,
    pub out: Vec<u8>,
    /// Start of the unsent part of `out`.
    pub out_at: usize,
    /// The socket accepts no more bytes: wait until it is writable.
    pub blocked: bool,
    /// True while the poll includes writability.
    pub wants_out: bool,
    /// Bytes of an incomplete packet.
    pub input: Vec<u8>,
    pub began: u64,
    pub down_since: u64,
    pub last_in: u64,
    pub last_out: u64,
    /// Time of the last unanswered PINGREQ; 0 for none.
    pub ping: u64,
}

/// Number of unsent bytes at which nothing more is added.
pub const OUT_MAX: usize = 128 * 1024;
const BACKOFF_MIN_NS: u64 = 50_000_000;

impl Connection {
    pub fn new(role: Role, number: usize, host: usize) -> Connection {
        Connection {
            role,
            number,
            fd: -1,
            stage: Stage::Away(0),
            generation: 0,
            host,
            attempt: 0,
            session: false,
            ready_once: false,
            keepalive: 0,
            out: vec![],
            out_at: 0,
            blocked: false,
            wants_out: false,
            input: vec![],
            began: 0,
            down_since: 0,
            last_in: 0,
            last_out: 0,
            ping: 0,
        }
    }

    pub fn ready(&self) -> bool {
        self.stage == Stage::Ready
    }

    /// Number of unsent bytes.
    pub fn waiting(&self) -> usize {
        self.out.len() - self.out_at
    }

    /// Closes the connection, and schedules the attempt at the next host. The pause is 50 ms, then doubles up to
    /// `longest`. It varies by a quarter with `random`, so that clients do not synchronise.
    pub fn down(&mut self, now: u64, longest: u64, random: u64) {
        if self.fd >= 0 {
            net::close(self.fd);
            self.fd = -1;
        }
        if self.stage == Stage::Ready {
            self.down_since = now;
        }
        self.out = vec![];
        self.out_at = 0;
        self.input = vec![];
        self.blocked = false;
        self.wants_out = false;
        self.ping = 0;
        let pause = (BACKOFF_MIN_NS << self.attempt.min(20)).min(longest).max(1);
        self.attempt += 1;
        self.host += 1;
        self.stage = Stage::Away(now + pause * 3 / 4 + random % (pause / 2 + 1));
    }

    /// Writes unsent bytes, as many as the socket accepts.
    ///
    /// # Errors
    /// The number of the error that ended the connection.
    pub fn flush(&mut self, now: u64) -> Result<(), i32> {
        while self.out_at < self.out.len() && !self.blocked {
            match net::write(self.fd, &self.out[self.out_at..]) {
                Ok(bytes) => {
                    self.out_at += bytes;
                    self.last_out = now;
                }
                Err(libc::EINTR) => {}
                Err(libc::EAGAIN) => self.blocked = true,
                Err(error) => return Err(error),
            }
        }
        if self.out_at == self.out.len() {
            self.out.clear();
            self.out_at = 0;
            if self.out.capacity() > 4 * OUT_MAX {
                self.out = vec![];
            }
        } else if self.out_at > OUT_MAX {
            self.out.drain(..self.out_at);
            self.out_at = 0;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pause_grows_to_its_bound_and_the_host_changes() {
        let mut connection = Connection::new(Role::Subscriber(Box::default()), 0, 5);
        let mut pauses = vec![];
        for _ in 0..40 {
            connection.down(1000, 400_000_000, u64::MAX);
            let Stage::Away(at) = connection.stage else { panic!() };
            pauses.push((at - 1000) / 1_000_000);
        }
        assert!((37..=63).contains(&pauses[0]) && (75..=125).contains(&pauses[1]), "{pauses:?}");
        assert!(pauses[3..].iter().all(|ms| (300..=500).contains(ms)), "{pauses:?}");
        assert_eq!(connection.host, 45);
    }
}
