"""The service under a systemd that runs in namespaces, with the files of this machine under a layer that is removed at the end."""

import contextlib
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import time

from checks_packages import only, packed, run

SYSTEMD = "/lib/systemd/systemd"
# Runs as process 1 of its namespaces. Only a root that is not changed by chroot permits the unit's own user namespace.
BEGIN = f"""
set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
root=$1/root
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" overlay "$root"
mount -t proc proc "$root/proc"
mount -t sysfs -o ro sysfs "$root/sys"
mount -t cgroup2 cgroup2 "$root/sys/fs/cgroup"
for one in run tmp dev; do mount -t tmpfs tmpfs "$root/$one"; done
cp -a /dev/null /dev/zero /dev/full /dev/random /dev/urandom /dev/tty "$root/dev"
mkdir "$root/dev/shm" "$root/dev/pts"
mount -t tmpfs tmpfs "$root/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$root/dev/pts"
ln -s pts/ptmx "$root/dev/ptmx"
cp "$2" "$root/root/meridian.deb"
# Nothing of this machine but systemd's own services starts. None of them may change the kernel, and dpkg may start services.
rm -rf "$root/etc/systemd/system" "$root/usr/sbin/policy-rc.d"
mkdir "$root/etc/systemd/system"
for one in sysctl modules-load udevd udev-trigger logind resolved networkd remount-fs; do
    ln -s /dev/null "$root/etc/systemd/system/systemd-$one.service"
done
for one in sys-kernel-debug sys-kernel-tracing; do ln -s /dev/null "$root/etc/systemd/system/$one.mount"; done
ip link set lo up
cd "$root"
mkdir -p old
pivot_root . old
umount -l /old
mount --make-rshared /
exec env -i container=meridian PATH=/usr/sbin:/usr/bin:/sbin:/bin {SYSTEMD} --system --unit=multi-user.target --log-target=console
"""


class Machine:
    """A running systemd."""

    def __init__(self, pid):
        self.pid = pid

    def run(self, *words, **options):
        environment = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive"}
        spaces = ["--mount", "--pid", "--net", "--ipc", "--uts", "--cgroup", "--root", "--wd"]
        return run("nsenter", f"--target={self.pid}", *spaces, *words, env=environment, **options)

    def show(self, name):
        return self.run("systemctl", "show", "--value", f"--property={name}", "meridian").stdout.strip()

    def until(self, name, value, seconds=30):
        deadline = time.monotonic() + seconds
        while (now := self.show(name)) != value:
            assert time.monotonic() < deadline, f"{name} is {now}: {self.log()}"
            time.sleep(0.1)

    def healthy(self):
        done = self.run("meridian", "ctl", "health", "--wait", "30s", fails=None)
        assert done.returncode == 0, (done.stderr, self.run("systemctl", "status", "--no-pager", "--full", "meridian", fails=None).stdout)

    def log(self):
        # The last lines of a process that has ended may be on their way.
        self.run("journalctl", "--sync")
        return self.run("journalctl", "--no-pager", "--output=cat", "--unit=meridian", "--lines=30").stdout


@contextlib.contextmanager
def machine(package, skip):
    """A systemd that is up, with the package at /root/meridian.deb. Skips where none can run."""
    if not os.path.exists(SYSTEMD) or shutil.which("journalctl") is None:
        skip("systemd is not installed")
    mounted = [line.split() for line in pathlib.Path("/proc/mounts").read_text().splitlines()]
    groups = next((pathlib.Path(at) for _, at, kind, *_ in mounted if kind == "cgroup2"), None)
    if groups is None or not os.access(groups, os.W_OK):
        skip("no cgroup2 that can be written")
    group = groups / f"meridian-check-{os.getpid()}"
    with tempfile.TemporaryDirectory() as directory:
        log = pathlib.Path(directory) / "log"
        mount = pathlib.Path(directory) / "mount"
        mount.mkdir()
        try:
            group.mkdir()
        except OSError as error:
            skip(f"no cgroup can be made: {error}")
        spaces = ["--fork", "--kill-child", "--pid", "--mount", "--net", "--ipc", "--uts", "--cgroup"]
        command = ["unshare", *spaces, "sh", "-c", BEGIN, "sh", mount, package]
        with open(log, "wb") as output:
            process = subprocess.Popen(["sh", "-c", 'echo $$ >"$0/cgroup.procs" && exec "$@"', group, *command], stdin=subprocess.DEVNULL, stdout=output, stderr=output)
        try:
            yield started(process, log, skip)
        finally:
            # The processes of a namespace end with its first one.
            process.kill()
            process.wait()
            remove(group)


def started(process, log, skip):
    deadline = time.monotonic() + 60
    while process.poll() is None and time.monotonic() < deadline:
        children = run("ps", "-o", "pid=,comm=", "--ppid", process.pid, fails=None).stdout.split()
        if len(children) == 2 and children[1] == "systemd":
            one = Machine(int(children[0]))
            state = one.run("systemctl", "is-system-running", fails=None).stdout.strip()
            if state in ("running", "degraded"):
                return one
        time.sleep(0.2)
    return skip(f"systemd does not run in namespaces here: {log.read_text(errors='replace')[-300:]!r}")


def remove(group):
    """Removes a cgroup, whose processes are about to end."""
    deadline = time.monotonic() + 10
    while group.exists() and time.monotonic() < deadline:
        for path in sorted(filter(pathlib.Path.is_dir, group.rglob("*")), reverse=True):
            with contextlib.suppress(OSError):
                path.rmdir()
        with contextlib.suppress(OSError):
            group.rmdir()
        time.sleep(0.05)


def systemd_runs_the_service(binary, skip, dpkg_deb, as_root, ip):
    """Under systemd the package's service starts, is ready for clients then, reloads, refuses a wrong file, comes back after SIGKILL with its data, stops in time, is upgraded, and is purged."""
    package = only(packed(binary).glob("*.deb"))
    with machine(package, skip) as it:
        # A start returns when clients can connect.
        it.run("dpkg", "--install", "/root/meridian.deb")
        it.run("meridian", "pub", "-t", "b", "-m", "at once", "-q", "1")
        it.healthy()
        assert (it.show("ActiveState"), it.show("Type"), it.show("StatusText")) == ("active", "notify", "serves clients")
        first = it.show("MainPID")
        about = it.run("cat", f"/proc/{first}/status").stdout
        user = it.run("id", "-u", "meridian").stdout.strip()
        facts = dict(re.findall(r"^(\w+):\s+(\S+)", about, re.MULTILINE))
        assert user != "0" and facts["Uid"] == user, facts
        assert (int(facts["CapEff"], 16), int(facts["CapBnd"], 16), facts["NoNewPrivs"], facts["Seccomp"]) == (0, 0, "1", "2"), facts
        assert it.run("stat", "--format=%U:%G %a", "/var/lib/meridian").stdout == "meridian:meridian 700\n"
        it.run("meridian", "pub", "-t", "a", "-m", "kept", "-q", "1", "-r")

        it.run("systemctl", "reload", "meridian")
        it.until("ActiveState", "active")
        it.run("cp", "/etc/meridian/meridian.toml", "/root/before")
        it.run("sh", "-c", "printf '\\n[nonsense]\\nkey = 1\\n' >>/etc/meridian/meridian.toml")
        it.run("systemctl", "reload", "meridian", fails=True)
        it.run("cp", "/root/before", "/etc/meridian/meridian.toml")
        assert (it.show("ActiveState"), it.show("MainPID")) == ("active", first), it.log()
        it.healthy()

        it.run("systemctl", "kill", "--signal=KILL", "meridian")
        it.until("NRestarts", "1")
        it.healthy()
        assert it.show("MainPID") not in ("0", first)
        assert it.run("meridian", "sub", "-t", "a", "-C", "1").stdout == "kept\n"

        it.run("systemctl", "stop", "meridian")
        assert (it.show("ActiveState"), it.show("Result"), it.show("ExecMainStatus")) == ("inactive", "success", "0"), it.log()
        assert "store closed" in it.log(), it.log()

        it.run("systemctl", "start", "meridian")
        it.run("meridian", "pub", "-t", "b", "-m", "at once", "-q", "1")
        before = it.show("MainPID")
        it.run("dpkg", "--install", "/root/meridian.deb")
        it.run("meridian", "pub", "-t", "b", "-m", "at once", "-q", "1")
        it.healthy()
        assert it.show("MainPID") not in ("0", before), "an upgrade does not restart the node"
        assert it.run("meridian", "sub", "-t", "a", "-C", "1").stdout == "kept\n"

        it.run("dpkg", "--remove", "meridian")
        assert it.show("ActiveState") == "inactive"
        it.run("ls", "/var/lib/meridian/storage", "/etc/meridian/meridian.toml")
        it.run("dpkg", "--purge", "meridian")
        it.run("ls", "/var/lib/meridian", fails=True)


CHECKS = [systemd_runs_the_service]
