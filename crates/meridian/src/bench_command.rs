//! `meridian bench`: the load generator. It parses its own command line, because `-h` and `-V` have other meanings
//! there.

use std::ffi::OsString;
use std::path::Path;
use std::process::ExitCode;

use clap::Args;

/// Measure a broker, with the options of emqtt-bench: `meridian bench --help`
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct BenchArgs {
    /// Command (conn, sub, pub, pubsub, ha, tx-rx, scenario, agent or size) and its options; put `--as mqttx` first to
    /// use the options of MQTTX
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    arguments: Vec<OsString>,
}

impl BenchArgs {
    pub fn run(self) -> ExitCode {
        run(self.arguments)
    }
}

fn run(arguments: Vec<OsString>) -> ExitCode {
    let code = bench::command_line::main(arguments);
    ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
}

/// Runs the load generator when the program was started through a link named `mqttx` or `emqtt_bench`. It then
/// accepts the command lines of that tool unchanged.
pub fn by_name() -> Option<ExitCode> {
    let mut arguments = std::env::args_os();
    let name = arguments.next()?;
    let style = match Path::new(&name).file_name()?.to_str()? {
        "mqttx" => "mqttx",
        "emqtt_bench" | "emqtt-bench" => "emqtt-bench",
        _ => return None,
    };
    Some(run(["--as".into(), style.into()].into_iter().chain(arguments).collect()))
}
