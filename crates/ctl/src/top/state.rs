//! State that `top` shows, and its changes by keys. It does not use a terminal.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crossterm::event::{KeyCode, KeyEvent, KeyModifiers};

use super::panel::Panel;
use super::rates::Rates;
use super::snapshot::Snapshot;
use super::{INTERVAL_MAX, INTERVAL_MIN};

/// Number of points of a sparkline: as many as the widest terminal shows; at 2 s, ten minutes.
const HISTORY_MAX: usize = 320;

/// Minimum time that rates are computed over. The node updates its figures about once a second, so rates over less time
/// would jump.
const WINDOW: Duration = Duration::from_millis(1_900);
/// Maximum number of earlier snapshots that are kept, enough for the shortest interval.
const EARLIER_MAX: usize = 8;

/// Past rates, newest last.
#[derive(Debug, Default)]
pub struct History {
    pub messages_in: VecDeque<u64>,
    pub messages_out: VecDeque<u64>,
    pub bytes_in: VecDeque<u64>,
    pub bytes_out: VecDeque<u64>,
    pub dropped: VecDeque<u64>,
}

impl History {
    fn push(&mut self, rates: &Rates) {
        for (line, rate) in [
            (&mut self.messages_in, rates.messages_in),
            (&mut self.messages_out, rates.messages_out),
            (&mut self.bytes_in, rates.bytes_in),
            (&mut self.bytes_out, rates.bytes_out),
            (&mut self.dropped, rates.dropped),
        ] {
            if line.len() == HISTORY_MAX {
                line.pop_front();
            }
            // A rate below one is visible too.
            line.push_back(rate.ceil() as u64);
        }
    }
}

/// Effect of a key outside the state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserAction {
    Quit,
    /// Ask the node at this interval from now on; `None` pauses.
    Interval(Option<Duration>),
}

/// Reason why there is no new snapshot.
#[derive(Debug)]
pub struct Trouble {
    pub since: Instant,
    pub what: String,
}

#[derive(Debug)]
pub struct State {
    pub url: String,
    pub interval: Duration,
    pub paused: bool,
    pub help: bool,
    pub alone: bool,
    pub focus: Panel,
    /// Number of rows of the panel with the focus that are scrolled away.
    pub scroll: usize,
    /// Order of each panel.
    pub sort: [usize; Panel::ALL.len()],
    pub snapshot: Snapshot,
    /// Earlier snapshots, newest last.
    earlier: VecDeque<Snapshot>,
    pub rates: Option<Rates>,
    pub history: History,
    pub trouble: Option<Trouble>,
}

impl State {
    pub fn new(url: &str, interval: Duration) -> Self {
        Self {
            url: url.to_owned(),
            interval,
            paused: false,
            help: false,
            alone: false,
            focus: Panel::Traffic,
            scroll: 0,
            sort: Default::default(),
            snapshot: Snapshot::default(),
            earlier: VecDeque::new(),
            rates: None,
            history: History::default(),
            trouble: None,
        }
    }

    /// Records an answer of the node.
    pub fn accept_snapshot(&mut self, snapshot: Snapshot) {
        self.trouble = None;
        if snapshot.started_at != self.snapshot.started_at {
            self.earlier.clear();
            self.rates = None;
        } else if snapshot.at.is_some() && snapshot.at == self.snapshot.at {
            // The node's clock did not advance: there is nothing new.
            return;
        } else {
            if self.earlier.len() == EARLIER_MAX {
                self.earlier.pop_front();
            }
            self.earlier.push_back(std::mem::take(&mut self.snapshot));
            if let Some(rates) = Rates::between(self.base(&snapshot), &snapshot) {
                self.history.push(&rates);
                self.rates = Some(rates);
            }
        }
        self.snapshot = snapshot;
    }

    /// Returns the snapshot to compare with: the newest one that is a window older, or the oldest one.
    fn base(&self, now: &Snapshot) -> &Snapshot {
        let old_enough = |earlier: &&Snapshot| match (earlier.at, now.at) {
            (Some(earlier), Some(now)) => now.duration_since(earlier).is_ok_and(|time| time >= WINDOW),
            _ => true,
        };
        self.earlier.iter().rev().find(old_enough).unwrap_or(&self.earlier[0])
    }

    /// Records that the node did not answer.
    pub fn record_failure(&mut self, what: String, now: Instant) {
        let since = self.trouble.as_ref().map_or(now, |trouble| trouble.since);
        self.trouble = Some(Trouble { since, what });
    }

    /// Handles a key. `columns` is the number of panels in a row, for the arrows.
    pub fn press(&mut self, key: KeyEvent, columns: usize) -> Option<UserAction> {
        if key.modifiers.contains(KeyModifiers::CONTROL) {
            return matches!(key.code, KeyCode::Char('c' | 'd' | 'q')).then_some(UserAction::Quit);
        }
        if self.help && !matches!(key.code, KeyCode::Char('q')) {
            self.help = false;
            return None;
        }
        let columns = if self.alone { 1 } else { columns as isize };
        match key.code {
            KeyCode::Char('q') => return Some(UserAction::Quit),
            KeyCode::Esc => (self.alone, self.scroll) = (false, 0),
            KeyCode::Char('?' | 'h') | KeyCode::F(1) => self.help = true,
            KeyCode::Char('p' | ' ') => {
                self.paused = !self.paused;
                return Some(self.asking());
            }
            KeyCode::Char('+' | '=') => return Some(self.every(self.interval * 2)),
            KeyCode::Char('-' | '_') => return Some(self.every(self.interval / 2)),
            KeyCode::Tab | KeyCode::Right => self.step(1),
            KeyCode::BackTab | KeyCode::Left => self.step(-1),
            KeyCode::Down => self.step(columns),
            KeyCode::Up => self.step(-columns),
            KeyCode::Char('z') | KeyCode::Enter => (self.alone, self.scroll) = (!self.alone, 0),
            KeyCode::Char('s') => {
                let orders = self.focus.orders().len().max(1);
                let order = &mut self.sort[self.focus.index()];
                *order = (*order + 1) % orders;
            }
            KeyCode::Char('j') => self.scroll(1),
            KeyCode::Char('k') => self.scroll(-1),
            KeyCode::PageDown => self.scroll(10),
            KeyCode::PageUp => self.scroll(-10),
            KeyCode::Home => self.scroll = 0,
            _ => {}
        }
        None
    }

    pub fn order(&self, panel: Panel) -> usize {
        self.sort[panel.index()]
    }

    fn asking(&self) -> UserAction {
        UserAction::Interval((!self.paused).then_some(self.interval))
    }

    fn every(&mut self, interval: Duration) -> UserAction {
        self.interval = interval.clamp(INTERVAL_MIN, INTERVAL_MAX);
        self.asking()
    }

    fn step(&mut self, by: isize) {
        let all = Panel::ALL.len() as isize;
        let next = (self.focus.index() as isize + by).rem_euclid(all);
        self.focus = Panel::ALL[next as usize];
        self.scroll = 0;
    }

    /// Scrolls, but never past the last row.
    fn scroll(&mut self, by: isize) {
        let rows = self.focus.content(self).rows.len();
        self.scroll = self.scroll.saturating_add_signed(by).min(rows.saturating_sub(1));
    }
}
