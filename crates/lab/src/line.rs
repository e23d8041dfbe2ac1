//! One direction of a line between two sites. It decides when, or whether, a packet arrives.

use crate::LabError;
use crate::quantity;
use random::Random;
use std::time::Duration;

/// Properties of a line.
#[derive(Clone, Debug, PartialEq)]
pub struct Parameters {
    /// Delay in one direction.
    pub delay: Duration,
    /// Maximum additional delay of a packet. A packet never overtakes an earlier one.
    pub jitter: Duration,
    /// Share of the packets that are lost, 0 to 1.
    pub loss: f64,
    /// Average number of consecutive lost packets; up to 1, each loss is independent.
    pub burst: f64,
    /// Bits per second; 0 is no limit.
    pub rate: u64,
    /// Maximum number of bytes that wait where the rate is limited; further packets are lost. 0: the bytes that the
    /// rate carries in 100 ms, and at least 64 KiB.
    pub queue: u64,
    pub state: State,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum State {
    Up,
    /// Packets are lost silently.
    Down,
    /// Up and down in turn, each for a while.
    Flapping {
        up: Duration,
        down: Duration,
    },
}

impl Default for Parameters {
    fn default() -> Self {
        Self {
            delay: Duration::ZERO,
            jitter: Duration::ZERO,
            loss: 0.0,
            burst: 1.0,
            rate: 0,
            queue: 0,
            state: State::Up,
        }
    }
}

impl Parameters {
    /// Changes one parameter, with the name and the value of a topology file: `rtt` (half of it in each direction),
    /// `delay`, `jitter`, `loss`, `burst`, `rate`, `queue`, `state` (`up`, `down`, `flap:UP/DOWN`).
    ///
    /// # Errors
    /// An unknown name, or an invalid value.
    pub fn set(&mut self, name: &str, value: &str) -> Result<(), LabError> {
        match name {
            "rtt" => self.delay = quantity::duration(value)? / 2,
            "delay" => self.delay = quantity::duration(value)?,
            "jitter" => self.jitter = quantity::duration(value)?,
            "loss" => self.loss = quantity::share(value)?,
            "burst" => {
                self.burst =
                    value.parse().ok().filter(|burst| (1.0..=1e6).contains(burst)).ok_or_else(|| {
                        LabError::Topology(format!("burst {value:?}: give a number of packets, 1 or more"))
                    })?;
            }
            "rate" => self.rate = quantity::rate(value)?,
            "queue" => self.queue = quantity::size(value)?,
            "state" => self.state = state(value)?,
            _ => {
                let known = "rtt, delay, jitter, loss, burst, rate, queue, state";
                return Err(LabError::Topology(format!("a line has no {name:?}: use one of {known}")));
            }
        }
        Ok(())
    }

    fn queue_max(&self) -> u64 {
        if self.queue > 0 { self.queue } else { (self.rate / 80).max(64 * 1024) }
    }
}

fn state(value: &str) -> Result<State, LabError> {
    match value {
        "up" => return Ok(State::Up),
        "down" => return Ok(State::Down),
        _ => {}
    }
    let times = value.strip_prefix("flap:").and_then(|times| times.split_once('/'));
    let (up, down) =
        times.ok_or_else(|| LabError::Topology(format!("state {value:?}: use up, down or flap:UP/DOWN")))?;
    let (up, down) = (quantity::duration(up)?, quantity::duration(down)?);
    if (up + down).is_zero() {
        return Err(LabError::Topology(format!("state {value:?}: UP or DOWN has to be more than 0")));
    }
    Ok(State::Flapping { up, down })
}

/// Fate of a packet.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Outcome {
    /// The packet arrives at this time.
    At(Duration),
    Lost,
    /// The queue before the line is full.
    QueueFull,
    /// The line is down.
    Down,
}

/// A line in use. All times are since the same arbitrary start.
pub struct Line {
    parameters: Parameters,
    random: Random,
    /// True within a run of lost packets.
    is_losing: bool,
    /// Time at which the queue is empty.
    free_at: Duration,
    last_at: Duration,
    flapping_since: Duration,
}

impl Line {
    pub fn new(parameters: Parameters, seed: u64) -> Self {
        Self {
            parameters,
            random: Random::new(seed),
            is_losing: false,
            free_at: Duration::ZERO,
            last_at: Duration::ZERO,
            flapping_since: Duration::ZERO,
        }
    }

    pub fn parameters(&self) -> &Parameters {
        &self.parameters
    }

    /// Changes the parameters. Packets under way are not affected. A shorter delay takes effect at once: a new
    /// packet may overtake older ones.
    pub fn change(&mut self, now: Duration, parameters: Parameters) {
        self.last_at = Duration::ZERO;
        self.free_at = self.free_at.min(now);
        self.flapping_since = now;
        self.is_losing = false;
        self.parameters = parameters;
    }

    pub fn is_up(&self, now: Duration) -> bool {
        match self.parameters.state {
            State::Up => true,
            State::Down => false,
            State::Flapping { up, down } => {
                let since = now.saturating_sub(self.flapping_since).as_nanos();
                since % (up + down).as_nanos() < up.as_nanos()
            }
        }
    }

    /// Sends a packet of `bytes` bytes.
    pub fn enter(&mut self, now: Duration, bytes: usize) -> Outcome {
        if !self.is_up(now) {
            return Outcome::Down;
        }
        let Parameters { rate, delay, jitter, .. } = self.parameters;
        // The queue is before the wire: a packet that is lost on the wire was in the queue.
        let mut at = now;
        if rate > 0 {
            let start = self.free_at.max(now);
            let waiting = ((start - now).as_secs_f64() * rate as f64 / 8.0).round() as u64;
            if waiting + bytes as u64 > self.parameters.queue_max().max(bytes as u64) {
                return Outcome::QueueFull;
            }
            at = start + Duration::from_nanos((bytes as u64 * 8).saturating_mul(1_000_000_000) / rate);
            self.free_at = at;
        }
        if self.loses() {
            return Outcome::Lost;
        }
        at += delay;
        if !jitter.is_zero() {
            at += jitter.mul_f64(self.random.fraction());
        }
        at = at.max(self.last_at);
        self.last_at = at;
        Outcome::At(at)
    }

    /// Returns whether the packet is lost. There are two states: one loses all packets and lasts for `burst`
    /// packets on average, the other loses none.
    fn loses(&mut self) -> bool {
        let Parameters { loss, burst, .. } = self.parameters;
        if loss <= 0.0 || loss >= 1.0 {
            return loss >= 1.0;
        }
        if burst <= 1.0 {
            return self.random.fraction() < loss;
        }
        let turn = if self.is_losing { 1.0 / burst } else { (loss / (burst * (1.0 - loss))).min(1.0) };
        self.is_losing ^= self.random.fraction() < turn;
        self.is_losing
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn line(settings: &[(&str, &str)]) -> Line {
        let mut parameters = Parameters::default();
        for (name, value) in settings {
            parameters.set(name, value).unwrap();
        }
        Line::new(parameters, 7)
    }

    fn ms(ms: u64) -> Duration {
        Duration::from_millis(ms)
    }

    #[test]
    fn a_round_trip_is_two_directions() {
        assert_eq!(line(&[("rtt", "98ms")]).enter(ms(5), 100), Outcome::At(ms(54)));
    }

    #[test]
    fn packets_beyond_the_rate_wait_and_then_are_lost() {
        let mut line = line(&[("rate", "8mbit"), ("queue", "10000B"), ("delay", "10ms")]);
        for sent in 1..=10 {
            // 1000 bytes take a millisecond.
            assert_eq!(line.enter(ms(0), 1000), Outcome::At(ms(10 + sent)));
        }
        assert_eq!(line.enter(ms(0), 1000), Outcome::QueueFull);
        assert_eq!(line.enter(ms(1), 1000), Outcome::At(ms(21)));
    }

    #[test]
    fn losses_have_the_configured_share_and_length() {
        for burst in [1.0, 8.0] {
            let mut line = line(&[("loss", "2%"), ("burst", &burst.to_string())]);
            let (mut lost, mut runs, mut before) = (0, 0, false);
            for _ in 0..1_000_000 {
                let is_lost = line.enter(ms(0), 100) == Outcome::Lost;
                lost += u32::from(is_lost);
                runs += u32::from(is_lost && !before);
                before = is_lost;
            }
            assert!((18_500..21_500).contains(&lost), "{lost} with bursts of {burst}");
            let length = f64::from(lost) / f64::from(runs);
            assert!((length - burst).abs() < 0.1 * burst, "{length} in a row with bursts of {burst}");
        }
    }

    #[test]
    fn jitter_delays_and_keeps_the_order() {
        let mut line = line(&[("delay", "50ms"), ("jitter", "5ms")]);
        let (mut last, mut longest) = (ms(0), ms(0));
        for step in 0..10_000 {
            let now = Duration::from_micros(100 * step);
            let Outcome::At(at) = line.enter(now, 100) else { panic!("nothing is lost") };
            assert!(at >= last && at >= now + ms(50) && at <= now + ms(55), "{at:?} at {now:?}");
            longest = longest.max(at - now);
            last = at;
        }
        assert!(longest > ms(54), "{longest:?}");
    }

    #[test]
    fn a_flapping_line_is_up_and_down_in_turn() {
        let mut line = line(&[("state", "flap:2s/1s")]);
        let outcomes = [0, 1999, 2000, 2999, 3000].map(|at| line.enter(ms(at), 100) != Outcome::Down);
        assert_eq!(outcomes, [true, true, false, false, true]);
    }

    #[test]
    fn a_change_applies_to_later_packets() {
        let mut line = line(&[("rate", "8mbit"), ("delay", "100ms")]);
        assert_eq!(line.enter(ms(0), 1000), Outcome::At(ms(101)));
        let mut shorter = line.parameters().clone();
        shorter.set("delay", "10ms").unwrap();
        line.change(ms(0), shorter);
        assert_eq!(line.enter(ms(0), 1000), Outcome::At(ms(11)));
    }

    #[test]
    fn unknown_names_and_values_are_refused() {
        let mut parameters = Parameters::default();
        for (name, value) in [("speed", "1"), ("burst", "0"), ("state", "off"), ("state", "flap:0s/0s")] {
            assert!(parameters.set(name, value).is_err(), "{name} = {value}");
        }
        assert_eq!(parameters, Parameters::default());
    }
}
