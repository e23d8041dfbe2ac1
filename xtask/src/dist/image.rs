//! A container image in one file: an image layout of the Open Container Initiative (OCI) in a tar archive. It also has
//! the index that `docker load` of every version reads. Written here so that packing needs no container tools.
//! `Dockerfile` makes the same image from sources; a check compares both.

use super::rootfs::{self, USER};
use super::tree::{self, Tree};
use super::{Product, VERSION, created, sha256};
use anyhow::{Context as _, Result};
use serde_json::{Value, json};

/// The archive and its name.
///
/// # Errors
/// Those of [`rootfs::files`].
pub fn pack(product: &Product) -> Result<(String, Vec<u8>)> {
    let mut files = rootfs::files(product)?;
    files.directory_of(USER, DATA);
    let layer = files.tar("", product.time)?;
    let created = created(product);
    let platform = json!({ "architecture": product.elf.architecture(), "os": "linux" });

    let mut archive = Tree::default();
    let config = config(product, &created, &sha256(&layer));
    let config = add(&mut archive, "config.v1+json", serde_json::to_vec(&config)?);
    let layer = add(&mut archive, "layer.v1.tar+gzip", tree::gzip(&layer)?);
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": media_type("manifest.v1+json"),
        "config": config,
        "layers": [layer],
    });
    let mut manifest = add(&mut archive, "manifest.v1+json", serde_json::to_vec(&manifest)?);
    let name = format!("meridian:{VERSION}");
    manifest["platform"] = platform;
    manifest["annotations"] = json!({
        "org.opencontainers.image.ref.name": name,
        "io.containerd.image.name": format!("docker.io/library/{name}"),
    });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": media_type("index.v1+json"),
        "manifests": [manifest],
    });
    let docker = json!([{ "Config": path(&config)?, "RepoTags": [name], "Layers": [path(&layer)?] }]);
    archive.file("oci-layout", serde_json::to_vec(&json!({ "imageLayoutVersion": "1.0.0" }))?);
    archive.file("index.json", serde_json::to_vec(&index)?);
    archive.file("manifest.json", serde_json::to_vec(&docker)?);
    let name = format!("meridian-{VERSION}-linux-{}-image.tar", product.elf.machine);
    Ok((name, archive.tar("", product.time)?))
}

/// Directory of the data, without the leading `/`.
const DATA: &str = "data";

fn config(product: &Product, created: &str, diff_id: &str) -> Value {
    let second = 1_000_000_000_u64;
    let mut labels = json!({
        "org.opencontainers.image.title": "Meridian",
        "org.opencontainers.image.description": "MQTT broker",
        "org.opencontainers.image.licenses": "Apache-2.0",
        "org.opencontainers.image.version": VERSION,
        "org.opencontainers.image.created": created,
    });
    if let Some(revision) = &product.revision {
        labels["org.opencontainers.image.revision"] = json!(revision);
    }
    json!({
        "created": created,
        "architecture": product.elf.architecture(),
        "os": "linux",
        "config": {
            "User": format!("{USER}:{USER}"),
            "Env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
            "Entrypoint": ["/usr/bin/meridian"],
            "Cmd": ["start", "--config", "/etc/meridian/meridian.toml", "--data-dir", format!("/{DATA}")],
            "WorkingDir": format!("/{DATA}"),
            "Volumes": { format!("/{DATA}"): {} },
            "ExposedPorts": { "1883/tcp": {}, "18083/tcp": {} },
            "StopSignal": "SIGTERM",
            "Labels": labels,
            // Docker reads this. OCI reserves the name and gives it no meaning: Kubernetes has probes.
            "Healthcheck": {
                "Test": ["CMD", "/usr/bin/meridian", "ctl", "health"],
                "Interval": 10 * second,
                "Timeout": 5 * second,
                "StartPeriod": 5 * second,
                "Retries": 3,
            },
        },
        "rootfs": { "type": "layers", "diff_ids": [format!("sha256:{diff_id}")] },
        "history": [{ "created": created, "created_by": "cargo xtask dist" }],
    })
}

fn media_type(kind: &str) -> String {
    format!("application/vnd.oci.image.{kind}")
}

/// Adds a blob to the layout, and returns its descriptor.
fn add(archive: &mut Tree, kind: &str, bytes: Vec<u8>) -> Value {
    let (digest, size) = (sha256(&bytes), bytes.len());
    archive.file(&format!("blobs/sha256/{digest}"), bytes);
    json!({ "mediaType": media_type(kind), "digest": format!("sha256:{digest}"), "size": size })
}

/// Path of a descriptor's blob.
fn path(descriptor: &Value) -> Result<String> {
    let digest = descriptor["digest"].as_str().context("a descriptor without a digest")?;
    Ok(format!("blobs/{}", digest.replacen(':', "/", 1)))
}
