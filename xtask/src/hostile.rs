//! `cargo xtask hostile`: effect of one hostile client on all others. Each attack has a new broker, a bounded time,
//! and witnesses: ordinary clients whose longest wait is printed next to the broker's memory. No wait has a limit
//! here. An attack fails when a witness was refused, lost its connection or lost a message, or when the broker ended.

mod attacks;
mod wire;
mod witness;

use crate::bench::broker::{Directory, free_address};
use crate::bench::child::{self, Guarded};
use crate::repository::root;
use anyhow::{Context, Result, bail, ensure};
use attacks::{ATTACKS, Attack};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use witness::{Felt, Witnesses};

#[derive(clap::Args)]
pub struct Args {
    /// Program to attack (default: the release build of this tree, which is built first)
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Run only these attacks (may be given several times)
    #[arg(long, value_name = "NAME", value_parser = attacks::names())]
    only: Vec<String>,
    /// Maximum time of an attack, in seconds
    #[arg(long, default_value_t = 15, value_parser = clap::value_parser!(u64).range(1..=300))]
    seconds: u64,
}

/// A broker that is attacked.
pub struct Victim {
    pub mqtt: SocketAddr,
    pub http: SocketAddr,
    /// Time at which the attack must end.
    pub until: Instant,
}

impl Victim {
    /// Returns whether the attack may continue.
    pub fn goes_on(&self) -> bool {
        Instant::now() < self.until && !child::interrupted()
    }
}

pub fn run(args: &Args) -> Result<()> {
    let program = match &args.program {
        Some(program) => program.clone(),
        None => {
            crate::chaos::target::build(false, true)?;
            root().join("target/release/meridian")
        }
    };
    child::catch_signals();
    let chosen =
        ATTACKS.iter().filter(|it| args.only.is_empty() || args.only.iter().any(|name| name == it.name));
    println!(
        "{:<20} {:>9} {:>9} {:>9} {:>9} {:>12}  of the attack",
        "attack", "ping", "PUBACK", "CONNECT", "/health", "memory, MiB"
    );
    let (mut passed, mut failed) = (0, 0);
    for attack in chosen {
        ensure!(!child::interrupted(), "interrupted");
        match one(attack, &program, args.seconds).with_context(|| attack.name) {
            Ok(row) => {
                println!("{row}");
                passed += 1;
            }
            Err(error) => {
                println!("{:<20} FAILED: {error:#}", attack.name);
                failed += 1;
            }
        }
    }
    println!("longest waits of others in ms; memory before -> most");
    println!("{passed} passed, {failed} failed");
    ensure!(failed == 0, "{failed} attacks affected other clients");
    Ok(())
}

fn one(attack: &Attack, program: &PathBuf, seconds: u64) -> Result<String> {
    let directory = Directory::new()?;
    std::fs::create_dir_all(directory.join(""))?;
    let (mqtt, http) = (free_address()?, free_address()?);
    let log = std::fs::File::create(directory.join("log"))?;
    let mut command = Command::new(program);
    command.args(["start", "--listen", &mqtt.to_string(), "--http", &http.to_string(), "--workers", "2"]);
    command.arg("--data-dir").arg(directory.join("data")).args(attack.arguments);
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
    let mut broker = Guarded::spawn(&mut command)?;
    child::until(Duration::from_secs(30), || TcpStream::connect(mqtt).ok()).context("it does not listen")?;
    let witnesses = Witnesses::start(mqtt, http, broker.id())?;
    let victim = Victim { mqtt, http, until: Instant::now() + Duration::from_secs(seconds) };
    let done = (attack.run)(&victim);
    let felt = witnesses.end();
    if broker.ended().is_some() {
        let text = std::fs::read_to_string(directory.join("log")).unwrap_or_default();
        bail!("the broker ended; its log ends with\n{}", text.lines().last().unwrap_or_default());
    }
    let Felt { ping, puback, connect, health, before, most } = felt?;
    let ms = |time: Duration| format!("{:.1}", time.as_secs_f64() * 1e3);
    Ok(format!(
        "{:<20} {:>9} {:>9} {:>9} {:>9} {:>12}  {}",
        attack.name,
        ms(ping),
        ms(puback),
        ms(connect),
        ms(health),
        format!("{} -> {}", before >> 20, most >> 20),
        done?
    ))
}
