// Requests to the node: JSON with the token or the cookie of the session, problem documents as errors, and event streams that are read
// with fetch, because an EventSource cannot send a token.

import { link } from './link.svelte';
import { session } from './session.svelte';
import type { Page } from './types';

export type Query = Record<string, string | number | boolean | string[] | null | undefined>;

export class Problem extends Error {
  readonly status: number;
  readonly title: string;
  readonly errors: { name: string; detail: string }[];

  constructor(status: number, title: string, detail: string, errors: { name: string; detail: string }[] = []) {
    super(detail || title);
    this.status = status;
    this.title = title;
    this.errors = errors;
  }
}

/** The node did not answer. The banner reports it, so no toast is needed. */
export class Unreachable extends Error {}

export interface Options {
  query?: Query;
  body?: unknown;
  signal?: AbortSignal;
}

export function url(path: string, query?: Query): string {
  const parameters = new URLSearchParams();
  for (const [name, value] of Object.entries(query ?? {})) {
    if (value === null || value === undefined || value === '') continue;
    for (const one of Array.isArray(value) ? value : [value]) parameters.append(name, String(one));
  }
  const text = parameters.toString();
  return text ? `${path}?${text}` : path;
}

/** Sends one request. Throws Problem on an error status, and Unreachable without an answer. */
export async function send(method: string, path: string, options: Options = {}): Promise<Response> {
  const headers: Record<string, string> = { Accept: 'application/json' };
  const token = session.token;
  if (token) headers.Authorization = `Bearer ${token}`;
  if (method !== 'GET') headers['Content-Type'] = 'application/json';
  let response: Response;
  try {
    response = await fetch(url(path, options.query), {
      method,
      headers,
      body: options.body === undefined ? undefined : JSON.stringify(options.body),
      signal: options.signal,
      cache: 'no-store',
      // A session of an account is a cookie, which scripts cannot read. A token is sent without it.
      credentials: token ? 'omit' : 'same-origin',
    });
  } catch (error) {
    if (options.signal?.aborted) throw error;
    link.fail();
    throw new Unreachable('The node does not answer.');
  }
  link.answer();
  if (response.ok) return response;
  const problem = await problemOf(response);
  if (response.status === 401) session.refuse(token, problem.message);
  throw problem;
}

async function problemOf(response: Response): Promise<Problem> {
  try {
    const body = (await response.json()) as { title?: string; detail?: string; errors?: { name: string; detail: string }[] };
    return new Problem(response.status, body.title ?? response.statusText, body.detail ?? '', body.errors ?? []);
  } catch {
    return new Problem(response.status, response.statusText, `The node answered with status ${response.status}.`);
  }
}

export async function call<T>(method: string, path: string, options: Options = {}): Promise<T> {
  const response = await send(method, path, options);
  if (response.status === 204) return undefined as T;
  const text = await response.text();
  return (text ? JSON.parse(text) : undefined) as T;
}

export const get = <T>(path: string, query?: Query, signal?: AbortSignal) => call<T>('GET', path, { query, signal });
/** Reads one thing. Returns null if there is none. */
export async function find<T>(path: string, signal?: AbortSignal): Promise<T | null> {
  try {
    return await get<T>(path, {}, signal);
  } catch (error) {
    if (error instanceof Problem && error.status === 404) return null;
    throw error;
  }
}

export const post = <T>(path: string, body: unknown) => call<T>('POST', path, { body });
export const put = <T>(path: string, body: unknown) => call<T>('PUT', path, { body });
export const patch = <T>(path: string, body: unknown) => call<T>('PATCH', path, { body });
export const remove = <T>(path: string, query?: Query) => call<T>('DELETE', path, { query });

/** Reads pages until there are `wanted` items, the list ends, or `requests` requests were made. A page may have few items
 * although more follow, because the node limits its work per request. */
export async function pages<T>(
  path: string,
  query: Query,
  cursor: string | null,
  wanted: number,
  signal?: AbortSignal,
  requests = 12,
): Promise<Page<T>> {
  const items: T[] = [];
  const missing = new Set<string>();
  for (let request = 0; request < requests; request++) {
    const page: Page<T> = await get<Page<T>>(path, { ...query, limit: wanted - items.length, cursor }, signal);
    items.push(...page.items);
    for (const node of page.missing ?? []) missing.add(node);
    cursor = page.next;
    if (cursor === null || items.length >= wanted) break;
  }
  return { items, next: cursor, missing: [...missing] };
}

/** Reads an event stream until it ends or `signal` is aborted. Throws what `send` throws. */
export async function stream(
  path: string,
  query: Query,
  signal: AbortSignal,
  handle: (event: string, data: unknown) => void,
  opened?: () => void,
): Promise<void> {
  const response = await send('GET', path, { query, signal });
  opened?.();
  if (!response.body) return;
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let buffer = '';
  let event = '';
  let data: string[] = [];
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      buffer += value;
      const lines = buffer.split(/\r\n|\n|\r/);
      buffer = lines.pop() ?? '';
      for (const line of lines) {
        if (line === '') {
          if (data.length > 0) handle(event || 'message', parse(data.join('\n')));
          event = '';
          data = [];
        } else if (line.startsWith('event:')) {
          event = line.slice(6).trim();
        } else if (line.startsWith('data:')) {
          data.push(line.slice(5).replace(/^ /, ''));
        }
      }
    }
  } catch (error) {
    if (signal.aborted) return;
    throw error instanceof Problem ? error : new Unreachable('The stream was interrupted.');
  } finally {
    reader.cancel().catch(() => {
      // The stream has ended either way.
    });
  }
}

function parse(text: string): unknown {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}
