//! The audit log: every request that is meant to change something, done or refused.

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;

use axum::extract::Request;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
use utoipa::ToSchema;

use crate::gate::Peer;
use crate::role::Role;
use crate::timestamp::Timestamp;

/// Entries kept in memory, and shown.
pub const KEPT: usize = 1000;
/// Entries on their way to the file; beyond it requests wait for the disk.
const WAITING: usize = 256;
/// Of an old file, what is read at the start.
const TAIL: u64 = 512 * 1024;
/// Bytes of a path and of a detail that are kept.
const TEXT_MAX: usize = 1024;
const FILE: &str = "audit.log";

/// One request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = AuditEntry)]
pub struct Entry {
    pub at: Timestamp,
    /// Name of the key; `meridian key` for what that command did on the node's machine.
    pub by: Option<String>,
    pub role: Option<Role>,
    /// Where the request came from; the file of `meridian key`.
    pub address: String,
    pub method: String,
    /// With its query.
    pub path: String,
    /// Status of the answer, whether or not somebody still waited for it.
    pub status: u16,
    /// What was done, or why not.
    pub detail: Option<String>,
}

impl Entry {
    pub(crate) fn of(request: &Request) -> Self {
        let peer = request.extensions().get::<Peer>().map(|peer| peer.0.to_string());
        let path = request.uri().path_and_query().map_or("", |path| path.as_str());
        Self {
            at: Timestamp::now(),
            by: None,
            role: None,
            address: peer.unwrap_or_default(),
            method: cut(request.method().as_str()),
            path: cut(path),
            status: 0,
            detail: None,
        }
    }

    /// What was done by another way than a request, as the request that would have done it.
    pub(crate) fn beside(
        by: &str,
        address: String,
        method: &str,
        path: &str,
        status: u16,
        detail: String,
    ) -> Self {
        Self {
            at: Timestamp::now(),
            by: Some(by.to_owned()),
            role: Some(Role::Admin),
            address,
            method: method.to_owned(),
            path: path.to_owned(),
            status,
            detail: Some(detail),
        }
    }
}

fn cut(text: &str) -> String {
    text[..text.floor_char_boundary(TEXT_MAX)].to_owned()
}

/// The log: the last entries in memory, and a thread that writes the file.
#[derive(Debug)]
pub struct Audit {
    recent: Mutex<VecDeque<Entry>>,
    to_file: Mutex<Option<mpsc::Sender<Entry>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    failed: Arc<AtomicU64>,
}

impl Audit {
    /// Takes up the last entries of the file in `data_dir`, if there is one; made when the first entry comes.
    ///
    /// # Errors
    /// No thread to be had.
    pub fn start(data_dir: &Path, file_max: u64) -> io::Result<Self> {
        let path = data_dir.join(FILE);
        let recent = tail(&path).unwrap_or_default();
        let (sender, mut receiver) = mpsc::channel::<Entry>(WAITING);
        let failed = Arc::new(AtomicU64::new(0));
        let counter = failed.clone();
        // tidy: allow(thread): what it does not write is counted, and told.
        let thread = std::thread::Builder::new().name("audit".to_owned()).spawn(move || {
            let mut file = AuditFile { path, file: None, len: 0, max: file_max };
            while let Some(entry) = receiver.blocking_recv() {
                if let Err(error) = file.append(&entry) {
                    // One line for each that is missing would fill the log as well.
                    if counter.fetch_add(1, Ordering::Relaxed) == 0 {
                        tracing::error!(path = %file.path.display(), %error, "the audit log cannot be written");
                    }
                }
            }
        })?;
        Ok(Self {
            recent: Mutex::new(recent),
            to_file: Mutex::new(Some(sender)),
            thread: Mutex::new(Some(thread)),
            failed,
        })
    }

    /// Waits when the disk is slower than the requests.
    pub async fn write(&self, mut entry: Entry) {
        if let Some(detail) = &mut entry.detail {
            *detail = cut(detail);
        }
        {
            let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
            if recent.len() == KEPT {
                recent.pop_front();
            }
            recent.push_back(entry.clone());
        }
        let sender = self.to_file.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let sent = match sender {
            Some(sender) => sender.send(entry).await.is_ok(),
            None => false,
        };
        if !sent {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The newest first.
    pub fn recent(&self, limit: usize) -> Vec<Entry> {
        self.recent.lock().unwrap_or_else(PoisonError::into_inner).iter().rev().take(limit).cloned().collect()
    }

    /// Entries that are not in the file because it could not be written.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Writes what waits, and ends.
    pub fn stop(&self) {
        drop(self.to_file.lock().unwrap_or_else(PoisonError::into_inner).take());
        if let Some(thread) = self.thread.lock().unwrap_or_else(PoisonError::into_inner).take()
            && thread.join().is_err()
        {
            tracing::error!("the thread of the audit log failed");
        }
    }
}

fn tail(path: &Path) -> io::Result<VecDeque<Entry>> {
    let mut file = File::open(path)?;
    let len = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL)))?;
    let mut entries = VecDeque::new();
    for line in BufReader::new(file.take(TAIL)).split(b'\n') {
        // The first line may be half a one, and the last one too after a crash.
        let Ok(entry) = serde_json::from_slice(&line?) else { continue };
        if entries.len() == KEPT {
            entries.pop_front();
        }
        entries.push_back(entry);
    }
    Ok(entries)
}

struct AuditFile {
    path: PathBuf,
    file: Option<File>,
    len: u64,
    max: u64,
}

impl AuditFile {
    fn append(&mut self, entry: &Entry) -> io::Result<()> {
        let mut line = serde_json::to_vec(entry)?;
        line.push(b'\n');
        if self.file.is_some() && self.len + line.len() as u64 > self.max {
            self.file = None;
            let mut old = self.path.clone().into_os_string();
            old.push(".1");
            std::fs::rename(&self.path, old)?;
        }
        let file = match &mut self.file {
            Some(file) => file,
            None => {
                if let Some(parent) = self.path.parent() {
                    std::fs::create_dir_all(parent)?;
                }
                let file = OpenOptions::new().append(true).create(true).mode(0o600).open(&self.path)?;
                self.len = file.metadata()?.len();
                self.file.insert(file)
            }
        };
        let written = file.write_all(&line);
        self.len += line.len() as u64;
        if written.is_err() {
            // Perhaps it can be opened again.
            self.file = None;
        }
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(number: u16) -> Entry {
        Entry {
            at: Timestamp::now(),
            by: Some("ops".into()),
            role: Some(Role::Admin),
            address: "127.0.0.1:1".into(),
            method: "POST".into(),
            path: "/api/v1/publish".into(),
            status: number,
            detail: None,
        }
    }

    fn write(audit: &Audit, numbers: std::ops::Range<u16>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        numbers.for_each(|number| runtime.block_on(audit.write(entry(number))));
    }

    fn directory(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("meridian-audit-{name}-{}", std::process::id()));
        drop(std::fs::remove_dir_all(&path));
        path
    }

    #[test]
    fn entries_outlive_the_node_and_a_torn_line() {
        let directory = directory("torn");
        let audit = Audit::start(&directory, 1 << 20).unwrap();
        write(&audit, 0..3);
        audit.stop();
        let mut file = OpenOptions::new().append(true).open(directory.join(FILE)).unwrap();
        file.write_all(b"{\"at\":").unwrap();
        let audit = Audit::start(&directory, 1 << 20).unwrap();
        let statuses: Vec<_> = audit.recent(2).iter().map(|entry| entry.status).collect();
        assert_eq!(statuses, [2, 1]);
        audit.stop();
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn files_and_memory_are_bounded() {
        let directory = directory("bounded");
        let audit = Audit::start(&directory, 10_000).unwrap();
        write(&audit, 0..1500);
        audit.stop();
        assert_eq!(audit.recent(usize::MAX).len(), KEPT);
        assert_eq!(audit.failed(), 0);
        let files: Vec<_> = std::fs::read_dir(&directory).unwrap().map(|file| file.unwrap()).collect();
        assert_eq!(files.len(), 2, "{files:?}");
        for file in files {
            assert!(file.metadata().unwrap().len() <= 10_000);
        }
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_disk_that_refuses_is_counted() {
        let audit = Audit::start(Path::new("/proc/nowhere"), 10_000).unwrap();
        write(&audit, 0..2);
        audit.stop();
        assert_eq!((audit.failed(), audit.recent(9).len()), (2, 2));
    }
}
