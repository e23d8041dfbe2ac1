// What is wrong now, as the node says it: the same list that `meridian top`, `ctl status` and `ctl cluster` print.

import { get, Problem } from './api';
import { link } from './link.svelte';
import { session } from './session.svelte';
import type { Alarm, Page } from './types';

const EVERY_MS = 5000;

class Alarms {
  items = $state.raw<Alarm[]>([]);
  /** The node was asked and has answered. */
  known = $state(false);
  #busy = false;

  /** Without remarks about what could be better. */
  get trouble(): Alarm[] {
    return this.items.filter((one) => one.severity !== 'notice');
  }

  get errors(): number {
    return this.items.filter((one) => one.severity === 'error').length;
  }

  /** Asks until the returned function is called. */
  follow(): () => void {
    const timer = setInterval(() => void this.ask(), EVERY_MS);
    void this.ask();
    return () => clearInterval(timer);
  }

  async ask() {
    if (this.#busy || link.lost || session.asking || document.hidden) return;
    this.#busy = true;
    try {
      this.items = (await get<Page<Alarm>>('/api/v1/alarms')).items;
      this.known = true;
    } catch (error) {
      // Without an answer the strip says so by itself; a refusal is shown as what it is.
      if (error instanceof Problem && error.status !== 401) this.items = [{ node: '', severity: 'error', code: 'unknown', text: `What is wrong is not known: ${error.message}` }];
    } finally {
      this.#busy = false;
    }
  }
}

export const alarms = new Alarms();
