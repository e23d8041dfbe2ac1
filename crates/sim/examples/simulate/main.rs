//! Runs simulations on all processors: `cargo xtask sim`.

mod arguments;
mod search;

use std::process::ExitCode;

/// As in the product: a simulation asks for memory millions of times.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let arguments = match arguments::Arguments::parse(std::env::args().skip(1)) {
        Ok(arguments) => arguments,
        Err(why) => {
            eprintln!("{why}\n\n{}", arguments::HELP);
            return ExitCode::from(2);
        }
    };
    // A panic is what a check says: it is told with its seed, once.
    std::panic::set_hook(Box::new(|_| ()));
    search::run(&arguments)
}
