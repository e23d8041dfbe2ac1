//! `meridian ctl config`: the configuration of a running node.

use clap::{Args, Subcommand};
use serde_json::{Map, Value, json};
use ureq::http::Method;

use super::Command;
use crate::confirm::confirm;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::{Fields as _, take};
use crate::pages::show_whole;
use crate::query::Query;
use crate::table::{Table, left, right};

/// Read and change the configuration of the running node
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl config                                  settings that differ from their default
  meridian ctl config show queue                       a section
  meridian ctl config show queue.messages_max          one setting, explained
  meridian ctl config validate queue.messages_max=500
  meridian ctl config set log.level=debug --comment 'ticket 4711'
  meridian ctl config set --cluster queue.messages_max=500   on all nodes
  meridian ctl config get --cluster                    settings of the cluster
  meridian ctl config unset log.level                  reverts a change at run time
  meridian ctl config history
  meridian ctl config rollback 2
  meridian ctl config reload                           reads the files again, as SIGHUP does

`meridian config` (without ctl) checks files, not a running node.")]
pub struct ConfigArgs {
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show settings
    #[command(visible_alias = "get")]
    Show {
        /// A setting or a section; without it, all
        name: Option<String>,
        /// Show only settings that differ from their default
        #[arg(long)]
        changed: bool,
        /// Show only settings that the cluster agrees on, and whether this node uses them
        #[arg(long, conflicts_with = "changed")]
        cluster: bool,
    },
    /// Change settings that can be changed while the node runs; all of them or none
    Set {
        /// Changes to make
        #[arg(value_name = "NAME=VALUE", required = true, value_parser = assignment)]
        changes: Vec<(String, String)>,
        #[command(flatten)]
        scope: Scope,
        /// Reason, for the history
        #[arg(long, default_value = "")]
        comment: String,
    },
    /// Revert changes that were made at run time
    Unset {
        /// Settings to revert
        #[arg(value_name = "NAME", required = true)]
        names: Vec<String>,
        #[command(flatten)]
        scope: Scope,
        /// Reason, for the history
        #[arg(long, default_value = "")]
        comment: String,
    },
    /// Check changes without making them
    Validate {
        /// Changes to check
        #[arg(value_name = "NAME=VALUE", required = true, value_parser = assignment)]
        changes: Vec<(String, String)>,
        #[command(flatten)]
        scope: Scope,
    },
    /// List the last versions, newest first
    History,
    /// Restore the settings of an earlier version
    Rollback {
        /// Version, as the history shows it
        version: u64,
    },
    /// Read the configuration file again, and the files that it names: users, rules, certificates
    Reload,
}

/// Nodes that a change is meant for.
#[derive(Args, Clone, Copy, Debug)]
struct Scope {
    /// Change all nodes of the cluster, including those that join later; a value that one node has for itself takes
    /// precedence there
    #[arg(long)]
    cluster: bool,
}

impl Scope {
    fn name(self) -> &'static str {
        if self.cluster { "cluster" } else { "node" }
    }
}

fn assignment(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.trim().to_owned(), value.to_owned())),
        _ => Err("write NAME=VALUE, such as log.level=debug".to_owned()),
    }
}

const CONFIG: &str = "/api/v1/config";

impl Command for ConfigArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        match self.verb {
            None => show(console, None, Only::Changed),
            Some(Verb::Show { name, changed, cluster }) => {
                let only = match (changed, cluster) {
                    (_, true) => Only::Replicated,
                    (true, false) => Only::Changed,
                    (false, false) => Only::Named,
                };
                show(console, name.as_deref(), only)
            }
            Some(Verb::Set { changes, scope, comment }) => {
                let changes = changes.into_iter().map(|(name, value)| (name, value.into())).collect();
                change(console, scope, changes, &comment)
            }
            Some(Verb::Unset { names, scope, comment }) => {
                change(console, scope, names.into_iter().map(|name| (name, Value::Null)).collect(), &comment)
            }
            Some(Verb::Validate { changes, scope }) => {
                let changes: Map<_, _> =
                    changes.into_iter().map(|(name, value)| (name, value.into())).collect();
                validate(console, scope, &changes)
            }
            Some(Verb::History) => history(console),
            Some(Verb::Rollback { version }) => {
                confirm(console, &format!("Restore the settings of version {version}?"))?;
                let path = format!("{CONFIG}/rollback");
                let body = json!({"version": version});
                let answer = console.client.send(Method::POST, &path, &Query::new(), Some(&body))?;
                changed(console, &answer)
            }
            Some(Verb::Reload) => {
                let path = format!("{CONFIG}/reload");
                let answer = console.client.send(Method::POST, &path, &Query::new(), None)?;
                changed(console, &answer)
            }
        }
    }
}

/// Settings to show.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Only {
    /// All settings that match the name.
    Named,
    /// Settings that differ from their default.
    Changed,
    /// Settings that the cluster agrees on.
    Replicated,
}

fn show(console: &mut Console, name: Option<&str>, only: Only) -> Result<(), Failure> {
    let mut config = console.client.get(CONFIG, &Query::new())?;
    let Value::Array(mut settings) = take(&mut config, "settings") else {
        return Err(console.client.not_meridian("the configuration has no settings".to_owned()));
    };
    if let Some(name) = name {
        let known: Vec<String> = settings.iter().map(|setting| setting.text("name")).collect();
        settings.retain(|setting| {
            let setting = setting.text("name");
            setting == name || setting.strip_prefix(name).is_some_and(|rest| rest.starts_with('.'))
        });
        if settings.is_empty() {
            let nearest = settings::nearest(name, known.iter().map(String::as_str));
            let nearest = nearest.map(|nearest| format!("; is {nearest} meant?")).unwrap_or_default();
            return Err(Failure::Usage(format!("there is no setting {name}{nearest}")));
        }
    }
    settings.retain(|setting| match only {
        Only::Named => true,
        Only::Changed => {
            setting.field("value") != setting.field("default")
                || matches!(setting.text("source").as_str(), "runtime" | "cluster")
                || !setting.field("pending").is_null()
        }
        Only::Replicated => !setting.field("cluster").is_null(),
    });
    if console.json {
        config["settings"] = settings.into();
        return console.document(&config);
    }
    if let ([setting], Some(_)) = (&settings[..], name) {
        explain(console, setting)?;
        return warn(console, &config);
    }
    if only == Only::Replicated {
        replicated(console, &settings)?;
        return warn(console, &config);
    }
    let mut table = Table::new(&[left("SETTING"), left("VALUE"), left("FROM"), left("")]);
    for setting in &settings {
        let pending = match setting.field("pending") {
            Value::Null => String::new(),
            _ => format!("{} after the next start", setting.cell("pending")),
        };
        table.row(vec![setting.cell("name"), value(setting, "value"), setting.cell("source"), pending]);
    }
    console.table(&mut table)?;
    console.flush()?;
    let file = config.text("file");
    let file = if file.is_empty() { "no file".to_owned() } else { file };
    let more = if only == Only::Changed { "; `config show` shows all" } else { "" };
    console.note(&format!("version {}, {file}; {} settings{more}", config.cell("version"), settings.len()));
    warn(console, &config)
}

/// Shows the values that the cluster agrees on, next to those of this node.
fn replicated(console: &mut Console, settings: &[Value]) -> Result<(), Failure> {
    let columns = [left("SETTING"), left("CLUSTER"), left("HERE"), left("FROM"), left("BY"), left("AT")];
    let mut table = Table::new(&columns);
    for setting in settings {
        table.row(vec![
            setting.cell("name"),
            value(setting, "cluster.value"),
            value(setting, "value"),
            setting.cell("source"),
            setting.cell("cluster.by"),
            setting.time_cell("cluster.at"),
        ]);
    }
    console.table(&mut table)?;
    console.flush()
}

/// Warns of settings of the cluster that this node cannot apply.
fn warn(console: &mut Console, config: &Value) -> Result<(), Failure> {
    for problem in config.list("refused") {
        console.note(&format!(
            "the cluster agrees on {}, and this node cannot apply it: {}",
            problem.cell("name"),
            problem.cell("detail")
        ));
    }
    Ok(())
}

fn explain(console: &mut Console, setting: &Value) -> Result<(), Failure> {
    let choices: Vec<String> = setting
        .list("choices")
        .iter()
        .map(|choice| choice.as_str().map_or_else(|| choice.cell("name"), str::to_owned))
        .collect();
    console.pairs(&[
        ("setting", setting.cell("name")),
        ("value", value(setting, "value")),
        ("from", setting.cell("source")),
        ("cluster", setting.text("cluster.value")),
        ("pending", setting.text("pending")),
        ("default", value(setting, "default")),
        ("type", setting.text("type")),
        ("range", setting.text("range")),
        ("choices", choices.join(", ")),
        (
            "changes",
            if setting.truth("reloadable") { "while the node runs" } else { "at the start only" }.to_owned(),
        ),
    ])?;
    console.line("")?;
    setting.text("doc").lines().try_for_each(|line| console.line(line.trim()))
}

fn change(
    console: &mut Console,
    scope: Scope,
    changes: Map<String, Value>,
    comment: &str,
) -> Result<(), Failure> {
    let body = json!({"changes": changes, "scope": scope.name(), "comment": comment});
    let answer = console.client.send(Method::PATCH, CONFIG, &Query::new(), Some(&body))?;
    changed(console, &answer)
}

/// Prints the result of a change, a rollback, or a reload.
fn changed(console: &mut Console, answer: &Value) -> Result<(), Failure> {
    if console.json {
        return console.document(answer);
    }
    for change in answer.list("changed") {
        console.line(&difference(change))?;
    }
    let is_same = answer.list("changed").is_empty();
    let files: Vec<&str> = answer.list("files").iter().filter_map(Value::as_str).collect();
    match (files.is_empty(), answer.list("overridden").is_empty()) {
        (false, _) if is_same => console.line("no setting changed")?,
        (true, false) if is_same => console.line("nothing changes on this node")?,
        (true, true) if is_same => console.line("nothing changed")?,
        _ => {}
    }
    if !files.is_empty() {
        console.line(&format!("read again: {}", files.join(", ")))?;
    }
    for held in answer.list("overridden") {
        console.line(&format!("{}: {}", held.cell("name"), held.cell("detail")))?;
    }
    let pending: Vec<&str> = answer.list("pending").iter().filter_map(Value::as_str).collect();
    if !pending.is_empty() {
        console.line(&format!("after the next start: {}", pending.join(", ")))?;
    }
    match answer.whole("version") {
        Some(version) => console.line(&format!("this is version {version}")),
        None => Ok(()),
    }
}

fn difference(change: &Value) -> String {
    // A reload returns the names only.
    match change.as_str() {
        Some(name) => name.to_owned(),
        None => format!("{}: {} -> {}", change.cell("name"), value(change, "before"), value(change, "after")),
    }
}

/// Formats a value. An unset value differs from an empty one.
fn value(of: &Value, path: &str) -> String {
    if of.field(path).is_null() { "unset".to_owned() } else { of.cell(path) }
}

fn validate(console: &mut Console, scope: Scope, changes: &Map<String, Value>) -> Result<(), Failure> {
    let path = format!("{CONFIG}/validate");
    let body = json!({"changes": changes, "scope": scope.name()});
    let answer = console.client.send(Method::POST, &path, &Query::new(), Some(&body))?;
    if console.json {
        console.document(&answer)?;
    }
    if answer.truth("valid") {
        return if console.json { Ok(()) } else { console.line("this can be set") };
    }
    let problems: Vec<String> = answer
        .list("problems")
        .iter()
        .map(|problem| format!("{}: {}", problem.cell("name"), problem.cell("detail")))
        .collect();
    Err(Failure::Failed(format!("this cannot be set\n  {}", problems.join("\n  "))))
}

fn history(console: &mut Console) -> Result<(), Failure> {
    let answer = console.client.get(&format!("{CONFIG}/history"), &Query::new())?;
    let columns = [right("VERSION"), left("AT"), left("BY"), left("CHANGES"), left("COMMENT")];
    show_whole(console, &answer, "versions", &columns, |version| {
        let changes: Vec<String> = version.list("changes").iter().map(difference).collect();
        vec![
            version.cell("version"),
            version.time_cell("at"),
            version.cell("by"),
            changes.join(", "),
            version.text("comment"),
        ]
    })
}
