//! Names of finished files: `NAME.<UTC time>-<number>.ndjson`.

use std::ffi::OsStr;
use std::time::SystemTime;

/// Length of a time such as `20260131T235959Z`.
const TIME_LEN: usize = 16;
/// Maximum number of digits of the number in a name.
const DIGITS_MAX: usize = 9;

/// Time and number in the name of a finished file. They are ordered like the files.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp {
    time: String,
    number: u32,
}

impl Stamp {
    /// Returns the stamp of a file that is finished now. It follows `newest` even when the clock was set back.
    pub fn next(now: SystemTime, newest: Option<&Self>) -> Self {
        let text = humantime::format_rfc3339_seconds(clamped(now)).to_string();
        let time = text.chars().filter(|c| !matches!(c, '-' | ':')).collect::<String>();
        match newest {
            Some(newest) if newest.time >= time => {
                Self { time: newest.time.clone(), number: newest.number.saturating_add(1) }
            }
            _ => Self { time, number: 1 },
        }
    }

    /// Returns the name of the finished file of an action.
    pub fn file_name(&self, action: &str) -> String {
        format!("{action}.{}-{}.ndjson", self.time, self.number)
    }

    /// Reads the stamp from the name of a finished file of this action; `None` for other files.
    pub fn parse(file_name: &OsStr, action: &str) -> Option<Self> {
        let text = file_name.to_str()?.strip_prefix(action)?.strip_prefix('.')?.strip_suffix(".ndjson")?;
        Self::from_text(text)
    }

    fn from_text(text: &str) -> Option<Self> {
        let (time, number) = text.split_once('-')?;
        let is_time = time.len() == TIME_LEN
            && time.bytes().enumerate().all(|(at, byte)| match at {
                8 => byte == b'T',
                15 => byte == b'Z',
                _ => byte.is_ascii_digit(),
            });
        let is_number = number.len() <= DIGITS_MAX && number.bytes().all(|byte| byte.is_ascii_digit());
        if !is_time || !is_number {
            return None;
        }
        Some(Self { time: time.to_owned(), number: number.parse().ok()? })
    }
}

/// Returns whether the name of an action ends with a dot and a stamp. Its file would be taken for a finished one of
/// another action.
pub fn has_suffix(name: &str) -> bool {
    name.rsplit_once('.').is_some_and(|(_, end)| Stamp::from_text(end).is_some())
}

/// Limits a time to years with four digits.
fn clamped(now: SystemTime) -> SystemTime {
    let last = SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(253_402_300_799);
    now.clamp(SystemTime::UNIX_EPOCH, last)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn at(seconds: u64) -> SystemTime {
        SystemTime::UNIX_EPOCH + Duration::from_secs(seconds)
    }

    #[test]
    fn stamps_grow_even_when_the_clock_does_not() {
        let first = Stamp::next(at(1_700_000_000), None);
        assert_eq!(first.file_name("a"), "a.20231114T221320Z-1.ndjson");
        let same_second = Stamp::next(at(1_700_000_000), Some(&first));
        assert_eq!(same_second.file_name("a"), "a.20231114T221320Z-2.ndjson");
        let set_back = Stamp::next(at(1_600_000_000), Some(&same_second));
        assert_eq!(set_back.file_name("a"), "a.20231114T221320Z-3.ndjson");
        let later = Stamp::next(at(1_700_000_001), Some(&set_back));
        assert_eq!(later.file_name("a"), "a.20231114T221321Z-1.ndjson");
        assert!(first < same_second && same_second < set_back && set_back < later);
        let tenth = Stamp { number: 10, ..first.clone() };
        assert!(set_back < tenth, "numbers are not compared as text");
    }

    #[test]
    fn only_finished_files_of_the_action_are_recognized() {
        for (name, is_finished) in [
            ("a.20231114T221320Z-1.ndjson", true),
            ("a.20231114T221320Z-123456789.ndjson", true),
            ("a.ndjson", false),
            ("ab.20231114T221320Z-1.ndjson", false),
            ("a.b.20231114T221320Z-1.ndjson", false),
            ("a.20231114T221320Z-.ndjson", false),
            ("a.20231114T221320Z-1234567890.ndjson", false),
            ("a.20231114T221320Z--1.ndjson", false),
            ("a.20231114X221320Z-1.ndjson", false),
            ("a.2023é114T22132Z-1.ndjson", false),
            ("a.20231114T221320Z-1.ndjson.gz", false),
        ] {
            assert_eq!(Stamp::parse(OsStr::new(name), "a").is_some(), is_finished, "{name}");
        }
        assert!(has_suffix("a.20231114T221320Z-1") && !has_suffix("a.b-1"));
    }
}
