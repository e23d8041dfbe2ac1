// Screenshots for docs/dashboard.md: every page of the dashboard of a node with the clients of a building.

import { execFile } from 'node:child_process';
import { mkdir, stat, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { promisify } from 'node:util';
import * as made from '../../dashboard/mock/data.mjs';
import { Client } from './mqtt.mjs';
import { Mock } from './world.mjs';

const run = promisify(execFile);
/** As long as the charts' shortest span, so that they are full. */
const SETTLE_MS = 126_000;
const pause = (ms) => new Promise((done) => setTimeout(done, ms));

async function call(node, method, path, body) {
  const response = await fetch(node.base + path, { method, headers: { 'Content-Type': 'application/json', ...(node.token ? { Authorization: `Bearer ${node.token}` } : {}) }, body: body === undefined ? undefined : JSON.stringify(body) });
  if (!response.ok) throw new Error(`${method} ${path}: ${response.status} ${await response.text()}`);
  return response.status === 204 ? null : response.json();
}

/** Sensors, lamps, meters and the services that listen to them; returns what ends it. */
async function building(node) {
  const clients = [];
  const join = async (id, options) => {
    const client = await Client.connect(node.port, id, options);
    clients.push(client);
    return client;
  };
  const sides = ['north', 'south', 'west'];
  const senders = [];
  for (let i = 0; i < 180; i++) {
    const side = sides[i % 3];
    const floor = 1 + (i % 9);
    const kind = ['sensor', 'lamp', 'meter'][Math.floor(i / 9) % 3];
    const client = await join(`${kind}-${side}-${floor}-${String(i).padStart(3, '0')}`, { expirySeconds: i % 4 === 0 ? 3600 : 0, username: `${kind}s` });
    const topic = { sensor: `building/${side}/floor/${floor}/temperature`, lamp: `building/${side}/floor/${floor}/lamp/${i}/state`, meter: `energy/${side}/meter/${i}` }[kind];
    const body = () => JSON.stringify({ sensor: () => ({ value: +(19 + 4 * Math.random()).toFixed(2), unit: '°C' }), lamp: () => ({ on: Math.random() > 0.5, level: Math.floor(Math.random() * 100) }), meter: () => ({ kwh: +(Math.random() * 900).toFixed(1) }) }[kind]());
    if (kind === 'lamp') await client.subscribe(`building/${side}/floor/${floor}/lamp/${i}/set`, 1);
    await client.publish(topic, body(), { qos: 1, retain: true });
    senders.push({ client, topic, body, weight: kind === 'sensor' ? 3 : 1 });
  }
  for (const [id, filter, qos] of [['historian', '#', 1], ['dashboards/lobby', 'building/north/#', 0], ['alarm-service', 'building/+/floor/+/temperature', 1], ['analytics-1', '$share/analytics/energy/#', 0], ['analytics-2', '$share/analytics/energy/#', 0]]) await (await join(id, { expirySeconds: 86400, username: 'services' })).subscribe(filter, qos);
  const slow = await join('old-gateway', { expirySeconds: 3600, username: 'gateways', acknowledgeMs: 900 });
  await slow.subscribe('building/west/floor/+/temperature', 1);
  const away = await join('night-report', { expirySeconds: 86400 });
  await away.subscribe('energy/#', 1);
  away.leave();
  let at = 0;
  let burst = 0;
  const timer = setInterval(() => {
    burst += 0.02;
    const amount = Math.floor(16 + 5 * Math.sin(burst / 2) + 2 * Math.sin(burst * 2.3) + 4 * Math.random());
    for (let n = 0; n < amount; n++) {
      const sender = senders[(at += 7) % senders.length];
      if (!sender.client.closed) for (let again = 0; again < sender.weight; again++) void sender.client.publish(sender.topic, sender.body()).catch(() => {});
    }
  }, 50);
  return () => {
    clearInterval(timer);
    for (const client of clients) client.leave();
  };
}

/** Bridges, cluster links, connectors and actions, whose other systems are mocked. */
export async function integration(visitor, shoot, look) {
  const mock = await Mock.start();
  try {
    const open = async (hash, settings) => {
      const page = await visitor.open('overview', settings);
      await page.route(/\/api\/v1\/alarms(\?|$)/, (route) => route.fulfill({ json: { items: [], next: null } }));
      await page.goto(`${mock.base}/#/${hash}`);
      await pause(1200);
      return page;
    };
    const dark = { ...look, colorScheme: 'dark' };
    const lists = await Promise.all([open('bridges', look), open('actions', look)]);
    // Rates need two readings.
    await pause(9000);
    await shoot('bridges', lists[0]);
    await shoot('actions', lists[1]);
    const bridge = await open('bridges/plant-7', look);
    await shoot('bridge', bridge);
    await bridge.goto(`${mock.base}/#/bridges`);
    await bridge.getByRole('button', { name: 'Add…' }).click();
    await bridge.getByLabel('Name', { exact: true }).fill('cloud-2');
    await bridge.getByLabel('Addresses', { exact: true }).fill('broker.example.com:8883');
    await bridge.getByLabel('Topics', { exact: true }).fill('sensors/# out 1\ncommands/# in 1');
    await shoot('bridge-form', bridge);
    await shoot('cluster-link', await open('links/munich', look));
    await shoot('action', await open('actions/readings', dark));
    const editor = await open('actions/readings/edit', look);
    await editor.getByRole('tabpanel', { name: 'Test' }).getByRole('button', { name: 'Test', exact: true }).click();
    await pause(600);
    await shoot('action-editor', editor);
    const connector = await open('connectors', look);
    await connector.getByRole('button', { name: 'Edit warehouse' }).click();
    await connector.getByRole('button', { name: 'Test connection' }).click();
    await pause(900);
    await shoot('connector', connector);
  } finally {
    await mock.close();
  }
}

export async function screenshots(node, visitor, directory) {
  await mkdir(directory, { recursive: true });
  const end = node.real ? await building(node) : () => {};
  await call(node, 'POST', '/api/v1/topic-metrics', { filter: 'building/+/floor/+/temperature' });
  await call(node, 'POST', '/api/v1/topic-metrics', { filter: 'gateway/#' });
  await call(node, 'POST', '/api/v1/bans', { kind: 'address', value: '203.0.113.0/24', reason: 'scans the port', for_s: 86400 });
  await call(node, 'POST', '/api/v1/bans', { kind: 'client_id', value: 'rogue-*', reason: 'floods building/#', for_s: null });
  // The clients are connected already: after the first user, new ones would need a password.
  const sensors = { attributes: { site: 'north' }, rates: { messages_per_second: 20, messages_burst: 100, bytes_per_second: 0, bytes_burst: 0 } };
  for (const user of [
    { name: 'gateways', password: 'made-up', tenant: null, description: 'the old ones; certificates next year' },
    { name: 'lamps', password: 'made-up', rules: ['allow everyone publish building/#'], description: 'all lamps of the building' },
    { name: 'ops', password: 'made-up', scram_iterations: 4096, superuser: true, description: 'on call' },
    { name: 'sensors', password: 'made-up', description: 'all sensors of the building', ...sensors },
    { name: 'visitors', enabled: false, tenant: 'lobby', description: 'until the exhibition opens' },
  ])
    await call(node, 'POST', '/api/v1/users', user);
  for (const [rule, description] of [
    ['deny everyone publish building/+/alarm/#', 'alarms are for the panel alone'],
    ['allow everyone all building/#', ''],
    ['allow everyone all energy/#', ''],
    ['allow user services subscribe #', 'historian and reports'],
    ['allow address 10.0.0.0/8 subscribe $SYS/#', 'the rack'],
  ])
    await call(node, 'POST', '/api/v1/rules', { rule, description });
  await call(node, 'PATCH', '/api/v1/config', { changes: { 'mqtt.inflight_max': '64' }, comment: 'smaller windows for the old gateways' });
  await call(node, 'PATCH', '/api/v1/config', { changes: { 'queue.messages_max': '5000' }, comment: 'the night report is away for eight hours' });

  const shoot = async (name, page) => {
    const file = join(directory, `${name}.png`);
    await page.screenshot({ path: file });
    // Fewer colours are enough; without the tool the file is only larger.
    await run('pngquant', ['--force', '--strip', '--speed', '1', '--output', file, '96', file]).catch(() => {});
    console.log(`${file}: ${Math.round((await stat(file)).size / 1024)} KiB`);
  };
  const look = { viewport: { width: 1280, height: 800 } };

  const page = await visitor.open('overview', look);
  const dark = await visitor.open('overview', { ...look, colorScheme: 'dark' });
  const small = await visitor.open('overview', { viewport: { width: 360, height: 740 }, colorScheme: 'dark', isMobile: true, hasTouch: true, deviceScaleFactor: 2 });
  for (const one of [page, dark, small]) await one.getByRole('button', { name: '2 min' }).click();
  await pause(node.real ? SETTLE_MS : 20_000);
  await shoot('overview', page);
  await shoot('overview-dark', dark);
  await shoot('overview-small', small);
  await page.getByRole('table', { name: 'Busiest publishers' }).scrollIntoViewIfNeeded();
  await page.evaluate(() => document.querySelector('.lists').scrollIntoView());
  await pause(700);
  await shoot('overview-lists', page);

  const go = async (hash, on = page) => {
    await on.goto(`${node.base}/#/${hash}`);
    await pause(1200);
  };
  // The cluster of thirteen nodes is mocked.
  const answer = made.clusterOf(5, 8, 'n9');
  for (const [name, on] of [['cluster', page], ['cluster-small', small]]) {
    await on.route(/\/api\/v1\/nodes(\?|$)/, (route) => route.fulfill({ json: answer.page }));
    await on.route(/\/api\/v1\/cluster(\?|$)/, (route) => route.fulfill({ json: answer.cluster }));
    await go('cluster', on);
    await pause(2500);
    await shoot(name, on);
    await on.unrouteAll({ behavior: 'ignoreErrors' });
  }
  await go('clients');
  await shoot('clients', page);
  await go('clients', small);
  await shoot('clients-small', small);
  await go('clients/historian');
  await shoot('client', page);
  await go('subscriptions?view=who&topic=building/north/floor/1/temperature');
  await shoot('subscriptions', page);
  await go('retained?filter=building/%23');
  await page.getByRole('button', { name: /^View building\/north/ }).first().click();
  await pause(600);
  await shoot('retained', page);
  await go('topics');
  await pause(3500);
  await shoot('topic-metrics', page);
  await go('test?filter=building/north/%23');
  await page.getByRole('button', { name: 'Listen' }).click();
  await page.getByLabel('Topic', { exact: true }).fill('building/north/floor/1/lamp/9/set');
  await page.getByLabel('Payload', { exact: true }).fill('{"on": true, "level": 60}');
  await page.getByRole('button', { name: 'JSON' }).first().click();
  await page.getByRole('button', { name: 'Publish', exact: true }).click();
  await pause(2500);
  await page.getByRole('listbox', { name: 'Messages' }).getByRole('option').nth(3).click();
  await page.getByRole('button', { name: 'Pause' }).click();
  await shoot('test-client', page);
  await go('trace?client_id=alarm-service', dark);
  await dark.getByLabel('Payloads').selectOption('256');
  await dark.getByRole('button', { name: 'Start' }).click();
  await pause(2500);
  await dark.getByRole('button', { name: 'Pause' }).click();
  await dark.getByRole('listbox', { name: 'Trace' }).getByRole('option').nth(2).click();
  await shoot('trace', dark);
  await go('log');
  await shoot('log', page);
  await integration(visitor, shoot, look);
  await go('users');
  await shoot('users', page);
  await page.getByRole('button', { name: 'Edit sensors' }).click();
  await pause(400);
  await shoot('user', page);
  await page.keyboard.press('Escape');
  await go('users', small);
  await shoot('users-small', small);
  await go('rules');
  await shoot('rules', page);
  await page.getByRole('tab', { name: 'Test access' }).click();
  await page.getByLabel('Client Identifier').fill('lamp-north-1-009');
  await page.getByLabel('Topic Name').fill('building/north/alarm/smoke');
  await page.getByRole('button', { name: 'Test', exact: true }).click();
  await pause(800);
  await shoot('rules-test', page);
  await go('bans');
  await shoot('bans', page);
  await go('configuration');
  await page.getByRole('searchbox').fill('queue');
  await page.getByRole('button', { name: /^Edit queue\.messages_max/ }).click();
  await page.getByRole('textbox', { name: /New value/ }).fill('8000');
  await page.getByRole('button', { name: 'Check' }).click();
  await pause(600);
  await shoot('configuration', page);
  await page.getByRole('tab', { name: 'History' }).click();
  await pause(600);
  await shoot('configuration-history', page);
  await go('api');
  await page.getByRole('searchbox').fill('publish');
  await page.getByRole('button', { name: /^POST \/api\/v1\/publish( |$)/ }).first().click();
  await pause(400);
  await shoot('api', page);
  if (node.real) {
    node.token = (await call(node, 'POST', '/api/v1/keys', { name: 'ops', role: 'admin', expires_in_s: null })).token;
    await call(node, 'POST', '/api/v1/keys', { name: 'grafana', role: 'viewer', expires_in_s: 7776000 });
    await call(node, 'POST', '/api/v1/keys', { name: 'night-shift', role: 'operator', expires_in_s: 2592000 });
    await call(node, 'POST', '/api/v1/accounts', { name: 'alice', role: 'admin', password: 'correct horse' });
    await call(node, 'POST', '/api/v1/accounts', { name: 'bob', role: 'operator', password: 'correct horse' });
    await page.goto(`${node.base}/#/keys`);
    await page.reload();
    await page.getByLabel('Password').waitFor();
    await shoot('sign-in', page);
    await page.getByLabel('Name').fill('alice');
    await page.getByLabel('Password').fill('correct horse');
    await page.getByRole('button', { name: 'Log in' }).click();
    await pause(1200);
  } else await go('keys');
  await shoot('keys', page);
  await go('audit');
  await shoot('audit', page);
  end();
  if (visitor.problems.length > 0) await writeFile(join(directory, 'problems.txt'), visitor.problems.join('\n'));
  await visitor.close();
}
