use std::time::Duration;

// tidy: allow(anyhow): scenarios are tests; their errors are read by people only.
use anyhow::{Context, Result, bail};
use rumqttc::QoS;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::event::{Ended, Event, Message, Properties};
use crate::{v4, v5};

/// Address of the broker under test.
#[derive(Clone, Debug)]
pub struct Broker {
    pub host: String,
    pub port: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClientVersion {
    V4,
    V5,
}

impl ClientVersion {
    pub const ALL: [Self; 2] = [Self::V4, Self::V5];

    /// Returns the version of MQTT, as docs/interop.md writes it.
    pub fn mqtt(self) -> &'static str {
        match self {
            Self::V4 => "3.1.1",
            Self::V5 => "5.0",
        }
    }
}

/// Options of CONNECT that a scenario chooses.
#[derive(Clone, Debug)]
pub struct ConnectOptions {
    pub client_id: String,
    pub clean: bool,
    /// Session Expiry Interval in seconds, MQTT 5.0 only.
    pub expiry: Option<u32>,
    pub will: Option<Will>,
}

impl ConnectOptions {
    pub fn clean(client_id: impl Into<String>) -> Self {
        Self { client_id: client_id.into(), clean: true, expiry: None, will: None }
    }

    /// Options for a session that outlives its connection by five minutes.
    pub fn durable(client_id: impl Into<String>) -> Self {
        Self { clean: false, expiry: Some(300), ..Self::clean(client_id) }
    }
}

#[derive(Clone, Debug)]
pub struct Will {
    pub topic: String,
    pub payload: String,
    pub qos: QoS,
}

/// Connected client. Its event loop runs in a separate task, and its events queue here in order.
pub struct Client {
    requests: Requests,
    events: mpsc::Receiver<Event>,
    /// Messages that arrived while another event was expected.
    messages: std::collections::VecDeque<Message>,
    connection: JoinHandle<Ended>,
    pub session_present: bool,
}

pub(crate) enum Requests {
    V4(rumqttc::AsyncClient),
    V5(rumqttc::v5::AsyncClient),
}

impl Requests {
    pub(crate) async fn subscribe(&self, filter: &str, qos: QoS) -> Result<()> {
        match self {
            Self::V4(client) => client.subscribe(filter, qos).await?,
            Self::V5(client) => client.subscribe(filter, v5::qos(qos)).await?,
        }
        Ok(())
    }

    pub(crate) async fn publish(&self, topic: &str, payload: &str, qos: QoS, retain: bool) -> Result<()> {
        let bytes = payload.as_bytes().to_vec();
        match self {
            Self::V4(client) => client.publish(topic, qos, retain, bytes).await?,
            Self::V5(client) => client.publish(topic, v5::qos(qos), retain, bytes).await?,
        }
        Ok(())
    }

    pub(crate) async fn disconnect(&self) -> Result<()> {
        match self {
            Self::V4(client) => client.disconnect().await?,
            Self::V5(client) => client.disconnect().await?,
        }
        Ok(())
    }
}

/// Begins to connect. The task is the client's event loop; it ends with the connection.
pub(crate) fn start(
    broker: &Broker,
    version: ClientVersion,
    options: &ConnectOptions,
) -> (Requests, mpsc::Receiver<Event>, JoinHandle<Ended>) {
    let (sender, events) = mpsc::channel(EVENTS_MAX);
    let (requests, connection) = match version {
        ClientVersion::V4 => v4::start(broker, options, sender),
        ClientVersion::V5 => v5::start(broker, options, sender),
    };
    (requests, events, connection)
}

impl Client {
    /// Connects, and returns after CONNACK.
    pub async fn connect(broker: &Broker, version: ClientVersion, options: ConnectOptions) -> Result<Self> {
        let (requests, events, connection) = start(broker, version, &options);
        let mut client =
            Self { requests, events, messages: Default::default(), connection, session_present: false };
        match client.next("CONNACK").await? {
            Event::Connected { session_present } => client.session_present = session_present,
            other => bail!("wanted CONNACK, got {other:?}"),
        }
        Ok(client)
    }

    /// Subscribes, and returns the granted QoS of the SUBACK.
    pub async fn subscribe(&mut self, filter: &str, qos: QoS) -> Result<QoS> {
        self.requests.subscribe(filter, qos).await?;
        self.granted().await
    }

    /// Subscribes with a Subscription Identifier or with No Local. MQTT 5.0 only.
    pub async fn subscribe_v5(
        &mut self,
        filter: &str,
        identifier: Option<usize>,
        no_local: bool,
    ) -> Result<QoS> {
        match &self.requests {
            Requests::V4(_) => bail!("MQTT 3.1.1 has no subscription options"),
            Requests::V5(client) => v5::subscribe(client, filter, identifier, no_local).await?,
        }
        self.granted().await
    }

    async fn granted(&mut self) -> Result<QoS> {
        loop {
            match self.next("SUBACK").await? {
                Event::Subscribed { granted } => {
                    return granted.first().copied().context("the SUBACK refused the subscription");
                }
                Event::Message(message) => self.messages.push_back(message),
                other => bail!("wanted SUBACK, got {other:?}"),
            }
        }
    }

    /// Publishes in order. Returns when all messages are acknowledged (QoS 0: written).
    pub async fn publish(&mut self, topic: &str, payloads: &[String], qos: QoS, retain: bool) -> Result<()> {
        for payload in payloads {
            self.requests.publish(topic, payload, qos, retain).await?;
        }
        self.acknowledged(payloads.len()).await
    }

    /// Publishes one message with properties at QoS 1. MQTT 5.0 only.
    pub async fn publish_v5(&mut self, topic: &str, payload: &str, properties: &Properties) -> Result<()> {
        match &self.requests {
            Requests::V4(_) => bail!("MQTT 3.1.1 has no properties"),
            Requests::V5(client) => v5::publish(client, topic, payload, properties).await?,
        }
        self.acknowledged(1).await
    }

    async fn acknowledged(&mut self, count: usize) -> Result<()> {
        let mut left = count;
        while left > 0 {
            match self.next("acknowledgement").await? {
                Event::Published => left -= 1,
                Event::Message(message) => self.messages.push_back(message),
                other => bail!("wanted an acknowledgement, got {other:?}"),
            }
        }
        Ok(())
    }

    /// Returns the next `count` messages in the order of their arrival.
    pub async fn receive(&mut self, count: usize) -> Result<Vec<Message>> {
        let mut received = Vec::with_capacity(count);
        while received.len() < count {
            if let Some(message) = self.messages.pop_front() {
                received.push(message);
                continue;
            }
            let event = self.next("message").await.with_context(|| {
                let payloads: Vec<&str> = received.iter().map(|m: &Message| m.payload.as_str()).collect();
                format!("{} of {count} messages: {payloads:?}", received.len())
            })?;
            match event {
                Event::Message(message) => received.push(message),
                other => bail!("wanted a message, got {other:?}"),
            }
        }
        Ok(received)
    }

    /// Returns the first message that arrives at either of two clients, and the index of that client: 0 or 1.
    pub async fn receive_either(left: &mut Self, right: &mut Self) -> Result<(usize, Message)> {
        if let Some(message) = left.messages.pop_front() {
            return Ok((0, message));
        }
        if let Some(message) = right.messages.pop_front() {
            return Ok((1, message));
        }
        let (at, event) = tokio::select! {
            event = left.next("message") => (0, event?),
            event = right.next("message") => (1, event?),
        };
        match event {
            Event::Message(message) => Ok((at, message)),
            other => bail!("wanted a message, got {other:?}"),
        }
    }

    /// Sends DISCONNECT, and returns when the connection is closed.
    pub async fn disconnect(self) -> Result<()> {
        self.requests.disconnect().await?;
        self.closed().await.map(drop)
    }

    /// Closes the socket without a DISCONNECT.
    pub async fn abort(self) {
        self.connection.abort();
        // The socket closes when the task's state is dropped, and then this await returns. The error only says that the
        // task was aborted.
        let _ = self.connection.await;
    }

    /// Waits for the end of the connection. Drops messages that still arrive before it.
    pub async fn closed(mut self) -> Result<Ended> {
        let drained = async { while self.events.recv().await.is_some() {} };
        tokio::time::timeout(WAIT, drained).await.context("the connection stays open")?;
        Ok(self.connection.await?)
    }

    /// Waits for the next event. `wanted` describes it in the error message.
    async fn next(&mut self, wanted: &str) -> Result<Event> {
        match tokio::time::timeout(WAIT, self.events.recv()).await {
            Ok(Some(event)) => Ok(event),
            Ok(None) => bail!("no {wanted}, the connection ended: {:?}", (&mut self.connection).await?),
            Err(_) => bail!("no {wanted} within {WAIT:?}"),
        }
    }
}

/// Maximum wait for one event. It only bounds failing runs; a passing run stays far below it.
const WAIT: Duration = Duration::from_secs(20);
/// Capacity of the event channel. No scenario sends as much: a full channel would stop the client from reading.
const EVENTS_MAX: usize = 1024;
