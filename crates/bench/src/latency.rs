//! Latency histograms: 100 ns to one hour, three significant digits.

use hdrhistogram::Histogram;

pub fn hist() -> Histogram<u64> {
    Histogram::new_with_bounds(100, 3_600_000_000_000, 3).unwrap()
}

#[inline]
pub fn record(h: &mut Histogram<u64>, ns: u64) {
    h.saturating_record(ns);
}

pub struct Hists {
    pub tcp: Histogram<u64>,
    pub connack: Histogram<u64>,
    pub suback: Histogram<u64>,
    pub ready: Histogram<u64>,
    pub reconnect: Histogram<u64>,
    pub ack: Histogram<u64>,
    pub e2e: Histogram<u64>,
    pub lag: Histogram<u64>,
}

impl Hists {
    pub fn new() -> Hists {
        Hists {
            tcp: hist(),
            connack: hist(),
            suback: hist(),
            ready: hist(),
            reconnect: hist(),
            ack: hist(),
            e2e: hist(),
            lag: hist(),
        }
    }
    pub fn add(&mut self, o: &Hists) {
        for (a, b) in [
            (&mut self.tcp, &o.tcp),
            (&mut self.connack, &o.connack),
            (&mut self.suback, &o.suback),
            (&mut self.ready, &o.ready),
            (&mut self.reconnect, &o.reconnect),
            (&mut self.ack, &o.ack),
            (&mut self.e2e, &o.e2e),
            (&mut self.lag, &o.lag),
        ] {
            a.add(b).unwrap();
        }
    }
}
