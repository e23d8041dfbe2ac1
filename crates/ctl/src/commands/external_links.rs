//! `meridian ctl links external`: links to other clusters.

use clap::{Args, Subcommand};
use serde_json::Value;

use super::entries::{Entries, SettingsArgs, messages, origin, settings};
use super::{Command, without_list_flags};
use crate::confirm::confirm;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::{Fields as _, NOTHING};
use crate::human;
use crate::pages::{List, PageArgs};
use crate::query::Query;
use crate::table::{left, right};

/// List, set and remove links to other clusters
#[derive(Args, Debug)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  meridian ctl links external
  meridian ctl links external munich                         the same as `links external show munich`
  meridian ctl links external set munich address=mqtt.munich.example.com:8883 own_name=berlin \\
      topics='plant/#' topics='alarms/#' secret_file=/etc/meridian/munich.secret tls=true
  meridian ctl links external set munich enabled=false       the other settings stay
  meridian ctl links external set munich --file munich.toml  replaces all settings
  meridian ctl links external remove munich                  messages that wait stay, for a link of this name
  meridian ctl links external remove munich --delete-messages
  meridian ctl client '$link/munich'                         the session in which messages wait for the other cluster

Both clusters need an entry for each other, with the same secret: `head -c 32 /dev/urandom | base64` makes one. Each cluster
takes what it wants: `topics` are the Topic Filters that this cluster takes, `export` those that the other one may take. Of
these, only messages that clients have subscribed to are transferred. docs/linking.md has more.

TAKES has the Topic Filters that are subscribed to at the other cluster, and IN the messages that came. GIVES has the filters
that the other cluster has subscribed to here, and QUEUED the messages that wait for it. DROPPED counts both directions.
A link of the configuration file is changed there."
)]
pub struct ExternalArgs {
    /// Name of a link to show
    name: Option<String>,
    #[command(flatten)]
    page: PageArgs,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List links to other clusters (the default)
    List {
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show one link
    Show {
        /// Name of the other cluster
        name: String,
    },
    /// Add a link, or change settings of it, with the keys of [[cluster_link]]
    #[command(visible_alias = "put")]
    Set {
        /// Name of the other cluster
        name: String,
        #[command(flatten)]
        settings: SettingsArgs,
    },
    /// Remove a link, and disconnect the other cluster
    Remove {
        /// Name of the other cluster
        name: String,
        /// End its sessions, with the messages that wait for the other cluster
        #[arg(long)]
        delete_messages: bool,
    },
}

const LINKS: Entries = Entries {
    path: "/api/v1/links/external",
    list: "cluster_link",
    texts: &["own_name", "origins", "prefix", "topics", "export"],
};

impl Command for ExternalArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        without_list_flags(self.verb.is_none() && self.name.is_none() || self.page.plain())?;
        match (self.verb, self.name) {
            (None, None) => list(console, &self.page),
            (None, Some(name)) | (Some(Verb::Show { name }), _) => show(console, &name),
            (Some(Verb::List { page }), _) => list(console, &page),
            (Some(Verb::Set { name, settings }), _) => {
                let link = LINKS.set(console, &name, &settings)?;
                console.done(&link, &summary(&link))
            }
            (Some(Verb::Remove { name, delete_messages }), _) => {
                let with = match delete_messages {
                    true => " with its sessions and the messages that wait in them",
                    false => "",
                };
                confirm(console, &format!("Remove the link to the cluster {name}{with}?"))?;
                let answer = LINKS.remove(console, &name, &messages(delete_messages))?;
                console.done(&answer, &format!("the link to {name} is removed"))
            }
        }
    }
}

/// Sentence about a link that was changed.
fn summary(link: &Value) -> String {
    let directions = [("takes", "topics"), ("gives", "export")];
    let mut parts = directions.into_iter().filter_map(|(verb, key)| {
        let filters = link.list(key).iter().filter_map(Value::as_str).collect::<Vec<_>>();
        (!filters.is_empty()).then(|| format!("{verb} {}", filters.join(", ")))
    });
    let all = [parts.next(), parts.next()].into_iter().flatten().collect::<Vec<_>>().join("; ");
    let state = if link.truth("enabled") { "" } else { " (disabled)" };
    format!("link to {}{state}: {}", link.cell("name"), if all.is_empty() { "carries nothing" } else { &all })
}

fn list(console: &mut Console, page: &PageArgs) -> Result<(), Failure> {
    let columns = [
        left("LINK"),
        left("STATE"),
        right("TAKES"),
        right("IN"),
        right("GIVES"),
        right("QUEUED"),
        right("DROPPED"),
        left("SOURCE"),
        left("LAST ERROR"),
    ];
    let row = |link: &Value| {
        vec![
            link.cell("name"),
            state(link),
            filters(link),
            sum(link, "taking", "messages"),
            sum(link, "giving", "filters"),
            sum(link, "giving", "queued_messages"),
            dropped(link),
            link.cell("source"),
            error(link),
        ]
    };
    List {
        path: LINKS.path,
        query: Query::new(),
        noun: "links to other clusters",
        columns: &columns,
        row: &row,
        keep: None,
    }
    .show(console, page)
}

/// State of both directions in a few words.
fn state(link: &Value) -> String {
    let (taking, giving) = (link.list("taking"), link.list("giving"));
    if !link.truth("enabled") {
        return "disabled".to_owned();
    }
    if !link.text("fault").is_empty() {
        return "fault".to_owned();
    }
    let is_away = giving.iter().any(|it| !it.truth("connected"));
    let takes = !link.list("topics").is_empty() && !link.text("address").is_empty();
    match (takes, taking.is_empty()) {
        (true, true) => "unknown".to_owned(),
        (true, false) if taking.iter().any(|it| it.truth("failing")) => "failing".to_owned(),
        (true, false) if taking.iter().any(|it| !it.truth("connected")) => "connecting".to_owned(),
        (true, false) if is_away => "connected, other side away".to_owned(),
        (true, false) => "connected".to_owned(),
        (false, _) if giving.is_empty() => "other side not seen".to_owned(),
        (false, _) if is_away => "other side away".to_owned(),
        (false, _) => "other side connected".to_owned(),
    }
}

/// Filters that are subscribed to at the other cluster, and those that are wanted, when these differ.
fn filters(link: &Value) -> String {
    let taking = link.list("taking");
    if taking.is_empty() {
        return NOTHING.to_owned();
    }
    let total = |key: &str| taking.iter().filter_map(|it| it.whole(key)).fold(0, u64::saturating_add);
    let (subscribed, wanted) = (total("filters_subscribed"), total("filters_wanted"));
    let broader = if total("filters_broader") > 0 { " (broader)" } else { "" };
    match subscribed == wanted {
        true => format!("{}{broader}", human::count(wanted)),
        false => format!("{}/{}{broader}", human::count(subscribed), human::count(wanted)),
    }
}

fn sum(link: &Value, direction: &str, key: &str) -> String {
    let all = link.list(direction);
    let total = all.iter().filter_map(|it| it.whole(key)).fold(0, u64::saturating_add);
    if all.is_empty() { NOTHING.to_owned() } else { human::count(total) }
}

fn dropped(link: &Value) -> String {
    let causes = link.list("taking").iter().filter_map(|it| it.field("dropped").as_object());
    let taking = causes.flat_map(|causes| causes.values().filter_map(Value::as_u64));
    let giving = link.list("giving").iter().filter_map(|it| it.whole("dropped"));
    human::count(taking.chain(giving).fold(0, u64::saturating_add))
}

/// The fault, else the error of a direction that does not work, else the last connection that was refused while the
/// other side is not connected.
fn error(link: &Value) -> String {
    let fault = link.text("fault");
    let failing = || link.list("taking").iter().filter(|it| !it.truth("connected"));
    let errors = failing().map(|it| it.text("last_error")).find(|error| !error.is_empty());
    let is_refused = link.list("giving").iter().all(|it| !it.truth("connected"));
    let refused = link.text("refusal.why");
    match errors {
        _ if !fault.is_empty() => fault,
        Some(error) => error,
        None if is_refused && !refused.is_empty() => format!("refused the other side: {refused}"),
        None => String::new(),
    }
}

fn show(console: &mut Console, name: &str) -> Result<(), Failure> {
    let link = LINKS.get(console, name)?;
    if console.json {
        return console.document(&link);
    }
    let mut pairs = vec![("link", link.cell("name")), ("state", state(&link))];
    pairs.extend(origin(&link));
    console.pairs(&pairs)?;
    settings(console, &link)?;
    for taking in link.list("taking") {
        show_taking(console, taking)?;
    }
    for giving in link.list("giving") {
        show_giving(console, giving)?;
    }
    let refusal = link.field("refusal");
    if refusal.is_null() {
        return Ok(());
    }
    let address = refusal.text("address");
    let from = if address.is_empty() { String::new() } else { format!(" from {address}") };
    let at = format!("{}{from} at {}", refusal.time_cell("at"), refusal.cell("node"));
    console.pairs(&[
        ("refused", refusal.count_cell("count")),
        ("last refused", at),
        ("because", refusal.text("why")),
    ])
}

fn show_taking(console: &mut Console, taking: &Value) -> Result<(), Failure> {
    let since = match taking.field("connected_s").is_null() {
        true => String::new(),
        false => format!(" for {}", taking.seconds_cell("connected_s")),
    };
    let filters = format!(
        "{} of {} wanted",
        taking.count_cell("filters_subscribed"),
        taking.count_cell("filters_wanted")
    );
    console.line(&format!("taking messages of {}", taking.cell("origin")))?;
    console.pairs(&[
        ("  node", taking.cell("node")),
        ("  state", format!("{}{since}", taking.cell("state"))),
        ("  address", taking.text("address")),
        ("  last error", taking.text("last_error")),
        ("  session", taking.cell("session")),
        ("  filters", filters),
        ("  broader filters", broader(taking)),
        ("  refused subscriptions", nonzero(taking, "filters_refused")),
        ("  lists not received", nonzero(taking, "stale_filters")),
        ("  messages", taking.count_cell("messages")),
        ("  bytes", taking.bytes_cell("bytes")),
        ("  in flight", taking.count_cell("in_flight")),
        ("  refused", taking.count_cell("refused")),
        ("  refused for now", nonzero(taking, "postponed")),
        ("  dropped", causes(taking.field("dropped"))),
        ("  reconnects", taking.count_cell("reconnects")),
        ("  failed attempts", taking.count_cell("failed_attempts")),
        ("  sessions lost", taking.count_cell("remote_sessions_lost")),
        ("  restored from a backup", nonzero(taking, "restores")),
    ])
}

/// Filters that stand for several ones of clients; empty without any.
fn broader(taking: &Value) -> String {
    let names: Vec<&str> =
        taking.list("broader").iter().filter_map(Value::as_str).take(BROADER_SHOWN).collect();
    match taking.whole("filters_broader").unwrap_or_default() {
        0 => String::new(),
        count => {
            let more = if count > names.len() as u64 { ", ..." } else { "" };
            format!("{}, for more than filters_max: {}{more}", human::count(count), names.join(", "))
        }
    }
}

/// Number of broader filters that are shown.
const BROADER_SHOWN: usize = 5;

fn show_giving(console: &mut Console, giving: &Value) -> Result<(), Failure> {
    let place = |key: &str| {
        let text = giving.text(key);
        if text.is_empty() { String::new() } else { format!(" at {text}") }
    };
    let connected = match giving.truth("connected") {
        true => format!("connected{}", place("connection_node")),
        false => "not connected".to_owned(),
    };
    console.line(&format!("giving messages of {}", giving.cell("origin")))?;
    console.pairs(&[
        ("  other cluster", connected),
        ("  address", giving.text("address")),
        ("  session", format!("{} on {}", giving.cell("session"), giving.cell("node"))),
        ("  filters", giving.count_cell("filters")),
        (
            "  queued",
            format!("{} ({})", giving.count_cell("queued_messages"), giving.bytes_cell("queued_bytes")),
        ),
        ("  oldest", giving.seconds_cell("oldest_s")),
        ("  in flight", giving.count_cell("in_flight")),
        ("  dropped", giving.count_cell("dropped")),
    ])
}

/// A count; empty, and not shown, when it is 0.
fn nonzero(value: &Value, key: &str) -> String {
    match value.whole(key) {
        None | Some(0) => String::new(),
        Some(count) => human::count(count),
    }
}

/// Causes with their counts: `3 too_large, 1 looped`.
fn causes(dropped: &Value) -> String {
    let each = dropped.as_object().into_iter().flatten().filter_map(|(cause, count)| {
        let count = count.as_u64().filter(|count| *count > 0)?;
        Some(format!("{} {cause}", human::count(count)))
    });
    let all = each.collect::<Vec<_>>().join(", ");
    if all.is_empty() { "0".to_owned() } else { all }
}
