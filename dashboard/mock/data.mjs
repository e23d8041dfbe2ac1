// Data of the mock node: sensors, lamps and services of a building. It is kept in memory and changes a little over time.

export const STREAMED = Symbol('streamed');
const started = Date.now() - 3 * 86400e3 - 5 * 3600e3;
const iso = (ms = Date.now()) => new Date(ms).toISOString();
let seed = 7;
const random = () => ((seed = (seed * 1103515245 + 12345) & 0x7fffffff) / 0x7fffffff);
const pick = (list) => list[Math.floor(random() * list.length)];
const b64 = (text) => Buffer.from(text).toString('base64');

export function matches(filter, topic) {
  const f = filter.replace(/^\$share\/[^/]+\//, '').split('/');
  const t = topic.split('/');
  for (let i = 0; i < f.length; i++) {
    if (f[i] === '#') return true;
    if (i >= t.length || (f[i] !== '+' && f[i] !== t[i])) return false;
  }
  return f.length === t.length;
}

const KINDS = [
  ['sensor', 'building/{b}/floor/{f}/temperature', '5.0'],
  ['lamp', 'building/{b}/floor/{f}/lamp/{n}/state', '3.1.1'],
  ['meter', 'energy/{b}/meter/{n}', '3.1.1'],
  ['gateway', 'gateway/{n}/status', '5.0'],
];
export const clients = [];
export const subscriptions = [];
const topics = [];
for (let i = 0; i < 1400; i++) {
  const [kind, topic, version] = KINDS[i % 4];
  const connected = random() > 0.12;
  const queued = random() > 0.97 ? Math.floor(random() * 900) : 0;
  const id = `${kind}-${String(i).padStart(4, '0')}`;
  topics.push(topic.replace('{b}', pick(['north', 'south', 'west'])).replace('{f}', String(1 + (i % 9))).replace('{n}', String(i)));
  clients.push({
    client_id: id, connected, address: connected ? `10.20.${i % 16}.${i % 250}:${40000 + i}` : null, username: connected ? `${kind}s` : null,
    version: connected ? version : null, connected_at: connected ? iso(Date.now() - random() * 3e8) : null, keep_alive_s: 60, durable: !connected || i % 3 === 0,
    subscriptions: 1, inflight: queued ? 12 : 0, queued_messages: queued, queued_bytes: queued * 312, messages_received: Math.floor(random() * 1e5), messages_sent: Math.floor(random() * 1e4), node: 'meridian-1',
  });
  subscriptions.push({ filter: `command/${id}/#`, qos: 1, no_local: false, retain_as_published: false, retain_handling: 0, subscription_id: null, client_id: id, connected, node: 'meridian-1' });
}
for (const [id, filter] of [['dashboards/lobby', 'building/north/#'], ['historian', '#'], ['analytics-1', '$share/analytics/energy/+/meter/+'], ['analytics-2', '$share/analytics/energy/+/meter/+'], ['alarm-service', 'building/+/floor/+/temperature']]) {
  clients.unshift({ client_id: id, connected: true, address: `127.0.0.1:${50000 + clients.length}`, username: 'services', version: '5.0', connected_at: iso(started + 9000), keep_alive_s: 30, durable: true, subscriptions: 1, inflight: 3, queued_messages: id === 'historian' ? 1840 : 0, queued_bytes: id === 'historian' ? 1840 * 220 : 0, messages_received: 12, messages_sent: 9_483_112, node: 'meridian-1' });
  subscriptions.unshift({ filter, qos: id === 'historian' ? 1 : 0, no_local: false, retain_as_published: true, retain_handling: 0, subscription_id: 4, client_id: id, connected: true, node: 'meridian-1' });
}

export const node = () => ({
  name: 'meridian-1', version: '0.1.0', commit: '0a1b2c3d4e5f', pid: 4242, started_at: iso(started), uptime_s: Math.floor((Date.now() - started) / 1000), workers: 2, state: 'ready', data_dir: '/var/lib/meridian',
  listeners: [{ name: 'default', address: '0.0.0.0:1883', connections: 1180, connections_max: 100000 }, { name: 'local', address: '/run/meridian.sock', connections: 4, connections_max: 1000 }],
  connections_max: 100000, http: '127.0.0.1:18083', os: 'linux x86_64', cpus: 2, open_until_first_user: users.size === 0,
  connections: 1184, sessions: 420, subscriptions: 1893, messages_received: Math.floor(Date.now() * 0.9), messages_sent: Math.floor(Date.now() * 2.4), cluster: null,
});

const NODES = { 'meridian-1': ['core', 'europe'], 'meridian-2': ['core', 'europe'], 'meridian-3': ['core', 'america'], 'edge-lobby': ['replicant', 'europe'], 'edge-warehouse': ['replicant', 'america'] };
/** Byte counters of a link. Each node has its own rate in bytes per millisecond; bytes sent at one end are received at the other. */
const traffic = (from, to) => {
  const sent = (one, other) => (other === 'edge-warehouse' ? 4_812_300 : Math.floor((Date.now() - started) * (1 + Object.keys(NODES).indexOf(one)) * 40));
  return { bytes_sent: sent(from, to), bytes_received: sent(to, from) };
};
/** Five mock nodes; one of them is unreachable. */
export const nodes = () => {
  const names = Object.keys(NODES);
  const link = (from, to) => ({
    node: to, role: NODES[to][0], region: NODES[to][1], state: to === 'edge-warehouse' ? 'dead' : 'up', state_s: 812.5,
    round_trip_ms: to === 'edge-warehouse' ? null : NODES[from][1] === NODES[to][1] ? 0.4 : 88.2, clock_ahead_s: to === 'edge-warehouse' ? null : 0.002, clock_differs: false, retransmitted_percent: from === 'meridian-3' ? 1.8 : 0,
    waiting_bytes: to === 'edge-warehouse' ? 4_812_300 : 0, waiting_frames: to === 'edge-warehouse' ? 18_223 : 0, oldest_s: to === 'edge-warehouse' ? 92.5 : 0, ...traffic(from, to),
    last_error: to === 'edge-warehouse' ? 'it cannot be reached: connection timed out' : null,
  });
  const items = names.filter((name) => name !== 'edge-warehouse').map((name, i) => ({
    ...node(), name, connections: [1184, 977, 1302, 211][i],
    cluster: { role: NODES[name][0], region: NODES[name][1], acknowledging: true, attached_to: NODES[name][0] === 'replicant' ? 'meridian-2' : null, clock_offset_s: null, links: names.filter((other) => other !== name).map((other) => link(name, other)) },
  }));
  return { items, next: null, missing: ['edge-warehouse'] };
};

/** Their clients, and those that stay after a rebalance. */
export const rebalanced = () => {
  const items = nodes().items;
  const mean = Math.ceil(items.reduce((sum, one) => sum + one.connections, 0) / items.length);
  const known = items.map(({ name, connections }) => ({ node: name, connections, accepts_clients: true, keep: connections > mean * 1.1 ? mean : null }));
  const unknown = { node: 'edge-warehouse', connections: null, accepts_clients: false, keep: null };
  return { mean, tolerance_percent: 10, nodes: [...known, unknown] };
};

/** Their cluster: the second node is the leader, and the unreachable one is dead. */
export const cluster = () => ({
  unjoined_peers: [{ address: '10.2.0.9', name: 'edge-warehouse', reason: "the peer refuses this node: the cluster's secret is not the same on both: check the secret's file", last_s: 1.2, count: 318 }],
  membership: {
    stale: false,
    joined: true,
    waits_for: null,
    members: Object.keys(NODES).sort().map((name) => ({
      node: name, role: NODES[name][0], region: NODES[name][1], address: `${name}:7883`, incarnation: 4, state: name === 'edge-warehouse' ? 'dead' : 'alive',
      votes: NODES[name][0] === 'core', leads: name === 'meridian-2',
    })),
    replica: { raft_state: 'follower', term: 7, leader: 'meridian-2', leader_via: null, quorum: true, voters: 3, failure: null },
  },
});

const total = { at: Date.now(), in: 8.1e8, out: 2.4e9, bin: 9e10, bout: 3.1e11, drops: { slow_reader: 18211, queue_full: 922, expired: 40211, packet_too_large: 3, not_readable: 0, session_ended: 120, no_group_member: 9 }, busy: [9e10, 8.7e10], cpu: 81233 };
const wave = (period, phase = 0) => Math.sin((Date.now() / 1000 / period + phase) * 2 * Math.PI);
function advance() {
  const seconds = (Date.now() - total.at) / 1000;
  total.at = Date.now();
  const rate = 3100 + 900 * wave(140) + 300 * wave(23) + 250 * Math.random();
  const out = rate * (2.9 + 0.2 * wave(61));
  total.in += rate * seconds;
  total.out += out * seconds;
  total.bin += rate * 180 * seconds;
  total.bout += out * 190 * seconds;
  total.drops.slow_reader += Math.max(0, 6 * wave(40)) * seconds;
  total.drops.expired += 2 * seconds;
  total.busy[0] += (0.31 + 0.1 * wave(90) + 0.04 * Math.random()) * seconds * 1e6;
  total.busy[1] += (0.27 + 0.1 * wave(110, 0.3) + 0.04 * Math.random()) * seconds * 1e6;
  total.cpu += (0.55 + 0.15 * wave(100)) * seconds;
}
export function stats() {
  advance();
  const online = clients.filter((client) => client.connected).length;
  const by = (n) => [0.6, 0.35, 0.05].map((part) => Math.floor(n * part));
  const drops = Object.fromEntries(Object.entries(total.drops).map(([name, value]) => [name, Math.floor(value)]));
  return {
    at: iso(), uptime_s: Math.floor((Date.now() - started) / 1000), connections: online, sessions: clients.filter((client) => client.durable).length, subscriptions: subscriptions.length, routes: subscriptions.length - 1,
    retained: { messages: retained.size, bytes: retained.size * 90 }, queued: { messages: Math.floor(2600 + 400 * wave(80)), bytes: Math.floor(7e5 + 9e4 * wave(80)), offline_bytes: 310_000, oldest_age_s: 412 },
    received: { messages: Math.floor(total.in), messages_by_qos: by(total.in), bytes: Math.floor(total.bin) }, sent: { messages: Math.floor(total.out), messages_by_qos: by(total.out), bytes: Math.floor(total.bout) },
    packets_received: { connect: 18233, publish: Math.floor(total.in), puback: Math.floor(total.out * 0.3), subscribe: 2211, pingreq: 912233 }, packets_sent: { connack: 18233, publish: Math.floor(total.out), puback: Math.floor(total.in * 0.3), suback: 2211, pingresp: 912233 },
    dropped: { total: Object.values(drops).reduce((a, b) => a + b), by_reason: drops }, counters: { takeovers: 210, keep_alive_timeouts: 88 },
    auth: { accepted: 18200, cached: 17000, refused: 33, busy: 0, anonymous_refused: 2, banned: 1 }, accept_errors: 0,
    workers: [0, 1].map((worker) => ({ worker, connections: Math.floor(online / 2), turns: 1e8, busy_us: Math.floor(total.busy[worker]), turn_us_p50: 42 + worker * 3, turn_us_p99: 410 + worker * 55, queued_bytes: 30211, mailbox_bytes: 812 })),
    process: { cpu_s: total.cpu, resident_bytes: Math.floor(148e6 + 6e6 * wave(200)), open_fds: online + 31, max_fds: 1048576, threads: 9 },
  };
}

export function top(limit) {
  const entries = (key, names, scale) => names.slice(0, limit).map((name, i) => ({ [key]: name, messages_per_s: scale / (i + 1.4) + 3 * Math.random(), bytes_per_s: (scale * 180) / (i + 1.4) }));
  return { window_s: 10, sample: 16, publishers: entries('client_id', clients.slice(5, 20).map((client) => client.client_id), 310), subscribers: entries('client_id', ['historian', 'dashboards/lobby', 'alarm-service', 'analytics-1', 'analytics-2'], 2900), topics: entries('topic', topics.slice(0, 12), 96) };
}

export function findClients(query) {
  const wanted = (name, test) => !query.has(name) || test(query.get(name));
  const q = query.get('search')?.toLowerCase();
  return clients.filter((client) => (!q || client.client_id.toLowerCase().includes(q)) && wanted('connected', (v) => String(client.connected) === v) && wanted('version', (v) => client.version === v) && wanted('username', (v) => client.username === v)
    && wanted('address', (v) => client.address?.startsWith(v.split('/')[0].replace(/(\.0)+$/, '')) ?? false) && wanted('min_queued', (v) => client.queued_messages >= Number(v)) && wanted('min_inflight', (v) => client.inflight >= Number(v)));
}
export const detail = (client) => ({
  ...client,
  connection: client.connected ? { worker: client.client_id.length % 2, listener: 'default', receive_maximum: 65535, packet_size_max: null, topic_alias_max: 10, last_packet_ms: 812, unsent_bytes: 0, publisher_blocked: false, has_will: true, oldest_unacknowledged_ms: client.inflight ? 612 : null, client_attrs: { site: ['north'] } } : null,
  session: client.durable ? { expiry_s: 86400, expires_at: client.connected ? null : iso(Date.now() + 7.2e7), inflight: client.inflight, queued_messages: client.queued_messages, queued_bytes: client.queued_bytes, oldest_queued_age_s: client.queued_messages ? 93.2 : null, waiting_publishers: 0, will_due_at: null } : null,
});
export function kick(client, ends) {
  const closed = client.connected;
  Object.assign(client, { connected: false, address: null, connected_at: null });
  if (ends || !client.durable) clients.splice(clients.indexOf(client), 1);
  return { connection_closed: closed, session_ended: ends && client.durable };
}
export function subscribe(client, body) {
  subscriptions.push({ filter: body.filter, qos: body.qos ?? 0, no_local: body.no_local ?? false, retain_as_published: body.retain_as_published ?? false, retain_handling: body.retain_handling ?? 0, subscription_id: body.subscription_id ?? null, client_id: client.client_id, connected: client.connected, node: client.node });
  client.subscriptions++;
  return { filter: body.filter, reason_code: body.qos ?? 0, reason: `granted QoS ${body.qos ?? 0}` };
}
export function unsubscribe(client, filter) {
  const at = subscriptions.findIndex((one) => one.client_id === client.client_id && one.filter === filter);
  if (at < 0) return { filter, reason_code: 17, reason: 'no subscription existed' };
  subscriptions.splice(at, 1);
  client.subscriptions--;
  return { filter, reason_code: 0, reason: 'success' };
}
export const queue = (client, payload) => ({
  items: Array.from({ length: Math.min(100, client.queued_messages + client.inflight) }, (_, i) => ({ state: i < client.inflight ? 'inflight' : 'waiting', packet_id: i < client.inflight ? i + 1 : null, topic: topics[i], qos: 1, retain: false, payload_bytes: 41, age_ms: 93200 - i * 800, expires_in_s: i % 5 ? null : 40, ...(payload ? { payload: b64(`{"value": ${20 + i / 10}, "unit": "°C"}`) } : {}) })),
  next: null, truncated: client.queued_messages > 100,
});
export function findSubscriptions(query) {
  return subscriptions.filter((one) => (!query.has('filter') || one.filter === query.get('filter')) && (!query.has('match') || matches(one.filter, query.get('match'))) && (!query.has('client_id') || one.client_id === query.get('client_id')) && (!query.has('share') || one.filter.startsWith(`$share/${query.get('share')}/`)));
}
export const routes = () => subscriptions.map((one) => ({ filter: one.filter, destinations: [{ kind: 'client', worker: 0, shard: null, client_id: one.client_id }] }));
export function receivers(topic, limit) {
  const all = subscriptions.filter((one) => matches(one.filter, topic)).map((one) => ({ client_id: one.client_id, node: one.node, connected: one.connected, durable: true, filters: [one.filter], qos: one.qos, share: /^\$share\/([^/]+)\//.exec(one.filter)?.[1] ?? null }));
  return { topic, receivers: all.slice(0, limit), truncated: all.length > limit, total: all.length };
}

export const retained = new Map();
const keep = (topic, payload, extra = {}) => retained.set(topic, { topic, qos: 1, payload, at: Date.now() - random() * 9e7, expires_in_s: null, content_type: null, user_properties: [], ...extra });
for (const topic of topics.slice(0, 420)) keep(topic, Buffer.from(`{"value": ${(18 + 6 * random()).toFixed(1)}, "unit": "°C", "at": "${iso()}"}`));
keep('building/north/plan', Buffer.from([0x89, 0x50, 0x4e, 0x47, 0xd, 0xa, 0x1a, 0xa, 0, 0, 0, 0xd, 0x49, 0x48, 0x44, 0x52]), { content_type: 'image/png', user_properties: [['source', 'cad'], ['<b>html</b>', '"><script>alert(1)</script>']] });
keep('building/north/notice', Buffer.from('The lift is being serviced on Tuesday.'), { content_type: 'text/plain', expires_in_s: 7200 });
const listed = (one) => ({ topic: one.topic, qos: one.qos, payload_bytes: one.payload.length, age_s: (Date.now() - one.at) / 1000, expires_in_s: one.expires_in_s });
export const findRetained = (filter) => [...retained.values()].filter((one) => matches(filter, one.topic)).sort((a, b) => (a.topic < b.topic ? -1 : 1)).map(listed);
export function retainedMessage(topic) {
  const one = retained.get(topic);
  if (!one) return null;
  const text = one.payload.toString();
  return { ...listed(one), payload_base64: one.payload.toString('base64'), payload: text.includes('\ufffd') ? null : text, content_type: one.content_type, user_properties: one.user_properties };
}
export function deleteRetained(query) {
  const gone = query.has('topic') ? [query.get('topic')].filter((topic) => retained.has(topic)) : [...retained.keys()].filter((topic) => matches(query.get('filter'), topic));
  for (const topic of gone) retained.delete(topic);
  return gone.length;
}

const counted = new Map([['building/#', Date.now() - 4e6], ['energy/+/meter/+', Date.now() - 9e5]]);
export const topicMetrics = () => [...counted].map(([filter, since], i) => {
  const n = Math.floor(((Date.now() - since) / 1000) * (900 / (i + 1)));
  return { filter, since_at: iso(since), received: { messages: n, by_qos: [n, 0, 0], bytes: n * 180 }, sent: { messages: n * 3, by_qos: [n * 3, 0, 0], bytes: n * 540 }, dropped: Math.floor(n / 9000) };
});
export function addTopicMetric(filter) {
  if (counted.has(filter)) return null;
  counted.set(filter, Date.now());
  return [201, topicMetrics().find((one) => one.filter === filter)];
}
export const removeTopicMetric = (filter) => void counted.delete(filter);
let slowList = ['historian', 'dashboards/lobby', 'gateway-0103', 'lamp-0041'].map((client_id, i) => ({ client_id, latency_ms: 4210 / (i + 1), topic: topics[i], at: iso(Date.now() - i * 61e3), acknowledged: i !== 2 }));
export const slow = () => ({ items: slowList, next: null, threshold_ms: 500 });
export const clearSlow = () => void (slowList = []);

export const bans = [{ id: 'b1', kind: 'address', value: '203.0.113.0/24', reason: 'scan', by: 'ops', created_at: iso(Date.now() - 6e7), until: iso(Date.now() + 8e7) }, { id: 'b2', kind: 'client_id', value: 'rogue-*', reason: 'floods building/#', by: 'ops', created_at: iso(Date.now() - 9e6), until: null }];
export function ban(body) {
  const made = { id: `b${Date.now()}`, kind: body.kind, value: body.value, reason: body.reason ?? '', by: 'ops', created_at: iso(), until: body.for_s ? iso(Date.now() + body.for_s * 1000) : null };
  bans.unshift(made);
  return made;
}
export function lift(id) {
  const at = bans.findIndex((one) => one.id === id);
  if (at >= 0) bans.splice(at, 1);
}

export const users = new Map();
export function setUser(name, body) {
  const { password, scram_iterations: scram, name: _, ...fields } = body;
  const blank = { name, enabled: true, superuser: false, has_password: false, has_scram: false, tenant: null, attributes: {}, rates: null, rules: [], description: '', created_at: iso() };
  const made = { ...blank, ...users.get(name), ...fields, changed_at: iso() };
  if (password) Object.assign(made, { has_password: true, has_scram: Boolean(scram) });
  users.set(name, made);
  return made;
}
export const findUsers = (search) => [...users.values()].filter((one) => [one.name, one.tenant ?? '', one.description].some((text) => text.toLowerCase().includes(search.toLowerCase()))).sort((a, b) => (a.name < b.name ? -1 : 1));
export function importUsers({ users: list, csv, existing }) {
  const [head, ...rows] = (csv ?? '').trim().split('\n').map((line) => line.split(','));
  const all = list ?? rows.map((row) => Object.fromEntries(head.map((name, i) => [name, row[i]])));
  const known = all.filter((one) => users.has(one.name));
  if (existing === 'refuse' && known.length > 0) return null;
  const taken = existing === 'keep' ? all.filter((one) => !known.includes(one)) : all;
  for (const one of taken) setUser(one.name, one);
  return { added: all.length - known.length, replaced: existing === 'replace' ? known.length : 0, kept: existing === 'keep' ? known.length : 0 };
}
setUser('ops', { password: 'x', scram_iterations: 4096, superuser: true, description: 'on call' });
setUser('sensors', { password: 'x', tenant: 'north', description: 'all sensors of the building' });

const rules = [];
let ruleId = 0;
const numbered = (rule) => ({ ...rule, position: rules.indexOf(rule) + 1 });
const ruleOf = (id) => rules.find((one) => one.id === id);
const insert = (rule, position) => rules.splice(Math.min(position ?? rules.length + 1, rules.length + 1) - 1, 0, rule);
export const listRules = () => rules.map(numbered);
export function addRule({ position, ...body }) {
  const rule = { id: String(++ruleId), enabled: true, description: '', author: 'ops', changed_at: iso(), ...body };
  insert(rule, position);
  return numbered(rule);
}
export const setRule = (id, body) => ruleOf(id) && numbered(Object.assign(ruleOf(id), body, { changed_at: iso() }));
export function moveRule(id, position) {
  const rule = ruleOf(id);
  if (!rule) return null;
  removeRule(id);
  insert(rule, position);
  return numbered(rule);
}
export const removeRule = (id) => void rules.splice(rules.findIndex((one) => one.id === id), 1);
export const decide = ({ topic }) => ({ allowed: true, decided_by: 'database', reason: `the mock rule matches ${topic}`, steps: [{ by: 'rules', opinion: 'none', reason: '' }, { by: 'database', opinion: 'allow', reason: 'the mock rule' }] });
addRule({ rule: 'deny everyone publish building/+/alarm/#', description: 'alarms are for the panel alone' });
addRule({ rule: 'allow everyone all building/#' });

const traces = new Set();
export function publish(body) {
  const payload = body.payload_base64 ? Buffer.from(body.payload_base64, 'base64') : Buffer.from(body.payload ?? '');
  if (body.retain) payload.length ? keep(body.topic, payload, { at: Date.now(), qos: body.qos ?? 0 }) : retained.delete(body.topic);
  for (const one of traces) one({ at: iso(), kind: 'publish_in', client_id: '', address: null, worker: 0, topic: body.topic, qos: body.qos ?? 0, retain: body.retain ?? false, payload_bytes: payload.length, payload: payload.toString('base64'), detail: `PUBLISH ${body.topic}, ${payload.length} bytes` });
  return subscriptions.some((one) => matches(one.filter, body.topic)) ? { reason_code: 0, reason: 'success' } : { reason_code: 16, reason: 'no matching subscribers' };
}
export function trace(query, send, end) {
  const kinds = query.getAll('kind');
  const emit = (event) => {
    if (kinds.length && !kinds.includes(event.kind)) return;
    if (query.has('topic') && !(event.topic && matches(query.get('topic'), event.topic))) return;
    if (query.has('client_id') && event.client_id !== query.get('client_id')) return;
    send('trace', event);
  };
  traces.add(emit);
  let n = 0;
  const timer = setInterval(() => {
    const i = n++ % 40;
    const id = query.get('client_id') ?? clients[i + 5].client_id;
    const payload = `{"value": ${(20 + Math.random()).toFixed(2)}}`;
    emit({ at: iso(), kind: ['publish_in', 'publish_out', 'packet_in'][n % 3], client_id: id, address: '10.20.1.7:40113', worker: n % 2, ...(n % 3 < 2 ? { topic: topics[i], qos: 1, retain: false, packet_id: (n % 1000) + 1, payload_bytes: payload.length, payload: b64(payload) } : {}), detail: n % 3 < 2 ? `PUBLISH ${topics[i]}, QoS 1, ${payload.length} bytes` : 'PINGREQ' });
  }, 180);
  const over = setTimeout(() => { send('end', { reason: 'time' }); end(); }, Number(query.get('seconds') ?? 60) * 1000);
  return () => { clearInterval(timer); clearTimeout(over); traces.delete(emit); };
}

const LEVELS = ['ERROR', 'WARN', 'INFO', 'DEBUG', 'TRACE'];
const line = (ms) => {
  const [level, target, message, fields] = pick([['INFO', 'edge::reactor', 'connection closed', { client_id: pick(clients).client_id, reason: 'keep alive timeout' }], ['INFO', 'broker::session', 'session taken over', { client_id: pick(clients).client_id }], ['WARN', 'edge::listener', 'slow reader', { client_id: 'historian', unsent_bytes: 262144 }], ['DEBUG', 'routing', 'filter added', { filter: 'a/#' }], ['ERROR', 'auth', 'password file cannot be read', { path: '/etc/meridian/passwords' }]]);
  return { at: iso(ms), level, target, message, fields };
};
const ring = Array.from({ length: 600 }, (_, i) => line(Date.now() - (600 - i) * 7000));
const upTo = (level) => (item) => LEVELS.indexOf(item.level) <= LEVELS.indexOf(level.toUpperCase());
export const log = (level, limit) => ring.filter(upTo(level)).slice(-limit);
export function follow(level, send) {
  const timer = setInterval(() => { const item = line(Date.now()); ring.push(item); if (ring.length > 2000) ring.shift(); if (upTo(level)(item)) send('log', item); }, 700);
  return () => clearInterval(timer);
}
export const level = { level: 'info', until: null };
export const setLevel = (body) => Object.assign(level, { level: body.level, until: body.for_s ? iso(Date.now() + body.for_s * 1000) : null });

const setting = (name, value, type, doc, extra = {}) => ({ name, section: name.split('.')[0], value, default: value, type, doc, range: null, choices: null, source: 'default', reloadable: true, pending: null, cluster: null, ...extra });
const settings = [
  setting('node.name', 'meridian-1', 'text', 'Name of the node in logs and in the cluster. Unset: the host name.', { source: 'file', default: null, reloadable: false }),
  setting('node.shutdown_timeout', '5s', 'duration', 'Maximum time of a shutdown: clients receive DISCONNECT and the messages in flight to them.', { range: '0s..=10m' }),
  setting('log.level', 'info', 'text', 'Minimum level of log lines: `error`, `warn`, `info`, `debug` or `trace`; also per module: `info,edge=debug`.'),
  setting('log.format', 'text', 'choice', 'Format of log lines.', { choices: ['text', 'json'], reloadable: false }),
  setting('edge.workers', '2', 'integer', 'Threads that serve connections; 0 is one per CPU.', { range: '0..=1024', source: 'command line', reloadable: false }),
  setting('auth.password_file', null, 'path', 'Users and their hashed passwords, made with `meridian passwd`.'),
  setting('mqtt.qos_max', '2', 'integer', 'Highest QoS of a PUBLISH from a client and of a granted subscription. Announced as Maximum QoS.', { range: '0..=2' }),
  setting('mqtt.retain_available', 'true', 'boolean', 'Whether messages may be retained. Announced as Retain Available.'),
  setting('mqtt.packet_size_max', '1MiB', 'size', 'Largest packet accepted from a client, fixed header included. Announced as Maximum Packet Size.', { range: '64B..=256MiB', source: 'file', default: '1MiB', pending: '2MiB' }),
  setting('mqtt.inflight_max', '1024', 'integer', 'QoS 1 and 2 messages sent to a client and not yet acknowledged by it.', { range: '1..=65535' }),
  setting('queue.messages_max', '1000', 'integer', 'Maximum number of messages in the queue of a session.', { range: '1..=1000000' }),
  setting('queue.bytes_max', '16MiB', 'size', 'Maximum size of the queue of a session.', { range: '1KiB..=1GiB', source: 'environment' }),
  setting('queue.full_wait', '5s', 'duration', 'Maximum time for which publishers wait for the full queue of a connected client. Then the client is closed.', { range: '0s..=10m' }),
];
const versionList = [{ version: 1, at: iso(started), by: null, comment: 'start', changes: [] }];
export const config = () => ({ version: versionList.at(-1).version, settings, file: '/etc/meridian/meridian.toml', refused: [] });
export const versions = () => [...versionList].reverse();
export function problemOf(name, value) {
  const one = settings.find((item) => item.name === name);
  if (!one) return { name, detail: 'There is no setting of this name.' };
  if (!one.reloadable) return { name, detail: 'A change needs a restart; write it to the file.' };
  if (['environment', 'command line'].includes(one.source)) return { name, detail: `Set by the ${one.source}; change it there.` };
  if (value === null) return null;
  if (one.type === 'integer' && !/^\d+$/.test(value)) return { name, detail: `"${value}" is not a whole number.` };
  if (one.choices && !one.choices.includes(value)) return { name, detail: `One of ${one.choices.join(', ')}.` };
  return null;
}
export function change(changes, comment, by = 'ops', scope = 'node') {
  const changed = [];
  for (const [name, value] of Object.entries(changes)) {
    const one = settings.find((item) => item.name === name);
    changed.push({ name, before: one.value, after: value ?? one.default });
    one.value = value ?? one.default;
    one.source = value === null ? 'default' : scope === 'cluster' ? 'cluster' : 'runtime';
    if (scope === 'cluster') one.cluster = value === null ? null : { value, by, comment, at: iso() };
  }
  const version = versionList.at(-1).version + 1;
  versionList.push({ version, at: iso(), by, comment, changes: changed });
  return { version, changed, overridden: [] };
}
export function rollback(version) {
  const back = {};
  for (const one of versions()) if (one.version > version) for (const item of one.changes) back[item.name] = item.before;
  return change(back, `rollback to version ${version}`);
}

export const keys = [{ name: 'ops', role: 'admin', created_at: iso(started), expires_at: null, last_used_at: iso() }, { name: 'grafana', role: 'viewer', created_at: iso(started), expires_at: iso(Date.now() + 6e9), last_used_at: iso(Date.now() - 9000) }];
export function addKey(body) {
  const key = { name: body.name, role: body.role, created_at: iso(), expires_at: body.expires_in_s ? iso(Date.now() + body.expires_in_s * 1000) : null, last_used_at: null };
  keys.push(key);
  return { ...key, token: 'mrd_0000000000000000000000000000made-up' };
}
export const removeKey = (name) => void keys.splice(keys.findIndex((key) => key.name === name), 1);

export const accounts = [
  { name: 'alice', role: 'admin', created_at: iso(started), changed_at: iso(started), sessions: 2 },
  { name: 'night-shift', role: 'operator', created_at: iso(started), changed_at: iso(Date.now() - 9e6), sessions: 0 },
];
export function addAccount({ name, role }) {
  const account = { name, role, created_at: iso(), changed_at: iso(), sessions: 0 };
  accounts.push(account);
  return account;
}
export function setAccount(name, { role }) {
  const account = accounts.find((one) => one.name === name);
  if (account) Object.assign(account, { role: role ?? account.role, changed_at: iso(), sessions: 0 });
  return account;
}
export const removeAccount = (name) => void accounts.splice(accounts.findIndex((one) => one.name === name), 1);
export const audit = Array.from({ length: 30 }, (_, i) => ({ at: iso(Date.now() - i * 7e5), by: i % 3 ? 'ops' : 'grafana', role: i % 3 ? 'admin' : 'viewer', address: '127.0.0.1:51312', method: i % 2 ? 'POST' : 'DELETE', path: i % 2 ? '/api/v1/publish' : '/api/v1/clients/lamp-0041', status: i % 3 ? 200 : 403, detail: i % 3 ? null : 'needs the role operator' }));
export const note = (who, request, url, status) => audit.unshift({ at: iso(), by: who.name, role: who.role, address: '127.0.0.1:51312', method: request.method, path: url.pathname, status, detail: null });

export function openapi(list) {
  const paths = {};
  for (const [method, pattern, role] of list) {
    const path = pattern.replace(':', '{id}');
    const tag = pattern.split('/')[3];
    (paths[path] ??= {})[method.toLowerCase()] = {
      tags: [tag], summary: `${method} of ${tag}`, description: '', security: [{ token: [role] }], parameters: [...(path.includes('{id}') ? [{ name: 'id', in: 'path', required: true, schema: { type: 'string' } }] : []), ...(method === 'GET' ? [{ name: 'limit', in: 'query', description: 'Items of a page.', schema: { type: 'integer', minimum: 1, maximum: 1000, default: 100 } }] : [])],
      ...(['POST', 'PUT', 'PATCH'].includes(method) ? { requestBody: { required: true, content: { 'application/json': { schema: { $ref: '#/components/schemas/Publish' } } } } } : {}),
      responses: { 200: { description: 'Done.', content: { 'application/json': { schema: { type: 'object' } } } }, 401: { description: 'No token.' } },
    };
  }
  return { openapi: '3.1.0', info: { title: 'Meridian', version: '0.1.0', description: 'The API of a node.' }, paths, components: { schemas: { Publish: { type: 'object', required: ['topic'], properties: { topic: { type: 'string', description: 'A Topic Name.', example: 'a/b' }, payload: { type: ['string', 'null'] }, qos: { type: 'integer', enum: [0, 1, 2], default: 0 }, retain: { type: 'boolean', default: false } } } } } };
}

/** Alarms of the mock cluster. */
export const alarms = () => [
  { node: 'edge-warehouse', severity: 'error', code: 'link', text: 'edge-warehouse (10.2.0.9:7883): no connection for 4m 2s; 3s ago: no route to host. Does it run (its `meridian ctl health`), does its address lead there, does the firewall let it through, and are cluster.id, secret and TLS the same?' },
  { node: 'core-2', severity: 'warning', code: 'clock', text: 'the clock of core-2 is 12s ahead of those of most nodes: timedatectl set-ntp true or chronyc makestep sets it, and nothing has to be restarted' },
];

/** Recorded history of the mock nodes: one hour in steps of five seconds. */
export function history(query) {
  const known = nodes();
  const names = query.get('node') ? [query.get('node')] : known.items.map((one) => one.name);
  const steps = Math.ceil(Number(query.get('seconds') ?? 3600) / 5);
  const last = Math.floor(Date.now() / 5000);
  const share = names.length / known.items.length;
  const list = (value) => Array.from({ length: steps }, (_, i) => +(share * value((last - steps + 1 + i) * 5)).toFixed(3));
  const swing = (t, period) => Math.sin((t / period) * 2 * Math.PI);
  const rate = (t) => 3100 + 900 * swing(t, 1400) + 300 * swing(t, 230);
  const drops = { slow_reader: list((t) => Math.max(0, 6 * swing(t, 400))), expired: list(() => 2) };
  return {
    step_s: 5, until: iso(last * 5000), nodes: names, ...(query.get('node') ? {} : { missing: known.missing }), summed: Array(steps).fill(names.length),
    series: {
      connections: list((t) => 3674 + 40 * swing(t, 900)), sessions: list(() => 812), messages_received_per_s: list(rate), messages_sent_per_s: list((t) => 2.9 * rate(t)), bytes_received_per_s: list((t) => 180 * rate(t)), bytes_sent_per_s: list((t) => 540 * rate(t)),
      packets_received_per_s: list((t) => 1.9 * rate(t)), packets_sent_per_s: list((t) => 3.3 * rate(t)), dropped_per_s: drops.slow_reader.map((value, i) => value + drops.expired[i]), queued_messages: list((t) => 2600 + 400 * swing(t, 800)), queued_bytes: list((t) => 7e5 + 9e4 * swing(t, 800)),
      offline_bytes: list(() => 310_000), resident_bytes: list((t) => 592e6 + 24e6 * swing(t, 2000)), cpus_busy: list((t) => 2.2 + 0.6 * swing(t, 1000)), reactors: list(() => 8), reactors_busy: list((t) => 2.3 + 0.8 * swing(t, 900)), reactor_busiest: Array.from({ length: steps }, (_, i) => +(0.41 + 0.1 * swing((last - steps + 1 + i) * 5, 1100)).toFixed(3)),
      dropped_per_s_by_reason: drops,
    },
  };
}

/** Sixteen shards with replicas on three of the cores each. The last one has no leader, and the one before is changing. */
function shardsOf(cores) {
  const replicas = (shard) => [0, 1, 2].slice(0, cores.length).map((i) => cores[(shard + i) % cores.length]);
  const item = (shard) => ({ shard, leader: shard === 15 ? null : cores[shard % cores.length], replicas: replicas(shard), joining: shard === 14 ? cores.at(-1) : null, leaving: null });
  return { replicas: 3, index: 41, items: Array.from({ length: 16 }, (_, shard) => item(shard)) };
}

/** Shards that a node leads, as it reports them. A replica of shard 3 lacks records. */
const ledBy = (shards, node) =>
  shards.items.filter((one) => one.leader === node).map(({ shard, replicas }) => ({
    shard, term: 3, applied_index: 81_233, sessions: 1200 + 37 * shard, connected: 1100 + 31 * shard, subscriptions: 2400 + 80 * shard, queued_messages: 410 * shard, queued_bytes: 104_000 * shard, retained_messages: 70, retained_bytes: 18_400,
    replicas: replicas.filter((one) => one !== node).map((other, i) => ({ node: other, behind: shard === 3 && i === 0 ? 4120 : 0, silent_s: 0.2 })),
  }));

/** Cluster of any size with nodes `n1`, `n2` .. and all links between them. `dead`: name of a node that is down. */
export function clusterOf(cores, replicants, dead = null) {
  const names = Array.from({ length: cores + replicants }, (_, i) => `n${i + 1}`);
  const role = (name) => (names.indexOf(name) < cores ? 'core' : 'replicant');
  const region = (name) => ['south-west', 'east'][names.indexOf(name) % 2];
  const link = (node) => ({ ...nodes().items[0].cluster.links[0], node, role: role(node), region: region(node), state: node === dead ? 'dead' : 'up', round_trip_ms: 12.5, retransmitted_percent: 0, oldest_s: 0 });
  const shards = shardsOf(names.slice(0, cores));
  const items = names.filter((name) => name !== dead).map((name, i) => ({
    ...node(), name, connections: 1184 + 937 * i,
    cluster: { role: role(name), region: region(name), acknowledging: true, attached_to: role(name) === 'core' ? null : names[i % cores], clock_offset_s: null, links: names.filter((other) => other !== name).map(link), shards: ledBy(shards, name) },
  }));
  const membership = {
    ...cluster().membership,
    members: names.map((name) => ({ node: name, role: role(name), region: region(name), address: `${name}:7883`, incarnation: 4, state: name === dead ? 'dead' : 'alive', votes: role(name) === 'core', leads: name === 'n1' })),
    replica: { raft_state: 'leader', term: 7, leader: 'n1', leader_via: null, quorum: true, voters: cores, failure: null },
  };
  return { page: { items, next: null, missing: dead === null ? [] : [dead] }, cluster: { node: 'n1', role: 'core', unjoined_peers: [], membership, shards } };
}
