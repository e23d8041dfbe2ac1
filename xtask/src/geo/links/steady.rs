//! A steady load: half of what the line carries, all of it, and twice that.

use anyhow::{Result, ensure};

use super::judge::drive;
use super::pair::{Pair, Watch};
use super::{EAST, Setup, WEST, count, figure};
use crate::bench::child::interrupted;

/// Share of the excess that may wait at twice the line's rate, so that the rest must be dropped.
const QUEUE_SHARE: f64 = 0.25;

pub fn run(setup: &Setup) -> Result<()> {
    println!(
        "Steady load: 20 publishers at one cluster, 4 durable subscribers at the other one, {} s each. `missing` were",
        setup.seconds
    );
    println!(
        "acknowledged or sent and never arrived, `dropped` is the counter of the link. The queue has room for this many"
    );
    println!("messages; `-` is the default.\n");
    println!(
        "| QoS | offered | messages/s | arrived/s | queue | sent | arrived | missing | dropped | twice | out of order | p50, ms | p99, ms | CPU us a message, giving | taking | bytes a message on the line | in the other direction | unsent |"
    );
    println!(
        "| ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |"
    );
    let mut problems = Vec::new();
    for qos in &setup.args.qos {
        for offered in &setup.args.offered {
            let said = one(setup, *qos, *offered).unwrap_or_else(|error| Some(format!("{error:#}")));
            problems.extend(said.map(|said| format!("QoS {qos} at {offered}x: {said}")));
            ensure!(!interrupted(), "interrupted; {}", problems.join("; "));
        }
    }
    ensure!(problems.is_empty(), "{}", problems.join("; "));
    Ok(())
}

/// Prints a row. Returns what is wrong with it.
fn one(setup: &Setup, qos: u8, offered: f64) -> Result<Option<String>> {
    let lab = setup.lab()?;
    let fits = setup.fits(&lab)?;
    let excess = (offered - 1.0).max(0.0) * fits * f64::from(setup.seconds);
    let queue = setup.args.queue_messages.or((excess > 0.0).then_some((excess * QUEUE_SHARE) as u32 + 1));
    let pair = Pair::start(&lab, setup, setup.links(queue))?;
    let load = pair.load(setup, qos, offered * fits, (setup.seconds, setup.seconds * 2 + 120))?;
    let cpu = |pair: &Pair| Ok::<_, anyhow::Error>((pair.west.cpu_s()?, pair.east.cpu_s()?));
    let line = || Ok::<_, anyhow::Error>((lab.carried(WEST, EAST)?, lab.carried(EAST, WEST)?));
    let (cpu_before, line_before) = (cpu(&pair)?, line()?);
    let mut watch = Watch::default();
    let report = drive(&lab, setup.mqload, &load, |_| {
        watch.look(&pair);
        Ok(watch.is_idle())
    })?;
    let (cpu_after, line_after) = (cpu(&pair)?, line()?);
    watch.look(&pair);
    setup.keep(&format!("steady-{qos}-{offered}"), &report)?;
    let [sent, arrived] = [count(&report, "/totals/sent")?, count(&report, "/totals/unique")?];
    let [missing, twice, late] =
        [count(&report, "/lost")?, count(&report, "/duplicated")?, count(&report, "/out_of_order")?];
    let unsent = count(&report, "/totals/unsent_backlog")?;
    let each = |sum: f64| sum / arrived.max(1) as f64;
    let ms = |path: &str| figure(&report, path) / 1e3;
    println!(
        "| {qos} | {offered}x | {:.0} | {:.0} | {} | {sent} | {arrived} | {missing} | {} | {twice} | {late} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {:.1} | {unsent} |",
        load.rate,
        figure(&report, "/received_per_s"),
        queue.map_or("-".to_owned(), |queue| queue.to_string()),
        watch.dropped() + watch.not_taken(),
        ms("/latency_us/p50"),
        ms("/latency_us/p99"),
        each(cpu_after.0 - cpu_before.0) * 1e6,
        each(cpu_after.1 - cpu_before.1) * 1e6,
        each((line_after.0 - line_before.0) as f64),
        each((line_after.1 - line_before.1) as f64)
    );
    let account =
        Account { qos, arrived, missing, dropped: watch.dropped() + watch.not_taken(), twice, late };
    Ok(account.problem(offered <= 1.0 && unsent == 0))
}

/// Numbers of the messages of a load, by fate.
#[derive(Clone, Copy)]
pub struct Account {
    pub qos: u8,
    pub arrived: u64,
    pub missing: u64,
    pub dropped: u64,
    pub twice: u64,
    pub late: u64,
}

impl Account {
    /// Returns the rules that the link has broken. A load that `fits` may lose nothing at all.
    pub fn problem(&self, fits: bool) -> Option<String> {
        let Self { qos, arrived, missing, dropped, twice, late } = *self;
        let said = [
            (arrived == 0).then(|| "nothing arrived".to_owned()),
            (missing != dropped)
                .then(|| format!("{missing} messages are missing and {dropped} were dropped")),
            (fits && dropped > 0).then(|| format!("{dropped} messages were dropped from a load that fits")),
            (qos == 2 && twice > 0).then(|| format!("{twice} messages arrived twice at QoS 2")),
            (late > 0).then(|| format!("{late} messages arrived out of order")),
        ];
        let said: Vec<String> = said.into_iter().flatten().collect();
        (!said.is_empty()).then(|| said.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_missing_message_has_to_be_counted() {
        let good = Account { qos: 2, arrived: 9, missing: 3, dropped: 3, twice: 0, late: 0 };
        assert_eq!(good.problem(false), None);
        assert!(good.problem(true).is_some(), "a load that fits drops nothing");
        for bad in [
            Account { arrived: 0, ..good },
            Account { missing: 4, ..good },
            Account { dropped: 4, ..good },
            Account { twice: 1, ..good },
            Account { late: 1, ..good },
        ] {
            assert!(bad.problem(false).is_some());
        }
        assert_eq!(Account { qos: 1, twice: 1, ..good }.problem(false), None, "QoS 1 may repeat");
    }
}
