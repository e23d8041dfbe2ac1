#![no_main]

#[path = "../model.rs"]
mod model;
#[path = "../program.rs"]
mod program;

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    program::run(input);
    program::run_repeats(input);
});
