//! Conversion from the command line to a [`Config`].

use super::{
    Checks, Config, Connecting, Identity, LatencyFrom, Network, Ping, Reconnect, Sending, SessionOptions,
    SetupError, Threads, Traffic,
};
use crate::args::{CommonArgs, ConnectionsArgs, FlowArgs, HaArgs, ProbeArgs, PubsubArgs, SubscribeArgs};
use crate::codec::Version;
use crate::plan::Presence;
use crate::tag;
use crate::topology::Topology;
use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};

impl Config {
    pub fn connections(a: &ConnectionsArgs, run_id: u16) -> Result<Config, SetupError> {
        let mut cfg = Config::base(&a.common, run_id)?;
        cfg.keep_sessions(a.clean, &a.common);
        cfg.connecting.rate = a.rate;
        cfg.traffic.n_sub = a.count;
        Ok(cfg)
    }

    pub fn subscribe(a: &SubscribeArgs, run_id: u16) -> Result<Config, SetupError> {
        let mut cfg = Config::connections(&a.connections, run_id)?;
        cfg.traffic.sub_topics = a.topic.clone();
        cfg.traffic.per_conn = a.per_conn.max(1);
        if a.qos > 2 {
            return Err(SetupError::NoSuchQos(a.qos));
        }
        cfg.traffic.sub_qos = a.qos;
        Ok(cfg)
    }

    pub fn pubsub(a: &PubsubArgs, run_id: u16) -> Result<Config, SetupError> {
        let mut cfg = Config::base(&a.common, run_id)?;
        cfg.set_flow(&a.flow)?;
        cfg.sending.rate = a.rate;
        cfg.sending.messages = a.messages;
        cfg.sending.max_outstanding = a.max_outstanding;
        cfg.keep_sessions(a.clean, &a.common);
        Ok(cfg)
    }

    fn keep_sessions(&mut self, clean: bool, common: &CommonArgs) {
        self.session.clean = clean;
        if !clean && self.session.version.is_5() && common.session_expiry.is_none() {
            self.session.expiry = 3600;
        }
    }

    pub fn probe(a: &ProbeArgs, run_id: u16) -> Result<Config, SetupError> {
        let mut cfg = Config::base(&a.common, run_id)?;
        cfg.set_flow(&a.flow)?;
        cfg.sending.rate = a.rate.max(0.1);
        cfg.checks.verify = true;
        Ok(cfg)
    }

    /// Configuration of persistent sessions that are resumed after every disconnect.
    pub fn ha(a: &HaArgs, run_id: u16) -> Result<Config, SetupError> {
        let mut cfg = Config::base(&a.common, run_id)?;
        cfg.set_flow(&a.flow)?;
        if cfg.traffic.pub_qos == 0 {
            cfg.traffic.pub_qos = 1;
            cfg.traffic.sub_qos = a.flow.sub_qos.unwrap_or(1);
        }
        cfg.sending.rate = a.rate.max(0.1);
        cfg.checks.verify = true;
        cfg.session.clean = false;
        cfg.checks.latency_from = LatencyFrom::Due;
        if cfg.session.version.is_5() && a.common.session_expiry.is_none() {
            cfg.session.expiry = 3600;
        }
        cfg.session.keepalive = a.common.keepalive.unwrap_or(10);
        cfg.connecting.reconnect = Reconnect::Unlimited;
        cfg.connecting.backoff_ms = a.backoff_ms.max(1);
        cfg.connecting.backoff_max_ms = a.backoff_max_ms.max(a.backoff_ms.max(1));
        cfg.ping.idle_rx_ms = a.ping_idle_ms;
        cfg.ping.timeout_ms = a.common.ping_timeout.map(|s| (s * 1000.0) as u64).unwrap_or(2000);
        cfg.checks.log_events = true;
        cfg.connecting.timeout_ms = cfg.connecting.timeout_ms.min(3000);
        Ok(cfg)
    }

    /// Configuration of `common`, without any work yet.
    fn base(c: &CommonArgs, run_id: u16) -> Result<Config, SetupError> {
        let hosts = resolve(&c.host, c.allow_remote)?;
        let pick =
            |l: &Vec<String>| if l.is_empty() { Ok(hosts.clone()) } else { resolve(l, c.allow_remote) };
        let prefix = c.clientid_prefix.clone().unwrap_or(format!("mqload-{run_id:04x}-"));
        let keepalive = c.keepalive.unwrap_or(60);
        let mut cfg = Config::idle(run_id);
        cfg.threads = Threads { count: c.threads.max(1), pin: c.pin.clone() };
        cfg.network = Network {
            pub_hosts: pick(&c.pub_host)?,
            sub_hosts: pick(&c.sub_host)?,
            binds: c.bind.clone(),
            sndbuf: c.sndbuf,
            rcvbuf: c.rcvbuf,
            ..Network::default()
        };
        cfg.identity = Identity {
            user: c.username.clone(),
            pass: c.password.clone(),
            sub_prefix: prefix.clone(),
            pub_prefix: prefix,
            ..Identity::default()
        };
        cfg.session.version = if c.version == 5 { Version::V5 } else { Version::V311 };
        cfg.session.keepalive = keepalive;
        cfg.session.expiry = c.session_expiry.unwrap_or(0);
        cfg.session.recv_max = c.receive_maximum;
        cfg.connecting.concurrency = c.concurrency.max(1);
        cfg.connecting.timeout_ms = (c.connect_timeout * 1000.0) as u64;
        cfg.ping.timeout_ms =
            c.ping_timeout.map(|s| (s * 1000.0) as u64).unwrap_or(keepalive.max(1) as u64 * 1000);
        Ok(cfg)
    }

    /// Configuration without clients and messages.
    pub(crate) fn idle(run_id: u16) -> Config {
        Config {
            run_id,
            threads: Threads { count: 1, pin: vec![] },
            network: Network::default(),
            identity: Identity::default(),
            session: SessionOptions {
                version: Version::V311,
                keepalive: 60,
                clean: true,
                expiry: 0,
                recv_max: 0,
                properties: vec![],
                will: None,
            },
            connecting: Connecting {
                rate: 0.0,
                concurrency: 100,
                timeout_ms: 10_000,
                reconnect: Reconnect::Limited { first: 0, later: 0 },
                backoff_ms: 0,
                backoff_max_ms: 0,
            },
            ping: Ping { idle_rx_ms: 0, timeout_ms: 60_000 },
            presence: Presence::default(),
            traffic: Traffic {
                n_sub: 0,
                n_pub: 0,
                sub_topics: vec![],
                per_conn: 1,
                pub_topic: String::new(),
                topology: Topology::OneToOne,
                groups: 1,
                pub_qos: 0,
                sub_qos: 0,
                payload: tag::LONG,
                properties: vec![],
            },
            sending: Sending {
                rate: 0.0,
                window: 1,
                messages: 0,
                max_outstanding: 0,
                tick_ns: 1_000_000,
                coalesce_ns: 0,
                chunk: 65536,
                retry_ns: 0,
            },
            checks: Checks { latency_from: LatencyFrom::Send, verify: false, log_events: false },
            plain: None,
        }
    }

    /// Sets publishers and subscribers, their topics and their sending options.
    fn set_flow(&mut self, f: &FlowArgs) -> Result<(), SetupError> {
        let r = format!("mqload/{:04x}", self.run_id);
        self.traffic.topology = f.topology;
        let (p, s) = match self.traffic.topology {
            Topology::OneToOne => (format!("{r}/%i"), format!("{r}/%i")),
            Topology::FanIn => (format!("{r}/%j/%i"), format!("{r}/%i/+")),
            Topology::FanOut => (format!("{r}/%i"), format!("{r}/%j")),
            Topology::All => (format!("{r}/%i"), format!("{r}/+")),
            Topology::Shared => (format!("{r}/%i"), format!("$share/g%j-%r/{r}/+")),
        };
        self.traffic.pub_topic = f.pub_topic.clone().unwrap_or(p);
        self.traffic.sub_topics = vec![f.sub_topic.clone().unwrap_or(s)];
        self.traffic.n_pub = f.pubs;
        self.traffic.n_sub = f.subs;
        self.traffic.groups =
            if self.traffic.topology == Topology::Shared { f.groups.clamp(1, f.subs.max(1)) } else { 1 };
        if self.traffic.topology == Topology::OneToOne && f.pubs != f.subs && f.pubs > 0 && f.subs > 0 {
            return Err(SetupError::UnequalPairs { pubs: f.pubs, subs: f.subs });
        }
        self.traffic.pub_qos = f.qos;
        self.traffic.sub_qos = f.sub_qos.unwrap_or(f.qos);
        if let Some(&qos) = [self.traffic.pub_qos, self.traffic.sub_qos].iter().find(|q| **q > 2) {
            return Err(SetupError::NoSuchQos(qos));
        }
        let least = if f.pubs > tag::SHORT_PUBLISHERS { tag::LONG } else { tag::SHORT };
        self.traffic.payload = f.payload.max(least);
        self.sending.window = f.inflight.clamp(1, 60000);
        self.connecting.rate = f.connect_rate;
        self.checks.verify = f.verify;
        self.checks.latency_from = if f.latency_from == "due" { LatencyFrom::Due } else { LatencyFrom::Send };
        self.sending.tick_ns = f.tick_us.max(10) * 1000;
        self.sending.coalesce_ns = f.coalesce_us * 1000;
        self.sending.chunk = f.chunk.unwrap_or(((4 << 20) / f.pubs.max(1)).clamp(4096, 65536));
        let p = self.identity.sub_prefix.clone();
        self.identity.sub_prefix = format!("{p}s");
        self.identity.pub_prefix = format!("{p}p");
        Ok(())
    }
}

/// Resolves hosts such as `localhost`, `example.org:1884`, `::1` and `[::1]:1884`; 1883 is the default port.
pub(crate) fn resolve(list: &[String], allow_remote: bool) -> Result<Vec<SocketAddr>, SetupError> {
    let mut v = vec![];
    for h in list {
        let h = h.trim().trim_start_matches("mqtt://");
        let full = with_port(h, 1883);
        let found: Vec<SocketAddr> = full.to_socket_addrs().map(Iterator::collect).unwrap_or_default();
        // Servers most likely listen on the IPv4 address of a name with both kinds.
        let a = found.iter().find(|a| a.is_ipv4()).or(found.first()).copied();
        match a {
            Some(a) if allow_remote || a.ip().is_loopback() => v.push(a),
            Some(a) => return Err(SetupError::NotLoopback(a)),
            None => return Err(SetupError::NoAddress(full)),
        }
    }
    Ok(v)
}

/// Appends `port` to `host` unless it has one; an IPv6 address gets its brackets.
pub(crate) fn with_port(host: &str, port: u16) -> String {
    match host.parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]:{port}"),
        Err(_) if host.starts_with('[') && host.ends_with(']') => format!("{host}:{port}"),
        Err(_) if host.contains(':') => host.to_owned(),
        Err(_) => format!("{host}:{port}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Command;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(subcommand)]
        command: Command,
    }

    fn pubsub(words: &str) -> Config {
        let line = std::iter::once("mqload").chain(words.split_whitespace());
        match Line::parse_from(line).command {
            Command::Pubsub(args) => Config::pubsub(&args, 1).unwrap(),
            _ => panic!("not pubsub"),
        }
    }

    #[test]
    fn sessions_of_pubsub_are_kept_on_request() {
        let kept = pubsub("pubsub --clean false");
        assert_eq!((kept.session.clean, kept.session.expiry), (false, 0));
        let kept = pubsub("pubsub -V 5 --clean false");
        assert_eq!((kept.session.clean, kept.session.expiry), (false, 3600));
        let usual = pubsub("pubsub -V 5");
        assert_eq!((usual.session.clean, usual.session.expiry), (true, 0));
    }
}
