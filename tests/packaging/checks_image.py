"""The container image of `cargo xtask dist`: its archive, a node in its files, and the same image from the Dockerfile."""

import gzip
import hashlib
import io
import json
import os
import pathlib
import re
import shlex
import signal
import stat
import subprocess
import tarfile
import tempfile
import time

from checks_packages import DATE, ROOT, WAIT_S, dist, only, packed, run

USER = 10001
MEDIA = "application/vnd.oci.image."


def members(text):
    """Entries of a tar archive: name, and what it is."""
    with tarfile.open(fileobj=io.BytesIO(text)) as tar:
        return {member.name: (member, member.isfile() and tar.extractfile(member).read()) for member in tar}


class Image:
    """The image in an archive, found as a container runtime finds it. Each digest and size is compared with its bytes."""

    def __init__(self, path):
        self.path = path
        self.files = {name: content for name, (member, content) in members(path.read_bytes()).items() if member.isfile()}
        self.used = {"oci-layout", "index.json", "manifest.json"}
        assert json.loads(self.files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
        index = json.loads(self.files["index.json"])
        assert index["schemaVersion"] == 2 and index["mediaType"] == MEDIA + "index.v1+json", index
        self.descriptor = only(index["manifests"])
        manifest = json.loads(self.blob(self.descriptor, "manifest.v1+json"))
        assert manifest["schemaVersion"] == 2 and manifest["mediaType"] == MEDIA + "manifest.v1+json", manifest
        self.manifest = manifest
        self.whole = json.loads(self.blob(manifest["config"], "config.v1+json"))
        self.config = self.whole["config"]
        self.layer = gzip.decompress(self.blob(only(manifest["layers"]), "layer.v1.tar+gzip"))

    def blob(self, descriptor, kind):
        assert descriptor["mediaType"] == MEDIA + kind, descriptor
        name = "blobs/" + descriptor["digest"].replace(":", "/")
        content = self.files[name]
        assert descriptor["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}" and descriptor["size"] == len(content), descriptor
        self.used.add(name)
        return content


def image(binary):
    return Image(only(packed(binary).glob("*-image.tar")))


def the_archive_of_the_image_is_one(binary):
    """The image is an OCI layout: each digest and size is that of its bytes; index, manifest and configuration fit each other, and what Docker reads."""
    it = image(binary)
    assert set(it.files) == it.used, "blobs that nothing names"
    assert it.whole["rootfs"] == {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(it.layer).hexdigest()}"]}
    assert len(it.whole["history"]) == 1
    platform = {"architecture": it.whole["architecture"], "os": it.whole["os"]}
    package = only(packed(binary).glob("*.deb")).stem
    _, version, architecture = package.split("_")
    assert platform == it.descriptor["platform"] == {"architecture": architecture, "os": "linux"}
    name = f"meridian:{version.replace('~', '-')}"
    assert it.descriptor["annotations"]["org.opencontainers.image.ref.name"] == name
    docker = only(json.loads(it.files["manifest.json"]))
    assert docker["RepoTags"] == [name]
    blobs = [one["digest"].replace(":", "/") for one in (it.manifest["config"], *it.manifest["layers"])]
    assert [f"blobs/{one}" for one in blobs] == [docker["Config"], *docker["Layers"]], docker
    labels = it.config["Labels"]
    said = run(binary, "--version").stdout
    assert labels["org.opencontainers.image.version"] == said.split()[1]
    assert labels["org.opencontainers.image.revision"] == re.search(r"\((\w+)\)", said).group(1)
    assert labels["org.opencontainers.image.created"] == it.whole["created"]
    assert it.whole["created"] == "2009-02-13T23:31:30Z", f"not {DATE}"


def the_files_of_the_image_are_few(binary):
    """The image has only files of root that nobody else can change, no program that gets rights, and /data of its user; the Dockerfile gets the same files."""
    entries = members(image(binary).layer)
    programs = set()
    for name, (member, _) in entries.items():
        owner = USER if name == "data" else 0
        assert (member.uid, member.gid) == (owner, owner) and member.mode in (0o644, 0o755), name
        assert member.isdir() and member.mode == 0o755 or member.isfile(), name
        if member.isfile() and member.mode == 0o755:
            programs.add(name)
    loaders = {name for name in programs if pathlib.Path(name).name.startswith("ld-")}
    assert programs - loaders == {"usr/bin/meridian"}, programs
    with tempfile.TemporaryDirectory() as directory:
        rootfs = pathlib.Path(directory) / "rootfs"
        dist(binary, "--rootfs", rootfs)
        written = {str(path.relative_to(rootfs)): path for path in rootfs.rglob("*")}
        assert set(written) | {"data"} == set(entries)
        for name, path in written.items():
            member, content = entries[name]
            assert stat.S_IMODE(path.stat().st_mode) == member.mode and (path.is_dir() or path.read_bytes() == content), name


class Root:
    """The files of the image as the root of processes in a network of their own, with what every container runtime provides."""

    def __init__(self, it, directory):
        self.config = it.config
        self.path = pathlib.Path(directory) / "root"
        with tarfile.open(fileobj=io.BytesIO(it.layer)) as tar:
            tar.extractall(self.path, numeric_owner=True)
        (self.path / "etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
        (self.path / "dev").mkdir()
        os.mknod(self.path / "dev/urandom", 0o444 | stat.S_IFCHR, os.makedev(1, 9))
        os.chmod(self.path / "dev/urandom", 0o444)
        os.chmod(directory, 0o755)

    def command(self, *words):
        return ["chroot", f"--userspec={self.config['User']}", "--groups=", str(self.path), *words]

    def environment(self, **more):
        return dict(one.split("=", 1) for one in self.config["Env"]) | more

    def inside(self, process, *words, **options):
        """Runs a command as `docker exec` does."""
        return run("nsenter", f"--target={process.pid}", "--net", *self.command(*words), env=self.environment(), **options)

    def alone(self, *words, **options):
        return run("unshare", "--net", *self.command(*words), env=self.environment(), **options)


def the_image_runs_a_node(binary, as_root, ip):
    """In the files of the image, as its user: its command starts a node, its health check succeeds, a client connects by name, and its stop signal stops the node with exit 0."""
    it = image(binary)
    with tempfile.TemporaryDirectory() as directory:
        root = Root(it, directory)
        check = it.config["Healthcheck"]["Test"]
        assert check[0] == "CMD" and not it.config["WorkingDir"].startswith("/dev")
        start = [*it.config["Entrypoint"], *it.config["Cmd"]]
        failed = root.alone(*start, fails=True)
        assert "nothing says who may connect" in failed.stderr, failed.stderr
        root.alone(*check[1:], fails=True)
        log = pathlib.Path(directory) / "log"
        environment = root.environment(MERIDIAN__AUTH__ALLOW_ANONYMOUS="true", MERIDIAN__AUTH__NO_MATCH="allow")
        lo_up = f"{shlex.quote(ip)} link set lo up && exec {shlex.join(root.command(*start))}"
        with open(log, "w") as output:
            process = subprocess.Popen(["unshare", "--net", "sh", "-c", lo_up], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=environment)
        try:
            deadline = time.monotonic() + WAIT_S
            while "the node serves" not in log.read_text() or root.inside(process, *check[1:], fails=None).returncode != 0:
                assert process.poll() is None, f"exit {process.returncode}: {log.read_text()}"
                assert time.monotonic() < deadline, f"not healthy: {log.read_text()}"
                time.sleep(0.1)
            owner = (root.path / "data/storage").stat()
            assert (owner.st_uid, owner.st_gid) == (USER, USER)
            # A name in /etc/hosts needs the libraries and the files of name resolution.
            root.inside(process, "/usr/bin/meridian", "pub", "-h", "localhost", "-t", "a", "-m", "b", "-q", "1")
            process.send_signal(getattr(signal, it.config["StopSignal"]))
            assert process.wait(WAIT_S) == 0, f"exit {process.returncode}: {log.read_text()}"
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def final_stage():
    """Text of the last stage of the Dockerfile, and its instructions with their words."""
    text = (ROOT / "Dockerfile").read_text()
    stage = text[text.index("FROM scratch") :]
    lines = [line for line in stage.replace("\\\n", " ").splitlines() if line and not line.startswith("#")]
    return stage, [line.split(None, 1) for line in lines]


def seconds(text):
    return int(re.fullmatch(r"(\d+)s", text).group(1)) * 10**9


def the_dockerfile_says_the_same(binary):
    """Dockerfile: user, ports, volume, command, health check and labels are those of the image of `cargo xtask dist`, and it copies the same files."""
    it = image(binary)
    config, copies = {"Env": it.config["Env"]}, []
    for word, rest in final_stage()[1]:
        match word:
            case "FROM" | "ARG":
                pass
            case "COPY":
                copies.append(rest)
            case "LABEL":
                config["Labels"] = dict(one.split("=", 1) for one in shlex.split(rest))
            case "USER" | "WORKDIR" | "STOPSIGNAL":
                config[{"USER": "User", "WORKDIR": "WorkingDir", "STOPSIGNAL": "StopSignal"}[word]] = rest
            case "VOLUME":
                config["Volumes"] = {rest: {}}
            case "EXPOSE":
                config["ExposedPorts"] = {f"{port}/tcp": {} for port in rest.split()}
            case "ENTRYPOINT" | "CMD":
                config[word.capitalize()] = json.loads(rest)
            case "HEALTHCHECK":
                options, command = rest.split(" CMD ", 1)
                given = dict(re.findall(r"--([a-z-]+)=(\w+)", options))
                config["Healthcheck"] = {
                    "Test": ["CMD", *json.loads(command)],
                    "Interval": seconds(given["interval"]),
                    "Timeout": seconds(given["timeout"]),
                    "StartPeriod": seconds(given["start-period"]),
                    "Retries": int(given["retries"]),
                }
            case _:
                raise AssertionError(f"unknown to this check: {word}")
    # A Dockerfile knows neither the version nor the time of its build.
    labels = {key: value for key, value in it.config["Labels"].items() if key.rsplit(".", 1)[1] not in ("version", "created")}
    labels["org.opencontainers.image.revision"] = "${COMMIT}"
    assert config == it.config | {"Labels": labels}, (config, it.config)
    # /data must not exist before: COPY does not change the owner then.
    assert copies == [f"--from=build --chown={USER}:{USER} /data /data", "--from=build /rootfs /"], copies
    text = (ROOT / "Dockerfile").read_text()
    toolchain = re.search(r'rust-version = "([\d.]+)"', (ROOT / "Cargo.toml").read_text()).group(1)
    assert f"ARG RUST_VERSION={toolchain}\n" in text, toolchain
    kept = [line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")]
    for path in kept:
        assert (ROOT / path).exists(), path
    read = [path for source in (ROOT / "xtask/src/dist").glob("*.rs") for path in re.findall(r'read\("([^"]+)"\)', source.read_text())]
    for path in [*read, ".cargo/config.toml"]:
        assert any(pathlib.PurePath(path).is_relative_to(one) for one in kept), f"{path} is not in the build's context"


def buildah_makes_the_same_image(binary, buildah, as_root):
    """buildah reads the archive, and makes an image with the same configuration and files from the last stage of the Dockerfile."""
    it = image(binary)
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)

        def call(*words):
            return run(buildah, "--root", directory / "store", "--runroot", directory / "run", "--storage-driver", "vfs", *words).stdout.strip()

        read = call("pull", "--quiet", f"oci-archive:{it.path}").split()[-1]
        assert f"sha256:{read}" == it.manifest["config"]["digest"]
        (directory / "context/data").mkdir(parents=True)
        dist(binary, "--rootfs", directory / "context/rootfs")
        (directory / "Dockerfile").write_text(final_stage()[0])
        commit = it.config["Labels"]["org.opencontainers.image.revision"]
        built = call("build", "--quiet", "--format=docker", f"--build-arg=COMMIT={commit}", f"--build-context=build={directory}/context", "-f", directory / "Dockerfile", directory)
        seen = []
        for name in (read, built.split()[-1]):
            config = json.loads(call("inspect", "--type=image", name))["OCIv1"]["config"]
            config["Labels"] = {key: value for key, value in config["Labels"].items() if key.rsplit(".", 1)[1] in ("title", "description", "licenses", "revision")}
            root = pathlib.Path(call("mount", call("from", "--pull-never", name)))
            files = {}
            for path in root.rglob("*"):
                about = path.lstat()
                files[str(path.relative_to(root))] = (oct(about.st_mode), about.st_uid, about.st_gid, path.is_file() and path.read_bytes())
            seen.append((config, files))
        (config, files), (other_config, other_files) = seen
        # buildah sets PATH itself, in its own order of directories.
        assert config.pop("Env") and other_config.pop("Env")
        assert config == other_config, (config, other_config)
        assert files == other_files, sorted(name for name in files | other_files if files.get(name) != other_files.get(name))


CHECKS = [
    the_archive_of_the_image_is_one,
    the_files_of_the_image_are_few,
    the_dockerfile_says_the_same,
    the_image_runs_a_node,
    buildah_makes_the_same_image,
]
