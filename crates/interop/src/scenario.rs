// tidy: allow(anyhow): scenarios are tests; their errors are read by people only.
use anyhow::{Result, ensure};
use rumqttc::QoS;
use rumqttc::QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};

use crate::client::{Broker, Client, ClientVersion, ConnectOptions, Will};
use crate::event::{Ended, Message, Properties};

/// Column of docs/interop.md: a scenario that runs over real sockets with clients of one version.
///
/// Nothing sleeps. That a message does not arrive is shown by a later message, a fence, that arrives first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cell {
    QoS0,
    QoS1,
    QoS2,
    RetainSet,
    RetainGet,
    RetainDelete,
    Will,
    Resume,
    Shared,
    Takeover,
    Properties,
    SubscriptionIdentifier,
    NoLocal,
}

impl Cell {
    pub const ALL: [Self; 13] = [
        Self::QoS0,
        Self::QoS1,
        Self::QoS2,
        Self::RetainSet,
        Self::RetainGet,
        Self::RetainDelete,
        Self::Will,
        Self::Resume,
        Self::Shared,
        Self::Takeover,
        Self::Properties,
        Self::SubscriptionIdentifier,
        Self::NoLocal,
    ];

    /// Heading of the column.
    pub fn name(self) -> &'static str {
        match self {
            Self::QoS0 => "QoS 0",
            Self::QoS1 => "QoS 1",
            Self::QoS2 => "QoS 2",
            Self::RetainSet => "retain set",
            Self::RetainGet => "retain get",
            Self::RetainDelete => "retain delete",
            Self::Will => "will",
            Self::Resume => "resume",
            Self::Shared => "shared",
            Self::Takeover => "takeover",
            Self::Properties => "properties",
            Self::SubscriptionIdentifier => "subscription identifier",
            Self::NoLocal => "no local",
        }
    }

    pub fn applies_to(self, version: ClientVersion) -> bool {
        version == ClientVersion::V5
            || !matches!(self, Self::Properties | Self::SubscriptionIdentifier | Self::NoLocal)
    }

    /// Runs the scenario. The error says what was expected and what was received.
    pub async fn run(self, broker: &Broker, version: ClientVersion) -> Result<()> {
        let name_prefix = format!("rumqttc{version:?}-{self:?}");
        let context =
            ScenarioContext { broker, version, topic: format!("interop/{name_prefix}/value"), name_prefix };
        match self {
            Self::QoS0 => flow(&context, AtMostOnce).await,
            Self::QoS1 => flow(&context, AtLeastOnce).await,
            Self::QoS2 => flow(&context, ExactlyOnce).await,
            Self::RetainSet => retain_set(&context).await,
            Self::RetainGet => retain_get(&context).await,
            Self::RetainDelete => retain_delete(&context).await,
            Self::Will => will(&context).await,
            Self::Resume => resume(&context).await,
            Self::Shared => shared(&context).await,
            Self::Takeover => takeover(&context).await,
            Self::Properties => properties(&context).await,
            Self::SubscriptionIdentifier => subscription_identifier(&context).await,
            Self::NoLocal => no_local(&context).await,
        }
    }
}

/// Topic and Client Identifiers of one cell.
struct ScenarioContext<'a> {
    broker: &'a Broker,
    version: ClientVersion,
    name_prefix: String,
    topic: String,
}

impl ScenarioContext<'_> {
    async fn client(&self, name: &str) -> Result<Client> {
        self.connect(ConnectOptions::clean(self.id(name))).await
    }

    async fn connect(&self, options: ConnectOptions) -> Result<Client> {
        Client::connect(self.broker, self.version, options).await
    }

    fn id(&self, name: &str) -> String {
        format!("{}-{name}", self.name_prefix)
    }
}

/// Messages arrive once each, in order, at the QoS of both ends; a subscription of QoS 0 lowers it.
async fn flow(context: &ScenarioContext<'_>, qos: QoS) -> Result<()> {
    let mut subscriber = context.client("subscriber").await?;
    let mut low = context.client("low").await?;
    equal(subscriber.subscribe(&context.topic, qos).await?, qos, "granted QoS")?;
    equal(low.subscribe(&context.topic, AtMostOnce).await?, AtMostOnce, "granted QoS")?;
    let sent = numbered("m", 21);
    context.client("publisher").await?.publish(&context.topic, &sent, qos, false).await?;
    for (client, effective) in [(&mut subscriber, qos), (&mut low, AtMostOnce)] {
        let received = client.receive(sent.len()).await?;
        equal(payloads(&received), sent.clone(), "messages")?;
        ensure!(received.iter().all(|m| m.qos == effective), "wanted {effective:?}: {received:?}");
        ensure!(
            received.iter().all(|m| m.topic == context.topic && !m.retain),
            "topic, RETAIN: {received:?}"
        );
    }
    Ok(())
}

/// A retained message reaches an existing subscriber as an ordinary one [MQTT-3.3.1-12].
async fn retain_set(context: &ScenarioContext<'_>) -> Result<()> {
    let mut live = context.client("live").await?;
    live.subscribe(&context.topic, AtLeastOnce).await?;
    let mut publisher = context.client("publisher").await?;
    publisher.publish(&context.topic, &texts(["first", "second"]), AtLeastOnce, true).await?;
    let received = live.receive(2).await?;
    equal(payloads(&received), texts(["first", "second"]), "live messages")?;
    ensure!(received.iter().all(|m| !m.retain), "RETAIN of a live message: {received:?}");
    publisher.publish(&context.topic, &texts([""]), AtLeastOnce, true).await
}

/// A new subscription gets the last retained message, with RETAIN set [MQTT-3.3.1-6].
async fn retain_get(context: &ScenarioContext<'_>) -> Result<()> {
    let mut publisher = context.client("publisher").await?;
    publisher.publish(&context.topic, &texts(["old", "new"]), AtLeastOnce, true).await?;
    let parent = context.topic.rsplit_once('/').map_or("", |(parent, _)| parent);
    for filter in [context.topic.clone(), format!("{parent}/+"), format!("{parent}/#")] {
        let mut subscriber = context.client("subscriber").await?;
        subscriber.subscribe(&filter, AtLeastOnce).await?;
        let received = subscriber.receive(1).await?;
        equal((received[0].payload.as_str(), received[0].retain), ("new", true), &filter)?;
        subscriber.disconnect().await?;
    }
    publisher.publish(&context.topic, &texts([""]), AtLeastOnce, true).await
}

/// An empty retained payload deletes the retained message [MQTT-3.3.1-7]. Existing subscribers still get it.
async fn retain_delete(context: &ScenarioContext<'_>) -> Result<()> {
    let mut live = context.client("live").await?;
    live.subscribe(&context.topic, AtLeastOnce).await?;
    let mut publisher = context.client("publisher").await?;
    publisher.publish(&context.topic, &texts(["kept", ""]), AtLeastOnce, true).await?;
    equal(payloads(&live.receive(2).await?), texts(["kept", ""]), "live messages")?;
    let mut late = context.client("late").await?;
    late.subscribe(&context.topic, AtLeastOnce).await?;
    publisher.publish(&context.topic, &texts(["fence"]), AtLeastOnce, false).await?;
    equal(payloads(&late.receive(1).await?), texts(["fence"]), "after deletion")
}

/// A Will is published when the connection ends without a DISCONNECT [MQTT-3.1.2-8], and not after one.
async fn will(context: &ScenarioContext<'_>) -> Result<()> {
    let mut watcher = context.client("watcher").await?;
    watcher.subscribe(&context.topic, AtLeastOnce).await?;
    let said = Will { topic: context.topic.clone(), payload: "gone".into(), qos: AtLeastOnce };
    let options = ConnectOptions { will: Some(said), ..ConnectOptions::clean(context.id("mortal")) };
    context.connect(options.clone()).await?.abort().await;
    let received = watcher.receive(1).await?;
    equal((received[0].payload.as_str(), received[0].qos), ("gone", AtLeastOnce), "Will")?;

    context.connect(options).await?.disconnect().await?;
    // The broker answers a second connection of one Client Identifier only when the first is over.
    let mut again = context.client("mortal").await?;
    again.publish(&context.topic, &texts(["fence"]), AtLeastOnce, false).await?;
    equal(payloads(&watcher.receive(1).await?), texts(["fence"]), "after DISCONNECT")
}

/// A durable session keeps the order of QoS 1 and QoS 2 messages while its client is disconnected.
async fn resume(context: &ScenarioContext<'_>) -> Result<()> {
    let options = ConnectOptions::durable(context.id("durable"));
    let mut durable = context.connect(options.clone()).await?;
    equal(durable.session_present, false, "Session Present at first")?;
    durable.subscribe(&context.topic, ExactlyOnce).await?;
    durable.disconnect().await?;

    let (once, twice) = (numbered("one", 10), numbered("two", 10));
    let mut publisher = context.client("publisher").await?;
    for (one, two) in once.iter().zip(&twice) {
        publisher.publish(&context.topic, std::slice::from_ref(one), AtLeastOnce, false).await?;
        publisher.publish(&context.topic, std::slice::from_ref(two), ExactlyOnce, false).await?;
    }
    let mut durable = context.connect(options).await?;
    equal(durable.session_present, true, "Session Present on resumption")?;
    let received = durable.receive(20).await?;
    // Each QoS has its own order: a client library may deliver QoS 2 at PUBLISH or at PUBREL.
    for (qos, sent) in [(AtLeastOnce, once), (ExactlyOnce, twice)] {
        let of_qos: Vec<Message> = received.iter().filter(|m| m.qos == qos).cloned().collect();
        equal(payloads(&of_qos), sent, "queued messages")?;
    }
    publisher.publish(&context.topic, &texts(["live"]), AtLeastOnce, false).await?;
    equal(payloads(&durable.receive(1).await?), texts(["live"]), "after the queue")?;
    durable.disconnect().await?;
    equal(context.client("durable").await?.session_present, false, "Session Present after Clean Start")
}

/// Two members of a shared group split its messages. Each message goes to one of them, and both get some
/// [MQTT-4.8.2-4].
async fn shared(context: &ScenarioContext<'_>) -> Result<()> {
    let mut members = [context.client("left").await?, context.client("right").await?];
    for member in &mut members {
        member.subscribe(&format!("$share/{}/{}", context.name_prefix, context.topic), AtLeastOnce).await?;
    }
    let sent = numbered("s", 40);
    context.client("publisher").await?.publish(&context.topic, &sent, AtLeastOnce, false).await?;
    let [left, right] = &mut members;
    let mut received: [Vec<String>; 2] = Default::default();
    for _ in &sent {
        let (at, message) = Client::receive_either(left, right).await?;
        received[at].push(message.payload);
    }
    for messages in &received {
        ensure!(!messages.is_empty(), "one member got nothing: {received:?}");
        let in_order: Vec<&String> = sent.iter().filter(|m| messages.contains(m)).collect();
        ensure!(in_order.into_iter().eq(messages), "order at a member: {messages:?}");
    }
    let mut all = received.concat();
    let mut wanted = sent;
    all.sort();
    wanted.sort();
    equal(all, wanted, "messages of the group")
}

/// A second connection with the same Client Identifier closes the first [MQTT-3.1.4-3], with 0x8E in MQTT 5.0.
async fn takeover(context: &ScenarioContext<'_>) -> Result<()> {
    let mut first = context.client("same").await?;
    first.subscribe(&context.topic, AtMostOnce).await?;
    let mut second = context.client("same").await?;
    second.publish(&context.topic, &texts(["mine"]), AtLeastOnce, false).await?;
    let ended = first.closed().await?;
    match context.version {
        ClientVersion::V4 => Ok(()),
        ClientVersion::V5 => equal(ended, Ended::ByReason(SESSION_TAKEN_OVER), "end of the first connection"),
    }
}

/// The properties of the Application Message are passed on, and User Properties keep their order [MQTT-3.3.2-18].
async fn properties(context: &ScenarioContext<'_>) -> Result<()> {
    let mut subscriber = context.client("subscriber").await?;
    subscriber.subscribe(&context.topic, AtLeastOnce).await?;
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let said = Properties {
        content_type: Some("text/plain".into()),
        response_topic: Some("answers/here".into()),
        correlation_data: Some(b"correlate".to_vec()),
        message_expiry: Some(600),
        payload_format: Some(1),
        user: vec![pair("colour", "red"), pair("colour", "green"), pair("shape", "round")],
        subscription_identifiers: Vec::new(),
    };
    context.client("publisher").await?.publish_v5(&context.topic, "with properties", &said).await?;
    let mut got = subscriber.receive(1).await?.remove(0).properties;
    let remaining = got.message_expiry.replace(600);
    ensure!(matches!(remaining, Some(1..=600)), "Message Expiry Interval {remaining:?} of 600 s");
    equal(got, said, "properties")
}

/// The identifier of the matching subscription comes with the message [MQTT-3.3.4-3].
async fn subscription_identifier(context: &ScenarioContext<'_>) -> Result<()> {
    let mut subscriber = context.client("subscriber").await?;
    subscriber.subscribe_v5(&context.topic, Some(77), false).await?;
    context.client("publisher").await?.publish(&context.topic, &texts(["x"]), AtLeastOnce, false).await?;
    let received = subscriber.receive(1).await?;
    equal(received[0].properties.subscription_identifiers.clone(), vec![77], "Subscription Identifiers")
}

/// A No Local subscription does not get the messages that its own client publishes [MQTT-3.8.3-3].
async fn no_local(context: &ScenarioContext<'_>) -> Result<()> {
    let mut own = context.client("own").await?;
    own.subscribe_v5(&context.topic, None, true).await?;
    own.publish(&context.topic, &texts(["echo"]), AtLeastOnce, false).await?;
    context.client("other").await?.publish(&context.topic, &texts(["fence"]), AtLeastOnce, false).await?;
    equal(payloads(&own.receive(1).await?), texts(["fence"]), "messages")
}

fn equal<T: PartialEq + std::fmt::Debug>(actual: T, wanted: T, what: &str) -> Result<()> {
    ensure!(actual == wanted, "{what}: wanted {wanted:?}, got {actual:?}");
    Ok(())
}

fn payloads(messages: &[Message]) -> Vec<String> {
    messages.iter().map(|message| message.payload.clone()).collect()
}

fn numbered(prefix: &str, count: usize) -> Vec<String> {
    (0..count).map(|i| format!("{prefix}{i}")).collect()
}

fn texts<const N: usize>(payloads: [&str; N]) -> Vec<String> {
    payloads.map(str::to_owned).into()
}

const SESSION_TAKEN_OVER: u8 = 0x8E;
