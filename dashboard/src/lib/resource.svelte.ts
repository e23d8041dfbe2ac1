// Data of a page. It loads when the page opens, when a dependency of the request changes, when the node answers again, after a
// sign-in, and optionally at intervals. Answers to outdated requests are dropped.

import { untrack } from 'svelte';
import { pages, type Query } from './api';
import { link } from './link.svelte';
import { session } from './session.svelte';
import { toasts } from './toasts.svelte';

export class Resource<T> {
  data = $state.raw<T | null>(null);
  loading = $state(false);
  failed = $state(false);
  #loaded = $state(false);
  #fetch: (signal: AbortSignal) => Promise<T>;
  #abort: AbortController | undefined;

  constructor(fetch: (signal: AbortSignal) => Promise<T>) {
    this.#fetch = fetch;
  }

  /** True when the last data are null: the node has no such thing. */
  get missing(): boolean {
    return this.#loaded && this.data === null;
  }

  async load(quiet = false) {
    this.#abort?.abort();
    const abort = new AbortController();
    this.#abort = abort;
    this.loading = true;
    try {
      const data = await this.#fetch(abort.signal);
      if (abort.signal.aborted) return;
      this.data = data;
      this.#loaded = true;
      this.failed = false;
    } catch (error) {
      if (abort.signal.aborted) return;
      this.failed = true;
      if (!quiet) toasts.bad(error);
    } finally {
      if (this.#abort === abort) this.loading = false;
    }
  }

  stop() {
    this.#abort?.abort();
  }
}

/** Creates a resource. Call it during the setup of a component. `fetch` is tracked up to its first await. */
export function resource<T>(fetch: (signal: AbortSignal) => Promise<T>, everyMs = 0): Resource<T> {
  const made = new Resource(fetch);
  $effect(() => {
    void link.epoch;
    void session.epoch;
    if (session.asking) return;
    void made.load();
    if (everyMs === 0) return () => made.stop();
    const timer = setInterval(() => {
      if (!link.lost && !untrack(() => made.loading) && !document.hidden) void made.load(true);
    }, everyMs);
    return () => {
      clearInterval(timer);
      made.stop();
    };
  });
  return made;
}

/** List that is loaded in portions by cursor. */
export class Listing<T> {
  items = $state.raw<T[]>([]);
  next = $state.raw<string | null>(null);
  /** Nodes of the cluster that did not answer. */
  missing = $state.raw<string[]>([]);
  loading = $state(false);
  loaded = $state(false);
  failed = $state(false);
  #path: () => string;
  #query: () => Query;
  #portion: number;
  #abort: AbortController | undefined;

  constructor(path: () => string, query: () => Query, portion: number) {
    this.#path = path;
    this.#query = query;
    this.#portion = portion;
  }

  /** Loads the list from its start. With `keep`, it loads as many items as before, so that the scroll position is kept. */
  async reload(keep = false) {
    await this.#read(null, keep ? Math.max(this.#portion, Math.min(1000, this.items.length)) : this.#portion);
  }

  async more() {
    if (this.next !== null && !this.loading) await this.#read(this.next, this.#portion);
  }

  async #read(cursor: string | null, wanted: number) {
    this.#abort?.abort();
    const abort = new AbortController();
    this.#abort = abort;
    this.loading = true;
    try {
      const page = await pages<T>(this.#path(), this.#query(), cursor, wanted, abort.signal);
      if (abort.signal.aborted) return;
      this.items = cursor === null ? page.items : [...this.items, ...page.items];
      this.next = page.next;
      this.missing = cursor === null ? (page.missing ?? []) : [...new Set([...this.missing, ...(page.missing ?? [])])];
      this.failed = false;
    } catch (error) {
      if (abort.signal.aborted) return;
      this.failed = true;
      toasts.bad(error);
    } finally {
      if (this.#abort === abort) {
        this.loading = false;
        this.loaded = true;
      }
    }
  }

  stop() {
    this.#abort?.abort();
  }
}

/** Creates a listing. Call it during the setup of a component. */
export function listing<T>(path: string | (() => string), query: () => Query = () => ({}), portion = 100): Listing<T> {
  const made = new Listing<T>(typeof path === 'string' ? () => path : path, query, portion);
  $effect(() => {
    void link.epoch;
    void session.epoch;
    if (session.asking) return;
    void made.reload();
    return () => made.stop();
  });
  return made;
}

/** Debounced input: follows `source` 250 ms after its last change. */
export function settled(source: () => string): { readonly value: string } {
  let value = $state(source());
  $effect(() => {
    const now = source();
    const timer = setTimeout(() => (value = now), 250);
    return () => clearTimeout(timer);
  });
  return {
    get value() {
      return value;
    },
  };
}
