//! Handling of packets from brokers.

use super::*;
use crate::codec::{self, ConnAckProps, Frame, Packet};
use crate::config::Side;
use crate::counters::Phase;
use crate::latency::record;
use crate::net;
use crate::tag::{self, Tag};
use crate::topology::Topology;
use crate::track::Kind;
use std::cmp::Reverse;
use std::sync::atomic::Ordering::Relaxed;

/// Header of a received PUBLISH.
struct Delivery {
    qos: u8,
    pid: u16,
    dup: bool,
    retain: bool,
}

impl Driver {
    /// Reads what has arrived, and handles its packets.
    pub(super) fn read(&mut self, c: &mut Connection) {
        let mut rbuf = std::mem::take(&mut self.sockets.rbuf);
        for _ in 0..4 {
            if c.fd < 0 {
                break;
            }
            let l = c.left.len();
            if rbuf.len() < c.need + 65536 || rbuf.len() < l + 65536 {
                rbuf.resize((c.need.max(l) + 65536) * 2, 0);
            }
            rbuf[..l].copy_from_slice(&c.left);
            let cap = rbuf.len() - l;
            self.tally.counts.reads += 1;
            let n = match net::read(c.fd, &mut rbuf[l..]) {
                Ok(0) => {
                    self.close(c, "closed by the broker");
                    break;
                }
                Ok(n) => n,
                Err(libc::EAGAIN) => break,
                Err(libc::EINTR) => continue,
                Err(e) => {
                    self.close(c, &format!("read: {}", net::errname(e)));
                    break;
                }
            };
            self.now = net::now();
            c.last_rx = self.now;
            // Few connections have an incomplete packet: the others have no buffer for one.
            c.left = vec![];
            c.need = 0;
            self.tally.counts.rx_bytes += n as u64;
            let layered = c.layer.is_some();
            let generation = c.generation;
            let mut opened = std::mem::take(&mut self.sockets.opened);
            if layered {
                opened.clear();
                opened.extend_from_slice(&rbuf[..l]);
                self.receive_layer(c, &rbuf[l..l + n], &mut opened);
                if !c.is_open(generation) {
                    self.sockets.opened = opened;
                    break;
                }
            }
            let data = if layered { &opened[..] } else { &rbuf[..l + n] };
            let handled = self.handle(c, data);
            if opened.capacity() > 4 * RBUF {
                opened = vec![];
            }
            self.sockets.opened = opened;
            if let Err(e) = handled {
                self.close(c, &format!("protocol error: {e}"));
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
        self.sockets.rbuf = rbuf;
        if let (Role::Pub(_), Stage::Ready) = (&c.role, c.st) {
            self.try_send(c);
        }
    }

    /// Handles packets, until one closes the connection. Keeps an incomplete one.
    ///
    /// # Errors
    /// An invalid packet.
    #[inline]
    fn handle(&mut self, c: &mut Connection, data: &[u8]) -> codec::Res<()> {
        let v5 = self.cfg.session.version.is_5();
        let generation = c.generation;
        let mut pos = 0;
        loop {
            let body = match codec::frame(&data[pos..])? {
                Frame::Have(h, b, e) => (h, &data[pos + b..pos + e], pos + e),
                Frame::Need(n) => {
                    c.need = n;
                    c.left.extend_from_slice(&data[pos..]);
                    return Ok(());
                }
            };
            let (h, body, end) = body;
            pos = end;
            match codec::parse(h, body, v5)? {
                Packet::Publish { dup, qos, retain, topic, pid, payload } => {
                    if self.on_publish(c, Delivery { qos, pid, dup, retain }) {
                        match self.cfg.plain {
                            Some(_) => self.on_plain(c, topic, payload),
                            None => self.on_checked(c, qos, payload),
                        }
                    }
                }
                p => self.on_packet(c, p),
            }
            if !c.is_open(generation) {
                return Ok(());
            }
        }
    }

    /// Appends data from TLS or the WebSocket to `plain`, and queues their answers.
    fn receive_layer(&mut self, c: &mut Connection, bytes: &[u8], plain: &mut Vec<u8>) {
        let Some(mut layer) = c.layer.take() else { return };
        let mut wire = vec![];
        let done = layer.receive(bytes, &mut self.rng, plain, &mut wire);
        if !wire.is_empty() {
            // Sealed bytes are sent first, plain ones after them.
            let buffer = self.sockets.out(c);
            let later = buffer.split_off(layer.sealed);
            buffer.extend_from_slice(&wire);
            layer.sealed = buffer.len();
            buffer.extend_from_slice(&later);
        }
        let open = layer.is_open();
        c.layer = Some(layer);
        match done {
            Err(why) => {
                self.flush(c);
                if c.fd >= 0 {
                    self.close(c, &why);
                }
            }
            Ok(()) if open && c.st == Stage::Layer => self.send_connect(c),
            Ok(()) => {}
        }
    }

    /// Acknowledges a message. Returns whether it is passed to the application.
    #[inline]
    fn on_publish(&mut self, c: &mut Connection, delivery: Delivery) -> bool {
        let cfg = &*self.cfg;
        let Delivery { qos, pid, dup, retain } = delivery;
        if !matches!(c.st, Stage::Ready | Stage::Suback(_)) {
            self.close(c, "protocol error: PUBLISH before CONNACK");
            return false;
        }
        match qos {
            0 => {}
            1 => codec::ack(self.sockets.out(c), codec::PUBACK, pid),
            _ => {
                codec::ack(self.sockets.out(c), codec::PUBREC, pid);
                let received = c.role.received();
                if !received.insert(pid) {
                    // The QoS 2 handshake hides this retransmission from the application.
                    self.tally.counts.q2_suppressed += 1;
                    return false;
                }
                if cfg.session.recv_max > 0 && received.count > cfg.session.recv_max as usize {
                    self.tally.counts.recv_max_exceeded += 1;
                }
            }
        }
        if dup {
            self.tally.counts.dup_flag += 1;
        }
        if retain {
            self.tally.counts.retain_flag += 1;
        }
        true
    }

    #[inline]
    fn on_checked(&mut self, c: &mut Connection, qos: u8, pl: &[u8]) {
        let now = self.now;
        let cfg = &*self.cfg;
        let Role::Sub(u) = &mut c.role else {
            self.tally.counts.unexpected += 1;
            return;
        };
        let Some(Tag { publisher: id, seq, at: ts }) = Tag::read(cfg.tag(), cfg.traffic.payload, pl) else {
            self.tally.counts.foreign += 1;
            return;
        };
        if pl.len() != cfg.traffic.payload || seq >= 1 << 36 || ts > now {
            self.tally.counts.corrupt += 1;
            return;
        }
        if cfg.checks.verify {
            let o = (seq & 255) as usize;
            let header = tag::length(cfg.traffic.payload);
            if pl[header..] != self.sending.pattern[o..o + pl.len() - header] {
                self.tally.counts.corrupt += 1;
                return;
            }
        }
        if qos != cfg.traffic.qos() {
            self.tally.counts.qos_wrong += 1;
        }
        let Some(i) = u.index_of(id) else {
            self.tally.counts.unexpected += 1;
            return;
        };
        self.tally.counts.recv += 1;
        self.tally.counts.recv_bytes += pl.len() as u64;
        let any = now - self.tally.last_recv.max(self.window.t0).min(now);
        if any > self.arrivals.any_gap.0 {
            self.arrivals.any_gap = (any, now - any);
        }
        self.tally.last_recv = now;
        let kind = if cfg.traffic.topology == Topology::Shared {
            self.arrivals.on_shared(u, i, seq, (now, self.window.t0))
        } else {
            u.streams[i].on(seq, now)
        };
        match kind {
            Kind::New => self.tally.counts.uniq += 1,
            Kind::Late => {
                self.tally.counts.uniq += 1;
                self.tally.counts.late += 1
            }
            Kind::Dup => {
                self.tally.counts.dup += 1;
                return;
            }
        }
        if self.window.contains(ts) {
            record(&mut self.tally.pulse.e2e, now - ts);
        }
    }

    fn on_packet(&mut self, c: &mut Connection, p: Packet) {
        match p {
            Packet::Ack { kind, pid, reason } => {
                if c.st == Stage::Ready {
                    self.on_ack(c, kind, pid, reason)
                } else {
                    self.close(c, "protocol error: acknowledgement before CONNACK")
                }
            }
            Packet::PingResp => c.ping_sent = 0,
            Packet::ConnAck { session_present, code, props } => {
                let session = if session_present { SessionState::Kept } else { SessionState::New };
                self.on_connack(c, session, code, &props)
            }
            Packet::SubAck { codes, .. } => self.on_suback(c, codes),
            Packet::Disconnect { reason } => {
                self.close(c, &format!("broker's DISCONNECT: {}", codec::reason_name(reason)))
            }
            Packet::UnsubAck => self.close(c, "protocol error: UNSUBACK not asked for"),
            Packet::Auth => self.close(c, "protocol error: AUTH not asked for"),
            Packet::Publish { .. } => unreachable!(),
        }
    }

    fn on_connack(&mut self, c: &mut Connection, session: SessionState, code: u8, props: &ConnAckProps) {
        let cfg = self.cfg.clone();
        let kept = session == SessionState::Kept;
        if c.st != Stage::Connack {
            return self.close(c, "protocol error: second CONNACK");
        }
        if code != 0 {
            let mut w = format!("connack refused: {}", codec::connack_name(cfg.session.version.is_5(), code));
            if let Some(r) = &props.reason {
                w += &format!(" ({r})");
            }
            return self.close(c, &w);
        }
        if kept && cfg.session.clean {
            return self.close(c, "protocol error: session present after a clean start");
        }
        if let Some(k) = props.server_keepalive {
            c.keepalive = k;
        }
        self.tally.counts.connacked += 1;
        record(&mut self.tally.hists.connack, self.now - c.t_sent);
        self.shared.times.last_connack.fetch_max(self.now, Relaxed);
        let again = c.ready_once;
        if again {
            self.tally.counts.sessions_resumed += kept as u64;
        }
        if !kept {
            *c.role.received() = Received::default();
        }
        if let Role::Pub(p) = &mut c.role {
            let max_qos = props.max_qos.unwrap_or(2);
            if max_qos < cfg.traffic.pub_qos {
                return self.close(c, &format!("broker's maximum QoS is {max_qos}"));
            }
            p.window = cfg.sending.window.min(props.receive_max.unwrap_or(65535) as usize);
        }
        if again && !cfg.session.clean && !kept {
            self.session_lost(c);
        }
        if again && kept {
            return self.ready(c, session);
        }
        self.subscribe(c);
    }

    fn session_lost(&mut self, c: &Connection) {
        let what = match c.side() {
            Side::Publisher => {
                self.tally.counts.sessions_lost_pub += 1;
                "publisher's session lost"
            }
            Side::Subscriber => {
                self.tally.counts.sessions_lost_sub += 1;
                "subscriber's session lost"
            }
        };
        self.event(c, what);
    }

    /// Subscribes in a new session. A client without filters is ready.
    fn subscribe(&mut self, c: &mut Connection) {
        let f = self.cfg.filters(c.side(), c.id);
        if f.is_empty() {
            return self.ready(c, SessionState::New);
        }
        c.t_sent = self.now;
        let (v5, qos) = (self.cfg.session.version.is_5(), self.cfg.traffic.sub_qos);
        let b = self.sockets.out(c);
        let mut n = 0;
        for g in f.chunks(256) {
            n += 1;
            codec::subscribe(b, v5, n as u16, g, qos);
        }
        c.st = Stage::Suback(n);
    }

    fn on_suback(&mut self, c: &mut Connection, codes: &[u8]) {
        let Stage::Suback(outstanding) = c.st else {
            return self.close(c, "protocol error: SUBACK not asked for");
        };
        for &k in codes {
            if k >= 0x80 {
                let v5 = self.cfg.session.version.is_5();
                let n = if v5 { codec::reason_name(k) } else { format!("0x{k:02x}") };
                return self.close(c, &format!("subscribe refused: {n}"));
            }
            if k != self.cfg.traffic.sub_qos {
                self.tally.counts.qos_downgraded += 1;
            }
        }
        c.st = Stage::Suback(outstanding - 1);
        if outstanding == 1 {
            record(&mut self.tally.hists.suback, self.now - c.t_sent);
            self.ready(c, SessionState::New);
        }
    }

    /// Marks a client as ready. `session` is what the broker had of the session of a client that connects again.
    fn ready(&mut self, c: &mut Connection, session: SessionState) {
        let now = self.now;
        c.st = Stage::Ready;
        c.attempt = 0;
        self.sockets.pending -= 1;
        self.tally.counts.up += 1;
        if let Some(churn) = self.cfg.presence.churn {
            let stay = drawn(churn.stay, &mut self.rng);
            self.timers.leaves.push(Reverse((now + stay, c.slot, c.generation)));
        }
        if c.ready_once {
            self.tally.counts.reconnects += 1;
            record(&mut self.tally.hists.reconnect, now - c.t_down);
            self.event(c, "connected again");
            self.retransmit(c, session, u64::MAX);
            if self.cfg.presence.churn.is_some() {
                self.reschedule(c);
            }
        } else {
            c.ready_once = true;
            self.shared.times.last_ready.fetch_max(now, Relaxed);
            record(&mut self.tally.pulse.ready, now - c.t_start);
            match c.role {
                Role::Pub(_) => self.tally.counts.ready_pubs += 1,
                Role::Sub(_) => self.tally.counts.ready_subs += 1,
            }
            if self.phase == Phase::Run && self.cfg.plain.is_some() {
                self.schedule(c);
            }
        }
    }
}
