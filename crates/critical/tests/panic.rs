//! Behaviour of a process with a thread that panics.

use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Output};

/// Environment variable that is set in the process that must end.
const CHILD: &str = "CRITICAL_CHILD";
const SIGABRT: i32 = 6;

/// Runs the test of this name in another process, and returns its output.
fn done_by_a_child(test: &str) -> Output {
    let mut child = Command::new(std::env::current_exe().expect("this program"));
    child.args(["--exact", test, "--nocapture"]).env(CHILD, "1").output().expect("it runs")
}

#[test]
fn a_panic_is_logged_and_ends_the_process() {
    if std::env::var_os(CHILD).is_some() {
        tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
        let thread = critical::spawn("one", || panic!("what went wrong")).expect("a thread");
        drop(thread.join());
        return;
    }
    let child = done_by_a_child("a_panic_is_logged_and_ends_the_process");
    let said = String::from_utf8_lossy(&child.stderr);
    assert_eq!(child.status.signal(), Some(SIGABRT), "{said}");
    let line = said.lines().find(|line| line.contains("the process ends:"));
    let line = line.expect("it is in the log");
    assert!(
        line.contains("ERROR") && line.contains("what went wrong") && line.contains(r#"thread="one""#),
        "{line}"
    );
}

#[test]
fn a_thread_that_ends_returns_its_result() {
    assert_eq!(critical::spawn("one", || 7).expect("a thread").join().ok(), Some(7));
}
