use clap::Parser;
use serde_json::json;

#[derive(Parser)]
#[command(
    name = "mqload",
    about = "Cheap MQTT load generator and delivery checker. Progress goes to stderr, one JSON object to stdout.",
    after_help = "`mqload bench ...` accepts the commands and options of `meridian bench`."
)]
struct Cli {
    #[command(subcommand)]
    command: bench::Command,
}

fn main() {
    // `mqload bench ...` is `meridian bench ...` in a binary without the broker.
    let mut arguments = std::env::args_os().skip(1);
    if arguments.next().is_some_and(|first| first == "bench") {
        std::process::exit(bench::command_line::main(arguments.collect()));
    }
    let cli = Cli::parse();
    bench::on_signals();
    let pretty = cli.command.common().pretty;
    let (report, code) = match bench::run(cli.command) {
        Ok(report) => (report.json, report.exit_code),
        Err(error) => {
            eprintln!("mqload: {error}");
            (json!({ "error": error.to_string() }), 2)
        }
    };
    if pretty {
        println!("{report:#}");
    } else {
        println!("{report}");
    }
    std::process::exit(code)
}
