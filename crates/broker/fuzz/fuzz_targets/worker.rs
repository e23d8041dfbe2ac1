#![no_main]

#[path = "../access.rs"]
mod access;
#[path = "../check.rs"]
mod check;
#[path = "../peer.rs"]
mod peer;
#[path = "../program.rs"]
mod program;

libfuzzer_sys::fuzz_target!(|input: &[u8]| check::check(input));
