//! Messages in the form of other load generators: a payload of any content, preceded by optional headers.

use crate::codec;
use crate::config::{Config, Side};
use crate::pace::Pace;
use crate::random::Random;
use crate::template::{Template, TemplateContext};
use serde::{Deserialize, Serialize};

/// Sending options of publishers of plain messages, and expectations of subscribers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plain {
    /// Every payload, without its headers.
    pub body: Body,
    pub headers: Headers,
    pub retain: bool,
    pub pace: Pace,
    /// Random time that a publisher waits before its first message, between the two.
    pub wait_ns: (u64, u64),
    /// Topic; messages of one publisher can have several.
    pub topic: Template,
    /// Seed of all random numbers.
    pub seed: u64,
}

/// Contents of a payload.
#[derive(Clone, Debug, PartialEq)]
pub enum Body {
    Fixed(Vec<u8>),
    /// A payload generated for each message.
    Generated(Template),
}

impl Default for Body {
    fn default() -> Body {
        Body::Fixed(vec![])
    }
}

/// Sender of a message: publisher `id` of this process. `head` has the topic when all of its messages share one.
#[derive(Clone, Copy)]
pub struct Sender<'a> {
    pub id: usize,
    pub head: &'a [u8],
}

/// Packet Identifier of a PUBLISH, and whether it was sent before.
#[derive(Clone, Copy)]
pub struct Attempt {
    pub pid: u16,
    pub dup: bool,
}

/// Headers of a payload, in the order of the list.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Headers(Vec<Header>);

#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum Header {
    /// 64 bits, big-endian: this publisher's message 0, 1, 2...
    Count,
    /// 64 bits, big-endian: milliseconds since 1970, as in emqtt-bench.
    Time,
    /// 64 bits, big-endian: nanoseconds since 1970.
    TimeNs,
}

const NS_PER_MS: u64 = 1_000_000;

/// A message's number and the wall-clock time at which it was due.
#[derive(Clone, Copy)]
pub struct Stamp {
    pub seq: u64,
    pub wall: u64,
}

/// Values of a payload's headers.
#[derive(Debug, Default, PartialEq)]
pub struct HeaderValues {
    pub count: Option<u64>,
    /// Nanoseconds since 1970.
    pub time: Option<u64>,
}

impl Headers {
    /// Parses a list such as `cnt64,ts`.
    ///
    /// # Errors
    /// A name that is unknown, or that occurs twice.
    pub fn parse(list: &str) -> Result<Headers, String> {
        let mut headers = vec![];
        for name in list.split(',').map(str::trim).filter(|name| !name.is_empty()) {
            let header = match name {
                "cnt64" => Header::Count,
                "ts" => Header::Time,
                "tsns" => Header::TimeNs,
                _ => {
                    return Err(format!(
                        "`{name}` is not a payload header: use cnt64, ts (milliseconds) or tsns \
                             (nanoseconds), or several: cnt64,ts"
                    ));
                }
            };
            if headers.contains(&header) {
                return Err(format!("`{name}` is there twice"));
            }
            headers.push(header);
        }
        Ok(Headers(headers))
    }

    /// Size in bytes.
    pub fn len(&self) -> usize {
        self.0.len() * 8
    }

    pub fn has_time(&self) -> bool {
        self.0.iter().any(|header| *header != Header::Count)
    }

    #[cfg(test)]
    fn has_count(&self) -> bool {
        self.0.contains(&Header::Count)
    }

    fn put(&self, b: &mut Vec<u8>, at: Stamp) {
        for header in &self.0 {
            let value = match header {
                Header::Count => at.seq,
                Header::Time => at.wall / NS_PER_MS,
                Header::TimeNs => at.wall,
            };
            b.extend_from_slice(&value.to_be_bytes());
        }
    }

    /// Reads the headers; `None` when the payload is too short to have them.
    pub fn find(&self, payload: &[u8]) -> Option<HeaderValues> {
        let mut values = HeaderValues::default();
        for (header, value) in self.0.iter().zip(payload.get(..self.len())?.as_chunks::<8>().0) {
            let value = Some(u64::from_be_bytes(*value));
            match header {
                Header::Count => values.count = value,
                Header::Time => values.time = value.map(|ms| ms.saturating_mul(NS_PER_MS)),
                Header::TimeNs => values.time = value,
            }
        }
        Some(values)
    }
}

impl Plain {
    /// Number of bytes of a payload with its headers; of a generated payload, those of the headers.
    pub fn payload(&self) -> usize {
        let body = match &self.body {
            Body::Fixed(bytes) => bytes.len(),
            Body::Generated(_) => 0,
        };
        self.headers.len() + body
    }

    /// Returns whether each message has its own packet head.
    fn varies(&self) -> bool {
        self.topic.varies() || matches!(self.body, Body::Generated(_))
    }

    pub fn encode(&self, b: &mut Vec<u8>, cfg: &Config, sender: Sender, attempt: Attempt, at: Stamp) {
        let flags = if attempt.dup { codec::DUP } else { 0 } | if self.retain { codec::RETAIN } else { 0 };
        let pid = attempt.pid;
        match &self.body {
            Body::Fixed(body) if !self.varies() => {
                codec::publish_start(b, cfg.properties(), cfg.traffic.pub_qos, flags, sender.head, pid);
                self.headers.put(b, at);
                b.extend_from_slice(body);
            }
            body => {
                let number = sender.id + cfg.identity.start;
                let (client_id, username) =
                    (cfg.client_id(Side::Publisher, sender.id), cfg.username(sender.id));
                let username = username.as_deref().unwrap_or("");
                let of = TemplateContext { number, client_id: &client_id, username, message: at };
                let mut random = Random::of([self.seed, number as u64, at.seq]);
                let mut topic = vec![];
                self.topic.fill(of, &mut random, &mut topic);
                let mut made = vec![];
                let body = match body {
                    Body::Fixed(body) => body,
                    Body::Generated(template) => {
                        template.fill(of, &mut random, &mut made);
                        &made
                    }
                };
                let topic = String::from_utf8_lossy(&topic);
                let size = self.headers.len() + body.len();
                let head = codec::publish_head(cfg.properties(), cfg.traffic.pub_qos, &topic, size);
                codec::publish_start(b, cfg.properties(), cfg.traffic.pub_qos, flags, &head, pid);
                self.headers.put(b, at);
                b.extend_from_slice(body);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_read_in_the_order_of_the_list() {
        let at = Stamp { seq: 3, wall: 1_700_000_000_123_456_789 };
        for (list, len) in [("cnt64,ts", 16), ("ts,cnt64", 16), ("ts", 8), ("tsns", 8), ("cnt64", 8), ("", 0)]
        {
            let headers = Headers::parse(list).unwrap();
            let mut payload = vec![];
            headers.put(&mut payload, at);
            assert_eq!(payload.len(), len);
            assert_eq!(headers.len(), len);
            payload.extend_from_slice(b"body");
            let values = headers.find(&payload).unwrap();
            assert_eq!(values.count, headers.has_count().then_some(3), "{list}");
            let time = if list == "tsns" { at.wall } else { 1_700_000_000_123_000_000 };
            assert_eq!(values.time, headers.has_time().then_some(time), "{list}");
        }
        assert_eq!(Headers::parse("cnt64,ts").unwrap().find(&[0; 15]), None);
    }

    /// The counter, then milliseconds since 1970: 64 bits each, big-endian.
    #[test]
    fn the_wire_format_is_that_of_emqtt_bench() {
        let mut payload = vec![];
        Headers::parse("cnt64,ts")
            .unwrap()
            .put(&mut payload, Stamp { seq: 258, wall: 1_700_000_000_123_456_789 });
        assert_eq!(payload, [0, 0, 0, 0, 0, 0, 1, 2, 0, 0, 0x01, 0x8b, 0xcf, 0xe5, 0x68, 0x7b]);
    }

    #[test]
    fn other_headers_are_refused() {
        assert!(Headers::parse("cnt32").unwrap_err().contains("use cnt64"));
        assert!(Headers::parse("ts,ts").unwrap_err().contains("twice"));
    }
}
