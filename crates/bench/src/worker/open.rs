//! Opening, flushing, monitoring and closing of connections.

use super::*;
use crate::codec;
use crate::counters::Phase;
use crate::latency::record;
use crate::layer::Layer;
use crate::net;
use crate::plan::Churn;
use crate::properties::Will;
use std::cmp::Reverse;

impl Driver {
    pub(super) fn start(&mut self, c: &mut Connection) {
        let to = self.target(c);
        let network = &self.cfg.network;
        let nh = network.hosts(c.side()).len();
        let nb = network.binds.len();
        let from = (nb > 0).then(|| network.binds[((c.id + network.offset) / nh) % nb]);
        self.now = net::now();
        c.t_start = self.now;
        c.st = Stage::Tcp;
        c.generation = c.generation.wrapping_add(1);
        c.ping_sent = 0;
        c.need = 0;
        self.sockets.pending += 1;
        self.tally.counts.started += 1;
        match net::connect(to, from, network.sndbuf, network.rcvbuf) {
            Err(e) => self.close(c, &format!("tcp connect: {}", net::errname(e))),
            Ok((fd, done)) => {
                c.fd = fd;
                c.out_reg = !done;
                self.sockets.watch(c);
                if done {
                    self.tcp_ready(c);
                }
            }
        }
    }

    pub(super) fn tcp_ready(&mut self, c: &mut Connection) {
        let to = self.target(c);
        if to.port() >= 1024 && net::self_connected(c.fd, to) {
            return self.close(c, "tcp connect: connected to itself");
        }
        let cfg = self.cfg.clone();
        self.now = net::now();
        record(&mut self.tally.hists.tcp, self.now - c.t_start);
        c.last_rx = self.now;
        c.last_tx = self.now;
        if cfg.network.layers.are_plain() {
            return self.send_connect(c);
        }
        c.st = Stage::Layer;
        let number = c.host;
        let wire = self.sockets.out(c);
        match Layer::open(&cfg.network.layers, number, &mut self.rng, wire) {
            Ok(mut layer) => {
                layer.sealed = wire.len();
                c.layer = Some(Box::new(layer));
                self.flush(c);
            }
            Err(why) => self.close(c, &why),
        }
    }

    pub(super) fn send_connect(&mut self, c: &mut Connection) {
        let id = self.cfg.client_id(c.side(), c.id);
        let user = self.cfg.username(c.id);
        let cfg = self.cfg.clone();
        let will_topic = cfg.will_topic(c.side(), c.id);
        let will_properties = cfg.session.will.as_ref().map(Will::encode_properties).unwrap_or_default();
        c.st = Stage::Connack;
        c.t_sent = self.now;
        let b = self.sockets.out(c);
        codec::connect(
            b,
            &codec::ConnectOpts {
                version: cfg.session.version,
                clean: cfg.session.clean,
                keepalive: cfg.session.keepalive,
                client_id: &id,
                user: user.as_deref(),
                pass: cfg.identity.pass.as_deref(),
                expiry: cfg.session.expiry,
                recv_max: cfg.session.recv_max,
                properties: &cfg.session.properties,
                will: cfg.session.will.as_ref().map(|will| codec::WillOpts {
                    topic: &will_topic,
                    payload: &will.payload,
                    qos: will.qos,
                    retain: will.retain,
                    properties: &will_properties,
                }),
            },
        );
        self.flush(c);
    }

    /// Closes a connection for a reason that is counted.
    pub(super) fn close(&mut self, c: &mut Connection, why: &str) {
        self.now = net::now();
        let ended = self.phase == Phase::End;
        if !ended {
            self.tally.count_reason(why.to_string());
            self.event(c, why);
        }
        let now = self.now;
        let was = self.forget(c);
        match was {
            Stage::Tcp | Stage::Layer | Stage::Connack | Stage::Suback(_) => {
                self.sockets.pending -= 1;
                self.tally.counts.attempts_failed += 1;
            }
            Stage::Ready => {
                self.tally.counts.up -= 1;
                if !ended {
                    self.tally.counts.disconnects += 1;
                }
                c.t_down = now;
            }
            _ => {}
        }
        c.st = Stage::Dead;
        if ended {
            return;
        }
        let again = self.cfg.connecting.reconnect.allows(c.attempt, c.ready_once);
        if again {
            c.attempt += 1;
            c.host += 1;
            c.st = Stage::Backoff;
            let b = (self.cfg.connecting.backoff_ms << (c.attempt - 1).min(10))
                .min(self.cfg.connecting.backoff_max_ms);
            // The first attempt at the next host comes soon, with jitter of +-25 %.
            let ns = b * 1_000_000 * 3 / 4 + self.rng.below((b * 500_000).max(1));
            self.timers.retry.push(Reverse((now + ns, c.slot)));
        } else {
            self.tally.counts.gone += 1;
            if !c.ready_once {
                self.tally.counts.failed += 1;
            }
        }
    }

    /// Closes the socket and drops its state. Returns the progress of the connection.
    fn forget(&mut self, c: &mut Connection) -> Stage {
        if c.fd >= 0 {
            net::close(c.fd);
            c.fd = -1;
        }
        if let Role::Pub(p) = &mut c.role {
            p.queued = false; // A stale index in the queue is ignored.
        }
        c.dirty = false;
        c.out_reg = false;
        c.blocked = false;
        c.wpos = 0;
        c.wbuf.clear();
        c.layer = None;
        let buffer = std::mem::take(&mut c.wbuf);
        c.left = vec![];
        self.sockets.recycle(buffer);
        c.st
    }

    /// Disconnects a connected client whose time is over; it reconnects after a while.
    pub(super) fn leave(&mut self, c: &mut Connection, churn: Churn) {
        if !self.cfg.presence.vanish {
            codec::disconnect(self.sockets.out(c));
        }
        self.flush(c);
        if c.fd < 0 {
            return;
        }
        self.forget(c);
        self.tally.counts.up -= 1;
        self.tally.counts.left += 1;
        let away = drawn(churn.away, &mut self.rng);
        c.t_down = self.now;
        c.st = Stage::Backoff;
        if let Role::Pub(p) = &mut c.role {
            // A disconnected client has no due messages.
            p.due = p.sent;
        }
        self.timers.retry.push(Reverse((self.now + away, c.slot)));
    }

    pub(super) fn flush(&mut self, c: &mut Connection) {
        c.dirty = false;
        if c.fd < 0 || c.wbuf.is_empty() || c.blocked {
            return;
        }
        if let Some(layer) = &mut c.layer
            && layer.sealed < c.wbuf.len()
        {
            let plain = c.wbuf.split_off(layer.sealed);
            let done = layer.seal(&plain, &mut self.rng, &mut c.wbuf);
            layer.sealed = c.wbuf.len();
            if let Err(why) = done {
                return self.close(c, &why);
            }
        }
        loop {
            self.tally.counts.writes += 1;
            match net::write(c.fd, &c.wbuf[c.wpos..]) {
                Ok(n) => {
                    self.tally.counts.tx_bytes += n as u64;
                    c.wpos += n;
                    c.last_tx = self.now;
                    if c.wpos == c.wbuf.len() {
                        c.wbuf.clear();
                        c.wpos = 0;
                        if let Some(layer) = &mut c.layer {
                            layer.sealed = 0;
                        }
                        let mut b = std::mem::take(&mut c.wbuf);
                        if b.capacity() > 1 << 20 {
                            b.shrink_to(1 << 16);
                        }
                        self.sockets.recycle(b);
                        if c.out_reg {
                            c.out_reg = false;
                            self.sockets.rewatch(c);
                        }
                        if let Role::Pub(p) = &mut c.role
                            && p.sent < p.due
                            && !p.queued
                            && !p.window_is_full(self.cfg.traffic.pub_qos)
                        {
                            p.queued = true;
                            self.sending.queue.push(c.slot);
                        }
                        return;
                    }
                }
                Err(libc::EINTR) => continue,
                Err(libc::EAGAIN) => {
                    self.tally.counts.blocked_writes += 1;
                    c.blocked = true;
                    if c.wpos > 1 << 16 {
                        c.wbuf.drain(..c.wpos);
                        if let Some(layer) = &mut c.layer {
                            layer.sealed -= c.wpos;
                        }
                        c.wpos = 0;
                    }
                    if !c.out_reg {
                        c.out_reg = true;
                        self.sockets.rewatch(c);
                    }
                    return;
                }
                Err(e) => {
                    // The last packets of the broker may still be readable.
                    let w = format!("write: {}", net::errname(e));
                    self.read(c);
                    if c.fd >= 0 {
                        self.close(c, &w);
                    }
                    return;
                }
            }
        }
    }

    pub(super) fn sweep(&mut self, c: &mut Connection) {
        self.retry(c);
        let ms = |a: u64, b: u64| a.saturating_sub(b) / 1_000_000;
        match c.st {
            Stage::Tcp | Stage::Layer | Stage::Connack | Stage::Suback(_)
                if ms(self.now, c.t_start) > self.cfg.connecting.timeout_ms =>
            {
                let w = match c.st {
                    Stage::Tcp => "timeout: tcp connect",
                    Stage::Layer => "timeout: TLS or WebSocket handshake",
                    Stage::Connack => "timeout: no CONNACK",
                    _ => "timeout: no SUBACK",
                };
                self.close(c, w);
            }
            Stage::Ready if c.keepalive > 0 || self.cfg.ping.idle_rx_ms > 0 => {
                let ka = c.keepalive as u64 * 1000;
                if c.ping_sent > 0 {
                    if ms(self.now, c.ping_sent.max(c.last_rx)) > self.cfg.ping.timeout_ms {
                        self.close(c, "timeout: no PINGRESP");
                    }
                } else if (ka > 0 && ms(self.now, c.last_tx) >= ka * 3 / 4)
                    || (self.cfg.ping.idle_rx_ms > 0 && ms(self.now, c.last_rx) >= self.cfg.ping.idle_rx_ms)
                {
                    c.ping_sent = self.now;
                    self.tally.counts.pings += 1;
                    codec::pingreq(self.sockets.out(c));
                }
            }
            _ => {}
        }
    }
}
