//! The configuration of a running node, with one owner for all sources of changes.

use std::collections::BTreeSet;
use std::fmt::Display;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use api::{
    Author, Change, Changed, Changes, ConfigView, Configuration, LogLevelView, Refused, Reloaded, Scope,
    SettingProblem, SettingView, Timestamp, Version, durable,
};
use auth::{Guard, GuardChange, JwtChange, PolicyError, ServicesChange};
use broker::admin::Admin;
use settings::{
    Layers, Loaded, Raw, Reload, Runtime, Source, Value as _, settings_of, take_reloadable,
    waiting_for_restart,
};
use transport::Tls;

use crate::config::{Config, ConfigArgs, ConfigError, LogLevel};
use crate::expiry::TlsFiles;
use crate::exposure;
use crate::history::History;
use crate::log::Log;
use crate::replicated::{self, ReplicatedSettings, Updates, setting_problem};
use crate::reread;
use crate::watch::InUse;

mod watched;

pub use watched::fingerprints;

/// Name of the file that keeps changes made at run time, in the data directory.
pub const RUNTIME_FILE: &str = "runtime.toml";

/// Owner of the configuration of a running node. SIGHUP, the API and the cluster change it here, one after the other.
pub struct Running {
    args: ConfigArgs,
    replicated: ReplicatedSettings,
    shutdown_timeout: Duration,
    drain_max: Duration,
    guard: Arc<Guard>,
    node: Handles,
    log: Arc<Log>,
    now: Mutex<Now>,
    /// Held while replicated settings are applied. The node that has proposed a change takes it first, because it
    /// knows the author best.
    updates: Mutex<()>,
    /// Number of the cluster's settings that are not in force here.
    refused: AtomicUsize,
}

/// Handles for changing a running node.
pub struct Handles {
    pub admin: Admin,
    pub files: TlsFiles,
}

struct Now {
    /// Layers as they were last read.
    layers: Layers,
    /// Result of the layers: partly in force, partly from the next start on.
    loaded: Loaded<Config>,
    /// Configuration in force.
    config: Config,
    history: History,
    /// Settings of the cluster that this node cannot apply.
    refused: Vec<SettingProblem>,
    /// Watched files, as they were when they were last read.
    in_use: InUse,
}

/// Layers, and their result.
type Planned = (Layers, Loaded<Config>);

/// A valid configuration that was read with its files and is not in force yet.
struct Prepared<'a> {
    layers: Layers,
    loaded: Loaded<Config>,
    config: Config,
    changed: Vec<settings::Changed>,
    /// Watched files before they were read, when all of them were.
    in_use: Option<InUse>,
    listeners: Option<edge::Renewed>,
    https: Option<api::Renewed>,
    links: Option<Tls>,
    tokens: Option<JwtChange<'a>>,
    services: Option<ServicesChange<'a>>,
    policy: Option<GuardChange<'a>>,
}

/// Configuration at the start of a node.
pub struct Loading {
    pub layers: Layers,
    pub loaded: Loaded<Config>,
    /// Settings of the cluster that this node cannot apply.
    pub refused: Vec<SettingProblem>,
    /// Watched files, before the node reads them.
    pub in_use: InUse,
}

impl Loading {
    /// Adds the cluster's settings to the layers, as far as they are valid on this node. A node that cannot apply a
    /// setting starts without it.
    pub fn join(layers: Layers, loaded: Loaded<Config>, replicated: &ReplicatedSettings) -> Self {
        let wanted = replicated.wanted();
        let all = |why: String| {
            let names = wanted.values().keys();
            names.map(|name| SettingProblem { name: name.clone(), detail: why.clone() }).collect()
        };
        let joined = replicated::merge_replicated(&layers, wanted.clone());
        let refused = match joined {
            Ok((layers, loaded, refused)) => match exposure::check(&loaded.tree) {
                Ok(()) => return Self { in_use: fingerprints(&loaded.tree), layers, loaded, refused },
                Err(refusal) => all(refusal.to_string()),
            },
            // The layers were valid a moment ago.
            Err(problems) => all(problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")),
        };
        Self { in_use: fingerprints(&loaded.tree), layers, loaded, refused }
    }
}

impl Running {
    /// Takes over the configuration that the node was started with.
    pub fn new(
        args: ConfigArgs,
        Loading { layers, loaded, refused, in_use }: Loading,
        replicated: ReplicatedSettings,
        guard: Arc<Guard>,
        node: Handles,
        log: Arc<Log>,
    ) -> Self {
        let config = loaded.tree.clone();
        let runtime = layers.runtime.as_ref().map(|(_, runtime)| runtime.clone()).unwrap_or_default();
        let history = History::open(&config.node.data_dir, &runtime);
        refused.iter().for_each(warn_refused);
        Self {
            args,
            replicated,
            shutdown_timeout: config.node.shutdown_timeout,
            drain_max: config.node.drain_max,
            guard,
            node,
            log,
            refused: AtomicUsize::new(refused.len()),
            now: Mutex::new(Now { layers, loaded, config, history, refused, in_use }),
            updates: Mutex::default(),
        }
    }

    /// Starts a thread that applies changed settings of the cluster. It has a thread of its own because it may wait
    /// for the disk.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn follow_cluster(self: &Arc<Self>, updates: Updates) -> std::io::Result<()> {
        let running = Arc::downgrade(self);
        let follow = move || {
            while let (Ok(()), Some(running)) = (updates.recv(), running.upgrade()) {
                let _updates = running.lock_updates();
                running.apply_replicated(&mut running.lock(), None);
            }
        };
        critical::spawn("settings", follow).map(drop)
    }

    /// Applies the cluster's settings, as far as this node can, and returns the changes. `author` overrides the
    /// author in the records.
    fn apply_replicated(&self, now: &mut Now, author: Option<&Author>) -> Vec<Change> {
        let before = now.layers.cluster.clone();
        let mut changed = Vec::new();
        let mut refused = match replicated::merge_replicated(&now.layers, self.replicated.wanted()) {
            Ok((layers, _, refused)) if layers.cluster == before => refused,
            Ok((layers, loaded, mut refused)) => {
                let names = differing(&before, &layers.cluster);
                match self.prepare(now, layers, loaded, false) {
                    Ok(prepared) => {
                        changed = self.apply_prepared(now, prepared);
                        let author = match author {
                            Some(author) => replicated::cluster_author(&author.by, &author.comment),
                            None => self.replicated.author(names.iter().map(String::as_str)),
                        };
                        if !changed.is_empty() {
                            self.record_history(now, &author, &changed);
                        }
                    }
                    Err(why) => {
                        let problem = |name| SettingProblem { name, detail: why.to_string() };
                        refused.extend(names.into_iter().map(problem));
                    }
                }
                refused
            }
            // The other layers were valid when they were read.
            Err(problems) => problems.iter().map(setting_problem).collect(),
        };
        refused.sort_by(|a, b| a.name.cmp(&b.name));
        refused.iter().filter(|one| !now.refused.contains(one)).for_each(warn_refused);
        self.refused.store(refused.len(), Relaxed);
        now.refused = refused;
        changed
    }

    /// Reads file, environment and the changes made at run time again, and applies the settings that need no restart.
    ///
    /// # Errors
    /// The reason of a refusal; then nothing has changed.
    pub fn reload_all(&self, by: &str) -> Result<Reloaded, Refused> {
        let _span = tracing::info_span!("reload").entered();
        let mut now = self.lock();
        let data_dir = now.config.node.data_dir.clone();
        let (layers, _) = self.args.load_with_data_dir(&data_dir).map_err(failed)?;
        let joined = replicated::merge_replicated(&layers, now.layers.cluster.clone());
        let (layers, loaded, _) = joined.map_err(|problems| failed(ConfigError::Problems(problems)))?;
        let prepared = self.prepare(&now, layers, loaded, true)?;
        let changed = self.apply_prepared(&mut now, prepared);
        let Now { loaded, config, .. } = &mut *now;
        let pending = waiting_for_restart(config, &mut loaded.tree);
        for name in &pending {
            tracing::warn!(setting = name, "setting changed; it takes effect at the next start");
        }
        let author = Author { by: by.to_owned(), comment: "read again".to_owned() };
        if !changed.is_empty() {
            self.record_history(&mut now, &author, &changed);
        }
        // A setting that could not be applied may be applicable now: a file may exist now.
        self.apply_replicated(&mut now, None);
        let files = reread::files(&now.layers, &now.config, &self.node.files);
        Ok(Reloaded { changed, pending, files })
    }

    /// Reads the result of the layers with all files that belong to it. Nothing is in force before
    /// [`Self::apply_prepared`].
    ///
    /// # Errors
    /// Settings or files that cannot be used.
    fn prepare(
        &self,
        now: &Now,
        layers: Layers,
        mut loaded: Loaded<Config>,
        files_may_differ: bool,
    ) -> Result<Prepared<'_>, Refused> {
        let mut config = now.config.clone();
        let changed = take_reloadable(&mut config, &mut loaded.tree);
        // The open listeners are the old ones; the new rules must still protect them.
        exposure::check(&config).map_err(failed)?;
        let guarding = files_may_differ
            || config.auth != now.config.auth
            || config.jwt != now.config.jwt
            || config.http_auth != now.config.http_auth
            || config.http_acl != now.config.http_acl;
        let in_use = files_may_differ.then(|| fingerprints(&config));
        let tokens = self.guard.tokens().filter(|_| guarding);
        let policy = guarding.then(|| self.guard.read(&config.auth));
        let services = guarding.then(|| self.guard.http_services().read(&config.http_auth, &config.http_acl));
        let TlsFiles { listeners, https, links, .. } = &self.node.files;
        let listeners = files_may_differ.then(|| listeners.read(&config.edge));
        let https = https.as_ref().filter(|_| files_may_differ).map(|https| https.read(&config.http));
        let links = links.as_ref().filter(|_| files_may_differ).map(|links| links.read_tls(&config.cluster));
        Ok(Prepared {
            listeners: listeners.transpose().map_err(failed)?,
            https: https.transpose().map_err(failed)?,
            links: links.transpose().map_err(Refused::Failed)?.flatten(),
            tokens: tokens.map(|tokens| tokens.read(&config.jwt)).transpose().map_err(failed)?,
            services: services.transpose().map_err(failed)?,
            policy: policy.transpose().map_err(|error| policy_failed(&error, files_may_differ))?,
            layers,
            loaded,
            config,
            changed,
            in_use,
        })
    }

    /// Applies the configuration and returns the changes. Cannot fail.
    fn apply_prepared(&self, now: &mut Now, prepared: Prepared<'_>) -> Vec<Change> {
        let Prepared {
            layers,
            loaded,
            config,
            changed,
            in_use,
            listeners,
            https,
            links,
            tokens,
            services,
            policy,
        } = prepared;
        let read_files = listeners.is_some();
        // Before the policy: a client whose check is in progress is checked again after its change.
        if let Some(tokens) = tokens {
            tokens.apply();
        }
        if let Some(services) = services {
            services.apply();
        }
        if let Some(policy) = policy {
            policy.apply();
        }
        if let Some(listeners) = listeners {
            listeners.apply();
        }
        if let Some(https) = https {
            https.apply();
        }
        if let (Some(cluster), Some(tls)) = (&self.node.files.links, links) {
            cluster.renew(tls);
        }
        if let Some(in_use) = in_use {
            now.in_use = in_use;
        }
        if read_files {
            self.node.files.warn();
        }
        self.guard.protect(&config.protection);
        if config.broker != now.config.broker {
            self.node.admin.set_settings(config.broker.clone());
        }
        self.log.configure(&config.log);
        for change in &changed {
            // Viewers read the log, so secrets are removed.
            let [before, after] =
                [&change.before, &change.after].map(|value| value.as_deref().map(api::without_secrets));
            tracing::info!(
                setting = change.name,
                before = before.as_deref(),
                after = after.as_deref(),
                "changed"
            );
        }
        (now.layers, now.loaded, now.config) = (layers, loaded, config);
        changed
            .into_iter()
            .map(|one| Change { name: one.name, before: one.before, after: one.after })
            .collect()
    }

    /// Applies these run-time changes to the node, after writing them to disk.
    fn apply_runtime(
        &self,
        now: &mut Now,
        (layers, loaded): Planned,
        author: &Author,
    ) -> Result<Changed, Refused> {
        let prepared = self.prepare(now, layers, loaded, false)?;
        if let Some((path, runtime)) = &prepared.layers.runtime {
            durable::replace(path, runtime.to_toml().as_bytes())
                .map_err(|error| Refused::Failed(format!("{}: {error}", path.display())))?;
        }
        let changed = self.apply_prepared(now, prepared);
        self.record_history(now, author, &changed);
        Ok(Changed { version: now.history.current(), changed, overridden: Vec::new() })
    }

    /// Proposes these changes to the cluster, after checking that this node can apply them. Until they are decided
    /// none of them is in force here either. Waits for other nodes.
    fn change_cluster(&self, changes: &Changes, author: &Author) -> Result<Changed, Refused> {
        let _updates = self.lock_updates();
        let now = self.lock();
        let (layers, loaded) = self.plan_cluster(&now, changes).map_err(Refused::Settings)?;
        let overridden = changes.keys().filter_map(|name| {
            let override_source = loaded.cluster_override(name)?;
            let detail = format!("on this node {override_source} overrides the setting of the cluster");
            Some(SettingProblem { name: name.clone(), detail })
        });
        let mut overridden: Vec<SettingProblem> = overridden.collect();
        drop(self.prepare(&now, layers, loaded, false)?);
        drop(now);
        self.replicated.propose(changes, author)?;
        let mut now = self.lock();
        let changed = self.apply_replicated(&mut now, Some(author));
        // A file may have been removed meanwhile.
        overridden.extend(now.refused.iter().filter(|one| changes.contains_key(&one.name)).cloned());
        Ok(Changed { version: now.history.current(), changed, overridden })
    }

    /// Layers with these changes of the cluster, and their result.
    ///
    /// # Errors
    /// Problems of the changes.
    fn plan_cluster(&self, now: &Now, changes: &Changes) -> Result<Planned, Vec<SettingProblem>> {
        let mut wanted = self.replicated.wanted();
        let mut problems = refusals(now, changes, Some(&wanted));
        changes.iter().for_each(|(name, value)| wanted.put(name, value.as_deref()));
        match replicated::merge_replicated(&now.layers, wanted) {
            Err(more) => problems.extend(more.iter().map(setting_problem)),
            Ok((layers, loaded, unfit)) => {
                problems.extend(unfit.into_iter().filter(|one| changes.contains_key(&one.name)));
                if problems.is_empty() {
                    return Ok((layers, loaded));
                }
            }
        }
        Err(problems)
    }

    fn record_history(&self, now: &mut Now, author: &Author, changes: &[Change]) {
        let runtime = runtime_of(&now.layers);
        if let Err(error) = now.history.add(author, changes.to_vec(), &runtime) {
            tracing::error!(%error, "the history of the configuration cannot be written");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        sync::lock(&self.now)
    }

    fn lock_updates(&self) -> MutexGuard<'_, ()> {
        sync::lock(&self.updates)
    }

    /// Maximum time of a stop.
    pub fn shutdown_timeout(&self) -> Duration {
        self.shutdown_timeout
    }

    /// Maximum time of the drain before a stop.
    pub fn drain_max(&self) -> Duration {
        self.drain_max
    }
}

fn failed(why: impl Display) -> Refused {
    Refused::Failed(why.to_string())
}

/// Error of an access policy. With `of_operator` the operator of the machine has named the files. Otherwise a change
/// at run time names them, and its author could read any file of the machine through the error text.
fn policy_failed(error: &PolicyError, of_operator: bool) -> Refused {
    if of_operator {
        return failed(error);
    }
    tracing::warn!(%error, "a change of the configuration is refused");
    Refused::Failed(error.without_contents())
}

fn runtime_of(layers: &Layers) -> Runtime {
    layers.runtime.as_ref().map(|(_, runtime)| runtime.clone()).unwrap_or_default()
}

/// Layers with these run-time changes, and their result.
fn with_runtime(now: &Now, runtime: Runtime) -> Result<Planned, Vec<SettingProblem>> {
    let path = runtime_path(&now.config.node.data_dir);
    let layers = Layers { runtime: Some((path, runtime)), ..now.layers.clone() };
    match settings::load(&layers) {
        Ok(loaded) => Ok((layers, loaded)),
        Err(problems) => Err(problems.iter().map(setting_problem).collect()),
    }
}

fn warn_refused(problem: &SettingProblem) {
    let SettingProblem { name, detail } = problem;
    tracing::error!(setting = name, "this node cannot apply a setting of the cluster: {detail}");
}

/// Names whose values differ.
fn differing(before: &Runtime, after: &Runtime) -> Vec<String> {
    let names: BTreeSet<&String> = before.values().keys().chain(after.values().keys()).collect();
    names.into_iter().filter(|name| before.get(name) != after.get(name)).cloned().collect()
}

/// Path of the file with the changes made at run time.
pub fn runtime_path(data_dir: &Path) -> PathBuf {
    data_dir.join(RUNTIME_FILE)
}

/// Problems of single changes, before their values are checked. With `wanted`, the changes are of the cluster, which
/// agrees on it.
fn refusals(now: &Now, changes: &Changes, wanted: Option<&Runtime>) -> Vec<SettingProblem> {
    let known = settings_of(&mut now.config.clone());
    let mut problems = Vec::new();
    for (name, value) in changes {
        let mut refuse = |detail| problems.push(SettingProblem { name: name.clone(), detail });
        let Some(setting) = known.iter().find(|setting| setting.name == *name) else {
            // With a value, reading it reports an unknown name, with the nearest known one. A setting that a later
            // version has set for the cluster can be removed here.
            if value.is_none() && wanted.is_none_or(|wanted| wanted.get(name).is_none()) {
                let nearest = settings::nearest(name, known.iter().map(|setting| setting.name.as_str()));
                refuse(format!(
                    "there is no such setting; the nearest known one is `{}`",
                    nearest.unwrap_or_default()
                ));
            }
            continue;
        };
        if value.is_none() {
            continue;
        }
        if setting.field.reload == Reload::AtStart || setting.name.matches('.').count() > 1 {
            refuse(
                "takes effect at the start of the node only: change the configuration file, and \
                     restart"
                    .to_owned(),
            );
        } else if wanted.is_none()
            && let Some(override_source) = now.loaded.override_source(name)
        {
            refuse(format!("is overridden by {override_source}: change that, and restart"));
        }
    }
    problems
}

/// Layers with these run-time changes and their result, or the problems of the changes.
fn plan(now: &Now, changes: &Changes) -> Result<Planned, Vec<SettingProblem>> {
    let mut runtime = runtime_of(&now.layers);
    changes.iter().for_each(|(name, value)| runtime.put(name, value.as_deref()));
    let mut problems = refusals(now, changes, None);
    match with_runtime(now, runtime) {
        Ok(planned) if problems.is_empty() => return Ok(planned),
        Ok(_) => {}
        Err(more) => problems.extend(more),
    }
    Err(problems)
}

impl Configuration for Running {
    fn view(&self) -> ConfigView {
        let now = self.lock();
        let mut loaded = now.loaded.tree.clone();
        let coming = settings_of(&mut loaded);
        let settings = settings_of(&mut now.config.clone()).into_iter().map(|setting| {
            let field = setting.field;
            let later = coming.iter().find(|later| later.name == setting.name);
            let pending = later.filter(|later| later.value != setting.value);
            SettingView {
                source: match now.loaded.source(&setting.name) {
                    Source::Default => "default",
                    Source::File { .. } => "file",
                    Source::Cluster => "cluster",
                    Source::Runtime(_) => "runtime",
                    Source::Environment(_) => "environment",
                    Source::Set(_) | Source::Flag(_) => "command line",
                },
                section: setting.section.name.to_owned(),
                value: setting.value,
                default: default(field.default, field.type_name),
                type_: field.type_name,
                doc: field.doc.iter().map(|line| line.trim()).collect::<Vec<_>>().join(" "),
                range: field.range,
                choices: (!field.choices.is_empty())
                    .then(|| field.choices.iter().map(|choice| choice.name).collect()),
                cluster: self.replicated.value(&setting.name),
                reloadable: field.reload == Reload::OnReload,
                pending: pending.map(|later| later.value.clone().unwrap_or_default()),
                name: setting.name,
            }
        });
        let settings = settings.collect();
        let file = now.layers.file.as_ref().map(|(path, _)| path.display().to_string());
        ConfigView { version: now.history.current(), settings, file, refused: now.refused.clone() }
    }

    fn validate(&self, scope: Scope, changes: &Changes) -> Vec<SettingProblem> {
        let now = self.lock();
        let planned = match scope {
            Scope::Node => plan(&now, changes),
            Scope::Cluster => self.plan_cluster(&now, changes),
        };
        planned.err().unwrap_or_default()
    }

    fn change(&self, scope: Scope, changes: &Changes, author: &Author) -> Result<Changed, Refused> {
        if scope == Scope::Cluster {
            return self.change_cluster(changes, author);
        }
        let mut now = self.lock();
        let planned = plan(&now, changes).map_err(Refused::Settings)?;
        self.apply_runtime(&mut now, planned, author)
    }

    fn rollback(&self, version: u64, author: &Author) -> Result<Changed, Refused> {
        let mut now = self.lock();
        let runtime = now.history.runtime(version).ok_or(Refused::NoVersion(version))?;
        let current = runtime_of(&now.layers);
        let names = differing(&current, &runtime).into_iter();
        let changes: Changes =
            names.map(|name| (name.clone(), runtime.get(&name).map(str::to_owned))).collect();
        let problems = refusals(&now, &changes, None);
        if !problems.is_empty() {
            return Err(Refused::Settings(problems));
        }
        let planned = with_runtime(&now, runtime).map_err(Refused::Settings)?;
        self.apply_runtime(&mut now, planned, author)
    }

    fn reload(&self, by: &str) -> Result<Reloaded, Refused> {
        self.reload_all(by)
    }

    fn history(&self) -> Vec<Version> {
        self.lock().history.versions()
    }

    fn refused(&self) -> usize {
        self.refused.load(Relaxed)
    }

    fn log_level(&self) -> LogLevelView {
        let (level, until) = self.log.level();
        LogLevelView { level: level.to_string(), until }
    }

    fn set_log_level(&self, level: &str, for_time: Option<Duration>) -> Result<u64, String> {
        let level = LogLevel::from_raw(&Raw::Text(level.to_owned())).map_err(|error| error.to_string())?;
        tracing::info!(%level, ?for_time, "an operator changes the log level");
        Ok(self.log.set_instead(level, for_time.map(|time| Timestamp::now().after(time))))
    }

    fn revert_log_level(&self, number: u64) {
        self.log.revert(number);
    }
}

/// Default of a setting. Declarations write an empty text for an unset setting; for a plain text that is a value.
fn default(declared: &str, type_name: &str) -> Option<String> {
    (!declared.is_empty() || type_name == "string").then(|| declared.to_owned())
}
