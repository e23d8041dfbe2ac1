// MQTT.js as a driver; client.py describes the commands and events. Run with NODE_PATH naming its node_modules.
'use strict';

const readline = require('node:readline');
const mqtt = require('mqtt');

const port = Number(process.argv[2]);
const clients = new Map();

function emit(event, client, fields = {}) {
  process.stdout.write(JSON.stringify({ event, client, ...fields }) + '\n');
}

function list(value) {
  return value === undefined ? [] : Array.isArray(value) ? value : [value];
}

// MQTT.js keeps User Properties as an object of key -> value or values.
function userPairs(properties) {
  return Object.entries(properties ?? {}).flatMap(([key, values]) => list(values).map((value) => [key, value]));
}

function connect(name, command) {
  const v5 = command.version === 5;
  const client = mqtt.connect({
    host: command.host,
    port,
    clientId: command.id,
    protocolVersion: command.version,
    protocolId: command.version === 3 ? 'MQIsdp' : 'MQTT',
    clean: command.clean,
    // A reconnect of its own would hide what the broker did to the first connection.
    reconnectPeriod: 0,
    resubscribe: false,
    will: command.will ? { ...command.will, payload: Buffer.from(command.will.payload) } : undefined,
    properties: v5 && command.expiry !== null ? { sessionExpiryInterval: command.expiry } : undefined,
  });
  let reason = null;
  client.on('connect', (packet) => emit('connected', name, { session_present: packet.sessionPresent }));
  client.on('disconnect', (packet) => (reason = packet.reasonCode));
  client.on('close', () => emit('closed', name, { reason }));
  client.on('error', (error) => emit('error', name, { text: String(error) }));
  client.on('message', (topic, payload, packet) => {
    const said = packet.properties ?? {};
    emit('message', name, {
      topic,
      payload: payload.toString(),
      qos: packet.qos,
      retain: packet.retain,
      properties: {
        content_type: said.contentType ?? null,
        response_topic: said.responseTopic ?? null,
        correlation_data: said.correlationData?.toString() ?? null,
        message_expiry: said.messageExpiryInterval ?? null,
        payload_format: said.payloadFormatIndicator === undefined ? null : Number(said.payloadFormatIndicator),
        user: userPairs(said.userProperties),
        identifiers: list(said.subscriptionIdentifier),
      },
    });
  });
  clients.set(name, client);
}

function subscribe(name, command) {
  const options = { qos: command.qos, nl: command.no_local };
  if (command.identifier !== null) options.properties = { subscriptionIdentifier: command.identifier };
  clients.get(name).subscribe(command.filter, options, (error, _granted, packet) => {
    if (error) emit('error', name, { text: String(error) });
    else emit('subscribed', name, { reasons: packet.granted });
  });
}

function userObject(pairs) {
  const object = {};
  for (const [key, value] of pairs) object[key] = key in object ? [...list(object[key]), value] : value;
  return object;
}

async function publish(name, command) {
  const options = { qos: command.qos, retain: command.retain };
  const said = command.properties;
  if (said) {
    options.properties = {
      contentType: said.content_type,
      responseTopic: said.response_topic,
      correlationData: Buffer.from(said.correlation_data),
      messageExpiryInterval: said.message_expiry,
      payloadFormatIndicator: said.payload_format === 1,
      userProperties: userObject(said.user),
    };
  }
  const client = clients.get(name);
  await Promise.all(command.payloads.map((payload) => client.publishAsync(command.topic, payload, options)));
  emit('published', name);
}

const actions = {
  connect,
  subscribe,
  publish,
  disconnect: (name) => clients.get(name).end(),
  // The end of the stream without a DISCONNECT.
  abort: (name) => clients.get(name).stream.destroy(),
};

readline
  .createInterface({ input: process.stdin })
  .on('line', async (line) => {
    const command = JSON.parse(line);
    try {
      await actions[command.do](command.client, command);
    } catch (error) {
      emit('error', command.client, { text: String(error) });
    }
  })
  .on('close', () => process.exit(0));
