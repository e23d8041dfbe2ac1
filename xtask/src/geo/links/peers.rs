//! Other brokers on the same line: mosquitto with a bridge, and NATS with a leaf node. They have one node on each side.

use anyhow::{Context, Result, ensure};
use lab::Lab;
use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use super::cut::{cut_line, length};
use super::judge::{Load, drive, exchanged};
use super::{EAST, Setup, WEST, count, figure};
use crate::bench::broker::Kind;
use crate::bench::child::Guarded;
use crate::bench::mosquitto::{self, Persistence};
use crate::bench::recipe;
use crate::geo::cluster::MQTT;

/// Load in multiples of what the line carries.
const OFFERED: f64 = 0.5;
/// Second of the load at which the line is cut.
const CUT_AT: u64 = 10;
/// Ports of NATS for its own clients and for leaf nodes.
const NATS: u16 = 4222;
const LEAF: u16 = 7422;
/// Maximum time until messages are exchanged.
const START: Duration = Duration::from_secs(60);
/// Time without deliveries after which the rest is missing: a connection that TCP repeats after a minute of silence has
/// the time to do so, and a Keep Alive to run out.
const STILL: Duration = Duration::from_secs(150);

/// Name with the version, and the processes of `west` and `east`.
type Started = (String, [Guarded; 2]);
type Start = fn(&Lab, &Path) -> Result<Started>;

const PEERS: [(&str, Start); 2] = [("mosquitto", mosquitto_bridge), ("nats", nats_leaf)];

pub fn run(setup: &Setup) -> Result<()> {
    println!(
        "Other brokers: one node on each side, {OFFERED}x, steady for {} s and with a cut of {} s after {CUT_AT} s.\n",
        setup.seconds, setup.args.cut
    );
    println!(
        "| broker | QoS | line | messages/s | arrived/s | sent | arrived | missing | twice | out of order | p99, ms |"
    );
    println!("| --- | ---: | --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: | ---: |");
    let mut problems = Vec::new();
    for (name, start) in PEERS {
        if let Err(error) = installed(name) {
            println!("| {name} | skipped: {error:#} | | | | | | | | | |");
            continue;
        }
        for qos in &setup.args.qos {
            for is_cut in [false, true] {
                if let Err(error) = one(setup, start, *qos, is_cut) {
                    problems.push(format!("{name}, QoS {qos}: {error:#}"));
                }
            }
        }
    }
    ensure!(problems.is_empty(), "{}", problems.join("; "));
    Ok(())
}

fn installed(name: &str) -> Result<()> {
    match name {
        "mosquitto" => {
            mosquitto::program().map(drop).context("it is not installed (apt-get install mosquitto)")
        }
        _ => nats()?.ensure_there(std::env::var_os("CI").is_none()),
    }
}

fn nats() -> Result<recipe::Recipe> {
    recipe::built_in().into_iter().find(|recipe| recipe.name == "nats").context("a recipe")
}

fn one(setup: &Setup, start: Start, qos: u8, is_cut: bool) -> Result<()> {
    let lab = setup.lab()?;
    let directory = setup.directory.join("peer");
    let _ = fs::remove_dir_all(&directory);
    fs::create_dir_all(&directory)?;
    let (name, _processes) = start(&lab, &directory)?;
    let [west, east] = [address(&lab, WEST, MQTT)?, address(&lab, EAST, MQTT)?];
    exchanged(&lab, setup.mqload, west, east, START)?;
    let cut = if is_cut { setup.args.cut } else { 0 };
    let (seconds, drain) = if is_cut { length(cut) } else { (setup.seconds, setup.seconds * 2 + 180) };
    let rate = OFFERED * setup.fits(&lab)?;
    let load = Load {
        publish_to: vec![west],
        subscribe_to: vec![east],
        version: 4,
        qos,
        payload: setup.args.payload,
        rate,
        seconds,
        clients: (20, 4, "fan-in"),
        drain,
        still: STILL,
    };
    let (begin, end) = (Duration::from_secs(CUT_AT), Duration::from_secs(CUT_AT + u64::from(cut)));
    let (mut was_cut, mut was_healed) = (!is_cut, !is_cut);
    let report = drive(&lab, setup.mqload, &load, |elapsed| {
        if !was_cut && elapsed >= begin {
            was_cut = true;
            cut_line(&lab)?;
        }
        if !was_healed && elapsed >= end {
            was_healed = true;
            lab.heal()?;
        }
        Ok(was_healed)
    })?;
    let line = if is_cut { format!("cut for {cut} s") } else { "steady".to_owned() };
    setup.keep(&format!("peer-{}-{qos}-{cut}s", name.split(' ').next().unwrap_or_default()), &report)?;
    println!(
        "| {name} | {qos} | {line} | {rate:.0} | {:.0} | {} | {} | {} | {} | {} | {:.1} |",
        figure(&report, "/received_per_s"),
        count(&report, "/totals/sent")?,
        count(&report, "/totals/unique")?,
        count(&report, "/lost")?,
        count(&report, "/duplicated")?,
        count(&report, "/out_of_order")?,
        figure(&report, "/latency_us/p99") / 1e3
    );
    Ok(())
}

/// Address of the only node of a side.
fn address(lab: &Lab, site: &str, port: u16) -> Result<SocketAddr> {
    Ok((lab.address(&host(site))?, port).into())
}

fn host(site: &str) -> String {
    format!("{site}1")
}

fn spawn(lab: &Lab, directory: &Path, site: &str, program: &Path, config: &str) -> Result<Guarded> {
    let path = directory.join(format!("{site}.conf"));
    fs::write(&path, config).with_context(|| path.display().to_string())?;
    let log = fs::File::create(directory.join(format!("{site}.log")))?;
    let mut command = Command::new(program);
    command.arg("-c").arg(&path).current_dir(directory);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    lab.enter_host(&host(site), &mut command)?;
    Guarded::spawn(&mut command)
}

/// The bridge of `east` subscribes at `west`, with a session that stays. Queues are in memory.
fn mosquitto_bridge(lab: &Lab, directory: &Path) -> Result<Started> {
    let program = mosquitto::program().context("not installed")?;
    let [west, east] = [address(lab, WEST, MQTT)?, address(lab, EAST, MQTT)?];
    let bridge = format!(
        "connection west\naddress {west}\nremote_clientid east\ntopic # in 2\ncleansession false\nnotifications false\n\
         restart_timeout 1\nkeepalive_interval 30\n"
    );
    let config =
        |address, more: &str| mosquitto::config(&mosquitto::listener(address), Persistence::Off) + more;
    let west = spawn(lab, directory, WEST, &program, &config(west, ""))?;
    let east = spawn(lab, directory, EAST, &program, &config(east, &bridge))?;
    Ok((format!("{}, bridge", Kind::Mosquitto.version()), [west, east]))
}

/// A leaf node at `east` whose MQTT sessions are in JetStream at `west`.
fn nats_leaf(lab: &Lab, directory: &Path) -> Result<Started> {
    let recipe = nats()?;
    let program = recipe.program().context("not installed")?;
    let config = |site: &str, more: &str, mqtt: &str| {
        let [own, mqtt_address] = [address(lab, site, NATS)?, address(lab, site, MQTT)?];
        Ok::<_, anyhow::Error>(format!(
            "server_name: {site}\nlisten: \"{own}\"\nmax_connections: 100000\n{more}\n\
             mqtt {{ listen: \"{mqtt_address}\", max_ack_pending: 32767{mqtt} }}\n"
        ))
    };
    let leaf = address(lab, WEST, LEAF)?;
    let hub = format!(
        "jetstream {{ store_dir: \"{}\", domain: hub }}\nleafnodes {{ listen: \"{leaf}\" }}",
        directory.join("jetstream").display()
    );
    let remote = format!("leafnodes {{ remotes: [ {{ url: \"nats-leaf://{leaf}\" }} ] }}");
    let west = spawn(lab, directory, WEST, &program, &config(WEST, &hub, "")?)?;
    let east = spawn(lab, directory, EAST, &program, &config(EAST, &remote, ", js_domain: hub")?)?;
    Ok((format!("{}, leaf node", recipe.version()), [west, east]))
}
