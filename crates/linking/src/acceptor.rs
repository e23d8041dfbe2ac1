//! Admission of other clusters that connect to this one.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use access::{Admission, AuthResult, Credentials, LinkAccess, LinkTerms, Principal, Validity};
use arc_swap::ArcSwap;
use definitions::Named;
use mqtt::ReasonCode;

use crate::names::{USERNAME, parse_remote};
use crate::settings::{LinkSettings, Own, Secret};
use crate::token::{Parties, verify};
use crate::view::Refusal;

/// Minimum time between two lines of the log about the same link, or about unknown names.
const LOG: Duration = Duration::from_secs(60);

/// Admits other clusters by their tokens. It knows the links of the last [`Self::update`], because it runs on
/// reactors and must not read files.
#[derive(Debug, Default)]
pub struct Acceptor {
    links: ArcSwap<BTreeMap<String, Accepted>>,
    revocations: AtomicU64,
    refusals: Mutex<Refusals>,
}

#[derive(Debug, Default)]
struct Refusals {
    /// The last one of each link that exists.
    of_links: BTreeMap<String, Refusal>,
    /// Time of the last line of the log, by link. Unknown names have the empty one in common.
    logged: BTreeMap<String, Instant>,
}

/// A link, as far as admission needs it.
#[derive(Clone, Debug)]
struct Accepted {
    rule: Result<Rule, String>,
    /// Ends when the rule changes: the other cluster then connects again.
    validity: Arc<Validity>,
}

#[derive(Clone, Debug, PartialEq)]
struct Rule {
    /// Name of this cluster.
    own: Box<str>,
    secret: Secret,
    export: Box<[Box<str>]>,
    queue: access::LinkQueue,
    /// State that the sessions here continue.
    history: Option<Box<str>>,
    /// Other clusters whose messages come here, and may be passed on.
    transit: Vec<Box<str>>,
}

impl Acceptor {
    /// Reads the secrets, and takes over changed links. Clusters whose link has changed are disconnected, and connect
    /// again if they still may.
    pub fn update(&self, all: &Named<LinkSettings>, own: &Own, history: Option<&str>) {
        let before = self.links.load();
        let mut links = BTreeMap::new();
        let mut has_revoked = false;
        for (name, entry) in all {
            let rule = rule(name, all, entry.fault.as_deref(), own);
            let rule = rule.map(|rule| Rule { history: history.map(Into::into), ..rule });
            let known = before.get(name).filter(|known| known.rule == rule);
            if let (None, Some(before)) = (known, before.get(name)) {
                before.validity.end();
                has_revoked = true;
            }
            let validity = known.map_or_else(Arc::default, |known| known.validity.clone());
            links.insert(name.clone(), Accepted { rule, validity });
        }
        for (_, gone) in before.iter().filter(|(name, _)| !all.contains_key(*name)) {
            gone.validity.end();
            has_revoked = true;
        }
        let mut refusals = sync::lock(&self.refusals);
        refusals.of_links.retain(|name, _| all.contains_key(name));
        refusals.logged.retain(|name, _| name.is_empty() || all.contains_key(name));
        drop(refusals);
        self.links.store(Arc::new(links));
        if has_revoked {
            // Incremented after the store: who asks again must get the new answer.
            self.revocations.fetch_add(1, Ordering::Release);
        }
    }

    /// The last client that was refused although it used the name of a link.
    pub fn refusal(&self, link: &str) -> Option<Refusal> {
        sync::lock(&self.refusals).of_links.get(link).cloned()
    }

    fn decide(&self, credentials: Credentials<'_>, now: SystemTime) -> Result<Admission, String> {
        let (name, transit) =
            parse_remote(credentials.client_id).ok_or("it is no Client Identifier of a link")?;
        let links = self.links.load();
        let Some(link) = links.get(name) else {
            return Err(format!("no cluster link has the name \"{}\"; add one", name.escape_debug()));
        };
        let rule = link.rule.as_ref().map_err(Clone::clone)?;
        let now_ms = now.duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64;
        let parties = Parties { from: name, to: &rule.own };
        let token = credentials.password.unwrap_or_default();
        verify(token, parties, rule.secret.bytes(), now_ms).map_err(|error| error.to_string())?;
        if let Some(transit) = transit
            && !rule.transit.iter().any(|known| **known == *transit)
        {
            return Err(format!(
                "it asks for the messages of \"{}\", which no cluster link brings here; correct its origins, or add a link",
                transit.escape_debug()
            ));
        }
        let link_terms = LinkTerms {
            name: name.into(),
            origin: transit.map(Into::into),
            export: rule.export.clone(),
            queue: rule.queue,
            history: rule.history.clone(),
        };
        // The exports of the link are its access rules.
        let principal = Principal { superuser: true, link: Some(link_terms), ..Principal::default() };
        Ok(Admission {
            username: Some(USERNAME.into()),
            principal: Some(Arc::new(principal)),
            validity: Some(link.validity.clone()),
            ..Admission::default()
        })
    }

    fn refuse(&self, credentials: Credentials<'_>, why: String, at: SystemTime) {
        let name = parse_remote(credentials.client_id).map_or("", |(name, _)| name);
        let name = if self.links.load().contains_key(name) { name } else { "" };
        let mut refusals = sync::lock(&self.refusals);
        if !name.is_empty() {
            let count = refusals.of_links.get(name).map_or(0, |refusal| refusal.count) + 1;
            let refusal = Refusal { at, address: credentials.peer, why: why.clone(), count };
            refusals.of_links.insert(name.to_owned(), refusal);
        }
        if refusals.logged.get(name).is_some_and(|last| last.elapsed() < LOG) {
            return;
        }
        refusals.logged.insert(name.to_owned(), Instant::now());
        drop(refusals);
        let client = credentials.client_id.escape_debug();
        let address = credentials.peer.map(|peer| peer.to_string()).unwrap_or_default();
        tracing::warn!(%client, address, "cluster links: another cluster is refused: {why}");
    }
}

fn rule(name: &str, all: &Named<LinkSettings>, fault: Option<&str>, own: &Own) -> Result<Rule, String> {
    if let Some(fault) = fault {
        return Err(format!("the link cannot be used: {fault}"));
    }
    let Some(entry) = all.get(name) else { return Err("there is no such link".to_owned()) };
    let settings = &entry.settings;
    if !settings.enabled {
        return Err("the link is not enabled; set enabled = true".to_owned());
    }
    if settings.export.is_empty() {
        return Err("the link gives nothing; set export".to_owned());
    }
    let own = settings.own(own).map_err(|problem| problem.to_string())?;
    let secret = settings.secret().map_err(|problem| problem.to_string())?;
    let mut transit: Vec<Box<str>> = transit(name, all).map(Into::into).collect();
    transit.sort_unstable();
    transit.dedup();
    let export = settings.export.iter().map(Into::into).collect();
    Ok(Rule { own: own.into(), secret, export, queue: settings.queue(), history: None, transit })
}

/// Clusters whose messages come here by other links than this one, and may be passed on by it.
pub fn transit<'a>(name: &'a str, all: &'a Named<LinkSettings>) -> impl Iterator<Item = &'a str> {
    let others = all.values().filter(move |entry| entry.settings.name != name);
    others.flat_map(|entry| entry.settings.taken_origins()).filter(move |origin| *origin != name)
}

impl LinkAccess for Acceptor {
    fn admit(&self, credentials: Credentials<'_>) -> AuthResult {
        let now = SystemTime::now();
        match self.decide(credentials, now) {
            Ok(admission) => AuthResult::Admit(Box::new(admission)),
            Err(why) => {
                self.refuse(credentials, why, now);
                AuthResult::Deny(ReasonCode::NotAuthorized)
            }
        }
    }

    fn revocations(&self) -> u64 {
        self.revocations.load(Ordering::Acquire)
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;
    use std::sync::OnceLock;

    use definitions::{defined, settings_of_json};
    use serde_json::{Value as Json, json};

    use super::*;
    use crate::token::make;

    const SECRET: &[u8] = b"0123456789abcdef0123456789abcdef";

    fn own() -> Own {
        Own { node: "north".into(), ..Own::default() }
    }

    fn links(of: &[(&str, Json)]) -> Named<LinkSettings> {
        static PATH: OnceLock<PathBuf> = OnceLock::new();
        let path = PATH.get_or_init(|| {
            let path = std::env::temp_dir().join(format!("meridian-link-acceptor-{}", std::process::id()));
            std::fs::write(&path, [SECRET, b"\n"].concat()).expect("a file");
            path
        });
        let entries = of.iter().map(|(name, more)| {
            let mut settings = serde_json::Map::new();
            settings.insert("secret_file".into(), path.display().to_string().into());
            settings.extend(more.as_object().cloned().unwrap_or_default());
            let settings: LinkSettings = settings_of_json(name, &settings).expect("valid");
            ((*name).to_owned(), Arc::new(defined(settings, None)))
        });
        entries.collect()
    }

    fn acceptor(of: &[(&str, Json)]) -> Acceptor {
        let acceptor = Acceptor::default();
        acceptor.update(&links(of), &own(), Some("n:1"));
        acceptor
    }

    fn now_ms() -> u64 {
        SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis() as u64
    }

    fn admit(acceptor: &Acceptor, client_id: &str, secret: &[u8], late_ms: u64) -> AuthResult {
        let from = client_id.trim_start_matches("$link/").split('/').next().unwrap_or_default();
        let token = make(Parties { from, to: "north" }, secret, now_ms() - late_ms, [1; 16]);
        let password = Some(token.as_bytes());
        acceptor.admit(Credentials { client_id, password, ..Credentials::default() })
    }

    fn validity(result: AuthResult) -> Arc<Validity> {
        match result {
            AuthResult::Admit(admission) => admission.validity.expect("a link has a validity"),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_known_cluster_with_the_secret_gets_the_terms_of_its_link() {
        let south = ("south", json!({"export": "a/#\nb", "queue_messages_max": 7}));
        let east = ("east", json!({"address": "h:1", "topics": "#", "origins": "west"}));
        let acceptor = acceptor(&[south, east]);
        for (client_id, origin) in
            [("$link/south", None), ("$link/south/east", Some("east")), ("$link/south/west", Some("west"))]
        {
            let AuthResult::Admit(admission) = admit(&acceptor, client_id, SECRET, 0) else {
                panic!("{client_id}")
            };
            let principal = admission.principal.expect("a principal");
            let terms = principal.link.as_ref().expect("terms");
            assert_eq!((&*terms.name, terms.origin.as_deref(), terms.export.len()), ("south", origin, 2));
            assert_eq!((terms.queue.messages_max, terms.history.as_deref()), (7, Some("n:1")));
            assert!(principal.superuser, "the exports are its access rules");
        }
        assert_eq!(acceptor.refusal("south"), None);
    }

    #[test]
    fn others_are_refused_and_the_link_says_why() {
        let acceptor = acceptor(&[
            ("south", json!({})),
            ("off", json!({"enabled": false})),
            ("mute", json!({"export": ""})),
        ]);
        for (client_id, secret, late_ms, why) in [
            ("$link/south", &SECRET[1..], 0, "the secret or a name differs"),
            ("$link/south", SECRET, 900_000, "the clock differs by 900 s"),
            (
                "$link/south/east",
                SECRET,
                0,
                "it asks for the messages of \"east\", which no cluster link brings here",
            ),
            ("$link/south/", SECRET, 0, "it asks for the messages of \"\""),
            ("$link/off", SECRET, 0, "the link is not enabled"),
            ("$link/mute", SECRET, 0, "the link gives nothing"),
        ] {
            let denied = AuthResult::Deny(ReasonCode::NotAuthorized);
            assert_eq!(admit(&acceptor, client_id, secret, late_ms), denied, "{client_id}");
            let (name, _) = parse_remote(client_id).expect("a link");
            let refusal = acceptor.refusal(name).expect("a refusal");
            assert!(refusal.why.starts_with(why), "{}", refusal.why);
        }
        assert_eq!(acceptor.refusal("south").map(|refusal| refusal.count), Some(4));
        assert_eq!(admit(&acceptor, "$link/unknown", SECRET, 0), AuthResult::Deny(ReasonCode::NotAuthorized));
        assert_eq!(acceptor.refusal("unknown"), None);
        let none = Credentials { client_id: "$link/south", ..Credentials::default() };
        assert_eq!(acceptor.admit(none), AuthResult::Deny(ReasonCode::NotAuthorized));
    }

    #[test]
    fn a_changed_or_removed_link_ends_the_admission() {
        let of = |more: Json| [("south", more), ("east", json!({}))];
        let acceptor = acceptor(&of(json!({})));
        let (south, east) = ("$link/south", "$link/east");
        let first = validity(admit(&acceptor, south, SECRET, 0));
        let other = validity(admit(&acceptor, east, SECRET, 0));
        let before = acceptor.revocations();
        acceptor.update(&links(&of(json!({"backoff_max": "5m"}))), &own(), Some("n:1"));
        assert!(!first.has_ended() && acceptor.revocations() == before, "what it takes does not matter here");
        acceptor.update(&links(&of(json!({"export": "a"}))), &own(), Some("n:1"));
        assert!(first.has_ended() && acceptor.revocations() > before);
        let second = validity(admit(&acceptor, south, SECRET, 0));
        assert!(!second.has_ended());
        acceptor.update(&links(&[("east", json!({}))]), &own(), Some("n:1"));
        assert!(second.has_ended() && !other.has_ended());
        assert!(matches!(admit(&acceptor, south, SECRET, 0), AuthResult::Deny(_)));
    }
}
