//! Texts generated from the declarations: the reference page, the example file, and the effective settings.

use std::fmt::Write as _;

use crate::layers::Loaded;
use crate::section::{Description, Field, Reload, Section};
use crate::tree::Tree;

/// The settings of every section as Markdown, with one heading and one table for each section.
pub fn reference<T: Tree>() -> String {
    let mut tree = T::default();
    let mut out = String::new();
    for section in tree.sections() {
        reference_section(&mut out, section, &format!("[{}]", section.description().name));
    }
    for list in tree.lists() {
        list.clear();
        list.push_default();
        if let Some(section) = list.entry(0) {
            reference_section(&mut out, section, &format!("[[{}]]", section.description().name));
        }
    }
    out
}

fn reference_section(out: &mut String, section: &dyn Section, heading: &str) {
    let description = section.description();
    out.push_str(&format!("\n## `{heading}`\n\n{}\n\n", wrapped(&joined(description.doc))));
    out.push_str("| key | type | default | range | takes effect | meaning |\n|---|---|---|---|---|---|\n");
    for field in description.fields {
        let default = section.show(field.key).map_or("unset".to_owned(), |text| format!("`{text}`"));
        let range = field.range.map_or(String::new(), |range| format!("`{range}`"));
        let reload = match field.reload {
            Reload::AtStart => "at the next start",
            Reload::OnReload => "on SIGHUP",
        };
        let mut meaning = joined(field.doc);
        for choice in field.choices {
            let doc = choice.doc.trim();
            write!(meaning, "<br>`{}`: {doc}", choice.name).expect("writing to a string");
        }
        out.push_str(&format!(
            "| `{}` | {} | {default} | {range} | {reload} | {} |\n",
            field.key,
            field.type_name,
            meaning.replace('|', "\\|"),
        ));
    }
}

/// Breaks a paragraph into lines of at most [`LINE_MAX`] characters. A longer word has a line of its own.
fn wrapped(text: &str) -> String {
    let mut out = String::new();
    let mut length = 0;
    for word in text.split_whitespace() {
        let word_length = word.chars().count();
        if length > 0 {
            let fits = length + 1 + word_length <= LINE_MAX;
            out.push(if fits { ' ' } else { '\n' });
            length = if fits { length + 1 } else { 0 };
        }
        out.push_str(word);
        length += word_length;
    }
    out
}

/// Maximum number of characters of a line of prose in pages.
const LINE_MAX: usize = 120;

/// A file with every setting at its default, all of them commented out.
pub fn example<T: Tree>() -> String {
    let mut tree = T::default();
    let mut out = String::new();
    for section in tree.sections() {
        example_section(&mut out, section, &format!("[{}]", section.description().name));
    }
    for list in tree.lists() {
        list.clear();
        list.push_default();
        if let Some(section) = list.entry(0) {
            example_section(&mut out, section, &format!("[[{}]]", section.description().name));
        }
    }
    out
}

fn example_section(out: &mut String, section: &dyn Section, heading: &str) {
    let Description { doc, fields, .. } = section.description();
    out.push('\n');
    for line in *doc {
        out.push_str(&format!("#{line}\n"));
    }
    // A list's heading alone would add an entry, so it is commented out as well.
    let comment = if heading.starts_with("[[") { "#" } else { "" };
    out.push_str(&format!("{comment}{heading}\n"));
    for field in *fields {
        for line in field.doc {
            out.push_str(&format!("#{line}\n"));
        }
        out.push_str(&example_notes(field));
        let value = section.show(field.key).unwrap_or_else(|| example_value(field).to_owned());
        out.push_str(&format!("#{} = {value}\n", field.key));
    }
}

fn example_notes(field: &Field) -> String {
    let mut notes = String::new();
    for choice in field.choices {
        notes.push_str(&format!("#   {}: {}\n", choice.name, choice.doc.trim()));
    }
    if let Some(range) = field.range {
        notes.push_str(&format!("# Range {range}.\n"));
    }
    if field.default.is_empty() && field.type_name != "string" {
        notes.push_str("# Unset by default.\n");
    }
    notes
}

/// Value that the example shows for a setting that is unset by default.
fn example_value(field: &Field) -> &'static str {
    match field.type_name {
        "boolean" => "true",
        "path" => "\"/etc/meridian/...\"",
        "integer" => "1",
        "size" => "\"1MiB\"",
        "duration" => "\"1s\"",
        "address" => "\"10.0.0.1:7883\"",
        "addresses" => "\"10.0.0.1:7883,10.0.0.2:7883\"",
        _ => "\"...\"",
    }
}

/// The effective settings as TOML, each with its source. Reading the text as a file gives the same settings.
pub fn show<T: Tree>(loaded: &mut Loaded<T>) -> String {
    let mut rows: Vec<(String, String)> = Vec::new();
    let mut headings: Vec<(usize, String)> = Vec::new();
    let sources = loaded.sources().clone();
    let mut section_rows = |section: &dyn Section, heading: String, prefix: String| {
        headings.push((rows.len(), heading));
        for field in section.description().fields {
            let source = sources
                .get(&format!("{prefix}.{}", field.key))
                .map_or("default".to_owned(), ToString::to_string);
            match section.show(field.key) {
                Some(value) => rows.push((format!("{} = {value}", field.key), source)),
                None => rows.push((format!("# {} is unset", field.key), source)),
            }
        }
    };
    for section in loaded.tree.sections() {
        let name = section.description().name;
        section_rows(section, format!("[{name}]"), name.to_owned());
    }
    for list in loaded.tree.lists() {
        let name = list.description().name;
        for index in 0..list.len() {
            if let Some(section) = list.entry(index) {
                section_rows(section, format!("[[{name}]]"), format!("{name}.{index}"));
            }
        }
    }

    let width = rows.iter().map(|(text, _)| text.len()).max().unwrap_or(0).min(WIDTH_MAX);
    let mut out = String::new();
    for (index, (text, source)) in rows.iter().enumerate() {
        for (_, heading) in headings.iter().filter(|(at, _)| *at == index) {
            out.push_str(&format!("{}{heading}\n", if index == 0 { "" } else { "\n" }));
        }
        // A comment ends at the end of the line, so line breaks in a source are replaced.
        out.push_str(&format!("{text:width$}  # {}\n", source.replace(char::is_control, " ")));
    }
    out
}

fn joined(doc: &[&str]) -> String {
    doc.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" ")
}

/// Maximum column at which sources are aligned.
const WIDTH_MAX: usize = 48;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{Layers, load};
    use crate::tree::List;

    crate::choices! {
        /// Kinds.
        pub enum Kind {
            /// The one | the other.
            One = "one",
            /// Another.
            Two = "two",
        }
    }

    crate::section! {
        /// The first
        /// section.
        [first]
        pub struct First {
            /// Number of items.
            pub count: u8 = "2" in "0..=2", at start;
            /// Kind of item.
            pub kind: Kind = "one", on reload;
            /// Path of the items.
            pub path: Option<std::path::PathBuf> = "", at start;
        }
    }

    crate::section! {
        /// The second.
        [second]
        pub struct Second {
            /// Name of the second.
            pub name: String = "", at start;
        }
    }

    #[derive(Debug, Default)]
    struct Config {
        first: First,
        seconds: Vec<Second>,
    }

    impl Tree for Config {
        fn sections(&mut self) -> Vec<&mut dyn Section> {
            vec![&mut self.first]
        }

        fn lists(&mut self) -> Vec<&mut dyn List> {
            vec![&mut self.seconds]
        }
    }

    fn loaded(file: &str) -> Loaded<Config> {
        let layers = Layers { file: Some(("m.toml".into(), file.to_owned())), ..Layers::default() };
        load(&layers).unwrap_or_else(|problems| panic!("{problems:?}\n{file}"))
    }

    #[test]
    fn the_reference_has_every_fact_of_a_declaration() {
        let page = reference::<Config>();
        assert!(page.contains("## `[first]`\n\nThe first section.\n"), "{page}");
        assert!(
            page.contains("| `count` | integer | `2` | `0..=2` | at the next start | Number of items. |"),
            "{page}"
        );
        assert!(
            page.contains(
                "| `kind` | choice | `\"one\"` |  | on SIGHUP | Kind of \
                 item.<br>`one`: The one \\| the"
            ),
            "{page}"
        );
        assert!(page.contains("| `path` | path | unset |"), "{page}");
        assert!(page.contains("## `[[second]]`"), "{page}");
    }

    #[test]
    fn the_example_changes_nothing_and_is_valid_without_its_comment_signs() {
        let text = example::<Config>();
        assert_eq!(loaded(&text).tree.first, First::default());
        assert!(loaded(&text).tree.seconds.is_empty());
        let uncommented: String = text
            .lines()
            .filter(|line| !line.starts_with("# "))
            .map(|line| format!("{}\n", line.trim_start_matches('#')))
            .filter(|line| !line.starts_with("  "))
            .collect();
        let tree = loaded(&uncommented).tree;
        assert_eq!((tree.first.count, tree.first.kind, tree.seconds.len()), (2, Kind::One, 1));
    }

    #[test]
    fn shown_settings_read_back_as_the_same_settings() {
        let mut first =
            loaded("[first]\ncount = 1\nkind = \"two\"\n[[second]]\nname = \"a # b\"\n[[second]]\n");
        let shown = show(&mut first);
        assert!(shown.contains("# m.toml:2\n"), "{shown}");
        assert!(shown.contains("# path is unset"), "{shown}");
        let again = loaded(&shown).tree;
        assert_eq!((again.first, again.seconds), (first.tree.first, first.tree.seconds));
    }
}
