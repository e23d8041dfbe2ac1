//! Measures the cost of the log on a real disk: `cargo run --release -p storage --example bench -- --dir DIR`.
//! Prints rows for docs/benchmarks.md.

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::time::{Duration, Instant};

use storage::{
    Commit, Disk as _, Error, GroupId, LogListener, LogThreads, Opened, Options, RealDisk, Record, Vacate,
    open, spawn,
};

const HELP: &str = "\
Usage: bench [--dir DIR] [--seconds N] [--bytes N]

  --dir DIR     directory for the log, removed at the end (default: a new directory below the system's temporary one)
  --seconds N   duration of each row (default: 3)
  --bytes N     payload of an entry (default: 256)";

/// Sends the index of each durable entry to the benchmark.
struct EventRecorder(SyncSender<u64>);

impl LogListener for EventRecorder {
    fn durable(&mut self, groups: &[(GroupId, u64)]) {
        let [(_, index)] = groups else { return };
        // The receiver reads each index before the next one can arrive.
        self.0.send(*index).unwrap_or_default();
    }
    fn checkpoint_durable(&mut self, _: GroupId, _: u64) {}
    fn bodies_durable(&mut self, _: GroupId, _: u64) {}
    fn vacate(&mut self, _: Vacate) {}
    fn full(&mut self, _: storage::Shortage) {}
    fn room(&mut self) {}
    fn failed(&mut self, error: &Error) {
        eprintln!("{error}");
        std::process::exit(1);
    }
}

struct Bench {
    dir: PathBuf,
    time: Duration,
    bytes: usize,
}

fn main() -> ExitCode {
    let dir = std::env::temp_dir().join(format!("meridian-storage-bench-{}", std::process::id()));
    let mut bench = Bench { dir, time: Duration::from_secs(3), bytes: 256 };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        let value = arguments.next();
        let number = value.as_ref().and_then(|text| text.parse::<u64>().ok());
        match (argument.as_str(), value, number) {
            ("--dir", Some(dir), _) => bench.dir = PathBuf::from(dir).join("meridian-storage-bench"),
            ("--seconds", _, Some(seconds)) => bench.time = Duration::from_secs(seconds),
            ("--bytes", _, Some(bytes)) => bench.bytes = bytes as usize,
            _ => {
                eprintln!("{HELP}");
                return ExitCode::from(2);
            }
        }
    }
    match bench.run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

impl Bench {
    fn run(&self) -> Result<(), Error> {
        println!("| entries per commit | entries/s | commit p50 us | p99 us | bytes written per entry |");
        println!("|---|---|---|---|---|");
        for batch in [1, 100, 1000] {
            self.row(batch)?;
        }
        println!();
        println!("| the disk alone: bytes per write and fdatasync | p50 us | p99 us |");
        println!("|---|---|---|");
        for batch in [1, 100, 1000] {
            self.disk_alone(batch)?;
        }
        println!();
        println!("| log of | opened in |");
        println!("|---|---|");
        self.recovery()
    }

    fn open(&self) -> Result<(Opened, Receiver<u64>), Error> {
        let (sender, receiver) = sync_channel(1024);
        let disk = Arc::new(RealDisk::open(&self.dir)?);
        let opened = open(disk, Options::default(), Box::new(EventRecorder(sender)), &mut |_| {})?;
        Ok((opened, receiver))
    }

    /// Appends `batch` entries, waits until they are durable, and repeats.
    fn row(&self, batch: u64) -> Result<(), Error> {
        self.clear();
        let (opened, recorder) = self.open()?;
        let (log, threads) = (opened.log.clone(), start(opened));
        let payload: Arc<Vec<u8>> = vec![7; self.bytes].into();
        let (mut index, mut took) = (0, vec![]);
        let mut before = log.stats();
        let mut started = Instant::now();
        // Warm-up: until the spare segments exist and the disk is awake.
        let mut warm = false;
        while !warm || started.elapsed() < self.time {
            if !warm && started.elapsed() > Duration::from_millis(500) {
                (warm, before, started) = (true, log.stats(), Instant::now());
                took.clear();
            }
            let at = Instant::now();
            let records = (index + 1..=index + batch).map(|index| {
                let payload = payload.clone();
                Record::Entry { group: GroupId(1), term: 1, index, payload }
            });
            log.append(records);
            index += batch;
            while recorder.recv().is_ok_and(|durable| durable < index) {}
            took.push(at.elapsed());
        }
        let seconds = started.elapsed().as_secs_f64();
        let after = log.stats();
        threads.stop();
        let entries = took.len() as u64 * batch;
        took.sort_unstable();
        let quantile = |share: usize| took[(took.len() - 1) * share / 100].as_micros();
        println!(
            "| {batch} | {:.0} | {} | {} | {:.0} |",
            entries as f64 / seconds,
            quantile(50),
            quantile(99),
            (after.bytes_written - before.bytes_written) as f64 / entries as f64
        );
        Ok(())
    }

    /// Measures the same commits without a log: a write into a file filled with zeros, and a sync.
    fn disk_alone(&self, batch: usize) -> Result<(), Error> {
        self.clear();
        let disk = RealDisk::open(&self.dir)?;
        let failed =
            |error| Error::Io { file: "bench".to_owned(), operation: "write", error: Arc::new(error) };
        let file = disk.create("bench", 64 << 20).map_err(failed)?;
        file.sync_data().map_err(failed)?;
        let bytes = vec![7; (self.bytes + 48).next_multiple_of(8) * batch];
        let (started, mut at, mut took) = (Instant::now(), 0, vec![]);
        while started.elapsed() < self.time {
            let before = Instant::now();
            file.write_at(&bytes, at).map_err(failed)?;
            file.sync_data().map_err(failed)?;
            took.push(before.elapsed());
            at = (at + bytes.len() as u64) % (60 << 20);
        }
        took.sort_unstable();
        let quantile = |share: usize| took[(took.len() - 1) * share / 100].as_micros();
        println!("| {} | {} | {} |", bytes.len(), quantile(50), quantile(99));
        Ok(())
    }

    fn recovery(&self) -> Result<(), Error> {
        self.clear();
        let (mut opened, recorder) = self.open()?;
        drop(recorder);
        let payload: Arc<Vec<u8>> = vec![7; self.bytes].into();
        for index in 1..=1_000_000 {
            let payload = payload.clone();
            opened.log.append([Record::Entry { group: GroupId(1), term: 1, index, payload }]);
            if index % 1000 == 0 {
                while opened.writer.commit_once()? != Commit::Idle {}
            }
        }
        drop(opened);
        let (opened, _recorder) = self.open()?;
        let report = &opened.recovery.report;
        println!(
            "| {} entries, {} MiB in {} segments | {} ms |",
            opened.recovery.groups[0].last,
            report.bytes >> 20,
            report.segments,
            report.took.as_millis()
        );
        let started = Instant::now();
        let mut read = 0;
        for entry in opened.recovery.groups[0].entries() {
            read += entry?.payload.len();
        }
        println!("| and all its entries read, {} MiB | {} ms |", read >> 20, started.elapsed().as_millis());
        drop(opened);
        self.clear();
        Ok(())
    }

    fn clear(&self) {
        if self.dir.is_dir()
            && let Err(error) = std::fs::remove_dir_all(&self.dir)
        {
            eprintln!("{}: {error}", self.dir.display());
        }
    }
}

fn start(opened: Opened) -> LogThreads {
    match spawn(opened.writer, opened.keeper) {
        Ok(threads) => threads,
        Err(error) => {
            eprintln!("{error}");
            std::process::exit(1);
        }
    }
}
