//! Kernel statistics of the brokers and of this process, and its resource limits.

use std::fs;

#[derive(Default, Clone, Copy, Debug)]
pub struct ProcStat {
    pub cpu_s: f64,
    pub user_s: f64,
    pub sys_s: f64,
    pub rss: u64,
    pub pss: u64,
    /// Part of `pss` that belongs to no file: heap, stacks, arenas.
    pub pss_anon: u64,
    /// Part of `rss` that belongs to no file.
    pub rss_anon: u64,
    pub hwm: u64,
    pub threads: u64,
    pub alive: bool,
}

fn kb_field(text: &str, name: &str) -> u64 {
    text.lines()
        .find(|l| l.starts_with(name))
        .and_then(|l| l.split_whitespace().nth(1))
        .and_then(|v| v.parse::<u64>().ok())
        .unwrap_or(0)
}

/// User and system CPU seconds of a process, in steps of the kernel's clock tick (10 ms).
pub fn cpu(pid: u32) -> Option<(f64, f64)> {
    let s = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let rest = &s[s.rfind(')')? + 2..];
    let f: Vec<&str> = rest.split_whitespace().collect();
    // SAFETY: takes no pointers.
    let hz = unsafe { libc::sysconf(libc::_SC_CLK_TCK) } as f64;
    let u: f64 = f.get(11)?.parse().ok()?;
    let k: f64 = f.get(12)?.parse().ok()?;
    Some((u / hz, k / hz))
}

/// Current statistics of a process. With `mem`, bytes are exact, which makes the kernel walk the whole address space.
pub fn stat(pid: u32, mem: bool) -> ProcStat {
    let mut p = ProcStat::default();
    if let Some((u, s)) = cpu(pid) {
        p.alive = true;
        p.user_s = u;
        p.sys_s = s;
        p.cpu_s = u + s;
    }
    if let Ok(s) = fs::read_to_string(format!("/proc/{pid}/status")) {
        p.hwm = kb_field(&s, "VmHWM:") * 1024;
        p.rss = kb_field(&s, "VmRSS:") * 1024;
        p.rss_anon = kb_field(&s, "RssAnon:") * 1024;
        p.threads = kb_field(&s, "Threads:");
    }
    if mem && let Ok(s) = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")) {
        p.rss = kb_field(&s, "Rss:") * 1024;
        p.pss = kb_field(&s, "Pss:") * 1024;
        p.pss_anon = kb_field(&s, "Pss_Anon:") * 1024;
    }
    p
}

pub fn stats(pids: &[u32], mem: bool) -> Vec<ProcStat> {
    pids.iter().map(|&p| stat(p, mem)).collect()
}

/// User and system CPU seconds of this process.
pub fn self_cpu() -> (f64, f64) {
    // SAFETY: zeroes are a valid `rusage`, and the call writes nothing else.
    unsafe {
        let mut r: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &mut r);
        let f = |t: libc::timeval| t.tv_sec as f64 + t.tv_usec as f64 / 1e6;
        (f(r.ru_utime), f(r.ru_stime))
    }
}

/// Kernel memory of TCP sockets on the whole machine, in bytes.
pub fn tcp_mem() -> u64 {
    let s = fs::read_to_string("/proc/net/sockstat").unwrap_or_default();
    for l in s.lines() {
        if l.starts_with("TCP:") {
            let f: Vec<&str> = l.split_whitespace().collect();
            if let Some(i) = f.iter().position(|x| *x == "mem") {
                return f.get(i + 1).and_then(|v| v.parse::<u64>().ok()).unwrap_or(0) * 4096;
            }
        }
    }
    0
}

/// Raises the soft limit of descriptors to the hard one and returns it.
pub fn raise_nofile() -> u64 {
    // SAFETY: zeroes are a valid `rlimit`, and the calls touch nothing else.
    unsafe {
        let mut l: libc::rlimit = std::mem::zeroed();
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut l);
        l.rlim_cur = l.rlim_max;
        libc::setrlimit(libc::RLIMIT_NOFILE, &l);
        libc::getrlimit(libc::RLIMIT_NOFILE, &mut l);
        l.rlim_cur
    }
}

/// Pins the calling thread to one CPU. A CPU that does not exist changes nothing.
pub fn pin_thread(cpu: usize) {
    // SAFETY: a zeroed set is an empty one; `CPU_SET` ignores numbers beyond it; the call reads `set` only.
    unsafe {
        let mut set: libc::cpu_set_t = std::mem::zeroed();
        libc::CPU_SET(cpu, &mut set);
        libc::sched_setaffinity(0, std::mem::size_of::<libc::cpu_set_t>(), &set);
    }
}

/// Sets the maximum delay of the calling thread's wake-ups, in nanoseconds.
pub fn set_timer_slack(ns: u64) {
    // SAFETY: this option takes an integer and touches no memory of this process.
    unsafe {
        libc::prctl(libc::PR_SET_TIMERSLACK, ns, 0, 0, 0);
    }
}

/// Handles SIGINT and SIGTERM: the first signal ends the run with its report, the second one ends the process.
extern "C" fn on_signal(_: i32) {
    if crate::run::interrupted() {
        // SAFETY: `_exit` is async-signal-safe.
        unsafe { libc::_exit(130) }
    }
    crate::run::interrupt();
}

/// Makes SIGINT and SIGTERM end a run with its report.
pub fn on_signals() {
    // SAFETY: the handler only touches an atomic and calls `_exit`.
    unsafe {
        libc::signal(libc::SIGINT, on_signal as *const () as libc::sighandler_t);
        libc::signal(libc::SIGTERM, on_signal as *const () as libc::sighandler_t);
    }
}
