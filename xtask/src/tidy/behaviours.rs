//! The table "Where behaviour lives" of ARCHITECTURE.md. Each row names a file that exists and a function that this
//! file defines.

use super::Finding;
use super::definitions::{Definition, definitions};
use crate::source::SourceFile;
use std::collections::HashSet;

pub const PAGE: &str = "ARCHITECTURE.md";

const HEADING: &str = "## Where behaviour lives";
const COLUMNS: [&str; 3] = ["behaviour", "file", "function"];
const ROWS_MIN: usize = 60;

/// Maximum number of functions of one name that a message offers.
const OFFERED_MAX: usize = 5;

struct Row<'a> {
    /// Index of its line in the page.
    index: usize,
    behaviour: &'a str,
    file: &'a str,
    function: &'a str,
}

/// Checks the table in `page` against all Rust files of the repository.
pub fn inspect(page: &str, files: &[SourceFile]) -> Vec<Finding> {
    let Some(heading) = page.lines().position(|line| line.trim_end() == HEADING) else {
        let message = format!("the section `{HEADING}` is missing; put its table of {ROWS_MIN} rows back");
        return vec![finding(0, message)];
    };
    let (rows, mut found) = rows(page, heading);
    let files: Vec<(String, Vec<Definition>)> =
        files.iter().map(|file| (file.path.display().to_string(), definitions(file))).collect();
    let mut behaviours = HashSet::new();
    for row in &rows {
        let twice = (!behaviours.insert(row.behaviour)).then(|| {
            format!("row \"{}\": an earlier row has the same behaviour; remove one of them", row.behaviour)
        });
        found.extend(twice.or_else(|| missing(row, &files)).map(|message| finding(row.index, message)));
    }
    if rows.len() < ROWS_MIN {
        let message = format!(
            "the table has {} complete rows, and its minimum is {ROWS_MIN}; add rows for behaviours that a newcomer searches for",
            rows.len()
        );
        found.push(finding(heading, message));
    }
    found
}

fn finding(index: usize, message: String) -> Finding {
    Finding { path: PAGE.to_string(), line: index + 1, rule: "behaviours", message }
}

/// Reads the tables between the heading and the next one of its level. Malformed rows are findings.
fn rows(page: &str, heading: usize) -> (Vec<Row<'_>>, Vec<Finding>) {
    let section = page.lines().enumerate().skip(heading + 1).take_while(|(_, line)| !line.starts_with("## "));
    let (mut rows, mut found) = (vec![], vec![]);
    for (index, line) in section.filter(|(_, line)| line.starts_with('|')) {
        let cells: Vec<&str> = line.trim().trim_matches('|').split('|').map(str::trim).collect();
        let is_rule = cells.iter().all(|cell| !cell.is_empty() && cell.chars().all(|c| "-:".contains(c)));
        if is_rule || cells == COLUMNS {
            continue;
        }
        let row = match cells[..] {
            [behaviour, file, function] if !behaviour.is_empty() => code(file)
                .zip(code(function))
                .map(|(file, function)| Row { index, behaviour, file, function }),
            _ => None,
        };
        match row {
            Some(row) => rows.push(row),
            None => {
                let message = format!(
                    "row `{}`: write three cells, the last two as code: | Keep Alive runs out | `crates/a/src/b.rs` | `Type::method` |",
                    line.trim()
                );
                found.push(finding(index, message));
            }
        }
    }
    (rows, found)
}

/// The contents of one pair of backquotes.
fn code(cell: &str) -> Option<&str> {
    let inside = cell.strip_prefix('`')?.strip_suffix('`')?;
    (!inside.is_empty() && !inside.contains('`')).then_some(inside)
}

/// Describes what a row names and does not exist. `None`: everything exists.
fn missing(row: &Row<'_>, files: &[(String, Vec<Definition>)]) -> Option<String> {
    let Row { behaviour, file, function, .. } = row;
    let (owner, name) = match function.split_once("::") {
        Some((owner, name)) => (Some(owner), name),
        None => (None, *function),
    };
    let is_named = |definition: &Definition| definition.owner.as_deref() == owner && definition.name == name;
    let here = files.iter().find(|(path, _)| path == file).map(|(_, definitions)| definitions);
    let problem = match here {
        Some(definitions) if definitions.iter().any(is_named) => return None,
        Some(definitions)
            if owner.is_some() && !definitions.iter().any(|it| it.owner.as_deref() == owner) =>
        {
            format!("`{file}` has no method of `{}`", owner.unwrap_or_default())
        }
        Some(_) => format!("`{file}` does not define `{function}`, or only for tests"),
        None => format!("the file `{file}` does not exist, or git does not track it"),
    };
    let offers = offers(file, owner, name, files);
    let offers = match offers[..] {
        [] => String::new(),
        _ => format!(" Candidates: {}.", offers.join(", ")),
    };
    Some(format!(
        "row \"{behaviour}\": {problem}; name the file and the function that decide it now.{offers}"
    ))
}

/// Functions that the author of a row may mean: those of the same name, otherwise those of the same type in the file.
fn offers(file: &str, owner: Option<&str>, name: &str, files: &[(String, Vec<Definition>)]) -> Vec<String> {
    let all = || files.iter().flat_map(|(path, defined)| defined.iter().map(move |it| (path.as_str(), it)));
    let namesakes = || all().filter(|(_, it)| it.name == name);
    let is_near =
        |(path, it): &(&str, &Definition)| *path == file || owner.is_some() && it.owner.as_deref() == owner;
    let text = |(path, it): (&str, &Definition)| format!("`{path}` `{it}`");
    let near: Vec<String> = namesakes().filter(is_near).map(text).take(OFFERED_MAX).collect();
    if !near.is_empty() {
        return near;
    }
    let far: Vec<String> = namesakes().map(text).take(OFFERED_MAX + 1).collect();
    // A name that many functions have is no help.
    if !far.is_empty() && far.len() <= OFFERED_MAX {
        return far;
    }
    let of_type = all().filter(|(path, it)| *path == file && it.owner.as_deref() == owner);
    of_type.map(|(_, it)| format!("`{it}`")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Line;
    use std::path::PathBuf;

    const WORKER: &str = "impl Worker {\n fn publish(&self) {}\n fn close(&self) {}\n}\nfn merge() {}";

    fn file(path: &str, code: &str) -> SourceFile {
        let line = |code: &str| Line { text: code.to_string(), code: code.to_string(), test: false };
        SourceFile { path: PathBuf::from(path), lines: code.lines().map(line).collect() }
    }

    /// A page with 60 good rows and then these.
    fn page(rows: &[&str]) -> String {
        let mut page = format!("# A\n\n{HEADING}\n\n| behaviour | file | function |\n|---|---|---|\n");
        for number in 0..ROWS_MIN {
            page.push_str(&format!("| {number} | `a/worker.rs` | `merge` |\n"));
        }
        page.push_str(&rows.join("\n"));
        page + "\n\n## Threads\n\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    }

    fn wrong(page: &str) -> Vec<String> {
        let files = [file("a/worker.rs", WORKER), file("a/close.rs", "impl Worker { fn end(&self) {} }")];
        inspect(page, &files).iter().map(ToString::to_string).collect()
    }

    fn wrong_row(row: &str) -> String {
        let found = wrong(&page(&[row]));
        assert_eq!(found.len(), 1, "{found:?}");
        let place = "ARCHITECTURE.md:67: behaviours: ";
        found[0].strip_prefix(place).expect("the last line of the table").to_string()
    }

    #[test]
    fn a_row_that_names_existing_code_passes() {
        let row = "| A client is closed | `a/close.rs` | `Worker::end` |";
        assert!(wrong(&page(&[row])).is_empty());
    }

    #[test]
    fn a_file_that_does_not_exist_is_named() {
        assert_eq!(
            wrong_row("| A client is closed | `a/end.rs` | `Worker::end` |"),
            "row \"A client is closed\": the file `a/end.rs` does not exist, or git does not track it; \
             name the file and the function that decide it now. Candidates: `a/close.rs` `Worker::end`."
        );
    }

    #[test]
    fn a_function_that_moved_is_offered_where_it_is() {
        assert_eq!(
            wrong_row("| A client is closed | `a/worker.rs` | `Worker::end` |"),
            "row \"A client is closed\": `a/worker.rs` does not define `Worker::end`, or only for tests; \
             name the file and the function that decide it now. Candidates: `a/close.rs` `Worker::end`."
        );
    }

    #[test]
    fn a_function_that_is_gone_is_reported_with_those_of_its_type() {
        assert_eq!(
            wrong_row("| A client is closed | `a/worker.rs` | `Worker::stop` |"),
            "row \"A client is closed\": `a/worker.rs` does not define `Worker::stop`, or only for tests; \
             name the file and the function that decide it now. Candidates: `Worker::publish`, `Worker::close`."
        );
    }

    #[test]
    fn a_type_that_was_renamed_is_reported() {
        assert_eq!(
            wrong_row("| A client is closed | `a/close.rs` | `Reactor::end` |"),
            "row \"A client is closed\": `a/close.rs` has no method of `Reactor`; \
             name the file and the function that decide it now. Candidates: `a/close.rs` `Worker::end`."
        );
    }

    #[test]
    fn a_method_is_no_function_and_a_function_no_method() {
        assert!(wrong_row("| A | `a/close.rs` | `end` |").contains("`a/close.rs` does not define `end`"));
        let method = wrong_row("| A | `a/worker.rs` | `Worker::merge` |");
        assert!(method.ends_with("Candidates: `a/worker.rs` `merge`."), "{method}");
    }

    #[test]
    fn malformed_rows_are_reported() {
        for row in
            ["| A | `a/worker.rs` |", "| A | a/worker.rs | `merge` |", "|  | `a/worker.rs` | `merge` |"]
        {
            assert!(wrong_row(row).contains("write three cells"), "{row}");
        }
    }

    #[test]
    fn a_behaviour_has_one_row() {
        assert!(
            wrong_row("| 7 | `a/worker.rs` | `merge` |").contains("row \"7\": an earlier row has the same")
        );
    }

    #[test]
    fn too_few_rows_and_a_missing_section_are_reported() {
        let page = page(&[]).replace("| 59 | `a/worker.rs` | `merge` |\n", "");
        assert!(
            wrong(&page)[0].contains(":3: behaviours: the table has 59 complete rows, and its minimum is 60")
        );
        assert!(wrong("# A\n")[0].contains("the section `## Where behaviour lives` is missing"));
    }
}
