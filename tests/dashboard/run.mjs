#!/usr/bin/env node
// The dashboard in a real browser against a real node: every page, the main actions, keyboard, small screens, colours.
//
//     node tests/dashboard/run.mjs [--screenshots DIR] [--only TEXT] [--mock] [--binary PATH]
//
// The binary is target/debug/meridian or $MERIDIAN_BIN, the browser /usr/bin/chromium or $CHROMIUM. With --mock the
// mock node of dashboard/mock answers, and checks that need MQTT clients are left out. Exits 1 when a check fails; the last
// line is `N passed, M failed`.

import { execFileSync } from 'node:child_process';
import { existsSync } from 'node:fs';
import { createRequire } from 'node:module';
import { join } from 'node:path';
import { parseArgs } from 'node:util';
import { checks } from './checks.mjs';
import { screenshots } from './screenshots.mjs';
import { Mock, Node, ROOT } from './world.mjs';

const { values: options } = parseArgs({
  options: { screenshots: { type: 'string' }, only: { type: 'string', default: '' }, mock: { type: 'boolean', default: false }, binary: { type: 'string' } },
});
const dashboard = join(ROOT, 'dashboard');
if (!existsSync(join(dashboard, 'node_modules/playwright-core'))) execFileSync('npm', ['ci', '--no-audit', '--no-fund'], { cwd: dashboard, stdio: 'inherit' });
const { chromium } = createRequire(join(dashboard, 'package.json'))('playwright-core');

const target = process.env.CARGO_TARGET_DIR ?? join(ROOT, 'target');
const binary = options.binary ?? process.env.MERIDIAN_BIN ?? join(target, 'debug/meridian');
if (!options.mock && !existsSync(binary)) {
  console.error(`There is no ${binary}: build it with cargo build, or set MERIDIAN_BIN.`);
  process.exit(2);
}

const browser = await chromium.launch({ executablePath: process.env.CHROMIUM ?? '/usr/bin/chromium', args: ['--no-sandbox', '--disable-dev-shm-usage'] });
let passed = 0;
let failed = 0;

/** Opens pages and collects their console messages: an error, or a violation of the content policy, fails the check. */
class Visitor {
  problems = [];
  #contexts = [];

  constructor(base) {
    this.base = base;
  }

  async open(hash, settings = {}) {
    const context = await browser.newContext({ viewport: { width: 1280, height: 860 }, acceptDownloads: true, ...settings });
    this.#contexts.push(context);
    const page = await context.newPage();
    // Longer than anything takes on a busy machine.
    page.setDefaultTimeout(20_000);
    page.on('console', (message) => {
      // The browser reports every status 4xx and every lost connection; the tests cause those.
      if (['error', 'warning'].includes(message.type()) && !message.text().startsWith('Failed to load resource')) this.problems.push(message.text());
    });
    page.on('pageerror', (error) => this.problems.push(error.stack ?? error.message));
    await page.goto(`${this.base}/#/${hash}`);
    return page;
  }

  async close() {
    for (const context of this.#contexts.splice(0)) await context.close();
  }
}

const node = options.mock ? await Mock.start() : await Node.start(binary);
try {
  if (options.screenshots) await screenshots(node, new Visitor(node.base), options.screenshots);
  for (const [name, check, needs] of checks) {
    if (options.screenshots || (needs === 'real' && options.mock) || !name.includes(options.only)) continue;
    const visitor = new Visitor(node.base);
    const begun = Date.now();
    try {
      await check(visitor, node);
      if (visitor.problems.length > 0) throw new Error(`messages on the console:\n${visitor.problems.join('\n')}`);
      passed++;
      console.log(`ok    ${name} (${Date.now() - begun} ms)`);
    } catch (error) {
      failed++;
      console.log(`FAIL  ${name}\n${error.stack ?? error}${visitor.problems.length > 0 ? `\nconsole:\n${visitor.problems.join('\n')}` : ''}`);
    } finally {
      await visitor.close();
    }
  }
} finally {
  await browser.close();
  if (failed > 0 && node.real) console.log(`the node's log ends:\n${node.log.slice(-4000)}`);
  await node.close();
}
if (options.screenshots) process.exit(0);
console.log(`${passed} passed, ${failed} failed`);
process.exit(failed > 0 || passed === 0 ? 1 : 0);
