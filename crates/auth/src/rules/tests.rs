use std::net::IpAddr;

use access::{ClientCertificate, Principal};
use mqtt::QoS;
use proptest::prelude::*;

use super::*;

const PUBLISH: Action = Action::Publish { qos: QoS::AtMostOnce, retain: false };
const SUBSCRIBE: Action = Action::Subscribe { qos: QoS::AtMostOnce };

fn alice() -> Identity<'static> {
    Identity { client_id: "c1", username: Some("alice"), listener: "default", ..Default::default() }
}

fn rules(text: &str) -> RuleSet {
    RuleSet::parse(text).unwrap_or_else(|(line, error)| panic!("line {line}, {error}"))
}

/// Checks the decision, and the deciding line.
#[track_caller]
fn check(text: &str, who: Identity<'_>, action: Action, topic: &str, expected: Option<(bool, u32)>) {
    let set = rules(text);
    let decision = set.ruling(who, action, topic).map(|ruling| match ruling.location {
        RuleLocation::Line(line) => (ruling.allowed, *line),
        RuleLocation::Id(id) => panic!("{id}"),
    });
    assert_eq!(decision, expected, "{action:?} {topic} under\n{text}");
}

#[test]
fn the_first_applicable_rule_decides() {
    let text = "\
# comment
allow user alice publish sensors/+/temp

deny  user alice all     secret/#
allow users bob, alice all #   ## everything else
deny everyone all #
";
    check(text, alice(), PUBLISH, "sensors/1/temp", Some((true, 2)));
    check(text, alice(), PUBLISH, "secret/x", Some((false, 4)));
    check(text, alice(), SUBSCRIBE, "public/#", Some((true, 5)));
    check(text, alice(), SUBSCRIBE, "secret/+", Some((false, 4)));
    check(text, alice(), SUBSCRIBE, "#", Some((false, 4)));
    check(text, Identity { username: None, ..alice() }, PUBLISH, "a", Some((false, 6)));
    check(text, alice(), PUBLISH, "$SYS/x", None);
}

#[test]
fn every_condition_selects_its_clients() {
    let certificate = ClientCertificate {
        common_name: Some("gateway-7".into()),
        subject: "CN=gateway-7,O=Works".into(),
        issuer: "CN=Root".into(),
        serial: "0AFF".into(),
        dns_names: vec!["a.example".into(), "b.example".into()],
        fingerprint: [0xab; 32],
        ..Default::default()
    };
    let principal = Principal {
        attributes: vec![("role".into(), "admin".into()), ("site".into(), "x".into())],
        ..Default::default()
    };
    let peer: IpAddr = "10.1.2.3".parse().unwrap();
    let who = Identity {
        peer: Some(peer),
        certificate: Some(&certificate),
        principal: Some(&principal),
        ..alice()
    };
    let fingerprint = "AB".repeat(32);
    let yes = [
        "everyone",
        "user alice",
        "users bob, al*",
        "client c*",
        "listener default",
        "address 10.0.0.0/8",
        "addresses 192.0.2.1,10.1.2.3",
        "cert cn=gateway-*",
        "cert subject=\"CN=gateway-7,O=Works\"",
        "cert issuer=CN=Root",
        "cert serial=0AFF",
        "cert dns=b.example",
        "attribute role=admin",
        "attribute site=y, x",
        "not user bob",
        "not anonymous and not client d*",
        "user alice and address 10.0.0.0/8 and not listener internal",
    ];
    let with_fingerprint = format!("cert fingerprint={fingerprint}");
    for condition in yes.into_iter().chain([&*with_fingerprint]) {
        check(&format!("allow {condition} all t"), who, PUBLISH, "t", Some((true, 1)));
    }
    for condition in [
        "anonymous",
        "user bob",
        "user Alice",
        "client c",
        "listener d",
        "address 192.0.2.0/24",
        "cert cn=probe-*",
        "cert dns=c.example",
        "cert email=*",
        "attribute role=user",
        "attribute colour=*",
        "not user alice",
        "user alice and client d",
    ] {
        check(&format!("allow {condition} all t"), who, PUBLISH, "t", None);
    }
    // A condition never matches a property that the client does not have.
    for condition in ["user *", "address 0.0.0.0/0", "cert subject=*", "attribute role=*"] {
        let nobody = Identity { client_id: "c1", ..Default::default() };
        check(&format!("allow {condition} all t"), nobody, PUBLISH, "t", None);
        check(&format!("allow not {condition} all t"), nobody, PUBLISH, "t", Some((true, 1)));
    }
}

#[test]
fn action_qos_and_retain_narrow_a_rule() {
    let publish = |qos, retain| Action::Publish { qos, retain };
    let subscribe = |qos| Action::Subscribe { qos };
    use QoS::{AtLeastOnce, AtMostOnce, ExactlyOnce};
    check("allow everyone publish t", alice(), SUBSCRIBE, "t", None);
    check("allow everyone publish t", alice(), Action::Receive, "t", None);
    check("allow everyone subscribe t", alice(), PUBLISH, "t", None);
    check("allow everyone publish, subscribe t", alice(), PUBLISH, "t", Some((true, 1)));
    let text = "allow everyone publish t qos 0..1 retain no";
    check(text, alice(), publish(AtLeastOnce, false), "t", Some((true, 1)));
    check(text, alice(), publish(ExactlyOnce, false), "t", None);
    check(text, alice(), publish(AtMostOnce, true), "t", None);
    check("deny everyone publish t retain yes", alice(), publish(AtMostOnce, true), "t", Some((false, 1)));
    check("deny everyone publish t retain yes", alice(), PUBLISH, "t", None);
    let text = "allow everyone subscribe t qos 0, 2";
    check(text, alice(), subscribe(ExactlyOnce), "t", Some((true, 1)));
    check(text, alice(), subscribe(AtLeastOnce), "t", None);
    check(text, alice(), Action::Receive, "t", Some((true, 1)));
    // A refusal of some QoS affects no messages of subscriptions with another.
    check("deny everyone subscribe t qos 1..2", alice(), Action::Receive, "t", None);
    check("deny everyone subscribe t", alice(), Action::Receive, "t", Some((false, 1)));
}

#[test]
fn eq_means_the_filter_itself() {
    let text = "deny everyone subscribe eq #\nallow everyone subscribe #";
    check(text, alice(), SUBSCRIBE, "#", Some((false, 1)));
    check(text, alice(), SUBSCRIBE, "+/#", Some((false, 1)));
    check(text, alice(), SUBSCRIBE, "a/#", Some((true, 2)));
    check(text, alice(), Action::Receive, "a", Some((true, 2)));
    let text = "allow everyone subscribe eq a/+/${clientid}";
    check(text, alice(), SUBSCRIBE, "a/+/c1", Some((true, 1)));
    check(text, alice(), SUBSCRIBE, "a/b/c1", None);
    check(text, alice(), SUBSCRIBE, "a/+/+", None);
    check(text, alice(), Action::Receive, "a/b/c1", Some((true, 1)));
    check("allow everyone all eq a/b", alice(), PUBLISH, "a/b", Some((true, 1)));
    check("allow everyone all eq a/+", alice(), PUBLISH, "a/b", None);
}

#[test]
fn placeholders_are_the_clients_own_names() {
    let certificate = ClientCertificate { common_name: Some("gw".into()), ..Default::default() };
    let principal = Principal { attributes: vec![("site".into(), "north".into())], ..Default::default() };
    let who = Identity { certificate: Some(&certificate), principal: Some(&principal), ..alice() };
    let text = "allow everyone all d/${clientid}/#, u/${username}, x-${cert_cn}/+, ${listener}, s/${attribute.site}/a";
    for topic in ["d/c1/x", "u/alice", "x-gw/1", "default", "s/north/a"] {
        check(text, who, PUBLISH, topic, Some((true, 1)));
    }
    for topic in ["d/c2/x", "u/bob", "x-/1", "s/south/a", "d/${clientid}/x"] {
        check(text, who, PUBLISH, topic, None);
    }
    // Without the name, the topic is undefined.
    for action in [PUBLISH, SUBSCRIBE] {
        check("deny everyone all u/${cert_cn}/#", alice(), action, "u//x", None);
    }
}

/// Attack list of access rules: none of these allows more than the rules intend.
#[test]
fn names_with_wildcards_in_them_widen_nothing() {
    let named = |client_id, username| Identity { client_id, username, ..Default::default() };
    let text = "allow everyone all d/${clientid}/#\nallow everyone all u/${username}/#";
    for name in ["#", "+", "a/b", "/", "+/x"] {
        check(text, named(name, Some(name)), SUBSCRIBE, "d/#", None);
        check(text, named(name, Some(name)), SUBSCRIBE, "u/+/#", None);
        check(text, named(name, Some(name)), PUBLISH, "d/a/b/c", None);
        check(text, named(name, Some(name)), PUBLISH, &format!("d/{name}/x"), None);
    }
    check("allow everyone all ${clientid}/#", named("$SYS", None), SUBSCRIBE, "$SYS/#", None);
    check("allow everyone all ${username}${clientid}/#", named("$SYS", Some("")), SUBSCRIBE, "$SYS/#", None);
    let deny = "deny everyone all private/${clientid}/#\nallow everyone all #";
    check(deny, named("a", None), PUBLISH, "x", Some((true, 2)));
    // The forbidden topics cannot be determined, so all are forbidden.
    check(deny, named("#", None), PUBLISH, "x", Some((false, 1)));
    let set = rules(deny);
    let ruling = set.ruling(named("#", None), PUBLISH, "x").unwrap();
    assert_eq!(ruling.ruling_reason, RulingReason::DangerousName);
}

#[test]
fn wildcards_wider_than_allowed_are_refused() {
    let text = "deny everyone all secret/#\ndeny everyone all +/secret\nallow everyone all a/+/c, b/#, #";
    assert!(RuleSet::parse(text).is_err(), "# next to other topics");
    let text = "deny everyone all secret/#, +/secret\nallow everyone all a/+/c, b/#";
    for filter in ["#", "+/#", "+/secret", "+/+", "secret", "secret/#", "b/#", "b/+"] {
        check(text, alice(), SUBSCRIBE, filter, Some((false, 1)));
    }
    // Both match `a/secret`.
    for filter in ["a/#", "a/+/#"] {
        check(text, alice(), SUBSCRIBE, filter, Some((false, 1)));
    }
    check(text, alice(), SUBSCRIBE, "a/+/+", None);
    for filter in ["$SYS/#", "$SYS/+/x", "c"] {
        check(text, alice(), SUBSCRIBE, filter, None);
    }
    check(text, alice(), SUBSCRIBE, "a/+/c", Some((true, 2)));
    check("allow everyone all #", alice(), SUBSCRIBE, "$SYS/#", None);
    check("allow everyone all +/#", alice(), SUBSCRIBE, "$SYS/#", None);
    check("allow user alice subscribe $SYS/#", alice(), SUBSCRIBE, "$SYS/#", Some((true, 1)));
}

#[test]
fn an_error_has_its_column_and_the_fix() {
    for (line, column, part) in [
        ("permit user a all t", 1, "allow or deny"),
        ("  alow user a all t", 3, "`alow`"),
        ("allow", 6, "the line ends where everyone"),
        ("allow alice publish t", 7, "found `alice`"),
        ("allow user publish t", 12, "write \"publish\""),
        ("allow user alice, publish t", 19, "write \"publish\""),
        ("allow user alice read t", 18, "expected publish, subscribe or all, found `read`"),
        ("allow user alice publish", 25, "the line ends where a topic"),
        ("allow everyone and user a all t", 16, "everyone stands alone"),
        ("allow user a and everyone all t", 18, "everyone stands alone"),
        ("allow not everyone all t", 11, "everyone stands alone"),
        ("allow user \"alice publish t", 12, "not closed"),
        ("allow user \"a\\b\" publish t", 15, "\\\\ is a backslash"),
        ("allow user a all t/#/x", 18, "not a Topic Filter"),
        ("allow user a all t #x", 20, "begins with ##"),
        ("allow user a all t/# # because", 22, "begins with ##"),
        ("allow user a all # because", 20, "begins with ##"),
        ("allow user a all $share/g/t", 18, "`t`"),
        ("allow user a all ${user}/t", 18, "${clientid}, ${username}"),
        ("allow user a all ${clientid/t", 18, "unknown placeholder"),
        ("allow user a all ${attribute.}/t", 18, "${attribute.NAME}"),
        ("allow user a publish eq t/+", 22, "nothing is published to a wildcard"),
        ("allow address 10.0.0.1/8 all t", 15, "10.0.0.0/8"),
        ("allow address host all t", 15, "192.0.2.7"),
        ("allow cert gateway all t", 12, "cn=gateway-*"),
        ("allow cert name=gateway all t", 12, "fields are cn"),
        ("allow cert fingerprint=ab all t", 12, "64 hexadecimal"),
        ("allow attribute admin all t", 17, "role=admin"),
        ("allow attribute a/b=c all t", 17, "role=admin"),
        ("allow user a all t qos 3", 24, "0..1"),
        ("allow user a all t qos 2..1", 24, "0..1"),
        ("allow user a all t qos", 23, "the line ends where 0, 1 or 2"),
        ("allow user a all t qos 0 qos 1", 26, "occurs twice"),
        ("allow user a publish t retain maybe", 31, "yes or no"),
        ("allow user a all t retain no", 20, "retain is about publishing"),
        ("allow user a all t and retain no", 20, "write \"and\""),
        ("allow user a, , b all t", 15, "found `,`"),
        ("allow user a publish t qos 0 u", 30, "the end of the rule"),
    ] {
        let error = RuleSet::parse_line(line).expect_err(line);
        let text = error.to_string();
        assert!(error.column == column && text.contains(part), "{line}: {text}");
    }
    let (line, error) = RuleSet::parse("\n# c\nallow x").unwrap_err();
    assert_eq!((line, error.column), (3, 7));
    let (id, _) = RuleSet::parse_lines([("r1", "allow everyone all #"), ("r2", "x")]).unwrap_err();
    assert_eq!(&*id, "r2");
}

#[test]
fn quotation_marks_allow_any_name() {
    let named = |username| Identity { username: Some(username), ..alice() };
    let text = r#"allow user "a b, c", "and", "x\"\\\*y*" publish "t 1", "qos" ## comment "not closed"#;
    for name in ["a b, c", "and", "x\"\\*y", "x\"\\*yz"] {
        check(text, named(name), PUBLISH, "t 1", Some((true, 1)));
        check(text, named(name), PUBLISH, "qos", Some((true, 1)));
    }
    check(text, named("x\"\\zy"), PUBLISH, "t 1", None);
    check(r"allow user DOMAIN\alice publish t", named(r"DOMAIN\alice"), PUBLISH, "t", Some((true, 1)));
}

#[test]
fn a_rule_with_an_id_is_reported_by_its_id() {
    let set = RuleSet::parse_lines([("a", "deny user bob all #"), ("b", "allow everyone all #")]).unwrap();
    let ruling = set.ruling(alice(), PUBLISH, "t").unwrap();
    assert_eq!((ruling.location, ruling.allowed), (&RuleLocation::Id("b".into()), true));
    assert_eq!(Grants::decide(&set, alice(), PUBLISH, "$SYS/x"), None);
    assert_eq!(
        Grants::decide(&set, Identity { username: Some("bob"), ..alice() }, PUBLISH, "t"),
        Some(false)
    );
}

fn topic() -> impl Strategy<Value = String> {
    proptest::collection::vec(
        proptest::sample::select(vec!["a", "a", "a", "a", "b", "b", "b", "b", "alice", "c1"]),
        1..4,
    )
    .prop_map(|levels| levels.join("/"))
}

fn filter() -> impl Strategy<Value = String> {
    let level =
        proptest::sample::select(vec!["a", "a", "a", "a", "b", "b", "b", "b", "alice", "c1", "+", "+", "+"]);
    (proptest::collection::vec(level, 0..4), any::<bool>()).prop_map(|(mut levels, rest)| {
        if rest || levels.is_empty() {
            levels.push("#");
        }
        levels.join("/")
    })
}

/// Generates a line of a rules file.
fn rule() -> impl Strategy<Value = String> {
    let who = proptest::sample::select(vec![
        "everyone",
        "everyone",
        "everyone",
        "user alice",
        "users bob, alice",
        "user al*",
        "client c1",
        "client c*",
        "not user alice",
        "user alice and client c1",
        "clients c1, d",
        "anonymous",
        "user \"+\"",
        "client \"#\"",
    ]);
    let action = proptest::sample::select(vec!["publish", "subscribe", "all"]);
    let level = proptest::sample::select(vec![
        "a",
        "a",
        "a",
        "a",
        "b",
        "b",
        "b",
        "b",
        "+",
        "+",
        "+",
        "${clientid}",
        "${username}",
    ]);
    let topic =
        (proptest::collection::vec(level, 1..4), any::<bool>(), 0..6).prop_map(|(mut levels, rest, eq)| {
            if rest {
                levels.push("#");
            }
            format!("{}{}", if eq == 0 { "eq " } else { "" }, levels.join("/"))
        });
    let topics = prop_oneof![1 => Just("#".to_owned()), 6 => proptest::collection::vec(topic, 1..3).prop_map(|t| t.join(" "))];
    let qos = proptest::sample::select(vec!["", "", "", "", " qos 0", " qos 1..2", " qos 0, 2"]);
    (prop_oneof![Just("allow"), Just("deny")], who, action, topics, qos)
        .prop_map(|(effect, who, action, topics, qos)| format!("{effect} {who} {action} {topics}{qos}"))
        .prop_filter("nothing is published to a wildcard", |line| RuleSet::parse_line(line).is_ok())
}

fn who() -> impl Strategy<Value = (&'static str, Option<&'static str>)> {
    (
        proptest::sample::select(vec!["c1", "c1", "c1", "c1", "c2", "c2", "d", "#"]),
        proptest::sample::select(vec![
            Some("alice"),
            Some("alice"),
            Some("alice"),
            Some("alice"),
            Some("bob"),
            Some("bob"),
            None,
            Some("+"),
        ]),
    )
}

/// Returns the answer of a linear search through the rules.
fn linear(set: &RuleSet, who: Identity<'_>, action: Action, topic: &str) -> Option<(u32, RulingReason)> {
    (0..).zip(&set.rules).find_map(|(number, rule)| Some((number, rule.decides(who, action, topic)?)))
}

fn ask(set: &RuleSet, who: Identity<'_>, action: Action, topic: &str) -> Option<(u32, RulingReason)> {
    set.index.first(who, action, topic, |number| set.rules[number as usize].decides(who, action, topic))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    #[test]
    fn the_index_agrees_with_a_linear_search(
        lines in proptest::collection::vec(rule(), 0..24),
        (client_id, username) in who(),
        questions in proptest::collection::vec((topic(), filter(), 0..3_u8), 1..12),
    ) {
        let set = rules(&lines.join("\n"));
        let who = Identity { client_id, username, ..Default::default() };
        for (topic, filter, qos) in questions {
            let qos = QoS::from_bits(qos).unwrap();
            let publish = Action::Publish { qos, retain: false };
            for (action, topic) in [(publish, &topic), (Action::Receive, &topic), (Action::Subscribe { qos }, &filter)] {
                prop_assert_eq!(ask(&set, who, action, topic), linear(&set, who, action, topic), "{:?} {}", action, topic);
            }
        }
    }

    #[test]
    fn messages_of_a_granted_subscription_are_delivered(
        lines in proptest::collection::vec(rule(), 1..12),
        (client_id, username) in who(),
        wanted in filter(),
        topics in proptest::collection::vec(topic(), 1..16),
        qos in 0..3_u8,
    ) {
        let set = rules(&lines.join("\n"));
        let who = Identity { client_id, username, ..Default::default() };
        let subscribe = Action::Subscribe { qos: QoS::from_bits(qos).unwrap() };
        if Grants::decide(&set, who, subscribe, &wanted) == Some(true) {
            let filter = mqtt::TopicFilter::parse(&wanted).unwrap();
            for topic in topics.iter().filter(|topic| filter.matches(mqtt::TopicName::parse(topic).unwrap())) {
                prop_assert_eq!(Grants::decide(&set, who, Action::Receive, topic), Some(true), "{}", topic);
            }
        }
    }
}
