// Rates of counters that a page reads again and again.

interface Read {
  at: number;
  counters: Record<string, number>;
}

/** Interval over which a rate is measured at least. */
const SPAN_MS = 8000;

export class Rates<T> {
  /** Rates per second, by key and counter. A key has no rates before its second reading. */
  perSecond = $state.raw<Record<string, Record<string, number>>>({});
  #reads = new Map<string, Read[]>();
  #key: (one: T) => string;
  #counters: (one: T) => Record<string, number>;

  constructor(key: (one: T) => string, counters: (one: T) => Record<string, number>) {
    this.#key = key;
    this.#counters = counters;
  }

  take(items: readonly T[], now = performance.now()) {
    const kept = new Map<string, Read[]>();
    const rates: Record<string, Record<string, number>> = {};
    for (const item of items) {
      const key = this.#key(item);
      const counters = this.#counters(item);
      let reads = this.#reads.get(key) ?? [];
      const last = reads.at(-1);
      // A counter that is lower than before is one of a restarted node.
      if (last && Object.entries(counters).some(([name, value]) => value < (last.counters[name] ?? 0))) reads = [];
      reads = [...reads, { at: now, counters }];
      while (reads.length > 2 && now - reads[1]!.at >= SPAN_MS) reads.shift();
      kept.set(key, reads);
      const first = reads[0]!;
      const seconds = (now - first.at) / 1000;
      if (seconds >= 1) rates[key] = Object.fromEntries(Object.entries(counters).map(([name, value]) => [name, (value - (first.counters[name] ?? 0)) / seconds]));
    }
    this.#reads = kept;
    this.perSecond = rates;
  }
}
