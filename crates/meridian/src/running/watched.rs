//! Files that are used when they change, without a reload: the thread that looks at them.

use std::collections::BTreeMap;
use std::sync::{Arc, Weak};
use std::thread;
use std::time::Duration;

use api::{RefusedFiles, WatchedFiles};

use super::{Now, Running};
use crate::watch::{self, Fingerprint, InUse, Part, Stamps, Watch};

/// Reads the fingerprints of all watched files. A caller that uses the files calls this before it reads them: a change
/// in between is then seen later.
pub fn fingerprints(config: &crate::config::Config) -> InUse {
    watch::files(config).into_iter().map(|(part, paths)| (part, Fingerprint::read(&paths))).collect()
}

/// Result of a try to use changed files.
enum Tried {
    Used,
    /// Other files with the contents of those in use.
    Same,
    /// Files that changed meanwhile.
    Unstable,
    Refused(Stamps, String),
}

impl Running {
    /// Starts the thread that looks at the files. It has a thread of its own because it may wait for the disk, or for
    /// a file system of the network.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn watch_files(self: &Arc<Self>) -> std::io::Result<()> {
        let running = Arc::downgrade(self);
        critical::spawn("files", move || watch_until_end(&running)).map(drop)
    }

    fn watch_interval(&self) -> Duration {
        self.lock().config.node.watch_files
    }

    /// Polls once, and uses the files that are due.
    fn poll_files(&self, watch: &mut Watch) {
        let (config, in_use) = {
            let now = self.lock();
            (now.config.clone(), now.in_use.clone())
        };
        // Without the lock: a file system of the network may be away.
        let polled: BTreeMap<_, _> =
            watch::files(&config).into_iter().map(|(part, paths)| (part, Stamps::read(&paths))).collect();
        let mut used = false;
        for part in watch.handle(polled, &in_use) {
            let name = part.name(&config);
            match self.try_files(part) {
                Tried::Used => {
                    watch.used(part);
                    self.watched(|figures| figures.used += 1);
                    used = true;
                    tracing::info!(part = name, "files: contents changed; using the new ones");
                }
                Tried::Same => watch.used(part),
                Tried::Unstable => {}
                Tried::Refused(stamps, why) => {
                    if watch.refuse(part, stamps, why.clone()) {
                        self.watched(|figures| figures.refusals += 1);
                        tracing::warn!(
                            part = name,
                            "files: changed contents cannot be used, keeping the previous ones; trying again until \
                             they are right: {why}"
                        );
                    }
                }
            }
        }
        let refused = watch.refused().iter();
        let refused = refused
            .map(|(part, refusal)| RefusedFiles { part: part.name(&config), why: refusal.why.clone() });
        let refused: Vec<_> = refused.collect();
        self.watched(|figures| figures.refused = refused);
        if used {
            self.node.files.warn();
        }
    }

    fn watched(&self, change: impl FnOnce(&mut WatchedFiles)) {
        change(&mut sync::lock(&self.node.files.watched));
    }

    /// Reads the files of this part, and uses them.
    fn try_files(&self, part: Part) -> Tried {
        let mut now = self.lock();
        // The settings may have changed since the poll.
        let Some((_, paths)) = watch::files(&now.config).into_iter().find(|(one, _)| *one == part) else {
            return Tried::Same;
        };
        let fingerprint = Fingerprint::read(&paths);
        let is_same = now.in_use.get(&part).is_some_and(|used| fingerprint.has_contents_of(used));
        let read = match is_same {
            true => None,
            false => Some(self.read_part(&now, part)),
        };
        if Stamps::read(&paths) != *fingerprint.stamps() {
            return Tried::Unstable;
        }
        let tried = match read {
            None => Tried::Same,
            Some(Ok(apply)) => {
                apply();
                Tried::Used
            }
            Some(Err(why)) => return Tried::Refused(fingerprint.stamps().clone(), why),
        };
        now.in_use.insert(part, fingerprint);
        tried
    }

    /// Reads the files of one part. The result puts them in force.
    ///
    /// # Errors
    /// Files that cannot be used.
    fn read_part(&self, now: &Now, part: Part) -> Result<Box<dyn FnOnce() + '_>, String> {
        let config = &now.config;
        let (files, guard) = (&self.node.files, &self.guard);
        match part {
            Part::Listener(index) => {
                let renewed = files.listeners.read_one(&config.edge, index).map_err(|why| why.to_string())?;
                Ok(Box::new(move || renewed.apply()))
            }
            Part::Https => {
                let Some(https) = &files.https else { return Ok(Box::new(|| ())) };
                let renewed = https.read(&config.http).map_err(|why| why.to_string())?;
                Ok(Box::new(move || renewed.apply()))
            }
            Part::Links => {
                let Some(links) = &files.links else { return Ok(Box::new(|| ())) };
                let tls = links.read_tls(&config.cluster)?;
                Ok(Box::new(move || {
                    if let Some(tls) = tls {
                        links.renew(tls);
                    }
                }))
            }
            Part::HttpServices => {
                let services = guard.http_services();
                let change =
                    services.read(&config.http_auth, &config.http_acl).map_err(|why| why.to_string())?;
                Ok(Box::new(move || change.apply()))
            }
            Part::Jwt => {
                let Some(tokens) = guard.tokens() else { return Ok(Box::new(|| ())) };
                let change = tokens.read(&config.jwt).map_err(|why| why.to_string())?;
                Ok(Box::new(move || change.apply()))
            }
        }
    }
}

fn watch_until_end(running: &Weak<Running>) {
    let mut watch = Watch::default();
    loop {
        let Some(running) = running.upgrade() else { return };
        let interval = running.watch_interval();
        if interval.is_zero() {
            watch = Watch::default();
            running.watched(|figures| figures.refused.clear());
        } else {
            running.poll_files(&mut watch);
        }
        drop(running);
        // tidy: allow(thread-sleep): a thread of its own with nothing else to do.
        thread::sleep(if interval.is_zero() { INTERVAL_OFF } else { interval.max(INTERVAL_MIN) });
    }
}

/// Minimum interval of polls, whatever the setting says.
const INTERVAL_MIN: Duration = Duration::from_millis(100);
/// Interval at which the thread looks whether it is to begin.
const INTERVAL_OFF: Duration = Duration::from_secs(5);
