//! The command `meridian pub`.

use std::collections::HashMap;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::AsFd as _;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use clap::{ArgGroup, Args};
use mqtt::{Ack, Packet, PacketId, Properties, PropertiesBuf, Property, Publish, QoS, ReasonCode, TopicName};

use super::args::{ConnectArgs, qos};
use super::connection::{Connection, Event};
use super::property;
use super::{Failure, report};
use crate::signals;

/// Publish messages. Exits with 0 when the broker has received all of them (QoS 1 and 2: acknowledged), 1 on a
/// failure of network or files, 2 for a wrong command line, 3 when the broker refuses
#[derive(Args, Debug)]
#[command(disable_help_flag = true)]
#[command(group(ArgGroup::new("what").required(true).args(["message", "file", "stdin_lines", "stdin_whole", "null"])))]
pub struct PubArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Topic
    #[arg(short, long, required_unless_present = "url")]
    topic: Option<String>,
    /// Send this message
    #[arg(short, long, allow_hyphen_values = true)]
    message: Option<String>,
    /// Send the contents of a file as the message
    #[arg(short, long)]
    file: Option<PathBuf>,
    /// Send each line of standard input as a message
    #[arg(short = 'l', long)]
    stdin_lines: bool,
    /// Send all of standard input as one message
    #[arg(short = 's', long)]
    stdin_whole: bool,
    /// Send an empty message; with --retain it deletes the retained message
    #[arg(short = 'n', long)]
    null: bool,
    /// QoS
    #[arg(short, long, default_value = "0", value_parser = qos)]
    qos: QoS,
    /// Retain the message
    #[arg(short, long)]
    retain: bool,
    /// Send the message this many times
    #[arg(long, default_value_t = 1, value_name = "COUNT", conflicts_with = "stdin_lines")]
    repeat: u64,
    /// Seconds between two messages
    #[arg(long, default_value = "0", value_name = "SECONDS", value_parser = seconds)]
    repeat_delay: Duration,
    /// Use this Topic Alias from the second message on (MQTT 5)
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u16).range(1..))]
    topic_alias: Option<u16>,
    /// Give up after this many seconds, with exit code 27
    #[arg(short = 'W', long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
}

/// Parses a number of seconds, with an optional fraction.
pub fn seconds(text: &str) -> Result<Duration, String> {
    let seconds: f64 = text.parse().map_err(|_| "expected a number of seconds")?;
    Duration::try_from_secs_f64(seconds).map_err(|_| "expected a number of seconds, not negative".to_owned())
}

impl PubArgs {
    pub fn run(self) -> ExitCode {
        signals::interrupt_on_stop();
        report("pub", self.publish())
    }

    /// Topic Name; the option overrides the URL.
    fn topic(&self) -> Option<&str> {
        self.topic.as_deref().or_else(|| self.connect.url.as_ref()?.topic())
    }

    fn publish(self) -> Result<(), Failure> {
        let properties = self.connect.properties()?;
        let topic = self.topic().ok_or_else(|| Failure::Usage("a topic is missing: -t TOPIC".to_owned()))?;
        if let Err(error) = TopicName::parse(topic) {
            return Err(Failure::Usage(format!("`{topic}` is not a Topic Name: {error}")));
        }
        if self.topic_alias.is_some() && !self.connect.protocol_version.has_properties() {
            return Err(Failure::Usage("--topic-alias needs -V 5".to_owned()));
        }
        let payload = self.payload()?;
        let until = self.timeout.map(|timeout| Instant::now() + timeout);
        let connection = Connection::open(&self.connect, &properties, &self.connect.client_id("pub"))?;
        let mut publisher = Publisher::new(connection, &self, &properties, until)?;
        let result = match &payload {
            Some(payload) => publisher.repeat(payload, self.repeat, self.repeat_delay),
            None => publisher.lines(),
        };
        let result = match result {
            Ok(End::Done) => publisher.drain(),
            Ok(End::Interrupted) => Ok(()),
            Err(failure) => Err(failure),
        };
        match result {
            Ok(()) => publisher.connection.close(&properties.disconnect, ReasonCode::Success)?,
            Err(Failure::TimedOut) => {
                publisher.connection.close(&properties.disconnect, ReasonCode::Success)?;
                return Err(Failure::TimedOut);
            }
            Err(failure) => return Err(failure),
        }
        publisher.refused.map_or(Ok(()), Err)
    }

    /// The message, or `None` when messages are read line by line.
    fn payload(&self) -> Result<Option<Vec<u8>>, Failure> {
        let trouble = |what: &str, error: io::Error| Failure::Trouble(format!("{what}: {error}"));
        Ok(if let Some(message) = &self.message {
            Some(message.clone().into_bytes())
        } else if let Some(path) = &self.file {
            Some(std::fs::read(path).map_err(|error| trouble(&path.display().to_string(), error))?)
        } else if self.stdin_whole {
            let mut bytes = Vec::new();
            io::stdin().read_to_end(&mut bytes).map_err(|error| trouble("standard input", error))?;
            Some(bytes)
        } else if self.null {
            Some(Vec::new())
        } else {
            None
        })
    }
}

enum End {
    Done,
    Interrupted,
}

/// The packet that a Packet Identifier waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PendingAck {
    /// PUBACK
    Acknowledgement,
    /// PUBREC
    Receipt,
    /// PUBCOMP
    Completion,
}

struct Publisher<'a> {
    connection: Connection,
    args: &'a PubArgs,
    /// Properties of the messages, without the Topic Alias.
    properties: PropertiesBuf,
    aliased: Option<PropertiesBuf>,
    alias_known: bool,
    inflight: HashMap<u16, PendingAck>,
    inflight_max: usize,
    packet_id: u16,
    until: Option<Instant>,
    /// The first refusal. The other messages are sent nevertheless.
    refused: Option<Failure>,
}

impl<'a> Publisher<'a> {
    fn new(
        connection: Connection,
        args: &'a PubArgs,
        properties: &property::Properties,
        until: Option<Instant>,
    ) -> Result<Self, Failure> {
        let limits = connection.limits;
        let refuse = |text: String| Err(Failure::Refused(text));
        if args.qos as u8 > limits.qos_max {
            return refuse(format!("the broker accepts QoS up to {}", limits.qos_max));
        }
        if args.retain && !limits.retain_available {
            return refuse("the broker accepts no retained messages".to_owned());
        }
        let mut aliased = None;
        if let Some(alias) = args.topic_alias {
            if alias > limits.topic_alias_max {
                return refuse(format!("the broker allows Topic Aliases up to {}", limits.topic_alias_max));
            }
            let mut properties = properties.publish.clone();
            properties.push(Property::TopicAlias(alias));
            aliased = Some(properties);
        }
        Ok(Self {
            connection,
            args,
            properties: properties.publish.clone(),
            aliased,
            alias_known: false,
            inflight: HashMap::new(),
            inflight_max: usize::from(limits.receive_max).min(INFLIGHT_MAX),
            packet_id: 0,
            until,
            refused: None,
        })
    }

    fn repeat(&mut self, payload: &[u8], count: u64, delay: Duration) -> Result<End, Failure> {
        let mut next = Instant::now();
        for index in 0..count {
            if index > 0 && !delay.is_zero() {
                next += delay;
                while Instant::now() < next {
                    if let Some(End::Interrupted) = self.step(Some(next))? {
                        return Ok(End::Interrupted);
                    }
                }
            }
            if let Some(end) = self.message(payload)? {
                return Ok(end);
            }
        }
        Ok(End::Done)
    }

    fn lines(&mut self) -> Result<End, Failure> {
        let trouble = |error: io::Error| Failure::Trouble(format!("standard input: {error}"));
        // Not through `io::stdin()`: its buffer would hold lines while `poll` sees nothing to read.
        let mut input = File::from(io::stdin().as_fd().try_clone_to_owned().map_err(trouble)?);
        let mut pending: Vec<u8> = Vec::new();
        let mut buffer = vec![0; 65_536];
        loop {
            match self.connection.receive(self.until, Some(input.as_fd()))? {
                Event::Packet(bytes) => self.handle(&bytes)?,
                Event::TimeOver => return Err(Failure::TimedOut),
                Event::Interrupted => return Ok(End::Interrupted),
                Event::Other => {
                    let len = match input.read(&mut buffer) {
                        Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                        result => result.map_err(trouble)?,
                    };
                    pending.extend_from_slice(&buffer[..len]);
                    if len == 0 && !pending.is_empty() {
                        // The last line may lack its line break.
                        pending.push(b'\n');
                    }
                    let mut start = 0;
                    while let Some(end) = pending[start..].iter().position(|byte| *byte == b'\n') {
                        let line = &pending[start..start + end];
                        start += end + 1;
                        if let Some(end) = self.message(line)? {
                            return Ok(end);
                        }
                    }
                    pending.drain(..start);
                    if len == 0 {
                        return Ok(End::Done);
                    }
                }
            }
        }
    }

    /// Sends a message. Waits first until the broker accepts one more.
    fn message(&mut self, payload: &[u8]) -> Result<Option<End>, Failure> {
        while self.args.qos != QoS::AtMostOnce && self.inflight.len() >= self.inflight_max {
            if let Some(end) = self.step(None)? {
                return Ok(Some(end));
            }
        }
        // An endless --repeat of QoS 0 never waits, so it would not notice the signal.
        if signals::interrupted() {
            return Ok(Some(End::Interrupted));
        }
        let packet_id = (self.args.qos != QoS::AtMostOnce).then(|| self.next_packet_id());
        let topic = if self.alias_known { "" } else { self.args.topic().unwrap_or_default() };
        self.connection.send(&Packet::Publish(Publish {
            dup: false,
            qos: self.args.qos,
            retain: self.args.retain,
            topic,
            packet_id,
            properties: self.aliased.as_ref().unwrap_or(&self.properties).as_properties(),
            payload,
        }))?;
        self.alias_known = self.aliased.is_some();
        if let Some(packet_id) = packet_id {
            let pending_ack = if self.args.qos == QoS::AtLeastOnce {
                PendingAck::Acknowledgement
            } else {
                PendingAck::Receipt
            };
            self.inflight.insert(packet_id.get(), pending_ack);
        }
        Ok(None)
    }

    fn next_packet_id(&mut self) -> PacketId {
        loop {
            self.packet_id = self.packet_id.wrapping_add(1);
            // At most `INFLIGHT_MAX` identifiers are in use, so a free one exists.
            if let Some(packet_id) = PacketId::new(self.packet_id)
                && !self.inflight.contains_key(&self.packet_id)
            {
                return packet_id;
            }
        }
    }

    /// Waits until every message is acknowledged.
    fn drain(&mut self) -> Result<(), Failure> {
        while !self.inflight.is_empty() {
            if let Some(End::Interrupted) = self.step(None)? {
                let count = self.inflight.len();
                return Err(Failure::Trouble(format!("interrupted with {count} messages not acknowledged")));
            }
        }
        Ok(())
    }

    /// Handles one packet. The time `wake` ends the wait without an error.
    fn step(&mut self, wake: Option<Instant>) -> Result<Option<End>, Failure> {
        let until = wake.into_iter().chain(self.until).min();
        match self.connection.receive(until, None)? {
            Event::Packet(bytes) => self.handle(&bytes)?,
            Event::TimeOver if self.until.is_some_and(|until| until <= Instant::now()) => {
                return Err(Failure::TimedOut);
            }
            Event::TimeOver | Event::Other => {}
            Event::Interrupted => return Ok(Some(End::Interrupted)),
        }
        Ok(None)
    }

    fn handle(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match self.connection.decode(bytes)? {
            Packet::PubAck(ack) if self.pending_ack(&ack) == Some(PendingAck::Acknowledgement) => {
                self.finish(&ack)
            }
            Packet::PubRec(ack) if self.pending_ack(&ack) == Some(PendingAck::Receipt) => {
                if ack.reason.is_error() {
                    self.finish(&ack);
                } else {
                    self.inflight.insert(ack.packet_id.get(), PendingAck::Completion);
                    self.release(ack.packet_id)?;
                }
            }
            Packet::PubComp(ack) if self.pending_ack(&ack) == Some(PendingAck::Completion) => {
                self.finish(&ack)
            }
            // A packet of a session that another client left: only that client acknowledges and handles it.
            _ => {}
        }
        Ok(())
    }

    fn pending_ack(&self, ack: &Ack<'_>) -> Option<PendingAck> {
        self.inflight.get(&ack.packet_id.get()).copied()
    }

    fn release(&mut self, packet_id: PacketId) -> Result<(), Failure> {
        let properties = Properties::default();
        self.connection.send(&Packet::PubRel(Ack { packet_id, reason: ReasonCode::Success, properties }))
    }

    fn finish(&mut self, ack: &Ack<'_>) {
        self.inflight.remove(&ack.packet_id.get());
        if ack.reason.is_error() && self.refused.is_none() {
            let why = ack.properties.reason_string().map_or(String::new(), |text| format!(" ({text})"));
            self.refused =
                Some(Failure::Refused(format!("the broker refuses the message: {}{why}", ack.reason)));
        }
    }
}

/// Maximum number of messages that wait for an acknowledgement at one time; fewer where the broker says so.
const INFLIGHT_MAX: usize = 1000;

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        publish: PubArgs,
    }

    fn parse(arguments: &str) -> Result<PubArgs, String> {
        let arguments = std::iter::once("pub").chain(arguments.split_whitespace());
        Command::try_parse_from(arguments).map(|command| command.publish).map_err(|error| error.to_string())
    }

    #[test]
    fn options_are_those_of_mosquitto_pub() {
        let args = parse("-h ::1 -p 1884 -t a/b -m -5 -q 2 -r -i id -V mqttv31").unwrap();
        assert_eq!((args.topic().unwrap(), args.message.as_deref()), ("a/b", Some("-5")));
        assert_eq!((args.qos, args.retain), (QoS::ExactlyOnce, true));
        assert_eq!((args.connect.host.as_str(), args.connect.id.as_deref()), ("::1", Some("id")));
        assert_eq!(parse("-t a -n").unwrap().payload(), Ok(Some(Vec::new())));
        assert_eq!(parse("-t a -l").unwrap().payload(), Ok(None));
        let args =
            parse("--unix /run/m.sock -t a -m x --repeat 3 --repeat-delay 0.5 --topic-alias 2").unwrap();
        assert_eq!((args.repeat, args.repeat_delay), (3, Duration::from_millis(500)));
        assert_eq!((args.topic_alias, args.connect.unix), (Some(2), Some("/run/m.sock".into())));
    }

    #[test]
    fn properties_take_three_or_four_words() {
        let text = "-t a -D publish content-type text -D publish user-property n v -m x -D connect receive-maximum 2";
        let properties = parse(text).unwrap().connect.properties().unwrap();
        let publish = properties.publish.as_properties();
        assert_eq!(publish.content_type(), Some("text"));
        assert_eq!(publish.user_properties().collect::<Vec<_>>(), [("n", "v")]);
        assert_eq!(properties.connect.as_properties().receive_maximum(), Some(2));
    }

    #[test]
    fn exactly_one_thing_is_published() {
        assert!(parse("-t a").is_err());
        assert!(parse("-t a -m x -n").is_err());
        assert!(parse("-t a -l -s").is_err());
        assert!(parse("-m x").unwrap_err().contains("--topic"));
    }

    #[test]
    fn an_impossible_command_line_is_refused_before_connecting() {
        let usage = |arguments: &str| match parse(arguments).unwrap().publish() {
            Err(Failure::Usage(text)) => text,
            other => panic!("{arguments}: {other:?}"),
        };
        assert!(usage("-t a/# -m x").contains("is not a Topic Name"));
        assert!(usage("-t a -m x -V 3.1.1 --topic-alias 1").contains("needs -V 5"));
        assert!(usage("-t a -m x --will-topic +").contains("is not a Topic Name"));
        assert!(usage("-t a -m x -V 3.1.1 --session-expiry 1").contains("needs -V 5"));
        assert!(usage("-t a -m x -D publish nonsense 1").contains("unknown property"));
    }

    #[test]
    fn a_missing_file_is_named() {
        let Err(Failure::Trouble(text)) = parse("-t a -f /nonexistent/f").unwrap().payload() else {
            panic!("no file")
        };
        assert!(text.starts_with("/nonexistent/f: "), "{text}");
    }
}
