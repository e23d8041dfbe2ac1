//! `meridian config import`: converts a mosquitto.conf to a configuration of Meridian, and lists what has no
//! counterpart.

mod bridge;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use settings::{Layers, Loaded, Value as _};

use crate::config::{Config, ConfigError};
use bridge::ImportedBridge;

/// Result of the conversion of a mosquitto.conf.
#[derive(Debug, Default)]
pub struct Imported {
    /// Configuration in TOML.
    pub toml: String,
    /// Lines without a counterpart, each with advice.
    pub left: Vec<String>,
}

/// Converts a mosquitto.conf.
///
/// # Errors
/// Files that cannot be read, and values that the node would refuse.
pub fn mosquitto(path: &Path) -> Result<Imported, String> {
    let mut import = Import::default();
    import.file(path, 0)?;
    let imported = import.finish(path);
    // Settings that Meridian would refuse are reported here, not at the start.
    let layers =
        Layers { file: Some((path.with_extension("toml"), imported.toml.clone())), ..Layers::default() };
    match settings::load(&layers) {
        Ok(Loaded::<Config> { .. }) => Ok(imported),
        Err(problems) => Err(format!(
            "{}: these values cannot be converted:\n{}",
            path.display(),
            ConfigError::Problems(problems)
        )),
    }
}

/// Keys of one section, with their values in TOML.
type Section = BTreeMap<&'static str, String>;

#[derive(Debug, Default)]
struct Import {
    /// Listeners, the default one first: it counts only when a line configures it.
    listeners: Vec<Section>,
    has_default: bool,
    sections: BTreeMap<&'static str, Section>,
    left: Vec<String>,
    allow_anonymous: Option<bool>,
    has_acl: bool,
    /// Lines of a bridge belong to the last one.
    bridges: Vec<ImportedBridge>,
}

impl Import {
    fn file(&mut self, path: &Path, depth: u8) -> Result<(), String> {
        if depth > INCLUDES_MAX {
            return Err(format!("{}: files include each other", path.display()));
        }
        if self.listeners.is_empty() {
            self.listeners.push(Section::new());
        }
        let text = std::fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))?;
        for (number, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let (word, value) = line.split_once(char::is_whitespace).unwrap_or((line, ""));
            let value = value.trim();
            if word == "include_dir" {
                for file in included(Path::new(value))? {
                    self.file(&file, depth + 1)?;
                }
            } else if let Err(why) = self.line(word, value) {
                self.left.push(format!("{}:{}: {line}: {why}", path.display(), number + 1));
            }
        }
        Ok(())
    }

    /// Converts one line. `Err`: the reason why it has no counterpart, with advice.
    fn line(&mut self, word: &str, value: &str) -> Result<(), String> {
        if word == "connection" {
            self.bridges.push(ImportedBridge::new(value));
            return Ok(());
        }
        // As in mosquitto, other lines count wherever they are, also in a file that is included after this one.
        if bridge::is_word(word) {
            let bridge =
                self.bridges.last_mut().ok_or("it belongs to a bridge: write `connection NAME` before it")?;
            return bridge.line(word, value);
        }
        match word {
            "listener" => return self.listener(value),
            "port" => {
                let port = number(value)?;
                let host = self.host();
                self.has_default = true;
                self.set("address", text(&format!("{host}:{port}")));
            }
            "bind_address" => {
                self.has_default = true;
                let port = self.listeners[0].get("address").and_then(|address| {
                    address.trim_matches('"').rsplit_once(':').map(|(_, port)| port.to_owned())
                });
                self.listeners[0].insert(
                    "address",
                    text(&format!("{}:{}", bracketed(value), port.as_deref().unwrap_or("1883"))),
                );
            }
            "protocol" => match value {
                "mqtt" => {}
                "websockets" => self.set("transport", text("websocket")),
                _ => return Err("known are mqtt and websockets".to_owned()),
            },
            "max_connections" if value == "-1" => {}
            "max_connections" => {
                let connections = number(value)?;
                self.set("connections_max", connections.to_string());
            }
            "certfile" => self.set("tls_certificate", text(value)),
            "keyfile" => self.set("tls_key", text(value)),
            "cafile" => self.set("tls_client_ca", text(value)),
            "crlfile" => self.set("tls_client_crl", text(value)),
            "require_certificate" => {
                let word = if boolean(value)? { "required" } else { "off" };
                self.set("tls_client", text(word));
            }
            "tls_version" => match value {
                "tlsv1.2" => self.set("tls_version_min", text("1.2")),
                "tlsv1.3" => self.set("tls_version_min", text("1.3")),
                _ => return Err("known are TLS 1.2 and 1.3".to_owned()),
            },
            "use_identity_as_username" if boolean(value)? => {
                self.section("auth", "certificate_username", text("cn"))
            }
            "use_identity_as_username" => {}
            "allow_anonymous" => self.allow_anonymous = Some(boolean(value)?),
            "password_file" => self.section("auth", "password_file", text(value)),
            "acl_file" => {
                self.has_acl = true;
                self.section("auth", "acl_file", text(value));
            }
            "per_listener_settings" if !boolean(value)? => {}
            "per_listener_settings" => {
                return Err("users and rules are those of the node, whatever the listener; rules can name a listener (docs/access-rules.md)".to_owned());
            }
            "persistence" => {
                let durability = if boolean(value)? { "local-disk" } else { "memory" };
                self.section("storage", "durability", text(durability));
            }
            "max_packet_size" => {
                self.section("mqtt", "packet_size_max", text(&format!("{}B", number(value)?)))
            }
            "max_qos" => self.section("mqtt", "qos_max", number(value)?.to_string()),
            "max_keepalive" => self.section("mqtt", "keep_alive_max", number(value)?.to_string()),
            "max_inflight_messages" if number(value)? > 0 => {
                self.section("mqtt", "inflight_max", number(value)?.to_string());
            }
            "retain_available" => self.section("mqtt", "retain_available", boolean(value)?.to_string()),
            "max_queued_messages" if number(value)? > 0 => {
                self.section("queue", "messages_max", number(value)?.to_string());
            }
            "max_queued_bytes" if number(value)? > 0 => {
                self.section("queue", "bytes_max", text(&format!("{}B", number(value)?)));
            }
            "persistent_client_expiration" => {
                let (amount, unit) = value.split_at(value.len().saturating_sub(1));
                let hours = match unit {
                    "h" => 1,
                    "d" => 24,
                    "w" => 7 * 24,
                    "m" => 30 * 24,
                    "y" => 365 * 24,
                    _ => return Err("expected a number with h, d, w, m or y".to_owned()),
                };
                self.section("session", "expiry_max", text(&format!("{}h", number(amount)? * hours)));
            }
            "sys_interval" => self.section("sys", "interval", text(&format!("{}s", number(value)?))),
            "persistence_location" | "persistence_file" | "autosave_interval" | "autosave_on_changes" => {
                return Err("the data directory is node.data_dir, and mosquitto's file is not read: clients subscribe again, and retained messages \
                            can be copied (docs/from-mosquitto.md)".to_owned());
            }
            "log_dest" | "log_type" | "log_timestamp" | "log_timestamp_format" | "connection_messages" => {
                return Err(
                    "the log goes to standard error, which systemd keeps; log.level says how much of it"
                        .to_owned(),
                );
            }
            "pid_file" | "user" => return Err("systemd does that (packaging/systemd)".to_owned()),
            "psk_file" | "psk_hint" => return Err("there is no TLS-PSK: use certificates".to_owned()),
            "plugin" | "auth_plugin" | "global_plugin" => {
                return Err("there are no plug-ins: tokens, an HTTP service or the user database do it (docs/authentication.md)".to_owned());
            }
            _ => return Err("there is no such setting".to_owned()),
        }
        Ok(())
    }

    fn listener(&mut self, value: &str) -> Result<(), String> {
        let mut words = value.split_whitespace();
        let port = number(words.next().unwrap_or_default())?;
        let address = match (port, words.next()) {
            (0, Some(path)) => format!("unix:{path}"),
            (_, Some(host)) => format!("{}:{port}", bracketed(host)),
            (_, None) => format!("0.0.0.0:{port}"),
        };
        self.listeners.push(Section::from([("address", text(&address))]));
        Ok(())
    }

    /// Host of the default listener.
    fn host(&self) -> String {
        let address = self.listeners[0].get("address").map(|address| address.trim_matches('"'));
        address.and_then(|address| address.rsplit_once(':')).map_or("0.0.0.0", |(host, _)| host).to_owned()
    }

    /// Sets a setting of the last listener.
    fn set(&mut self, key: &'static str, value: String) {
        if let Some(listener) = self.listeners.last_mut() {
            listener.insert(key, value);
        }
    }

    fn section(&mut self, section: &'static str, key: &'static str, value: String) {
        self.sections.entry(section).or_default().insert(key, value);
    }

    fn finish(mut self, path: &Path) -> Imported {
        let mut listeners = self.listeners;
        let mut default = listeners.remove(0);
        // Without a listener, mosquitto 2 serves only this machine and needs no login.
        let is_local = !self.has_default && listeners.is_empty();
        if self.has_default || is_local {
            default.entry("address").or_insert_with(|| text("127.0.0.1:1883"));
            listeners.insert(0, default);
        }
        for listener in &mut listeners {
            // mosquitto reads `cafile` without requesting a certificate of clients, unless it is required.
            if listener.get("tls_client").is_none_or(|client| client == "\"off\"") {
                listener.remove("tls_client");
                listener.remove("tls_client_ca");
                listener.remove("tls_client_crl");
            }
        }
        let auth = self.sections.entry("auth").or_default();
        let anonymous = self.allow_anonymous.unwrap_or(is_local);
        auth.insert("allow_anonymous", anonymous.to_string());
        if !self.has_acl {
            auth.insert("no_match", text("allow"));
        }
        let mut toml = format!("# Made of {} by `meridian config import`.\n", path.display());
        for listener in &listeners {
            toml.push_str("\n[[listener]]\n");
            print(&mut toml, listener);
        }
        for (section, keys) in &self.sections {
            toml.push_str(&format!("\n[{section}]\n"));
            print(&mut toml, keys);
        }
        for bridge in &self.bridges {
            self.left.extend(bridge.hint().map(|hint| format!("{}: {hint}", path.display())));
        }
        for bridge in self.bridges {
            toml.push_str("\n[[bridge]]\n");
            print(&mut toml, &bridge.finish());
        }
        if !self.left.is_empty() {
            toml.push_str("\n# Without a counterpart:\n");
            for line in &self.left {
                toml.push_str(&format!("# {line}\n"));
            }
        }
        Imported { toml, left: self.left }
    }
}

/// Files of an `include_dir`, in the order in which mosquitto reads them.
fn included(directory: &Path) -> Result<Vec<PathBuf>, String> {
    let trouble = |error: std::io::Error| format!("include_dir {}: {error}", directory.display());
    let mut files = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(trouble)? {
        let path = entry.map_err(trouble)?.path();
        if path.extension().is_some_and(|extension| extension == "conf") {
            files.push(path);
        }
    }
    files.sort();
    Ok(files)
}

fn print(toml: &mut String, keys: &Section) {
    for (key, value) in keys {
        toml.push_str(&format!("{key} = {value}\n"));
    }
}

/// Text as a TOML string.
fn text(value: &str) -> String {
    value.to_owned().to_toml().unwrap_or_default()
}

fn bracketed(host: &str) -> String {
    if host.contains(':') { format!("[{host}]") } else { host.to_owned() }
}

fn number(value: &str) -> Result<u64, String> {
    value.parse().map_err(|_| format!("expected a number, found `{value}`"))
}

fn boolean(value: &str) -> Result<bool, String> {
    match value {
        "true" => Ok(true),
        "false" => Ok(false),
        _ => Err(format!("expected true or false, found `{value}`")),
    }
}

const INCLUDES_MAX: u8 = 8;

#[cfg(test)]
mod tests {
    use super::*;

    fn import(name: &str, text: &str) -> Imported {
        let path = std::env::temp_dir().join(format!("meridian-import-{name}-{}.conf", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let imported = mosquitto(&path);
        std::fs::remove_file(&path).unwrap();
        imported.unwrap()
    }

    /// Block of a page that begins with this line.
    fn block<'a>(page: &'a str, first: &str) -> &'a str {
        let at = page.find(&format!("\n{first}\n")).unwrap() + first.len() + 2;
        &page[at..at + page[at..].find("\n```").unwrap() + 1]
    }

    #[test]
    fn the_page_about_mosquitto_shows_what_the_command_writes() {
        let page = include_str!("../../../docs/from-mosquitto.md");
        let imported = import("page", block(page, "```conf"));
        let toml = imported.toml.split_once('\n').unwrap().1;
        // The comments contain the path of the file, which differs here.
        let (settings, left) = toml.split_once("\n# Without").unwrap();
        assert_eq!(settings.trim(), block(page, "```toml").trim());
        assert_eq!(imported.left.len(), 3, "{left}");
        for word in ["persistence_location", "log_dest", "remote_password"] {
            assert!(left.contains(word), "{left}");
        }
    }

    #[test]
    fn defaults_of_mosquitto_are_written_out() {
        let local = import("local", "").toml;
        for line in ["address = \"127.0.0.1:1883\"", "allow_anonymous = true", "no_match = \"allow\""] {
            assert!(local.contains(line), "{local}");
        }
        let open = import("open", "listener 1883\nacl_file acl\n").toml;
        assert!(
            open.contains("address = \"0.0.0.0:1883\"") && open.contains("allow_anonymous = false"),
            "{open}"
        );
        assert!(!open.contains("no_match") && open.contains("acl_file = \"acl\""), "{open}");
    }

    #[test]
    fn listeners_keep_their_own_settings() {
        let toml = import(
            "listeners",
            "port 1884\nlistener 8883 ::1\ncafile ca\ncertfile c\nkeyfile k\nrequire_certificate true\nlistener 8884\ncafile ca\n\
             certfile c\nkeyfile k\nlistener 0 /run/m.sock\nlistener 9001\nprotocol websockets\nmax_connections -1\n",
        )
        .toml;
        let listeners: Vec<&str> = toml.split("[[listener]]\n").skip(1).collect();
        assert_eq!(listeners.len(), 5, "{toml}");
        assert!(listeners[0].contains("\"0.0.0.0:1884\""));
        assert!(listeners[1].contains("\"[::1]:8883\"") && listeners[1].contains("tls_client_ca = \"ca\""));
        assert!(!listeners[2].contains("tls_client"), "mosquitto requests no certificate there: {toml}");
        assert!(listeners[3].contains("\"unix:/run/m.sock\""));
        assert!(listeners[4].contains("transport = \"websocket\""));
    }

    #[test]
    fn bridges_keep_their_words() {
        let text = "connection one\naddress a.example b.example:8883\ntopic up/# out 1 \"\" site/\ntopic down/# in\n\
            remote_clientid c1\nremote_username u\nremote_password p\nbridge_cafile /ca\nstart_type lazy\nidle_timeout 5\n\
            restart_timeout 3 40\ncleansession false\nconnection two\nbridge_protocol_version mqttv50\naddress ::1\ntopic x both 2\n";
        let imported = import("bridges", text);
        let bridges: Vec<&str> = imported.toml.split("[[bridge]]\n").skip(1).collect();
        for line in [
            "name = \"one\"",
            "address = \"a.example:1883,b.example:8883\"",
            "topics = '''\nup/# out 1 \"\" site/\ndown/# in\n'''",
            "client_id = \"c1\"",
            "username = \"u\"",
            "tls = true",
            "tls_ca = \"/ca\"",
            "start = \"lazy\"",
            "lazy_idle = \"5s\"",
            "backoff_min = \"3s\"",
            "backoff_max = \"40s\"",
            "version = \"3.1.1\"",
            "clean = false",
        ] {
            assert!(bridges[0].contains(line), "{line}: {}", bridges[0]);
        }
        assert!(
            bridges[1].contains("version = \"5.0\"") && bridges[1].contains("[::1]:1883"),
            "{}",
            bridges[1]
        );
        assert_eq!(imported.left.len(), 1, "{:?}", imported.left);
        assert!(imported.left[0].contains("password_file"));
    }

    #[test]
    fn lines_of_the_node_count_after_a_bridge() {
        let imported = import(
            "after-bridge",
            "listener 1883\nconnection one\naddress h\nacl_file acl\npassword_file users\nallow_anonymous true\n\
             listener 1884\ntopic a/# out\nmax_connections 7\n",
        );
        assert_eq!(imported.left, [""; 0]);
        for line in ["acl_file = \"acl\"", "password_file = \"users\"", "allow_anonymous = true"] {
            assert!(imported.toml.contains(line), "{line}: {}", imported.toml);
        }
        assert!(!imported.toml.contains("no_match"), "clients keep to the rules: {}", imported.toml);
        let listener = imported.toml.rsplit("[[listener]]").next().unwrap();
        assert!(listener.contains("1884") && listener.contains("connections_max = 7"), "{listener}");
        assert!(imported.toml.contains("\na/# out\n"), "{}", imported.toml);
    }

    #[test]
    fn a_bridge_with_tls_does_not_connect_without_it() {
        for line in [
            "bridge_capath /etc/ssl",
            "bridge_tls_use_os_certs true",
            "bridge_alpn mqtt",
            "bridge_tls_version tlsv1.2",
            "bridge_psk abc",
            "bridge_insecure true",
        ] {
            let imported =
                import("bridge-tls", &format!("connection b\naddress h:8883\ntopic # out\n{line}\n"));
            assert!(imported.toml.contains("\ntls = true\n"), "{line}: {}", imported.toml);
            assert!(!imported.toml.contains("tls_ca ="), "the authorities of the system: {}", imported.toml);
        }
        let plain =
            "connection b\naddress h\ntopic # out\nbridge_tls_use_os_certs false\nbridge_insecure false\n";
        assert!(!import("bridge-plain", plain).toml.contains("tls = true"));
    }

    #[test]
    fn a_bridge_that_may_form_a_ring_has_a_hint() {
        let ring = "connection b\naddress h\ntopic # both 1\n";
        let hint = "a ring of bridges";
        assert!(import("ring", ring).left.iter().any(|line| line.contains(hint)));
        let of_5 = format!("{ring}bridge_protocol_version mqttv50\n");
        let one_way = ring.replace("both", "out");
        for text in [of_5, one_way] {
            assert_eq!(import("no-ring", &text).left, [""; 0], "{text}");
        }
    }

    #[test]
    fn lines_without_a_counterpart_are_listed_with_their_number() {
        let imported = import(
            "left",
            "# a comment\nlistener 1883\nplugin /x.so\nconnection b\naddress other\nbridge_psk x\nlistener 1884\nmax_qos many\nfoo bar\n",
        );
        let left = imported.left.join("\n");
        for part in [
            ":3: plugin /x.so: there are no plug-ins",
            ":6: bridge_psk x: there is no TLS-PSK",
            ":8: max_qos many: expected a number",
            ":9: foo bar: there is no such setting",
        ] {
            assert!(left.contains(part), "{part}: {left}");
        }
        assert!(imported.toml.contains("0.0.0.0:1884") && imported.toml.contains("# Without a counterpart"));
    }
}
