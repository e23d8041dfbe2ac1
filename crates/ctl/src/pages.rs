//! Lists that come in pages: follows cursors, up to the requested number of items.

use clap::Args;
use serde_json::{Value, json};

use crate::client::Client;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::{Fields as _, take};
use crate::human;
use crate::query::Query;
use crate::table::{Column, Table};

/// Maximum size of a page of the API.
const PAGE_MAX: usize = 1_000;
/// Maximum number of consecutive empty pages before the list counts as endless. A node examines thousands of clients
/// for each page.
const EMPTY_PAGES_MAX: usize = 100_000;

/// Part of a list to show.
#[derive(Args, Clone, Debug)]
pub struct PageArgs {
    /// Show at most this many
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..))]
    pub limit: u32,
    /// Show all items as they arrive; with --json one document per line (NDJSON)
    #[arg(long, conflicts_with_all = ["limit", "cursor"])]
    pub all: bool,
    /// Continue where an earlier list ended: its `next` in --json
    #[arg(long, value_name = "CURSOR")]
    pub cursor: Option<String>,
}

impl PageArgs {
    /// Returns whether all options have their defaults.
    pub fn plain(&self) -> bool {
        self.limit == 100 && !self.all && self.cursor.is_none()
    }
}

/// A list and its columns for a person.
pub struct List<'a> {
    pub path: &'a str,
    pub query: Query,
    /// Noun for the items, such as "clients".
    pub noun: &'a str,
    pub columns: &'a [Column],
    pub row: &'a dyn Fn(&Value) -> Vec<String>,
    /// Selects the items to show where the node cannot. The others are not counted, and there is no cursor to continue
    /// with.
    pub keep: Option<fn(&Value) -> bool>,
}

impl List<'_> {
    /// # Errors
    /// Those of the client and of standard output.
    pub fn show(&self, console: &mut Console, page: &PageArgs) -> Result<(), Failure> {
        let limit = if page.all { usize::MAX } else { page.limit as usize };
        let mut pages =
            Pages::new(console.client.clone(), self.path, self.query.clone(), page.cursor.clone());
        let (mut shown, mut kept, mut table) = (0, Vec::new(), Table::new(self.columns));
        while shown < limit {
            let wanted = if self.keep.is_some() { PAGE_MAX } else { limit - shown };
            let Some(items) = pages.next(wanted)? else { break };
            let items = items.into_iter().filter(|item| self.keep.is_none_or(|keep| keep(item)));
            for item in items.take(limit - shown) {
                shown += 1;
                match (console.json, page.all) {
                    (true, true) => console.json_line(&item)?,
                    (true, false) => kept.push(item),
                    (false, _) => table.row((self.row)(&item)),
                }
            }
            if page.all {
                console.table(&mut table)?;
                console.flush()?;
            }
            let (noun, count) = (self.noun, human::count(shown as u64));
            console.progress(&format!("{count} {noun} .."));
        }
        console.progress("");
        if console.json {
            return if page.all {
                Ok(())
            } else {
                let next = if self.keep.is_some() { None } else { pages.cursor };
                let mut document = json!({"items": kept, "next": next});
                let missing = console.client.missing();
                if !missing.is_empty() {
                    document["missing"] = missing.into();
                }
                console.document(&document)
            };
        }
        console.table(&mut table)?;
        console.flush()?;
        if shown == 0 {
            console.note(&format!("no {}", self.noun));
        } else if pages.cursor.is_some() {
            console.note(&format!(
                "the first {} {}; --limit N shows more, --all shows all",
                human::count(shown as u64),
                self.noun
            ));
        }
        Ok(())
    }
}

/// Iteration over the pages of a list.
pub struct Pages<'a> {
    client: Client,
    path: &'a str,
    query: Query,
    cursor: Option<String>,
    ended: bool,
    empty: usize,
}

impl<'a> Pages<'a> {
    pub fn new(client: Client, path: &'a str, query: Query, cursor: Option<String>) -> Self {
        Self { client, path, query, cursor, ended: false, empty: 0 }
    }

    /// Returns the next items, at most `wanted`; `None` after the last.
    ///
    /// # Errors
    /// Those of the client, and [`Failure::NotMeridian`] when the list does not end.
    pub fn next(&mut self, wanted: usize) -> Result<Option<Vec<Value>>, Failure> {
        if self.ended {
            return Ok(None);
        }
        let query =
            self.query.clone().with("limit", wanted.min(PAGE_MAX)).maybe("cursor", self.cursor.as_ref());
        let mut page = self.client.get(self.path, &query)?;
        let next = page["next"].as_str().map(str::to_owned);
        let Value::Array(items) = take(&mut page, "items") else {
            return Err(self.client.not_meridian(format!("{} is not a list", self.path)));
        };
        self.empty = if items.is_empty() { self.empty + 1 } else { 0 };
        if next.is_some() && next == self.cursor || self.empty > EMPTY_PAGES_MAX {
            return Err(self.client.not_meridian(format!("the list {} does not end", self.path)));
        }
        self.ended = next.is_none();
        self.cursor = next;
        Ok(Some(items))
    }
}

/// Shows a list that is not paged, `{"items": [..]}`.
///
/// # Errors
/// Those of the client and of standard output.
pub fn show_whole(
    console: &mut Console,
    answer: &Value,
    noun: &str,
    columns: &[Column],
    row: impl Fn(&Value) -> Vec<String>,
) -> Result<(), Failure> {
    if console.json {
        return console.document(answer);
    }
    let mut table = Table::new(columns);
    answer.list("items").iter().for_each(|item| table.row(row(item)));
    console.table(&mut table)?;
    if answer.list("items").is_empty() {
        console.flush()?;
        console.note(&format!("no {noun}"));
    }
    Ok(())
}
