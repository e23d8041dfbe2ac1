// Minimal MQTT 5.0 client for the tests: connect, subscribe, publish, received messages, end of the connection.

import { createConnection } from 'node:net';

/** Seconds; longer than any test, so that no PINGREQ is needed. */
const KEEP_ALIVE = 600;

function string(text) {
  const bytes = Buffer.from(text);
  return Buffer.concat([Buffer.from([bytes.length >> 8, bytes.length & 255]), bytes]);
}

function packet(first, ...parts) {
  const body = Buffer.concat(parts);
  const length = [];
  for (let rest = body.length; ; ) {
    const byte = rest % 128;
    rest = Math.floor(rest / 128);
    length.push(rest > 0 ? byte | 128 : byte);
    if (rest === 0) break;
  }
  return Buffer.concat([Buffer.from([first, ...length]), body]);
}

export class Client {
  received = [];
  closed = false;
  #socket;
  #buffer = Buffer.alloc(0);
  #waiting = [];
  #next = 1;

  /** Resolves when the broker accepts the connection; rejects with its Reason Code. */
  static async connect(port, id, { expirySeconds = 0, username = '', password = '', acknowledgeMs = 0 } = {}) {
    const client = new Client();
    client.acknowledgeMs = acknowledgeMs;
    client.#socket = createConnection({ host: '127.0.0.1', port });
    client.#socket.on('data', (data) => client.#read(data));
    client.#socket.on('error', () => client.#over());
    client.#socket.on('close', () => client.#over());
    const expiry = Buffer.alloc(6);
    expiry.writeUInt8(5, 0);
    expiry.writeUInt8(17, 1);
    expiry.writeUInt32BE(expirySeconds, 2);
    client.#socket.write(packet(0x10, string('MQTT'), Buffer.from([5, (expirySeconds > 0 ? 0 : 2) | (username ? 128 : 0) | (password ? 64 : 0), KEEP_ALIVE >> 8, KEEP_ALIVE & 255]), expiry, string(id), username ? string(username) : Buffer.alloc(0), password ? string(password) : Buffer.alloc(0)));
    const answer = await client.#answer(2);
    if (answer[1] !== 0) throw new Error(`refused with Reason Code ${answer[1]}`);
    return client;
  }

  async subscribe(filter, qos = 0) {
    const id = this.#id();
    this.#socket.write(packet(0x82, id, Buffer.from([0]), string(filter), Buffer.from([qos])));
    await this.#answer(9);
  }

  /** A message of QoS 1 resolves when it is acknowledged. */
  async publish(topic, payload, { qos = 0, retain = false } = {}) {
    const id = qos > 0 ? this.#id() : Buffer.alloc(0);
    this.#socket.write(packet(0x30 | (qos << 1) | (retain ? 1 : 0), string(topic), id, Buffer.from([0]), Buffer.from(payload)));
    if (qos > 0) await this.#answer(4);
  }

  leave() {
    this.#socket.destroy();
  }

  #id() {
    this.#next = (this.#next % 65535) + 1;
    return Buffer.from([this.#next >> 8, this.#next & 255]);
  }

  #answer(type) {
    if (this.closed) return Promise.reject(new Error('the connection is closed'));
    return new Promise((resolve, reject) => this.#waiting.push({ type, resolve, reject }));
  }

  #over() {
    this.closed = true;
    for (const one of this.#waiting.splice(0)) one.reject(new Error('the connection was closed'));
  }

  #read(data) {
    this.#buffer = Buffer.concat([this.#buffer, data]);
    for (;;) {
      let length = 0;
      let at = 1;
      for (let shift = 0; ; shift += 7, at++) {
        if (at >= this.#buffer.length) return;
        length |= (this.#buffer[at] & 127) << shift;
        if (this.#buffer[at] < 128) break;
      }
      if (this.#buffer.length < at + 1 + length) return;
      const first = this.#buffer[0];
      const body = this.#buffer.subarray(at + 1, at + 1 + length);
      this.#buffer = this.#buffer.subarray(at + 1 + length);
      const type = first >> 4;
      if (type === 3) this.#take(first, body);
      const waiting = this.#waiting.findIndex((one) => one.type === type);
      if (waiting >= 0) this.#waiting.splice(waiting, 1)[0].resolve(Buffer.from(body));
    }
  }

  #take(first, body) {
    const end = 2 + body.readUInt16BE(0);
    const qos = (first >> 1) & 3;
    const properties = end + (qos > 0 ? 2 : 0);
    this.received.push({ topic: body.subarray(2, end).toString(), payload: body.subarray(properties + 1 + body[properties]).toString() });
    if (qos !== 1) return;
    const answer = packet(0x40, Buffer.from(body.subarray(end, end + 2)));
    if (this.acknowledgeMs === 0) this.#socket.write(answer);
    else setTimeout(() => this.#socket.write(answer), this.acknowledgeMs);
  }
}
