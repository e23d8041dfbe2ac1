//! `meridian start`: runs a node until a signal ends it.

mod parts;
mod serving;

use std::process::ExitCode;
use std::sync::Arc;

use broker::settings::Durability;
use broker::spans::SpanQueues;
use settings::{Layers, Loaded};

use crate::cli::VERSION;
use crate::config::{Config, ConfigArgs};
use crate::exposure;
use crate::log::Log;
use crate::notify::ServiceManager;
use crate::otel::Otel;
use crate::replicated::ReplicatedSettings;
use crate::running::Loading;
use crate::signals::Signals;
use crate::system;
use parts::OpenStores;
use serving::{Context, Serving};

/// Runs a node. Exits with 0 after a stop. Exits with 1 when the node did not start, failed to leave its cluster, or
/// one of its threads did not end.
pub fn run(args: &ConfigArgs) -> ExitCode {
    let (layers, loaded) = match args.load() {
        Ok(loaded) => loaded,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let config = &loaded.tree;
    let name = config.node.name.clone().unwrap_or_else(system::host_name);
    let stores = match open_stores(config, &name) {
        Ok(stores) => stores,
        Err(refusal) => {
            eprintln!("{refusal}");
            return ExitCode::FAILURE;
        }
    };
    // Before the first other thread.
    let signals = match Signals::hold() {
        Ok(signals) => signals,
        Err(error) => {
            eprintln!("signals cannot be blocked: {error}");
            return ExitCode::FAILURE;
        }
    };
    // Dropped after everything that logs.
    let otel = match Otel::start(&config.otel, &name) {
        Ok(otel) => otel,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::FAILURE;
        }
    };
    let log = Arc::new(Log::start(&config.log, &otel));
    match serve(args, (layers, loaded), stores, signals, &name, (&log, otel.spans())) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            tracing::error!("{error}");
            ExitCode::FAILURE
        }
    }
}

/// Opens the stores and checks that the node may be reached as configured. The check depends on the API keys.
fn open_stores(config: &Config, name: &str) -> Result<OpenStores, String> {
    let data_dir = &config.node.data_dir;
    exposure::check(config).map_err(|refusal| refusal.to_string())?;
    let problems = config.problems();
    if !problems.is_empty() {
        return Err(problems.join("\n"));
    }
    if config.storage.durability == Durability::LocalDisk {
        system::prepare_data_dir(data_dir)?;
    }
    let stores = OpenStores::open(config, name)?;
    exposure::check_http(&config.http, &stores.keys, data_dir).map_err(|refusal| refusal.to_string())?;
    Ok(stores)
}

fn serve(
    args: &ConfigArgs,
    (layers, loaded): (Layers, Loaded<Config>),
    stores: OpenStores,
    signals: Signals,
    name: &str,
    (log, spans): (&Arc<Log>, Option<Arc<SpanQueues>>),
) -> Result<(), String> {
    let manager = ServiceManager::from_environment();
    let starting = manager.starting();
    let (agreed_settings, updates) = ReplicatedSettings::open(stores.config_store.clone())?;
    let loading = Loading::join(layers, loaded, &agreed_settings);
    let config = loading.loaded.tree.clone();
    log.configure(&config.log);
    tracing::info!(version = VERSION, name, "meridian starts");
    if let Some((path, runtime)) = &loading.layers.runtime {
        let changes = runtime.values().len();
        tracing::info!(path = %path.display(), changes, "settings that were changed at run time are in force");
    }
    set_limits();
    let settings = (loading, agreed_settings, updates);
    let context = Context { args, config: &config, name, log, spans, manager };
    let serving = Serving::start(context, settings, stores)?;
    drop(starting);
    serving.watch_files()?;
    serving.wait_for_stop(&signals)?;
    serving.stop(signals)
}

/// Sets the limits of this process.
fn set_limits() {
    if let Err(error) = system::refuse_huge_pages() {
        tracing::debug!(%error, "huge pages stay on: idle connections may take more memory");
    }
    match system::raise_descriptor_limit() {
        Ok(limit) => tracing::info!(limit = limit.now, was = limit.before, "file descriptors"),
        Err(error) => tracing::warn!(%error, "the limit of file descriptors cannot be raised"),
    }
}
