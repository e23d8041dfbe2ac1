// The language of rules for the editor: tokens, examples, reference, and samples of messages and events.

export type TokenKind = 'keyword' | 'string' | 'source' | 'number' | 'comment' | 'function' | 'text';

export interface Token {
  kind: TokenKind;
  text: string;
}

const KEYWORDS = new Set('select foreach from where as do incase case when then else end and or not in is null true false div mod'.split(' '));
const TOKEN = /(--.*)|('(?:[^']|'')*'?)|("[^"]*"?)|(\b\d+(?:\.\d+)?(?:[eE][+-]?\d+)?\b)|([A-Za-z_]\w*)|(\s+|[^\w\s'"-]+|-|\w)/g;

/** Divides one line into tokens. Strings of several lines are coloured as far as their first line. */
export function tokens(line: string): Token[] {
  const out: Token[] = [];
  let last = '';
  for (const [all, comment, string, source, number, word] of line.matchAll(TOKEN)) {
    let kind: TokenKind = 'text';
    if (comment !== undefined) kind = 'comment';
    else if (string !== undefined) kind = 'string';
    else if (source !== undefined) kind = 'source';
    else if (number !== undefined) kind = 'number';
    else if (word !== undefined && last !== '.' && KEYWORDS.has(word.toLowerCase())) kind = 'keyword';
    out.push({ kind, text: all });
    // A name before a parenthesis is a function.
    const name = out.at(-2);
    if (all.startsWith('(') && name?.kind === 'text' && /^[A-Za-z_]\w*$/.test(name.text)) name.kind = 'function';
    last = all.at(-1) ?? '';
  }
  return out;
}

/** Place in an error of the rule: "line 2, column 5: ...". */
export function placeOf(message: string): { line: number; column: number } | null {
  const place = /\bline (\d+), column (\d+)/.exec(message);
  return place ? { line: Number(place[1]), column: Number(place[2]) } : null;
}

export interface Example {
  title: string;
  rule: string;
}

export const EXAMPLES: Example[] = [
  { title: 'Values over a limit', rule: 'SELECT clientid, payload.temp AS celsius, timestamp AS time\nFROM "building/+/temp"\nWHERE payload.temp > 80' },
  { title: 'All messages of a Topic Filter', rule: 'SELECT *\nFROM "sensors/#"' },
  { title: 'An output for each element of an array', rule: 'FOREACH payload.sensors AS s\nDO clientid, s.id AS sensor, s.v AS value\nINCASE s.v > 10\nFROM "gateways/+/readings"' },
  { title: 'A level of the topic, and a computed value', rule: 'SELECT topic(2) AS room,\n  round(payload.temp * 1.8 + 32) AS fahrenheit\nFROM "building/+/temp"' },
  { title: 'Levels by CASE', rule: "SELECT clientid,\n  CASE WHEN payload.temp > 80 THEN 'critical'\n       WHEN payload.temp > 60 THEN 'high'\n       ELSE 'normal' END AS level\nFROM \"building/+/temp\"" },
  { title: 'Clients that connect and disconnect', rule: 'SELECT event, clientid, peerhost, reason, timestamp AS time\nFROM "$events/client/connected", "$events/client/disconnected"' },
  { title: 'Dropped messages', rule: 'SELECT clientid, topic, reason\nFROM "$events/message/delivery_dropped"' },
  { title: 'Alarms of the broker', rule: 'SELECT name, severity, message, node\nFROM "$events/sys/alarm"\nWHERE active' },
];

const MESSAGE = ['id', 'clientid', 'username', 'topic', 'qos', 'payload', 'flags', 'pub_props', 'publish_received_at', 'peerhost', 'client_attrs', 'mountpoint', 'tenant'];
const CLIENT = ['clientid', 'username', 'peerhost', 'peername', 'sockname', 'listener', 'client_attrs', 'mountpoint', 'tenant'];
const CONNECTION = ['proto_name', 'proto_ver', 'keepalive', 'clean_start', 'expiry_interval', 'is_bridge', 'conn_props'];

export interface EventKind {
  /** Name after FROM. */
  name: string;
  text: string;
  fields: string[];
}

export const EVENTS: EventKind[] = [
  { name: '$events/client/connected', text: 'a client is connected', fields: [...CLIENT, ...CONNECTION, 'connected_at'] },
  { name: '$events/client/disconnected', text: 'a client is disconnected', fields: [...CLIENT, 'proto_name', 'proto_ver', 'reason', 'reason_code', 'disconn_props', 'connected_at', 'disconnected_at'] },
  { name: '$events/client/connack', text: 'the broker sends CONNACK', fields: [...CLIENT, ...CONNECTION, 'reason_code'] },
  { name: '$events/client/authn', text: 'an authentication ends', fields: [...CLIENT, 'result', 'reason', 'is_superuser', 'is_anonymous'] },
  { name: '$events/client/authz', text: 'a request is allowed or denied', fields: [...CLIENT, 'topic', 'action', 'result', 'authz_source'] },
  { name: '$events/session/subscribed', text: 'a client subscribes', fields: [...CLIENT, 'topic', 'qos', 'sub_props'] },
  { name: '$events/session/unsubscribed', text: 'a client unsubscribes', fields: [...CLIENT, 'topic', 'unsub_props'] },
  { name: '$events/message/delivered', text: 'a message is sent to a subscriber', fields: [...MESSAGE, 'from_clientid', 'from_username'] },
  { name: '$events/message/acked', text: 'a subscriber acknowledges a message', fields: [...MESSAGE, 'from_clientid', 'from_username', 'puback_props'] },
  { name: '$events/message/dropped', text: 'a message is dropped before it has a subscriber', fields: [...MESSAGE, 'reason'] },
  { name: '$events/message/delivery_dropped', text: 'a message for one subscriber is dropped', fields: [...MESSAGE, 'from_clientid', 'from_username', 'reason'] },
  { name: '$events/sys/alarm', text: 'an alarm is activated or deactivated', fields: ['name', 'active', 'severity', 'message', 'details', 'activated_at', 'deactivated_at'] },
];

/** Fields that messages have. */
export const MESSAGE_FIELDS: { name: string; text: string }[] = [
  { name: 'topic', text: 'Topic Name' },
  { name: 'topic(2)', text: 'a level of the topic, from 1; -1 is the last one' },
  { name: 'payload', text: 'payload: a string, or bytes' },
  { name: 'payload.temp', text: 'a value in a payload that is JSON' },
  { name: 'payload.list[1]', text: 'an element of an array, from 1; -1 is the last one' },
  { name: 'clientid', text: 'Client Identifier of the publisher' },
  { name: 'username', text: 'user name of the publisher' },
  { name: 'qos', text: '0, 1 or 2' },
  { name: 'flags.retain', text: 'whether the message is retained' },
  { name: "pub_props.'User-Property'.zone", text: 'a User Property' },
  { name: 'timestamp', text: 'time of the event, in milliseconds since 1970' },
  { name: 'publish_received_at', text: 'time of the arrival, in milliseconds since 1970' },
  { name: 'peerhost', text: 'IP address of the publisher' },
  { name: 'client_attrs.site', text: 'an attribute of the user' },
  { name: 'tenant', text: 'tenant of the user' },
  { name: 'id', text: 'identifier of the message' },
  { name: 'node', text: 'name of the node' },
];

export interface FunctionGroup {
  title: string;
  functions: { call: string; text: string }[];
}

const group = (title: string, ...functions: [call: string, text: string][]): FunctionGroup => ({ title, functions: functions.map(([call, text]) => ({ call, text })) });

export const FUNCTIONS: FunctionGroup[] = [
  group(
    'Numbers and conversions',
    ['int(x)', 'integer without the fraction'],
    ['float(x)', 'number from a string'],
    ['str(x)', 'text of a value'],
    ['bool(x)', "boolean from 0, 1, 'true' or 'false'"],
    ['round(x)', 'nearest integer'],
    ['floor(x)', 'next lower integer'],
    ['ceil(x)', 'next higher integer'],
    ['abs(x)', 'value without its sign'],
    ['mod(a, b)', 'remainder'],
    ['coalesce(a, b)', 'first argument that is not NULL'],
    ['is_null(x)', 'NULL or missing'],
    ['is_not_null(x)', 'neither NULL nor missing'],
    ['is_num(x)', 'whether it is a number'],
    ['is_str(x)', 'whether it is a string'],
  ),
  group(
    'Strings',
    ['concat(a, b)', 'all arguments as one text'],
    ['upper(text)', 'upper case'],
    ['lower(text)', 'lower case'],
    ['trim(text)', 'without blanks at both ends'],
    ["split(text, '/')", 'parts that are not empty'],
    ["tokens(text, ', ;')", 'parts between any of the characters'],
    ['substr(text, 0, 3)', 'characters; the first one is 0'],
    ["replace(text, 'a', 'b')", 'all occurrences replaced'],
    ['strlen(text)', 'number of characters'],
    ["pad(text, 4, 'leading', '0')", 'filled to a length'],
    ["sprintf('%s: %05.1f', a, b)", 'formatted text'],
    ["regex_match(text, '^[a-z]')", 'whether there is a match'],
    ["regex_extract(text, '([0-9]+)')", 'groups of the first match'],
    ["regex_replace(text, '[0-9]', '')", 'all matches replaced'],
  ),
  group(
    'Time',
    ["now_timestamp('millisecond')", 'time since 1970; seconds without a unit'],
    ['now_rfc3339()', 'time as text'],
    ["unix_ts_to_rfc3339(timestamp, 'millisecond')", 'a time as text'],
    ['rfc3339_to_unix_ts(text)', 'a text as time since 1970'],
    ["format_date('second', 'Z', '%Y-%m-%d')", 'current time in a format'],
  ),
  group(
    'Arrays and objects',
    ['json_encode(x)', 'JSON text of a value'],
    ['json_decode(text)', 'value of a JSON text'],
    ['first(array)', 'first element'],
    ['last(array)', 'last element'],
    ['nth(n, array)', 'element n, from 1'],
    ['length(array)', 'number of elements'],
    ['sublist(2, array)', 'first elements'],
    ['contains(x, array)', 'whether an element equals x'],
    ["map_get('a.b', object, 0)", 'value at a path, or a default'],
    ["map_put('a.b', x, object)", 'object with another value'],
    ['map_keys(object)', 'names of the members'],
    ['map_values(object)', 'values of the members'],
    ["mget('a.b', object)", 'member with exactly this name'],
  ),
  group(
    'Bytes',
    ['base64_encode(x)', 'Base64'],
    ['base64_decode(text)', 'bytes of Base64'],
    ['bin2hexstr(x)', 'hexadecimal digits'],
    ['hexstr2bin(text)', 'bytes of hexadecimal digits'],
    ['subbits(x, 1, 16)', 'bits as an integer'],
    ['md5(x)', 'MD5'],
    ['sha256(x)', 'SHA-256'],
    ['uuid_v4()', 'random UUID'],
  ),
];

const VALUES: Record<string, unknown> = {
  clientid: 'sensor-7', username: 'sensors', topic: 'building/7/temp', qos: 1, payload: '{"temp": 85.5}', id: '00A7', flags: { retain: false, dup: false }, pub_props: { 'User-Property': {} }, publish_received_at: 1706702400101, peerhost: '10.0.0.7',
  peername: '10.0.0.7:51312', sockname: '10.0.0.1:1883', listener: 'default', client_attrs: { site: 'north' }, mountpoint: null, tenant: null, proto_name: 'MQTT', proto_ver: 5, keepalive: 60, clean_start: true, expiry_interval: 0, is_bridge: false, conn_props: { 'User-Property': {} },
  connected_at: 1706702400100, disconnected_at: 1706706000100, disconn_props: { 'User-Property': {} }, sub_props: { 'User-Property': {} }, unsub_props: { 'User-Property': {} }, puback_props: { 'User-Property': {} }, reason: 'keep_alive_timeout', reason_code: 0, result: 'allow', is_superuser: false, is_anonymous: false,
  action: 'publish', authz_source: 'rules', from_clientid: 'sensor-9', from_username: 'sensors', name: 'storage', active: true, severity: 'error', message: 'the disk of /data is full: free some space', details: {}, activated_at: 1706702400100, deactivated_at: null,
};

/** Sample of an event as JSON. */
export function sampleOf(event: string): string {
  const fields = EVENTS.find((one) => one.name === event)?.fields ?? [];
  return JSON.stringify(Object.fromEntries(fields.map((name) => [name, VALUES[name] ?? null])), null, 2);
}

/** Sources of a rule: the names in quotation marks after FROM. */
export function sourcesOf(rule: string): string[] {
  const plain = rule.replace(/--.*$/gm, '').replace(/'(?:[^']|'')*'/g, "''");
  const from = /\bFROM\b([\s\S]*?)(?:\bWHERE\b|$)/i.exec(plain)?.[1] ?? '';
  return [...from.matchAll(/"([^"]*)"/g)].map((one) => one[1]!);
}

/** A Topic Name that matches the first Topic Filter of a rule; empty without one. */
export function topicFor(rule: string): string {
  const filter = sourcesOf(rule).find((one) => one !== '' && !one.startsWith('$events/'));
  return filter ? filter.split('/').map((level) => (level === '+' ? '7' : level === '#' ? 'a' : level)).join('/') : '';
}
