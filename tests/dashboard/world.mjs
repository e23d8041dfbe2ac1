// Nodes for the tests: one of the built binary in an empty directory, or the mock of dashboard/mock.

import { spawn } from 'node:child_process';
import { mkdtemp, readFile, rm, writeFile } from 'node:fs/promises';
import { createServer } from 'node:net';
import { tmpdir } from 'node:os';
import { join, resolve } from 'node:path';

export const ROOT = resolve(import.meta.dirname, '../..');
const WAIT_MS = 15_000;

export async function until(what, test, ms = WAIT_MS) {
  const end = Date.now() + ms;
  for (;;) {
    const value = await test();
    if (value) return value;
    if (Date.now() > end) throw new Error(`not within ${ms / 1000} s: ${what}`);
    await new Promise((done) => setTimeout(done, 25));
  }
}

let nextPort = 12_000 + Math.floor(Math.random() * 12_000);

/** A free port. Each is used once, and is below the ephemeral ports of the system. */
async function freePort() {
  while (nextPort < 32_000) {
    const port = nextPort++;
    const server = createServer();
    const free = await new Promise((done) => server.once('error', () => done(false)).listen(port, '127.0.0.1', () => done(true)));
    if (!free) continue;
    await new Promise((done) => server.close(done));
    return port;
  }
  throw new Error('no port is free');
}

const answers = (base) =>
  fetch(`${base}/health/live`)
    .then((response) => response.ok)
    .catch(() => false);

export class Node {
  static async start(binary) {
    const node = new Node();
    node.binary = binary;
    node.real = true;
    node.directory = await mkdtemp(join(tmpdir(), 'meridian-dashboard-'));
    node.port = await freePort();
    node.http = await freePort();
    node.base = `http://127.0.0.1:${node.http}`;
    await writeFile(join(node.directory, 'meridian.toml'), '[node]\nname = "meridian-1"\n\n[queue]\nmessages_max = 2000\n');
    await node.run();
    return node;
  }

  async run() {
    this.log = '';
    const command = ['start', '--config', 'meridian.toml', '--listen', `127.0.0.1:${this.port}`, '--http', `127.0.0.1:${this.http}`, '--data-dir', join(this.directory, 'data'), '--workers', '2'];
    this.process = spawn(this.binary, command, { cwd: this.directory, stdio: ['ignore', 'pipe', 'pipe'] });
    for (const stream of [this.process.stdout, this.process.stderr]) stream.on('data', (data) => (this.log = (this.log + data).slice(-20_000)));
    await until('the node answers', async () => {
      if (this.process.exitCode !== null) throw new Error(`the node ended with ${this.process.exitCode}:\n${this.log}`);
      return answers(this.base);
    });
  }

  async end() {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    const gone = new Promise((done) => this.process.once('exit', done));
    this.process.kill('SIGKILL');
    await gone;
  }

  async close() {
    await this.end();
    await rm(this.directory, { recursive: true, force: true });
  }
}

/** Starts the nodes `n1`, `n2` .. of one cluster on loopback: cores first, then replicants. */
export async function startCluster(binary, cores, replicants) {
  const secret = `${Math.random()} is long enough`;
  const ports = [];
  for (let i = 0; i < cores + replicants; i++) ports.push(await freePort());
  const joins = ports.slice(0, cores).map((port) => `127.0.0.1:${port}`);
  const nodes = [];
  try {
    for (const [i, port] of ports.entries()) {
      const node = new Node();
      node.binary = binary;
      node.real = true;
      node.name = `n${i + 1}`;
      node.directory = await mkdtemp(join(tmpdir(), 'meridian-dashboard-'));
      node.port = await freePort();
      node.http = await freePort();
      node.base = `http://127.0.0.1:${node.http}`;
      await writeFile(join(node.directory, 'secret'), secret);
      await writeFile(join(node.directory, 'meridian.toml'), `[node]\nname = "${node.name}"\n\n[cluster]\nsecret_file = "secret"\nlisten = "127.0.0.1:${port}"\njoin = "${joins}"\nrole = "${i < cores ? 'core' : 'replicant'}"\nsilence_max = "1s"\nlease = "500ms"\n`);
      nodes.push(node);
      await node.run();
    }
  } catch (error) {
    for (const node of nodes) await node.close();
    throw error;
  }
  return nodes;
}

export class Mock {
  static async start(...more) {
    const node = new Mock();
    node.real = false;
    node.http = await freePort();
    node.base = `http://127.0.0.1:${node.http}`;
    await node.run(...more);
    return node;
  }

  async run(...more) {
    this.process = spawn(process.execPath, [join(ROOT, 'dashboard/mock/server.mjs'), '--port', String(this.http), ...more], { stdio: ['ignore', 'ignore', 'inherit'] });
    await until('the mock node answers', () => answers(this.base));
  }

  end = Node.prototype.end;
  close = Node.prototype.end;
}

export const read = (path) => readFile(join(ROOT, path), 'utf8');
