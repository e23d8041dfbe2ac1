//! Copies the backups of cores to this machine.

use std::fs::{self, File};
use std::io::{self, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _};
use std::path::Path;
use std::thread;
use std::time::Duration;

use base64ct::{Base64, Encoding as _};
use serde_json::Value;
use ureq::http::Method;

use super::{OfCore, STORAGE};
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::human;
use crate::query::{Query, encode};

/// Number of attempts to get a part, and the time between two of them: a link or a node may be away for a moment.
const ATTEMPTS: u32 = 10;
const ATTEMPT_AGAIN: Duration = Duration::from_secs(1);
/// Name of the file that is written last.
const IDENTITY: &str = "identity";

/// Makes the directory for the backups.
///
/// # Errors
/// It is there already, or cannot be made.
pub fn make_directory(directory: &Path) -> Result<(), Failure> {
    let made = fs::DirBuilder::new().mode(0o700).create(directory);
    made.map_err(|error| Failure::Local(format!("{} cannot be made: {error}", directory.display())))
}

/// Copies the backups into a directory, each into a new one with the name of its core. A backup that is incomplete is
/// removed again.
pub fn all(console: &mut Console, cores: &mut [OfCore], name: &str, directory: &Path, remove: bool) {
    for core in cores.iter_mut().filter(|core| core.error.is_none()) {
        let into = directory.join(&core.node);
        match one(console, &core.node, name, &into) {
            Ok(()) => core.fetched = Some(into),
            Err(error) => {
                core.error = Some(error);
                // What is left of it says so itself: it has no identity.
                let _ = fs::remove_dir_all(&into);
                continue;
            }
        }
        if remove {
            let (path, query) = (format!("{STORAGE}/backups/{}", encode(name)), of_node(&core.node));
            if let Err(failure) = console.client.send(Method::DELETE, &path, &query, None) {
                console.note(&format!("the backup on {} is not removed: {failure}", core.node));
            }
        }
    }
}

fn of_node(node: &str) -> Query {
    Query::new().with("node", node)
}

fn one(console: &mut Console, node: &str, name: &str, into: &Path) -> Result<(), String> {
    // The name of a node is its own choice, and no path.
    if into.file_name().is_none_or(|last| last != node) {
        return Err(format!("the name {node} cannot be that of a directory"));
    }
    let path = format!("{STORAGE}/backups/{}", encode(name));
    let listed = console.client.get(&path, &of_node(node)).map_err(|failure| failure.to_string())?;
    let mut files: Vec<&Value> = listed.list("items").iter().collect();
    // Without its identity, a copy is no backup: it comes last.
    files.sort_by_key(|file| file.text("name") == IDENTITY);
    let total: u64 = files.iter().filter_map(|file| file.whole("bytes")).sum();
    let text = |error: io::Error| format!("{}: {error}", into.display());
    fs::DirBuilder::new().mode(0o700).create(into).map_err(text)?;
    let mut done = 0;
    for file in files {
        let file_name = file.text("name");
        if Path::new(&file_name).file_name().is_none_or(|last| last != &*file_name) {
            return Err(format!("{node} has a file with the name {file_name}, which is none"));
        }
        let mut options = File::options();
        let to = options.write(true).create_new(true).mode(0o600).open(into.join(&file_name));
        let mut to = to.map_err(text)?;
        let mut offset = 0;
        loop {
            let part = part(console, node, &path, &file_name, offset)?;
            let bytes = Base64::decode_vec(&part.text("bytes_base64"))
                .map_err(|_| format!("{node} has sent a part of {file_name} that cannot be decoded"))?;
            let zeros = part.whole("zeros").unwrap_or_default();
            to.write_all(&bytes).map_err(text)?;
            offset = offset.saturating_add(bytes.len() as u64).saturating_add(zeros);
            if zeros > 0 && Some(offset) <= file.whole("bytes") {
                to.set_len(offset).and_then(|()| to.seek(SeekFrom::Start(offset))).map_err(text)?;
            }
            if bytes.is_empty() && zeros == 0 || Some(offset) >= file.whole("bytes") {
                break;
            }
            console.progress(&format!("{node}: {} of {}", human::bytes(done + offset), human::bytes(total)));
        }
        if Some(offset) != file.whole("bytes") {
            return Err(format!("{file_name} of {node} has changed meanwhile, or was removed"));
        }
        to.sync_all().map_err(text)?;
        done += offset;
    }
    File::open(into).and_then(|directory| directory.sync_all()).map_err(text)
}

/// Gets a part of a file.
fn part(console: &mut Console, node: &str, path: &str, file: &str, offset: u64) -> Result<Value, String> {
    let query = of_node(node).with("file", file).with("offset", offset);
    let mut attempts = 1;
    loop {
        match console.client.get(&format!("{path}/part"), &query) {
            Ok(part) => return Ok(part),
            Err(Failure::Refused(problem)) if problem.status < 500 => {
                return Err(Failure::Refused(problem).to_string());
            }
            Err(failure) if attempts == ATTEMPTS => return Err(failure.to_string()),
            Err(_) => attempts += 1,
        }
        // Nothing unparks this thread.
        thread::park_timeout(ATTEMPT_AGAIN);
    }
}
