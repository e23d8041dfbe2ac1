//! A file with a row per second.

use super::Row;
use crate::config::SetupError;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};

/// The file. It is complete up to the last second, however the run ends.
pub struct Csv {
    path: PathBuf,
    file: File,
    failed: Option<std::io::Error>,
}

const COLUMNS: &str = "time_s,unix_ms,connected,sent_per_s,acked_per_s,received_per_s,latency_p50_ms,latency_p90_ms,\
                       latency_p99_ms,latency_p999_ms,latency_max_ms,errors,generator_demand,broker_cores,broker_rss_bytes";

impl Csv {
    pub fn new(path: &Path, figures: &[String]) -> Result<Csv, SetupError> {
        let named = figures.iter().fold(COLUMNS.to_owned(), |columns, name| columns + "," + name);
        let mut file = File::create(path).map_err(|error| SetupError::file(path, &error))?;
        writeln!(file, "{named}").map_err(|error| SetupError::file(path, &error))?;
        Ok(Csv { path: path.to_owned(), file, failed: None })
    }

    pub fn row(&mut self, row: &Row) {
        if self.failed.is_none() {
            self.failed = writeln!(self.file, "{}", text(row)).err();
        }
    }

    /// Returns the error, if any.
    pub fn end(self) -> Option<String> {
        self.failed.map(|error| format!("{} is not complete: {error}", self.path.display()))
    }
}

fn text(r: &Row) -> String {
    let latency = match r.latency {
        Some(values) => values.map(|ms| format!("{ms:.4}")).join(","),
        None => ",,,,".to_owned(),
    };
    let broker = r.broker.map_or(",".to_owned(), |(cores, rss)| format!("{cores:.3},{rss}"));
    let mut text = format!(
        "{:.2},{},{},{:.1},{:.1},{:.1},{latency},{},{:.3},{broker}",
        r.at, r.unix_ms, r.connected, r.sent, r.acked, r.received, r.errors, r.demand
    );
    for value in &r.figures {
        text += &format!(",{value}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_every_column() {
        let columns = COLUMNS.split(',').count();
        let full = Row { latency: Some([1.0; 5]), broker: Some((0.5, 1 << 20)), ..Row::default() };
        for row in [Row::default(), full] {
            assert_eq!(text(&row).split(',').count(), columns, "{}", text(&row));
        }
        let with = Row { figures: vec![1.0, f64::NAN], ..Row::default() };
        assert_eq!(text(&with).split(',').count(), columns + 2);
    }
}
