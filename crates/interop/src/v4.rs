//! Client for MQTT 3.1.1, with `rumqttc`'s types for that version.

use rumqttc::{
    AsyncClient, Event as Raw, EventLoop, Incoming, LastWill, MqttOptions, Outgoing, Publish, QoS,
    SubscribeReasonCode,
};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::client::{Broker, ConnectOptions, Requests};
use crate::event::{Ended, Event, Message, Properties};

pub(crate) fn start(
    broker: &Broker,
    options: &ConnectOptions,
    events: mpsc::Sender<Event>,
) -> (Requests, JoinHandle<Ended>) {
    let mut mqtt = MqttOptions::new(&options.client_id, &broker.host, broker.port);
    mqtt.set_clean_session(options.clean);
    if let Some(will) = &options.will {
        mqtt.set_last_will(LastWill::new(&will.topic, will.payload.as_bytes(), will.qos, false));
    }
    let (client, event_loop) = AsyncClient::new(mqtt, REQUESTS_MAX);
    (Requests::V4(client), tokio::spawn(run(event_loop, events)))
}

/// Runs until the connection ends. Another poll would make the library connect again.
async fn run(mut event_loop: EventLoop, events: mpsc::Sender<Event>) -> Ended {
    loop {
        match event_loop.poll().await {
            Ok(raw) => {
                if let Some(event) = translate(raw)
                    && events.send(event).await.is_err()
                {
                    return Ended::Otherwise("the client was dropped".into());
                }
            }
            Err(error) => return Ended::Otherwise(error.to_string()),
        }
    }
}

fn translate(raw: Raw) -> Option<Event> {
    Some(match raw {
        Raw::Incoming(Incoming::ConnAck(ack)) => Event::Connected { session_present: ack.session_present },
        Raw::Incoming(Incoming::SubAck(ack)) => {
            Event::Subscribed { granted: ack.return_codes.iter().filter_map(granted).collect() }
        }
        Raw::Incoming(Incoming::PubAck(_) | Incoming::PubComp(_)) | Raw::Outgoing(Outgoing::Publish(0)) => {
            Event::Published
        }
        Raw::Incoming(Incoming::Publish(publish)) => Event::Message(message(publish)),
        _ => return None,
    })
}

fn granted(code: &SubscribeReasonCode) -> Option<QoS> {
    match code {
        SubscribeReasonCode::Success(qos) => Some(*qos),
        SubscribeReasonCode::Failure => None,
    }
}

fn message(publish: Publish) -> Message {
    Message {
        topic: publish.topic,
        payload: String::from_utf8_lossy(&publish.payload).into_owned(),
        qos: publish.qos,
        retain: publish.retain,
        properties: Properties::default(),
    }
}

/// Requests that wait for the event loop. When the channel is full, the requesting task waits.
pub(crate) const REQUESTS_MAX: usize = 64;
