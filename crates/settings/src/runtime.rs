//! Settings that are changed while the program runs: a layer between file and environment.

use std::collections::BTreeMap;
use std::path::Path;

use crate::document;
use crate::layers::{Assignment, Loaded, Name};
use crate::problem::{Problem, Source};
use crate::section::{Description, Field, Reload, Section};
use crate::tree::Tree;
use crate::value::{Raw, Value as _};

/// Values by full name, written as in the environment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Runtime(BTreeMap<String, String>);

impl Runtime {
    /// Parses the text of a file that [`Runtime::to_toml`] or a person wrote.
    ///
    /// # Errors
    /// The text is not valid TOML. [`load`](crate::load) checks names and values.
    pub fn parse(path: &Path, text: &str) -> Result<Self, Vec<Problem>> {
        let document = document::parse(path, text);
        if !document.problems.is_empty() {
            return Err(document.problems);
        }
        let value = |raw| match raw {
            Raw::Text(text) | Raw::String(text) => text,
            Raw::Integer(number) => number.to_string(),
            Raw::Boolean(boolean) => boolean.to_string(),
            Raw::Other(what) => what.to_owned(),
        };
        let values = document.assignments.into_iter().map(|one| (one.name.to_string(), value(one.raw)));
        Ok(Self(values.collect()))
    }

    /// The text of the file. All values are written as strings, so an unset value can be written as well.
    pub fn to_toml(&self) -> String {
        let mut out = String::from(HEAD);
        let mut within = "";
        for (name, value) in &self.0 {
            let (section, key) = name.split_once('.').unwrap_or((name, ""));
            if section != within {
                out.push_str(&format!("\n[{section}]\n"));
                within = section;
            }
            let value = value.clone().to_toml().unwrap_or_default();
            out.push_str(&format!("{key} = {value}\n"));
        }
        out
    }

    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Sets a value; `None` removes it.
    pub fn put(&mut self, name: &str, value: Option<&str>) {
        match value {
            Some(value) => drop(self.0.insert(name.to_owned(), value.to_owned())),
            None => drop(self.0.remove(name)),
        }
    }

    pub fn values(&self) -> &BTreeMap<String, String> {
        &self.0
    }

    pub(crate) fn assignments(&self, source: &Source) -> impl Iterator<Item = Assignment> {
        self.0.iter().map(|(name, value)| Assignment {
            name: Name::parse(name, "."),
            raw: Raw::Text(value.clone()),
            source: source.clone(),
        })
    }
}

impl From<BTreeMap<String, String>> for Runtime {
    fn from(values: BTreeMap<String, String>) -> Self {
        Self(values)
    }
}

const HEAD: &str = "\
# Settings that were changed while the node ran. They go over the configuration file; environment and command line go
# over them. Written by the node: edit it only while the node does not run.
";

/// A setting of a tree with its current value.
#[derive(Clone, Debug)]
pub struct Setting {
    /// Full name: `mqtt.qos_max`, or `listener.0.address`.
    pub name: String,
    pub section: &'static Description,
    pub field: &'static Field,
    /// Value as it would be written in the environment; `None` when it is unset.
    pub value: Option<String>,
}

/// All settings of a tree, entries of lists included.
pub fn settings_of<T: Tree>(tree: &mut T) -> Vec<Setting> {
    let mut out = Vec::new();
    let mut add = |section: &dyn Section, prefix: String| {
        let description = section.description();
        out.extend(description.fields.iter().map(|field| Setting {
            name: format!("{prefix}.{}", field.key),
            section: description,
            field,
            value: section.show(field.key).map(|toml| plain(&toml)),
        }));
    };
    tree.sections().into_iter().for_each(|section| add(section, section.description().name.to_owned()));
    for list in tree.lists() {
        let name = list.description().name;
        (0..list.len()).for_each(|index| {
            if let Some(section) = list.entry(index) {
                add(section, format!("{name}.{index}"));
            }
        });
    }
    out
}

/// Converts a value from TOML to the form used in the environment.
fn plain(toml: &str) -> String {
    match format!("key = {toml}").parse::<toml::Table>().ok().and_then(|mut table| table.remove("key")) {
        Some(toml::Value::String(text)) => text,
        _ => toml.to_owned(),
    }
}

/// A setting whose value has changed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Changed {
    pub name: String,
    /// Values as they would be written in the environment; `None` is unset.
    pub before: Option<String>,
    pub after: Option<String>,
}

/// Copies to `running` the values of `new` that can change while the program runs. Returns the settings that changed.
pub fn take_reloadable<T: Tree>(running: &mut T, new: &mut T) -> Vec<Changed> {
    let mut changes = Vec::new();
    for (old, new) in running.sections().into_iter().zip(new.sections()) {
        let description = old.description();
        for field in description.fields.iter().filter(|field| field.reload == Reload::OnReload) {
            let value = |section: &dyn Section| section.show(field.key).map(|toml| plain(&toml));
            let (before, after) = (value(old), value(new));
            if before == after {
                continue;
            }
            match old.set(field.key, &Raw::Text(after.clone().unwrap_or_default())) {
                Ok(()) => changes.push(Changed {
                    name: format!("{}.{}", description.name, field.key),
                    before,
                    after,
                }),
                // The same type printed this value, so it can be read again.
                Err(error) => debug_assert!(false, "{}.{}: {error}", description.name, field.key),
            }
        }
    }
    changes
}

/// Names of the settings that differ and that a running program cannot change. A list counts as one.
pub fn waiting_for_restart<T: Tree>(running: &mut T, new: &mut T) -> Vec<String> {
    let (old, new) = (settings_of(running), settings_of(new));
    let mut names = Vec::new();
    let differs = |setting: &&Setting, others: &[Setting]| {
        let other = others.iter().find(|other| other.name == setting.name);
        other.is_none_or(|other| other.value != setting.value)
    };
    let gone = old.iter().filter(|setting| !new.iter().any(|other| other.name == setting.name));
    for setting in new.iter().filter(|setting| differs(setting, &old)).chain(gone) {
        let is_list = setting.name.matches('.').count() > 1;
        let name = if is_list { setting.section.name.to_owned() } else { setting.name.clone() };
        if (is_list || setting.field.reload == Reload::AtStart) && !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

impl<T> Loaded<T> {
    /// Source that overrides a change made at run time: environment or command line.
    pub fn override_source(&self, name: &str) -> Option<&Source> {
        self.cluster_override(name).filter(|source| !matches!(source, Source::Runtime(_)))
    }

    /// Source that overrides a setting of the cluster; a change made at run time is one, too.
    pub fn cluster_override(&self, name: &str) -> Option<&Source> {
        match self.source(name) {
            Source::Default | Source::File { .. } | Source::Cluster => None,
            held => Some(held),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{Layers, load};
    use crate::tree::List;

    crate::section! {
        /// Limits.
        [queue]
        pub struct Queue {
            /// Maximum number of messages.
            pub messages_max: u32 = "10" in "1..=100", on reload;
            /// Name of the owner.
            pub owner: Option<String> = "", on reload;
            /// Time between two messages.
            pub pace: std::time::Duration = "5s", at start;
        }
    }

    #[derive(Clone, Debug, Default)]
    struct Config {
        queue: Queue,
        queues: Vec<Other>,
    }

    crate::section! {
        /// Other settings.
        [other]
        pub struct Other {
            /// Number of items.
            pub count: u8 = "1", at start;
        }
    }

    impl Tree for Config {
        fn sections(&mut self) -> Vec<&mut dyn Section> {
            vec![&mut self.queue]
        }

        fn lists(&mut self) -> Vec<&mut dyn List> {
            vec![&mut self.queues]
        }
    }

    fn layers(file: &str, runtime: &str) -> Layers {
        let path = Path::new("runtime.toml");
        Layers {
            file: Some(("m.toml".into(), file.to_owned())),
            runtime: Some((path.to_owned(), Runtime::parse(path, runtime).unwrap())),
            ..Layers::default()
        }
    }

    #[test]
    fn the_run_time_layer_lies_between_file_and_environment() {
        let file = "[queue]\nmessages_max = 1\nowner = \"file\"\npace = \"1s\"";
        let mut layers = layers(file, "[queue]\nmessages_max = \"2\"\nowner = \"\"");
        layers.environment = vec![("MERIDIAN__QUEUE__MESSAGES_MAX".into(), "3".into())];
        let loaded: Loaded<Config> = load(&layers).unwrap();
        let queue = &loaded.tree.queue;
        assert_eq!((queue.messages_max, queue.owner.as_deref()), (3, None));
        assert_eq!(loaded.source("queue.owner").to_string(), "runtime.toml");
        assert_eq!(
            loaded.override_source("queue.messages_max").unwrap().to_string(),
            "environment MERIDIAN__QUEUE__MESSAGES_MAX"
        );
        assert!(
            loaded.override_source("queue.owner").is_none() && loaded.override_source("queue.pace").is_none()
        );
    }

    #[test]
    fn the_cluster_layer_lies_between_file_and_run_time() {
        let file = "[queue]\nmessages_max = 1\nowner = \"file\"";
        let mut layers = layers(file, "[queue]\nmessages_max = \"2\"");
        layers.cluster.put("queue.messages_max", Some("3"));
        layers.cluster.put("queue.owner", Some("all"));
        let loaded: Loaded<Config> = load(&layers).unwrap();
        let queue = &loaded.tree.queue;
        assert_eq!((queue.messages_max, queue.owner.as_deref()), (2, Some("all")));
        assert_eq!(loaded.source("queue.owner"), &Source::Cluster);
        assert!(loaded.override_source("queue.messages_max").is_none());
        assert!(matches!(loaded.cluster_override("queue.messages_max"), Some(Source::Runtime(_))));
        assert!(loaded.cluster_override("queue.owner").is_none());
    }

    #[test]
    fn a_problem_in_the_run_time_layer_is_reported_with_its_name() {
        let problems =
            load::<Config>(&layers("", "[queue]\nmessages_max = \"101\"\nowners = \"x\"")).unwrap_err();
        let names: Vec<_> = problems.iter().map(|problem| problem.fault.name().unwrap()).collect();
        assert_eq!(names, ["queue.messages_max", "queue.owners"]);
        assert!(matches!(&problems[0].source, Source::Runtime(_)));
    }

    #[test]
    fn a_written_layer_reads_back() {
        let mut runtime = Runtime::default();
        runtime.put("queue.owner", Some("a \"b\"\nc"));
        runtime.put("queue.messages_max", Some("7"));
        runtime.put("log.level", Some("debug"));
        runtime.put("log.level", None);
        let text = runtime.to_toml();
        assert!(text.contains("\n[queue]\nmessages_max = \"7\"\n"), "{text}");
        assert_eq!(Runtime::parse(Path::new("r"), &text).unwrap(), runtime);
        assert!(Runtime::parse(Path::new("r"), "[queue").is_err());
    }

    #[test]
    fn only_values_that_can_change_at_run_time_are_taken() {
        let mut running = Config::default();
        let mut new = running.clone();
        new.queue.messages_max = 9;
        new.queue.pace = std::time::Duration::from_secs(1);
        new.queue.owner = Some("me".to_owned());
        new.queues.push(Other::default());
        let changed: Vec<_> = take_reloadable(&mut running, &mut new)
            .into_iter()
            .map(|one| (one.name, one.before, one.after))
            .collect();
        let text = |text: &str| Some(text.to_owned());
        assert_eq!(
            changed,
            [("queue.messages_max".into(), text("10"), text("9")), ("queue.owner".into(), None, text("me"))]
        );
        assert_eq!((running.queue.messages_max, running.queue.pace.as_secs()), (9, 5));
        assert_eq!(waiting_for_restart(&mut running, &mut new), ["queue.pace", "other"]);
        assert_eq!(waiting_for_restart(&mut new, &mut running), ["queue.pace", "other"]);
    }
}
