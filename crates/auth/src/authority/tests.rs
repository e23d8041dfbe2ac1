use std::path::PathBuf;

use access::{Grants, Principal};
use mqtt::QoS;

use super::*;
use crate::settings::Auth;

const PUBLISH: Action = Action::Publish { qos: QoS::AtMostOnce, retain: false };
const SUBSCRIBE: Action = Action::Subscribe { qos: QoS::AtMostOnce };

/// Source with the same opinion about everything.
#[derive(Debug)]
struct FixedSource(Opinion);

impl Source for FixedSource {
    fn opinion(
        &self,
        _: Identity<'_>,
        _: Action,
        _: &str,
        later: &mut dyn FnMut() -> RetryAuthorize,
    ) -> Opinion {
        if self.0 == Opinion::Later {
            drop(later());
        }
        self.0
    }
}

/// Files of one test, removed at its end.
struct Files {
    directory: PathBuf,
    settings: Auth,
    authority: Authority,
}

impl Files {
    fn new(test: &str) -> Self {
        let directory =
            std::env::temp_dir().join(format!("meridian-authority-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&directory).unwrap();
        Self { directory, settings: Auth::default(), authority: Authority::default() }
    }

    fn rules(mut self, text: &str) -> Self {
        let path = self.directory.join("rules");
        std::fs::write(&path, text).unwrap();
        self.settings.rules_file = Some(path);
        self
    }

    fn acl(mut self, text: &str) -> Self {
        let path = self.directory.join("acl");
        std::fs::write(&path, text).unwrap();
        self.settings.acl_file = Some(path);
        self
    }

    fn no_match(mut self, no_match: NoMatch) -> Self {
        self.settings.no_match = Some(no_match);
        self
    }

    fn order(mut self, names: &[SourceName]) -> Self {
        self.settings.sources = Some(SourceNames(names.to_vec()));
        self
    }

    fn http(self, opinion: Opinion) -> Self {
        self.authority.set_http(Some(Box::new(FixedSource(opinion))));
        self
    }

    fn database(self, lines: &[(&str, &str)]) -> Self {
        self.authority.set_database(RuleSet::parse_lines(lines.iter().copied()).unwrap());
        self
    }

    fn sources(&self) -> Sources {
        Sources::read(&self.settings).unwrap()
    }

    /// Returns whether it is allowed, and whether the answer is lasting. Also checks that the explanation agrees with
    /// the decision.
    #[track_caller]
    fn ask(&self, who: Identity<'_>, action: Action, topic: &str) -> Option<(bool, bool)> {
        let sources = self.sources();
        let decided = self.authority.decide(&sources, who, action, topic, &mut || RetryAuthorize::new(|| {}));
        let explained = self.authority.explain(&sources, who, action, topic);
        assert_eq!(explained.allowed, decided.is_some_and(|permission| permission.allowed), "{explained:?}");
        decided.map(|Permission { allowed, lasting }| (allowed, lasting))
    }

    fn decided_by(&self, who: Identity<'_>, action: Action, topic: &str) -> (Decider, String) {
        let explanation = self.authority.explain(&self.sources(), who, action, topic);
        let step = &explanation.steps[explanation.decided_by];
        (step.by, step.reason.replace(&*self.directory.to_string_lossy(), "D"))
    }
}

impl Drop for Files {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.directory).unwrap();
    }
}

fn alice() -> Identity<'static> {
    Identity { client_id: "c", username: Some("alice"), ..Default::default() }
}

const YES: Option<(bool, bool)> = Some((true, true));
const NO: Option<(bool, bool)> = Some((false, true));

#[test]
fn without_any_source_everything_is_allowed_by_default() {
    let files = Files::new("none");
    assert!(!files.authority.guards(&files.sources()));
    assert_eq!(files.ask(alice(), PUBLISH, "a"), YES);
    let files = files.no_match(NoMatch::Deny);
    assert!(files.authority.guards(&files.sources()));
    assert_eq!(files.ask(alice(), PUBLISH, "a"), NO);
    let files = files.no_match(NoMatch::Allow);
    assert_eq!(files.ask(alice(), PUBLISH, "a"), YES);
    assert_eq!(files.ask(alice(), SUBSCRIBE, "#"), YES);
}

#[test]
fn access_is_refused_by_default_where_there_is_a_source() {
    for files in [
        Files::new("rules").rules("allow everyone all a"),
        Files::new("acl").acl("topic a\n"),
        Files::new("database").database(&[("1", "allow everyone all a")]),
        Files::new("http").http(Opinion::None),
        // Named, and without a rule.
        Files::new("named").order(&[SourceName::Database]),
    ] {
        assert!(files.authority.guards(&files.sources()));
        let (allowed, _) = files.ask(alice(), PUBLISH, "b").unwrap();
        assert!(!allowed);
        let files = files.no_match(NoMatch::Allow);
        let (allowed, _) = files.ask(alice(), PUBLISH, "b").unwrap();
        assert!(allowed);
    }
}

#[test]
fn the_first_source_with_an_opinion_decides() {
    let all = |test| {
        Files::new(test)
            .rules("deny everyone all r/#\nallow everyone all b")
            .database(&[("7", "allow everyone all r/x, d"), ("8", "deny everyone all h")])
            .acl("user alice\ntopic deny d\ntopic write f\n")
            .http(Opinion::Allow)
    };
    let files = all("order");
    let by = |topic| files.decided_by(alice(), PUBLISH, topic);
    assert_eq!(by("r/x"), (Decider::Source(SourceName::Rules), "D/rules:1: deny everyone all r/#".into()));
    assert_eq!(by("d"), (Decider::Source(SourceName::Database), "rule 7: allow everyone all r/x, d".into()));
    assert_eq!(by("f"), (Decider::Source(SourceName::AclFile), "D/acl:3: topic write f".into()));
    assert_eq!(by("x").0, Decider::Source(SourceName::Http));
    assert_eq!(files.ask(alice(), PUBLISH, "r/x"), NO);
    assert_eq!(files.ask(alice(), PUBLISH, "d"), YES);
    assert_eq!(files.ask(alice(), PUBLISH, "h"), NO);
    // A service may change its answer.
    assert_eq!(files.ask(alice(), PUBLISH, "x"), Some((true, false)));
    let files = all("reversed").order(&[SourceName::AclFile, SourceName::Database, SourceName::Rules]);
    assert_eq!(files.ask(alice(), PUBLISH, "d"), NO);
    assert_eq!(files.ask(alice(), PUBLISH, "r/x"), YES);
    assert_eq!(files.ask(alice(), PUBLISH, "x"), NO, "http is not named");
}

#[test]
fn a_source_that_cannot_decide_refuses() {
    let files = Files::new("failed").rules("allow everyone all a").http(Opinion::Failed);
    let files = files.no_match(NoMatch::Allow);
    assert_eq!(files.ask(alice(), PUBLISH, "a"), YES);
    assert_eq!(files.ask(alice(), PUBLISH, "b"), Some((false, false)));
    let figures = files.authority.figures();
    let http = figures.iter().find(|figures| figures.by == "http").unwrap();
    assert_eq!((http.allowed, http.denied, http.failed), (0, 0, 1));
    let rules = figures.iter().find(|figures| figures.by == "rules").unwrap();
    assert_eq!((rules.allowed, rules.denied, rules.failed), (1, 0, 0));
    let files = files.http(Opinion::Later);
    assert_eq!(files.ask(alice(), PUBLISH, "b"), None);
    assert_eq!(files.ask(alice(), Action::Receive, "b"), Some((false, false)));
    // Named, and missing.
    let files = Files::new("gone").order(&[SourceName::Http]).no_match(NoMatch::Allow);
    assert_eq!(files.ask(alice(), PUBLISH, "b"), Some((false, false)));
}

/// A service is not asked about deliveries. A subscription for messages to which no rule applies was granted by the
/// service.
#[test]
fn messages_of_a_granted_subscription_are_delivered_unless_a_rule_denies_them() {
    let receive = |files: &Files, topic| files.ask(alice(), Action::Receive, topic);
    let files = Files::new("granted").http(Opinion::None);
    assert_eq!(receive(&files, "a"), YES);
    assert_eq!(files.ask(alice(), SUBSCRIBE, "a"), Some((false, false)), "nothing is granted by that");
    let files = files.no_match(NoMatch::Deny);
    assert_eq!(receive(&files, "a"), YES);
    let names = [SourceName::Http, SourceName::Rules, SourceName::AclFile];
    let ruled =
        |test| Files::new(test).rules("deny everyone all a/secret").acl("user alice\ntopic deny b/secret\n");
    for files in [ruled("denied"), ruled("denied-last").order(&names)] {
        let files = files.http(Opinion::None);
        for (topic, answer) in [("a/secret", NO), ("b/secret", NO), ("c", YES)] {
            assert_eq!(receive(&files, topic), answer, "{topic}");
        }
    }
    // Without the service among the sources, rules have to allow it.
    let files = ruled("unasked").http(Opinion::None).order(&names[1..]);
    assert_eq!(receive(&files, "c"), NO);
}

/// The `always` rule grants subscriptions without asking, and the ACL file decides about deliveries.
#[test]
fn the_acl_file_decides_about_deliveries_when_every_subscription_is_granted() {
    let mut files = Files::new("always").acl("user alice\ntopic read a\n").http(Opinion::Deny);
    files.settings.acl_subscribe = crate::acl::SubscribeRule::Always;
    let files = files.order(&[SourceName::AclFile, SourceName::Http]);
    assert_eq!(files.ask(alice(), SUBSCRIBE, "#"), YES);
    files.authority.set_http(Some(Box::new(FixedSource(Opinion::None))));
    assert_eq!(files.ask(alice(), Action::Receive, "a"), YES);
    assert_eq!(files.ask(alice(), Action::Receive, "b"), NO);
}

#[test]
fn rules_of_the_client_come_first() {
    let files = Files::new("token").rules("deny everyone all a\nallow everyone all b");
    let grants = RuleSet::parse("allow everyone all a\ndeny everyone all b").unwrap();
    let grants: Box<dyn Grants> = Box::new(grants);
    let principal = Principal { grants: Some(grants), ..Default::default() };
    let who = Identity { principal: Some(&principal), ..alice() };
    assert_eq!(files.ask(who, PUBLISH, "a"), YES);
    assert_eq!(files.ask(who, PUBLISH, "b"), NO);
    assert_eq!(files.decided_by(who, PUBLISH, "b").0, Decider::Token);
    assert_eq!(files.ask(who, PUBLISH, "c"), NO);
    // The client's rules are a source of authorisation like others: what they do not allow is refused.
    assert_eq!(Files::new("token-only").ask(who, PUBLISH, "c"), NO);
    let root = Principal { superuser: true, ..Default::default() };
    let root = Identity { principal: Some(&root), ..alice() };
    assert_eq!(files.ask(root, PUBLISH, "a"), YES);
    assert_eq!(files.ask(root, SUBSCRIBE, "$SYS/#"), YES);
}

/// Attack list: the broker's own topics are only for clients to which a rule gives them.
#[test]
fn sys_is_read_by_explicit_permission_only() {
    let files = Files::new("sys").rules("allow user root subscribe $SYS/#\nallow everyone all #");
    let files = files.no_match(NoMatch::Allow);
    for filter in ["$SYS/#", "$SYS", "$SYS/+/x", "$SYS/broker/x"] {
        assert_eq!(files.ask(alice(), SUBSCRIBE, filter), NO, "{filter}");
    }
    assert_eq!(files.ask(alice(), Action::Receive, "$SYS/broker/x"), NO);
    for filter in ["$events/#", "$events", "$events/+/x", "$events/message/delivered"] {
        assert_eq!(files.ask(alice(), SUBSCRIBE, filter), NO, "{filter}");
        assert_eq!(Files::new("open").ask(alice(), SUBSCRIBE, filter), NO, "{filter} without sources");
    }
    assert_eq!(files.ask(alice(), Action::Receive, "$events/message/delivered"), NO);
    assert_eq!(files.ask(alice(), SUBSCRIBE, "$SYSTEM/x"), YES);
    assert_eq!(files.ask(Identity { username: Some("root"), ..alice() }, SUBSCRIBE, "$SYS/#"), YES);
}

#[test]
fn a_source_must_be_both_named_and_configured() {
    let read = |files: &Files| Sources::read(&files.settings).unwrap_err().to_string();
    let text = read(&Files::new("missing").order(&[SourceName::Rules]));
    assert!(text.contains("auth.sources") && text.contains("set auth.rules_file"), "{text}");
    let text = read(&Files::new("unnamed").rules("").order(&[SourceName::Database]));
    assert!(text.contains("`rules` is not named"), "{text}");
    let text = read(&Files::new("broken").rules("deny everyone all #\nallow user alice pulish a"));
    assert!(text.contains("rules:2:18: expected publish"), "{text}");
}

#[test]
fn a_file_that_does_not_exist_is_named_with_its_setting() {
    let settings = Auth { rules_file: Some("/nonexistent/rules".into()), ..Auth::default() };
    let error = Sources::read(&settings).unwrap_err().to_string();
    assert!(error.starts_with("/nonexistent/rules: there is no such file"), "{error}");
    assert!(error.contains("auth.rules_file") && error.contains("docs/access-rules.md"), "{error}");
    let settings = Auth { acl_file: Some("/nonexistent/acl".into()), ..Auth::default() };
    let error = Sources::read(&settings).unwrap_err().to_string();
    assert!(error.contains("auth.acl_file"), "{error}");
}
