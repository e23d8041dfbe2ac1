//! The broker's own figures, fetched each second by a separate thread: a broker under load may answer slowly, and the
//! run does not wait for it.

use crate::config::SetupError;
use std::io::{Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::path::Path;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The fetching thread, and the last figures received.
pub struct Scraper {
    source: Arc<Source>,
    shared: Arc<Shared>,
}

/// State shared by the fetching thread and its users.
struct Shared {
    state: Mutex<State>,
    /// Signals an answer, or the end.
    news: Condvar,
}

struct State {
    latest: Vec<f64>,
    /// Time of the last answer that differed from the one before it.
    changed: Instant,
    failures: u64,
    end: bool,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Fetches once per `pause` until the end.
    fn ask(&self, source: &Source, pause: Duration) {
        let mut state = self.state();
        loop {
            let waited = self.news.wait_timeout_while(state, pause, |state| !state.end);
            if waited.unwrap_or_else(PoisonError::into_inner).0.end {
                return;
            }
            let answer = source.ask();
            state = self.state();
            match answer {
                Ok(figures) if figures != state.latest => {
                    state.latest = figures;
                    state.changed = Instant::now();
                }
                Ok(_) => {}
                Err(_) => state.failures += 1,
            }
            self.news.notify_all();
        }
    }
}

/// Address, credentials and names of the figures.
struct Source {
    authority: String,
    path: String,
    token: Option<String>,
    names: Vec<String>,
}

const TIMEOUT: Duration = Duration::from_secs(2);
const EVERY: Duration = Duration::from_millis(900);
/// Time without changes after which figures are final: brokers copy their counters about once a second.
const STILL: Duration = Duration::from_millis(1200);
const LAST_MAX: Duration = Duration::from_secs(4);
/// Maximum size of an answer in bytes; a longer one is not a list of figures.
const ANSWER_MAX: u64 = 16 << 20;

impl Scraper {
    /// Fetches once, then once a second.
    ///
    /// # Errors
    /// A token file that cannot be read, and a first answer without any of the figures.
    pub fn new(url: &str, token: Option<&Path>, names: &[String]) -> Result<Scraper, SetupError> {
        let token = match token {
            Some(path) => {
                let text = std::fs::read_to_string(path).map_err(|error| SetupError::file(path, &error))?;
                Some(text.trim().to_owned())
            }
            None => None,
        };
        let rest = url.strip_prefix("http://").unwrap_or(url);
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, format!("/{path}")),
            None => (rest, "/metrics".to_owned()),
        };
        let authority = crate::config::from_args::with_port(authority, 80);
        let source = Arc::new(Source { authority, path, token, names: names.to_vec() });
        let first = source.ask().map_err(|why| SetupError::NoFigures { url: url.to_owned(), why })?;
        let state = State { latest: first, changed: Instant::now(), failures: 0, end: false };
        let shared = Arc::new(Shared { state: Mutex::new(state), news: Condvar::new() });
        let (target, worker) = (source.clone(), shared.clone());
        std::thread::Builder::new()
            .name("broker-metrics".into())
            .spawn(move || worker.ask(&target, EVERY))
            .map_err(|error| SetupError::NoFigures { url: url.to_owned(), why: error.to_string() })?;
        Ok(Scraper { source, shared })
    }

    pub fn latest(&self) -> Vec<f64> {
        self.shared.state().latest.clone()
    }

    /// The figures when the broker has counted everything. Waits until neither they nor this run, since `moved`, have
    /// changed for longer than brokers take to copy their counters, or a limit is reached.
    pub fn last(&self, moved: Instant) -> Vec<f64> {
        let until = Instant::now() + LAST_MAX;
        let mut state = self.shared.state();
        loop {
            let still = state.changed.max(moved).elapsed();
            if still >= STILL || Instant::now() >= until {
                break;
            }
            let wait = (STILL - still).max(Duration::from_millis(1));
            state = self.shared.news.wait_timeout(state, wait).unwrap_or_else(PoisonError::into_inner).0;
        }
        drop(state);
        self.source.ask().unwrap_or_else(|_| self.latest())
    }

    /// Number of failed requests.
    pub fn failures(&self) -> u64 {
        self.shared.state().failures
    }
}

impl Drop for Scraper {
    fn drop(&mut self) {
        self.shared.state().end = true;
        self.shared.news.notify_all();
    }
}

impl Source {
    fn ask(&self) -> Result<Vec<f64>, String> {
        let text = self.get()?;
        let figures = read(&text, &self.names);
        match figures.iter().all(|figure| figure.is_nan()) {
            true => Err(format!("none of {} is in the answer", self.names.join(", "))),
            // A missing counter has not counted anything yet.
            false => {
                Ok(figures.into_iter().map(|figure| if figure.is_nan() { 0.0 } else { figure }).collect())
            }
        }
    }

    fn get(&self) -> Result<String, String> {
        let why = |error: std::io::Error| error.to_string();
        let address = self.authority.to_socket_addrs().map_err(why)?.next().ok_or("no address")?;
        let mut stream = TcpStream::connect_timeout(&address, TIMEOUT).map_err(why)?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(why)?;
        stream.set_write_timeout(Some(TIMEOUT)).map_err(why)?;
        let token = self.token.as_ref().map_or(String::new(), |t| format!("Authorization: Bearer {t}\r\n"));
        // HTTP/1.0: the answer ends with the connection and is not chunked.
        let request = format!("GET {} HTTP/1.0\r\nHost: {}\r\n{token}\r\n", self.path, self.authority);
        stream.write_all(request.as_bytes()).map_err(why)?;
        let mut answer = vec![];
        stream.take(ANSWER_MAX).read_to_end(&mut answer).map_err(why)?;
        let text = String::from_utf8_lossy(&answer);
        let (head, body) = text.split_once("\r\n\r\n").ok_or("no HTTP answer")?;
        match head.split(' ').nth(1) {
            Some("200") => Ok(body.to_owned()),
            Some("401" | "403") => Err("it requires a token: --broker-token-file FILE".to_owned()),
            other => Err(format!("it answers with status {}", other.unwrap_or("none"))),
        }
    }
}

/// The sums of the named series over their labels; NaN for missing ones.
fn read(text: &str, names: &[String]) -> Vec<f64> {
    let mut sums = vec![f64::NAN; names.len()];
    for line in text.lines().filter(|line| !line.starts_with('#')) {
        let end = line.find(['{', ' ']).unwrap_or(line.len());
        let Some(index) = names.iter().position(|name| *name == line[..end]) else { continue };
        let value = match line.rfind('}') {
            Some(labels) => &line[labels + 1..],
            None => &line[end..],
        };
        if let Some(Ok(value)) = value.split_whitespace().next().map(str::parse::<f64>) {
            sums[index] = value + if sums[index].is_nan() { 0.0 } else { sums[index] };
        }
    }
    sums
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn series_are_summed_over_their_labels() {
        let text = "# TYPE a counter\na{qos=\"0\"} 3\na{qos=\"1 } \"} 4 1700000000\nab 9\nb 1.5\n";
        let names = ["a", "b", "c"].map(str::to_owned);
        let sums = read(text, &names);
        assert_eq!(sums[..2], [7.0, 1.5]);
        assert!(sums[2].is_nan());
    }

    #[test]
    fn a_refusal_names_the_missing_token_or_figures() {
        for (answer, says) in [
            ("HTTP/1.0 401 Unauthorized\r\n\r\n", "--broker-token-file"),
            ("HTTP/1.0 200 OK\r\n\r\nother 1\n", "none of wanted"),
            ("HTTP/1.0 500 Oh\r\n\r\n", "status 500"),
            ("nonsense", "no HTTP answer"),
        ] {
            let listener = TcpListener::bind("127.0.0.1:0").unwrap();
            let url = format!("http://{}/metrics", listener.local_addr().unwrap());
            let server = std::thread::spawn(move || {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 1024];
                assert!(stream.read(&mut request).unwrap() > 0);
                stream.write_all(answer.as_bytes()).unwrap();
            });
            let error = Scraper::new(&url, None, &["wanted".to_owned()]).err().unwrap().to_string();
            assert!(error.contains(says) && error.contains(&url), "{error}");
            server.join().unwrap();
        }
    }
}
