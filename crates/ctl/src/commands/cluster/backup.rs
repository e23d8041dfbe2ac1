//! `meridian ctl cluster backup`: backups of all cores at the same time.

mod fetch;

use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use clap::Args;
use serde_json::{Value, json};
use ureq::http::Method;

use super::CLUSTER;
use crate::console::Console;
use crate::failure::Failure;
use crate::fields::Fields as _;
use crate::query::Query;
use crate::table::{Column, Table, left, right};

const STORAGE: &str = "/api/v1/storage";
/// Time between two looks at the progress.
const LOOK: Duration = Duration::from_millis(500);
/// Number of looks in a row after which a core that does not answer counts as failed.
const SILENT_LOOKS: u32 = 60;

/// Make a backup of the cluster while it runs
#[derive(Args, Debug)]
#[command(after_help = "\
Each core copies its log into a new directory NAME below its storage.backup_dir, which must be set on all cores. Together
these backups have everything that was acknowledged before the command began: durable sessions with their queues, retained
messages, Wills, and what operators have changed.

Examples:
  meridian ctl cluster backup 2026-01-31
  meridian ctl cluster backup 2026-01-31 --fetch /backups/2026-01-31 --remove
  meridian storage restore /backups/2026-01-31/* DATA_DIR      (offline, into a cluster of any size; docs/storage.md)

--fetch copies the backups to this machine by way of the node that is asked, each into a directory with the name of its
core. They contain secrets, and the payloads of messages.

Exit code 1: a core made no backup, or it was not fetched. Those of a majority of the cores are enough.")]
pub struct BackupArgs {
    /// Name of the new directories
    name: String,
    /// New directory on this machine to which the backups are copied
    #[arg(long, value_name = "DIR")]
    fetch: Option<PathBuf>,
    /// Remove the backups on the cores when they are fetched
    #[arg(long, requires = "fetch")]
    remove: bool,
}

/// Backup of a core.
struct OfCore {
    node: String,
    /// Last answer of the core.
    backup: Value,
    error: Option<String>,
    silent_looks: u32,
    /// Directory on this machine.
    fetched: Option<PathBuf>,
}

impl OfCore {
    fn is_running(&self) -> bool {
        self.error.is_none() && self.backup.text("state") == "running"
    }
}

const BACKUPS: &[Column] =
    &[left("CORE"), left("STATE"), right("SEGMENTS"), right("SIZE"), left("DIRECTORY OR ERROR")];

pub fn backup(console: &mut Console, args: &BackupArgs) -> Result<(), Failure> {
    let view = console.client.get(CLUSTER, &Query::new())?;
    let cores = view.list("membership.members").iter().filter(|member| member.text("role") == "core");
    if cores.clone().next().is_none() {
        return Err(Failure::Failed(
            "this node knows no cores: for a node alone, use `meridian ctl storage backup NAME`".to_owned(),
        ));
    }
    if let Some(directory) = &args.fetch {
        fetch::make_directory(directory)?;
    }
    let cores: Vec<OfCore> = cores.map(|core| begin(console, core, &args.name)).collect();
    let mut cores = wait(console, cores, &args.name);
    if let Some(directory) = &args.fetch {
        fetch::all(console, &mut cores, &args.name, directory, args.remove);
    }
    report(console, &cores)?;
    let failed = cores.iter().filter(|core| core.error.is_some()).count();
    match failed {
        0 => Ok(()),
        _ if args.fetch.is_some() => {
            Err(Failure::Failed(format!("the backups of {failed} of {} cores are missing", cores.len())))
        }
        _ => Err(Failure::Failed(format!("{failed} of {} cores made no backup", cores.len()))),
    }
}

fn begin(console: &mut Console, core: &Value, name: &str) -> OfCore {
    let node = core.text("node");
    let begun = match core.text("state").as_str() {
        "dead" => Err("the core is dead".to_owned()),
        _ => {
            let (path, query) = (format!("{STORAGE}/backups"), Query::new().with("node", &node));
            let begun = console.client.send(Method::POST, &path, &query, Some(&json!({ "name": name })));
            begun.map_err(|failure| failure.to_string())
        }
    };
    let (backup, error) = match begun {
        Ok(backup) => (backup, None),
        Err(error) => (Value::Null, Some(error)),
    };
    OfCore { node, backup, error, silent_looks: 0, fetched: None }
}

fn wait(console: &mut Console, mut cores: Vec<OfCore>, name: &str) -> Vec<OfCore> {
    while cores.iter().any(OfCore::is_running) {
        // Nothing unparks this thread: the cores must be asked.
        thread::park_timeout(LOOK);
        for core in cores.iter_mut().filter(|core| core.is_running()) {
            look(console, core, name);
        }
        let progress = |core: &OfCore| {
            let of = |field| core.backup.cell(field);
            format!("{} {} of {}", core.node, of("segments_done"), of("segments"))
        };
        let running: Vec<String> = cores.iter().filter(|core| core.is_running()).map(progress).collect();
        if !running.is_empty() {
            console.progress(&format!("segments: {}", running.join(", ")));
        }
    }
    cores
}

fn look(console: &mut Console, core: &mut OfCore, name: &str) {
    match console.client.get(STORAGE, &Query::new().with("node", &core.node)) {
        Ok(storage) => {
            core.silent_looks = 0;
            let backup = storage.field("log.backup");
            if backup.text("name") != name {
                core.error = Some("the core has restarted meanwhile".to_owned());
                return;
            }
            core.backup = backup.clone();
            if core.backup.text("state") == "failed" {
                core.error = Some(core.backup.text("error"));
            }
        }
        Err(failure) => {
            core.silent_looks += 1;
            if core.silent_looks >= SILENT_LOOKS {
                core.error = Some(failure.to_string());
            }
        }
    }
}

fn report(console: &mut Console, cores: &[OfCore]) -> Result<(), Failure> {
    if console.json {
        let item = |core: &OfCore| json!({ "node": core.node, "backup": core.backup, "fetched": core.fetched, "error": core.error });
        return console.document(&json!({ "items": cores.iter().map(item).collect::<Vec<_>>() }));
    }
    let mut table = Table::new(BACKUPS);
    for core in cores {
        let state = if core.error.is_some() { "failed" } else { "done" };
        let path = core.fetched.as_ref().map(|directory| directory.display().to_string());
        let path = path.unwrap_or_else(|| core.backup.text("path"));
        let last = core.error.clone().unwrap_or(path);
        table.row(vec![
            core.node.clone(),
            state.to_owned(),
            core.backup.cell("segments"),
            core.backup.bytes_cell("bytes"),
            last,
        ]);
    }
    console.table(&mut table)
}
