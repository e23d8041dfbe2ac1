//! Options of MQTTX for MQTT 5.0 properties, and for Wills, which older versions have as well.

use super::UsageError;
use crate::properties::{ConnectProperties, Properties, Will, pair};
use clap::Args;

/// Properties of CONNECT.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "MQTT 5.0: CONNECT")]
pub struct ConnectPropertyArgs {
    /// Maximum number of QoS 1 and 2 messages that a client accepts before it acknowledges
    #[arg(long, alias = "rcv-max", value_parser = clap::value_parser!(u16).range(1..))]
    receive_maximum: Option<u16>,
    /// Largest packet that a client accepts, in bytes
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    maximum_packet_size: Option<u32>,
    /// Request Response Information
    #[arg(long)]
    req_response_info: bool,
    /// Request no Reason Strings and User Properties for successful packets
    #[arg(long)]
    no_req_problem_info: bool,
    /// User Properties of CONNECT, "NAME: VALUE" (-Cup)
    #[arg(long, num_args = 1.., value_name = "PROPERTY", value_parser = pair)]
    conn_user_properties: Vec<(String, String)>,
}

impl ConnectPropertyArgs {
    pub fn properties(&self) -> ConnectProperties {
        ConnectProperties {
            receive_maximum: self.receive_maximum.unwrap_or(0),
            packet_size_max: self.maximum_packet_size,
            response_information: self.req_response_info,
            no_problem_information: self.no_req_problem_info,
            user: self.conn_user_properties.clone(),
        }
    }
}

/// Properties of each PUBLISH.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "MQTT 5.0: messages")]
pub struct MessagePropertyArgs {
    /// Mark the payload as UTF-8 (-pf)
    #[arg(long)]
    payload_format_indicator: bool,
    /// Seconds after which a message expires
    #[arg(long, short = 'e')]
    message_expiry_interval: Option<u32>,
    /// Topic Alias to use in each message, in addition to the topic (-ta); the broker must allow it
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    topic_alias: Option<u16>,
    /// Topic for responses (-rt)
    #[arg(long)]
    response_topic: Option<String>,
    /// Data that identifies the request in its response (-cd)
    #[arg(long)]
    correlation_data: Option<String>,
    /// User Properties, "NAME: VALUE" (-up)
    #[arg(long, num_args = 1.., value_name = "PROPERTY", value_parser = pair)]
    user_properties: Vec<(String, String)>,
    /// Content type of the payload, such as text/plain (-ct)
    #[arg(long)]
    content_type: Option<String>,
}

impl MessagePropertyArgs {
    pub fn properties(&self) -> Properties {
        Properties {
            utf8: self.payload_format_indicator,
            expiry: self.message_expiry_interval,
            content_type: self.content_type.clone(),
            response_topic: self.response_topic.clone(),
            correlation_data: self.correlation_data.clone(),
            topic_alias: self.topic_alias,
            user: self.user_properties.clone(),
        }
    }
}

/// The Will of every client.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Will")]
pub struct WillArgs {
    /// Topic of the Will (-Wt), with %i, %c and %u
    #[arg(long)]
    will_topic: Option<String>,
    /// Message of the Will (-Wm)
    #[arg(long, requires = "will_topic")]
    will_message: Option<String>,
    /// QoS of the Will (-Wq)
    #[arg(long, requires = "will_topic", value_parser = clap::value_parser!(u8).range(0..=2))]
    will_qos: Option<u8>,
    /// Retain the Will (-Wr)
    #[arg(long, requires = "will_topic")]
    will_retain: bool,
    /// Seconds until the broker publishes the Will (-Wd), MQTT 5.0
    #[arg(long, requires = "will_topic")]
    will_delay_interval: Option<u32>,
    /// Mark the message of the Will as UTF-8 (-Wpf), MQTT 5.0
    #[arg(long, requires = "will_topic")]
    will_payload_format_indicator: bool,
    /// Seconds after which the Will expires (-We), MQTT 5.0
    #[arg(long, requires = "will_topic")]
    will_message_expiry_interval: Option<u32>,
    /// Content type of the Will's message (-Wct), MQTT 5.0
    #[arg(long, requires = "will_topic")]
    will_content_type: Option<String>,
    /// Topic for responses to the Will (-Wrt), MQTT 5.0
    #[arg(long, requires = "will_topic")]
    will_response_topic: Option<String>,
    /// Data that identifies the Will in a response (-Wcd), MQTT 5.0
    #[arg(long, requires = "will_topic")]
    will_correlation_data: Option<String>,
    /// User Properties of the Will, "NAME: VALUE" (-Wup), MQTT 5.0
    #[arg(long, requires = "will_topic", num_args = 1.., value_name = "PROPERTY", value_parser = pair)]
    will_user_properties: Vec<(String, String)>,
}

impl WillArgs {
    /// The Will of these options.
    ///
    /// # Errors
    /// Invalid or incomplete options of a Will.
    pub fn will(&self) -> Result<Option<Will>, UsageError> {
        let Some(topic) = self.will_topic.clone() else { return Ok(None) };
        let will = Will {
            topic,
            payload: self.will_message.clone().unwrap_or_default().into_bytes(),
            qos: self.will_qos.unwrap_or(0),
            retain: self.will_retain,
            delay: self.will_delay_interval.unwrap_or(0),
            properties: Properties {
                utf8: self.will_payload_format_indicator,
                expiry: self.will_message_expiry_interval,
                content_type: self.will_content_type.clone(),
                response_topic: self.will_response_topic.clone(),
                correlation_data: self.will_correlation_data.clone(),
                topic_alias: None,
                user: self.will_user_properties.clone(),
            },
        };
        will.check().map_err(|why| UsageError(format!("error: {why}")))?;
        Ok(Some(will))
    }
}
