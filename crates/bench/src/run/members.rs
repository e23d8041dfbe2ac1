//! The processes of a run, local and remote: each drives its share of the clients, and this one merges their results.

use super::done::Done;
use super::share::{ControllerMessage, MemberMessage, line};
use super::{interrupted, nap};
use crate::config::SetupError;
use crate::counters::Counts;
use crate::live::{Live, Tick, join};
use crate::net;
use crate::plan::Plan;
use std::io::{BufRead, Write};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};

/// A process and its last message.
pub struct Member {
    name: String,
    to: Box<dyn Write + Send>,
    parts: Vec<Part>,
    over: bool,
    stop_sent: bool,
    /// True when it ended by itself a plan that was to continue.
    quit: bool,
    /// Reason why it is gone, if known.
    why: String,
}

/// A plan at one member.
#[derive(Default)]
struct Part {
    latest: Option<Tick>,
    /// Ticks received since the last second was shown.
    fresh: Vec<Tick>,
    settled: bool,
    done: Option<Done>,
}

/// A message of a member, or the reason of its end.
type Line = (usize, Result<MemberMessage, String>);

/// Maximum number of lines that wait to be merged; beyond it the processes wait.
const LINES_MAX: usize = 1024;
/// Interval of keep-alive messages to the members.
const ALIVE_EVERY: u64 = 2 * SECOND;
const SECOND: u64 = 1_000_000_000;

/// All members of a run.
pub struct Members {
    all: Vec<Member>,
    sender: SyncSender<Line>,
    receiver: Receiver<Line>,
}

impl Members {
    pub fn new() -> Members {
        let (sender, receiver) = sync_channel(LINES_MAX);
        Members { all: vec![], sender, receiver }
    }

    /// Sends a process its plans, and reads its messages until it ends, in a separate thread.
    ///
    /// # Errors
    /// A process that does not accept them.
    pub fn add(
        &mut self,
        name: String,
        plans: &[Plan],
        from: impl BufRead + Send + 'static,
        to: Box<dyn Write + Send>,
    ) -> std::io::Result<()> {
        let parts = plans.iter().map(|_| Part::default()).collect();
        let mut member =
            Member { name, to, parts, over: false, stop_sent: false, quit: false, why: String::new() };
        member.send(&serde_json::to_string(plans).expect("plans are JSON"))?;
        listen(self.all.len(), from, self.sender.clone());
        self.all.push(member);
        Ok(())
    }

    /// Merges the members' messages until all are done or gone. Calls `each` for every second of every plan, with the
    /// counts before it. Returns the result of each plan.
    ///
    /// # Errors
    /// A member that could not start.
    pub fn run_until_done(
        self,
        live: &mut Live,
        each: &mut dyn FnMut(usize, &Tick, &Counts),
    ) -> Result<Vec<Done>, SetupError> {
        let Members { all: mut members, sender, receiver } = self;
        drop(sender);
        let (mut begun, mut stopped) = (false, false);
        let (mut next_tick, mut next_keep_alive) = (net::now() + SECOND, net::now() + ALIVE_EVERY);
        loop {
            match receiver.try_recv() {
                Ok((index, message)) => members[index].handle_message(message, each)?,
                Err(TryRecvError::Empty) => nap(5),
                Err(TryRecvError::Disconnected) => break,
            }
            let over = members.iter().all(|member| member.over);
            if !begun && members.iter().all(Member::is_settled) {
                begun = true;
                members.iter_mut().for_each(|member| member.notify(ControllerMessage::Begin));
            }
            let crippled = members.iter().any(|member| member.quit || member.over && !member.is_done());
            if !stopped && (interrupted() || crippled) {
                stopped = true;
                members.iter_mut().for_each(|member| member.notify(ControllerMessage::Stop));
            }
            let now = net::now();
            if now >= next_keep_alive {
                next_keep_alive = now + ALIVE_EVERY;
                members.iter_mut().for_each(|member| member.notify(ControllerMessage::Alive));
            }
            if over || now >= next_tick && members.iter().all(|member| member.over || member.has_reported()) {
                next_tick = now + SECOND;
                show(&mut members, live);
            }
            if over {
                break;
            }
        }
        let plans = members.iter().map(|member| member.parts.len()).max().unwrap_or(0);
        let mut all: Vec<Done> = (0..plans).map(|_| Done::nothing()).collect();
        for mut member in members {
            let lost = !member.is_done();
            for (number, done) in all.iter_mut().enumerate() {
                let Some(part) = member.parts.get_mut(number) else { continue };
                match part.done.take() {
                    Some(part) => done.add(part),
                    None => done.add(part.partial_result()),
                }
            }
            if lost && let Some(first) = all.first_mut() {
                first.problems.push(member.failure_message());
            }
        }
        Ok(all)
    }
}

/// Reads the messages of member `index` until it ends, in a separate thread.
fn listen(index: usize, mut from: impl BufRead + Send + 'static, to: SyncSender<Line>) {
    std::thread::spawn(move || {
        let why = loop {
            let message = match line(&mut from) {
                Ok(Some(line)) => serde_json::from_str::<MemberMessage>(&line),
                Ok(None) => break String::new(),
                Err(error) => break error.to_string(),
            };
            let Ok(message) = message else { break "its answer could not be understood".to_owned() };
            if to.send((index, Ok(message))).is_err() {
                return;
            }
        };
        // The channel is closed when the run is over.
        let _ = to.send((index, Err(why)));
    });
}

impl Member {
    fn send(&mut self, line: &str) -> std::io::Result<()> {
        self.to.write_all(format!("{line}\n").as_bytes())?;
        self.to.flush()
    }

    /// Sends a message. A member that is gone is detected by its silence.
    fn notify(&mut self, message: ControllerMessage) {
        self.stop_sent |= message == ControllerMessage::Stop;
        if !self.over {
            let _ = self.send(&serde_json::to_string(&message).expect("a message is JSON"));
        }
    }

    fn handle_message(
        &mut self,
        message: Result<MemberMessage, String>,
        each: &mut dyn FnMut(usize, &Tick, &Counts),
    ) -> Result<(), SetupError> {
        let beyond = || {
            SetupError::Elsewhere(
                "another process of this run answered for a plan that it does not have".into(),
            )
        };
        match message {
            Ok(MemberMessage::Tick(number, tick)) => {
                let part = self.parts.get_mut(number).ok_or_else(beyond)?;
                let nothing = Counts::default();
                each(number, &tick, part.latest.as_ref().map_or(&nothing, |latest| &latest.counts));
                part.settled |= tick.settled;
                part.latest = Some((*tick).clone());
                // Ticks of one second, few of them: the main thread shows them each second.
                part.fresh.push(*tick);
            }
            Ok(MemberMessage::Settled(number)) => {
                self.parts.get_mut(number).ok_or_else(beyond)?.settled = true
            }
            Ok(MemberMessage::Done(number, mut done)) => {
                if done.interrupted && !self.stop_sent && !self.quit && !interrupted() {
                    self.quit = true;
                    let text = format!("{} was stopped before the end, and the run with it", self.name);
                    done.problems.push(text);
                }
                self.parts.get_mut(number).ok_or_else(beyond)?.done = Some(*done);
                self.over |= self.is_done();
            }
            Ok(MemberMessage::Failed(text)) => {
                return Err(SetupError::Elsewhere(match self.name.starts_with("process") {
                    true => text,
                    false => format!("{}: {text}", self.name),
                }));
            }
            Ok(MemberMessage::Alive) => {}
            Err(why) => {
                self.over = true;
                self.why = why;
            }
        }
        Ok(())
    }

    fn is_settled(&self) -> bool {
        self.over || self.parts.iter().all(|part| part.settled || part.done.is_some())
    }

    fn is_done(&self) -> bool {
        self.parts.iter().all(|part| part.done.is_some())
    }

    fn has_reported(&self) -> bool {
        self.parts.iter().any(|part| part.latest.is_some())
    }

    fn failure_message(&self) -> String {
        let why = if self.why.is_empty() { String::new() } else { format!(" ({})", self.why) };
        format!(
            "{} died before the end{why}: its last seconds are missing, and the run was stopped",
            self.name
        )
    }
}

impl Part {
    /// The last known result of a plan whose member is gone.
    fn partial_result(&self) -> Done {
        let mut done = Done { processes: 1, ..Done::nothing() };
        if let Some(tick) = &self.latest {
            done.clients = tick.counts.ready_subs + tick.counts.ready_pubs + tick.counts.failed;
            done.counts = tick.counts.clone();
            done.ready_s = tick.ready_s;
            done.deserted = false;
        }
        done
    }
}

fn show(members: &mut [Member], live: &mut Live) {
    let mut ticks = vec![];
    for part in members.iter_mut().flat_map(|member| &mut member.parts) {
        let fresh = std::mem::take(&mut part.fresh);
        let Some(latest) = &part.latest else { continue };
        let mut tick = join(&fresh);
        tick.counts = latest.counts.clone();
        tick.settled = latest.settled;
        tick.ready_s = latest.ready_s;
        tick.at = latest.at;
        ticks.push(tick);
    }
    if !ticks.is_empty() {
        live.tick(&join(&ticks));
    }
}
