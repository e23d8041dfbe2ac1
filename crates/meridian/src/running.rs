//! The configuration of a running node: one owner, whoever wants to change it.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use api::{
    Author, Change, Changed, Changes, ConfigView, Configuration, LogLevelView, Refused, Reloaded,
    SettingProblem, SettingView, Timestamp, Version, durable,
};
use auth::{Guard, JwtChange};
use broker::admin::Admin;
use settings::{
    Layers, Loaded, Raw, Reload, Runtime, Source, Value as _, settings_of, take_reloadable,
    waiting_for_restart,
};

use crate::config::{Config, ConfigArgs, LogLevel};
use crate::expiry::TlsFiles;
use crate::exposure;
use crate::history::History;
use crate::log::Log;

/// The name of the file that keeps changes made at run time, in the data directory.
pub const RUNTIME_FILE: &str = "runtime.toml";

/// Owns the configuration of a running node. SIGHUP and the API change it here, one after the other.
pub struct Running {
    args: ConfigArgs,
    guard: Arc<Guard>,
    node: Handles,
    log: Arc<Log>,
    now: Mutex<Now>,
}

/// What a running node is changed by.
pub struct Handles {
    pub admin: Admin,
    pub files: TlsFiles,
}

struct Now {
    /// What the layers said when they were last read.
    layers: Layers,
    /// What they give: partly in force, partly from the next start on.
    loaded: Loaded<Config>,
    /// What is in force.
    config: Config,
    history: History,
}

impl Running {
    /// Takes over what the node was started with.
    pub fn new(
        args: ConfigArgs,
        (layers, loaded): (Layers, Loaded<Config>),
        guard: Arc<Guard>,
        node: Handles,
        log: Arc<Log>,
    ) -> Self {
        let config = loaded.tree.clone();
        let runtime = layers.runtime.as_ref().map(|(_, runtime)| runtime.clone()).unwrap_or_default();
        let history = History::open(&config.node.data_dir, &runtime);
        Self { args, guard, node, log, now: Mutex::new(Now { layers, loaded, config, history }) }
    }

    /// Reads file, environment and the changes made at run time again, and takes up what can be taken up without a restart.
    ///
    /// # Errors
    /// Why not; then nothing has changed.
    pub fn reload_all(&self, by: &str) -> Result<Reloaded, Refused> {
        let _span = tracing::info_span!("reload").entered();
        let mut now = self.lock();
        let data_dir = now.config.node.data_dir.clone();
        let read = self.args.load_beside(&data_dir);
        let (layers, loaded) = read.map_err(|error| Refused::Failed(error.to_string()))?;
        let changed = self.take(&mut now, layers, loaded, true, |_| Ok(()))?;
        let Now { loaded, config, .. } = &mut *now;
        let pending = waiting_for_restart(config, &mut loaded.tree);
        for name in &pending {
            tracing::warn!(setting = name, "changed, and takes effect at the next start");
        }
        let author = Author { by: by.to_owned(), comment: "read again".to_owned() };
        if !changed.is_empty() {
            self.remember(&mut now, &author, &changed);
        }
        Ok(Reloaded { changed, pending })
    }

    /// Makes what the layers give the configuration in force. `keep` writes down what has to be written, after everything that can be
    /// refused and before the first change.
    fn take(
        &self,
        now: &mut Now,
        layers: Layers,
        mut loaded: Loaded<Config>,
        files_may_differ: bool,
        keep: impl FnOnce(&Layers) -> Result<(), Refused>,
    ) -> Result<Vec<Change>, Refused> {
        let mut config = now.config.clone();
        let changed = take_reloadable(&mut config, &mut loaded.tree);
        // The listeners in force are the old ones; what guards them must still be enough.
        exposure::check(&config).map_err(|refusal| Refused::Failed(refusal.to_string()))?;
        let certificates = match files_may_differ {
            true => Some(self.node.files.listeners.read(&config.edge)),
            false => None,
        };
        let certificates = certificates.transpose().map_err(|error| Refused::Failed(error.to_string()))?;
        let https = match &self.node.files.https {
            Some(https) if files_may_differ => Some(https.read(&config.http)),
            _ => None,
        };
        let https = https.transpose().map_err(|error| Refused::Failed(error.to_string()))?;
        let guarding = files_may_differ
            || config.auth != now.config.auth
            || config.jwt != now.config.jwt
            || config.http_auth != now.config.http_auth
            || config.http_acl != now.config.http_acl;
        let links = match &self.node.files.links {
            Some(links) if files_may_differ => links.read_tls(&config.cluster),
            _ => Ok(None),
        };
        let links = links.map_err(Refused::Failed)?;
        let tokens = match self.guard.tokens() {
            Some(tokens) if guarding => Some(tokens.read(&config.jwt)),
            _ => None,
        };
        let tokens = tokens.transpose().map_err(|error| Refused::Failed(error.to_string()))?;
        // Before the guard: whoever is being looked at is looked at again after its change.
        let tokens_before = tokens.map(JwtChange::apply);
        if guarding {
            let taken = self.reload_services(&config).and_then(|()| {
                self.guard.reload(&config.auth).map_err(|error| Refused::Failed(error.to_string()))
            });
            if let Err(refused) = taken {
                if let Some(before) = tokens_before {
                    before.apply();
                }
                // The guard keeps what it had; of the services one may have changed.
                if let Err(error) = self.reload_services(&now.config) {
                    tracing::error!("an HTTP service has settings that were to be taken back: {error}");
                }
                return Err(refused);
            }
        }
        if let Err(refused) = keep(&layers) {
            if let Some(before) = tokens_before {
                before.apply();
            }
            if guarding && let Err(error) = self.reload_services(&now.config) {
                tracing::error!("an HTTP service has settings that were to be taken back: {error}");
            }
            if guarding && let Err(error) = self.guard.reload(&now.config.auth) {
                tracing::error!("access control has settings that were to be taken back: {error}");
            }
            return Err(refused);
        }
        if let Some(certificates) = certificates {
            certificates.apply();
        }
        if let Some(https) = https {
            https.apply();
        }
        if let (Some(cluster), Some(tls)) = (&self.node.files.links, links) {
            cluster.renew(tls);
        }
        if files_may_differ {
            self.node.files.warn();
        }
        self.guard.protect(&config.protection);
        if config.broker != now.config.broker {
            self.node.admin.set_settings(config.broker.clone());
        }
        self.log.set_level(&config.log.level);
        for change in &changed {
            tracing::info!(setting = change.name, before = change.before, after = change.after, "changed");
        }
        *now = Now { layers, loaded, config, history: std::mem::take(&mut now.history) };
        Ok(changed
            .into_iter()
            .map(|one| Change { name: one.name, before: one.before, after: one.after })
            .collect())
    }

    fn reload_services(&self, config: &Config) -> Result<(), Refused> {
        let services = self.guard.http_services();
        services
            .reload(&config.http_auth, &config.http_acl)
            .map_err(|error| Refused::Failed(error.to_string()))
    }

    /// Puts these changes of run time in the place of those there are.
    fn adopt(&self, now: &mut Now, runtime: Runtime, author: &Author) -> Result<Changed, Refused> {
        let (layers, loaded) = with_runtime(now, &runtime).map_err(Refused::Settings)?;
        let changed = self.take(now, layers, loaded, false, |layers| match &layers.runtime {
            Some((path, runtime)) => durable::replace(path, runtime.to_toml().as_bytes())
                .map_err(|error| Refused::Failed(format!("{}: {error}", path.display()))),
            None => Ok(()),
        })?;
        self.remember(now, author, &changed);
        Ok(Changed { version: now.history.current(), changed })
    }

    fn remember(&self, now: &mut Now, author: &Author, changes: &[Change]) {
        let runtime = runtime_of(&now.layers);
        if let Err(error) = now.history.add(author, changes.to_vec(), &runtime) {
            tracing::error!(%error, "the history of the configuration cannot be written");
        }
    }

    fn lock(&self) -> MutexGuard<'_, Now> {
        self.now.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How long a stop may take.
    pub fn shutdown_timeout(&self) -> Duration {
        self.lock().config.node.shutdown_timeout
    }
}

fn runtime_of(layers: &Layers) -> Runtime {
    layers.runtime.as_ref().map(|(_, runtime)| runtime.clone()).unwrap_or_default()
}

/// The layers with these changes of run time, and what they give together.
fn with_runtime(now: &Now, runtime: &Runtime) -> Result<(Layers, Loaded<Config>), Vec<SettingProblem>> {
    let path = runtime_path(&now.config.node.data_dir);
    let layers = Layers { runtime: Some((path, runtime.clone())), ..now.layers.clone() };
    match settings::load(&layers) {
        Ok(loaded) => Ok((layers, loaded)),
        Err(problems) => Err(problems
            .iter()
            .map(|problem| SettingProblem {
                name: problem.fault.name().unwrap_or_default().to_owned(),
                detail: match &problem.fault {
                    settings::Fault::Invalid { why, .. } => why.to_string(),
                    fault => fault.to_string(),
                },
            })
            .collect()),
    }
}

/// Where changes made at run time are kept.
pub fn runtime_path(data_dir: &Path) -> PathBuf {
    data_dir.join(RUNTIME_FILE)
}

/// What is wrong with single changes, before their values are looked at.
fn refusals(now: &Now, changes: &Changes) -> Vec<SettingProblem> {
    let known = settings_of(&mut now.config.clone());
    let mut problems = Vec::new();
    for (name, value) in changes {
        let mut refuse = |detail| problems.push(SettingProblem { name: name.clone(), detail });
        let Some(setting) = known.iter().find(|setting| setting.name == *name) else {
            // With a value, what is not known is found when it is read, with the nearest known name.
            if value.is_none() {
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
                "takes effect at the start of the node only: change the configuration file, and restart"
                    .to_owned(),
            );
        } else if let Some(holder) = now.loaded.holder(name) {
            refuse(format!("is held by {holder}, which goes over it: change that, and restart"));
        }
    }
    problems
}

/// What is wrong with these changes, and the changes of run time with them.
fn plan(now: &Now, changes: &Changes) -> (Vec<SettingProblem>, Runtime) {
    let mut runtime = runtime_of(&now.layers);
    changes.iter().for_each(|(name, value)| runtime.put(name, value.as_deref()));
    let mut problems = refusals(now, changes);
    if let Err(more) = with_runtime(now, &runtime) {
        problems.extend(more);
    }
    (problems, runtime)
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
                reloadable: field.reload == Reload::OnReload,
                pending: pending.map(|later| later.value.clone().unwrap_or_default()),
                name: setting.name,
            }
        });
        let settings = settings.collect();
        let file = now.layers.file.as_ref().map(|(path, _)| path.display().to_string());
        ConfigView { version: now.history.current(), settings, file }
    }

    fn validate(&self, changes: &Changes) -> Vec<SettingProblem> {
        plan(&self.lock(), changes).0
    }

    fn change(&self, changes: &Changes, author: &Author) -> Result<Changed, Refused> {
        let mut now = self.lock();
        let (problems, runtime) = plan(&now, changes);
        if !problems.is_empty() {
            return Err(Refused::Settings(problems));
        }
        self.adopt(&mut now, runtime, author)
    }

    fn rollback(&self, version: u64, author: &Author) -> Result<Changed, Refused> {
        let mut now = self.lock();
        let runtime = now.history.runtime(version).ok_or(Refused::NoVersion(version))?;
        let current = runtime_of(&now.layers);
        let names = runtime.values().keys().chain(current.values().keys());
        let differing = names.filter(|name| runtime.get(name) != current.get(name));
        let changes: Changes =
            differing.map(|name| (name.clone(), runtime.get(name).map(str::to_owned))).collect();
        let problems = refusals(&now, &changes);
        if !problems.is_empty() {
            return Err(Refused::Settings(problems));
        }
        self.adopt(&mut now, runtime, author)
    }

    fn reload(&self, by: &str) -> Result<Reloaded, Refused> {
        self.reload_all(by)
    }

    fn history(&self) -> Vec<Version> {
        self.lock().history.versions()
    }

    fn log_level(&self) -> LogLevelView {
        let (level, until) = self.log.level();
        LogLevelView { level: level.to_string(), until }
    }

    fn set_log_level(&self, level: &str, for_time: Option<Duration>) -> Result<u64, String> {
        let level = LogLevel::from_raw(&Raw::Text(level.to_owned())).map_err(|error| error.to_string())?;
        tracing::info!(%level, ?for_time, "an operator changes what is logged");
        Ok(self.log.set_instead(level, for_time.map(|time| Timestamp::now().after(time))))
    }

    fn revert_log_level(&self, number: u64) {
        self.log.revert(number);
    }
}

/// Declarations write an empty text for a setting that is unset; for a plain text that is a value.
fn default(declared: &str, type_name: &str) -> Option<String> {
    (!declared.is_empty() || type_name == "string").then(|| declared.to_owned())
}
