use super::*;
use crate::List;

crate::section! {
    /// First section.
    [mqtt]
    pub struct Mqtt {
        /// Highest QoS.
        pub qos_max: u8 = "2" in "0..=2", at start;
        /// Largest packet.
        pub packet_size_max: crate::ByteSize = "1MiB" in "64B..=256MiB", at start;
    }
}

crate::section! {
    /// Second section.
    [session]
    pub struct Session {
        /// Longest expiry.
        pub expiry_max: std::time::Duration = "7d", at start;
        /// Name of the owner.
        pub owner: Option<String> = "", at start;
    }
}

crate::section! {
    /// Third section.
    [listener]
    pub struct Listener {
        /// Address of the listener.
        pub address: String = "127.0.0.1:1883", at start;
        /// Length of the backlog.
        pub backlog: u32 = "1024", at start;
    }
}

#[derive(Debug)]
struct Config {
    mqtt: Mqtt,
    session: Session,
    listeners: Vec<Listener>,
}

impl Default for Config {
    fn default() -> Self {
        Self { mqtt: Mqtt::default(), session: Session::default(), listeners: vec![Listener::default()] }
    }
}

impl Tree for Config {
    fn sections(&mut self) -> Vec<&mut dyn Section> {
        vec![&mut self.mqtt, &mut self.session]
    }

    fn lists(&mut self) -> Vec<&mut dyn List> {
        vec![&mut self.listeners]
    }
}

#[derive(Default)]
struct Fixture(Layers);

impl Fixture {
    fn file(mut self, text: &str) -> Self {
        self.0.file = Some(("m.toml".into(), text.to_owned()));
        self
    }

    fn env(mut self, variable: &str, value: &str) -> Self {
        self.0.environment.push((variable.to_owned(), value.to_owned()));
        self
    }

    fn set(mut self, text: &str) -> Self {
        self.0.set.push(text.to_owned());
        self
    }

    fn listen(mut self, addresses: &[&str]) -> Self {
        let addresses = addresses.iter().map(|address| (*address).to_owned()).collect();
        self.0.flags.push(Flag::List("--listen", "listener", "address", addresses));
        self
    }

    fn load(&self) -> Loaded<Config> {
        load(&self.0).unwrap_or_else(|problems| panic!("{problems:?}"))
    }

    fn addresses(&self) -> Vec<String> {
        self.load().tree.listeners.into_iter().map(|listener| listener.address).collect()
    }

    fn problems(&self) -> Vec<String> {
        load::<Config>(&self.0).expect_err("a problem").iter().map(ToString::to_string).collect()
    }
}

#[test]
fn each_layer_overrides_the_ones_before_it() {
    let mut fixture = Fixture::default();
    assert_eq!(fixture.load().tree.mqtt.qos_max, 2);
    fixture = fixture.file("[mqtt]\nqos_max = 1");
    assert_eq!(fixture.load().tree.mqtt.qos_max, 1);
    fixture = fixture.env("MERIDIAN__MQTT__QOS_MAX", "0");
    assert_eq!(fixture.load().tree.mqtt.qos_max, 0);
    fixture = fixture.set("mqtt.qos_max=2");
    assert_eq!(fixture.load().tree.mqtt.qos_max, 2);
    fixture.0.flags.push(Flag::Value("--qos", "mqtt.qos_max", "1".into()));
    assert_eq!(fixture.load().tree.mqtt.qos_max, 1);
}

#[test]
fn the_last_of_several_equal_assignments_holds() {
    let fixture = Fixture::default().set("mqtt.qos_max=0").set("mqtt.qos_max=1");
    assert_eq!(fixture.load().tree.mqtt.qos_max, 1);
}

#[test]
fn every_value_knows_its_source() {
    let fixture = Fixture::default()
        .file("\n[mqtt]\nqos_max = 1\n")
        .env("MERIDIAN__SESSION__EXPIRY_MAX", "1h")
        .set("session.owner=me");
    let loaded = fixture.load();
    assert_eq!(loaded.source("mqtt.qos_max").to_string(), "m.toml:3");
    assert_eq!(loaded.source("session.expiry_max").to_string(), "environment MERIDIAN__SESSION__EXPIRY_MAX");
    assert_eq!(loaded.source("session.owner").to_string(), "--set session.owner=me");
    assert_eq!(loaded.source("mqtt.packet_size_max"), &Source::Default);
    assert_eq!(fixture.listen(&["[::1]:1"]).load().source("listener.0.address").to_string(), "--listen");
}

#[test]
fn variables_without_the_prefix_are_ignored() {
    Fixture::default().env("MERIDIAN_HOME", "x").env("PATH", "y").load();
}

#[test]
fn an_unknown_key_is_reported_with_the_nearest_known_name() {
    let check = |fixture: Fixture, expected: &str| assert_eq!(fixture.problems(), [expected]);
    check(
        Fixture::default().file("[mqtt]\nqos_mx = 1"),
        "m.toml:2: unknown setting `mqtt.qos_mx`; the nearest known one is `mqtt.qos_max`",
    );
    check(
        Fixture::default().file("[mqt]\nqos_max = 1"),
        "m.toml:2: unknown setting `mqt.qos_max`; the nearest known one is `mqtt.qos_max`",
    );
    check(
        Fixture::default().file("[session]\npacket_size_max = 1"),
        "m.toml:2: unknown setting `session.packet_size_max`; the nearest known one is `mqtt.packet_size_max`",
    );
    check(
        Fixture::default().file("qos_max = 1"),
        "m.toml:1: unknown setting `qos_max`; the nearest known one is `mqtt.qos_max`",
    );
    check(
        Fixture::default().env("MERIDIAN__MQTT__QOSMAX", "1"),
        "environment MERIDIAN__MQTT__QOSMAX: unknown setting `mqtt.qosmax`; the nearest known one is `mqtt.qos_max`",
    );
    check(
        Fixture::default().set("listener.0.adress=x"),
        "--set listener.0.adress=x: unknown setting `listener.0.adress`; the nearest known one is `listener.0.address`",
    );
    check(
        Fixture::default().set("listner.0.address=x"),
        "--set listner.0.address=x: unknown setting `listner.0.address`; the nearest known one is `listener.0.address`",
    );
    check(
        Fixture::default().set("owner=x"),
        "--set owner=x: unknown setting `owner`; the nearest known one is `session.owner`",
    );
}

#[test]
fn an_unknown_section_is_reported_even_if_it_is_empty() {
    let problems = |text: &str| Fixture::default().file(text).problems();
    assert_eq!(
        problems("[mqtt]\n\n[sesion]\n"),
        ["m.toml:3: unknown section `sesion`; the nearest known one is `session`"]
    );
    assert_eq!(
        problems("[[listner]]\n[[listner]]\n"),
        ["m.toml:1: unknown section `listner`; the nearest known one is `listener`"]
    );
    assert_eq!(problems("nonsense = []").len(), 1);
    assert_eq!(problems("[nonsense]\n[mqtt]\nqos_max = 1\n").len(), 1);
    assert_eq!(problems("[[mqtt]]"), ["m.toml:1: `mqtt` cannot be repeated, it is written [mqtt]"]);
    assert_eq!(problems("[listener]"), ["m.toml:1: `listener` can be repeated, it is written [[listener]]"]);
    Fixture::default().file("[mqtt]\n[session]\n[[listener]]\n").load();
}

#[test]
fn a_wrong_value_is_reported_with_what_is_expected() {
    let fixture = Fixture::default()
        .file("[mqtt]\nqos_max = \"one\"\npacket_size_max = 1.5\n[session]\nexpiry_max = 7")
        .env("MERIDIAN__MQTT__PACKET_SIZE_MAX", "1GiB")
        .set("mqtt.qos_max=3")
        .set("mqtt.qos_max");
    assert_eq!(
        fixture.problems(),
        [
            "m.toml:2: mqtt.qos_max: expected a whole number from 0 to 255, found the string \"one\"",
            "m.toml:3: mqtt.packet_size_max: expected a size such as 512B, 64KiB, 1MiB or 2GiB, found a number with a fraction",
            "m.toml:5: session.expiry_max: expected a duration with a unit, such as 100ms, 5s, 10m, 2h or 7d, found the number 7",
            "environment MERIDIAN__MQTT__PACKET_SIZE_MAX: mqtt.packet_size_max: `1GiB` is out of range, allowed is 64B to 256MiB",
            "--set mqtt.qos_max=3: mqtt.qos_max: `3` is out of range, allowed is 0 to 2",
            "--set mqtt.qos_max: expected section.key=value",
        ]
    );
}

#[test]
fn a_file_with_listeners_replaces_the_default_one() {
    assert_eq!(Fixture::default().addresses(), ["127.0.0.1:1883"]);
    let fixture = Fixture::default().file("[[listener]]\naddress = \"a\"\n[[listener]]\naddress = \"b\"");
    assert_eq!(fixture.addresses(), ["a", "b"]);
}

#[test]
fn environment_and_set_change_and_add_listeners() {
    let fixture = Fixture::default().file("[[listener]]\naddress = \"a\"");
    let fixture = fixture.env("MERIDIAN__LISTENER__0__BACKLOG", "7");
    assert_eq!(fixture.load().tree.listeners[0], Listener { address: "a".into(), backlog: 7 });
    let fixture = fixture.env("MERIDIAN__LISTENER__1__ADDRESS", "b").set("listener.2.address=c");
    assert_eq!(fixture.addresses(), ["a", "b", "c"]);
    assert_eq!(
        fixture.set("listener.5.address=e").problems(),
        ["--set listener.5.address=e: `listener.5` leaves a gap: the next new entry is `listener.3`"]
    );
}

/// A numeric order is needed: as text, "10" sorts before "2", and an entry before its predecessor would be a gap.
#[test]
fn entries_from_the_environment_are_taken_by_number() {
    let mut fixture = Fixture::default();
    for index in (0..12).rev() {
        fixture = fixture.env(&format!("MERIDIAN__LISTENER__{index}__ADDRESS"), &index.to_string());
    }
    let expected: Vec<_> = (0..12).map(|index| index.to_string()).collect();
    assert_eq!(fixture.addresses(), expected);
}

#[test]
fn the_listen_flag_replaces_and_set_refines() {
    let fixture = Fixture::default()
        .file("[[listener]]\naddress = \"a\"\nbacklog = 1\n[[listener]]\naddress = \"b\"")
        .listen(&["c"])
        .set("listener.0.backlog=9");
    assert_eq!(fixture.load().tree.listeners, [Listener { address: "c".into(), backlog: 9 }]);
    assert_eq!(fixture.load().source("listener.0.backlog").to_string(), "--set listener.0.backlog=9");
}

#[test]
fn lists_and_sections_are_not_mistaken_for_each_other() {
    let problems = |text: &str| Fixture::default().file(text).problems();
    assert_eq!(
        problems("[listener]\naddress = \"a\""),
        ["m.toml:2: `listener` can be repeated, it is written [[listener]]"]
    );
    assert!(problems("[[mqtt]]\nqos_max = 1")[0].contains("`mqtt` cannot be repeated, it is written [mqtt]"));
    assert_eq!(problems("mqtt = 5"), ["m.toml:1: `mqtt` is a section, written [mqtt]"]);
    assert_eq!(problems("[mqtt.qos_max]\nx = 1").len(), 1);
}

#[test]
fn a_key_twice_in_the_file_is_an_error() {
    let problems = Fixture::default().file("[mqtt]\nqos_max = 1\nqos_max = 1").problems();
    assert!(problems[0].starts_with("m.toml:3: "), "{problems:?}");
}

#[test]
fn an_empty_text_unsets_the_value_of_a_lower_layer() {
    let fixture = Fixture::default().file("[session]\nowner = \"me\"");
    assert_eq!(fixture.load().tree.session.owner.as_deref(), Some("me"));
    assert_eq!(fixture.set("session.owner=").load().tree.session.owner, None);
}

proptest::proptest! {
    #[test]
    fn no_input_panics(
        file in "[\\[\\]a-z_.= \n\"0-9]{0,60}",
        variable in "[A-Z0-9_]{0,30}",
        set in "[a-z0-9_.=]{0,30}",
    ) {
        let fixture = Fixture::default().file(&file).env(&format!("MERIDIAN__{variable}"), "1").set(&set);
        if let Err(problems) = load::<Config>(&fixture.0) {
            proptest::prop_assert!(!problems.is_empty());
        }
    }
}
