//! Loads on brokers in alternation, round after round: on a shared machine only ratios within a run are meaningful.

use super::broker::{Broker, Kind};
use super::child;
use super::measure::{self, Figures, summary};
use super::workload::Workload;
use anyhow::{Result, bail};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// All runs of all loads.
#[derive(Default)]
pub struct Rounds(BTreeMap<(String, Kind), Vec<Figures>>);

impl Rounds {
    pub fn of(&self, load: &str, kind: Kind) -> &[Figures] {
        self.0.get(&(load.to_owned(), kind)).map_or(&[], |runs| runs)
    }

    pub fn add(&mut self, load: &str, kind: Kind, figures: Figures) {
        self.0.entry((load.to_owned(), kind)).or_default().push(figures);
    }

    pub fn all(&self) -> impl Iterator<Item = (&str, Kind, &[Figures])> {
        self.0.iter().map(|((load, kind), runs)| (&load[..], *kind, &runs[..]))
    }
}

/// Loads, brokers and rounds to measure.
pub struct Plan {
    pub workloads: Vec<Workload>,
    /// Brokers, Meridian first, where it is among them.
    pub kinds: Vec<Kind>,
    pub rounds: u32,
    /// Number of reactors of Meridian (`None`: its own).
    pub workers: Option<u32>,
}

impl Plan {
    /// Usual duration, without building.
    pub fn usual(&self) -> Duration {
        let round: u32 = self.workloads.iter().map(|load| load.usual_s).sum();
        Duration::from_secs(u64::from(round * self.rounds) * self.kinds.len() as u64)
    }

    /// Runs everything. A load that fails on a broker leaves its cell empty and a line in `failed`; the others
    /// continue. Ends early, with the results so far, when a signal arrives.
    pub fn measure(&self, failed: &mut Vec<String>) -> Rounds {
        let mut rounds = Rounds::default();
        let (mut number, began) = (0, Instant::now());
        let all = self.workloads.len() * self.kinds.len() * self.rounds as usize;
        for round in 0..self.rounds {
            for workload in &self.workloads {
                // The order of the brokers alternates from round to round.
                let mut order = self.kinds.clone();
                order.rotate_left(round as usize % self.kinds.len());
                for kind in order {
                    if child::interrupted() {
                        return rounds;
                    }
                    number += 1;
                    let (spent, name) = (began.elapsed().as_secs(), &workload.name);
                    eprintln!(
                        "[{number}/{all}, {spent} s] round {}/{}: {name} on {kind}",
                        round + 1,
                        self.rounds
                    );
                    match self.one(workload, kind, round, &mut rounds) {
                        Ok(figures) => rounds.add(name, kind, figures),
                        Err(error) => {
                            let error = format!("{name} on {kind}: {error:#}");
                            eprintln!("{error}");
                            failed.push(error);
                        }
                    }
                }
            }
        }
        rounds
    }

    fn one(&self, workload: &Workload, kind: Kind, round: u32, rounds: &mut Rounds) -> Result<Figures> {
        let rate = match workload.half_of {
            None => None,
            Some(load) => Some(self.maximum(load, kind, round, rounds)? / 2.0),
        };
        self.on_a_fresh_one(workload, kind, round, rate)
    }

    /// Deliveries per second of another load; it is measured now when it was not requested.
    fn maximum(&self, load: &str, kind: Kind, round: u32, rounds: &mut Rounds) -> Result<f64> {
        if rounds.of(load, kind).is_empty() {
            let Some(other) = super::workload::all(1, 1).into_iter().find(|other| other.name == load) else {
                bail!("there is no load {load}");
            };
            eprintln!("first: {load} on {kind}");
            let figures = self.on_a_fresh_one(&other, kind, round, None)?;
            rounds.add(load, kind, figures);
        }
        match summary(rounds.of(load, kind), |figures| figures.per_s) {
            Some(found) if found.median > 0.0 => Ok(found.median),
            _ => bail!("{load} delivered nothing"),
        }
    }

    /// Runs on a new process: earlier work of a process changes its memory and its speed.
    fn on_a_fresh_one(
        &self,
        workload: &Workload,
        kind: Kind,
        round: u32,
        rate: Option<f64>,
    ) -> Result<Figures> {
        let mut broker = Broker::start(kind, self.workers)?.settled()?;
        let figures = measure::run(workload, &broker, round, rate);
        if !broker.alive() {
            bail!("the broker ended by itself; its log ends with\n{}", broker.log_tail());
        }
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn runs_are_kept_by_load_and_broker() {
        let mut rounds = Rounds::default();
        for per_s in [1.0, 2.0] {
            rounds.add("a", Kind::Meridian, Figures { per_s: Some(per_s), ..Figures::default() });
        }
        assert_eq!(rounds.of("a", Kind::Meridian).len(), 2);
        assert!(rounds.of("a", Kind::Mosquitto).is_empty() && rounds.of("b", Kind::Meridian).is_empty());
        assert_eq!(rounds.all().map(|(load, _, runs)| (load, runs.len())).collect::<Vec<_>>(), [("a", 2)]);
    }

    #[test]
    fn half_of_a_measured_rate_is_taken_from_the_median() {
        let plan = Plan { workloads: vec![], kinds: vec![Kind::Meridian], rounds: 1, workers: None };
        let mut rounds = Rounds::default();
        for per_s in [100.0, 300.0, 1000.0] {
            rounds.add("fan-in", Kind::Meridian, Figures { per_s: Some(per_s), ..Figures::default() });
        }
        assert_eq!(plan.maximum("fan-in", Kind::Meridian, 0, &mut rounds).unwrap(), 300.0);
        assert!(plan.maximum("no-such-load", Kind::Meridian, 0, &mut rounds).is_err());
    }
}
