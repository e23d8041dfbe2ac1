// Settings of bridges, connectors, actions and cluster links, as the forms show them, and the state of bridges, actions and links in words.

import type { Column } from '../components/Table.svelte';
import { count, span } from './format';
import type { Action, ActionKind, Bridge, BridgeDrops, BridgeEntry, ClusterLink, ConnectorKind, LinkGiving, LinkTaking, Settings } from './types';

/** One setting of a form. */
export interface Field {
  name: string;
  label: string;
  /** Text below the field; code is in `backticks`. */
  help: string;
  type: 'text' | 'area' | 'number' | 'check' | 'choice';
  /** Default of the node. A setting with this value is not sent. */
  fallback: string | boolean;
  required?: boolean;
  placeholder?: string;
  mono?: boolean;
  min?: number;
  max?: number;
  choices?: [value: string, label: string][];
}

/** Values of a form by the names of its settings. */
export type Values = Record<string, string | boolean>;

const text = (name: string, label: string, help: string, more: Partial<Field> = {}): Field => ({ name, label, help, type: 'text', fallback: '', ...more });
const area = (name: string, label: string, help: string, more: Partial<Field> = {}): Field => ({ ...text(name, label, help, { mono: true, ...more }), type: 'area' });
const amount = (name: string, label: string, help: string, fallback: string, min: number, max?: number): Field => ({ name, label, help, type: 'number', fallback, min, max });
const check = (name: string, label: string, help: string, fallback: boolean): Field => ({ name, label, help, type: 'check', fallback });
const choice = (name: string, label: string, help: string, choices: [string, string][], fallback = choices[0]![0]): Field => ({ name, label, help, type: 'choice', fallback, choices });
const path = (name: string, label: string, help: string, placeholder: string): Field => text(name, label, help, { mono: true, placeholder });

export const CONNECTOR_KINDS: { id: ConnectorKind; title: string; text: string }[] = [
  { id: 'http', title: 'HTTP server', text: 'Sends requests to an HTTP or HTTPS server.' },
  { id: 'postgresql', title: 'PostgreSQL', text: 'Runs a statement for each record in PostgreSQL 12 or later, TimescaleDB, or a server that speaks its protocol.' },
  { id: 'kafka', title: 'Kafka', text: 'Writes records to topics of Apache Kafka 2.8 or later, or of a server that speaks its protocol.' },
  { id: 'line_protocol', title: 'Line protocol', text: 'Writes lines to InfluxDB, QuestDB, or another server that accepts line protocol over HTTP.' },
  { id: 'file', title: 'File', text: 'Writes a line for each record to files of the node that runs the action.' },
];

export const kindTitle = (kind: ActionKind): string => (kind === 'republish' ? 'Republish' : (CONNECTOR_KINDS.find((one) => one.id === kind)?.title ?? kind));

const timeout = text('timeout', 'Timeout', 'Maximum time of one attempt to write, with the time to connect.', { fallback: '10s' });
const answer = text('response_max', 'Maximum size of an answer', 'The rest of a longer answer is not read.', { fallback: '64KiB' });
const username = (help: string) => text('username', 'User name', help);
const passwordFile = path('password_file', 'Password file', 'File with the password.', '/etc/meridian/secrets/password');
const tokenFile = (scheme: string) => path('token_file', 'Token file', `File with a token, which is sent as \`Authorization: ${scheme}\`.`, '/etc/meridian/secrets/token');
const tlsFiles = [
  path('tls_ca', 'Authorities', 'File (PEM) with the authorities that verify the server. Empty: those of the system.', '/etc/meridian/tls/ca.pem'),
  path('tls_certificate', 'Client certificate', 'Certificate chain (PEM) that is shown to the server.', '/etc/meridian/tls/client.pem'),
  path('tls_key', 'Key of the client certificate', 'Private key (PEM).', '/etc/meridian/tls/client.key'),
];
const useTls = check('tls', 'Connect with TLS', '', false);

export interface Group {
  title: string;
  fields: Field[];
  /** The group is folded, unless a setting of it is set. */
  folded?: boolean;
}

/** Settings of each kind of connector. */
export const CONNECTOR_FIELDS: Record<ConnectorKind, Group[]> = {
  http: [
    { title: 'Server', fields: [text('url', 'URL', '`http://HOST[:PORT][/PATH]` or `https://...`. Each action can add a path.', { required: true, mono: true, placeholder: 'https://collector.example.com/mqtt' })] },
    {
      title: 'Authentication',
      fields: [username('With a password file it becomes Basic authentication.'), passwordFile, tokenFile('Bearer'), path('signature_file', 'Signature key file', 'File with a key. Each body is signed with HMAC-SHA256; the result is sent in `X-Signature`.', '/etc/meridian/secrets/signature')],
    },
    { title: 'TLS', fields: tlsFiles, folded: true },
    { title: 'Limits', fields: [timeout, answer], folded: true },
  ],
  postgresql: [
    {
      title: 'Server',
      fields: [
        text('address', 'Addresses', '`HOST:PORT`, separated by commas. The first one that answers is used.', { required: true, mono: true, placeholder: 'db.example.com:5432' }),
        text('database', 'Database', 'Name of the database.', { required: true }),
      ],
    },
    { title: 'Authentication', fields: [username('Role that writes to the database.'), passwordFile] },
    { title: 'TLS', fields: [useTls, ...tlsFiles], folded: true },
    { title: 'Limits', fields: [timeout], folded: true },
  ],
  kafka: [
    { title: 'Server', fields: [text('address', 'Addresses', '`HOST:PORT` of brokers of the cluster, separated by commas. The first one that answers is used to find the others.', { required: true, mono: true, placeholder: 'kafka-1.example.com:9092, kafka-2.example.com:9092' })] },
    {
      title: 'Authentication',
      fields: [
        username('Empty: no authentication.'),
        passwordFile,
        choice('sasl', 'Mechanism', '', [['scram_sha_512', 'SCRAM-SHA-512'], ['scram_sha_256', 'SCRAM-SHA-256'], ['plain', 'PLAIN: password in clear, use it with TLS only']]),
      ],
    },
    { title: 'TLS', fields: [useTls, ...tlsFiles], folded: true },
    { title: 'Limits', fields: [timeout], folded: true },
  ],
  line_protocol: [
    {
      title: 'Server',
      fields: [
        text('url', 'URL', '`http://HOST[:PORT][/PATH]` or `https://...`.', { required: true, mono: true, placeholder: 'http://influx.example.com:8086' }),
        text('database', 'Database or bucket', 'Sent as `bucket` with an organization, and as `db` without one.'),
        text('organization', 'Organization', 'For a bucket of InfluxDB 2 and 3.'),
      ],
    },
    { title: 'Authentication', fields: [tokenFile('Token'), username('With a password file it becomes Basic authentication.'), passwordFile] },
    { title: 'TLS', fields: tlsFiles, folded: true },
    { title: 'Limits', fields: [timeout, answer], folded: true },
  ],
  file: [
    { title: 'Files', fields: [path('directory', 'Directory', 'Each action writes files of its own there. The directory must exist on every node that can run the action.', '/var/lib/meridian/export')].map((one) => ({ ...one, required: true })) },
    {
      title: 'Rotation',
      fields: [
        text('file_size_max', 'Maximum size of a file', 'Size at which a new file begins.', { fallback: '64MiB' }),
        amount('files_max', 'Maximum number of files', 'Finished files of each action. The oldest one is removed.', '16', 1, 100_000),
        text('file_age_max', 'Maximum age of a file', 'Time after which a new file begins, if the current one has lines; `0s` is never.', { fallback: '0s' }),
      ],
    },
  ],
};

const tenant = (help: string): Field => text('tenant', 'Tenant', `Mountpoint of its clients without the \`/\` at the end. ${help} Empty: no tenant.`, { mono: true });
for (const groups of Object.values(CONNECTOR_FIELDS)) {
  groups.push({ title: 'Tenant', fields: [tenant('Only actions of this tenant can use the connector, and its files are below `actions.tenant_directory`.')], folded: true });
}

const content = (label: string, help: string): Field => area('content', label, `${help} A template; \`\${.}\` is the whole output as JSON.`, { fallback: '${.}' });

/** Settings of an action for each kind of target. */
export const TARGET_FIELDS: Record<ActionKind, Field[]> = {
  republish: [
    text('topic', 'Topic', 'Topic of the message. A template.', { required: true, mono: true, placeholder: 'alerts/${clientid}' }),
    content('Payload', 'Payload of the message.'),
    text('publish_qos', 'QoS', 'A number, or a template such as `${qos}`.', { fallback: '1', mono: true }),
    text('publish_retain', 'Retain', '`true`, `false`, or a template such as `${flags.retain}`.', { fallback: 'false', mono: true }),
    area('headers', 'User Properties', 'A line `NAME: TEMPLATE` for each.', { placeholder: 'source: ${clientid}' }),
  ],
  http: [
    choice('method', 'Method', 'GET and DELETE have no body.', ['POST', 'PUT', 'PATCH', 'GET', 'DELETE'].map((one) => [one, one])),
    text('path', 'Path', 'Added to the URL of the connector. A template; values are percent-encoded.', { mono: true, placeholder: '/devices/${clientid}' }),
    content('Body', 'Content of a record in the body.'),
    choice('body', 'Requests', 'Combines the records of a batch in one request. For an array, each content must be JSON.', [['each', 'One for each record'], ['json_array', 'One for a batch: a JSON array'], ['lines', 'One for a batch: lines']]),
    area('headers', 'Headers', 'A line `NAME: TEMPLATE` for each.', { placeholder: 'X-Device: ${clientid}' }),
  ],
  postgresql: [
    area('statement', 'Statement', 'Each placeholder is a parameter, never a part of the text.', { required: true, placeholder: 'INSERT INTO readings (device, at, celsius)\nVALUES (${clientid}, ${time}, ${celsius})' }),
  ],
  kafka: [
    text('topic', 'Topic', 'Topic in Kafka. A template.', { required: true, mono: true, placeholder: 'telemetry' }),
    text('key', 'Key', 'Decides about the partition. A template; empty is no key.', { mono: true, placeholder: '${clientid}' }),
    content('Value', 'Value of the record.'),
    area('headers', 'Headers', 'A line `NAME: TEMPLATE` for each.', { placeholder: 'device: ${clientid}' }),
  ],
  line_protocol: [area('content', 'Line', 'Line protocol: `measurement,tag=value field=value time`. A template.', { required: true, fallback: '${.}', placeholder: 'climate,device=${clientid} celsius=${celsius} ${time}' })],
  file: [content('Line', 'Line of the record.')],
};

export const ADVANCED: Group[] = [
  { title: 'Tenant', fields: [tenant('The rule sees topics and events of this tenant only, and publishes below its mountpoint.')] },
  {
    title: 'Queue',
    fields: [
      check('store_qos0', 'Store messages of QoS 0', 'Otherwise they are lost when they come faster than the other system takes them.', true),
      amount('queue_messages_max', 'Maximum number of messages', 'Messages that wait.', '1000000', 1),
      text('queue_bytes_max', 'Maximum size', 'Bytes of messages that wait.', { fallback: '1GiB' }),
      text('queue_age_max', 'Maximum age', 'Time that a message waits; `0s` is until it expires.', { fallback: '0s' }),
      choice('queue_full', 'When it is full', '', [['drop_oldest', 'Drop the oldest message'], ['drop_newest', 'Drop the arriving message'], ['refuse', 'Refuse the arriving message']]),
    ],
  },
  {
    title: 'Batches and connections',
    fields: [
      amount('batch_max', 'Records of a batch', 'Maximum number.', '500', 1, 65_535),
      text('batch_bytes_max', 'Bytes of a batch', 'Maximum size.', { fallback: '1MiB' }),
      text('batch_wait', 'Wait for a batch', 'Maximum time that a record waits for others.', { fallback: '10ms' }),
      amount('in_flight', 'Messages at a time', 'Maximum number of messages that the action works on.', '1024', 1, 65_535),
      amount('connections', 'Connections', 'Connections to the other system.', '1', 1, 32),
      choice('order', 'Order', 'Records whose order is kept when there are several connections.', [['topic', 'Of the same topic'], ['client', 'Of the same client'], ['none', 'No order']]),
    ],
  },
  {
    title: 'Failures',
    fields: [
      text('retry_min', 'First pause', 'Pause after the first failed attempt. It doubles with each further one.', { fallback: '500ms' }),
      text('retry_max', 'Longest pause', 'Between two attempts.', { fallback: '30s' }),
      amount('attempts_max', 'Give up after attempts', 'Failed attempts after which a record is given up, if others were written meanwhile; 0 is no limit.', '10', 0, 1000),
      text('expire', 'Give up after', 'Time after which a record that is not taken is given up; `0s` is never.', { fallback: '0s' }),
      text('dead_letter', 'Dead-letter topic', 'Topic at this broker for records that are refused, cannot be made, or are given up. A template with `${action}`, `${topic}` and `${reason}`; empty drops them.', { mono: true, placeholder: 'dead/${action}/${reason}' }),
      text('fallback', 'Fallback action', 'Action that gets the messages of such records.'),
      amount('hops_max', 'Maximum number of hops', 'Actions and bridges that a message passes.', '8', 1, 64),
    ],
  },
];

export const ADVANCED_FIELDS = ADVANCED.flatMap((group) => group.fields);

/** Settings of a bridge to another broker. */
export const BRIDGE_FIELDS: Group[] = [
  {
    title: 'Other broker',
    fields: [
      text('address', 'Addresses', '`HOST:PORT`, separated by commas. All of them must reach the same broker or cluster.', { required: true, mono: true, placeholder: 'broker.example.com:8883' }),
      choice('version', 'MQTT version', 'With 3.1.1, messages have no User Properties, and a ring of brokers has no protection from loops.', [['5.0', 'MQTT 5.0'], ['3.1.1', 'MQTT 3.1.1']]),
    ],
  },
  {
    title: 'Messages',
    fields: [
      area('topics', 'Topics', 'One a line: `PATTERN DIRECTION QOS LOCAL-PREFIX REMOTE-PREFIX`. `out` sends to the other broker, `in` takes from it, `both` does both. Only the pattern is needed: the others are `out`, `0` and no prefix. `""` is an empty prefix. The first line that matches a topic decides.', {
        required: true,
        placeholder: 'sensors/# out 1\ncommands/# in 1',
      }),
    ],
  },
  {
    title: 'Login',
    fields: [
      username('User name at the other broker.'),
      path('password_file', 'Password file', 'File with the password in its first line. It is read at each connection.', '/etc/meridian/secrets/cloud'),
      text('client_id', 'Client Identifier', 'No other client may use it at the other broker. Empty: the name of the bridge.'),
    ],
  },
  { title: 'TLS', fields: [useTls, ...tlsFiles, text('tls_server_name', 'Name in the certificate', 'Host name that the certificate of the other broker must have. Empty: that of its address.')], folded: true },
  {
    title: 'WebSocket',
    fields: [
      choice('transport', 'Transport', 'WebSocket passes firewalls and proxies that let HTTPS through only.', [['tcp', 'TCP'], ['websocket', 'WebSocket']]),
      text('websocket_path', 'Path', 'Path of the WebSocket at the other broker.', { fallback: '/mqtt', mono: true }),
    ],
    folded: true,
  },
  {
    title: 'Connection',
    fields: [
      choice('start', 'Connect', '', [['automatic', 'Always'], ['lazy', 'While messages wait'], ['once', 'Once, until the connection ends']]),
      amount('lazy_messages', 'Connect at messages', 'Waiting messages at which it connects, with "While messages wait".', '1', 1),
      text('lazy_idle', 'Disconnect after', 'Time without messages after which it disconnects, with "While messages wait".', { fallback: '1m' }),
      choice('address_order', 'Order of the addresses', 'For several addresses.', [['ordered', 'The first one that answers'], ['round_robin', 'The next one for each connection']]),
      text('keep_alive', 'Keep Alive', 'Longest silence on the connection; `0s` turns it off.', { fallback: '1m' }),
      text('backoff_min', 'First pause', 'Pause after the first failed connection. It doubles with each further one.', { fallback: '1s' }),
      text('backoff_max', 'Longest pause', 'Between two attempts to connect.', { fallback: '1m' }),
      check('clean', 'No session at the other broker', 'What is in flight when a connection is lost may then be lost or come twice.', false),
      check('try_private', 'Tell brokers of MQTT 3.1.1 that this is a bridge', 'They do not send its own messages back then.', true),
    ],
    folded: true,
  },
  {
    title: 'Queue for the other broker',
    fields: [
      amount('queue_messages_max', 'Maximum number of messages', 'Messages that wait. Each takes about 100 bytes of memory; its payload is on disk.', '1000000', 1),
      text('queue_bytes_max', 'Maximum size', 'Bytes of these messages.', { fallback: '1GiB' }),
      text('queue_age_max', 'Maximum age', 'Time that a message waits; `0s` is until it expires.', { fallback: '0s' }),
      choice('queue_full', 'When it is full', '', [['drop_oldest', 'Drop the oldest message'], ['drop_newest', 'Drop the arriving message'], ['refuse', 'Refuse the arriving message']]),
    ],
    folded: true,
  },
  {
    title: 'Limits',
    fields: [
      amount('in_flight', 'Messages at a time', 'Maximum number of unacknowledged messages in each direction; 0 is 256 with MQTT 5.0, and 20 with 3.1.1.', '0', 0, 65_535),
      text('packet_size_max', 'Maximum size of a packet', 'Larger messages are dropped.', { fallback: '1MiB' }),
      amount('hops_max', 'Maximum number of hops', 'Bridges that a message passes, between brokers of MQTT 5.0.', '8', 1, 64),
      amount('closes_max', 'Drop after closed connections', 'Number of times that the other broker closes the connection at the same message, after which the message is dropped; 0 drops none.', '0', 0, 255),
    ],
    folded: true,
  },
  {
    title: 'Topics of its state',
    fields: [
      text('state_topic_remote', 'At the other broker', 'Topic with the retained message `1` while the bridge is connected, and `0` otherwise. Empty: none.', { mono: true, placeholder: 'bridges/site7/state' }),
      text('state_topic_local', 'At this broker', 'The same at this broker.', { mono: true, placeholder: 'bridges/cloud/state' }),
    ],
    folded: true,
  },
];

/** Settings of a link to another cluster. */
export const LINK_FIELDS: Group[] = [
  {
    title: 'Clusters',
    fields: [
      text('own_name', 'Name of this cluster', 'Name by which the other cluster knows this one, the same in all links. A node without a cluster may leave it empty: it is the name of the node then.', { placeholder: 'berlin' }),
      text('address', 'Addresses of the other cluster', '`HOST:PORT` of its listeners for MQTT clients, separated by commas. Empty: this cluster takes nothing, and the other one connects.', { mono: true, placeholder: 'mqtt.munich.example.com:8883' }),
      { ...path('secret_file', 'Secret file', 'File with the secret of the link, the same at both clusters. Each node needs it. `head -c 32 /dev/urandom | base64` makes a secret.', '/etc/meridian/secrets/munich'), required: true },
    ],
  },
  {
    title: 'This cluster takes',
    fields: [
      area('topics', 'Topic Filters', 'One a line, as they are at the other cluster. Empty: nothing. Only messages that clients here have subscribed to are transferred.', { placeholder: 'plant/#' }),
      text('prefix', 'Prefix', 'Text before the topics of the other cluster here. Empty, or with `/` at its end.', { mono: true, placeholder: 'munich/' }),
      text('origins', 'Further origins', 'Names of clusters whose messages come through the other one, separated by commas. The messages of each cluster must come by one link only.'),
      amount('qos', 'Maximum QoS', 'Messages with a higher QoS come with this one.', '2', 0, 2),
    ],
  },
  { title: 'The other cluster may take', fields: [area('export', 'Topic Filters', 'One a line, as they are here. Empty: nothing. `#` does not include topics that begin with `$`.', { fallback: '#' })] },
  { title: 'TLS', fields: [useTls, ...tlsFiles, text('tls_server_name', 'Name in the certificate', 'Host name that the certificate of the other cluster must have. Empty: that of its address.')], folded: true },
  {
    title: 'Queue for the other cluster',
    fields: [
      amount('queue_messages_max', 'Maximum number of messages', 'Messages that wait here for the other cluster, in each of its sessions.', '1000000', 1),
      text('queue_bytes_max', 'Maximum size', 'Bytes of these messages.', { fallback: '1GiB' }),
      text('queue_age_max', 'Maximum age', 'Time that a message waits; `0s` is until it expires.', { fallback: '0s' }),
      choice('queue_full', 'When it is full', '', [['drop_oldest', 'Drop the oldest message'], ['drop_newest', 'Drop the arriving message']]),
    ],
    folded: true,
  },
  {
    title: 'Limits and pauses',
    fields: [
      amount('filters_max', 'Maximum number of filters', 'Topic Filters that are subscribed to at the other cluster. Beyond it, broader ones stand for the largest groups of them.', '50000', 1, 10_000_000),
      amount('in_flight', 'Messages at a time', 'Maximum number of unacknowledged messages.', '10000', 1, 65_535),
      text('packet_size_max', 'Maximum size of a packet', 'Larger messages are not taken.', { fallback: '1MiB' }),
      text('keep_alive', 'Keep Alive', 'Longest silence on the connection.', { fallback: '30s' }),
      text('backoff_min', 'First pause', 'Pause after the first failed connection. It doubles with each further one.', { fallback: '1s' }),
      text('backoff_max', 'Longest pause', 'Between two attempts to connect.', { fallback: '30s' }),
    ],
    folded: true,
  },
];

/** Values of a form for stored settings. */
export function valuesOf(fields: readonly Field[], settings: Settings): Values {
  return Object.fromEntries(
    fields.map((field) => {
      const value = settings[field.name] ?? field.fallback;
      return [field.name, field.type === 'check' ? String(value) === 'true' : String(value)];
    }),
  );
}

/** Settings to send: those of `fields` that differ from the default. */
export function settingsOf(fields: readonly Field[], values: Values): Settings {
  const out: Settings = {};
  for (const field of fields) {
    let value = values[field.name] ?? field.fallback;
    if (typeof value === 'string' && field.type !== 'area') value = value.trim();
    // An empty line means the default; an empty text is a value.
    const empty = value === '' && (field.type !== 'area' || field.required);
    if (empty || String(value) === String(field.fallback)) continue;
    out[field.name] = field.type === 'number' ? Number(value) : value;
  }
  return out;
}

/** Returns whether a value differs from the default. */
export const isSet = (field: Field, values: Values): boolean => values[field.name] !== '' && String(values[field.name] ?? field.fallback) !== String(field.fallback);

/** Errors of a problem document by setting. The node may write a section before the name. */
export function errorsByField(errors: readonly { name: string; detail: string }[], known: ReadonlySet<string>): { fields: Record<string, string>; rest: string[] } {
  const fields: Record<string, string> = {};
  const rest: string[] = [];
  for (const { name, detail } of errors) {
    const short = name.split('.').at(-1) ?? '';
    if (known.has(short)) fields[short] = detail;
    else rest.push(name ? `${name}: ${detail}` : detail);
  }
  return { fields, rest };
}

export interface State {
  text: string;
  tone: 'good' | 'warn' | 'bad' | 'accent' | 'plain';
  /** Order in a table: problems first. */
  rank: number;
}

/** State of a bridge that is configured. A change of it reaches the node that runs it within a second. */
export function entryState(entry: BridgeEntry, status: Bridge | undefined): State {
  if (!status) return entry.enabled ? { text: 'waits for a node', tone: 'warn', rank: 1 } : { text: 'off', tone: 'plain', rank: 3 };
  if (status.enabled === entry.enabled) return bridgeState(status);
  return { text: entry.enabled ? 'starting' : 'stopping', tone: 'plain', rank: 1 };
}

export function bridgeState(one: Bridge): State {
  if (!one.configured) return { text: 'not configured', tone: 'bad', rank: 0 };
  if (!one.enabled) return { text: 'off', tone: 'plain', rank: 3 };
  if (one.failing) return { text: 'failing', tone: 'bad', rank: 0 };
  if (one.connected) return { text: 'connected', tone: 'good', rank: 2 };
  // A lazy bridge is connected only while messages wait.
  return { text: 'not connected', tone: 'plain', rank: 1 };
}

const BRIDGE_DROPS: [keyof BridgeDrops, string][] = [
  ['queue', 'by the queue'],
  ['too_large', 'too large'],
  ['no_room', 'of QoS 0 without room'],
  ['not_ready', 'of QoS 0 before it was ready'],
  ['too_many_hops', 'after too many bridges'],
  ['closes', 'because the other broker closed'],
  ['looped', 'in a loop'],
  ['unmapped', 'without a topic of the bridge'],
];

/** Messages of a bridge that were dropped, by cause. */
export const bridgeDrops = (one: Bridge): string =>
  BRIDGE_DROPS.filter(([cause]) => one.dropped_by_cause[cause] > 0)
    .map(([cause, words]) => `${count(one.dropped_by_cause[cause])} ${words}`)
    .join(', ');

/** State of both directions of a link, as `meridian ctl links external` shows it. */
export function linkState(one: ClusterLink): State {
  if (!one.enabled) return { text: 'off', tone: 'plain', rank: 6 };
  if (one.fault) return { text: 'fault', tone: 'bad', rank: 0 };
  const away = one.giving.some((each) => !each.connected);
  if (one.topics.length > 0 && one.address) {
    if (one.taking.length === 0) return { text: 'not known', tone: 'warn', rank: 2 };
    if (one.taking.some((each) => each.failing)) return { text: 'failing', tone: 'bad', rank: 0 };
    if (one.taking.some((each) => !each.connected)) return { text: 'connecting', tone: 'warn', rank: 2 };
    return away ? { text: 'other side away', tone: 'warn', rank: 1 } : { text: 'connected', tone: 'good', rank: 5 };
  }
  if (one.giving.length === 0) return { text: 'not seen yet', tone: 'plain', rank: 3 };
  return away ? { text: 'other side away', tone: 'warn', rank: 1 } : { text: 'connected', tone: 'good', rank: 5 };
}

export const droppedBy = (one: LinkTaking): number => Object.values(one.dropped).reduce((all, count) => all + count, 0);

/** Messages that were dropped in both directions. */
export const linkDrops = (one: ClusterLink): number => one.taking.reduce((all, each) => all + droppedBy(each), 0) + one.giving.reduce((all, each) => all + each.dropped, 0);

/** Sum of a figure over the clusters of origin; `null` without any. */
export function total<T extends LinkTaking | LinkGiving>(all: readonly T[], figure: (one: T) => number): number | null {
  return all.length === 0 ? null : all.reduce((sum, one) => sum + figure(one), 0);
}

/** Reason why a link does not work. */
export function linkError(one: ClusterLink): string | null {
  const failing = one.taking.find((each) => !each.connected && each.last_error);
  if (one.fault || failing) return one.fault ?? failing?.last_error ?? null;
  return one.refusal && one.giving.every((each) => !each.connected) ? `refused the other side: ${one.refusal.why}` : null;
}

export function actionState(one: Action): State {
  if (!one.enabled) return { text: 'off', tone: 'plain', rank: 5 };
  const { status } = one;
  if (!status) return { text: 'not running', tone: 'warn', rank: 1 };
  if (status.state === 'retrying') return { text: `retrying for ${span(status.since_s)}`, tone: status.failing ? 'bad' : 'warn', rank: status.failing ? 0 : 2 };
  if (status.failing) return { text: 'failing', tone: 'bad', rank: 0 };
  if (status.state === 'stopped') return { text: 'stopped', tone: 'warn', rank: 1 };
  return status.state === 'starting' ? { text: 'starting', tone: 'plain', rank: 4 } : { text: 'running', tone: 'good', rank: 3 };
}

/** Messages and records that did not reach the target, for any reason but the rule. */
export function lost(one: Action): number | null {
  const { status } = one;
  return status && status.dropped + status.refused + status.expired + (status.given_up ?? 0) + status.evaluation_errors + status.render_errors + status.loops;
}

/** Column of a list that says where each entry is configured. */
export const sourceColumn = <T extends { source: 'file' | 'store' | null }>(): Column<T> => ({
  id: 'source',
  label: 'Source',
  width: '66px',
  from: 'wide',
  text: (one) => (one.source === 'store' ? 'stored' : one.source),
  title: (one) => (one.source === 'file' ? 'In the configuration file of the node' : one.source ? 'Stored by the node or cluster' : 'Not configured'),
  sort: true,
});

/** Address of a connector in a list. */
export const addressOf = (settings: Settings): string => String(settings.url ?? settings.address ?? settings.directory ?? '');
