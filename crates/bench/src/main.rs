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

/// The first signal ends the run with its report, the second one the process.
extern "C" fn on_signal(_: i32) {
    if bench::interrupted() {
        // SAFETY: `_exit` is async-signal-safe.
        unsafe { libc::_exit(130) }
    }
    bench::interrupt();
}

fn main() {
    let cli = Cli::parse();
    // SAFETY: the handler only touches an atomic and calls `_exit`.
    unsafe {
        libc::signal(libc::SIGINT, on_signal as *const () as libc::sighandler_t);
        libc::signal(libc::SIGTERM, on_signal as *const () as libc::sighandler_t);
    }
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
