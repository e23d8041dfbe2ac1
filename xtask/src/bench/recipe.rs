//! Recipes for finding, installing and starting other brokers, from `brokers.toml` and files of its format.

use super::broker::free_address;
use super::child::{self, Guarded};
use crate::repository::root;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// One table of such a file, with its placeholders.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Recipe {
    pub name: String,
    program: String,
    arguments: Vec<String>,
    version: Vec<String>,
    install: Vec<String>,
    needs: Vec<String>,
    hint: String,
    /// A program, with its arguments, that runs as long as the broker does.
    sidecar: Vec<String>,
    files: BTreeMap<String, String>,
    environment: BTreeMap<String, String>,
}

const BUILT_IN: &str = include_str!("brokers.toml");
/// Maximum time of an installation: compiling a broker takes minutes.
const INSTALL_LONGEST: Duration = Duration::from_secs(3600);

/// The recipes of the repository.
pub fn built_in() -> Vec<Recipe> {
    parse(BUILT_IN).expect("a test reads it")
}

/// Parses recipes.
///
/// # Errors
/// Invalid TOML, an unknown key, a missing program, a value of another type.
pub fn parse(text: &str) -> Result<Vec<Recipe>> {
    let document: toml::Table = text.parse()?;
    document
        .iter()
        .map(|(name, value)| recipe(name, value).with_context(|| format!("broker `{name}`")))
        .collect()
}

fn recipe(name: &str, value: &toml::Value) -> Result<Recipe> {
    const KEYS: [&str; 9] =
        ["program", "arguments", "version", "install", "needs", "hint", "sidecar", "files", "environment"];
    let table = value.as_table().context("is a table with a `program` in it")?;
    if let Some(unknown) = table.keys().find(|key| !KEYS.contains(&&key[..])) {
        bail!("`{unknown}` is not a key: there are {}", KEYS.join(", "));
    }
    let text = |key: &str| -> Result<String> {
        let Some(value) = table.get(key) else { return Ok(String::new()) };
        Ok(value.as_str().with_context(|| format!("`{key}` is a text"))?.to_owned())
    };
    let list = |key: &str| -> Result<Vec<String>> {
        let Some(value) = table.get(key) else { return Ok(vec![]) };
        let of_texts = || format!("`{key}` is a list of texts");
        let items = value.as_array().with_context(of_texts)?.iter();
        items.map(|item| item.as_str().map(str::to_owned).with_context(of_texts)).collect()
    };
    let map = |key: &str| -> Result<BTreeMap<String, String>> {
        let Some(value) = table.get(key) else { return Ok(BTreeMap::new()) };
        let of_texts = || format!("`{key}` is a table of texts");
        let items = value.as_table().with_context(of_texts)?.iter();
        items
            .map(|(name, text)| Ok((name.clone(), text.as_str().with_context(of_texts)?.to_owned())))
            .collect()
    };
    let recipe = Recipe {
        name: name.to_owned(),
        program: text("program")?,
        arguments: list("arguments")?,
        version: list("version")?,
        install: list("install")?,
        needs: list("needs")?,
        hint: text("hint")?,
        sidecar: list("sidecar")?,
        files: map("files")?,
        environment: map("environment")?,
    };
    ensure!(!recipe.program.is_empty(), "`program` is missing: what is started");
    let plain = |name: &&String| !name.contains(['/', '\\']) && !name.starts_with('.');
    ensure!(recipe.files.keys().all(|name| plain(&name)), "`files` have names without directories");
    Ok(recipe)
}

/// Values of the placeholders for one start.
struct Placeholders<'a> {
    address: Option<SocketAddr>,
    /// Ports for further listeners.
    more_ports: [u16; 2],
    directory: &'a Path,
}

/// Commands to start one broker.
pub struct Commands {
    pub broker: Command,
    /// A program that is started before it, and runs until its end.
    pub sidecar: Option<Command>,
}

impl Placeholders<'_> {
    fn fill(&self, text: &str) -> String {
        let mut text = text
            .replace("{peers}", &peers().display().to_string())
            .replace("{repository}", &root().display().to_string())
            .replace("{directory}", &self.directory.display().to_string());
        if let Some(address) = self.address {
            text = text
                .replace("{address}", &address.to_string())
                .replace("{host}", &address.ip().to_string())
                .replace("{port}", &address.port().to_string())
                .replace("{port2}", &self.more_ports[0].to_string())
                .replace("{port3}", &self.more_ports[1].to_string());
        }
        text
    }
}

/// Directory for installed brokers.
fn peers() -> PathBuf {
    root().join("target/peers")
}

/// Finds a program by its path or its name. Debian keeps some out of the path of ordinary users.
pub fn find(program: &str) -> Option<PathBuf> {
    if program.contains('/') {
        return Some(PathBuf::from(program)).filter(|path| path.is_file());
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    [peers().join("bin")]
        .into_iter()
        .chain(std::env::split_paths(&path))
        .chain([PathBuf::from("/usr/sbin"), PathBuf::from("/usr/local/sbin")])
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}

impl Recipe {
    pub fn program(&self) -> Option<PathBuf> {
        find(&self.program)
    }

    /// Installs the broker when it is missing and `may_install`. The error is a line with the reason for skipping it.
    pub fn ensure_there(&self, may_install: bool) -> Result<()> {
        if self.program().is_some() {
            return Ok(());
        }
        let missing: Vec<&str> =
            self.needs.iter().filter(|tool| find(tool).is_none()).map(String::as_str).collect();
        let hint = if self.hint.is_empty() { String::new() } else { format!(" ({})", self.hint) };
        ensure!(!self.install.is_empty(), "{} is not installed{hint}", self.program);
        ensure!(
            missing.is_empty(),
            "{} is not installed, and neither is {}{hint}",
            self.program,
            missing.join(", ")
        );
        ensure!(may_install, "{} is not installed: `{}`", self.program, self.install.join(" "));
        eprintln!("installing {}: this can take minutes", self.name);
        let directory = peers();
        std::fs::create_dir_all(&directory)?;
        let placeholders = Placeholders { address: None, more_ports: [0; 2], directory: &directory };
        let log = directory.join(format!("{}.log", self.name));
        let mut command = Command::new(&self.install[0]);
        command
            .args(self.install[1..].iter().map(|argument| placeholders.fill(argument)))
            .current_dir(std::env::temp_dir());
        command.envs(self.environment.iter().map(|(name, value)| (name, placeholders.fill(value))));
        let output = std::fs::File::create(&log)?;
        command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(output);
        let ended = Guarded::spawn(&mut command)?.wait(INSTALL_LONGEST);
        ensure!(!child::interrupted(), "interrupted");
        ensure!(
            ended.is_some_and(|status| status.success()) && self.program().is_some(),
            "{} could not be installed, see {}{hint}",
            self.name,
            log.display()
        );
        Ok(())
    }

    /// Writes its files, and returns the commands that start it.
    pub fn commands(&self, directory: &Path, address: SocketAddr) -> Result<Commands> {
        let more_ports = [free_address()?.port(), free_address()?.port()];
        let placeholders = Placeholders { address: Some(address), more_ports, directory };
        for (name, text) in &self.files {
            std::fs::write(directory.join(name), placeholders.fill(text)).with_context(|| name.clone())?;
        }
        let filled = |program: &str, arguments: &[String]| {
            let found = find(program).with_context(|| format!("{program} does not exist"))?;
            let mut command = Command::new(found);
            command.args(arguments.iter().map(|argument| placeholders.fill(argument))).current_dir(directory);
            command.envs(self.environment.iter().map(|(name, value)| (name, placeholders.fill(value))));
            anyhow::Ok(command)
        };
        let sidecar = match self.sidecar.split_first() {
            Some((program, arguments)) => Some(filled(program, arguments)?),
            None => None,
        };
        Ok(Commands { broker: filled(&self.program, &self.arguments)?, sidecar })
    }

    /// The first line in which the program prints its version, or its name.
    pub fn version(&self) -> String {
        let asked = match self.version.split_first() {
            Some((program, arguments)) if program.starts_with('/') => find(program).zip(Some(arguments)),
            Some(_) => self.program().zip(Some(&self.version[..])),
            None => None,
        };
        let said = asked.and_then(|(program, arguments)| {
            let output = Command::new(program).args(arguments).stdin(Stdio::null()).output().ok()?;
            let text = if output.stdout.is_empty() { output.stderr } else { output.stdout };
            String::from_utf8_lossy(&text)
                .lines()
                .find(|line| line.contains(|c: char| c.is_ascii_digit()))
                .map(str::to_owned)
        });
        let said = said.unwrap_or_default();
        let digits = said.split_whitespace().find(|word| word.contains(|c: char| c.is_ascii_digit()));
        match digits {
            Some(version) => format!("{} {}", self.name, version.trim_start_matches('v')),
            None => self.name.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_recipes_of_the_repository_are_valid() {
        let names: Vec<String> = built_in().into_iter().map(|recipe| recipe.name).collect();
        assert_eq!(names, ["nats", "rmqtt", "rumqttd"]);
    }

    #[test]
    fn placeholders_are_filled_in_arguments_and_files() {
        let text = "[x]\nprogram = \"/bin/true\"\narguments = [\"-p\", \"{port}\", \"{directory}/c\"]\n\
                    [x.files]\nc = \"listen {address} on {host}\"\n[x.environment]\nHOME = \"{directory}\"\n";
        let recipe = parse(text).unwrap().remove(0);
        let directory = super::super::broker::Directory::new().unwrap();
        let at = directory.join("");
        let commands = recipe.commands(&at, "127.0.0.1:2345".parse().unwrap()).unwrap();
        assert!(commands.sidecar.is_none());
        let command = commands.broker;
        let arguments: Vec<String> = command.get_args().map(|a| a.to_string_lossy().into_owned()).collect();
        assert_eq!(arguments, ["-p", "2345", &format!("{}/c", at.display())]);
        assert_eq!(
            std::fs::read_to_string(directory.join("c")).unwrap(),
            "listen 127.0.0.1:2345 on 127.0.0.1"
        );
    }

    #[test]
    fn an_invalid_recipe_is_refused_by_name() {
        for (text, said) in [
            ("x = 1", "is a table"),
            ("[x]\narguments = []", "`program` is missing"),
            ("[x]\nprogram = \"p\"\nprogam = \"p\"", "`progam` is not a key"),
            ("[x]\nprogram = \"p\"\narguments = \"a\"", "list of texts"),
            ("[x]\nprogram = \"p\"\n[x.files]\n\"../c\" = \"\"", "without directories"),
        ] {
            let error = format!("{:#}", parse(text).unwrap_err());
            assert!(error.contains(said) && error.contains('x'), "{error}");
        }
    }

    #[test]
    fn a_missing_broker_is_reported_with_advice() {
        let missing = |text: &str| format!("{:#}", parse(text).unwrap()[0].ensure_there(false).unwrap_err());
        let hint = missing("[x]\nprogram = \"no-such-broker\"\nhint = \"from its site\"");
        assert!(hint.contains("not installed (from its site)"), "{hint}");
        let text = "[x]\nprogram = \"no-such-broker\"\ninstall = [\"make\"]\nneeds = [\"no-such-tool\"]";
        assert!(missing(text).contains("neither is no-such-tool"));
        let text = "[x]\nprogram = \"no-such-broker\"\ninstall = [\"sh\", \"-c\"]\nneeds = [\"sh\"]";
        assert!(missing(text).contains("`sh -c`"));
    }
}
