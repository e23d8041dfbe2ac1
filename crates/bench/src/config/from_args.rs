//! Conversion from the command line to a [`Config`].

use super::{Config, SetupError};
use crate::args::{CommonArgs, ConnectionsArgs, FlowArgs, HaArgs, ProbeArgs, PubsubArgs, SubscribeArgs};
use crate::layer::Layers;
use crate::tag;
use crate::topology::Topology;
use std::net::{Ipv6Addr, SocketAddr, ToSocketAddrs};

impl Config {
    pub fn connections(a: &ConnectionsArgs, run_id: u16) -> Result<Config, SetupError> {
        let mut cfg = Config::base(&a.common, run_id)?;
        cfg.keep_sessions(a.clean, &a.common);
        cfg.conn_rate = a.rate;
        cfg.n_sub = a.count;
        Ok(cfg)
    }

    pub fn subscribe(a: &SubscribeArgs, run_id: u16) -> Result<Config, SetupError> {
        let mut cfg = Config::connections(&a.connections, run_id)?;
        cfg.sub_topics = a.topic.clone();
        cfg.per_conn = a.per_conn.max(1);
        if a.qos > 2 {
            return Err(SetupError::NoSuchQos(a.qos));
        }
        cfg.sub_qos = a.qos;
        Ok(cfg)
    }

    pub fn pubsub(a: &PubsubArgs, run_id: u16) -> Result<Config, SetupError> {
        let mut cfg = Config::base(&a.common, run_id)?;
        cfg.set_flow(&a.flow)?;
        cfg.rate = a.rate;
        cfg.messages = a.messages;
        cfg.max_outstanding = a.max_outstanding;
        cfg.keep_sessions(a.clean, &a.common);
        Ok(cfg)
    }

    fn keep_sessions(&mut self, clean: bool, common: &CommonArgs) {
        self.clean = clean;
        if !clean && self.v5 && common.session_expiry.is_none() {
            self.expiry = 3600;
        }
    }

    pub fn probe(a: &ProbeArgs, run_id: u16) -> Result<Config, SetupError> {
        let mut cfg = Config::base(&a.common, run_id)?;
        cfg.set_flow(&a.flow)?;
        cfg.rate = a.rate.max(0.1);
        cfg.verify = true;
        Ok(cfg)
    }

    /// Configuration of persistent sessions that are resumed after every disconnect.
    pub fn ha(a: &HaArgs, run_id: u16) -> Result<Config, SetupError> {
        let mut cfg = Config::base(&a.common, run_id)?;
        cfg.set_flow(&a.flow)?;
        if cfg.pub_qos == 0 {
            cfg.pub_qos = 1;
            cfg.sub_qos = a.flow.sub_qos.unwrap_or(1);
        }
        cfg.rate = a.rate.max(0.1);
        cfg.verify = true;
        cfg.clean = false;
        cfg.from_due = true;
        if cfg.v5 && a.common.session_expiry.is_none() {
            cfg.expiry = 3600;
        }
        cfg.keepalive = a.common.keepalive.unwrap_or(10);
        cfg.reconnect = true;
        cfg.backoff_ms = a.backoff_ms.max(1);
        cfg.backoff_max_ms = a.backoff_max_ms.max(a.backoff_ms.max(1));
        cfg.ping_idle_rx_ms = a.ping_idle_ms;
        cfg.ping_timeout_ms = a.common.ping_timeout.map(|s| (s * 1000.0) as u64).unwrap_or(2000);
        cfg.log_events = true;
        cfg.connect_timeout_ms = cfg.connect_timeout_ms.min(3000);
        Ok(cfg)
    }

    /// Configuration of `common`, without any work yet.
    fn base(c: &CommonArgs, run_id: u16) -> Result<Config, SetupError> {
        let hosts = resolve(&c.host, c.allow_remote)?;
        let pick =
            |l: &Vec<String>| if l.is_empty() { Ok(hosts.clone()) } else { resolve(l, c.allow_remote) };
        let prefix = c.clientid_prefix.clone().unwrap_or(format!("mqload-{run_id:04x}-"));
        let keepalive = c.keepalive.unwrap_or(60);
        Ok(Config {
            v5: c.version == 5,
            keepalive,
            expiry: c.session_expiry.unwrap_or(0),
            recv_max: c.receive_maximum,
            user: c.username.clone(),
            pass: c.password.clone(),
            sub_prefix: prefix.clone(),
            pub_prefix: prefix,
            pub_hosts: pick(&c.pub_host)?,
            sub_hosts: pick(&c.sub_host)?,
            binds: c.bind.clone(),
            threads: c.threads.max(1),
            pin: c.pin.clone(),
            concurrency: c.concurrency.max(1),
            connect_timeout_ms: (c.connect_timeout * 1000.0) as u64,
            ping_timeout_ms: c
                .ping_timeout
                .map(|s| (s * 1000.0) as u64)
                .unwrap_or(keepalive.max(1) as u64 * 1000),
            sndbuf: c.sndbuf,
            rcvbuf: c.rcvbuf,
            ..Config::idle(run_id)
        })
    }

    /// Configuration without clients and messages.
    pub(crate) fn idle(run_id: u16) -> Config {
        Config {
            v5: false,
            v31: false,
            keepalive: 60,
            clean: true,
            expiry: 0,
            recv_max: 0,
            user: None,
            pass: None,
            sub_prefix: String::new(),
            pub_prefix: String::new(),
            exact_id: false,
            pub_hosts: vec![],
            sub_hosts: vec![],
            binds: vec![],
            threads: 1,
            pin: vec![],
            conn_rate: 0.0,
            concurrency: 100,
            connect_timeout_ms: 10_000,
            ping_idle_rx_ms: 0,
            ping_timeout_ms: 60_000,
            sndbuf: 0,
            rcvbuf: 0,
            reconnect: false,
            backoff_ms: 0,
            backoff_max_ms: 0,
            connect_retries: 0,
            reconnects: 0,
            log_events: false,
            churn: None,
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
            rate: 0.0,
            window: 1,
            messages: 0,
            max_outstanding: 0,
            from_due: false,
            verify: false,
            tick_ns: 1_000_000,
            coalesce_ns: 0,
            chunk: 65536,
            run_id,
            start: 0,
            offset: 0,
            plain: None,
            layers: Layers::default(),
            message_properties: vec![],
            connect_properties: vec![],
            will: None,
            vanish: false,
            retry_ns: 0,
        }
    }

    /// Sets publishers and subscribers, their topics and their sending options.
    fn set_flow(&mut self, f: &FlowArgs) -> Result<(), SetupError> {
        let r = format!("mqload/{:04x}", self.run_id);
        self.topology = f.topology;
        let (p, s) = match self.topology {
            Topology::OneToOne => (format!("{r}/%i"), format!("{r}/%i")),
            Topology::FanIn => (format!("{r}/%j/%i"), format!("{r}/%i/+")),
            Topology::FanOut => (format!("{r}/%i"), format!("{r}/%j")),
            Topology::All => (format!("{r}/%i"), format!("{r}/+")),
            Topology::Shared => (format!("{r}/%i"), format!("$share/g%j-%r/{r}/+")),
        };
        self.pub_topic = f.pub_topic.clone().unwrap_or(p);
        self.sub_topics = vec![f.sub_topic.clone().unwrap_or(s)];
        self.n_pub = f.pubs;
        self.n_sub = f.subs;
        self.groups = if self.topology == Topology::Shared { f.groups.clamp(1, f.subs.max(1)) } else { 1 };
        if self.topology == Topology::OneToOne && f.pubs != f.subs && f.pubs > 0 && f.subs > 0 {
            return Err(SetupError::UnequalPairs { pubs: f.pubs, subs: f.subs });
        }
        self.pub_qos = f.qos;
        self.sub_qos = f.sub_qos.unwrap_or(f.qos);
        if let Some(&qos) = [self.pub_qos, self.sub_qos].iter().find(|q| **q > 2) {
            return Err(SetupError::NoSuchQos(qos));
        }
        let least = if f.pubs > tag::SHORT_PUBLISHERS { tag::LONG } else { tag::SHORT };
        self.payload = f.payload.max(least);
        self.window = f.inflight.clamp(1, 60000);
        self.conn_rate = f.connect_rate;
        self.verify = f.verify;
        self.from_due = f.latency_from == "due";
        self.tick_ns = f.tick_us.max(10) * 1000;
        self.coalesce_ns = f.coalesce_us * 1000;
        self.chunk = f.chunk.unwrap_or(((4 << 20) / f.pubs.max(1)).clamp(4096, 65536));
        let p = self.sub_prefix.clone();
        self.sub_prefix = format!("{p}s");
        self.pub_prefix = format!("{p}p");
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
        assert_eq!((kept.clean, kept.expiry), (false, 0));
        let kept = pubsub("pubsub -V 5 --clean false");
        assert_eq!((kept.clean, kept.expiry), (false, 3600));
        let usual = pubsub("pubsub -V 5");
        assert_eq!((usual.clean, usual.expiry), (true, 0));
    }
}
