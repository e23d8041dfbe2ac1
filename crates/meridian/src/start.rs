//! `meridian start`: runs a node until a signal ends it.

use std::process::ExitCode;
use std::sync::Arc;

use auth::{Bans, Guard};
use settings::{Reload, Tree as _};

use crate::cli::VERSION;
use crate::config::{Config, ConfigArgs};
use crate::exposure;
use crate::log::Log;
use crate::node::Node;
use crate::otel::Otel;
use crate::signals::{Signal, Signals};
use crate::system;

/// Exits with 0 after a stop, with 1 when the node did not start.
pub fn run(args: &ConfigArgs) -> ExitCode {
    let config = match args.load() {
        Ok(loaded) => loaded.tree,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    if let Err(refusal) = exposure::check(&config.edge.listeners, &config.auth) {
        eprintln!("{refusal}");
        return ExitCode::FAILURE;
    }
    // Before the first other thread.
    let signals = match Signals::hold() {
        Ok(signals) => signals,
        Err(error) => {
            eprintln!("signals cannot be held back: {error}");
            return ExitCode::FAILURE;
        }
    };
    let name = config.node.name.clone().unwrap_or_else(system::host_name);
    // Outlives everything that logs.
    let otel = match Otel::start(&config.otel, &name) {
        Ok(otel) => otel,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let log = Log::start(&config.log, &otel);
    match serve(args, config, signals, &name, &log) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn serve(args: &ConfigArgs, config: Config, signals: Signals, name: &str, log: &Log) -> Result<(), String> {
    tracing::info!(version = VERSION, name, "meridian starts");
    if let Err(error) = system::refuse_huge_pages() {
        tracing::debug!(%error, "huge pages stay on: idle connections may take more memory");
    }
    match system::raise_descriptor_limit() {
        Ok(limit) => tracing::info!(limit = limit.now, was = limit.before, "file descriptors"),
        Err(error) => tracing::warn!(%error, "the limit of file descriptors stays what it was"),
    }
    let bans = Bans::open(&config.node.data_dir, config.auth.bans_max as usize, std::time::SystemTime::now());
    let bans = Arc::new(bans.map_err(|error| error.to_string())?);
    let guard = Guard::open(&config.auth).map_err(|error| error.to_string())?.with_bans(bans);
    let guard = Arc::new(guard);
    let node = Node::start(&config, guard.clone()).map_err(|error| error.to_string())?;
    tracing::warn!(
        "sessions and retained messages are kept in memory only: a restart loses them (there is no disk store yet)"
    );

    let mut running = config;
    loop {
        match signals.wait().map_err(|error| format!("signals cannot be waited for: {error}"))? {
            Signal::Stop => break,
            Signal::Reload => match reload(args, &mut running, &guard, log) {
                Ok(()) => tracing::info!("reloaded"),
                Err(error) => tracing::error!("not reloaded, everything stays as it was: {error}"),
            },
        }
    }

    tracing::info!(within = ?running.node.shutdown_timeout, "stopping; a second signal ends at once");
    let impatient = std::thread::Builder::new().name("stop".to_owned()).spawn(move || {
        // A reload that comes now has nothing to reload.
        while let Ok(Signal::Reload) = signals.wait() {}
        std::process::exit(1);
    });
    if let Err(error) = impatient {
        tracing::warn!(%error, "a second signal will not be noticed");
    }
    let _span = tracing::info_span!("stop").entered();
    node.stop(running.node.shutdown_timeout);
    Ok(())
}

/// Takes up what can be taken up without a restart. On an error nothing has changed.
fn reload(args: &ConfigArgs, running: &mut Config, guard: &Guard, log: &Log) -> Result<(), String> {
    let _span = tracing::info_span!("reload").entered();
    let mut new = args.load().map_err(|error| error.to_string())?.tree;
    // The listeners in force are the old ones; what guards them must still be enough.
    exposure::check(&running.edge.listeners, &new.auth).map_err(|refusal| refusal.to_string())?;
    guard.reload(&new.auth).map_err(|error| error.to_string())?;
    log.set_level(&new.log.level);
    for name in waiting_for_restart(running, &mut new) {
        tracing::warn!(setting = name, "changed, and takes effect at the next start");
    }
    running.auth = new.auth;
    running.log.level = new.log.level;
    Ok(())
}

/// The settings that differ and that a running node cannot change.
fn waiting_for_restart(running: &mut Config, new: &mut Config) -> Vec<String> {
    let mut names = Vec::new();
    for (old, new) in running.sections().iter().zip(new.sections()) {
        let description = old.description();
        for field in description.fields {
            if field.reload == Reload::AtStart && old.show(field.key) != new.show(field.key) {
                names.push(format!("{}.{}", description.name, field.key));
            }
        }
    }
    if running.edge.listeners != new.edge.listeners {
        names.push("listener".to_owned());
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reload_names_what_waits_for_a_restart() {
        let (mut running, mut new) = (Config::default(), Config::default());
        assert_eq!(waiting_for_restart(&mut running, &mut new), [""; 0]);
        new.broker.mqtt.qos_max = 1;
        new.auth.allow_anonymous = Some(true);
        new.edge.listeners[0].backlog = 1;
        assert_eq!(waiting_for_restart(&mut running, &mut new), ["mqtt.qos_max", "listener"]);
    }
}
