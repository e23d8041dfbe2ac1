#![no_main]

libfuzzer_sys::fuzz_target!(|input: &[u8]| {
    broker::check_wire_form(input);
    broker::check_frame_form(input);
});
