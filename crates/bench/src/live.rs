//! Live output of a run: lines or a bar, rows of a CSV file, figures for Prometheus and for the page.
//!
//! [`Live`] gets a [`Tick`] a second, from the workers of this process or of several, and keeps the [`Row`]s that the
//! page draws.

mod bar;
mod broker;
mod csv;
mod exporter;
pub(crate) mod page;
mod scrape;

use crate::config::SetupError;
use crate::counters::Counts;
use crate::net;
use crate::plan::{Kind, Output, Plan};
use crate::progress::print_status;
use crate::pulse::Pulse;
use crate::report::round;
use bar::Bar;
use broker::Brokers;
use csv::Csv;
use exporter::Exporter;
use hdrhistogram::Histogram;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::io::IsTerminal;

/// The figures of one second.
#[derive(Clone, Serialize, Deserialize)]
pub struct Tick {
    /// Totals since the start of the run.
    pub counts: Counts,
    /// Measurements of this second only.
    pub pulse: Pulse,
    /// True when every client is connected or has failed.
    pub settled: bool,
    /// Seconds from the first attempt until the last client was ready.
    pub ready_s: f64,
    /// Seconds since publishing began; 0 before.
    pub at: f64,
}

impl Tick {
    pub fn new() -> Tick {
        Tick { counts: Counts::default(), pulse: Pulse::default(), settled: false, ready_s: 0.0, at: 0.0 }
    }
}

/// Stored figures of a second.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// Seconds since the run began.
    pub at: f64,
    pub unix_ms: u64,
    pub connected: u64,
    /// Rates per second.
    pub sent: f64,
    pub acked: f64,
    pub received: f64,
    /// p50, p90, p99, p99.9 and maximum, in milliseconds; `None` without measurements.
    pub latency: Option<[f64; 5]>,
    /// Total number of failed attempts, closed connections and refused messages.
    pub errors: u64,
    pub demand: f64,
    /// Cores and bytes of the processes of --broker-pid.
    pub broker: Option<(f64, u64)>,
    /// The broker's own figures, in the order of --broker-counter.
    pub figures: Vec<f64>,
}

/// Properties of a run for the display.
#[derive(Clone, Copy)]
pub struct Scene {
    pub clients: u64,
    pub sends: bool,
    pub receives: bool,
    /// True when clients are ready only after they have subscribed.
    pub subscribes: bool,
    pub qos: u8,
    pub seconds: Option<f64>,
    /// Total number of messages, 0 for no limit.
    pub messages: u64,
}

impl Scene {
    pub fn of(plan: &Plan) -> Scene {
        let both = plan.kind == Kind::Pubsub;
        Scene {
            clients: if both { 2 * plan.clients.count as u64 } else { plan.clients.count as u64 },
            sends: both || plan.kind == Kind::Pub,
            receives: both || plan.kind == Kind::Sub,
            subscribes: plan.kind == Kind::Sub,
            qos: plan.messages.qos,
            seconds: plan.output.duration.map(|time| time.as_secs_f64()),
            messages: plan.schedule.limit,
        }
    }
}

/// Live output of a run.
pub struct Live {
    scene: Scene,
    quiet: bool,
    began: u64,
    at: u64,
    before: Counts,
    ready_reported: bool,
    bar: Option<Bar>,
    csv: Option<Csv>,
    exporter: Option<Exporter>,
    brokers: Brokers,
    /// Rows of seconds, at most [`ROWS_MAX`]: when it is full every second one is removed and `step` doubles.
    pub rows: Vec<Row>,
    step: usize,
    skipped: usize,
    /// Number of seconds in which a thread needed all of its processor, and of all seconds.
    pub short_of_cpu: (u64, u64),
}

/// Maximum number of rows: two hours of seconds. Longer runs are drawn more coarsely.
const ROWS_MAX: usize = 7200;
/// CPU demand above which a thread counts as the bottleneck.
const DEMAND_MAX: f64 = 0.9;

impl Live {
    /// Opens the files, queries the broker and listens, as the options require.
    ///
    /// # Errors
    /// A file, broker or address that fails.
    pub fn new(scene: Scene, output: &Output) -> Result<Live, SetupError> {
        let brokers = Brokers::new(output)?;
        if let Some(page) = &output.html {
            // A page that cannot be written is reported before the run, not after it.
            std::fs::write(page, "").map_err(|error| SetupError::file(page, &error))?;
        }
        Ok(Live {
            scene,
            quiet: output.quiet,
            began: net::now(),
            at: net::now(),
            before: Counts::default(),
            ready_reported: false,
            bar: (!output.quiet && std::io::stderr().is_terminal()).then(|| Bar::new(scene)),
            csv: output.csv.as_deref().map(|path| Csv::new(path, &output.broker_counter)).transpose()?,
            exporter: output.prometheus.map(Exporter::new).transpose()?,
            brokers,
            rows: vec![],
            step: 1,
            skipped: 0,
            short_of_cpu: (0, 0),
        })
    }

    /// Shows and stores a second.
    pub fn tick(&mut self, tick: &Tick) {
        let now = net::now();
        if tick.settled && !self.ready_reported {
            self.ready_reported = true;
            self.report_ready(tick);
        }
        let seconds = now.saturating_sub(self.at).max(1) as f64 / 1e9;
        let (c, p) = (&tick.counts, &self.before);
        let per_s = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        let latency =
            [&tick.pulse.e2e, &tick.pulse.ack, &tick.pulse.ready].into_iter().find(|h| !h.is_empty());
        let (broker, figures) = self.brokers.look(seconds, *c != *p);
        let row = Row {
            at: (now - self.began) as f64 / 1e9,
            unix_ms: net::wall() / 1_000_000,
            connected: c.up,
            sent: per_s(c.sent, p.sent),
            acked: per_s(c.acked, p.acked),
            received: per_s(c.recv, p.recv),
            latency: latency.map(percentiles),
            errors: c.attempts_failed + c.disconnects + c.rejected,
            demand: tick.pulse.demand,
            broker,
            figures,
        };
        self.short_of_cpu.0 += u64::from(tick.pulse.demand > DEMAND_MAX);
        self.short_of_cpu.1 += 1;
        match &mut self.bar {
            Some(bar) => bar.draw(&row, c, tick.settled),
            None => print_status(self.quiet, format_args!("{}", self.line(&row, c))),
        }
        if let Some(csv) = &mut self.csv {
            csv.row(&row);
        }
        if let Some(exporter) = &mut self.exporter {
            exporter.publish(tick);
        }
        // An incomplete second at the end is in the file, and would look like a drop on the page.
        if seconds >= 0.5 || self.rows.is_empty() {
            self.keep(row);
        }
        self.before = c.clone();
        self.at = now;
    }

    /// Writes the last line on standard error. A file that could not be written is a problem of the run.
    pub fn end(&mut self) -> Vec<String> {
        if let Some(bar) = &mut self.bar {
            bar.clear();
        }
        self.csv.take().and_then(|csv| csv.end()).into_iter().collect()
    }

    /// Resources that the broker used, for the report: null without --broker-pid.
    pub fn brokers(&mut self) -> Value {
        self.brokers.report()
    }

    /// The stored seconds in the form of the report.
    pub fn timeline(&self) -> Value {
        let row = |r: &Row| {
            let latency = r.latency.unwrap_or_default();
            json!([
                round(r.at, 2),
                r.connected,
                r.sent.round(),
                r.acked.round(),
                r.received.round(),
                round(latency[0], 3),
                round(latency[2], 3),
                r.errors
            ])
        };
        Value::Array(self.rows.iter().map(row).collect())
    }

    fn keep(&mut self, row: Row) {
        self.skipped += 1;
        if self.skipped < self.step {
            return;
        }
        self.skipped = 0;
        self.rows.push(row);
        if self.rows.len() >= ROWS_MAX {
            let mut odd = false;
            self.rows.retain(|_| {
                odd = !odd;
                odd
            });
            self.step *= 2;
        }
    }

    fn report_ready(&mut self, tick: &Tick) {
        if let Some(bar) = &mut self.bar {
            bar.clear();
        }
        let what = if self.scene.subscribes { "connected and subscribed" } else { "connected" };
        let (count, failed) = (tick.counts.ready_subs + tick.counts.ready_pubs, tick.counts.failed);
        let seconds = tick.ready_s;
        print_status(self.quiet, format_args!("{count} clients {what} in {seconds:.3} s, {failed} failed"));
    }

    fn line(&self, row: &Row, c: &Counts) -> String {
        let mut line = format!("{:.0}s  up={}/{}", row.at, c.up, self.scene.clients);
        if self.scene.sends {
            line += &format!("  pub total={} rate={:.0}/s", c.sent, row.sent);
            if self.scene.qos > 0 {
                line += &format!("  acked total={} rate={:.0}/s", c.acked, row.acked);
            }
            if c.backlog > 0 {
                line += &format!("  overdue={}", c.backlog);
            }
        }
        if self.scene.receives {
            line += &format!("  recv total={} rate={:.0}/s", c.recv, row.received);
        }
        if let Some([p50, _, p99, _, max]) = row.latency {
            line += &format!("  ms p50={p50:.3} p99={p99:.3} max={max:.3}");
        }
        for (name, count) in [
            ("failed", c.failed),
            ("retried", c.attempts_failed.saturating_sub(c.failed)),
            ("disconnected", c.disconnects),
        ] {
            if count > 0 {
                line += &format!("  {name}={count}");
            }
        }
        line
    }
}

/// Sums the ticks of several processes; latencies are merged exactly.
pub fn join(ticks: &[Tick]) -> Tick {
    let mut all = Tick { settled: true, ..Tick::new() };
    for tick in ticks {
        all.counts.add(&tick.counts);
        all.pulse.add(&tick.pulse);
        all.settled &= tick.settled;
        all.ready_s = all.ready_s.max(tick.ready_s);
        all.at = all.at.max(tick.at);
    }
    all
}

fn percentiles(h: &Histogram<u64>) -> [f64; 5] {
    let ms = |ns: u64| ns as f64 / 1e6;
    let at = |quantile| ms(h.value_at_quantile(quantile));
    [at(0.5), at(0.9), at(0.99), at(0.999), ms(h.max())]
}
