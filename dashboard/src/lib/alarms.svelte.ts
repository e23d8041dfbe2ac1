// Active alarms of the node: the list that `meridian top`, `ctl status` and `ctl cluster` print too.

import { get, Problem } from './api';
import { link } from './link.svelte';
import { session } from './session.svelte';
import type { Alarm, Page } from './types';

const EVERY_MS = 5000;

class Alarms {
  items = $state.raw<Alarm[]>([]);
  /** The node has answered at least once. */
  known = $state(false);
  #busy = false;

  /** Alarms without notices. */
  get trouble(): Alarm[] {
    return this.items.filter((one) => one.severity !== 'notice');
  }

  get errors(): number {
    return this.items.filter((one) => one.severity === 'error').length;
  }

  /** Loads the alarms at intervals until the returned function is called. */
  follow(): () => void {
    const timer = setInterval(() => void this.load(), EVERY_MS);
    void this.load();
    return () => clearInterval(timer);
  }

  async load() {
    if (this.#busy || link.lost || session.asking || document.hidden) return;
    this.#busy = true;
    try {
      this.items = (await get<Page<Alarm>>('/api/v1/alarms')).items;
      this.known = true;
    } catch (error) {
      // The strip itself reports a lost node; any other failure becomes an alarm.
      if (error instanceof Problem && error.status !== 401) this.items = [{ node: '', severity: 'error', code: 'unknown', text: `The alarms cannot be loaded: ${error.message}` }];
    } finally {
      this.#busy = false;
    }
  }
}

export const alarms = new Alarms();
