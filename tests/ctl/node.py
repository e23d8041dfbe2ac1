"""A node for a test, `meridian ctl` against it, and MQTT clients."""

import json
import os
import pathlib
import random
import shlex
import shutil
import signal
import socket
import subprocess
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", ROOT / "target")).resolve()
BINARY = str(pathlib.Path(os.environ.get("MERIDIAN_BIN", TARGET / "debug" / "meridian")).resolve())
PORTS = iter(range(random.randrange(12_000, 24_000), 32_000))


def split_ports(number, processes):
    """Uses from now on the ports of process `number` of so many."""
    global PORTS  # pylint: disable=global-statement
    share = 20_000 // processes
    first = 12_000 + number * share
    PORTS = iter(range(first + random.randrange(share // 2), first + share))


def free_port():
    """A free port. Each is used once, and is below the ephemeral ports of the system."""
    for port in PORTS:
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", port))
                return port
            except OSError:
                continue
    raise AssertionError("no port is free")


def until(holds, what, seconds=30):
    """Polls until `holds()` is true, and returns its value."""
    end = time.monotonic() + seconds
    while not (answer := holds()):
        if time.monotonic() > end:
            raise AssertionError(f"{what} is not true after {seconds} s")
        time.sleep(0.05)
    return answer


def environment(**more):
    clean = {k: v for k, v in os.environ.items() if not k.startswith("MERIDIAN_") and k != "NO_COLOR"}
    return {**clean, "TERM": "xterm-256color", **more}


class Node:
    def __init__(self):
        self.directory = pathlib.Path(tempfile.mkdtemp(prefix="meridian-ctl-"))
        self.mqtt, self.http = free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.http}"
        self.process, self.clients = None, []
        # All processes of this node. A check may start one while another one runs.
        self.launched = []
        self.token, self.given = None, ()
        # Command that wraps the one of the node.
        self.within = []
        # True when its configuration file has the listeners.
        self.without_listen = False

    def start(self, *more):
        self.launch(*more)
        self.ctl("health", "--wait", "20s")

    def restart(self):
        """Starts the node again, with the arguments of its last start."""
        self.launch(*self.given)

    def launch(self, *more):
        self.given = more
        log = open(self.directory / "node.log", "ab")
        listen = [] if self.without_listen else ["--listen", f"127.0.0.1:{self.mqtt}"]
        command = [BINARY, "start", *listen, "--http", f"127.0.0.1:{self.http}", "--data-dir",
                   str(self.directory / "data"), "--workers", "2", "--set", "log.level=info", *more]
        self.process = subprocess.Popen([*self.within, *command], stdout=log, stderr=log, cwd=self.directory, env=environment())
        self.launched.append(self.process)
        log.close()

    def stop(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
            self.process.wait(20)

    def on_small_disk(self, size):
        """Puts the data directory on a disk of this size from the next start on. False: not possible on this machine."""
        data = self.directory / "data"
        data.mkdir(exist_ok=True)
        return self.mounts("-t", "tmpfs", "-o", f"size={size}", "none", str(data))

    def mounts(self, *arguments):
        """Runs `mount` with these arguments, visible only to the process of the node from the next start on. False: not permitted here."""
        words = ["sh", "-c", f'{shlex.join(["mount", *arguments])} && exec "$@"', "sh"]
        for namespace in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
            try:
                tried = subprocess.run([*namespace, *words, "true"], capture_output=True, timeout=10, check=False)
            except FileNotFoundError:
                return False
            if tried.returncode == 0:
                self.within = [*namespace, *words]
                return True
        return False

    def seen(self, path):
        """Path in the mount namespace of the node."""
        return pathlib.Path(f"/proc/{self.process.pid}/root{path}")

    def close(self):
        for client in self.clients:
            if client.poll() is None:
                client.kill()
            client.wait()
        self.stop()
        for process in self.launched:
            if process.poll() is None:
                process.kill()
            process.wait()
        shutil.rmtree(self.directory, ignore_errors=True)

    def run(self, *arguments, code=0, stdin=None, token=None, **variables):
        """`meridian ..` with this node's URL; its exit code must be `code`, if that is not None."""
        given = environment(MERIDIAN_URL=self.url, **variables)
        if token or self.token:
            given["MERIDIAN_TOKEN"] = token or self.token
        if isinstance(stdin, str):
            stdin = stdin.encode()
        done = subprocess.run([BINARY, *arguments], input=stdin or b"", capture_output=True, env=given, timeout=40, check=False)
        out, err = done.stdout.decode(errors="replace"), done.stderr.decode(errors="replace")
        ended = self.process and self.process.poll()
        log = self.directory / "node.log"
        more = f"\nThe node has ended with {ended}:\n{log.read_text(errors='replace')[-2000:]}" if ended is not None and log.exists() else ""
        assert code in (None, done.returncode), f"{' '.join(arguments)}: exit code {done.returncode}, not {code}\n{out}{err}{more}"
        done.out, done.err = out, err
        return done

    def ctl(self, *arguments, **more):
        return self.run("ctl", *arguments, **more)

    def text(self, *arguments, **more):
        return self.ctl(*arguments, **more).out

    def json(self, *arguments, **more):
        return json.loads(self.ctl("--json", *arguments, **more).out)

    def lines(self, *arguments, **more):
        return [json.loads(line) for line in self.ctl("--json", *arguments, **more).out.splitlines()]

    def spawn(self, *arguments, stdin=subprocess.DEVNULL):
        """`meridian ..` in the background."""
        given = environment(MERIDIAN_URL=self.url)
        if self.token:
            given["MERIDIAN_TOKEN"] = self.token
        process = subprocess.Popen([BINARY, *arguments], stdin=stdin, stdout=subprocess.PIPE,
                                   stderr=subprocess.PIPE, env=given, text=True)
        self.clients.append(process)
        return process

    def subscriber(self, client_id, *topics, durable=False, qos=1, version="5"):
        """A mosquitto_sub that has subscribed. Its lines are `topic payload-in-hex`."""
        command = ["mosquitto_sub", "-p", str(self.mqtt), "-V", version, "-i", client_id, "-q", str(qos), "-F", "%t %x"]
        command += ["-c"] + (["-x", "3600"] if version == "5" else []) if durable else []
        for topic in topics:
            command += ["-t", topic]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.clients.append(process)
        until(lambda: self.subscribed(client_id) >= len(topics), f"{client_id} subscribes")
        return process

    def subscribed(self, client_id):
        try:
            found = self.json("client", client_id)
        except AssertionError:
            return 0
        return found["subscriptions"] if found["connected"] else 0

    def publish(self, topic, payload, *more):
        subprocess.run(["mosquitto_pub", "-p", str(self.mqtt), "-V", "5", "-t", topic, "-m", payload, *more],
                       check=True, capture_output=True, timeout=10)


def end(process):
    """Ends a client."""
    process.terminate()
    process.communicate(timeout=10)
