//! The layers of settings: defaults, file, configuration store, changes at run time, environment, `--set`, flags.
//! Each overrides the ones before it.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use crate::document::{self, EmptySection};
use crate::nearest::{distance, nearest, unlikeness};
use crate::problem::{Fault, Problem, Source};
use crate::runtime::Runtime;
use crate::section::{Description, Section};
use crate::tree::Tree;
use crate::value::{Invalid, Raw};

/// Sources of the settings, before any check.
#[derive(Clone, Debug, Default)]
pub struct Layers {
    /// The file's path, for messages, and its text.
    pub file: Option<(PathBuf, String)>,
    /// Settings that the configuration store shares with all nodes of the cluster.
    pub cluster: Runtime,
    /// Changes made while the program ran, and the path of the file that keeps them.
    pub runtime: Option<(PathBuf, Runtime)>,
    /// Variables of the environment. Those that do not begin with [`ENVIRONMENT_PREFIX`] are ignored.
    pub environment: Vec<(String, String)>,
    /// Texts of the form `section.key=value`.
    pub set: Vec<String>,
    pub flags: Vec<Flag>,
}

/// A command line flag that stands for a setting.
#[derive(Clone, Debug)]
pub enum Flag {
    /// One setting: the flag's name, the setting's name, the value.
    Value(&'static str, &'static str, String),
    /// All entries of a list: the flag's name, the list, the key in it, and one value for each entry. File and
    /// environment add no further entries. `--set` can still refine these.
    List(&'static str, &'static str, &'static str, Vec<String>),
}

/// Prefix of the environment variables: `MERIDIAN__MQTT__QOS_MAX` is `mqtt.qos_max`.
pub const ENVIRONMENT_PREFIX: &str = "MERIDIAN__";

/// The name of one setting: `mqtt.qos_max` or `listener.0.address`.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Name {
    pub section: String,
    pub index: Option<usize>,
    pub key: String,
}

impl Name {
    /// Splits a text into a name. Never fails: an unusable name is reported as unknown later, as it was written.
    pub(crate) fn parse(text: &str, separator: &str) -> Self {
        let (section, key) = text.split_once(separator).unwrap_or((text, ""));
        if let Some((index, rest)) = key.split_once(separator)
            && let Ok(index) = index.parse()
        {
            return Self { section: section.to_owned(), index: Some(index), key: rest.to_owned() };
        }
        Self { section: section.to_owned(), index: None, key: key.to_owned() }
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.section)?;
        if let Some(index) = self.index {
            write!(f, ".{index}")?;
        }
        if !self.key.is_empty() {
            write!(f, ".{}", self.key)?;
        }
        Ok(())
    }
}

/// A value for one setting.
#[derive(Clone, Debug)]
pub struct Assignment {
    pub name: Name,
    pub raw: Raw,
    pub source: Source,
}

/// The effective settings, and the source of each.
#[derive(Clone, Debug, Default)]
pub struct Loaded<T> {
    pub tree: T,
    sources: BTreeMap<String, Source>,
}

impl<T> Loaded<T> {
    /// Source of the setting with this full name, such as `listener.0.address`.
    pub fn source(&self, name: &str) -> &Source {
        self.sources.get(name).unwrap_or(&Source::Default)
    }

    /// Sources of all values that are not defaults.
    pub(crate) fn sources(&self) -> &BTreeMap<String, Source> {
        &self.sources
    }
}

/// Joins the layers. Errors: every problem found, in the order of the layers.
pub fn load<T: Tree>(layers: &Layers) -> Result<Loaded<T>, Vec<Problem>> {
    let mut loading = Loading { tree: T::default(), sources: BTreeMap::new(), problems: Vec::new() };
    if let Some((path, text)) = &layers.file {
        let document = document::parse(path, text);
        loading.problems.extend(document.problems);
        for (list, len) in &document.lists {
            loading.resize(list, *len, &document.assignments);
        }
        document.empty.into_iter().for_each(|section| loading.check_empty(section));
        document.assignments.into_iter().for_each(|assignment| loading.assign(assignment));
    }
    layers.cluster.assignments(&Source::Cluster).for_each(|assignment| loading.assign(assignment));
    if let Some((path, runtime)) = &layers.runtime {
        let source = Source::Runtime(path.clone());
        runtime.assignments(&source).for_each(|assignment| loading.assign(assignment));
    }
    environment(&layers.environment).into_iter().for_each(|assignment| loading.assign(assignment));
    for flag in &layers.flags {
        if let Flag::List(_, list, _, values) = flag {
            loading.resize(list, values.len(), &[]);
        }
    }
    for text in &layers.set {
        match text.split_once('=') {
            Some((name, value)) => loading.assign(Assignment {
                name: Name::parse(name.trim(), "."),
                raw: Raw::Text(value.to_owned()),
                source: Source::Set(text.clone()),
            }),
            None => loading.problem(Source::Set(text.clone()), Fault::NoValue),
        }
    }
    layers.flags.iter().flat_map(flag_assignments).for_each(|assignment| loading.assign(assignment));

    if loading.problems.is_empty() {
        Ok(Loaded { tree: loading.tree, sources: loading.sources })
    } else {
        Err(loading.problems)
    }
}

/// Assignments of the environment, sorted: entries of a list appear in their order, whatever the environment's order
/// is.
fn environment(variables: &[(String, String)]) -> Vec<Assignment> {
    let mut assignments: Vec<_> = variables
        .iter()
        .filter_map(|(variable, value)| {
            let name = variable.strip_prefix(ENVIRONMENT_PREFIX)?.to_ascii_lowercase();
            Some(Assignment {
                name: Name::parse(&name, "__"),
                raw: Raw::Text(value.clone()),
                source: Source::Environment(variable.clone()),
            })
        })
        .collect();
    assignments.sort_by(|a, b| a.name.cmp(&b.name));
    assignments
}

fn flag_assignments(flag: &Flag) -> Vec<Assignment> {
    let assignment = |flag: &'static str, name, value: &String| Assignment {
        name,
        raw: Raw::Text(value.clone()),
        source: Source::Flag(flag),
    };
    match flag {
        Flag::Value(flag, name, value) => vec![assignment(flag, Name::parse(name, "."), value)],
        Flag::List(flag, list, key, values) => {
            let name =
                |index| Name { section: (*list).to_owned(), index: Some(index), key: (*key).to_owned() };
            values.iter().enumerate().map(|(index, value)| assignment(flag, name(index), value)).collect()
        }
    }
}

struct Loading<T> {
    tree: T,
    sources: BTreeMap<String, Source>,
    problems: Vec<Problem>,
}

impl<T: Tree> Loading<T> {
    fn problem(&mut self, source: Source, fault: Fault) {
        self.problems.push(Problem { source, fault });
    }

    /// Resizes a list to `len` entries with default values. An unknown list is reported by its first assignment.
    fn resize(&mut self, name: &str, len: usize, assignments: &[Assignment]) {
        let mut lists = self.tree.lists();
        if let Some(list) = lists.iter_mut().find(|list| list.description().name == name) {
            list.clear();
            (0..len).for_each(|_| list.push_default());
            self.sources.retain(|key, _| !key.starts_with(&format!("{name}.")));
        } else if self.tree.sections().iter().any(|section| section.description().name == name)
            && let Some(first) = assignments.iter().find(|assignment| assignment.name.section == name)
        {
            self.problem(first.source.clone(), Fault::NotAList { name: name.to_owned() });
        }
    }

    /// Reports a section without any key whose name is unknown, or that is written in the wrong way.
    fn check_empty(&mut self, EmptySection { name, is_list, source }: EmptySection) {
        let sections: Vec<_> = self.tree.sections().iter().map(|it| it.description().name).collect();
        let lists: Vec<_> = self.tree.lists().iter().map(|it| it.description().name).collect();
        let fault = match (sections.contains(&&*name), lists.contains(&&*name)) {
            (true, _) if is_list => Fault::NotAList { name },
            (_, true) if !is_list => Fault::List { name },
            (false, false) => {
                let nearest =
                    nearest(&name, sections.into_iter().chain(lists)).unwrap_or_default().to_owned();
                Fault::UnknownSection { name, nearest }
            }
            _ => return,
        };
        self.problem(source, fault);
    }

    fn assign(&mut self, assignment: Assignment) {
        let Assignment { name, raw, source } = assignment;
        let set = match self.section(&name) {
            Ok(section) => section.set(&name.key, &raw),
            Err(Some(fault)) => return self.problem(source, fault),
            Err(None) => Err(Invalid::UnknownKey),
        };
        match set {
            Ok(()) => {
                self.sources.insert(name.to_string(), source);
            }
            Err(Invalid::UnknownKey) => {
                let nearest = self.nearest(&name);
                self.problem(source, Fault::Unknown { name: name.to_string(), nearest });
            }
            Err(why) => self.problem(source, Fault::Invalid { name: name.to_string(), why }),
        }
    }

    /// Finds the section. Appends the next entry of a list when it is named. `Err(None)`: no such section exists.
    fn section(&mut self, name: &Name) -> Result<&mut dyn Section, Option<Fault>> {
        let is_list = self.tree.lists().iter().any(|list| list.description().name == name.section);
        if is_list {
            let list = self.tree.lists().into_iter().find(|list| list.description().name == name.section);
            let (Some(list), Some(index)) = (list, name.index) else {
                return Err(Some(Fault::List { name: name.section.clone() }));
            };
            if index > list.len() {
                return Err(Some(Fault::Gap { name: name.section.clone(), index, len: list.len() }));
            }
            if index == list.len() {
                list.push_default();
            }
            return list.entry(index).ok_or(None);
        }
        let section =
            self.tree.sections().into_iter().find(|section| section.description().name == name.section);
        match (section, name.index) {
            (None, _) => Err(None),
            (Some(_), Some(_)) => Err(Some(Fault::NotAList { name: name.section.clone() })),
            (Some(_), None) if name.key.is_empty() => {
                Err(Some(Fault::NotASection { name: name.section.clone() }))
            }
            (Some(section), None) => Ok(section),
        }
    }

    /// The known name that is most similar to this one; the key counts more than the section.
    fn nearest(&mut self, unknown: &Name) -> String {
        // A name without a section, such as a key above the first section of the file, can be either.
        let key = if unknown.key.is_empty() { &unknown.section } else { &unknown.key };
        let mut best = ((usize::MAX, 0), String::new());
        let mut consider = |description: &Description, index: &str| {
            let section_distance = distance(&unknown.section, description.name);
            for field in description.fields {
                let (first, second) = unlikeness(key, field.key);
                let score = (2 * first + section_distance.min(3), second);
                if score < best.0 {
                    best = (score, format!("{}{index}.{}", description.name, field.key));
                }
            }
        };
        self.tree.sections().iter().for_each(|section| consider(section.description(), ""));
        self.tree.lists().iter().for_each(|list| consider(list.description(), ".0"));
        best.1
    }
}

#[cfg(test)]
mod tests;
