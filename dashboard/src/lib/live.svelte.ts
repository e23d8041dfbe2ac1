// A stream of things as it is shown: arrivals are gathered and shown ten times a second, the oldest leave, a pause keeps
// what is seen in its place.

const SHOWN_MAX = 5000;
const FLUSH_MS = 100;

export interface Shown<T> {
  id: number;
  item: T;
}

export class Live<T> {
  items = $state.raw<Shown<T>[]>([]);
  paused = $state(false);
  /** Arrived while paused. */
  waiting = $state(0);
  /** Arrived in all. */
  total = $state(0);
  /** What the node could not send. */
  lost = $state(0);
  #pending: Shown<T>[] = [];
  #next = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  push(item: T) {
    this.#pending.push({ id: this.#next++, item });
    if (this.#pending.length > SHOWN_MAX) this.#pending.shift();
    this.#timer ??= setTimeout(() => {
      this.#timer = undefined;
      this.#flush();
    }, FLUSH_MS);
  }

  #flush() {
    this.total = this.#next;
    if (this.paused) {
      this.waiting = this.#pending.length;
      return;
    }
    this.waiting = 0;
    if (this.#pending.length === 0) return;
    this.items = [...this.items, ...this.#pending].slice(-SHOWN_MAX);
    this.#pending = [];
  }

  pause(paused: boolean) {
    this.paused = paused;
    if (!paused) this.#flush();
  }

  clear() {
    this.items = [];
    this.#pending = [];
    this.#next = 0;
    this.total = 0;
    this.lost = 0;
    this.waiting = 0;
  }
}
