// MQTT.js over one transport: SCHEME PORT CA [CERTIFICATE KEY]. Exits 0 when a message came through.
'use strict';
const { readFileSync } = require('node:fs');
const mqtt = require('mqtt');

const [scheme, port, ca, certificate, key] = process.argv.slice(2);
const options = { protocolVersion: 5, reconnectPeriod: 0, connectTimeout: 20000, ca: readFileSync(ca) };
if (certificate) Object.assign(options, { cert: readFileSync(certificate), key: readFileSync(key) });

function end(why) {
  console.error(String(why));
  process.exit(1);
}

const topic = `transport/mqttjs/${scheme}/${port}`;
const client = mqtt.connect(`${scheme}://localhost:${port}/mqtt`, options);
setTimeout(() => end('no message within 20 s'), 20000);
client.on('error', end);
client.on('close', () => end('closed'));
client.on('connect', () => client.subscribe(topic, { qos: 1 }, (error) => (error ? end(error) : client.publish(topic, 'through', { qos: 1 }))));
client.on('message', (_topic, payload) => process.exit(String(payload) === 'through' ? 0 : 1));
