#![no_main]

#[path = "../damage.rs"]
mod damage;

libfuzzer_sys::fuzz_target!(|input: &[u8]| damage::check(input));
