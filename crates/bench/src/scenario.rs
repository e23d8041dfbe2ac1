//! `meridian bench --scenario FILE`: groups of clients with their own behaviour, in stages, in this process, in
//! several, or at agents. `file` is the format, `plan` the conversion to plans, `stages` the results by stage. Read
//! [`plan::Scenario`] first.

mod file;
mod plan;
mod stages;
mod values;

use crate::config::SetupError;
use crate::live::{Live, Scene, page};
use crate::plan::{Kind, Output};
use crate::progress::print_status;
use crate::run::done::Done;
use crate::run::familiar::{About, report};
use crate::run::{processes, summary};
use plan::{CommandLineOverrides, Scenario};
use serde_json::{Value, json};
use stages::Stages;
use std::path::PathBuf;

/// Options of the command line.
#[derive(Debug)]
pub struct Options {
    pub file: PathBuf,
    /// Hosts that replace those of the file.
    pub hosts: Vec<String>,
    /// True to print the plan without running it.
    pub check: bool,
    pub output: Output,
}

/// Runs, prints the result, writes the page and returns the exit code.
///
/// # Errors
/// The run could not start.
pub fn run(options: Options) -> Result<i32, SetupError> {
    let Options { file, hosts, check, output } = options;
    let said = CommandLineOverrides { hosts, output: output.clone() };
    let scenario = Scenario::read(&file, &said)?;
    if check {
        summary::print_lines(&outline(&scenario));
        return Ok(0);
    }
    let plans: Vec<_> = scenario.groups.iter().map(|group| group.plan.clone()).collect();
    let (members, _children) = processes::gather(&plans, &output, output.processes)?;
    let mut live = Live::new(scene(&scenario), &output)?;
    let mut stages = Stages::new(&scenario);
    let mut stage_reported = None;
    let mut each = |group: usize, tick: &crate::live::Tick, before: &crate::counters::Counts| {
        stages.add(&scenario, group, tick, before);
        let stage = scenario.stage_at(tick.at);
        if tick.at > 0.0 && stage_reported.is_none_or(|said| said < stage) {
            stage_reported = Some(stage);
            print_status(output.quiet, format_args!("stage {}", scenario.stages[stage].name));
        }
    };
    let dones = members.run_until_done(&mut live, &mut each)?;
    let (report, code) = finish(&scenario, dones, &stages, &mut live, &output);
    summary::print(&report.0, output.json);
    if let Some(path) = &output.html {
        let text = page::page(&report.0, &live.rows, &output, &report.1);
        std::fs::write(path, text).map_err(|error| SetupError::file(path, &error))?;
    }
    Ok(code)
}

fn scene(scenario: &Scenario) -> Scene {
    let plans = || scenario.groups.iter().map(|group| &group.plan);
    Scene {
        clients: plans().map(|plan| plan.clients.count as u64).sum(),
        sends: plans().any(|plan| plan.kind == Kind::Pub),
        receives: plans().any(|plan| plan.kind == Kind::Sub || !plan.also.topics.is_empty()),
        subscribes: false,
        qos: plans()
            .map(|plan| if plan.kind == Kind::Pub { plan.messages.qos } else { 0 })
            .max()
            .unwrap_or(0),
        seconds: Some(scenario.stages.iter().map(|stage| stage.seconds).sum::<u64>() as f64),
        messages: 0,
    }
}

/// Describes a scenario, one line for each group and stage.
fn outline(scenario: &Scenario) -> Vec<String> {
    let mut lines = vec![scenario.title.clone()];
    for stage in &scenario.stages {
        lines.push(format!("stage {}: {} s", stage.name, stage.seconds));
    }
    for group in &scenario.groups {
        let plan = &group.plan;
        let does = match plan.kind {
            Kind::Pub => {
                let rates = scenario.stages.iter().zip(&group.target_rates);
                let rates: Vec<String> = rates
                    .filter_map(|(stage, rate)| rate.map(|rate| format!("{} {rate}/s", stage.name)))
                    .collect();
                format!(
                    "publish {} at QoS {} {}",
                    plan.messages.topics.join(","),
                    plan.messages.qos,
                    rates.join(", ")
                )
            }
            Kind::Sub => format!("subscribe to {}", plan.messages.topics.join(",")),
            _ => "stay connected".to_owned(),
        };
        lines.push(format!("group {}: {} clients {does}", group.name, plan.clients.count));
    }
    lines
}

type Finished = (Value, crate::latency::Hists);

fn finish(
    scenario: &Scenario,
    dones: Vec<Done>,
    stages: &Stages,
    live: &mut Live,
    output: &Output,
) -> (Finished, i32) {
    let mut all = Done::nothing();
    let mut groups = vec![];
    for (number, (group, done)) in scenario.groups.iter().zip(dones).enumerate() {
        let c = &done.counts;
        groups.push(json!({
            "group": group.name, "clients": group.plan.clients.count, "connected": c.ready_subs + c.ready_pubs,
            "failed": c.failed, "disconnects": c.disconnects, "left": c.left, "reconnects": c.reconnects,
            "sent": c.sent, "acked": c.acked, "received": c.recv, "rejected": c.rejected,
            "missing": c.gaps, "latency_us": crate::report::lat(&done.hists.e2e),
            "stages": stages.report(scenario, number),
        }));
        all.add(done);
    }
    all.problems.extend(live.end());
    all.processes = output.agents.agents.len().max(output.processes) as u64;
    let mut hosts: Vec<String> = vec![];
    for host in scenario.groups.iter().flat_map(|group| &group.plan.target.hosts) {
        if !hosts.contains(host) {
            hosts.push(host.clone());
        }
    }
    let scene = scene(scenario);
    let about = About {
        command: "scenario",
        hosts: &hosts,
        version: 0,
        output,
        qos: scene.qos,
        payload: None,
        received_is_sent: false,
        timed: !all.hists.e2e.is_empty(),
        limit: 0,
    };
    let (mut report, code) = report(&about, &all, live);
    if let Some(object) = report.as_object_mut() {
        object.insert("title".into(), json!(scenario.title));
        object.insert("agents".into(), json!(output.agents.agents));
        object.insert("groups".into(), Value::Array(groups));
    }
    ((report, all.hists), code)
}
