"""TLS and WebSocket with clients that others wrote: each cell subscribes, publishes, and gets its message over one transport.

A node of its own, with listeners for TCP's three neighbours and an authority made with openssl for this run. A tool that is not there
makes its cells red.
"""

import base64
import concurrent.futures
import hashlib
import http.server
import pathlib
import re
import socket
import subprocess
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
WAIT_S = 30
"""Longest wait for one client; a green run needs about a second."""

CELLS = {
    "tls": "MQTT over TLS; the client checks the node's certificate by its authority",
    "client certificate": "a listener that requires one; a client without one is refused",
    "wrong authority": "a client that trusts another authority disconnects before it sends a packet",
    "websocket": "MQTT in WebSocket",
    "secure websocket": "MQTT in WebSocket over TLS",
    "TLS 1.3": "used when both ends support it, with ALPN `mqtt`",
    "TLS 1.1": "refused",
    "dashboard": "the node's dashboard over HTTPS; its script runs",
}


class Red(Exception):
    """What was expected, and what came."""


def run(command, **more):
    """Exit code, and everything it said."""
    try:
        done = subprocess.run(
            [str(part) for part in command], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=WAIT_S, check=False, **more
        )
    except FileNotFoundError:
        raise Red(f"{command[0]} is not installed") from None
    except subprocess.TimeoutExpired:
        raise Red(f"{command[0]} did not end within {WAIT_S} s") from None
    return done.returncode, done.stdout + done.stderr


def must(command, **more):
    code, said = run(command, **more)
    if code != 0:
        raise Red(f"{command[0]} exited {code}: {said.strip()[-400:]}")
    return said


def must_fail(command, says):
    code, said = run(command)
    if code == 0 or not re.search(says, said, re.IGNORECASE):
        raise Red(f"{command[0]} exited {code} instead of a refusal ({says}): {said.strip()[-400:]}")


def free_ports(count):
    probes = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [probe.getsockname()[1] for probe in probes]
    for probe in probes:
        probe.close()
    return ports


class World:
    """Certificates, and a node that shows them."""

    def __init__(self, binary):
        self.directory = tempfile.TemporaryDirectory()
        self.path = pathlib.Path(self.directory.name)
        self.binary = binary
        self.process = None

    def __enter__(self):
        try:
            self._authority("ca")
            self._authority("unknown")
            self._issue("server", "subjectAltName=DNS:localhost,IP:127.0.0.1\nextendedKeyUsage=serverAuth")
            self._issue("client", "extendedKeyUsage=clientAuth")
            names = ("tls", "mutual", "ws", "wss", "http")
            self.port = dict(zip(names, free_ports(len(names))))
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.process is not None:
            self.process.terminate()
            try:
                self.process.wait(10)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        self.directory.cleanup()

    def _key(self, name):
        return ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-keyout", f"{name}.key", "-subj", f"/CN={name}"]

    def _authority(self, name):
        must(["openssl", "req", "-x509", *self._key(name), "-out", f"{name}.pem", "-days", "2"], cwd=self.path)

    def _issue(self, name, extensions):
        (self.path / f"{name}.ext").write_text(extensions + "\n")
        must(["openssl", "req", "-new", *self._key(name), "-out", f"{name}.csr"], cwd=self.path)
        sign = ["-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2", "-extfile", f"{name}.ext"]
        must(["openssl", "x509", "-req", "-in", f"{name}.csr", "-out", f"{name}.crt", *sign], cwd=self.path)

    def _start(self):
        certificate = 'tls_certificate = "server.crt"\ntls_key = "server.key"\n'
        listeners = {"tls": certificate, "mutual": certificate + 'tls_client_ca = "ca.pem"\n'}
        listeners |= {"ws": 'transport = "websocket"\n', "wss": 'transport = "websocket"\n' + certificate}
        config = "".join(f'[[listener]]\naddress = "127.0.0.1:{self.port[name]}"\n{more}' for name, more in listeners.items())
        config += f'[http]\nlisten = "127.0.0.1:{self.port["http"]}"\n{certificate}'
        (self.path / "meridian.toml").write_text(config)
        command = [self.binary, "start", "--config", "meridian.toml", "--data-dir", "data"]
        self.log = self.path / "log"
        with open(self.log, "w") as log:
            self.process = subprocess.Popen(command, cwd=self.path, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        deadline = time.monotonic() + WAIT_S
        for port in self.port.values():
            while True:
                try:
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                except OSError:
                    if self.process.poll() is not None or time.monotonic() > deadline:
                        raise Red(f"the node does not accept on {port}: {self.log.read_text()[-400:]}") from None
                    time.sleep(0.05)

    def file(self, name):
        return str(self.path / name)

    def own(self):
        return ["--cert", self.file("client.crt"), "--key", self.file("client.key")]


def with_processes(subscribe, publish, cell):
    """A subscriber as a process that keeps its session, so that there is no guess about when it has subscribed."""
    identifier = ["-i", f"t-{cell.replace(' ', '-')}", "-c", "-q", "1", "-t", f"transport/{cell}", "-V", "5", "-x", "60"]
    must([*subscribe, *identifier, "-E"])
    must([*publish, "-t", f"transport/{cell}", "-q", "1", "-m", "through"])
    said = must([*subscribe, *identifier, "-C", "1", "-W", "20"])
    if "through" not in said:
        raise Red(f"no message: {said}")


def mosquitto(world, cell):
    port = world.port["mutual" if cell == "client certificate" else "tls"]
    place = ["-h", "localhost", "-p", port]
    trust = ["--cafile", world.file("unknown.pem" if cell == "wrong authority" else "ca.pem")]
    publish = ["mosquitto_pub", *place, *trust]
    if cell == "wrong authority":
        return must_fail([*publish, "-t", "a", "-m", "x"], "certificate|TLS|protocol")
    if cell == "client certificate":
        must_fail([*publish, "-t", "a", "-m", "x", "-q", "1"], "error|lost|alert")
        trust += world.own()
    with_processes(["mosquitto_sub", *place, *trust], ["mosquitto_pub", *place, *trust], "m " + cell)


def meridian(world, cell):
    names = {"client certificate": "mutual", "websocket": "ws", "secure websocket": "wss"}
    name = names.get(cell, "tls")
    scheme = {"tls": "mqtts", "mutual": "mqtts"}.get(name, name)
    url = ["-L", f"{scheme}://localhost:{world.port[name]}"]
    trust = [] if name == "ws" else ["--cafile", world.file("unknown.pem" if cell == "wrong authority" else "ca.pem")]
    if cell == "wrong authority":
        return must_fail([world.binary, "pub", *url, *trust, "-t", "a", "-m", "x"], "authority that is not known")
    if cell == "client certificate":
        must_fail([world.binary, "pub", *url, *trust, "-t", "a", "-m", "x", "-q", "1"], "--cert FILE")
        trust += world.own()
    with_processes([world.binary, "sub", *url, *trust], [world.binary, "pub", *url, *trust], "r " + cell)


def library(command):
    """Drivers that take scheme, port, authority, and the client's certificate and key."""

    def cell_of(world, cell):
        names = {"client certificate": ("mqtts", "mutual"), "websocket": ("ws", "ws"), "secure websocket": ("wss", "wss")}
        scheme, name = names.get(cell, ("mqtts", "tls"))
        place = [*command, scheme, world.port[name]]
        ca = world.file("unknown.pem" if cell == "wrong authority" else "ca.pem")
        if cell == "wrong authority":
            return must_fail([*place, ca], "certificate")
        if cell == "client certificate":
            must_fail([*place, ca], ".")
            return must([*place, ca, world.file("client.crt"), world.file("client.key")])
        return must([*place, ca])

    return cell_of


class Answers(http.server.BaseHTTPRequestHandler):
    """Serves the page and its script, and takes what the page says."""

    def do_GET(self):
        script = self.path.endswith(".js")
        body = self.server.script.read_bytes() if script else (HERE / "transports_page.html").read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", "text/javascript" if script else "text/html")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        self.server.said.append(self.rfile.read(int(self.headers["Content-Length"])).decode())
        self.send_response(204)
        self.end_headers()
        self.server.has_answer.set()

    def log_message(self, *_):
        pass


def chromium(world, url, *more):
    """The browser believes the one key that the node shows, and nobody else's."""
    public = must(["openssl", "x509", "-in", world.file("server.crt"), "-noout", "-pubkey"])
    key = base64.b64decode("".join(line for line in public.splitlines() if not line.startswith("-")))
    pin = base64.b64encode(hashlib.sha256(key).digest()).decode()
    profile = tempfile.mkdtemp(dir=world.path)
    flags = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", f"--user-data-dir={profile}"]
    return ["chromium", *flags, f"--ignore-certificate-errors-spki-list={pin}", *more, url]


def page(modules):
    def cell_of(world, cell):
        if cell == "dashboard":
            url = f"https://localhost:{world.port['http']}/"
            said = must(chromium(world, url, "--virtual-time-budget=8000", "--dump-dom"))
            if not re.search(r"<nav|Subscriptions", said):
                raise Red(f"the page stayed empty: {said[-400:]}")
            return None
        scheme = {"websocket": "ws", "secure websocket": "wss"}[cell]
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Answers)
        server.script = pathlib.Path(modules) / "mqtt/dist/mqtt.min.js"
        server.said, server.has_answer = [], threading.Event()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        broker = f"{scheme}://localhost:{world.port[scheme]}/mqtt"
        command = chromium(world, f"http://127.0.0.1:{server.server_port}/?{broker}")
        try:
            browser = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        except FileNotFoundError:
            raise Red("chromium is not installed") from None
        has_answer = False
        try:
            has_answer = server.has_answer.wait(WAIT_S)
        finally:
            browser.terminate()
            try:
                browser.wait(10)
            except subprocess.TimeoutExpired:
                browser.kill()
                browser.wait()
            server.shutdown()
            server.server_close()
        if not has_answer or server.said != ["through"]:
            raise Red(f"the page said {server.said}")
        return None

    return cell_of


def openssl(world, cell):
    connect = ["openssl", "s_client", "-connect", f"localhost:{world.port['tls']}", "-CAfile", world.file("ca.pem")]
    if cell == "TLS 1.1":
        return must_fail([*connect, "-tls1_1", "-cipher", "ALL:@SECLEVEL=0"], "SSL alert number (40|70)")
    if cell == "wrong authority":
        connect[-1] = world.file("unknown.pem")
        return must_fail([*connect, "-verify_return_error"], "verify")
    said = must([*connect, "-alpn", "mqtt", "-verify_return_error"])
    for word in ("TLSv1.3", "ALPN protocol: mqtt", "Verify return code: 0"):
        if word not in said:
            raise Red(f"no `{word}`: {said[-600:]}")
    return None


def clients(python, modules):
    """Each row with its cells."""
    every = ["tls", "client certificate", "wrong authority", "websocket", "secure websocket"]
    return {
        "mosquitto clients": (mosquitto, every[:3]),
        "Paho Python": (library([python, HERE / "transports_paho.py"]), every),
        "MQTT.js": (library(["node", HERE / "transports_mqttjs.js"]), every),
        "MQTT.js in Chromium": (page(modules), [*every[3:], "dashboard"]),
        "meridian pub, sub": (meridian, every),
        "openssl s_client": (openssl, ["TLS 1.3", "TLS 1.1", "wrong authority"]),
    }


def run_all(binary, python, modules):
    """One result a cell, as those of the scenarios."""
    results = []
    rows = clients(python, modules)

    def one(client, cell, world):
        result = {"client": client, "version": "transport", "cell": cell, "result": "pass", "detail": ""}
        try:
            rows[client][0](world, cell)
        except Exception as error:  # Whatever broke, the other cells go on.
            result.update(result="FAIL", detail=str(error) if isinstance(error, Red) else repr(error))
        return result

    wanted = [(client, cell) for client, (_, cells) in rows.items() for cell in cells]
    try:
        with World(binary) as world, concurrent.futures.ThreadPoolExecutor(3) as pool:
            results = list(pool.map(lambda pair: one(*pair, world), wanted))
    except Red as error:
        return [{"client": client, "version": "transport", "cell": cell, "result": "FAIL", "detail": str(error)} for client, cell in wanted]
    return results


def table(results):
    """For docs/interop.md."""
    by_place = {(r["client"], r["cell"]): r["result"] for r in results}
    rows = list(dict.fromkeys(r["client"] for r in results))
    lines = ["\n## TLS and WebSocket\n", "| client | " + " | ".join(CELLS) + " |", "|---" * (len(CELLS) + 1) + "|"]
    lines += [f"| {client} | " + " | ".join(by_place.get((client, cell), "-") for cell in CELLS) + " |" for client in rows]
    lines += ["\n| cell | scenario |", "|---|---|"]
    lines += [f"| {cell} | {what} |" for cell, what in CELLS.items()]
    return "\n".join(lines) + "\n"
