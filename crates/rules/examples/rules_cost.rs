//! Costs of typical rules: nanoseconds and allocations of one evaluation. `cargo run --release -p rules --example
//! rules_cost`. The numbers are medians of several passes on one thread. At the end are evaluations that do nearly as
//! much work as the default limits allow. `rules_cost CASE COUNT` runs one of them so many times and prints nothing:
//! the difference of two counts under `valgrind --tool=callgrind` is the number of instructions.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::hint::black_box;
use std::time::Instant;

use rules::{Context, Event, Field, Limits, Message, Rule, Template, Value};

struct Counting;

thread_local! {
    /// Number of allocations of this thread.
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

/// A message as a broker has it: fields become values when a rule asks for them.
struct Publish {
    payload: Vec<u8>,
}

impl Message for Publish {
    fn event(&self) -> Event {
        Event::Publish
    }

    fn field(&self, field: Field) -> Value {
        match field {
            Field::ClientId => "thermostat-17".into(),
            Field::Topic => "building/7/room/12/temperature".into(),
            Field::QoS => 1.into(),
            Field::Timestamp => 1_706_702_400_123.into(),
            _ => Value::Null,
        }
    }

    fn payload(&self) -> &[u8] {
        &self.payload
    }
}

const READING: &str = r#"{"device":"thermostat-17","temp":21.5,"humidity":40,"battery":3.1,"location":{"building":7,"room":"12"},"tags":["a","b"],"ok":true}"#;

fn main() {
    let readings: Vec<String> = (0..10)
        .map(|number| format!(r#"{{"name":"sensor-{number}","value":{number}.5,"unit":"C"}}"#))
        .collect();
    let list = format!(r#"{{"device":"gateway-3","sensors":[{}]}}"#, readings.join(","));
    let cases = [
        ("filter, field only, no match", "SELECT clientid FROM \"#\" WHERE qos = 2", READING),
        ("filter, payload, no match", "SELECT clientid FROM \"#\" WHERE payload.temp > 80", READING),
        ("select of 3 fields", "SELECT clientid, payload.temp, payload.location.room FROM \"#\"", READING),
        ("select of all fields", "SELECT * FROM \"#\"", READING),
        (
            "FOREACH over 10",
            "FOREACH payload.sensors AS s DO clientid, s.name, s.value * 1.8 + 32 AS fahrenheit FROM \"#\"",
            &list,
        ),
    ];
    let limits = Limits::default();
    let context = Context::default();
    if counted().is_none() {
        println!("{:<34} {:>8} {:>10} {:>12}", "rule", "bytes", "ns", "allocations");
    }
    for (name, text, payload) in cases {
        let rule = Rule::parse(text, &limits).expect(text);
        let message = Publish { payload: payload.as_bytes().to_vec() };
        report(name, payload.len(), || {
            black_box(rule.evaluate(black_box(&message), &context, &limits).expect("a result"));
        });
    }
    let rule = Rule::parse("SELECT clientid, payload.temp FROM \"#\"", &limits).expect("a rule");
    let message = Publish { payload: READING.as_bytes().to_vec() };
    let outputs = rule.evaluate(&message, &context, &limits).expect("a result");
    let template = Template::parse("{\"id\": \"${clientid}\", \"t\": ${temp}}", &limits).expect("a template");
    report("template with 2 values", READING.len(), || {
        black_box(template.render(black_box(&outputs[0]), &limits).expect("a text"));
    });
    let text = "SELECT clientid, payload.temp AS t, CASE WHEN t > 30 THEN 'hot' ELSE 'cold' END AS s FROM \"a/#\" WHERE t > 1";
    report("parsing a rule", text.len(), || {
        black_box(Rule::parse(black_box(text), &limits).expect("a rule"));
    });
    if counted().is_none() {
        longest();
    }
}

/// Returns the case and the number of its evaluations, if the command line has them.
fn counted() -> Option<(String, u32)> {
    let mut arguments = std::env::args().skip(1);
    Some((arguments.next()?, arguments.next()?.parse().ok()?))
}

/// Prints the time of expensive evaluations, which end at a limit or shortly before it.
fn longest() {
    let limits = Limits::default();
    let many = |count: usize| vec!["1"; count].join(",");
    let words = "some words ".repeat(30_000);
    let columns: Vec<String> = (0..9).map(|at| format!("sha256(payload) AS c{at}")).collect();
    let patterns: Vec<String> =
        (0..9).map(|at| format!("regex_match(clientid, topic + '[a-z]{{1,9{at}}}x')")).collect();
    let cases = [
        ("decode an array", "payload[1]".to_owned(), format!("[{}]", many(90_000))),
        (
            "decode two arrays of two",
            "payload.a = payload.b".to_owned(),
            format!("{{\"a\":[{0}],\"b\":[{0}]}}", many(30_000)),
        ),
        ("search an array", "contains(2, payload.a)".to_owned(), format!("{{\"a\":[{}]}}", many(45_000))),
        (
            "search a text",
            "regex_match(payload, '(\\w+\\s?)+[^a-z ]$')".to_owned(),
            words[..12_000].to_owned(),
        ),
        (
            "search large groups",
            r"regex_extract(payload, '^(([a-z ]|[a-m ]|[n-z ]){1,400} ?)+$')".to_owned(),
            words[..6_000].to_owned(),
        ),
        ("search groups", "regex_extract(payload, '^((\\w+)\\s?)+$')".to_owned(), words[..12_000].to_owned()),
        (
            "replace in a text",
            "regex_replace(payload, '.*[^a-z ]|[a-z]', 'x')".to_owned(),
            words[..5_000].to_owned(),
        ),
        ("compile expressions", patterns.join(" or "), String::new()),
        ("hashes", columns.join(", "), words[..170_000].to_owned()),
        ("long text", "strlen(pad(payload, 3000000))".to_owned(), String::new()),
        ("format", "sprintf('%1000.900f', 1e300) + sprintf('%1000.900f', 1e300)".to_owned(), String::new()),
    ];
    println!("\n{:<34} {:>8} {:>10} result", "as much as the limits allow", "bytes", "us");
    for (name, expression, payload) in cases {
        let rule = Rule::parse(&format!("SELECT {expression} FROM \"#\""), &limits).expect(&expression);
        let message = Publish { payload: payload.into_bytes() };
        let begin = Instant::now();
        let result = rule.evaluate(&message, &Context::default(), &limits);
        let micros = begin.elapsed().as_micros();
        let result = result.map_or_else(|error| error.reason(), |_| "done");
        println!("{name:<34} {:>8} {micros:>10} {result}", message.payload.len());
    }
}

fn report(name: &str, size: usize, mut run: impl FnMut()) {
    const ROUNDS: u32 = 20_000;
    const PASSES: usize = 9;
    if let Some((case, count)) = counted() {
        if name == case {
            (0..count).for_each(|_| run());
        }
        return;
    }
    run();
    let before = COUNT.with(Cell::get);
    run();
    let allocations = COUNT.with(Cell::get) - before;
    let mut passes: Vec<f64> = (0..PASSES)
        .map(|_| {
            let begin = Instant::now();
            (0..ROUNDS).for_each(|_| run());
            begin.elapsed().as_secs_f64() * 1e9 / f64::from(ROUNDS)
        })
        .collect();
    passes.sort_by(f64::total_cmp);
    println!("{name:<34} {size:>8} {:>10.0} {allocations:>12}", passes[PASSES / 2]);
}
