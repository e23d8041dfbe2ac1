//! `meridian bench`: the load generator, whose command line is its own because `-h` and `-V` mean other things there.

use std::ffi::OsString;
use std::process::ExitCode;

use clap::Args;

/// Measure a broker, with the options of emqtt-bench: `meridian bench --help`
#[derive(Debug, Args)]
#[command(disable_help_flag = true)]
pub struct BenchArgs {
    /// conn, sub, pub, pubsub, ha or tx-rx, and its options; `--as mqttx` first for those of MQTTX
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "COMMAND")]
    arguments: Vec<OsString>,
}

impl BenchArgs {
    pub fn run(self) -> ExitCode {
        let code = bench::command_line::main(self.arguments);
        ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX))
    }
}
