//! Dates and times of the Gregorian calendar, without leap seconds.

/// Date and time in some offset from UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DateTime {
    pub year: i64,
    /// 1 to 12.
    pub month: i64,
    /// 1 to 31.
    pub day: i64,
    pub hour: i64,
    pub minute: i64,
    pub second: i64,
    pub nanosecond: i64,
}

const DAY: i64 = 86_400;
const NANOSECONDS: i128 = 1_000_000_000;

/// Days of 400 years, after which the calendar repeats.
const DAYS_OF_400_YEARS: i64 = 146_097;

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_of_month(year: i64, month: i64) -> i64 {
    match month {
        2 if is_leap(year) => 29,
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Days from 0000-01-01 to the first day of a year from 0 to 9999.
fn days_before_year(year: i64) -> i64 {
    let past = year - 1;
    // Year 0 is a leap year.
    if year == 0 { 0 } else { 366 + past * 365 + past / 4 - past / 100 + past / 400 }
}

/// Days from 0000-01-01 to 1970-01-01.
const EPOCH_DAYS: i64 = 719_528;

impl DateTime {
    /// Converts nanoseconds since 1970; `None` outside the years 0 to 9999.
    pub fn of_unix(nanoseconds: i128, offset_seconds: i64) -> Option<Self> {
        let seconds = i64::try_from(nanoseconds.div_euclid(NANOSECONDS)).ok()?.checked_add(offset_seconds)?;
        let nanosecond = nanoseconds.rem_euclid(NANOSECONDS) as i64;
        let days = seconds.div_euclid(DAY) + EPOCH_DAYS;
        let of_day = seconds.rem_euclid(DAY);
        if !(0..days_before_year(10_000)).contains(&days) {
            return None;
        }
        // An estimate that is at most one year too high or too low.
        let mut year = days * 400 / DAYS_OF_400_YEARS;
        while days_before_year(year) > days {
            year -= 1;
        }
        while days_before_year(year + 1) <= days {
            year += 1;
        }
        let mut day = days - days_before_year(year);
        let mut month = 1;
        while day >= days_of_month(year, month) {
            day -= days_of_month(year, month);
            month += 1;
        }
        Some(Self {
            year,
            month,
            day: day + 1,
            hour: of_day / 3_600,
            minute: of_day / 60 % 60,
            second: of_day % 60,
            nanosecond,
        })
    }

    /// Nanoseconds since 1970; `None` when this is no date.
    pub fn to_unix(self, offset_seconds: i64) -> Option<i128> {
        let is_date = (0..10_000).contains(&self.year)
            && (1..=12).contains(&self.month)
            && (1..=days_of_month(self.year, self.month)).contains(&self.day)
            && (0..24).contains(&self.hour)
            && (0..60).contains(&self.minute)
            && (0..60).contains(&self.second);
        if !is_date {
            return None;
        }
        let months = (1..self.month).map(|month| days_of_month(self.year, month)).sum::<i64>();
        let days = days_before_year(self.year) + months + self.day - 1 - EPOCH_DAYS;
        let seconds = days * DAY + self.hour * 3_600 + self.minute * 60 + self.second - offset_seconds;
        Some(i128::from(seconds) * NANOSECONDS + i128::from(self.nanosecond))
    }

    /// Parses RFC 3339: the time in nanoseconds since 1970.
    pub fn parse(text: &str) -> Option<i128> {
        let mut rest = text;
        let year = digits(&mut rest, 4)?;
        let month = skip(&mut rest, "-").then(|| digits(&mut rest, 2)).flatten()?;
        let day = skip(&mut rest, "-").then(|| digits(&mut rest, 2)).flatten()?;
        rest = rest.strip_prefix(['T', 't', ' '])?;
        let hour = digits(&mut rest, 2)?;
        let minute = skip(&mut rest, ":").then(|| digits(&mut rest, 2)).flatten()?;
        let second = skip(&mut rest, ":").then(|| digits(&mut rest, 2)).flatten()?;
        let mut nanosecond = 0;
        if skip(&mut rest, ".") {
            let count = rest.bytes().take_while(u8::is_ascii_digit).count();
            if count == 0 {
                return None;
            }
            // Digits behind the ninth are cut off.
            let kept = rest[..count.min(9)].parse::<i64>().ok()?;
            nanosecond = kept * 10_i64.pow(9 - count.min(9) as u32);
            rest = &rest[count..];
        }
        let offset = parse_offset(rest)?;
        Self { year, month, day, hour, minute, second, nanosecond }.to_unix(offset)
    }
}

fn skip(rest: &mut &str, expected: &str) -> bool {
    match rest.strip_prefix(expected) {
        Some(after) => {
            *rest = after;
            true
        }
        None => false,
    }
}

/// Reads exactly `count` digits.
fn digits(rest: &mut &str, count: usize) -> Option<i64> {
    let number = rest.get(..count).filter(|digits| digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    *rest = &rest[count..];
    number.parse().ok()
}

/// Parses an offset from UTC, in seconds: `Z`, `+01:00`, `-0530`, or a number of seconds.
pub fn parse_offset(text: &str) -> Option<i64> {
    if matches!(text, "Z" | "z") {
        return Some(0);
    }
    let sign = match text.as_bytes().first()? {
        b'+' => 1,
        b'-' => -1,
        _ => return None,
    };
    let mut rest = &text[1..];
    let hours = digits(&mut rest, 2)?;
    skip(&mut rest, ":");
    let minutes = digits(&mut rest, 2)?;
    (rest.is_empty() && hours < 24 && minutes < 60).then_some(sign * (hours * 3_600 + minutes * 60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_day_of_a_thousand_years_is_converted_and_back() {
        let mut previous = DateTime::of_unix(-62_167_219_200 * NANOSECONDS, 0).expect("0000-01-01");
        assert_eq!((previous.year, previous.month, previous.day), (0, 1, 1));
        for day in 1..366_000_i64 {
            let at = i128::from(-62_167_219_200 + day * DAY) * NANOSECONDS;
            let date = DateTime::of_unix(at, 0).expect("a date");
            let follows = (date.year, date.month, date.day)
                == (previous.year, previous.month, previous.day + 1)
                || (date.day == 1 && previous.day == days_of_month(previous.year, previous.month));
            assert!(follows, "{previous:?} {date:?}");
            assert_eq!(date.to_unix(0), Some(at));
            previous = date;
        }
    }

    #[test]
    fn known_times_are_right() {
        for (text, seconds) in [
            ("1970-01-01T00:00:00Z", 0),
            ("2000-02-29T12:00:00Z", 951_825_600),
            ("2024-01-31T23:59:59+01:00", 1_706_741_999),
            ("1969-12-31T23:59:59Z", -1),
            ("9999-12-31T23:59:59Z", 253_402_300_799),
            ("0000-01-01T00:00:00Z", -62_167_219_200),
        ] {
            assert_eq!(DateTime::parse(text), Some(seconds * NANOSECONDS), "{text}");
        }
        for wrong in [
            "",
            "2024-02-30T00:00:00Z",
            "2024-01-01",
            "2024-01-01T00:00:00",
            "2024-01-01T24:00:00Z",
            "2024-01-01T00:00:00.Z",
            "2024-01-01T00:00:00+1:00",
            "2024-13-01T00:00:00Z",
            "+024-01-01T00:00:00Z",
            "ü24-01-01T00:00:00Z",
            "2024-01-01T00:00:00+ü",
        ] {
            assert_eq!(DateTime::parse(wrong), None, "{wrong}");
        }
        assert_eq!(DateTime::of_unix(253_402_300_800 * NANOSECONDS, 0), None);
        assert_eq!(DateTime::of_unix(i128::MAX, i64::MAX), None);
    }
}
