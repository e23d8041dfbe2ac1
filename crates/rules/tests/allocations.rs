//! Number of allocations of an evaluation: a rule that does not match costs few.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use rules::{Context, Event, Field, Limits, Message, Rule, Value};

struct Counting;

thread_local! {
    /// Number of allocations of this thread; the test harness has other threads.
    static COUNT: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: every call goes to the system's allocator unchanged; counting uses only a thread-local number without
// destructor.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: promised by the caller.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        // SAFETY: promised by the caller.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        COUNT.with(|count| count.set(count.get() + 1));
        // SAFETY: promised by the caller.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A message whose fields need no allocation.
struct Plain;

impl Message for Plain {
    fn event(&self) -> Event {
        Event::Publish
    }

    fn field(&self, field: Field) -> Value {
        match field {
            Field::QoS => 1.into(),
            _ => Value::Null,
        }
    }

    fn payload(&self) -> &[u8] {
        br#"{"device": "d1", "temp": 21.5, "tags": ["a", "b"], "place": {"room": "12", "floor": 3}}"#
    }
}

#[test]
fn evaluations_allocate_little() {
    let limits = Limits::default();
    for (text, allocations) in [
        ("SELECT clientid FROM \"#\" WHERE qos = 2", 0),
        ("SELECT clientid FROM \"#\" WHERE qos in (0, 2) or mod(qos, 2) = 0 and is_null(username)", 0),
        // The list of wanted members, and the object.
        ("SELECT clientid FROM \"#\" WHERE payload.temp > 80", 2),
        ("SELECT clientid FROM \"#\" WHERE payload.temp > 80 or payload.temp < -20", 2),
        // Also the list of outputs, the output, and its list of columns.
        ("SELECT qos, payload.temp FROM \"#\"", 5),
    ] {
        let rule = Rule::parse(text, &limits).expect(text);
        let before = COUNT.with(Cell::get);
        let outputs = rule.evaluate(&Plain, &Context::default(), &limits);
        let count = COUNT.with(Cell::get) - before;
        assert!(outputs.is_ok());
        assert_eq!(count, allocations, "{text}");
    }
}
