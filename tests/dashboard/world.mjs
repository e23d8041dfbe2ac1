// Nodes for the tests: one of the built binary in an empty directory, or the mock of dashboard/mock.

import { execFileSync, spawn } from 'node:child_process';
import { chown, mkdtemp, readdir, readFile, rm, writeFile } from 'node:fs/promises';
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
  /** Starts a node. `more` are further arguments of its command. */
  static async start(binary, ...more) {
    const node = new Node();
    node.binary = binary;
    node.more = more;
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
    const command = ['start', '--config', 'meridian.toml', '--listen', `127.0.0.1:${this.port}`, '--http', `127.0.0.1:${this.http}`, '--data-dir', join(this.directory, 'data'), '--workers', '2', ...(this.more ?? [])];
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

/** A PostgreSQL server whose data are in a temporary directory. */
export class Postgres {
  static async start() {
    const database = new Postgres();
    const [version] = (await readdir('/usr/lib/postgresql')).sort().reverse();
    database.binaries = join('/usr/lib/postgresql', version, 'bin');
    database.directory = await mkdtemp(join(tmpdir(), 'meridian-dashboard-pg-'));
    database.port = await freePort();
    database.as = { cwd: database.directory, stdio: ['ignore', 'pipe', 'pipe'] };
    // PostgreSQL refuses to run as root.
    if (process.getuid() === 0) {
      const of = (what) => Number(execFileSync('id', [what, 'postgres'], { encoding: 'utf8' }));
      Object.assign(database.as, { uid: of('-u'), gid: of('-g') });
      await chown(database.directory, database.as.uid, database.as.gid);
    }
    database.password = join(database.directory, 'password');
    await writeFile(database.password, 'secret', { mode: 0o644 });
    database.tool('initdb', '-D', join(database.directory, 'data'), '-U', 'meridian', '--auth=scram-sha-256', '--no-sync', `--pwfile=${database.password}`);
    await database.run();
    return database;
  }

  async run() {
    const command = ['-D', join(this.directory, 'data'), '-p', String(this.port), '-h', '127.0.0.1', '-k', this.directory];
    this.process = spawn(join(this.binaries, 'postgres'), command, { ...this.as, stdio: 'ignore' });
    await until('PostgreSQL answers', () => {
      try {
        return this.sql('SELECT 1') === '1';
      } catch {
        return false;
      }
    });
  }

  tool(name, ...words) {
    return execFileSync(join(this.binaries, name), words, { ...this.as, encoding: 'utf8', timeout: 60_000, env: { ...process.env, PGPASSWORD: 'secret' } });
  }

  sql(statement) {
    return this.tool('psql', '-h', '127.0.0.1', '-p', String(this.port), '-U', 'meridian', '-d', 'postgres', '-At', '-c', statement).trim();
  }

  /** Pulls the plug: the server and all its children end at once. */
  async end() {
    if (this.process.exitCode !== null || this.process.signalCode !== null) return;
    const gone = new Promise((done) => this.process.once('exit', done));
    this.process.kill('SIGQUIT');
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
