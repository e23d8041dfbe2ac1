// What nodes have recorded over the last hour, in steps of five seconds: of one node, or the sum over all. The nodes keep it; a page
// that opens reads what was before, and then what is new.

import { get } from './api';
import { link } from './link.svelte';
import { session } from './session.svelte';
import type { HistoryFigures, RecordedHistory } from './types';

/** One step. Rates are a second. */
export interface Sample extends HistoryFigures {
  /** When it ended, in milliseconds. */
  t: number;
  /** Nodes that are in it. */
  summed: number;
  drops: Record<string, number>;
}

const EVERY_MS = 5000;
/** Asked for beyond what is new: the last steps of a sum may lack a node that answered late. */
const AGAIN_S = 30;
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
  /** Nodes that are in the last steps, and those that did not answer. */
  nodes = $state.raw<string[]>([]);
  missing = $state.raw<string[]>([]);
  /** An answer has come, though it may have no sample yet. */
  loaded = $state(false);
  #node: string | null = null;
  #seconds = 0;
  #readAt = 0;
  #abort: AbortController | undefined;

  /** Follows the figures of `node`, or of all nodes together when that is null, back to so many seconds, until the returned function is called. */
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
    const seconds = whole ? this.#seconds : Math.min(SECONDS_MAX, Math.ceil((now - this.#readAt) / 1000) + AGAIN_S);
    try {
      const answer = await get<RecordedHistory>('/api/v1/stats/history', { node: this.#node, seconds }, abort.signal);
      if (abort.signal.aborted) return;
      this.#take(samplesOf(answer), whole);
      this.nodes = answer.nodes;
      this.missing = answer.missing ?? [];
      this.loaded = true;
    } catch {
      // The strip or the sign-in form says so; the next reading tries again.
      if (this.#node !== null && !abort.signal.aborted) this.missing = [this.#node];
    } finally {
      if (this.#abort === abort) this.#abort = undefined;
    }
  }

  #take(read: Sample[], whole: boolean) {
    const first = read[0]?.t ?? Infinity;
    const last = read.at(-1)?.t ?? -Infinity;
    // The node's clock was set back: what is shown lies in its future.
    const back = !whole && (this.samples.at(-1)?.t ?? -Infinity) > last && read.length > 0;
    const kept = whole || back ? [] : this.samples.filter((sample) => sample.t < first && sample.t > last - SECONDS_MAX * 1000);
    this.samples = [...kept, ...read];
    this.#readAt = back ? 0 : Date.now();
  }

  get last(): Sample | undefined {
    return this.samples.at(-1);
  }
}
