// Short messages at the edge of the page. They disappear after a time, errors later than confirmations.

import { Problem, Unreachable } from './api';

export interface Toast {
  id: number;
  tone: 'good' | 'bad';
  title: string;
  text: string;
}

const SHOWN_MAX = 4;
const GOOD_MS = 4000;
const BAD_MS = 12000;

class Toasts {
  list = $state.raw<Toast[]>([]);
  #next = 0;

  #add(tone: Toast['tone'], title: string, text: string) {
    const id = this.#next++;
    const same = this.list.filter((toast) => toast.title !== title || toast.text !== text);
    this.list = [...same, { id, tone, title, text }].slice(-SHOWN_MAX);
    setTimeout(() => this.close(id), tone === 'good' ? GOOD_MS : BAD_MS);
  }

  good(title: string, text = '') {
    this.#add('good', title, text);
  }

  /** Shows an error, except a lost node and a missing token: other parts of the page show those. */
  bad(error: unknown) {
    if (error instanceof Unreachable) return;
    if (error instanceof DOMException && error.name === 'AbortError') return;
    if (error instanceof Problem) {
      if (error.status === 401) return;
      const more = error.errors.map((one) => `${one.name}: ${one.detail}`).filter((line) => !error.message.includes(line));
      this.#add('bad', error.title, [error.message, ...more].join('\n'));
    } else {
      this.#add('bad', 'Something went wrong', error instanceof Error ? error.message : String(error));
    }
  }

  close(id: number) {
    this.list = this.list.filter((toast) => toast.id !== id);
  }
}

export const toasts = new Toasts();

/** Runs an action and shows its result or error. Returns true if it succeeded. */
export async function attempt(action: () => Promise<string | void>): Promise<boolean> {
  try {
    const message = await action();
    if (message) toasts.good(message);
    return true;
  } catch (error) {
    toasts.bad(error);
    return false;
  }
}
