"""Configuration, rules and commands of docs/from-emqx.md work."""

import pathlib
import re
import shlex
import subprocess
import tempfile

from checks_node import serving
from checks_packages import ROOT, run

PAGE = ROOT / "docs/from-emqx.md"


def block(kind, which=0):
    """A fenced block of the page."""
    return re.findall(rf"^```{kind}\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)[which]


def the_configuration_for_emqx_users_holds(binary):
    """The configuration of docs/from-emqx.md is valid, and its rules decide as the page says."""
    with tempfile.TemporaryDirectory() as directory:
        root = pathlib.Path(directory)
        (root / "meridian.toml").write_text(block("toml"))
        (root / "access.rules").write_text(block("rules"))
        (root / "cluster.secret").write_text("0123456789abcdef" * 4)
        (root / "cluster.secret").chmod(0o600)
        run(
            "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
            "-keyout", "server.key", "-out", "server.crt", "-days", "3", "-subj", "/CN=localhost",
            cwd=directory,
        )
        subprocess.run(
            [binary, "passwd", "-c", "passwords", "meter"], cwd=directory, input="secret\n", text=True, check=True, timeout=30, capture_output=True
        )
        checked = run(binary, "config", "check", "--config", "meridian.toml", cwd=directory)
        assert "error" not in (checked.stdout + checked.stderr).lower(), checked
        shown = run(binary, "config", "show", "--config", "meridian.toml", cwd=directory).stdout
        for setting in re.findall(r"^(\w+) = ", block("toml"), re.MULTILINE):
            assert re.search(rf"^{setting} = .*# \S*meridian\.toml:\d+$", shown, re.MULTILINE), f"{setting} is not set\n{shown}"
        seen = {"allowed": 0, "refused": 0}
        for line, expected in re.findall(r"^meridian (acl check .*?) +# (\w+)$", PAGE.read_text(), re.MULTILINE):
            done = subprocess.run([binary, *shlex.split(line)], cwd=directory, capture_output=True, text=True, timeout=20, check=False)
            assert done.stdout.startswith(expected) and done.returncode == (expected == "refused"), (line, done)
            seen[expected] += 1
        assert min(seen.values()) >= 2, seen


def the_commands_for_emqx_users_answer(binary):
    """Each command of docs/from-emqx.md that replaces one of EMQX works on a node with a client."""
    with serving(binary) as (port, url, _):
        run(binary, "pub", "-p", port, "-t", "a", "-m", "b", "-q", "1", "-r")
        words = [binary, "sub", "-p", str(port), "-i", "ID", "-t", "$share/queue/a/#"]
        with subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as subscriber:
            try:
                while "$share/queue/a/#" not in run(binary, "ctl", "--url", url, "subscriptions").stdout:
                    assert subscriber.poll() is None, "the subscriber has ended"
                commands = re.findall(r"\| `emqx ctl [^|]*\| `meridian ctl ([^`]*)`", PAGE.read_text())
                assert len(commands) >= 12, commands
                # `kick` last: it ends the client.
                for command in sorted(commands, key=lambda command: command.startswith("kick")):
                    yes = ["--yes"] if command.startswith("kick") else []
                    alone = command == "cluster"
                    done = run(binary, "ctl", "--url", url, *shlex.split(command), *yes, fails=alone)
                    assert not alone or "belongs to no cluster" in done.stderr, done
            finally:
                subscriber.kill()
        listed = run(binary, "ctl", "--url", url, "retained").stdout
        assert "a" in listed.split(), listed


def shared_groups_are_as_the_page_says(binary):
    """A member of $share/queue receives messages; $queue is an ordinary topic that begins with $."""
    with serving(binary) as (port, url, _):

        def subscriber(topic):
            words = [binary, "sub", "-p", str(port), "-t", topic, "-C", "1"]
            return subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)

        with subscriber("$share/queue/a") as shared, subscriber("$queue/a") as plain:
            try:
                while len(set(re.findall(r"\$\w+/\S+", run(binary, "ctl", "--url", url, "subscriptions").stdout))) < 2:
                    assert shared.poll() is None and plain.poll() is None, "a subscriber has ended"
                run(binary, "pub", "-p", port, "-t", "a", "-m", "to the group", "-q", "1")
                assert shared.communicate(timeout=60)[0] == "to the group\n"
                run(binary, "pub", "-p", port, "-t", "$queue/a", "-m", "to the topic", "-q", "1")
                assert plain.communicate(timeout=60)[0] == "to the topic\n"
            finally:
                shared.kill()
                plain.kill()


CHECKS = [the_configuration_for_emqx_users_holds, the_commands_for_emqx_users_answer, shared_groups_are_as_the_page_says]
