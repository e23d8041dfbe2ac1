//! `meridian ctl log`: past and new events of the node's log, and the log level.

use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};
use serde_json::{Value, json};
use ureq::http::Method;

use super::trace::tagged;
use super::{Command, without_list_flags};
use crate::args::duration;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::interrupt::Interrupt;
use crate::query::Query;
use crate::stream::{Next, Stream};

/// Show the log, follow it, change its level
#[derive(Args, Debug)]
#[command(after_help = "\
Examples:
  meridian ctl log                          the last events
  meridian ctl log --level warn --limit 1000
  meridian ctl log --follow                 continue with new events, until Ctrl-C
  meridian ctl log level                    the level in force
  meridian ctl log level debug --for 10m    restores the previous level after ten minutes

A restart resets the level of `log level`; `meridian ctl config set log.level=..` is permanent.
With --json --follow every event is a line: {\"event\":\"log\", ..}, {\"event\":\"lost\", \"count\":..}.")]
pub struct LogArgs {
    #[command(flatten)]
    show: ShowArgs,
    #[command(subcommand)]
    verb: Option<Verb>,
}

#[derive(Args, Debug)]
struct ShowArgs {
    /// Show at most this many of the last events
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1_000))]
    limit: u32,
    /// Show events of this level and more severe ones; the node must have logged them
    #[arg(long, value_enum)]
    level: Option<Level>,
    /// Continue with new events
    #[arg(long, short)]
    follow: bool,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Show events (the default)
    Show(ShowArgs),
    /// Show or change the log level
    Level {
        /// New level: error, warn, info, debug, trace, or by part as in info,edge=debug
        level: Option<String>,
        /// Restore the previous level after this time
        #[arg(long = "for", value_name = "DURATION", value_parser = duration, requires = "level")]
        time: Option<Duration>,
    },
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum Level {
    Error,
    Warn,
    Info,
    Debug,
    Trace,
}

impl Level {
    fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }
}

impl Command for LogArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        let plain = self.show.limit == 100 && self.show.level.is_none() && !self.show.follow;
        without_list_flags(self.verb.is_none() || plain)?;
        match self.verb {
            None => self.show.run(console),
            Some(Verb::Show(show)) => show.run(console),
            Some(Verb::Level { level: None, .. }) => {
                let answer = console.client.get("/api/v1/log/level", &Query::new())?;
                say_level(console, &answer)
            }
            Some(Verb::Level { level: Some(level), time }) => {
                let seconds = time.map(|time| time.as_millis().div_ceil(1_000) as u64);
                let body = json!({"level": level, "for_s": seconds});
                let answer =
                    console.client.send(Method::PUT, "/api/v1/log/level", &Query::new(), Some(&body))?;
                say_level(console, &answer)
            }
        }
    }
}

fn say_level(console: &mut Console, answer: &Value) -> Result<(), Failure> {
    let until = match answer.field("until") {
        Value::Null => String::new(),
        _ => format!(" until {}", answer.time_cell("until")),
    };
    console.done(answer, &format!("{}{until}", answer.cell("level")))
}

impl Command for ShowArgs {
    fn run(self, console: &mut Console) -> Result<(), Failure> {
        let query = Query::new().maybe("level", self.level.map(Level::name));
        if !self.follow {
            let answer = console.client.get("/api/v1/log", &query.with("limit", self.limit))?;
            if console.json {
                return console.document(&answer);
            }
            return answer.list("items").iter().try_for_each(|event| console.line(&line(event)));
        }
        // The stream opens first, so that no event is missed between it and the past ones.
        let mut stream = Stream::open(&console.client, "/api/v1/log/stream", &query, Interrupt::watch())?;
        let past = console.client.get("/api/v1/log", &query.with("limit", self.limit))?;
        // Events in both answers are shown once.
        let mut both: Vec<Value> = past.list("items").to_vec();
        for event in &both {
            show(console, "log", event.clone())?;
        }
        console.flush()?;
        loop {
            match stream.next()? {
                Next::Event { name, data } if name == "log" => {
                    match both.iter().position(|event| *event == data) {
                        Some(index) => drop(both.remove(index)),
                        None => show(console, "log", data)?,
                    }
                }
                Next::Event { name, data } => show(console, &name, data)?,
                Next::Quiet => {
                    both.clear();
                    console.flush()?;
                }
                Next::End => return console.flush(),
            }
        }
    }
}

fn show(console: &mut Console, name: &str, data: Value) -> Result<(), Failure> {
    match (console.json, name) {
        (true, _) => console.json_line(&tagged(name, data)),
        (false, "log") => console.line(&line(&data)),
        (false, "lost") => {
            console.flush()?;
            console.note(&format!("! {} events were lost", data.count_cell("count")));
            Ok(())
        }
        // A newer node may send other events.
        (false, _) => Ok(()),
    }
}

fn line(event: &Value) -> String {
    let mut line = format!(
        "{}  {:<5}  {}  {}",
        event.time_cell("at"),
        event.text("level"),
        event.text("target"),
        event.text("message")
    );
    for (name, value) in event.field("fields").as_object().into_iter().flatten() {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        line.push_str(&format!(" {name}={value}"));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_is_a_line_with_its_fields() {
        let event = json!({"at": "2026-01-31T12:00:00.1Z", "level": "WARN", "target": "edge", "message": "no room", "fields": {"n": 3, "who": "c"}});
        assert_eq!(line(&event), "2026-01-31 12:00:00Z  WARN   edge  no room n=3 who=c");
    }
}
