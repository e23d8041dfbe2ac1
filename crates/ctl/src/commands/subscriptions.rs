//! `meridian ctl subscriptions`.

use clap::Args;
use serde_json::Value;

use super::Command;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::pages::{List, PageArgs};
use crate::query::Query;
use crate::table::{Column, left, right};

/// List subscriptions of all clients
#[derive(Args, Debug)]
#[command(
    visible_alias = "subs",
    after_help = "\
Examples:
  meridian ctl subscriptions --match building/3/temp    subscriptions that match this topic
  meridian ctl subscriptions --filter 'building/#'      subscriptions with exactly this filter
  meridian ctl subscriptions --share workers            members of a shared subscription
  meridian ctl subscriptions --client sensor-17"
)]
pub struct SubscriptionsArgs {
    /// Show exactly this Topic Filter
    #[arg(long)]
    filter: Option<String>,
    /// Show Topic Filters that match this topic
    #[arg(long = "match", value_name = "TOPIC")]
    topic: Option<String>,
    /// Show shared subscriptions of this name
    #[arg(long, value_name = "NAME")]
    share: Option<String>,
    /// Show subscriptions of this client
    #[arg(long, value_name = "CLIENT")]
    client: Option<String>,
    #[command(flatten)]
    page: PageArgs,
}

/// Columns; the first two are left out for a single client.
pub const COLUMNS: [Column; 6] =
    [left("CLIENT"), left("NODE"), left("FILTER"), right("QOS"), left("OPTIONS"), right("ID")];

pub fn row(item: &Value) -> Vec<String> {
    let mut options = Vec::new();
    options.extend(item.truth("no_local").then_some("no local"));
    options.extend(item.truth("retain_as_published").then_some("retain as published"));
    options.extend(match item.whole("retain_handling") {
        Some(1) => Some("retained if new"),
        Some(2) => Some("no retained"),
        _ => None,
    });
    vec![
        item.cell("client_id"),
        item.cell("node"),
        item.cell("filter"),
        item.cell("qos"),
        options.join(", "),
        item.text("subscription_id"),
    ]
}

impl Command for SubscriptionsArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        let query = Query::new()
            .maybe("filter", self.filter)
            .maybe("match", self.topic)
            .maybe("share", self.share)
            .maybe("client_id", self.client);
        let noun = "subscriptions";
        List { path: "/api/v1/subscriptions", query, noun, columns: &COLUMNS, row: &row, keep: None }
            .show(console, &self.page)
    }
}
