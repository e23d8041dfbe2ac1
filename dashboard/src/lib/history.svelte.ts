// Figures that the nodes have recorded over the last hour in steps of five seconds, of one node or summed over all. A page
// loads the recorded figures once and then only new ones.

import { get } from './api';
import { link } from './link.svelte';
import { session } from './session.svelte';
import type { HistoryFigures, RecordedHistory } from './types';

/** One step. Rates are per second. */
export interface Sample extends HistoryFigures {
  /** End of the step, in milliseconds. */
  t: number;
  /** Number of nodes in the sum. */
  summed: number;
  drops: Record<string, number>;
}

const EVERY_MS = 5000;
/** Overlap with the previous answer: its last steps may lack a node that answered late. */
const OVERLAP_S = 30;
const SECONDS_MAX = 3600;

function samplesOf(answer: RecordedHistory): Sample[] {
  if (answer.until === null) return [];
  const { dropped_per_s_by_reason: reasons, ...lists } = answer.series;
  const end = Date.parse(answer.until);
  const last = answer.summed.length - 1;
  return answer.summed.flatMap((summed, i) => {
    if (summed === 0) return [];
    const at = (all: Record<string, (number | null)[]>) => Object.fromEntries(Object.entries(all).map(([name, list]) => [name, list[i] ?? 0]));
    return [{ ...(at(lists) as unknown as HistoryFigures), t: end - (last - i) * answer.step_s * 1000, summed, drops: at(reasons) }];
  });
}

export class History {
  samples = $state.raw<Sample[]>([]);
  /** Nodes in the last steps; `missing`: nodes that did not answer. */
  nodes = $state.raw<string[]>([]);
  missing = $state.raw<string[]>([]);
  /** The first answer has arrived; it may have no sample yet. */
  loaded = $state(false);
  #node: string | null = null;
  #seconds = 0;
  #readAt = 0;
  #abort: AbortController | undefined;

  /** Follows the figures of `node`, or the sums if it is `null`, over the last `seconds`, until the returned function is called. */
  follow(node: string | null, seconds: number): () => void {
    if (node !== this.#node || seconds > this.#seconds) this.#readAt = 0;
    if (node !== this.#node) {
      this.samples = [];
      this.nodes = [];
      this.missing = [];
      this.loaded = false;
    }
    [this.#node, this.#seconds] = [node, Math.max(seconds, node === this.#node ? this.#seconds : 0)];
    const timer = setInterval(() => !document.hidden && void this.#read(), EVERY_MS);
    void this.#read();
    return () => {
      clearInterval(timer);
      this.#abort?.abort();
      this.#abort = undefined;
    };
  }

  async #read() {
    if (this.#abort || link.lost || session.asking) return;
    const abort = (this.#abort = new AbortController());
    const now = Date.now();
    const whole = this.#readAt === 0;
    const seconds = whole ? this.#seconds : Math.min(SECONDS_MAX, Math.ceil((now - this.#readAt) / 1000) + OVERLAP_S);
    try {
      const answer = await get<RecordedHistory>('/api/v1/stats/history', { node: this.#node, seconds }, abort.signal);
      if (abort.signal.aborted) return;
      this.#take(samplesOf(answer), whole);
      this.nodes = answer.nodes;
      this.missing = answer.missing ?? [];
      this.loaded = true;
    } catch {
      // The strip or the sign-in form reports the failure; the next interval tries again.
      if (this.#node !== null && !abort.signal.aborted) this.missing = [this.#node];
    } finally {
      if (this.#abort === abort) this.#abort = undefined;
    }
  }

  #take(read: Sample[], whole: boolean) {
    const first = read[0]?.t ?? Infinity;
    const last = read.at(-1)?.t ?? -Infinity;
    // The clock of the node was set back: the samples on the page are in its future.
    const back = !whole && (this.samples.at(-1)?.t ?? -Infinity) > last && read.length > 0;
    const kept = whole || back ? [] : this.samples.filter((sample) => sample.t < first && sample.t > last - SECONDS_MAX * 1000);
    this.samples = [...kept, ...read];
    this.#readAt = back ? 0 : Date.now();
  }

  get last(): Sample | undefined {
    return this.samples.at(-1);
  }
}
