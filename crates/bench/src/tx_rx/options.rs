//! Options of `tx-rx`.

use crate::codec::Version;
use crate::config::SetupError;
use crate::config::from_args::resolve;
use crate::plan::with_ports;
use crate::tag;
use crate::target::Target;
use clap::Args;
use std::fmt;
use std::net::SocketAddr;

/// Options as they are typed.
#[derive(Debug, Args)]
pub struct Options {
    #[command(flatten)]
    target: Target,
    /// Another broker, or two nodes of another cluster, measured in alternation; differences are in percent of its
    /// figures
    #[arg(long, value_delimiter = ',', num_args = 1)]
    against: Vec<String>,
    /// Payload sizes, in bytes or with KiB or MiB; 16 bytes and more
    #[arg(long, visible_alias = "sizes", short = 's', default_value = "100,64KiB", value_delimiter = ',', value_parser = size)]
    size: Vec<usize>,
    #[arg(long, short = 'q', default_value = "0,1,2", value_delimiter = ',', value_parser = clap::value_parser!(u8).range(0..=2))]
    qos: Vec<u8>,
    /// Messages per second; 0: as fast as possible
    #[arg(long, short = 'R', default_value_t = 0)]
    rate: u32,
    /// Maximum number of messages in flight at QoS 1 and 2; the broker's Receive Maximum applies as well
    #[arg(long, short = 'F', visible_alias = "inflight", default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=60_000))]
    window: u32,
    /// Number of messages of each measurement (default: 50,000, or 256 MiB where that is less)
    #[arg(long, short = 'L', value_parser = clap::value_parser!(u64).range(1..=1_000_000_000))]
    messages: Option<u64>,
    /// Number of measurements of each row; the median is shown (default: 1, and 3 with --against)
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: Option<u32>,
    /// Maximum time of one measurement, in seconds
    #[arg(long, default_value_t = 120, value_parser = clap::value_parser!(u32).range(1..=86_400))]
    max_time: u32,
}

/// A run, complete before the first connection.
pub struct Plan {
    pub ends: Ends,
    pub against: Option<Ends>,
    pub version: Version,
    pub sizes: Vec<usize>,
    pub qos: Vec<u8>,
    pub rate: u32,
    pub window: usize,
    /// Number of messages; `None`: by size.
    pub messages: Option<u64>,
    pub rounds: usize,
    /// Maximum time in seconds.
    pub max_time: u32,
    pub username: Option<String>,
    pub password: Option<String>,
    pub json: bool,
    pub quiet: bool,
}

impl Plan {
    /// Number of messages of a measurement with this payload.
    pub fn messages(&self, size: usize) -> u64 {
        self.messages.unwrap_or((BYTES / size as u64).clamp(1, MESSAGES))
    }
}

/// Hosts of the publisher and the subscriber.
#[derive(Clone, Debug, PartialEq)]
pub struct Ends {
    pub publisher: SocketAddr,
    pub subscriber: SocketAddr,
}

impl fmt::Display for Ends {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        match self.publisher == self.subscriber {
            true => self.publisher.fmt(f),
            false => write!(f, "{} to {}", self.publisher, self.subscriber),
        }
    }
}

impl Ends {
    fn new(hosts: &[SocketAddr]) -> Result<Ends, SetupError> {
        match hosts {
            [one] => Ok(Ends { publisher: *one, subscriber: *one }),
            [publisher, subscriber] => Ok(Ends { publisher: *publisher, subscriber: *subscriber }),
            _ => Err(SetupError::NotTwoEnds(hosts.len())),
        }
    }
}

const MESSAGES: u64 = 50_000;
const BYTES: u64 = 256 << 20;

/// Parses a size: `100`, `64KiB`, `1MiB`.
fn size(text: &str) -> Result<usize, String> {
    let (digits, unit) = match text.find(|c: char| !c.is_ascii_digit()) {
        Some(at) => (&text[..at], text[at..].trim()),
        None => (text, ""),
    };
    let factor = match unit {
        "" | "B" => 1,
        "KiB" | "k" | "K" => 1024,
        "MiB" | "M" => 1024 * 1024,
        _ => return Err(format!("`{unit}` is not a unit: use B, KiB or MiB")),
    };
    let size = digits.parse::<usize>().ok().and_then(|number| number.checked_mul(factor));
    match size {
        Some(size) if (tag::SHORT..=256 << 20).contains(&size) => Ok(size),
        _ => Err(format!("a size is between {} B, which the tool needs for itself, and 256 MiB", tag::SHORT)),
    }
}

impl Options {
    /// Plans the run.
    ///
    /// # Errors
    /// Hosts without an address, and more than two of them.
    pub fn plan(self) -> Result<Plan, SetupError> {
        let against = match self.against.is_empty() {
            true => None,
            false => Some(Ends::new(&resolve(&with_ports(&self.against, self.target.port), true)?)?),
        };
        Ok(Plan {
            ends: Ends::new(&self.target.hosts()?)?,
            rounds: self.rounds.unwrap_or(if against.is_some() { 3 } else { 1 }) as usize,
            against,
            version: self.target.version(),
            sizes: self.size,
            qos: self.qos,
            rate: self.rate,
            window: self.window as usize,
            messages: self.messages,
            max_time: self.max_time,
            username: self.target.login.username,
            password: self.target.login.password.map(|secret| secret.0),
            json: self.target.json,
            quiet: self.target.quiet,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    #[command(disable_help_flag = true)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn plan(line: &str) -> Result<Plan, String> {
        let words = std::iter::once("tx-rx").chain(line.split_whitespace());
        let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
        line.options.plan().map_err(|error| error.to_string())
    }

    #[test]
    fn the_defaults_are_the_published_experiment() {
        let plan = plan("-h 127.0.0.1").unwrap();
        assert_eq!([100, 65_536].map(|size| plan.messages(size)), [50_000, 4096]);
        assert_eq!((plan.sizes, plan.qos, plan.rate, plan.rounds), (vec![100, 65_536], vec![0, 1, 2], 0, 1));
        assert_eq!(plan.ends.to_string(), "127.0.0.1:1883");
    }

    #[test]
    fn two_hosts_are_two_ends() {
        let plan = plan("-h 127.0.0.1:7,127.0.0.2 --against 127.0.0.3 -p 9 -s 16,2KiB,1MiB -q 1").unwrap();
        assert_eq!(plan.ends.to_string(), "127.0.0.1:7 to 127.0.0.2:9");
        assert_eq!((plan.against.unwrap().to_string(), plan.rounds), ("127.0.0.3:9".to_owned(), 3));
        assert_eq!((plan.sizes, plan.qos), (vec![16, 2048, 1 << 20], vec![1]));
    }

    #[test]
    fn impossible_options_are_refused_with_advice() {
        for (line, expected) in [
            ("-h 127.0.0.1,127.0.0.2,127.0.0.3", "one host or two"),
            ("-s 15", "between 16 B"),
            ("-s 5GB", "use B, KiB or MiB"),
            ("-s 99999999999999999999", "between"),
            ("-q 3", "0..=2"),
            ("-V 3", "4..=5"),
        ] {
            let text = plan(line).err().unwrap_or_default();
            assert!(text.contains(expected), "{line}: {text}");
        }
    }
}
