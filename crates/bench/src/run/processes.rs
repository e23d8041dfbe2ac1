//! A run in several processes: each drives its share of the clients, and this one joins what they say.

use super::done::Done;
use super::share::{Said, Told};
use super::{interrupted, nap};
use crate::config::SetupError;
use crate::live::{Live, Tick, join};
use crate::net;
use crate::plan::Plan;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

/// One process and what it said last.
pub(super) struct Member {
    pub name: String,
    pub to: Box<dyn Write + Send>,
    pub latest: Option<Tick>,
    /// Latencies that came since the last second was shown.
    pub fresh: Vec<Tick>,
    pub settled: bool,
    pub done: Option<Done>,
    pub over: bool,
}

/// Lines that wait to be joined; beyond it the processes wait.
const LINES_MAX: usize = 1024;

pub(super) type Lines = (SyncSender<(usize, Option<Said>)>, Receiver<(usize, Option<Said>)>);

pub(super) fn lines() -> Lines {
    sync_channel(LINES_MAX)
}

/// Reads what member `index` says until it ends, in a thread of its own.
pub(super) fn listen(
    index: usize,
    from: impl BufRead + Send + 'static,
    to: SyncSender<(usize, Option<Said>)>,
) {
    std::thread::spawn(move || {
        for line in from.lines() {
            let Ok(Ok(said)) = line.map(|line| serde_json::from_str::<Said>(&line)) else { break };
            if to.send((index, Some(said))).is_err() {
                return;
            }
        }
        // Nobody listens when the run is over.
        let _ = to.send((index, None));
    });
}

impl Member {
    pub fn new(name: String, to: Box<dyn Write + Send>) -> Member {
        Member { name, to, latest: None, fresh: vec![], settled: false, done: None, over: false }
    }

    /// Sends a line. A member that is gone is noticed by its silence.
    pub fn tell(&mut self, told: Told) {
        let line = serde_json::to_string(&told).expect("a word is JSON") + "\n";
        let _ = self.to.write_all(line.as_bytes()).and_then(|()| self.to.flush());
    }
}

/// # Errors
/// A process that cannot be started, or that could not begin.
pub fn run(plan: &Plan, split: usize, live: &mut Live) -> Result<Done, SetupError> {
    let program = std::env::current_exe().map_err(|error| failed(&error))?;
    let (sender, receiver) = lines();
    let mut children = Children(vec![]);
    let mut members = vec![];
    for index in 0..split {
        let mut child = Command::new(&program)
            .args(["bench", SHARE])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .map_err(|error| failed(&error))?;
        let (to, from) = (child.stdin.take().expect("piped"), child.stdout.take().expect("piped"));
        children.0.push(child);
        let to = send_plan(to, &plan.share(index, split)).map_err(|error| failed(&error))?;
        listen(index, BufReader::new(from), sender.clone());
        members.push(Member::new(format!("process {} of {split}", index + 1), Box::new(to)));
    }
    drop(sender);
    conduct(&mut members, &receiver, live)
}

/// The hidden word that makes a process take a share.
pub const SHARE: &str = "--share";

fn send_plan(mut to: ChildStdin, plan: &Plan) -> std::io::Result<ChildStdin> {
    let line = serde_json::to_string(plan).expect("a plan is JSON") + "\n";
    to.write_all(line.as_bytes())?;
    to.flush()?;
    Ok(to)
}

fn failed(error: &std::io::Error) -> SetupError {
    SetupError::Elsewhere(format!("another process of this program cannot be started: {error}"))
}

/// Ended when this is dropped, so that none is left behind.
struct Children(Vec<Child>);

impl Drop for Children {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // Those that are done have ended by themselves.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

/// Joins what the members say until all are done or gone.
pub(super) fn conduct(
    members: &mut [Member],
    lines: &Receiver<(usize, Option<Said>)>,
    live: &mut Live,
) -> Result<Done, SetupError> {
    let mut begun = false;
    let mut stopped = false;
    let mut next_tick = net::now() + SECOND;
    loop {
        match lines.try_recv() {
            Ok((index, said)) => hear(&mut members[index], said)?,
            Err(TryRecvError::Empty) => nap(5),
            Err(TryRecvError::Disconnected) => break,
        }
        let over = members.iter().all(|member| member.over);
        if !begun && members.iter().all(|member| member.settled || member.over) {
            begun = true;
            members.iter_mut().for_each(|member| member.tell(Told::Begin));
        }
        let crippled = members.iter().any(|member| member.over && member.done.is_none());
        if !stopped && (interrupted() || crippled) {
            stopped = true;
            members.iter_mut().for_each(|member| member.tell(Told::Stop));
        }
        let now = net::now();
        if over || now >= next_tick && members.iter().all(|member| member.latest.is_some()) {
            next_tick = now + SECOND;
            show(members, live);
        }
        if over {
            break;
        }
    }
    let mut all = Done::nothing();
    for member in members {
        match member.done.take() {
            Some(done) => all.add(done),
            None => all.add(remains(member)),
        }
    }
    Ok(all)
}

const SECOND: u64 = 1_000_000_000;

fn hear(member: &mut Member, said: Option<Said>) -> Result<(), SetupError> {
    match said {
        Some(Said::Tick(tick)) => {
            member.settled |= tick.settled;
            member.latest = Some((*tick).clone());
            // A second's worth, and few of them: the main thread shows them each second.
            member.fresh.push(*tick);
        }
        Some(Said::Settled) => member.settled = true,
        Some(Said::Done(done)) => {
            member.done = Some(*done);
            member.over = true;
        }
        Some(Said::Failed(text)) => return Err(SetupError::Elsewhere(text)),
        None => member.over = true,
    }
    Ok(())
}

fn show(members: &mut [Member], live: &mut Live) {
    let mut ticks = vec![];
    for member in members {
        let fresh = std::mem::take(&mut member.fresh);
        let Some(latest) = &member.latest else { continue };
        let mut tick = join(&fresh);
        tick.counts = latest.counts.clone();
        tick.settled = latest.settled;
        tick.ready_s = latest.ready_s;
        ticks.push(tick);
    }
    if !ticks.is_empty() {
        live.tick(&join(&ticks));
    }
}

/// What is known of a member that went away: what it said last.
fn remains(member: &Member) -> Done {
    let mut done = Done::nothing();
    done.processes = 1;
    done.problems.push(format!(
        "{} died before the end: its last seconds are missing, and the run was stopped",
        member.name
    ));
    if let Some(tick) = &member.latest {
        done.clients = tick.counts.ready_subs + tick.counts.ready_pubs + tick.counts.failed;
        done.counts = tick.counts.clone();
        done.ready_s = tick.ready_s;
        done.deserted = false;
    }
    done
}
