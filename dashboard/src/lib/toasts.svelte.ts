// Short messages at the edge of the page. Good ones leave by themselves, problems stay until closed or pushed out.

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

  /** Shows what went wrong. What another part of the page shows already (no answer, no token) is left out. */
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

/** Runs an action of the user's; says how it went. True when it went well. */
export async function attempt(action: () => Promise<string | void>): Promise<boolean> {
  try {
    const said = await action();
    if (said) toasts.good(said);
    return true;
  } catch (error) {
    toasts.bad(error);
    return false;
  }
}
