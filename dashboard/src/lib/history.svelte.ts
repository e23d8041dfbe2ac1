// What the node reported over the last half hour, as rates: counters are differences between two polls over the time
// the node says lies between them. Kept in the browser, over a reload of the page too.

import { get } from './api';
import { link } from './link.svelte';
import { session } from './session.svelte';
import type { Stats } from './types';

export interface Sample {
  t: number;
  messagesIn: number;
  messagesOut: number;
  bytesIn: number;
  bytesOut: number;
  packetsIn: number;
  packetsOut: number;
  drops: Record<string, number>;
  dropped: number;
  connections: number;
  sessions: number;
  queuedMessages: number;
  queuedBytes: number;
  absentBytes: number;
  load: number[];
  memory: number;
  cpu: number;
}

const EVERY_MS = 2000;
const SAMPLES_MAX = 900;
const KEY = 'meridian.history';

function sum(values: Record<string, number>): number {
  let total = 0;
  for (const value of Object.values(values)) total += value;
  return total;
}

function between(before: Stats, after: Stats): Sample | null {
  const seconds = (Date.parse(after.at) - Date.parse(before.at)) / 1000;
  // The node was started anew, or its refresh has not come round yet.
  if (!(seconds > 0.2) || after.uptime_s < before.uptime_s) return null;
  const rate = (now: number, then: number) => Math.max(0, (now - then) / seconds);
  const drops: Record<string, number> = {};
  for (const [reason, value] of Object.entries(after.dropped.by_reason)) {
    drops[reason] = rate(value, before.dropped.by_reason[reason] ?? 0);
  }
  return {
    t: Date.parse(after.at),
    messagesIn: rate(after.received.messages, before.received.messages),
    messagesOut: rate(after.sent.messages, before.sent.messages),
    bytesIn: rate(after.received.bytes, before.received.bytes),
    bytesOut: rate(after.sent.bytes, before.sent.bytes),
    packetsIn: rate(sum(after.packets_received), sum(before.packets_received)),
    packetsOut: rate(sum(after.packets_sent), sum(before.packets_sent)),
    drops,
    dropped: rate(after.dropped.total, before.dropped.total),
    connections: after.connections,
    sessions: after.sessions,
    queuedMessages: after.queued.messages,
    queuedBytes: after.queued.bytes,
    absentBytes: after.queued.absent_bytes,
    load: after.workers.map((worker, i) => Math.min(1, rate(worker.busy_us, before.workers[i]?.busy_us ?? worker.busy_us) / 1e6)),
    memory: after.process.resident_bytes,
    cpu: rate(after.process.cpu_s, before.process.cpu_s),
  };
}

class History {
  stats = $state.raw<Stats | null>(null);
  samples = $state.raw<Sample[]>([]);
  #busy = false;

  constructor() {
    try {
      const kept = JSON.parse(sessionStorage.getItem(KEY) ?? '[]') as Sample[];
      if (Array.isArray(kept)) this.samples = kept.filter((sample) => sample.t > Date.now() - SAMPLES_MAX * EVERY_MS);
    } catch {
      // Nothing kept, or not ours.
    }
    addEventListener('pagehide', () => {
      try {
        sessionStorage.setItem(KEY, JSON.stringify(this.samples));
      } catch {
        // Too much for the store: the next page starts anew.
      }
    });
  }

  /** Polls until the returned function is called. */
  follow(): () => void {
    const timer = setInterval(() => void this.poll(), EVERY_MS);
    void this.poll();
    return () => clearInterval(timer);
  }

  async poll() {
    if (this.#busy || link.lost || session.asking) return;
    this.#busy = true;
    try {
      const stats = await get<Stats>('/api/v1/stats');
      const sample = this.stats ? between(this.stats, stats) : null;
      if (sample === null && this.stats && stats.uptime_s >= this.stats.uptime_s) return;
      this.stats = stats;
      if (sample) this.samples = [...this.samples.slice(1 - SAMPLES_MAX), sample];
    } catch {
      // The banner or the sign-in form tells; the next poll tries again.
    } finally {
      this.#busy = false;
    }
  }

  get last(): Sample | undefined {
    return this.samples.at(-1);
  }
}

export const history = new History();
