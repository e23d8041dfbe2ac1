//! Benchmarks of docs/adr/0001-routing-index.md: bytes, inserts and matches of the index and of two alternatives.
//!
//! `cargo bench -p routing --bench index` prints all figures in a few minutes; `-- 1000000` those for that number
//! of filters, `-- 1000000 paths` those of one contender. Each line is measured in a separate process, so that the
//! growth of the resident set is its memory. `cargo test --benches` only checks that the program works.

mod contender;
mod ordered;
mod shapes;
mod workload;

use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};

use contender::{Contender, Subscriber};
use workload::{Kind, Workload};

/// Allocator that keeps freed memory, as in servers.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|argument| argument != "--bench").collect();
    let is_bench = std::env::args().any(|argument| argument == "--bench");
    match arguments.iter().map(String::as_str).collect::<Vec<&str>>()[..] {
        ["one", name, kind, filters, seconds] => {
            let seconds = Duration::from_secs_f64(seconds.parse().expect("seconds"));
            one(name, Kind::parse(kind), filters.parse().expect("a number"), seconds);
        }
        ["fan"] => fan(),
        _ if !is_bench => all(&[20_000], &["paths", "shapes", "ordered"], 0.05),
        [] => {
            all(&[1_000_000, 10_000_000], &["paths", "shapes", "ordered"], 4.0);
            fan();
        }
        [filters] => all(&[filters.parse().expect("a number")], &["paths", "shapes", "ordered"], 4.0),
        [filters, name] => all(&[filters.parse().expect("a number")], &[name], 4.0),
        _ => panic!("usage: [fan | FILTERS [paths|shapes|ordered]]"),
    }
}

fn all(sizes: &[usize], contenders: &[&str], seconds: f64) {
    println!(
        "{:<9}{:<7}{:>9}{:>9}{:>11}{:>11}{:>11}{:>11}{:>9}{:>11}{:>11}",
        "index",
        "kind",
        "filters",
        "B/filter",
        "own count",
        "inserts/s",
        "slowest us",
        "removes/s",
        "per match",
        "matches/s",
        "2 threads"
    );
    for filters in sizes {
        for kind in ["unique", "mixed"] {
            for name in contenders {
                let this = std::env::current_exe().expect("the path of this program");
                let arguments = ["--bench", "one", name, kind, &filters.to_string(), &seconds.to_string()];
                let status = Command::new(this).args(arguments).status().expect("starts itself");
                assert!(status.success(), "{name} {kind} {filters}");
            }
        }
    }
}

/// Measures one filter with many destinations.
fn fan() {
    for destinations in [1_000, 100_000] {
        let index = contender::Paths::new();
        let mut slowest = Duration::ZERO;
        let began = Instant::now();
        for id in 0..destinations {
            let one = Instant::now();
            index.insert("fan/+", Subscriber::numbered(id));
            slowest = slowest.max(one.elapsed());
        }
        let inserting = began.elapsed();
        let (mut reader, mut out) = (index.reader(), Vec::new());
        let topic = mqtt::TopicName::parse("fan/out").expect("a topic");
        let matching = (0..200).map(|_| {
            out.clear();
            let began = Instant::now();
            index.matches(&mut reader, topic, &mut out);
            assert_eq!(out.len(), destinations);
            began.elapsed()
        });
        let best = matching.min().expect("there are some");
        let bytes = index.memory() / destinations;
        drop(reader);
        let began = Instant::now();
        for id in 0..destinations {
            index.remove("fan/+", Subscriber::numbered(id * 7_919 % destinations));
        }
        println!(
            "one filter, {destinations} destinations: {:.0} inserts/s, slowest {:.0} us, {:.2} ns each in a match, \
             {:.0} removes/s, {bytes} B each",
            destinations as f64 / inserting.as_secs_f64(),
            slowest.as_secs_f64() * 1e6,
            best.as_secs_f64() * 1e9 / destinations as f64,
            destinations as f64 / began.elapsed().as_secs_f64(),
        );
    }
}

fn one(name: &str, kind: Kind, filters: usize, seconds: Duration) {
    match name {
        "paths" => measure::<contender::Paths>(name, kind, filters, seconds),
        "shapes" => measure::<shapes::ShapeIndex>(name, kind, filters, seconds),
        "ordered" => measure::<ordered::OrderedIndex>(name, kind, filters, seconds),
        _ => panic!("no contender {name}"),
    }
}

fn measure<C: Contender>(name: &str, kind: Kind, filters: usize, seconds: Duration) {
    let workload = Workload::new(kind, filters);
    let topics: Vec<String> = workload.topics(400_000.min(filters));
    let before = resident();
    let index = C::new();
    let (mut count, mut slowest, mut clock) = (0, Duration::ZERO, Clock::now());
    let mut spent = Duration::ZERO;
    workload.for_each(|filter| {
        let began = Instant::now();
        index.insert(filter, Subscriber::numbered(count));
        let mut took = began.elapsed();
        spent += took;
        count += 1;
        if took > slowest {
            // The time for which another process had the processor does not count.
            took = took.saturating_sub(clock.elapsed().1);
            slowest = slowest.max(took);
        }
        if count % 256 == 0 {
            clock = Clock::now();
        }
    });
    let bytes = resident().saturating_sub(before) as f64 / count as f64;
    let own = index.memory() as f64 / count as f64;
    let index = Arc::new(index);
    let (single, matched) = matches(&index, &topics, 1, seconds);
    let (double, _) = matches(&index, &topics, 2, seconds);
    let mut removed = 0;
    let mut removing = Duration::ZERO;
    workload.for_each(|filter| {
        if removed < count / 4 {
            let began = Instant::now();
            index.remove(filter, Subscriber::numbered(removed));
            removing += began.elapsed();
            removed += 1;
        }
    });
    println!(
        "{name:<9}{:<7}{count:>9}{bytes:>9.1}{own:>11.1}{:>11.0}{:>11.0}{:>11.0}{matched:>9.2}{single:>11.0}{double:>11.0}",
        kind.name(),
        count as f64 / spent.as_secs_f64(),
        slowest.as_secs_f64() * 1e6,
        removed as f64 / removing.as_secs_f64(),
    );
}

/// Returns the matches per second of processor time, summed over the threads, and the number of filters that a
/// match found.
///
/// Takes the best of eight windows: other processes on the machine can only make a window slower.
fn matches<C: Contender>(index: &Arc<C>, topics: &[String], threads: usize, time: Duration) -> (f64, f64) {
    let names: Vec<_> = topics.iter().map(|name| mqtt::TopicName::parse(name).expect("a topic")).collect();
    let results: Vec<(f64, f64)> = std::thread::scope(|scope| {
        let names = &names;
        let run = move |worker| {
            let windows =
                (0..8).map(|_| match_loop(&**index, &names[worker * names.len() / threads..], time / 8));
            windows.max_by(|a, b| a.0.total_cmp(&b.0)).expect("there are eight")
        };
        let workers: Vec<_> = (0..threads).map(|worker| scope.spawn(move || run(worker))).collect();
        workers.into_iter().map(|worker| worker.join().expect("the thread ran")).collect()
    });
    (results.iter().map(|(rate, _)| rate).sum(), results[0].1)
}

fn match_loop<C: Contender>(index: &C, names: &[mqtt::TopicName<'_>], time: Duration) -> (f64, f64) {
    let mut reader = index.reader();
    let mut out = Vec::new();
    let (mut done, mut found) = (0usize, 0usize);
    let (began, clock) = (Instant::now(), Clock::now());
    while began.elapsed() < time {
        for turn in names.chunks(64) {
            for name in turn {
                out.clear();
                C::matches(index, &mut reader, *name, &mut out);
                found += out.len();
            }
            C::turn(&mut reader);
            done += turn.len();
            if began.elapsed() >= time {
                break;
            }
        }
    }
    (done as f64 / clock.elapsed().0.as_secs_f64(), found as f64 / done as f64)
}

/// Kernel accounting of this thread: time on a processor, and time in which it waited for one.
struct Clock(Duration, Duration);

impl Clock {
    fn now() -> Clock {
        let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
        let mut numbers = text.split(' ').map(|number| Duration::from_nanos(number.parse().unwrap_or(0)));
        Clock(numbers.next().unwrap_or_default(), numbers.next().unwrap_or_default())
    }

    fn elapsed(&self) -> (Duration, Duration) {
        let now = Clock::now();
        (now.0 - self.0, now.1 - self.1)
    }
}

/// Returns the bytes of this process in memory.
fn resident() -> usize {
    let statm = std::fs::read_to_string("/proc/self/statm").unwrap_or_default();
    statm.split(' ').nth(1).and_then(|pages| pages.parse::<usize>().ok()).unwrap_or(0) * 4096
}
