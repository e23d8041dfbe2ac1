//! Client for MQTT 5.0: the same calls as `v4`, with `rumqttc`'s separate types for 5.0.

// tidy: allow(anyhow): scenarios are tests; their errors are read by people only.
use anyhow::Result;
use rumqttc::Outgoing;
use rumqttc::v5::mqttbytes::QoS;
use rumqttc::v5::mqttbytes::v5::{
    Filter, LastWill, Packet, Publish, PublishProperties, SubscribeProperties, SubscribeReasonCode,
};
use rumqttc::v5::{AsyncClient, ConnectionError, Event as Raw, EventLoop, MqttOptions, StateError};
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use crate::client::{Broker, ConnectOptions, Requests};
use crate::event::{Ended, Event, Message, Properties};
use crate::v4::REQUESTS_MAX;

pub(crate) fn start(
    broker: &Broker,
    options: &ConnectOptions,
    events: mpsc::Sender<Event>,
) -> (Requests, JoinHandle<Ended>) {
    let mut mqtt = MqttOptions::new(&options.client_id, &broker.host, broker.port);
    mqtt.set_clean_start(options.clean);
    mqtt.set_session_expiry_interval(options.expiry);
    if let Some(will) = &options.will {
        let payload = will.payload.as_bytes();
        mqtt.set_last_will(LastWill::new(&will.topic, payload, qos(will.qos), false, None));
    }
    let (client, event_loop) = AsyncClient::new(mqtt, REQUESTS_MAX);
    (Requests::V5(client), tokio::spawn(run(event_loop, events)))
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
            Err(ConnectionError::MqttState(StateError::ServerDisconnect { reason_code, .. })) => {
                return Ended::ByReason(reason_code as u8);
            }
            Err(error) => return Ended::Otherwise(error.to_string()),
        }
    }
}

fn translate(raw: Raw) -> Option<Event> {
    Some(match raw {
        Raw::Incoming(Packet::ConnAck(ack)) => Event::Connected { session_present: ack.session_present },
        Raw::Incoming(Packet::SubAck(ack)) => {
            Event::Subscribed { granted: ack.return_codes.iter().filter_map(granted).collect() }
        }
        Raw::Incoming(Packet::PubAck(_) | Packet::PubComp(_)) | Raw::Outgoing(Outgoing::Publish(0)) => {
            Event::Published
        }
        Raw::Incoming(Packet::Publish(publish)) => Event::Message(message(publish)),
        _ => return None,
    })
}

fn granted(code: &SubscribeReasonCode) -> Option<rumqttc::QoS> {
    match code {
        SubscribeReasonCode::Success(qos) => Some(plain(*qos)),
        _ => None,
    }
}

fn message(publish: Publish) -> Message {
    let properties = publish.properties.unwrap_or_default();
    Message {
        topic: String::from_utf8_lossy(&publish.topic).into_owned(),
        payload: String::from_utf8_lossy(&publish.payload).into_owned(),
        qos: plain(publish.qos),
        retain: publish.retain,
        properties: Properties {
            content_type: properties.content_type,
            response_topic: properties.response_topic,
            correlation_data: properties.correlation_data.map(|data| data.to_vec()),
            message_expiry: properties.message_expiry_interval,
            payload_format: properties.payload_format_indicator,
            user: properties.user_properties,
            subscription_identifiers: properties.subscription_identifiers,
        },
    }
}

pub(crate) async fn subscribe(
    client: &AsyncClient,
    filter: &str,
    identifier: Option<usize>,
    no_local: bool,
) -> Result<()> {
    let mut filter = Filter::new(filter, QoS::AtLeastOnce);
    filter.nolocal = no_local;
    match identifier {
        None => client.subscribe_many([filter]).await?,
        Some(id) => {
            let properties = SubscribeProperties { id: Some(id), user_properties: Vec::new() };
            client.subscribe_many_with_properties([filter], properties).await?;
        }
    }
    Ok(())
}

pub(crate) async fn publish(
    client: &AsyncClient,
    topic: &str,
    payload: &str,
    properties: &Properties,
) -> Result<()> {
    let properties = PublishProperties {
        payload_format_indicator: properties.payload_format,
        message_expiry_interval: properties.message_expiry,
        response_topic: properties.response_topic.clone(),
        correlation_data: properties.correlation_data.clone().map(Into::into),
        user_properties: properties.user.clone(),
        content_type: properties.content_type.clone(),
        ..PublishProperties::default()
    };
    let payload = payload.as_bytes().to_vec();
    client.publish_with_properties(topic, QoS::AtLeastOnce, false, payload, properties).await?;
    Ok(())
}

/// Converts a QoS: the library has a separate type for each protocol version.
pub(crate) fn qos(qos: rumqttc::QoS) -> QoS {
    match qos {
        rumqttc::QoS::AtMostOnce => QoS::AtMostOnce,
        rumqttc::QoS::AtLeastOnce => QoS::AtLeastOnce,
        rumqttc::QoS::ExactlyOnce => QoS::ExactlyOnce,
    }
}

fn plain(qos: QoS) -> rumqttc::QoS {
    match qos {
        QoS::AtMostOnce => rumqttc::QoS::AtMostOnce,
        QoS::AtLeastOnce => rumqttc::QoS::AtLeastOnce,
        QoS::ExactlyOnce => rumqttc::QoS::ExactlyOnce,
    }
}
