//! Figures of the system about this process. Linux has them in `/proc`; elsewhere none are known.

use std::fs;
use std::time::SystemTime;

use serde::Serialize;
#[cfg(feature = "document")]
use utoipa::ToSchema;

/// Figures of the process. Each is `null` where the system does not provide it.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
pub struct ProcessFigures {
    /// Processor time used, by all threads, in seconds.
    pub cpu_s: Option<f64>,
    pub resident_bytes: Option<u64>,
    pub open_fds: Option<u64>,
    pub max_fds: Option<u64>,
    pub threads: Option<u64>,
}

/// Maximum number of entries of `/proc/self/fd` that are counted one by one, where the system does not provide their
/// number.
const FDS_COUNTED: usize = 65_536;

impl ProcessFigures {
    pub fn read() -> Self {
        Self { open_fds: open_fds(), max_fds: max_fds(), ..Self::without_fds() }
    }

    /// Reads all figures but those of descriptors, whose cost grows with the number of open ones.
    pub fn without_fds() -> Self {
        let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
        // The name of the program, in brackets, may contain anything; the fields after it are numbers.
        let fields: Vec<&str> =
            stat.rsplit_once(") ").map_or("", |(_, rest)| rest).split_whitespace().collect();
        let field = |index: usize| fields.get(index)?.parse::<u64>().ok();
        // SAFETY: `sysconf` takes a number and touches no memory of ours.
        let (ticks, page) = unsafe { (libc::sysconf(libc::_SC_CLK_TCK), libc::sysconf(libc::_SC_PAGESIZE)) };
        Self {
            cpu_s: field(11)
                .zip(field(12))
                .map(|(user, system)| (user + system) as f64 / ticks.max(1) as f64),
            resident_bytes: field(21).map(|pages| pages * u64::try_from(page).unwrap_or(4096)),
            threads: field(17),
            ..Self::default()
        }
    }
}

/// Returns the number of open descriptors. Newer systems report it as the directory's size, whose cost is constant.
fn open_fds() -> Option<u64> {
    let path = "/proc/self/fd";
    match fs::metadata(path).ok()?.len() {
        0 => Some(fs::read_dir(path).ok()?.take(FDS_COUNTED).count() as u64),
        number => Some(number),
    }
}

fn max_fds() -> Option<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the pointer is to a whole `rlimit` that outlives the call.
    let result = unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &mut limit) };
    (result == 0).then_some(limit.rlim_cur)
}

/// Converts a time to seconds since 1970.
pub fn unix_seconds(time: SystemTime) -> f64 {
    time.duration_since(SystemTime::UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn linux_provides_all_figures() {
        let ProcessFigures { cpu_s, resident_bytes, open_fds, max_fds, threads } = ProcessFigures::read();
        assert!(cpu_s.is_some());
        assert!(resident_bytes.unwrap() > 100_000);
        assert!((3..1_000_000).contains(&open_fds.unwrap()));
        assert!(max_fds.unwrap() >= open_fds.unwrap());
        assert!(threads.unwrap() >= 1);
    }
}
