//! `cargo xtask storm`: the latency of connected clients while others try wrong passwords, and without them, in
//! alternation.

use super::broker::{Broker, Directory, Kind, meridian};
use super::child;
use super::measure::{self, Figures, cell};
use super::workload;
use anyhow::{Context, Result, bail, ensure};
use socket2::{Domain, Socket, Type};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering::Relaxed};
use std::time::Duration;

#[derive(clap::Args)]
pub struct Args {
    /// Maximum number of wrong logins while a load runs
    #[arg(long, default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    logins: u32,
    /// Measured seconds of each load, after one second of warm-up
    #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=600))]
    seconds: u32,
    /// Number of runs of each measurement
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=99))]
    rounds: u32,
}

/// Load of 50 pairs, 2,000 messages a second, QoS 1.
const LOAD: &str = "latency";
const USER: &str = "good";
const PASSWORD: &str = "correct horse";
/// Number of threads that try passwords, each with one connection at a time.
const THREADS: u32 = 16;

/// Origin of the wrong passwords.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attack {
    Nobody,
    /// All from an address without good clients: it is soon refused without a hash.
    OneAddress,
    /// Each from another of 1,000 addresses, as another user.
    ManyAddresses,
}

impl Attack {
    const ALL: [Attack; 3] = [Attack::Nobody, Attack::OneAddress, Attack::ManyAddresses];

    fn name(self) -> &'static str {
        match self {
            Attack::Nobody => "nobody",
            Attack::OneAddress => "one address, many user names",
            Attack::ManyAddresses => "1,000 addresses, many user names",
        }
    }

    fn address(self, number: u32) -> Ipv4Addr {
        match self {
            Attack::Nobody | Attack::OneAddress => Ipv4Addr::new(127, 9, 9, 9),
            Attack::ManyAddresses => {
                Ipv4Addr::new(127, 10, (number / 250 % 4) as u8, (number % 250 + 1) as u8)
            }
        }
    }
}

pub fn run(args: &Args) -> Result<()> {
    super::build(&[Kind::Meridian])?;
    child::catch_signals();
    let directory = Directory::new()?;
    let users = directory.join("users");
    let made = Command::new(meridian())
        .args(["passwd", "--create", "--batch"])
        .arg(&users)
        .args([USER, PASSWORD])
        .status()
        .context("meridian passwd")?;
    ensure!(made.success(), "meridian passwd failed");
    let mut load = workload::all(args.seconds, 1).into_iter().find(|load| load.name == LOAD).context(LOAD)?;
    load.arguments.extend(["-u", USER, "-P", PASSWORD].map(str::to_owned));
    let mut rows: Vec<(Attack, Vec<Figures>, u64)> = Attack::ALL.map(|attack| (attack, Vec::new(), 0)).into();
    for round in 0..args.rounds {
        for at in 0..rows.len() {
            let row = (at + round as usize) % Attack::ALL.len();
            let (attack, runs, refused) = &mut rows[row];
            eprintln!("round {}/{}: {}", round + 1, args.rounds, attack.name());
            // A new broker each time: it remembers failed logins.
            let mut broker = Broker::start_with_users(&users)?;
            let stop = AtomicBool::new(false);
            let (figures, count) = std::thread::scope(|scope| {
                let storm = scope.spawn(|| storm(*attack, args.logins, broker.address, &stop));
                let figures = measure::run(&load, &broker, round, None);
                stop.store(true, Relaxed);
                (figures, storm.join().expect("the attackers do not panic"))
            });
            runs.push(figures?);
            *refused += u64::from(count?);
            ensure!(broker.alive(), "the broker ended by itself; its log ends with\n{}", broker.log_tail());
            if child::interrupted() {
                bail!("interrupted");
            }
        }
    }
    print(args, &rows);
    Ok(())
}

/// Tries passwords until it is stopped or all are tried; returns how many were refused.
fn storm(attack: Attack, logins: u32, broker: SocketAddr, stop: &AtomicBool) -> Result<u32> {
    if attack == Attack::Nobody {
        return Ok(0);
    }
    // The good clients connect first.
    std::thread::sleep(Duration::from_millis(500));
    let (next, refused) = (AtomicU32::new(0), AtomicU32::new(0));
    std::thread::scope(|scope| {
        let attackers: Vec<_> = (0..THREADS)
            .map(|_| {
                scope.spawn(|| -> Result<()> {
                    loop {
                        let number = next.fetch_add(1, Relaxed);
                        if number >= logins || stop.load(Relaxed) {
                            return Ok(());
                        }
                        ensure!(
                            is_refused(attack.address(number), number, broker)?,
                            "a wrong password was accepted"
                        );
                        refused.fetch_add(1, Relaxed);
                    }
                })
            })
            .collect();
        attackers.into_iter().try_for_each(|attacker| attacker.join().expect("the attacker does not panic"))
    })?;
    Ok(refused.into_inner())
}

fn is_refused(from: Ipv4Addr, number: u32, broker: SocketAddr) -> Result<bool> {
    let socket = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    socket.bind(&SocketAddr::from((from, 0)).into())?;
    socket.connect_timeout(&broker.into(), Duration::from_secs(30))?;
    socket.set_read_timeout(Some(Duration::from_secs(30)))?;
    let mut stream = TcpStream::from(socket);
    let mut body = b"\x00\x04MQTT\x04\xC2\x00\x3C".to_vec();
    for text in [format!("c{number}"), format!("u{number}"), "wrong".to_owned()] {
        body.extend((text.len() as u16).to_be_bytes());
        body.extend(text.as_bytes());
    }
    let mut connect = vec![0x10, body.len() as u8];
    connect.append(&mut body);
    // A connection that is closed at once counts as refused.
    if stream.write_all(&connect).is_err() {
        return Ok(true);
    }
    let mut connack = [0; 4];
    Ok(!matches!(stream.read_exact(&mut connack), Ok(()) if connack[3] == 0))
}

fn print(args: &Args, rows: &[(Attack, Vec<Figures>, u64)]) {
    let Args { logins, seconds, rounds } = args;
    println!(
        "`cargo xtask storm --logins {logins} --seconds {seconds} --rounds {rounds}`: 50 pairs with a password, 2,000 messages/s, \
         QoS 1; median (lowest-highest) of {rounds} rounds.\n"
    );
    println!("| wrong passwords from | p50 us | p99 us | lost | refused in all |\n|---|---|---|---|---|");
    for (attack, runs, refused) in rows {
        let lost: f64 = runs.iter().filter_map(|run| run.lost).sum();
        println!(
            "| {} | {} | {} | {lost:.0} | {refused} |",
            attack.name(),
            cell(runs, 0, |run| run.p50_us),
            cell(runs, 0, |run| run.p99_us)
        );
    }
}
