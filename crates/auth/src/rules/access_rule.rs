//! One rule: clients, actions and topics that are allowed or denied.

use std::fmt;

use access::{Action, ClientCertificate, Identity};
use mqtt::QoS;

use super::glob::Glob;
use super::tokens;
use crate::bans::Net;
use crate::rule::{Fit, RuleFilter};

/// Parsed line of a rules file. `Display` writes an equivalent line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AccessRule {
    pub(super) allows: bool,
    /// Conditions, which must all hold. Without conditions, the rule applies to everyone.
    pub(super) who: Box<[Condition]>,
    pub(super) publish: bool,
    pub(super) subscribe: bool,
    /// Topics, at least one.
    pub(super) topics: Box<[Topic]>,
    pub(super) qos: QosSet,
    /// Required value of RETAIN; `None` for both. For publishing only.
    pub(super) retain: Option<bool>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Condition {
    pub negated: bool,
    pub test: Test,
}

/// Property of a client with its accepted values. One of them must match.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Anonymous,
    User(Box<[Glob]>),
    Client(Box<[Glob]>),
    Listener(Box<[Glob]>),
    Address(Box<[Net]>),
    Cert(CertField, Box<[Glob]>),
    Fingerprint(Box<[[u8; 32]]>),
    Attribute(Box<str>, Box<[Glob]>),
}

/// Field of a certificate, except its fingerprint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CertField {
    Cn,
    Subject,
    Issuer,
    Serial,
    Dns,
    Email,
    Uri,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Topic {
    /// Compare with the Topic Filter of a subscription itself, not with the topics that it matches.
    pub eq: bool,
    pub filter: RuleFilter,
    pub text: Box<str>,
}

/// Subset of the three QoS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QosSet(u8);

/// Reason why a rule decides.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RulingReason {
    /// The rule applies to the topic.
    Topic,
    /// The rule is a `deny` with a placeholder, and the client's name contains `+`, `#` or `/`, or begins the topic
    /// with `$`. The forbidden topics cannot be determined, so all are forbidden.
    DangerousName,
}

impl AccessRule {
    /// Returns whether the rule decides this, and the reason. Does not allocate.
    pub(super) fn decides(&self, who: Identity<'_>, action: Action, topic: &str) -> Option<RulingReason> {
        if !self.speaks_of(action) || !self.who.iter().all(|condition| condition.holds(who)) {
            return None;
        }
        self.topics.iter().find_map(|about| match about.filter.fit(who) {
            Fit::NoName => None,
            Fit::Dangerous => (!self.allows).then_some(RulingReason::DangerousName),
            Fit::Usable if self.allows => about.allows(who, action, topic).then_some(RulingReason::Topic),
            Fit::Usable => about.denies(who, action, topic).then_some(RulingReason::Topic),
        })
    }

    fn speaks_of(&self, action: Action) -> bool {
        match action {
            Action::Publish { qos, retain } => {
                self.publish && self.qos.contains(qos) && self.retain.is_none_or(|meant| meant == retain)
            }
            Action::Subscribe { qos } => self.subscribe && self.qos.contains(qos),
            // The requested QoS of a subscription is not known at delivery. A client with a subscription that an
            // `allow` granted gets its messages. A `deny` of some QoS refuses such subscriptions, but no messages of
            // others.
            Action::Receive => self.subscribe && (self.allows || self.qos == QosSet::ALL),
        }
    }

    /// Returns the only texts that this condition accepts, if it has no wildcards.
    fn exact(globs: &[Glob]) -> Option<impl Iterator<Item = &str>> {
        globs.iter().all(|glob| glob.exact().is_some()).then(|| globs.iter().filter_map(Glob::exact))
    }

    /// Returns the user names that the rule is limited to.
    pub(super) fn users(&self) -> Option<impl Iterator<Item = &str>> {
        self.who.iter().find_map(|condition| match condition {
            Condition { negated: false, test: Test::User(globs) } => Self::exact(globs),
            _ => None,
        })
    }

    /// Returns the Client Identifiers that the rule is limited to.
    pub(super) fn clients(&self) -> Option<impl Iterator<Item = &str>> {
        self.who.iter().find_map(|condition| match condition {
            Condition { negated: false, test: Test::Client(globs) } => Self::exact(globs),
            _ => None,
        })
    }

    /// Returns whether the rule may decide about topics that it does not name.
    pub(super) fn may_deny_all(&self) -> bool {
        !self.allows && self.topics.iter().any(|topic| topic.filter.has_placeholders())
    }
}

impl Condition {
    fn holds(&self, who: Identity<'_>) -> bool {
        self.negated != self.test.holds(who)
    }
}

impl Test {
    /// Returns whether the condition holds. A client without the property does not meet it.
    fn holds(&self, who: Identity<'_>) -> bool {
        let one_of = |globs: &[Glob], text: &str| globs.iter().any(|glob| glob.matches(text));
        match self {
            Self::Anonymous => who.username.is_none(),
            Self::User(globs) => who.username.is_some_and(|name| one_of(globs, name)),
            Self::Client(globs) => one_of(globs, who.client_id),
            Self::Listener(globs) => one_of(globs, who.listener),
            Self::Address(nets) => {
                who.peer.is_some_and(|address| nets.iter().any(|net| net.contains(address)))
            }
            Self::Cert(field, globs) => {
                who.certificate.is_some_and(|certificate| field.any(certificate, |text| one_of(globs, text)))
            }
            Self::Fingerprint(known) => {
                who.certificate.is_some_and(|certificate| known.contains(&certificate.fingerprint))
            }
            Self::Attribute(name, globs) => who.principal.is_some_and(|principal| {
                principal.attributes.iter().any(|(key, value)| key == name && one_of(globs, value))
            }),
        }
    }
}

impl CertField {
    pub const ALL: [(&str, Self); 7] = [
        ("cn", Self::Cn),
        ("subject", Self::Subject),
        ("issuer", Self::Issuer),
        ("serial", Self::Serial),
        ("dns", Self::Dns),
        ("email", Self::Email),
        ("uri", Self::Uri),
    ];

    /// Returns whether `holds` is true for one of the certificate's values.
    fn any(self, certificate: &ClientCertificate, holds: impl Fn(&str) -> bool) -> bool {
        let all = |texts: &[Box<str>]| texts.iter().any(|text| holds(text));
        match self {
            Self::Cn => certificate.common_name.as_deref().is_some_and(holds),
            Self::Subject => holds(&certificate.subject),
            Self::Issuer => holds(&certificate.issuer),
            Self::Serial => holds(&certificate.serial),
            Self::Dns => all(&certificate.dns_names),
            Self::Email => all(&certificate.email_addresses),
            Self::Uri => all(&certificate.uris),
        }
    }
}

impl Topic {
    /// Returns whether the topic allows the action. A subscription is allowed only if the rule covers everything that
    /// it matches.
    fn allows(&self, who: Identity<'_>, action: Action, topic: &str) -> bool {
        match action {
            Action::Subscribe { .. } if self.eq => self.filter.is(who, topic),
            Action::Subscribe { .. } => self.filter.covers(who, topic),
            Action::Publish { .. } if self.eq => self.filter.is(who, topic),
            // Messages of a granted subscription.
            Action::Publish { .. } | Action::Receive => self.filter.matches(who, topic),
        }
    }

    /// Returns whether the topic denies the action. A subscription is denied even if it matches only one topic of the
    /// rule.
    fn denies(&self, who: Identity<'_>, action: Action, topic: &str) -> bool {
        match action {
            // `+/#` is another form of `#`.
            Action::Subscribe { .. } if self.eq => {
                self.filter.is(who, topic) || (topic == "+/#" && self.filter.is(who, "#"))
            }
            Action::Subscribe { .. } => self.filter.overlaps(who, topic),
            Action::Publish { .. } if self.eq => self.filter.is(who, topic),
            Action::Receive if self.eq => false,
            Action::Publish { .. } | Action::Receive => self.filter.matches(who, topic),
        }
    }
}

impl QosSet {
    pub const NONE: Self = Self(0);
    pub const ALL: Self = Self(0b111);

    pub fn with(self, qos: u8) -> Self {
        debug_assert!(qos <= 2);
        Self(self.0 | 1 << qos)
    }

    fn contains(self, qos: QoS) -> bool {
        self.0 & 1 << qos as u8 != 0
    }
}

impl fmt::Display for AccessRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.allows { "allow " } else { "deny " })?;
        if self.who.is_empty() {
            f.write_str("everyone")?;
        }
        for (index, condition) in self.who.iter().enumerate() {
            write!(f, "{}{condition}", if index > 0 { " and " } else { "" })?;
        }
        f.write_str(match (self.publish, self.subscribe) {
            (true, true) => " all ",
            (true, false) => " publish ",
            _ => " subscribe ",
        })?;
        for (index, topic) in self.topics.iter().enumerate() {
            f.write_str(if index > 0 { ", " } else { "" })?;
            f.write_str(if topic.eq { "eq " } else { "" })?;
            tokens::write(f, &topic.text)?;
        }
        if self.qos != QosSet::ALL {
            let named = (0..=2).filter(|qos| self.qos.0 & 1 << qos != 0).map(|qos: u8| qos.to_string());
            write!(f, " qos {}", named.collect::<Vec<_>>().join(", "))?;
        }
        match self.retain {
            Some(true) => f.write_str(" retain yes"),
            Some(false) => f.write_str(" retain no"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Condition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.negated { "not " } else { "" })?;
        let list = |f: &mut fmt::Formatter<'_>, token: &str, globs: &[Glob], field: &str| {
            f.write_str(token)?;
            for (index, glob) in globs.iter().enumerate() {
                f.write_str(if index > 0 { ", " } else { " " })?;
                glob.write(f, if index > 0 { "" } else { field })?;
            }
            Ok(())
        };
        match &self.test {
            Test::Anonymous => f.write_str("anonymous"),
            Test::User(globs) => list(f, "user", globs, ""),
            Test::Client(globs) => list(f, "client", globs, ""),
            Test::Listener(globs) => list(f, "listener", globs, ""),
            Test::Address(nets) => {
                let nets: Vec<String> = nets.iter().map(Net::to_string).collect();
                write!(f, "address {}", nets.join(", "))
            }
            Test::Cert(field, globs) => {
                let (name, _) = CertField::ALL[*field as usize];
                list(f, "cert", globs, &format!("{name}="))
            }
            Test::Fingerprint(known) => {
                f.write_str("cert fingerprint=")?;
                for (index, fingerprint) in known.iter().enumerate() {
                    f.write_str(if index > 0 { ", " } else { "" })?;
                    fingerprint.iter().try_for_each(|byte| write!(f, "{byte:02X}"))?;
                }
                Ok(())
            }
            Test::Attribute(name, globs) => list(f, "attribute", globs, &format!("{name}=")),
        }
    }
}
