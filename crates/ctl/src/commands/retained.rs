//! `meridian ctl retained`.

use base64ct::{Base64, Encoding as _};
use clap::{Args, Subcommand};
use serde_json::Value;
use ureq::http::Method;

use super::{Command, without_list_flags};
use crate::confirm::confirm;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::pages::{List, PageArgs};
use crate::query::Query;
use crate::table::{left, right};
use crate::{escape, human};

/// List, read and delete retained messages
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl retained --filter 'building/#'
  meridian ctl retained get building/3/temp
  meridian ctl retained get firmware/image --raw > image.bin
  meridian ctl retained delete building/3/temp
  meridian ctl retained delete 'building/3/#' --yes")]
pub struct RetainedArgs {
    #[command(flatten)]
    list: ListArgs,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Args, Debug)]
struct ListArgs {
    /// Show topics that match this Topic Filter
    #[arg(long, default_value = "#")]
    filter: String,
    #[command(flatten)]
    page: PageArgs,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// List retained messages (the default)
    List(ListArgs),
    /// Show one message with its payload
    Get {
        topic: String,
        /// Write only the payload, unchanged
        #[arg(long, conflicts_with = "json")]
        raw: bool,
    },
    /// Delete one message, or all that match a Topic Filter
    Delete {
        /// A topic, or a Topic Filter with + or #
        #[arg(value_name = "TOPIC|FILTER")]
        what: String,
    },
}

impl Command for RetainedArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        without_list_flags(self.verb.is_none() || (self.list.filter == "#" && self.list.page.plain()))?;
        match self.verb {
            None => self.list.run(console),
            Some(Verb::List(list)) => list.run(console),
            Some(Verb::Get { topic, raw }) => get(console, &topic, raw),
            Some(Verb::Delete { what }) => delete(console, &what),
        }
    }
}

impl Command for ListArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        let columns = [left("TOPIC"), right("QOS"), right("SIZE"), right("AGE"), right("EXPIRES IN")];
        let row = |message: &Value| {
            vec![
                message.cell("topic"),
                message.cell("qos"),
                message.bytes_cell("payload_bytes"),
                message.seconds_cell("age_s"),
                message.seconds_cell("expires_in_s"),
            ]
        };
        let query = Query::new().with("filter", &self.filter);
        let noun = "retained messages";
        List { path: "/api/v1/retained", query, noun, columns: &columns, row: &row, keep: None }
            .show(console, &self.page)
    }
}

fn get(console: &mut Console, topic: &str, raw: bool) -> Result<(), Failure> {
    let message = console.client.get("/api/v1/retained/message", &Query::new().with("topic", topic))?;
    if console.json {
        return console.document(&message);
    }
    let payload = Base64::decode_vec(&message.text("payload_base64"))
        .map_err(|_| console.client.not_meridian("the payload is not valid Base64".to_owned()))?;
    if raw {
        return console.raw(&payload);
    }
    let properties: Vec<String> = message
        .list("user_properties")
        .iter()
        .map(|pair| {
            format!("{}={}", pair[0].as_str().unwrap_or_default(), pair[1].as_str().unwrap_or_default())
        })
        .collect();
    let expires = match message.field("expires_in_s") {
        Value::Null => String::new(),
        _ => format!("in {}", message.seconds_cell("expires_in_s")),
    };
    console.pairs(&[
        ("topic", message.cell("topic")),
        ("qos", message.cell("qos")),
        ("age", message.seconds_cell("age_s")),
        ("expires", expires),
        ("content type", message.text("content_type")),
        ("properties", properties.join(" ")),
        ("size", human::bytes(payload.len() as u64)),
    ])?;
    console.line("")?;
    payload.split(|&byte| byte == b'\n').try_for_each(|line| console.line(&escape::bytes(line)))
}

fn delete(console: &mut Console, what: &str) -> Result<(), Failure> {
    let wildcard = what.contains(['+', '#']);
    if wildcard {
        confirm(console, &format!("Delete every retained message that {what} matches?"))?;
    }
    let query = Query::new().with(if wildcard { "filter" } else { "topic" }, what);
    let answer = console.client.send(Method::DELETE, "/api/v1/retained", &query, None)?;
    console.done(&answer, &format!("{} deleted", answer.count_cell("deleted")))
}
