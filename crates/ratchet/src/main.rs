//! Instruction counts of the broker's hot paths: one worker, no sockets, fixed seeds, one thread. `cargo xtask ratchet`
//! counts from outside. It runs each flow with two numbers of messages and takes the difference.
//!
//! `ratchet` lists the flows; `ratchet FLOW MESSAGES` runs one and prints the number of allocations of the whole
//! process.

mod flow;
mod node;

use std::alloc::{GlobalAlloc, Layout, System};
use std::process::ExitCode;
use std::sync::atomic::{AtomicU64, Ordering};

struct Counting;

static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);

// SAFETY: all calls go to the system allocator; only a count is added.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps `alloc`'s contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: the caller keeps `realloc`'s contract.
        unsafe { System.realloc(pointer, layout, size) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: the caller keeps `dealloc`'s contract.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (name, messages) = match &arguments[..] {
        [] => {
            flow::ALL.iter().for_each(|flow| println!("{} {}", flow.name, flow.messages));
            return ExitCode::SUCCESS;
        }
        [name, messages] => (name, messages.parse()),
        _ => (&arguments[0], "".parse()),
    };
    match (flow::ALL.iter().find(|flow| flow.name == name), messages) {
        (Some(flow), Ok(messages)) => {
            (flow.run)(messages);
            println!("{}", ALLOCATIONS.load(Ordering::Relaxed));
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("usage: ratchet [FLOW MESSAGES]; no arguments list the flows");
            ExitCode::FAILURE
        }
    }
}
