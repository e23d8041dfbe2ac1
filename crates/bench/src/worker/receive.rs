//! Handling of packets from brokers.

use super::*;
use crate::codec::{Frame, Packet};
use crate::latency::record;
use crate::tag::{self, Tag};
use crate::track::Kind;
use std::sync::atomic::Ordering::Relaxed;

impl Worker {
    pub(super) fn read(&mut self, s: usize) {
        let mut rbuf = std::mem::take(&mut self.rbuf);
        for _ in 0..4 {
            let c = &mut self.conns[s];
            if c.fd < 0 {
                break;
            }
            let l = c.left.len();
            if rbuf.len() < c.need + 65536 || rbuf.len() < l + 65536 {
                rbuf.resize((c.need.max(l) + 65536) * 2, 0);
            }
            rbuf[..l].copy_from_slice(&c.left);
            let cap = rbuf.len() - l;
            self.counts.reads += 1;
            let n = match net::read(c.fd, &mut rbuf[l..]) {
                Ok(0) => {
                    self.close(s, "closed by the broker");
                    break;
                }
                Ok(n) => n,
                Err(libc::EAGAIN) => break,
                Err(libc::EINTR) => continue,
                Err(e) => {
                    self.close(s, &format!("read: {}", net::errname(e)));
                    break;
                }
            };
            self.now = net::now();
            c.last_rx = self.now;
            // Few connections have an incomplete packet: the others have no buffer for one.
            c.left = vec![];
            c.need = 0;
            self.counts.rx_bytes += n as u64;
            let layered = c.layer.is_some();
            let generation = c.generation;
            let mut opened = std::mem::take(&mut self.opened);
            if layered {
                opened.clear();
                opened.extend_from_slice(&rbuf[..l]);
                self.receive_layer(s, &rbuf[l..l + n], &mut opened);
                if self.conns[s].fd < 0 || self.conns[s].generation != generation {
                    self.opened = opened;
                    break;
                }
            }
            let data = if layered { &opened[..] } else { &rbuf[..l + n] };
            let mut pos = 0;
            let end = data.len();
            let v5 = self.cfg.session.version.is_5();
            let mut bad: Option<String> = None;
            loop {
                match codec::frame(&data[pos..end]) {
                    Ok(Frame::Have(h, b, e)) => {
                        let body = &data[pos + b..pos + e];
                        pos += e;
                        match codec::parse(h, body, v5) {
                            Ok(Packet::Publish { dup, qos, retain, topic, pid, payload }) => {
                                if self.on_publish(s, dup, qos, retain, pid) {
                                    match self.cfg.plain {
                                        Some(_) => self.on_plain(s, topic, payload),
                                        None => self.on_checked(s, qos, payload),
                                    }
                                }
                            }
                            Ok(p) => self.on_packet(s, p),
                            Err(e) => {
                                bad = Some(format!("protocol error: {e}"));
                                break;
                            }
                        }
                        if self.conns[s].fd < 0 || self.conns[s].generation != generation {
                            break;
                        }
                    }
                    Ok(Frame::Need(n)) => {
                        let c = &mut self.conns[s];
                        c.need = n;
                        c.left.extend_from_slice(&data[pos..end]);
                        break;
                    }
                    Err(e) => {
                        bad = Some(format!("protocol error: {e}"));
                        break;
                    }
                }
            }
            if opened.capacity() > 4 * RBUF {
                opened = vec![];
            }
            self.opened = opened;
            if let Some(b) = bad {
                self.close(s, &b);
                break;
            }
            if n < cap {
                break;
            }
        }
        if rbuf.len() > 16 * RBUF {
            rbuf.truncate(RBUF);
            rbuf.shrink_to_fit();
            if rbuf.len() < self.cfg.traffic.payload * 2 {
                rbuf.resize(self.cfg.traffic.payload * 2 + RBUF, 0);
            }
        }
        self.rbuf = rbuf;
        let c = &self.conns[s];
        if let (Role::Pub(_), Stage::Ready) = (&c.role, c.st) {
            self.try_send(s);
        }
    }

    /// Appends data from TLS or the WebSocket to `plain`, and queues their answers.
    fn receive_layer(&mut self, s: usize, bytes: &[u8], plain: &mut Vec<u8>) {
        let c = &mut self.conns[s];
        let Some(mut layer) = c.layer.take() else { return };
        let mut wire = vec![];
        let done = layer.receive(bytes, &mut self.rng, plain, &mut wire);
        if !wire.is_empty() {
            // Sealed bytes are sent first, plain ones after them.
            let buffer = out(c, s, &mut self.pool, &mut self.dirty);
            let later = buffer.split_off(layer.sealed);
            buffer.extend_from_slice(&wire);
            layer.sealed = buffer.len();
            buffer.extend_from_slice(&later);
        }
        let open = layer.is_open();
        c.layer = Some(layer);
        match done {
            Err(why) => {
                self.flush(s);
                if self.conns[s].fd >= 0 {
                    self.close(s, &why);
                }
            }
            Ok(()) if open && c.st == Stage::Layer => self.send_connect(s),
            Ok(()) => {}
        }
    }

    #[inline]
    /// Acknowledges a message. Returns whether it is passed to the application.
    pub(super) fn on_publish(&mut self, s: usize, dup: bool, qos: u8, retain: bool, pid: u16) -> bool {
        let cfg = &*self.cfg;
        let c = &mut self.conns[s];
        if !matches!(c.st, Stage::Ready | Stage::Suback) {
            self.close(s, "protocol error: PUBLISH before CONNACK");
            return false;
        }
        match qos {
            0 => {}
            1 => codec::ack(out(c, s, &mut self.pool, &mut self.dirty), codec::PUBACK, pid),
            _ => {
                codec::ack(out(c, s, &mut self.pool, &mut self.dirty), codec::PUBREC, pid);
                let received = c.role.received();
                if !received.insert(pid) {
                    // The QoS 2 handshake hides this retransmission from the application.
                    self.counts.q2_suppressed += 1;
                    return false;
                }
                if cfg.session.recv_max > 0 && received.count > cfg.session.recv_max as usize {
                    self.counts.recv_max_exceeded += 1;
                }
            }
        }
        if dup {
            self.counts.dup_flag += 1;
        }
        if retain {
            self.counts.retain_flag += 1;
        }
        true
    }

    #[inline]
    fn on_checked(&mut self, s: usize, qos: u8, pl: &[u8]) {
        let now = self.now;
        let cfg = &*self.cfg;
        let c = &mut self.conns[s];
        let Role::Sub(u) = &mut c.role else {
            self.counts.unexpected += 1;
            return;
        };
        let Some(Tag { publisher: id, seq, at: ts }) = Tag::read(cfg.tag(), cfg.traffic.payload, pl) else {
            self.counts.foreign += 1;
            return;
        };
        if pl.len() != cfg.traffic.payload || seq >= 1 << 36 || ts > now {
            self.counts.corrupt += 1;
            return;
        }
        if cfg.checks.verify {
            let o = (seq & 255) as usize;
            let header = tag::length(cfg.traffic.payload);
            if pl[header..] != self.pattern[o..o + pl.len() - header] {
                self.counts.corrupt += 1;
                return;
            }
        }
        if qos != cfg.traffic.pub_qos.min(cfg.traffic.sub_qos) {
            self.counts.qos_wrong += 1;
        }
        let i = if u.stride == 1 {
            id.wrapping_sub(u.base)
        } else if id >= u.base && (id - u.base).is_multiple_of(u.stride) {
            (id - u.base) / u.stride
        } else {
            usize::MAX
        };
        if i >= u.count {
            self.counts.unexpected += 1;
            return;
        }
        self.counts.recv += 1;
        self.counts.recv_bytes += pl.len() as u64;
        let any = now - self.last_recv.max(self.t0).min(now);
        if any > self.any_gap.0 {
            self.any_gap = (any, now - any);
        }
        self.last_recv = now;
        let kind = if cfg.traffic.topology == Topology::Shared {
            let g = u.group;
            let gap = now.saturating_sub(self.group_last[g].max(self.t0));
            if gap > self.group_gap.0 {
                self.group_gap = (gap, now - gap);
            }
            self.group_last[g] = now;
            if self.groups_seen[g][i].set(seq) {
                if seq < u.last[i] {
                    Kind::Late
                } else {
                    u.last[i] = seq + 1;
                    Kind::New
                }
            } else {
                Kind::Dup
            }
        } else {
            u.streams[i].on(seq, now)
        };
        match kind {
            Kind::New => self.counts.uniq += 1,
            Kind::Late => {
                self.counts.uniq += 1;
                self.counts.late += 1
            }
            Kind::Dup => {
                self.counts.dup += 1;
                return;
            }
        }
        if ts >= self.w0 && ts < self.w1 {
            record(&mut self.pulse.e2e, now - ts);
        }
    }

    pub(super) fn on_packet(&mut self, s: usize, p: Packet) {
        let c = &mut self.conns[s];
        match p {
            Packet::Ack { kind, pid, reason } => {
                if c.st == Stage::Ready {
                    self.on_ack(s, kind, pid, reason)
                } else {
                    self.close(s, "protocol error: acknowledgement before CONNACK")
                }
            }
            Packet::PingResp => c.ping_sent = 0,
            Packet::ConnAck { session_present, code, props } => {
                if c.st != Stage::Connack {
                    return self.close(s, "protocol error: second CONNACK");
                }
                if code != 0 {
                    let mut w = format!(
                        "connack refused: {}",
                        codec::connack_name(self.cfg.session.version.is_5(), code)
                    );
                    if let Some(r) = props.reason {
                        w += &format!(" ({r})");
                    }
                    return self.close(s, &w);
                }
                if session_present && self.cfg.session.clean {
                    return self.close(s, "protocol error: session present after a clean start");
                }
                if let Some(k) = props.server_keepalive {
                    c.keepalive = k;
                }
                self.counts.connacked += 1;
                record(&mut self.hists.connack, self.now - c.t_sent);
                self.shared.times.last_connack.fetch_max(self.now, Relaxed);
                let max_qos = props.max_qos.unwrap_or(2);
                let again = c.ready_once;
                if again {
                    self.counts.sessions_resumed += session_present as u64;
                }
                if !session_present {
                    *c.role.received() = Received::default();
                }
                let side = if let Role::Pub(p) = &mut c.role {
                    if max_qos < self.cfg.traffic.pub_qos {
                        let w = format!("broker's maximum QoS is {max_qos}");
                        return self.close(s, &w);
                    }
                    p.window = self.cfg.sending.window.min(props.receive_max.unwrap_or(65535) as usize);
                    Side::Publisher
                } else {
                    Side::Subscriber
                };
                c.resumed = session_present;
                if again && !self.cfg.session.clean && !session_present {
                    let what = match side {
                        Side::Publisher => {
                            self.counts.sessions_lost_pub += 1;
                            "publisher's session lost"
                        }
                        Side::Subscriber => {
                            self.counts.sessions_lost_sub += 1;
                            "subscriber's session lost"
                        }
                    };
                    self.event(s, what);
                }
                if again && session_present {
                    return self.ready(s);
                }
                let f = self.cfg.filters(side, self.conns[s].id);
                if f.is_empty() {
                    return self.ready(s);
                }
                let c = &mut self.conns[s];
                c.st = Stage::Suback;
                c.t_sent = self.now;
                let b = out(c, s, &mut self.pool, &mut self.dirty);
                let mut n = 0;
                for g in f.chunks(256) {
                    n += 1;
                    codec::subscribe(
                        b,
                        self.cfg.session.version.is_5(),
                        n as u16,
                        g,
                        self.cfg.traffic.sub_qos,
                    );
                }
                c.sub_wait = n;
            }
            Packet::SubAck { codes, .. } => {
                if c.st != Stage::Suback {
                    return self.close(s, "protocol error: SUBACK not asked for");
                }
                for &k in codes {
                    if k >= 0x80 {
                        let n = if self.cfg.session.version.is_5() {
                            codec::reason_name(k)
                        } else {
                            format!("0x{k:02x}")
                        };
                        return self.close(s, &format!("subscribe refused: {n}"));
                    }
                    if k != self.cfg.traffic.sub_qos {
                        self.counts.qos_downgraded += 1;
                    }
                }
                c.sub_wait -= 1;
                if c.sub_wait == 0 {
                    record(&mut self.hists.suback, self.now - c.t_sent);
                    self.ready(s);
                }
            }
            Packet::Disconnect { reason } => {
                self.close(s, &format!("broker's DISCONNECT: {}", codec::reason_name(reason)))
            }
            Packet::UnsubAck => self.close(s, "protocol error: UNSUBACK not asked for"),
            Packet::Auth => self.close(s, "protocol error: AUTH not asked for"),
            Packet::Publish { .. } => unreachable!(),
        }
    }

    pub(super) fn ready(&mut self, s: usize) {
        let now = self.now;
        let c = &mut self.conns[s];
        c.st = Stage::Ready;
        c.attempt = 0;
        self.pending -= 1;
        self.counts.up += 1;
        if let Some(churn) = self.cfg.presence.churn {
            let stay = drawn(churn.stay, &mut self.rng);
            self.leaves.push(std::cmp::Reverse((now + stay, s, c.generation)));
        }
        if c.ready_once {
            self.counts.reconnects += 1;
            record(&mut self.hists.reconnect, now - c.t_down);
            let resumed = c.resumed;
            self.event(s, "connected again");
            self.retransmit(s, resumed, u64::MAX);
            if self.cfg.presence.churn.is_some() {
                self.reschedule(s);
            }
        } else {
            c.ready_once = true;
            self.shared.times.last_ready.fetch_max(now, Relaxed);
            record(&mut self.pulse.ready, now - c.t_start);
            match c.role {
                Role::Pub(_) => self.counts.ready_pubs += 1,
                Role::Sub(_) => self.counts.ready_subs += 1,
            }
            if self.phase == P_RUN && self.cfg.plain.is_some() {
                self.schedule(s);
            }
        }
    }
}
