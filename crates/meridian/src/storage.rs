//! `meridian storage`: checks, repairs, saves and copies the log of a node that does not run.

mod merge;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use ::storage::offline::{self, CheckReport, OfflineStats, RepairReport, SegmentReport};
use ::storage::{Error, IDENTITY_FILE, RealDisk};
use clap::{Args, Subcommand};

use crate::store::ReplicasFile;

/// Name of the log's directory below the data directory.
pub const DIRECTORY: &str = "storage";

/// Check, repair and copy the data that a node keeps on disk, while the node does not run
///
/// DIR is the data directory of a node (`node.data_dir`), or the directory `storage` in it. A directory that a
/// running node uses is refused. Only `restore`, `backup` and `repair` write, and only into a directory without a
/// log. docs/storage.md explains the files and the messages of a start.
#[derive(Args, Debug)]
pub struct StorageArgs {
    #[command(subcommand)]
    command: StorageCommand,
}

#[derive(Debug, Subcommand)]
enum StorageCommand {
    /// Read every record and report damage; changes nothing
    ///
    /// Exit status: 0, everything is as it was written; 1, something is damaged or missing; 2, the log cannot be
    /// read.
    Check {
        /// Data directory of the node
        dir: PathBuf,
        /// Print only damage, not a line for each segment
        #[arg(short, long)]
        quiet: bool,
    },
    /// Print numbers of segments, groups and checkpoints; changes nothing
    Stats {
        /// Data directory of the node
        dir: PathBuf,
    },
    /// Save the intact parts of a damaged log into a new one, and report the lost ones
    ///
    /// The damaged log is not changed. To continue with the new one, move the directories as the last lines of the
    /// output say. Restoring a backup loses everything after it; repairing loses the damaged parts: check both before
    /// you choose.
    Repair {
        /// Data directory of the node
        dir: PathBuf,
        /// Directory for the new log [default: the log's directory with `.repaired` appended to its name]
        #[arg(long, value_name = "NEW")]
        into: Option<PathBuf>,
    },
    /// Copy the log of a node that does not run
    Backup {
        /// Data directory of the node
        dir: PathBuf,
        /// Directory to create; it must not contain a log
        backup: PathBuf,
    },
    /// Verify a backup, and copy it to a data directory for a start
    ///
    /// The node then has the data that was durable when the backup was made, as after a crash at that moment.
    ///
    /// A cluster is restored from the backups of its cores together, or from the data directories that are left of
    /// them. The newest replica of each shard counts. One node starts with the result: alone, or as the first core of a
    /// new cluster of any size, which the other nodes join with empty data directories. Exit status: 0, everything is
    /// there; 1, restored, but something is missing, as printed; 2, nothing is restored.
    Restore {
        /// Directory made by `backup`, or of each core of a cluster, and then the data directory of the node, without
        /// a log
        #[arg(required = true, num_args = 2.., value_names = ["BACKUP", "DIR"])]
        directories: Vec<PathBuf>,
        /// Restore a cluster although no directory has some of the shards; these begin empty
        #[arg(long)]
        incomplete: bool,
    },
}

/// Exit status when the directory cannot be read.
const UNREADABLE: u8 = 2;

impl StorageArgs {
    pub fn run(self) -> ExitCode {
        let result = match self.command {
            StorageCommand::Check { dir, quiet } => check(&dir, quiet),
            StorageCommand::Stats { dir } => stats(&dir),
            StorageCommand::Repair { dir, into } => repair(&dir, into),
            StorageCommand::Backup { dir, backup } => backup_to(&dir, &backup),
            StorageCommand::Restore { directories, incomplete } => restore(&directories, incomplete),
        };
        result.unwrap_or_else(|why| {
            eprintln!("meridian storage: {why}");
            ExitCode::from(UNREADABLE)
        })
    }
}

fn text(error: Error) -> String {
    error.to_string()
}

/// Directory of the log: `dir`, or the one in it.
fn log_directory(dir: &Path) -> PathBuf {
    let inside = dir.join(DIRECTORY);
    if inside.is_dir() { inside } else { dir.to_owned() }
}

/// Opens an existing log.
fn existing(dir: &Path) -> Result<(PathBuf, RealDisk), String> {
    let directory = log_directory(dir);
    let disk = RealDisk::open_read_only(&directory).map_err(text)?;
    let names = ::storage::Disk::list(&disk).map_err(|error| format!("{}: {error}", directory.display()))?;
    let any = names.iter().any(|name| name == IDENTITY_FILE || ::storage::SegmentId::of_file(name).is_some());
    if !any {
        return Err(format!(
            "{} has no log: give the data directory of a node that keeps sessions on disk",
            directory.display()
        ));
    }
    Ok((directory, disk))
}

/// A size for people, with one fractional digit.
fn size(bytes: u64) -> String {
    let units = ["bytes", "KiB", "MiB", "GiB", "TiB"];
    let steps = (0..units.len() - 1).take_while(|n| bytes >> (10 * (n + 1)) > 0).count();
    if steps == 0 {
        return format!("{bytes} bytes");
    }
    format!("{:.1} {}", bytes as f64 / (1_u64 << (10 * steps)) as f64, units[steps])
}

fn check(dir: &Path, quiet: bool) -> Result<ExitCode, String> {
    let (directory, disk) = existing(dir)?;
    let report = offline::check(&disk, &mut |segment| {
        if !quiet {
            print_segment(segment);
        }
    })
    .map_err(text)?;
    for problem in &report.problems {
        println!("damaged: {problem}");
    }
    print_verdict(&directory, &report);
    Ok(if report.whole() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn print_segment(segment: &SegmentReport) {
    let verdict = if segment.problem.is_some() { "DAMAGED" } else { "whole" };
    println!("{}: {} records, {}, {verdict}", segment.file, segment.records, size(segment.record_bytes));
}

fn print_verdict(directory: &Path, report: &CheckReport) {
    let records: u64 = report.segments.iter().map(|segment| segment.records).sum();
    let torn = report.stats.as_ref().map_or(0, |stats| stats.torn_bytes);
    if torn > 0 {
        println!(
            "the last commit is not complete, as after a crash; the next start cuts it off \
             ({torn} bytes). If neither process nor machine crashed, check the disk: data that \
             was acknowledged last may be lost"
        );
    }
    let verdict = match report.problems.len() {
        0 => "everything is as it was written".to_owned(),
        1 => "1 problem".to_owned(),
        n => format!("{n} problems"),
    };
    println!("{}: {} segments, {records} records: {verdict}", directory.display(), report.segments.len());
}

fn stats(dir: &Path) -> Result<ExitCode, String> {
    let (directory, disk) = existing(dir)?;
    print_stats(&directory, &offline::stats(&disk).map_err(text)?);
    Ok(ExitCode::SUCCESS)
}

fn print_stats(directory: &Path, stats: &OfflineStats) {
    println!("directory      {}", directory.display());
    if let Some(identity) = &stats.identity {
        println!("log            {}", identity.log_text());
    }
    if let Some((first, last)) = stats.segments {
        let count = last.0 - first.0 + 1;
        println!("segments       {count}, from {} to {}, {} on disk", first.0, last.0, size(stats.bytes));
    }
    println!("records        {}, {}", stats.records, size(stats.record_bytes));
    println!("kept ready     {} empty segments, {}", stats.spares, size(stats.spare_bytes));
    println!("torn tail      {} bytes", stats.torn_bytes);
    for group in &stats.groups {
        let checkpoint = match group.checkpoint {
            Some(index) => {
                format!("checkpoint at {index} with {} parts, {}", group.parts, size(group.part_bytes))
            }
            None => "no checkpoint".to_owned(),
        };
        let bodies = match group.bodies {
            0 => String::new(),
            count => format!(", what is needed of {count} older ones"),
        };
        println!(
            "group {:<8} {} entries up to {}{bodies}, {checkpoint}",
            group.group.0, group.entries, group.last
        );
    }
}

fn repair(dir: &Path, into: Option<PathBuf>) -> Result<ExitCode, String> {
    let (directory, disk) = existing(dir)?;
    let into = into.unwrap_or_else(|| beside(&directory, "repaired"));
    let to = RealDisk::open(&into).map_err(text)?;
    let report = offline::repair(&disk, Arc::new(to)).map_err(text)?;
    print_repair(&report);
    println!();
    println!("The repaired log is in {}. To start from it:", into.display());
    println!("  mv {} {}", directory.display(), beside(&directory, "damaged").display());
    println!("  mv {} {}", into.display(), directory.display());
    Ok(ExitCode::SUCCESS)
}

fn print_repair(report: &RepairReport) {
    for damage in &report.damage {
        println!("damaged: {damage}");
    }
    for group in &report.groups {
        println!(
            "{}: saved {} entries and {} parts of its checkpoint",
            group.group, group.entries, group.parts
        );
        for lost in &group.lost {
            println!("{}: LOST {lost}", group.group);
        }
        if group.parts_lost {
            println!("{}: LOST parts of its checkpoint: sessions in them no longer exist", group.group);
        }
    }
    if report.nothing_lost() {
        println!("Nothing was lost of what is needed for a start.");
    }
}

fn beside(directory: &Path, ending: &str) -> PathBuf {
    let mut name = directory.file_name().unwrap_or(DIRECTORY.as_ref()).to_owned();
    name.push(".");
    name.push(ending);
    directory.with_file_name(name)
}

fn backup_to(dir: &Path, backup: &Path) -> Result<ExitCode, String> {
    let (directory, disk) = existing(dir)?;
    let to = RealDisk::open(backup).map_err(text)?;
    if let Some(list) = ReplicasFile::of(&directory).read()? {
        let written = ReplicasFile::of_backup(backup).write(&list);
        written.map_err(|error| format!("{}: {error}", backup.display()))?;
    }
    let report = offline::copy(&disk, &to, &mut progress).map_err(text)?;
    println!(
        "{} is copied to {}: {} segments, {}",
        directory.display(),
        backup.display(),
        report.segments,
        size(report.bytes)
    );
    Ok(ExitCode::SUCCESS)
}

fn restore(directories: &[PathBuf], incomplete: bool) -> Result<ExitCode, String> {
    let Some((dir, backups)) = directories.split_last() else { return Ok(ExitCode::FAILURE) };
    let [backup] = backups else { return merge::restore(backups, dir, incomplete) };
    let (source, disk) = existing(backup)?;
    if merge::is_of_cluster(&offline::stats(&disk).map_err(text)?) {
        drop(disk);
        return merge::restore(backups, dir, incomplete);
    }
    let directory = if dir.file_name().is_some_and(|name| name == DIRECTORY) {
        dir.to_owned()
    } else {
        dir.join(DIRECTORY)
    };
    let to = RealDisk::open(&directory).map_err(text)?;
    let report = offline::restore(&disk, &to, &mut progress).map_err(text)?;
    println!(
        "{} is intact and copied to {}: {} segments, {}",
        source.display(),
        directory.display(),
        report.segments,
        size(report.bytes)
    );
    Ok(ExitCode::SUCCESS)
}

/// Prints progress on standard error, so that the output stays short.
fn progress(done: usize, all: usize) {
    if all >= 10 && (done.is_multiple_of(10) || done == all) {
        eprintln!("{done} of {all} segments");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_size_has_the_largest_unit_that_fits() {
        let cases = [(0, "0 bytes"), (1023, "1023 bytes"), (1024, "1.0 KiB"), (67_108_864, "64.0 MiB")];
        for (bytes, text) in cases {
            assert_eq!(size(bytes), text);
        }
        assert_eq!(size(1_649_267_441_664), "1.5 TiB");
    }

    #[test]
    fn a_repaired_log_is_written_next_to_the_damaged_one() {
        assert_eq!(beside(Path::new("/d/storage"), "repaired"), Path::new("/d/storage.repaired"));
    }
}
