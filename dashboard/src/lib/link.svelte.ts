// State of the connection to the node. After a failure it probes every two seconds. `epoch` grows when the node answers
// again, and everything that depends on it loads again.

class Link {
  lost = $state(false);
  /** Time of the first failure, in milliseconds; `null` while the node answers. */
  lostAt = $state<number | null>(null);
  epoch = $state(0);
  #timer: ReturnType<typeof setTimeout> | undefined;

  fail() {
    this.lost = true;
    this.lostAt ??= Date.now();
    this.#timer ??= setTimeout(() => void this.probe(), 2000);
  }

  answer() {
    if (!this.lost) return;
    clearTimeout(this.#timer);
    this.#timer = undefined;
    this.lost = false;
    this.lostAt = null;
    this.epoch++;
  }

  async probe() {
    clearTimeout(this.#timer);
    this.#timer = undefined;
    try {
      await fetch('/health/live', { cache: 'no-store', credentials: 'omit' });
      this.answer();
    } catch {
      this.fail();
    }
  }
}

export const link = new Link();
