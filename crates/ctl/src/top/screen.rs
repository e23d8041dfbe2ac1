//! The terminal while `top` runs. It is restored however `top` ends.

use std::io;
use std::time::{Duration, Instant};

use crossterm::event::{self, Event, KeyEventKind};

use super::feed::{Feed, Update};
use super::layout;
use super::snapshot::{Answers, Snapshot};
use super::state::{State, UserAction};
use super::theme::Theme;
use super::view;
use crate::client::Client;
use crate::failure::Failure;
use crate::interrupt::Interrupt;

/// Maximum wait for a key before signals and updates are checked.
const POLL_INTERVAL: Duration = Duration::from_millis(100);
/// Time between redraws while the node does not answer, so that the shown duration advances.
const REDRAW: Duration = Duration::from_secs(1);

/// Restores the terminal when it is dropped. A panic is covered by the hook that `ratatui::try_init` installs.
struct Restore;

impl Drop for Restore {
    fn drop(&mut self) {
        ratatui::restore();
    }
}

/// Runs `top` on the terminal.
///
/// # Errors
/// Those of the first request, so that a wrong URL is reported before the screen is drawn. Those of the terminal.
pub fn run(client: Client, interval: Duration) -> Result<(), Failure> {
    let mut state = State::new(client.url(), interval);
    state.accept_snapshot(Snapshot::read(&Answers::ask(&client)?));
    let interrupt = Interrupt::watch();
    let restore = Restore;
    let mut terminal = ratatui::try_init().map_err(trouble)?;
    end_with_the_terminal()?;
    let feed = Feed::start(client, interval);
    let outcome = turn(&mut terminal, &mut state, &feed, &interrupt);
    drop(restore);
    match outcome {
        // The terminal was closed while `top` ran: there is nobody to notify.
        Err(Failure::Output(error)) if is_hangup(&error) || is_closed(0) => Ok(()),
        other => other,
    }
}

/// Ends the process when its terminal is closed: reads from a closed terminal would go on without end.
fn end_with_the_terminal() -> Result<(), Failure> {
    let watch = || {
        if is_closed(-1) {
            std::process::exit(0);
        }
    };
    let thread = std::thread::Builder::new().name("terminal".to_owned()).spawn(watch);
    thread.map(drop).map_err(trouble)
}

/// Returns whether the terminal is closed, within this number of milliseconds; -1 waits for it. False also where that
/// cannot be determined.
fn is_closed(within_ms: libc::c_int) -> bool {
    let mut terminal = libc::pollfd { fd: libc::STDOUT_FILENO, events: 0, revents: 0 };
    loop {
        // SAFETY: `terminal` is one valid, writable pollfd for the length of the call.
        let found = unsafe { libc::poll(&raw mut terminal, 1, within_ms) };
        if found >= 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return found > 0;
        }
    }
}

fn trouble(error: io::Error) -> Failure {
    Failure::Local(format!("the terminal cannot be used: {error}"))
}

fn is_hangup(error: &io::Error) -> bool {
    const EIO: i32 = 5;
    error.raw_os_error() == Some(EIO)
        || matches!(error.kind(), io::ErrorKind::BrokenPipe | io::ErrorKind::UnexpectedEof)
}

fn turn(
    terminal: &mut ratatui::DefaultTerminal,
    state: &mut State,
    feed: &Feed,
    interrupt: &Interrupt,
) -> Result<(), Failure> {
    let theme = Theme::of_environment();
    let mut drawn: Option<Instant> = None;
    loop {
        if interrupt.raised() {
            return Ok(());
        }
        let now = Instant::now();
        while let Some(update) =
            feed.take().map_err(|()| Failure::Failed("the thread that asks the node ended".to_owned()))?
        {
            drawn = None;
            match update {
                _ if state.paused => {}
                Update::Snapshot(snapshot) => state.accept_snapshot(*snapshot),
                Update::Trouble(what) => state.record_failure(what, now),
            }
        }
        if drawn.is_none_or(|at| now.duration_since(at) >= REDRAW) {
            terminal.draw(|frame| view::draw(frame, state, theme, now))?;
            drawn = Some(now);
        }
        match event::poll(POLL_INTERVAL) {
            Ok(false) => continue,
            Ok(true) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error.into()),
        }
        drawn = None;
        if let Event::Key(key) = event::read()?
            && key.kind != KeyEventKind::Release
        {
            let columns = layout::columns(terminal.size()?.width);
            match state.press(key, columns) {
                Some(UserAction::Quit) => return Ok(()),
                Some(UserAction::Interval(interval)) => feed.set_interval(interval),
                None => {}
            }
        }
    }
}
