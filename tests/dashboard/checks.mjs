// Checks of the dashboard. Their order matters: the last ones stop the node and end open mode.

import assert from 'node:assert/strict';
import { execFile } from 'node:child_process';
import { readFile } from 'node:fs/promises';
import { promisify } from 'node:util';
import * as made from '../../dashboard/mock/data.mjs';
import { Client } from './mqtt.mjs';
import { Mock, Node, Postgres, read, startCluster, until } from './world.mjs';

const run = promisify(execFile);

export const PAGES = [
  ['overview', 'Overview'],
  ['cluster', 'Cluster'],
  ['clients', 'Clients'],
  ['subscriptions', 'Subscriptions'],
  ['retained', 'Retained messages'],
  ['topics', 'Topic metrics'],
  ['test', 'Test client'],
  ['trace', 'Trace'],
  ['log', 'Log'],
  ['bridges', 'Bridges'],
  ['links', 'Cluster links'],
  ['connectors', 'Connectors'],
  ['actions', 'Actions'],
  ['users', 'Users'],
  ['rules', 'Access rules'],
  ['bans', 'Bans'],
  ['configuration', 'Configuration'],
  ['keys', 'API keys'],
  ['audit', 'Audit'],
  ['api', 'API'],
];

const heading = (page, name) => page.getByRole('heading', { level: 1, name, exact: true }).waitFor();
/** Waits for a message on the page. The error says which ones are shown instead. */
const toast = async (page, text) => {
  await page.getByRole('status').getByText(text).first().waitFor().catch(async (error) => {
    const shown = await page.getByRole('status').allInnerTexts();
    throw new Error(`${error.message}\nshown instead: ${JSON.stringify(shown)}`, { cause: error });
  });
};
const row = (page, text) => page.getByRole('row').filter({ hasText: text });
const alarms = (page) => page.getByRole('region', { name: 'Alarms' });
const gone = (locator) => locator.waitFor({ state: 'detached' });
const focused = (locator) => locator.evaluate((one) => one === document.activeElement);

/** Signs in with a token, which is the second way. */
async function withToken(page, token) {
  await page.getByRole('button', { name: 'Use an API token instead' }).click();
  await page.getByLabel('Token').fill(token);
  await page.getByRole('button', { name: 'Sign in' }).click();
}

async function logIn(page, name, password) {
  await page.getByLabel('Name').fill(name);
  await page.getByLabel('Password').fill(password);
  await page.getByRole('button', { name: 'Log in' }).click();
}

/** The button that opens the menu of the person who is logged in. */
const who = (page, name) => page.getByRole('button', { name: new RegExp(`^${name} `) });

/** Runs the same steps for all values at the same time. Each run has a page of its own, and most of them wait. */
const atOnce = (values, steps) => Promise.all(values.map(steps));

async function wide(page) {
  return page.evaluate(() => Math.max(0, document.documentElement.scrollWidth - window.innerWidth));
}

/** Number of steps of the first line on the overview. */
const points = async (page) => {
  const line = page.locator('section[aria-label="Messages"] path.line').first();
  return (await line.count()) === 0 ? 0 : ((await line.getAttribute('d')) ?? '').split(/[ML]/).length - 1;
};

/** Opens the page `id` and waits for its first data. */
async function ready(page, base, [id, title]) {
  await page.goto(`${base}/#/${id}`);
  await heading(page, title);
  await gone(page.getByText('Loading…').first());
  if (id === 'log') await page.getByRole('listbox', { name: 'Log' }).getByRole('option').first().waitFor();
  if (id === 'configuration') await page.locator('[data-setting]').first().waitFor();
  if (id === 'overview') await page.getByRole('table', { name: /^(Listeners|Nodes)$/ }).getByRole('row').nth(1).waitFor();
}

/** Opens a page of a mock node of its own, which has bridges, cluster links, connectors and actions to other systems. */
async function onMock(visitor, hash, steps, ...more) {
  const mock = await Mock.start(...more);
  try {
    const page = await visitor.open(hash);
    await page.goto(`${mock.base}/#/${hash}`);
    await steps(page, mock);
  } finally {
    await mock.close();
  }
}

const hostile = '<img src=x onerror="window.hacked=1">';
let adminToken = '';

export const checks = [
  [
    'the cluster page of a single node shows how to start a cluster',
    async (visitor) => {
      const page = await visitor.open('cluster');
      await heading(page, 'Cluster');
      await page.getByText('This node belongs to no cluster.').waitFor();
      await page.getByText('meridian start --dev-cluster 3+2').waitFor();
      assert.equal(await page.getByRole('table').count(), 0);
    },
    'real',
  ],
  [
    'the map shows three nodes with their links and loads, and a node that ends',
    async (visitor, node) => {
      const nodes = await startCluster(node.binary, 2, 1);
      const clients = [];
      try {
        const [first, , last] = nodes;
        const page = await visitor.open('cluster');
        await page.goto(`${first.base}/#/cluster`);
        await heading(page, 'Cluster');
        const table = page.getByRole('table', { name: 'Nodes' });
        for (const one of nodes) await table.getByRole('row').filter({ hasText: one.name }).getByText('ready').waitFor({ timeout: 20_000 });
        // A node is ready before each of the others has reported its link to it.
        const links = page.getByRole('table', { name: 'Links' });
        await until('both directions of three links', async () => (await links.getByRole('row').count()) === 1 + 6);
        assert.equal(await page.locator('svg.map .node').count(), 3);
        assert.equal(await page.locator('svg.map .link').count(), 3);
        await page.getByText(/^3 nodes, all healthy · 0 connections · quorum of 1 voter, leader n[12]$/).waitFor();
        const members = page.getByRole('table', { name: 'Members' });
        await members.getByRole('row').filter({ hasText: last.name }).getByText('alive').waitFor();
        assert.equal(await page.locator('svg.map .link.attached').count(), 1, 'the replicant is attached to one core');
        // Linked nodes exchange frames all the time.
        await until('each direction has a load', async () => (await links.getByRole('cell', { name: /^[1-9][\d.]*\s(B|KiB)\/s$/ }).count()) === 12);
        assert.equal(await page.locator('svg.map .figures text').filter({ hasText: '/s' }).count(), 3);
        for (let i = 0; i < 2; i++) clients.push(await Client.connect(last.port, `there-${i}`));
        await table.getByRole('row').filter({ hasText: last.name }).getByRole('cell', { name: '2', exact: true }).waitFor();
        await page.locator('svg.map .node').filter({ hasText: last.name }).getByText('2', { exact: true }).waitFor();
        // Its clients are listed by the first node, and can be closed there.
        await page.goto(`${first.base}/#/clients/there-0`);
        await heading(page, 'there-0');
        await page.goto(`${first.base}/#/cluster`);
        await page.getByLabel('Node whose links are shown').selectOption(last.name);
        await until('four directions', async () => (await page.getByRole('table', { name: 'Links' }).getByRole('row').count()) === 1 + 4);
        await page.locator('svg.map .figures text').filter({ hasText: '/s' }).first().waitFor();
        if (process.env.SCREENSHOT_CLUSTER) await page.screenshot({ path: process.env.SCREENSHOT_CLUSTER, fullPage: true });
        await last.end();
        await page.getByText(`No answer from ${last.name}`).waitFor({ timeout: 20_000 });
        await table.getByRole('row').filter({ hasText: last.name }).getByText('dead').waitFor({ timeout: 20_000 });
        await members.getByRole('row').filter({ hasText: last.name }).getByText('dead').waitFor();
        await page.locator('svg.map .node.bad').filter({ hasText: last.name }).waitFor();
        assert.equal(await page.locator('svg.map .link.bad').count(), 2);
        if (process.env.SCREENSHOT_CLUSTER) await page.screenshot({ path: process.env.SCREENSHOT_CLUSTER.replace('.png', '-lost.png'), fullPage: true });
        // The alarm, and what to do, is on the other pages too.
        await page.goto(`${first.base}/#/overview`);
        await alarms(page).getByText(`${last.name} is dead: start it again`).waitFor();
        await page.getByText('1 alarm', { exact: true }).waitFor();
      } finally {
        for (const client of clients) client.leave();
        for (const one of nodes) await one.close();
      }
    },
    'real',
  ],
  [
    'the table of members shows leader, voters, suspect and dead nodes, and a lost quorum',
    async (visitor) => {
      // Answers of a mock cluster of five nodes.
      const answer = made.cluster();
      let state = 'dead';
      const nodes = () => {
        const page = made.nodes();
        for (const link of page.items.flatMap((info) => info.cluster.links)) if (link.node === 'edge-warehouse') link.state = state;
        return page;
      };
      const page = await visitor.open('cluster');
      await page.route(/\/api\/v1\/nodes(\?|$)/, (route) => route.fulfill({ json: nodes() }));
      await page.route(/\/api\/v1\/cluster(\?|$)/, (route) => route.fulfill({ json: answer }));
      const table = page.getByRole('table', { name: 'Members' });
      const line = (name) => table.getByRole('row').filter({ hasText: name });
      await line('meridian-2').getByText('leads', { exact: true }).waitFor({ timeout: 20_000 });
      await line('meridian-1').getByText('votes', { exact: true }).waitFor();
      await line('edge-lobby').getByText('no', { exact: true }).waitFor();
      await line('edge-warehouse').getByText('dead', { exact: true }).waitFor();
      await page.getByRole('table', { name: 'Nodes' }).getByRole('row').filter({ hasText: 'edge-warehouse' }).getByText('dead', { exact: true }).waitFor();
      await page.locator('svg.map .node.leads').filter({ hasText: 'meridian-2' }).waitFor();
      await page.getByText('quorum of 3 voters, leader meridian-2').waitFor();
      if (process.env.SCREENSHOT_CLUSTER) await page.screenshot({ path: process.env.SCREENSHOT_CLUSTER.replace('.png', '-members.png'), fullPage: true });
      const peers = page.getByRole('list', { name: 'Unjoined peers' });
      await peers.getByRole('listitem').filter({ hasText: "10.2.0.9 (edge-warehouse): the peer refuses this node: the cluster's secret is not the same on both: check the secret's file" }).waitFor();
      await page.getByRole('table', { name: 'Links' }).getByText('dead', { exact: true }).first().waitFor();
      assert.equal(await page.getByText('suspect', { exact: true }).count(), 0, 'the state of the meta group wins');
      // Before that it is suspect: first for the nodes that do not reach it, then for all.
      const away = answer.membership.members.find((member) => member.node === 'edge-warehouse');
      [state, away.state] = ['suspect', 'suspect'];
      await line('edge-warehouse').getByText('suspect', { exact: true }).waitFor();
      await page.getByRole('table', { name: 'Nodes' }).getByRole('row').filter({ hasText: 'edge-warehouse' }).getByText('suspect', { exact: true }).waitFor();
      await until('each node suspects it', async () => (await page.getByRole('table', { name: 'Links' }).getByText('suspect', { exact: true }).count()) === 4);
      assert.equal(await page.getByText('dead', { exact: true }).count(), 0);
      assert.equal(await page.locator('svg.map .link.bad').count(), 4);
      [state, away.state] = ['dead', 'dead'];
      await line('edge-warehouse').getByText('dead', { exact: true }).waitFor();
      // Byte counters of the mock grow by at least 40 per millisecond: the load is the difference of two snapshots.
      const lobby = page.getByRole('table', { name: 'Links' }).getByRole('row').filter({ has: page.getByRole('cell', { name: 'meridian-1', exact: true }) }).filter({ has: page.getByRole('cell', { name: 'edge-lobby', exact: true }) });
      await lobby.getByText(/^(38|39|40)\.\d\sKiB\/s$/).first().waitFor();
      await page.locator('svg.map .link title').filter({ hasText: /^edge-lobby and meridian-1: up, 0\.4 ms; edge-lobby to meridian-1 15\d\sKiB\/s, back (38|39|40)\.\d\sKiB\/s$/ }).waitFor({ state: 'attached' });
      if (process.env.SCREENSHOT_CLUSTER) await page.screenshot({ path: process.env.SCREENSHOT_CLUSTER.replace('.png', '-load.png') });
      await page.getByRole('list', { name: 'What the map shows' }).getByText('link of a replicant to its core').waitFor();
      answer.membership.replica.quorum = false;
      answer.membership.stale = true;
      await page.getByRole('status').getByText('No quorum').waitFor();
      await line('meridian-2').getByText('led', { exact: true }).waitFor();
      await line('meridian-1').getByText('was alive', { exact: true }).waitFor();
      assert.equal(await page.locator('svg.map .node.leads').filter({ hasText: 'meridian-2' }).count(), 0, 'the leader is unknown');
      if (process.env.SCREENSHOT_CLUSTER) await page.screenshot({ path: process.env.SCREENSHOT_CLUSTER.replace('.png', '-stale.png'), fullPage: true });
      // The same on a replicant.
      const replica = answer.membership.replica;
      answer.membership.replica = null;
      await page.getByRole('status').getByText('No majority of the cores').waitFor();
      answer.membership.stale = false;
      await gone(page.getByRole('status').getByText('No majority of the cores'));
      answer.membership.replica = replica;
      answer.unjoined_peers = [];
      await gone(peers);
      const joined = answer.membership.joined;
      answer.membership.joined = false;
      answer.membership.waits_for = 'the cores have not all met each other yet';
      await page.getByRole('status').getByText('not a member yet: the cores have not all met').waitFor();
      answer.membership.joined = true;
      await page.getByRole('status').getByText('a member that serves no client: the cores have not all met').waitFor();
      answer.membership.joined = joined;
      answer.membership.waits_for = null;
      await gone(page.getByText('a member that serves no client'));
      await page.unrouteAll({ behavior: 'ignoreErrors' });
    },
  ],
  [
    'the map is a ring of cores with replicants outside it, and labels do not overlap, at any size',
    async (visitor) => {
      for (const [width, height] of [[1280, 860], [390, 800]]) {
        let answer = made.clusterOf(1, 0);
        const page = await visitor.open('cluster', { viewport: { width, height } });
        await page.route(/\/api\/v1\/nodes(\?|$)/, (route) => route.fulfill({ json: answer.page }));
        await page.route(/\/api\/v1\/cluster(\?|$)/, (route) => route.fulfill({ json: answer.cluster }));
        for (const [cores, replicants] of [[3, 0], [1, 2], [2, 1], [3, 2], [3, 5], [5, 8], [5, 20]]) {
          answer = made.clusterOf(cores, replicants);
          const at = `${cores}+${replicants} at ${width}`;
          await until(`${at} is shown`, async () => (await page.locator('svg.map .node').count()) === cores + replicants);
          const seen = await page.locator('svg.map').evaluate((map) => {
            const box = (one) => (({ x, y, width, height }) => ({ x, y, width, height, text: one.textContent }))(one.getBoundingClientRect());
            const nodes = [...map.querySelectorAll('.node')].map((node) => ({ name: node.querySelector('.sign').getAttribute('aria-label').split(',')[0], core: node.querySelector('rect') !== null, sign: box(node.querySelector('rect, circle')), figure: box(node.querySelector('.figure')), labels: [...node.querySelectorAll('.name, .region')].map(box) }));
            return { map: box(map), nodes, figures: [...map.querySelectorAll('.figures text')].map(box) };
          });
          const over = (a, b) => a.x + 0.5 < b.x + b.width && b.x + 0.5 < a.x + a.width && a.y + 2 < b.y + b.height && b.y + 2 < a.y + a.height;
          const texts = [...seen.nodes.flatMap((one) => one.labels), ...seen.figures];
          for (const [i, one] of texts.entries()) {
            for (const other of texts.slice(i + 1)) assert.ok(!over(one, other), `${at}: ${one.text} overlaps ${other.text}`);
            for (const node of seen.nodes) assert.ok(!over(one, node.sign), `${at}: ${one.text} overlaps the symbol of ${node.name}`);
            assert.ok(one.x >= seen.map.x - 1 && one.x + one.width <= seen.map.x + seen.map.width + 1, `${at}: ${one.text} is within the map`);
          }
          for (const [i, one] of seen.nodes.entries()) {
            assert.ok(one.figure.width <= one.sign.width, `${at}: ${one.figure.text} fits into its sign`);
            const off = (other) => Math.hypot(one.sign.x + one.sign.width / 2 - other.sign.x - other.sign.width / 2, one.sign.y + one.sign.height / 2 - other.sign.y - other.sign.height / 2);
            for (const other of seen.nodes.slice(i + 1)) assert.ok(off(other) > (one.sign.width + other.sign.width) / 2, `${at}: ${one.name} overlaps ${other.name}`);
          }
          const labelled = seen.nodes.filter((one) => one.labels.length > 0).length;
          if (width > 1000 || cores + replicants <= 5) assert.equal(labelled, cores + replicants, `${at}: there is room for all labels`);
          assert.ok(seen.nodes.every((one) => !one.core || one.labels.length > 0) || replicants > 12, `${at}: each core has its label`);
          // Distance from the middle, in halves of the map, separates inside from outside.
          const middle = [seen.map.x + seen.map.width / 2, seen.map.y + seen.map.height / 2];
          const far = (one) => Math.hypot((one.sign.x + one.sign.width / 2 - middle[0]) / seen.map.width, (one.sign.y + one.sign.height / 2 - middle[1]) / seen.map.height);
          const [inner, outer] = [seen.nodes.filter((one) => one.core).map(far), seen.nodes.filter((one) => !one.core).map(far)];
          if (outer.length > 0) assert.ok(Math.max(...inner) < Math.min(...outer), `${at}: cores stand inside`);
          const spread = (read) => Math.max(...seen.nodes.map(read)) - Math.min(...seen.nodes.map(read));
          assert.ok(spread((one) => one.sign.x) > 60 && spread((one) => one.sign.y) > 60, `${at}: not in one line`);
          assert.equal(await wide(page), 0, at);
        }
        // The card shows what has no label for the focused node; a selected node shows its links.
        const placed = () => page.locator('svg.map .node .name, svg.map .node .region').evaluateAll((all) => all.map((one) => [one.textContent, one.getAttribute('x'), one.getAttribute('y')]));
        const before = await placed();
        const last = page.getByRole('button', { name: /^n25,/ });
        await last.focus();
        await page.locator('svg.map .card').getByText('n25', { exact: true }).waitFor();
        await page.locator('svg.map .card').getByText(/^attached to n\d$/).waitFor();
        assert.deepEqual(await placed(), before, 'no label moves');
        await page.keyboard.press('Enter');
        await until('its links are in the table', async () => (await page.getByRole('table', { name: 'Links' }).getByRole('row').count()) === 1 + 48);
        assert.equal(await last.getAttribute('aria-pressed'), 'true');
        await page.keyboard.press('Tab');
        await gone(page.locator('svg.map .card').getByText('n25', { exact: true }));
        await page.getByLabel('Node whose links are shown').selectOption('');
        const names = () => page.getByRole('table', { name: 'Nodes' }).getByRole('row').evaluateAll((rows) => rows.slice(1).map((one) => one.firstElementChild.textContent.trim()));
        const heights = await page.getByRole('table', { name: 'Members' }).getByRole('row').evaluateAll((rows) => rows.map((one) => one.getBoundingClientRect().height));
        assert.ok(heights.length === 26 && Math.max(...heights) < 60, `members take two lines at most: ${heights}`);
        assert.deepEqual(await names(), Array.from({ length: 25 }, (_, i) => `n${i + 1}`), 'in the order of their numbers');
        if (process.env.SCREENSHOT_CLUSTER) await page.screenshot({ path: process.env.SCREENSHOT_CLUSTER.replace('.png', `-ring-${width}.png`) });
        await page.evaluate(await read('dashboard/node_modules/axe-core/axe.min.js'));
        const { violations } = await page.evaluate(() => window.axe.run(document.querySelector('main'), { resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] }));
        assert.deepEqual(violations.map((one) => `${one.id}: ${one.help}: ${one.nodes.slice(0, 3).map((node) => node.target)}`), []);
        // On a touch screen the card stays until the next tap.
        if (width < 1000) {
          const phone = await visitor.open('cluster', { viewport: { width, height }, isMobile: true, hasTouch: true });
          await phone.route(/\/api\/v1\/nodes(\?|$)/, (route) => route.fulfill({ json: answer.page }));
          await phone.route(/\/api\/v1\/cluster(\?|$)/, (route) => route.fulfill({ json: answer.cluster }));
          const card = phone.locator('svg.map .card');
          await phone.getByRole('button', { name: /^n18,/ }).tap();
          await card.getByText('n18', { exact: true }).waitFor();
          await phone.getByRole('button', { name: /^n7,/ }).tap();
          await card.getByText('n7', { exact: true }).waitFor();
          await phone.locator('svg.map').tap({ position: { x: 3, y: 3 } });
          await gone(card);
          await phone.unrouteAll({ behavior: 'ignoreErrors' });
        }
        // A link that is down shows no measurements, even if a node of an earlier version sends some.
        answer = made.clusterOf(3, 2, 'n5');
        for (const link of answer.page.items.flatMap((info) => info.cluster.links)) link.round_trip_ms = 7.25;
        await until('the links of n5 are bad', async () => (await page.locator('svg.map .link.bad').count()) === 4);
        assert.deepEqual(await page.locator('svg.map .link.bad title').filter({ hasText: /ms|\/s/ }).count(), 0);
        const links = page.getByRole('table', { name: 'Links' }).getByRole('row');
        assert.equal(await links.filter({ hasText: 'dead' }).count(), 4);
        assert.equal(await links.filter({ hasText: 'dead' }).filter({ hasText: '7.3' }).count(), 0);
        assert.equal(await links.filter({ hasText: '7.3' }).count(), 12);
        await page.unrouteAll({ behavior: 'ignoreErrors' });
      }
    },
  ],
  [
    'a node is drained from the page, shows its progress, and accepts clients again',
    async (visitor, node) => {
      const nodes = await startCluster(node.binary, 3, 0);
      const clients = [];
      try {
        const [first, second] = nodes;
        await until('all serve', async () => (await Promise.all(nodes.map((one) => fetch(`${one.base}/health/ready`)))).every((answer) => answer.ok), 30_000);
        for (let i = 0; i < 3; i++) clients.push(await Client.connect(second.port, `away-${i}`));
        const page = await visitor.open('cluster');
        await page.goto(`${first.base}/#/cluster`);
        await heading(page, 'Cluster');
        const table = page.getByRole('table', { name: 'Nodes' });
        const drains = page.getByRole('table', { name: 'Drains' });
        await table.getByRole('row').filter({ hasText: 'n2' }).getByRole('cell', { name: '3', exact: true }).waitFor({ timeout: 20_000 });
        assert.equal(await drains.count(), 0);
        await page.getByRole('button', { name: 'Drain n2' }).click();
        const dialog = page.getByRole('dialog');
        await dialog.getByText('It refuses new clients until the drain is cancelled.').waitFor();
        await dialog.getByRole('button', { name: 'Drain' }).click();
        await toast(page, 'Node n2 is drained');
        await drains.getByRole('row').filter({ hasText: 'n2' }).getByText('waiting').waitFor();
        await table.getByRole('row').filter({ hasText: 'n2' }).getByText('draining').waitFor();
        await drains.getByRole('row').filter({ hasText: 'n2' }).getByText('drained').waitFor({ timeout: 30_000 });
        await table.getByRole('row').filter({ hasText: 'n2' }).getByRole('cell', { name: '0', exact: true }).first().waitFor();
        if (process.env.SCREENSHOT_DRAIN) await page.screenshot({ path: process.env.SCREENSHOT_DRAIN, fullPage: true });
        await page.getByRole('button', { name: 'Cancel the drain of n2' }).click();
        await toast(page, 'Node n2 accepts clients again');
        await gone(drains);
        await table.getByRole('row').filter({ hasText: 'n2' }).getByText('ready').waitFor();
        await page.getByRole('button', { name: 'Rebalance clients…' }).click();
        await toast(page, 'No node has more than 10 % above the mean');
      } finally {
        for (const client of clients) client.close?.();
        for (const one of nodes) await one.close();
      }
    },
    'real',
  ],
  [
    'members are removed, leave and become leader from the page, after the question of `meridian ctl cluster`, by role',
    async (visitor, node) => {
      const nodes = await startCluster(node.binary, 3, 2);
      try {
        const [first, , , fourth, fifth] = nodes;
        await until('all serve', async () => (await Promise.all(nodes.map((one) => fetch(`${one.base}/health/ready`)))).every((answer) => answer.ok), 30_000);
        const view = async () => (await fetch(`${first.base}/api/v1/cluster`)).json();
        await until('all are members, and three vote', async () => {
          const members = (await view()).membership?.members ?? [];
          return members.length === 5 && members.filter((one) => one.votes).length === 3;
        }, 60_000);
        // Without a terminal the question is printed as the error.
        const asks = async (...words) => {
          const said = await run(node.binary, ['ctl', '--url', first.base, ...words], { stdio: 'pipe' }).then(() => assert.fail('it was not asked'), (error) => error.stderr);
          return said.split('\n')[0].replace(/^meridian ctl: /, '').trim();
        };
        const page = await visitor.open('cluster');
        await page.goto(`${first.base}/#/cluster`);
        const members = page.getByRole('table', { name: 'Members' });
        const line = (name) => members.getByRole('row').filter({ has: page.getByRole('cell', { name, exact: true }) });
        const dialog = page.getByRole('dialog');

        await page.getByRole('button', { name: 'Balance…' }).click();
        await dialog.getByText('Spread the replicants evenly over the cores').waitFor();
        await dialog.getByRole('button', { name: 'Balance' }).click();
        await toast(page, 'The replicants move');

        // Another core becomes the leader; by keyboard only.
        const to = page.getByRole('button', { name: /^Transfer leadership to n\d$/ }).first();
        const name = (await to.getAttribute('aria-label')).split(' ').at(-1);
        await to.focus();
        await page.keyboard.press('Enter');
        await dialog.getByText('Make another core the leader. The cores agree on nothing for a moment.').waitFor();
        await page.keyboard.press('Escape');
        await gone(dialog);
        assert.equal(await line(name).getByText('leads', { exact: true }).count(), 0, 'Escape does nothing');
        await to.focus();
        await page.keyboard.press('Enter');
        await dialog.waitFor();
        await page.keyboard.press('Enter');
        await toast(page, `Node ${name} leads`);
        await line(name).getByText('leads', { exact: true }).waitFor({ timeout: 20_000 });

        // The question of a core states what its loss means.
        await page.getByRole('button', { name: 'Let n2 leave the cluster' }).click();
        const ofCore = await asks('--node', 'n2', 'cluster', 'leave');
        assert.match(ofCore, /Two cores are left then/);
        await dialog.getByText(ofCore, { exact: true }).waitFor();
        if (process.env.SCREENSHOT_CLUSTER) await page.screenshot({ path: process.env.SCREENSHOT_CLUSTER.replace('.png', '-leave.png') });
        await dialog.getByRole('button', { name: 'Cancel' }).click();
        await gone(dialog);

        // A node leaves that is not the one that serves the page.
        await page.getByRole('button', { name: 'Let n4 leave the cluster' }).click();
        const question = await asks('--node', 'n4', 'cluster', 'leave');
        assert.match(question, /^Stop node n4/);
        await dialog.getByText(question, { exact: true }).waitFor();
        await dialog.getByLabel('Leave even though clients lose what is queued for them on this node').check();
        await dialog.getByRole('button', { name: 'Leave' }).click();
        await toast(page, 'Node n4 stops and leaves');
        await gone(line('n4'));
        await until('its process ends', () => fourth.process.exitCode === 0, 40_000);

        // Removal is the only action on a dead member.
        await fifth.end();
        const dead = page.getByRole('button', { name: 'Remove n5' });
        await dead.waitFor({ timeout: 30_000 });
        assert.equal(await line('n5').getByRole('button').count(), 1);
        await dead.click();
        const last = await asks('cluster', 'remove', 'n5');
        assert.match(last, /^Remove the node n5/);
        await dialog.getByText(last, { exact: true }).waitFor();
        await dialog.getByRole('button', { name: 'Remove' }).click();
        await toast(page, 'Node n5 is removed');
        await gone(line('n5'));
        await gone(page.getByRole('button', { name: 'Balance…' }));

        // A viewer has no actions. An operator may balance, if there are replicants.
        const key = async (name, role, token) => {
          const headers = { 'Content-Type': 'application/json', ...(token ? { Authorization: `Bearer ${token}` } : {}) };
          return (await (await fetch(`${first.base}/api/v1/keys`, { method: 'POST', headers, body: JSON.stringify({ name, role, expires_in_s: null }) })).json()).token;
        };
        const admin = await key('boss', 'admin');
        for (const [role, buttons] of [['viewer', 0], ['operator', 0], ['admin', 5]]) {
          const token = await key(role, role, admin);
          const other = await visitor.open('cluster');
          await other.goto(`${first.base}/#/cluster`);
          await withToken(other, token);
          const rows = other.getByRole('table', { name: 'Members' }).getByRole('row');
          await until('the members are shown', async () => (await rows.count()) === 1 + 3);
          assert.equal(await other.getByRole('table', { name: 'Members' }).getByRole('cell').getByRole('button').count(), buttons, role);
          assert.equal(await other.getByRole('button', { name: 'Balance…' }).count(), 0, role);
        }
      } finally {
        for (const one of nodes) await one.close();
      }
    },
    'real',
  ],
  [
    'the table of shards shows leaders, replicas that lack records, what moves, and sizes',
    async (visitor) => {
      let answer = made.clusterOf(5, 1);
      await atOnce([[1280, 860], [390, 800]], async ([width, height]) => {
        const page = await visitor.open('cluster', { viewport: { width, height } });
        await page.route(/\/api\/v1\/nodes(\?|$)/, (route) => route.fulfill({ json: answer.page }));
        await page.route(/\/api\/v1\/cluster(\?|$)/, (route) => route.fulfill({ json: answer.cluster }));
        const shards = page.getByRole('table', { name: 'Shards' });
        const row = (number) => shards.getByRole('row').nth(1 + number);
        await until('sixteen shards are shown', async () => (await shards.getByRole('row').count()) === 1 + 16);
        await row(3).getByText('n4, n5 (4,120 behind), n1').waitFor();
        await row(15).getByText('no leader', { exact: true }).waitFor();
        await row(3).getByText('behind', { exact: true }).waitFor();
        await page.getByText('n1 leads 3 · n2 leads 3 · n3 leads 3 · n4 leads 3 · n5 leads 3 · 1 without a leader').waitFor();
        if (width > 1000) {
          await row(14).getByText('n5 joins').waitFor();
          assert.deepEqual((await row(2).getByRole('cell').allTextContents()).map((text) => text.trim().replaceAll('\u00a0', ' ')), ['2', 'n3', 'in order', 'n3, n4, n5', '–', '1,274', '203 KiB', '18.0 KiB']);
        }
        for (const scheme of ['light', 'dark']) {
          await page.emulateMedia({ colorScheme: scheme });
          if (process.env.SCREENSHOT_CLUSTER) await shards.screenshot({ path: process.env.SCREENSHOT_CLUSTER.replace('.png', `-shards-${scheme}-${width}.png`) });
        }
        await page.unrouteAll({ behavior: 'ignoreErrors' });
      });
      // Nodes with sessions of their own, and nodes of an earlier version, have no such table.
      answer = { ...answer, cluster: { ...answer.cluster, shards: null } };
      const page = await visitor.open('cluster');
      await page.route(/\/api\/v1\/nodes(\?|$)/, (route) => route.fulfill({ json: answer.page }));
      await page.route(/\/api\/v1\/cluster(\?|$)/, (route) => route.fulfill({ json: answer.cluster }));
      await page.getByRole('table', { name: 'Links' }).waitFor();
      assert.equal(await page.getByRole('table', { name: 'Shards' }).count(), 0);
      await page.unrouteAll({ behavior: 'ignoreErrors' });
    },
  ],
  [
    'a wrong clock is reported with its node, if most others agree, and on its links',
    async (visitor) => {
      const answer = made.nodes();
      const page = await visitor.open('cluster');
      await page.route(/\/api\/v1\/nodes(\?|$)/, (route) => route.fulfill({ json: answer }));
      await page.route(/\/api\/v1\/cluster(\?|$)/, (route) => route.fulfill({ json: made.cluster() }));
      const links = page.getByRole('table', { name: 'Links' });
      const status = page.getByRole('status').filter({ hasText: 'clock' });
      await links.getByText('in sync', { exact: true }).first().waitFor({ timeout: 20_000 });
      assert.equal(await status.count(), 0);
      const of = (name) => answer.items.find((info) => info.name === name).cluster;
      of('edge-lobby').clock_offset_s = -3600.5;
      for (const info of answer.items) {
        for (const link of info.cluster.links) {
          if (link.node === 'edge-lobby') Object.assign(link, { clock_ahead_s: -3600.5, clock_differs: true });
        }
      }
      await status.getByText('The clock of edge-lobby is 1h behind those of most nodes. Correct it').waitFor();
      await page.getByRole('table', { name: 'Nodes' }).getByRole('row').filter({ hasText: 'edge-lobby' }).getByText('wrong clock').waitFor();
      assert.equal(await links.getByText('1h behind').count(), 3);
      if (process.env.SCREENSHOT_CLUSTER) await page.screenshot({ path: process.env.SCREENSHOT_CLUSTER.replace('.png', '-clock.png'), fullPage: true });
      of('edge-lobby').clock_offset_s = null;
      await status.getByText('The clock of edge-lobby is 1h behind that of meridian-1. The clock of edge-lobby is 1h behind that of meridian-2.').waitFor();
      await page.unrouteAll({ behavior: 'ignoreErrors' });
    },
  ],
  [
    'the overview shows numbers and draws new ones',
    async (visitor, node) => {
      const client = node.real ? await Client.connect(node.port, 'overview-client') : null;
      const page = await visitor.open('overview');
      await heading(page, 'Overview');
      await page.locator('.tile').filter({ hasText: 'Connections' }).getByText(/^[1-9][\d,]*$/).waitFor();
      // A line needs two samples of five seconds.
      await until('a line is drawn', async () => (await points(page)) > 1, 30_000);
      await ready(page, visitor.base, ['overview', 'Overview']);
      await page.getByRole('slider', { name: 'Messages over time', exact: true }).focus();
      await page.keyboard.press('ArrowLeft');
      assert.match(await page.getByRole('slider', { name: 'Messages over time', exact: true }).getAttribute('aria-valuetext'), /^\d\d:\d\d:\d\d: in .*, out /);
      client?.leave();
    },
  ],
  [
    'the overview begins with the recorded history and continues with new samples',
    async (visitor) => {
      const recorded = async () => (await (await fetch(`${visitor.base}/api/v1/stats/history`)).json()).summed.length;
      await until('the node has recorded something', async () => (await recorded()) > 2, 40_000);
      const page = await visitor.open('clients');
      let asked = [];
      let answer = null;
      await page.route(/\/api\/v1\/stats\/history/, async (route) => {
        asked.push(Number(new URL(route.request().url()).searchParams.get('seconds')));
        if (answer === null) answer = await (await route.fetch()).json();
        await route.fulfill({ json: answer });
      });
      await page.goto(`${visitor.base}/#/overview`);
      const shown = await until('a line is drawn', async () => (await points(page)) > 2 && points(page), 40_000);
      assert.equal(shown, answer.summed.length, 'all of it is drawn at once');
      assert.equal(asked[0], 600);
      // New steps are appended; a repeated step is not drawn twice.
      const next = structuredClone(answer);
      next.until = new Date(Date.parse(answer.until) + 5000).toISOString();
      const cut = (list) => list.slice(-2);
      next.summed = cut([...next.summed, 1]);
      for (const name of Object.keys(next.series)) if (name !== 'dropped_per_s_by_reason') next.series[name] = cut([...next.series[name], 7]);
      next.series.dropped_per_s_by_reason = {};
      answer = next;
      await until('one more step is drawn', async () => (await points(page)) === shown + 1);
      assert.ok(asked.at(-1) < 120, `only what is new is asked for: ${asked}`);
      await page.getByRole('button', { name: '1 h' }).click();
      await until('the whole hour is asked for', () => asked.at(-1) === 3600);
      await page.unrouteAll({ behavior: 'ignoreErrors' });
    },
  ],
  [
    'the overview sums all nodes of a cluster, names missing ones, and shows one node',
    async (visitor, node) => {
      const nodes = await startCluster(node.binary, 2, 1);
      const clients = [];
      try {
        const [first, , last] = nodes;
        await until('all serve', async () => (await Promise.all(nodes.map((one) => fetch(`${one.base}/health/ready`)))).every((answer) => answer.ok), 30_000);
        for (const at of [first, last, last]) clients.push(await Client.connect(at.port, `sum-${clients.length}`));
        const page = await visitor.open('overview');
        await page.goto(`${first.base}/#/overview`);
        const connections = (value) => page.locator('.tile').filter({ hasText: 'Connections' }).getByText(value, { exact: true }).waitFor({ timeout: 30_000 });
        await page.getByText('Sums over all 3 nodes').waitFor({ timeout: 30_000 });
        await connections('3');
        const choice = page.getByLabel('Node whose figures are shown');
        assert.deepEqual(await choice.getByRole('option').allTextContents(), ['All nodes', 'n1', 'n2', 'n3']);
        await choice.selectOption('n3');
        await connections('2');
        await page.getByText(/^n3 · Meridian /).waitFor();
        await page.getByRole('table', { name: 'Listeners' }).getByText(String(last.port)).first().waitFor();
        await page.reload();
        await page.getByText(/^n3 · Meridian /).waitFor();
        await choice.selectOption('');
        await page.getByRole('table', { name: 'Nodes' }).getByRole('link', { name: 'n1' }).click();
        await page.getByText(/^n1 · Meridian /).waitFor();
        await connections('1');
        await choice.selectOption('');
        await connections('3');
        if (process.env.SCREENSHOT_CLUSTER) await page.screenshot({ path: process.env.SCREENSHOT_CLUSTER.replace('.png', '-sums.png') });
        await last.end();
        await page.getByRole('status').getByText('No answer from n3: the sums do not include it').waitFor({ timeout: 30_000 });
        await page.getByText('Sums over 2 of 3 nodes').waitFor();
        await connections('1');
        await choice.selectOption('n3');
        await page.getByRole('status').getByText('No answer from n3').waitFor({ timeout: 30_000 });
        await page.locator('.badge').getByText('no answer', { exact: true }).waitFor();
        assert.equal(await page.locator('.toast').count(), 0, 'it is reported once');
      } finally {
        for (const client of clients) client.leave();
        for (const one of nodes) await one.close();
      }
    },
    'real',
  ],
  [
    'the forms have every setting of bridges, connectors, links and actions with its default, and the reference every function and event',
    async () => {
      const { default: ts } = await import('../../dashboard/node_modules/typescript/lib/typescript.js');
      const module = async (path) => {
        const text = (await read(path)).replace(/^import \{ count, span \}.*$/m, 'const [count, span] = [String, String];');
        const { outputText } = ts.transpileModule(text, { compilerOptions: { module: ts.ModuleKind.ESNext, target: ts.ScriptTarget.ES2022 } });
        return import(`data:text/javascript,${encodeURIComponent(outputText)}`);
      };
      const { ADVANCED_FIELDS, BRIDGE_FIELDS, CONNECTOR_FIELDS, LINK_FIELDS, TARGET_FIELDS } = await module('dashboard/src/lib/integration.ts');
      const forms = [
        ['crates/sinks/src/connector.rs', Object.values(CONNECTOR_FIELDS).flat().flatMap((group) => group.fields), ['name', 'kind']],
        ['crates/bridges/src/settings.rs', BRIDGE_FIELDS.flatMap((group) => group.fields), ['name', 'enabled']],
        ['crates/linking/src/settings.rs', LINK_FIELDS.flatMap((group) => group.fields), ['name', 'enabled']],
        ['crates/sinks/src/action.rs', [...Object.values(TARGET_FIELDS).flat(), ...ADVANCED_FIELDS], ['name', 'enabled', 'description', 'rule', 'connector']],
      ];
      for (const [path, fields, elsewhere] of forms) {
        const declared = new Map([...(await read(path)).matchAll(/^ {8}pub (\w+): .+? = "([^"]*)"/gm)].map(([, name, value]) => [name, value]));
        assert.deepEqual([...declared.keys()].filter((name) => !elsewhere.includes(name) && !fields.some((field) => field.name === name)), [], `settings of ${path} without a field`);
        for (const field of fields) assert.equal(String(field.fallback), declared.get(field.name), `default of ${field.name} in ${path}`);
      }
      const { EVENTS, FUNCTIONS, MESSAGE_FIELDS } = await module('dashboard/src/lib/language.ts');
      const shown = new Set([...FUNCTIONS.flatMap((group) => group.functions.map((one) => one.call)), ...MESSAGE_FIELDS.map((one) => one.name)].map((call) => /^\w+/.exec(call)[0]));
      const functions = [...(await read('crates/rules/src/functions.rs')).matchAll(/(?:plain|other)\("(\w+)"/g)].map((one) => one[1]);
      assert.ok(functions.length > 50);
      assert.deepEqual(functions.filter((name) => name !== 'jq' && !shown.has(name)), [], 'functions without an entry');
      const language = await read('docs/rules-language.md');
      const sets = Object.fromEntries([...language.matchAll(/^- \*(\w+)\*: ([^-]*?)(?=^- |\n\n)/gm)].map(([, name, text]) => [name, [...text.matchAll(/`(\w+)`/g)].map((one) => one[1])]));
      const events = [...language.matchAll(/^\| `(\$events\/[\w/]+)` \| [^|]+ \| (.+) \|$/gm)];
      assert.equal(events.length, EVENTS.length);
      for (const [, name, text] of events) {
        const expected = [...text.matchAll(/\*(\w+)\*|`(\w+)`/g)].flatMap(([, set, field]) => (set ? sets[set] : [field]));
        assert.deepEqual(EVENTS.find((one) => one.name === name)?.fields, expected, `fields of ${name}`);
      }
    },
  ],
  [
    'bridges are listed with their states, and without one the page shows how to configure it',
    async (visitor) =>
      onMock(visitor, 'bridges', async (page, mock) => {
        await heading(page, 'Bridges');
        await row(page, 'cloud').getByText('connected', { exact: true }).waitFor();
        await row(page, 'plant-7').getByText('failing').waitFor();
        await row(page, 'old-site').getByText('off', { exact: true }).waitFor();
        await row(page, 'gone-site').getByText('not configured', { exact: true }).waitFor();
        await page.getByRole('link', { name: 'plant-7' }).click();
        await heading(page, 'plant-7');
        await page.getByRole('status').getByText('10.7.0.4:1883: connection refused', { exact: true }).waitFor();
        await page.getByText('4,120,332').waitFor();
        await page.getByText('12: 9 by the queue, 3 of QoS 0 without room', { exact: true }).waitFor();
        assert.equal(await page.getByRole('link', { name: '$bridge/plant-7' }).getAttribute('href'), '#/clients/%24bridge%2Fplant-7');
        await page.goto(`${mock.base}/#/bridges/cloud`);
        await page.getByText('This bridge is in the configuration file').waitFor();
        await page.getByText('/etc/meridian/secrets/cloud').waitFor();
        for (const name of ['Turn off', 'Edit…', 'Delete…']) assert.equal(await page.getByRole('button', { name }).count(), 0, name);
        await page.goto(`${mock.base}/#/bridges/no-such-bridge`);
        await page.getByText('There is no such bridge').waitFor();
        await page.route(/\/api\/v1\/bridges(\?|$)/, (route) => route.fulfill({ json: { items: [], next: null, missing: ['n2'] } }));
        await page.goto(`${mock.base}/#/bridges`);
        await page.getByText('[[bridge]]').waitFor();
        await page.getByText('meridian config import').waitFor();
        await page.getByText('No answer from n2').waitFor();
        await page.getByRole('button', { name: 'Add…' }).waitFor();
      }),
  ],
  [
    'a bridge is added, changed, turned off and deleted, and then its session is ended',
    async (visitor) =>
      onMock(visitor, 'bridges', async (page) => {
        await heading(page, 'Bridges');
        await page.getByRole('button', { name: 'Add…' }).click();
        const dialog = page.getByRole('dialog');
        await dialog.getByLabel('Name', { exact: true }).fill('paris office');
        await dialog.getByLabel('Addresses', { exact: true }).fill('paris.example.com');
        await dialog.getByLabel('Topics', { exact: true }).fill('plant/# up');
        await dialog.getByRole('button', { name: 'Add', exact: true }).click();
        await dialog.getByRole('alert').getByText('write letters, digits').waitFor();
        assert.ok(await focused(dialog.getByLabel('Name', { exact: true })), 'the wrong field has the focus');
        await dialog.getByLabel('Name', { exact: true }).fill('paris');
        await dialog.getByRole('button', { name: 'Add', exact: true }).click();
        await dialog.getByRole('alert').getByText('"paris.example.com" has no port').waitFor();
        await dialog.getByRole('alert').getByText('`up` is no direction').waitFor();
        assert.ok(await focused(dialog.getByLabel('Addresses', { exact: true })), 'the wrong field has the focus');
        await dialog.getByLabel('Addresses', { exact: true }).fill('paris.example.com:8883');
        await dialog.getByLabel('Topics', { exact: true }).fill('plant/# out 1');
        await dialog.getByText('TLS', { exact: true }).click();
        await dialog.getByLabel('Authorities').fill('/etc/meridian/tls/paris.pem');
        await dialog.getByRole('button', { name: 'Add', exact: true }).click();
        await dialog.getByRole('alert').getByText('set tls = true').waitFor();
        assert.ok(await focused(dialog.getByLabel('Connect with TLS')), 'the wrong check box has the focus');
        await dialog.getByLabel('Connect with TLS').check();
        let sent = page.waitForRequest((request) => request.method() === 'PUT');
        await dialog.getByRole('button', { name: 'Add', exact: true }).click();
        assert.deepEqual((await sent).postDataJSON(), { address: 'paris.example.com:8883', topics: 'plant/# out 1', tls: true, tls_ca: '/etc/meridian/tls/paris.pem' }, 'only settings that differ from the default');
        await toast(page, 'Bridge added');
        await heading(page, 'paris');
        await page.getByText('connected to paris.example.com:8883').waitFor();
        await page.getByRole('button', { name: 'Turn off' }).click();
        await toast(page, 'The bridge is off');
        await page.locator('.badge').getByText('off', { exact: true }).waitFor();
        await page.getByRole('button', { name: 'Edit…' }).click();
        assert.ok(await dialog.getByLabel('Authorities').isVisible(), 'a group with a setting is open');
        await dialog.getByText('Connection', { exact: true }).click();
        await dialog.getByLabel('Keep Alive').fill('soon');
        await dialog.getByRole('button', { name: 'Save' }).click();
        await dialog.getByRole('alert').getByText('"soon" is not a duration').waitFor();
        await dialog.getByLabel('Keep Alive').fill('10s');
        sent = page.waitForRequest((request) => request.method() === 'PUT');
        await dialog.getByRole('button', { name: 'Save' }).click();
        const { keep_alive, enabled } = (await sent).postDataJSON();
        assert.deepEqual({ keep_alive, enabled }, { keep_alive: '10s', enabled: false }, 'a change does not turn it on');
        await toast(page, 'Bridge changed');
        await page.locator('dl div').filter({ hasText: /^Keep Alive keep_alive10s$/ }).waitFor();
        await page.getByRole('button', { name: 'Delete…' }).click();
        await dialog.getByRole('button', { name: 'Cancel' }).click();
        await heading(page, 'paris');
        sent = page.waitForRequest((request) => request.method() === 'DELETE');
        await page.getByRole('button', { name: 'Delete…' }).click();
        await dialog.getByRole('button', { name: 'Delete' }).click();
        assert.match((await sent).url(), /bridges\/paris$/, 'messages stay unless the person says otherwise');
        await toast(page, 'Bridge deleted');
        await heading(page, 'Bridges');
        await row(page, 'paris').getByText('not configured', { exact: true }).waitFor();
        await page.getByRole('link', { name: 'paris' }).click();
        await page.getByText('This bridge is not configured any more').waitFor();
        for (const name of ['Turn off', 'Turn on', 'Edit…', 'Delete…']) assert.equal(await page.getByRole('button', { name }).count(), 0, name);
        sent = page.waitForRequest((request) => request.method() === 'DELETE');
        await page.getByRole('button', { name: 'End session…' }).click();
        await dialog.getByRole('button', { name: 'End session' }).click();
        assert.match((await sent).url(), /bridges\/paris\?messages=delete$/);
        await toast(page, 'Session ended');
        await heading(page, 'Bridges');
        await gone(row(page, 'paris'));
      }),
  ],
  [
    'a bridge that is added here carries messages, keeps them while it is off, and deletes them with its session',
    async (visitor, { binary }) => {
      const nodes = await Promise.all([Node.start(binary), Node.start(binary)]);
      const clients = [];
      const join = async (node, id) => {
        clients.push(await Client.connect(node.port, id));
        return clients.at(-1);
      };
      try {
        const [here, there] = nodes;
        const page = await visitor.open('bridges');
        await page.goto(`${here.base}/#/bridges`);
        await page.getByText('There are no bridges').waitFor();
        await page.getByRole('button', { name: 'Add…' }).click();
        const dialog = page.getByRole('dialog');
        await dialog.getByLabel('Name', { exact: true }).fill('plant');
        await dialog.getByLabel('Addresses', { exact: true }).fill(`127.0.0.1:${here.port}`);
        await dialog.getByLabel('Topics', { exact: true }).fill('sensors/# out 1');
        await dialog.getByText('Topics of its state').click();
        await dialog.getByLabel('At this broker').fill('state/+');
        await dialog.getByRole('button', { name: 'Add', exact: true }).click();
        await dialog.getByRole('alert').getByText('is an address of this node').waitFor();
        await dialog.getByLabel('Addresses', { exact: true }).fill(`127.0.0.1:${there.port}`);
        await dialog.getByRole('button', { name: 'Add', exact: true }).click();
        await dialog.getByRole('alert').getByText('use a topic without wildcards').waitFor();
        assert.ok(await focused(dialog.getByLabel('At this broker')), 'the wrong field has the focus');
        await dialog.getByLabel('At this broker').fill('');
        await dialog.getByRole('button', { name: 'Add', exact: true }).click();
        await toast(page, 'Bridge added');
        await heading(page, 'plant');
        const badge = (text) => page.locator('.badge').getByText(text, { exact: true }).waitFor();
        const fact = (text) => page.locator('dl div').filter({ hasText: text }).waitFor();
        await badge('connected');
        const listener = await join(there, 'listener');
        await listener.subscribe('sensors/#', 1);
        const sensor = await join(here, 'sensor');
        const arrived = () => listener.received.map((one) => one.payload).join();
        await sensor.publish('sensors/1', 'a', { qos: 1 });
        await until('the message has arrived', () => arrived() === 'a');
        await fact(/^Messages out1$/);
        await page.getByRole('button', { name: 'Turn off' }).click();
        await badge('off');
        await fact(/^Messages out0$/);
        await sensor.publish('sensors/1', 'b', { qos: 1 });
        await fact(/^Waiting1, /);
        await page.getByRole('button', { name: 'Edit…' }).click();
        await dialog.getByText('Connection', { exact: true }).click();
        await dialog.getByLabel('Longest pause').fill('5s');
        await dialog.getByRole('button', { name: 'Save' }).click();
        await toast(page, 'Bridge changed');
        assert.equal(arrived(), 'a', 'a change does not turn it on');
        await page.getByRole('button', { name: 'Turn on' }).click();
        await badge('connected');
        await until('the message that has waited has arrived', () => arrived() === 'a,b');
        await page.getByRole('button', { name: 'Turn off' }).click();
        await badge('off');
        await sensor.publish('sensors/1', 'c', { qos: 1 });
        await fact(/^Waiting1, /);
        await page.getByRole('button', { name: 'Delete…' }).click();
        await dialog.getByText('1 message waits for it').waitFor();
        await dialog.getByLabel('Also end the session').check();
        await dialog.getByRole('button', { name: 'Delete' }).click();
        await toast(page, 'Bridge and its messages deleted');
        await page.getByText('There are no bridges').waitFor();
        const session = await fetch(`${here.base}/api/v1/clients/${encodeURIComponent('$bridge/plant')}`);
        assert.equal(session.status, 404, 'the session has ended');
        assert.equal(arrived(), 'a,b');
      } finally {
        for (const client of clients) client.leave();
        await Promise.all(nodes.map((node) => node.close()));
      }
    },
    'real',
  ],
  [
    'links to other clusters are listed with their states, and shown with both directions',
    async (visitor) =>
      onMock(visitor, 'links', async (page, mock) => {
        await heading(page, 'Cluster links');
        await row(page, 'munich').getByText('connected', { exact: true }).waitFor();
        await row(page, 'hamburg').getByText('failing').waitFor();
        await row(page, 'hamburg').getByText('184k').waitFor();
        await row(page, 'zurich').getByText('not seen yet').waitFor();
        await row(page, 'lab').getByText('off', { exact: true }).waitFor();
        await page.getByRole('link', { name: 'munich' }).click();
        await heading(page, 'munich');
        const vienna = page.getByRole('region', { name: 'Takes messages of vienna' });
        await vienna.getByText('$linked/munich/vienna').waitFor();
        const own = page.getByRole('region', { name: 'Takes messages of munich' });
        await own.getByText('3 too large').waitFor();
        await own.getByText('1,207').first().waitFor();
        await page.getByRole('region', { name: 'Gives messages of berlin' }).getByText('412').waitFor();
        await page.goto(`${mock.base}/#/links/zurich`);
        await page.getByText('This link is in the configuration file').waitFor();
        await page.getByRole('status').getByText('refused the other side: the clock differs by 900 s').waitFor();
        for (const name of ['Turn off', 'Edit…', 'Delete…']) assert.equal(await page.getByRole('button', { name }).count(), 0, name);
        await page.goto(`${mock.base}/#/links/no-such-cluster`);
        await page.getByText('There is no such link').waitFor();
        await page.route(/\/api\/v1\/links\/external(\?|$)/, (route) => route.fulfill({ json: { items: [], next: null, missing: ['n2'] } }));
        await page.goto(`${mock.base}/#/links`);
        await page.getByText('There are no links to other clusters').waitFor();
        await page.getByText('No answer from n2').waitFor();
      }),
  ],
  [
    'a link to another cluster is added, changed, turned off and deleted',
    async (visitor) =>
      onMock(visitor, 'links', async (page) => {
        await heading(page, 'Cluster links');
        await page.getByRole('button', { name: 'Add…' }).click();
        const dialog = page.getByRole('dialog');
        await dialog.getByLabel('Name of the other cluster').fill('paris');
        await dialog.getByLabel('Secret file').fill('/etc/meridian/secrets/paris');
        await dialog.getByRole('group', { name: 'This cluster takes' }).getByLabel('Topic Filters').fill('plant/#');
        await dialog.getByRole('button', { name: 'Add', exact: true }).click();
        await dialog.getByRole('alert').getByText('the other cluster has no address').waitFor();
        assert.ok(await focused(dialog.getByLabel('Addresses of the other cluster')), 'the wrong field has the focus');
        await dialog.getByLabel('Addresses of the other cluster').fill('paris.example.com:8883');
        await dialog.getByRole('group', { name: 'The other cluster may take' }).getByLabel('Topic Filters').fill('');
        let sent = page.waitForRequest((request) => request.method() === 'PUT');
        await dialog.getByRole('button', { name: 'Add', exact: true }).click();
        assert.deepEqual((await sent).postDataJSON(), { address: 'paris.example.com:8883', secret_file: '/etc/meridian/secrets/paris', topics: 'plant/#', export: '' }, 'only settings that differ from the default');
        await toast(page, 'Link added');
        await heading(page, 'paris');
        await page.getByRole('button', { name: 'Turn off' }).click();
        await toast(page, 'The link is off');
        await page.getByRole('button', { name: 'Turn on' }).waitFor();
        await page.getByRole('button', { name: 'Edit…' }).click();
        await dialog.getByLabel('Maximum QoS').fill('1');
        sent = page.waitForRequest((request) => request.method() === 'PUT');
        await dialog.getByRole('button', { name: 'Save' }).click();
        const { qos, enabled } = (await sent).postDataJSON();
        assert.deepEqual({ qos, enabled }, { qos: 1, enabled: false }, 'a change does not turn it on');
        await toast(page, 'Link changed');
        sent = page.waitForRequest((request) => request.method() === 'DELETE');
        await page.getByRole('button', { name: 'Delete…' }).click();
        await dialog.getByLabel('Also end the sessions').check();
        await dialog.getByRole('button', { name: 'Delete' }).click();
        assert.match((await sent).url(), /links\/external\/paris\?messages=delete$/);
        await toast(page, 'Link and its messages deleted');
        await heading(page, 'Cluster links');
        await gone(row(page, 'paris'));
      }),
  ],
  [
    'a connector is added, tested, changed and deleted, and one of the configuration file is not',
    async (visitor) =>
      onMock(visitor, 'connectors', async (page) => {
        await heading(page, 'Connectors');
        await page.getByRole('button', { name: 'Test warehouse' }).click();
        await page.getByRole('status').getByText('connection refused').waitFor();
        await page.getByRole('button', { name: 'Delete warehouse' }).click();
        await page.getByText('Change or delete these actions first: readings.').waitFor();
        assert.equal(await page.getByRole('button', { name: 'Delete audit-log' }).count(), 0);
        await page.getByRole('button', { name: 'Show audit-log' }).click();
        const dialog = page.getByRole('dialog');
        await dialog.getByText('This connector is in the configuration file').waitFor();
        assert.ok(await dialog.getByLabel('Directory').isDisabled());
        await page.keyboard.press('Escape');
        await page.getByRole('button', { name: 'Add…' }).click();
        await dialog.getByLabel('Name', { exact: true }).fill('hook');
        assert.equal(await dialog.getByLabel('Database').count(), 0, 'HTTP has no database');
        await dialog.getByLabel('Kind').selectOption('kafka');
        assert.equal(await dialog.getByLabel('URL').count(), 0, 'Kafka has no URL');
        await dialog.getByLabel('Kind').selectOption('http');
        await dialog.getByLabel('URL').fill('hook.example.com');
        await dialog.getByRole('button', { name: 'Add', exact: true }).click();
        await dialog.getByRole('alert').getByText('"hook.example.com" is not a URL').waitFor();
        assert.ok(await focused(dialog.getByLabel('URL')), 'the wrong field has the focus');
        await dialog.getByLabel('URL').fill('https://hook.example.com');
        await dialog.getByRole('button', { name: 'Test connection' }).click();
        await dialog.getByRole('status').getByText('The server answered').waitFor();
        const sent = page.waitForRequest((request) => request.method() === 'PUT');
        await dialog.getByRole('button', { name: 'Add', exact: true }).click();
        assert.deepEqual((await sent).postDataJSON(), { kind: 'http', url: 'https://hook.example.com' }, 'only settings that differ from the default');
        await toast(page, 'Connector added');
        await page.getByRole('button', { name: 'Edit hook' }).click();
        await dialog.getByText('Limits').click();
        await dialog.getByLabel('Timeout').fill('3s');
        await dialog.getByRole('button', { name: 'Save' }).click();
        await toast(page, 'Connector changed');
        await page.getByRole('button', { name: 'Delete hook' }).click();
        await dialog.getByRole('button', { name: 'Delete' }).click();
        await toast(page, 'Connector deleted');
        await gone(row(page, 'hook'));
      }),
  ],
  [
    'an action is written, tested before it is saved, changed, turned off and deleted',
    async (visitor) =>
      onMock(visitor, 'actions', async (page, mock) => {
        await heading(page, 'Actions');
        await row(page, 'readings').getByText(/^retrying for/).waitFor();
        await row(page, 'to-kafka').getByText('off', { exact: true }).waitFor();
        await page.getByRole('link', { name: 'Add' }).click();
        await heading(page, 'Add an action');
        const rule = page.getByLabel('Rule', { exact: true });
        await rule.fill('SELECT clientid\nFROM rooms/+/temp');
        await rule.press('Control+Enter');
        await page.getByText('Error in the rule').waitFor();
        await page.locator('.line.wrong').filter({ hasText: 'rooms/+/temp' }).waitFor();
        assert.equal(await rule.getAttribute('aria-invalid'), 'true');
        await page.getByLabel('Insert an example').selectOption({ label: 'Values over a limit' });
        await page.getByRole('button', { name: 'Replace' }).click();
        await until('the example is in the editor', async () => (await rule.inputValue()).includes('WHERE payload.temp > 80'));
        await page.getByLabel('Write the outputs to').selectOption('warehouse');
        await page.getByLabel('Statement').fill('INSERT INTO hot (device, celsius) VALUES (${clientid}, ${celcius})');
        const panel = page.getByRole('tabpanel', { name: 'Test' });
        await panel.getByRole('button', { name: 'Test' }).click();
        await panel.getByText('Error in a template').waitFor();
        await panel.getByText('the output has no value "celcius"').waitFor();
        await page.getByLabel('Statement').fill('INSERT INTO hot (device, celsius) VALUES (${clientid}, ${celsius})');
        await panel.getByRole('button', { name: 'Test' }).click();
        await panel.getByText('matched', { exact: true }).waitFor();
        await panel.getByText('$2 celsius').waitFor();
        await panel.getByLabel('Payload').fill('{"temp": 21}');
        await panel.getByRole('button', { name: 'Test' }).click();
        await panel.getByText('not matched').waitFor();
        await panel.getByRole('button', { name: 'Next live message' }).click();
        await panel.getByRole('button', { name: 'Test', exact: true }).click();
        await panel.getByText('Waiting for a message').waitFor();
        await panel.getByText('matched', { exact: true }).waitFor();
        // What was entered survives a look at another page.
        await page.getByLabel('Name', { exact: true }).fill('hot devices');
        await page.goto(`${mock.base}/#/connectors`);
        await heading(page, 'Connectors');
        await page.goBack();
        await page.getByText('Your changes that were not saved are here again').waitFor();
        assert.match(await page.getByLabel('Statement').inputValue(), /INSERT INTO hot/);
        await page.getByRole('button', { name: 'Add action' }).click();
        await page.getByText('write letters, digits').waitFor();
        await page.getByLabel('Name', { exact: true }).fill('hot-devices');
        await page.getByText('Advanced: queue, batches, failures').click();
        await page.getByLabel('Longest pause').fill('soon');
        await page.getByRole('button', { name: 'Add action' }).click();
        await page.getByRole('alert').getByText('"soon" is not a duration').waitFor();
        await page.getByLabel('Longest pause').fill('1m');
        const sent = page.waitForRequest((request) => request.method() === 'PUT');
        await page.getByRole('button', { name: 'Add action' }).click();
        const { rule: text, ...others } = (await sent).postDataJSON();
        assert.match(text, /^SELECT clientid/);
        assert.deepEqual(others, { connector: 'warehouse', statement: 'INSERT INTO hot (device, celsius) VALUES (${clientid}, ${celsius})', retry_max: '1m' });
        await heading(page, 'hot-devices');
        await page.getByText('PostgreSQL: warehouse').waitFor();
        await page.getByRole('link', { name: 'Edit' }).click();
        await heading(page, 'Edit hot-devices');
        await page.getByLabel('Write the outputs to').selectOption('');
        await page.getByLabel('Topic', { exact: true }).first().fill('alerts/${clientid}');
        await page.getByRole('button', { name: 'Save' }).click();
        await toast(page, 'Action changed');
        await page.getByText('Republish', { exact: true }).waitFor();
        await page.getByRole('button', { name: 'Turn off' }).click();
        await page.getByRole('button', { name: 'Turn on' }).waitFor();
        await page.getByRole('button', { name: 'Delete…' }).click();
        await page.getByRole('dialog').getByLabel('Also delete the session with its messages').check();
        await page.getByRole('dialog').getByRole('button', { name: 'Delete' }).click();
        await toast(page, 'Action and its messages deleted');
        await heading(page, 'Actions');
        await gone(row(page, 'hot-devices'));
      }),
  ],
  [
    'a rule that is written here fills PostgreSQL, and shows how much waits while the database is away',
    async (visitor, { binary }) => {
      const database = await Postgres.start();
      const node = await Node.start(binary, '--set', 'actions.allow_loopback=true');
      let client;
      try {
        database.sql('CREATE TABLE hot (id uuid PRIMARY KEY, device text, celsius double precision)');
        const page = await visitor.open('connectors');
        await page.goto(`${node.base}/#/connectors`);
        await page.getByRole('button', { name: 'Add…' }).click();
        const dialog = page.getByRole('dialog');
        await dialog.getByLabel('Name', { exact: true }).fill('warehouse');
        await dialog.getByLabel('Kind').selectOption('postgresql');
        const fields = { Addresses: `127.0.0.1:${database.port}`, Database: 'postgres', 'User name': 'meridian', 'Password file': database.password };
        for (const [label, value] of Object.entries(fields)) await dialog.getByLabel(label, { exact: true }).fill(value);
        await dialog.getByRole('button', { name: 'Test connection' }).click();
        await dialog.getByRole('status').getByText('PostgreSQL').waitFor();
        await dialog.getByRole('button', { name: 'Add', exact: true }).click();
        await toast(page, 'Connector added');
        await page.goto(`${node.base}/#/actions/-/new`);
        await page.getByLabel('Name', { exact: true }).fill('hot');
        await page.getByLabel('Rule', { exact: true }).fill('SELECT payload.temp AS celsius, clientid\nFROM "rooms/+"\nWHERE payload.temp > 80');
        await page.getByLabel('Write the outputs to').selectOption('warehouse');
        await page.getByLabel('Statement').fill('INSERT INTO hot (id, device, celsius) VALUES (${meridian_id}, ${clientid}, ${celsius}) ON CONFLICT DO NOTHING');
        const panel = page.getByRole('tabpanel', { name: 'Test' });
        await panel.getByLabel('Payload').fill('{"temp": 81}');
        await panel.getByRole('button', { name: 'Test', exact: true }).click();
        await panel.getByText('matched', { exact: true }).waitFor();
        await page.getByText('Advanced: queue, batches, failures').click();
        await page.getByLabel('Longest pause').fill('500ms');
        await page.getByRole('button', { name: 'Add action' }).click();
        await heading(page, 'hot');
        await page.getByText('PostgreSQL: warehouse').waitFor();
        const running = page.locator('.badge').getByText('running', { exact: true });
        await running.waitFor();
        client = await Client.connect(node.port, 'boiler');
        const publish = async (first, end) => {
          for (let temp = first; temp < end; temp++) await client.publish('rooms/1', JSON.stringify({ temp }), { qos: 1 });
        };
        const rows = () => database.sql('SELECT count(*), min(celsius), max(celsius) FROM hot');
        await publish(70, 100);
        await until('rows are there', () => rows() === '19|81|99');
        await database.end();
        await publish(100, 140);
        await page.getByText(/^retrying for/).waitFor();
        await page.locator('dl div').filter({ hasText: /^In flight40$/ }).waitFor();
        await database.run();
        await until('all rows are there', () => rows() === '59|81|139');
        await running.waitFor();
        await page.locator('dl div').filter({ hasText: /^Last write\d+ ?s ago$/ }).waitFor();
      } finally {
        client?.leave();
        await node.close();
        await database.close();
      }
    },
    'real',
  ],
  [
    'a rule over events is tested with a sample of the event, and the reference inserts names',
    async (visitor) =>
      onMock(visitor, 'actions/-/new', async (page) => {
        const rule = page.getByLabel('Rule', { exact: true });
        const panel = page.getByRole('tabpanel', { name: 'Test' });
        await page.getByLabel('Insert an example').selectOption({ label: 'Alarms of the broker' });
        await until('the sample is one of an alarm', async () => (await panel.getByRole('combobox', { name: 'Event' }).inputValue().catch(() => '')) === '$events/sys/alarm');
        await panel.getByRole('button', { name: 'Test', exact: true }).click();
        await panel.getByText('matched', { exact: true }).waitFor();
        await panel.getByText('"severity": "error"').first().waitFor();
        await panel.getByLabel('Fields').fill('[1]');
        await panel.getByRole('button', { name: 'Test', exact: true }).click();
        await panel.getByText('write a JSON object').waitFor();
        await page.getByRole('tab', { name: 'Reference' }).click();
        await page.getByLabel('Search fields and functions').fill('base64');
        await rule.fill('SELECT ');
        await page.getByRole('button', { name: 'base64_encode(x)' }).click();
        assert.equal(await rule.inputValue(), 'SELECT base64_encode(x)');
      }),
  ],
  [
    'a viewer sees bridges, cluster links, connectors and actions, and no button that changes them',
    async (visitor) =>
      onMock(
        visitor,
        'actions',
        async (page, mock) => {
          await page.getByRole('link', { name: 'readings' }).click();
          await heading(page, 'readings');
          await page.getByText('INSERT INTO readings').waitFor();
          for (const name of ['Turn off', 'Delete…', 'Edit', 'Copy']) assert.equal(await page.getByText(name, { exact: true }).count(), 0, name);
          await page.goto(`${mock.base}/#/actions/readings/edit`);
          await page.getByText('Changing actions needs the role admin').waitFor();
          await page.goto(`${mock.base}/#/links/munich`);
          await heading(page, 'munich');
          await page.getByText('$link/munich').waitFor();
          for (const name of ['Turn off', 'Delete…', 'Edit…']) assert.equal(await page.getByText(name, { exact: true }).count(), 0, name);
          for (const [one, text] of [['plant-7', '$bridge/plant-7'], ['gone-site', 'not configured any more']]) {
            await page.goto(`${mock.base}/#/bridges/${one}`);
            await page.getByText(text).waitFor();
            for (const name of ['Turn off', 'Delete…', 'Edit…', 'End session…']) assert.equal(await page.getByText(name, { exact: true }).count(), 0, name);
          }
          for (const [hash, title] of [['bridges', 'Bridges'], ['links', 'Cluster links'], ['connectors', 'Connectors']]) {
            await page.goto(`${mock.base}/#/${hash}`);
            await heading(page, title);
            assert.equal(await page.getByText('Add…').count(), 0, hash);
          }
          await page.goto(`${mock.base}/#/connectors`);
          await page.getByRole('button', { name: 'Show warehouse' }).click();
          assert.ok(await page.getByRole('dialog').getByLabel('Database').isDisabled());
          for (const name of ['Save', 'Test connection']) assert.equal(await page.getByRole('button', { name }).count(), 0, name);
        },
        '--role',
        'viewer',
      ),
  ],
  [
    'the pages of one bridge, link and action and the editor fit 360 pixels and break no rule of accessibility',
    async (visitor) =>
      onMock(visitor, 'overview', async (first, mock) => {
        const axe = await read('dashboard/node_modules/axe-core/axe.min.js');
        await first.close();
        await atOnce(['light', 'dark'], async (colorScheme) => {
          const page = await visitor.open('overview', { colorScheme, reducedMotion: 'reduce', viewport: { width: 360, height: 740 } });
          for (const [hash, title] of [['bridges/plant-7', 'plant-7'], ['bridges/gone-site', 'gone-site'], ['bridges', 'Bridges'], ['links/munich', 'munich'], ['actions/to-collector', 'to-collector'], ['actions/readings/edit', 'Edit readings'], ['actions/-/new', 'Add an action'], ['connectors', 'Connectors']]) {
            await page.goto(`${mock.base}/#/${hash}`);
            await heading(page, title);
            await gone(page.getByText('Loading…').first());
            if (hash === 'connectors') await page.getByRole('button', { name: 'Edit warehouse' }).click();
            if (hash === 'bridges') {
              await page.getByRole('button', { name: 'Add…' }).click();
              for (const group of await page.getByRole('dialog').locator('summary').all()) await group.click();
            }
            if (hash === 'actions/readings/edit') {
              await page.getByRole('tabpanel', { name: 'Test' }).getByRole('button', { name: 'Test', exact: true }).click();
              await page.getByText('matched', { exact: true }).waitFor();
            }
            if (hash === 'actions/-/new') await page.getByRole('tab', { name: 'Reference' }).click();
            assert.equal(await wide(page), 0, `${hash} is wider than 360 pixels`);
            await page.evaluate(axe);
            const { violations } = await page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] }));
            assert.deepEqual(violations.map((one) => `${hash} ${colorScheme}: ${one.id}: ${one.help}: ${one.nodes.slice(0, 3).map((at) => `${at.target} ${at.any[0]?.message ?? ''}`).join(' | ')}`), []);
          }
        });
      }),
  ],
  [
    'every page opens, fits, and logs no errors',
    async (visitor) => {
      const page = await visitor.open('overview');
      for (const [id, title] of PAGES) {
        await ready(page, visitor.base, [id, title]);
        assert.ok((await page.title()).startsWith(title), 'the title names the page');
        assert.equal(await wide(page), 0, `${id} is wider than the window`);
      }
      await page.goto(`${visitor.base}/#/no-such-page`);
      await heading(page, 'No such page');
    },
  ],
  [
    'the page is served with a policy that allows only its own files',
    async (visitor) => {
      const response = await fetch(`${visitor.base}/`);
      const policy = response.headers.get('content-security-policy') ?? '';
      assert.match(policy, /default-src 'self'/);
      assert.doesNotMatch(policy, /unsafe/);
      const html = await response.text();
      assert.doesNotMatch(html, /<style|style=|<script>|https?:/);
      const script = /src="(\/assets\/[^"]+)"/.exec(html)[1];
      assert.equal((await fetch(visitor.base + script)).status, 200);
    },
  ],
  [
    'a client is found among many, shown, and disconnected',
    async (visitor, node) => {
      const others = await Promise.all(Array.from({ length: 30 }, (_, i) => Client.connect(node.port, `lamp-${i}`)));
      const client = await Client.connect(node.port, 'kitchen/sensor 1');
      await client.subscribe('home/kitchen/#', 1);
      const page = await visitor.open('clients');
      await page.getByRole('searchbox', { name: 'Search client identifiers' }).fill('kitchen/');
      const link = page.getByRole('link', { name: 'kitchen/sensor 1' });
      await link.waitFor();
      await gone(page.getByRole('link', { name: 'lamp-3', exact: true }));
      assert.match(page.url(), /search=kitchen/);
      await link.click();
      await heading(page, 'kitchen/sensor 1');
      await page.getByRole('table', { name: 'Subscriptions of this client' }).getByText('home/kitchen/#').waitFor();
      await page.getByText('Receive Maximum').waitFor();
      await page.getByRole('button', { name: 'Disconnect…' }).click();
      const dialog = page.getByRole('dialog');
      await dialog.getByRole('button', { name: 'Cancel' }).click();
      assert.equal(client.closed, false, 'nothing happens before the answer');
      await page.getByRole('button', { name: 'Disconnect…' }).click();
      await dialog.getByRole('button', { name: 'Disconnect' }).click();
      await toast(page, 'Disconnected');
      await until('the connection is closed', () => client.closed);
      for (const one of others) one.leave();
    },
    'real',
  ],
  [
    'filters of the client list are sent to the node',
    async (visitor, node) => {
      const away = await Client.connect(node.port, 'away-1', { expirySeconds: 600 });
      away.leave();
      const here = await Client.connect(node.port, 'here-1');
      const page = await visitor.open('clients');
      await page.getByRole('link', { name: 'here-1' }).waitFor();
      await until('the other is away', async () => {
        await page.getByRole('button', { name: 'Refresh' }).click();
        return (await row(page, 'away-1').getByText('offline').count()) > 0;
      });
      await page.getByLabel('State').selectOption('false');
      await gone(page.getByRole('link', { name: 'here-1' }));
      await page.getByRole('link', { name: 'away-1' }).waitFor();
      await page.getByRole('button', { name: 'Clear filters' }).click();
      await page.getByLabel('MQTT version').selectOption('3.1');
      await page.getByText('No client matches.').waitFor();
      await page.getByLabel('MQTT version').selectOption('');
      await page.getByLabel('Address', { exact: true }).fill('127.0.0.0/8');
      await page.getByRole('link', { name: 'here-1' }).waitFor();
      await page.getByLabel('Address', { exact: true }).fill('not an address');
      await page.getByRole('status').getByRole('button', { name: 'Close the message' }).first().waitFor();
      here.leave();
    },
    'real',
  ],
  [
    'a list of a thousand clients is read in portions',
    async (visitor, node) => {
      const many = [];
      for (let i = 0; i < 1100; i += 50) many.push(...(await Promise.all(Array.from({ length: 50 }, (_, n) => Client.connect(node.port, `many-${i + n}`)))));
      const page = await visitor.open('clients?search=many-');
      const rows = page.getByRole('table', { name: 'Clients' }).getByRole('row');
      await page.getByText('100 clients so far').waitFor();
      for (let more = 200; more <= 1100; more += 100) {
        await page.getByRole('button', { name: 'Load more' }).click();
        await page.getByText(new RegExp(`^${more.toLocaleString('en-US')} clients`)).waitFor();
      }
      assert.equal(await rows.count(), 1101);
      assert.equal(new Set(await rows.locator('a').allTextContents()).size, 1100, 'no client is listed twice');
      for (const one of many) one.leave();
    },
    'real',
  ],
  [
    'a subscription is added and removed for a client',
    async (visitor, node) => {
      const client = await Client.connect(node.port, 'quiet');
      const page = await visitor.open('clients/quiet');
      await page.getByRole('button', { name: 'Add subscription' }).click();
      await page.getByLabel('Topic Filter').fill('news/+');
      await page.getByRole('dialog').getByLabel('QoS').selectOption('1');
      await page.getByRole('dialog').getByRole('button', { name: 'Subscribe' }).click();
      await toast(page, 'Subscribed: granted QoS 1');
      await page.getByRole('table', { name: 'Subscriptions of this client' }).getByText('news/+').waitFor();
      await page.goto(`${visitor.base}/#/subscriptions?view=receivers&topic=news/today`);
      await page.getByRole('table', { name: 'Receivers' }).getByRole('link', { name: 'quiet' }).waitFor();
      await page.goto(`${visitor.base}/#/clients/quiet`);
      await page.getByRole('button', { name: 'Unsubscribe from news/+' }).click();
      await page.getByRole('dialog').getByRole('button', { name: 'Unsubscribe' }).click();
      await toast(page, 'Unsubscribed');
      await page.getByText('No subscriptions.').waitFor();
      client.leave();
    },
    'real',
  ],
  [
    'subscriptions are found by filter, topic, client and share',
    async (visitor, node) => {
      const client = await Client.connect(node.port, 'finder');
      await client.subscribe('find/+/me', 0);
      await client.subscribe('$share/group/find/#', 1);
      const another = await Client.connect(node.port, 'another');
      await another.subscribe('of/another', 0);
      const page = await visitor.open('subscriptions');
      const table = page.getByRole('table', { name: 'Subscriptions' });
      const box = page.getByRole('searchbox');
      for (const [tab, text, found, not] of [
        ['By filter', 'find/+/me', 'find/+/me', '$share/group/find/#'],
        ['Matching a topic', 'find/x/you', '$share/group/find/#', 'find/+/me'],
        ['By client', 'finder', 'find/+/me', 'of/another'],
        ['By share name', 'group', '$share/group/find/#', 'find/+/me'],
      ]) {
        await page.getByRole('tab', { name: tab }).click();
        await box.fill(text);
        await table.getByText(found, { exact: true }).waitFor();
        await gone(table.getByText(not, { exact: true }));
      }
      client.leave();
      another.leave();
    },
    'real',
  ],
  [
    'queued messages of a client are shown with their payload',
    async (visitor, node) => {
      const away = await Client.connect(node.port, 'queue-owner', { expirySeconds: 600 });
      await away.subscribe('wait/#', 1);
      away.leave();
      const sender = await Client.connect(node.port, 'queue-filler');
      await sender.publish('wait/1', '{"n":1}', { qos: 1 });
      await sender.publish('wait/2', hostile, { qos: 1 });
      const page = await visitor.open('clients/queue-owner');
      await page.getByRole('button', { name: 'Payload of wait/1' }).click();
      await page.getByLabel('Payload', { exact: true }).getByText('"n": 1').waitFor();
      await page.keyboard.press('Escape');
      await gone(page.getByRole('dialog'));
      await page.getByRole('button', { name: 'End session…' }).click();
      await page.getByRole('dialog').getByRole('button', { name: 'End session' }).click();
      await toast(page, 'Session ended');
      await heading(page, 'Clients');
      sender.leave();
    },
    'real',
  ],
  [
    'a retained message is published, read as text, JSON and hex, and deleted',
    async (visitor) => {
      const page = await visitor.open('retained');
      await page.getByRole('button', { name: 'Publish…' }).click();
      const dialog = page.getByRole('dialog');
      await dialog.getByLabel('Topic', { exact: true }).fill('try/retained');
      await dialog.getByLabel('Payload', { exact: true }).fill('{"answer":42}');
      await dialog.getByRole('button', { name: 'Publish' }).click();
      await toast(page, 'Published');
      await page.getByRole('searchbox').fill('try/#');
      await page.getByRole('button', { name: 'View try/retained' }).click();
      const payload = page.getByLabel('Payload', { exact: true });
      await payload.getByText('"answer": 42').waitFor();
      await dialog.getByRole('button', { name: 'Text' }).click();
      await payload.getByText('{"answer":42}').waitFor();
      await dialog.getByRole('button', { name: 'Hex' }).click();
      await payload.getByText('7b 22 61 6e').waitFor();
      await dialog.getByRole('button', { name: 'Delete…' }).click();
      await page.getByRole('dialog').filter({ hasText: 'Delete the retained message?' }).getByRole('button', { name: 'Delete' }).click();
      await toast(page, '1 deleted');
      await page.getByText('No retained messages.').waitFor();
    },
  ],
  [
    'data from clients is shown as text, never as markup',
    async (visitor, node) => {
      const client = await Client.connect(node.port, hostile);
      await client.subscribe(`markup/${hostile}`);
      await client.publish(`markup/${hostile}`, hostile, { qos: 1, retain: true });
      const page = await visitor.open('clients');
      await page.getByRole('searchbox').fill('onerror');
      await page.getByRole('link', { name: hostile }).click();
      await heading(page, hostile);
      await page.getByRole('table', { name: 'Subscriptions of this client' }).getByText(`markup/${hostile}`).waitFor();
      await page.goto(`${visitor.base}/#/retained?filter=markup/%23`);
      await page.getByRole('button', { name: `View markup/${hostile}` }).click();
      await page.getByLabel('Payload', { exact: true }).getByText(hostile).waitFor();
      assert.equal(await page.evaluate(() => window.hacked), undefined);
      assert.equal(await page.locator('img[src=x]').count(), 0);
      client.leave();
    },
    'real',
  ],
  [
    'the test client publishes, and sees what is published',
    async (visitor, node) => {
      const page = await visitor.open('test');
      await page.getByLabel('Topic Filter').fill('try/#');
      await page.getByRole('button', { name: 'Listen' }).click();
      await page.getByText('listening', { exact: true }).waitFor();
      await page.getByLabel('Topic', { exact: true }).fill('try/from-the-page');
      await page.getByLabel('Payload', { exact: true }).fill('good morning');
      await page.getByRole('button', { name: 'Publish', exact: true }).click();
      await toast(page, 'Published');
      const list = page.getByRole('listbox', { name: 'Messages' });
      await list.getByText('good morning').waitFor();
      if (node.real) {
        await run(node.binary, ['pub', '-p', String(node.port), '-t', 'try/from-a-client', '-m', '{"lux": 7}', '-q', '1']);
        await list.getByText('try/from-a-client').click();
        await page.getByLabel('Payload', { exact: true }).and(page.locator('pre')).getByText('"lux": 7').waitFor();
      }
      await page.getByRole('button', { name: 'Hex' }).first().click();
      await page.getByLabel('Payload', { exact: true }).and(page.locator('textarea')).fill('not hex');
      await page.getByText('Pairs of hexadecimal digits').waitFor();
      assert.equal(await page.getByRole('button', { name: 'Publish', exact: true }).isDisabled(), true);
      await page.getByRole('button', { name: 'Stop' }).click();
      await page.getByRole('button', { name: 'Listen' }).waitFor();
    },
  ],
  [
    'a message published with properties reaches a subscriber',
    async (visitor, node) => {
      const client = await Client.connect(node.port, 'reader');
      await client.subscribe('props/#', 1);
      const page = await visitor.open('test');
      await page.getByLabel('Topic', { exact: true }).fill('props/1');
      await page.getByLabel('Payload', { exact: true }).fill('with properties');
      await page.getByLabel('QoS').selectOption('1');
      await page.getByRole('button', { name: 'Properties' }).click();
      await page.getByLabel('Content Type').fill('text/plain');
      await page.getByLabel('Expires after, seconds').fill('60');
      await page.getByRole('button', { name: 'Add' }).click();
      await page.getByLabel('Name 1').fill('unit');
      await page.getByLabel('Value 1').fill('°C');
      await page.getByRole('button', { name: 'Publish', exact: true }).click();
      await until('it arrives', () => client.received.some((one) => one.topic === 'props/1' && one.payload === 'with properties'));
      await page.getByLabel('Topic', { exact: true }).fill('props/#');
      await page.getByRole('button', { name: 'Publish', exact: true }).click();
      await page.locator('.toast.bad').waitFor();
      client.leave();
    },
    'real',
  ],
  [
    'a Topic Filter is counted until it is removed',
    async (visitor, node) => {
      const page = await visitor.open('topics');
      await page.getByLabel('Topic Filter').fill('count/#');
      await page.getByRole('button', { name: 'Count', exact: true }).click();
      await row(page, 'count/#').waitFor();
      if (node.real) {
        const client = await Client.connect(node.port, 'counter');
        for (let i = 0; i < 5; i++) await client.publish('count/me', 'x', { qos: 1 });
        await until('five are counted', async () => {
          await page.getByRole('button', { name: 'Refresh' }).click();
          return (await row(page, 'count/#').getByRole('cell').nth(1).textContent()) === '5';
        });
        client.leave();
      }
      await page.getByLabel('Topic Filter').fill('count/#');
      await page.getByRole('button', { name: 'Count', exact: true }).click();
      await page.locator('.toast.bad').waitFor();
      await page.getByRole('button', { name: 'Stop counting count/#' }).click();
      await page.getByRole('dialog').getByRole('button', { name: 'Stop counting' }).click();
      await gone(row(page, 'count/#'));
    },
  ],
  [
    'the first user is added after a warning, and anonymous clients can stay allowed',
    async (visitor, node) => {
      const page = await visitor.open('users');
      let first = true;
      await page.route(/\/api\/v1\/node(\?|$)/, async (route) => {
        const answer = await route.fetch();
        await route.fulfill({ response: answer, json: { ...(await answer.json()), open_until_first_user: first, connections: 42 } });
      });
      const sent = [];
      for (const path of ['config', 'users']) {
        await page.route(new RegExp(`/api/v1/${path}$`), (route) => {
          if (route.request().method() === 'GET') return route.fallback();
          sent.push(`${route.request().method()} ${path} ${JSON.stringify(route.request().postDataJSON().changes ?? {})}`);
          return route.fulfill({ json: {} });
        });
      }
      const dialog = page.getByRole('dialog');
      const add = async () => {
        await dialog.getByLabel('Name', { exact: true }).fill('meter-1');
        await dialog.getByRole('button', { name: 'Add', exact: true }).click();
        await toast(page, 'User added');
        await gone(dialog);
        return sent.splice(0);
      };
      await page.getByRole('button', { name: 'Add…' }).click();
      await dialog.getByText('42 are connected now').waitFor();
      assert.deepEqual(await add(), ['POST users {}']);
      await page.getByRole('button', { name: 'Add…' }).click();
      await dialog.getByLabel('Continue to accept clients').check();
      assert.deepEqual(await add(), ['PATCH config {"auth.allow_anonymous":"true"}', 'POST users {}']);
      first = false;
      await page.getByRole('button', { name: 'Add…' }).click();
      await dialog.getByLabel('Name', { exact: true }).fill('meter-1');
      assert.equal(await dialog.getByText('This is the first user').count(), 0);
      if (!node.real) return;
      const answer = await (await fetch(`${visitor.base}/api/v1/node`)).json();
      assert.equal(answer.open_until_first_user, true, 'the node reports that no login is required');
    },
  ],
  [
    'a user is added, found, changed, given another password, imported, and deleted',
    async (visitor, node) => {
      const page = await visitor.open('users');
      const dialog = page.getByRole('dialog');
      const connect = (password) => Client.connect(node.port, 'a-meter', { username: 'meter-7', password });
      await page.getByRole('button', { name: 'Add…' }).click();
      await dialog.getByLabel('Name', { exact: true }).fill('meter-7');
      await dialog.getByLabel('Password', { exact: true }).fill('first');
      await dialog.getByLabel('Description').fill('behind the stairs');
      await dialog.getByLabel(/^Access rules of this user/).fill('allow nothing at all');
      await dialog.getByRole('button', { name: 'Add', exact: true }).click();
      if (node.real) {
        await dialog.getByRole('alert').waitFor();
        await dialog.getByLabel(/^Access rules of this user/).fill('allow everyone publish meters/#');
        await dialog.getByRole('button', { name: 'Add', exact: true }).click();
      }
      await toast(page, 'User added');
      await row(page, 'meter-7').getByText('enabled').waitFor();
      if (node.real) assert.equal((await (await fetch(`${visitor.base}/api/v1/node`)).json()).open_until_first_user, false);
      const client = node.real ? await connect('first') : null;
      if (node.real) await assert.rejects(connect('second'));

      await page.getByRole('button', { name: 'Edit meter-7' }).click();
      await dialog.getByLabel('Superuser: may do everything').check();
      await dialog.getByLabel('Tenant').fill('north');
      await dialog.getByLabel(/^Attributes for rules/).fill('site');
      await dialog.getByRole('button', { name: 'Save' }).click();
      await dialog.getByRole('alert').getByText('name=value').waitFor();
      await dialog.getByLabel(/^Attributes for rules/).fill('site=north');
      await dialog.getByLabel('Publish limits').check();
      await dialog.getByLabel(/^Messages per second/).fill('20');
      await dialog.getByRole('button', { name: 'Save' }).click();
      await toast(page, 'User changed');
      await row(page, 'meter-7').getByText('superuser').waitFor();
      await row(page, 'meter-7').getByText('north').waitFor();
      if (node.real) {
        await until('its connection is closed', () => client.closed);
        const user = await (await fetch(`${visitor.base}/api/v1/users/meter-7`)).json();
        assert.deepEqual(user.attributes, { site: 'north' });
        assert.equal(user.rates.messages_per_second, 20);
        assert.deepEqual(user.rules, ['allow everyone publish meters/#']);
        assert.equal(user.description, 'behind the stairs');
      }

      await page.getByRole('button', { name: 'Set the password of meter-7' }).click();
      await dialog.getByLabel('New password').fill('second');
      await dialog.getByRole('button', { name: 'Set the password' }).click();
      await toast(page, 'Password set');
      if (node.real) {
        await assert.rejects(connect('first'));
        (await connect('second')).leave();
      }

      await page.getByRole('button', { name: 'Import…' }).click();
      await dialog.getByLabel(/^Users: comma-separated/).fill('name,password,tenant\nmeter-7,third,south\nmeter-8,fourth,south');
      await dialog.getByRole('button', { name: 'Import', exact: true }).click();
      await dialog.getByRole('alert').waitFor();
      await dialog.getByLabel('Users that exist already').selectOption('keep');
      await dialog.getByRole('button', { name: 'Import', exact: true }).click();
      await toast(page, '1 added, 0 replaced, 1 unchanged');
      await row(page, 'meter-8').waitFor();
      await page.getByRole('searchbox', { name: 'Search users' }).fill('south');
      await gone(row(page, 'meter-7'));
      assert.match(page.url(), /search=south/);
      await page.getByRole('searchbox', { name: 'Search users' }).fill('');
      for (const name of ['meter-7', 'meter-8']) {
        await page.getByRole('button', { name: `Delete ${name}` }).click();
        await dialog.getByRole('button', { name: 'Delete', exact: true }).click();
        await gone(row(page, name));
      }
    },
  ],
  [
    'access rules are added at a position, moved, turned off, deleted and tested',
    async (visitor, node) => {
      const page = await visitor.open('rules');
      const dialog = page.getByRole('dialog');
      const order = () => page.getByRole('table', { name: 'Access rules' }).locator('.cell.mono').allTextContents();
      const ordered = (...rules) => until(`the order is ${rules}`, async () => JSON.stringify(await order()) === JSON.stringify(rules));
      const [allow, deny, sys] = ['allow everyone all lab/#', 'deny everyone publish lab/secret/#', 'allow user ops subscribe $SYS/#'];
      const add = async (rule, position) => {
        await page.getByRole('button', { name: 'Add…' }).click();
        await dialog.locator('input[name=rule]').fill(rule);
        if (position) await dialog.getByLabel('Position, from 1').fill(String(position));
        await dialog.getByRole('button', { name: 'Add', exact: true }).click();
      };
      await add('allow everyone everything');
      if (node.real) await dialog.getByRole('alert').waitFor();
      await page.keyboard.press('Escape');
      if (!node.real) return;
      await add(allow);
      await ordered(allow);
      await add(sys);
      await ordered(allow, sys);
      await add(deny, 2);
      await ordered(allow, deny, sys);

      const ask = async (topic) => {
        await page.getByRole('tab', { name: 'Test access' }).click();
        await page.getByLabel('Client Identifier').fill('probe-1');
        await page.getByLabel('Topic Name').fill(topic);
        await page.getByRole('button', { name: 'Test', exact: true }).click();
      };
      await ask('lab/secret/door');
      const answer = page.locator('.answer');
      await answer.getByText('allowed', { exact: true }).waitFor();
      await answer.getByText(allow, { exact: false }).waitFor();
      await row(page, 'database').getByText('allow', { exact: true }).waitFor();

      await page.getByRole('tab', { name: 'Rules', exact: true }).click();
      await page.getByRole('button', { name: 'Move rule 2 up' }).click();
      await ordered(deny, allow, sys);
      await ask('lab/secret/door');
      await answer.getByText('denied', { exact: true }).waitFor();
      await page.getByRole('tab', { name: 'Rules', exact: true }).click();
      await page.getByRole('button', { name: 'Turn rule 1 off' }).click();
      await row(page, deny).getByText('off', { exact: true }).waitFor();
      await ask('lab/secret/door');
      await answer.getByText('allowed', { exact: true }).waitFor();

      await page.getByRole('tab', { name: 'Rules', exact: true }).click();
      await page.getByRole('button', { name: 'Edit rule 3' }).click();
      await dialog.getByLabel('Description').fill('for the panel in the hall');
      await dialog.getByLabel('Position, from 1').fill('1');
      await dialog.getByRole('button', { name: 'Save' }).click();
      await ordered(sys, deny, allow);
      await row(page, sys).getByText('for the panel in the hall').waitFor();
      for (const left of [[deny, allow], [allow], []]) {
        await page.getByRole('button', { name: 'Delete rule 1' }).click();
        await dialog.getByRole('button', { name: 'Delete', exact: true }).click();
        await ordered(...left);
      }
    },
  ],
  [
    'a ban disconnects clients and refuses them until it is lifted',
    async (visitor, node) => {
      const client = node.real ? await Client.connect(node.port, 'rogue-1') : null;
      const page = await visitor.open('bans');
      await page.getByRole('button', { name: 'Ban…' }).click();
      const dialog = page.getByRole('dialog');
      await dialog.getByLabel('Value').fill('rogue-1*');
      await dialog.getByLabel('Reason').fill('floods a topic');
      await dialog.getByRole('button', { name: 'Ban', exact: true }).click();
      await toast(page, 'Banned');
      await row(page, 'rogue-1*').getByText('floods a topic').waitFor();
      if (node.real) {
        await until('the client is disconnected', () => client.closed);
        await assert.rejects(Client.connect(node.port, 'rogue-1b'));
      }
      await page.getByRole('button', { name: 'Lift the ban of rogue-1*' }).click();
      await dialog.getByRole('button', { name: 'Lift' }).click();
      await toast(page, 'Ban lifted');
      await gone(row(page, 'rogue-1*'));
      if (node.real) (await Client.connect(node.port, 'rogue-1b')).leave();
      await page.getByRole('button', { name: 'Ban…' }).click();
      await dialog.getByLabel('Kind').selectOption('address');
      await dialog.getByLabel('Value').fill('nowhere at all');
      await dialog.getByRole('button', { name: 'Ban', exact: true }).click();
      if (node.real) await page.locator('.toast.bad').waitFor();
    },
  ],
  [
    'a trace shows packets, pauses, and can be downloaded',
    async (visitor, node) => {
      const client = node.real ? await Client.connect(node.port, 'traced') : null;
      const page = await visitor.open('trace?client_id=traced');
      await page.getByLabel('Payloads').selectOption('256');
      await page.getByRole('button', { name: 'Start' }).click();
      await page.getByText('running', { exact: true }).waitFor();
      await client?.publish('traced/1', '{"seen":true}', { qos: 1 });
      const list = page.getByRole('listbox', { name: 'Trace' });
      await list.getByText('publish in').first().click();
      await page.getByText('Packet Identifier', { exact: true }).waitFor();
      await page.getByLabel('Payload', { exact: true }).waitFor();
      await page.getByRole('button', { name: 'Pause' }).click();
      const held = await list.getByRole('option').count();
      await client?.publish('traced/2', 'unseen', { qos: 1 });
      await page.getByText(/paused: [1-9]/).waitFor();
      assert.equal(await list.getByRole('option').count(), held, 'a pause keeps the list as it is');
      const download = page.waitForEvent('download');
      await page.getByRole('button', { name: 'Download' }).click();
      const lines = (await readFile(await (await download).path(), 'utf8')).trim().split('\n').map((line) => JSON.parse(line));
      assert.ok(lines.some((line) => line.kind === 'publish_in'));
      await page.getByRole('button', { name: 'Resume' }).click();
      await gone(page.getByText(/paused: /));
      await page.getByRole('button', { name: 'Stop' }).click();
      await page.getByRole('button', { name: 'Start' }).waitFor();
      client?.leave();
    },
  ],
  [
    'the log is shown and its level changed for a time',
    async (visitor) => {
      const page = await visitor.open('log');
      await page.getByText('live', { exact: true }).waitFor();
      await page.getByRole('listbox', { name: 'Log' }).getByRole('option').first().click();
      await page.getByText('Module', { exact: true }).waitFor();
      await page.getByRole('button', { name: 'Change level…' }).click();
      const dialog = page.getByRole('dialog');
      await dialog.getByLabel('Level').selectOption('debug');
      await dialog.getByLabel('For how long').selectOption('60');
      await dialog.getByRole('button', { name: 'Change' }).click();
      await toast(page, 'The log level is debug now');
      await page.getByText(/debug, ends in/).waitFor();
      await page.getByRole('searchbox').fill('no line says this, surely');
      await page.getByText('No line matches.').waitFor();
    },
  ],
  [
    'a setting is checked, changed, found in the history, and rolled back',
    async (visitor) => {
      const page = await visitor.open('configuration');
      await page.getByRole('searchbox').fill('mqtt.inflight_max');
      const setting = page.locator('[data-setting="mqtt.inflight_max"]');
      await setting.waitFor();
      const before = (await setting.locator('.value .mono').textContent()).trim();
      const edit = async (value) => {
        await setting.getByRole('button', { name: 'Edit mqtt.inflight_max' }).click();
        await setting.getByRole('textbox').fill(value);
        await setting.getByRole('button', { name: 'Check' }).click();
      };
      await edit('many');
      await setting.getByRole('alert').waitFor();
      await edit('17');
      await gone(setting.getByRole('alert'));
      await page.getByRole('button', { name: 'Review and apply…' }).click();
      const dialog = page.getByRole('dialog');
      await dialog.getByText(before, { exact: false }).first().waitFor();
      await dialog.getByLabel('Comment').fill('smaller windows');
      await dialog.getByRole('button', { name: 'Apply' }).click();
      await toast(page, '1 setting changed');
      await setting.getByText('17', { exact: true }).waitFor();
      await setting.getByText('runtime').waitFor();
      await page.getByRole('tab', { name: 'History' }).click();
      const versions = page.locator('.versions > li');
      await versions.filter({ hasText: 'smaller windows' }).waitFor();
      await versions.nth(1).getByRole('button', { name: /Roll back to/ }).click();
      await dialog.getByText('mqtt.inflight_max').waitFor();
      await dialog.getByRole('button', { name: 'Roll back' }).click();
      await toast(page, '1 setting changed');
      await page.getByRole('tab', { name: 'Settings' }).click();
      await setting.getByText(before, { exact: true }).waitFor();
      await page.getByRole('searchbox').fill('edge.workers');
      assert.equal(await page.getByRole('button', { name: 'Edit edge.workers' }).isDisabled(), true, 'a setting that needs a restart is not edited here');
    },
  ],
  [
    'a setting is changed for all nodes, shown as such, and reset',
    async (visitor) => {
      const page = await visitor.open('configuration');
      const scope = page.getByLabel('Scope of changes');
      await scope.selectOption('cluster');
      await page.getByRole('searchbox').fill('mqtt.inflight_max');
      const setting = page.locator('[data-setting="mqtt.inflight_max"]');
      const edit = () => setting.getByRole('button', { name: 'Edit mqtt.inflight_max' }).click();
      const apply = async () => {
        assert.equal(await scope.isDisabled(), true, 'the scope is fixed while there are drafts');
        await page.getByRole('button', { name: 'Review and apply…' }).click();
        const dialog = page.getByRole('dialog', { name: 'Change the configuration of all nodes' });
        await dialog.getByRole('button', { name: 'Apply' }).click();
        await toast(page, '1 setting changed');
      };
      await edit();
      await setting.getByRole('textbox').fill('19');
      await setting.getByRole('button', { name: 'Check' }).click();
      await apply();
      await setting.getByText('19', { exact: true }).waitFor();
      await setting.getByText('cluster', { exact: true }).waitFor();
      await edit();
      await setting.getByRole('button', { name: 'Reset' }).click();
      await apply();
      await gone(setting.getByText('19', { exact: true }));
    },
  ],
  [
    'the configuration is reloaded on request',
    async (visitor) => {
      const page = await visitor.open('configuration');
      await page.getByRole('button', { name: 'Reload file…' }).click();
      await page.getByRole('dialog').getByRole('button', { name: 'Reload' }).click();
      await toast(page, 'No setting changed');
    },
  ],
  [
    'the API is browsed and tried from its own document',
    async (visitor) => {
      const page = await visitor.open('api');
      await page.getByRole('searchbox').fill('whoami');
      await page.getByRole('button', { name: /GET \/api\/v1\/whoami/ }).click();
      await page.getByRole('button', { name: 'Try it' }).click();
      await page.getByRole('button', { name: 'Send' }).click();
      await page.getByLabel('Response', { exact: true }).getByText('"role": "admin"').waitFor();
      await page.getByRole('searchbox').fill('/api/v1/publish');
      await page.getByRole('button', { name: /^POST \/api\/v1\/publish( |$)/ }).first().click();
      await page.getByText('topic', { exact: true }).first().waitFor();
      await page.getByRole('button', { name: 'Try it' }).click();
      await page.getByLabel('Body, JSON').fill('{"topic": "try/api", "payload": "x"}');
      await page.getByRole('button', { name: 'Send' }).click();
      await page.getByRole('dialog').getByRole('button', { name: 'Send' }).click();
      await page.getByLabel('Response', { exact: true }).getByText('reason_code').waitFor();
    },
  ],
  [
    'a wrong input shows the error of the node',
    async (visitor) => {
      const page = await visitor.open('subscriptions?view=receivers&text=a/%23');
      await page.locator('.toast.bad').waitFor();
      const text = await page.locator('.toast.bad').textContent();
      assert.ok(text.length > 20, `says what is wrong: ${text}`);
    },
  ],
  [
    'everything can be done from the keyboard',
    async (visitor) => {
      const page = await visitor.open('overview');
      await heading(page, 'Overview');
      await page.keyboard.press('g');
      await page.keyboard.press('c');
      await heading(page, 'Clients');
      await page.keyboard.press('/');
      assert.equal(await page.evaluate(() => document.activeElement.getAttribute('type')), 'search');
      await page.keyboard.type('gc?');
      assert.equal(await page.getByRole('searchbox').inputValue(), 'gc?', 'what is typed is no shortcut');
      await page.keyboard.press('Escape');
      await page.keyboard.press('?');
      await page.getByRole('dialog', { name: 'Keyboard' }).waitFor();
      await page.keyboard.press('Escape');
      await gone(page.getByRole('dialog'));
      await page.keyboard.press('g');
      await page.keyboard.press('b');
      await heading(page, 'Bans');
      // From the top, Tab reaches the skip link, the menu and the controls of the page, each with a visible focus.
      await page.evaluate(() => document.activeElement.blur());
      const seen = [];
      for (let i = 0; i < 40; i++) {
        await page.keyboard.press('Tab');
        seen.push(
          await page.evaluate(() => {
            if (document.activeElement === document.body) return { name: '', visible: true };
            const { outlineStyle, outlineWidth } = getComputedStyle(document.activeElement);
            return { name: document.activeElement.getAttribute('aria-label') ?? document.activeElement.textContent.trim(), visible: outlineStyle !== 'none' && outlineWidth !== '0px' };
          }),
        );
      }
      const names = seen.map((one) => one.name);
      for (const name of ['Skip to the page', 'Clients', 'Configuration', 'Help and keyboard', 'Ban…', 'Refresh']) assert.ok(names.includes(name), `Tab reaches ${name}: ${names}`);
      const blind = seen.filter((one) => one.name && !one.visible).map((one) => one.name);
      assert.deepEqual(blind, [], 'the focus is seen everywhere');
      for (const [id, title] of PAGES) assert.ok(names.includes(title) || id === 'retained', `${title} is in the menu`);
    },
  ],
  [
    'every page fits a screen of 360 pixels, and the menu opens there',
    async (visitor, node) => {
      const client = node.real ? await Client.connect(node.port, 'a-client-with-quite-a-long-identifier-as-they-come-in-practice-0123456789') : null;
      await client?.subscribe('a/rather/long/topic/filter/that/does/not/fit/into/a/small/screen/at/all/#');
      await client?.publish('a/rather/long/topic/filter/that/does/not/fit/into/a/small/screen/at/all/x', 'y'.repeat(400), { qos: 1, retain: true });
      const page = await visitor.open('overview', { viewport: { width: 360, height: 740 } });
      for (const [id, title] of [...PAGES, ...(client ? [['clients/a-client-with-quite-a-long-identifier-as-they-come-in-practice-0123456789', null]] : [])]) {
        await ready(page, visitor.base, [id, title ?? id.slice(8)]);
        if (!title) await page.getByText('Receive Maximum').waitFor();
        assert.equal(await wide(page), 0, `${id} is wider than 360 pixels`);
      }
      await page.getByRole('button', { name: 'Menu' }).click();
      await page.getByRole('navigation', { name: 'Pages' }).getByRole('link', { name: 'Retained' }).click();
      await heading(page, 'Retained messages');
      await page.locator('nav').waitFor({ state: 'hidden' });
      client?.leave();
    },
  ],
  [
    'colours follow the system, and the switch goes over it',
    async (visitor) => {
      const bright = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor.match(/\d+/g).slice(0, 3).reduce((a, b) => a + Number(b), 0) > 380);
      const dark = await visitor.open('overview', { colorScheme: 'dark' });
      await heading(dark, 'Overview');
      assert.equal(await bright(dark), false);
      const page = await visitor.open('overview', { colorScheme: 'light' });
      await heading(page, 'Overview');
      assert.equal(await bright(page), true);
      await page.getByRole('button', { name: /^Colours: system/ }).click();
      assert.equal(await bright(page), false);
      await page.reload();
      await heading(page, 'Overview');
      assert.equal(await bright(page), false, 'the choice is kept');
      await page.getByRole('button', { name: /^Colours: dark/ }).click();
      assert.equal(await bright(page), true);
    },
  ],
  [
    'no page breaks a rule of accessibility, bright or dark',
    async (visitor) => {
      const axe = await read('dashboard/node_modules/axe-core/axe.min.js');
      // The dark theme needs only the rules about colours.
      const schemes = [
        ['light', ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa']],
        ['dark', { type: 'rule', values: ['color-contrast'] }],
      ];
      await atOnce(schemes, async ([colorScheme, runOnly]) => {
        const page = await visitor.open('overview', { colorScheme, reducedMotion: 'reduce' });
        for (const [id, title] of PAGES) {
          await ready(page, visitor.base, [id, title]);
          await page.evaluate(axe);
          const look = () => page.evaluate((only) => window.axe.run(document, { resultTypes: ['violations'], runOnly: only }), runOnly);
          // A control that becomes enabled during the run looks pale: only violations of a second run count.
          let { violations } = await look();
          if (violations.length > 0) ({ violations } = await look());
          assert.deepEqual(violations.map((one) => `${id} ${colorScheme}: ${one.id}: ${one.help}: ${one.nodes.slice(0, 3).map((at) => `${at.target} ${at.any[0]?.message ?? ''}`).join(' | ')}`), []);
        }
      });
    },
  ],
  [
    'identifiers, log lines and advice are not cut at 1280 pixels, and no limit is not shown as 0',
    async (visitor) => {
      const whole = (locator) => locator.evaluateAll((all) => all.filter((one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent));
      const id = 'vm_be_1f0c2a77-5a0e-4b8f-9c55-8f1d0a3b7c11/plant-7/line-3/press';
      const page = await visitor.open('clients');
      const listed = ['meridian-1', 'meridian-2'].map((node) => ({ ...made.clients[0], client_id: `${id}/${node}`, username: 'a-user-of-the-plant', node }));
      await page.route(/\/api\/v1\/clients(\?|$)/, (route) => route.fulfill({ json: { items: listed, next: null } }));
      await page.reload();
      await page.getByRole('link', { name: `${id}/meridian-2` }).waitFor();
      assert.deepEqual(await whole(page.getByRole('table', { name: 'Clients' }).getByRole('cell')), []);
      const message = `the cluster has a node that is not reached; ${'look at its log and at its firewall, '.repeat(8)}then start it again`;
      await page.route(/\/api\/v1\/logs?(\?|$)/, async (route) => {
        const answer = await route.fetch();
        const body = await answer.json();
        body.items.push({ ...body.items.at(-1), message });
        await route.fulfill({ response: answer, json: body });
      });
      await ready(page, visitor.base, ['log', 'Log']);
      const line = page.getByRole('option').filter({ hasText: 'then start it again' });
      await line.waitFor();
      const text = line.getByText(message);
      assert.deepEqual(await whole(line), []);
      assert.ok((await text.boundingBox()).height > 30, 'it takes several lines');
      await page.route(/\/api\/v1\/node(\?|$)/, async (route) => {
        const answer = await route.fetch();
        const body = await answer.json();
        for (const listener of body.listeners) listener.connections_max = 0;
        await route.fulfill({ response: answer, json: body });
      });
      await ready(page, visitor.base, ['overview', 'Overview']);
      await page.getByRole('table', { name: 'Listeners' }).getByRole('cell', { name: 'no limit' }).first().waitFor();
    },
    'real',
  ],
  [
    'a list is sorted by a column in both directions, and says if it is not loaded completely',
    async (visitor) => {
      const page = await visitor.open('clients');
      const listed = [['b-10', 5], ['b-9', 700], ['a', null]].map(([client_id, queued_messages]) => ({ ...made.clients[0], client_id, queued_messages }));
      let page1 = { items: listed, next: null };
      await page.route(/\/api\/v1\/clients(\?|$)/, (route) => route.fulfill({ json: page1 }));
      await page.reload();
      const table = page.getByRole('table', { name: 'Clients' });
      const head = (name) => table.getByRole('columnheader', { name });
      const sorted = (...ids) => until(`the order is ${ids}`, async () => JSON.stringify(await table.getByRole('link').allTextContents()) === JSON.stringify(ids));
      await sorted('b-10', 'b-9', 'a');
      await head('Client').getByRole('button').click();
      await sorted('a', 'b-9', 'b-10');
      assert.equal(await head('Client').getAttribute('aria-sort'), 'ascending');
      await head('Client').getByRole('button').click();
      await sorted('b-10', 'b-9', 'a');
      await head('Queued').getByRole('button').click();
      await sorted('b-9', 'b-10', 'a');
      assert.equal(await head('Queued').getAttribute('aria-sort'), 'descending');
      assert.equal(await page.getByText('there are more').count(), 0);
      page1 = { items: made.clients.slice(0, 100), next: 'more' };
      await page.reload();
      await head('Queued').getByRole('button').click();
      await page.getByText('Only the 100 loaded rows are sorted; there are more.').waitFor();
    },
  ],
  [
    'the configuration begins with settings that can be changed, and the rules page says what applies without rules',
    async (visitor) => {
      const page = await visitor.open('configuration');
      await ready(page, visitor.base, ['configuration', 'Configuration']);
      await page.locator('main').getByRole('heading', { level: 2 }).first().filter({ hasText: 'Can be changed now' }).waitFor();
      const first = page.locator('[data-setting]').first();
      assert.equal(await first.getByRole('button', { name: /^Edit / }).isEnabled(), true);
      await page.route(/\/api\/v1\/rules(\?|$)/, (route) => route.fulfill({ json: { items: [], next: null } }));
      let value = null;
      await page.route(/\/api\/v1\/config(\?|$)/, async (route) => {
        const answer = await route.fetch();
        const body = await answer.json();
        const setting = body.settings.find((one) => one.name === 'auth.no_match') ?? body.settings[body.settings.push({ ...body.settings[0], name: 'auth.no_match' }) - 1];
        setting.value = value;
        await route.fulfill({ response: answer, json: body });
      });
      for (const [set, text] of [
        ['deny', 'no client may publish or subscribe to anything'],
        ['allow', 'every client that may connect may publish and subscribe to everything'],
        [null, 'With the first rule, everything that no rule allows is refused'],
      ]) {
        value = set;
        await page.goto(`${visitor.base}/#/overview`);
        await heading(page, 'Overview');
        await ready(page, visitor.base, ['rules', 'Access rules']);
        await page.getByText(text).waitFor();
      }
    },
  ],
  [
    'alarms are on every page with what to do, until they end',
    async (visitor) => {
      const alarm = (severity, code, text) => ({ node: 'n1', severity, code, text });
      let answer = [
        alarm('error', 'storage', 'the disk of /data is full: free some space'),
        alarm('error', 'dead', 'n2 is dead: start it again'),
        alarm('error', 'dead', 'n3 is dead: start it again'),
        alarm('warning', 'clock', 'the clock of n4 is 12s ahead'),
        alarm('notice', 'bbr', 'links do not use BBR'),
      ];
      const page = await visitor.open('overview', { viewport: { width: 360, height: 740 } });
      await page.route(/\/api\/v1\/alarms(\?|$)/, (route) => route.fulfill({ json: { items: answer, next: null } }));
      await page.reload();
      for (const [id, title] of PAGES) {
        await ready(page, visitor.base, [id, title]);
        await alarms(page).getByText('the disk of /data is full: free some space').waitFor();
        assert.equal(await wide(page), 0, `${id} is wider than 360 pixels`);
      }
      await page.goto(`${visitor.base}/#/overview`);
      await page.getByText('3 alarms', { exact: true }).waitFor();
      assert.equal(await page.getByText('ready', { exact: true }).count(), 0, 'a node with alarms is not just ready');
      assert.equal(await alarms(page).getByRole('listitem').count(), 3);
      await alarms(page).getByRole('button', { name: 'Show all 4' }).click();
      await alarms(page).getByText('the clock of n4 is 12s ahead').waitFor();
      assert.equal(await alarms(page).getByText('BBR').count(), 0, 'a notice is no alarm');
      await alarms(page).getByRole('link', { name: 'Cluster' }).first().click();
      await heading(page, 'Cluster');
      answer = [];
      await gone(alarms(page));
      await page.goto(`${visitor.base}/#/overview`);
      await page.getByText('ready', { exact: true }).waitFor();
    },
    'real',
  ],
  [
    'a lost node is reported, and the page recovers when it is back',
    async (visitor, node) => {
      const page = await visitor.open('clients');
      await heading(page, 'Clients');
      await page.getByText(/clients?$/).first().waitFor();
      await node.end();
      await page.getByRole('alert').getByText('No answer from the node').waitFor();
      assert.equal(await page.locator('.toast').count(), 0, 'the banner is enough');
      await node.run();
      await gone(page.getByText('No answer from the node'));
      if (node.real) {
        const client = await Client.connect(node.port, 'after-the-loss');
        await page.getByRole('button', { name: 'Refresh' }).click();
        await page.getByRole('link', { name: 'after-the-loss' }).waitFor();
        client.leave();
      }
    },
  ],
  [
    'the first key ends open mode, and the page signs in with it',
    async (visitor) => {
      const page = await visitor.open('keys');
      await page.getByText('Open mode: no key exists').waitFor();
      await page.getByRole('button', { name: 'New key…' }).click();
      const dialog = page.getByRole('dialog');
      await dialog.getByLabel('Name').fill('ops');
      await dialog.getByLabel('Role').selectOption('admin');
      await dialog.getByRole('button', { name: 'Create key' }).click();
      await dialog.getByText('it is not shown again').waitFor();
      adminToken = (await dialog.locator('.token').textContent()).trim();
      assert.match(adminToken, /^mrd_/);
      await dialog.getByRole('button', { name: 'Done' }).click();
      await row(page, 'ops').getByText('admin').waitFor();
      await gone(page.getByText('Open mode: no key exists'));
      await page.goto(`${visitor.base}/#/audit`);
      await row(page, '/keys').first().waitFor();
    },
    'real',
  ],
  [
    'a token is required; a wrong one is refused, the right one is kept',
    async (visitor) => {
      const page = await visitor.open('clients');
      await withToken(page, 'mrd_wrong');
      const field = page.getByLabel('Token');
      await page.getByText('The node does not accept this token.').waitFor();
      await field.fill(adminToken);
      await page.getByRole('button', { name: 'Sign in' }).click();
      await heading(page, 'Clients');
      await page.reload();
      await heading(page, 'Clients');
      assert.equal(await page.evaluate(() => localStorage.length), 0, 'kept for the session only, unless asked otherwise');
      await page.goto(`${visitor.base}/#/test`);
      await page.getByRole('button', { name: 'Listen' }).click();
      await page.getByText('listening', { exact: true }).waitFor();
      await who(page, 'ops').click();
      await page.getByRole('button', { name: 'Sign out' }).click();
      await page.getByLabel('Password').waitFor();
    },
    'real',
  ],
  [
    'a viewer can read and has no other controls',
    async (visitor) => {
      const made = await fetch(`${visitor.base}/api/v1/keys`, { method: 'POST', headers: { Authorization: `Bearer ${adminToken}`, 'Content-Type': 'application/json' }, body: JSON.stringify({ name: 'watcher', role: 'viewer', expires_in_s: null }) });
      assert.equal(made.status, 201);
      const { token } = await made.json();
      const page = await visitor.open('bans');
      await page.getByRole('button', { name: 'Use an API token instead' }).click();
      await page.getByLabel('Remember it in this browser').check();
      await page.getByLabel('Token').fill(token);
      await page.getByRole('button', { name: 'Sign in' }).click();
      await heading(page, 'Bans');
      await page.getByText('watcher').waitFor();
      assert.equal(await page.getByRole('button', { name: 'Ban…' }).isDisabled(), true);
      const nav = page.getByRole('navigation', { name: 'Pages' });
      await nav.getByRole('link', { name: 'Clients' }).waitFor();
      for (const name of ['API keys', 'Audit', 'Trace', 'Test client']) assert.equal(await nav.getByRole('link', { name }).count(), 0, `${name} is not offered`);
      await page.keyboard.press('g');
      await page.keyboard.press('k');
      await heading(page, 'Bans');
      await page.goto(`${visitor.base}/#/configuration`);
      await page.getByRole('searchbox').fill('mqtt.inflight_max');
      assert.equal(await page.getByRole('button', { name: 'Edit mqtt.inflight_max' }).isDisabled(), true);
      await page.goto(`${visitor.base}/#/overview`);
      await page.locator('.tile').filter({ hasText: 'Memory' }).getByText(/iB$/).first().waitFor();
    },
    'real',
  ],
  [
    'an admin makes, changes and removes accounts',
    async (visitor) => {
      const page = await visitor.open('keys');
      await withToken(page, adminToken);
      await page.getByRole('button', { name: 'New account…' }).click();
      const dialog = page.getByRole('dialog');
      await dialog.getByLabel('Name').fill('alice');
      await dialog.getByLabel('Role').selectOption('operator');
      await dialog.getByLabel('Password').fill('alice');
      assert.equal(await dialog.getByLabel('Password').evaluate((field) => field.validity.tooShort || !field.validity.valid), true, 'a short password is not sent');
      await dialog.getByLabel('Password').fill('correct horse');
      await dialog.getByRole('button', { name: 'Create account' }).click();
      await toast(page, 'Account created');
      await row(page, 'alice').getByText('operator').waitFor();
      await page.getByRole('button', { name: 'Edit the account alice' }).click();
      await dialog.getByLabel('Role').selectOption('admin');
      await dialog.getByRole('button', { name: 'Save' }).click();
      await toast(page, 'Account changed');
      await row(page, 'alice').getByText('admin').waitFor();
      await page.getByRole('button', { name: 'New account…' }).click();
      await dialog.getByLabel('Name').fill('bob');
      await dialog.getByLabel('Password').fill('correct horse');
      await dialog.getByRole('button', { name: 'Create account' }).click();
      await page.getByRole('button', { name: 'Remove the account bob' }).click();
      await page.getByRole('dialog').getByRole('button', { name: 'Remove' }).click();
      await toast(page, 'Account removed');
      await gone(row(page, 'bob'));
    },
    'real',
  ],
  [
    'a person logs in with name and password, changes the password and logs out, by keyboard',
    async (visitor) => {
      const page = await visitor.open('clients');
      await logIn(page, 'alice', 'wrong password');
      await page.getByRole('alert').getByText('Wrong name or password.').waitFor();
      // The page gives the focus to the name; the form needs no pointer.
      await page.getByLabel('Name').fill('alice');
      await page.keyboard.press('Tab');
      await page.keyboard.type('correct horse');
      await page.keyboard.press('Enter');
      await heading(page, 'Clients');
      await page.reload();
      await heading(page, 'Clients');
      const stored = await page.evaluate(() => [document.cookie, localStorage.length, sessionStorage.length]);
      assert.deepEqual(stored, ['', 0, 0], 'no script can read the session');

      const button = who(page, 'alice');
      await button.focus();
      await page.keyboard.press('Enter');
      assert.equal(await button.getAttribute('aria-expanded'), 'true');
      await page.keyboard.press('Escape');
      assert.equal(await button.getAttribute('aria-expanded'), 'false');
      assert.equal(await button.evaluate((one) => one === document.activeElement), true, 'the focus returns');
      await page.keyboard.press('Enter');
      await page.keyboard.press('Tab');
      await page.keyboard.press('Enter');
      const dialog = page.getByRole('dialog', { name: 'Change password' });
      await dialog.getByLabel('Present password').fill('not the password');
      await dialog.getByLabel('New password', { exact: true }).fill('another horse');
      await dialog.getByLabel('New password again').fill('another horse');
      await dialog.getByRole('button', { name: 'Change password' }).click();
      await dialog.getByRole('alert').getByText('this is not the present password').waitFor();
      await dialog.getByLabel('Present password').fill('correct horse');
      await dialog.getByRole('button', { name: 'Change password' }).click();
      await toast(page, 'Password changed');
      await gone(dialog);
      await page.reload();
      await heading(page, 'Clients');

      await page.goto(`${visitor.base}/#/log`);
      await heading(page, 'Log');
      await button.focus();
      await page.keyboard.press('Enter');
      await page.getByRole('button', { name: 'Log out' }).click();
      await page.getByLabel('Password').waitFor();
      await page.reload();
      await page.getByLabel('Password').waitFor();
    },
    'real',
  ],
  [
    'a changed account ends its sessions, and the page says so',
    async (visitor) => {
      const page = await visitor.open('overview');
      await logIn(page, 'alice', 'another horse');
      await heading(page, 'Overview');
      await page.locator('.tile').filter({ hasText: 'Memory' }).getByText(/iB$/).first().waitFor();
      const axe = await read('dashboard/node_modules/axe-core/axe.min.js');
      const headers = { Authorization: `Bearer ${adminToken}`, 'Content-Type': 'application/json' };
      const changed = await fetch(`${visitor.base}/api/v1/accounts/alice`, { method: 'PATCH', headers, body: JSON.stringify({ role: 'viewer' }) });
      assert.equal(changed.status, 200);
      await page.getByRole('alert').getByText('Your session has ended. Log in again.').waitFor();
      await page.evaluate(axe);
      const look = () => page.evaluate(() => window.axe.run(document, { resultTypes: ['violations'], runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa', 'wcag22aa'] }));
      assert.deepEqual((await look()).violations.map((one) => one.id), [], 'the form is usable for everybody');
      await logIn(page, 'alice', 'another horse');
      await who(page, 'alice').click();
      await page.getByRole('button', { name: 'Log out' }).waitFor();
      await page.evaluate(axe);
      assert.deepEqual((await look()).violations.map((one) => one.id), [], 'the menu is usable for everybody');
      await page.goto(`${visitor.base}/#/bans`);
      assert.equal(await page.getByRole('button', { name: 'Ban…' }).isDisabled(), true, 'the new role holds');
    },
    'real',
  ],
  [
    'removing the key of the session ends it',
    async (visitor) => {
      const page = await visitor.open('overview');
      await withToken(page, adminToken);
      await heading(page, 'Overview');
      const headers = { Authorization: `Bearer ${adminToken}`, 'Content-Type': 'application/json' };
      const { token } = await (await fetch(`${visitor.base}/api/v1/keys`, { method: 'POST', headers, body: JSON.stringify({ name: 'second', role: 'admin', expires_in_s: null }) })).json();
      assert.ok(token);
      assert.equal((await fetch(`${visitor.base}/api/v1/keys/ops`, { method: 'DELETE', headers })).status, 204);
      await page.getByLabel('Password').waitFor();
    },
    'real',
  ],
];
