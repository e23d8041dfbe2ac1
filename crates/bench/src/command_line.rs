//! Command lines of other load generators: emqtt-bench's, and MQTTX's after `--as mqttx`.

mod emqtt;
mod familiar;
mod mqtt5;
mod mqttx;
mod reports;
mod simulate;
#[cfg(test)]
mod tests;
mod unsupported;

use crate::config::SetupError;
use crate::plan::Plan;
use crate::{process, run};
use std::ffi::OsString;
use std::io::Write;

/// Request of a command line.
enum Invocation {
    Run(Box<Plan>),
    Ha(Box<crate::ha::Options>),
    TxRx(Box<crate::tx_rx::Options>),
    Size(crate::size::Options),
    Scenario(Box<crate::scenario::Options>),
    Agent(crate::agent::Options),
    /// A help text for standard output.
    Help(String),
}

/// Reason why a command line is refused, as a text for people.
struct UsageError(String);

impl From<clap::Error> for UsageError {
    fn from(error: clap::Error) -> Self {
        Self(error.to_string().trim_end().to_owned())
    }
}

/// Executes `arguments`, which exclude the program's name, and returns the exit code: 0 = success, 1 = a failure, 2 =
/// the run could not start.
pub fn main(arguments: Vec<OsString>) -> i32 {
    if arguments.first().is_some_and(|word| word == run::SHARE) {
        process::on_signals();
        return run::share::run(std::io::BufReader::new(std::io::stdin()), std::io::stdout());
    }
    match parse(&arguments) {
        Ok(Invocation::Help(text)) => {
            // A closed standard output is no failure.
            let _ = write!(std::io::stdout(), "{text}");
            0
        }
        Ok(Invocation::Run(mut plan)) => match start({
            plan.output.command = reports::without_secrets(&arguments);
            &plan
        }) {
            Ok(code) => code,
            Err(error) => complain(&format!("error: {error}")),
        },
        Ok(Invocation::Ha(options)) => {
            process::on_signals();
            crate::ha::run(*options).unwrap_or_else(|error| complain(&format!("error: {error}")))
        }
        Ok(Invocation::TxRx(options)) => {
            process::on_signals();
            crate::tx_rx::run(*options).unwrap_or_else(|error| complain(&format!("error: {error}")))
        }
        Ok(Invocation::Scenario(mut options)) => {
            options.output.command = reports::without_secrets(&arguments);
            process::on_signals();
            crate::scenario::run(*options).unwrap_or_else(|error| complain(&format!("error: {error}")))
        }
        Ok(Invocation::Agent(options)) => {
            process::on_signals();
            crate::agent::serve(&options).unwrap_or_else(|error| complain(&format!("error: {error}")))
        }
        Ok(Invocation::Size(options)) => crate::size::run(&options),
        Err(UsageError(text)) => complain(&text),
    }
}

fn complain(text: &str) -> i32 {
    // The exit code reports the error as well.
    let _ = writeln!(std::io::stderr(), "{text}");
    2
}

fn start(plan: &Plan) -> Result<i32, SetupError> {
    process::on_signals();
    run::familiar::run(plan)
}

fn parse(arguments: &[OsString]) -> Result<Invocation, UsageError> {
    let mut words = vec![];
    for argument in arguments {
        match argument.to_str() {
            Some(word) => words.push(word.to_owned()),
            None => return Err(UsageError(format!("error: {} is not UTF-8", argument.display()))),
        }
    }
    let (style, rest) = match words.first().map(String::as_str) {
        Some("--as") => (words.get(1).map_or("", String::as_str), words.get(2..).unwrap_or(&[])),
        Some(word) => match word.strip_prefix("--as=") {
            Some(style) => (style, &words[1..]),
            None => ("emqtt-bench", &words[..]),
        },
        None => ("emqtt-bench", &[][..]),
    };
    match style {
        "emqtt-bench" | "emqtt_bench" => emqtt::parse(rest),
        "mqttx" => mqttx::parse(rest),
        _ => Err(UsageError(format!("error: --as `{style}`: it is emqtt-bench (the default) or mqttx"))),
    }
}

/// Converts the result of clap: help and version are regular results, all other refusals are errors.
fn answer<T>(parsed: Result<T, clap::Error>) -> Result<Result<T, Invocation>, UsageError> {
    match parsed {
        Ok(value) => Ok(Ok(value)),
        Err(error) if !error.use_stderr() => Ok(Err(Invocation::Help(error.to_string()))),
        Err(error) => Err(error.into()),
    }
}

/// A part of default Client Identifiers that differs from run to run.
fn random() -> String {
    let mixed = crate::net::now() ^ (u64::from(std::process::id()) << 20);
    format!("{:08x}", (mixed ^ (mixed >> 32)) as u32)
}
