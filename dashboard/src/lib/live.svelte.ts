// Items of a stream: new ones are added to the page ten times per second and the oldest are removed. A pause stops both.

const SHOWN_MAX = 5000;
const FLUSH_MS = 100;

export interface Shown<T> {
  id: number;
  item: T;
}

export class Live<T> {
  items = $state.raw<Shown<T>[]>([]);
  paused = $state(false);
  /** Number of items that arrived during the pause. */
  waiting = $state(0);
  /** Number of items that arrived in total. */
  total = $state(0);
  /** Number of items that the node dropped. */
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
