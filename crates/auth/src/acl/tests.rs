use mqtt::QoS;
use proptest::prelude::*;

use super::*;

const FILE: &str = "\
# What anybody without a name may do.
topic read public/#
topic write inbox

user alice
topic home/alice/#
topic read $SYS/#
topic deny home/alice/secret/#
topic write log/with blanks

user bob smith
topic read #

pattern read devices/%u/config
pattern write devices/%u/state
pattern deny devices/%u/state/off
pattern readwrite clients/%c/#
";

fn acl(text: &str) -> Acl {
    Acl::parse(Path::new("acl"), text).unwrap()
}

fn subject<'a>(client_id: &'a str, username: Option<&'a str>) -> Subject<'a> {
    Subject { client_id, username }
}

const PUBLISH: Action = Action::Publish { qos: QoS::AtMostOnce, retain: false };
const SUBSCRIBE: Action = Action::Subscribe { qos: QoS::AtMostOnce };

/// Returns the topics of `candidates` for which the client may do this.
fn permitted<'a>(subject: Subject<'_>, action: Action, candidates: &[&'a str]) -> Vec<&'a str> {
    let acl = acl(FILE);
    let permits = |topic: &&str| acl.permits(subject, action, topic, SubscribeRule::Covered);
    candidates.iter().copied().filter(permits).collect()
}

#[test]
fn clients_without_a_name_have_the_rules_above_the_first_user() {
    let nobody = subject("c", None);
    let topics = ["public/a", "inbox", "home/alice/a", "devices//config"];
    assert_eq!(permitted(nobody, Action::Receive, &topics), ["public/a"]);
    assert_eq!(permitted(nobody, PUBLISH, &topics), ["inbox"]);
    assert_eq!(
        permitted(nobody, SUBSCRIBE, &["public/#", "#", "public/+/x", "inbox"]),
        ["public/#", "public/+/x"]
    );
}

#[test]
fn a_user_has_the_rules_of_its_section_and_not_the_anonymous_ones() {
    let alice = subject("c", Some("alice"));
    let topics = ["public/a", "home/alice/a", "home/alice/secret/a", "home/bob/a", "log/with blanks"];
    assert_eq!(permitted(alice, Action::Receive, &topics), ["home/alice/a"]);
    assert_eq!(permitted(alice, PUBLISH, &topics), ["home/alice/a", "log/with blanks"]);
    assert_eq!(permitted(subject("c", Some("bob smith")), Action::Receive, &["a", "$SYS/uptime"]), ["a"]);
}

#[test]
fn a_user_without_a_section_has_the_patterns() {
    let eve = subject("c9", Some("eve"));
    let topics = ["public/a", "devices/eve/config", "devices/bob/config", "clients/c9/x", "clients/c1/x"];
    assert_eq!(permitted(eve, Action::Receive, &topics), ["devices/eve/config", "clients/c9/x"]);
    assert_eq!(permitted(eve, PUBLISH, &["devices/eve/config", "devices/eve/state"]), ["devices/eve/state"]);
}

#[test]
fn sys_topics_are_read_only_where_a_rule_names_them() {
    assert_eq!(
        permitted(subject("c", Some("alice")), SUBSCRIBE, &["$SYS/#", "$SYS/+"]),
        ["$SYS/#", "$SYS/+"]
    );
    assert_eq!(permitted(subject("c", Some("bob smith")), SUBSCRIBE, &["$SYS/#", "#"]), ["#"]);
    assert_eq!(permitted(subject("c", None), Action::Receive, &["$SYS/uptime"]), [""; 0]);
}

#[test]
fn a_subscription_is_refused_where_a_deny_overlaps_it() {
    let alice = subject("c", Some("alice"));
    let filters =
        ["home/alice/#", "home/alice/+", "home/alice/kitchen/#", "home/alice/secret/x", "home/+/kitchen"];
    // `home/alice/secret/#` matches `home/alice/secret` too, so `home/alice/+` overlaps it.
    assert_eq!(permitted(alice, SUBSCRIBE, &filters), ["home/alice/kitchen/#"]);
}

#[test]
fn the_rule_always_grants_subscriptions_and_filters_deliveries() {
    let (acl, alice) = (acl(FILE), subject("c", Some("alice")));
    assert!(acl.permits(alice, SUBSCRIBE, "#", SubscribeRule::Always));
    assert!(!acl.permits(alice, Action::Receive, "home/bob/a", SubscribeRule::Always));
    assert!(!acl.permits(alice, PUBLISH, "home/bob/a", SubscribeRule::Always));
}

/// Otherwise a client with the name `+` could read the topics of all others.
#[test]
fn a_name_with_wildcards_gets_nothing_from_patterns() {
    for name in ["+", "#", "c1/x"] {
        let client = subject(name, None);
        assert_eq!(
            permitted(client, Action::Receive, &["clients/c1/x", "clients/+/x", "clients/c1/x/y"]),
            [""; 0]
        );
        assert_eq!(permitted(client, SUBSCRIBE, &["clients/+/x", "clients/c1/x/#", "clients/#"]), [""; 0]);
    }
    let acl = acl("topic read #\npattern deny clients/%c\npattern read more/#");
    let permits =
        |name, topic| acl.permits(subject(name, Some("u")), Action::Receive, topic, SubscribeRule::Covered);
    assert!(permits("c1", "more/a"));
    assert!(!permits("+", "more/a"), "an undeterminable deny forbids all that patterns allow");
}

#[test]
fn sections_of_one_user_add_up_and_patterns_do_not_end_a_section() {
    let acl = acl("user a\ntopic read x\nuser b\npattern read p\ntopic read y\nuser a\ntopic read z");
    let reads =
        |user, topic| acl.permits(subject("c", Some(user)), Action::Receive, topic, SubscribeRule::Covered);
    assert!(reads("a", "x") && reads("a", "z") && !reads("a", "y"));
    assert!(reads("b", "y") && reads("b", "p"));
}

#[test]
fn errors_name_file_and_line() {
    let error = |text: &str| Acl::parse(Path::new("acl"), text).unwrap_err().to_string();
    assert!(error("topic a\ntopics b").starts_with("acl:2: unknown word `topics`"));
    assert!(error("topic raed a").starts_with("acl:1: unknown access `raed`"));
    assert_eq!(error("# c\n\ntopic"), "acl:3: the topic is missing");
    assert_eq!(error("user "), "acl:1: the user name is empty");
    assert!(error("topic read a/#/b").starts_with("acl:1: `a/#/b` is not a Topic Filter"));
    assert!(error("pattern read %u+").starts_with("acl:1: `%u+` is not a Topic Filter"));
}

fn rule() -> impl Strategy<Value = String> {
    let access = prop_oneof![Just("read"), Just("write"), Just("deny"), Just("readwrite")];
    let kind = prop_oneof![Just("topic"), Just("pattern")];
    (kind, access, filter()).prop_map(|(kind, access, filter)| format!("{kind} {access} {filter}\n"))
}

fn filter() -> impl Strategy<Value = String> {
    let level = prop_oneof![Just("a"), Just("b"), Just("+"), Just("$a"), Just("%c")];
    (proptest::collection::vec(level, 1..4), any::<bool>())
        .prop_map(|(levels, rest)| levels.join("/") + if rest { "/#" } else { "" })
}

fn topic() -> impl Strategy<Value = String> {
    let level = prop_oneof![Just("a"), Just("b"), Just("$a"), Just("me"), Just("")];
    proptest::collection::vec(level, 1..5)
        .prop_map(|levels| levels.join("/"))
        .prop_filter("not empty", |topic| !topic.is_empty())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1024))]

    /// Every message that matches a granted subscription may be read.
    #[test]
    fn messages_of_a_granted_subscription_may_be_read(
        rules in proptest::collection::vec(rule(), 1..6),
        wanted in filter().prop_map(|filter| filter.replace("%c", "me")),
        topics in proptest::collection::vec(topic(), 1..20),
    ) {
        let acl = acl(&rules.concat());
        let me = subject("me", None);
        if acl.permits(me, SUBSCRIBE, &wanted, SubscribeRule::Covered) {
            let wanted = mqtt::TopicFilter::parse(&wanted).unwrap();
            for topic in topics {
                if wanted.matches(mqtt::TopicName::parse(&topic).unwrap()) {
                    prop_assert!(acl.permits(me, Action::Receive, &topic, SubscribeRule::Covered), "{}", topic);
                }
            }
        }
    }

    #[test]
    fn no_text_panics(text in "(user|topic|pattern|read|deny|[a-c%+#/ \n\t]){0,30}") {
        if let Ok(acl) = Acl::parse(Path::new("acl"), &text) {
            // The result does not matter here; other tests check it.
            acl.permits(subject("me", Some("a")), PUBLISH, "a/b", SubscribeRule::Covered);
        }
    }
}

/// Line numbers of `FILE` count from 1.
#[test]
fn a_decision_names_the_line_that_makes_it() {
    let acl = acl(FILE);
    let says = |subject, action, topic| {
        let Decision { allowed, why } = acl.decide(subject, action, topic, SubscribeRule::Covered);
        (allowed, why)
    };
    let alice = subject("c", Some("alice"));
    assert_eq!(says(subject("c", None), Action::Receive, "public/a"), (true, Why::Line(2)));
    assert_eq!(says(alice, PUBLISH, "home/alice/a"), (true, Why::Line(6)));
    assert_eq!(says(alice, PUBLISH, "home/alice/secret/a"), (false, Why::Line(8)));
    assert_eq!(says(alice, SUBSCRIBE, "home/alice/#"), (false, Why::Line(8)));
    assert_eq!(says(alice, PUBLISH, "devices/alice/state"), (true, Why::Line(15)));
    assert_eq!(says(alice, PUBLISH, "elsewhere"), (false, Why::NoRule));
    assert_eq!(says(subject("c", Some("a/b")), PUBLISH, "clients/c/x"), (false, Why::DangerousName(16)));
    let always = acl.decide(alice, SUBSCRIBE, "#", SubscribeRule::Always);
    assert_eq!(always, Decision { allowed: true, why: Why::SubscribeAlways });
}
