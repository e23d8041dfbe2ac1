//! Bytes on the line when one of 100 topics is wanted, next to a bridge that takes everything.

use anyhow::{Result, ensure};
use std::time::Duration;

use super::judge::{drive, exchanged};
use super::pair::{Means, Pair, Watch, addresses};
use super::{EAST, Setup, WEST, count};

const TOPICS: u32 = 100;
/// Load in multiples of what the line carries.
const OFFERED: f64 = 0.5;
/// Maximum time until the bridge carries messages.
const BRIDGED: Duration = Duration::from_secs(60);

pub fn run(setup: &Setup) -> Result<()> {
    println!(
        "Interest: {TOPICS} publishers with a topic each, {OFFERED}x for {} s at QoS 1, and a subscriber to one of the topics.\n",
        setup.seconds
    );
    println!(
        "| means | messages/s published | wanted | arrived | missing | kB on the line | in the other direction | of the bridge |"
    );
    println!("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    let bridge = one(setup, Means::Bridge)?;
    let link = one(setup, setup.links(None))?;
    let share = |run: &Run| (run.there + run.back) as f64 / (bridge.there + bridge.back).max(1) as f64;
    for (name, run) in [("bridge with `+/#`", &bridge), ("link", &link)] {
        println!(
            "| {name} | {:.0} | {} | {} | {} | {:.1} | {:.1} | {:.1} % |",
            run.rate,
            run.arrived + run.missing,
            run.arrived,
            run.missing,
            run.there as f64 / 1e3,
            run.back as f64 / 1e3,
            100.0 * share(run)
        );
    }
    for (name, run) in [("bridge", &bridge), ("link", &link)] {
        ensure!(run.arrived > 0 && run.missing == 0, "{name}: {} messages are missing", run.missing);
    }
    ensure!(share(&link) < 1.0, "the link sent no less than the bridge");
    Ok(())
}

struct Run {
    rate: f64,
    arrived: u64,
    missing: u64,
    /// Bytes on the line, from `west` and to it.
    there: u64,
    back: u64,
}

fn one(setup: &Setup, means: Means) -> Result<Run> {
    let lab = setup.lab()?;
    let pair = Pair::start(&lab, setup, means)?;
    exchanged(&lab, setup.mqload, addresses(&lab, WEST)?[0], addresses(&lab, EAST)?[0], BRIDGED)?;
    let mut load =
        pair.load(setup, 1, OFFERED * setup.fits(&lab)?, (setup.seconds, setup.seconds * 2 + 60))?;
    load.clients = (TOPICS, 1, "fan-out");
    let line = || Ok::<_, anyhow::Error>((lab.carried(WEST, EAST)?, lab.carried(EAST, WEST)?));
    let before = line()?;
    let mut watch = Watch::default();
    let report = drive(&lab, setup.mqload, &load, |_| match means {
        // What waits for a bridge is in a session of `west`: silence has to do.
        Means::Bridge => Ok(true),
        Means::Links { .. } => {
            watch.look(&pair);
            Ok(watch.is_idle())
        }
    })?;
    let after = line()?;
    setup.keep(if means == Means::Bridge { "interest-bridge" } else { "interest-link" }, &report)?;
    Ok(Run {
        rate: load.rate,
        arrived: count(&report, "/totals/unique")?,
        missing: count(&report, "/lost")?,
        there: after.0 - before.0,
        back: after.1 - before.1,
    })
}
