//! What MQTTX says of MQTT 5.0: properties, and Wills, which older versions have as well.

use super::UsageError;
use crate::properties::{ConnectProperties, Properties, Will, pair};
use clap::Args;

/// Properties of CONNECT.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "MQTT 5.0: CONNECT")]
pub struct ConnectPropertyArgs {
    /// QoS 1 and 2 messages that a client takes before it has acknowledged some
    #[arg(long, alias = "rcv-max", value_parser = clap::value_parser!(u16).range(1..))]
    receive_maximum: Option<u16>,
    /// Largest packet that a client takes, in bytes
    #[arg(long, value_parser = clap::value_parser!(u32).range(1..))]
    maximum_packet_size: Option<u32>,
    /// Ask for Response Information
    #[arg(long)]
    req_response_info: bool,
    /// Ask for no Reason Strings and User Properties where nothing failed
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
    /// The payload is UTF-8 (-pf)
    #[arg(long)]
    payload_format_indicator: bool,
    /// Seconds after which the broker may forget a message
    #[arg(long, short = 'e')]
    message_expiry_interval: Option<u32>,
    /// Beside the topic in each message (-ta); the broker has to take so many
    #[arg(long, value_parser = clap::value_parser!(u16).range(1..))]
    topic_alias: Option<u16>,
    /// Where answers are to go (-rt)
    #[arg(long)]
    response_topic: Option<String>,
    /// By which an answer is known (-cd)
    #[arg(long)]
    correlation_data: Option<String>,
    /// User Properties, "NAME: VALUE" (-up)
    #[arg(long, num_args = 1.., value_name = "PROPERTY", value_parser = pair)]
    user_properties: Vec<(String, String)>,
    /// What the payload is, such as text/plain (-ct)
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
    /// Its message (-Wm)
    #[arg(long, requires = "will_topic")]
    will_message: Option<String>,
    /// Its QoS (-Wq)
    #[arg(long, requires = "will_topic", value_parser = clap::value_parser!(u8).range(0..=2))]
    will_qos: Option<u8>,
    /// It is retained (-Wr)
    #[arg(long, requires = "will_topic")]
    will_retain: bool,
    /// Seconds until the broker publishes it (-Wd), MQTT 5.0
    #[arg(long, requires = "will_topic")]
    will_delay_interval: Option<u32>,
    /// Its message is UTF-8 (-Wpf), MQTT 5.0
    #[arg(long, requires = "will_topic")]
    will_payload_format_indicator: bool,
    /// Seconds after which it may be forgotten (-We), MQTT 5.0
    #[arg(long, requires = "will_topic")]
    will_message_expiry_interval: Option<u32>,
    /// What its message is (-Wct), MQTT 5.0
    #[arg(long, requires = "will_topic")]
    will_content_type: Option<String>,
    /// Where answers to it are to go (-Wrt), MQTT 5.0
    #[arg(long, requires = "will_topic")]
    will_response_topic: Option<String>,
    /// By which an answer to it is known (-Wcd), MQTT 5.0
    #[arg(long, requires = "will_topic")]
    will_correlation_data: Option<String>,
    /// Its User Properties, "NAME: VALUE" (-Wup), MQTT 5.0
    #[arg(long, requires = "will_topic", num_args = 1.., value_name = "PROPERTY", value_parser = pair)]
    will_user_properties: Vec<(String, String)>,
}

impl WillArgs {
    /// # Errors
    /// A Will that cannot be.
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
