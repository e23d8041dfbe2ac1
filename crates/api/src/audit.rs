//! The audit log: every request that is meant to change something, done or refused.

use std::collections::{HashMap, VecDeque};
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead as _, BufReader, Read as _, Seek as _, SeekFrom, Write as _};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use axum::extract::Request;
use serde::{Deserialize, Serialize};
use tokio::sync::mpsc;
#[cfg(feature = "document")]
use utoipa::ToSchema;

use crate::gate::Peer;
use crate::log_limiter::LogLimiter;
use crate::role::Role;
use crate::slots::network;
use crate::timestamp::Timestamp;

/// Number of entries kept in memory, and shown.
pub const KEPT: usize = 1000;
/// Maximum number of entries that wait for the file. Beyond it, requests wait for the disk.
const WAITING: usize = 256;
/// Number of bytes at the end of an existing file that are read at the start.
const TAIL: u64 = 512 * 1024;
/// Maximum number of bytes of a path and of a detail that are kept.
const TEXT_MAX: usize = 1024;
/// The same for a refused attempt.
const REFUSED_TEXT_MAX: usize = 256;
const FILE: &str = "audit.log";
const REFUSED_FILE: &str = "refused.log";
/// Maximum number of callers whose refused attempts are counted within a minute. Attempts of further callers are not
/// written.
const CALLERS_MAX: usize = 4096;
const MINUTE: Duration = Duration::from_secs(60);

/// Entry of the audit log: one request.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "document", derive(ToSchema))]
#[cfg_attr(feature = "document", schema(as = AuditEntry))]
pub struct Entry {
    pub at: Timestamp,
    /// Name of the key; `meridian key` for changes that this command made on the node's machine.
    pub by: Option<String>,
    pub role: Option<Role>,
    /// Address that the request came from, or the file of `meridian key`.
    pub address: String,
    pub method: String,
    /// Path with its query.
    pub path: String,
    /// Status of the answer, whether or not the client still waited for it.
    pub status: u16,
    /// Description of the change, or reason of the refusal.
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

    /// Entry for a change that was made by another way than a request. It looks like the request that would have made
    /// it.
    pub(crate) fn of_local_command(
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

/// Kind of an entry. Each kind has its own entries in memory and its own files, so that refused attempts displace no
/// change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AuditKind {
    /// A change that was begun.
    Change,
    /// An attempt that was refused before anything was begun.
    Refused,
}

/// The audit log: the last entries in memory, and a thread that writes the files.
#[derive(Debug)]
pub struct Audit {
    changes: Mutex<VecDeque<Entry>>,
    refused: Mutex<VecDeque<Entry>>,
    rates: Mutex<Rates>,
    to_file: Mutex<Option<mpsc::Sender<(AuditKind, Entry)>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
    failed: Arc<AtomicU64>,
    unwritten: AtomicU64,
}

/// Number of refused attempts of each caller within a minute.
#[derive(Debug)]
struct Rates {
    per_minute: u32,
    since: Instant,
    counts: HashMap<String, u32>,
    log_limiter: LogLimiter,
}

impl Rates {
    /// Counts an attempt. Returns false when its caller has reached the number that is written in a minute.
    fn take(&mut self, caller: String, now: Instant) -> bool {
        if now.saturating_duration_since(self.since) >= MINUTE {
            self.since = now;
            self.counts.clear();
        }
        if self.counts.len() >= CALLERS_MAX && !self.counts.contains_key(&caller) {
            return false;
        }
        let count = self.counts.entry(caller).or_default();
        *count = count.saturating_add(1);
        *count <= self.per_minute
    }
}

impl Audit {
    /// Reads the last entries of the file in `data_dir`, if there is one. The file is created with the first entry.
    ///
    /// # Errors
    /// The system provides no thread.
    pub fn start(data_dir: &Path, file_max: u64, refused_per_minute: u32) -> io::Result<Self> {
        let [path, refused_path] = [FILE, REFUSED_FILE].map(|file| data_dir.join(file));
        let [changes, refused] = [&path, &refused_path].map(|path| tail(path).unwrap_or_default());
        let (sender, mut receiver) = mpsc::channel::<(AuditKind, Entry)>(WAITING);
        let failed = Arc::new(AtomicU64::new(0));
        let counter = failed.clone();
        // tidy: allow(thread): entries that it does not write are counted and reported.
        let thread = std::thread::Builder::new().name("audit".to_owned()).spawn(move || {
            let open = |path| AuditFile { path, file: None, len: 0, max: file_max };
            let (mut changes, mut refused) = (open(path), open(refused_path));
            while let Some((kind, entry)) = receiver.blocking_recv() {
                let file = match kind {
                    AuditKind::Change => &mut changes,
                    AuditKind::Refused => &mut refused,
                };
                if let Err(error) = file.append(&entry) {
                    // One line for each missing entry would fill the log as well.
                    if counter.fetch_add(1, Ordering::Relaxed) == 0 {
                        tracing::error!(path = %file.path.display(), %error, "audit log: write failed; \
                            entries are missing in the file");
                    }
                }
            }
        })?;
        let rates = Rates {
            per_minute: refused_per_minute,
            since: Instant::now(),
            counts: HashMap::new(),
            log_limiter: LogLimiter::default(),
        };
        Ok(Self {
            changes: Mutex::new(changes),
            refused: Mutex::new(refused),
            rates: Mutex::new(rates),
            unwritten: AtomicU64::new(0),
            to_file: Mutex::new(Some(sender)),
            thread: Mutex::new(Some(thread)),
            failed,
        })
    }

    /// Writes a refused attempt, unless its key and address had too many of them within a minute.
    pub async fn write_refused(&self, mut entry: Entry) {
        let now = Instant::now();
        {
            let mut rates = sync::lock(&self.rates);
            if !rates.take(caller(&entry), now) {
                self.unwritten.fetch_add(1, Ordering::Relaxed);
                if let Some(suppressed) = rates.log_limiter.allow(now) {
                    let (key, address) = (entry.by, entry.address);
                    tracing::warn!(
                        key,
                        address,
                        suppressed,
                        "audit log: too many refused attempts of one key and address within a minute \
                         (http.audit_refused_per_minute); not writing more of them (logged once a minute at \
                         most)"
                    );
                }
                return;
            }
        }
        entry.path.truncate(entry.path.floor_char_boundary(REFUSED_TEXT_MAX));
        if let Some(detail) = &mut entry.detail {
            detail.truncate(detail.floor_char_boundary(REFUSED_TEXT_MAX));
        }
        self.append(AuditKind::Refused, entry).await;
    }

    /// Writes a change. Waits when the disk is slower than the requests.
    pub async fn write(&self, mut entry: Entry) {
        if let Some(detail) = &mut entry.detail {
            *detail = cut(detail);
        }
        self.append(AuditKind::Change, entry).await;
    }

    async fn append(&self, kind: AuditKind, entry: Entry) {
        {
            let mut recent = self.entries(kind);
            if recent.len() == KEPT {
                recent.pop_front();
            }
            recent.push_back(entry.clone());
        }
        let entry = (kind, entry);
        let sender = sync::lock(&self.to_file).clone();
        let sent = match sender {
            Some(sender) => sender.send(entry).await.is_ok(),
            None => false,
        };
        if !sent {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Returns the newest entries of one kind, newest first.
    pub fn recent(&self, kind: AuditKind, limit: usize) -> Vec<Entry> {
        self.entries(kind).iter().rev().take(limit).cloned().collect()
    }

    /// Returns the newest entries of both kinds, newest first. When there are more than `limit`, refused attempts are
    /// at most half of them, or fill the space that changes leave.
    pub fn recent_of_both(&self, limit: usize) -> Vec<Entry> {
        let mut refused = self.recent(AuditKind::Refused, limit);
        let mut entries = self.recent(AuditKind::Change, limit);
        refused.truncate((limit / 2).max(limit - entries.len()));
        entries.truncate(limit - refused.len());
        entries.append(&mut refused);
        // The sort is stable: entries of one time keep their order.
        entries.sort_by_key(|entry| std::cmp::Reverse(entry.at));
        entries
    }

    fn entries(&self, kind: AuditKind) -> MutexGuard<'_, VecDeque<Entry>> {
        let entries = match kind {
            AuditKind::Change => &self.changes,
            AuditKind::Refused => &self.refused,
        };
        sync::lock(entries)
    }

    /// Number of refused attempts that were not written because one key and address had too many.
    pub fn unwritten(&self) -> u64 {
        self.unwritten.load(Ordering::Relaxed)
    }

    /// Number of entries that are missing in the file because it could not be written.
    pub fn failed(&self) -> u64 {
        self.failed.load(Ordering::Relaxed)
    }

    /// Writes the waiting entries and stops the thread.
    pub fn stop(&self) {
        drop(sync::lock(&self.to_file).take());
        if let Some(thread) = sync::lock(&self.thread).take()
            && thread.join().is_err()
        {
            tracing::error!("audit log: its thread panicked; no more entries are written");
        }
    }
}

/// Caller that attempts are counted for: key and address, without the port.
fn caller(Entry { by, address, .. }: &Entry) -> String {
    let address =
        address.parse::<SocketAddr>().map_or_else(|_| address.clone(), |peer| network(peer.ip()).to_string());
    format!("{} {address}", by.as_deref().unwrap_or_default())
}

fn tail(path: &Path) -> io::Result<VecDeque<Entry>> {
    let mut file = File::open(path)?;
    let len = file.seek(SeekFrom::End(0))?;
    file.seek(SeekFrom::Start(len.saturating_sub(TAIL)))?;
    let mut entries = VecDeque::new();
    for line in BufReader::new(file.take(TAIL)).split(b'\n') {
        // The first line may be incomplete, and the last one too after a crash.
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
            // The next entry tries to open the file again.
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
        let audit = Audit::start(&directory, 1 << 20, 10).unwrap();
        write(&audit, 0..3);
        audit.stop();
        let mut file = OpenOptions::new().append(true).open(directory.join(FILE)).unwrap();
        file.write_all(b"{\"at\":").unwrap();
        let audit = Audit::start(&directory, 1 << 20, 10).unwrap();
        let statuses: Vec<_> = audit.recent(AuditKind::Change, 2).iter().map(|entry| entry.status).collect();
        assert_eq!(statuses, [2, 1]);
        audit.stop();
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn files_and_memory_are_bounded() {
        let directory = directory("bounded");
        let audit = Audit::start(&directory, 10_000, 10).unwrap();
        write(&audit, 0..1500);
        audit.stop();
        assert_eq!(audit.recent(AuditKind::Change, usize::MAX).len(), KEPT);
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
        let audit = Audit::start(Path::new("/proc/nowhere"), 10_000, 10).unwrap();
        write(&audit, 0..2);
        audit.stop();
        assert_eq!((audit.failed(), audit.recent(AuditKind::Change, 9).len()), (2, 2));
    }

    /// An attempt of this caller with a path of the maximum length.
    fn attempt(by: Option<&str>, address: &str) -> Entry {
        let (by, path) = (by.map(str::to_owned), format!("/api/v1/clients/{}", "x".repeat(1000)));
        Entry {
            by,
            address: address.into(),
            method: "DELETE".into(),
            path,
            detail: Some("y".repeat(1000)),
            ..entry(403)
        }
    }

    fn refuse(audit: &Audit, entries: impl IntoIterator<Item = Entry>) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        entries.into_iter().for_each(|entry| runtime.block_on(audit.write_refused(entry)));
    }

    /// Otherwise a viewer could erase the changes of an admin.
    #[test]
    fn refused_attempts_push_no_change_out_of_memory_or_files() {
        let directory = directory("pushed-out");
        let audit = Audit::start(&directory, 64 << 10, u32::MAX).unwrap();
        write(&audit, 7..8);
        refuse(&audit, (0..5_000).map(|_| attempt(Some("viewer"), "192.0.2.1:1")));
        audit.stop();
        assert_eq!(audit.recent(AuditKind::Change, 10)[0].status, 7);
        let both = audit.recent_of_both(100);
        assert_eq!((both.len(), both.iter().filter(|entry| entry.status == 7).count()), (100, 1));
        let changes = std::fs::read_to_string(directory.join(FILE)).unwrap();
        assert_eq!(changes.lines().count(), 1);
        for name in [REFUSED_FILE, "refused.log.1"] {
            let text = std::fs::read_to_string(directory.join(name)).unwrap();
            assert!(text.len() <= 64 << 10 && text.lines().all(|line| line.len() < 1000), "{name}");
        }
        // The same holds after a restart.
        let audit = Audit::start(&directory, 64 << 10, 10).unwrap();
        assert_eq!(audit.recent(AuditKind::Change, 10)[0].status, 7);
        assert!(audit.recent(AuditKind::Refused, 1).len() == 1);
        audit.stop();
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn the_rate_of_refused_attempts_is_limited_for_each_key_and_address() {
        let directory = directory("rate");
        let audit = Audit::start(&directory, 1 << 20, 3).unwrap();
        for (by, address) in [
            (Some("viewer"), "192.0.2.1:1"),
            (None, "192.0.2.1:1"),
            (None, "192.0.2.2:1"),
            (None, "[2001:db8::1]:1"),
        ] {
            refuse(&audit, (0..10).map(|_| attempt(by, address)));
        }
        // Another port, and another address of the same network.
        refuse(&audit, [attempt(None, "192.0.2.1:2"), attempt(None, "[2001:db8::2]:1")]);
        assert_eq!(audit.recent(AuditKind::Refused, 100).len(), 4 * 3);
        assert_eq!(audit.unwritten(), 4 * 7 + 2);
        audit.stop();
        std::fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn the_rate_starts_again_after_a_minute() {
        let begun = Instant::now();
        let (counts, log_limiter) = (HashMap::new(), LogLimiter::default());
        let mut rates = Rates { per_minute: 1, since: begun, counts, log_limiter };
        let mut take =
            |caller: &str, seconds| rates.take(caller.to_owned(), begun + Duration::from_secs(seconds));
        assert_eq!([take("a", 0), take("a", 59), take("b", 59), take("a", 60)], [true, false, true, true]);
        // So many callers are one client with many addresses.
        (0..CALLERS_MAX).for_each(|number| _ = take(&number.to_string(), 61));
        assert!(!take("another", 62));
    }
}
