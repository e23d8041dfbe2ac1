//! `meridian ctl users`: the built-in user database.

use std::path::PathBuf;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Map, Value, json};
use ureq::http::Method;

use super::{Command, without_list_flags};
use crate::confirm::confirm;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::pages::{List, PageArgs};
use crate::password::PasswordArgs;
use crate::query::{Query, encode};
use crate::table::left;

/// List, make, change and remove users who log in by password
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl users --search sensor
  meridian ctl users add alice                          asks for the password
  meridian ctl users add alice < password               or reads it from standard input
  meridian ctl users add alice --allow-anonymous        clients without a login may still connect
  meridian ctl users add meter-7 --password-file pw --tenant acme --attribute class=gold
  meridian ctl users set alice --disabled
  meridian ctl users set alice --rule 'allow everyone publish alice/#' --messages-per-second 10
  meridian ctl users passwd alice
  meridian ctl users import users.csv --existing keep
  meridian ctl users remove alice

Without users, and without another way to log in, every client may connect. The first user ends that; `add` and `import` warn before.

A user whose password or rights change is disconnected within seconds, in a cluster from every node, unless --keep-connected is given.
The first line of a CSV file names its columns: name, password, password_hash, superuser, enabled, tenant, description.")]
pub struct UsersArgs {
    #[command(flatten)]
    list: ListArgs,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Args, Clone, Debug)]
struct ListArgs {
    #[command(flatten)]
    page: PageArgs,
    /// Show users with this text in the name, the tenant or the description
    #[arg(long, value_name = "TEXT")]
    search: Option<String>,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List users (the default)
    List(ListArgs),
    /// Show one user
    Show {
        /// Name of the user
        name: String,
    },
    /// Make a user
    Add {
        /// Name of the user
        name: String,
        #[command(flatten)]
        password: PasswordArgs,
        /// Make a user who cannot log in by password
        #[arg(long, conflicts_with = "password_file")]
        no_password: bool,
        #[command(flatten)]
        scram: ScramArgs,
        #[command(flatten)]
        fields: FieldArgs,
        #[command(flatten)]
        first: FirstArgs,
    },
    /// Change a user; fields without an option stay
    Set {
        /// Name of the user
        name: String,
        #[command(flatten)]
        fields: FieldArgs,
        #[command(flatten)]
        keep: KeepArgs,
    },
    /// Change the password of a user
    Passwd {
        /// Name of the user
        name: String,
        #[command(flatten)]
        password: PasswordArgs,
        #[command(flatten)]
        scram: ScramArgs,
        #[command(flatten)]
        keep: KeepArgs,
    },
    /// Remove a user
    Remove {
        /// Name of the user
        name: String,
        #[command(flatten)]
        keep: KeepArgs,
    },
    /// Import users from a file: CSV, or JSON as the API takes it
    Import {
        /// File to import; a name that ends in .json is JSON
        file: PathBuf,
        /// Treatment of users that exist already
        #[arg(long, value_enum, default_value = "refuse")]
        existing: Existing,
        #[command(flatten)]
        keep: KeepArgs,
        #[command(flatten)]
        first: FirstArgs,
    },
}

/// Access of clients without a login once the first user exists.
#[derive(Args, Clone, Copy, Debug)]
struct FirstArgs {
    /// Set auth.allow_anonymous=true first, for all nodes of a cluster: clients without user name and password may
    /// still connect
    #[arg(long)]
    allow_anonymous: bool,
}

impl FirstArgs {
    /// Describes the effect of the first user before it is made, and asks a person.
    fn prepare(self, console: &mut Console) -> Result<(), Failure> {
        let node = console.client.get("/api/v1/node", &Query::new())?;
        if self.allow_anonymous {
            let scope = if node.field("cluster").is_null() { "node" } else { "cluster" };
            let change = json!({
                "changes": {"auth.allow_anonymous": "true"},
                "scope": scope,
                "comment": "users add --allow-anonymous",
            });
            console.client.send(Method::PATCH, CONFIG, &Query::new(), Some(&change))?;
            return Ok(());
        }
        if !node.truth("open_until_first_user") {
            return Ok(());
        }
        console.flush()?;
        console.note(&format!(
            "! This is the first user. Until now every client may connect. From now on clients without the name and password of a user are \
             refused (0x87), those that worked so far too; {} are connected. --allow-anonymous lets clients in that show neither: it sets \
             auth.allow_anonymous=true",
            node.count_cell("connections")
        ));
        // Scripts add users too, and have the line above in their logs.
        if console.person { confirm(console, "Make the first user?") } else { Ok(()) }
    }
}

#[derive(Args, Clone, Debug)]
struct ScramArgs {
    /// Also store keys for SCRAM-SHA-256, with this number of iterations
    #[arg(long, value_name = "ITERATIONS", num_args = 0..=1, default_missing_value = "16384")]
    scram: Option<u32>,
}

#[derive(Args, Clone, Debug)]
struct KeepArgs {
    /// Leave the user's connections open, on every node
    #[arg(long)]
    keep_connected: bool,
}

impl KeepArgs {
    fn query(&self) -> Query {
        Query::new().maybe("keep_connected", self.keep_connected.then_some(true))
    }
}

/// Fields of a user; only the given ones change.
#[derive(Args, Clone, Debug)]
struct FieldArgs {
    /// Allow the user to do everything
    #[arg(long, conflicts_with = "no_superuser")]
    superuser: bool,
    /// Allow the user what rules allow
    #[arg(long)]
    no_superuser: bool,
    /// Allow the user to connect
    #[arg(long, conflicts_with = "disabled")]
    enabled: bool,
    /// Do not allow the user to connect
    #[arg(long)]
    disabled: bool,
    /// Prefix of the user's topics; "" for none
    #[arg(long, value_name = "TENANT")]
    tenant: Option<String>,
    /// Attribute for rules, NAME=VALUE; may be repeated. An empty value removes it
    #[arg(long = "attribute", value_name = "NAME=VALUE", value_parser = pair)]
    attributes: Vec<(String, String)>,
    /// Access rule of the user, evaluated before all others; may be repeated, and replaces the present ones. "" for
    /// none
    #[arg(long = "rule", value_name = "RULE")]
    rules: Vec<String>,
    /// Messages that each client of the user may publish per second; 0 is no limit
    #[arg(long, value_name = "N")]
    messages_per_second: Option<u32>,
    /// Burst of messages after a pause
    #[arg(long, value_name = "N")]
    messages_burst: Option<u32>,
    /// Bytes that each client of the user may publish per second; 0 is no limit
    #[arg(long, value_name = "N")]
    bytes_per_second: Option<u64>,
    /// Burst of bytes after a pause
    #[arg(long, value_name = "N")]
    bytes_burst: Option<u64>,
    /// Description, for people
    #[arg(long, value_name = "TEXT")]
    description: Option<String>,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Existing {
    /// Import no user when one of them exists
    Refuse,
    /// Leave existing users unchanged
    Keep,
    /// Replace existing users
    Replace,
}

const PATH: &str = "/api/v1/users";
const CONFIG: &str = "/api/v1/config";
/// Maximum size of a file; the node's limit is `http.body_max`.
const IMPORT_MAX: u64 = 64 << 20;

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("expected NAME=VALUE")?;
    if name.is_empty() {
        Err("the name is empty".to_owned())
    } else {
        Ok((name.to_owned(), value.to_owned()))
    }
}

impl FieldArgs {
    /// Writes the given fields into a user in the form of the API.
    fn put(self, user: &mut Map<String, Value>) {
        let mut set = |name: &str, value: Value| drop(user.insert(name.to_owned(), value));
        if self.superuser || self.no_superuser {
            set("superuser", self.superuser.into());
        }
        if self.enabled || self.disabled {
            set("enabled", self.enabled.into());
        }
        if let Some(tenant) = self.tenant {
            set("tenant", if tenant.is_empty() { Value::Null } else { tenant.into() });
        }
        if let Some(description) = self.description {
            set("description", description.into());
        }
        if !self.rules.is_empty() {
            set("rules", self.rules.into_iter().filter(|rule| !rule.is_empty()).collect());
        }
        if !self.attributes.is_empty() {
            let mut attributes =
                user.get("attributes").and_then(Value::as_object).cloned().unwrap_or_default();
            for (name, value) in self.attributes {
                match value.is_empty() {
                    true => drop(attributes.remove(&name)),
                    false => drop(attributes.insert(name, value.into())),
                }
            }
            user.insert("attributes".to_owned(), Value::Object(attributes));
        }
        let rates = [
            ("messages_per_second", self.messages_per_second.map(u64::from)),
            ("messages_burst", self.messages_burst.map(u64::from)),
            ("bytes_per_second", self.bytes_per_second),
            ("bytes_burst", self.bytes_burst),
        ];
        if rates.iter().any(|(_, rate)| rate.is_some()) {
            let mut all = user.get("rates").and_then(Value::as_object).cloned().unwrap_or_default();
            for (name, rate) in rates {
                if let Some(rate) = rate {
                    all.insert(name.to_owned(), rate.into());
                }
            }
            user.insert("rates".to_owned(), Value::Object(all));
        }
    }
}

impl Command for UsersArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        let plain = self.list.page.plain() && self.list.search.is_none();
        without_list_flags(self.verb.is_none() || plain)?;
        match self.verb {
            None => list(console, self.list),
            Some(Verb::List(args)) => list(console, args),
            Some(Verb::Show { name }) => show(console, &name),
            Some(Verb::Add { name, password, no_password, scram, fields, first }) => {
                first.prepare(console)?;
                let mut user = Map::new();
                user.insert("name".to_owned(), name.clone().into());
                if !no_password {
                    user.insert("password".to_owned(), password.read(console)?.into());
                    user.insert("scram_iterations".to_owned(), json!(scram.scram));
                }
                fields.put(&mut user);
                let added =
                    console.client.send(Method::POST, PATH, &Query::new(), Some(&Value::Object(user)))?;
                console.done(&added, &format!("user {name}"))
            }
            Some(Verb::Set { name, fields, keep }) => set(console, &name, fields, &keep),
            Some(Verb::Passwd { name, password, scram, keep }) => {
                let body = json!({"password": password.read(console)?, "scram_iterations": scram.scram});
                let changed = console.client.send(Method::PATCH, &path(&name), &keep.query(), Some(&body))?;
                console.done(&changed, &format!("the password of user {name} is changed"))
            }
            Some(Verb::Remove { name, keep }) => {
                confirm(console, &format!("Remove the user {name}?"))?;
                let removed = console.client.send(Method::DELETE, &path(&name), &keep.query(), None)?;
                console.done(&removed, &format!("user {name} is removed"))
            }
            Some(Verb::Import { file, existing, keep, first }) => {
                import(console, &file, existing, &keep, first)
            }
        }
    }
}

fn path(name: &str) -> String {
    format!("{PATH}/{}", encode(name))
}

/// Replaces the given fields of the user that the node has.
fn set(console: &mut Console, name: &str, fields: FieldArgs, keep: &KeepArgs) -> Result<(), Failure> {
    let user = console.client.get(&path(name), &Query::new())?;
    let known = ["enabled", "superuser", "tenant", "attributes", "rates", "rules", "description"];
    let mut body: Map<String, Value> =
        known.iter().map(|field| ((*field).to_owned(), user.field(field).clone())).collect();
    fields.put(&mut body);
    let changed = console.client.send(Method::PUT, &path(name), &keep.query(), Some(&Value::Object(body)))?;
    console.done(&changed, &format!("user {name}"))
}

fn import(
    console: &mut Console,
    file: &std::path::Path,
    existing: Existing,
    keep: &KeepArgs,
    first: FirstArgs,
) -> Result<(), Failure> {
    let trouble = |why: String| Failure::Local(format!("{}: {why}", file.display()));
    let metadata = std::fs::metadata(file).map_err(|error| trouble(error.to_string()))?;
    if metadata.len() > IMPORT_MAX {
        return Err(trouble("longer than 64 MiB; import the users in parts".to_owned()));
    }
    let text = std::fs::read_to_string(file).map_err(|error| trouble(error.to_string()))?;
    let existing = match existing {
        Existing::Refuse => "refuse",
        Existing::Keep => "keep",
        Existing::Replace => "replace",
    };
    let body = if file.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("json")) {
        let read: Value = serde_json::from_str(&text).map_err(|error| trouble(error.to_string()))?;
        let users = match read {
            Value::Object(mut object) => object.remove("users").unwrap_or_default(),
            other => other,
        };
        json!({"users": users, "existing": existing})
    } else {
        json!({"csv": text, "existing": existing})
    };
    first.prepare(console)?;
    let done = console.client.send(Method::POST, &format!("{PATH}/import"), &keep.query(), Some(&body))?;
    let cell = |name| done.count_cell(name);
    let (added, replaced, kept) = (cell("added"), cell("replaced"), cell("kept"));
    console.done(&done, &format!("{added} added, {replaced} replaced, {kept} left as they were"))
}

fn show(console: &mut Console, name: &str) -> Result<(), Failure> {
    let user = console.client.get(&path(name), &Query::new())?;
    if console.json {
        return console.document(&user);
    }
    let texts = |field: &str| match user.field(field) {
        Value::Object(pairs) => pairs
            .iter()
            .map(|(name, value)| {
                format!("{name}={}", value.as_str().map_or_else(|| value.to_string(), str::to_owned))
            })
            .collect::<Vec<_>>()
            .join(" "),
        _ => String::new(),
    };
    let mut pairs = vec![
        ("name", user.text("name")),
        ("state", state(&user)),
        ("password", if user.truth("has_password") { "yes" } else { "none" }.to_owned()),
        ("scram", if user.truth("has_scram") { "yes" } else { "no" }.to_owned()),
        ("tenant", user.text("tenant")),
        ("attributes", texts("attributes")),
        ("rates", texts("rates")),
        ("description", user.text("description")),
        ("created", user.time_cell("created_at")),
        ("changed", user.time_cell("changed_at")),
    ];
    let rules: Vec<String> = user.list("rules").iter().filter_map(Value::as_str).map(str::to_owned).collect();
    pairs.extend(rules.into_iter().map(|rule| ("rule", rule)));
    console.pairs(&pairs)
}

fn state(user: &Value) -> String {
    let state = if user.truth("enabled") { "enabled" } else { "disabled" };
    if user.truth("superuser") { format!("{state}, superuser") } else { state.to_owned() }
}

fn list(console: &mut Console, args: ListArgs) -> Result<(), Failure> {
    let columns = [left("NAME"), left("STATE"), left("TENANT"), left("CHANGED"), left("DESCRIPTION")];
    let row = |user: &Value| {
        let tenant = user.cell("tenant");
        vec![user.cell("name"), state(user), tenant, user.time_cell("changed_at"), user.text("description")]
    };
    let query = Query::new().maybe("search", args.search.as_ref());
    List { path: PATH, query, noun: "users", columns: &columns, row: &row, keep: None }
        .show(console, &args.page)
}
