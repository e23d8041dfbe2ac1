//! `cargo xtask clauses`: citations in code and in tests of the normative statements for a server.

use crate::repository::{root, tracked};
use crate::source;
use anyhow::{Context, Result, bail, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::path::Path;

#[derive(clap::Args, Default)]
pub struct Args {
    /// Fail when a clause has neither code nor test, or when one is cited that does not exist
    #[arg(long)]
    pub deny: bool,
    /// List the clauses that have only code or only a test, too
    #[arg(long)]
    pub half: bool,
}

/// Number of a statement, ordered as in the specification.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
struct Clause {
    version: Version,
    numbers: Vec<u32>,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Version {
    Mqtt5,
    Mqtt311,
}

impl Version {
    const BOTH: [Version; 2] = [Version::Mqtt5, Version::Mqtt311];

    fn prefix(self) -> &'static str {
        match self {
            Version::Mqtt5 => "MQTT-",
            Version::Mqtt311 => "MQTT3-",
        }
    }

    fn table(self) -> &'static str {
        match self {
            Version::Mqtt5 => "mqtt5",
            Version::Mqtt311 => "mqtt311",
        }
    }
}

impl fmt::Display for Clause {
    fn fmt(&self, f: &mut fmt::Formatter) -> fmt::Result {
        let [a, b, c, n] = self.numbers[..] else { return Err(fmt::Error) };
        write!(f, "[{}{a}.{b}.{c}-{n}]", self.version.prefix())
    }
}

impl Clause {
    /// Parses a number such as `3.1.4-3`.
    fn parse(version: Version, text: &str) -> Option<Clause> {
        let (section, number) = text.split_once('-')?;
        let numbers: Option<Vec<u32>> = section.split('.').chain([number]).map(|n| n.parse().ok()).collect();
        numbers.filter(|n| n.len() == 4).map(|numbers| Clause { version, numbers })
    }
}

/// Entry of the checked-in list for one statement.
struct Entry {
    text: String,
    /// True when it concerns a server.
    server: bool,
    /// Reason why it has no code yet.
    later: Option<String>,
}

fn parse_list(text: &str) -> Result<BTreeMap<Clause, Entry>> {
    let document: toml::Table = text.parse().context("docs/clauses.toml")?;
    let mut list = BTreeMap::new();
    for version in Version::BOTH {
        let table =
            document.get(version.table()).and_then(|t| t.as_table()).context("a table for each version")?;
        for (id, value) in table {
            let clause =
                Clause::parse(version, id).with_context(|| format!("{id} is not a clause number"))?;
            let string = |key: &str| value.get(key).and_then(|v| v.as_str()).map(str::to_string);
            let who = string("who").with_context(|| format!("{id} has no `who`"))?;
            ensure!(["server", "client", "both"].contains(&&who[..]), "{id}: who is {who}?");
            let text = string("text").with_context(|| format!("{id} has no `text`"))?;
            list.insert(clause, Entry { text, server: who != "client", later: string("later") });
        }
    }
    Ok(list)
}

/// Kinds of citations of a clause.
#[derive(Default, Clone, Copy)]
struct Cited {
    code: bool,
    test: bool,
}

/// The clauses cited in one line: `[MQTT-3.1.4-3]`, `[MQTT-4.8.2-4..6]`, `[MQTT-3.1.2-1, MQTT-3.1.2-2]`.
///
/// # Errors
/// Text in such brackets that is not a clause number.
fn citations(line: &str) -> Vec<Result<Clause, String>> {
    let mut found = vec![];
    for (start, _) in line.match_indices('[') {
        let Some((inside, _)) = line[start + 1..].split_once(']') else { continue };
        let Some(version) = Version::BOTH.into_iter().find(|v| inside.starts_with(v.prefix())) else {
            continue;
        };
        for part in inside.split(',') {
            let part = part.trim();
            let number = part.strip_prefix(version.prefix()).unwrap_or(part);
            let (first, last) = match number.split_once("..") {
                Some((first, last)) => (first, last.parse::<u32>().ok()),
                None => (number, None),
            };
            match Clause::parse(version, first) {
                Some(clause) => {
                    let from = clause.numbers[3];
                    for n in from..=last.unwrap_or(from) {
                        let mut clause = clause.clone();
                        clause.numbers[3] = n;
                        found.push(Ok(clause));
                    }
                }
                None => found.push(Err(format!("[{inside}]"))),
            }
        }
    }
    found
}

/// All citations in `crates/`.
#[derive(Default)]
struct Citations {
    cited: BTreeMap<Clause, Cited>,
    /// Location and text of invalid citations.
    wrong: BTreeSet<String>,
}

fn collect(list: &BTreeMap<Clause, Entry>) -> Result<Citations> {
    let paths: Vec<_> = tracked(".rs")?.into_iter().filter(|p| p.starts_with("crates")).collect();
    let mut all = Citations::default();
    for file in source::read(&root(), &paths)? {
        for (i, line) in file.lines.iter().enumerate() {
            let place = |what: &dyn fmt::Display| format!("{}:{}: {what}", file.path.display(), i + 1);
            for citation in citations(&line.text) {
                match citation {
                    Ok(clause) if list.contains_key(&clause) => {
                        let cited = all.cited.entry(clause).or_default();
                        cited.code |= !line.test;
                        cited.test |= line.test;
                    }
                    Ok(clause) => drop(all.wrong.insert(place(&clause))),
                    Err(text) => drop(all.wrong.insert(place(&text))),
                }
            }
        }
    }
    Ok(all)
}

/// Checks that the list is valid and contains every cited clause.
pub fn check() -> Result<()> {
    let wrong = collect(&read_list()?)?.wrong;
    for citation in &wrong {
        println!("no such clause: {citation}");
    }
    ensure!(wrong.is_empty(), "clauses: {} citations of clauses that do not exist", wrong.len());
    println!("clauses: every citation exists");
    Ok(())
}

fn read_list() -> Result<BTreeMap<Clause, Entry>> {
    let path = root().join(Path::new("docs/clauses.toml"));
    parse_list(&std::fs::read_to_string(&path).with_context(|| path.display().to_string())?)
}

pub fn run(args: &Args) -> Result<()> {
    let list = read_list()?;
    let all = collect(&list)?;
    let mut missing = 0;
    for version in Version::BOTH {
        let ours = list.iter().filter(|(c, e)| c.version == version && e.server);
        let (mut count, mut code, mut test) = (0, 0, 0);
        let mut neither = vec![];
        for (clause, entry) in ours {
            let cited = all.cited.get(clause).copied().unwrap_or_default();
            count += 1;
            code += cited.code as u32;
            test += cited.test as u32;
            match (cited.code, cited.test, &entry.later) {
                (true, true, _) => {}
                (false, false, Some(why)) => println!("later         {clause} {} ({why})", entry.text),
                (false, false, None) => neither.push(format!("neither       {clause} {}", entry.text)),
                (true, false, _) if args.half => println!("code, no test {clause} {}", entry.text),
                (false, true, _) if args.half => println!("test, no code {clause} {}", entry.text),
                _ => {}
            }
        }
        neither.iter().for_each(|line| println!("{line}"));
        missing += neither.len();
        let name = version.table();
        println!(
            "{name}: {count} clauses for a server, {code} cited in code, {test} in tests, {} in neither",
            neither.len()
        );
    }
    for wrong in &all.wrong {
        println!("no such clause: {wrong}");
    }
    if args.deny && missing + all.wrong.len() > 0 {
        bail!(
            "{missing} clauses without code and test, {} citations of clauses that do not exist",
            all.wrong.len()
        );
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cited(line: &str) -> Vec<String> {
        citations(line)
            .into_iter()
            .map(|c| c.map_or_else(|e| format!("wrong {e}"), |c| c.to_string()))
            .collect()
    }

    #[test]
    fn citations_are_read_in_all_their_forms() {
        assert_eq!(
            cited("// so it is [MQTT-3.1.4-3] and not [MQTT3-3.1.4-2]."),
            ["[MQTT-3.1.4-3]", "[MQTT3-3.1.4-2]"]
        );
        assert_eq!(cited("[MQTT-4.8.2-4..6]"), ["[MQTT-4.8.2-4]", "[MQTT-4.8.2-5]", "[MQTT-4.8.2-6]"]);
        assert_eq!(cited("[MQTT-3.1.2-1, 3.1.2-2]"), ["[MQTT-3.1.2-1]", "[MQTT-3.1.2-2]"]);
        assert_eq!(cited("[MQTT-3.1.2.1]"), ["wrong [MQTT-3.1.2.1]"]);
        assert!(cited("bytes[0], [link], [MQTT 5.0]").is_empty());
    }

    /// The specification numbers 251 statements for 5.0 (247 in its chapters 1 to 4), and 141 for 3.1.1.
    #[test]
    fn the_list_is_complete() {
        let list = read_list().unwrap();
        let count = |version| list.keys().filter(|c| c.version == version).count();
        assert_eq!((count(Version::Mqtt5), count(Version::Mqtt311)), (251, 141));
    }

    /// A gap between two numbers is a forgotten statement; 2.2.1 of 5.0 has no first statement.
    #[test]
    fn numbers_have_no_gaps() {
        let list = read_list().unwrap();
        for clause in list.keys() {
            let mut before = clause.clone();
            before.numbers[3] -= 1;
            let first = before.numbers[3] == 0 || clause.to_string() == "[MQTT-2.2.1-2]";
            assert!(first || list.contains_key(&before), "{before} is missing");
        }
    }

    #[test]
    fn every_citation_in_this_repository_exists() {
        let wrong = collect(&read_list().unwrap()).unwrap().wrong;
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
