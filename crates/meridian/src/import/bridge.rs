//! Lines of a mosquitto.conf about the bridge of the last `connection`.

use super::{Section, boolean, bracketed, number, text};

/// Bridge of a mosquitto.conf.
#[derive(Debug, Default)]
pub struct ImportedBridge {
    keys: Section,
    topics: Vec<String>,
}

/// Port of an address without one.
const PORT: &str = "1883";

/// Words of bridges that begin with none of `bridge_`, `local_` and `remote_`.
const WORDS: [&str; 17] = [
    "address",
    "addresses",
    "cleansession",
    "clientid",
    "idle_timeout",
    "keepalive_interval",
    "notification_topic",
    "notifications",
    "notifications_local_only",
    "password",
    "restart_timeout",
    "round_robin",
    "start_type",
    "threshold",
    "topic",
    "try_private",
    "username",
];

/// Returns whether a line with this word is about a bridge.
pub fn is_word(word: &str) -> bool {
    WORDS.contains(&word) || ["bridge_", "local_", "remote_"].iter().any(|prefix| word.starts_with(prefix))
}

impl ImportedBridge {
    /// Begins the bridge of a line `connection NAME`.
    pub fn new(name: &str) -> Self {
        // mosquitto tells the other broker MQTT 3.1.1 unless a line says otherwise.
        let keys = Section::from([("name", text(name)), ("version", text("3.1.1"))]);
        Self { keys, ..Self::default() }
    }

    /// Converts one line. `Err`: the reason why it has no counterpart, with advice.
    pub fn line(&mut self, word: &str, value: &str) -> Result<(), String> {
        match word {
            "address" | "addresses" => {
                let addresses: Vec<String> = value.split_whitespace().map(address).collect();
                self.set("address", text(&addresses.join(",")));
            }
            "topic" => self.topics.push(value.to_owned()),
            "bridge_protocol_version" => match value {
                "mqttv311" => self.set("version", text("3.1.1")),
                "mqttv50" => self.set("version", text("5.0")),
                _ => return Err("a bridge speaks MQTT 3.1.1 or 5.0".to_owned()),
            },
            "remote_clientid" | "clientid" => self.set("client_id", text(value)),
            "remote_username" | "username" => self.set("username", text(value)),
            "remote_password" | "password" => {
                return Err(
                    "write the password into a file of its own, and name that as password_file".to_owned()
                );
            }
            "cleansession" => self.set("clean", boolean(value)?.to_string()),
            "keepalive_interval" => self.set("keep_alive", text(&format!("{}s", number(value)?))),
            "round_robin" if boolean(value)? => self.set("address_order", text("round_robin")),
            "round_robin" => {}
            "start_type" => match value {
                "automatic" | "lazy" | "once" => self.set("start", text(value)),
                _ => return Err("known are automatic, lazy and once".to_owned()),
            },
            "idle_timeout" => self.set("lazy_idle", text(&format!("{}s", number(value)?.max(1)))),
            "threshold" => self.set("lazy_messages", number(value)?.max(1).to_string()),
            "restart_timeout" => {
                let mut words = value.split_whitespace();
                let first = number(words.next().unwrap_or_default())?.max(1);
                let cap = words.next().map(number).transpose()?.unwrap_or(first).max(first);
                self.set("backoff_min", text(&format!("{first}s")));
                self.set("backoff_max", text(&format!("{cap}s")));
            }
            "try_private" => self.set("try_private", boolean(value)?.to_string()),
            "notification_topic" => self.set("state_topic_remote", text(value)),
            "notifications" if !boolean(value)? => {
                self.keys.remove("state_topic_remote");
            }
            "notifications" => {
                return Err("the state is published if state_topic_remote names a topic for it".to_owned());
            }
            "bridge_cafile" => self.set_tls("tls_ca", value),
            "bridge_certfile" => self.set_tls("tls_certificate", value),
            "bridge_keyfile" => self.set_tls("tls_key", value),
            "bridge_max_packet_size" if number(value)? > 0 => {
                self.set("packet_size_max", text(&format!("{}B", number(value)?)));
            }
            "bridge_tls_use_os_certs" => {
                if boolean(value)? {
                    self.set("tls", "true".to_owned());
                }
            }
            "bridge_capath" => {
                self.set("tls", "true".to_owned());
                return Err(
                    "name a file with the authorities as tls_ca; without it, those of the system count"
                        .to_owned(),
                );
            }
            "bridge_alpn"
            | "bridge_tls_version"
            | "bridge_ciphers"
            | "bridge_ciphers_tls1.3"
            | "bridge_require_ocsp" => {
                self.set("tls", "true".to_owned());
                return Err("a bridge has TLS 1.2 or 1.3, and no such setting for it".to_owned());
            }
            "bridge_psk" | "bridge_identity" => {
                // Without it, the bridge would connect in plain text.
                self.set("tls", "true".to_owned());
                return Err("there is no TLS-PSK: use certificates".to_owned());
            }
            "bridge_insecure" if boolean(value)? => {
                self.set("tls", "true".to_owned());
                return Err(
                    "the certificate of the other broker is always checked; name its authority as tls_ca"
                        .to_owned(),
                );
            }
            "bridge_outgoing_retain" if !boolean(value)? => {
                return Err("a bridge passes the retain flag on as it is".to_owned());
            }
            "bridge_insecure" | "bridge_attempt_unsubscribe" | "bridge_outgoing_retain" => {}
            "local_clientid" | "local_username" | "local_password" | "local_cleansession" => {
                return Err(
                    "the bridge needs no login at this broker, and its session here is durable".to_owned()
                );
            }
            _ => return Err("a bridge has no such setting".to_owned()),
        }
        Ok(())
    }

    /// Advice about what the lines mean together.
    pub fn hint(&self) -> Option<String> {
        let is_both = |topic: &String| topic.split_whitespace().nth(1) == Some("both");
        let may_return = self.topics.iter().any(is_both) && self.keys.get("version") != Some(&text("5.0"));
        let name = self.keys.get("name").map_or("", String::as_str);
        may_return.then(|| {
            format!(
                "connection {name}: with MQTT 3.1.1, a ring of bridges is not noticed, and messages go round in it; set \
                 version = \"5.0\" if the other broker has it"
            )
        })
    }

    fn set(&mut self, key: &'static str, value: String) {
        self.keys.insert(key, value);
    }

    fn set_tls(&mut self, key: &'static str, value: &str) {
        self.set("tls", "true".to_owned());
        self.set(key, text(value));
    }

    /// Keys of the section, with their values in TOML.
    pub fn finish(mut self) -> Section {
        if !self.topics.is_empty() {
            let lines: String = self.topics.iter().map(|topic| format!("{topic}\n")).collect();
            // A literal string keeps quotes and backslashes as they are. It cannot hold three single quotes.
            let topics = match lines.contains("'''") {
                true => text(&lines),
                false => format!("'''\n{lines}'''"),
            };
            self.set("topics", topics);
        }
        self.keys
    }
}

/// Address with a port.
fn address(word: &str) -> String {
    match word.rsplit_once(':') {
        Some((_, port))
            if !port.is_empty()
                && port.bytes().all(|byte| byte.is_ascii_digit())
                && word.matches(':').count() == 1 =>
        {
            word.to_owned()
        }
        _ if word.ends_with(']') || !word.contains(':') => format!("{word}:{PORT}"),
        _ if word.starts_with('[') => word.to_owned(),
        _ => format!("{}:{PORT}", bracketed(word)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_get_the_port_of_mqtt() {
        let addresses = ["a", "a:8883", "[::1]", "[::1]:1884", "::1"].map(address);
        assert_eq!(addresses, ["a:1883", "a:8883", "[::1]:1883", "[::1]:1884", "[::1]:1883"]);
    }
}
