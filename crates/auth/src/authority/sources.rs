//! Sources of authorisation that are files, and the order of all sources.

use std::path::{Path, PathBuf};

use access::{Action, Identity};

use super::names::{NoMatch, SourceName, SourceNames};
use crate::acl::{Acl, Decision, Subject, SubscribeRule, Why};
use crate::error::{Fault, FileError};
use crate::opinion::Opinion;
use crate::rules::RuleSet;
use crate::settings::Auth;

/// Authorisation settings, with their files read.
#[derive(Debug, Default)]
pub struct Sources {
    named: Option<SourceNames>,
    no_match: Option<NoMatch>,
    rules: Option<(PathBuf, RuleSet)>,
    acl: Option<(PathBuf, Acl)>,
    acl_subscribe: SubscribeRule,
}

impl Sources {
    /// # Errors
    /// A file cannot be used, or a source is named and has no file.
    pub fn read(settings: &Auth) -> Result<Self, FileError> {
        let Auth { sources: named, no_match, rules_file, acl_file, acl_subscribe, .. } = settings;
        for (name, file, setting) in [
            (SourceName::Rules, rules_file, "auth.rules_file"),
            (SourceName::AclFile, acl_file, "auth.acl_file"),
        ] {
            let is_named = named.as_ref().map(|names| names.0.contains(&name));
            let fault = match (is_named, file) {
                (Some(true), None) => Fault::SourceMissing { source: name.as_str(), setting },
                // An operator who writes rules expects them to apply.
                (Some(false), Some(_)) => Fault::SourceUnnamed { source: name.as_str(), setting },
                _ => continue,
            };
            return Err(FileError::new(Path::new("auth.sources"), None, fault));
        }
        let rules = |path: &PathBuf| RuleSet::read(path).map(|rules| (path.clone(), rules));
        let rules = rules_file.as_ref().map(rules).transpose();
        let acl = |path: &PathBuf| Acl::read(path).map(|acl| (path.clone(), acl));
        let acl = acl_file.as_ref().map(acl).transpose();
        Ok(Self {
            named: named.clone(),
            no_match: *no_match,
            rules: rules.map_err(|error| {
                error.of_setting("auth.rules_file", "write it as docs/access-rules.md shows")
            })?,
            acl: acl.map_err(|error| {
                error.of_setting("auth.acl_file", "write it in mosquitto's syntax, or unset the setting")
            })?,
            acl_subscribe: *acl_subscribe,
        })
    }

    /// Returns the named sources, or all of them.
    pub fn order(&self) -> impl Iterator<Item = SourceName> {
        self.named.as_ref().map_or(&SourceName::ALL[..], |names| &names.0).iter().copied()
    }

    pub fn are_named(&self) -> bool {
        self.named.is_some()
    }

    pub(super) fn is_enabled(&self, name: SourceName) -> bool {
        self.order().any(|asked| asked == name)
    }

    pub fn no_match(&self) -> Option<NoMatch> {
        self.no_match
    }

    pub fn rules(&self) -> Option<&RuleSet> {
        self.rules.as_ref().map(|(_, rules)| rules)
    }

    pub fn rules_path(&self) -> Option<&Path> {
        self.rules.as_ref().map(|(path, _)| &**path)
    }

    pub fn acl(&self) -> Option<&Acl> {
        self.acl.as_ref().map(|(_, acl)| acl)
    }

    pub fn acl_path(&self) -> Option<&Path> {
        self.acl.as_ref().map(|(path, _)| &**path)
    }

    /// Returns whether the ACL file grants every subscription and checks only deliveries.
    pub(super) fn grants_every_subscription(&self) -> bool {
        self.acl_subscribe == SubscribeRule::Always
    }

    pub(super) fn acl_decision(
        &self,
        identity: Identity<'_>,
        action: Action,
        topic: &str,
    ) -> Option<Decision> {
        let subject = Subject { client_id: identity.client_id, username: identity.username };
        Some(self.acl()?.decide(subject, action, topic, self.acl_subscribe))
    }

    pub(super) fn acl_opinion(&self, identity: Identity<'_>, action: Action, topic: &str) -> Opinion {
        match self.acl_decision(identity, action, topic) {
            None | Some(Decision { why: Why::NoRule, .. }) => Opinion::None,
            Some(Decision { allowed: true, .. }) => Opinion::Allow,
            Some(Decision { allowed: false, .. }) => Opinion::Deny,
        }
    }
}
