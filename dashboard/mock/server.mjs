// Mock node: the REST API with mock data, for work on the dashboard without a broker.
// node mock/server.mjs [--port 18083] [--token TOKEN] [--role admin] [--dir DIR of built files]

import { createServer } from 'node:http';
import { readFile } from 'node:fs/promises';
import { extname, join, normalize } from 'node:path';
import { parseArgs } from 'node:util';
import * as data from './data.mjs';
import * as integration from './integration.mjs';

const { values: options } = parseArgs({
  options: {
    port: { type: 'string', default: '18083' },
    token: { type: 'string' },
    role: { type: 'string', default: 'admin' },
    dir: { type: 'string', default: join(import.meta.dirname, '../../crates/api/dashboard') },
  },
});

const TYPES = { '.html': 'text/html; charset=utf-8', '.js': 'text/javascript', '.css': 'text/css', '.svg': 'image/svg+xml', '.txt': 'text/plain' };
const POLICY = "default-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'";
const TITLES = { 400: 'Bad request', 401: 'Unauthorized', 403: 'Forbidden', 404: 'Not found', 409: 'Conflict', 415: 'Unsupported media type', 422: 'Invalid' };
const SLUGS = { 400: 'bad-request', 401: 'unauthorized', 403: 'forbidden', 404: 'not-found', 409: 'conflict', 415: 'unsupported-media-type', 422: 'invalid' };
const RANK = { viewer: 0, operator: 1, admin: 2 };

class Refusal extends Error {
  constructor(status, detail, errors) {
    super(detail);
    this.status = status;
    this.errors = errors;
  }
}
const refuse = (status, detail, errors) => {
  throw new Refusal(status, detail, errors);
};

function page(items, query) {
  const limit = Number(query.get('limit') ?? 100);
  if (!(limit >= 1 && limit <= 1000)) refuse(400, '`limit` must be 1 to 1000.');
  const from = query.has('cursor') ? Number(Buffer.from(query.get('cursor'), 'base64url').toString()) : 0;
  if (!Number.isInteger(from)) refuse(400, 'The cursor is not valid; start without it.');
  const end = from + limit;
  return { items: items.slice(from, end), next: end < items.length ? Buffer.from(String(end)).toString('base64url') : null };
}

function events(request, response, start) {
  response.writeHead(200, { 'Content-Type': 'text/event-stream', 'Cache-Control': 'no-store' });
  response.write(': hello\n\n');
  const stop = start((event, item) => response.write(`event: ${event}\ndata: ${JSON.stringify(item)}\n\n`), () => response.end());
  request.on('close', stop);
  return data.STREAMED;
}

const known = (id) => data.clients.find((client) => client.client_id === id) ?? refuse(404, `There is no client "${id}", and no session of that name.`);
const check = (name, value) => data.problemOf(name, value);

// method, path (`:` matches one segment), role, handler({query, body, part, request, response}) -> value | [status, value]
const routes = [
  ['GET', '/api/v1/whoami', 'viewer', ({ who }) => who],
  ['GET', '/api/v1/node', 'viewer', () => data.node()],
  ['GET', '/api/v1/nodes', 'viewer', () => data.nodes()],
  ['GET', '/api/v1/alarms', 'viewer', () => ({ items: data.alarms(), next: null })],
  ['GET', '/api/v1/cluster', 'viewer', () => data.cluster()],
  ['DELETE', '/api/v1/cluster/nodes/:', 'admin', () => undefined],
  ['PUT', '/api/v1/cluster/leader', 'admin', () => undefined],
  ['POST', '/api/v1/cluster/balance', 'operator', () => undefined],
  ['POST', '/api/v1/rebalance', 'operator', () => data.rebalanced()],
  ['POST', '/api/v1/cluster/leave', 'admin', () => [202, {}]],
  ['GET', '/api/v1/stats', 'viewer', () => data.stats()],
  ['GET', '/api/v1/stats/history', 'viewer', ({ query }) => data.history(query)],
  ['GET', '/api/v1/top', 'viewer', ({ query }) => data.top(Number(query.get('limit') ?? 10))],
  ['GET', '/api/v1/clients', 'viewer', ({ query }) => page(data.findClients(query), query)],
  ['GET', '/api/v1/clients/:', 'viewer', ({ part }) => data.detail(known(part))],
  ['DELETE', '/api/v1/clients/:', 'operator', ({ part, query }) => data.kick(known(part), query.get('session') === 'true')],
  ['GET', '/api/v1/clients/:/subscriptions', 'viewer', ({ part, query }) => page(data.subscriptions.filter((one) => one.client_id === known(part).client_id), query)],
  ['POST', '/api/v1/clients/:/subscriptions', 'operator', ({ part, body }) => {
    if (!known(part).connected) refuse(409, 'The client is not connected; a subscription on its behalf needs its connection.');
    if (!body.filter || /#./.test(body.filter)) refuse(422, 'The Topic Filter is not valid: "#" must be its last level.', [{ name: 'filter', detail: '"#" must be the last level' }]);
    return [201, data.subscribe(known(part), body)];
  }],
  ['DELETE', '/api/v1/clients/:/subscriptions', 'operator', ({ part, query }) => data.unsubscribe(known(part), query.get('filter'))],
  ['GET', '/api/v1/clients/:/queue', 'viewer', ({ part, query }) => data.queue(known(part), query.get('payload') === 'true')],
  ['GET', '/api/v1/subscriptions', 'viewer', ({ query }) => page(data.findSubscriptions(query), query)],
  ['GET', '/api/v1/routes', 'viewer', () => ({ items: data.routes(), total: data.routes().length, truncated: false })],
  ['GET', '/api/v1/routes/match', 'viewer', ({ query }) => {
    const topic = query.get('topic') ?? '';
    if (!topic || /[+#]/.test(topic)) refuse(400, '`topic` must be a Topic Name, without + and #.');
    return data.receivers(topic, Number(query.get('limit') ?? 100));
  }],
  ['POST', '/api/v1/publish', 'operator', ({ body }) => {
    if (!body.topic || /[+#]/.test(body.topic)) refuse(422, 'A Topic Name must not be empty and must not contain + or #.', [{ name: 'topic', detail: 'must not contain + or #' }]);
    return data.publish(body);
  }],
  ['GET', '/api/v1/retained', 'viewer', ({ query }) => page(data.findRetained(query.get('filter') ?? '#'), query)],
  ['GET', '/api/v1/retained/message', 'viewer', ({ query }) => data.retainedMessage(query.get('topic')) ?? refuse(404, 'There is no retained message with this topic.')],
  ['DELETE', '/api/v1/retained', 'operator', ({ query }) => ({ deleted: data.deleteRetained(query) })],
  ['GET', '/api/v1/topic-metrics', 'viewer', () => ({ items: data.topicMetrics(), next: null })],
  ['POST', '/api/v1/topic-metrics', 'operator', ({ body }) => {
    if (!body.filter) refuse(422, 'A Topic Filter must not be empty.');
    return data.addTopicMetric(body.filter) ?? refuse(409, 'This filter is already counted.');
  }],
  ['DELETE', '/api/v1/topic-metrics', 'operator', ({ query }) => data.removeTopicMetric(query.get('filter'))],
  ['GET', '/api/v1/slow-subscribers', 'viewer', () => data.slow()],
  ['DELETE', '/api/v1/slow-subscribers', 'operator', () => data.clearSlow()],
  ['GET', '/api/v1/users', 'viewer', ({ query }) => page(data.findUsers(query.get('search') ?? ''), query)],
  ['POST', '/api/v1/users/import', 'admin', ({ body }) => data.importUsers(body) ?? refuse(409, 'One of these users exists; no user was imported.')],
  ['POST', '/api/v1/users', 'admin', ({ body }) => {
    if (data.users.has(body.name)) refuse(409, `The user "${body.name}" already exists.`);
    return [201, data.setUser(body.name, body)];
  }],
  ['PUT', '/api/v1/users/:', 'admin', ({ part, body }) => data.setUser(part, body)],
  ['PATCH', '/api/v1/users/:', 'admin', ({ part }) => data.setUser(part, { has_password: true })],
  ['DELETE', '/api/v1/users/:', 'admin', ({ part }) => (data.users.delete(part) ? undefined : refuse(404, `There is no user "${part}".`))],
  ['GET', '/api/v1/rules', 'viewer', ({ query }) => page(data.listRules(), query)],
  ['POST', '/api/v1/rules/test', 'operator', ({ body }) => data.decide(body)],
  ['POST', '/api/v1/rules', 'admin', ({ body }) => [201, data.addRule(body)]],
  ['PUT', '/api/v1/rules/:', 'admin', ({ part, body }) => data.setRule(part, body) ?? refuse(404, `There is no rule "${part}".`)],
  ['PUT', '/api/v1/rules/:/position', 'admin', ({ part, body }) => data.moveRule(part, body.position) ?? refuse(404, `There is no rule "${part}".`)],
  ['DELETE', '/api/v1/rules/:', 'admin', ({ part }) => data.removeRule(part)],
  ['GET', '/api/v1/bans', 'viewer', ({ query }) => page(data.bans, query)],
  ['POST', '/api/v1/bans', 'operator', ({ body }) => {
    if (!body.value) refuse(422, 'A ban needs a value.', [{ name: 'value', detail: 'must not be empty' }]);
    return [201, data.ban(body)];
  }],
  ['DELETE', '/api/v1/bans/:', 'operator', ({ part }) => data.lift(part)],
  ['GET', '/api/v1/trace', 'operator', ({ query, request, response }) => events(request, response, (send, end) => data.trace(query, send, end))],
  ['GET', '/api/v1/log', 'viewer', ({ query }) => ({ items: data.log(query.get('level') ?? 'info', Number(query.get('limit') ?? 100)), next: null })],
  ['GET', '/api/v1/log/stream', 'viewer', ({ query, request, response }) => events(request, response, (send) => data.follow(query.get('level') ?? 'info', send))],
  ['GET', '/api/v1/log/level', 'viewer', () => data.level],
  ['PUT', '/api/v1/log/level', 'operator', ({ body }) => data.setLevel(body)],
  ['GET', '/api/v1/config', 'viewer', () => data.config()],
  ['POST', '/api/v1/config/validate', 'operator', ({ body }) => {
    const problems = Object.entries(body.changes).map(([name, value]) => check(name, value)).filter(Boolean);
    return { valid: problems.length === 0, problems };
  }],
  ['PATCH', '/api/v1/config', 'admin', ({ body }) => {
    const problems = Object.entries(body.changes).map(([name, value]) => check(name, value)).filter(Boolean);
    if (problems.length > 0) refuse(422, `${problems.length} of the changes are not valid; nothing was changed.`, problems);
    return data.change(body.changes, body.comment ?? '', 'ops', body.scope);
  }],
  ['GET', '/api/v1/config/history', 'viewer', () => ({ items: data.versions(), next: null })],
  ['POST', '/api/v1/config/rollback', 'admin', ({ body }) => data.rollback(body.version)],
  ['POST', '/api/v1/config/reload', 'admin', () => ({ changed: [], pending: [], files: [] })],
  ['GET', '/api/v1/keys', 'admin', () => ({ items: data.keys, next: null })],
  ['POST', '/api/v1/keys', 'admin', ({ body }) => {
    if (data.keys.some((key) => key.name === body.name)) refuse(409, 'A key with this name exists.');
    return [201, data.addKey(body)];
  }],
  ['DELETE', '/api/v1/keys/:', 'admin', ({ part }) => data.removeKey(part)],
  ['GET', '/api/v1/accounts', 'admin', () => ({ items: data.accounts, next: null })],
  ['POST', '/api/v1/accounts', 'admin', ({ body }) => {
    if (data.accounts.some((one) => one.name === body.name)) refuse(409, `There is an account "${body.name}" already.`);
    if ((body.password ?? '').length < 8) refuse(422, 'password: at least 8 characters', [{ name: 'password', detail: 'at least 8 characters' }]);
    return [201, data.addAccount(body)];
  }],
  ['PATCH', '/api/v1/accounts/:', 'admin', ({ part, body }) => data.setAccount(part, body) ?? refuse(404, `There is no account "${part}".`)],
  ['DELETE', '/api/v1/accounts/:', 'admin', ({ part }) => data.removeAccount(part)],
  ['POST', '/api/v1/logout', 'viewer', () => refuse(409, 'The mock node has no sessions.')],
  ['POST', '/api/v1/password', 'viewer', () => refuse(409, 'The mock node has no sessions.')],
  ['GET', '/api/v1/audit', 'admin', () => ({ items: data.audit, next: null })],
  ...integration.routes(page, refuse),
];

function find(method, path) {
  const parts = path.split('/');
  let other = false;
  for (const [verb, pattern, role, handler] of routes) {
    const wanted = pattern.split('/');
    if (wanted.length !== parts.length || !wanted.every((one, i) => one === ':' || one === parts[i])) continue;
    if (verb === method) return { role, handler, part: decodeURIComponent(parts[wanted.indexOf(':')] ?? '') };
    other = true;
  }
  return other ? refuse(405, 'This path does not support the method.') : refuse(404, `There is no path ${path}.`);
}

async function body(request) {
  let text = '';
  for await (const piece of request) text += piece;
  try {
    return text ? JSON.parse(text) : {};
  } catch {
    return refuse(400, 'The body is not JSON.');
  }
}

async function answer(request, response, url) {
  if (url.pathname === '/api/openapi.json') return data.openapi(routes);
  const { role, handler, part } = find(request.method, url.pathname);
  if (url.pathname === '/api/v1/login') refuse(401, 'The mock node has no passwords; use a token.');
  const who = { name: options.token ? 'ops' : null, role: options.role, open: !options.token, session: false };
  if (options.token && request.headers.authorization !== `Bearer ${options.token}`) refuse(401, 'This request needs a token: send it as "Authorization: Bearer TOKEN".');
  if (RANK[who.role] < RANK[role]) refuse(403, `This request needs the role ${role}; the token has the role ${who.role}.`);
  if (request.method !== 'GET' && request.headers['content-type'] !== 'application/json') refuse(415, 'Send "Content-Type: application/json".');
  const out = await handler({ query: url.searchParams, body: await body(request), part, who, request, response });
  if (request.method !== 'GET') data.note(who, request, url, Array.isArray(out) ? out[0] : 200);
  return out;
}

async function file(url, response) {
  const name = url.pathname === '/' ? 'index.html' : normalize(url.pathname).slice(1);
  try {
    const bytes = await readFile(join(options.dir, name));
    response.writeHead(200, { 'Content-Type': TYPES[extname(name)] ?? 'application/octet-stream', 'Content-Security-Policy': POLICY, 'X-Content-Type-Options': 'nosniff' });
    response.end(bytes);
  } catch {
    response.writeHead(404).end();
  }
}

const server = createServer(async (request, response) => {
  const url = new URL(request.url, 'http://localhost');
  if (url.pathname === '/health/live') return response.end('{"status":"live"}');
  if (!url.pathname.startsWith('/api/')) return file(url, response);
  let status = 200;
  let out;
  try {
    out = await answer(request, response, url);
    if (out === data.STREAMED) return;
    if (Array.isArray(out)) [status, out] = out;
    if (out === undefined) status = 204;
  } catch (error) {
    if (!(error instanceof Refusal)) console.error(error);
    status = error.status ?? 500;
    out = { type: `urn:meridian:problem:${SLUGS[status] ?? 'internal'}`, title: TITLES[status] ?? 'Internal error', status, detail: error.message, errors: error.errors };
  }
  response.writeHead(status, { 'Content-Type': status >= 400 ? 'application/problem+json' : 'application/json', 'Cache-Control': 'no-store' });
  response.end(out === undefined ? '' : JSON.stringify(out));
});

server.listen(Number(options.port), '127.0.0.1', () => console.log(`http://127.0.0.1:${server.address().port}/`));
