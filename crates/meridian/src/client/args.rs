//! Command line options that `pub` and `sub` share: the address of the broker and the identity of the client.

use std::hash::{BuildHasher as _, RandomState};
use std::path::PathBuf;

use clap::{ArgAction, Args};
use mqtt::{QoS, TopicName, Version};

use super::Failure;
use super::property::Properties;
use super::target::{Scheme, Target, wrong_host};
use super::tls_args::TlsArgs;

#[derive(Args, Clone, Debug)]
pub struct ConnectArgs {
    /// Broker: a name, an address, or unix:PATH
    #[arg(short = 'h', long, default_value = "127.0.0.1", value_parser = host)]
    pub host: String,
    /// Port of the broker [default: 1883, with TLS 8883]
    #[arg(short, long)]
    pub port: Option<u16>,
    /// URL of the broker: mqtt://, mqtts://, ws:// or wss://[USER[:PASSWORD]@]HOST[:PORT], then /TOPIC, or the path
    /// of a WebSocket [default ports: 1883, 8883, 8083, 8084; default path: /mqtt]
    #[arg(short = 'L', long, value_name = "URL", conflicts_with_all = ["host", "port", "unix"])]
    pub url: Option<Target>,
    #[command(flatten)]
    pub tls: TlsArgs,
    /// Unix socket of the broker
    #[arg(long, value_name = "PATH", conflicts_with_all = ["host", "port"])]
    pub unix: Option<PathBuf>,
    /// Client Identifier; a random one when not given
    #[arg(short, long)]
    pub id: Option<String>,
    /// User name
    #[arg(short, long)]
    pub username: Option<String>,
    /// Password
    #[arg(short = 'P', long)]
    pub password: Option<String>,
    /// MQTT version: 5, 3.1.1 or 3.1
    #[arg(short = 'V', long, default_value = "5", value_parser = version)]
    pub protocol_version: Version,
    /// Keep Alive in seconds; 0 turns it off
    #[arg(short, long, default_value_t = 60, value_name = "SECONDS")]
    pub keepalive: u16,
    /// Resume the session of this Client Identifier and keep it afterwards; needs --id
    #[arg(short = 'c', long = "no-clean", visible_alias = "disable-clean-session", requires = "id")]
    pub no_clean: bool,
    /// Seconds that the session is kept after the connection [default: for ever with --no-clean]
    #[arg(short = 'x', long, value_name = "SECONDS")]
    pub session_expiry: Option<u32>,
    /// Topic of the Will
    #[arg(long, value_name = "TOPIC")]
    pub will_topic: Option<String>,
    /// Payload of the Will
    #[arg(long, value_name = "TEXT", requires = "will_topic")]
    pub will_payload: Option<String>,
    /// QoS of the Will
    #[arg(long, value_name = "QOS", requires = "will_topic", default_value = "0", value_parser = qos)]
    pub will_qos: QoS,
    /// Retain the Will
    #[arg(long, requires = "will_topic")]
    pub will_retain: bool,
    /// Property (MQTT 5): PACKET NAME VALUE, or PACKET user-property NAME VALUE; can be repeated
    #[arg(short = 'D', long = "property", num_args = 3..=4, value_names = ["PACKET", "NAME", "VALUE", "VALUE"],
          action = ArgAction::Append)]
    pub property: Vec<String>,
    /// Print help
    #[arg(long, action = ArgAction::Help)]
    help: Option<bool>,
}

impl ConnectArgs {
    /// Makes the checks that clap cannot make, and parses the properties.
    ///
    /// # Errors
    /// [`Failure::Usage`].
    pub fn properties(&self) -> Result<Properties, Failure> {
        let usage = |text: &str| Err(Failure::Usage(text.to_owned()));
        let properties = Properties::parse(&self.property)?;
        let secure = self.url.as_ref().map(|url| url.scheme.secure());
        match self.tls.asked_for() {
            Some(option) if secure == Some(false) => {
                return usage(&format!(
                    "{option} asks for TLS, and the URL is without: write mqtts:// or wss://"
                ));
            }
            Some(option) if self.unix.is_some() || self.host.starts_with("unix:") => {
                return usage(&format!("{option} asks for TLS, which a Unix socket does not have"));
            }
            _ => {}
        }
        let v5 = self.protocol_version.has_properties();
        if !v5 && !properties.is_empty() {
            return usage("properties (-D) need -V 5");
        }
        if !v5 && self.session_expiry.is_some() {
            return usage(
                "--session-expiry needs -V 5; older versions keep a session for ever (--no-clean) or not at all",
            );
        }
        if !v5 && self.password().is_some() && self.username().is_none() {
            return usage("a password without a user name (-u) needs -V 5");
        }
        if let Some(topic) = &self.will_topic
            && let Err(error) = TopicName::parse(topic)
        {
            return usage(&format!("--will-topic: `{topic}` is not a Topic Name: {error}"));
        }
        let given_twice = self.session_expiry.is_some()
            && properties.connect.as_properties().session_expiry_interval().is_some();
        if given_twice {
            return usage("give either --session-expiry or -D connect session-expiry-interval");
        }
        Ok(properties)
    }

    /// The host and port to connect to, unless the broker is at a Unix socket.
    pub fn target(&self) -> Target {
        let scheme = if self.tls.asked_for().is_some() { Scheme::Mqtts } else { Scheme::Mqtt };
        self.url.clone().unwrap_or_else(|| Target::plain(&self.host, self.port, scheme))
    }

    /// User name; the option overrides the URL.
    pub fn username(&self) -> Option<&str> {
        self.username.as_deref().or_else(|| self.url.as_ref()?.username.as_deref())
    }

    /// Password; the option overrides the URL.
    pub fn password(&self) -> Option<&str> {
        self.password.as_deref().or_else(|| self.url.as_ref()?.password.as_deref())
    }

    /// The given Client Identifier, or the command and 16 random digits. MQTT 3.1 refuses an empty one, and one of
    /// more than 23 characters.
    pub fn client_id(&self, command: &str) -> String {
        match &self.id {
            Some(id) => id.clone(),
            None => {
                let random = RandomState::new().hash_one(std::process::id());
                format!("{command}-{random:016x}")
            }
        }
    }
}

/// Parses `-h`.
pub fn host(text: &str) -> Result<String, String> {
    wrong_host(text).map_or_else(|| Ok(text.to_owned()), Err)
}

/// Parses `-V` in common notation, and in that of mosquitto's clients.
fn version(text: &str) -> Result<Version, String> {
    match text {
        "5" | "5.0" | "mqttv5" => Ok(Version::V5),
        "3.1.1" | "311" | "4" | "mqttv311" => Ok(Version::V3_1_1),
        "3.1" | "31" | "3" | "mqttv31" => Ok(Version::V3_1),
        _ => Err("known versions are 5, 3.1.1 and 3.1".to_owned()),
    }
}

/// Parses `-q`.
pub fn qos(text: &str) -> Result<QoS, String> {
    let bits = text.parse().map_err(|_| "QoS is 0, 1 or 2")?;
    QoS::from_bits(bits).ok_or_else(|| "QoS is 0, 1 or 2".to_owned())
}
