//! The figures of a run for Prometheus, under the names of emqtt-bench.

use super::Tick;
use crate::config::SetupError;
use crate::latency::{hist, pour};
use hdrhistogram::Histogram;
use std::fmt::Write as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// A thread that answers scrapes, one after the other, with the last published figures.
pub struct Exporter {
    text: Arc<Mutex<String>>,
    e2e: Histogram<u64>,
    ready: Histogram<u64>,
}

/// Time after which a slow client is dropped.
const TIMEOUT: Duration = Duration::from_secs(2);

impl Exporter {
    /// Starts the thread.
    ///
    /// # Errors
    /// An address that cannot be listened on.
    pub fn new(address: SocketAddr) -> Result<Exporter, SetupError> {
        let listening = |error| SetupError::NoListener { address, error };
        let listener = TcpListener::bind(address).map_err(listening)?;
        let text = Arc::new(Mutex::new(String::new()));
        let shown = text.clone();
        std::thread::Builder::new()
            .name("prometheus".into())
            .spawn(move || {
                for stream in listener.incoming().flatten() {
                    let text = shown.lock().unwrap_or_else(PoisonError::into_inner).clone();
                    // A client that stops reading gets no more.
                    let _ = serve(stream, &text);
                }
            })
            .map_err(listening)?;
        Ok(Exporter { text, e2e: hist(), ready: hist() })
    }

    pub fn publish(&mut self, tick: &Tick) {
        pour(&tick.pulse.e2e, &mut self.e2e);
        pour(&tick.pulse.ready, &mut self.ready);
        let text = self.render(tick);
        *self.text.lock().unwrap_or_else(PoisonError::into_inner) = text;
    }

    fn render(&self, tick: &Tick) -> String {
        let c = &tick.counts;
        let mut text = String::new();
        for (name, value) in [
            ("recv", c.recv),
            ("sub", c.ready_subs),
            ("pub", c.sent),
            ("pub_succ", c.acked.saturating_sub(c.no_subscribers)),
            ("pub_nosub", c.no_subscribers),
            ("pub_fail", c.rejected),
            ("pub_overrun", c.backlog),
            ("connect_succ", c.connacked),
            ("connect_fail", c.failed),
            ("connect_retried", c.attempts_failed.saturating_sub(c.failed)),
            ("reconnect_succ", c.reconnects),
            ("disconnected", c.disconnects),
        ] {
            // Writing to a String does not fail.
            let _ = writeln!(text, "# TYPE {name} counter\n{name} {value}");
        }
        let _ = writeln!(text, "# TYPE connected gauge\nconnected {}", c.up);
        buckets(&mut text, "e2e_latency", &self.e2e, &E2E_MS);
        buckets(&mut text, "mqtt_client_connect_duration", &self.ready, &CONNECT_MS);
        text
    }
}

const E2E_MS: [u64; 14] = [1, 5, 10, 25, 50, 100, 250, 500, 1000, 2000, 5000, 10000, 20000, 30000];
const CONNECT_MS: [u64; 10] = [1, 10, 25, 50, 100, 200, 300, 500, 750, 1000];

/// Appends a histogram in milliseconds.
fn buckets(text: &mut String, name: &str, h: &Histogram<u64>, bounds: &[u64]) {
    let _ = writeln!(text, "# TYPE {name} histogram");
    for bound in bounds {
        let below = if h.is_empty() { 0 } else { h.count_between(0, bound * 1_000_000) };
        let _ = writeln!(text, "{name}_bucket{{le=\"{bound}\"}} {below}");
    }
    let sum = h.mean() * h.len() as f64 / 1e6;
    let _ = writeln!(
        text,
        "{name}_bucket{{le=\"+Inf\"}} {}\n{name}_sum {sum:.3}\n{name}_count {}",
        h.len(),
        h.len()
    );
}

fn serve(mut stream: TcpStream, text: &str) -> std::io::Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    stream.set_write_timeout(Some(TIMEOUT))?;
    let mut request = [0; 4096];
    let length = stream.read(&mut request)?;
    let found =
        [&b"GET /metrics "[..], b"GET /metrics?", b"GET / "].iter().any(|p| request[..length].starts_with(p));
    let (status, body) = if found { ("200 OK", text) } else { ("404 Not Found", "use /metrics\n") };
    write!(
        stream,
        "HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::counters::Counts;

    #[test]
    fn a_scrape_gets_the_counters_and_the_histograms() {
        let mut exporter = Exporter { text: Arc::default(), e2e: hist(), ready: hist() };
        let mut tick = Tick::new();
        tick.counts = Counts { recv: 7, sent: 9, up: 3, ..Counts::default() };
        for ms in [2, 20, 200_000] {
            crate::latency::record(&mut tick.pulse.e2e, ms * 1_000_000);
        }
        exporter.publish(&tick);
        exporter.publish(&tick);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let text = exporter.text.lock().unwrap().clone();
        let server = std::thread::spawn(move || serve(listener.accept().unwrap().0, &text).unwrap());
        let mut client = TcpStream::connect(address).unwrap();
        client.write_all(b"GET /metrics HTTP/1.1\r\n\r\n").unwrap();
        let mut answer = String::new();
        client.read_to_string(&mut answer).unwrap();
        server.join().unwrap();
        for line in [
            "\nrecv 7\n",
            "\npub 9\n",
            "\nconnected 3\n",
            "e2e_latency_bucket{le=\"1\"} 0\n",
            "e2e_latency_bucket{le=\"25\"} 4\n",
            "e2e_latency_bucket{le=\"+Inf\"} 6\n",
            "e2e_latency_count 6\n",
        ] {
            assert!(answer.contains(line), "no {line} in\n{answer}");
        }
    }
}
