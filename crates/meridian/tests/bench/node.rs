//! A node and the load generator, as processes.

use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStderr, Command, Output, Stdio};

/// A running node on ports that the system chose.
pub struct Node {
    process: Child,
    pub address: String,
    pub http: String,
}

impl Node {
    pub fn start() -> Node {
        let mut process = Command::new(env!("CARGO_BIN_EXE_meridian"))
            .args(["start", "--listen", "127.0.0.1:0"])
            .env("MERIDIAN__HTTP__LISTEN", "127.0.0.1:0")
            .env("MERIDIAN__LOG__FORMAT", "text")
            .env("MERIDIAN__STORAGE__DURABILITY", "memory")
            .current_dir(std::env::temp_dir())
            .stdin(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut log = BufReader::new(process.stderr.take().unwrap());
        let (mut address, mut http, mut seen) = (String::new(), String::new(), String::new());
        while address.is_empty() || http.is_empty() {
            let mut line = String::new();
            assert_ne!(log.read_line(&mut line).unwrap(), 0, "the node did not start:\n{seen}");
            let port = line.rsplit("127.0.0.1:").next().unwrap_or("");
            let port: String = port.chars().take_while(char::is_ascii_digit).collect();
            if line.contains("HTTP address=") {
                http = format!("http://127.0.0.1:{port}");
            } else if line.contains("listening") {
                address = format!("127.0.0.1:{port}");
            }
            seen += &line;
        }
        // A node stops when its log is full and unread.
        std::thread::spawn(move || std::io::copy(&mut log, &mut std::io::sink()));
        Node { process, address, http }
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn kill(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// `meridian bench` with the words of `line`.
pub fn bench(line: &str) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_meridian"));
    command.arg("bench").args(line.split_whitespace()).stdin(Stdio::null());
    command
}

pub fn run(line: &str) -> Output {
    bench(line).output().unwrap()
}

/// Report that --json prints.
pub fn report(output: &Output) -> serde_json::Value {
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}\n{}", stderr(output)))
}

pub fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A run under way.
pub struct Running {
    pub process: Child,
    lines: BufReader<ChildStderr>,
}

impl Running {
    pub fn start(command: &mut Command) -> Running {
        let mut process = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(process.stderr.take().unwrap());
        Running { process, lines }
    }

    /// Reads its output up to a line with this text, and returns that line.
    pub fn wait_for(&mut self, text: &str) -> String {
        let mut seen = String::new();
        loop {
            assert_ne!(self.lines.read_line(&mut seen).unwrap(), 0, "no `{text}` in\n{seen}");
            match seen.lines().last() {
                Some(line) if line.contains(text) => return line.to_owned(),
                _ => {}
            }
        }
    }

    pub fn signal(&self, signal: i32) {
        // SAFETY: takes no pointers; this is a child that is not waited for yet, so the id still refers to it.
        let sent = unsafe { libc::kill(self.process.id() as libc::pid_t, signal) };
        assert_eq!(sent, 0);
    }

    /// Waits for the end. Returns exit code and standard output.
    pub fn end(mut self) -> (Option<i32>, String) {
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).unwrap();
        let output = self.process.wait_with_output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stdout).into_owned() + &rest)
    }
}

/// A directory of one test, removed at the end of the test.
pub struct Directory(pub PathBuf);

impl Directory {
    pub fn new(test: &str) -> Directory {
        let path = std::env::temp_dir().join(format!("meridian-bench-{test}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Directory(path)
    }

    pub fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_owned()
    }

    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.0.join(name)).unwrap()
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).unwrap();
    }
}

/// A link to the program in `directory`.
pub fn link(directory: &Directory, name: &str) -> PathBuf {
    let path = Path::new(&directory.0).join(name);
    std::os::unix::fs::symlink(env!("CARGO_BIN_EXE_meridian"), &path).unwrap();
    path
}
