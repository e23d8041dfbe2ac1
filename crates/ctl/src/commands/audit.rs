//! `meridian ctl audit`: changes and their authors.

use clap::Args;
use serde_json::Value;

use super::Command;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::pages::show_whole;
use crate::query::Query;
use crate::table::{left, right};

/// List the last changes over the API, including refused ones, newest first
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl audit --limit 1000 --json | jq -c '.items[] | select(.status >= 400)'")]
pub struct AuditArgs {
    /// Show at most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
}

impl Command for AuditArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        let answer = console.client.get("/api/v1/audit", &Query::new().with("limit", self.limit))?;
        let columns = [
            left("AT"),
            left("BY"),
            left("ROLE"),
            left("FROM"),
            right("STATUS"),
            left("METHOD"),
            left("PATH"),
            left("DETAIL"),
        ];
        show_whole(console, &answer, "changes", &columns, |entry: &Value| {
            vec![
                entry.time_cell("at"),
                entry.cell("by"),
                entry.cell("role"),
                entry.cell("address"),
                entry.cell("status"),
                entry.cell("method"),
                entry.cell("path"),
                entry.text("detail"),
            ]
        })
    }
}
