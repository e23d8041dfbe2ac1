//! Runs simulations on all processors: `cargo xtask sim`.

mod arguments;
mod search;

use std::process::ExitCode;

/// Allocator of the product: a simulation allocates memory millions of times.
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
    // A failed check panics. The search prints its message once, with the seed.
    std::panic::set_hook(Box::new(|_| ()));
    search::run(&arguments)
}
