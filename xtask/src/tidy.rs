//! `cargo xtask tidy`: "not this, use that" over the tracked Rust files. An exception carries its reason: `// tidy:
//! allow(rule): reason` on the same line or on the one before. It also checks the table of behaviours in
//! ARCHITECTURE.md.

mod behaviours;
mod definitions;
mod prose;

use crate::repository::{root, tracked};
use crate::source::{self, SourceFile};
use anyhow::{Context, Result, bail};
use std::fmt;
use std::path::Path;

/// Crates that know no sockets, files, clocks, threads or runtimes.
const CORES: [&str; 10] =
    ["mqtt", "routing", "session", "shard", "broker", "link", "replog", "cluster", "rules", "bridge"];

/// Crates that start threads of a node.
const THREADED: [&str; 8] =
    ["api", "auth", "bridges", "transport", "edge", "meridian", "configstore", "storage"];

struct Rule {
    name: &'static str,
    /// Returns whether the rule applies to a place.
    holds: fn(&Place) -> bool,
    /// Returns whether a line of code, without comments and literals, breaks the rule.
    breaks: fn(&str) -> bool,
    instead: &'static str,
}

/// Properties of a line, other than its code, that rules use.
struct Place<'a> {
    path: &'a Path,
    test: bool,
}

impl Place<'_> {
    /// Name of the directory below `crates/`; `None` outside it.
    fn package(&self) -> Option<&str> {
        self.path.strip_prefix("crates").ok()?.components().next()?.as_os_str().to_str()
    }

    fn core(&self) -> bool {
        self.package().is_some_and(|p| CORES.contains(&p))
    }

    /// Returns whether it is part of a program: programs write to a terminal, libraries do not.
    fn program(&self) -> bool {
        self.package().is_none_or(|p| p == "meridian")
            || self.path.ends_with("src/main.rs")
            || self.path.components().any(|c| c.as_os_str() == "bin" || c.as_os_str() == "examples")
    }
}

const RULES: &[Rule] = &[
    Rule {
        name: "clock",
        holds: |p| p.core() && !p.test && !p.program(),
        breaks: |code| code.contains("Instant::now") || code.contains("SystemTime::now"),
        instead: "a core takes `now` as an argument, so that the simulator can run it on virtual time",
    },
    Rule {
        name: "unbounded-channel",
        holds: |p| !p.test,
        breaks: |code| {
            code.contains("unbounded_channel") || code.contains("unbounded()") || std_unbounded(code)
        },
        instead: "every queue has a bound with a name and a counter: use `sync_channel` or a bounded queue",
    },
    Rule {
        name: "print",
        holds: |p| !p.test && !p.program(),
        breaks: |code| ["println!", "eprintln!", "print!", "eprint!"].iter().any(|m| has_macro(code, m)),
        instead: "libraries log events through `tracing`; only programs own a terminal",
    },
    Rule {
        name: "unfinished",
        holds: |_| true,
        breaks: |code| ["todo!", "unimplemented!", "dbg!"].iter().any(|m| has_macro(code, m)),
        instead: "committed code is finished: return an error that names what is missing, or \
             leave it out",
    },
    Rule {
        name: "ignored-test",
        holds: |_| true,
        breaks: |code| code.contains("#[ignore"),
        instead: "a test that is never run is useless: make it fast, or make it a task of xtask",
    },
    Rule {
        name: "thread-sleep",
        holds: |p| !p.test && p.package().is_some(),
        breaks: |code| code.contains("thread::sleep"),
        instead: "wait for the event, or hand out a deadline by `poll_timeout`; a sleeping \
             reactor serves no client",
    },
    Rule {
        name: "thread",
        holds: |p| !p.test && p.package().is_some_and(|p| THREADED.contains(&p)),
        breaks: |code| code.contains("thread::Builder") || code.contains("thread::spawn"),
        instead: "the process ends with a critical thread: use `critical::spawn`, or explain who \
             handles its panic",
    },
    Rule {
        name: "poison",
        holds: |p| p.package().is_some_and(|p| !["sync", "routing", "bench"].contains(&p)),
        breaks: |code| code.contains("PoisonError"),
        instead: "use `sync::lock` or `sync::ignore_poison`",
    },
    Rule {
        name: "anyhow",
        holds: |p| !p.test && !p.program(),
        breaks: |code| code.contains("anyhow::") || has_macro(code, "anyhow!"),
        instead: "libraries have one error enum per boundary that says whose fault it is; `anyhow` is for `main`",
    },
    Rule {
        name: "version",
        holds: |p| p.package().is_some_and(|p| p != "mqtt" && p != "bench"),
        breaks: |code| code.contains("is_v5(") || code.contains("is_v3("),
        instead: "only the codec knows protocol versions: settle the difference in its tables",
    },
];

/// Names of files that do not describe their contents.
const EMPTY_NAMES: [&str; 5] = ["utils.rs", "util.rs", "helpers.rs", "types.rs", "common.rs"];

/// Finds `mpsc::channel()` of std: unbounded, while tokio's takes its bound as an argument, and a `oneshot` holds one
/// value.
fn std_unbounded(code: &str) -> bool {
    code.replace("oneshot::channel", "").split("channel").skip(1).any(|after| {
        let after = match after.strip_prefix("::<") {
            Some(generics) => generics.split_once(">(").map_or("", |(_, rest)| rest),
            None => match after.strip_prefix('(') {
                Some(rest) => rest,
                None => return false,
            },
        };
        after.trim_start().starts_with(')')
    }) && !code.contains("fn ")
}

/// Returns whether `code` calls the macro, and not one whose name merely ends like it.
fn has_macro(code: &str, name: &str) -> bool {
    code.match_indices(name).any(|(i, _)| {
        let before = code[..i].chars().next_back();
        before.is_none_or(|c| !c.is_alphanumeric() && c != '_')
    })
}

/// A line that breaks a rule.
struct Finding {
    path: String,
    line: usize,
    rule: &'static str,
    message: String,
}

impl Finding {
    fn of_prose(path: &str, prose::Finding { line, rule, message }: prose::Finding) -> Self {
        Self { path: path.to_owned(), line, rule, message }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.message)
    }
}

/// Returns whether the line or the one before contains `tidy: allow(rule): reason`, with a reason.
fn allowed(file: &SourceFile, index: usize, rule: &str) -> bool {
    let mark = format!("tidy: allow({rule}):");
    let says = |i: usize| file.lines[i].text.split_once(&mark).is_some_and(|(_, why)| !why.trim().is_empty());
    says(index) || (index > 0 && says(index - 1))
}

fn inspect(file: &SourceFile) -> Vec<Finding> {
    let path = file.path.display().to_string();
    let mut found = vec![];
    let name = file.path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
    if EMPTY_NAMES.contains(&name) {
        let message = "name the file after the one thing that it holds".to_string();
        found.push(Finding { path: path.clone(), line: 1, rule: "empty-name", message });
    }
    for (i, line) in file.lines.iter().enumerate() {
        let place = Place { path: &file.path, test: line.test };
        for rule in RULES {
            if (rule.holds)(&place) && (rule.breaks)(&line.code) && !allowed(file, i, rule.name) {
                let message = format!("`{}`: {}", line.text.trim(), rule.instead);
                found.push(Finding { path: path.clone(), line: i + 1, rule: rule.name, message });
            }
        }
    }
    found.extend(prose::inspect(file).into_iter().map(|it| Finding::of_prose(&path, it)));
    found
}

fn findings() -> Result<Vec<Finding>> {
    let files = source::read(&root(), &tracked(".rs")?)?;
    let page = std::fs::read_to_string(root().join(behaviours::PAGE)).context(behaviours::PAGE)?;
    let mut found: Vec<Finding> =
        files.iter().flat_map(inspect).chain(behaviours::inspect(&page, &files)).collect();
    for page in tracked(".md")? {
        let text = std::fs::read_to_string(root().join(&page)).with_context(|| page.display().to_string())?;
        let path = page.display().to_string();
        found.extend(prose::inspect_page(&page, &text).into_iter().map(|it| Finding::of_prose(&path, it)));
    }
    Ok(found)
}

pub fn run() -> Result<()> {
    let found = findings()?;
    for finding in &found {
        println!("{finding}");
    }
    if !found.is_empty() {
        bail!("tidy: {} findings", found.len());
    }
    println!("tidy: clean");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::Line;
    use std::path::PathBuf;

    fn broken(path: &str, test: bool, lines: &[&str]) -> Vec<&'static str> {
        let lines = lines.iter().map(|l| Line { text: l.to_string(), code: l.to_string(), test }).collect();
        inspect(&SourceFile { path: PathBuf::from(path), lines }).iter().map(|f| f.rule).collect()
    }

    #[test]
    fn this_repository_is_tidy() {
        let found: Vec<String> = findings().unwrap().iter().map(|f| f.to_string()).collect();
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    #[test]
    fn a_core_has_no_clock() {
        let line = ["let now = Instant::now();"];
        assert_eq!(broken("crates/session/src/session.rs", false, &line), ["clock"]);
        assert!(broken("crates/session/src/session.rs", true, &line).is_empty());
        assert!(broken("crates/edge/src/reactor.rs", false, &line).is_empty());
    }

    #[test]
    fn unbounded_channels_are_distinguished_from_bounded_ones() {
        for line in [
            "let (a, b) = mpsc::channel();",
            "channel::<Vec<u8>>()",
            "tokio::sync::mpsc::unbounded_channel()",
        ] {
            assert_eq!(broken("crates/edge/src/a.rs", false, &[line]), ["unbounded-channel"], "{line}");
        }
        for line in [
            "mpsc::channel(16)",
            "sync_channel(1)",
            "channel::<u8>(QUEUE_MAX)",
            "fn channel() {}",
            "oneshot::channel()",
        ] {
            assert!(broken("crates/edge/src/a.rs", false, &[line]).is_empty(), "{line}");
        }
    }

    #[test]
    fn only_programs_print() {
        let line = ["println!(\"\")"];
        assert_eq!(broken("crates/broker/src/a.rs", false, &line), ["print"]);
        assert!(broken("crates/bench/src/main.rs", false, &line).is_empty());
        assert!(broken("crates/meridian/src/publish.rs", false, &line).is_empty());
        assert!(broken("xtask/src/tidy.rs", false, &line).is_empty());
    }

    #[test]
    fn unfinished_work_is_found_in_tests_too() {
        assert_eq!(broken("crates/edge/tests/a.rs", true, &["todo!()"]), ["unfinished"]);
        assert_eq!(broken("crates/edge/tests/a.rs", true, &["#[ignore]"]), ["ignored-test"]);
        assert!(broken("crates/edge/src/a.rs", false, &["not_todo!()"]).is_empty());
    }

    #[test]
    fn an_exception_needs_a_reason() {
        let sleep = "std::thread::sleep(pause);";
        assert_eq!(broken("crates/edge/src/a.rs", false, &[sleep]), ["thread-sleep"]);
        assert!(
            broken("crates/edge/src/a.rs", false, &["// tidy: allow(thread-sleep): an observer", sleep])
                .is_empty()
        );
        assert_eq!(
            broken("crates/edge/src/a.rs", false, &["// tidy: allow(thread-sleep):", sleep]),
            ["thread-sleep"]
        );
    }

    #[test]
    fn a_thread_of_a_node_ends_the_process_or_has_an_exception() {
        let line = ["thread::Builder::new().spawn(run)"];
        assert_eq!(broken("crates/storage/src/a.rs", false, &line), ["thread"]);
        assert!(broken("crates/storage/src/a.rs", true, &line).is_empty());
        assert!(broken("crates/bench/src/a.rs", false, &line).is_empty());
        assert!(broken("crates/storage/src/a.rs", false, &["critical::spawn(name, run)"]).is_empty());
    }

    #[test]
    fn a_file_is_named_after_its_contents() {
        assert_eq!(broken("crates/edge/src/utils.rs", false, &[]), ["empty-name"]);
    }
}
