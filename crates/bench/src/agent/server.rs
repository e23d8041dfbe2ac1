//! The agent: waits for controllers and runs their requests, one after the other.

use super::sealed::{End, From, Sealed, To};
use super::secret::Shared;
use crate::config::SetupError;
use crate::process;
use crate::progress::print_status;
use crate::run::share::{self, MemberMessage};
use crate::run::{interrupted, nap};
use clap::Args;
use std::io::{self, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// Options as they are typed.
#[derive(Debug, Args)]
pub struct Options {
    /// Address for controllers; beyond loopback only with --secret-file
    #[arg(long, default_value = "127.0.0.1:1899")]
    listen: SocketAddr,
    /// File with the secret that controllers share
    #[arg(long, value_name = "FILE")]
    secret_file: Option<PathBuf>,
    /// Exit after the first run
    #[arg(long)]
    once: bool,
    /// Print no lines on standard error
    #[arg(long)]
    quiet: bool,
}

/// Maximum number of connections that are introduced at one time; further ones are closed at once.
const UNAUTHENTICATED_MAX: usize = 16;

struct Agent {
    secret: Shared,
    quiet: bool,
    /// True while a run is under way.
    busy: AtomicBool,
    unauthenticated: AtomicUsize,
    runs: AtomicUsize,
}

/// Serves until it is interrupted, or for one run with `--once`. Returns the exit code.
///
/// # Errors
/// An address that cannot or may not be listened on, a secret that cannot be read.
pub fn run(options: &Options) -> Result<i32, SetupError> {
    let secret = Shared::read(options.secret_file.as_deref())?;
    if secret.is_none() && !options.listen.ip().is_loopback() {
        return Err(SetupError::Agent(format!(
            "an agent on {} runs the requests of any client that reaches it: give it \
                 --secret-file FILE, or listen on 127.0.0.1",
            options.listen
        )));
    }
    process::raise_nofile();
    let failed = |error| SetupError::Agent(format!("{} cannot be listened on: {error}", options.listen));
    let listener = TcpListener::bind(options.listen).map_err(failed)?;
    listener.set_nonblocking(true).map_err(failed)?;
    let address = listener.local_addr().map_err(failed)?;
    print_status(options.quiet, format_args!("agent on {address}"));
    let agent = Arc::new(Agent {
        secret,
        quiet: options.quiet,
        busy: AtomicBool::new(false),
        unauthenticated: AtomicUsize::new(0),
        runs: AtomicUsize::new(0),
    });
    loop {
        let over = interrupted() || options.once && agent.runs.load(SeqCst) > 0;
        if over && !agent.busy.load(SeqCst) {
            return Ok(0);
        }
        match listener.accept() {
            Ok((stream, peer)) if agent.unauthenticated.load(SeqCst) < UNAUTHENTICATED_MAX => {
                agent.unauthenticated.fetch_add(1, SeqCst);
                let agent = agent.clone();
                std::thread::spawn(move || agent.handle_connection(stream, peer));
            }
            // The connection is dropped.
            Ok(_) => {}
            Err(_) => nap(20),
        }
    }
}

impl Agent {
    /// Handles one connection, from its first byte to its end.
    fn handle_connection(&self, stream: TcpStream, peer: SocketAddr) {
        let authenticated = stream
            .set_nonblocking(false)
            .and_then(|()| Sealed::new(stream, End::Agent, self.secret.bytes()))
            .and_then(|sealed| self.greet(sealed));
        self.unauthenticated.fetch_sub(1, SeqCst);
        match authenticated {
            Ok(None) => {
                print_status(self.quiet, format_args!("{peer}: refused, because another run is under way"))
            }
            Err(error) => print_status(self.quiet, format_args!("{peer}: refused: {error}")),
            Ok(Some((from, to))) => {
                print_status(self.quiet, format_args!("{peer}: run started"));
                let code = share::run(from, to);
                print_status(self.quiet, format_args!("{peer}: run finished with exit code {code}"));
                self.runs.fetch_add(1, SeqCst);
                self.busy.store(false, SeqCst);
            }
        }
    }

    /// Reads a piece of the other end, which proves its secret, and answers. Returns `None` when a run is under way.
    fn greet(&self, sealed: Sealed) -> io::Result<Option<(BufReader<From>, To)>> {
        let Sealed { from, mut to } = sealed;
        let mut from = BufReader::new(from);
        let request = share::line(&mut from);
        let taken = request.is_ok() && self.busy.compare_exchange(false, true, SeqCst, SeqCst).is_ok();
        let message = match taken {
            true => MemberMessage::Alive,
            false => MemberMessage::Failed("another run is under way there".to_owned()),
        };
        // An end with another secret cannot read this, and concludes that from it.
        let answered =
            to.write_all((serde_json::to_string(&message)? + "\n").as_bytes()).and_then(|()| to.flush());
        if taken && answered.is_err() {
            self.busy.store(false, SeqCst);
        }
        request.and(answered)?;
        Ok(taken.then_some((from, to)))
    }
}
