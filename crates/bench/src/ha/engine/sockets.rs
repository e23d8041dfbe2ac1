//! Opening, writing, monitoring and closing of connections.

use super::*;
use crate::{codec, latency};

/// Silence after which a client sends PINGREQ.
const ASK_AFTER: u64 = SECOND;
/// Maximum number of TCP connections being opened at one time.
const OPENING_MAX: usize = 500;
/// Number of unsent bytes at which a client gives up: the broker does not read.
const BACKLOG_MAX: usize = 64 << 20;

impl Engine<'_> {
    /// Starts the attempts that are due.
    pub(super) fn open_due(&mut self) {
        let mut opening =
            self.connections.iter().filter(|c| matches!(c.stage, Stage::Tcp | Stage::Connack)).count();
        for at in 0..self.connections.len() {
            if matches!(self.connections[at].stage, Stage::Away(when) if when <= self.now)
                && opening < OPENING_MAX
            {
                opening += 1;
                self.open(at);
            }
        }
    }

    fn open(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        let to = self.plan.host(connection.number, connection.host);
        connection.generation = connection.generation.wrapping_add(1);
        connection.began = self.now;
        connection.stage = Stage::Tcp;
        match net::connect(to, None, 0, 0) {
            Ok((fd, _)) => {
                connection.fd = fd;
                connection.wants_out = true;
                let data = u64::from(connection.generation) << 32 | at as u64;
                self.epoll.ctl(true, fd, net::IN | net::RDHUP | net::OUT, data);
            }
            Err(error) => self.close(at, &format!("tcp connect: {}", net::errname(error))),
        }
    }

    pub(super) fn event(&mut self, data: u64, what: u32) {
        let at = (data & 0xffff_ffff) as usize;
        let connection = &self.connections[at];
        if u64::from(connection.generation) != data >> 32 || connection.fd < 0 {
            return;
        }
        if connection.stage == Stage::Tcp {
            return match net::so_error(connection.fd) {
                0 if what & net::OUT != 0 => self.greet(at),
                0 => {}
                error => self.close(at, &format!("tcp connect: {}", net::errname(error))),
            };
        }
        if what & net::OUT != 0 {
            self.connections[at].blocked = false;
        }
        if what & (net::IN | net::RDHUP | net::ERRHUP) != 0 {
            self.read(at);
        }
        self.pump(at);
        self.flush(at);
    }

    /// Sends CONNECT on the open TCP connection.
    fn greet(&mut self, at: usize) {
        let plan = self.plan;
        let connection = &mut self.connections[at];
        let to = plan.host(connection.number, connection.host);
        if net::self_connected(connection.fd, to) {
            return self.close(at, "tcp connect: connected to itself");
        }
        let role = if matches!(connection.role, Role::Publisher(_)) { 'p' } else { 's' };
        connection.stage = Stage::Connack;
        connection.last_in = self.now;
        connection.last_out = self.now;
        codec::connect(
            &mut connection.out,
            &codec::ConnectOpts {
                version: plan.version,
                clean: false,
                keepalive: plan.keepalive,
                client_id: &plan.client_id(role, connection.number),
                user: plan.username.as_deref(),
                pass: plan.password.as_deref(),
                expiry: if plan.version.is_5() { plan.expiry } else { 0 },
                ..codec::ConnectOpts::default()
            },
        );
        self.flush(at);
    }

    /// Marks the client as ready.
    pub(in crate::ha) fn ready(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        connection.stage = Stage::Ready;
        connection.attempt = 0;
        if std::mem::replace(&mut connection.ready_once, true) {
            let away = self.now.saturating_sub(connection.down_since);
            self.counts.reconnects += 1;
            latency::record(&mut self.reconnect, away);
            self.note(at, "connected again".into());
        }
        self.away_since = None;
    }

    pub(in crate::ha) fn close(&mut self, at: usize, why: &str) {
        let ready = self.connections[at].ready();
        if ready {
            self.counts.disconnects += 1;
            self.note(at, why.to_owned());
        } else {
            self.counts.failed_attempts += 1;
        }
        if why.starts_with("protocol error") {
            self.counts.protocol_errors += 1;
        }
        *self.reasons.entry(why.to_owned()).or_insert(0) += 1;
        let longest = self.plan.backoff_max.as_nanos() as u64;
        self.connections[at].down(self.now, longest, self.random.next());
        if ready && self.connections.iter().all(|connection| !connection.ready()) {
            self.away_since = Some(self.now);
        }
    }

    pub(super) fn flush(&mut self, at: usize) {
        let connection = &mut self.connections[at];
        if connection.fd < 0 || connection.stage == Stage::Tcp {
            return;
        }
        if let Err(error) = connection.flush(self.now) {
            // The last packets of the broker may still be readable.
            self.read(at);
            if self.connections[at].fd >= 0 {
                self.close(at, &format!("write: {}", net::errname(error)));
            }
            return;
        }
        if connection.waiting() > BACKLOG_MAX {
            return self.close(at, "the broker does not read");
        }
        if connection.wants_out != connection.blocked {
            connection.wants_out = connection.blocked;
            let interest = net::IN | net::RDHUP | if connection.blocked { net::OUT } else { 0 };
            let data = u64::from(connection.generation) << 32 | at as u64;
            self.epoll.ctl(false, connection.fd, interest, data);
        }
    }

    /// Checks time-outs and sends PINGREQ.
    pub(super) fn sweep(&mut self) {
        let answer = self.plan.answer.as_nanos() as u64;
        for at in 0..self.connections.len() {
            let connection = &mut self.connections[at];
            let since = |when: u64| self.now.saturating_sub(when);
            match connection.stage {
                Stage::Away(_) => {}
                Stage::Tcp | Stage::Connack | Stage::Suback => {
                    if since(connection.began) > answer {
                        let what = match connection.stage {
                            Stage::Tcp => "a TCP connection",
                            Stage::Connack => "CONNACK",
                            _ => "SUBACK",
                        };
                        self.close(at, &format!("no {what} in {} s", self.plan.answer.as_secs_f64()));
                    }
                }
                Stage::Ready if connection.ping > 0 => {
                    if since(connection.ping.max(connection.last_in)) > answer {
                        self.close(at, &format!("no PINGRESP in {} s", self.plan.answer.as_secs_f64()));
                    }
                }
                Stage::Ready => {
                    let keepalive = u64::from(connection.keepalive) * SECOND;
                    let quiet = keepalive > 0 && since(connection.last_out) >= keepalive / 2;
                    if quiet || since(connection.last_in) >= ASK_AFTER {
                        connection.ping = self.now;
                        self.counts.pings += 1;
                        codec::pingreq(&mut connection.out);
                        self.flush(at);
                    }
                }
            }
        }
    }
}
