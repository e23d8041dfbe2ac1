//! The TOML file as a list of assignments, each with its line.

use std::ops::Range;
use std::path::Path;

use toml::Spanned;
use toml::de::{DeInteger, DeTable, DeValue};

use crate::layers::{Assignment, Name};
use crate::problem::{Fault, Problem, Source};
use crate::value::Raw;

/// Contents of a file.
#[derive(Debug, Default)]
pub struct Document {
    pub assignments: Vec<Assignment>,
    /// Lists and the number of their entries, in order of appearance.
    pub lists: Vec<(String, usize)>,
    /// Sections and lists without any key, which no assignment names.
    pub empty: Vec<EmptySection>,
    pub problems: Vec<Problem>,
}

/// A section or list without any key.
#[derive(Debug, PartialEq, Eq)]
pub struct EmptySection {
    pub name: String,
    pub is_list: bool,
    pub source: Source,
}

/// Parses the text of a file. Errors of single entries are in `problems`; all other entries are read nevertheless.
pub fn parse(path: &Path, text: &str) -> Document {
    let mut reading = Reading { path, text, document: Document::default() };
    match DeTable::parse(text) {
        Ok(table) => reading.top(table.get_ref()),
        Err(error) => {
            let source = reading.source(error.span().unwrap_or(0..0));
            let fault = Fault::Syntax(error.message().to_owned());
            reading.document.problems.push(Problem { source, fault });
        }
    }
    // The parser sorts by name; a person reads the messages from top to bottom of the file.
    reading.document.assignments.sort_by_key(|assignment| match assignment.source {
        Source::File { line, .. } => line,
        _ => 0,
    });
    reading.document
}

struct Reading<'a> {
    path: &'a Path,
    text: &'a str,
    document: Document,
}

impl Reading<'_> {
    fn source(&self, span: Range<usize>) -> Source {
        let before = &self.text.as_bytes()[..span.start.min(self.text.len())];
        let line = 1 + before.iter().filter(|byte| **byte == b'\n').count();
        Source::File { path: self.path.to_owned(), line }
    }

    fn top(&mut self, table: &DeTable<'_>) {
        for (section, value) in table {
            let name = section.get_ref().as_ref();
            if let Some(is_list) = empty(value.get_ref()) {
                let source = self.source(section.span());
                self.document.empty.push(EmptySection { name: name.to_owned(), is_list, source });
            }
            match value.get_ref() {
                DeValue::Table(keys) => self.section(name, None, keys),
                DeValue::Array(entries) if entries.iter().all(|entry| entry.get_ref().is_table()) => {
                    self.document.lists.push((name.to_owned(), entries.len()));
                    for (index, entry) in entries.iter().enumerate() {
                        if let DeValue::Table(keys) = entry.get_ref() {
                            self.section(name, Some(index), keys);
                        }
                    }
                }
                // The caller, which knows the names, decides between a misplaced setting and a misused section.
                other => {
                    let source = self.source(section.span());
                    let name = Name { section: name.to_owned(), index: None, key: String::new() };
                    self.document.assignments.push(Assignment { name, raw: raw(other), source });
                }
            }
        }
    }

    fn section(&mut self, section: &str, index: Option<usize>, keys: &DeTable<'_>) {
        for (key, value) in keys {
            self.key(section, index, key, value);
        }
    }

    fn key(
        &mut self,
        section: &str,
        index: Option<usize>,
        key: &Spanned<std::borrow::Cow<'_, str>>,
        value: &Spanned<DeValue<'_>>,
    ) {
        let source = self.source(key.span());
        let name = Name { section: section.to_owned(), index, key: key.get_ref().clone().into_owned() };
        self.document.assignments.push(Assignment { name, raw: raw(value.get_ref()), source });
    }
}

/// Returns whether a section without any key is written as a list; `None` for everything else.
fn empty(value: &DeValue<'_>) -> Option<bool> {
    let has_no_key = |value: &DeValue<'_>| matches!(value, DeValue::Table(keys) if keys.is_empty());
    match value {
        DeValue::Table(_) => has_no_key(value).then_some(false),
        DeValue::Array(entries) => entries.iter().all(|entry| has_no_key(entry.get_ref())).then_some(true),
        _ => None,
    }
}

fn raw(value: &DeValue<'_>) -> Raw {
    match value {
        DeValue::String(text) => Raw::String(text.clone().into_owned()),
        DeValue::Integer(number) => {
            integer(number).map_or(Raw::Other("a number beyond 64 bits"), Raw::Integer)
        }
        DeValue::Boolean(boolean) => Raw::Boolean(*boolean),
        DeValue::Float(_) => Raw::Other("a number with a fraction"),
        DeValue::Datetime(_) => Raw::Other("a date"),
        DeValue::Array(_) => Raw::Other("an array"),
        DeValue::Table(_) => Raw::Other("a table"),
    }
}

fn integer(number: &DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(text: &str) -> Vec<(String, Raw, usize)> {
        let document = parse(Path::new("f.toml"), text);
        assert_eq!(document.problems, []);
        let line = |source: &Source| match source {
            Source::File { line, .. } => *line,
            other => panic!("{other}"),
        };
        document.assignments.iter().map(|a| (a.name.to_string(), a.raw.clone(), line(&a.source))).collect()
    }

    #[test]
    fn every_way_to_write_a_key_is_the_same_assignment() {
        let expected = |line| vec![("mqtt.qos_max".to_owned(), Raw::Integer(1), line)];
        assert_eq!(lines("# a comment\n[mqtt]\nqos_max = 1\n"), expected(3));
        assert_eq!(lines("mqtt.qos_max = 1"), expected(1));
        assert_eq!(lines("mqtt = { qos_max = 0x1 }"), expected(1));
    }

    #[test]
    fn entries_of_a_list_are_numbered() {
        let read = lines("[[listener]]\naddress = \"a\"\n[[listener]]\n[[listener]]\naddress = \"c\"");
        let names: Vec<_> = read.iter().map(|(name, _, line)| (name.as_str(), *line)).collect();
        assert_eq!(names, [("listener.0.address", 2), ("listener.2.address", 5)]);
        assert_eq!(parse(Path::new("f"), "[[listener]]\n[[listener]]").lists, [("listener".to_owned(), 2)]);
    }

    #[test]
    fn a_syntax_error_has_its_line() {
        let document = parse(Path::new("f.toml"), "[mqtt]\nqos_max = 1\nqos_max 2\n");
        let [problem] = document.problems.as_slice() else { panic!("one problem") };
        assert_eq!(problem.source.to_string(), "f.toml:3");
    }

    #[test]
    fn sections_without_a_key_are_named_with_their_line() {
        let document = parse(Path::new("f.toml"), "[a]\n[b]\nc = 1\n[[d]]\n[[d]]\n[[e]]\n[[e]]\nf = 1\n");
        let empty: Vec<_> =
            document.empty.iter().map(|it| (it.name.as_str(), it.is_list, it.source.to_string())).collect();
        assert_eq!(empty, [("a", false, "f.toml:1".to_owned()), ("d", true, "f.toml:4".to_owned())]);
    }

    proptest::proptest! {
        #[test]
        fn no_text_panics(text in "[\\[\\]a-z0-9_.= \n\"#{},-]{0,80}") {
            parse(Path::new("f"), &text);
        }
    }
}
