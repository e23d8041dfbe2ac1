//! `meridian ctl rules`: the built-in database of access rules.

use clap::{Args, Subcommand};
use serde_json::{Value, json};
use ureq::http::Method;

use super::{Command, without_list_flags};
use crate::confirm::confirm;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::pages::{List, PageArgs};
use crate::query::{Query, encode};
use crate::table::{left, right};

/// List, add, change, move and remove access rules
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl rules
  meridian ctl rules add 'allow user meter publish meters/#'
  meridian ctl rules add 'deny everyone publish meters/secret/#' --position 1
  meridian ctl rules set 3 --disabled
  meridian ctl rules set 3 --rule 'allow user meter subscribe meters/#'
  meridian ctl rules move 3 1
  meridian ctl rules remove 3

The first rule that matches an action decides it. Subscriptions that are no longer allowed end.
Without rules everything is allowed. The first rule ends that; `add` warns before.")]
pub struct RulesArgs {
    #[command(flatten)]
    page: PageArgs,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List rules in their order (the default)
    List {
        #[command(flatten)]
        page: PageArgs,
    },
    /// Add a rule
    Add {
        /// Rule, as a line of a rules file
        rule: String,
        /// Position, from 1; default: last
        #[arg(long, value_name = "N")]
        position: Option<u32>,
        /// Description, for people
        #[arg(long, default_value = "")]
        description: String,
        /// Add the rule disabled
        #[arg(long)]
        disabled: bool,
    },
    /// Change a rule; fields without an option stay
    Set {
        /// ID of the rule, as the list shows it
        id: String,
        /// Rule, as a line of a rules file
        #[arg(long, value_name = "RULE")]
        rule: Option<String>,
        /// Description, for people
        #[arg(long, value_name = "TEXT")]
        description: Option<String>,
        /// Enable the rule
        #[arg(long, conflicts_with = "disabled")]
        enabled: bool,
        /// Disable the rule
        #[arg(long)]
        disabled: bool,
    },
    /// Move a rule to another position
    Move {
        /// ID of the rule, as the list shows it
        id: String,
        /// Position, from 1
        position: u32,
    },
    /// Remove a rule
    Remove {
        /// ID of the rule, as the list shows it
        id: String,
    },
}

const PATH: &str = "/api/v1/rules";

impl Command for RulesArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        without_list_flags(self.verb.is_none() || self.page.plain())?;
        match self.verb {
            None => list(console, &self.page),
            Some(Verb::List { page }) => list(console, &page),
            Some(Verb::Add { rule, position, description, disabled }) => {
                if !disabled {
                    say_what_the_first_rule_ends(console)?;
                }
                let body = json!({
                    "rule": rule, "enabled": !disabled, "description": description, "position": position
                });
                let added = console.client.send(Method::POST, PATH, &Query::new(), Some(&body))?;
                done(console, &added)
            }
            Some(Verb::Set { id, rule, description, enabled, disabled }) => {
                let old = console.client.get(&path(&id), &Query::new())?;
                if enabled && !old.truth("enabled") {
                    say_what_the_first_rule_ends(console)?;
                }
                let body = json!({
                    "rule": rule.unwrap_or_else(|| old.text("rule")),
                    "description": description.unwrap_or_else(|| old.text("description")),
                    "enabled": enabled || !disabled && old.truth("enabled"),
                });
                let changed = console.client.send(Method::PUT, &path(&id), &Query::new(), Some(&body))?;
                done(console, &changed)
            }
            Some(Verb::Move { id, position }) => {
                let path = format!("{}/position", path(&id));
                let body = json!({"position": position});
                let moved = console.client.send(Method::PUT, &path, &Query::new(), Some(&body))?;
                done(console, &moved)
            }
            Some(Verb::Remove { id }) => {
                confirm(console, &format!("Remove the rule {id}?"))?;
                let answer = console.client.send(Method::DELETE, &path(&id), &Query::new(), None)?;
                console.done(&answer, &format!("rule {id} is removed"))
            }
        }
    }
}

/// Describes the effect of the first enabled rule before it is added, and asks a person.
fn say_what_the_first_rule_ends(console: &mut Console) -> Result<(), Failure> {
    let node = console.client.get("/api/v1/node", &Query::new())?;
    if !node.truth("open_until_first_rule") {
        return Ok(());
    }
    console.flush()?;
    console.note(&format!(
        "! This is the first rule. Until now every client may publish and subscribe to everything. From now on everything that no rule allows \
         is refused (0x87), and subscriptions to it end. Clients connected now: {}. auth.no_match=allow keeps the rest allowed",
        node.count_cell("connections")
    ));
    // Scripts add rules too, and have the line above in their logs.
    if console.person { confirm(console, "Make the first rule?") } else { Ok(()) }
}

fn path(id: &str) -> String {
    format!("{PATH}/{}", encode(id))
}

fn done(console: &mut Console, rule: &Value) -> Result<(), Failure> {
    let sentence =
        format!("rule {}, position {}: {}", rule.cell("id"), rule.count_cell("position"), rule.cell("rule"));
    console.done(rule, &sentence)
}

fn list(console: &mut Console, page: &PageArgs) -> Result<(), Failure> {
    let columns = [right("PLACE"), left("ID"), left("STATE"), left("RULE"), left("BY"), left("DESCRIPTION")];
    let row = |rule: &Value| {
        vec![
            rule.count_cell("position"),
            rule.cell("id"),
            if rule.truth("enabled") { "on" } else { "off" }.to_owned(),
            rule.cell("rule"),
            rule.text("author"),
            rule.text("description"),
        ]
    };
    List { path: PATH, query: Query::new(), noun: "rules", columns: &columns, row: &row, keep: None }
        .show(console, page)
}
