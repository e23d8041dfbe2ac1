// Bridges, cluster links, connectors and actions of the mock node. Counters grow while it runs. Rules are evaluated as far as the examples of the
// dashboard need: paths, literals, comparisons and a few functions.

import { matches } from './data.mjs';

const iso = (ms = Date.now()) => new Date(ms).toISOString();
const started = Date.now() - 3 * 86400e3;
const seconds = () => Math.floor((Date.now() - started) / 1000);

const drops = (more) => ({ queue: 0, too_large: 0, no_room: 0, not_ready: 0, too_many_hops: 0, closes: 0, looped: 0, unmapped: 0, ...more });
const bridgeStore = new Map();
const bridge = (name, settings, run, source = 'store') => bridgeStore.set(name, { name, source, settings: { address: 'broker.example.com:8883', topics: 'sensors/# out 1\ncommands/# in 1', ...settings }, author: source === 'file' ? '' : 'ops', changed_at: source === 'file' ? null : iso(started), run });
bridge('cloud', { tls: true, username: 'site7', password_file: '/etc/meridian/secrets/cloud' }, () => ({ in_flight_out: 14, messages_out: seconds() * 212, bytes_out: seconds() * 212 * 174, messages_in: seconds() * 3, bytes_in: seconds() * 3 * 96, refused: 2, reconnects: 3, failed_attempts: 5, last_error: 'the connection was lost: connection reset by peer' }), 'file');
bridge('plant-7', { address: '10.7.0.4:1883' }, () => ({ node: 'meridian-2', connected: false, failing: true, state: 'waits 48s before the next attempt: 10.7.0.4:1883: connection refused', connected_s: null, last_error: '10.7.0.4:1883: connection refused', queued_messages: 184_020 + seconds() % 1000, queued_bytes: 27_603_000, oldest_s: 5_400, messages_out: 4_120_332, bytes_out: 611_204_881, reconnects: 41, failed_attempts: 388, dropped: 12, dropped_by_cause: drops({ queue: 9, no_room: 3 }) }));
bridge('night-report', { topics: 'reports/# out 2', start: 'lazy' }, () => ({ node: 'meridian-2', connected: false, state: 'waits for messages', connected_s: null, messages_out: 3120, bytes_out: 902_113, reconnects: 29 }));
bridge('old-site', { topics: 'site/# both 1 "" old/', enabled: false }, () => ({ queued_messages: 812, queued_bytes: 92_410, oldest_s: 90_000 }), 'file');

const bridgeOf = ({ run: _, ...stored }) => ({ ...stored, enabled: stored.settings.enabled !== false, fault: null });
/** Sessions with messages whose bridge was removed. */
const leftBridges = new Map([['gone-site', { queued_messages: 44_210, queued_bytes: 5_102_400, oldest_s: 86_400 }]]);
function statusOf(one) {
  const { name, source, enabled, settings } = bridgeOf(one);
  const on = { connected: true, state: `connected to ${settings.address}`, connected_s: seconds(), ...one.run() };
  return view(name, { source, enabled, ...on, ...(enabled ? {} : { connected: false, failing: false, state: 'not started', connected_s: null }) });
}
const view = (name, more) => ({
  name, node: 'meridian-1', configured: true, source: 'store', enabled: true, connected: false, failing: false, connected_s: null, last_error: null, session: `$bridge/${name}`, queued_messages: 0, queued_bytes: 0, oldest_s: null, in_flight_out: 0, in_flight_in: 0,
  messages_out: 0, bytes_out: 0, messages_in: 0, bytes_in: 0, refused: 0, postponed: 0, dropped: 0, dropped_by_cause: drops({}), reconnects: 0, failed_attempts: 0, remote_sessions_lost: 0, ...more,
});
const bridges = () => [
  ...sorted(bridgeStore, statusOf),
  ...[...leftBridges].map(([name, waits]) => view(name, { configured: false, source: null, enabled: false, failing: true, state: `not configured; \`meridian ctl kick '$bridge/${name}' --session\` removes its session`, ...waits })),
];

function checkAddresses(settings, wrong) {
  for (const address of String(settings.address ?? '').split(',').filter((one) => one.trim())) if (!/^\s*[\w.-]+:\d+\s*$/.test(address)) wrong('address', `"${address.trim()}" has no port; write HOST:PORT`);
}

function bridgeProblems(settings) {
  const problems = [];
  const wrong = (name, detail) => problems.push({ name, detail });
  if (!settings.address) wrong('address', 'the other broker has no address; write HOST:PORT');
  if (!settings.topics) wrong('topics', 'the bridge carries no topic; write a line such as sensors/# out 1');
  checkAddresses(settings, wrong);
  const lines = String(settings.topics ?? '').split('\n').map((line) => line.trim().split(/\s+/));
  for (const [, direction = 'out'] of lines) if (!['out', 'in', 'both'].includes(direction)) wrong('topics', `\`${direction}\` is no direction; use out, in or both`);
  if (!settings.tls && (settings.tls_ca || settings.tls_certificate)) wrong('tls', 'there are settings of TLS and it is off; set tls = true');
  for (const name of ['keep_alive', 'backoff_min', 'backoff_max', 'lazy_idle', 'queue_age_max']) if (settings[name] && !DURATION.test(settings[name])) wrong(name, `"${settings[name]}" is not a duration; write a number and a unit, such as 10s`);
  return problems;
}

const linkStore = new Map();
const link = (name, settings, run, source = 'store') => linkStore.set(name, { name, source, settings: { own_name: 'berlin', secret_file: `/etc/meridian/secrets/${name}`, ...settings }, author: source === 'file' ? '' : 'ops', changed_at: source === 'file' ? null : iso(started), run });
link('munich', { address: 'mqtt.munich.example.com:8883', topics: 'plant/#\nalarms/+/high', origins: 'vienna', tls: true, prefix: 'south/' }, { origins: ['munich', 'vienna'], connected: true, gives: { connected: true, queued: 0, filters: 412 } });
link('hamburg', { address: '10.8.0.4:8883', topics: 'ships/#', tls: true }, { origins: ['hamburg'], connected: false, error: '10.8.0.4:8883: connection refused', gives: { connected: false, queued: 184_020, filters: 96, dropped: 12 } });
link('zurich', { export: 'reports/#' }, { origins: [], refused: 'the clock differs by 900 s from the one of this node; correct one of them' }, 'file');
link('lab', { address: 'lab.example.com:1883', topics: '#', enabled: false }, { origins: [] });

const taking = (name, run) => (origin, index) => ({
  origin, node: index === 0 ? 'meridian-1' : 'meridian-2', state: run.connected ? 'connected to mqtt.munich.example.com:8883' : `waits 24s before the next attempt: ${run.error}`, connected: run.connected, failing: !run.connected, connected_s: run.connected ? seconds() : null,
  address: run.connected ? 'mqtt.munich.example.com:8883' : '10.8.0.4:8883', session: index === 0 ? `$linked/${name}` : `$linked/${name}/${origin}`, filters_wanted: 1207, filters_subscribed: run.connected ? 1207 : 1180, filters_refused: run.connected ? 2 : 0, filters_broader: 0, broader: [], stale_filters: 0,
  messages: run.connected ? seconds() * (index === 0 ? 310 : 14) : 4_120_332, bytes: run.connected ? seconds() * 310 * 170 : 611_204_881, in_flight: run.connected ? 14 : 0, refused: 0, postponed: run.connected ? 2 : 0, dropped: { too_large: index === 0 ? 3 : 0, no_room: 0, too_many_hops: 0, looped: 0, unwanted: 0, not_ready: 0 },
  reconnects: 3, failed_attempts: run.connected ? 5 : 388, remote_sessions_lost: 0, restores: 0, last_error: run.error ?? null,
});
const linkOf = ({ name, source, settings, author, changed_at, run }) => {
  const on = settings.enabled !== false;
  const lines = (key, fallback) => String(settings[key] ?? fallback).split('\n').filter((line) => line !== '');
  const giving = { origin: 'berlin', node: 'meridian-2', session: `$link/${name}`, connected: run?.gives?.connected ?? false, connection_node: run?.gives?.connected ? 'meridian-1' : null, address: run?.gives?.connected ? '10.7.3.1:51022' : null, filters: run?.gives?.filters ?? 0, queued_messages: run?.gives?.queued ?? 0, queued_bytes: (run?.gives?.queued ?? 0) * 180, oldest_s: run?.gives?.queued ? 5400 : null, in_flight: 0, dropped: run?.gives?.dropped ?? 0 };
  return {
    name, enabled: on, source, own_name: settings.own_name ?? '', address: settings.address ?? '', topics: lines('topics', ''), export: lines('export', '#'), settings, author, changed_at, fault: null,
    taking: on ? (run?.origins ?? []).map(taking(name, run)) : [], giving: run?.gives ? [giving] : [], refusal: run?.refused ? { node: 'meridian-2', at: iso(Date.now() - 40e3), address: '10.9.0.2:40122', why: run.refused, count: 31 } : null,
  };
};

function linkProblems(settings) {
  const problems = [];
  const wrong = (name, detail) => problems.push({ name, detail });
  if (!settings.secret_file) wrong('secret_file', 'a link needs a secret; make one with `head -c 32 /dev/urandom | base64`');
  if (settings.topics && !settings.address) wrong('address', 'the other cluster has no address, so nothing can be taken; write HOST:PORT, or remove topics');
  checkAddresses(settings, wrong);
  if (settings.prefix && !settings.prefix.endsWith('/')) wrong('prefix', `"${settings.prefix}" does not end with \`/\``);
  return problems;
}

const connectorStore = new Map();
const connector = (name, kind, settings, source = 'store') => connectorStore.set(name, { name, kind, source, settings: { kind, ...settings }, author: source === 'file' ? '' : 'ops', changed_at: source === 'file' ? null : iso(started) });
connector('audit-log', 'file', { directory: '/var/lib/meridian/export', files_max: 30 }, 'file');
connector('collector', 'http', { url: 'https://collector.example.com/mqtt', token_file: '/etc/meridian/secrets/collector', timeout: '5s' });
connector('events', 'kafka', { address: 'kafka-1.example.com:9092, kafka-2.example.com:9092', username: 'meridian', password_file: '/etc/meridian/secrets/kafka', tls: true });
connector('influx', 'line_protocol', { url: 'http://influx.example.com:8086', database: 'climate', organization: 'facility', token_file: '/etc/meridian/secrets/influx' });
connector('warehouse', 'postgresql', { address: 'db.example.com:5432', database: 'telemetry', username: 'meridian', password_file: '/etc/meridian/secrets/db', tls: true });

const actionStore = new Map();
const action = (name, settings, run, source = 'store') => actionStore.set(name, { name, source, settings, author: source === 'file' ? '' : 'ops', changed_at: source === 'file' ? null : iso(started + 3600e3), run });
action('audit-connects', { connector: 'audit-log', rule: 'SELECT event, clientid, peerhost, timestamp AS time\nFROM "$events/client/connected", "$events/client/disconnected"', description: 'who was here' }, { perSecond: 0.4, selected: 1 }, 'file');
action('climate', { connector: 'influx', rule: 'SELECT clientid, payload.temp AS celsius, timestamp AS time\nFROM "building/+/temp"', content: 'climate,device=${clientid} celsius=${celsius} ${time}' }, { perSecond: 310, selected: 1 });
action('hot-rooms', { rule: 'SELECT clientid, topic(2) AS room, payload.temp AS celsius\nFROM "building/+/temp"\nWHERE payload.temp > 80', topic: 'alerts/${room}/heat', publish_qos: '2', description: 'alerts for the panel in the lobby' }, { perSecond: 310, selected: 0.01 });
action('readings', { connector: 'warehouse', rule: 'SELECT clientid, payload.temp AS celsius, timestamp AS time\nFROM "building/+/temp"\nWHERE payload.temp > 80', statement: 'INSERT INTO readings (device, at, celsius)\nVALUES (${clientid}, to_timestamp(${time} / 1000.0), ${celsius})', batch_max: 1000, dead_letter: 'dead/${action}/${reason}', description: 'temperatures over 80' }, { perSecond: 310, selected: 0.2, state: 'retrying', failing: true, error: 'db.example.com:5432: connection refused; the next attempt is in 22s', waiting: 48_210 });
action('to-collector', { connector: 'collector', rule: 'SELECT *\nFROM "energy/#"', path: '/meters/${clientid}', body: 'json_array', headers: 'X-Site: north' }, { perSecond: 45, selected: 1, state: 'running', error: 'https://collector.example.com/mqtt: status 422: the field "kwh" is missing', refused: 31, waiting: 12 });
action('to-kafka', { connector: 'events', rule: 'FOREACH payload.sensors AS s\nDO clientid, s.id AS sensor, s.v AS value\nFROM "gateways/+/readings"', topic: 'telemetry', key: '${clientid}', enabled: false }, { perSecond: 0, selected: 1, state: 'stopped', waiting: 5400 });

function status({ name, run, settings }) {
  if (settings.enabled === false || !run) return null;
  const received = Math.floor(seconds() * run.perSecond);
  const records = Math.floor(received * run.selected);
  const waiting = run.waiting ? run.waiting + Math.floor(run.state === 'retrying' ? (Date.now() - startedHere) / 20 : Math.random() * 10) : 0;
  const written = run.state === 'retrying' ? 16_022_411 : Math.max(0, records - waiting - (run.refused ?? 0));
  return {
    node: 'meridian-1', state: run.state ?? (run.perSecond < 0 ? 'starting' : 'running'), failing: run.failing ?? false, since_s: run.state === 'retrying' ? 312 + Math.floor((Date.now() - startedHere) / 1000) : seconds(), last_error: run.error ?? null, session: `$action/${name}`, queued_messages: waiting, queued_bytes: waiting * 190, oldest_s: waiting > 0 ? 312 : null, in_flight: Math.min(waiting, 2000),
    received, not_selected: received - records, evaluation_errors: name === 'climate' ? 18 : 0, render_errors: name === 'climate' ? 4 : 0, records, written, bytes: written * 84, batches: Math.ceil(written / 210), retries: run.failing ? 27 : 1, refused: run.refused ?? 0, expired: 0, given_up: 0, dead_letters: run.refused ?? 0, fallbacks: 0, dropped: run.dropped ?? 0, dropped_queue: run.dropped ?? 0, dropped_qos0: 0, loops: 0,
    last_write_ms: written > 0 ? Date.now() - 7000 : null,
  };
}
const startedHere = Date.now();

const connectorOf = (stored) => ({ ...stored, used_by: [...actionStore.values()].filter((one) => one.settings.connector === stored.name).map((one) => one.name).sort() });
const actionOf = (stored) => {
  const { rule = '', connector: target = '', description = '', enabled = true } = stored.settings;
  return { name: stored.name, enabled, source: stored.source, kind: connectorStore.get(target)?.kind ?? 'republish', rule, connector: target, description, settings: stored.settings, author: stored.author, changed_at: stored.changed_at, status: status(stored) };
};
const sorted = (map, view) => [...map.values()].sort((a, b) => (a.name < b.name ? -1 : 1)).map(view);

const NAME = /^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$/;
const REQUIRED = { http: ['url'], postgresql: ['address', 'database'], kafka: ['address'], line_protocol: ['url'], file: ['directory'] };
const DURATION = /^\d+(\.\d+)?(ms|s|m|h|d)$/;

function connectorProblems(settings) {
  const problems = [];
  const wrong = (name, detail) => problems.push({ name, detail });
  const required = REQUIRED[settings.kind ?? 'http'];
  if (!required) wrong('kind', `"${settings.kind}" is not a kind; write one of ${Object.keys(REQUIRED).join(', ')}`);
  for (const name of required ?? []) if (!settings[name]) wrong(name, `a connector of this kind needs it`);
  if (settings.url && !/^https?:\/\/[^/\s]+/.test(settings.url)) wrong('url', `"${settings.url}" is not a URL; write http://HOST[:PORT][/PATH] or https://...`);
  checkAddresses(settings, wrong);
  if (settings.timeout && !DURATION.test(settings.timeout)) wrong('timeout', `"${settings.timeout}" is not a duration; write a number and a unit, such as 10s`);
  for (const [name, value] of Object.entries(settings)) if (name.endsWith('_file') && !String(value).startsWith('/')) wrong(name, `${value}: no such file or directory`);
  return problems;
}

function actionProblems(settings) {
  const problems = [];
  const wrong = (name, detail) => problems.push({ name, detail });
  if (!settings.rule) wrong('rule', 'the action has no rule; write SELECT ... FROM "filter"');
  else
    try {
      parse(settings.rule);
    } catch (error) {
      wrong('rule', error.message);
    }
  const target = settings.connector ? connectorStore.get(settings.connector) : null;
  if (settings.connector && !target) wrong('connector', `there is no connector "${settings.connector}"`);
  if (!settings.topic && (!settings.connector || target?.kind === 'kafka')) wrong('topic', 'an action with this target needs a topic');
  if (!settings.statement && target?.kind === 'postgresql') wrong('statement', 'an action with this target needs a statement');
  for (const name of ['topic', 'content', 'path', 'key', 'statement', 'headers', 'dead_letter']) if (/\$\{[^}]*$/.test(settings[name] ?? '')) wrong(name, 'a placeholder has no }');
  for (const name of ['batch_wait', 'retry_min', 'retry_max', 'expire', 'queue_age_max']) if (settings[name] && !DURATION.test(settings[name])) wrong(name, `"${settings[name]}" is not a duration; write a number and a unit, such as 10s`);
  if (settings.batch_max > 65535) wrong('batch_max', 'it must be 1 to 65535');
  return problems;
}

const invalid = (refuse, what, problems) => {
  if (problems.length > 0) refuse(422, `The ${what} is not valid: ${problems[0].name}: ${problems[0].detail}.`, problems);
};

/** The stored entry that is to be changed, if there is one. */
function changeable(refuse, store, noun, name) {
  const old = store.get(name);
  if (old?.source === 'file') refuse(409, `The ${noun} "${name}" is in the configuration file; change it there.`);
  if (!NAME.test(name)) refuse(422, `"${name}" is not a name.`, [{ name: 'name', detail: 'write letters, digits, dots, hyphens and underscores' }]);
  return old;
}

/** Routes of the mock server. */
export const routes = (page, refuse) => [
  ['GET', '/api/v1/drains', 'viewer', ({ query }) => page([], query)],
  ['GET', '/api/v1/bridges', 'viewer', ({ query }) => page(bridges(), query)],
  ['GET', '/api/v1/bridges/:', 'viewer', ({ part }) => bridgeOf(bridgeStore.get(part) ?? refuse(404, `There is no bridge "${part}".`))],
  ['PUT', '/api/v1/bridges/:', 'admin', ({ part, body }) => {
    const old = changeable(refuse, bridgeStore, 'bridge', part);
    invalid(refuse, 'bridge', bridgeProblems(body));
    const waits = leftBridges.get(part) ?? {};
    leftBridges.delete(part);
    bridgeStore.set(part, { name: part, source: 'store', settings: body, author: 'ops', changed_at: iso(), run: old?.run ?? (() => waits) });
    return [old ? 200 : 201, bridgeOf(bridgeStore.get(part))];
  }],
  ['DELETE', '/api/v1/bridges/:', 'admin', ({ part, query }) => {
    const deletes = query.get('messages') === 'delete';
    const old = bridgeStore.get(part) ?? (deletes && leftBridges.has(part) ? null : refuse(404, `There is no bridge "${part}".`));
    if (old?.source === 'file') refuse(409, `The bridge "${part}" is in the configuration file; delete it there.`);
    const { queued_messages = 0, queued_bytes = 0, oldest_s = null } = old?.run() ?? {};
    bridgeStore.delete(part);
    if (deletes) leftBridges.delete(part);
    else leftBridges.set(part, { queued_messages, queued_bytes, oldest_s });
  }],
  ['GET', '/api/v1/links/external', 'viewer', ({ query }) => page(sorted(linkStore, linkOf), query)],
  ['GET', '/api/v1/links/external/:', 'viewer', ({ part }) => linkOf(linkStore.get(part) ?? refuse(404, `There is no link "${part}".`))],
  ['PUT', '/api/v1/links/external/:', 'admin', ({ part, body }) => {
    const old = changeable(refuse, linkStore, 'link', part);
    invalid(refuse, 'link', linkProblems(body));
    linkStore.set(part, { name: part, source: 'store', settings: body, author: 'ops', changed_at: iso(), run: old?.run });
    return [old ? 200 : 201, linkOf(linkStore.get(part))];
  }],
  ['DELETE', '/api/v1/links/external/:', 'admin', ({ part }) => {
    const old = linkStore.get(part) ?? refuse(404, `There is no link "${part}".`);
    if (old.source === 'file') refuse(409, `The link "${part}" is in the configuration file; delete it there.`);
    linkStore.delete(part);
  }],
  ['GET', '/api/v1/connectors', 'viewer', ({ query }) => page(sorted(connectorStore, connectorOf), query)],
  ['POST', '/api/v1/connectors/test', 'admin', async ({ body }) => {
    const stored = body.name ? (connectorStore.get(body.name) ?? refuse(404, `There is no connector "${body.name}".`)) : null;
    const settings = body.settings ?? stored.settings;
    invalid(refuse, 'connector', connectorProblems(settings));
    await new Promise((done) => setTimeout(done, 300));
    if (settings.kind === 'postgresql') return { ok: false, message: `${settings.address}: connection refused. Does the server run, and does the firewall let the node through?`, took_ms: 3 };
    return { ok: true, message: { http: 'The server answered with status 405.', kafka: 'Kafka 3.7, 3 brokers.', line_protocol: 'InfluxDB 2.7.', file: 'The directory can be written.' }[settings.kind ?? 'http'], took_ms: 12 };
  }],
  ['GET', '/api/v1/connectors/:', 'viewer', ({ part }) => connectorOf(connectorStore.get(part) ?? refuse(404, `There is no connector "${part}".`))],
  ['PUT', '/api/v1/connectors/:', 'admin', ({ part, body }) => {
    const old = changeable(refuse, connectorStore, 'connector', part);
    invalid(refuse, 'connector', connectorProblems(body));
    connectorStore.set(part, { name: part, kind: body.kind ?? 'http', source: 'store', settings: body, author: 'ops', changed_at: iso() });
    return [old ? 200 : 201, connectorOf(connectorStore.get(part))];
  }],
  ['DELETE', '/api/v1/connectors/:', 'admin', ({ part }) => {
    const one = connectorOf(connectorStore.get(part) ?? refuse(404, `There is no connector "${part}".`));
    if (one.source === 'file') refuse(409, `The connector "${part}" is in the configuration file; delete it there.`);
    if (one.used_by.length > 0) refuse(409, `The connector "${part}" is used by ${one.used_by.join(', ')}; change or delete these actions first.`);
    connectorStore.delete(part);
  }],
  ['GET', '/api/v1/actions', 'viewer', ({ query }) => page(sorted(actionStore, actionOf), query)],
  ['POST', '/api/v1/actions/test', 'admin', ({ body }) => trial(body)],
  ['GET', '/api/v1/actions/:', 'viewer', ({ part }) => actionOf(actionStore.get(part) ?? refuse(404, `There is no action "${part}".`))],
  ['PUT', '/api/v1/actions/:', 'admin', ({ part, body }) => {
    const old = changeable(refuse, actionStore, 'action', part);
    invalid(refuse, 'action', actionProblems(body));
    actionStore.set(part, { name: part, source: 'store', settings: body, author: 'ops', changed_at: iso(), run: old?.run ?? { perSecond: 0, selected: 1 } });
    return [old ? 200 : 201, actionOf(actionStore.get(part))];
  }],
  ['DELETE', '/api/v1/actions/:', 'admin', ({ part }) => {
    const old = actionStore.get(part) ?? refuse(404, `There is no action "${part}".`);
    if (old.source === 'file') refuse(409, `The action "${part}" is in the configuration file; delete it there.`);
    actionStore.delete(part);
  }],
];

const LITERAL = /^(?:'((?:[^']|'')*)'|(-?\d+(?:\.\d+)?)|(true|false|null))$/i;
const fault = (rule, index, detail) => {
  const before = rule.slice(0, index).split('\n');
  return new Error(`line ${before.length}, column ${before.at(-1).length + 1}: ${detail}`);
};

/** Divides a text at commas that are not in parentheses or quotation marks. */
function parts(text) {
  const out = [''];
  let depth = 0;
  let quoted = false;
  for (const one of text) {
    if (one === "'") quoted = !quoted;
    else if (!quoted && '(['.includes(one)) depth++;
    else if (!quoted && ')]'.includes(one)) depth--;
    if (one === ',' && depth === 0 && !quoted) out.push('');
    else out[out.length - 1] += one;
  }
  return out.map((one) => one.trim());
}

function parse(rule) {
  const shape = /^\s*(SELECT|FOREACH)\s+([\s\S]*?)\s+FROM\s+((?:"[^"]*"\s*,?\s*)+)(?:WHERE\s+([\s\S]+))?$/i.exec(rule);
  if (!shape) {
    if (!/^\s*(SELECT|FOREACH)\b/i.test(rule)) throw fault(rule, rule.search(/\S|$/), 'a rule begins with SELECT or FOREACH');
    if (!/\bFROM\b/i.test(rule)) throw fault(rule, rule.length, 'FROM "filter" is missing (at the end)');
    throw fault(rule, rule.search(/\bFROM\b/i) + 5, 'a source is in double quotation marks, such as "sensors/#"');
  }
  const [, kind, head, sources, where] = shape;
  const each = /^FOREACH$/i.test(kind) ? /^([\s\S]*?)(?:\s+AS\s+(\w+))?(?:\s+DO\s+([\s\S]*?))?(?:\s+INCASE\s+([\s\S]*?))?$/i.exec(head) : null;
  const columns = parts(each ? (each[3] ?? '*') : head).map((text, i) => {
    const [, expression, alias] = /^([\s\S]*?)(?:\s+AS\s+([\w.]+))?$/i.exec(text);
    if (!expression) throw fault(rule, rule.indexOf(head) + head.length, 'a column is missing');
    return { expression, name: alias ?? (/^[\w.]+$/.test(expression) ? expression.split('.').at(-1) : `column_${i + 1}`) };
  });
  return { columns, sources: [...sources.matchAll(/"([^"]*)"/g)].map((one) => one[1]), where, each: each && { array: each[1], name: each[2] ?? 'item', incase: each[4] } };
}

function lookUp(path, scope) {
  let value = scope;
  for (const step of path.matchAll(/([A-Za-z_]\w*|'[^']*')|\[(-?\d+)\]/g)) {
    if (typeof value === 'string') {
      try {
        value = JSON.parse(value);
      } catch {
        throw new Error('payload: the text is not JSON: expected value at line 1, column 1');
      }
    }
    const at = Number(step[2]);
    value = step[2] ? value?.at?.(at > 0 ? at - 1 : at) : value?.[step[1].replaceAll("'", '')];
  }
  return value ?? null;
}

function evaluate(expression, scope) {
  const text = expression.trim();
  const literal = LITERAL.exec(text);
  if (literal) return literal[1] !== undefined ? literal[1].replaceAll("''", "'") : literal[2] !== undefined ? Number(literal[2]) : JSON.parse(literal[3].toLowerCase());
  const either = /^([\s\S]+?)\s+(and|or)\s+([\s\S]+)$/i.exec(text);
  if (either && !/^CASE\b/i.test(text)) return /and/i.test(either[2]) ? evaluate(either[1], scope) && evaluate(either[3], scope) : evaluate(either[1], scope) || evaluate(either[3], scope);
  const compared = /^([\s\S]+?)\s*(!=|<>|<=|>=|=~|=|<|>)\s*([\s\S]+)$/.exec(text);
  if (compared && !/^CASE\b/i.test(text)) {
    const [a, b] = [evaluate(compared[1], scope), evaluate(compared[3], scope)];
    const order = { '=': a === b, '!=': a !== b, '<>': a !== b, '=~': typeof a === 'string' && matches(String(b), a), '<': a < b, '<=': a <= b, '>': a > b, '>=': a >= b };
    return a === null && ['<', '<=', '>', '>='].includes(compared[2]) ? false : order[compared[2]];
  }
  const cases = /^CASE\s+([\s\S]+?)(?:\s+ELSE\s+([\s\S]+?))?\s+END$/i.exec(text);
  if (cases) {
    for (const [, condition, result] of cases[1].matchAll(/WHEN\s+([\s\S]+?)\s+THEN\s+('[^']*'|\S+)/gi)) if (evaluate(condition, scope) === true) return evaluate(result, scope);
    return cases[2] ? evaluate(cases[2], scope) : null;
  }
  const call = /^(\w+)\(([\s\S]*)\)$/.exec(text);
  if (call) {
    const values = call[2] ? parts(call[2]).map((one) => evaluate(one, scope)) : [];
    if (call[1] === 'topic') return values.length === 0 ? scope.topic : (scope.topic.split('/').at(values[0] > 0 ? values[0] - 1 : values[0]) ?? null);
    const known = { round: Math.round, floor: Math.floor, ceil: Math.ceil, abs: Math.abs, upper: (one) => String(one).toUpperCase(), lower: (one) => String(one).toLowerCase(), concat: (...all) => all.join(''), now_timestamp: () => Math.floor(Date.now() / 1000), coalesce: (...all) => all.find((one) => one !== null) ?? null, str: String, int: (one) => Math.trunc(Number(one)), float: Number, strlen: (one) => [...one].length };
    if (!Object.hasOwn(known, call[1].toLowerCase())) throw new Error(`there is no function "${call[1]}"`);
    return known[call[1].toLowerCase()](...values);
  }
  const sum = /^([\s\S]+?)\s+([*/+-])\s+([\s\S]+)$/.exec(text);
  if (sum) {
    const [a, b] = [evaluate(sum[1], scope), evaluate(sum[3], scope)];
    if (a === null || b === null) return null;
    return { '*': a * b, '/': a / b, '+': a + b, '-': a - b }[sum[2]];
  }
  return lookUp(text, scope);
}

function put(target, name, value) {
  const path = name.split('.');
  const last = path.pop();
  let at = target;
  for (const one of path) at = at[one] ??= {};
  at[last] = value;
}

function outputsOf(rule, message) {
  if (rule.where && evaluate(rule.where, message) !== true) return [];
  const elements = rule.each ? evaluate(rule.each.array, message) : [null];
  if (!Array.isArray(elements)) return [];
  return elements.flatMap((element) => {
    const scope = rule.each ? { ...message, [rule.each.name]: element } : message;
    if (rule.each?.incase && evaluate(rule.each.incase, scope) !== true) return [];
    const out = {};
    for (const { expression, name } of rule.columns) {
      if (expression === '*') Object.assign(out, scope);
      else put(out, name, evaluate(expression, { ...scope, ...out }));
    }
    return [out];
  });
}

const shown = (value) => (typeof value === 'string' ? value : JSON.stringify(value));
function render(template, output) {
  return template.replace(/\$\$\{|\$\{([^}]*)\}/g, (all, path) => {
    if (all === '$${') return '${';
    if (path === '.') return JSON.stringify(output);
    const value = lookUp(path.replace(/\?$/, ''), output);
    if (value === null && !path.endsWith('?')) throw new Error(`the output has no value "${path}"; write \${${path}?} if it may be missing`);
    return value === null ? '' : shown(value);
  });
}

const FIELDS = { republish: ['topic', 'content', 'publish_qos', 'publish_retain', 'headers'], http: ['method', 'path', 'headers', 'content'], postgresql: [], kafka: ['topic', 'key', 'headers', 'content'], line_protocol: ['content'], file: ['content'] };
const DEFAULTS = { content: '${.}', publish_qos: '1', publish_retain: 'false', method: 'POST' };
function recordOf(kind, settings, output) {
  if (kind === 'postgresql') return { fields: [...(settings.statement ?? '').matchAll(/\$\{([^}?]*)\??\}/g)].map((one, i) => ({ name: `$${i + 1} ${one[1]}`, value: render(one[0], output) })) };
  return { fields: FIELDS[kind].filter((name) => settings[name] || DEFAULTS[name]).map((name) => ({ name, value: render(String(settings[name] ?? DEFAULTS[name]), output) })) };
}

async function trial({ settings = {}, message, event, live }) {
  const empty = { matched: false, outputs: [], records: [], error: null };
  let rule;
  try {
    rule = parse(settings.rule ?? '');
  } catch (error) {
    return { ...empty, error: { where: 'rule', message: error.message } };
  }
  let used = { event: event ? event.slice(8).replaceAll('/', '.') : 'message.publish', timestamp: Date.now(), node: 'meridian-1', username: null, flags: { retain: false, dup: false }, ...message };
  if (live) {
    await new Promise((done) => setTimeout(done, 1200));
    const filter = rule.sources.find((one) => !one.startsWith('$events/'));
    if (!filter) return { ...empty, message: null };
    used = { ...used, topic: filter.replaceAll('+', '7').replace('#', 'a'), payload: '{"temp": 83.25}', qos: 1, clientid: 'sensor-0041', peerhost: '10.20.1.41' };
  }
  const answer = { ...empty, ...(live ? { message: used } : {}) };
  const selected = event ? rule.sources.includes(event) : rule.sources.some((one) => matches(one, used.topic ?? ''));
  if (!selected) return answer;
  try {
    answer.outputs = outputsOf(rule, used);
  } catch (error) {
    return { ...answer, error: { where: 'evaluation', message: error.message } };
  }
  answer.matched = answer.outputs.length > 0;
  try {
    const kind = connectorStore.get(settings.connector)?.kind ?? 'republish';
    answer.records = answer.outputs.map((output) => recordOf(kind, settings, output));
  } catch (error) {
    return { ...answer, error: { where: 'template', message: error.message } };
  }
  return answer;
}
