use super::*;
use crate::config::Side;
use crate::pace::Pace;
use crate::plain::Body;
use crate::plan::{Kind, Message};
use crate::properties::{ConnectProperties, Properties};
use std::time::Duration;

fn parsed(line: &str) -> Result<Invocation, String> {
    let words: Vec<OsString> = line.split_whitespace().map(OsString::from).collect();
    parse(&words).map_err(|refused| refused.0)
}

#[track_caller]
fn plan(line: &str) -> Plan {
    match parsed(line) {
        Ok(Invocation::Run(plan)) => *plan,
        Ok(Invocation::Help(text)) => panic!("{line}: help\n{text}"),
        Ok(Invocation::TxRx(options)) => panic!("{line}: {options:?}"),
        Ok(Invocation::Ha(options)) => panic!("{line}: {options:?}"),
        Ok(Invocation::Size(options)) => panic!("{line}: {options:?}"),
        Ok(Invocation::Scenario(options)) => panic!("{line}: {options:?}"),
        Ok(Invocation::Agent(options)) => panic!("{line}: {options:?}"),
        Err(text) => panic!("{line}: {text}"),
    }
}

#[track_caller]
fn refusal(line: &str) -> String {
    match parsed(line) {
        Err(text) => text,
        Ok(_) => panic!("{line} was accepted"),
    }
}

/// Commands of the published measurements with core and replicant nodes; only the host differs.
#[test]
fn published_mqttx_commands() {
    for (rest, count, rate, topic) in [
        ("--count 1 --topic t/mqttx/%i", 1, 100.0, "t/mqttx/1"),
        ("--count 100 --interval 0 --topic t/mqttx/%i", 100, 0.0, "t/mqttx/100"),
        ("--count 1 --topic t/mqttx/+/%i/sub/+/#", 1, 100.0, "t/mqttx/+/1/sub/+/#"),
        ("--count 100 --interval 0 --topic t/mqttx/+/%i/sub/+/#", 100, 0.0, "t/mqttx/+/100/sub/+/#"),
        ("--count 1000 --interval 0 --topic t/mqttx/+/%i/sub/+/#", 1000, 0.0, "t/mqttx/+/1000/sub/+/#"),
    ] {
        let plan = plan(&format!("--as mqttx bench sub -h 127.0.0.1 {rest}"));
        assert_eq!((plan.kind, plan.clients.count, plan.connecting.rate), (Kind::Sub, count, rate), "{rest}");
        assert_eq!(
            (plan.target.hosts.as_slice(), plan.messages.qos),
            (&["127.0.0.1:1883".to_owned()][..], 0)
        );
        let cfg = plan.config().unwrap();
        assert_eq!(cfg.filters_of_sub(count - 1), [topic], "the last client's");
    }
}

/// Load of the published measurement: 50 million of each, 16,000 connections a second, a message of 256 bytes every
/// 90 s, publishing when all are connected.
#[test]
fn published_hundred_million_clients() {
    let sub = plan("sub -h 127.0.0.1,127.0.0.2 -R 16000 -c 1000 -t bench/%i/# -q 1");
    let publish =
        plan("pub -h 127.0.0.1,127.0.0.2 -R 16000 -c 1000 -t bench/%i/test -q 1 -s 256 -I 90000 -w");
    assert_eq!(sub.target.hosts, ["127.0.0.1:1883", "127.0.0.2:1883"]);
    assert_eq!((sub.connecting.rate, publish.connecting.rate), (16000.0, 16000.0));
    assert_eq!(publish.schedule.pace, Pace::Every(Duration::from_secs(90)));
    assert!(publish.schedule.together);
    let (sub, publish) = (sub.config().unwrap(), publish.config().unwrap());
    for i in [0, 999] {
        assert_eq!(sub.filters_of_sub(i), [format!("bench/{}/#", i + 1)]);
        assert_eq!(publish.topic_of_pub(i), format!("bench/{}/test", i + 1));
    }
    assert_eq!(publish.traffic.payload, 256);
}

#[test]
fn emqtt_defaults() {
    let p = plan("pub -t x");
    assert_eq!(
        (p.target.hosts[0].as_str(), p.session.version, p.clients.count, p.clients.start),
        ("localhost:1883", 5, 200, 1)
    );
    assert_eq!(
        (p.connecting.rate, p.session.keepalive, p.session.clean, p.session.expiry),
        (100.0, 300, true, 0)
    );
    assert_eq!(p.schedule.pace, Pace::Every(Duration::from_secs(1)));
    assert_eq!((p.messages.size, p.messages.qos, p.messages.inflight), (256, 0, 1));
    assert_eq!((p.schedule.limit, p.messages.retain, p.schedule.together), (0, false, false));
    assert_eq!((p.connecting.retries, p.connecting.reconnects), (0, 0));
    assert!(p.clients.id.contains("_bench_pub_"), "{}", p.clients.id);
}

#[test]
fn mqttx_defaults() {
    let p = plan("--as=mqttx bench pub -t x");
    assert_eq!(
        (p.target.hosts[0].as_str(), p.session.version, p.clients.count, p.clients.start),
        ("localhost:1883", 5, 1000, 1)
    );
    assert_eq!(
        (p.connecting.rate, p.session.keepalive, p.session.clean, p.connecting.reconnects),
        (100.0, 30, true, 10)
    );
    assert_eq!((p.schedule.pace, p.schedule.limit), (Pace::Every(Duration::from_secs(1)), 0));
    let p = plan("--as mqttx bench pub -t x -im 20 -se 60 -rp 0 --no-clean -V 3.1.1 -L 5 -m hi -I a%ib");
    assert_eq!(
        (&p.schedule.pace, p.session.expiry, p.connecting.reconnects),
        (&Pace::Every(Duration::from_millis(20)), 60, 0)
    );
    assert_eq!((p.session.clean, p.session.version, p.schedule.limit), (false, 4, 5));
    assert_eq!(p.messages.message, Some(Message::Fixed(b"hi".to_vec())));
    assert_eq!(p.config().unwrap().client_id(Side::Publisher, 1), "a2b");
    assert_eq!(plan("--as mqttx bench sub -t a b").messages.topics, ["a", "b"]);
}

#[test]
fn simulated_devices_have_the_defaults_of_the_other_tool() {
    let p = plan("--as mqttx simulate -sc tesla");
    assert_eq!(
        (p.kind, p.clients.count, p.connecting.rate, p.messages.qos, p.schedule.limit),
        (Kind::Pub, 1000, 100.0, 0, 0)
    );
    assert_eq!(
        (&p.messages.topics[..], p.schedule.pace),
        (&["mqttx/simulate/tesla/%c".to_owned()][..], Pace::Every(Duration::from_secs(1)))
    );
    let p = plan("--as mqttx simulate --scenario weather -c 3 -im 20 -L 9 -t w/%sc/%i -I w%i -h 127.0.0.1");
    assert_eq!((p.clients.count, p.schedule.limit), (3, 9));
    assert_eq!(p.config().unwrap().topic_of_pub(0), "w/weather/1");
    assert!(
        matches!(parsed("--as mqttx ls -sc"), Ok(Invocation::Help(text)) if text == "tesla\nIEM\nsmart_home\nweather\n")
    );
}

#[test]
fn flags_with_and_without_a_value() {
    assert!(!plan("conn -C false").session.clean);
    assert!(plan("conn -C true -l").session.clean);
    assert!(plan("pub -t x -r -w true").messages.retain);
    assert!(!plan("pub -t x -r false").messages.retain);
    let p = plan("conn -c5 -n 10 -R 50 -i 1 --ifaddr 127.0.0.2,127.0.0.3 --prefix me --shortids -k 0 -x 9");
    assert_eq!(
        (p.clients.count, p.clients.start, p.connecting.rate, p.session.keepalive, p.session.expiry),
        (5, 11, 50.0, 0, 9)
    );
    assert_eq!(p.target.ifaddr.len(), 2);
    assert_eq!(p.config().unwrap().client_id(Side::Subscriber, 0), "me11");
    let retries = plan("conn --num-retry-connect 3 --reconnect 4");
    assert_eq!((retries.connecting.retries, retries.connecting.reconnects), (3, 4));
    assert_eq!(plan("conn -h a:1,b -p 7").target.hosts, ["a:1", "b:7"]);
    assert_eq!(plan("pub -t x -F 0").messages.inflight, 60_000);
    assert_eq!(plan("conn --prefix me").clients.id, "me_bench_conn_");
}

#[test]
fn payloads() {
    let cfg = plan("pub -t x -h 127.0.0.1 -s 20 --payload-hdrs cnt64,ts").config().unwrap();
    let plain = cfg.plain.unwrap();
    assert_eq!(
        (cfg.traffic.payload, plain.body),
        (20, Body::Fixed(b"aaaa".to_vec())),
        "the headers are part of the size"
    );
    let cfg = plan("pub -t x -h 127.0.0.1 -m hello --payload-hdrs ts").config().unwrap();
    assert_eq!(cfg.traffic.payload, 13, "and stand before a message");
    assert!(plan("sub -t x -h 127.0.0.1 --payload-hdrs cnt64,ts").config().is_ok());
    let short = plan("pub -t x -h 127.0.0.1 -s 8 --payload-hdrs cnt64,ts").config();
    assert!(short.err().unwrap().to_string().contains("use -s 16 or more"));
}

#[test]
fn pairs_share_their_topic() {
    let cfg = run::pairs::config(&plan("pubsub -h 127.0.0.1 -c 4 -n 10 -t b/%i -I 100 -s 5")).unwrap();
    assert_eq!(
        (cfg.traffic.n_sub, cfg.traffic.n_pub, cfg.sending.rate, cfg.traffic.payload),
        (4, 4, 40.0, 24)
    );
    assert_eq!(cfg.topic_of_pub(0), "b/11");
    assert_eq!(cfg.filters_of_sub(3), ["b/14"]);
    assert_ne!(cfg.client_id(Side::Publisher, 0), cfg.client_id(Side::Subscriber, 0));
    let cfg = run::pairs::config(&plan("pubsub -h 127.0.0.1 -c 4 -t b")).unwrap();
    assert_eq!(cfg.traffic.topology, crate::topology::Topology::All);
}

#[test]
fn an_unsupported_option_is_refused_with_an_alternative() {
    for (line, advice) in [
        ("conn --quic", "TCP listener"),
        ("pub -t x --topics-payload f", "one `pub` for each"),
        ("pub -t x --retry-interval 5", "use -V 4, or --reconnect"),
        ("conn --qoelog f", "percentiles"),
        ("pub -t x -m template:///no/such/file", "template:///no/such/file: No such file"),
        ("pub -t x/#", "wildcard"),
        ("pubsub -t x -m hi", "use `sub` and `pub`"),
        ("size --rate 10", "--clients"),
        ("size --clients 0", "a number from 1 to 1000M"),
        ("conn --ciphers x", "--ssl-version"),
        ("conn --cacertfile x", "add -S"),
        ("conn -S --ssl-version tlsv1.1", "tlsv1.2 or tlsv1.3"),
        ("conn -S --certfile x", "--keyfile"),
        ("--as mqttx bench conn -l quic", "mqtt, mqtts, ws or wss"),
        ("conn -V 2", "-V is 3, 4 or 5"),
        ("pub -t x --broker-metrics https://x", "http://"),
        ("conn --restapi x:y", "IP:PORT"),
        ("conn -c 0", "1 or more"),
        ("sub -t x --payload-hdrs cnt32", "cnt64"),
        ("--as mqttx simulate", "one of tesla, IEM, smart_home, weather"),
        ("--as mqttx simulate -f x.js", "scripts are not run"),
        ("--as mqttx simulate -sc boat", "`boat`: it is one of"),
        ("--as mqttx ls", "ls -sc"),
        ("--as mqttx bench sub -t x -si 5", "`meridian sub`"),
        ("--as mqttx bench conn --topic-alias-maximum 5", "Topic Aliases of the broker"),
        ("--as mqttx bench conn -Wm bye", "--will-topic"),
        ("--as mqttx bench conn -Wt a/#", "not a topic for a Will"),
        ("--as mqttx bench conn -up x", "NAME: VALUE"),
        ("--as mqttx bench conn -wh a:b", "-l ws"),
        ("--as mqttx bench conn -l ws -wh Host:b", "WebSocket's own"),
        ("--as mqttx bench conn --alpn mqtt", "-l mqtts"),
        ("--scenario x.toml --duration 5", "the stages define"),
        ("conn --secret-file x", "--agents"),
        ("--as jmeter conn", "emqtt-bench"),
        ("conn -h", "value"),
        ("pub", "--topic"),
    ] {
        let text = refusal(line);
        assert!(text.contains(advice), "{line}: {text}");
    }
}

#[test]
fn mqttx_properties_headers_and_alpn() {
    let p = plan(
        "--as mqttx bench pub -t x -h 127.0.0.1 -pf -e 9 -ta 2 -rt r -cd c -up k:v l:w -ct t -Cup a:b --rcv-max 7 \
         --maximum-packet-size 100 --req-response-info --no-req-problem-info",
    );
    let pairs = |pairs: &[(&str, &str)]| -> Vec<(String, String)> {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let text = |text: &str| Some(text.to_owned());
    assert_eq!(
        p.messages.properties,
        Properties {
            utf8: true,
            expiry: Some(9),
            content_type: text("t"),
            response_topic: text("r"),
            correlation_data: text("c"),
            topic_alias: Some(2),
            user: pairs(&[("k", "v"), ("l", "w")]),
        }
    );
    let connect = ConnectProperties {
        receive_maximum: 7,
        packet_size_max: Some(100),
        response_information: true,
        no_problem_information: true,
        user: pairs(&[("a", "b")]),
    };
    assert_eq!((&p.session.properties, p.config().unwrap().session.recv_max), (&connect, 7));
    assert_eq!(plan("--as mqttx bench conn -up a:b").session.properties.user, connect.user);
    let secure = plan("--as mqttx bench conn -h 127.0.0.1 -l wss --insecure --alpn mqtt x-amzn -wh A:b c:d");
    let layers = secure.config().unwrap().network.layers;
    assert_eq!(layers.headers, pairs(&[("A", "b"), ("c", "d")]));
    assert_eq!(layers.tls.unwrap().alpn_protocols, [b"mqtt".to_vec(), b"x-amzn".to_vec()]);
    let old = plan("--as mqttx bench pub -t x -h 127.0.0.1 -V 3.1.1 -pf").config();
    assert!(old.err().unwrap().to_string().contains("only MQTT 5.0"));
}

#[test]
fn mqttx_wills() {
    let p = plan(
        "--as mqttx bench conn -h 127.0.0.1 -Wt w/%i -Wm bye -Wq 1 -Wr -Wd 3 -Wpf -We 4 -Wct t -Wrt r -Wcd c -Wup k:v",
    );
    let will = p.session.will.clone().unwrap();
    assert_eq!((&will.payload[..], will.qos, will.retain, will.delay), (&b"bye"[..], 1, true, 3));
    let found = &will.properties;
    assert_eq!((found.utf8, found.expiry, found.user.len()), (true, Some(4), 1));
    let texts = [&found.content_type, &found.response_topic, &found.correlation_data];
    assert_eq!(texts.map(|text| text.as_deref().unwrap()), ["t", "r", "c"]);
    assert_eq!(p.config().unwrap().will_topic(Side::Subscriber, 4), "w/5");
    assert!(plan("--as mqttx bench conn -h 127.0.0.1 -V 3.1.1 -Wt w").config().is_ok());
    assert!(plan("--as mqttx bench conn -h 127.0.0.1 -V 3.1.1 -Wt w -Wd 1").config().is_err());
}

#[test]
fn headers_of_the_websocket_are_secrets() {
    let words = "--as mqttx bench conn -wh a:hunter2 b:hunter3 -l ws --ws-headers=c:hunter4 -c 1";
    let shown = reports::without_secrets(&words.split(' ').map(OsString::from).collect::<Vec<_>>()).join(" ");
    assert_eq!(shown, "--as mqttx bench conn -wh *** *** -l ws --ws-headers=*** -c 1");
    assert!(!format!("{:?}", plan(words)).contains("hunter"));
}

#[test]
fn help_is_a_regular_result() {
    for line in ["--help", "sub --help", "size --help", "--as mqttx bench pub --help"] {
        assert!(matches!(parsed(line), Ok(Invocation::Help(text)) if text.contains("Usage")), "{line}");
    }
}
