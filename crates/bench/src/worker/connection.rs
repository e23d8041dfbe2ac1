//! Opening, flushing, monitoring and closing of connections.

use super::*;
use crate::latency::record;
use crate::properties::Will;
use std::cmp::Reverse;

impl Worker {
    pub(super) fn start(&mut self, s: usize) {
        let to = self.target(s);
        let nh = self.cfg.network.hosts(self.side(s)).len();
        let nb = self.cfg.network.binds.len();
        let from = if nb > 0 {
            Some(self.cfg.network.binds[((self.conns[s].id + self.cfg.network.offset) / nh) % nb])
        } else {
            None
        };
        self.now = net::now();
        let c = &mut self.conns[s];
        c.t_start = self.now;
        c.st = Stage::Tcp;
        c.generation = c.generation.wrapping_add(1);
        c.ping_sent = 0;
        c.need = 0;
        self.pending += 1;
        self.counts.started += 1;
        match net::connect(to, from, self.cfg.network.sndbuf, self.cfg.network.rcvbuf) {
            Err(e) => self.close(s, &format!("tcp connect: {}", net::errname(e))),
            Ok((fd, done)) => {
                let c = &mut self.conns[s];
                c.fd = fd;
                let data = (c.generation as u64) << 32 | s as u64;
                if done {
                    self.epoll.ctl(true, fd, net::IN | net::RDHUP, data);
                    c.out_reg = false;
                    self.tcp_ready(s);
                } else {
                    c.out_reg = true;
                    self.epoll.ctl(true, fd, net::IN | net::RDHUP | net::OUT, data);
                }
            }
        }
    }

    pub(super) fn tcp_ready(&mut self, s: usize) {
        let to = self.target(s);
        if to.port() >= 1024 && net::self_connected(self.conns[s].fd, to) {
            return self.close(s, "tcp connect: connected to itself");
        }
        let cfg = self.cfg.clone();
        self.now = net::now();
        let c = &mut self.conns[s];
        record(&mut self.hists.tcp, self.now - c.t_start);
        c.last_rx = self.now;
        c.last_tx = self.now;
        if cfg.network.layers.are_plain() {
            return self.send_connect(s);
        }
        c.st = Stage::Layer;
        let number = c.host;
        let wire = out(c, s, &mut self.pool, &mut self.dirty);
        match Layer::open(&cfg.network.layers, number, &mut self.rng, wire) {
            Ok(mut layer) => {
                layer.sealed = wire.len();
                c.layer = Some(Box::new(layer));
                self.flush(s);
            }
            Err(why) => self.close(s, &why),
        }
    }

    pub(super) fn send_connect(&mut self, s: usize) {
        let id = self.cfg.client_id(self.side(s), self.conns[s].id);
        let user = self.cfg.username(self.conns[s].id);
        let cfg = self.cfg.clone();
        let will_topic = cfg.will_topic(self.side(s), self.conns[s].id);
        let will_properties = cfg.session.will.as_ref().map(Will::encode_properties).unwrap_or_default();
        let c = &mut self.conns[s];
        c.st = Stage::Connack;
        c.t_sent = self.now;
        let b = out(c, s, &mut self.pool, &mut self.dirty);
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
        self.flush(s);
    }

    /// Closes a connection for a reason that is counted.
    pub(super) fn close(&mut self, s: usize, why: &str) {
        self.now = net::now();
        let ended = self.phase == P_END;
        if !ended {
            *self.reasons.entry(why.to_string()).or_insert(0) += 1;
            self.event(s, why);
        }
        let now = self.now;
        let was = self.forget(s);
        let c = &mut self.conns[s];
        match was {
            Stage::Tcp | Stage::Layer | Stage::Connack | Stage::Suback => {
                self.pending -= 1;
                self.counts.attempts_failed += 1;
            }
            Stage::Ready => {
                self.counts.up -= 1;
                if !ended {
                    self.counts.disconnects += 1;
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
            self.retry.push(Reverse((now + ns, s)));
        } else {
            self.counts.gone += 1;
            if !c.ready_once {
                self.counts.failed += 1;
            }
        }
    }

    /// Closes the socket and drops its state. Returns the progress of the connection.
    fn forget(&mut self, s: usize) -> Stage {
        let c = &mut self.conns[s];
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
        c.sub_wait = 0;
        self.recycle_buffer(buffer);
        self.conns[s].st
    }

    /// Disconnects connected clients whose time is over; they reconnect after a while.
    pub(super) fn close_leaving(&mut self) {
        let Some(churn) = self.cfg.presence.churn else { return };
        while let Some(&Reverse((at, s, generation))) = self.leaves.peek() {
            if at > self.now {
                return;
            }
            self.leaves.pop();
            let c = &self.conns[s];
            if c.st != Stage::Ready || c.generation != generation || self.phase >= P_STOP {
                continue;
            }
            if !self.cfg.presence.vanish {
                codec::disconnect(out(&mut self.conns[s], s, &mut self.pool, &mut self.dirty));
            }
            self.flush(s);
            let c = &mut self.conns[s];
            if c.fd < 0 {
                continue;
            }
            self.forget(s);
            self.counts.up -= 1;
            self.counts.left += 1;
            let away = drawn(churn.away, &mut self.rng);
            let c = &mut self.conns[s];
            c.t_down = self.now;
            c.st = Stage::Backoff;
            if let Role::Pub(p) = &mut c.role {
                // A disconnected client has no due messages.
                p.due = p.sent;
            }
            self.retry.push(Reverse((self.now + away, s)));
        }
    }

    fn recycle_buffer(&mut self, buffer: Vec<u8>) {
        if buffer.capacity() > 0 && self.pool.len() < POOL_MAX {
            self.pool.push(buffer);
        }
    }

    pub(super) fn flush(&mut self, s: usize) {
        let c = &mut self.conns[s];
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
                return self.close(s, &why);
            }
        }
        loop {
            self.counts.writes += 1;
            match net::write(c.fd, &c.wbuf[c.wpos..]) {
                Ok(n) => {
                    self.counts.tx_bytes += n as u64;
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
                        if self.pool.len() < POOL_MAX {
                            self.pool.push(b);
                        }
                        if c.out_reg {
                            c.out_reg = false;
                            self.epoll.ctl(
                                false,
                                c.fd,
                                net::IN | net::RDHUP,
                                (c.generation as u64) << 32 | s as u64,
                            );
                        }
                        if let Role::Pub(p) = &mut c.role
                            && p.sent < p.due
                            && !p.queued
                            && (self.cfg.traffic.pub_qos == 0 || p.inflight < p.window)
                        {
                            p.queued = true;
                            self.queue.push(s);
                        }
                        return;
                    }
                }
                Err(libc::EINTR) => continue,
                Err(libc::EAGAIN) => {
                    self.counts.blocked_writes += 1;
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
                        self.epoll.ctl(
                            false,
                            c.fd,
                            net::IN | net::RDHUP | net::OUT,
                            (c.generation as u64) << 32 | s as u64,
                        );
                    }
                    return;
                }
                Err(e) => {
                    // The last packets of the broker may still be readable.
                    let w = format!("write: {}", net::errname(e));
                    self.read(s);
                    if self.conns[s].fd >= 0 {
                        self.close(s, &w);
                    }
                    return;
                }
            }
        }
    }

    pub(super) fn sweep(&mut self, s: usize) {
        self.retry(s);
        let c = &mut self.conns[s];
        let ms = |a: u64, b: u64| a.saturating_sub(b) / 1_000_000;
        match c.st {
            Stage::Tcp | Stage::Layer | Stage::Connack | Stage::Suback
                if ms(self.now, c.t_start) > self.cfg.connecting.timeout_ms =>
            {
                let w = match c.st {
                    Stage::Tcp => "timeout: tcp connect",
                    Stage::Layer => "timeout: TLS or WebSocket handshake",
                    Stage::Connack => "timeout: no CONNACK",
                    _ => "timeout: no SUBACK",
                };
                self.close(s, w);
            }
            Stage::Ready if c.keepalive > 0 || self.cfg.ping.idle_rx_ms > 0 => {
                let ka = c.keepalive as u64 * 1000;
                if c.ping_sent > 0 {
                    if ms(self.now, c.ping_sent.max(c.last_rx)) > self.cfg.ping.timeout_ms {
                        self.close(s, "timeout: no PINGRESP");
                    }
                } else if (ka > 0 && ms(self.now, c.last_tx) >= ka * 3 / 4)
                    || (self.cfg.ping.idle_rx_ms > 0 && ms(self.now, c.last_rx) >= self.cfg.ping.idle_rx_ms)
                {
                    c.ping_sent = self.now;
                    self.counts.pings += 1;
                    codec::pingreq(out(c, s, &mut self.pool, &mut self.dirty));
                }
            }
            _ => {}
        }
    }
}
