//! The command `meridian sub`.

use std::collections::{HashMap, HashSet};
use std::io::{self, BufWriter, IsTerminal as _, Write as _};
use std::process::ExitCode;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use mqtt::{
    Ack, Packet, PacketId, Properties, Property, Publish, QoS, ReasonCode, RetainHandling, SubAck, Subscribe,
    SubscribeFiltersBuf, Subscription, SubscriptionOptions,
};

use super::args::{ConnectArgs, qos};
use super::connection::{Connection, Event};
use super::format::{Format, Message, help};
use super::pub_command::seconds;
use super::{Failure, property, report};
use crate::signals;

/// Subscribe and print messages, until interrupted. Exits with 0 when interrupted or after --count messages, 1 on a
/// failure of the network, 2 for a wrong command line, 3 when the broker refuses, 27 when --timeout is over
#[derive(Args, Debug)]
#[command(disable_help_flag = true, after_help = format!("Fields of --format:\n{}", help()))]
pub struct SubArgs {
    #[command(flatten)]
    connect: ConnectArgs,
    /// Topic Filter; can be repeated
    #[arg(short, long, required_unless_present = "url")]
    topic: Vec<String>,
    /// Do not print messages to this Topic Filter; can be repeated
    #[arg(short = 'T', long, value_name = "TOPIC")]
    filter_out: Vec<String>,
    /// Highest QoS
    #[arg(short, long, default_value = "0", value_parser = qos)]
    qos: QoS,
    /// Exit after this many messages
    #[arg(short = 'C', long, value_name = "NUMBER", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,
    /// Exit after this many seconds, with exit code 27
    #[arg(short = 'W', long, value_name = "SECONDS", value_parser = seconds)]
    timeout: Option<Duration>,
    /// Print topic and payload; --format overrides it
    #[arg(short, long)]
    verbose: bool,
    /// Print this for each message; the fields are listed below
    #[arg(short = 'F', long, value_parser = Format::parse, allow_hyphen_values = true)]
    format: Option<Format>,
    /// Print no line break after a message
    #[arg(short = 'N', long)]
    no_newline: bool,
    /// Do not print retained messages
    #[arg(short = 'R', long, conflicts_with = "retained_only")]
    no_retained: bool,
    /// Print retained messages only, and exit when another one arrives
    #[arg(long)]
    retained_only: bool,
    /// Subscribe, and exit without waiting for messages; leaves a session with --no-clean
    #[arg(short = 'E', long)]
    exit_after_subscribe: bool,
    /// Receive retained messages always (0), with a new subscription (1), never (2) (MQTT 5)
    #[arg(long, value_name = "NUMBER", default_value_t = 0, value_parser = clap::value_parser!(u8).range(..=2))]
    retain_handling: u8,
    /// Keep the RETAIN flag of messages (MQTT 5)
    #[arg(long)]
    retain_as_published: bool,
    /// Do not receive messages of this client itself (MQTT 5)
    #[arg(long)]
    no_local: bool,
    /// Subscription Identifier (MQTT 5)
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=268_435_455))]
    subscription_identifier: Option<u32>,
    /// Maximum number of Topic Aliases of the broker (MQTT 5)
    #[arg(long, value_name = "NUMBER")]
    topic_alias_max: Option<u16>,
}

impl SubArgs {
    pub fn run(self) -> ExitCode {
        signals::interrupt_on_stop();
        report("sub", self.subscribe())
    }

    fn subscribe(mut self) -> Result<(), Failure> {
        let topic = self.connect.url.as_ref().and_then(|url| url.topic()).map(str::to_owned);
        self.topic.extend(topic);
        let mut properties = self.properties()?;
        let filters = self.filters()?;
        if let Some(identifier) = self.subscription_identifier {
            properties.subscribe.push(Property::SubscriptionIdentifier(identifier));
        }
        if let Some(aliases) = self.topic_alias_max {
            properties.connect.push(Property::TopicAliasMaximum(aliases));
        }
        let until = self.timeout.map(|timeout| Instant::now() + timeout);
        let connection = Connection::open(&self.connect, &properties, &self.connect.client_id("sub"))?;
        let mut subscriber = Subscriber {
            connection,
            printer: Printer::new(&self),
            args: &self,
            until,
            aliases: HashMap::new(),
            incomplete: HashSet::new(),
            ending: None,
        };
        subscriber.connection.send(&Packet::Subscribe(Subscribe {
            packet_id: SUBSCRIBE_ID,
            properties: properties.subscribe.as_properties(),
            filters: filters.as_filters(),
        }))?;
        let result = subscriber.receive_all();
        let result = result.and(subscriber.printer.flush());
        match result {
            Ok(()) | Err(Failure::TimedOut | Failure::Unread) => {
                subscriber.connection.close(&properties.disconnect, ReasonCode::Success)?;
                result
            }
            Err(_) => result,
        }
    }

    fn properties(&self) -> Result<property::Properties, Failure> {
        let properties = self.connect.properties()?;
        let v5_only = self.retain_handling != 0
            || self.retain_as_published
            || self.no_local
            || self.subscription_identifier.is_some()
            || self.topic_alias_max.is_some();
        let usage = |text: &str| Err(Failure::Usage(text.to_owned()));
        if v5_only && !self.connect.protocol_version.has_properties() {
            return usage(
                "--retain-handling, --retain-as-published, --no-local, --subscription-identifier and \
                 --topic-alias-max need -V 5",
            );
        }
        let given = properties.subscribe.as_properties().subscription_identifier().is_some();
        if given && self.subscription_identifier.is_some() {
            return usage("give either --subscription-identifier or -D subscribe subscription-identifier");
        }
        let given = properties.connect.as_properties().topic_alias_maximum().is_some();
        if given && self.topic_alias_max.is_some() {
            return usage("give either --topic-alias-max or -D connect topic-alias-maximum");
        }
        Ok(properties)
    }

    fn filters(&self) -> Result<SubscribeFiltersBuf, Failure> {
        let invalid =
            |topic: &str, error| Failure::Usage(format!("`{topic}` is not a Topic Filter: {error}"));
        for topic in &self.filter_out {
            mqtt::TopicFilter::parse(topic).map_err(|error| invalid(topic, error))?;
        }
        let mut filters = SubscribeFiltersBuf::default();
        if self.topic.is_empty() {
            return Err(Failure::Usage("a topic is missing: -t TOPIC".to_owned()));
        }
        for topic in &self.topic {
            let subscription = Subscription::parse(topic).map_err(|error| invalid(topic, error))?;
            if subscription.share.is_some() && self.no_local {
                // [MQTT-3.8.3-4]
                return Err(Failure::Usage("--no-local does not go with a shared subscription".to_owned()));
            }
            let options = SubscriptionOptions {
                qos: self.qos,
                no_local: self.no_local,
                retain_as_published: self.retain_as_published,
                retain_handling: match self.retain_handling {
                    0 => RetainHandling::Send,
                    1 => RetainHandling::SendIfNew,
                    _ => RetainHandling::DoNotSend,
                },
            };
            filters.push(topic, options);
        }
        Ok(filters)
    }
}

/// Packet Identifier of SUBSCRIBE, the only packet of this client that needs one.
const SUBSCRIBE_ID: PacketId = match PacketId::new(1) {
    Some(packet_id) => packet_id,
    None => unreachable!(),
};

struct Subscriber<'a> {
    connection: Connection,
    printer: Printer<'a>,
    args: &'a SubArgs,
    until: Option<Instant>,
    /// Topic Names by alias [MQTT-3.3.2-12].
    aliases: HashMap<u16, String>,
    /// QoS 2 messages that were printed and not yet released by the broker [MQTT-4.3.3-10].
    incomplete: HashSet<u16>,
    /// Time at which the client gives up, once everything is printed: until then it waits for the last QoS 2
    /// exchanges.
    ending: Option<Instant>,
}

impl Subscriber<'_> {
    fn receive_all(&mut self) -> Result<(), Failure> {
        loop {
            if self.ending.is_some() && self.incomplete.is_empty() {
                return Ok(());
            }
            if !self.connection.has_packet() {
                self.printer.flush()?;
            }
            match self.connection.receive(self.ending.or(self.until), None)? {
                Event::Packet(bytes) => self.handle(&bytes)?,
                Event::TimeOver if self.ending.is_some() => return Ok(()),
                Event::TimeOver => return Err(Failure::TimedOut),
                Event::Interrupted => return Ok(()),
                Event::Other => {}
            }
        }
    }

    fn handle(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match self.connection.decode(bytes)? {
            Packet::SubAck(suback) => self.subscribed(&suback),
            Packet::Publish(publish) => self.publish(publish),
            Packet::PubRel(ack) => {
                let known = self.incomplete.remove(&ack.packet_id.get());
                let reason = if known { ReasonCode::Success } else { ReasonCode::PacketIdentifierNotFound };
                self.acknowledge(Packet::PubComp, ack.packet_id, reason)
            }
            _ => Ok(()),
        }
    }

    fn subscribed(&mut self, suback: &SubAck<'_>) -> Result<(), Failure> {
        let mut refused = Vec::new();
        for (topic, byte) in self.args.topic.iter().zip(suback.reasons) {
            let reason = ReasonCode::try_from(*byte).unwrap_or(ReasonCode::UnspecifiedError);
            if reason.is_error() {
                refused.push(format!("the broker refuses the subscription to `{topic}`: {reason}"));
            }
        }
        if refused.len() == self.args.topic.len() {
            return Err(Failure::Refused(refused.join("\n")));
        }
        for text in refused {
            eprintln!("meridian sub: {text}");
        }
        if self.args.exit_after_subscribe {
            self.end();
        }
        Ok(())
    }

    fn publish(&mut self, publish: Publish<'_>) -> Result<(), Failure> {
        if self.ending.is_some() {
            // Left unacknowledged: the next client that resumes the session receives it.
            return Ok(());
        }
        let topic = match publish.properties.topic_alias() {
            None => publish.topic.to_owned(),
            Some(alias) if publish.topic.is_empty() => {
                self.aliases.get(&alias).cloned().ok_or_else(|| {
                    Failure::Trouble(format!("the broker uses Topic Alias {alias} without having defined it"))
                })?
            }
            Some(alias) => {
                self.aliases.insert(alias, publish.topic.to_owned());
                publish.topic.to_owned()
            }
        };
        let packet_id = publish.packet_id.map_or(0, PacketId::get);
        let again = publish.qos == QoS::ExactlyOnce && !self.incomplete.insert(packet_id);
        if !again {
            let message = Message {
                topic: &topic,
                payload: publish.payload,
                qos: publish.qos,
                retain: publish.retain,
                packet_id,
                properties: publish.properties,
                arrived: SystemTime::now(),
            };
            if self.printer.message(&message)? {
                self.end();
            }
        }
        match publish.packet_id {
            Some(packet_id) if publish.qos == QoS::AtLeastOnce => {
                self.acknowledge(Packet::PubAck, packet_id, ReasonCode::Success)
            }
            Some(packet_id) => self.acknowledge(Packet::PubRec, packet_id, ReasonCode::Success),
            None => Ok(()),
        }
    }

    fn acknowledge(
        &mut self,
        packet: impl FnOnce(Ack<'static>) -> Packet<'static>,
        packet_id: PacketId,
        reason: ReasonCode,
    ) -> Result<(), Failure> {
        self.connection.send(&packet(Ack { packet_id, reason, properties: Properties::default() }))
    }

    fn end(&mut self) {
        self.ending.get_or_insert_with(|| Instant::now() + END_TIME);
    }
}

/// Prints messages to standard output.
struct Printer<'a> {
    args: &'a SubArgs,
    format: Format,
    out: BufWriter<io::Stdout>,
    /// True when standard output is a terminal.
    terminal: bool,
    printed: u64,
}

impl<'a> Printer<'a> {
    fn new(args: &'a SubArgs) -> Self {
        let mut text = if args.verbose { "%t %p" } else { "%p" }.to_owned();
        if !args.no_newline {
            text.push_str("\\n");
        }
        let format =
            args.format.clone().map(|format| if args.no_newline { format } else { format.with_newline() });
        let format = format.unwrap_or_else(|| Format::parse(&text).expect("a format of our own"));
        Self {
            args,
            format,
            out: BufWriter::new(io::stdout()),
            terminal: io::stdout().is_terminal(),
            printed: 0,
        }
    }

    /// Prints a message. Returns whether it was the last one.
    fn message(&mut self, message: &Message<'_>) -> Result<bool, Failure> {
        if self.args.retained_only && !message.retain {
            return Ok(true);
        }
        if (self.args.no_retained && message.retain) || self.is_filtered_out(message.topic) {
            return Ok(false);
        }
        self.format.write(message, self.terminal, &mut self.out).map_err(|error| output(&error))?;
        self.printed += 1;
        Ok(self.args.count.is_some_and(|count| self.printed >= count))
    }

    fn is_filtered_out(&self, topic: &str) -> bool {
        let Ok(topic) = mqtt::TopicName::parse(topic) else { return false };
        let filters = self.args.filter_out.iter().filter_map(|filter| mqtt::TopicFilter::parse(filter).ok());
        filters.into_iter().any(|filter| filter.matches(topic))
    }

    fn flush(&mut self) -> Result<(), Failure> {
        self.out.flush().map_err(|error| output(&error))
    }
}

fn output(error: &io::Error) -> Failure {
    if error.kind() == io::ErrorKind::BrokenPipe {
        return Failure::Unread;
    }
    Failure::Trouble(format!("standard output: {error}"))
}

/// Maximum time that the end waits for the last QoS 2 exchanges.
const END_TIME: Duration = Duration::from_secs(2);

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        sub: SubArgs,
    }

    fn parse(arguments: &str) -> Result<SubArgs, String> {
        let arguments = std::iter::once("sub").chain(arguments.split_whitespace());
        Command::try_parse_from(arguments).map(|command| command.sub).map_err(|error| error.to_string())
    }

    fn usage(arguments: &str) -> String {
        let args = parse(arguments).unwrap();
        match args.properties().and_then(|_| args.filters()) {
            Err(Failure::Usage(text)) => text,
            other => panic!("{arguments}: {other:?}"),
        }
    }

    #[test]
    fn options_are_those_of_mosquitto_sub() {
        let args = parse("-h example.org -p 1884 -t a/# -t b -q 1 -i id -c -x 60 -C 5 -W 1.5 -v -N -R -k 10")
            .unwrap();
        assert_eq!((args.connect.host.as_str(), args.connect.port), ("example.org", Some(1884)));
        assert_eq!(
            (args.topic.as_slice(), args.qos),
            (["a/#".to_owned(), "b".to_owned()].as_slice(), QoS::AtLeastOnce)
        );
        assert_eq!((args.count, args.timeout), (Some(5), Some(Duration::from_millis(1_500))));
        assert!(args.verbose && args.no_newline && args.no_retained && args.connect.no_clean);
        assert_eq!((args.connect.session_expiry, args.connect.keepalive), (Some(60), 10));
        let args = parse("-t a -F %t -u me -P secret -V 311 --disable-clean-session -i x").unwrap();
        assert_eq!(args.format, Some(Format::parse("%t").unwrap()));
        assert_eq!(args.connect.protocol_version, mqtt::Version::V3_1_1);
        assert_eq!(
            (args.connect.username.as_deref(), args.connect.password.as_deref()),
            (Some("me"), Some("secret"))
        );
    }

    #[test]
    fn each_filter_carries_the_options() {
        let args = parse("-t a -t $share/g/b -q 2 --retain-handling 2 --retain-as-published").unwrap();
        let filters = args.filters().unwrap();
        let filters: Vec<_> = filters.as_filters().iter().collect();
        let options = SubscriptionOptions {
            qos: QoS::ExactlyOnce,
            no_local: false,
            retain_as_published: true,
            retain_handling: RetainHandling::DoNotSend,
        };
        assert_eq!(filters, [("a", options), ("$share/g/b", options)]);
    }

    #[test]
    fn an_impossible_command_line_is_refused_before_connecting() {
        assert!(parse("").unwrap_err().contains("--topic"));
        assert!(parse("-t a -C 0").is_err() && parse("-t a -q 3").is_err() && parse("-t a -V 6").is_err());
        assert!(parse("-t a -F %y").unwrap_err().contains("unknown in a format"));
        assert!(parse("-t a -c").unwrap_err().contains("--id"));
        assert!(usage("-t a/#/b").contains("is not a Topic Filter"));
        assert!(usage("-t a -T a+").contains("is not a Topic Filter"));
        assert!(usage("-t a -V 3.1.1 --no-local").contains("need -V 5"));
        assert!(usage("-t a -V 3.1 -D connect receive-maximum 5").contains("-V 5"));
        assert!(usage("-t a -V 3.1 -P x").contains("without a user name"));
        assert!(usage("-t $share/g/a --no-local").contains("shared"));
        assert!(usage("-t a --topic-alias-max 5 -D connect topic-alias-maximum 5").contains("either"));
    }
}
