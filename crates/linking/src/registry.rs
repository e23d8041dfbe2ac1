//! Registry of links: those of the configuration file, and those of the configuration store.

use std::sync::Arc;

use configstore::{ConfigStore, Table};
use definitions::{
    Authorship, EntryError, Join, Kind, Named, Problem, Source, hide, mark, of_file, parse, usable,
};
use serde_json::{Map, Value as Json};

use crate::check;
use crate::settings::{LinkSettings, Own};

/// Maximum number of links, with those of the configuration file.
pub const LINKS_MAX: usize = 64;
const COUNTER: &str = "cluster_links";

/// The kind of links to other clusters.
#[derive(Debug)]
pub struct LinkKind;

impl Kind for LinkKind {
    type Settings = LinkSettings;

    const NOUN: &'static str = "cluster link";
    const AREA: &'static str = "cluster links";
    const TABLE: Table = Table::named("links");
    const MAX: usize = LINKS_MAX;

    fn name(settings: &LinkSettings) -> &str {
        &settings.name
    }

    fn check_alone(settings: &LinkSettings) -> Result<(), Problem> {
        settings.check()
    }
}

impl Join for Own {
    type All = Named<LinkSettings>;

    /// Joins both sources. Of links of the store that exclude each other, the first one by name is used.
    fn join(&self, all: &mut Self::All, of_file: &Self::All, before: &Self::All) {
        hide::<LinkKind>(all, of_file, before);
        let mut usable = Named::new();
        // Those of the file first: they do not change.
        for source in [Source::File, Source::Store] {
            mark::<LinkKind>(all, before, |link| {
                if link.source == source {
                    check::here(&link.settings, self)?;
                    check::with_others(&link.settings, &usable, self)?;
                    usable.insert(link.settings.name.clone(), link.clone());
                }
                Ok(())
            });
        }
    }
}

/// The links of a node or its cluster.
pub struct Registry(definitions::Registry<Own>);

impl Registry {
    /// Opens the links of the configuration store, and joins them with those of the configuration file.
    ///
    /// # Errors
    /// The configuration store cannot be read.
    pub fn open(
        config_store: Arc<dyn ConfigStore>,
        links_of_file: Vec<LinkSettings>,
        own: Own,
    ) -> Result<Self, String> {
        let of_file = of_file::<LinkKind>(links_of_file);
        let registry = definitions::Registry::new(config_store, of_file, own, COUNTER);
        registry.subscribe::<LinkKind>()?;
        Ok(Self(registry))
    }

    /// Returns all links.
    pub fn definitions(&self) -> Arc<Named<LinkSettings>> {
        self.0.definitions()
    }

    /// Returns whether a link that can be used takes messages.
    pub fn takes(&self) -> bool {
        let all = self.definitions();
        usable(&all).any(|link| link.settings.enabled && link.settings.taken_origins().next().is_some())
    }

    /// Number of the last change. It grows when [`Self::definitions`] change.
    pub fn changes(&self) -> u64 {
        self.0.changes()
    }

    pub fn config_store(&self) -> &Arc<dyn ConfigStore> {
        self.0.config_store()
    }

    pub fn own(&self) -> &Own {
        self.0.rules()
    }

    /// Adds or replaces a link. Returns true when it is new. The files of the link must exist on this node; other nodes
    /// say when they miss them. It waits for the configuration store: not for a reactor.
    ///
    /// # Errors
    /// [`EntryError`]. Nothing has changed then.
    pub fn put(&self, name: &str, settings: &Map<String, Json>, by: &Authorship) -> Result<bool, EntryError> {
        let link = parse::<LinkKind>(name, settings)?;
        check::alone(&link, self.own())?;
        self.0.put::<LinkKind, _>(&link, by, |all| Ok(check::with_others(&link, all, self.own())?))
    }

    /// Removes a link. Messages that wait for the other cluster stay in its session.
    ///
    /// # Errors
    /// [`EntryError`].
    pub fn remove(&self, name: &str) -> Result<(), EntryError> {
        self.0.remove::<LinkKind, _>(name, |_| Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::OnceLock;

    use configstore::LocalStore;
    use definitions::{SecretsDirectory, settings_of_json, settings_to_json};
    use serde_json::json;

    use super::*;

    fn by() -> Authorship {
        Authorship { author: "ops".into(), now_ms: 7 }
    }

    fn secret() -> String {
        static PATH: OnceLock<String> = OnceLock::new();
        let write = || {
            let path = std::env::temp_dir().join(format!("meridian-link-registry-{}", std::process::id()));
            std::fs::write(&path, "0123456789abcdef0123456789abcdef\n").expect("a file");
            path.display().to_string()
        };
        PATH.get_or_init(write).clone()
    }

    fn settings(more: Json) -> Map<String, Json> {
        let mut settings = Map::new();
        settings.insert("secret_file".into(), secret().into());
        settings.extend(more.as_object().cloned().expect("an object"));
        settings
    }

    fn open(store: &Arc<dyn ConfigStore>, of_file: Vec<LinkSettings>) -> Registry {
        open_with(store, of_file, SecretsDirectory::default())
    }

    fn open_with(
        store: &Arc<dyn ConfigStore>,
        of_file: Vec<LinkSettings>,
        secrets: SecretsDirectory,
    ) -> Registry {
        let own = Own { node: "north".into(), secrets, ..Own::default() };
        Registry::open(store.clone(), of_file, own).expect("a registry")
    }

    fn store() -> Arc<dyn ConfigStore> {
        Arc::new(LocalStore::in_memory())
    }

    #[test]
    fn links_are_added_replaced_and_removed() {
        let registry = open(&store(), Vec::new());
        let before = registry.changes();
        let takes = settings(json!({"address": "h:1883", "topics": "a/#"}));
        assert_eq!(registry.put("south", &takes, &by()), Ok(true));
        assert_eq!(registry.put("south", &takes, &by()), Ok(false));
        assert!(registry.changes() > before);
        let all = registry.definitions();
        let link = &all["south"];
        assert_eq!((link.source, link.author.as_str(), link.fault.as_deref()), (Source::Store, "ops", None));
        assert_eq!(
            settings_to_json(&link.settings),
            takes,
            "only the name of the file with the secret shows"
        );
        assert_eq!(registry.remove("south"), Ok(()));
        let unknown = registry.remove("south").expect_err("it is removed").to_string();
        assert_eq!(unknown, "there is no cluster link `south`");
    }

    #[test]
    fn wrong_links_are_refused() {
        let registry = open(&store(), Vec::new());
        registry
            .put("south", &settings(json!({"address": "h:1", "topics": "#", "origins": "east"})), &by())
            .expect("ok");
        for (name, more, expected) in [
            ("a/b", json!({}), "name: \"a/b\" is not a name"),
            ("north", json!({}), "name: \"north\" is this cluster"),
            ("west", json!({"topic": "#"}), "topic: there is no such setting; did you mean `topics`?"),
            ("west", json!({"secret_file": null}), "secret_file: a link needs a secret"),
            (
                "east",
                json!({"address": "h:2", "topics": "#"}),
                "origins: the link \"south\" takes the messages of",
            ),
        ] {
            let error = registry.put(name, &settings(more), &by()).expect_err(name).to_string();
            assert!(error.starts_with(expected), "{error}");
        }
    }

    #[test]
    fn links_of_the_file_take_precedence_over_stored_ones_that_exclude_them() {
        let store = store();
        let takes = settings(json!({"address": "h:1", "topics": "#", "origins": "east"}));
        open(&store, Vec::new()).put("south", &takes, &by()).expect("ok");
        let east = settings(json!({"address": "h:2", "topics": "#"}));
        let of_file = settings_of_json("east", &east).expect("valid");
        let registry = open(&store, vec![of_file]);
        let all = registry.definitions();
        assert_eq!(usable(&all).map(|link| link.settings.name.as_str()).collect::<Vec<_>>(), ["east"]);
        let fault = all["south"].fault.clone().unwrap_or_default();
        assert!(fault.starts_with("origins: the link \"east\" takes"), "{fault}");
        assert_eq!(
            registry.remove("east"),
            Err(EntryError::OfFile { noun: "cluster link", name: "east".into() })
        );
    }
    /// An admin of the API names the file, and the address that gets a proof of its content.
    #[test]
    fn secrets_are_below_the_directory_of_secrets() {
        let outside = std::path::PathBuf::from(secret());
        let inside = std::env::temp_dir().join(format!("meridian-link-secrets-{}", std::process::id()));
        std::fs::create_dir_all(&inside).expect("a directory");
        std::fs::copy(&outside, inside.join("a")).expect("a file");
        let store = store();
        let old = settings(json!({}));
        open(&store, Vec::new()).put("old", &old, &by()).expect("there is no directory of secrets");
        let directory = SecretsDirectory::new(Some(inside.clone()));
        let registry = open_with(&store, Vec::new(), directory.clone());
        let expected = |setting: &str, path: &std::path::Path| {
            format!("{setting}: {} is not below {}", path.display(), inside.display())
        };
        for path in [&outside, &inside, &inside.join("..").join(outside.file_name().expect("a name"))] {
            let elsewhere = settings(json!({"secret_file": path}));
            let error = registry.put("l", &elsewhere, &by()).expect_err("elsewhere").to_string();
            assert!(error.starts_with(&expected("secret_file", path)), "{error}");
        }
        let below = json!({"secret_file": inside.join("a")});
        let mut key = settings(below.clone());
        key.extend(settings_to_json(&LinkSettings {
            tls: true,
            tls_certificate: Some("/c.pem".into()),
            tls_key: Some("/k.pem".into()),
            ..LinkSettings::default()
        }));
        let error = registry.put("l", &key, &by()).expect_err("elsewhere").to_string();
        assert!(error.starts_with(&expected("tls_key", "/k.pem".as_ref())), "{error}");
        assert_eq!(registry.put("l", &settings(below), &by()), Ok(true));
        let all = registry.definitions();
        let fault = all["old"].fault.clone().unwrap_or_default();
        assert!(fault.starts_with(&expected("secret_file", &outside)), "{fault}");
        assert_eq!(usable(&all).map(|link| link.settings.name.as_str()).collect::<Vec<_>>(), ["l"]);
        let of_file = settings_of_json("old", &old).expect("valid");
        let own = Own { node: "north".into(), secrets: directory, ..Own::default() };
        let problems = check::check(&[of_file], &own);
        let begin = format!("cluster_link.0.{}", expected("secret_file", &outside));
        assert!(problems[0].starts_with(&begin), "{problems:?}");
        std::fs::remove_dir_all(inside).expect("removed");
    }
}
