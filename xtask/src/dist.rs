//! `cargo xtask dist`: release files. A `.tar.gz` for any Linux, a `.deb`, a container image, separate debugging
//! symbols, a list of all parts from other projects, and the checksums of all. The same binary and commit give the same
//! bytes: entries are sorted, have fixed owners, and the time of the commit. The binary itself is the same for the same
//! commit, toolchain and directory.

mod build;
mod contents;
mod deb;
mod elf;
mod image;
mod notices;
mod parts;
mod rootfs;
mod sbom;
mod tree;

use crate::repository::root;
use anyhow::{Context, Result, ensure};
use elf::Elf;
use sha2::{Digest as _, Sha256};
use std::fmt::Write as _;
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, UNIX_EPOCH};

const VERSION: &str = env!("CARGO_PKG_VERSION");

#[derive(clap::Args)]
pub struct Args {
    /// Pack this binary instead of building one
    #[arg(long, value_name = "BINARY")]
    skip_build: Option<PathBuf>,
    /// Build for this target, such as x86_64-unknown-linux-musl where rustup has it: then the binary is static
    #[arg(long, value_name = "TRIPLE", conflicts_with = "skip_build")]
    target: Option<String>,
    /// Directory for the results
    #[arg(long, value_name = "DIRECTORY", default_value = "target/dist")]
    out: PathBuf,
    /// Write only the files of the container image, to this directory, which must not exist
    #[arg(long, value_name = "DIRECTORY")]
    rootfs: Option<PathBuf>,
}

/// Name and content of a file.
type File = (String, Vec<u8>);

/// A binary and its properties.
pub struct Product {
    /// Binary without debugging information; the names of functions stay, for backtraces.
    pub binary: Vec<u8>,
    /// Debugging information, for core dumps and profiles.
    pub debug: Vec<u8>,
    pub elf: Elf,
    /// Date of every packed file in seconds since 1970.
    pub time: u64,
    /// Parts of other projects: a CycloneDX document.
    pub sbom: Vec<u8>,
    /// Licence texts of those parts.
    pub notices: Vec<u8>,
    /// Commit of the binary, as far as it is known.
    pub revision: Option<String>,
    /// Shells and completion scripts: empty when the binary is for another machine and cannot be run.
    pub completions: Vec<(&'static str, Vec<u8>)>,
}

/// Builds and packs everything.
///
/// # Errors
/// A build or a tool fails, the binary needs uncommon libraries, a file cannot be written.
pub fn run(args: &Args) -> Result<()> {
    let path = match &args.skip_build {
        Some(path) => path.clone(),
        None => build::release(args.target.as_deref())?,
    };
    let mut product = build::product(&path, time()?)?;
    let parts = parts::Parts::read(&product.elf, args.target.as_deref())?;
    product.sbom = sbom::document(&product, &parts)?;
    product.notices = notices::text(&parts)?;
    println!("linux-{}: {}", product.elf.machine, product.elf.linking());
    if let Some(directory) = &args.rootfs {
        rootfs::files(&product)?.write(directory)?;
        println!("{}", directory.display());
        return Ok(());
    }

    // Compression takes most of the time.
    let pack: [fn(&Product) -> Result<File>; 4] = [debugging, archive, deb::pack, image::pack];
    let product = &product;
    let mut files = std::thread::scope(|scope| {
        let packed = pack.map(|pack| scope.spawn(move || pack(product)));
        packed.into_iter().map(|one| one.join().expect("no panic")).collect::<Result<Vec<_>>>()
    })?;
    files.push((format!("{}.cdx.json", name(product)), product.sbom.clone()));
    files.sort();
    let mut sums = String::new();
    for (name, bytes) in &files {
        writeln!(sums, "{}  {name}", sha256(bytes))?;
    }
    files.push(("SHA256SUMS".to_owned(), sums.into_bytes()));

    let out = root().join(&args.out);
    fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
    for (name, bytes) in &files {
        let path = out.join(name);
        fs::write(&path, bytes).with_context(|| path.display().to_string())?;
        println!("{:>12}  {}", bytes.len(), path.display());
    }
    Ok(())
}

fn name(product: &Product) -> String {
    format!("meridian-{VERSION}-linux-{}", product.elf.machine)
}

fn archive(product: &Product) -> Result<File> {
    let name = name(product);
    let bytes = contents::archive(product)?.tar_gz(&format!("{name}/"), product.time)?;
    Ok((format!("{name}.tar.gz"), bytes))
}

fn debugging(product: &Product) -> Result<File> {
    let name = format!("{}-debug", name(product));
    let mut tree = tree::Tree::default();
    tree.file("meridian.debug", product.debug.clone());
    Ok((format!("{name}.tar.gz"), tree.tar_gz(&format!("{name}/"), product.time)?))
}

/// Time of the files in RFC 3339.
fn created(product: &Product) -> String {
    humantime::format_rfc3339_seconds(UNIX_EPOCH + Duration::from_secs(product.time)).to_string()
}

/// SHA-256 in hexadecimal digits.
fn sha256(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        // A String takes everything.
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Time of the files: `SOURCE_DATE_EPOCH`, else the time of the commit, else (in an unpacked archive) 1970.
fn time() -> Result<u64> {
    if let Ok(text) = std::env::var("SOURCE_DATE_EPOCH") {
        return text
            .trim()
            .parse()
            .with_context(|| format!("SOURCE_DATE_EPOCH: {text:?} is not a number of seconds"));
    }
    let git = Command::new("git").args(["log", "-1", "--format=%ct"]).current_dir(root()).output();
    match git {
        Ok(output) if output.status.success() => {
            let text = String::from_utf8(output.stdout)?;
            text.trim().parse().with_context(|| format!("git log: {text:?}"))
        }
        _ => Ok(0),
    }
}

/// Reads a file of the repository.
///
/// # Errors
/// It cannot be read; the path is in the message.
fn read(path: &str) -> Result<Vec<u8>> {
    fs::read(root().join(path)).with_context(|| path.to_owned())
}

/// Runs a tool to its end; its output is in the error.
fn tool(command: &mut Command) -> Result<Vec<u8>> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().with_context(|| format!("{name} cannot be run; is it installed?"))?;
    ensure!(
        output.status.success(),
        "{name}: {}: {}",
        output.status,
        String::from_utf8_lossy(&output.stderr).trim()
    );
    Ok(output.stdout)
}
