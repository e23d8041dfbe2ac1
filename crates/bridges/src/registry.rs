//! Registry of bridges: those of the configuration file, and those of the configuration store.

use std::sync::Arc;

use configstore::{ConfigStore, Table};
use definitions::{Authorship, EntryError, Join, Kind, Named, Problem, hide, mark, of_file, parse};
use serde_json::{Map, Value as Json};

use crate::settings::{BridgeProblem, BridgeSettings, Own};

/// Maximum number of bridges, with those of the configuration file. The file alone may have more.
pub const BRIDGES_MAX: usize = 256;
const COUNTER: &str = "bridges";

/// The kind of bridges to other brokers.
#[derive(Debug)]
pub struct BridgeKind;

impl Kind for BridgeKind {
    type Settings = BridgeSettings;

    const NOUN: &'static str = "bridge";
    const AREA: &'static str = "bridges";
    const TABLE: Table = Table::named("bridges");
    const MAX: usize = BRIDGES_MAX;

    fn name(settings: &BridgeSettings) -> &str {
        &settings.name
    }

    fn check_alone(settings: &BridgeSettings) -> Result<(), Problem> {
        settings.check().map_err(Problem::from)
    }
}

impl From<BridgeProblem> for Problem {
    fn from(problem: BridgeProblem) -> Self {
        Self::new(problem.setting, problem.why)
    }
}

impl Join for Own {
    type All = Named<BridgeSettings>;

    /// Joins both sources. A bridge that leads to this node, or names a secret elsewhere, has a fault here.
    fn join(&self, all: &mut Self::All, of_file: &Self::All, before: &Self::All) {
        hide::<BridgeKind>(all, of_file, before);
        mark::<BridgeKind>(all, before, |bridge| bridge.settings.check_here(self));
    }
}

/// The bridges of a node or its cluster.
pub struct Registry(definitions::Registry<Own>);

impl Registry {
    /// Opens the bridges of the configuration store, and joins them with those of the configuration file.
    ///
    /// # Errors
    /// The configuration store cannot be read.
    pub fn open(
        config_store: Arc<dyn ConfigStore>,
        bridges_of_file: Vec<BridgeSettings>,
        own: Own,
    ) -> Result<Self, String> {
        let of_file = of_file::<BridgeKind>(bridges_of_file);
        let registry = definitions::Registry::new(config_store, of_file, own, COUNTER);
        registry.subscribe::<BridgeKind>()?;
        Ok(Self(registry))
    }

    /// Returns all bridges.
    pub fn definitions(&self) -> Arc<Named<BridgeSettings>> {
        self.0.definitions()
    }

    /// Number of the last change. It grows when [`Self::definitions`] change.
    pub fn changes(&self) -> u64 {
        self.0.changes()
    }

    /// Adds or replaces a bridge. Returns true when it is new. The files of the bridge must exist on this node; other
    /// nodes say when they miss them. It waits for the configuration store: not for a reactor.
    ///
    /// # Errors
    /// [`EntryError`]. Nothing has changed then.
    pub fn put(&self, name: &str, settings: &Map<String, Json>, by: &Authorship) -> Result<bool, EntryError> {
        let bridge = parse::<BridgeKind>(name, settings)?;
        bridge.check_here(self.0.rules())?;
        bridge.check_with_files().map_err(Problem::from)?;
        self.0.put::<BridgeKind, _>(&bridge, by, |_| Ok(()))
    }

    /// Removes a bridge. Messages that wait for the other broker stay in its session.
    ///
    /// # Errors
    /// [`EntryError`].
    pub fn remove(&self, name: &str) -> Result<(), EntryError> {
        self.0.remove::<BridgeKind, _>(name, |_| Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use configstore::LocalStore;
    use definitions::{SecretsDirectory, Source, settings_of_json, settings_to_json, usable};
    use serde_json::json;

    use super::*;

    fn by() -> Authorship {
        Authorship { author: "ops".into(), now_ms: 7 }
    }

    fn store() -> Arc<dyn ConfigStore> {
        Arc::new(LocalStore::in_memory())
    }

    fn open(store: &Arc<dyn ConfigStore>, of_file: Vec<BridgeSettings>) -> Registry {
        let listens = vec!["127.0.0.1:1883".parse().expect("an address")];
        let own = Own { listens, ..Own::default() };
        Registry::open(store.clone(), of_file, own).expect("a registry")
    }

    fn settings(more: Json) -> Map<String, Json> {
        let mut settings =
            json!({"address": "h:1883", "topics": "a/# out 1"}).as_object().cloned().expect("settings");
        settings.extend(more.as_object().cloned().expect("an object"));
        settings
    }

    #[test]
    fn bridges_are_added_replaced_and_removed() {
        let registry = open(&store(), Vec::new());
        let before = registry.changes();
        let plain = settings(json!({}));
        assert_eq!(registry.put("plant", &plain, &by()), Ok(true));
        assert_eq!(registry.put("plant", &settings(json!({"enabled": false})), &by()), Ok(false));
        assert_eq!(registry.put("plant", &plain, &by()), Ok(false));
        assert!(registry.changes() > before);
        let all = registry.definitions();
        let bridge = &all["plant"];
        assert_eq!(
            (bridge.source, bridge.author.as_str(), bridge.fault.as_deref()),
            (Source::Store, "ops", None)
        );
        assert_eq!(settings_to_json(&bridge.settings), plain);
        assert_eq!(registry.remove("plant"), Ok(()));
        let unknown = registry.remove("plant").expect_err("it is removed").to_string();
        assert_eq!(unknown, "there is no bridge `plant`");
    }

    #[test]
    fn wrong_bridges_are_refused() {
        let registry = open(&store(), Vec::new());
        for (name, more, expected) in [
            ("a/b", json!({}), "name: \"a/b\" is not a name"),
            ("b", json!({"topic": "#"}), "topic: there is no such setting; did you mean `topics`?"),
            ("b", json!({"address": null}), "address: the other broker has no address"),
            ("b", json!({"address": "localhost:1883"}), "address: localhost:1883 is an address of this node"),
            ("b", json!({"password_file": "/missing"}), "password_file: /missing: "),
            (
                "b",
                json!({"password_file": "/dev/zero"}),
                "password_file: /dev/zero: it is not a regular file",
            ),
            ("b", json!({"tls": true, "tls_ca": "/missing"}), "tls_ca: /missing: "),
        ] {
            let error = registry.put(name, &settings(more), &by()).expect_err(name).to_string();
            assert!(error.starts_with(expected), "{error}");
        }
        assert!(registry.definitions().is_empty());
    }

    #[test]
    fn bridges_of_the_file_hide_stored_ones_and_do_not_change() {
        let store = store();
        open(&store, Vec::new()).put("plant", &settings(json!({"keep_alive": "10s"})), &by()).expect("ok");
        let of_file = settings_of_json("plant", &settings(json!({}))).expect("valid");
        let registry = open(&store, vec![of_file]);
        let all = registry.definitions();
        assert_eq!((all["plant"].source, all["plant"].hides_stored), (Source::File, true));
        let of_file = || EntryError::OfFile { noun: "bridge", name: "plant".into() };
        assert_eq!(registry.remove("plant"), Err(of_file()));
        assert_eq!(registry.put("plant", &settings(json!({})), &by()), Err(of_file()));
    }

    /// Another node of the cluster may have stored it.
    #[test]
    fn a_stored_bridge_to_this_node_has_a_fault_here() {
        let store = store();
        let elsewhere = Registry::open(store.clone(), Vec::new(), Own::default()).expect("a registry");
        elsewhere.put("own", &settings(json!({"address": "127.0.0.1:1883"})), &by()).expect("ok");
        let all = open(&store, Vec::new()).definitions();
        assert_eq!(usable(&all).count(), 0);
        let fault = all["own"].fault.clone().unwrap_or_default();
        assert!(fault.starts_with("address: 127.0.0.1:1883 is an address of this node"), "{fault}");
    }
    /// An admin of the API names the file, and the address that gets its first line.
    #[test]
    fn secrets_are_below_the_directory_of_secrets() {
        let directory = std::env::temp_dir().join(format!("meridian-bridge-secrets-{}", std::process::id()));
        let (inside, outside) = (directory.join("inside"), directory.join("outside"));
        std::fs::create_dir_all(&inside).expect("a directory");
        for secret in [inside.join("a"), outside.clone()] {
            std::fs::write(secret, "password\n").expect("a file");
        }
        let named = |path: &std::path::Path| settings(json!({"username": "u", "password_file": path}));
        let store = store();
        open(&store, Vec::new())
            .put("old", &named(&outside), &by())
            .expect("there is no directory of secrets");
        let own = Own { secrets: SecretsDirectory::new(Some(inside.clone())), ..Own::default() };
        let registry = Registry::open(store, Vec::new(), own.clone()).expect("a registry");
        let expected = |setting: &str, path: &std::path::Path| {
            format!("{setting}: {} is not below {}", path.display(), inside.display())
        };
        for path in [&outside, &inside, &inside.join("../outside")] {
            let error = registry.put("b", &named(path), &by()).expect_err("elsewhere").to_string();
            assert!(error.starts_with(&expected("password_file", path)), "{error}");
        }
        let key = settings(json!({"tls": true, "tls_certificate": "/c.pem", "tls_key": "/k.pem"}));
        let error = registry.put("b", &key, &by()).expect_err("elsewhere").to_string();
        assert!(error.starts_with(&expected("tls_key", "/k.pem".as_ref())), "{error}");
        assert_eq!(registry.put("b", &named(&inside.join("a")), &by()), Ok(true));
        let all = registry.definitions();
        let fault = all["old"].fault.clone().unwrap_or_default();
        assert!(fault.starts_with(&expected("password_file", &outside)), "{fault}");
        assert_eq!(usable(&all).map(|bridge| bridge.settings.name.as_str()).collect::<Vec<_>>(), ["b"]);
        let of_file = settings_of_json("old", &named(&outside)).expect("valid");
        let problems = crate::check(&[of_file], &own);
        assert!(
            problems[0].starts_with(&format!("bridge.0.{}", expected("password_file", &outside))),
            "{problems:?}"
        );
        std::fs::remove_dir_all(directory).expect("removed");
    }
}
