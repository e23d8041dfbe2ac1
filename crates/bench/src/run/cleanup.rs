//! Removes the persistent sessions of a run.

use crate::codec;
use crate::config::{Config, Side};
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::time::Duration;

/// Ends the persistent sessions: connects once more with a clean session, then disconnects.
pub fn cleanup(cfg: &Config) {
    let until = std::time::Instant::now() + Duration::from_secs(20);
    let mut all: Vec<(String, &Vec<SocketAddr>, usize)> = vec![];
    for i in 0..cfg.traffic.n_sub {
        all.push((cfg.client_id(Side::Subscriber, i), &cfg.network.sub_hosts, i));
    }
    for i in 0..cfg.traffic.n_pub {
        all.push((cfg.client_id(Side::Publisher, i), &cfg.network.pub_hosts, i));
    }
    for (id, hosts, i) in all {
        for k in 0..hosts.len() {
            if std::time::Instant::now() > until {
                return;
            }
            let to = hosts[(i + k) % hosts.len()];
            let r = (|| -> std::io::Result<()> {
                let mut s = std::net::TcpStream::connect_timeout(&to, Duration::from_millis(500))?;
                s.set_read_timeout(Some(Duration::from_secs(1)))?;
                let mut b = vec![];
                codec::connect(
                    &mut b,
                    &codec::ConnectOpts {
                        version: cfg.session.version,
                        clean: true,
                        keepalive: 10,
                        client_id: &id,
                        user: cfg.identity.user.as_deref(),
                        pass: cfg.identity.pass.as_deref(),
                        expiry: 0,
                        ..codec::ConnectOpts::default()
                    },
                );
                s.write_all(&b)?;
                let mut x = [0u8; 4];
                s.read_exact(&mut x)?;
                s.write_all(&[0xe0, 0])?;
                Ok(())
            })();
            if r.is_ok() {
                break;
            }
        }
    }
}
