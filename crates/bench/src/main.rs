use clap::Parser;
use serde_json::json;

#[derive(Parser)]
#[command(
    name = "mqload",
    about = "Cheap MQTT load generator and delivery checker. Progress goes to stderr, one JSON object to stdout."
)]
struct Cli {
    #[command(subcommand)]
    command: bench::Command,
}

fn main() {
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
