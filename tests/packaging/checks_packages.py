"""Output of `cargo xtask dist` and the service file: packed twice, unpacked and run."""

import contextlib
import functools
import hashlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import tarfile
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
UNIT = ROOT / "packaging/systemd/meridian.service"
WAIT_S = 20
# Limit for `systemd-analyze security`, in tenths: 0 is closed, 10 is open. A network service cannot reach 0.
EXPOSURE_MAX = 12


def run(*command, fails=False, **options):
    options = {"capture_output": True, "text": True, "timeout": 300, "stdin": subprocess.DEVNULL, "check": False} | options
    done = subprocess.run([str(part) for part in command], **options)
    text = f"{' '.join(map(str, command))}: exit {done.returncode}: {done.stdout}{done.stderr}"
    assert fails is None or fails == (done.returncode != 0), text
    return done


@functools.cache
def xtask():
    """Path of the program of `cargo xtask`, built once."""
    run(os.environ.get("CARGO", "cargo"), "build", "--quiet", "--package", "xtask", cwd=ROOT, timeout=900)
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
    return target / "debug/xtask"


# Date of all packed files.
DATE = 1234567890


def dist(binary, *arguments, date=DATE, **options):
    return run(xtask(), "dist", "--skip-build", binary, *arguments, cwd=ROOT, env=os.environ | {"SOURCE_DATE_EPOCH": str(date)}, **options)


PACKED = {}


def packed(binary):
    """Directory with the output of `dist` for the binary; created once."""
    if binary not in PACKED:
        PACKED[binary] = tempfile.TemporaryDirectory()
        dist(binary, "--out", PACKED[binary].name)
    return pathlib.Path(PACKED[binary].name)


def only(paths):
    found = list(paths)
    assert len(found) == 1, f"not one: {found}"
    return found[0]


def packing_twice_gives_the_same_bytes(binary):
    """Packed twice, at different times and from a differently named binary, every file is the same to the byte."""
    first = packed(binary)
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        copy = shutil.copy(binary, directory / "elsewhere")
        dist(copy, "--out", directory / "out")
        names = sorted(path.name for path in first.iterdir())
        assert names == sorted(path.name for path in (directory / "out").iterdir())
        assert len(names) == 6, names
        for name in names:
            assert (first / name).read_bytes() == (directory / "out" / name).read_bytes(), f"{name} differs"


def checksums_are_those_of_the_files(binary):
    """SHA256SUMS names every other file with its checksum."""
    directory = packed(binary)
    sums = dict(line.split("  ")[::-1] for line in (directory / "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {path.name for path in directory.iterdir()} - {"SHA256SUMS"}
    for name, digest in sums.items():
        assert hashlib.sha256((directory / name).read_bytes()).hexdigest() == digest, name


def a_date_can_be_given(binary):
    """SOURCE_DATE_EPOCH dates every entry, and a wrong one is an error that names it."""
    for archive in packed(binary).glob("*.tar*"):
        with tarfile.open(archive) as tar:
            assert {member.mtime for member in tar} == {DATE}, archive
    failed = dist(binary, "--out", tempfile.gettempdir(), date="today", fails=True)
    assert "SOURCE_DATE_EPOCH" in failed.stderr, failed.stderr


def a_wrong_file_is_refused():
    """A file that is no program, and a missing file, are errors that name the file."""
    for path, text in ((__file__, "not a 64-bit"), ("/nonexistent/meridian", "No such file")):
        failed = dist(path, "--out", tempfile.gettempdir(), fails=True)
        assert text in failed.stderr and path in failed.stderr, failed.stderr


def unpacked(binary, directory):
    archive = only(path for path in packed(binary).glob("*.tar.gz") if "debug" not in path.name)
    with tarfile.open(archive) as tar:
        for member in tar:
            assert (member.uid, member.gid, member.uname, member.gname) == (0, 0, "root", "root"), member.name
            assert member.mode in (0o644, 0o755) and (member.isfile() or member.isdir()), member.name
            assert member.name.split("/")[0] == archive.name.removesuffix(".tar.gz"), member.name
        tar.extractall(directory)
    return pathlib.Path(directory) / archive.name.removesuffix(".tar.gz")


def the_archive_is_enough_to_run_a_node(binary):
    """Unpacked anywhere: the binary runs with the packed configuration, and the files that the pages name exist."""
    with tempfile.TemporaryDirectory() as directory:
        root = unpacked(binary, directory)
        run(root / "meridian", "config", "check", "--config", root / "packaging/meridian.toml")
        run(root / "meridian", "config", "check", "--config", root / "meridian.example.toml")
        # A binary without the exporter refuses an endpoint.
        run(root / "meridian", "config", "check", "--set", "otel.endpoint=http://127.0.0.1:4318", "--set", "otel.messages=true")
        run("bash", "-n", root / "completions/meridian")
        for name in ("completions/_meridian", "completions/meridian.fish", "LICENSE", "README.md", "docs/operations.md", "docs/configuration.md", "packaging/systemd/meridian.service"):
            assert (root / name).is_file(), name
        with node([root / "meridian"], directory):
            pass


def links_within_the_archive_hold(binary):
    """Links of the packed pages have packed files as targets, except links to sources."""
    with tempfile.TemporaryDirectory() as directory:
        root = unpacked(binary, directory)
        missing = []
        for page in [*root.glob("*.md"), *(root / "docs").glob("*.md")]:
            for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
                target = (page.parent / link).resolve()
                if not target.exists() and not (ROOT / target.relative_to(root.resolve())).exists():
                    missing.append(f"{page.name}: {link}")
        assert not missing, missing
        operators = [root / "docs" / name for name in ("operations.md", "alerts.md", "tuning.md")]
        for page in operators:
            for link in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
                assert (page.parent / link).exists(), f"{page.name}: {link} is not packed"


def shown_configurations_hold(binary):
    """The packaged configuration is valid, the one of the image requires authentication, and both are valid without comment signs."""
    with tempfile.TemporaryDirectory() as directory:
        run(binary, "passwd", "-c", f"{directory}/passwords", "alice", input="secret\nsecret\n", stdin=None)
        (pathlib.Path(directory) / "acl").write_text("topic read public/#\n")
        (pathlib.Path(directory) / "access.rules").write_text("allow everyone subscribe public/#\n")
        for path in (ROOT / "packaging/meridian.toml", ROOT / "packaging/docker/meridian.toml"):
            open_to_all = "docker" in path.parts
            done = run(binary, "config", "check", "--config", path, fails=open_to_all)
            assert not open_to_all or "nothing says who may connect" in done.stderr, done.stderr
            full, seen = [], set()
            for line in path.read_text().splitlines():
                line = re.sub(r"^#(?=\[|\w+ = )", "", line)
                # An alternative follows the line that it replaces.
                key = line.split(" = ")[0]
                if key == "address" and "address" in seen:
                    full = [one for one in full if not one.startswith("address = ")]
                seen.add(key)
                full.append(line.replace("/etc/meridian", directory))
            assert "[auth]" in full, path
            other = pathlib.Path(directory) / "full.toml"
            other.write_text("\n".join(full) + "\n")
            run(binary, "config", "check", "--config", other)


def the_package_is_one(binary, dpkg_deb):
    """dpkg reads the package; its fields, conffiles, scripts and files are those of a Debian package of a service."""
    package = only(packed(binary).glob("*.deb"))
    fields = dict(
        line.split(": ", 1) for line in run(dpkg_deb, "--field", package).stdout.splitlines() if re.match(r"[A-Z]", line)
    )
    assert fields["Package"] == "meridian" and package.name == f"meridian_{fields['Version']}_{fields['Architecture']}.deb"
    assert re.search(r"libc6 \(>= 2\.\d+\)", fields["Depends"]), fields["Depends"]
    files = run(dpkg_deb, "--contents", package).stdout.splitlines()
    for line in files:
        mode, owner = line.split()[:2]
        assert owner == "root/root" and mode in ("drwxr-xr-x", "-rwxr-xr-x", "-rw-r--r--"), line
    paths = {line.split()[-1] for line in files}
    completion = "./usr/share/bash-completion/completions/meridian"
    unit = "./usr/lib/systemd/system/meridian.service"
    for path in ("./usr/bin/meridian", "./etc/meridian/meridian.toml", unit, completion):
        assert path in paths, path
    # The package does not change kernel settings.
    assert not [path for path in paths if path.startswith(("./etc/sysctl.d", "./usr/lib/sysctl.d"))]
    with tempfile.TemporaryDirectory() as directory:
        run(dpkg_deb, "--raw-extract", package, directory)
        control = pathlib.Path(directory) / "DEBIAN"
        assert (control / "conffiles").read_text() == "/etc/meridian/meridian.toml\n"
        for script in ("postinst", "prerm", "postrm"):
            assert os.access(control / script, os.X_OK), script
            run("sh", "-n", control / script)
        run(pathlib.Path(directory) / "usr/bin/meridian", "--version")


def the_unit_is_one(binary, systemd_analyze):
    """systemd accepts the unit, and its exposure is below the limit."""
    with tempfile.TemporaryDirectory() as directory:
        unit = pathlib.Path(directory) / "meridian.service"
        unit.write_text(UNIT.read_text().replace("/usr/bin/meridian", binary))
        done = run(systemd_analyze, "verify", "--man=no", unit)
        complaints = [line for line in (done.stdout + done.stderr).splitlines() if "meridian.service" in line]
        assert not complaints, complaints
        run(systemd_analyze, "security", "--offline=yes", f"--threshold={EXPOSURE_MAX}", unit)


def the_unit_allows_what_the_node_calls(binary, systemd_analyze, strace):
    """No system call of a node that starts, serves, reloads and stops is one that the unit forbids."""
    groups, group = {}, None
    for line in run(systemd_analyze, "syscall-filter").stdout.splitlines():
        if line.startswith("@"):
            group = groups.setdefault(line.strip(), set())
        elif line.startswith("#"):
            group = None
        elif group is not None and line.startswith("    ") and not line.strip().startswith("#"):
            group.add(line.strip())

    def calls(name):
        return set().union(*(calls(one) if one.startswith("@") else {one} for one in groups[name]))

    filters = re.findall(r"^SystemCallFilter=(.*)$", UNIT.read_text(), re.MULTILINE)
    assert filters[0] == "@system-service", "the first filter must be an allow list"
    allowed = calls("@default")
    for names in filters:
        these = set().union(*(calls(name) if name.startswith("@") else {name} for name in names.removeprefix("~").split()))
        allowed = allowed - these if names.startswith("~") else allowed | these
    with tempfile.TemporaryDirectory() as directory:
        trace = pathlib.Path(directory) / "trace"
        with node([strace, "-f", "-o", trace, binary], directory) as (process, port):
            run(binary, "pub", "-p", port, "-t", "a", "-m", "b", "-q", "1", "-r")
            run(binary, "sub", "-p", port, "-t", "a", "-C", "1")
            child = int(trace.read_text().split(None, 1)[0])
            assert child != process.pid
            os.kill(child, 1)
        used = set(re.findall(r"^\d+ +([a-z_0-9]+)\(", trace.read_text(), re.MULTILINE))
        assert {"execve", "epoll_wait"} <= used, used
        assert used <= allowed, f"forbidden by the unit: {sorted(used - allowed)}"


@contextlib.contextmanager
def node(command, directory, *arguments, **options):
    """A node on a free port, stopped by SIGTERM at the end; the process and the port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = pathlib.Path(directory) / "log"
    data = options.pop("data", pathlib.Path(directory) / "data")
    # Other nodes of this machine may use the default port of HTTP.
    http = [] if "--http" in arguments else ["--http", "127.0.0.1:0"]
    command = [*map(str, command), "start", "--listen", f"127.0.0.1:{port}", "--data-dir", str(data), *http, *arguments]
    with open(log, "w") as output:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=directory, **options)
    try:
        deadline = time.monotonic() + WAIT_S
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), 1).close()
                break
            except OSError:
                assert process.poll() is None, f"exit {process.returncode}: {log.read_text()}"
                assert time.monotonic() < deadline, f"does not accept connections: {log.read_text()}"
                time.sleep(0.05)
        yield process, port
        # Under strace the signal goes to the child; strace ends after it.
        children = run("ps", "-o", "pid=", "--ppid", process.pid, fails=None).stdout.split() if "strace" in command[0] else []
        for pid in map(int, children or [process.pid]):
            os.kill(pid, 15)
        assert process.wait(WAIT_S) == 0, f"exit {process.returncode}: {log.read_text()}"
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()


CHECKS = [
    a_wrong_file_is_refused,
    packing_twice_gives_the_same_bytes,
    checksums_are_those_of_the_files,
    a_date_can_be_given,
    the_archive_is_enough_to_run_a_node,
    links_within_the_archive_hold,
    shown_configurations_hold,
    the_package_is_one,
    the_unit_is_one,
    the_unit_allows_what_the_node_calls,
]
